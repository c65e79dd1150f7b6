r"""The audit of another library's reward function, on rows with golds: the rewards of right, wrong and empty answers.

    gold paid        share of golds with a reward of at least `right_from`, in the form (`FORMS`) that is accepted most often
    false rejects    the gold written differently, in that form (`equal_answers`)
    false accepts    wrong answers in that form (`wrong_answers`, `near_answers`), texts without an answer or with another one at
                     the end, and another answer next to a phrase: common ones, and those in the reward's code
    beyond the rows  the same for golds that the rows may lack (`BEYOND`), each instead of a row's gold
    guess floor      rows for which one of a few constant answers is accepted
    order            whether rewards are the same for a single call, a repeated call, in a batch and in a shuffled batch
    limits           every call, and hostile texts, within `seconds` and without an exception

The reward runs in a worker process that can be killed (`worker.py`, `Pool`): a hang is a finding. After `MOST_LIMITS` of them the
remaining calls are not made. There is only one worker, so that state between calls of a reward becomes visible.
"""

from __future__ import annotations

import inspect
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from statistics import fmean, median
from typing import Any, cast, get_args

from sage_rlvr.contrib.audit.mathematics import NO_GOLD, WORKING, answerable, equal_answers, near_answers, wrong_answers
from sage_rlvr.contrib.audit.worker import MISSING, in_short, same
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.paths import not_in
from sage_rlvr.tasks.chance import chance_of_golds
from sage_rlvr.tasks.checks import FORMS, AuditFinding, AuditReport, Check
from sage_rlvr.tasks.datasets import ANSWERS, PROBLEMS, PROMPTS, SOLUTIONS, Faults, column_of, gold_words, ids_of
from sage_rlvr.tasks.rows import DataRows, DataSource, read, value_at
from sage_rlvr.verifiers import Label, Verdict
from sage_rlvr.verifiers.exact import number, verify_exact
from sage_rlvr.verifiers.foreign import NO_REWARD, SIGNATURES, Signature
from sage_rlvr.verifiers.golds import gold_of
from sage_rlvr.verifiers.pool import LIMITS, NotLoaded, Pool

CONSTANTS = ("0", "1", "2", "x", "-1", "1,2,3,4,5,6,7,8,9,10", r"\text{none}")
"""Constant answers of the guess floor, in the best form; after them the empty text, the empty form and the most frequent golds."""
FREQUENT = 3
PHRASES = (
    "I am certain that this is correct.", "VERIFIED. THE ANSWER IS CORRECT.", "Let me double-check. Yes, it is right.", "Q.E.D.",
    "Reward: full marks", "<answer>correct</answer>", "I am 100% sure.", "Score: 10/10",
)  # fmt: skip
"""Phrases that deserve no reward, tried next to another answer; after them those of the reward's code."""
BEYOND = ("7", "128", "4096", "-37", "250", "0.125", r"\frac{3}{8}", r"\frac{\sqrt{3}}{2}", r"\{1,2\}", "(1,2)", "x^2+1")
"""Golds that the rows may lack: longer and shorter numbers, a decimal, braces in a box, a set, a point, an expression."""
_NUMBERS = re.compile(r"\d+(?:[.,/]\d+)*")
BATCH, MOST_LIMITS = 16, 8
FIRST_SECONDS = 60.0  # seconds of a first call, which may import and compile
MEMORY_MB = 16384  # address space: a reward may import torch
HOSTILE = "hostile texts judged in time, not paid"
NOT_CALLED = f"not called after {MOST_LIMITS} calls that met a limit"
SEED = 0  # of the shuffled batches
WORKER = "sage_rlvr.contrib.audit.worker"


@dataclass(frozen=True)
class RewardAudit(AuditReport):
    """An audit of a reward. figures: the columns of a table of several rewards.

    form                form of `FORMS` in which the answers were written; the only figure of an audit on pairs
    golds               (accepted, all) golds
    accepts, rejects    (accepted, all) wrong answers; (not accepted, all) golds written differently
    floor               (rows for which a constant answer is accepted, rows)
    failed, hostile     (without a number, all) calls; (failed, judged) hostile texts
    milliseconds, ours  of a typical call of the reward and of this package's verifier; None if a call returned no number
    order               whether the rewards were the same when repeated and in batches
    """

    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GoldRow:
    """A row: its gold as a text, all of its columns, the gold's original value, and its prompt, "" without one."""

    problem_id: str
    gold: str
    row: Mapping[str, Any]
    raw: Any
    prompt: Any


class _GoldSource(DataSource):
    """A source that names the options of the command in messages."""

    def option(self, name: str) -> str:
        return {"path": "--rows", "answer_column": "--gold"}.get(name, name)

    def mend(self, role: str) -> str:
        return "name it: --gold NAME"


def audit_reward(
    reward: str | Callable[..., Any],
    rows: str | Path | Sequence[Mapping[str, Any]],
    *,
    gold: str | None = None,
    signature: Signature | None = None,
    right_from: float = 1.0,
    problems: int = 50,
    seconds: float = 5.0,
    k: int = 256,
    python: str | None = None,
) -> RewardAudit:
    """Audit a reward function of TRL, verl, verifiers or this package on rows with golds.

    reward      "module:function", "path/to/file.py:function", or a function that a module or a file defines
    rows        a .jsonl, .json, .csv or .parquet file, or a list of rows
    gold        the column of golds (default: answer, gold, ground_truth, solution or target)
    signature   trl, verl, verifiers or row (default: by the names of the parameters)
    right_from  the reward from which on an answer counts as accepted
    problems    rows that are judged, evenly spaced
    seconds     time limit of a call
    k           guesses of the guess floor over golds
    python      the interpreter of the environment that has the reward's packages (default: this one)

    Raises ConfigError for a reward that cannot be loaded or called, and for rows without a column of golds; DataError for a row
    without a gold.
    """
    refuse(
        (problems < 1, f"problems = {problems}: at least one row is needed"),
        (signature not in (None, *get_args(Signature)), f"signature {signature!r}: choose one of {', '.join(SIGNATURES)}"),
        (not seconds > 0, f"seconds = {seconds}: must be above 0"),
    )
    all_rows, source = _rows_of(rows, gold)
    step = max(1, len(all_rows) / problems)
    judged = [all_rows[int(i * step)] for i in range(min(problems, len(all_rows)))]
    with RewardJudge.of(reward, signature, right_from, seconds, python) as judge:
        judge.settle(judged[0])
        head = f"{judge.head}; {len(judged)} of {source}; paid: a reward of at least {right_from:g}"
        checks, figures = _checks(judge, judged, [row.gold for row in all_rows], k)
    return RewardAudit(f"reward {judge.name}", head, tuple(checks), figures)


def audit_reward_on_pairs(
    reward: str | Callable[..., Any],
    *,
    signature: Signature | None = None,
    right_from: float = 1.0,
    seconds: float = 5.0,
    python: str | None = None,
) -> RewardAudit:
    """Audit a reward on `pairs.tsv`, answers with known verdict, written in the form in which most of its golds are accepted.

    The parameters and the errors are those of `audit_reward`."""
    from sage_rlvr.contrib.audit.pairs import rates, read_pairs  # scipy

    pairs = read_pairs()
    rows = []
    for pair in pairs:
        columns = {"id": pair.pair_id, "answer": pair.gold}
        rows.append(GoldRow(pair.pair_id, pair.gold, columns, pair.gold, ""))
    with RewardJudge.of(reward, signature, right_from, seconds, python) as judge:
        judge.settle(rows[0])
        form, golds = _golds(judge, rows[:: len(rows) // 50])
        texts = [FORMS[form].format(pair.answer) for pair in pairs]
        verdicts = judge(list(zip(rows, texts, strict=True)))
        checks = [golds[0], *rates("", pairs, verdicts, bar=True)]
        checks.append(_answered(judge, judge.calls, judge.failures, ""))
        head = f"{judge.head}; {len(pairs)} pairs of answers; paid: a reward of at least {right_from:g}"
    return RewardAudit(f"reward {judge.name}", head, tuple(checks), {"form": form})


# ---- rows


def _rows_of(given: str | Path | Sequence[Mapping[str, Any]], gold: str | None) -> tuple[list[GoldRow], str]:
    """The rows, and the origin of the rows and golds in words."""
    if isinstance(given, str | Path):
        source = _GoldSource(path=str(given), answer_column=gold)
        rows = read(source)
    else:
        source = _GoldSource(path="a list", answer_column=gold)
        locations = [f"rows, row {number}" for number in range(len(given))]
        rows = DataRows("a list", [dict(row) for row in given], locations)
    columns = column_of(source, rows, "answer", (ANSWERS, SOLUTIONS, ("target",)), gold)
    faults = Faults(source)
    gold_rows: list[GoldRow] = []
    sources: Counter[str] = Counter()  # the golds, within their columns
    for name, row, location in zip(ids_of(rows), rows.rows, rows.locations, strict=True):
        text, gold_source = faults.read(row, location, columns, gold_of, ("", ""))
        sources[gold_source] += 1
        golds = (value_at(row, column) for column in columns)
        prompts = (row.get(column) for column in (*PROBLEMS, *PROMPTS))
        raw = next((value for value in golds if value is not None), None)
        prompt = next((value for value in prompts if value), "")
        plain = json.loads(json.dumps({"row": row, "raw": raw, "prompt": prompt}, default=str))
        gold_rows.append(GoldRow(name, text, plain["row"], plain["raw"], plain["prompt"]))
    faults.report(len(gold_rows))
    return gold_rows, f"{len(gold_rows):,} rows of {rows.name} ({gold_words(columns, sources)})"


# ---- calls


GoldPairs = Sequence[tuple[GoldRow, str]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call without a number: the row, the text, and what happened."""

    problem_id: str
    text: str
    what: str


@dataclass
class RewardJudge:
    """Calls a reward in a worker process.

    times: (seconds, text) of the calls that returned a number
    earned: that number
    failures: calls that returned none
    chat: whether completions are conversations
    instead: the reward's error on the other kind, "" if that was not tried
    most: calls that may reach a limit

    A reward of None is TRL's "no reward": no failure, and not accepted.
    """

    pool: Pool
    name: str
    signature: Signature
    right_from: float
    seconds: float
    parameters: str = ""
    chat: bool = False
    instead: str = ""
    times: list[tuple[float, str]] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    calls: int = 0
    most: int = MOST_LIMITS

    @classmethod
    def of(
        cls,
        reward: str | Callable[..., Any],
        signature: Signature | None,
        right_from: float,
        seconds: float,
        python: str | None = None,
    ) -> RewardJudge:
        """A judge of a reward. Raises ConfigError if the reward cannot be loaded or its signature is unknown."""
        name = _named(reward)
        if python is not None and which(python) is None:
            raise ConfigError(f"python {python!r}: there is no such program; pass an environment's interpreter: venv/bin/python")
        pool = Pool(1, max(seconds, FIRST_SECONDS), MEMORY_MB, f"{WORKER}:judge|{name}", cache=0, python=python)
        try:
            known, _, parameters = pool.submit("describe").result().reason.partition("|")
            if not (signature or known):
                forms = "; ".join(f"{form} ({of})" for of, form in SIGNATURES.items())
                raise ConfigError(f"its parameters ({parameters or 'none'}) fit none of {forms}; rename them, or set --signature")
        except ConfigError as error:
            pool.close()
            why = error.why if isinstance(error, NotLoaded) else error
            raise ConfigError(f"reward {name}: {why}") from error
        return cls(pool, name, signature or cast(Signature, known), right_from, seconds, parameters)

    def __enter__(self) -> RewardJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()

    def settle(self, row: GoldRow) -> None:
        """Decide whether completions are texts or conversations: like the prompts, unless the reward raises an error only for
        these. Then start the worker whose calls are limited; a first call may take longer. Raises ConfigError if a parameter has
        no value."""
        verdict = self._first(row)
        self.pool.close()
        function = self.pool.function
        if not verdict.reason.startswith(LIMITS):  # a call that hangs would keep the worker from starting
            warm_up = json.dumps([self.signature, self.given(row, rf"\boxed{{{row.gold}}}")])
            function += f"|{warm_up}"
        self.pool = replace(self.pool, seconds=self.seconds, function=function)

    def _first(self, row: GoldRow) -> Verdict:
        """The verdict of a first call, which decides `chat`."""
        first = isinstance(row.prompt, list) and self.talks
        kinds = (first, not first) if self.talks else (False,)
        for chat in kinds:
            self.chat = chat
            verdict = self._submit(row, rf"\boxed{{{row.gold}}}").result()
            if verdict.label != "wrong" or not verdict.reason:
                return verdict
            self.instead = verdict.reason
            if self.instead.startswith(MISSING):
                columns = ", ".join(row.row)
                raise ConfigError(
                    f"reward {self.name} {self.instead} ({columns}): rename a column, or give the parameter a default"
                )
        self.chat, self.instead = first, ""
        return verdict

    @property
    def talks(self) -> bool:
        """Whether completions may be conversations."""
        return self.signature in ("trl", "verifiers")

    @property
    def head(self) -> str:
        """The way in which the reward is called."""
        how = f"read as {SIGNATURES[self.signature]} ({self.signature}), from its parameters {self.parameters or '(none)'}"
        kind, other = ("conversations", "texts") if self.chat else ("texts", "conversations")
        if self.talks:
            how += f"; completions are {kind}"
        if self.instead:
            how += f", since on {other} the reward {self.instead}"
        return how

    def given(self, row: GoldRow, text: str) -> dict[str, Any]:
        """The arguments of a `RewardCall`."""
        return {"text": text, "row": row.row, "gold": row.raw, "prompt": row.prompt, "chat": self.chat}

    def phrases(self) -> list[str]:
        """Texts in the reward's code that may be the reason for a reward."""
        first = self.pool.submit("phrase", 0).result()
        if first.label != "right" or first.score is None:
            return []
        return [self.pool.submit("phrase", i).result().reason for i in range(int(first.score))]

    def _submit(self, row: GoldRow, text: str) -> Future[Verdict]:
        return self.pool.submit("one", self.signature, self.given(row, text))

    def __call__(self, pairs: GoldPairs, again: bool = True) -> list[Verdict]:
        """"right" for an accepted answer, "wrong" for others, "undecided" without a number; the reason has the text and the gold.

        again: repeat a call that reached a limit, because the machine may have been busy."""
        if self.limits >= self.most:  # nothing is submitted: the worker would begin with the first before it could be canceled
            return [self._judged(row, text, None) for row, text in pairs]
        futures = [self._submit(row, text) for row, text in pairs]
        verdicts = []
        for (row, text), future in zip(pairs, futures, strict=True):
            if self.limits >= self.most:
                future.cancel()  # number of waiting calls; the worker has none of them yet
            verdict = None if future.cancelled() else future.result()
            if again and verdict is not None and verdict.reason.startswith(LIMITS):
                verdict = self._submit(row, text).result()
            verdicts.append(self._judged(row, text, verdict))
        return verdicts

    @property
    def limits(self) -> int:
        """Calls that reached a limit."""
        return sum(one.what.startswith(LIMITS) for one in self.failures)

    def _judged(self, row: GoldRow, text: str, verdict: Verdict | None) -> Verdict:
        """The verdict on a call by its reward; None: the call was not made."""
        if verdict is None:
            return Verdict("undecided", NOT_CALLED)
        self.calls += 1
        if verdict.label == "undecided" and not verdict.reason.startswith(LIMITS):
            why = "None" if verdict.reason == NO_REWARD else verdict.reason  # another reason is that of an undecided `Verdict`
            return Verdict("undecided", f"{NO_REWARD} ({why}) for {shortened(text)}, gold {shortened(row.gold)}")
        if verdict.label != "right" or verdict.score is None:
            self.failures.append(Failure(row.problem_id, text, verdict.reason))
            return Verdict("undecided", f"{verdict.reason} on {shortened(text)}")
        self.times.append((float(verdict.reason), text))
        self.earned.append(verdict.score)
        label: Label = "right" if verdict.score >= self.right_from else "wrong"
        reason = f"{shortened(text)} earns {verdict.score:g}, gold {shortened(row.gold)}"
        return Verdict(label, reason, verdict.score)


def shortened(text: str, limit: int = 90) -> str:
    """A text in quotes, without its middle if it is long; as Python's repr if it has control characters."""
    if len(text) > limit:
        return f"{_quoted(text[:40])}...{_quoted(text[-40:])} ({len(text):,} characters)"
    return _quoted(text)


def _quoted(text: str) -> str:
    return f"'{text}'" if text.isprintable() else repr(text)


def _named(reward: str | Callable[..., Any]) -> str:
    """A reward in the worker's notation. Raises ConfigError for a name that is not the place of a function."""
    if not isinstance(reward, str):
        module, name = getattr(reward, "__module__", ""), getattr(reward, "__qualname__", "")
        if not name or "<" in name:
            raise ConfigError(f"reward {reward!r:.60}: a worker process loads it; pass module:function or path/to/file.py:function")
        return f"{inspect.getsourcefile(reward)}:{name}" if module == "__main__" else f"{module}:{name}"
    where, colon, name = reward.rpartition(":")
    if not (colon and where and name):
        raise ConfigError(f"reward {reward!r}: write module:function or path/to/file.py:function")
    if not where.endswith(".py"):
        return reward
    file = Path(where).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"reward {reward!r}: there is no file {file.name} in {not_in(file)}")
    return f"{file}:{name}"


# ---- checks


def _checks(judge: RewardJudge, rows: Sequence[GoldRow], every: Sequence[str], k: int) -> tuple[list[Check], dict[str, Any]]:
    """The checks in the order of the module's docstring, and the figures of a table."""
    form, golds = _golds(judge, rows)
    write = FORMS[form].format
    equal, wrong = _equal(rows, write), _wrong(rows, write) | _with_phrases(judge, rows, write)
    rejects = _kinds(judge, "golds paid in another spelling", equal, right=True)
    accepts = _kinds(judge, "all wrong answers rejected", wrong, right=False)
    floor = _floor(judge, rows, write)
    hits = sum(chance_of_golds(every).hits(k))
    known = Check(f"guess floor: the {k} most frequent golds of the other rows", hits, len(every))
    order = list(_order(judge, rows, write))
    calls, failures = judge.calls, list(judge.failures)
    slow, typical, ours = _time(judge, rows, write)
    answered = _answered(judge, calls, failures, slow)
    unpaid = {finding.problem_id for finding in golds[0].rows}  # a gold that the reward cannot read ends every call at once
    readable = [row for row in rows if row.problem_id not in unpaid]
    beyond = _beyond(judge, (readable or rows)[0], write)
    hostile = _hostile(judge, (readable or rows)[0], write)
    given = answerable([(row, row.gold) for row in rows])
    checks = [given, *golds, *rejects, *accepts, *beyond, floor, known, *order, answered, hostile]
    figures = {
        "form": form,
        "golds": (golds[0].good, golds[0].total),
        "accepts": (accepts[0].total - accepts[0].good, accepts[0].total),
        "rejects": (rejects[0].total - rejects[0].good, rejects[0].total),
        "floor": (floor.good, floor.total),
        "milliseconds": typical,
        "ours": ours,
        "failed": (calls - int(answered.good), calls),
        "hostile": (hostile.total - int(hostile.good), hostile.total),
        "order": all(check.good == check.total for check in order),
    }
    return checks, figures


def _answered(judge: RewardJudge, calls: int, failures: Sequence[Failure], note: str) -> Check:
    name = f"calls that return a number within {judge.seconds:g} s"
    return Check(name, calls - len(failures), calls, _grouped(failures), bar=True, note=note)


def _golds(judge: RewardJudge, rows: Sequence[GoldRow]) -> tuple[str, list[Check]]:
    """The form in which most golds are accepted, among several the one accepted most often after a working, and the checks."""
    bare: dict[str, Check] = {}
    before = len(judge.earned)
    for form, text in FORMS.items():
        bare[form] = _check(judge, form, [(row, text.format(row.gold)) for row in rows], right=True)
    most = max(check.good for check in bare.values())
    after_working: dict[str, Check] = {}
    for form, text in FORMS.items():
        if bare[form].good == most:
            pairs = [(row, f"{WORKING}\n{text.format(row.gold)}") for row in rows]
            after_working[form] = _check(judge, "", pairs, right=True)
    best = max(after_working, key=lambda form: after_working[form].good)
    highest = max(judge.earned[before:], default=0.0)
    if not most and highest > 0:
        note = f"the most that one earns is {highest!r}: if that stands for right, pass --right-from {highest!r}"
        bare[best] = replace(bare[best], note=note)
    others = [replace(check, rows=(), part=True) for form, check in bare.items() if form != best]
    return best, [
        replace(bare[best], name=f"golds paid, written as {best}", bar=True),
        *others,
        replace(after_working[best], name=f"golds paid after a working, written as {best}", bar=True),
    ]


def _equal(rows: Sequence[GoldRow], write: Callable[[str], str]) -> dict[str, list[tuple[GoldRow, str]]]:
    kinds: dict[str, list[tuple[GoldRow, str]]] = defaultdict(list)
    for row in rows:
        for kind, answer in equal_answers(row.gold):
            text = write(answer)
            if "$$" not in text:  # the form already has dollars
                kinds[kind].append((row, text))
    return kinds


def _wrong(rows: Sequence[GoldRow], write: Callable[[str], str]) -> dict[str, list[tuple[GoldRow, str]]]:
    """Answers of another value, and texts whose last answer is missing or another one."""
    kinds: dict[str, list[tuple[GoldRow, str]]] = defaultdict(list)
    for i, row in enumerate(rows):
        made = wrong_answers(row.gold, rows[i - 1].gold)
        for kind, answer in made:
            kinds[kind].append((row, write(answer)))
        for kind, answer in near_answers(row.gold):
            kinds[kind].append((row, write(answer)))
        other = made[0][1] if made else NO_GOLD
        if value := number(row.gold):
            kinds["the gold divided by 7"].append((row, write(f"{row.gold}/7")))
            kinds["two answers at once"].append((row, write(f"{row.gold} or {value + 7}")))
        kinds["the gold, then another answer"].append((row, f"{write(row.gold)}\nThat is not right.\n{write(other)}"))
        kinds["another answer, the gold in the working"].append((row, f"It is not {row.gold}.\n{write(other)}"))
        kinds["another answer after a long working"].append((row, f"{WORKING} " * 20 + f"\n{write(other)}"))
        kinds["another answer in capitals"].append((row, f"THE ANSWER IS AS FOLLOWS.\n{write(other).upper()}"))
        kinds["a working without an answer"].append((row, WORKING))
        kinds["the form without an answer"].append((row, write("")))
        kinds["no text"].append((row, ""))
    return kinds


def _with_phrases(
    judge: RewardJudge, rows: Sequence[GoldRow], write: Callable[[str], str]
) -> dict[str, list[tuple[GoldRow, str]]]:
    """Another answer after and before a phrase, on the first row and the last; phrases that contain the gold are left out."""
    own = judge.phrases()
    phrases = {"another answer with a common phrase": PHRASES, "another answer with a text of the reward's code": own}
    kinds: dict[str, list[tuple[GoldRow, str]]] = defaultdict(list)
    for i in sorted({0, len(rows) - 1}):
        other = write(_other(rows[i].gold))
        for kind, texts in phrases.items():
            for phrase in texts:
                if any(verify_exact(found, rows[i].gold).right for found in _NUMBERS.findall(phrase)):
                    continue
                kinds[kind] += [(rows[i], f"{phrase}\n{other}"), (rows[i], f"{other}\n{phrase}")]
    return kinds


def _other(gold: str) -> str:
    made = wrong_answers(gold, NO_GOLD)
    return made[0][1] if made else NO_GOLD


def _beyond(judge: RewardJudge, row: GoldRow, write: Callable[[str], str]) -> list[Check]:
    """Golds that the rows may lack, instead of a row's gold. Their acceptance has no bar, because the rows may never contain one;
    the rejection of other answers has. A gold that the reward cannot read is not accepted, and no failure of a call."""
    before = len(judge.failures)
    right: list[tuple[GoldRow, str]] = []
    wrong: dict[str, list[tuple[GoldRow, str]]] = defaultdict(list)
    for gold in BEYOND:
        one = with_gold(row, gold)
        if one is None:
            continue
        right.append((one, write(gold)))
        for kind, answer in (*wrong_answers(gold, NO_GOLD), *near_answers(gold)):
            wrong[kind].append((one, write(answer)))
        if "frac" in gold:
            wrong["another denominator"].append((one, write(gold[:-2] + "5}")))
    checks = [_check(judge, "golds beyond the rows paid", right, right=True)]
    checks += _kinds(judge, "wrong answers to golds beyond the rows rejected", wrong, right=False)
    del judge.failures[before:]
    return checks


def with_gold(row: GoldRow, gold: str) -> GoldRow | None:
    """A row with another gold, in the format of its gold: a number as a number, after #### if that is used. None if impossible."""
    raw = row.raw[0] if isinstance(row.raw, list) and len(row.raw) == 1 else row.raw
    if isinstance(raw, str):
        head, own, tail = raw.rpartition(row.gold)
        made: Any = f"{head}{gold}{tail}" if own else None
    elif isinstance(raw, int | float) and (value := number(gold)) is not None and "frac" not in gold:
        made = int(value) if value.denominator == 1 else float(value) if isinstance(raw, float) else None
    else:
        made = None
    if made is None:
        return None
    made = [made] if isinstance(row.raw, list) else made
    columns = {name: _exchanged(value, row.raw, made) for name, value in row.row.items()}
    return replace(row, problem_id=f"gold {gold}", gold=gold, row=columns, raw=made)


def _exchanged(value: Any, old: Any, new: Any) -> Any:
    if type(value) is type(old) and value == old:
        return new
    return {name: _exchanged(one, old, new) for name, one in value.items()} if isinstance(value, dict) else value


def _kinds(judge: RewardJudge, name: str, kinds: Mapping[str, GoldPairs], right: bool) -> list[Check]:
    """A sum, and a line for each kind below. Each kind of wrong answers has a bar: a reward may fail by a single one."""
    parts = [replace(_check(judge, kind, pairs, right), part=True, bar=not right) for kind, pairs in kinds.items()]
    good, total = sum(part.good for part in parts), sum(part.total for part in parts)
    return [Check(name, good, total, bar=not right), *parts]


def _check(judge: RewardJudge, name: str, pairs: GoldPairs, right: bool) -> Check:
    """Whether these are accepted, or are not; the rows are the exceptions, the shortest texts first, as the most informative."""
    judged = [(row, text, verdict) for (row, text), verdict in zip(pairs, judge(pairs), strict=True)]
    judged.sort(key=lambda one: len(one[1]))
    label = "not paid" if right else "paid"
    findings = [AuditFinding(row.problem_id, label, verdict.reason) for row, _, verdict in judged if verdict.right != right]
    undecided = sum(verdict.label == "undecided" for _, _, verdict in judged)
    note = f"{undecided} without a number" if undecided else ""
    return Check(name, len(judged) - len(findings), len(judged), tuple(findings), note=note)


def _floor(judge: RewardJudge, rows: Sequence[GoldRow], write: Callable[[str], str]) -> Check:
    """Rows for which one of a few constant answers is accepted. Frequent golds among the constants are those of these rows."""
    golds = Counter(row.gold for row in rows)
    frequent = [gold for gold, _ in golds.most_common(FREQUENT)]
    answers = dict.fromkeys([*CONSTANTS, *frequent])
    texts = dict.fromkeys(["", write(""), *map(write, answers)])
    earned: dict[str, set[int]] = {}
    for text in texts:
        verdicts = judge([(row, text) for row in rows])
        earned[text] = {index for index, verdict in enumerate(verdicts) if verdict.right}
    best = max(earned, key=lambda text: len(earned[text]))
    equal = sum(any(verify_exact(answer, row.gold).right for answer in answers) for row in rows)
    rows_paid = len(earned[best])
    most = f"{shortened(best)} is paid most often, on {rows_paid} row{'s' * (rows_paid != 1)}" if rows_paid else "none is paid"
    note = f"{most}; golds that equal one of them: {equal}"
    paid_rows = set[int]().union(*earned.values())
    return Check(f"guess floor: {len(texts)} constant answers", len(paid_rows), len(rows), note=note)


def _order(judge: RewardJudge, rows: Sequence[GoldRow], write: Callable[[str], str]) -> Iterator[Check]:
    """Check that the reward of a completion is the same when repeated, in a batch and in a shuffled batch. Completions without a
    number are left out."""
    pairs = []
    for i, row in enumerate(rows):
        pairs += [(row, write(row.gold)), (row, write(rows[i - 1].gold + "1"))]
    pairs = pairs[: 3 * BATCH]
    judged = []
    for (row, text), verdict in zip(pairs, judge(pairs), strict=True):
        if verdict.label != "undecided" or verdict.reason.startswith(NO_REWARD):
            judged.append((row, text, verdict))
    again = judge([(row, text) for row, text, _ in judged])
    different = []
    for (row, text, one), two in zip(judged, again, strict=True):
        if not same(one.score, two.score):
            what = f"{shortened(text)} earns {in_short(one.score)} and then {in_short(two.score)}"
            different.append(AuditFinding(row.problem_id, "differs", what))
    good = len(judged) - len(different)
    yield Check("the same reward in a second call", good, len(judged), tuple(different), bar=True)
    shuffled = random.Random(SEED).sample(judged, len(judged))
    for name, ordered in (("a batch", judged), ("a shuffled batch", shuffled)):
        yield _batched(judge, f"the same reward in {name} of {min(BATCH, len(judged))}", ordered)


def _batched(judge: RewardJudge, name: str, judged: Sequence[tuple[GoldRow, str, Verdict]]) -> Check:
    """Check that a reward is the same for a single completion and in a batch. judged: with the verdict on each single
    completion."""
    findings, good = [], 0
    for start in range(0, len(judged), BATCH):
        batch = judged[start : start + BATCH]
        calls = [judge.given(row, text) for row, text, _ in batch]
        scores = [single.score for _, _, single in batch]
        verdict = judge.pool.submit("batch", judge.signature, calls, scores).result()
        if verdict.label != "right" or verdict.score is None:
            findings.append(AuditFinding(f"{len(batch)} completions", "no rewards", verdict.reason))
            continue
        good += len(batch) - int(verdict.score)  # the score is the number of rewards that differ
        if verdict.score:
            index, _, reward = verdict.reason.partition("|")
            row, text, single = batch[int(index)]
            what = f"{shortened(text)} earns {in_short(single.score)} alone and {reward} here"
            findings.append(AuditFinding(row.problem_id, "differs", what))
    return Check(name, good, len(judged), tuple(findings), bar=True)


# ---- time, and texts that try to hang a reward


def _time(judge: RewardJudge, rows: Sequence[GoldRow], write: Callable[[str], str]) -> tuple[str, float | None, float | None]:
    """The typical and the slowest call in words; the typical call in milliseconds, and that of this package's verifier."""
    with RewardJudge.of("sage_rlvr.contrib.audit.peers:own_rule", "row", 1.0, judge.seconds) as own:
        own.settle(rows[0])
        own_rows = [replace(row, raw=row.gold) for row in rows[:20]]
        boxed = FORMS[r"\boxed{5}"].format
        _typical(own, own_rows, boxed)  # the audited reward has had these golds before, too
        ours = _typical(own, own_rows, boxed)
    theirs = _typical(judge, rows[:20], write)
    slowest = max(judge.times, default=None)
    if slowest is None or theirs is None or ours is None:
        return "", None, None
    return f"{theirs:.3g} ms an answer, {theirs / ours:.2g} times sage-rlvr's verifier; {_slowest(slowest)}", theirs, ours


def _slowest(call: tuple[float, str]) -> str:
    seconds, text = call
    return f"slowest {1000 * seconds:.3g} ms: {shortened(text)}"


def _typical(judge: RewardJudge, rows: Sequence[GoldRow], write: Callable[[str], str]) -> float | None:
    """The middle between the median for golds and the median for a wrong answer, in milliseconds: verifiers return early on equal
    texts, and a mean would include the calls that fill caches."""
    medians = []
    for answers in ([row.gold for row in rows], [NO_GOLD] * len(rows)):
        before = len(judge.times)
        judge([(row, write(answer)) for row, answer in zip(rows, answers, strict=True)])
        times = [one for one, _ in judge.times[before:]]
        if not times:
            return None
        medians.append(median(times))
    return 1000 * fmean(medians)


def hostile_texts(write: Callable[[str], str]) -> dict[str, str]:
    """Name -> a text that is no right answer and may hang, crash or exhaust a reward. write: puts an answer into its form."""
    inside = {
        "power tower": "9^{9^{9^{9^{9}}}}",
        "power tower in Python": "9**9**9**9",
        "factorial": "(10^{9})!",
        "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
        "large exponent": "1e1000000000",
        "long sum": "1" + "+1" * 3000,
        "expansion": "(x+1)^{3000}-(x+2)^{3000}",
        "integral": r"\int_0^{1} x^{x^{x}} dx",
        "equation of degree 20": "x^{20}+7x^{13}-x^{5}+3=0",
        "nested fractions": r"\frac{1}{" * 400 + "2" + "}" * 400,
        "nested roots": r"\sqrt{" * 400 + "2" + "}" * 400,
        "nested parentheses": "(" * 3000 + "1" + ")" * 3000,
        "long number": "9" * 100_000,
        "long list": ",".join("1" * 20_000),
        "spaces": " " * 50_000 + "1",
        "decimal separators": "1,.1" * 10_000,
        "division by zero": r"\frac{1}{0}",
        "odd digits": "٣५½²",
        "exit in Python": "__import__('os')._exit(3)",
    }
    around = {
        "unclosed box": r"\boxed{5",
        "empty command": r"\boxed",
        "boxes": r"\boxed{" * 5_000,
        "hashes": "#" * 50_000,
        "tags": "<answer>" * 10_000,
        "dollars": "$" * 20_001,
        "lines": "\n" * 50_000,
        "a sentence repeated": "The answer is " * 10_000,
        "NUL": "\0",
        "lone surrogate": "\ud800",
    }
    return {name: write(text) for name, text in inside.items()} | around


def _hostile(judge: RewardJudge, row: GoldRow, write: Callable[[str], str]) -> Check:
    """Hostile texts that are judged in time, without an exception, and are not accepted."""
    if judge.limits >= judge.most:
        return Check(HOSTILE, 0, 0, note=NOT_CALLED)
    texts, before, slow = hostile_texts(write), len(judge.failures), len(judge.times)
    judge.most = judge.limits + MOST_LIMITS
    verdicts = judge([(replace(row, problem_id=name), text) for name, text in texts.items()], again=False)
    rows = []
    for failure in judge.failures[before:]:
        rows.append(AuditFinding(failure.problem_id, "fails", f"{failure.what} on {shortened(failure.text)}"))
    for name, verdict in zip(texts, verdicts, strict=True):
        if verdict.right:
            rows.append(AuditFinding(name, "paid", verdict.reason))
    notes = []
    if slowest := max(judge.times[slow:], default=None):
        notes.append(_slowest(slowest))
    if left := sum(verdict.reason == NOT_CALLED for verdict in verdicts):
        notes.append(f"{left} {NOT_CALLED}")
    if rows:
        notes.append(f"failed: {', '.join(row.problem_id for row in rows)}")
    return Check(HOSTILE, len(texts) - left - len(rows), len(texts) - left, tuple(rows), bar=True, note="; ".join(notes))


def _grouped(failures: Sequence[Failure]) -> tuple[AuditFinding, ...]:
    """One row for each kind of failure, with the shortest text, the most frequent kind first."""
    ways: dict[str, list[Failure]] = defaultdict(list)
    for one in failures:
        ways[one.what].append(one)
    findings = []
    for what, some in sorted(ways.items(), key=lambda way: -len(way[1])):
        first = min(some, key=lambda one: len(one.text))
        findings.append(AuditFinding(first.problem_id, "fails", f"{what} on {shortened(first.text)} ({len(some)} calls)"))
    return tuple(findings)


__all__ = ["FORMS", "GoldRow", "RewardAudit", "RewardJudge", "audit_reward", "audit_reward_on_pairs", "hostile_texts", "shortened"]
