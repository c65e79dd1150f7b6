"""Where descent on a method's own expected loss comes to rest, and how far from Eq. (4) that is.

Rows are estimator x placement x advantage x reduction x guide on one ragged tree. Closed forms, for reductions whose
divisor is the same for every row, with A of expected force kappa grad E[r]:

    k1 in the reward          q ref e^{R / b} / Z over whole completions, Eq. (4), b = beta c / kappa
    k2, straight_through, k3_is in the loss
                              pi(v|s) = q ref e^{Q(s,v) / b} / Z(s) at each state, b = beta / kappa
    k3 in the loss            pi(v|s) = b q ref / (lam(s) - Q(s,v)) at each state, b = beta / kappa

Q(s, v) is the expected reward after v under the policy itself, without any KL: a KL in the loss takes the visited states as
given. kappa = E[A | right] - E[A | wrong] for rewards 0 and 1: (G - 1) / G for `GroupCentered`, 1 for `LeaveOneOut`, a
function of P(right) at rest for `GroupNormalized`; c = `kl_share`. So beta acts as b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from lab.theory.claims.claim import Claim
from lab.theory.claims.lab import RAGGED, RAGGED_REWARDS, along, method_of, table
from lab.theory.optima import Leaves, forward_kl_optimum, reverse_kl_optimum, total_variation
from lab.theory.tree import Logits
from sage_rlvr.core.advantages import Advantage, GroupCentered, GroupNormalized, LeaveOneOut
from sage_rlvr.core.anchor import Anchor, Placement
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import shape
from sage_rlvr.core.reductions import FixedBudget, Reduction, SequenceMean, TokenMean

Name = Literal["k3", "k2", "straight_through", "k3_is", "k1"]
BETA, GROUP, TOLERANCE = 0.3, 8, 2e-6
TERMS: tuple[tuple[Name, Placement], ...] = (
    ("k3", "loss"),
    ("k3_is", "loss"),
    ("k2", "loss"),
    ("straight_through", "loss"),
    ("k1", "reward"),
)
ADVANTAGES: tuple[Advantage, ...] = (GroupNormalized(), GroupCentered(), LeaveOneOut())
REDUCTIONS: tuple[Reduction, ...] = (SequenceMean(), TokenMean(), FixedBudget(3))
GUIDES = ("none", "state", "token")


@dataclass(frozen=True)
class StationaryRow:
    """One method on the ragged tree, beta = .3, groups of 8.

    guide           none, state (a Branch that reads the reference) or token (a table of q by state and token)
    probs           of the completions at rest; right: their mass on right ones
    to_eq4          total variation from Eq. (4) with the nominal beta and this guide's q
    moved           total variation from where the same method without the guide rests: what the guide did
    wanted          total variation between Eq. (4) with the guide and Eq. (2): what the guide should do
    beta_effective  b of the closed form; NaN where a row's divisor is its length
    to_closed_form  total variation from the closed form with b; NaN likewise
    steps           of descent from the reference (of k2 and straight_through from where k3_is rests), converged or not
    """

    guide: str
    estimator: str
    placement: str
    advantage: str
    reduction: str
    probs: tuple[float, ...]
    right: float
    to_eq4: float
    moved: float
    wanted: float
    beta_effective: float
    to_closed_form: float
    steps: int
    converged: bool


REF = table(RAGGED, 1)


@cache
def log_q_of(guide: str) -> Logits:
    """(S, V) log q by state and token; of `state` it is what Branch gives through `shape`, from the reference's entropies."""
    if guide == "none":
        return torch.zeros(RAGGED.allowed.shape, dtype=torch.float64)
    if guide == "token":
        return table(RAGGED, 2, 0.3).clamp(math.log(0.6), math.log(1.4))
    branch = Branch(ratio=2.0, threshold=0.5, signal="reference")
    signals = RAGGED.listing(REF, REF, RAGGED_REWARDS).signals
    found = shape(method_of(Anchor(BETA, branch)), signals, 0, 1, Key(0)).double()
    by_state = torch.zeros(len(RAGGED.prefixes), dtype=torch.float64)
    by_state[RAGGED.states[RAGGED.mask]] = found[RAGGED.mask]
    return by_state[:, None].expand(RAGGED.allowed.shape).clone()


def kappa(advantage: Advantage, right: float) -> float:
    """E[A | right] - E[A | wrong] with P(right) = `right` in groups of 8, summed over the seven others; see the module."""
    if isinstance(advantage, GroupCentered):
        return (GROUP - 1) / GROUP
    if isinstance(advantage, LeaveOneOut):
        return 1.0
    others, own, eps = np.arange(GROUP), np.array([[1.0], [0.0]]), 1e-4
    mean = (others + own) / GROUP
    spread = np.sqrt(GROUP * mean * (1 - mean) / (GROUP - 1))
    chances = binom.pmf(others, GROUP - 1, right)
    return float(((2 * own - 1) * chances * (own - mean) / (spread + eps)).sum())


def closed_form(estimator: str, b: float, log_q: Logits) -> Leaves:
    """(L,) the stationary policy of the module's table, by recursion from the deepest states to the first."""
    q = along(RAGGED, log_q).sum(1).exp()
    if estimator == "k1":
        return reverse_kl_optimum(RAGGED.probs(REF), RAGGED_REWARDS, b, q)
    ref = RAGGED.log_probs(REF).exp()
    table_of = torch.zeros_like(ref)
    value: dict[tuple[int, ...], float] = {c: float(r) for c, r in zip(RAGGED.completions, RAGGED_REWARDS, strict=True)}
    for s in sorted(range(len(RAGGED.prefixes)), key=lambda s: -len(RAGGED.prefixes[s])):
        prefix, tokens = RAGGED.prefixes[s], RAGGED.allowed[s].nonzero()[:, 0].tolist()
        after = [value[(*prefix, v)] for v in tokens]
        factor = log_q[s, tokens].exp()
        found: Tensor = (
            forward_kl_optimum(ref[s, tokens], after, b, factor).probs
            if estimator == "k3"
            else reverse_kl_optimum(ref[s, tokens], after, b, factor)
        )
        table_of[s, tokens] = found
        value[prefix] = float((found * torch.tensor(after, dtype=torch.float64)).sum())
    return along(RAGGED, table_of.clamp(min=1e-300).log()).sum(1).exp()


@cache
def _rest(guide: str, term: tuple[Name, Placement], advantage: int, reduction: int) -> tuple[Logits, int, bool]:
    """(logits at rest, steps, converged) of descent from the reference on the loop's own expected loss.

    k2 and straight_through have the expected gradient of k3_is; they start where that came to rest, and have to stay.
    """
    anchor = Anchor(BETA, estimator=term[0], placement=term[1])
    start = _rest(guide, ("k3_is", "loss"), advantage, reduction)[0] if term[0] in ("k2", "straight_through") else REF
    found = RAGGED.descend(
        method_of(anchor, ADVANTAGES[advantage], REDUCTIONS[reduction]),
        REF,
        RAGGED_REWARDS,
        start=start,
        log_q=along(RAGGED, log_q_of(guide)),
        group_size=GROUP,
        tolerance=TOLERANCE,
    )
    return found.logits, found.steps, found.converged


def _row(guide: str, term: tuple[Name, Placement], a: int, r: int) -> StationaryRow:
    (estimator, placement), advantage, reduction = term, ADVANTAGES[a], REDUCTIONS[r]
    at_rest, steps, converged = _rest(guide, term, a, r)
    found, flat = RAGGED.probs(at_rest), RAGGED.probs(_rest("none", term, a, r)[0])
    log_q = log_q_of(guide)
    eq2, eq4 = (closed_form("k1", BETA, q) for q in (log_q_of("none"), log_q))
    right = float(found[RAGGED_REWARDS.bool()].sum())
    share = (GROUP - 1) / GROUP if placement == "reward" and not isinstance(advantage, LeaveOneOut) else 1.0
    b = BETA * share / kappa(advantage, right)
    constant = reduction.divisor != "row"
    return StationaryRow(
        guide=guide,
        estimator=estimator,
        placement=placement,
        advantage=type(advantage).__name__,
        reduction=type(reduction).__name__,
        probs=tuple(found.tolist()),
        right=right,
        to_eq4=total_variation(found, eq4),
        moved=total_variation(found, flat),
        wanted=total_variation(eq4, eq2),
        beta_effective=b if constant else math.nan,
        to_closed_form=total_variation(found, closed_form(estimator, b, log_q)) if constant else math.nan,
        steps=steps,
        converged=converged,
    )


@cache
def stationary_table() -> tuple[StationaryRow, ...]:
    """All rows: 3 guides x 5 terms x 3 advantages x 3 reductions, without k1 in the reward under sequence_mean (refused)."""
    return tuple(
        _row(guide, term, a, r)
        for guide in GUIDES
        for term in TERMS
        for a in range(len(ADVANTAGES))
        for r, reduction in enumerate(REDUCTIONS)
        if not (term[1] == "reward" and reduction.divisor == "row")
    )


def stationary_markdown(rows: Sequence[StationaryRow]) -> str:
    """The rows as a Markdown table, reductions and then KL terms with the same numbers in one line.

    *beta acts as* is `beta_effective`, blank where no closed form is known.
    """
    head = "| guide | KL term | advantage | reduction | right | TV to Eq. (4) | moved by q | Eq. (4) moves | beta acts as |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    by_term: dict[tuple[str, tuple[str, str], str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        acts = "" if math.isnan(row.beta_effective) else f"{row.beta_effective:.2f}"
        cells: tuple[str, ...] = (f"{row.right:.3f}", f"{row.to_eq4:.3f}", f"{row.moved:.3f}", f"{row.wanted:.3f}", acts)
        term = (row.estimator, row.placement)
        by_term.setdefault((row.guide, term, row.advantage, cells), []).append(row.reduction)
    merged: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for (guide, term, advantage, cells), reductions in by_term.items():
        merged.setdefault((guide, advantage, ", ".join(reductions), *cells), []).append(term)
    for (guide, *columns), terms in merged.items():
        names = ", ".join(estimator for estimator, _ in terms)
        lines.append("| " + " | ".join([guide, f"{names} in the {terms[-1][1]}", *columns]) + " |")
    return "\n".join(lines)


def rests() -> list[Claim]:
    """What the table shows, in claims."""
    rows = stationary_table()
    even = [row for row in rows if row.reduction != "SequenceMean"]
    reaches = [row for row in even if row.placement == "reward" and row.advantage != "GroupNormalized"]
    others = [row for row in rows if row not in reaches]
    unbiased = [row for row in rows if row.estimator in ("k2", "straight_through", "k3_is") and row.guide == "state"]
    cancels = [row.moved for row in unbiased if row.reduction != "SequenceMean"]
    artifact = [row.moved for row in unbiased if row.reduction == "SequenceMean"]
    scaled = [row for row in even if row.estimator == "k3" and row.guide == "state" and row.advantage == "LeaveOneOut"]
    normalized = [row for row in even if row.advantage == "GroupNormalized"]
    return [
        Claim(
            "rest/converged", "table of stationary points",
            f"rows of {len(rows)} in which descent did not come to rest = none",
            float(sum(not row.converged for row in rows)), 0.0,
        ),
        Claim(
            "rest/closed-forms", "table of stationary points",
            f"largest distance from the closed form, {len(even)} rows = 0",
            max(row.to_closed_form for row in even), 0.0, "=", 1e-4,
            note="Total variation; all rows whose divisor is the same for every completion. beta acts as beta "
            "c / kappa.",
        ),
        Claim(
            "rest/eq4-reached", "SAGE Eq. (4)",
            f"distance from Eq. (4), k1 in the reward, centered or leave-one-out, {len(reaches)} rows = 0",
            max(row.to_eq4 for row in reaches), 0.0, "=", 1e-4,
        ),
        Claim(
            "rest/eq4-missed", "SAGE Eq. (4)",
            f"the smallest distance from Eq. (4) of the other {len(others)} rows = 0",
            min(row.to_eq4 for row in others), 0.0, "=", 1e-4, expected=False,
            note="No estimator in the loss, no division by the group's std and no division by length reaches "
            "it here.",
        ),
        Claim(
            "rest/state-guide-cancels", "placement table",
            "what q(s) moves under k2, straight-through and k3_is in the loss = 0",
            max(cancels), 0.0, "=", 1e-4,
            note="Branch with an importance-corrected k3 trains the same policy as no guide.",
        ),
        Claim(
            "rest/length-artifact", "placement table",
            "the same under sequence_mean, the smallest = 0",
            min(artifact), 0.0, "=", 1e-4, expected=False,
            note="All that is left of the guide is a pull toward short answers.",
        ),
        Claim(
            "rest/state-guide-k3", "SAGE Eqs. (4), (38)",
            "what q(s) moves under k3 in the loss = what it moves in Eq. (4)",
            scaled[0].moved, scaled[0].wanted, "=", 1e-3, expected=False,
        ),
        Claim(
            "rest/std-strengthens-reward", "GRPO",
            "GroupNormalized: the largest beta that acts < the nominal one, .3",
            max(row.beta_effective for row in normalized), BETA, "<",
            note="kappa, about 1/std, is 1.73 at P(right) = 1/2 and 2.44 at .99: the KL fades as the prompt is "
            "solved.",
        ),
        Claim(
            "rest/token-mean", "DAPO",
            "distance of token_mean from the fixed budget, largest = 0",
            max(_between(rows, "TokenMean", "FixedBudget")), 0.0, "=", 1e-4,
            note="In the limit of many groups the batch's token count is a constant of the step.",
        ),
    ]  # fmt: skip


def _between(rows: Sequence[StationaryRow], first: str, second: str) -> list[float]:
    """Total variation between the rows that differ in the reduction alone."""
    found = {(row.guide, row.estimator, row.advantage, row.reduction): row.probs for row in rows}
    keys = [key[:3] for key in found if key[3] == first]
    return [total_variation(found[(*key, first)], found[(*key, second)]) for key in keys]
