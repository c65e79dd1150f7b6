"""Mathematics problems with one gold answer: AIME 2024-2025, AMC23, MATH-500 and its level 5, Minerva, DAPO-Math.

    rows = the files of a folder (SAGE_RLVR_DATA), else pinned files of public repositories (`SETS`), or any .jsonl
    right iff the answer at the place that the prompt format names equals the gold (`sage_rlvr.verifiers.math`)

The texts are not part of this package. `SETS` has the SHA-256 of each task's rows (id, problem, gold), so that both
sources are known to give the same ones; a folder with other rows is used, and `MathTask.pinned` says so.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.base import code_hash
from sage_rlvr.tasks.datasets import Example, examples
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.pinned import Pinned, fetch
from sage_rlvr.tasks.prompts import BOXED, Message, PromptFormat
from sage_rlvr.tasks.rows import SUFFIXES, DataSource, Say, facts
from sage_rlvr.verifiers import MATHEMATICS, Verdict
from sage_rlvr.verifiers.answers import bare, extract, last_box, spelling
from sage_rlvr.verifiers.pool import Pool, shared

ENVIRONMENT = "SAGE_RLVR_DATA"
_AIME = ("GAIR-NLP/AIME-Preview", "7011a9eae7c4b78071f27b6f77f618d65608cfb0")
_QWEN = ("QwenLM/Qwen2.5-Math", "a45202bd16f1ec06f433442dc1152d0074773465")
_VERL = ("hf618/VERL", "3de68f16e447647d3f80d11fdbe5816137b515aa")
_STEER = ("zz-haooo/STEER", "b31df71652cd103ddc3512656a430c39ba15dd13")
_DAPO_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. answer: the gold. solved: what the source's worked solution ends with, where it has one. talk: its messages."""

    problem_id: str
    text: str
    answer: str
    level: int | None = None
    subject: str = ""
    solved: str = field(default="", compare=False)
    talk: tuple[Message, ...] = field(default=(), compare=False)

    @property
    def asked(self) -> str | list[Message]:
        """What a prompt format is given: the text, or the messages of a row that brings some."""
        return list(self.talk) or self.text


def _lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]


def _table(data: bytes) -> list[dict[str, Any]]:
    from pyarrow.parquet import read_table

    rows: list[dict[str, Any]] = read_table(io.BytesIO(data)).to_pylist()
    return rows


def _solved(text: str) -> str:
    return last_box(text)[0] or ""


def _aime(first: bytes, second: bytes, third: bytes) -> list[Problem]:
    made = [Problem(f"aime24-{i}", row["problem"], str(row["answer"])) for i, row in enumerate(_lines(first), start=1)]
    later = [row for data in (second, third) for row in _lines(data)]
    return made + [Problem(f"aime25-{row['id']}", row["problem"], str(row["answer"])) for row in later]


def _amc(data: bytes) -> list[Problem]:
    return [Problem(f"amc23-{row['id']}", row["problem"], f"{row['answer']:g}") for row in _lines(data)]


def _math500(data: bytes) -> list[Problem]:
    return [
        Problem(row["unique_id"], row["problem"], row["answer"], row["level"], row["subject"], _solved(row["solution"]))
        for row in _lines(data)
    ]


def _minerva(golds: bytes, solutions: bytes) -> list[Problem]:
    made = []
    for i, (row, other) in enumerate(zip(_table(golds), _lines(solutions), strict=True)):
        gold = row["reward_model"]["ground_truth"]
        made.append(Problem(f"minerva-{i}", other["problem"], gold, None, other["type"], _solved(other["solution"])))
    return made


def _dapo(data: bytes) -> list[Problem]:
    made = []
    for row in _table(data)[:_DAPO_ROWS]:
        _, wrapped = row["prompt"][0]["content"].split(
            "\n\n", 1
        )  # an instruction stands before each problem and behind it
        text, _ = wrapped.rsplit("\n\n", 1)
        made.append(Problem(f"dapo-{row['extra_info']['index']}", text, row["reward_model"]["ground_truth"]))
    return made


@dataclass(frozen=True)
class Source:
    """Where a task's rows come from. local: its file in a folder; pins, read: the published files, and how they are read.

    rows, sha256: how many, and their `digest`. integers: the golds' range where the rules of the contest fix one.
    """

    local: str
    pins: tuple[Pinned, ...]
    read: Callable[..., list[Problem]]
    rows: int
    sha256: str
    level: int | None = None
    integers: tuple[int, int] | None = None


_MATH500 = (
    Pinned(
        *_VERL,
        "examples/simplelr_math_eval/data/math500/test.jsonl",
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        446564,
    ),
)
Data = str | DataSource
SETS: dict[str, Source] = {
    "aime": Source(
        "aime_2024_2025.jsonl",
        (
            Pinned(
                *_AIME,
                "eval/data/aime/test2024.jsonl",
                "a0f7eb9915f60f70fdaa9375414869d101eab639a67acf652cde98166efcd1cc",
                146233,
            ),
            Pinned(
                *_AIME,
                "eval/data/aime/test2025-I.jsonl",
                "fcdf97fe9bf3768e586c4f3b3d34d98a763893847e72234aa41e1ed5c67d977a",
                6226,
            ),
            Pinned(
                *_AIME,
                "eval/data/aime/test2025-II.jsonl",
                "69d966f7badd83a681d30efa9b4d587b4c692e4892b6ea5dc57d11d3934bf79a",
                9426,
            ),
        ),
        _aime,
        60,
        "c1aacb93d57888cbe71f68bc223e9f0aa7086a39e74c35490fc211e8e5562775",
        integers=(0, 999),
    ),
    "amc23": Source(
        "amc23.jsonl",
        (
            Pinned(
                *_QWEN,
                "evaluation/data/amc23/test.jsonl",
                "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4",
                27631,
            ),
        ),
        _amc,
        40,
        "2ca65ff7a56599618730cc3bce078b3a686113390d867fd5e74df1222fe6b11d",
    ),
    "math500": Source(
        "math500.jsonl", _MATH500, _math500, 500, "735db0f505b4a619c15df59325d0132862b149a6eab7ee9adc4dc847ad7d3b99"
    ),
    "math500_l5": Source(
        "math500.jsonl",
        _MATH500,
        _math500,
        134,
        "9a074054fc5671a493e5099400832756d09ee155dcb969ba1b35d1c4d95d8245",
        level=5,
    ),
    "minerva": Source(
        "minerva.jsonl",
        (
            Pinned(
                *_STEER,
                "datasets/minerva_math.parquet",
                "5aa872966eb92eae8e0f4c57e13a2cc75307cbf07daadba7fa215b74454d10af",
                112096,
            ),
            Pinned(
                *_QWEN,
                "evaluation/data/minerva_math/test.jsonl",
                "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2",
                247267,
            ),
        ),
        _minerva,
        272,
        "acc7cc1f87789243eda4f6de55a05ac302972c7ea8961535e918f7a48fe36300",
    ),
    "dapo_math": Source(
        "dapo_math_2000.jsonl",
        (
            Pinned(
                *_STEER,
                "datasets/DAPO-Math-17k.parquet",
                "8a8347311181c89f2316b88363ab9f3a05d0f62b1b19cb4197bd08e435129b34",
                3577123,
            ),
        ),
        _dapo,
        _DAPO_ROWS,
        "a0ffb4bf467b8f575707e10b042b99ad3a65c2b80231ed18375b16bc0f3854b0",
    ),
}


def digest(problems: Iterable[Problem]) -> str:
    """SHA-256 of the ids, texts and golds of problems, in their order."""
    found = hashlib.sha256()
    for problem in problems:
        found.update(json.dumps([problem.problem_id, problem.text, problem.answer]).encode() + b"\n")
    return found.hexdigest()


def read_rows(data: DataSource, prompts_first: bool = False) -> list[Problem]:
    """Rows of your own as problems (`sage_rlvr.tasks.datasets`). ConfigError for columns, DataError for rows, with places."""
    return [_own(one) for one in examples(data, prompts_first=prompts_first).examples]


def _own(one: Example) -> Problem:
    said = [{"role": "user", "content": one.problem}] if isinstance(one.problem, str) else one.problem
    level, solution = one.row.get("level"), one.row.get("solution")
    return Problem(
        one.problem_id,
        "\n\n".join(message["content"] for message in said),
        one.answer,
        level if isinstance(level, int) else None,
        str(one.row.get("subject", "")),
        _solved(solution) if isinstance(solution, str) else "",
        () if isinstance(one.problem, str) else tuple(said),
    )


def _file(source: Data, folder: str) -> Path | None:
    """The file that rows stand in; None for those that are pinned."""
    if isinstance(source, DataSource):
        return Path(source.path).expanduser()
    return Path(folder).expanduser() / SETS[source].local if folder else None


@lru_cache(maxsize=16)
def _load(source: Data, folder: str, prompts_first: bool, stamp: tuple[int, int] | None) -> tuple[Problem, ...]:
    """stamp: time and size of the file, so that one that changed is read anew."""
    if isinstance(source, DataSource):
        return tuple(read_rows(source, prompts_first))
    path, published = _file(source, folder), SETS[source]
    if path is not None and not path.is_file():
        raise DataError(
            f"task {source}: {ENVIRONMENT}={folder} has no {published.local}; put it there, or unset {ENVIRONMENT} to "
            f"fetch {', '.join(pin.url for pin in published.pins)}"
        )
    local = None if path is None else DataSource(path=str(path))
    made = read_rows(local) if local else published.read(*(fetch(pin) for pin in published.pins))
    return tuple(problem for problem in made if published.level in (None, problem.level))


@dataclass(frozen=True)
class MathTask:
    """A set of `SETS`, or rows of your own.

    source  its key in `SETS`, or a file, a folder or a Hub id (`sage_rlvr.tasks.datasets`)
    form    how a problem is asked and where its answer is read (`sage_rlvr.tasks.prompts.FORMATS`)
    folder  a folder with the data files of `SETS`; default: what SAGE_RLVR_DATA names; "" for the pinned files
    pool    limits of its own for the verifier; default: the shared pool of this process
    test    other rows for every split but "train"; default: the same
    """

    source: str | DataSource
    form: PromptFormat = BOXED
    folder: str | None = None
    pool: Pool | None = field(default=None, compare=False)
    test: DataSource | None = None

    def __post_init__(self) -> None:
        source = self.source
        if isinstance(source, str) and source not in SETS:
            if "/" not in source and not source.endswith(SUFFIXES):
                raise ConfigError(
                    f"task {source!r}: choose one of {', '.join(SETS)}, or give a file ({', '.join(SUFFIXES)}) or a Hub id"
                )
            object.__setattr__(self, "source", DataSource(path=source))

    @property
    def name(self) -> str:
        """The set's key, or the file's name."""
        return Path(self.source.path).stem if isinstance(self.source, DataSource) else self.source

    @property
    def published(self) -> Source | None:
        """Where the set comes from; None for rows of your own."""
        return None if isinstance(self.source, DataSource) else SETS[self.source]

    @property
    def integers(self) -> tuple[int, int] | None:
        """The golds' range, where the rules of the contest fix one."""
        return self.published and self.published.integers

    def problems(self, split: str = "test") -> tuple[Problem, ...]:
        """All problems in the order of their source. `DataError` where they cannot be had."""
        source = self.test if self.test is not None and split != "train" else self.source
        folder = os.environ.get(ENVIRONMENT, "") if self.folder is None else self.folder
        path = _file(source, folder)
        state = path.stat() if path is not None and path.is_file() else None
        stamp = None if state is None else (state.st_mtime_ns, state.st_size)
        return _load(source, folder, self.form.name == "as_is", stamp)

    @property
    def pinned(self) -> bool:
        """Whether these rows are the published ones (`Source.sha256`); a file of your own never is."""
        return self.published is not None and digest(self.problems()) == self.published.sha256

    def messages(self, problem: Problem, form: PromptFormat | None = None) -> list[Message]:
        """The prompt as a conversation."""
        return (form or self.form).messages(problem.asked)

    def prompt(self, problem: Problem, form: PromptFormat | None = None) -> str:
        """The prompt as plain text, for a tokenizer without a chat template: messages, empty lines between, and an opening."""
        return (form or self.form).plain(problem.asked)

    def verify(self, problem: Problem, completion: str, form: PromptFormat | None = None) -> Verdict:
        """The verdict on a completion, found in a worker process with limits on time and memory."""
        return self.verify_all([(problem, completion)], form)[0]

    def verify_all(
        self, pairs: Sequence[tuple[Problem, str]], form: PromptFormat | None = None, **options: Any
    ) -> list[Verdict]:
        """The verdicts on many (problem, completion) at once; `options` of `verify_math` override the format's reading."""
        items = [(completion, problem.answer) for problem, completion in pairs]
        return (self.pool or shared()).verify(items, **((form or self.form).reading | options))

    def answer_key(self, problem: Problem, text: str) -> str | None:
        """What a completion answers where the format asks for it, in the spelling by which answers are counted."""
        return answered(text, self.form.reading)

    def choices(self, problem: Problem) -> int | None:
        """How many integers the contest allows; None where it fixes none."""
        return None if self.integers is None else self.integers[1] - self.integers[0] + 1

    def fingerprint(self, problems: Sequence[Problem]) -> str:
        """`digest(problems)`."""
        return digest(problems)

    @property
    def verifier_hash(self) -> str:
        """`mathematics_hash` of the format's reading."""
        return mathematics_hash(self.form.reading, self.pool)

    def files(self) -> dict[str, str]:
        """SHA-256 of the files, for rows of your own."""
        own = [data for data in (self.source, self.test) if isinstance(data, DataSource)]
        return {name: sha for data in own for name, sha in facts(data).items()}

    def ready(self, say: Say) -> None:
        """Says which columns were read; DataError where more than 1 % of the golds of rows of your own cannot be judged by."""
        if isinstance(self.source, DataSource):
            found = examples(self.source, prompts_first=self.form.name == "as_is")
            check_golds(found.rows, [one.answer for one in found.examples], say=say)
            say(f"{found}; prompt format: {self.form.name}")

    def audit_cases(self, k: int, **options: Any) -> Any:
        """See `sage_rlvr.tasks.math_audit`."""
        from sage_rlvr.tasks.math_audit import cases

        return cases(self, k, **options)

    def audited(self, **options: Any) -> str:
        """What an audit looks at, in words."""
        from sage_rlvr.tasks.math_audit import head

        return head(self, **options)


def answered(text: str, reading: Mapping[str, Any]) -> str | None:
    """What a completion answers at a place, in the spelling by which answers are counted."""
    found, _ = extract(text, **reading)
    return None if found is None or not bare(found) else spelling(bare(found))


def mathematics_hash(reading: Mapping[str, Any], pool: Pool | None = None) -> str:
    """Of the mathematics verifier that reads answers so: its code, limits and libraries."""
    limits = pool or shared()
    return code_hash(
        MATHEMATICS,
        reading=reading,
        seconds=limits.seconds,
        memory_mb=limits.memory_mb,
        libraries={lib: importlib.metadata.version(lib) for lib in ("math-verify", "latex2sympy2_extended", "sympy")},
    )


def selfcheck(task: MathTask) -> dict[str, int | bool]:
    """`ok` when ids differ, the rows are as many as published and the published ones, and every gold is right in its form."""
    problems = task.problems()
    turns = [(problem, task.form.assistant("By the above.", problem.answer)) for problem in problems]
    right = sum(verdict.right for verdict in task.verify_all(turns))
    expected = task.published.rows if task.published else len(problems)
    ids = len({problem.problem_id for problem in problems})
    pinned = task.pinned or task.published is None
    return {
        "ok": len(problems) == expected == ids == right and pinned,
        "rows": len(problems),
        "expected": expected,
        "ids": ids,
        "right": right,
        "pinned": pinned,
    }


__all__ = ["ENVIRONMENT", "SETS", "MathTask", "Problem", "Source", "digest", "read_rows", "selfcheck"]
