"""Stores of formats 2 (completions) and 3 (episodes), which earlier versions wrote.

Every row has a hash, and a table `passes` says who gave later verdicts. In format 2 samples have no column `turns`, and some stores
have no table `problems`. Such a store is read as it is, and the first write converts it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

OLDER = (2, 3)
VERDICTS = "(SELECT v.*, p.who, p.at FROM verdicts v LEFT JOIN passes p ON p.pass = v.pass)"
"""The table `verdicts` of format 4 in an older store."""


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """Whether the store has a table of this name."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


def convert(db: sqlite3.Connection, tables: Mapping[str, str]) -> None:
    """Bring an older store into the caller's format, in the caller's transaction. tables: name -> columns of each."""
    for name, columns in tables.items():
        db.execute(f"CREATE TABLE new_{name} {columns}")
        if has_table(db, name):
            source = VERDICTS if name == "verdicts" else name
            known = {row[1] for row in db.execute(f"PRAGMA table_info({name})")} | {"who", "at"}
            wanted = [row[1] for row in db.execute(f"PRAGMA table_info(new_{name})")]
            values = ", ".join(column if column in known else f"NULL AS {column}" for column in wanted)
            db.execute(f"INSERT INTO new_{name} SELECT {values} FROM {source}")
            db.execute(f"DROP TABLE {name}")
        db.execute(f"ALTER TABLE new_{name} RENAME TO {name}")
    db.execute("DROP TABLE passes")
