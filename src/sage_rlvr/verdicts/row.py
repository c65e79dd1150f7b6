"""One comparison as a row, and its outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sage_rlvr.verdicts.design import Why
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.stats.paired import DETECTABLE, Outcome, PairedDifference

Family = Literal["primary", "exploratory"]
BEFORE = "before correction"


class End(StrEnum):
    """The printed outcome of a comparison: the only words for outcomes in the terminal, in Markdown and on the page. Rows are
    listed in this order."""

    HIGHER = "higher"
    LOWER = "lower"
    HIGHER_BEFORE = f"higher {BEFORE}"
    LOWER_BEFORE = f"lower {BEFORE}"
    NO_DIFFERENCE = "no significant difference"
    CANNOT = "cannot be told"
    IDENTICAL = "identical"


RANK = {end: i for i, end in enumerate(End)}


def end_of(outcome: Outcome, *, detected: bool) -> End:
    """The printed word for an uncorrected outcome. detected: whether the design could have detected the stated difference."""
    if outcome == "tied":
        return End.NO_DIFFERENCE if detected else End.CANNOT
    return {"better": End.HIGHER, "worse": End.LOWER, "unknown": End.CANNOT}[outcome]


@dataclass(frozen=True)
class Estimate:
    """A comparison of a pair in a metric. left_out, covers, rising: as in `Row`."""

    comparison: PairedDifference
    left_out: int = 0
    covers: tuple[float, float] | None = None
    rising: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """The difference a minus b in a metric on a task ("": the main task).

    adjusted: Holm's p among the `family_size` tests of the family, NaN without a test
    left_out: number of training seeds without a value
    covers: the range of pass@1 over which a mean is taken
    chance: the chance floor of pass@k with k > 1, if it is known
    below: whether a and b are below the chance floor
    rising: if b has several temperatures, whether its pass@1 may be higher below the lowest (`of_temperatures.may_rise`)"""

    a: str
    b: str
    metric: Metric
    comparison: PairedDifference
    task: str = ""
    why: Why = "control"
    family: Family = "exploratory"
    adjusted: float = math.nan
    family_size: int = 0
    left_out: int = 0
    covers: tuple[float, float] | None = None
    chance: float | None = None
    below: tuple[bool, bool] = (False, False)
    rising: bool = False

    @property
    def below_chance(self) -> list[str]:
        """The arms below the chance floor."""
        return [name for name, is_below in zip((self.a, self.b), self.below, strict=True) if is_below]

    @property
    def holds(self) -> bool:
        """Return whether the difference is significant after the correction of its family."""
        level = self.comparison.difference.level
        return self.comparison.outcome in ("better", "worse") and self.adjusted < 1 - level

    @property
    def outcome(self) -> End:
        """The printed outcome, after correction."""
        c = self.comparison
        if c.outcome == "tied" and c.difference.width == 0 and c.difference.value == 0:
            return End.IDENTICAL
        # a difference that is not significant is one only if this size could have been detected: for counts and KLs a share of b's
        size = DETECTABLE if self.metric.name == "pass" else DETECTABLE * abs(c.mean_b)
        word = end_of(c.outcome, detected=c.detects(size))
        return word if c.outcome in ("tied", "unknown") or self.holds else End(f"{word} {BEFORE}")

    @property
    def firmness(self) -> int:
        """0: significant after correction; 1: only before; 2: not significant; 3: not tested."""
        return {"tied": 2, "unknown": 3}.get(self.comparison.outcome, 0 if self.holds else 1)

    @property
    def unread(self) -> bool:
        """Whether the row has neither an outcome nor a difference."""
        return not self.comparison.known and not math.isfinite(self.comparison.difference.value)
