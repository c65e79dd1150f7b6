"""The tables of a sample store, format 4, and how rows are written to them.

    samples   what the policy wrote, a row each; `turns` is NULL except in episodes
    verdicts  who judged a sample, and how: a row per sample and pass; pass 0 is the evaluation's own
    claims    which writer works on which chunk
    meta      facts as JSON: identity, created, changes, wanted, ...
    problems  prompt and gold of each

Text is `escape`d where it is not UTF-8; token-level columns are little-endian float32, token ids int32.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError, short
from sage_rlvr.evaluation.store.sample import LABELS, TOKEN_LEVEL, Chunk, PromptAndGold, escape, unescape

FILE, FORMAT = "store.sqlite", 4
TURNS = "turns"  # JSON: [[who, text, tokens], ...]
JUDGED = ("verifier", "verdict", "reason", "answer")  # of the newest verdict
COLUMNS = (
    "problem", "sample", "seed", "prompt_hash", "text", "text_hash", "token_ids", *TOKEN_LEVEL,
    "finish", "answer", "verdict", "reason", "verifier", "latency_s", "versions",
)  # fmt: skip
"""Of a table of completions; one of episodes also has `TURNS`."""
NESTED = {"token_ids": np.dtype("<i4"), **dict.fromkeys(TOKEN_LEVEL, np.dtype("<f4"))}


def _columns(kind: str, *names: str, null: bool = False) -> str:
    """Columns of a table that hold one type. SQLite's integrity check evaluates their CHECKs."""
    kinds = f"('{kind}', 'null')" if null else f"('{kind}')"
    return ", ".join(f"{name} {kind.upper()} CHECK (typeof({name}) IN {kinds})" for name in names)


TABLES = {
    "samples": f"""(id INTEGER PRIMARY KEY AUTOINCREMENT, {_columns("integer", "sample", "text_hash")},
        {_columns("integer", "seed", null=True)}, {_columns("real", "latency_s", null=True)},
        {_columns("text", "finish", null=True)}, {_columns("text", "problem", "prompt_hash", "versions", "text")},
        {_columns("blob", *NESTED, null=True)}, {_columns("text", "turns", null=True)}, UNIQUE (problem, sample),
        CHECK (finish IN ('stop', 'length')),
        CHECK (json_valid(versions) AND (turns IS NULL OR json_valid(turns))),
        {", ".join(f"CHECK (length({name}) % 4 = 0)" for name in NESTED)})""",
    "verdicts": f"""({_columns("integer", "id", "pass")}, {_columns("text", "verifier", "verdict", "reason")},
        {_columns("text", "answer", "who", "at", null=True)}, PRIMARY KEY (id, pass), CHECK (verdict IN {LABELS})) WITHOUT ROWID""",
    "claims": f"({_columns('text', 'problem', 'writer')}, {_columns('integer', 'first')}, PRIMARY KEY (problem, first))",
    "meta": f"({_columns('text', 'key', 'value')}, PRIMARY KEY (key), CHECK (json_valid(value)))",
    "problems": f"({_columns('text', 'problem', 'prompt')}, {_columns('text', 'gold', null=True)}, PRIMARY KEY (problem))",
}
_OF_SAMPLES = [*(name for name in COLUMNS if name not in JUDGED), TURNS]
_OF_VERDICTS = ["id", "pass", *JUDGED, "who", "at"]


def _insert(table: str, columns: list[str]) -> str:
    """The statement that inserts a row, given as a mapping."""
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


_SAMPLE = _insert("samples", _OF_SAMPLES)
_VERDICT = _insert("verdicts", _OF_VERDICTS)


def insert(db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    """A row of `COLUMNS` and `TURNS`: a sample, and its verdict as that of pass 0."""
    number = db.execute(_SAMPLE, row).lastrowid
    db.execute(_VERDICT, {**row, "id": number, "pass": 0, "who": None, "at": None})


def judge(db: sqlite3.Connection, address: tuple[str, int], verdict: Mapping[str, Any]) -> None:
    """A later verdict on a sample. address: its problem and number; verdict: pass, who, at and `JUDGED`."""
    (number,) = db.execute("SELECT id FROM samples WHERE problem = ? AND sample = ?", address).fetchone()
    db.execute(_VERDICT, {**verdict, "id": number})


def note(db: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
    """Store facts as JSON. DataError for a value that is none."""
    rows = [(key, _json(key, value)) for key, value in facts.items()]
    db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", rows)


def _json(key: str, value: Any) -> str:
    """JSON without NaN and infinity, which `json_valid` refuses."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{key} = {short(value)}: cannot be stored as JSON ({error}); give finite numbers, text, lists and mappings"
        ) from error


def array_of(name: str, value: Any) -> Any:
    """A stored value: of a token-level column an array (T,), or None if there is none; else as it is."""
    if value is None or name not in NESTED:
        return value
    return np.frombuffer(value, NESTED[name])


def stored(row: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `array_of` for the token-level columns of a row."""
    encoded = dict(row)
    for name, dtype in NESTED.items():
        if row[name] is not None:
            encoded[name] = np.asarray(row[name]).astype(dtype).tobytes()
    return encoded


def delete(db: sqlite3.Connection, chunk: Chunk) -> None:
    """Remove the samples of a chunk, and their verdicts."""
    rows, address = "samples WHERE problem = ? AND sample BETWEEN ? AND ?", (*chunk.address, chunk.samples[-1])
    db.execute(f"DELETE FROM verdicts WHERE id IN (SELECT id FROM {rows})", address)
    db.execute(f"DELETE FROM {rows}", address)


def insert_questions(db: sqlite3.Connection, questions: Mapping[str, PromptAndGold]) -> None:
    """Prompts and golds of problems, except those that are there already."""
    rows = [(escape(name), *question_texts(question)) for name, question in sorted(questions.items())]
    db.executemany("INSERT OR IGNORE INTO problems (problem, prompt, gold) VALUES (?, ?, ?)", rows)


def question_of(prompt: str, gold: str | None) -> PromptAndGold:
    """Prompt and gold from their stored texts."""
    return PromptAndGold(unescape(prompt), None if gold is None else unescape(gold))


def question_texts(question: PromptAndGold | None) -> tuple[str | None, str | None]:
    """Inverse of `question_of`; nothing without a question."""
    if question is None:
        return None, None
    return escape(question.prompt), None if question.gold is None else escape(question.gold)
