"""Problems of mathematics with one gold answer, and the origin of the published sets.

AIME 2024-2025, AMC23, MATH-500 and its level 5, Minerva, DAPO-Math. Their texts are not part of this package: rows are those of a
folder (SAGE_RLVR_DATA), or else of pinned files of public repositories. `SETS` has the SHA-256 of each set's rows (id, problem,
gold), so that both sources give the same ones.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.tasks.datasets import Example, examples
from sage_rlvr.tasks.pinned import Pinned, fetch
from sage_rlvr.tasks.prompts import Message
from sage_rlvr.tasks.rows import DataSource, stamp_of
from sage_rlvr.verifiers.answers import last_box

ENVIRONMENT = "SAGE_RLVR_DATA"
TableRows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MathProblem:
    """One problem. answer: the gold. solved: the answer at the end of the source's worked solution, if it has one. talk: its
    messages. `published` and `problem_of` make it; `MathTask` and its audit read it."""

    problem_id: str
    text: str
    answer: str
    level: int | None = None
    subject: str = ""
    solved: str = field(default="", compare=False)
    talk: tuple[Message, ...] = field(default=(), compare=False)

    @property
    def question(self) -> str | list[Message]:
        """The input of a prompt format: the text, or the messages of a row with messages."""
        return list(self.talk) or self.text


def problem_of(one: Example) -> MathProblem:
    """A row of a data set as a problem."""
    talk = () if isinstance(one.problem, str) else tuple(one.problem)
    text = one.problem if isinstance(one.problem, str) else "\n\n".join(message["content"] for message in talk)
    level, solution = one.row.get("level"), one.row.get("solution")
    facts = level if isinstance(level, int) else None, str(one.row.get("subject", ""))
    solved = _solved(solution) if isinstance(solution, str) else ""
    return MathProblem(one.problem_id, text, one.answer, *facts, solved, talk)


def digest(problems: Iterable[MathProblem]) -> str:
    """SHA-256 of the ids, texts and golds of problems, in their order."""
    sha = hashlib.sha256()
    for problem in problems:
        sha.update(json.dumps([problem.problem_id, problem.text, problem.answer]).encode() + b"\n")
    return sha.hexdigest()


# ---- the published files: their rows -> problems


def _aime(first: TableRows, *later: TableRows) -> list[MathProblem]:
    named = [(f"aime24-{i}", row) for i, row in enumerate(first, start=1)]
    named += [(f"aime25-{row['id']}", row) for rows in later for row in rows]
    return [MathProblem(name, row["problem"], str(row["answer"])) for name, row in named]


def _amc(rows: TableRows) -> list[MathProblem]:
    return [MathProblem(f"amc23-{row['id']}", row["problem"], f"{row['answer']:g}") for row in rows]


def _math500(rows: TableRows) -> list[MathProblem]:
    names = ("unique_id", "problem", "answer", "level", "subject")
    return [MathProblem(*(row[name] for name in names), _solved(row["solution"])) for row in rows]


def _minerva(golds: TableRows, rows: TableRows) -> list[MathProblem]:
    pairs = enumerate(zip((row["reward_model"]["ground_truth"] for row in golds), rows, strict=True))
    return [
        MathProblem(f"minerva-{i}", row["problem"], gold, None, row["type"], _solved(row["solution"]))
        for i, (gold, row) in pairs
    ]


def _dapo(rows: TableRows) -> list[MathProblem]:
    """The first 2000. An instruction precedes and follows each problem."""
    texts = [row["prompt"][0]["content"].split("\n\n", 1)[1].rsplit("\n\n", 1)[0] for row in rows[:2000]]
    facts = [(f"dapo-{row['extra_info']['index']}", row["reward_model"]["ground_truth"]) for row in rows[:2000]]
    return [MathProblem(name, text, gold) for text, (name, gold) in zip(texts, facts, strict=True)]


def _solved(text: str) -> str:
    return last_box(text)[0] or ""


def rows_of(data: bytes) -> TableRows:
    """The rows of a file of JSON lines, or of a Parquet file."""
    if not data.startswith(b"PAR1"):
        return [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
    from pyarrow.parquet import read_table  # slow to import

    rows: TableRows = read_table(io.BytesIO(data)).to_pylist()
    return rows


# ---- the sets


@dataclass(frozen=True)
class MathSource:
    """The origin of a set. local: its file in a folder; read: the function from rows of the pinned files to problems. `SETS` has
    one per published set; `MathTask` and `published` read it.

    sha256: `digest` of its problems. level: the only level that is used. integers: the golds' range if the rules of the contest
    fix one.
    """

    local: str
    read: Callable[..., list[MathProblem]]
    sha256: str
    pins: tuple[Pinned, ...]
    level: int | None = None
    integers: tuple[int, int] | None = None


_AIME = ("GAIR-NLP/AIME-Preview", "7011a9eae7c4b78071f27b6f77f618d65608cfb0")
_QWEN = ("QwenLM/Qwen2.5-Math", "a45202bd16f1ec06f433442dc1152d0074773465")
_VERL = ("hf618/VERL", "3de68f16e447647d3f80d11fdbe5816137b515aa")
_STEER = ("zz-haooo/STEER", "b31df71652cd103ddc3512656a430c39ba15dd13")
_FILES = {
    "aime24": (*_AIME, "eval/data/aime/test2024.jsonl",
        "a0f7eb9915f60f70fdaa9375414869d101eab639a67acf652cde98166efcd1cc", 146233),
    "aime25": (*_AIME, "eval/data/aime/test2025-I.jsonl",
        "fcdf97fe9bf3768e586c4f3b3d34d98a763893847e72234aa41e1ed5c67d977a", 6226),
    "aime25-II": (*_AIME, "eval/data/aime/test2025-II.jsonl",
        "69d966f7badd83a681d30efa9b4d587b4c692e4892b6ea5dc57d11d3934bf79a", 9426),
    "amc23": (*_QWEN, "evaluation/data/amc23/test.jsonl",
        "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4", 27631),
    "math500": (*_VERL, "examples/simplelr_math_eval/data/math500/test.jsonl",
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132", 446564),
    "minerva-golds": (*_STEER, "datasets/minerva_math.parquet",
        "5aa872966eb92eae8e0f4c57e13a2cc75307cbf07daadba7fa215b74454d10af", 112096),
    "minerva": (*_QWEN, "evaluation/data/minerva_math/test.jsonl",
        "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2", 247267),
    "dapo": (*_STEER, "datasets/DAPO-Math-17k.parquet",
        "8a8347311181c89f2316b88363ab9f3a05d0f62b1b19cb4197bd08e435129b34", 3577123),
}  # fmt: skip


def _set(local: str, read: Callable[..., list[MathProblem]], sha256: str, files: str, **law: Any) -> MathSource:
    return MathSource(local, read, sha256, tuple(Pinned(*_FILES[name]) for name in files.split()), **law)


SETS: dict[str, MathSource] = {
    "aime": _set(
        "aime_2024_2025.jsonl", _aime, "c1aacb93d57888cbe71f68bc223e9f0aa7086a39e74c35490fc211e8e5562775",
        "aime24 aime25 aime25-II", integers=(0, 999),
    ),
    "amc23": _set("amc23.jsonl", _amc, "2ca65ff7a56599618730cc3bce078b3a686113390d867fd5e74df1222fe6b11d", "amc23"),
    "math500": _set("math500.jsonl", _math500, "735db0f505b4a619c15df59325d0132862b149a6eab7ee9adc4dc847ad7d3b99", "math500"),
    "math500_l5": _set(
        "math500.jsonl", _math500, "9a074054fc5671a493e5099400832756d09ee155dcb969ba1b35d1c4d95d8245", "math500", level=5
    ),
    "minerva": _set(
        "minerva.jsonl", _minerva, "acc7cc1f87789243eda4f6de55a05ac302972c7ea8961535e918f7a48fe36300", "minerva-golds minerva"
    ),
    "dapo_math": _set(
        "dapo_math_2000.jsonl", _dapo, "a0ffb4bf467b8f575707e10b042b99ad3a65c2b80231ed18375b16bc0f3854b0", "dapo"
    ),
}  # fmt: skip


def published(name: str, folder: str) -> tuple[MathProblem, ...]:
    """The problems of a set: from its file in `folder`, or, for "", from its pinned files. Raises `DataError` without them."""
    path = Path(folder).expanduser() / SETS[name].local if folder else None
    if path is not None and not path.is_file():
        raise DataError(
            f"task {name}: {ENVIRONMENT}={folder} has no {path.name}; put it there, or unset {ENVIRONMENT} to "
            f"fetch {', '.join(pin.url for pin in SETS[name].pins)}"
        )
    return _read(name, path, None if path is None else stamp_of(path))


@lru_cache(maxsize=16)
def _read(name: str, path: Path | None, stamp: tuple[int, int] | None) -> tuple[MathProblem, ...]:
    source = SETS[name]
    if path is None:
        made = source.read(*(rows_of(fetch(pin)) for pin in source.pins))
    else:
        made = [problem_of(one) for one in examples(DataSource(path=str(path))).examples]
    return tuple(problem for problem in made if source.level in (None, problem.level))


__all__ = ["ENVIRONMENT", "SETS", "MathProblem", "MathSource", "digest", "problem_of", "published"]
