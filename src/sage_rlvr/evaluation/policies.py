"""The policies of an evaluation by samples: loaded, only their tokens, or combined from two; and the origin of their weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from sage_rlvr.evaluation.sampling import check_vocabulary
from sage_rlvr.evaluation.settings import SERVERS
from sage_rlvr.models.borrowing import Borrowing, BorrowingGenerator
from sage_rlvr.models.devices import placed
from sage_rlvr.models.folders import NAMED, cached_folder, folder_of
from sage_rlvr.models.generation import GeneratorSource
from sage_rlvr.models.interpolation import Interpolated
from sage_rlvr.models.policy import Tokens, load_policy, load_tokens
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


def name_or_path(model: str) -> str:
    """A name by which the policy is found again: the full path of a folder, otherwise its name."""
    folder = folder_of(model)
    return str(folder.resolve()) if model not in NAMED and folder.is_dir() else model


def lender_of(model: Policy, dtype: str, tokens: Tokens) -> Any:
    """The model that a policy borrows from, None for a policy that does not. Raises ConfigError if its tokens have other texts."""
    if not isinstance(model, Borrowing):
        return None
    lender, others = load_here(model.base, dtype)
    check_vocabulary(f"--borrow {model.base}", others, tokens)
    return lender


def borrowing(model: Borrowing, task: Task, source: GeneratorSource, lender: Any) -> BorrowingGenerator:
    """The generator of a policy that borrows from `lender`."""
    classes = frozenset(model.classes)
    assert isinstance(task, ClassifiesStates)
    at = lru_cache(maxsize=1 << 16)(lambda text: task.state_class(text) in classes)
    return BorrowingGenerator(source.model, source.tokens, source.decoding, lender, at, together=source.together)
