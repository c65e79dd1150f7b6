"""The verdict on evaluations that were stored during a training (`training.evaluations`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import suggest


def verdict(base: Sequence[Path], last: Path) -> str:
    """Compare the base at its temperatures with the last evaluation, and return the verdict and the command that prints more.

    Args:
        base: Files of counts of the base, one a temperature.
        last: The file of the last evaluation.

    Raises:
        DataError: A file that cannot be read, with its path and line.
    """
    arms = {"base": ",".join(map(str, base)), "rl": str(last)}
    answer = compare(arms).answer.partition("\n\n")[0]
    return f"{answer} More: {suggest('compare', *(f'{name}={file}' for name, file in arms.items()))}"


__all__ = ["verdict"]
