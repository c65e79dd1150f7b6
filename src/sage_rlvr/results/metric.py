"""A metric: which score, at which k, and at which temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

REFERENCE = 1.0
"""The sampling temperature of tables and curves."""
PAPER = 0.3
"""The paper's sampling temperature (its Appendix B; `sage-rlvr eval --preset paper` and `released_code`)."""

FEW = 8
"""The small k of a design with baselines; the other k is the largest."""

Name = Literal["pass", "distinct", "raw KL"]
At = Literal["temperature", "best", "b best", "equal", "a equal", "mixture", "hull", "near", "end"]
"""temperature: both arms at the same temperature; best: each arm at its best pass@1; b best: a at the reference temperature, b at
its best; equal: mean over the pass@1 that both cover; a equal: b at the temperature with the pass@1 of a at `temperature`; mixture:
the same, b being the best mixture per completion of several arms and temperatures; hull: the best mixture per problem (distinct
answers, and pass@k in summaries of before mixtures per completion); near: equal pass@1 near the reference temperature; end: end of
training."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`name` at `k` samples. temperature: for "temperature", "a equal", "mixture" and "hull". matched: b is interpolated
    between its betas at the raw KL of a."""

    name: Name = "pass"
    k: int | None = None
    at: At = "temperature"
    temperature: float = REFERENCE
    matched: bool = False

    @property
    def bare(self) -> str:
        """The score without `place`: "pass@256", "distinct in 256", "raw KL"."""
        return {"pass": f"pass@{self.k}", "distinct": f"distinct in {self.k}", "raw KL": "raw KL"}[self.name]

    @property
    def place(self) -> str:
        """ "at T = 0.3"; "" at the reference temperature."""
        cold = "" if self.temperature == REFERENCE else f"at T = {self.temperature:g}"
        places = {
            "temperature": cold,
            "best": "each at its best temperature",
            "b best": "against the other's best temperature",
            "equal": "at equal pass@1 (mean over all temperatures)",
            "a equal": f"at equal pass@1 (first at T = {self.temperature:g})",
            "mixture": f"at equal pass@1, mixture per completion (first at T = {self.temperature:g})",
            "hull": f"at equal pass@1, mixture per problem (first at T = {self.temperature:g})",
            "near": f"at equal pass@1 near T = {REFERENCE:g}",
            "end": "at the end of training",
        }
        return " ".join(filter(None, (places[self.at], "at the same raw KL" * self.matched)))

    def __str__(self) -> str:
        comma = "," if self.at in ("best", "b best") else ""
        return f"{self.bare}{comma} {self.place}".strip()


def known_metrics(k: int = 256) -> list[Metric]:
    """Every metric in the list of comparisons; k is the largest k."""
    plain = [Metric(k=n, temperature=t, matched=m) for m in (False, True) for t in (REFERENCE, PAPER) for n in (1, k)]
    places = [Metric(k=k, at="equal"), Metric(k=1, at="best"), Metric(k=1, at="b best"), Metric(k=k, at="a equal")]
    near = [Metric(name="pass", k=k, at="near"), Metric(name="distinct", k=k, at="near")]
    left_out = {("distinct", FEW, at) for at in ("a equal", "mixture", "hull")} | {("distinct", k, "mixture")}
    above = [
        Metric(name=name, k=n, at=at, temperature=t)  # type: ignore[arg-type]
        for at, name, n, t in product(("a equal", "mixture", "hull"), ("pass", "distinct"), (FEW, k), (REFERENCE, PAPER))
        if (name, n, at) not in left_out and (at, name, n, t) != ("a equal", "pass", k, REFERENCE)
    ]
    return [*plain, *places, *near, *above, Metric(name="raw KL", at="end")]
