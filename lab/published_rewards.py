"""Audits of published reward functions: `python -m lab published-rewards`.

Each reward is called unmodified, from its package, as `sage-rlvr audit --reward` calls it. Rules that are no reward functions
(lm-eval's Minerva, lighteval's extractive match) get a wrapper in this file, which passes completion and gold as their tasks do.
None of their code is here. An environment for all of them, beside this package:

    pip install trl math-verify antlr4-python3-runtime==4.11; pip install --no-deps verl lm-eval lighteval
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sage_rlvr.audit import RewardAudit, audit_reward, page_of
from sage_rlvr.audit.pairs import read_pairs
from sage_rlvr.audit.peers import lm_eval_utils
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.progress import reporting

HERE = "lab.published_rewards"
VERL = "verl/utils/reward_score"
ROWS = 50


@dataclass(frozen=True)
class Published:
    """A reward: the package that has it, the module:function or the file in the package, the rows it is meant for."""

    name: str
    package: str
    reward: str
    rows: tuple[str, ...] = ("numbers", "expressions")


REWARDS = (
    Published("TRL `accuracy_reward`", "trl", "trl.rewards:accuracy_reward"),
    Published("verl GSM8K", "verl", f"{VERL}/gsm8k.py:compute_score", ("numbers",)),
    Published("verl MATH", "verl", f"{VERL}/math_reward.py:compute_score"),
    Published("lm-eval Minerva", "lm_eval", f"{HERE}:minerva"),
    Published("lighteval extractive match", "lighteval", f"{HERE}:extractive_match"),
    Published("this package", "sage_rlvr", "sage_rlvr.audit.peers:own_rule"),
)


# ---- wrappers of rules that are no reward functions; they run in the worker


def minerva(completion: str, row: dict[str, Any]) -> float:
    """`exact_match` of lm-eval's minerva_math, whose gold is the normalized last box of a solution."""
    utils = _minerva()
    solution = rf"\boxed{{{row['answer']}}}"
    doc = {"solution": solution, "answer": utils.normalize_final_answer(row["answer"])}
    return float(utils.process_results(doc, [completion])["exact_match"])


@cache
def _minerva() -> Any:
    return lm_eval_utils("minerva_math")


def extractive_match(completion: str, row: dict[str, Any]) -> float:
    """lighteval's extractive match with the targets of its math_500, whose gold is a solution that ends in a box."""
    metric, doc, response = _lighteval()
    gold = rf"The answer is $\boxed{{{row['answer']}}}$."
    return float(metric(doc(query="", choices=[gold], gold_index=0), response(text=[completion])))


@cache
def _lighteval() -> Any:
    raise NotImplementedError


# ---- rows


def numbers() -> list[dict[str, str]]:
    """Golds as GSM8K has them: whole numbers, some of them large, and a few decimals."""
    chance = random.Random(0)
    golds = [str(chance.randint(1, 200)) for _ in range(35)] + [str(chance.randint(1000, 99_999)) for _ in range(10)]
    return [{"answer": gold} for gold in [*golds, "2.5", "0.75", "12.25", "-3", "0"]]


def expressions() -> list[dict[str, str]]:
    """Golds in LaTeX: those of the pairs of answers (`sage_rlvr.audit.pairs`) that no other row has, evenly spaced."""
    golds = list(dict.fromkeys(pair.gold for pair in read_pairs()))
    return [{"answer": golds[int(i * len(golds) / ROWS)]} for i in range(ROWS)]


SETS = {"numbers": numbers, "expressions": expressions}


# ---- the command


@dataclass(frozen=True)
class PublishedRewards(Command):
    """Audit the reward functions of TRL, verl, lm-eval and lighteval, and print a table."""

    out: Path | None = None
    """Also write the tables and the audits as a Markdown page."""

    def execute(self, session: Session) -> int:
        lines, audits = [], []
        for name, rows in SETS.items():
            found = []
            for one in REWARDS:
                if name in one.rows:
                    found += self._audited(session, one, name, rows())
            lines += [*table(name, found), ""]
            audits += [audit for _, audit in found]
        session.say(*lines)
        if self.out is not None:
            self.out.write_text(page(lines, audits), encoding="utf-8")
        return 0

    def _audited(self, session: Session, one: Published, name: str, rows: Sequence[Any]) -> list[tuple[Published, RewardAudit]]:
        reward = located(one)
        if reward is None:
            session.note(f"{one.name}: the package {one.package} is missing; see the first lines of lab/published_rewards.py")
            return []
        try:
            with reporting(session.note, f"published-rewards: {one.name} on {name}"):
                return [(one, audit_reward(reward, rows, problems=ROWS))]
        except ConfigError as error:
            session.note(f"{one.name}: cannot be called here: {error}")
            return []


def located(one: Published) -> str | None:
    """The reward as `audit_reward` takes it; None where its package is not installed."""
    spec = importlib.util.find_spec(one.package)
    if spec is None:
        return None
    if ".py:" not in one.reward:
        return one.reward
    site = Path(next(iter(spec.submodule_search_locations or [""]))).parent
    return str(site / one.reward)  # by its file: the package around it imports ray and torch


def version_of(package: str) -> str:
    """The version of an installed package."""
    return metadata.version(package.replace("_", "-"))


HEAD = (
    "| reward | written as | golds paid | wrong answers paid | right ones in another spelling not paid | guess floor | time / ours "
    "| calls without a number | hostile texts failed | order |"
)


def table(name: str, found: Sequence[tuple[Published, RewardAudit]]) -> list[str]:
    """A Markdown table, a line per reward."""
    return [f"Rows: {name}", "", HEAD, "|---" * 10 + "|", *(_line(one, audit) for one, audit in found)]


def _line(one: Published, audit: RewardAudit) -> str:
    figures = audit.figures
    ratio = figures["milliseconds"] / figures["ours"]
    cells = [
        f"{one.name} ({version_of(one.package)})",
        f"`{figures['form']}`",
        *(f"{int(good)} of {total}" for good, total in (figures[key] for key in ("golds", "accepts", "rejects", "floor"))),
        "1" if one.package == "sage_rlvr" else f"{ratio:.2g}",
        *(f"{bad} of {total}" for bad, total in (figures["failed"], figures["hostile"])),
        "same" if figures["order"] else "differs",
    ]
    return f"| {' | '.join(cells)} |"


def page(lines: Sequence[str], audits: Sequence[RewardAudit]) -> str:
    """The tables, then every audit with the rows that its checks name."""
    made = "Made by `python -m lab published-rewards --out lab/pages/results/rewards.md`."
    head = ["# Audits of published rewards", "", made, ""]
    return "\n".join([*head, *lines]) + page_of(audits, "").partition("\n\n")[2].partition("\n\n")[2]
