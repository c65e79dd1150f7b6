r"""Audits of a verifier on a task before training: the rewards of known-correct and known-wrong answers.

The audit of a task is in this file; mathematics.py, countdown.py and countdown_chat.py have the cases of the tasks of the core
(reference_parser.py is their second verifier). rewards.py audits a reward function of another library (its worker.py runs the
function). pairs.py audits the mathematics verifier on pairs of answers (pairs.tsv), peers.py compares other libraries' rules on
them, and pages.py prints audits.

    ceiling       share of problems on which a perfect answer is right: the most that any policy can score
    false accepts share of answers that are wrong by construction but judged right: unearned reward
    guess floor   share of problems that k guesses hit: pass@k of a policy that knows nothing

One audit for every task: a task may name its cases (`audit_cases`); `OWN` has those of the core; any other task gets the standard
ones. Checks with a bar must reach 99 %. Rows are named by id with a reason; no text of a problem and no gold is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sage_rlvr.contrib.audit import countdown, countdown_chat, mathematics
from sage_rlvr.contrib.audit.mathematics import wrong_answers
from sage_rlvr.contrib.audit.pages import lines_of, page_of, verify_lines, write_page
from sage_rlvr.contrib.audit.rewards import RewardAudit, audit_reward, audit_reward_on_pairs
from sage_rlvr.errors import refuse
from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.abilities import Audited, Enumerable, WithAnswer
from sage_rlvr.tasks.base import Task, check_ids, verdicts
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.checks import BAR, AuditFinding, AuditReport, Case, Check, duplicates
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.tasks.math import SETS, MathTask
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat
from sage_rlvr.verifiers.answers import AnswerPlace

OWN: dict[type[Task], Any] = {MathTask: mathematics, Countdown: countdown, CountdownChat: countdown_chat}
"""Class of a task -> the module of its audit: `cases(task, k)` and `head(task)`, a line on their subject."""
PAIRS = "pairs"
NAMES = (
    *SETS,
    *(name for name in TASKS if name not in ("math", "jsonl", "reasoning_gym")),
    "knights_and_knaves_strict",
    PAIRS,
)


def audit(task: str | Task, template: str | None = None, k: int = 256, answer_in: AnswerPlace | None = None) -> AuditReport:
    """Audit a task, one by its name or a file of rows, or the verifier of mathematics itself on `pairs`.

    task       a `Task`, or a word of `sage_rlvr.tasks.task_named`; "pairs" is the verifier on answers of known verdict
    template   a prompt format of `FORMATS` (default: the task's, and as_is for a file); only for tasks of mathematics
    k          guesses of the guess floors
    answer_in  read the answer at another place than the format's, to measure the cost of such a mistake

    Raises DataError if problems of a user's task have equal ids or none, as in training.
    """
    refuse(
        (k < 1, f"k = {k}: at least one guess is needed"),
        (template not in (None, *FORMATS), f"template {template!r}: choose one of {', '.join(FORMATS)}"),
    )
    made = task if not isinstance(task, str) or task == PAIRS else task_named(task)
    own = f"{task} is asked and read in one format, its own; leave out --template and --answer-in"
    refuse(((template is not None or answer_in is not None) and not isinstance(made, MathTask), own))
    if isinstance(made, str):
        from sage_rlvr.contrib.audit.pairs import audit_pairs  # the intervals load scipy, which no other audit needs

        return audit_pairs()
    options: dict[str, Any] = {}
    if isinstance(made, MathTask):
        options = {
            "forms": _forms(made, template, own=not isinstance(task, str)),
            "answer_in": answer_in,
        }
    return _audited(task if isinstance(task, str) else made.name, made, k, options)


def _forms(task: MathTask, template: str | None, own: bool) -> list[PromptFormat]:
    """The named format; otherwise the task's, and for a file also as_is: its prompts may ask for an answer at another place."""
    if template is not None:
        return [FORMATS[template]]
    return [task.form] if own or task.published is not None else [task.form, FORMATS["as_is"]]


def _audited(name: str, task: Task, k: int, options: dict[str, Any]) -> AuditReport:
    cases, head = _cases(task, k, options)
    judge = partial(verdicts, task)
    made = list(cases)
    checks = [line for case in made for line in (case.checks(judge) if isinstance(case, Case) else [case])]
    told = any(case.wanted == "right" if isinstance(case, Case) else case.bar for case in made)
    return AuditReport(name, head, tuple(checks), blind=not told)


def _cases(task: Task, k: int, options: dict[str, Any]) -> tuple[Iterator[Case | Check], str]:
    """The checks, and their subject in a line: the task's, else this package's for its class, else the standard ones."""
    if isinstance(task, Audited):
        return task.audit_cases(k, **options), task.audited(**options)
    for kind, module in OWN.items():
        if isinstance(task, kind):
            return module.cases(task, k, **options), module.head(task, **options)
    return _usual(task, k), task.audited()


NOWHERE = "I do not know."
"""A text that solves no problem."""


def _usual(task: Task, k: int) -> Iterator[Case | Check]:
    """Standard checks of any task: its golds or its right answers, an empty text, another problem's gold, repeated problems."""
    problems = list(task.problems("test"))
    check_ids(task, "test", problems)  # first: checks name problems by id, and training refuses such a task
    golds = [(p, str(gold)) for p in problems if isinstance(p, WithAnswer) and (gold := p.answer)]
    if golds:
        yield Case("gold right against itself, alone or boxed", golds, judge=partial(_bare_or_boxed, task))
        others = [(p, golds[i - 1][1]) for i, (p, gold) in enumerate(golds) if golds[i - 1][1] != gold]
        yield Case("", {"another's": others, "empty": [(p, "") for p in problems]}, "wrong")
    else:
        yield Case("", {"empty": [(p, "") for p in problems]}, "wrong")
        # without a bar: a reward for only the form rewards a text that solves nothing
        yield Case(f"{NOWHERE!r} earns nothing", [(p, NOWHERE) for p in problems], "not right", bar=False)
    if isinstance(task, Enumerable):
        yield Case("every right answer is right", [(p, text) for p in problems for text in task.solutions(p)])
    golds_of = {p.problem_id: gold for p, gold in golds}
    yield duplicates(
        "problems that stand once", ((p.problem_id, task.prompt(p), golds_of.get(p.problem_id, "")) for p in problems)
    )
    if (chance := chance_of(task, problems)) is not None:
        yield Check(f"guess floor: {k} blind guesses", sum(chance.hits(k)), len(problems))


def _bare_or_boxed(task: Task, pairs: Any) -> Any:
    """The better verdict of a plain and of a boxed gold: the verifier may read either."""
    both = zip(verdicts(task, pairs), verdicts(task, [(p, rf"\boxed{{{gold}}}") for p, gold in pairs]), strict=True)
    return [boxed if boxed.right else bare for bare, boxed in both]


__all__ = [
    "BAR",
    "NAMES",
    "AuditFinding",
    "AuditReport",
    "Check",
    "RewardAudit",
    "audit",
    "audit_reward",
    "audit_reward_on_pairs",
    "lines_of",
    "page_of",
    "verify_lines",
    "write_page",
    "wrong_answers",
]  # fmt: skip
