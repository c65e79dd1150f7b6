"""The base model's stored samples in a run: how many of each problem are correct, and the texts of the correct ones.

`evaluation/base_samples.py` reads them from a sample store; the engines look them up by the id of a problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError, DataError, suggest

BaseCounts = Callable[[Mapping[str, object]], tuple[int, int]]
"""Function from a row of TRL's data to the base model's samples of its problem: (correct ones, all)."""


def drawn_by(model: str = "MODEL", problems: int | str = "N", options: Mapping[str, Any] | None = None) -> str:
    """Return the command that draws the samples of `problems` training problems; options: `chat_template_kwargs`."""
    more = ("--chat-template-kwargs", json.dumps(dict(options))) if options else ()
    size = ("--problems", problems, "--samples", 64)
    return suggest("eval", model, "--task", "RECIPE.yaml", "--split", "train", *size, *more, "--store", "FOLDER")


@dataclass(frozen=True, eq=False)
class BaseSamples:
    """Stored samples of the base model.

    where    their place, for messages
    counts   problem id -> (correct ones, all)
    answers  problem ids -> (problem id, text) of each correct one, in the order in which they were sampled
    """

    where: str
    counts: Mapping[str, tuple[int, int]]
    answers: Callable[[Sequence[str]], list[tuple[str, str]]]

    def of(self, problem_id: str) -> tuple[int, int]:
        """Return (correct samples, all samples) of a problem. Raise DataError for a problem without samples."""
        if problem_id not in self.counts:
            raise DataError(
                f"base_samples = {self.where}: no samples of training problem {problem_id!r}, but of {len(self.counts):,} other "
                f"problems; sample the base model on all training problems ({drawn_by()}), or train on fewer"
            )
        return self.counts[problem_id]

    def check(self, problem_ids: Iterable[str]) -> None:
        """Raise DataError that names the first of these problems without samples."""
        for problem_id in problem_ids:
            self.of(problem_id)

    def rows(self, problem_ids: Iterable[str], group_size: int = 1) -> Tensor:
        """Return the counts of each problem in every row of its group, (P * group_size, 2) int64."""
        return torch.tensor([self.of(one) for one in problem_ids], dtype=torch.int64).repeat_interleave(group_size, 0)

    def above(self, share: float, problem_ids: Iterable[str]) -> list[str]:
        """Return the problems of whose samples more than this share is right: those that `PromptGate(at_most=share)` refuses."""
        from sage_rlvr.core.advantages.prompts import PromptGate  # late: only a buffer that stores base samples asks

        names = list(problem_ids)
        admitted = PromptGate(at_most=share, of="base").weigh(*self.rows(names).double().reshape(-1, 2).unbind(dim=1))
        return [name for name, weight in zip(names, admitted.tolist(), strict=True) if not weight]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the counts: a resumed run must find the same."""
        return hashlib.sha256(json.dumps(sorted(self.counts.items())).encode()).hexdigest()

    @property
    def line(self) -> str:
        """Return a description of the samples, as text."""
        sizes = [tried for _, tried in self.counts.values()]
        least = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        none = sum(right == 0 for right, _ in self.counts.values())
        return f"base samples: {self.where}, {len(sizes):,} problems with {least} samples each, {none:,} without a right one"


def check_base_counts(needs: frozenset[str], counts: BaseCounts | None) -> BaseCounts | None:
    """Return the function of a trainer, None if no part reads base samples. Raise ConfigError if one does and there are none."""
    if "base_counts" not in needs:
        return None
    if counts is None:
        raise ConfigError(
            "SageTrainer: the method weighs prompts by samples of the base model; pass base_counts=, a function (row of the data) "
            "-> (right samples of its problem, all samples of it)"
        )
    return counts


def checked_base(method: Method, base: BaseSamples | None) -> BaseSamples | None:
    """Return the samples that the method reads, None if it reads none. Raise ConfigError if it reads some and there are none."""
    if "base_counts" not in method.needs:
        return None
    if base is None:
        raise ConfigError(
            f"method {method.name} reads samples of the base model on the training problems, and base_samples is null; set it to "
            f"their folder ({drawn_by()})"
        )
    return base
