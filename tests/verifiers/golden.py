"""The golden verdicts: more than 10,000 answers and what each verifier of the package says of them, in `verdicts.json.gz`.

    python -m tests.verifiers.golden        build the file again, after a version of `sage_rlvr.verifiers.versions` was raised

Each row is [judge, case, result]: a name of `JUDGES`, the arguments as JSON has them, and [label, reason] (or the text that was
read). `golden_rows.py` makes the cases. The file is a function of code and cases alone: two builds give the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.contrib.tasks.countdown_steps import work
from sage_rlvr.contrib.tasks.reasoning_gym import scored
from sage_rlvr.contrib.tasks.repair import Broken, Repair
from sage_rlvr.contrib.tasks.word_problems.story import read, story_of
from sage_rlvr.tasks.countdown import Problem
from sage_rlvr.verifiers import Verdict, countdown, countdown_chat, knights_and_knaves
from sage_rlvr.verifiers.answers import AnswerReading, extract
from sage_rlvr.verifiers.exact import canonical, verify_exact
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.rewards import answered
from sage_rlvr.verifiers.versions import VERSIONS, math_libraries

FILE = Path(__file__).with_name("verdicts.json.gz")
COMMAND = "python -m tests.verifiers.golden"
Case = list[Any]
Result = list[str | None]


@dataclass(frozen=True)
class GoldenRow:
    """A case and what its verifier said of it. `golden_rows.cases` makes the cases, `build` the results; `changed` reads both."""

    judge: str
    case: Case
    result: Result | None = None

    @property
    def line(self) -> str:
        """As the file has it. ASCII, so that lone surrogates are written as escapes."""
        return json.dumps([self.judge, self.case, self.result], separators=(",", ":"))

    @property
    def verifier(self) -> str:
        """The name in `VERSIONS` of the verifier that judges."""
        return self.judge.partition(",")[0]


# ---- the judges


def _pair(verdict: Verdict) -> Result:
    return [verdict.label, verdict.reason]


def _of_each(function: Callable[..., Result]) -> Callable[[Sequence[Case]], list[Result]]:
    return lambda cases: [function(*case) for case in cases]


def _math(completion: str, gold: str, options: dict[str, Any]) -> Result:
    return _pair(verify_math(completion, gold, **options))


def _answer(completion: str, reading: dict[str, Any]) -> Result:
    """Which answer is counted."""
    return ["answer", answered(completion, reading)]


def _gold(value: Any) -> Result:
    try:
        return ["gold", *gold_of(value)]
    except ValueError as error:
        return ["error", str(error)]


def _steps(numbers: list[int], target: int, text: str) -> Result:
    verdict, key = work(Problem(tuple(numbers), target), text)
    return [*_pair(verdict), key]


def _story(problem_id: str, text: str) -> Result:
    verdict, key = read(story_of(problem_id), text)
    return [*_pair(verdict), key]


class _SameText:
    """A scorer in the place of the package's: 1 for the gold, an error for an empty text."""

    def score_answer(self, text: str, entry: str) -> float:
        if not text:
            raise ValueError("empty")
        return float(text == entry)


def _gym(completion: str, gold: str, reading: dict[str, Any]) -> Result:
    answer, why = extract(completion, AnswerReading(**reading))
    if answer is None:
        return ["wrong", why]
    try:
        return _pair(scored(_SameText(), gold, answer.strip()))
    except ValueError as error:
        return ["undecided", str(error)]


def _repair(cases: Sequence[Case]) -> list[Result]:
    """At once, in processes. A generous limit: how busy the machine is changes no verdict."""
    pairs = []
    for source, tests, said in cases:
        given = tuple((tuple(arguments), wanted) for arguments, wanted in tests)
        problem = Broken(f"golden-{hash(str((source, given)))}", "", "", source, source, given, "")
        pairs.append((problem, said if isinstance(said, str) else tuple(said)))
    return [_pair(verdict) for verdict in Repair(seconds=10.0).verify_all(pairs)]


JUDGES: dict[str, Callable[[Sequence[Case]], list[Result]]] = {
    "math": _of_each(_math),
    "math,answer": _of_each(_answer),
    "math,gold": _of_each(_gold),
    "exact": _of_each(lambda answer, gold: [*_pair(verify_exact(answer, gold)), canonical(answer)]),
    "countdown": _of_each(lambda *case: _pair(countdown.judge(*case))),
    "countdown_chat": _of_each(lambda *case: _pair(countdown_chat.judge(*case))),
    "countdown_steps": _of_each(_steps),
    "knights_and_knaves": _of_each(lambda *case: _pair(knights_and_knaves.judge(*case))),
    "word_problems": _of_each(_story),
    "repair": _repair,
    "reasoning_gym": _of_each(_gym),
}
"""Name -> results of cases. The name of the verifier, and behind a comma another of its functions."""


def judged(rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """The rows with the results of the code as it is."""
    found: dict[int, Result] = {}
    for name, judge in JUDGES.items():
        places = [index for index, row in enumerate(rows) if row.judge == name]
        if places:
            results = judge([rows[index].case for index in places])
            found |= dict(zip(places, results, strict=True))
    return [GoldenRow(row.judge, row.case, found[index]) for index, row in enumerate(rows)]


def changed(rows: Sequence[GoldenRow]) -> Iterator[str]:
    """A line for each row whose result is no longer the stored one."""
    for old, new in zip(rows, judged(rows), strict=True):
        if old.result != new.result:
            yield f"{old.judge} of {json.dumps(old.case):.300}: {old.result} -> {new.result}"


# ---- the file


def load() -> tuple[dict[str, Any], list[GoldenRow]]:
    """The head (versions, libraries) and the rows."""
    head, *lines = gzip.decompress(FILE.read_bytes()).decode("ascii").splitlines()
    return json.loads(head), [GoldenRow(*json.loads(line)) for line in lines]


def written(rows: Iterable[GoldenRow]) -> bytes:
    """The file's bytes. mtime 0 and no file name, as gzip would store both."""
    head = json.dumps({"versions": VERSIONS, "libraries": math_libraries()})
    return gzip.compress("\n".join((head, *(row.line for row in rows))).encode("ascii"), compresslevel=9, mtime=0)


def build() -> str:
    """Judges all cases and writes the file; says what was written. SystemExit where a verdict of an unchanged version changed."""
    from verifiers.golden_rows import cases

    rows = judged(list(cases()))
    if FILE.exists():
        head, old = load()
        results = {
            (row.judge, json.dumps(row.case)): row for row in old if head["versions"].get(row.verifier) == VERSIONS[row.verifier]
        }
        for row in rows:
            before = results.get((row.judge, json.dumps(row.case)))
            if before is not None and before.result != row.result:
                sys.exit(
                    f"{row.judge} of {json.dumps(row.case):.300} changed from {before.result} to {row.result}, and the version did "
                    f"not: raise VERSIONS[{row.verifier!r}] in src/sage_rlvr/verifiers/versions.py, or restore the verdict"
                )
    FILE.write_bytes(written(rows))
    return f"{FILE}: {len(rows):,} rows, {FILE.stat().st_size:,} bytes"


if __name__ == "__main__":
    sys.path.insert(0, str(FILE.parents[1]))  # tests, whose modules import each other from there, as under pytest
    print(build())
