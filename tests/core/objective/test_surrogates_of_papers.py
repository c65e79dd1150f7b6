"""Surrogates of published objectives: worked by hand, their first updates, and what refuses them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sage_rlvr.contrib.methods.alpha_dpg import Filtered
from sage_rlvr.contrib.methods.cispo import Cispo
from sage_rlvr.contrib.methods.pacs import Pacs, pacs
from sage_rlvr.contrib.methods.steer import Steer
from sage_rlvr.contrib.methods.w_reinforce import Signed
from sage_rlvr.core import Anchor, Batch, objective
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS, compose, grpo_token_mean


def batch_of(shift: list[list[float]], advantages: list[float], size: int | None = None) -> tuple[Batch, torch.Tensor]:
    """Rows of two tokens, the second row's second one off the mask; logps = old + shift, a leaf."""
    old = torch.full((len(shift), 2), -1.0)
    mask = torch.ones_like(old, dtype=torch.bool)
    mask[1, 1] = False
    logps = (old + torch.tensor(shift)).requires_grad_(True)
    return Batch(logps, old, old - 0.5, mask, torch.tensor(advantages), max_tokens=2, group_size=size), logps


def gradient(method, batch: Batch, logps: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(objective(method, batch, 0, 1)[0], logps)
    return found


def test_cispo_keeps_the_gradient_that_clip_drops():
    """Ratio e^.5 and A = 1: Clip has no gradient, Cispo 1.28 / 3 tokens."""
    batch, logps = batch_of([[0.5, 0.0], [0.0, 0.0]], [1.0, 0.0])
    token_mean = grpo_token_mean(beta=0.0)
    assert gradient(token_mean, batch, logps)[0].tolist() == pytest.approx([0, -1 / 3])
    assert gradient(METHODS["cispo"](), batch, logps)[0].tolist() == pytest.approx([-1.28 / 3, -1 / 3])
    low = replace(token_mean, surrogate=Cispo(low=0.2))
    batch, logps = batch_of([[-1.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    assert gradient(low, batch, logps)[0, 0] == pytest.approx(-0.8 / 3)


def test_gspo_clips_a_completion_whole():
    """Log-ratios .002 and 0: s = e^.001 > 1.0004, so that neither token has a gradient; the second row has one token."""
    batch, logps = batch_of([[0.002, 0.0], [0.002, 0.0]], [1.0, -1.0])
    found = gradient(METHODS["gspo"](), batch, logps)
    ratio = torch.tensor(0.002).exp()
    assert found[0].tolist() == [0, 0] and found[1].tolist() == pytest.approx([float(ratio) / 2, 0])
    inside, leaf = batch_of([[0.0004, 0.0], [0.0, 0.0]], [1.0, -1.0])
    s = float(torch.tensor(0.0002).exp())
    assert gradient(METHODS["gspo"](), inside, leaf)[0].tolist() == pytest.approx([-s / 4, -s / 4])


@pytest.mark.parametrize("name", ["cispo", "gspo"])
def test_the_first_update_is_that_of_the_clip(name: str):
    method, (batch, logps) = METHODS[name](), batch_of([[0.0, 0.0], [0.0, 0.0]], [1.0, -0.5])
    plain = replace(method, surrogate=Clip())
    assert torch.allclose(gradient(method, batch, logps), gradient(plain, batch, logps))


def pacs_gradient(method, gains: list[float], labels: list[float]) -> torch.Tensor:
    """d loss / d log pi(y) of each completion of one token."""
    old = torch.full((len(gains), 1), -1.0)
    logps = (old + torch.tensor(gains)[:, None]).requires_grad_(True)
    mask = torch.ones_like(old, dtype=torch.bool)
    batch = Batch(logps, old, old, mask, torch.tensor(labels), max_tokens=1, group_size=len(gains))
    return gradient(method, batch, logps)[:, 0]


def test_pacs_by_hand():
    """psi = (.433333, -.366667, .033333, -.1): the weighted and the plain gradient."""
    gains, labels = [0.4, -0.2, 0.1, 0.0], [1.0, 0.0, 0.0, 0.0]
    assert pacs_gradient(pacs(balanced=False), gains, labels).tolist() == pytest.approx(
        [-0.214391, 0.053168, 0.086163, 0.075059], abs=1e-6
    )
    assert pacs_gradient(pacs(), gains, labels).tolist() == pytest.approx(
        [-0.274038, 0.079149, 0.101146, 0.093743], abs=1e-6
    )


def test_the_first_update_of_pacs_is_rloo():
    labels = [1.0, 0.0, 0.0, 0.0]
    plain = pacs_gradient(pacs(scale=2.0, balanced=False), [0.0] * 4, labels)
    assert torch.allclose(plain, -2.0 * LeaveOneOut()(torch.tensor([labels]))[0] / 4)
    assert pacs_gradient(pacs(), [0.0] * 4, labels).tolist() == pytest.approx([-1 / 3, 1 / 9, 1 / 9, 1 / 9])
    assert not pacs_gradient(pacs(), [0.0] * 4, [1.0] * 4).any()


@pytest.mark.parametrize("p, terms, wanted", [(0.05, 1, 3.1431), (0.5, 1, 1.0667), (0.05, 2, -0.212), (0.5, 2, 1.067)])
def test_the_first_update_of_balanced_pacs(p: float, terms: int, wanted: float):
    """Per log pi(y) and group mean, over c right among 15 others: 1/(4 P (1 - P)) or so; two terms push hard prompts down."""
    force = [0.0, 0.0]
    for others in range(16):
        chance = math.comb(15, others) * p**others * (1 - p) ** (15 - others)
        for own in (0, 1):
            labels = [float(own)] + [1.0] * others + [0.0] * (15 - others)
            found = -16 * float(pacs_gradient(pacs(terms=terms), [0.0] * 16, labels)[0])
            force[own] += chance * found
    assert force[1] - force[0] == pytest.approx(wanted, rel=0.02)


def test_the_two_terms_of_pacs_are_the_gradient_of_the_expected_loss_but_for_the_other_rows():
    """Two answers, the policy a softmax of one logit, reference (.5, .5), groups of two: by enumeration."""
    method, reference = pacs(reference="anchor", terms=2, balanced=False), torch.tensor([0.5, 0.5]).log()

    def law(logit: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(torch.stack([logit, torch.zeros(())]), 0)

    def expected(logit: torch.Tensor) -> torch.Tensor:
        logs = law(logit)
        total = torch.zeros(())
        for a in (0, 1):
            for b in (0, 1):
                psi = (logs[a] - reference[a]) - (logs[b] - reference[b])
                losses = torch.nn.functional.softplus(torch.stack([psi * (2 * a - 1), psi * (1 - 2 * b)]))
                total = total + (logs[a] + logs[b]).exp() * losses.mean()  # answer 0 is right: softplus(-psi)
        return total

    logit = torch.tensor(0.7, requires_grad=True)
    (whole,) = torch.autograd.grad(expected(logit), logit)
    found = torch.zeros(())
    for a in (0, 1):
        for b in (0, 1):
            logs = law(logit)
            logps = torch.stack([logs[a], logs[b]])[:, None]
            labels = torch.tensor([1.0 - a, 1.0 - b])
            ref = torch.stack([reference[a], reference[b]])[:, None]
            batch = Batch(
                logps, logps.detach(), ref, torch.ones(2, 1, dtype=torch.bool), labels, max_tokens=1, group_size=2
            )
            (one,) = torch.autograd.grad(objective(method, batch, 0, 1)[0], logit, retain_graph=True)
            found += (logs[a] + logs[b]).exp().detach() * one
    # each row's score term has its own loss; the other row's, which its sample decides too, is left out as in the paper
    cross = torch.zeros(())
    for a in (0, 1):
        for b in (0, 1):
            logs = law(logit)
            psi = (logs[a] - reference[a] - logs[b] + reference[b]).detach()
            losses = torch.nn.functional.softplus(torch.stack([psi * (2 * a - 1), psi * (1 - 2 * b)]))
            (one,) = torch.autograd.grad(losses[0] * logs[b] + losses[1] * logs[a], logit)
            cross += (logs[a] + logs[b]).exp().detach() * one / 2
    assert float(found + cross) == pytest.approx(float(whole), abs=1e-6)


@pytest.mark.parametrize("size, words", [(None, "whole groups"), (3, "whole groups"), (1, "whole groups")])
def test_pacs_without_its_groups_is_refused(size, words: str):
    batch, logps = batch_of([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], size)
    with pytest.raises(DataError, match=words):
        gradient(pacs(), batch, logps)
    other, leaf = batch_of([[0.0, 0.0], [0.0, 0.0]], [0.7, -0.7], 2)
    with pytest.raises(DataError, match="must be labels"):
        gradient(pacs(), other, leaf)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, r"advantage: \{name: signed, right: 1, wrong: 0\}"),
        ({"advantage": Signed(0.1, 1.0)}, r"advantage: \{name: signed, right: 1, wrong: 0\}"),
        ({"advantage": Signed(1, 0), "extras": (Steer(),)}, "Steer changes what Pacs reads as labels"),
    ],
)
def test_pacs_composed_with_what_it_cannot_read_is_refused(more, words: str):
    with pytest.raises(ConfigError, match=words):
        compose(surrogate=Pacs(), beta=0.0, **more)
    assert compose(surrogate=Pacs(), advantage=Signed(1, 0), beta=0.0).surrogate == Pacs()


def test_a_composed_part_that_reads_the_reference_has_one_at_beta_0():
    anchors = [compose(advantage=part, beta=0.0, source="sft").anchor for part in (Filtered(), LeaveOneOut())]
    assert anchors == [Anchor(0.0, source="sft"), None]
