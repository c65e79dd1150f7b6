r"""Audit a verifier on a task before anything is trained: what a perfect and what a wrong answer earn.

    ceiling       share of problems on which a perfect answer is right: the most that any policy can score
    false accepts share of answers that are wrong by construction and are called right: what a policy can get for nothing
    guess floor   share of problems that k guesses hit: what pass@k shows of a policy that knows nothing

Checks with a bar must reach 99 %. Rows are named by id with a reason; no text of a problem and no gold is printed.
"""

from __future__ import annotations

from sage_rlvr.audit.checks import BAR, Audit, Check, Finding, others_floor, uniform_floor
from sage_rlvr.audit.countdown import audit_countdown
from sage_rlvr.audit.knights import audit_knights
from sage_rlvr.audit.mathematics import audit_mathematics
from sage_rlvr.audit.pages import lines_of, page_of, verify_lines, write_page
from sage_rlvr.audit.wrong import wrong_answers
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.tasks.math import TASKS, MathTask
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.verifiers.answers import Place

KNIGHTS = "knights_and_knaves"
COUNTDOWN = "countdown"
PAIRS = "pairs"
NAMES = (*TASKS, KNIGHTS, f"{KNIGHTS}_strict", COUNTDOWN, PAIRS)


def audit(name: str, template: str | None = None, k: int = 256, answer_in: Place | None = None) -> Audit:
    """Audit a task by its name, a .jsonl file with problem and answer, or the verifier itself on `pairs`.

    name       one of `NAMES`; "countdown" is the world of recipes/countdown, "countdown:NAME" another one of `WORLDS`
    template   a prompt format of `FORMATS` (default: each of them); Countdown and Knights and Knaves have one, their own
    k          guesses of the guess floors
    answer_in  read the answer elsewhere than the format asks, to see what such a mistake would cost
    """
    if k < 1:
        raise ConfigError(f"k = {k}: at least one guess is needed")
    world = WORLDS.get("demo" if name == COUNTDOWN else name.removeprefix(f"{COUNTDOWN}:"))
    if name in (KNIGHTS, f"{KNIGHTS}_strict", COUNTDOWN, PAIRS) or name.startswith(f"{COUNTDOWN}:"):
        if template is not None or answer_in is not None:
            raise ConfigError(f"{name} is asked and read in one format, its own; leave out --template and --answer-in")
        if name == PAIRS:
            from sage_rlvr.audit.pairs import audit_pairs  # the intervals load scipy, which no other audit needs

            return audit_pairs()
        if name.startswith(COUNTDOWN):
            if world is None:
                raise ConfigError(f"{name}: no such world; choose one of {', '.join(WORLDS)}")
            return audit_countdown(name, world, k)
        return audit_knights(name, KnightsAndKnaves(rule="published" if name == KNIGHTS else "strict"), k)
    if name not in NAMES and not name.endswith(".jsonl"):
        raise ConfigError(
            f"task {name!r}: choose one of {', '.join(NAMES)}, or give a .jsonl file with problem and answer"
        )
    if template is not None and template not in FORMATS:
        raise ConfigError(f"template {template!r}: choose one of {', '.join(FORMATS)}")
    forms = [form for form in FORMATS.values() if template in (None, form.name)]
    return audit_mathematics(MathTask(name), forms, k, answer_in)


__all__ = [
    "BAR", "NAMES", "Audit", "Check", "Finding", "audit", "lines_of", "others_floor", "page_of",
    "uniform_floor", "verify_lines", "write_page", "wrong_answers",
]  # fmt: skip
