"""The version of each verifier: a number that is raised when a verdict changes, and that a sample store or a model card records.

A version identifies behavior. Source text may be edited without making another verifier. `tests/verifiers/verdicts.json.gz`
contains more than 10,000 verdicts of these versions; a test judges all of them again, and fails if one changed and its version did
not.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
from typing import Any

VERSIONS = {
    "math": 2,  # mathematics: `math.py`, and where the answer and the gold are read
    "exact": 1,
    "countdown": 1,
    "countdown_chat": 1,
    "countdown_steps": 1,
    "knights_and_knaves": 1,
    "word_problems": 1,
    "repair": 1,  # the sandbox included
    "reasoning_gym": 2,  # the forms that the package's scorers receive, and the score that is right
}
"""Name of a verifier -> its version. After a change of any verdict: raise the number, then `python -m tests.verifiers.golden`."""

_HERE = "sage_rlvr.verifiers"
_LIMITS = {
    "math": (
        *(f"{_HERE}.answers:{name}" for name in ("MAX_COMPLETION", "MAX_ANSWER", "MAX_DIGITS", "MAX_DEPTH")),
        f"{_HERE}.style:LONGEST",
    ),
    "exact": (f"{_HERE}.exact:MAX_DIGITS",),
    "countdown": (f"{_HERE}.countdown:MAX_LENGTH",),
    "countdown_chat": (f"{_HERE}.countdown:MAX_LENGTH",),
    "countdown_steps": (),  # its task passes it on: the core knows no module of contrib
    "knights_and_knaves": (f"{_HERE}.knights_and_knaves:MAX_COMPLETION",),
    "word_problems": (),  # as countdown_steps
    "repair": (f"{_HERE}.sandbox:MEMORY_MB", *(f"{_HERE}.sandbox_child:{name}" for name in ("SAID", "LONG", "GRACE"))),
    "reasoning_gym": (f"{_HERE}.style:LONGEST",),
}
"""Name of a verifier -> MODULE:CONSTANT of its limits that no caller sets. Their values are hashed, in this order: a constant may
move, and a changed value makes another verifier without another version."""


def version_hash(verifier: str, **settings: Any) -> str:
    """NAME-vVERSION-HASH, such as "math-v2-3fa9c2d0b1e4f567": a verifier of `VERSIONS` under these settings, as sample stores and
    model cards record it.

    settings: a caller's settings that decide a verdict, such as seconds and the place of the answer, as JSON values; limits: those
        of a verifier of contrib. The limits of `_LIMITS` are appended, and for "math" the releases of its libraries. Raises
        KeyError for a name without a version.
    """
    paths = (path.partition(":") for path in _LIMITS[verifier])
    limits = [getattr(importlib.import_module(module), name) for module, _, name in paths]
    settings["limits"] = [*settings.get("limits", ()), *limits]
    if verifier == "math":
        settings["libraries"] = math_libraries()
    text = json.dumps(settings, sort_keys=True, default=str)
    return f"{verifier}-v{VERSIONS[verifier]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def math_libraries() -> dict[str, str]:
    """The releases of the libraries that parse and compare mathematics: another one may give other verdicts."""
    return {name: importlib.metadata.version(name) for name in ("math-verify", "latex2sympy2_extended", "sympy")}


__all__ = ["VERSIONS", "math_libraries", "version_hash"]
