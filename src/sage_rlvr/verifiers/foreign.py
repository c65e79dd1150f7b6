"""Reward functions in the signatures of other libraries: detecting the signature, one call for all, the outcome as a `Verdict`.

    trl         reward(completions, **columns) -> [number or None]         also with prompts
    verl        compute_score(data_source, solution_str, ground_truth, extra_info) -> number, or {"score": number}
    verifiers   func(completion, answer, **kwargs) -> number               a Rubric is the weighted sum of its functions
    row         score(completion, row) -> number                           the signature of this package

Each may be async. A function gets the arguments that it names, or all of them if it takes **kwargs. This module does not import
those libraries.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sage_rlvr.verifiers.verdict import Verdict

Signature = Literal["trl", "verl", "verifiers", "row"]
SIGNATURES: dict[Signature, str] = {
    "trl": "reward(completions, **columns)",
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info)",
    "verifiers": "func(completion, answer, **kwargs)",
    "row": "score(completion, row)",
}
GOLDS = ("answer", "gold", "ground_truth", "solution", "target", "expected_answer")
"""Parameters that mean the gold: one without a column of its name gets it."""
NOT_COLUMNS = ("prompt", "completion", "completions", "completion_ids")  # from a data set, perhaps under another name in TRL
NO_REWARD = "no reward"  # the reason if a reward is None


@dataclass(frozen=True, slots=True)
class RewardCall:
    """A completion for a reward function. `RewardTask` and the audit of rewards make it; `call` passes it on in the function's
    signature.

    gold: as in the row; prompt: text or messages; chat: as a conversation.
    """

    text: str
    row: Mapping[str, Any]
    gold: Any
    prompt: Any = ""
    chat: bool = False

    @property
    def completion(self) -> Any:
        """The completion as a trainer passes it: a text, or the assistant's message in a list."""
        return [{"role": "assistant", "content": self.text}] if self.chat else self.text


# ---- which signature


def signature_of(function: Any) -> Signature | None:
    """The signature by the names of the parameters; None for a function that fits none."""
    if rubrics_of(function):
        return "verifiers"
    names = parameters_of(function)
    if "solution_str" in names:
        return "verl"
    if "completions" in names:
        return "trl"
    if "completion" in names:
        return "row" if "row" in names else "verifiers"
    return None


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of any callable; empty if Python knows none."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def rubrics_of(value: Any) -> list[Any]:
    """The rubrics of a Rubric or a RubricGroup of `verifiers`; empty for other functions."""
    if isinstance(value, type):
        return []
    grouped = getattr(value, "rubrics", None)
    if isinstance(grouped, list):
        return [one for rubric in grouped for one in rubrics_of(rubric)]
    return [value] if isinstance(getattr(value, "funcs", None), list) and hasattr(value, "weights") else []


def lacking(function: Any, signature: Signature, given: RewardCall) -> list[str]:
    """The parameters without a default that a call would not fill."""
    functions = [one for rubric in rubrics_of(function) for one in rubric.funcs] or [function]
    return [name for one in functions for name in _required(one) if name not in _arguments(one, signature, [given], function)]


def _required(function: Any) -> Iterator[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in parameters_of(function).items():
        if parameter.default is parameter.empty and parameter.kind not in variadic:
            yield name


# ---- the call


def call(function: Any, signature: Signature, calls: Sequence[RewardCall]) -> list[Any]:
    """The function's result for each completion: one call for a TRL reward, otherwise one call per completion. Raises TypeError for
    a TRL reward that does not return one value per completion."""
    if signature == "trl":
        values = _finished(function(**_arguments(function, "trl", calls)))
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
            raise TypeError(f"{_many(calls)} got {shown(values):.80}; a list with one number per completion is expected")
        if len(values) != len(calls):
            raise TypeError(f"{_many(calls)} got {len(values)} rewards: {shown(values):.80}")
        return list(values)
    if rubrics := rubrics_of(function):
        return [sum(_weighted(rubric, given) for rubric in rubrics) for given in calls]
    return [_scored(_finished(function(**_arguments(function, signature, [given])))) for given in calls]


def _many(calls: Sequence[RewardCall]) -> str:
    return "one completion" if len(calls) == 1 else f"{len(calls)} completions"


def _weighted(rubric: Any, given: RewardCall) -> float:
    """The reward of a Rubric. A function of a group gets the group of this one completion."""
    total = 0.0
    for function, weight in zip(rubric.funcs, rubric.weights, strict=True):
        value = _finished(function(**_arguments(function, "verifiers", [given], rubric)))
        total += weight * _number(value[0] if isinstance(value, list) else value)
    return total


def _scored(value: Any) -> Any:
    """The score of a result of verl, which may be {"score": number, ...} too."""
    return value["score"] if isinstance(value, Mapping) and "score" in value else value


def _finished(value: Any) -> Any:
    """The value of an async function."""

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited()) if inspect.isawaitable(value) else value


def _arguments(function: Any, signature: Signature, calls: Sequence[RewardCall], rubric: Any = None) -> dict[str, Any]:
    """Arguments of a call that the function accepts."""
    makers: dict[Signature, Callable[[Sequence[RewardCall]], dict[str, Any]]] = {
        "trl": _trl,
        "verl": lambda calls: _verl(calls[0]),
        "verifiers": lambda calls: _verifiers(calls[0]) | dict(getattr(rubric, "class_objects", {})),
        "row": lambda calls: _row(calls[0]),
    }
    arguments, parameters = makers[signature](calls), parameters_of(function)
    if calls[0].gold is not None:
        golds = [given.gold for given in calls] if signature == "trl" else calls[0].gold
        arguments = {name: golds for name in GOLDS if name in parameters} | arguments
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _trl(calls: Sequence[RewardCall]) -> dict[str, Any]:
    names = dict.fromkeys(name for given in calls for name in given.row if name not in NOT_COLUMNS)
    columns: dict[str, Any] = {name: [given.row.get(name) for given in calls] for name in names}
    own = {
        "prompts": [given.prompt for given in calls],
        "completions": [given.completion for given in calls],
        "completion_ids": [list(range(len(given.text.split()))) for given in calls],  # no tokenizer: one id per word
    }
    return columns | own


def _row(given: RewardCall) -> dict[str, Any]:
    gold = {} if given.gold is None else {"answer": given.gold}
    return {"completion": given.text, "row": dict(given.row) | gold}


def _verl(given: RewardCall) -> dict[str, Any]:
    return {
        "data_source": given.row.get("data_source", "rows"),
        "solution_str": given.text,
        "ground_truth": given.gold,
        "extra_info": given.row.get("extra_info") or dict(given.row),
    }


def _verifiers(given: RewardCall) -> dict[str, Any]:
    own = {
        "prompt": given.prompt,
        "completion": given.completion,
        "answer": given.gold,
        "task": given.row.get("task", ""),
        "info": given.row.get("info") or {},
    }
    group = {f"{name}s": [value] for name, value in own.items()}
    state = own | {"responses": [], "trajectory": [], "turn": 1}
    return dict(given.row) | own | group | {"state": state, "states": [state]}


# ---- the outcome


def outcome(value_of: Callable[[], Any], function: Any) -> Verdict:
    """"right" with the reward as its score; "undecided" for None; "wrong" without a score, with the function's fault as its reason.

    Exceptions of foreign code are caught, except MemoryError, which is a limit: the pool makes it "undecided".
    """
    try:
        value = value_of()
        if value is None or (isinstance(value, Verdict) and value.label == "undecided"):
            return Verdict("undecided", NO_REWARD if value is None else value.reason)
        why = shown(value.reason, str) if isinstance(value, Verdict) else ""
    except MemoryError:
        raise
    except BaseException as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        return Verdict("wrong", f"raised {type(error).__name__}: {shown(error, str):.120}{line_of(error, file)}")
    try:
        number = _number(value.reward if isinstance(value, Verdict) else value)
    except MemoryError:
        raise
    except BaseException as error:  # 10**400 is an OverflowError, and a class may define its __float__
        return Verdict("wrong", f"gave {shown(value):.80}, which is no number ({type(error).__name__})")
    return Verdict("right", why, number) if math.isfinite(number) else Verdict("wrong", f"gave {number}")


def _number(value: Any) -> float:
    """A reward as a float. Raises TypeError for text: float("1") is 1, but a function that returns text has not decided on a
    reward."""
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{shown(value):.80} is text; return a number")
    return float(value)


def line_of(error: BaseException, file: str) -> str:
    """" (line N)" of a file in which an exception was raised; "" if it was raised elsewhere."""
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    return f" (line {lines[-1]})" if lines else ""


def shown(value: Any, spelled: Callable[[Any], str] = repr) -> str:
    """A value as text, even if its repr raises an error."""
    try:
        return spelled(value)
    except BaseException:
        return f"a {type(value).__name__} without a text"


__all__ = [
    "GOLDS", "NOT_COLUMNS", "NO_REWARD", "SIGNATURES", "RewardCall", "Signature", "call", "lacking", "line_of", "outcome",
    "parameters_of", "shown", "signature_of",
]  # fmt: skip
