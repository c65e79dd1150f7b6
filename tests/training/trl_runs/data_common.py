"""What the tests of rows share."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import pytest

pytest.importorskip("trl")  # the extra that brings datasets and pyarrow
datasets = pytest.importorskip("datasets")


from sage_rlvr.tasks.prompts import FORMATS


def said(problem: str, form: str = "sage") -> list[dict[str, str]]:
    return FORMATS[form].messages(problem)


def quiet(line: str) -> None:
    """Nothing is said."""
