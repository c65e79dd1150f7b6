"""A metric: which score, at which k, and at which temperatures.

Designs and stored files name a metric by its fields; `Metric.parse` is the only code that reads them. `bare` and `condition` are
printed and never read: a phrase can be changed without changing a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sage_rlvr.errors import ConfigError, choose_from, nearest, require, short, wrong

REFERENCE = 1.0
"""The sampling temperature of tables and curves."""
PAPER = 0.3
"""The paper's sampling temperature (its Appendix B; `sage-rlvr eval --preset paper` and `released_code`)."""

FEW = 8
"""The small k of a design with baselines; the other k is the largest."""

Name = Literal["pass", "distinct", "raw KL", "exact KL"]
Matched = Literal["", "raw KL", "exact KL"]
"""raw KL: the training metric of the last tenth of the steps; exact KL: reverse, over the vocabulary, on completions of the trained
policy (`evaluation.kl`). Both are nats per token to the reference."""
KLS: tuple[Matched, ...] = ("raw KL", "exact KL")
At = Literal["temperature", "best", "b best", "equal", "a equal", "mixture", "hull", "near", "end"]
"""The temperatures, or the pass@1, at which the two arms are compared.

temperature: both at the same temperature
best: each at its best pass@1
b best: a at the reference temperature, b at its best pass@1
equal: at equal pass@1, mean over the pass@1 that both cover
a equal: a at `temperature`, b at the temperature where it has the same pass@1
mixture: as "a equal", with the best mixture per completion of several arms and temperatures as b
hull: as "mixture", per problem: for distinct answers (and for pass@k in stored summaries, whose records are gone)
near: at equal pass@1 near the reference temperature
end: at the end of training"""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`name` at `k` samples.

    temperature: for "temperature", "a equal", "mixture" and "hull"
    matched: the KL at which b is interpolated between its betas so that it equals the KL of a; "" if b is not interpolated"""

    name: Name = "pass"
    k: int | None = None
    at: At = "temperature"
    temperature: float = REFERENCE
    matched: Matched = ""

    @classmethod
    def parse(cls, value: Any) -> Metric:
        """The metric that a file names: "pass@256", or a mapping of the fields, such as {k: 256, at: near}. Raises ConfigError with
        the place within the mapping, the value and the valid fields."""
        if isinstance(value, str):
            return cls._of_short_form(value)
        if not isinstance(value, Mapping):
            raise ConfigError(f"metric {short(value)}: expected {FORMS}")
        known = [field.name for field in fields(cls)]
        for key, given in value.items():
            if key not in known:  # the neighbors of a name take long to find, and a register has thousands of metrics
                raise wrong((str(key),), given, f"a metric has no such field{choose_from(key, known)}")
        metric = cls(**value)
        for key, options in (("name", get_args(Name)), ("at", get_args(At)), ("matched", get_args(Matched))):
            given = getattr(metric, key)
            if given not in options:
                raise wrong((key,), given, f"unknown{choose_from(given, options)}")
        whole = type(metric.k) is int and metric.k > 0
        require(metric.k is None if metric.name in KLS else whole, ("k",), metric.k, "must be >= 1 (raw KL and exact KL have no k)")
        number = type(metric.temperature) in (int, float) and 0 < metric.temperature < math.inf
        require(number, ("temperature",), metric.temperature, "must be a number above 0")
        return metric

    @classmethod
    def _of_short_form(cls, text: str) -> Metric:
        match = re.fullmatch(r"pass@([1-9][0-9]*)", text)
        if match is None:
            near = nearest(text, ("pass@1", f"pass@{FEW}", "pass@256"))
            raise ConfigError(f"metric {short(text)}: {f'did you mean {near!r}? ' if near else ''}expected {FORMS}")
        return cls(k=int(match[1]))

    @property
    def written(self) -> str:
        """Return the metric as written in a design: "pass@256", "{k: 256, at: near}"."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {field.name: given[field.name] for field in fields(self) if given[field.name] != field.default}
        if [*given] == ["k"]:
            return f"pass@{self.k}"
        return f"{{{', '.join(f'{key}: {_yaml(value)}' for key, value in given.items())}}}"

    @property
    def bare(self) -> str:
        """The score without `condition`: "pass@256", "distinct in 256", "raw KL"."""
        return {"pass": f"pass@{self.k}", "distinct": f"distinct in {self.k}"}.get(self.name, self.name)

    @property
    def condition(self) -> str:
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
        return " ".join(filter(None, (places[self.at], self.matched and f"at the same {self.matched}")))

    def __str__(self) -> str:
        comma = "," if self.at in ("best", "b best") else ""
        return f"{self.bare}{comma} {self.condition}".strip()


FORMS = (
    "pass@K, for example pass@8, or a mapping such as {k: 256, at: near} with the fields "
    f"name ({', '.join(get_args(Name))}; default pass), k, at ({', '.join(get_args(At))}; default temperature), "
    f"temperature (default {REFERENCE:g}) and matched ({' or '.join(KLS)}: at the same KL)"
)


def _yaml(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def known_of_samples(k: int) -> list[Metric]:
    """The metrics of two arms from samples at the reference temperature, at 1 and at the largest k."""
    return [*(Metric(k=n, matched=m) for m in get_args(Matched) for n in dict.fromkeys((1, k))), Metric(name="exact KL")]


def is_of_samples(metric: Metric, most: int) -> bool:
    """Return whether `most` samples of each problem have the metric: those of `known_of_samples`, at any k up to most."""
    if metric.k is not None and metric.k > most:
        return False
    return metric in (Metric(name="exact KL"), Metric(k=metric.k, matched=metric.matched))


def known_metrics(k: int = 256) -> list[Metric]:
    """Every metric in the list of comparisons; k is the largest k."""
    plain = [Metric(k=n, temperature=t, matched=m) for m in get_args(Matched) for t in (REFERENCE, PAPER) for n in (1, k)]
    places = [Metric(k=k, at="equal"), Metric(k=1, at="best"), Metric(k=1, at="b best"), Metric(k=k, at="a equal")]
    near = [Metric(name="pass", k=k, at="near"), Metric(name="distinct", k=k, at="near")]
    return [*plain, *places, *near, *above_baselines(k), Metric(name="raw KL", at="end"), Metric(name="exact KL")]


def above_baselines(k: int) -> list[Metric]:
    """The metrics of a candidate against sets of baselines: their best mixture at the candidate's pass@1. Distinct answers have no
    mixture per completion; k is the largest k."""
    scores: tuple[tuple[Name, int, At], ...] = (("pass", FEW, "mixture"), ("pass", k, "mixture"), ("distinct", k, "hull"))
    return [Metric(name=name, k=n, at=at, temperature=t) for t in (REFERENCE, PAPER) for name, n, at in scores]
