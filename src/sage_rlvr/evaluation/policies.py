"""The policies of an evaluation by samples: loaded, only their tokens, or combined from two; and the origin of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from sage_rlvr.evaluation.sampling import Scorer, check_vocabulary
from sage_rlvr.evaluation.settings import SERVERS
from sage_rlvr.models.borrowing import Borrowing, BorrowingGenerator
from sage_rlvr.models.devices import placed
from sage_rlvr.models.episodes import positions_of
from sage_rlvr.models.folders import NAMED, cached_folder, folder_of
from sage_rlvr.models.generation import Generator, GeneratorSource
from sage_rlvr.models.interpolation import Interpolated
from sage_rlvr.models.llama.net import supports
from sage_rlvr.models.policy import Tokens, load_policy, load_tokens, revision_of
from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.tasks.base import Task

UNKNOWN = "revision unknown"
Policy = str | Interpolated | Borrowing


def load_here(of: Policy, dtype: str) -> tuple[Any, Tokens]:
    """A policy in eval mode on a GPU, else on the CPU, placed as training places it, and its tokens."""
    model, tokens = load_policy(of, dtype) if isinstance(of, str) else of.load(dtype)
    return placed(model, "cuda" if torch.cuda.is_available() else "cpu"), tokens


def tokens_of(of: Policy) -> Tokens:
    """The tokens of a policy, without its weights."""
    return load_tokens(of if isinstance(of, str) else of.policy)


def commit_of(model: Policy, engine: str) -> str:
    """The commit of the Hub that a policy's weights were loaded at, from the local cache; otherwise "revision unknown", as for a
    combination of two policies, whose revision contains both.

    vLLM loads the cache's `main` after the tokenizer was loaded. The weights of a server cannot be known.
    """
    folder = cached_folder(model) if isinstance(model, str) and engine not in SERVERS else None
    return UNKNOWN if folder is None else folder.name


def revision_at(model: Policy, commit: str | None = None) -> str:
    """The weights of a policy in a store's identity. commit: of the Hub, since a model there may change."""
    weights = revision_of(model) if isinstance(model, str) else model.revision
    return f"{weights}@{commit}" if commit and weights.startswith("hub:") else weights


@dataclass(frozen=True, eq=False)
class LoadedPolicy:
    """The policy of an evaluation, as its steps need it. `load_to_sample` makes it.

    policy: what was loaded; revision: its weights in a store's identity
    model: the weights, None if they are not needed in this process
    lender: the model that it borrows from, None for a policy that does not
    """

    policy: Policy
    tokens: Tokens
    revision: str
    model: Any = None
    lender: Any = None

    @property
    def window(self) -> int | None:
        """The positions of its weights; None if unknown."""
        return None if self.model is None else positions_of(self.model)

    @property
    def sized(self) -> Any:
        """The model whose size decides how many problems are drawn together; None if only one can be."""
        return None if self.lender is not None and not supports(self.lender) else self.model

    @property
    def name_or_path(self) -> str | None:
        """A name by which it is found again: the full path of a folder, otherwise its name; None for a combination of two."""
        if not isinstance(self.policy, str):
            return None
        folder = folder_of(self.policy)
        return str(folder.resolve()) if self.policy not in NAMED and folder.is_dir() else self.policy

    def generator(self, drawer: Any, task: Task, **settings: Any) -> Generator:
        """Make its generator: of the class `drawer`, or one that borrows at states of the task. settings: of `GeneratorSource`."""
        source = GeneratorSource(str(self.policy), self.tokens, model=self.model, **settings)
        if self.lender is None:
            return drawer.of(source)  # type: ignore[no-any-return]
        assert isinstance(self.policy, Borrowing) and isinstance(task, ClassifiesStates)
        classes = frozenset(self.policy.classes)
        at = lru_cache(maxsize=1 << 16)(lambda text: task.state_class(text) in classes)
        return BorrowingGenerator(self.model, self.tokens, source.decoding, self.lender, at, together=source.together)


def load_to_sample(policy: Policy, dtype: str, engine: str, *, drawing: bool, local: bool) -> LoadedPolicy:
    """A policy, with weights if samples are drawn from them in this process (`local`). Raises ConfigError if the tokens of a model
    that it borrows from have other texts."""
    model, tokens = load_here(policy, dtype) if drawing and local else (None, tokens_of(policy))
    lender = None
    if drawing and isinstance(policy, Borrowing):
        lender, others = load_here(policy.base, dtype)
        check_vocabulary(f"--borrow {policy.base}", others, tokens)
    commit = getattr(getattr(model, "config", None), "_commit_hash", None) or commit_of(policy, engine)
    return LoadedPolicy(policy, tokens, revision_at(policy, commit), model, lender)


def scorer_under(base: str, dtype: str, tokens: Tokens) -> tuple[Scorer, str]:
    """The scorer under a base, and the base's name and weights as a store's version."""
    return Scorer.of(base, *load_here(base, dtype), tokens), f"{base} {revision_of(base)}"
