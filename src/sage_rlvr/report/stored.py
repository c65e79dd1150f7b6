"""What is stored in docs/results, rendered anew by today's words.

python -m sage_rlvr.report.stored docs/results     writes every summary.md there, and adjusted_p.md
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sage_rlvr.reading import read_json
from sage_rlvr.report.build import build
from sage_rlvr.results import Results, Row, compare
from sage_rlvr.results.tables import Table, table
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.stats.comparison import p_text


def adjusted(folder: Path) -> Table | None:
    """Of a stored summary of format 1: where the adjusted p is another now, and whether the outcome is."""
    tree = read_json(folder / "summary.json")
    if "rows" in tree:
        return None
    rows = compare(Results.read(folder))
    ends = tree.get("endpoints") or {}
    lists = [
        tree["comparisons"],
        *((ends.get(name) or {}).get("comparisons", ()) for name in ("cold", "power")),
        ends.get("leash") or (),
    ]
    olds = [old for some in lists for old in some]
    pairs = [(old, row) for old, row in zip(olds, rows, strict=True) if _unlike(old["adjusted"], row.adjusted)]
    columns = {
        "a": lambda pair: pair[1].a,
        "b": lambda pair: pair[1].b,
        "metric": lambda pair: str(pair[1].metric) + (f" on {pair[1].task}" if pair[1].task else ""),
        "p": lambda pair: p_text(pair[1].comparison.p),
        "before: Holm's p": lambda pair: f"{p_text(pair[0]['adjusted'])} of {pair[0]['family']}",
        "now: Holm's p": lambda pair: f"{p_text(pair[1].adjusted)} of {pair[1].family_size}, {pair[1].family}",
        "holds": lambda pair: _holds(*pair),
    }
    return table(columns, pairs)


def _holds(old: Mapping[str, Any], row: Row) -> str:
    before = row.comparison.outcome in ("better", "worse") and old["adjusted"] < 1 - row.comparison.difference.level
    return "" if before == row.holds else "now" if row.holds else "no longer"


def _unlike(old: float | None, new: float) -> bool:
    return old is not None and not math.isclose(old, new, rel_tol=1e-9)


def main(root: Path) -> None:
    """summary.md of every folder with a summary.json, and adjusted_p.md."""
    blocks = [
        "# Adjusted p values, before and now",
        "Raw p values, differences and intervals are unchanged. Holm's correction ran over each list by itself; it runs now "
        "once over the primary comparisons of a design and once over all others. `holds`: where a difference at level 0.95 "
        "outlasts the correction now and did not before, or the other way round. "
        "The families were set after these runs had been seen, "
        "so what holds only now is no new claim. Made by `python -m sage_rlvr.report.stored docs/results`.",
    ]
    for path in sorted(root.glob("*/summary.json")):
        results = Results.read(path.parent)
        rows = compare(results)
        write_text_atomic(path.with_suffix(".md"), build(results, rows, brief=True).markdown())
        changed = adjusted(path.parent)
        blocks += [] if changed is None or not changed.rows else [f"## {path.parent.name}", changed.markdown()]
    write_text_atomic(root / "adjusted_p.md", "\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results"))
