"""The audit of a reward as a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sage_rlvr.names import AUDIT


def check_reward(reward: str | Callable[..., Any], rows: str | Path | Sequence[Mapping[str, Any]], **options: Any) -> None:
    """Check a reward function on rows with golds, as `sage-rlvr audit --reward` does.

        def test_my_reward():
            check_reward("my_rewards.py:score", "rows.jsonl", problems=20)

    Args:
        reward: "module:function", "path/to/file.py:function", or a function of a module.
        rows: A .jsonl, .json, .csv or .parquet file, or a list of rows.
        **options: gold, signature, right_from, problems, seconds, k, python: see `sage-rlvr audit --help`.

    Raises:
        AssertionError: With the failed checks and the first rows of each.
        ConfigError: If the reward cannot be loaded, or the rows have no column of golds.
    """
    import_module(AUDIT).check_reward(reward, rows, **options)
