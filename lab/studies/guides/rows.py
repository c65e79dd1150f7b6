"""What the guide lab found: a guide at a budget, what a guide's log q knows, and everything of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lab.studies.guides.signals import Kind
from sage_rlvr.verdicts.stats.intervals import Interval


class Head(NamedTuple):
    """The first fields of a `GuideRow`."""

    name: str
    kind: Kind
    variant: str
    equation: str


@dataclass(frozen=True)
class GuideRow:
    """One guide at one budget, test problems; every difference with its 95 % interval over problems.

    equation, scale: q is that of the equation with a = scale, or of the guide's own settings raised to it. budget: KL(pi_SAGE ||
    pi_RLVR), nats per completion. in_band: share of a batch's tokens whose q lies in [0.6, 1.4]. change: from no guide, of pass1,
    passk (k = 256), distinct (right completions among 256), support (right completions above 1/256). gained, lost: of the
    support. hotter: paired difference from the policy sampled hotter at the same KL budget; equal_pass1: from the policy at the
    temperature that has this row's pass@1 (None beyond its best). share: change over that of the best q at this budget. against:
    paired differences from Random and from the placebo of rarity at the same KL budget. draw_sd: what the sampled part adds to the
    mean of distinct and support, one standard deviation. The budget of the base is nan: its KL from the policy cannot be told
    from the policy's own samples.
    """

    name: str
    kind: Kind
    variant: str
    equation: str
    budget: float
    scale: float
    in_band: float | None
    change: dict[str, Interval]
    gained: float
    lost: float
    hotter: dict[str, Interval] | None = None
    equal_pass1: dict[str, Interval] | None = None
    share: dict[str, float] | None = None
    against: dict[str, dict[str, Interval]] | None = None
    draw_sd: dict[str, float] | None = None


@dataclass(frozen=True)
class SignalRow:
    """What a guide's log q knows, whatever its strength; means over test problems.

    efficiency_distinct, efficiency_pass: correlation with the influence on distinct right answers and on pass@256, the share of
    the best gain for small KL budgets. auc_right: chance that a right completion of the policy has a larger log q than a wrong one.
    auc_lifted, rank_lifted: among right completions, of those that the oracle of the support lifts against the others, and
    Spearman's correlation with the oracle's log q.
    """

    name: str
    kind: Kind
    variant: str
    efficiency_distinct: float
    efficiency_pass: float
    auc_right: float
    auc_lifted: float
    rank_lifted: float


@dataclass(frozen=True)
class GuideLabResult:
    """All rows, and what was measured: `facts` of the policy, `frontier` of policy and base by temperature, `bands`: what q in
    [0.6, 1.4] at each token reaches, by budget; `favorite` the family without rewards that is best on validation problems."""

    policy: str
    reference: str
    problems: int
    different: int
    samples: int
    seed: int
    draw: str
    rows: tuple[GuideRow, ...]
    signals: tuple[SignalRow, ...]
    facts: dict[str, float]
    frontier: dict[str, list[dict[str, float]]]
    bands: tuple[dict[str, float], ...]
    favorite: str
    seconds: float
