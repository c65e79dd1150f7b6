"""Audits of published reward functions: `python -m lab published-rewards`.

Each reward is called unmodified, from its package, as `sage-rlvr audit --reward` calls it; reward_rules/ has wrappers of the
rules that are no reward functions. The packages conflict, so each may live in an environment of its own, named by its interpreter:

    python -m lab published-rewards --pythons trl=a/bin/python verl=b/bin/python lm_eval=c/bin/python lighteval=d/bin/python
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.contrib.audit import RewardAudit, audit_reward
from sage_rlvr.contrib.audit.pages import section_of
from sage_rlvr.contrib.audit.pairs import read_pairs
from sage_rlvr.errors import ConfigError
from sage_rlvr.progress import reporting

RULES = Path(__file__).with_name("reward_rules")
VERL = "verl/utils/reward_score"
OWN = "sage_rlvr"
ROWS, SHOWN = 20, 3


@dataclass(frozen=True)
class Published:
    """A reward: the package that has it; a module and a function, a file and a function, or a file in the package's folder and one;
    the rows it is meant for; gold: how the golds stand in the rows."""

    name: str
    package: str
    reward: str
    rows: tuple[str, ...] = ("numbers", "expressions")
    gold: str = "{}"


REWARDS = (
    Published("TRL `accuracy_reward`", "trl", "trl.rewards:accuracy_reward"),
    Published(r"TRL `accuracy_reward`, golds in `\boxed{}`", "trl", "trl.rewards:accuracy_reward", gold=r"\boxed{{{}}}"),
    Published("verl GSM8K", "verl", f"{VERL}/gsm8k.py:compute_score", ("numbers",)),
    Published("verl MATH", "verl", f"{VERL}/math_reward.py:compute_score"),
    Published("lm-eval Minerva", "lm_eval", f"{RULES}/minerva.py:exact_match"),
    Published("lighteval extractive match", "lighteval", f"{RULES}/lighteval_math.py:extractive_match"),
    Published("this package", OWN, "sage_rlvr.verifiers.rewards:math_reward"),
)


# ---- rows


def numbers() -> list[dict[str, str]]:
    """Golds as GSM8K has them: whole numbers, some of them large, and a few others."""
    chance = random.Random(0)
    golds = [str(chance.randint(1, 200)) for _ in range(35)] + [str(chance.randint(1000, 99_999)) for _ in range(10)]
    return [{"answer": gold} for gold in [*golds, "2.5", "0.75", "12.25", "-3", "0"]]


def expressions() -> list[dict[str, str]]:
    """Golds in LaTeX: the different golds of the pairs of answers (`sage_rlvr.contrib.audit.pairs`), evenly spaced."""
    golds = list(dict.fromkeys(pair.gold for pair in read_pairs()))
    return [{"answer": golds[int(i * len(golds) / ROWS)]} for i in range(ROWS)]


SETS = {"numbers": numbers, "expressions": expressions}


# ---- the command


@dataclass(frozen=True)
class PublishedRewards(Command):
    """Audit the reward functions of TRL, verl, lm-eval and lighteval, and print a table."""

    pythons: tuple[str, ...] = ()
    """PACKAGE=PYTHON of each package (trl, verl, lm_eval, lighteval) that is in another environment."""
    out: Path | None = None
    """Also write the tables and the audits as a Markdown page."""

    def execute(self, session: Session) -> int:
        others = pythons_of(self.pythons)
        there = {one.package: found_in(one.package, others.get(one.package)) for one in REWARDS}
        for package in (package for package, found in there.items() if found is None):
            session.note(f"{package} is missing: install it, or name an environment with it: --pythons {package}=venv/bin/python")
        lines, audits = [], []
        for name, rows in SETS.items():
            found = [
                (f"{one.name} {at.version}".strip(), self._audited(session, one, at, rows()))
                for one in REWARDS if name in one.rows and (at := there[one.package]) is not None
            ]  # fmt: skip
            printed = [f"Golds: {name}", "", *table(found), ""]
            session.say_plainly(printed)
            lines += printed
            audits += [audit for _, audit in found]
        if self.out is not None:
            self.out.write_text(page(lines, audits), encoding="utf-8")
        return 0

    def _audited(self, session: Session, one: Published, at: Found, rows: Sequence[Any]) -> RewardAudit:
        reward = str(at.folder.parent / one.reward) if one.reward.startswith(VERL) else one.reward
        given = [{"answer": one.gold.format(row["answer"])} for row in rows]
        with reporting(session.note, f"published-rewards: {one.name}"):
            found = audit_reward(reward, given, problems=ROWS, python=at.python)
        return replace(found, task=one.name, checks=tuple(replace(check, rows=check.rows[:SHOWN]) for check in found.checks))


def pythons_of(given: Sequence[str]) -> dict[str, str]:
    """Package -> interpreter, of PACKAGE=PYTHON. ConfigError for another form, and for a package that has no reward here."""
    packages = list(dict.fromkeys(one.package for one in REWARDS if one.package != OWN))
    found = {}
    for one in given:
        package, _, python = one.partition("=")
        if package not in packages or not python:
            raise ConfigError(f"--pythons {one}: write PACKAGE=PYTHON, of the package {', '.join(packages)}")
        found[package] = python
    return found


@dataclass(frozen=True)
class Found:
    """Where a package is: its folder, its version, and the interpreter of its environment, None for this one."""

    folder: Path
    version: str
    python: str | None


_LOOK = """
import importlib.metadata, importlib.util, json, sys
spec = importlib.util.find_spec(sys.argv[1])
there = spec and [next(iter(spec.submodule_search_locations)), importlib.metadata.version(sys.argv[1])]
print(json.dumps(there))
"""


def found_in(package: str, python: str | None) -> Found | None:
    """The package in an environment, which is not imported; None where it is missing."""
    if package == OWN:
        return Found(Path(), "", None)
    try:
        done = subprocess.run([python or sys.executable, "-c", _LOOK, package], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"--pythons {package}={python}: cannot be run: {error}") from error
    there = json.loads(done.stdout.splitlines()[-1])
    return None if there is None else Found(Path(there[0]), there[1], python)


HEAD = (
    *("reward", "written as", "golds paid", "wrong answers paid", "other spellings not paid", "constant answers paid"),
    *("time / ours", "calls without a number", "hostile texts failed", "order"),
)


def table(found: Sequence[tuple[str, RewardAudit]]) -> list[str]:
    """A Markdown table, a line per reward."""
    return [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *(_line(name, audit) for name, audit in found)]


def _line(name: str, audit: RewardAudit) -> str:
    figures = audit.figures
    cells = [
        name,
        f"`{figures['form']}`",
        *(f"{int(good)} of {total}" for good, total in (figures[key] for key in ("golds", "accepts", "rejects", "floor"))),
        "–" if figures["ours"] is None else f"{figures['milliseconds'] / figures['ours']:.2g}",
        *(f"{bad} of {total}" for bad, total in (figures[key] for key in ("failed", "hostile"))),
        "same" if figures["order"] else "differs",
    ]
    return f"| {' | '.join(cells)} |"


def page(lines: Sequence[str], audits: Sequence[RewardAudit]) -> str:
    """The tables, then every audit with the rows that its checks name."""
    made = "Made by `python -m lab published-rewards --out lab/pages/results/rewards.md`."
    head = ["# Audits of published rewards", "", made, ""]
    sections = [line for audit in audits for line in section_of(audit)]
    return "\n".join([*head, *lines, *sections]).rstrip() + "\n"
