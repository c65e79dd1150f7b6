"""Audit of the mathematics verifier: pairs of answers whose equality is known.

`pairs.tsv` has one pair per line: id, written, verdict, answer, gold; each verdict was decided before running the verifier. The
verifier was corrected by means of "first"; "second" was written after that, before any run on it. "reported" came last, after a
reviewer had found remaining errors; the verifier was corrected by means of these too.

    false positives          share of the different pairs that are judged right: unearned reward
    false negatives          share of the equal pairs that are not: lost reward

Both are in the notes with Wilson's 95 % interval over the pairs. The peers judge the same pairs; their misses are counted but not
named.

A user's file of pairs has one row per pair: gold, answer (a completion), right (true or false); place (default: boxed) and tag of
the answer; note, its kind; debatable, if people may differ: such pairs are counted separately.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from sage_rlvr.contrib.audit.peers import ABSENT, lm_eval_verdicts
from sage_rlvr.errors import DataError
from sage_rlvr.tasks.checks import AuditReport, Check, check_of
from sage_rlvr.tasks.rows import DataSource, read
from sage_rlvr.verdicts.stats.intervals import wilson
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import AnswerPlace
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.pool import Pool, shared


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """An answer and a gold. right: whether they are equal. written: "first", "second" or "reported". `read_pairs` makes it from
    pairs.tsv; `rates` reads it."""

    pair_id: str
    written: str
    right: bool
    answer: str
    gold: str

    @property
    def completion(self) -> str:
        """The answer at the end of a completion."""
        return rf"The answer is $\boxed{{{self.answer}}}$."

    @property
    def exchanged(self) -> AnswerPair:
        """The same pair with answer and gold exchanged."""
        return replace(self, answer=self.gold, gold=self.answer)


def read_pairs() -> tuple[AnswerPair, ...]:
    """The pairs of `pairs.tsv`."""
    lines = files("sage_rlvr.contrib.audit").joinpath("pairs.tsv").read_text(encoding="utf-8").split("\n")
    rows = csv.DictReader(filter(None, lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(AnswerPair(row["id"], row["written"], row["verdict"] == "right", row["answer"], row["gold"]) for row in rows)


def audit_pairs() -> AuditReport:
    """Both rates of this verifier, with answer and gold in this order and exchanged, and those of its peers."""
    pairs = read_pairs()
    turned = [pair.exchanged for pair in pairs]
    checks = rates("", pairs, _judged(shared(), pairs), bar=True)
    checks += rates(", exchanged", turned, _judged(shared(), turned), bar=True)
    for written in ("first", "second", "reported"):
        some = [pair for pair in pairs if pair.written == written]
        checks += rates(f", {written} set", some, _judged(shared(), some), rows=False)
    with Pool(function="sage_rlvr.contrib.audit.peers:math_verify_verdict") as pool:
        checks += rates(f": math-verify {version('math-verify')} alone", pairs, _judged(pool, pairs), rows=False)
    others = lm_eval_verdicts([(pair.answer, pair.gold) for pair in pairs])
    for rule, verdicts in (others or {}).items():
        judged = [Verdict("right" if right else "wrong", rule) for right in verdicts]
        checks += rates(f": lm-eval {rule}", pairs, judged, rows=False)
    equal = sum(pair.right for pair in pairs)
    head = f"{len(pairs)} pairs of answers, {equal} of them equal and {len(pairs) - equal} different"
    return AuditReport("pairs", head + ("" if others else f"; lm-eval {ABSENT}"), tuple(checks))


@dataclass(frozen=True, slots=True)
class FileRow:
    """A pair of a file: a completion, a gold, and where the answer is read."""

    pair_id: str
    completion: str
    gold: str
    right: bool
    reading: dict[str, Any]
    kind: str
    debatable: bool
    placed: bool = True


def rows_of(path: Path) -> list[FileRow]:
    """The pairs of a file. Raises DataError with the row and field of an invalid value."""
    rows = read(DataSource(path=str(path)))
    placed = enumerate(zip(rows.rows, rows.locations, strict=True))
    return [_row(row, str(row.get("id", number)), where) for number, (row, where) in placed]


def _row(row: Mapping[str, Any], name: str, where: str) -> FileRow:
    lacking = [field for field in ("gold", "answer", "right") if row.get(field) is None]
    if lacking:
        raise DataError(f"{where}: no {', no '.join(lacking)}; a pair has gold, answer (a completion), right (true or false)")
    right, location = {"true": True, "false": False}.get(str(row["right"]).lower()), row.get("place") or "boxed"
    if right is None:
        raise DataError(f"{where}, right: {row['right']!r:.60}; write true or false")
    if location not in get_args(AnswerPlace):
        raise DataError(f"{where}, place: {location!r:.60} is no place for an answer: {', '.join(get_args(AnswerPlace))}")
    try:
        gold = gold_of(row["gold"])[0]
    except ValueError as error:
        raise DataError(f"{where}, gold: {error}") from error
    reading = {"answer_in": location} | ({"tag": str(row["tag"])} if row.get("tag") else {})
    kind, debatable = str(row.get("note") or row.get("kind") or ""), str(row.get("debatable") or "").lower() in ("true", "1")
    return FileRow(name, str(row["answer"]), gold, right, reading, kind, debatable, placed=bool(row.get("place")))


def audit_file(path: Path) -> AuditReport:
    """Both rates of this verifier and of math-verify on a file of pairs, the kinds with a miss, and separately the debatable
    pairs."""
    rows = rows_of(path)
    futures = [shared().submit(row.completion, row.gold, **row.reading) for row in rows]
    ours = [future.result() for future in futures]
    with Pool(function="sage_rlvr.contrib.audit.peers:math_verify_verdict") as pool:
        theirs = pool.verify([(row.completion, row.gold) for row in rows])
    peer = f"math-verify {version('math-verify')} alone"
    checks: list[Check] = []
    for debatable in (False, True):
        some = [i for i, row in enumerate(rows) if row.debatable is debatable]
        if some:
            name = ", debatable" if debatable else ""
            checks += _of_rows(name, rows, ours, some, bar=not debatable)
            checks += _of_rows(f"{name}: {peer}", rows, theirs, some)
    checks += _kinds(rows, ours, theirs)
    settled = sum(not row.debatable for row in rows)
    places = f"answers are read where the column place says{_in_boxes(rows)}"
    head = f"{len(rows)} pairs, {len(rows) - settled} of them debatable and counted apart; {places}"
    return AuditReport(str(path), head, tuple(checks))


def _in_boxes(rows: Sequence[FileRow]) -> str:
    """The number of answers that are read from a box because their row names no place."""
    unplaced = sum(not row.placed for row in rows)
    return f'; {unplaced} rows without "place" are read in \\boxed{{}} ("place": "whole" reads the whole text)' if unplaced else ""


def _of_rows(
    name: str, rows: Sequence[FileRow], verdicts: Sequence[Verdict], some: Sequence[int], bar: bool = False
) -> list[Check]:
    pairs = [AnswerPair(rows[i].pair_id, "", rows[i].right, rows[i].completion, rows[i].gold) for i in some]
    results = [verdicts[i] for i in some]
    undecided = check_of(f"decided{name}", [(pair.pair_id, one) for pair, one in zip(pairs, results, strict=True)], "decided")
    return [*rates(name, pairs, results, bar=bar, rows=bar), undecided if bar else replace(undecided, rows=())]


def _agreeing(rows: Sequence[FileRow], verdicts: Sequence[Verdict], some: Sequence[int]) -> int:
    """Count the verdicts that agree with their rows."""
    return sum(verdicts[i].right == rows[i].right for i in some)


def _kinds(rows: Sequence[FileRow], ours: Sequence[Verdict], theirs: Sequence[Verdict]) -> Iterator[Check]:
    """The kinds of pairs of which either verifier misses one: the count of ours, and in the note that of the other."""
    kinds: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        kinds.setdefault(row.kind, []).append(number)
    kinds.pop("", None)
    counted = {kind: (_agreeing(rows, ours, some), _agreeing(rows, theirs, some)) for kind, some in kinds.items()}
    missed = [kind for kind, both in counted.items() if min(both) < len(kinds[kind])]
    if missed:
        mine, other = (sum(counted[kind][side] for kind in missed) for side in (0, 1))
        total = sum(len(kinds[kind]) for kind in missed)
        yield Check("kinds of pairs that either misses", mine, total, note=f"math-verify {other}")
    for kind in missed:
        mine, other = counted[kind]
        yield Check(kind, mine, len(kinds[kind]), note=f"math-verify {other}", part=True)


def _judged(pool: Pool, pairs: Sequence[AnswerPair]) -> list[Verdict]:
    return pool.verify([(pair.completion, pair.gold) for pair in pairs])


def rates(
    name: str, pairs: Sequence[AnswerPair], verdicts: Sequence[Verdict], bar: bool = False, rows: bool = True
) -> list[Check]:
    """The checks of the equal and of the different pairs, with the rate of misses and its interval."""
    checks = []
    for right, title, miss in (
        (False, f"different, not called right{name}", "false positives"),
        (True, f"equal, called right{name}", "false negatives or undecided"),
    ):
        some = [(pair.pair_id, verdict) for pair, verdict in zip(pairs, verdicts, strict=True) if pair.right is right]
        if not some:
            continue
        check = check_of(title, some, "right" if right else "not right", bar)
        rate = wilson(check.total - int(check.good), check.total, over="pairs")
        note = f"{miss} {100 * rate.value:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f})"
        checks.append(replace(check, note=note, rows=check.rows if rows else ()))
    return checks


__all__ = ["AnswerPair", "FileRow", "audit_file", "audit_pairs", "rates", "read_pairs", "rows_of"]
