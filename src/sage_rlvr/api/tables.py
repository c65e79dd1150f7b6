"""Common base of results of the Python API: rows as plain values, a data frame of them, and a table for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


class Rows:
    """A result that is a table: `rows`, one plain dict each, and views of them."""

    rows: Any

    def to_frame(self) -> Any:
        """The rows as a pandas data frame.

        Raises:
            ModuleNotFoundError: If pandas is not installed; `rows` has the same values.
        """
        from sage_rlvr.results.tables import frame_of

        return frame_of(self.rows)

    def _repr_html_(self) -> str:
        """The same as `repr`, and the rows as a table."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of escaped cells; a newline in a cell is a new line."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(f"<{tag}>{html.escape(str(value)).replace(chr(10), '<br>')}</{tag}>" for value in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', header)}</tr></thead><tbody>{body}</tbody></table>"


def number(value: object) -> str:
    """A number as printed in tables."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
