"""The audit of a reward as a guard: before training (`SageTrainer(..., audit=True)`), and in a test (`testing.check_reward`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

from sage_rlvr.contrib.audit.pages import lines_of
from sage_rlvr.contrib.audit.rewards import RewardAudit, audit_reward
from sage_rlvr.errors import ConfigError, choose_from

INSIDE = "SAGE_RLVR_AUDITED"  # set while a worker process loads the file of the reward
MOST_ROWS = 1000  # of a data set, evenly spaced: the guess floor needs their golds
LISTED = 3  # rows of a failed check
SECONDS = 30.0  # of a call: the machine may be busy, and a reward that hangs is found all the same


def complaint_about(
    reward: str | Callable[..., Any], rows: str | Path | Sequence[Mapping[str, Any]], **options: Any
) -> tuple[str, RewardAudit]:
    """Audit a reward. Return the failed checks as text, "" if all passed, and the audit. Arguments as in
    `audit_reward`, with more seconds for a call."""
    with _inside():
        found = audit_reward(_importable(reward), rows, **{"seconds": SECONDS} | options)
    if found.passed:
        return "", found
    failed = replace(found, checks=tuple(check for check in found.checks if not check.passed))
    return "\n".join(lines_of(failed, LISTED)), found


def check_reward(reward: str | Callable[..., Any], rows: str | Path | Sequence[Mapping[str, Any]], **options: Any) -> None:
    """Raise AssertionError with the failed checks unless a reward passes its audit. Arguments as in `audit_reward`."""
    complaint, _ = complaint_about(reward, rows, **options)
    assert not complaint, complaint


def audit_trainer(rewards: Mapping[str, Any], rows: Any, options: Mapping[str, Any]) -> tuple[str, str]:
    """Audit the reward that judges answers, before training.

    Args:
        rewards: The reward functions by name.
        rows: The training set.
        options: Arguments of `audit_reward`, and "reward", the name of the one that is audited.

    Returns:
        The failed checks as text, "" if all passed, and a line on the audit.

    Raises:
        ConfigError: If there are several reward functions and none is named, or the reward cannot be loaded by a worker process.
    """
    known = [*signature(audit_reward).parameters][2:]
    for name in options:
        if name != "reward" and name not in known:
            raise ConfigError(f"SageTrainer: audit has no option {name!r}{choose_from(name, ['reward', *known])}")
    name = options.get("reward", next(iter(rewards)) if len(rewards) == 1 else None)
    if name not in rewards:
        first = next(iter(rewards))
        raise ConfigError(
            f"SageTrainer: audit of one reward function, of {', '.join(rewards)}; name the one that judges answers: "
            f"audit={{'reward': {first!r}}}"
        )
    settings = {key: value for key, value in options.items() if key != "reward"}
    complaint, found = complaint_about(rewards[name], _some(rows), **settings)
    passed = sum(check.bar for check in found.checks)
    return complaint, f"audit of the reward {name}: {passed} checks passed ({found.head})"


def _some(rows: Any) -> list[Mapping[str, Any]]:
    """At most `MOST_ROWS` rows of a data set, evenly spaced; the first of a stream."""
    try:
        count = len(rows)
    except TypeError:
        return list(islice(iter(rows), MOST_ROWS))
    return [rows[i] for i in range(0, count, max(1, -(-count // MOST_ROWS)))]


def _importable(reward: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """A reward as the worker loads it; an object without the name of a function by its name in its module."""
    if isinstance(reward, str) or hasattr(reward, "__qualname__"):
        return reward
    module, name = type(reward).__module__, str(getattr(reward, "__name__", ""))
    return f"{module}:{name}" if vars(sys.modules[module]).get(name) is reward else reward


@contextmanager
def _inside() -> Iterator[None]:
    """Mark the environment of the worker. Raise ConfigError in a worker: the reward's file starts an audit when it is loaded."""
    if os.environ.get(INSIDE):
        raise ConfigError(
            "loading the file of the reward starts the audit again; put the training behind `if __name__ == \"__main__\":`, or the "
            "reward into a file of its own"
        )
    os.environ[INSIDE] = "1"
    try:
        yield
    finally:
        del os.environ[INSIDE]
