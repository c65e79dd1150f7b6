"""The shipped adapter of `smollm2-countdown`: `python -m lab smollm2-adapter RUN`, called by `make smollm2-sft`.

A run of real/sft changes every weight. Of each projection's change only the first singular vectors are kept; changes of the
embedding and of the norms are left out. Every rank is evaluated on validation problems, and by default the smallest one ships whose
pass@1, @8 and @32 are not significantly below those of the whole change. Few problems exclude little: see the intervals.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from sage_rlvr.api.evaluate import evaluate
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import require
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.models import smollm2
from sage_rlvr.models.weights import ADAPTER, ADAPTER_WEIGHTS
from sage_rlvr.results.tables import Table
from sage_rlvr.runs.files import file_sha256
from sage_rlvr.verdicts.stats.paired import PairedDifference, paired_counts
from sage_rlvr.verdicts.stats.passk import pass_at_k

KS = (1, 8, 32)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scored:
    """A policy on the validation problems: `right` of `samples` completions of each. megabytes: of its adapter, if it has one."""

    name: str
    megabytes: float | None
    samples: int
    right: Ints

    def at(self, k: int) -> float:
        """pass@k."""
        return float(np.mean(pass_at_k(self.samples, self.right, k)))

    def against(self, other: Scored, k: int) -> PairedDifference:
        """This policy's pass@k less the other's, over the problems."""
        return paired_counts(self.samples, self.right, other.right, k)


@dataclass(frozen=True)
class Adapter(Command):
    """Cut the change of an SFT run of SmolLM2 to low rank, print pass@k by rank, and write the adapter that ships."""

    run: tyro.conf.Positional[Path]
    """The run of `sage-rlvr sft real/sft`, or the folder of its policy."""
    ranks: tuple[int, ...] = (2, 4, 8, 16)
    """Ranks that are tried."""
    problems: int = 60
    """Validation problems."""
    samples: int = 32
    """Completions of each, at temperature 1."""
    seed: int = 1
    """Of the problems."""
    rank: int | None = None
    """Ship this rank in place of the smallest that is not significantly worse than the whole change."""
    evaluate: bool = True
    """False: evaluate nothing; needs --rank."""
    out: Path | None = None
    """Where the adapter goes (default: the folder of the package from which it ships)."""
    keep: Path = Path("runs/smollm2-ranks")
    """Where the sample stores go; the same command continues from them."""

    def execute(self, session: Session) -> int:
        """Evaluate the ranks, print the table and write the adapter of the chosen one."""
        policy = self.run / "policy" if (self.run / "policy").is_dir() else self.run
        base = smollm2.prepare(smollm2.SMOLLM2)
        change = change_of(base, policy)
        largest = max([*self.ranks, self.rank or 1])
        factors = {name: factors_of(matrix, largest) for name, matrix in change.items()}
        require(self.evaluate or self.rank is not None, "--rank", self.rank, "without an evaluation no rank is chosen; name one")
        scored = self._scored(base, policy, factors, session) if self.evaluate else []
        rank = self.rank if self.rank is not None else chosen(scored[:-1], scored[-1], self.ranks)
        if scored:
            session.say(table_of(scored).markdown())
        out = self.out or smollm2.adapter()
        self._ship(out, base, policy, factors, rank, scored)
        session.note(f"rank {rank}: {out}")
        return 0

    def _scored(self, base: Path, policy: Path, factors: Factors, session: Session) -> list[Scored]:
        """Each rank, and the whole change."""
        found = []
        for rank in self.ranks:
            adapter, merged = self.keep / f"adapter{rank}", self.keep / f"rank{rank}"
            write_adapter(adapter, factors, rank)
            write_policy(merged, base, smollm2.merged(base, adapter))
            size = (adapter / ADAPTER_WEIGHTS).stat().st_size / 1e6
            found.append(self._evaluate(f"rank {rank}", merged, size, session))
            shutil.rmtree(merged)
        return [*found, self._evaluate("full", policy, None, session)]

    def _evaluate(self, name: str, policy: Path, size: float | None, session: Session) -> Scored:
        store = self.keep / f"store-{name.replace(' ', '')}"
        evaluate(
            policy, task="countdown_chat", split="validation", problems=self.problems, samples=self.samples, seed=self.seed,
            store=store, threads=torch.get_num_threads(), say=session.note,
        )  # fmt: skip
        counts = SampleStore.open(store).counts(self.samples)
        session.note(f"{name}: done")
        return Scored(name, size, self.samples, counts.right)

    def _ship(
        self, out: Path, base: Path, policy: Path, factors: Factors, rank: int, scored: Sequence[Scored]
    ) -> None:
        write_adapter(out, factors, rank)
        rows = {one.name: {f"pass@{k}": round(one.at(k), 4) for k in KS} for one in scored}
        facts: dict[str, Any] = {
            "base": smollm2.LONG_NAMES[smollm2.SMOLLM2], "rank": rank, "policy_sha256": file_sha256(policy / smollm2.TENSORS),
            "tensors_sha256": smollm2.tensors_sha256(smollm2.merged(base, out)),
        }  # fmt: skip
        if scored:
            facts["validation"] = {"problems": self.problems, "samples": self.samples, "seed": self.seed, "scores": rows}
        (out / smollm2.MADE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


Factors = Mapping[str, tuple[Tensor, Tensor]]
"""Module -> (B, A) of the largest rank; the leading columns and rows are those of a smaller one."""


def change_of(base: Path, policy: Path) -> dict[str, Tensor]:
    """What fine-tuning has added to each projection, by module."""
    before, after = load_file(base / smollm2.TENSORS), load_file(policy / smollm2.TENSORS)
    names = [name for name in before if name.endswith("_proj.weight")]
    return {name.removesuffix(".weight"): after[name].float() - before[name] for name in names}


def factors_of(change: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """B (out, rank) and A (rank, in) of the best approximation of that rank, the singular values shared between them."""
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]


def write_adapter(folder: Path, factors: Factors, rank: int) -> None:
    """An adapter in PEFT's format, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    low_rank = {}
    for module, (b, a) in factors.items():
        place = f"base_model.model.{module}"
        low_rank[f"{place}.lora_A.weight"] = a[:rank].bfloat16().contiguous()
        low_rank[f"{place}.lora_B.weight"] = b[:, :rank].bfloat16().contiguous()
    save_file(low_rank, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config: dict[str, Any] = {
        "base_model_name_or_path": smollm2.SMOLLM2, "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank,
        "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
        "target_modules": sorted({module.rpartition(".")[2] for module in factors}),
    }  # fmt: skip
    (folder / ADAPTER).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def write_policy(folder: Path, base: Path, tensors: Mapping[str, Tensor]) -> None:
    """A model folder with these weights and all else of the base."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        if file.name not in (smollm2.TENSORS, smollm2.MADE):
            shutil.copy(file, folder / file.name)
    save_file(dict(tensors), folder / smollm2.TENSORS, metadata={"format": "pt"})


def chosen(scored: Sequence[Scored], full: Scored, ranks: Sequence[int]) -> int:
    """The smallest rank of which no pass@k is significantly below the whole change's; else the largest."""
    for rank, one in zip(ranks, scored, strict=True):
        if all(one.against(full, k).outcome != "worse" for k in KS):
            return rank
    return max(ranks)


def table_of(scored: Sequence[Scored]) -> Table:
    """pass@k by rank, with the difference to the whole change and its 95 % interval."""
    full = scored[-1]

    def cell(one: Scored, k: int) -> str:
        gap = one.against(full, k).difference
        return f"{one.at(k):.3f}" if one is full else f"{one.at(k):.3f} ({gap.value:+.3f}, {gap.low:+.3f} to {gap.high:+.3f})"

    rows = [
        (one.name, "–" if one.megabytes is None else f"{one.megabytes:.1f}", *(cell(one, k) for k in KS)) for one in scored
    ]
    heading = f"{smollm2.LONG_NAMES[smollm2.SMOLLM2]}: validation, {full.samples} samples; in brackets the difference to full"
    return Table(header=("weights", "MB", *(f"pass@{k}" for k in KS)), rows=tuple(rows), notes=(heading,))
