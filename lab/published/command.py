"""`python -m lab published GRPO Branch`: the arithmetic of the paper's own tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from lab.published.tables import compare_arms, comparison_lines, find_arms, load_document, pooled_lines, read_tables
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError

TABLES = Path(__file__).with_name("tables.json")


@dataclass(frozen=True)
class Published(Command):
    """Compare arms of the paper's tables: what the printed means and standard deviations can and cannot show."""

    arms: tyro.conf.Positional[tuple[str, ...]] = ("GRPO", "Branch")
    """Two arms or more of one table; the first is the control."""

    def execute(self, session: Session) -> int:
        if len(self.arms) < 2:
            raise DataError(f"{self.arms[0]}: name two arms at least, as in: python -m lab published GRPO Branch")
        document = load_document(TABLES)
        tables = read_tables(document)
        table, found = find_arms(tables, list(self.arms))
        for other in found[1:]:
            compared = compare_arms(table, found[0], other)
            session.say(*comparison_lines(compared, document["problems"]), *pooled_lines(tables, compared))
        return 0
