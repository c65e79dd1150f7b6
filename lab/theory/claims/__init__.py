"""Claims of the papers and of this project, each with both sides as numbers; `ALL` is the registry, `run_all` runs it.

A claim that does not hold where it should, or holds where it should fail, has `as_expected` False.
Read claim.py (what a claim is) and lab.py (what they share), then equations.py, support.py with appendix_c.py (Theorems 4.2
and 4.3), off_target.py (A.4), placements.py (each KL term's gradient), stationary.py (where training ends) and leash.py.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.theory.claims import appendix_c, equations, leash, off_target, placements, stationary, support
from lab.theory.claims.claim import Claim, markdown, show
from lab.theory.claims.stationary import StationaryRow, stationary_markdown, stationary_table

ALL: dict[str, Callable[[], Claim | list[Claim]]] = {
    "Eqs. (2), (4): the optimum is a tilted reference": equations.equations_2_and_4,
    "Eq. (5): the anchor need not be normalized": equations.equation_5,
    "Eq. (8): the pseudo-KL token by token": equations.equation_8,
    "A.2: an entropy bonus is a temperature": equations.entropy_bonus,
    "Equal rewards keep their odds": equations.equal_rewards,
    "Theorem 4.2 where it holds": support.preserved,
    "Theorem 4.2 where it fails": support.not_preserved,
    "Theorem 4.3": support.expansion,
    "Appendix C": appendix_c.appendix_c,
    "Theorem 4.3 and what training reaches": appendix_c.what_training_reaches,
    "A.4: the forward-KL optimum": off_target.equation_27,
    "A.4: off-target mass": off_target.separation,
    "A.4: cases": off_target.cases,
    "k3 in the loss": placements.k3_in_the_loss,
    "k2, straight-through and corrected k3 in the loss": placements.unbiased_in_the_loss,
    "k1 in the reward": placements.reward_k1,
    "Refused pairs": placements.refused,
    "Division by length": placements.length_artifact,
    "Where training comes to rest": stationary.rests,
    "Invisible Leash (i): zero stays zero": leash.zero_stays_zero,
    "Invisible Leash (ii): a bounded rise": leash.bounded_rise,
    "Invisible Leash (iii): no leash": leash.without_a_leash,
}


def run_all() -> list[Claim]:
    """All claims in the order of `ALL`; deterministic, some seconds on one core."""
    claims: list[Claim] = []
    for function in ALL.values():
        found = function()
        claims += found if isinstance(found, list) else [found]
    return claims


__all__ = [
    "ALL",
    "Claim",
    "StationaryRow",
    "markdown",
    "run_all",
    "show",
    "stationary_markdown",
    "stationary_table",
]
