"""Stores of formats 2 (completions) and 3 (episodes), which earlier versions wrote.

Every row has a hash, and a table `passes` says who gave later verdicts. In format 2 samples have no column `turns`, and some stores
have no table `problems`. Such a store is read as it is; the first write compares the hashes and converts it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from sage_rlvr.evaluation.store.sample import TOKEN_LEVEL, sha_63, unescape

OLDER = (2, 3)
VERDICTS = "(SELECT v.*, p.who, p.at FROM verdicts v LEFT JOIN passes p ON p.pass = v.pass)"
"""The table `verdicts` of format 4 in an older store."""

_HASHED = {  # rows -> their key, and their columns in the order of the hash; samples of format 2 have no turns
    "meta": (("key",), ("key", "value")),
    "samples": (
        ("problem", "sample"),
        ("problem", "sample", "seed", "prompt_hash", "text", "text_hash", "token_ids", *TOKEN_LEVEL,
         "finish", "latency_s", "versions", "turns"),
    ),
    "verdicts LEFT JOIN (SELECT id AS number, problem, sample FROM samples) ON number = id": (
        ("problem", "sample", "pass"), ("id", "pass", "verifier", "verdict", "reason", "answer"),
    ),
    "problems": (("problem",), ("problem", "prompt", "gold")),
}  # fmt: skip


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """Whether the store has a table of this name."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


def changed_row(db: sqlite3.Connection) -> str | None:
    """The table and place of the first row that does not have its hash, for a message: 63 bits of SHA-256 of its values, each
    behind its length."""
    for source, (key_columns, names) in _HASHED.items():
        table = source.split()[0]
        known = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        hashed = [name for name in names if name in known]
        for sha, *row in db.execute(f"SELECT sha, {', '.join((*hashed, *key_columns))} FROM {source}") if known else ():
            values = [value if isinstance(value, bytes) else repr(value).encode() for value in row[: len(hashed)]]
            if sha != sha_63(b"".join(len(value).to_bytes(8, "little") + value for value in values)):
                at = [unescape(value) if isinstance(value, str) else value for value in row[len(hashed) :]]
                return f"a row of {table} ({', '.join(f'{name} {value!r}' for name, value in zip(key_columns, at, strict=True))})"
    return None


def convert(db: sqlite3.Connection, tables: Mapping[str, str]) -> None:
    """Bring an older store into the caller's format, in the caller's transaction. tables: name -> columns of each."""
    for name, columns in tables.items():
        db.execute(f"CREATE TABLE new_{name} {columns}")
        if has_table(db, name):
            source = VERDICTS if name == "verdicts" else name
            known = {row[1] for row in db.execute(f"PRAGMA table_info({name})")} | {"who", "at"}
            wanted = [row[1] for row in db.execute(f"PRAGMA table_info(new_{name})")]
            values = ", ".join(column if column in known else f"NULL AS {column}" for column in wanted)
            db.execute(f"INSERT INTO new_{name} ({', '.join(wanted)}) SELECT {values} FROM {source}")
            db.execute(f"DROP TABLE {name}")
        db.execute(f"ALTER TABLE new_{name} RENAME TO {name}")
    db.execute("DROP TABLE passes")
