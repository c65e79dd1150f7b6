"""Code of the worker process of the audit of a reward: load a foreign reward, describe it, call it.

"judge|module:function" or "judge|/path/file.py:function" as the function of a `Pool`: the reward is loaded when its worker starts,
before any time limit starts. Another "|" may be followed by the arguments of a first call, which the worker makes then too: a first
call may import and compile. A job is (what, ...) in JSON; its result is a `Verdict`, as from `outcome`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CellType, CodeType
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.plugins import executed
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.foreign import RewardCall, call, lacking, line_of, outcome, parameters_of, signature_of

MISSING = "needs"  # prefix of the reason if a parameter has no value
MOST_PHRASES = 60  # texts of a reward's code that are tried
SAME = 1e-6  # rewards that differ by no more are equal


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
    sys.path.append(os.getcwd())  # a console script does not look for modules in it
    try:
        path = Path(where)
        target: Any = executed(path, f"reward_{path.stem}") if where.endswith(".py") else importlib.import_module(where)
    except BaseException as error:  # sys.exit too, which would end the worker silently
        raise ConfigError(f"{type(error).__name__}: {error}{line_of(error, where)}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            there = [own for own, value in vars(target).items() if callable(value) and not own.startswith("_")]
            raise ConfigError(f"{where} has no {name}; it has {', '.join(there[:20])}")
        target = getattr(target, part)
    return target


def _done(function: Any, what: str, *args: Any) -> Verdict:
    jobs: dict[str, Callable[..., Verdict]] = {"describe": _described, "phrase": _phrase, "one": _one, "batch": _batch}
    return jobs[what](function, *args)


def _described(function: Any) -> Verdict:
    """The signature, "" for none, and the names of the parameters."""
    names = [("**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else "") + name
             for name, one in parameters_of(function).items()]  # fmt: skip
    return Verdict("right", f"{signature_of(function) or ''}|{', '.join(names)}")


def _phrase(function: Any, index: int) -> Verdict:
    """A text in the function's code; the score is how many there are."""
    texts = phrases_of(function)
    return Verdict("right", texts[index] if index < len(texts) else "", float(len(texts)))


def phrases_of(function: Any) -> list[str]:
    """The texts in the code of a function and of the parts of its module that it uses: they may be the reason for a reward.

    At most `MOST_PHRASES`, of 2 to 80 characters, a text with digits only if it has a word too; for a pattern its plain text.
    """
    found: dict[str, None] = {}
    waiting, seen = list(_functions_of(function)), set()
    while waiting:
        one = waiting.pop()
        code = getattr(inspect.unwrap(one), "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        scope = getattr(inspect.unwrap(one), "__globals__", {})
        values, codes = [], [code]
        while codes:
            part = codes.pop()
            codes += [const for const in part.co_consts if isinstance(const, CodeType)]
            values += part.co_consts
            values += [scope[name] for name in part.co_names if name in scope]
        values += [cell.cell_contents for cell in getattr(one, "__closure__", None) or () if cell != CellType()]
        for value in values:
            found |= dict.fromkeys(filter(_is_phrase, map(_unescaped, _texts_in(value))))
        waiting += [value for value in values if inspect.isfunction(value) and value.__globals__ is scope]
    return list(found)[:MOST_PHRASES]


def _functions_of(function: Any) -> list[Any]:
    """A function; for a callable object its method; for a Rubric its functions."""
    funcs = getattr(function, "funcs", None)
    if isinstance(funcs, list):
        return funcs
    if isinstance(function, partial):
        return _functions_of(function.func)
    return [function] if hasattr(function, "__code__") else [type(function).__call__]


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, re.Pattern):
        return [value.pattern] if isinstance(value.pattern, str) else []
    some = isinstance(value, tuple | list | set | frozenset | dict) and len(value) <= MOST_PHRASES
    return [one for one in value if isinstance(one, str)] if some else []


def _unescaped(text: str) -> str:
    """A pattern as text, if it has no special characters."""
    return re.sub(r"^\(\?[a-z]+\)|\\b|\\(?=[^a-zA-Z0-9])", "", text).strip() if "\\" in text or "(?" in text else text.strip()


def _is_phrase(text: str) -> bool:
    if not (2 <= len(text) <= 80 and text.isprintable()):
        return False
    return not any(map(str.isdigit, text)) or re.search(r"[A-Za-z]{3}", text) is not None


def _one(function: Any, signature: Any, given: dict[str, Any]) -> Verdict:
    """The reward of one completion as the score; the reason is the seconds that the call took."""
    one = RewardCall(**given)
    if missing := lacking(function, signature, one):
        return Verdict("wrong", f"{MISSING} {', '.join(missing)}, which is no column of the rows")
    began = time.perf_counter()
    verdict = outcome(lambda: call(function, signature, [one])[0], function)
    return replace(verdict, reason=f"{time.perf_counter() - began:.9f}") if verdict.label == "right" else verdict


def _batch(function: Any, signature: Any, given: Sequence[dict[str, Any]], single_scores: Sequence[float | None]) -> Verdict:
    """The number of these completions with another reward than in a single call, as the score; the reason names the first of them.

    single_scores: the reward of each in a single call."""
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
    """Whether two rewards of one completion are the same, None only equals None: within `SAME`."""
    return one == other if one is None or other is None else abs(one - other) <= SAME
