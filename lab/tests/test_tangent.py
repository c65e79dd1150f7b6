"""The gradient of pass@k against enumeration, and the first-order changes against weights that really move."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.studies.gradients import gradient_of
from lab.studies.parts import config_of
from lab.tangent import (
    BLOCKS,
    Coverage,
    Measured,
    _of_adam,
    coverage_gradients,
    impossible,
    interval,
    measure,
    next_rate,
    pass_weights,
    rows,
)
from sage_rlvr.core.guides import Branch, Placebo
from sage_rlvr.evaluation.exact import probabilities
from sage_rlvr.methods import grpo, sage
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.training.loop import build, train_step


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.02, 0.98))
def test_the_weights_give_the_gradient_of_pass_at_k_on_average(n: int, k: int, p: float):
    """Over all 2^n outcomes of a coin: E sum_i w_i d log P(y_i) / dp = d (1 - (1 - p)^k) / dp."""
    if k > n:
        return
    outcomes = torch.tensor(list(itertools.product([False, True], repeat=n)))
    weights = pass_weights(outcomes, k).double()
    chance = torch.where(outcomes, p, 1 - p).double().prod(1)
    score = torch.where(outcomes, 1 / p, -1 / (1 - p)).double()
    found = (chance[:, None] * weights * score).sum()
    assert float(found) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-5, abs=1e-6)


def test_the_interval_has_the_scatter_of_batches_and_of_problems():
    changes = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    same_problems = interval(changes, 1)
    assert same_problems.value == 2 and same_problems.high - 2 == pytest.approx(12.706 * 1.0, rel=1e-3)
    both = interval(torch.tensor([[1.0, 3.0], [3.0, 5.0]]), 2)
    assert both.value == 6 and both.high - 6 == pytest.approx(12.706 * 2 * 2**0.5, rel=1e-3)


def test_a_change_that_pass_at_k_cannot_make_is_noted():
    """By hand: 2 batches x 2 blocks of problems; over 80 steps 0.8 from 0.3 on (0.7 is left) and -0.2 from 0.1 on."""
    each = torch.ones(2, 2)
    changes = {("a", 1): 0.01 * each, ("b", 1): 0.005 * each, ("a", 8): -0.0025 * each}
    _, said = impossible(Measured(changes, {}), {1: 0.3, 8: 0.1}, 80)
    assert "a at 1: +0.8000, a at 8: -0.2000." in said
    _, wide = impossible(Measured({("a", 1): torch.tensor([[0.0, 0.0], [0.01, 0.01]])}, {}), {1: 0.3}, 80)
    assert "say nothing: a at 1;" in wide
    assert impossible(Measured({("a", 1): 0.001 * each}, {}), {1: 0.3}, 80) == []


@pytest.fixture(scope="module")
def loop():
    found = build(config_of("countdown/sage_branch", 8))
    for step in range(2):
        train_step(found, step)
    return found


@pytest.mark.slow
def test_a_straight_line_is_what_a_small_step_does(loop):
    """<grad J_k, -lr P g> against the same weighted log-probs after the weights have moved by -lr P g."""
    method = grpo(beta=0.5)
    coverage = coverage_gradients(loop, (1, 4), 40, 8)
    assert 0 < coverage.now[1] <= coverage.now[4] <= 1
    whole = {k: [sum(one.float() for one in blocks) / BLOCKS] for k, blocks in coverage.gradients.items()}
    copied = Coverage({k: [one.clone() for one in blocks] for k, blocks in coverage.gradients.items()}, coverage.now)
    measured = measure(loop, {"grpo": method}, copied, 2, first=7)
    scale, lr = _of_adam(loop), next_rate(loop, 7)
    for batch in range(2):
        gradient = gradient_of(loop, method, 7 + batch)[0]
        for k in (1, 4):
            own = float(torch.dot(whole[k][0], -lr * scale * gradient))
            assert float(measured.changes["grpo", k][batch].mean()) == pytest.approx(own, rel=1e-2, abs=1e-9)  # rounded to bfloat16


@pytest.mark.slow
def test_the_step_is_the_runs_next_one_in_warm_up_and_on_its_schedule(loop):
    """Warm-up over 4 updates to 1, then linear to 0 at update 8: rates 1/4, 1, 1/2 and, after the end, the last update's 1/4."""
    coverage = coverage_gradients(loop, (4,), 16, 8)
    optimizer, total = replace(loop.config.optimizer, lr=1.0, warmup_steps=4, schedule="linear"), loop.optimizer.total_steps
    found, flat = (
        replace(loop, config=replace(loop.config, steps=8, optimizer=one))
        for one in (optimizer, replace(optimizer, warmup_steps=0, schedule="constant"))
    )
    changes = {}
    loop.optimizer.total_steps = 8
    try:
        assert [next_rate(found, step) for step in (0, 4, 6, 8)] == [0.25, 1.0, 0.5, 0.25]
        for name, of in (("warm", found), ("flat", flat)):
            copied = Coverage({k: [one.clone() for one in blocks] for k, blocks in coverage.gradients.items()}, coverage.now)
            changes[name] = measure(of, {"grpo": grpo(beta=0.5)}, copied, 1, first=1).changes["grpo", 4]
    finally:
        loop.optimizer.total_steps = total
    assert torch.allclose(changes["warm"], 0.5 * changes["flat"], rtol=1e-2) and bool(changes["flat"].any())


@pytest.mark.slow
def test_coverage_moves_as_its_gradient_says(loop):
    """The exact pass@4 of every problem, by enumeration, before and behind a small step of GRPO without a KL."""
    coverage = coverage_gradients(loop, (4,), 24, 256)
    gradient = gradient_of(loop, grpo(beta=0.0), 30)[0]
    step = -_of_adam(loop) * gradient
    step /= step.norm()
    predicted = float(torch.dot(sum(one.float() for one in coverage.gradients[4]) / BLOCKS, step))
    test = list(loop.task.draw("test", 1, 24, "distinct"))
    before = [p.detach().clone() for p in loop.optimizer.names]
    ends = []
    for size in (0.01, -0.01):
        parts = step.split([p.numel() for p in before])
        with torch.no_grad():
            for p, own, part in zip(loop.optimizer.names, before, parts, strict=True):
                p.copy_(own + size * part.reshape(own.shape))
        p = probabilities(solution_logps(loop.policy, loop.tokens, loop.task, test)[1.0])
        ends.append(float((1 - (1 - p) ** 4).mean()))
    with torch.no_grad():
        for p, own in zip(loop.optimizer.names, before, strict=True):
            p.copy_(own)
    exact = (ends[0] - ends[1]) / 0.02
    assert exact > 0 and predicted == pytest.approx(exact, rel=0.15)


@pytest.mark.slow
def test_one_method_twice_differs_by_nothing_and_a_placebo_by_something(loop):
    coverage = coverage_gradients(loop, (4,), 16, 8)
    arms = {
        "a": sage(grpo(beta=0.5), Branch(threshold=0.2, ratio=1.0)),
        "b": sage(grpo(beta=0.5), Branch(threshold=0.2, ratio=1.0)),
        "permuted": sage(grpo(beta=0.5), Placebo(Branch(threshold=0.2, ratio=1.0))),
    }
    weights = [p.detach().clone() for p in loop.optimizer.names]
    measured = measure(loop, arms, coverage, 3, first=20)
    assert all(torch.equal(p, own) for p, own in zip(loop.optimizer.names, weights, strict=True))
    assert torch.equal(measured.changes["a", 4], measured.changes["b", 4])
    assert not torch.allclose(measured.changes["a", 4], measured.changes["permuted", 4], rtol=1e-3)
    cells = {row[0]: row for row in rows(measured, 80)}
    assert float(cells["a less b"][3].split()[0]) == 0 != float(cells["a less permuted"][3].split()[0])
    assert cells["a"][1] == cells["permuted"][1]  # the same q, permuted
