"""What a worker process of the audit of a reward runs: load a reward that is not ours, describe it, call it.

"judge|module:function" or "judge|/path/file.py:function" as the function of a `Pool`: the reward is loaded when its worker starts,
before any limit on time counts. Behind another "|" there may be the arguments of a first call, which the worker makes then too:
a first call may import and compile. A job is (what, ...) in JSON; its result is a `Verdict`, as of `outcome`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.plugins import executed
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.foreign import RewardCall, call, lacking, line_of, outcome, parameters_of, signature_of

MISSING = "needs"  # how the reason begins where a parameter has no value
SAME = 1e-6  # rewards that differ by no more are one


def __getattr__(name: str) -> Any:
    if name.startswith("judge|"):
        reward, _, first = name.removeprefix("judge|").partition("|")
        function = _loaded(reward)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a reward may log a line per call
        if first:
            _one(function, *json.loads(first))
        return partial(_done, function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded(reward: str) -> Any:
    where, _, name = reward.rpartition(":")
    sys.path.append(os.getcwd())  # a console script does not look for modules there
    try:
        path = Path(where)
        target: Any = executed(path, f"reward_{path.stem}") if where.endswith(".py") else importlib.import_module(where)
    except BaseException as error:  # sys.exit too, which would end the worker without a word
        raise ConfigError(f"{type(error).__name__}: {error}{line_of(error, where)}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            there = [own for own, value in vars(target).items() if callable(value) and not own.startswith("_")]
            raise ConfigError(f"{where} has no {name}; it has {', '.join(there[:20])}")
        target = getattr(target, part)
    return target


def _done(function: Any, what: str, *args: Any) -> Verdict:
    jobs: dict[str, Callable[..., Verdict]] = {"describe": _described, "one": _one, "batch": _batch}
    return jobs[what](function, *args)


def _described(function: Any) -> Verdict:
    """The signature, "" for none, and the names of the parameters."""
    names = [("**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else "") + name
             for name, one in parameters_of(function).items()]  # fmt: skip
    return Verdict("right", f"{signature_of(function) or ''}|{', '.join(names)}")


def _one(function: Any, signature: Any, given: dict[str, Any]) -> Verdict:
    """The reward of one completion as the score; the reason is the seconds that the call took."""
    one = RewardCall(**given)
    if missing := lacking(function, signature, one):
        return Verdict("wrong", f"{MISSING} {', '.join(missing)}, which is no column of the rows")
    began = time.perf_counter()
    verdict = outcome(lambda: call(function, signature, [one])[0], function)
    return replace(verdict, reason=f"{time.perf_counter() - began:.9f}") if verdict.label == "right" else verdict


def _batch(function: Any, signature: Any, given: Sequence[dict[str, Any]], single_scores: Sequence[float | None]) -> Verdict:
    """How many of these completions earn another reward here than alone, as the score; the reason names the first of them.

    single_scores: what each earned alone."""
    calls = [RewardCall(**one) for one in given]
    values: list[Any] = []

    def called() -> float:
        values.extend(call(function, signature, calls))
        return 0.0  # `outcome` expects a number; the rewards themselves are read one by one below

    verdict = outcome(called, function)
    if verdict.label != "right":
        return verdict
    rewards = [outcome(partial(lambda value: value, value), function) for value in values]
    other = [i for i, (one, before) in enumerate(zip(rewards, single_scores, strict=True)) if not same(one.score, before)]
    why = "" if not other else f"{other[0]}|{in_short(rewards[other[0]].score)}"
    return Verdict("right", why, float(len(other)))


def in_short(reward: float | None) -> str:
    """A reward in messages."""
    return "None" if reward is None else f"{reward:g}"


def same(one: float | None, other: float | None) -> bool:
    """Whether two rewards of one completion are the same, None only as None: within `SAME`."""
    return one == other if one is None or other is None else abs(one - other) <= SAME
