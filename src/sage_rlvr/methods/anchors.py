"""The keywords of a KL term, which all methods with one share, made into their `Anchor`."""

from __future__ import annotations

from sage_rlvr.core.anchor import Anchor, Placement
from sage_rlvr.core.divergences import Divergence
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.schedules import Schedule


def anchor_of(
    beta: float | Schedule,
    estimator: Estimator,
    placement: Placement,
    source: str,
    refresh_every: int | None,
    divergence: Divergence | None,
    alpha: float | None,
) -> Anchor | None:
    """The `Anchor` of these keywords (it says what each means), None where beta is 0 at every step.

    What `Anchor` refuses is refused with beta = 0 too, so that a setting without meaning does not wait for a beta.
    """
    anchor = Anchor(
        beta,
        estimator=estimator,
        placement=placement,
        source=source,
        refresh_every=refresh_every,
        divergence=divergence,
        alpha=alpha,
    )
    return None if anchor.is_off else anchor
