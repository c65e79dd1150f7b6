"""What is left of noise and of guides that read the batch: means with their standard errors, and exact ones."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from lab.tests.theory.effects_common import COMBINATIONS, HERE, SMALL, TREE, WHERE, admitted, arguments_of, gap
from lab.theory.effects import claimed_gradient, draw_q
from lab.theory.measured import measured_gradient, unchecked_anchor
from sage_rlvr.core import (
    Anchor,
    Branch,
    Effect,
    FixedBudget,
    Flat,
    GroupCentered,
    Guide,
    Key,
    Method,
    Placebo,
    Random,
    Token,
)
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.surrogates import Clip

# ---- noise, with its standard error

NOISE = Random(eps=1.0, sigma=0.3, q_min=0.8, q_max=1.9)


def clamped_mean(power: float | None) -> float:
    """E[q**power], or E[log q] where None, of q ~ N(1, .3^2) clamped to [.8, 1.9]: 4,000 quantiles of the normal."""
    normal = NormalDist(1.0, 0.3)
    q = np.clip([normal.inv_cdf((i + 0.5) / 4000) for i in range(4000)], 0.8, 1.9)
    return float(np.mean(np.log(q) if power is None else q**power))


NOISY = [("k3", None, "loss"), ("k2", None, "loss"), ("k3_is", None, "loss"), ("straight_through", None, "loss")]
NOISY += [("exact", named, "loss") for named in ("forward", "js", "alpha")] + [("k1", None, "reward")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*noise")
@pytest.mark.parametrize(("estimator", "named", "placement"), NOISY)
def test_of_noise_a_mean_is_left(estimator, named, placement):
    """A band that is not symmetric has E[q] = 1.06: under k3 a factor, E[q**.2] under alpha; E[log q] a token in the reward."""
    anchor = Anchor(**arguments_of(NOISE, estimator, named, placement))
    found, error = measured_gradient(anchor, *WHERE, draws=500, repeats=12, key=Key(11))
    wanted = claimed_gradient(anchor.effect, *WHERE, draw_q(NOISE, *WHERE, draws=6000, key=Key(12)))
    plain = measured_gradient(Anchor(**arguments_of(Flat(), estimator, named, placement)), *WHERE).gradient
    assert float(error.norm() / plain.norm()) < 0.01
    assert ((found - wanted).abs() < 5 * error + 0.003 * wanted.norm()).all()
    means = {"forward": clamped_mean(1.0), "alpha": clamped_mean(0.2), "reverse": 1.0}
    if (descends := anchor.effect.descends) in means:
        assert gap(wanted, means[descends] * plain) < 0.005 and not anchor.effect.acts
    else:
        assert gap(found, plain) > 0.005 and anchor.effect.acts


@pytest.mark.filterwarnings("ignore:.*noise")
def test_noise_in_the_reward_is_a_price_on_the_length():
    tree, logits, _ = WHERE
    leaf = logits.clone().requires_grad_(True)
    (longer,) = torch.autograd.grad((tree.probs(leaf) * tree.lengths).sum(), leaf)
    flat, noisy = (Anchor(1.0, guide, "k1", "reward") for guide in (Flat(), NOISE))
    q = draw_q(NOISE, *WHERE, draws=20_000, key=Key(5))
    found = claimed_gradient(noisy.effect, *WHERE, q) - claimed_gradient(flat.effect, *WHERE)
    assert gap(found, -clamped_mean(None) * longer) < 0.05
    even = Random(eps=1.0, sigma=0.3)  # E[q] = 1, so E[log q] < 0 and a descent step makes answers shorter
    drift = draw_q(even, *WHERE, draws=4000).by_kind["nothing"][:, TREE.mask.numpy()].mean()
    assert -0.06 < drift < -0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "placement"), [("k3", "loss"), ("k2", "loss"), ("k3_is", "loss"), ("k1", "reward")]
)
def test_a_noisy_token_guide_counts_with_its_mean_at_state_and_token(estimator, placement):
    guide = Token(alpha=0.3, sigma=0.4)
    anchor = Anchor(1.0, guide, estimator, placement)
    found, error = measured_gradient(anchor, *WHERE, draws=500, repeats=12, key=Key(11))
    wanted = claimed_gradient(anchor.effect, *WHERE, draw_q(guide, *WHERE, draws=6000, key=Key(12)))
    assert ((found - wanted).abs() < 5 * error + 0.003 * wanted.norm()).all()
    plain = measured_gradient(Anchor(1.0, Flat(), estimator, placement), *WHERE).gradient
    assert gap(found, plain) > 0.05


PRODUCTS = {
    "noise * branch": NOISE * Branch(ratio=0.8, threshold=0.6),
    "noise * token": NOISE * Token(alpha=0.4, sigma=0.0),
    "noise * branch * token": NOISE * Branch(ratio=0.8, threshold=0.6) * Token(alpha=0.4, sigma=0.0),
    "noisy token": Token(alpha=0.3, sigma=0.4),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(noise|in the expected gradient)")
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_noise_descend_what_their_effect_says_wherever_they_are_admitted(name):
    """Every term that the anchor admits: each factor keeps its own role beside the others."""
    guide, seen = PRODUCTS[name], 0
    q = draw_q(guide, *WHERE, draws=4000, key=Key(12))
    for where in COMBINATIONS:
        if (anchor := admitted(arguments_of(guide, *where))) is None:
            continue
        seen += 1
        found, error = measured_gradient(anchor, *WHERE, draws=400, repeats=6, key=Key(11))
        wanted = claimed_gradient(anchor.effect, *WHERE, q)
        assert ((found - wanted).abs() < 5 * error + 0.004 * wanted.norm()).all(), where
        assert gap(found, wanted) < 0.015, where
        method = Method("m", GroupCentered(), Clip(), anchor, FixedBudget(1))
        assert f"expected gradient of the KL term, on-policy: {anchor.effect.text}\n" in method.describe() + "\n"
    assert seen == 5


# ---- guides of the batch

P40 = Branch(ratio=1.5, threshold="p40")
SHUFFLED = Placebo(Branch(ratio=1.5, threshold=0.45, q_max=2.0))


class BatchMean(Guide):
    """The batch's mean of log q of SHUFFLED at every token: a placebo under k2, averaged over its permutations."""

    needs, depends_on, equation = frozenset({"entropies"}), "batch", "mean over the batch"

    def __call__(self, signals, step, total_steps, key):
        log_q = SHUFFLED.guide(signals, step, total_steps, key)
        return torch.where(signals.mask, log_q[signals.mask].mean(), 0.0)


@pytest.mark.parametrize("guide", [P40, SHUFFLED, BatchMean(), SHUFFLED * Token(alpha=0.4, sigma=0.0)])
@pytest.mark.parametrize(("estimator", "descends"), [("k3", "forward"), ("k2", "reverse"), ("k3_is", "reverse")])
def test_in_a_small_batch_the_mean_given_state_and_token_is_exact(guide, estimator, descends):
    """Pairs of completions, all 9, and the permutations that 4 keys give: with E[q | s, v] as the factor of the anchor the
    claim holds to float32 whatever B is. The roles of "batch" leave out what of it depends on v."""
    anchor = unchecked_anchor(beta=1.0, guide=guide, estimator=estimator)
    found, _ = measured_gradient(anchor, *HERE, rows=2, draws=4, key=Key(7))
    q = draw_q(guide, *HERE, rows=2, draws=4, key=Key(7).fold("repeat 0"))
    exact = Effect(descends, tuple((kind, "moves") for kind in q.by_kind))
    if len(q.by_kind) == 1:
        assert gap(found, claimed_gradient(exact, *HERE, q)) < 1e-5
    role = claimed_gradient(anchor.effect, *HERE, q)
    assert 1e-3 < gap(found, role) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("guide", "share"), [(P40, 0.75), (BatchMean(), 0.4)], ids=["p40", "mean"])
@pytest.mark.parametrize(("estimator", "placement"), [("k3", "loss"), ("k2", "loss"), ("k1", "reward")])
def test_what_the_roles_of_a_batch_leave_out_falls_with_its_size(guide, share, estimator, placement):
    """All batches of 2 and of 5 rows (3 and 81 companies of each completion): 2/5 or less under a mean over the batch, and
    about sqrt(2/5) under a percentile where there are only two entropies, between which it jumps."""
    anchor, gaps = unchecked_anchor(beta=1.0, guide=guide, estimator=estimator, placement=placement), {}
    for rows in (2, 5):
        found, _ = measured_gradient(anchor, *HERE, rows=rows)
        wanted = claimed_gradient(anchor.effect, *HERE, draw_q(guide, *HERE, rows=rows))
        gaps[rows] = float((found - wanted).norm())
    assert gaps[2] > 1e-3 and gaps[5] < share * gaps[2]


@pytest.mark.parametrize("named", ["forward", "js", "alpha"])
@pytest.mark.parametrize("guide", [P40, SHUFFLED, BatchMean()])
def test_under_exact_sums_a_batch_guide_holds_at_every_size(guide, named):
    """The force at a position does not look at the drawn token, so E[q | s] is exact in a pair, too."""
    anchor = Anchor(1.0, guide, "exact", divergence=named)
    found, _ = measured_gradient(anchor, *HERE, rows=2, draws=3, key=Key(7))
    q = draw_q(guide, *HERE, rows=2, draws=3, key=Key(7).fold("repeat 0"))
    assert gap(found, claimed_gradient(anchor.effect, *HERE, q)) < 2e-5
    plain = measured_gradient(Anchor(1.0, estimator="exact", divergence=named), *HERE).gradient
    assert gap(found, plain) > 0.01


@pytest.mark.parametrize("estimator", ["k2", "straight_through", "k3_is"])
def test_of_a_percentile_under_an_unbiased_loss_nothing_is_left(estimator):
    """Why it is refused: over a step's batch its threshold is a number, and its q that of a state. 64 rows, two entropies, the
    lower one of two in five tokens, so that no row moves the 20th percentile from it."""
    left = {}
    for name in (estimator, "k3"):
        anchors = [unchecked_anchor(beta=1.0, guide=g, estimator=name) for g in (Branch("p20", ratio=1.5, q_max=2.0), Flat())]
        shaped, plain = (measured_gradient(anchor, *HERE, rows=64, draws=30).gradient for anchor in anchors)
        left[name] = gap(shaped, plain)
    assert left["k3"] > 0.2 and left[estimator] < 1e-6


def test_a_placebo_scales_every_state_alike_and_a_percentile_does_not():
    """Batches of 40 rows: E[q | s] is one number under the placebo, and as different as Branch's q under the percentile."""
    spread = {}
    for name, guide in {"placebo": SHUFFLED, "percentile": P40}.items():
        q = draw_q(guide, *HERE, rows=40, draws=150, key=Key(2))
        values = np.tensordot(q.chances, np.exp(q.by_kind["batch"]), 1)
        root, late = (values[SMALL.mask.numpy() & (SMALL.states.numpy() == state)].mean() for state in (0, 1))
        spread[name] = abs(root - late)
    assert spread["placebo"] < 0.01 and spread["percentile"] > 0.1


def test_first_rows_stand_for_all_rows_of_a_batch():
    """The measurement lists each completion as the first row of a batch; the mean over all rows of all 9 pairs is the same."""
    tree, logits, ref = HERE
    for placement, estimator in (("loss", "k3"), ("reward", "k1")):
        anchor = Anchor(1.0, P40, estimator, placement)
        method = Method("m", LeaveOneOut(), Clip(), anchor, FixedBudget(1))
        whole = tree.expected_gradient(method, logits, ref, torch.ones(3), group_size=2, brute_force=True)
        assert torch.allclose(measured_gradient(anchor, *HERE, rows=2).gradient, whole, atol=2e-6)
