"""The three pictures of `python -m lab anchor`, computed and drawn.

The paper's Fig. 1 with our numbers (reference, q x reference, the policy before and after), its Fig. 5 (mode-seeking and
mode-covering) with SAGE beside them, and the pull of every KL term at two states of a small tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import minimize

from lab.theory.measured import measured_gradient, unchecked_anchor
from lab.theory.tree import TokenTree
from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Branch, Flat, Guide
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.render.style import BLUE, BROWN, GREEN, GREY, GRID, INK, MUTED, OCHRE, RC, saved

Array = NDArray[np.float64]

# ---- Fig. 1

RIGHT = (11, 12, 13, 35, 36, 37, 38)  # of 48 completions of a prompt, on a line
DASHED = {"linestyle": (0, (4, 2)), "linewidth": 1.6}


def landscape(beta: float = 0.5) -> dict[str, Array]:
    """A dense mode and a sparse one, right answers in both; q is 1.4**3, three clamped branchings, on the sparse one. Each (48,).

    reference; shaped = q x reference (not normalized); grpo: the optimum of Eq. (2); sage: of Eq. (4); k3: where descent with
    GRPO's KL term, k3 in the loss, comes to rest with the same q, rewards not divided by the std.
    """
    place = np.arange(48)
    bumps = 0.93 * np.exp(-0.5 * ((place - 13) / 4.2) ** 2) + 0.035 * np.exp(-0.5 * ((place - 36) / 3.2) ** 2) + 0.004
    reference, right = bumps / bumps.sum(), np.isin(place, RIGHT)
    q = 1 + (1.4**3 - 1) * np.exp(-0.5 * ((place - 36) / 3.6) ** 4)
    tilted = reference * np.exp(right / beta)
    tree = TokenTree.bandit(len(place))
    rest = tree.descend(
        Method("k3", GroupCentered(), Clip(), Anchor(beta, estimator="k3"), FixedBudget(1)),
        tree.logits_of(torch.from_numpy(reference)),
        torch.from_numpy(right.astype(np.float64)),
        group_size=1024,  # (G - 1) / G of the reward is then 1
        log_q=torch.from_numpy(np.log(q))[:, None].float(),
    )
    optima = {"grpo": tilted / tilted.sum(), "sage": q * tilted / (q * tilted).sum(), "k3": rest.probs.numpy()}
    return {"reference": reference, "shaped": q * reference, **optima}


def landscape_figure(path: Path, beta: float = 0.5, epsilon: float = 1 / 64) -> Figure:
    """Above the reference and q x reference, below the policy without and with q; epsilon: the threshold of Def. 4.1."""
    values = landscape(beta)
    place = np.arange(len(values["reference"]))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        above.fill_between(place, values["reference"], step="mid", color=GREY, alpha=0.35, linewidth=0)
        for axes, name, color, label, look in (
            (above, "reference", GREY, "reference", {}),
            (above, "shaped", GREEN, "q x reference", {}),
            (below, "grpo", BLUE, "optimum without q, Eq. (2)", {}),
            (below, "sage", GREEN, "optimum with q, Eq. (4)", {}),
            (below, "k3", OCHRE, "where k3 in the loss rests with the same q", DASHED),
        ):
            axes.step(place, values[name], where="mid", color=color, label=label, **look)
        for axes, title in (
            (above, "The anchor: q lifts what is rare and uncertain"),
            (below, f"The policy it leads to, beta = {beta:g}"),
        ):
            axes.set(title=title, yscale="log", ylabel="probability", ylim=(1e-4, 0.4))
            axes.axhline(epsilon, color=INK, linewidth=0.8, linestyle=":")
            axes.legend(frameon=False, fontsize=9, loc="upper right")
            marks = np.full(len(RIGHT), 1.25e-4)
            axes.scatter(RIGHT, marks, marker="^", s=26, color=INK, zorder=4, clip_on=False)
        above.text(47, epsilon * 1.15, "above: empirical support (Def. 4.1)", fontsize=8.5, color=MUTED, ha="right")
        below.set_xlabel("completions of one prompt (triangles: right answers)")
        return saved(figure, path)


# ---- Fig. 5


def modes_figure(path: Path, lift: float = 1.4**4) -> Figure:
    """The bell curve closest to two bumps of weight .72 and .28 by each divergence; q lifts the smaller by 1.4 at four tokens.

    The last panel has the argmin of D(p || q x target), Eq. (5), in the same family; q x target is not normalized.
    """
    x = np.linspace(-6.5, 6.5, 651)
    target = 0.72 * _bell(x, -2.2, 0.75) + 0.28 * _bell(x, 2.2, 0.75)
    lifted = target * (1 + (lift - 1) / (1 + np.exp(-4 * x)))
    fits = (
        ("KL(p || target): seeks a mode", _best(x, target, "reverse"), BLUE),
        ("KL(target || p): covers them", _best(x, target, "forward"), BROWN),
        ("D(p || q x target): seeks where q lifts", _best(x, lifted, "reverse"), GREEN),
    )
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(9.6, 3.0), layout="constrained")
        panels = figure.subplots(1, len(fits), sharey=True)
        for axes, (title, fit, shade) in zip(panels, fits, strict=True):
            axes.fill_between(x, target, color=GREY, alpha=0.35, linewidth=0)
            axes.plot(x, fit, color=shade, linewidth=2.2)
            axes.set_title(title, fontsize=10.5)
            axes.set(xticks=[], yticks=[])
        panels[-1].plot(x, lifted, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1.9)
        panels[-1].text(2.3, float(lifted.max()) * 1.02, "q x target", fontsize=8.5, color=MUTED, ha="center")
        panels[0].set_ylabel("density")
        return saved(figure, path)


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


# ---- the forces

TERMS = {
    "k3 in the loss": ("k3", "loss"),
    "k3_is in the loss": ("k3_is", "loss"),
    "k1 in the reward": ("k1", "reward"),
}
GUIDES: Mapping[str, tuple[Guide, str]] = {
    "no guide": (Flat(), GREY),
    "Branch": (Branch(), GREEN),
    "Token": (Token(alpha=0.3, sigma=0.0), OCHRE),
}
REFUSED = {("k3_is in the loss", "Branch")}  # by `Anchor`; measured and drawn all the same
STATES = (  # its place, title, next tokens
    (0, "push on the logits\nof the root (q = {:.3g})", ("A (ends)", "B (sure)", "C (branches)")),
    (2, "push on the logits of the\nbranching state (q = {:.3g})", ("c1", "c2", "c3", "c4")),
)


def forces() -> tuple[dict[tuple[str, str], Array], tuple[float, float]]:
    """The push of descending each KL term (beta = 1) on all logits, minus its expected gradient, by (term, guide); and Branch's q
    at both states: a root with a short answer (token A), a sure one (B) and a token C that leads to twelve open branches."""
    answers = [(0,), *((1, v) for v in range(2)), *((2, v) for v in range(12))]
    tree = TokenTree(answers)
    generator = torch.Generator().manual_seed(5)
    ref = tree.logits_of(torch.tensor([0.45, 0.33, 0.02, *[0.2 / 12] * 12]))
    policy = ref + 0.5 * torch.randn(ref.shape, generator=generator, dtype=torch.float64)
    policy[0] = ref[0] + torch.tensor([0.2, 0.2, -0.4] + [0.0] * (ref.shape[1] - 3))
    # At the branching state two tokens have gained and two have lost against the reference, the rest stands still.
    policy[2], policy[2, :4] = ref[2], ref[2, :4] + torch.tensor([0.9, 0.4, -0.4, -0.9])
    pushes = {}
    for term, (estimator, placement) in TERMS.items():
        for name, (guide, _) in GUIDES.items():
            anchor = unchecked_anchor(beta=1.0, guide=guide, estimator=estimator, placement=placement)
            pushes[term, name] = -measured_gradient(anchor, tree, policy, ref).gradient.numpy()
    signals = tree.listing(policy, ref, torch.zeros(len(tree))).signals
    q = Branch()(signals, step=0, total_steps=1, key=Key(0)).exp()
    return pushes, (float(q[0, 0]), float(q[-1, 1]))


def forces_figure(path: Path) -> Figure:
    """A column per term, a row per state, a bar per guide and token; what `Anchor` refuses is hatched."""
    pushes, lifts = forces()
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(3.2 * len(TERMS), 5.0), layout="constrained")
        grid = figure.subplots(len(STATES), len(TERMS), sharey="row", squeeze=False)
        for panels, (state, title, tokens), lift in zip(grid, STATES, lifts, strict=True):
            panels[0].set_ylabel(title.format(lift), fontsize=9)
            for axes, term in zip(panels, TERMS, strict=True):
                for n, name in enumerate(GUIDES):
                    _bars(axes, n, name, pushes[term, name][state, : len(tokens)], (term, name) in REFUSED)
                axes.axhline(0, color=INK, linewidth=0.8)
                axes.set_xticks(range(len(tokens)), tokens, fontsize=8.5)
                axes.grid(axis="x", visible=False)
        for axes, term in zip(grid[0], TERMS, strict=True):
            axes.set_title(term, fontsize=10)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(GUIDES), frameon=False, fontsize=9)
        return saved(figure, path)


def _bars(axes: Axes, n: int, name: str, values: Array, refused: bool) -> None:
    """One guide's bars at its place in each group; hatched where the combination is refused."""
    width, shade = 0.8 / len(GUIDES), GUIDES[name][1]
    at = np.arange(len(values)) + (n - (len(GUIDES) - 1) / 2) * width
    face = {"facecolor": "none", "edgecolor": shade, "hatch": "////"} if refused else {"color": shade}
    axes.bar(at, values, width * 0.92, linewidth=0.8, label=name, **face)
    if refused:
        place = {"transform": axes.transAxes, "ha": "right", "fontsize": 8, "color": MUTED}
        axes.text(0.98, 0.04, f"hatched: {name} is refused here", **place)
    axes.tick_params(colors=GRID, labelcolor=INK)


PICTURES: Mapping[str, Callable[[Path], Figure]] = {
    "anchor": landscape_figure,
    "modes": modes_figure,
    "forces": forces_figure,
}
