"""Check that two evaluations have the same settings; a comparison is valid only if the policy is the only difference."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sage_rlvr.errors import DataError

# Fields that may differ: the policy itself, fields that identify one sampling of it, and the guidance of a second attempt.
OF_THE_ARM = frozenset(
    {"name", "model", "revision", "policy", "checkpoint", "weights", "run", "seed", "versions", "chunk_size", "preset", "guidance"}
)
# The effect of an unequal value on the scores, and how to make it equal.
NEXT_STEP = {
    "n": "more samples have less noise and a higher pass@k; compare the first {least} of each (compare --samples {least}), or add "
    "samples to the other",
    "temperature": "temperature trades pass@1 against pass@k; sample both at the same temperature, or compare their frontiers",
    "top_p": "truncated sampling raises pass@1 and lowers pass@k; sample both with the same value",
    "top_k": "truncated sampling raises pass@1 and lowers pass@k; sample both with the same value",
    "min_p": "truncated sampling raises pass@1 and lowers pass@k; sample both with the same value",
    "max_new_tokens": "the shorter limit truncates more completions; sample both with the same limit",
    "template": "a different prompt is a different task; sample both with the same template",
    "template_hash": "a different prompt is a different task; sample both with the same template",
    "prompt": "a different prompt is a different task; sample both with the same template",
    "verifier": "a different verifier returns different scores; judge both again with the same verifier",
    "verifier_hash": "a different verifier returns different scores; judge both again with the same verifier (reverify)",
    "task": "the problems differ; evaluate both on the same task",
    "task_hash": "the problems or their versions differ; evaluate both on the same copy",
}
OTHERWISE = "sample both again with the same value"
_MISSING = object()


def budget_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], ignore: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Every field in which two identities differ: field -> (value in a, value in b), None if absent.

    a, b: plain mappings (n, temperature, top_p, max_new_tokens, template, verifier, task hash, ...); nested ones are read
    by their leaves. Fields of the policy (`OF_THE_ARM`) and those in `ignore` may differ. 1 and 1.0 are equal.
    """
    left, right = _leaves(a), _leaves(b)
    fields = [*NEXT_STEP, *sorted((left.keys() | right.keys()) - NEXT_STEP.keys())]
    differences = {}
    for field in fields:
        one, two = left.get(field, _MISSING), right.get(field, _MISSING)
        if field in OF_THE_ARM or field in ignore or (one is _MISSING and two is _MISSING):
            continue
        if one is _MISSING or two is _MISSING or one != two:
            differences[field] = (None if one is _MISSING else one, None if two is _MISSING else two)
    return differences


def check_budget(identities: Mapping[str, Mapping[str, Any]], ignore: Collection[str] = ()) -> None:
    """Raise DataError for arms of unequal budgets: name -> identity, the first being the one that all others are compared with.

    The error names each difference, both values, its effect and the next step.
    """
    (first, reference), *others = identities.items()
    lines = []
    for name, identity in others:
        for field, (one, two) in budget_differences(reference, identity, ignore).items():
            least = min((x for x in (one, two) if isinstance(x, int)), default="n")
            step = NEXT_STEP.get(field, OTHERWISE).format(least=least)
            lines.append(f"{field}: {_short(one)} for {first}, {_short(two)} for {name}; {step}")
    if lines:
        raise DataError(
            "the settings differ, so a difference could not be attributed to the policy.\n  " + "\n  ".join(lines)
        )


def _leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by their last name, without `versions` and other fields of the arm."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and key not in OF_THE_ARM:
            out |= _leaves(value)
        else:
            out[key] = value
    return out


def _short(value: Any) -> str:
    if value is None:
        return "not recorded"
    text = json.dumps(value, default=str)
    return text if len(text) < 60 else text[:57] + "..."
