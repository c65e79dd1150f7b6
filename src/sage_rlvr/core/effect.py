"""The divergence that a KL term minimizes in expectation, as a value: `effect_of` computes it, `Effect.text` prints it.

An `Effect` is a claim about expected gradients at on-policy samples, under a reduction whose divisor does not depend on
the row. `lab/theory/effects.py` writes the functional that it names down a second time, in float64 and with finite
differences, and the tests hold the two together for every guide, estimator and placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.guides.base import DependsOn

Descends = Literal["reverse", "forward", "js", "alpha", "sequence"]
Role = Literal["moves", "scales", "tilts", "bonus", "drift", "cancels", "noise"]

UNBIASED_IN_LOSS = ("k2", "straight_through", "k3_is")


@dataclass(frozen=True)
class Effect:
    """The functional whose gradient equals the expected gradient, and the role of each kind of guide factor in it.

    descends  reverse, forward, js, alpha: sum over the visited states, their distribution held fixed, of that
              divergence between pi(.|s) and the anchor.
              sequence: KL(pi || pi_ref) - E_pi sum_t log q_t (Eq. 6), log q held fixed. If q_t looks at later tokens,
              E[log q_t | y_<=t] replaces log q_t: return-to-go gives the token at t only the rewards from t on, and of the
              dependence of q_t on a later token only that mean is left
    roles     what a factor of q depends on -> its role:
              moves    it shapes the anchor of the divergence: target q pi_ref
              scales   it multiplies the divergence to the unshaped pi_ref, by q (by q**alpha under "alpha")
              tilts    it enters the divergence and neither scales it nor drops out of it
              bonus    its log is a reward for reaching the token or state
              drift    E[log q] is a reward for each token, whichever it is: a price on length if it is negative
              cancels  it has no effect
              noise    its mean E[q] (E[q**alpha] under "alpha") is a common factor, and it has no other effect; under
                       "sequence" E[log q] = 0 at every token, and it has no effect
    alpha     the alpha of "alpha"
    ahead     a factor's q_t depends on tokens of its row after t: the text then names what the mean is taken over

    A q that depends on more than its own state and token counts there with its mean over the rest: over the following tokens for
    `Token`, whose weights are scaled within the row; over the batches that contain the state for a guide of the batch. It is
    the mean of q if q multiplies (forward; of q**alpha under alpha), that of log q if log q is added (reverse,
    sequence), and that of the divergence under js. A guide of the batch is assumed to see the sampled token as one of the
    batch's. The dependence of q on that token is not in the role "batch": O(1/B) of the gradient, B rows per batch, for a mean
    over the batch such as `Placebo`'s (more slowly for a percentile of few different entropies), and 0 under exact sums.
    """

    descends: Descends
    roles: tuple[tuple[DependsOn, Role], ...] = ()
    alpha: float | None = None
    ahead: bool = False

    def role(self, depends_on: DependsOn) -> Role | None:
        """Return the role of a factor of that kind; None if the guide has none."""
        return dict(self.roles).get(depends_on)

    @property
    def acts(self) -> bool:
        """False if q changes the expected gradient by a common factor at most: every factor of it cancels or is noise."""
        return any(role not in ("cancels", "noise") for _, role in self.roles)

    @property
    def text(self) -> str:
        """One line of text and formulas."""
        write = {"sequence": _sequence, "reverse": _reverse, "forward": _forward, "js": _js, "alpha": _scaled}
        return write[self.descends](self)


def effect_of(
    estimator: str,
    placement: str,
    depends_on: Iterable[DependsOn],
    divergence: Divergence | None = None,
    alpha: float | None = None,
    *,
    unpaid: Iterable[DependsOn] = (),
    ahead: bool = False,
) -> Effect:
    """Return the effect of a KL term with guide factors of these kinds; defined only for combinations that `Anchor` accepts.

    Args:
        estimator: as in `Anchor`, like placement, divergence and alpha.
        depends_on: the kinds of the guide's factors.
        unpaid: kinds all of whose factors have E[log q] = 0 at every token (`Placebo(centered=True)`).
        ahead: True if the q_t of a factor depends on later tokens of its row.
    """
    kinds = sorted(set(depends_on))
    if placement == "reward":
        roles: dict[DependsOn, Role] = {"nothing": "drift", "state": "bonus", "token": "bonus", "batch": "bonus"}
        noise = set(unpaid)
        return Effect(
            "sequence", tuple((kind, "noise" if kind in noise else roles[kind]) for kind in kinds), ahead=ahead
        )
    if estimator == "exact":
        return _exact(kinds, divergence, alpha)
    table: dict[DependsOn, Role]
    if estimator in UNBIASED_IN_LOSS:
        table = {"token": "moves", "state": "cancels", "nothing": "cancels", "batch": "cancels"}
        return Effect("reverse", tuple((kind, table[kind]) for kind in kinds), ahead=ahead)
    table = {"token": "moves", "state": "scales", "nothing": "noise", "batch": "scales"}
    return Effect("forward", tuple((kind, table[kind]) for kind in kinds), ahead=ahead)


def _exact(kinds: list[DependsOn], divergence: Divergence | None, alpha: float | None) -> Effect:
    """Return the effect under exact sums.

    They know q at the position, not at each next token: a factor is one number per position.
    """
    here: dict[str, Role] = {"reverse": "cancels", "forward": "scales", "alpha": "scales", "js": "tilts"}
    assert divergence is not None, "Anchor rejects estimator='exact' without a divergence"
    role = here[divergence]
    roles = [(kind, "noise" if kind == "nothing" and role == "scales" else role) for kind in kinds]
    return Effect(divergence, tuple(roles), alpha if divergence == "alpha" else None)


def _join(text: str, tails: Mapping[DependsOn, str], effect: Effect) -> str:
    """Return the text, followed for each kind of factor of the guide by the text on it."""
    return "; ".join([text, *(words for kind, words in tails.items() if effect.role(kind))])


def _sequence(effect: Effect) -> str:
    has_log_q = any(role != "noise" for _, role in effect.roles)
    log_q = "E[log q_t | y_<=t]" if effect.ahead else "log q_t"
    text = f"grad [KL(pi || pi_ref) - E_pi sum_t {log_q}]" if has_log_q else "grad KL(pi || pi_ref)"
    text += " over whole sequences, by return-to-go"
    reached = " and ".join(f"{kind}s" for kind in ("token", "state") if effect.role(kind) == "bonus")
    text += f"; log q is a bonus for reaching the {reached} that q favors" if reached else ""
    if effect.role("batch") == "bonus":
        text += "; the part of q that depends on a large batch adds the reward E[log q | s] per token"
    if effect.role("nothing") == "drift":
        text += "; the q that depends on nothing adds E[log q] per token as reward: below 0, a drift toward shorter answers"
    if any(role == "noise" for _, role in effect.roles):
        text += "; the part of q with mean log q = 0 is noise only"
    return text


def _reverse(effect: Effect) -> str:
    moved = effect.role("token") == "moves"
    text = f"grad KL(pi || {'q pi_ref' if moved else 'pi_ref'}) at the visited states (reverse KL)"
    text += ", shaped: q re-weights the tokens of a state" if moved else ""
    text += ", log q being E[log q_t | y_<=t]" if moved and effect.ahead else ""
    lost = {"state": "depends only on the state", "nothing": "is noise", "batch": "depends on a large batch"}
    words = [why for kind, why in lost.items() if effect.role(kind)]  # type: ignore[arg-type]
    return text + (f"; the part of q that {' or '.join(words)} cancels" if words else "")


def _forward(effect: Effect) -> str:
    if not effect.roles:
        return "grad KL(pi_ref || pi) at the visited states: the *forward* KL, on the logits pi - pi_ref"
    if effect.role("token") != "moves":
        return _scaled(effect)
    text = f"{_factors(effect)}(Zq pi - q pi_ref) on the logits at the visited states, Zq = sum_v q_v pi_ref,v"
    text += ", q being E[q_t | y_<=t]" if effect.ahead else ""
    return _join(text + ": the forward KL to q pi_ref", _tails(effect), effect)


def _scaled(effect: Effect) -> str:
    """Return the text of a divergence to the unshaped reference, times what remains of q."""
    if effect.descends == "forward":
        weighted = "a re-weighted" if effect.acts else "the"
        name = f"grad KL(pi_ref || pi) at the visited states: {weighted} *forward* KL"
    else:
        name = f"grad D_alpha(pi, pi_ref), alpha = {effect.alpha:g}, at the visited states"
    return _join(_factors(effect) + name, _tails(effect), effect)


def _factors(effect: Effect) -> str:
    """Return 'q(s) * E[q] * ': the factors that scale the pull, as a prefix."""
    power = f"**{effect.alpha:g}" if effect.descends == "alpha" else ""
    factors: dict[DependsOn, str] = {"state": f"q(s){power}", "nothing": f"E[q{power}]", "batch": f"E[q{power} | s]"}
    return "".join(f"{factor} * " for kind, factor in factors.items() if effect.role(kind))


def _tails(effect: Effect) -> dict[DependsOn, str]:
    return {
        "state": "q(s) scales the pull at the states it marks, and the minimum stays at pi_ref",
        "nothing": "the part of q that depends on nothing is noise only",
        "batch": "the part of q that depends on a large batch scales the pull by its mean at the state",
    }


def _js(effect: Effect) -> str:
    target = "q pi_ref" if effect.roles else "pi_ref"
    text = f"grad of 2 JS(pi, {target}) at the visited states"
    text += ": q changes the target, neither as a factor nor as a constant" if effect.roles else ""
    tails: dict[DependsOn, str] = {
        "nothing": "the part of q that depends on nothing acts through the mean over its noise: a second-order effect if E[q] = 1",
        "batch": "the part of q that depends on the batch acts through the mean over its values at the state",
    }
    return _join(text, tails, effect)
