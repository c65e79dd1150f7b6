"""What the gradient of a KL term really descends, as a value: `effect_of` decides it, `Effect.text` says it.

An `Effect` is a claim about expected gradients at on-policy samples. `theory/effects.py` writes the functional that it
names down a second time, in float64 and with finite differences, and the tests hold the two together for every guide,
estimator and placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.guides.base import DependsOn

Descends = Literal["reverse", "forward", "js", "alpha", "sequence"]
Role = Literal["moves", "scales", "tilts", "bonus", "cancels", "noise"]

UNBIASED_IN_LOSS = ("k2", "straight_through", "k3_is")


@dataclass(frozen=True)
class Effect:
    """The functional whose gradient is met in expectation, and what each kind of guide factor does to it.

    descends  reverse, forward, js, alpha: sum over the visited states, their distribution held fixed, of that
              divergence between pi(.|s) and the anchor; sequence: KL(pi || pi_ref) - E_pi sum_t log q_t whole (Eq. 6)
    roles     what a factor of q depends on -> what becomes of it:
              moves    it shapes the anchor of the divergence: target q pi_ref
              scales   it multiplies the divergence to the unshaped pi_ref, by q (by q**alpha under "alpha")
              tilts    it enters the divergence and neither scales it nor drops out of it
              bonus    its log is a reward for reaching the token or state
              cancels  nothing is left of it
              noise    its mean (of q, or of log q in the reward) is all that is left
    alpha     of "alpha"
    """

    descends: Descends
    roles: tuple[tuple[DependsOn, Role], ...] = ()
    alpha: float | None = None

    def role(self, depends_on: DependsOn) -> Role | None:
        """What becomes of a factor of that kind; None where the guide has none."""
        return dict(self.roles).get(depends_on)

    @property
    def acts(self) -> bool:
        """True where the guide changes the expected gradient beyond a constant."""
        return any(role in ("moves", "scales", "tilts", "bonus") for _, role in self.roles)

    @property
    def text(self) -> str:
        """One line of words and formulas."""
        if self.descends == "sequence":
            return _sequence(dict(self.roles))
        if self.descends == "reverse":
            return _reverse(dict(self.roles))
        if self.descends == "forward":
            return _forward(dict(self.roles))
        return _other(self)


def effect_of(
    estimator: str,
    placement: str,
    depends_on: Iterable[DependsOn],
    divergence: Divergence | None = None,
    alpha: float | None = None,
) -> Effect:
    """The effect of a KL term with guide factors of these kinds; only pairs that `Anchor` admits have one."""
    kinds = sorted(set(depends_on))
    if placement == "reward":
        return Effect("sequence", tuple((kind, "noise" if kind == "nothing" else "bonus") for kind in kinds))
    if estimator == "exact":
        return _exact(kinds, divergence, alpha)
    table: dict[DependsOn, Role]
    if estimator in UNBIASED_IN_LOSS:
        table = {"token": "moves", "state": "cancels", "nothing": "cancels", "batch": "cancels"}
        return Effect("reverse", tuple((kind, table[kind]) for kind in kinds))
    table = {"token": "moves", "state": "scales", "nothing": "noise", "batch": "moves"}
    return Effect("forward", tuple((kind, table[kind]) for kind in kinds))


def _exact(kinds: list[DependsOn], divergence: Divergence | None, alpha: float | None) -> Effect:
    """Exact sums know q at the position, not at each next token: every admitted factor is one number a position."""
    here: dict[str, Role] = {"reverse": "cancels", "forward": "scales", "alpha": "scales", "js": "tilts"}
    assert divergence is not None, "Anchor refuses estimator='exact' without a divergence"
    role = here[divergence]
    roles = [(kind, "noise" if kind == "nothing" and role == "scales" else role) for kind in kinds]
    return Effect(divergence, tuple(roles), alpha if divergence == "alpha" else None)


def _sequence(roles: dict[DependsOn, Role]) -> str:
    bonus = "; log q is a bonus for reaching the tokens and states that q favours" if roles else ""
    return "grad [KL(pi || pi_ref) - E_pi sum_t log q_t] over whole sequences, by return-to-go" + bonus


def _reverse(roles: dict[DependsOn, Role]) -> str:
    target = "q pi_ref" if "token" in roles else "pi_ref"
    text = f"grad KL(pi || {target}) at the visited states (reverse KL)"
    if "token" in roles:
        text += ", shaped: q re-weights the tokens of a state"
    lost = {"state": "looks at the state alone", "batch": "comes from the batch", "nothing": "is noise"}
    words = [why for what, why in lost.items() if what in roles]
    return text + (f"; the part of q that {' or '.join(words)} cancels" if words else "")


def _forward(roles: dict[DependsOn, Role]) -> str:
    if not roles:
        return "grad KL(pi_ref || pi) at the visited states: the *forward* KL, on the logits pi - pi_ref"
    scale = "".join(f"{factor} * " for what, factor in (("state", "q(s)"), ("nothing", "E[q]")) if what in roles)
    if "token" in roles:
        text = f"{scale}(Zq pi - q pi_ref) on the logits at the visited states, Zq = sum_v q_v pi_ref,v"
        text += ": the forward KL to the anchor that the token's q shapes"
    elif set(roles) == {"batch"}:
        text = "the forward KL to q pi_ref at the visited states, q fixed by the batch"
    else:
        text = f"{scale}grad KL(pi_ref || pi) at the visited states: a re-weighted *forward* KL"
    tails = {
        "state": "q(s) scales the pull at the states it marks and does not move the anchor",
        "nothing": "the q that looks at nothing adds noise only",
        "batch": "" if set(roles) == {"batch"} else "a factor of q is fixed by the batch",
    }
    return "; ".join([text, *(tail for what, tail in tails.items() if what in roles and tail)])


def _other(effect: Effect) -> str:
    name = "2 JS(pi, pi_ref)" if effect.descends == "js" else f"the alpha-divergence (alpha = {effect.alpha:g})"
    text = f"grad of {name} at the visited states, exactly summed"
    if not effect.roles:
        return text
    if effect.descends == "js":
        return text + ", with q pi_ref for pi_ref: q enters it, and neither scales it nor drops out"
    return text + f", times q**{effect.alpha:g}: it scales the pull at the states it marks and does not move the anchor"
