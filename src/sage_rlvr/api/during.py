"""The verdict on evaluations that were stored during a training (`training.evaluations`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import suggest


def verdict(base: Sequence[Path], last: Path) -> str:
    """Return the first lines of a comparison of files of counts, of the base at its temperatures and the last evaluation.

    And its command.
    """
    arms = {"base": ",".join(map(str, base)), "rl": str(last)}
    answer = compare(arms).answer.partition("\n\n")[0]
    return f"{answer} More: {suggest('compare', *(f'{name}={file}' for name, file in arms.items()))}"


__all__ = ["verdict"]
