"""What the pictures of `sage-rlvr study anchor` show, as arrays: computed here, drawn by `studies/anchor/figures.py`.

`landscape` is the paper's Fig. 1 (reference, q x reference, the policy before and after), `modes` its Fig. 5 (mode-seeking
and mode-covering) with SAGE beside them, `forces` the pull of every KL term at two states of a small tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Branch, Flat, Guide, Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.theory.effects import measured_gradient, unchecked_anchor
from sage_rlvr.theory.tree import TokenTree

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """48 completions of a prompt, on a line; all arrays (48,).

    right: bool; reference; q; shaped = q x reference (not normalized); grpo: the optimum of Eq. (2); sage: of Eq. (4);
    k3: where descent with GRPO's KL term, k3 in the loss, comes to rest with the same q, rewards not divided by the std; beta;
    epsilon: the threshold of Def. 4.1.
    """

    right: NDArray[np.bool_]
    reference: Array
    q: Array
    shaped: Array
    grpo: Array
    sage: Array
    k3: Array
    beta: float
    epsilon: float


def landscape(beta: float = 0.5, epsilon: float = 1 / 64) -> Landscape:
    """A dense mode and a sparse one, right answers in both; q is 1.4**3, three clamped branchings, on the sparse one."""
    place = np.arange(48)
    bumps = 0.93 * np.exp(-0.5 * ((place - 13) / 4.2) ** 2) + 0.035 * np.exp(-0.5 * ((place - 36) / 3.2) ** 2) + 0.004
    reference = bumps / bumps.sum()
    right = np.isin(place, [11, 12, 13, 35, 36, 37, 38])
    q = 1 + (1.4**3 - 1) * np.exp(-0.5 * ((place - 36) / 3.6) ** 4)
    tilted = reference * np.exp(right / beta)
    shaped = q * tilted
    tree, anchor = TokenTree.bandit(len(place)), Anchor(beta, estimator="k3")
    method = Method("k3", GroupCentered(), Clip(), anchor, FixedBudget(1))
    rest = tree.descend(
        method,
        tree.logits_of(torch.from_numpy(reference)),
        torch.from_numpy(right.astype(np.float64)),
        group_size=1024,  # (G - 1) / G of the reward is then 1
        log_q=torch.from_numpy(np.log(q))[:, None].float(),
    )
    return Landscape(
        right=right,
        reference=reference,
        q=q,
        shaped=q * reference,
        grpo=tilted / tilted.sum(),
        sage=shaped / shaped.sum(),
        k3=rest.probs.numpy(),
        beta=beta,
        epsilon=epsilon,
    )


@dataclass(frozen=True)
class Modes:
    """A target with two modes and the bell curves that fit it best; arrays (X,) over `place`, densities.

    reverse, forward: argmin of KL(p || target) and of KL(target || p) among normal densities; shaped: q x target, not
    normalized; sage: argmin of D(p || q x target), Eq. (5), in the same family.
    """

    place: Array
    target: Array
    shaped: Array
    reverse: Array
    forward: Array
    sage: Array


def modes(lift: float = 1.4**4) -> Modes:
    """Two bumps of weight .72 and .28; q lifts the smaller by 1.4 at each of four tokens."""
    place = np.linspace(-6.5, 6.5, 651)
    target = 0.72 * _bell(place, -2.2, 0.75) + 0.28 * _bell(place, 2.2, 0.75)
    shaped = target * (1 + (lift - 1) / (1 + np.exp(-4 * place)))
    return Modes(
        place=place,
        target=target,
        shaped=shaped,
        reverse=_best(place, target, "reverse"),
        forward=_best(place, target, "forward"),
        sage=_best(place, shaped, "reverse"),
    )


def _bell(place: Array, mean: float, width: float) -> Array:
    density: Array = np.exp(-0.5 * ((place - mean) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return density


def _best(place: Array, target: Array, direction: str) -> Array:
    """The normal density of least divergence, from several starts, so that the lowest of the minima is found."""
    step = place[1] - place[0]

    def value(parameters: Array) -> float:
        p = _bell(place, parameters[0], math.exp(parameters[1])) + 1e-300
        first, second = (p, target) if direction == "reverse" else (target, p)
        return float((first * np.log(first / second)).sum() * step)

    starts = [np.array([mean, width]) for mean in (-2.2, 0.0, 2.2) for width in (-0.3, 0.8)]
    found = min((minimize(value, start, method="Nelder-Mead") for start in starts), key=lambda r: float(r.fun))
    return _bell(place, float(found.x[0]), math.exp(float(found.x[1])))


@dataclass(frozen=True)
class Forces:
    """The push of descending a KL term (beta = 1) on the logits of two states: minus its expected gradient.

    states: their names; tokens: state -> names of its next tokens; pushes: (term, guide, state) -> one number per token;
    refused: (term, guide) that `Anchor` refuses, measured all the same. q: state -> Branch's q there.
    """

    states: tuple[str, ...]
    tokens: dict[str, tuple[str, ...]]
    pushes: dict[tuple[str, str, str], tuple[float, ...]]
    refused: tuple[tuple[str, str], ...]
    q: dict[str, float]


TERMS = {
    "k3 in the loss": ("k3", "loss"),
    "k3_is in the loss": ("k3_is", "loss"),
    "k1 in the reward": ("k1", "reward"),
}


def forces() -> Forces:
    """A root with a short answer (token A), a sure one (B) and a token C that leads to a state of twelve open branches."""
    answers = [(0,), *((1, v) for v in range(2)), *((2, v) for v in range(12))]
    tree = TokenTree(answers)
    generator = torch.Generator().manual_seed(5)
    ref = tree.logits_of(torch.tensor([0.45, 0.33, 0.02, *[0.2 / 12] * 12]))
    policy = ref + 0.5 * torch.randn(ref.shape, generator=generator, dtype=torch.float64)
    policy[0] = ref[0] + torch.tensor([0.2, 0.2, -0.4] + [0.0] * (ref.shape[1] - 3))
    # At the branching state two tokens have gained and two have lost against the reference, the rest stands still.
    policy[2], policy[2, :4] = ref[2], ref[2, :4] + torch.tensor([0.9, 0.4, -0.4, -0.9])
    guides: dict[str, Guide] = {"no guide": Flat(), "Branch": Branch(), "Token": Token(alpha=0.3, sigma=0.0)}
    pushes: dict[tuple[str, str, str], tuple[float, ...]] = {}
    for term, (estimator, placement) in TERMS.items():
        for name, guide in guides.items():
            anchor = unchecked_anchor(beta=1.0, guide=guide, estimator=estimator, placement=placement)
            push = -measured_gradient(anchor, tree, policy, ref).gradient
            pushes[term, name, "root"] = tuple(push[0, :3].tolist())
            pushes[term, name, "branching"] = tuple(push[2, :4].tolist())
    signals = tree.listing(policy, ref, torch.zeros(len(tree))).signals
    q = Branch()(signals, step=0, total_steps=1, key=Key(0)).exp()
    lifts = {"root": float(q[0, 0]), "branching": float(q[-1, 1])}
    return Forces(
        states=("root", "branching"),
        tokens={"root": ("A (ends)", "B (sure)", "C (branches)"), "branching": ("c1", "c2", "c3", "c4")},
        pushes=pushes,
        refused=(("k3_is in the loss", "Branch"),),
        q=lifts,
    )
