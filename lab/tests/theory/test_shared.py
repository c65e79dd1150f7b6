"""The world whose prompts share parameters: its expected gradients against values written by hand, and what sharing does."""

from __future__ import annotations

import math

import pytest
import torch

from lab.theory.shared import Law, SharedWorld
from sage_rlvr.contrib.methods.distinct import distinct
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS, dapo, mara, maxrl, right_entropy, rloo

SMALL = Law(prompts=6, types=2, strategies=2, answers=2, features=2, right=0.5)
GROUP = 4


@pytest.fixture(scope="module")
def world() -> SharedWorld:
    return SharedWorld.draw(3, SMALL)


def policy(world: SharedWorld, table: bool = False) -> torch.Tensor:
    start = world.table if table else world.start
    return torch.randn(start.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def arcsin(p):
    """Of GRPO with groups of 4: E[A | right] - E[A | wrong] summed by hand, std with divisor G - 1 and no epsilon."""
    total = 0.0
    for own in (1, 0):
        for others in range(4):
            rewards = torch.tensor([float(own)] + [1.0] * others + [0.0] * (3 - others))
            paid = 0.0 if rewards.std() == 0 else float((rewards[0] - rewards.mean()) / rewards.std())
            total = total + (2 * own - 1) * paid * math.comb(3, others) * p**others * (1 - p) ** (3 - others)
    return total


def reverse(world, theta):
    found = world.log_probs(theta, world.prompts[0])
    return (found.exp() * (found - world.base[world.prompts[0]])).sum(1).mean()


def forward(world, theta):
    base = world.base[world.prompts[0]]
    return (base.exp() * (base - world.log_probs(theta, world.prompts[0]))).sum(1).mean()


VALUES = {
    "p": (rloo(), lambda w, t, p: p.mean()),
    "p - beta KL(pi, ref)": (rloo(beta=0.3), lambda w, t, p: p.mean() - 0.3 * reverse(w, t)),
    "p - beta KL(ref, pi)": (
        rloo(beta=0.3, estimator="k3", placement="loss"),
        lambda w, t, p: p.mean() - 0.3 * forward(w, t),
    ),
    "log p to the third order": (
        maxrl(beta=0.1),
        lambda w, t, p: -sum((1 - p) ** k / k for k in (1, 2, 3)).mean() - 0.1 * reverse(w, t),
    ),
    "f' of GRPO": (METHODS["no_kl"](), lambda w, t, p: (arcsin(p.detach()) * p).mean()),
}


@pytest.mark.parametrize("table", [False, True], ids=["shared", "table"])
@pytest.mark.parametrize("name", VALUES)
def test_the_expected_gradient_is_that_of_the_value_written_by_hand(world, name, table):
    method, value = VALUES[name]
    theta = policy(world, table).requires_grad_(True)
    (wanted,) = torch.autograd.grad(value(world, theta, world.solved(theta, world.prompts[0])), theta)
    found = -world.expected_gradient(method, theta, group_size=GROUP)
    assert torch.allclose(found, wanted, rtol=1e-3, atol=2e-6) and float(wanted.abs().max()) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("method", [rloo(beta=0.2), maxrl(), distinct(), mara(beta=0.2), right_entropy()], ids=lambda m: m.name)
def test_drawn_groups_have_the_expected_gradient_on_average(world, method):
    theta, generator = policy(world), torch.Generator().manual_seed(0)
    wanted = world.expected_gradient(method, theta, group_size=GROUP)
    leaf = theta.requires_grad_(True)
    drawn = torch.stack(
        [
            torch.autograd.grad(world.sampled_loss(method, leaf, generator, group_size=GROUP, groups=300)[0], leaf)[0]
            for _ in range(40)
        ]
    )
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert bool(((drawn.mean(0) - wanted).abs() < 4 * error + 1e-5).all()) and float(wanted.norm()) > 4 * float(error.norm())


@pytest.mark.slow
def test_sharing_moves_prompts_that_were_never_trained_on_and_a_table_reaches_the_tilted_reference(world):
    test, beta = world.prompts[1], 0.5
    shared = world.fit(rloo(beta=beta), steps=60)
    assert float((world.solved(shared, test) - world.solved(world.start, test)).abs().min()) > 1e-3
    table = world.fit(rloo(beta=beta), world.table, steps=400, rate=0.1)
    assert torch.equal(table[test], world.table[test])
    tilted = torch.softmax(world.base + world.right / beta, 1)[world.prompts[0]]
    assert torch.allclose(world.log_probs(table, world.prompts[0]).exp(), tilted, atol=1e-5)
    assert float((world.log_probs(shared, world.prompts[0]).exp() - tilted).abs().max()) > 0.02


def test_a_world_is_a_function_of_its_seed_and_every_prompt_has_a_right_answer():
    first, again, other = (SharedWorld.draw(seed) for seed in (0, 0, 1))
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in ("base", "right", "features", "types"))
    assert not torch.equal(first.right, other.right) and bool(first.right.any(1).all())
    assert torch.allclose(first.base.exp().sum(1), torch.ones(200, dtype=torch.float64))
    solved = [SharedWorld.draw(seed).solved(first.start) for seed in range(100, 106)]  # worlds that no study asks
    ones, many = (sum(float(f(p).mean()) for p in solved) / 6 for f in (lambda p: p, lambda p: 1 - (1 - p) ** 256))
    assert 0.03 < ones < 0.06 and 0.88 < many < 0.96  # what its law was chosen for


def test_what_has_no_expectation_here_is_refused_with_the_way_out(world):
    with pytest.raises(DataError, match=r"give those of world\.start, \(6,\), or of world\.table, \(6, 4\)"):
        world.log_probs(torch.zeros(5))
    with pytest.raises(ConfigError, match="take a smaller group_size"):
        SharedWorld.draw(0).expected_gradient(mara(), SharedWorld.draw(0).start)
    with pytest.raises(ConfigError, match="use loss_over_groups"):
        world.expected_gradient(METHODS["clip_cov"](), world.start, group_size=GROUP)
    with pytest.raises(ConfigError, match="at least 2 prompts"):
        Law(prompts=1)
    assert world.averages(dapo(), 8) is not None and world.averages(METHODS["bnpo"](), 8) is None
