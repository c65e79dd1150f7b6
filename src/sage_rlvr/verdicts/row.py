"""One comparison as a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sage_rlvr.verdicts.design import Why
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.stats.paired import PairedDifference

Family = Literal["primary", "exploratory"]


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
    rising: for b at several temperatures, whether its pass@1 may be higher below its lowest (`of_temperatures.may_rise`)"""

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
