"""Pages with tables that commands make: between <!-- name:begin --> and <!-- name:end -->."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sage_rlvr.errors import DataError
from sage_rlvr.safe_io import read_text
from sage_rlvr.verdicts.stats.intervals import wilson


def remade(docs: Path, name: str, made: Mapping[str, str]) -> tuple[Path, str]:
    """The page docs/`name` and its text with the tables in `made` put in. DataError where it is not there, or lacks a mark."""
    where = docs / name
    if not where.is_file():
        raise DataError(f"{where} is not there; name the folder that holds {name}, such as lab/pages.")
    return where, filled(read_text(where), made, where)


def filled(page: str, made: Mapping[str, str], where: str | Path = "the page") -> str:
    """`page` with each table put between its marks; marks without a table stay as they are.

    DataError for a table that has no marks in the page, because it would be lost.
    """
    for name, table in made.items():
        mark = re.compile(rf"(<!-- {name}:begin[^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not mark.search(page):
            raise DataError(
                f"{where} has no marks <!-- {name}:begin --> and <!-- {name}:end --> for its table; add them."
            )
        page = mark.sub(lambda found, table=table: found[1] + table + "\n" + found[2], page)  # type: ignore[misc]
    return page


def percent(hits: int, of: int) -> str:
    """hits / of with Wilson's 95 % interval: "3.0 % (1.4 to 6.4)"."""
    found = wilson(hits, of)
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
