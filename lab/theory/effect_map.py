"""The map guide x estimator x placement: claim and measurement side by side for every combination, refused ones included.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lab.theory.effects import claimed_gradient, draw_q
from lab.theory.measured import Measured, batches_of, in_reward_gradient, measured_gradient, unchecked_anchor
from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.divergences import DIVERGENCES
from sage_rlvr.core.effect import effect_of
from sage_rlvr.core.guides import Branch, Flat, Guide, Placebo, factors
from sage_rlvr.core.guides.place import Place
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import SAMPLED
from sage_rlvr.errors import SageError

MAP_TREE = TokenTree([(0,), (1, 0), (1, 1), (2, 0, 0), (2, 0, 1), (2, 1)])
MAP_LOGITS = torch.tensor([[0.4, 0.1, -0.2], [0.8, -0.6, 0.0], [-0.2, 0.3, 0.0], [-1.1, 0.7, 0.0]])
MAP_REF = torch.tensor([[-0.3, 0.6, 0.2], [0.1, 0.5, 0.0], [0.6, -0.4, 0.0], [0.2, -0.3, 0.0]])
MAP_GUIDES: dict[str, Guide] = {
    "Flat": Flat(),
    "Random": Random(eps=1.0, sigma=0.2),
    "Token": Token(alpha=0.4, sigma=0.0),
    "Branch": Branch(ratio=0.8, threshold=0.6),
    "Rarity": Rarity(),
    "Place(first 1)": Place(first=1, ratio=0.8),
    "Placebo(Branch)": Placebo(Branch(ratio=0.8, threshold=0.6)),
    "centered Placebo(Branch)": Placebo(Branch(ratio=0.8, threshold=0.6), centered=True),
    "Branch(p20)": Branch(ratio=0.8, threshold="p20"),
    "Branch * Token": Branch(ratio=0.8, threshold=0.6) * Token(alpha=0.4, sigma=0.0),
}
TERMS: tuple[tuple[str, str | None], ...] = (
    *((name, None) for name in SAMPLED),
    *(("exact", name) for name in DIVERGENCES),
)


@dataclass(frozen=True)
class MapRow:
    """One combination of the map, all of it computed.

    status    runs, warns or refused
    effect    the claim of `Anchor.effect`; for a refused combination what it would give if it ran
    cosine    of the measured gradient with that of the functional which `effect` names; None where it names none
    gap       |measured - claimed| / |claimed|; None for an estimator refused in the reward, which claims nothing
    influence |g - g_flat| / |g_flat|, the relative size of what the guide changes, measured; None where g_flat is 0
    error     standard error of `influence`: above 0 where the guide draws noise or looks at the batch
    """

    guide: str
    estimator: str
    placement: str
    status: str
    effect: str
    cosine: float | None = None
    gap: float | None = None
    influence: float | None = None
    error: float = 0.0


class _Bench:
    """One guide on one tree: its q drawn once for all terms, and what is measured of an anchor with it."""

    rows, draws, companies, repeats = 32, 2000, 16, 4

    def __init__(self, guide: Guide, tree: TokenTree, logits: Logits, ref_logits: Logits) -> None:
        self.where, kinds = (tree, logits, ref_logits), {part.depends_on for part in factors(guide)}
        draws = self.companies * self.repeats if "batch" in kinds else self.draws
        self.q = draw_q(guide, *self.where, draws=draws, rows=self.rows, key=Key(2))
        self.options: dict[str, Any] = {}
        if "batch" in kinds:
            keys = [Key(1).fold(f"repeat {repeat}") for repeat in range(self.repeats)]
            self.options["batches"] = [batches_of(guide, *self.where, self.companies, self.rows, key) for key in keys]
        elif "nothing" in kinds:
            self.options |= {"draws": self.draws, "repeats": self.repeats, "key": Key(1)}

    def measure(self, anchor: Anchor) -> Measured:
        """`measured_gradient` here, over the draws that were made once for this guide."""
        return measured_gradient(anchor, *self.where, **self.options)


def gradient_map(
    guides: Mapping[str, Guide] | None = None,
    tree: TokenTree = MAP_TREE,
    logits: Logits = MAP_LOGITS,
    ref_logits: Logits = MAP_REF,
) -> list[MapRow]:
    """Every guide x estimator x placement: what `Anchor` says of it and what was measured on a ragged tree.

    `guides` by the name that their rows carry, `MAP_GUIDES` where None. Noise is averaged over 8,000 draws, guides of the
    batch over 64 batches of 32 rows. What is refused is measured without the refusal.
    """
    prices = {term: _as_price(*term, tree, logits, ref_logits) for term in TERMS if term[0] != "k1"}
    rows = []
    for name, guide in (MAP_GUIDES if guides is None else guides).items():
        bench = _Bench(guide, tree, logits, ref_logits)
        for (estimator, named), placement in itertools.product(TERMS, ("loss", "reward")):
            term = estimator if named is None else f"exact {named}"
            arguments = {
                "beta": 1.0,
                "guide": guide,
                "estimator": estimator,
                "placement": placement,
                "divergence": named,
            }
            refused_there = placement == "reward" and estimator != "k1"
            outcome = prices[estimator, named] if refused_there else _outcome(arguments, bench)
            rows.append(MapRow(name, term, placement, _status(arguments), *outcome))
    return rows


def _outcome(arguments: dict[str, Any], bench: _Bench) -> tuple[Any, ...]:
    """(effect, cosine, gap, influence, error) of one combination."""
    anchor = unchecked_anchor(**arguments)
    flat = measured_gradient(unchecked_anchor(**arguments | {"guide": Flat()}), *bench.where)
    shaped = bench.measure(anchor)
    size = float(flat.gradient.norm())
    if max(size, float(shaped.gradient.norm())) < 1e-5:
        return ("0, for E_pi[grad log pi] = 0: noise and no pull",)
    claim, text = claimed_gradient(anchor.effect, *bench.where, bench.q), anchor.effect.text
    if arguments["estimator"] == "exact" and anchor.effect.role("token"):
        text = "q of the tokens that were not drawn is not known; that of the drawn one moves no anchor"
    gap = float((shaped.gradient - claim).norm() / claim.norm())
    influence = float((shaped.gradient - flat.gradient).norm()) / size
    return text, _cosine(shaped.gradient, claim), gap, influence, float(shaped.standard_error.norm()) / size


def _status(arguments: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Anchor(**arguments)
        except SageError:
            return "refused"
    return "warns" if caught else "runs"


def _as_price(
    estimator: str, named: str | None, tree: TokenTree, logits: Logits, ref_logits: Logits
) -> tuple[str, float]:
    """What an estimator other than k1 is worth in the reward, and its cosine with the gradient of the whole KL(pi || pi_ref)."""
    whole = claimed_gradient(effect_of("k1", "reward", ()), tree, logits, ref_logits)
    cosine = _cosine(in_reward_gradient(estimator, tree, logits, ref_logits, named), whole)
    sizes = []
    for share in (0.02, 0.01):
        nearer = ref_logits + share * (logits - ref_logits)
        sizes.append([float(in_reward_gradient(e, tree, nearer, ref_logits, named).norm()) for e in (estimator, "k1")])
    if abs(sizes[1][0] / sizes[1][1] - 1) < 1e-3:
        return "what k1 gives: only the value of an estimator enters, and this one's is that of k1", cosine
    here, k1 = (far / near for far, near in zip(*sizes, strict=True))
    return f"no KL: at half the distance to pi_ref the force falls by {here:.1f}, that of k1 by {k1:.1f}", cosine


def _cosine(a: Logits, b: Logits) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


def markdown(rows: list[MapRow]) -> str:
    """The map as a table for a page: combinations with the same outcome share a row, those of all guides too."""
    guides = list(dict.fromkeys(row.guide for row in rows))
    outcomes: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        outcome: tuple[str, ...] = (row.placement, row.status, row.effect.replace("|", "\\|"), *_numbers(row))
        outcomes.setdefault(outcome, {}).setdefault(row.guide, []).append(row.estimator)
    lines = []
    for outcome, by_guide in outcomes.items():
        owners: dict[str, list[str]] = {}
        for guide, estimators in by_guide.items():
            owners.setdefault(", ".join(estimators), []).append(guide)
        for terms, names in owners.items():
            everyone = len(names) == len(guides) > 1
            line = " | ".join(["any" if everyone else ", ".join(names), terms, *outcome])
            lines.append((len(guides) if everyone else guides.index(names[0]), f"| {line} |"))
    head = "| guide | estimator | placement | | expected gradient | cosine | gap | change by q |\n" + "|---" * 8 + "|\n"
    return head + "".join(f"{line}\n" for _, line in sorted(lines, key=lambda pair: pair[0]))


def _numbers(row: MapRow) -> tuple[str, str, str]:
    """Cosine, gap and influence with three digits; empty where there is none."""
    cosine, gap, influence = ("" if value is None else f"{value:.3f}" for value in (row.cosine, row.gap, row.influence))
    return cosine, gap, influence + (f" ± {row.error:.3f}" if row.error >= 5e-4 else "")
