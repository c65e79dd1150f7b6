"""The version of each verifier: a number that is raised when a verdict changes, and what a sample store or a model card records.

A version stands for behavior. Source text may be tidied without making another verifier. `tests/verifiers/verdicts.json.gz` holds
more than 10,000 verdicts of these versions; a test judges all of them again, and fails where one changed and its version did not.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from typing import Any

VERSIONS = {
    "math": 1,  # mathematics: `math.py`, and where the answer and the gold are read
    "exact": 1,
    "countdown": 1,
    "countdown_chat": 1,
    "countdown_steps": 1,
    "knights_and_knaves": 1,
    "word_problems": 1,
    "repair": 1,  # the sandbox included
    "reasoning_gym": 1,  # the spellings that the package's scorers get, and the score that is right
}
"""Name of a verifier -> its version. After a change of any verdict: raise the number, then `python -m tests.verifiers.golden`."""


def version_hash(verifier: str, **settings: Any) -> str:
    """NAME-vVERSION-HASH, such as "math-v1-3fa9c2d0b1e4f567": a verifier of `VERSIONS` under these settings, as sample stores and
    model cards record it.

    settings: all that decides a verdict besides the code, such as limits and where the answer is read, as JSON can carry it. Of
    "math" the releases of its libraries are added. KeyError for a name without a version.
    """
    if verifier == "math":
        settings["libraries"] = math_libraries()
    text = json.dumps(settings, sort_keys=True, default=str)
    return f"{verifier}-v{VERSIONS[verifier]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def math_libraries() -> dict[str, str]:
    """The releases of the libraries that mathematics is parsed and compared by: another one may give other verdicts."""
    return {name: importlib.metadata.version(name) for name in ("math-verify", "latex2sympy2_extended", "sympy")}


__all__ = ["VERSIONS", "math_libraries", "version_hash"]
