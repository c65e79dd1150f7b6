"""What the laboratory measures: KL terms by name, each added to a method in which all else is its base's, and guides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lab.studies.anchor.expectations import Linear
from sage_rlvr.core.guides import Branch, Flat, Guide, is_flat
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.method import Method
from sage_rlvr.methods import dr_grpo, grpo, rloo

GUIDES: Mapping[str, Guide] = {
    "Flat": Flat(),
    "Branch": Branch(ratio=0.3, threshold=0.8),
    "Token": Token(alpha=0.3, sigma=0.25),
    "Random": Random(eps=0.1, sigma=0.15),
}
"""The paper's values at the start of training, except Branch's threshold: the paper's 1.2 nats hardly ever act on three
numbers (a result's strengths say how often), 0.8 nats act on about as many tokens as 1.2 do in the demo's world of four."""
NOISE = tuple(name for name, guide in GUIDES.items() if guide.depends_on == "nothing" and not is_flat(guide))


@dataclass(frozen=True)
class Term:
    """One KL term under a name: `build(beta=...)` makes its method, in which all else is that of its base.

    linear: what its expected gradient is linear in, so that the noise of a guide can be averaged before it is put in;
    where that is neither, guides that draw noise are left out. base: what the term is added to; only those of RLOO are
    measured for variance, and that of Dr. GRPO, the same but for a factor, stands there without a guide.
    """

    name: str
    build: Callable[..., Method]
    linear: Linear = "log q"
    base: Literal["RLOO", "Dr. GRPO", "GRPO"] = "RLOO"


K1 = "k1 in the reward"
PAPER_BRANCH = "Branch at the paper's 1.2 nats"
_EXACT: Mapping[str, Linear] = {"reverse": "log q", "forward": "q", "js": "neither"}
_IN_REWARD: Mapping[str, Any] = {"estimator": "k1", "placement": "reward"}
TERMS: tuple[Term, ...] = (
    Term(K1, partial(rloo, **_IN_REWARD)),
    Term("k1 in the reward (Dr. GRPO)", partial(dr_grpo, **_IN_REWARD), base="Dr. GRPO"),
    *(Term(name, partial(rloo, estimator=name, placement="loss")) for name in ("k2", "straight_through", "k3_is")),
    Term("k3", partial(rloo, estimator="k3", placement="loss"), linear="q"),
    *(
        Term(f"exact {name}", partial(rloo, estimator="exact", placement="loss", divergence=name), linear=linear)
        for name, linear in _EXACT.items()
    ),
    Term("k3 in GRPO", grpo, linear="q", base="GRPO"),
)
"""Every estimator in the loss of RLOO or, k1, in its reward: un-normalized advantages and a sum over tokens, so that nothing
but the KL term differs from Eq. (6). The last one is stock GRPO: rewards divided by the group's std, each row by its length."""
