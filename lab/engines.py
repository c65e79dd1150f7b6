"""docs/reference/engines.md: the table of what TRL and verl make of each part, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.methods import METHODS
from sage_rlvr.runs import writing
from sage_rlvr.training.engines import ENGINES, SAMPLING, SIGNALS, EngineRow, Of, Refuses, Sets, runs_on, table

PAGE = "engines.md"
HEAD = """\
# Parts on TRL and verl

The built-in loop runs every method. This page says what each part becomes on TRL (fields of `GRPOConfig`) and on verl (fields of
its configuration, without `actor_rollout_ref.`), or why it does not run. It is made by `python -m lab engines --docs
docs/reference` from the table in `sage_rlvr.training.engines`. From the same table one error lists every part of a method that
an engine lacks.

## Parts
"""
OWN = """
A class of your own has the row "any other" of its kind, even if its parent has a row; `engines.declare` gives it one.

## Signals

Advantages, extras, token weights and guides (q) run where the signals that they read exist. Log-probs of policy and
reference and the policy's entropies are on every engine. On TRL a guide of the batch sees the whole generation batch,
which the policy scores once more where TRL's loss takes it in parts.
"""
SAMPLED = """
## Sampling

These fields, at values other than these, sample from another distribution than the policy's, which no method corrects. A run
says so once; on TRL `generation_kwargs` are read too.
"""
RUNS = """
## Methods

With default arguments; every other method runs on all three.
"""


def page() -> str:
    """The page as text."""
    runs = {name: " and ".join(runs_on(method())) for name, method in METHODS.items()}  # all methods: some declare rows
    parts = [[row.kind.replace("_", " "), _name(row), _cell(row.trl), _cell(row.verl)] for row in table()]
    signals = [list(_of_signal(name)) for name in SIGNALS if any(_lacking(name))]
    groups = {where: ", ".join(f"`{name}`" for name in runs if runs[name] == where) for where in dict.fromkeys(runs.values())}
    few = [[where, names] for where, names in groups.items() if where.count(" and ") < len(ENGINES)]
    places = [f"{name}, {place}" for name in ENGINES.values() for place in ("advantages", "q")]
    whole = {engine: "; ".join(_field(name, values[0]) for name, values in SAMPLING[engine].items()) for engine in ENGINES}
    sampled = [[words, whole[engine]] for engine, words in ENGINES.items()]
    lines = [
        *(HEAD, *_table(["kind", "part or setting", *ENGINES.values()], parts)),
        *(OWN, *_table(["signal", *places, "why not"], signals)),
        *(SAMPLED, *_table(["engine", "fields"], sampled)),
        *(RUNS, *_table(["only on", "methods"], few)),
    ]
    return "\n".join(lines) + "\n"


def write_docs(docs: Path) -> Path:
    """Write the page into a folder that has one. DataError where it has none."""
    path = docs / PAGE
    if not path.is_file():
        raise DataError(f"{path} is not there; name the folder that holds {PAGE}, such as docs/reference.")
    with writing("page", docs, 1 << 20):
        path.write_text(page(), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Engines(Command):
    """Print what TRL and verl make of each part of a method, as the page docs/reference/engines.md."""

    docs: Path | None = None
    """Write the page into this folder (docs/reference) instead of printing it."""

    def execute(self, session: Session) -> int:
        session.say(page().rstrip() if self.docs is None else f"written: {write_docs(self.docs)}")
        return 0


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [list(heads), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _name(row: EngineRow) -> str:
    return f"`{row.words}`" if isinstance(row.what, type) else row.words


def _cell(said: Sets | Refuses) -> str:
    if isinstance(said, Refuses):
        return f"no: {said.why}"
    return "; ".join([*(_field(*one) for one in said.fields.items()), *([said.words] if said.words else [])])


def _field(name: str, value: Any) -> str:
    return f"`{name.removeprefix('actor_rollout_ref.')}` = {value.words if isinstance(value, Of) else value}"


def _lacking(name: str) -> list[str]:
    """Why there is no such signal, for advantages and for q on each engine; "" where there is."""
    return [SIGNALS[name].lacks(engine, in_q) for engine in ENGINES for in_q in (False, True)]


def _of_signal(name: str) -> Iterator[str]:
    yield f"`{name}`"
    yield from ("no" if why else "yes" for why in _lacking(name))
    yield "; ".join(dict.fromkeys(filter(None, _lacking(name))))


__all__ = ["Engines", "page", "write_docs"]
