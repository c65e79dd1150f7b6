r"""Grade-school word problems of reasoning-gym's `gsm_symbolic` (the extra `tasks`), each with a worked answer.

    template, seed of the instance -> question, worked answer, gold

    user       Charlotte and Jennifer are sisters ... Charlotte has 30 signatures in her book, and Jennifer has 41. ...
    assistant  Charlotte and Jennifer have already collected 30 + 41 signatures = 71 signatures.
               Since their goal is 135, they need to collect 135 - 71 signatures. 135 - 71 = 64 signatures

               The answer is $\boxed{64}$.

A template is a problem with variable names and numbers. A hash of its number in the package makes it a *seen* or an *unseen* one,
so that a policy is trained on some templates and evaluated on new numbers of these and on new templates. The templates are those
that the package itself draws and whose worked answers end in the gold (`sound` checks instances of each); an instance whose worked
answer does not is left out.

A hash of the question determines its split, so that no question is in two. The right answer is one number: a problem has one
distinct right answer, for any working, and a count of distinct right answers equals pass@k.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count, pairwise
from operator import attrgetter
from random import Random
from typing import Any, ClassVar, Literal, get_args

from sage_rlvr.contrib.tasks.reasoning_gym import library, version
from sage_rlvr.errors import ConfigError, DataError, refuse
from sage_rlvr.extras import install
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import PromptedTask, different, words
from sage_rlvr.tasks.chance import chance_of_golds
from sage_rlvr.tasks.checks import AuditFinding, Case, Check
from sage_rlvr.tasks.math import mathematics_hash
from sage_rlvr.tasks.prompts import BOXED, PromptFormat, location_in_words
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import number
from sage_rlvr.verifiers.pool import shared
from sage_rlvr.verifiers.rewards import answered

Which = Literal["seen", "unseen", "all"]
NAME = "gsm_symbolic"
MARK = "####"  # a worked answer ends in a line of this mark and the gold
UNSEEN = 25  # percent of the templates, by their hash
CHECKED = 20  # instances of a template whose worked answers must end in the gold
LISTED = 4096  # problems of the package's data set, which contain the templates that it draws
DRAWS = 2_000  # candidates for one problem before an error
DRY = 2_000  # draws in a row without a new question
AUDITED = 200
SEED = 1  # of the audited problems
SPLITS = {"test": (0, 10), "validation": (10, 20), "train": (20, 100)}  # of a question's bucket
Template = Callable[[Random, float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GsmProblem:
    """An instance of a template: its question, the gold, and the worked answer without its last line. `GsmSymbolic` makes and reads
    it."""

    template: int
    seed: int
    question: str
    answer: str
    worked: str

    @property
    def problem_id(self) -> str:
        """Template and seed, such as "17-4021"."""
        return f"{self.template}-{self.seed}"


# ------------------------------------------------------------------------------------------------------------------
# templates


@cache
def generators() -> dict[int, Template]:
    """Number -> generator of the templates that the package draws; it also contains others that it calls unfinished."""
    made = library().create_dataset(NAME, size=LISTED, seed=0)
    try:
        return {number: made.generators[number] for number in sorted(set(made.task_indices))}
    except (AttributeError, KeyError) as error:
        raise ConfigError(
            f"reasoning-gym {version()}: its {NAME} does not list its templates ({error}); for a version that does, "
            f"{install('tasks')}"
        ) from error


def instance(template: int, seed: int) -> GsmProblem | None:
    """The instance of a seed; None if its worked answer does not end in the gold."""
    try:
        entry = generators()[template](Random(seed), 1.0)
    except (ArithmeticError, LookupError, ValueError):  # numbers that a template cannot use, for some seeds
        return None
    gold, solution = str(entry["answer"]).strip(), str(entry["metadata"]["answer_cot"]).strip()
    worked, _, end = solution.rpartition(MARK)
    value = number(gold)
    if value is None or number(end.strip()) != value:
        return None
    lines = [line.strip() for line in worked.strip().splitlines()]
    return GsmProblem(template, seed, str(entry["question"]).strip(), gold, "\n".join(lines))


@cache
def sound(template: int) -> bool:
    """Whether the worked answers of a template end in the gold, in all of `CHECKED` instances."""
    return all(instance(template, seed) is not None for seed in range(CHECKED))


def is_unseen(template: int) -> bool:
    """Whether a template is unseen, by a hash of its number, the same in every process and version."""
    return _bucket(f"{NAME} {template}") < UNSEEN


@cache
def templates(which: Which) -> tuple[int, ...]:
    """The numbers of the sound templates, of all of them or of one side."""
    chosen = [template for template in generators() if sound(template)]
    return tuple(one for one in chosen if which == "all" or is_unseen(one) == (which == "unseen"))


def split_of(question: str) -> str:
    """The split of a question, by a hash of its text."""
    bucket = _bucket(question)
    return next(split for split, (low, behind) in SPLITS.items() if low <= bucket < behind)


def _bucket(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100


# ------------------------------------------------------------------------------------------------------------------
# the task


@TASKS.register(name="gsm_symbolic")
@dataclass(frozen=True)
class GsmSymbolic(PromptedTask):
    """Grade-school word problems from templates, with worked answers (see the module).

    templates: seen, for training; unseen, which never occur in a run on the seen ones; or all. train_problems: size of the training
    pool. data_seed: its seed, separate from the seed of a run.
    """

    templates: Which = "seen"
    train_problems: int = 5_000
    data_seed: int = 0

    worlds: ClassVar[Mapping[str, GsmSymbolic]] = {}
    form: ClassVar[PromptFormat] = BOXED
    max_new_tokens: ClassVar[int] = 320

    def __post_init__(self) -> None:
        known = get_args(Which)
        refuse(
            (self.templates not in known, f"templates {self.templates!r}: choose one of {', '.join(known)}"),
            (
                self.train_problems < 1 or self.data_seed < 0,
                f"train_problems {self.train_problems}, data_seed {self.data_seed}: at least 1 problem, and a seed of 0 or more",
            ),
        )

    @property
    def name(self) -> str:
        """The name on the command line, so that the sides are two tasks in tables."""
        return NAME if self.templates == "seen" else f"{NAME}:{self.templates}"

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that determine the problems of an evaluation."""
        return {"name": self.name, "templates": self.templates, "reasoning_gym": version()}

    @staticmethod
    def described(identity: Mapping[str, Any]) -> str:
        """The templates and the package in a line."""
        which = {"all": "all templates"}.get(identity["templates"], f"{identity['templates']} templates")
        return f"grade-school word problems: {which} of gsm_symbolic, reasoning-gym {identity['reasoning_gym']}"

    def problems(self, split: str = "train") -> list[GsmProblem]:
        """The first `train_problems` of a split whose questions differ. Raises DataError if the templates give fewer."""
        return self.first(split, self.train_problems)

    def first(self, split: str, n: int) -> list[GsmProblem]:
        """The first n of `problems(split)`."""
        _check_split(split)
        n = min(n, self.train_problems)
        problems = _different(self.templates, split, self.data_seed, n)
        if len(problems) < n:
            raise DataError(f"{n} different {split} problems of {self.name}: its templates gave {len(problems)}; request fewer")
        return list(problems)

    def draw(self, split: str, seed: int, n: int, sampling: str = "iid") -> list[GsmProblem]:
        """The problems of an evaluation: n independent draws, with repeats."""
        if sampling != "iid":
            raise DataError(f"sampling {sampling!r}: {self.name} has only iid, because its problems are not listed")
        _check_split(split)
        return [_drawn(self.templates, split, seed, index) for index in range(n)]

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[GsmProblem, str]]:
        """Examples `start` to `start + n` of an endless stream: a problem and its worked answer, with the gold at its end."""
        _check_split(split)
        refuse((min(seed, start, n) < 0, f"seed {seed}, start {start}, n {n}: none may be negative"))
        drawn = [_drawn(self.templates, split, seed, index) for index in range(start, start + n)]
        return [(problem, self.worked(problem)) for problem in drawn]

    def worked(self, problem: GsmProblem) -> str:
        """The worked answer as a completion."""
        return self.form.assistant(problem.worked, problem.answer)

    @staticmethod
    def problem_of(problem_id: str) -> GsmProblem:
        """The problem of an id such as "17-4021"; raises `DataError` for any other text."""
        template, _, seed = problem_id.partition("-")
        problem = None
        if template.isdecimal() and seed.isdecimal() and int(template) in generators():
            problem = instance(int(template), int(seed))
        if problem is None:
            raise DataError(f"{problem_id!r:.80} is no id of a {NAME} problem: it should look like '17-4021' (template, seed)")
        return problem

    @property
    def reading(self) -> dict[str, Any]:
        """The place of an answer."""
        return self.form.reading

    def verify_all(self, pairs: Sequence[tuple[GsmProblem, str]], **options: Any) -> list[Verdict]:
        """The verdicts of the mathematics verifier; `options` override the format's reading."""
        items = [(completion, problem.answer) for problem, completion in pairs]
        return shared().verify(items, **(self.reading | options))

    def answer_key(self, problem: GsmProblem, text: str) -> str | None:
        """The number in the answer, so that 7 and 7.0 are one answer; otherwise the answer's canonical form, None without one."""
        answer = answered(text, self.reading)
        value = None if answer is None else number(answer)
        return answer if value is None else str(value)

    def golds(self, problems: Sequence[GsmProblem]) -> list[str]:
        """Their gold answers."""
        return [problem.answer for problem in problems]

    def doc(self, problem: GsmProblem) -> dict[str, str]:
        """Question and answer."""
        return {"question": problem.question, "answer": problem.answer}

    @property
    def _verifier_version(self) -> str:
        """`mathematics_hash` of the place of an answer."""
        return mathematics_hash(self.reading)

    # ---- its audit

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """Worked answers are right, the same without or with another answer are wrong; the guarantees of templates and splits."""
        rows = _different(self.templates, "test", SEED, AUDITED)
        golds = [p.answer for p in rows]
        location = location_in_words(self.form.answer_in, self.form.tag)
        yield Case("every worked answer is right", [(p, self.worked(p)) for p in rows], location=location)
        wrong = {
            "the answer plus 1": [(p, self.form.assistant(p.worked, _plus_one(p.answer))) for p in rows],
            "its working without an answer": [(p, p.worked) for p in rows],
            "another problem's working and answer": [
                (p, self.worked(q)) for p, q in pairwise(rows) if number(p.answer) != number(q.answer)
            ],
        }
        yield Case("", wrong, "wrong")
        yield _worked_check()
        yield _apart_check()
        hits = sum(chance_of_golds(golds).hits(k))
        yield Check(f"guess floor: the {k} most frequent golds of the other problems", hits, len(rows))

    def audited(self) -> str:
        """Describe the subject of an audit."""
        return f"{AUDITED} test problems, seed {SEED}; {self.described(self.identity)} ({len(templates(self.templates))} templates)"


GsmSymbolic.worlds = {"seen": GsmSymbolic(), "unseen": GsmSymbolic("unseen"), "all": GsmSymbolic("all")}


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}")


@lru_cache(maxsize=1 << 15)
def _drawn(which: Which, split: str, seed: int, index: int) -> GsmProblem:
    """Problem `index` of a stream: the first instance in the split; every template is equally likely."""
    chance, chosen = words(seed, list(SPLITS).index(split), index), templates(which)
    for _ in range(DRAWS if chosen else 0):
        problem = instance(chosen[next(chance) % len(chosen)], next(chance) % (1 << 32))
        if problem is not None and split_of(problem.question) == split:
            return problem
    raise DataError(f"{NAME}: {len(chosen)} {which} templates gave no {split} problem; use another version of reasoning-gym")


@lru_cache(maxsize=16)
def _different(which: Which, split: str, seed: int, n: int) -> tuple[GsmProblem, ...]:
    """The first n problems of a stream whose questions differ; fewer if `DRY` draws in a row give none."""
    blocks = ([(_drawn(which, split, seed, index), "")] for index in count())
    return tuple(different(blocks, n, DRY, by=attrgetter("question")))


def _plus_one(gold: str) -> str:
    value = number(gold)
    assert value is not None  # `instance` returns only numbers
    return str(value + 1) if value.denominator == 1 else f"{float(value + 1):g}"


def _worked_check() -> Check:
    """Check of the templates that the package draws: those whose worked answers end in the gold. No bar: the others are left
    out."""
    why = "a worked answer does not end in the gold"
    left = tuple(AuditFinding(f"template {template}", "left out", why) for template in generators() if not sound(template))
    name = "templates whose worked answers end in the gold"
    return Check(name, len(generators()) - len(left), len(generators()), left, note=f"{CHECKED} instances of each")


def _apart_check() -> Check:
    """Unseen templates whose text, ignoring names and numbers, is that of a seen one."""
    seen = {_skeleton(template) for template in templates("seen")}
    both = [template for template in templates("unseen") if _skeleton(template) in seen]
    why = "of a seen template, names and numbers aside"
    rows = tuple(AuditFinding(f"template {template}", "duplicate", why) for template in both)
    total = len(templates("unseen"))
    return Check("unseen templates differ from every seen one", total - len(rows), total, rows, bar=True)


def _skeleton(template: int) -> str:
    """The question of a sound template with # instead of its numbers and of all capitalized words, including its names."""
    problem = instance(template, 0)
    assert problem is not None  # seed 0 is one of those that `sound` tried
    return re.sub(r"[0-9][0-9.,]*|[A-Z][a-z]+", "#", problem.question)


__all__ = ["GsmProblem", "GsmSymbolic", "Which", "instance", "is_unseen", "sound", "split_of", "templates"]
