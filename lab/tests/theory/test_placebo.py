"""What a placebo pays where the KL is in the reward: every batch of a small tree, every permutation, through the loop's advantages.

A pure control of where q stands leaves the expected gradient where it is without a guide: no drift to longer or shorter
completions and none to rarer ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from lab.theory.effects import claimed_gradient
from lab.theory.measured import measured_gradient
from lab.theory.tree import TokenTree
from sage_rlvr.core import Anchor, FixedBudget, Flat, Guide, Key, Method, Placebo
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.method import advantages_of, shape
from sage_rlvr.core.surrogates import Clip

TREE = TokenTree([(0,), (1,), (2, 0), (2, 1)])  # one token or two, a likely and a rare completion of each
LOGITS = torch.tensor([[0.5, -1.5, 0.2], [0.9, -0.9, 0.0]], dtype=torch.float64)
REF = torch.tensor([[0.1, 0.3, -0.2], [-0.4, 0.2, 0.0]], dtype=torch.float64)
HERE = (TREE, LOGITS, REF)
GUIDES = {"rarity": Rarity(), "commonness": Rarity(power=-0.5)}


@dataclass(frozen=True)
class Ordered(Key):
    """A key whose words are these, one a counted token of the batch in order: one permutation."""

    words: tuple[int, ...] = ()

    def bits(self, step, name, row_ids, positions):
        assert name == "placebo/order"
        found = torch.zeros(positions.shape, dtype=torch.long)
        return found.masked_scatter(positions >= 0, torch.tensor(self.words))


def in_reward(guide) -> Method:
    return Method("kl only", LeaveOneOut(), Clip(), Anchor(1.0, guide, "k1", "reward"), FixedBudget(1))


def batches(rows: int = 2):
    """(members, signals, chance) of every batch of that many completions."""
    signals, probs = TREE.listing(LOGITS, REF, torch.zeros(len(TREE))).signals, TREE.probs(LOGITS)
    for members in itertools.product(range(len(TREE)), repeat=rows):
        yield torch.tensor(members), signals.take(torch.tensor(members)), float(probs[list(members)].prod())


def gradient(guide) -> torch.Tensor:
    """(S, V) the exact gradient of the KL term: over all 16 pairs and, of each, all permutations of its tokens."""
    leaf, method, loss = LOGITS.clone().requires_grad_(True), in_reward(guide), 0.0
    logps = TREE.logps(leaf)
    for members, signals, chance in batches():
        count = int(signals.mask.sum())
        for words in itertools.permutations(range(count)):
            log_q = shape(method, signals, 0, 1, Ordered(0, words))
            advantages = advantages_of(method, torch.zeros(1, len(members)), signals, log_q).double()
            share = chance / math.factorial(count) / len(members)
            loss = loss - share * torch.where(signals.mask, advantages * logps[members], 0.0).sum()
    return torch.autograd.grad(loss, leaf)[0]


def moves(drift: torch.Tensor) -> tuple[float, float]:
    """By how much a step of size 1 down this gradient raises the mean length, and the mean surprisal at today's policy."""
    leaf = LOGITS.clone().requires_grad_(True)
    probs, found = TREE.probs(leaf), []
    for of in (TREE.lengths.double(), -TREE.probs(LOGITS).log()):
        toward = torch.autograd.grad((probs * of).sum(), leaf, retain_graph=True)[0]
        found.append(float(-(drift * toward).sum()))
    return found[0], found[1]


PLAIN = gradient(Flat())


def test_the_listing_of_batches_and_permutations_is_the_gradient_of_the_kl():
    wanted = claimed_gradient(Anchor(1.0, Flat(), "k1", "reward").effect, *HERE)
    assert torch.allclose(PLAIN, wanted, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("within", ["batch", "length", "row"])
@pytest.mark.parametrize("name", GUIDES)
def test_a_centered_placebo_pays_nothing_in_expectation(name, within):
    """To float32, whatever the batch: the gradient is that of the KL alone, and so is what the anchor says."""
    guide = Placebo(GUIDES[name], within=within, centered=True)
    drift = gradient(guide) - PLAIN
    assert drift.abs().max() < 1e-6 and max(map(abs, moves(drift))) < 1e-6
    effect = Anchor(1.0, guide, "k1", "reward").effect
    assert not effect.acts and effect.text.startswith("grad KL(pi || pi_ref) over whole sequences, by return-to-go; ")
    assert torch.allclose(gradient(guide), claimed_gradient(effect, *HERE), atol=1e-6)


def test_one_that_is_not_centered_pays_the_batch_mean_for_each_token():
    """The drift of the old control, exactly: E[m] for each token of a row, m the mean log q of its batch, and so a price on
    the length, for more of it where log q is above 0 and for less where it is below; besides, 1/B of a row's own rarity."""

    class BatchMean(Guide):
        needs, depends_on, equation = frozenset(), "batch", "mean over the batch"

        def __init__(self, guide):
            self.guide = guide

        def __call__(self, signals, step, total_steps, key):
            log_q = self.guide(signals, step, total_steps, key)
            return torch.where(signals.mask, log_q[signals.mask].mean(), 0.0)

    found = {}
    for name, guide in GUIDES.items():
        drift = gradient(Placebo(guide)) - PLAIN
        assert torch.allclose(drift, gradient(BatchMean(guide)) - PLAIN, atol=1e-6)
        found[name] = moves(drift)
    longer, rarer = found["rarity"]
    assert (longer, rarer) == pytest.approx((0.03604, 0.02482), abs=1e-4)
    assert found["commonness"] == pytest.approx((-longer, -rarer), rel=1e-4)


def test_within_a_row_a_completion_keeps_what_the_guide_gave_it():
    """Rarity pays whole completions: a permutation within the row leaves its pull at the root as it is, 92 % of its drift to
    rarer completions, and is no placebo of it; centered it is one, as above."""
    guide = Rarity()
    whole, row = (gradient(one) - PLAIN for one in (guide, Placebo(guide, within="row")))
    assert torch.allclose(row[0], whole[0], atol=1e-6) and whole[0].norm() > 0.1
    assert moves(row)[1] / moves(whole)[1] == pytest.approx(0.918, abs=1e-3)


@pytest.mark.slow
def test_the_draws_of_a_real_key_agree_with_the_permutations_listed():
    """Pairs of completions through the loop's objective, 24 keys for each pair, within 5 standard errors of the listing. The
    old control is further than that from no guide."""
    for centered in (True, False):
        guide = Placebo(Rarity(), centered=centered)
        found, error = measured_gradient(Anchor(1.0, guide, "k1", "reward"), *HERE, rows=2, draws=4, repeats=6)
        assert ((found - gradient(guide)).abs() < 5 * error + 1e-6).all()
        assert bool(((found - PLAIN).abs() > 5 * error + 1e-6).any()) != centered
