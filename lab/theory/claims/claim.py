"""A claim: a statement of a paper or of this project with both its sides as numbers, and what was found.

The two sides are computed apart, a closed form against a maximization, an enumeration or a simulation, never by the same
code twice. Some claims are expected to fail: they show where a theorem stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from sage_rlvr.errors import ConfigError

Relation = Literal["=", "!=", ">", "<", ">=", "<="]
Side = float | tuple[float, ...]

_HOLDS: dict[str, Callable[[float, float, float], bool]] = {
    "=": lambda left, right, tolerance: abs(left - right) <= tolerance,
    ">": lambda left, right, tolerance: left > right + tolerance,
    "<": lambda left, right, tolerance: left < right - tolerance,
    ">=": lambda left, right, tolerance: left >= right - tolerance,
    "<=": lambda left, right, tolerance: left <= right + tolerance,
}


@dataclass(frozen=True)
class Claim:
    """`left relation right`, within `tolerance`, said by `source`.

    left, right  a number, or a tuple of numbers that are compared one by one: "!=" asks that some pair differs by more
                 than the tolerance, every other relation that all pairs obey it; a number that is NaN obeys nothing
    expected     whether it should hold; False for a claim that is there to show a failure
    note         which assumptions are made, or which one fails
    holds        what was found; computed from the sides, never given
    """

    name: str
    source: str
    statement: str
    left: Side
    right: Side
    relation: Relation = "="
    tolerance: float = 0.0
    expected: bool = True
    note: str = ""
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.relation not in (*_HOLDS, "!="):
            raise ConfigError(
                f"Claim {self.name}: relation = {self.relation!r}; choose one of {', '.join(_HOLDS)}, !=."
            )
        object.__setattr__(self, "holds", self._compare())

    def _compare(self) -> bool:
        left, right = _tuple(self.left), _tuple(self.right)
        if len(left) != len(right) or not left:
            raise ConfigError(
                f"Claim {self.name}: {len(left)} numbers stand against {len(right)}; give as many of both."
            )
        if any(math.isnan(value) for value in left + right):
            return False
        equal = "=" if self.relation == "!=" else self.relation
        obeyed = all(_HOLDS[equal](*pair, self.tolerance) for pair in zip(left, right, strict=True))
        return not obeyed if self.relation == "!=" else obeyed

    @property
    def as_expected(self) -> bool:
        """Whether the relation holds exactly where it should."""
        return self.holds is self.expected

    @property
    def verdict(self) -> str:
        """holds, fails as it should, or UNEXPECTED with what was found."""
        if not self.as_expected:
            return "UNEXPECTED: " + ("holds" if self.holds else "fails")
        return "holds" if self.holds else "fails, as it should"

    def row(self, digits: int = 6) -> tuple[str, str, str, str, str]:
        """(name, left, relation, right, verdict) as texts, numbers with that many significant digits."""
        return self.name, show(self.left, digits), self.relation, show(self.right, digits), self.verdict


def show(side: Side, digits: int = 6) -> str:
    """A side as text: one number, or numbers in brackets; what rounds to -0 is 0."""
    numbers = [f"{value + 0.0:.{digits}g}" for value in _tuple(side)]
    return numbers[0] if not isinstance(side, tuple) else f"({', '.join(numbers)})"


def numbers(values: Tensor | Iterable[float]) -> tuple[float, ...]:
    """A tensor of any shape, or numbers, as a flat tuple of floats."""
    if isinstance(values, Tensor):
        return tuple(float(value) for value in values.detach().reshape(-1).double().tolist())
    return tuple(float(value) for value in values)


def markdown(claims: Sequence[Claim], digits: int = 4) -> str:
    """The claims as a Markdown table: name, source, statement, left, relation, right, verdict."""
    lines = ["| claim | source | what it says | left | | right | verdict |", "|---|---|---|---|---|---|---|"]
    for claim in claims:
        name, left, relation, right, verdict = claim.row(digits)
        says = claim.statement.replace("|", "\\|")
        lines.append(f"| {name} | {claim.source} | {says} | {left} | `{relation}` | {right} | {verdict} |")
    return "\n".join(lines)


def _tuple(side: Side) -> tuple[float, ...]:
    return side if isinstance(side, tuple) else (side,)
