"""The Invisible Leash's question put to every method: which right answers training keeps, gains and loses, exact on the tree.

A task is a few prompts, each a full tree of completions with a reference and right leaves of its own. A method trains a table of
logits from the reference by the loop's own loss on drawn groups, until P(right) is `GOAL` on average: equal pass@1, so that a
method which has only gone further is not taken for one that loses more. The policy there is a table, so its support is counted and
not sampled. Intervals are over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.studies.pages import remade
from lab.theory.averages import Listing
from lab.theory.expected import step_of_groups
from lab.theory.tree import TokenTree
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State
from sage_rlvr.results import tables
from sage_rlvr.results.tables import NONE, Table
from sage_rlvr.runs import writing
from sage_rlvr.verdicts.stats.intervals import seed_interval
from sage_rlvr.verdicts.stats.support import reachable, support_change

TREE = TokenTree.full(4, 3)
TASKS = range(10, 14)
PROMPTS, SPREAD, RIGHT = 6, 1.5, 0.15
GROUP, GROUPS, RATE, MOST_STEPS, GOAL = 8, 4, 0.02, 500, 0.7
EPS = 1 / 256
_SIGNALS = ("entropies", "ref_entropies", "ref_right", "answers", "problems", "entropy_drift", "distributions", "advantages")
KNOWN = frozenset({"logps", "ref_logps", *_SIGNALS})
"""Signals that a tree has."""


@dataclass(frozen=True, eq=False)
class Task:
    """Reference logits (N, S, V) and right leaves (N, L) of some prompts; a function of the seed."""

    reference: Tensor
    right: Tensor

    @classmethod
    def draw(cls, seed: int) -> Task:
        """Every prompt has a right leaf and a wrong one."""
        generator = torch.Generator().manual_seed(seed)
        reference = SPREAD * torch.randn(PROMPTS, *TREE.allowed.shape, generator=generator, dtype=torch.float64)
        right = torch.rand(PROMPTS, len(TREE), generator=generator) < RIGHT
        right[:, 0], right[:, 1] = True, False
        return cls(reference, right)

    def solved(self, logits: Tensor) -> float:
        """Mean P(right)."""
        chances = torch.stack([TREE.probs(one) for one in logits])
        return float(torch.where(self.right, chances, 0.0).sum(1).mean())

    def right_logps(self, logits: Tensor) -> list[np.ndarray[Any, Any]]:
        """Log-probs of the right leaves of each prompt."""
        return [TREE.logps(one).sum(1)[right].numpy() for one, right in zip(logits, self.right, strict=True)]

    def loss(
        self, method: Method, logits: Tensor, generator: torch.Generator, step: int, state: State | None = None
    ) -> tuple[Tensor, State]:
        """The loop's loss of one step, `GROUPS` groups per prompt, drawn from the policy, all prompts in one batch; and the state
        of the method's parts after it."""
        wide = "distributions" in method.needs
        listings = [
            TREE.listing(one.detach(), ref, right.float(), wide)
            for one, ref, right in zip(logits, self.reference, self.right, strict=True)
        ]
        drawn = [torch.multinomial(one.probs, GROUPS * GROUP, True, generator=generator) for one in listings]
        members = torch.cat([rows + place * len(TREE) for place, rows in enumerate(drawn)]).reshape(-1, GROUP)
        listing, logps = _joined(listings), torch.cat([TREE.logps(one) for one in logits])
        log_probs = torch.cat([TREE.log_probs(one)[TREE.states] for one in logits]) if wide else None
        live = "entropy_gradient" in method.needs
        entropies = torch.cat([TREE.entropies(one) for one in logits]) if live else None
        key = Key(int(torch.randint(2**31, (), generator=generator)))
        return step_of_groups(
            method, listing, logps, members, step=step, total_steps=MOST_STEPS, key=key, log_probs=log_probs, state=state,
            entropies=entropies,
        )  # fmt: skip


def _joined(listings: Sequence[Listing]) -> Listing:
    """Several prompts as one listing."""

    def cat(of: Callable[[Listing], Any]) -> Any:
        parts = [of(one) for one in listings]
        return None if parts[0] is None else torch.cat(parts)

    def signal(name: str) -> Any:
        return cat(lambda one: getattr(one.signals, name))

    rows = len(listings) * len(TREE)
    known = {field.name: signal(field.name) for field in fields(Signals) if field.name != "row_ids"}
    known["problems"] = 1 + torch.arange(rows) // len(TREE)
    signals = Signals(row_ids=torch.arange(rows), **known)
    probs, rewards = cat(lambda one: one.probs) / len(listings), cat(lambda one: one.rewards)
    return Listing(signals, probs, rewards, cat(lambda one: one.ref_log_probs))


@dataclass(frozen=True)
class Outcome:
    """One training: steps taken, mean P(right) where it stopped, KL(policy || reference) in nats per completion, right leaves
    kept, gained and lost (probability above `EPS`), and right answers expected in 256 samples, all over the task's prompts."""

    steps: int
    solved: float
    kl: float
    kept: int
    gained: int
    lost: int
    distinct: float


def train(method: Method, seed: int) -> Outcome:
    """Train on task `seed` until P(right) is `GOAL`, or for `MOST_STEPS`."""
    task, generator = Task.draw(seed), torch.Generator().manual_seed(1000 + seed)
    logits = task.reference.clone().requires_grad_(True)
    adam, steps, state = torch.optim.Adam([logits], lr=RATE), 0, method.start()
    while steps < MOST_STEPS and task.solved(logits.detach()) < GOAL:
        adam.zero_grad()
        loss, state = task.loss(method, logits, generator, steps, state)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        steps += 1
    return outcome(task, logits.detach(), steps)


def outcome(task: Task, logits: Tensor, steps: int = 0) -> Outcome:
    """What a policy kept, gained and lost."""
    base, policy = task.right_logps(task.reference), task.right_logps(logits)
    change = support_change(base, policy, EPS)
    found, ref = (torch.stack([TREE.logps(one).sum(1) for one in each]) for each in (logits, task.reference))
    kl = float((found.exp() * (found - ref)).sum(1).mean())
    distinct = float(reachable(policy).mean())
    return Outcome(steps, task.solved(logits), kl, change.preserved, change.gained, change.lost, distinct)


@dataclass(frozen=True)
class Supported:
    """A method's outcomes, one per task; `missing`: what it reads and a tree does not have, then there are none."""

    name: str
    outcomes: tuple[Outcome, ...]
    missing: tuple[str, ...] = ()


BASE, RIVAL = "(the reference)", "grpo"


def supported(named: Iterable[tuple[str, Method]], tasks: Sequence[int] = TASKS) -> list[Supported]:
    """The reference itself, then every method on these tasks."""
    starts = [Task.draw(seed) for seed in tasks]
    found = [Supported(BASE, tuple(outcome(task, task.reference) for task in starts))]
    for name, method in named:
        missing = tuple(sorted(method.needs - KNOWN)) + (() if method.buffer is None else ("a buffer",))
        done = () if missing else tuple(train(method, seed) for seed in tasks)
        found.append(Supported(name, done, missing))
    return found


def table(found: Sequence[Supported]) -> Table:
    """A row per method: means over tasks; of what was lost and of distinct answers the difference to GRPO's too, task by task."""
    rival = next((one.outcomes for one in found if one.name == RIVAL), ())

    def mean(name: str, text: str) -> Callable[[Supported], str]:
        return lambda one: f"{np.mean([getattr(o, name) for o in one.outcomes]):{text}}" if one.outcomes else NONE

    def against(name: str, text: str) -> Callable[[Supported], str]:
        def cell(one: Supported) -> str:
            if not one.outcomes or not rival or one.name in (BASE, RIVAL):
                return NONE
            pairs = zip(one.outcomes, rival, strict=True)
            gap = seed_interval([getattr(a, name) - getattr(b, name) for a, b in pairs], over="tasks")
            return f"{gap.value:{text}}\n{gap.low:{text}} to {gap.high:{text}}"

        return cell

    columns: dict[str, Callable[[Supported], str]] = {
        "method": lambda one: one.name,
        "steps": mean("steps", ".0f"),
        "P(right)": mean("solved", ".2f"),
        "KL": mean("kl", ".2f"),
        "kept": mean("kept", ".1f"),
        "gained": mean("gained", ".1f"),
        "lost": mean("lost", ".1f"),
        "lost, less GRPO's": against("lost", "+.1f"),
        "distinct": mean("distinct", ".2f"),
        "distinct, less GRPO's": against("distinct", "+.2f"),
        "not here": lambda one: f"reads {', '.join(one.missing)}" if one.missing else "",
    }
    if not any(one.missing for one in found):
        del columns["not here"]
    return tables.table(columns, found)


def write_docs(found: Sequence[Supported], docs: Path) -> list[Path]:
    """Make the table of results/support.md in docs again."""
    where, text = remade(docs, "results/support.md", {"support": table(found).markdown()})
    with writing("page", docs, 1 << 20):
        where.write_text(text, encoding="utf-8")
    return [where]
