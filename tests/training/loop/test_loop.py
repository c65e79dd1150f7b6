"""The reference loop: a textbook twin, exact divergences, the neutral guide, and equal seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sage_rlvr.core import Anchor, Flat, Method
from sage_rlvr.methods import METHODS, grpo
from sage_rlvr.runs import comparable, read_metrics
from sage_rlvr.training import loop as engine
from sage_rlvr.training import scores
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.rollouts import draw_rollout
from training.loop.loop_common import make, own_problems, run_of, weights

Recipe = Callable[..., Path]


def moved(loop: TrainState) -> TrainState:
    """The policy a little away from its reference, so that the KL has a gradient."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in loop.policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return loop


class Descent:
    """Stands in for the optimizer: plain gradient descent that remembers each gradient."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        self.model, self.rate = model, rate
        self.seen: list[Tensor] = []

    def step(self, step: int) -> dict[str, float]:
        parameters = list(self.model.parameters())
        self.seen.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        with torch.no_grad():
            for p in parameters:
                p.sub_(self.rate * p.grad)
                p.grad = None
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {}


# ---- the textbook


def row_laws(model: torch.nn.Module, prompt: list[int], completion: list[int], temperature: float) -> Tensor:
    """(T, V) log-probs of every next token, from one plain forward pass."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)


def textbook(loop: TrainState, epochs: int, rate: float, beta: float, exact: bool = False) -> list[Tensor]:
    """GRPO as the paper writes it, one row after the other, on a copy of the policy; the gradient of each update.

    Its leash is k3, or, `exact`, sum_v [f log(f / p) - f + p]: KL(f || p) of the whole next-token distributions.
    """
    config, policy = loop.config.rollout, copy.deepcopy(loop.policy)
    problems = own_problems(loop, 0)
    prompts = [loop.tokens.encode(loop.task.prompt(p)) for p in problems]
    rollout = draw_rollout(loop, prompts, 0)
    size, temperature = config.group_size, config.temperature
    completions = [row[mask].tolist() for row, mask in zip(rollout.tokens, rollout.mask, strict=True)]
    texts = [loop.tokens.tokenizer.decode(c).replace("<eos>", "") for c in completions]
    rewards = torch.tensor([float(loop.task.verify(problems[i // size], t).right) for i, t in enumerate(texts)])
    groups = rewards.reshape(-1, size)
    assert ((groups.std(1) > 0) & (groups.mean(1) > 0)).any()  # there is something to learn
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    with torch.no_grad():
        old = [row_laws(policy, prompts[i // size], c, temperature) for i, c in enumerate(completions)]
        ref = [row_laws(loop.reference, prompts[i // size], c, temperature) for i, c in enumerate(completions)]
    descent = Descent(policy, rate)
    for _ in range(epochs):
        loss = torch.zeros(())
        for i, completion in enumerate(completions):
            laws, taken = (
                row_laws(policy, prompts[i // size], completion, temperature),
                (range(len(completion)), completion),
            )
            ratio = torch.exp(laws[taken] - old[i][taken])
            gain = torch.minimum(ratio * advantages[i], ratio.clamp(0.8, 1.2) * advantages[i])
            log_r = ref[i][taken] - laws[taken]
            p, f = laws.exp(), ref[i].exp()
            leash = (f * (ref[i] - laws) - f + p).sum(-1) if exact else log_r.exp() - log_r - 1
            loss = loss + (-gain + beta * leash).mean() / len(completions)
        loss.backward()
        descent.step(0)
    return descent.seen


@pytest.mark.parametrize("temperature", ["1.0", "0.7"])
def test_one_update_is_the_textbook_step(write_recipe: Recipe, temperature: str) -> None:
    loop = moved(make(write_recipe("{name: grpo, beta: 0.05}"), ("rollout.temperature", temperature)))
    wanted = textbook(loop, 1, 0.0, 0.05)
    loop.optimizer = Descent(loop.policy, 0.0)  # type: ignore[assignment]
    metrics = train_step(loop, 0)
    (gradient,) = loop.optimizer.seen  # type: ignore[attr-defined]
    assert gradient.abs().max() > 1e-3
    assert torch.allclose(gradient, wanted[0], rtol=0, atol=1e-5)
    assert metrics["surrogate/ratio_mean"] == 1.0 and metrics["sampler/logp_gap_max"] < 1e-4
    assert metrics["kl/to_anchor"] == metrics["kl/to_reference"] > 0 and metrics["guide/q_mean"] == 1.0


@pytest.mark.slow
def test_three_updates_of_a_rollout_are_the_textbooks(write_recipe: Recipe) -> None:
    loop = moved(make(write_recipe("{name: grpo, beta: 0.05}"), ("updates.epochs", "3")))
    wanted = textbook(loop, 3, 0.1, 0.05)
    loop.optimizer = Descent(loop.policy, 0.1)  # type: ignore[assignment]
    metrics = train_step(loop, 0)
    gradients = loop.optimizer.seen  # type: ignore[attr-defined]
    assert len(gradients) == 3
    for gradient, expected in zip(gradients, wanted, strict=True):
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(gradients[1], gradients[0], atol=1e-3)
    assert abs(metrics["surrogate/ratio_mean"] - 1.0) > 1e-5  # of one update it is exactly 1


# ---- exact divergences


def leashed(beta: float = 0.5) -> Method:
    """GRPO whose leash is the exact forward KL at every position."""
    return replace(grpo(), name="leashed", anchor=Anchor(beta, estimator="exact", divergence="forward"))


@pytest.fixture
def exact(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainState]:
    """exact("updates.epochs", "3", ...): a loop of `leashed`, its policy a little away from its reference."""
    monkeypatch.setitem(METHODS, "leashed", leashed)

    def loop(*words: str) -> TrainState:
        return moved(make(write_recipe("leashed", name="leashed.yaml"), *zip(words[::2], words[1::2], strict=True)))

    return loop


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["1.0", "0.7"])
def test_an_exact_leash_is_the_sum_over_the_vocabulary(exact: Callable[..., TrainState], temperature: str) -> None:
    loop = exact("rollout.temperature", temperature)
    wanted, without = textbook(loop, 1, 0.0, 0.5, exact=True)[0], textbook(loop, 1, 0.0, 0.0)[0]
    loop.optimizer = Descent(loop.policy, 0.0)  # type: ignore[assignment]
    metrics = train_step(loop, 0)
    (gradient,) = loop.optimizer.seen  # type: ignore[attr-defined]
    assert torch.allclose(gradient, wanted, rtol=0, atol=1e-5)
    assert (wanted - without).abs().max() > 1e-3 and metrics["kl/to_anchor"] > 0
    assert all(p.grad is None for p in loop.reference.parameters())  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(), ("updates.micro_batch", "1"), ("updates.micro_batch", "3")])
def test_an_exact_leash_over_three_updates(exact: Callable[..., TrainState], parts: tuple[str, ...]) -> None:
    """Each update sums over the policy as it is by then; micro-batches add up to the same."""
    loop = exact("updates.epochs", "3", *parts)
    wanted = textbook(loop, 3, 0.1, 0.5, exact=True)
    loop.optimizer = Descent(loop.policy, 0.1)  # type: ignore[assignment]
    train_step(loop, 0)
    gradients = loop.optimizer.seen  # type: ignore[attr-defined]
    assert len(gradients) == 3 and not torch.allclose(gradients[1], gradients[0], atol=1e-3)
    for gradient, expected in zip(gradients, wanted, strict=True):
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_distributions_are_made_for_a_micro_batch_at_a_time_and_for_nobody_else(
    exact: Callable[..., TrainState], write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, int, bool]] = []
    inner = scores.score

    def score(model: Any, prompts: Any, tokens: Tensor, *rest: Any, log_probs: bool, **more: Any) -> Any:
        found = inner(model, prompts, tokens, *rest, log_probs=log_probs, **more)
        assert (found.log_probs is not None) is log_probs
        if log_probs:
            assert found.log_probs.requires_grad is (model is loop.policy)
        calls.append((model is loop.policy, len(tokens), log_probs))
        return found

    monkeypatch.setattr(scores, "score", score)
    loop = exact("updates.minibatches", "2", "updates.micro_batch", "1")
    train_step(loop, 0)
    assert calls == [(True, 4, False)] * 4 + [(False, 4, False)] * 4 + [(True, 4, True), (False, 4, True)] * 4
    calls.clear()
    loop = exact()
    train_step(loop, 0)
    assert calls == [(True, 16, True), (False, 16, True)]
    calls.clear()
    loop = make(write_recipe(more="updates: {minibatches: 2}\n"))
    train_step(loop, 0)
    assert len(calls) == 4 and not any(asked for *_, asked in calls)


# ---- the neutral guide


@pytest.mark.parametrize(
    "base",
    [
        "{name: grpo, beta: 0.05}",
        "{name: dr_grpo, beta: 0.05}",
        "{name: rloo, beta: 0.05}",
        "{name: grpo, beta: 0.05, estimator: k3_is}",
    ],
)
def test_flat_is_the_base_bit_for_bit(write_recipe: Recipe, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base runs without a q at all: `shape` is bypassed and the batch's log_q is None."""
    plain = make(write_recipe(base, steps=3, name="base.yaml"))
    flat = make(write_recipe(f"{{name: sage, base: {base}, guide: flat}}", steps=3, name="flat.yaml"))
    start = weights(plain)
    for step in range(3):
        with monkeypatch.context() as without_q:
            without_q.setattr(engine, "shape", lambda *arguments: None)
            without_q.setattr(engine, "q_clamped", lambda *arguments: None)
            without_q.setattr(Flat, "__call__", lambda *arguments, **named: pytest.fail("the base called a guide"))
            expected = train_step(plain, step)
        assert train_step(flat, step) == expected
    assert torch.equal(weights(plain), weights(flat)) and not torch.equal(weights(plain), start)
    for name, value in plain.optimizer.tensors().items():
        assert torch.equal(value, flat.optimizer.tensors()[name])


def test_a_guide_does_change_the_base(write_recipe: Recipe) -> None:
    plain = make(write_recipe(steps=2, name="base.yaml"))
    branch = make(write_recipe("{name: sage, guide: {name: branch, threshold: 0.1}}", steps=2, name="sage.yaml"))
    first = train_step(branch, 0)
    train_step(plain, 0)
    assert first["guide/active_frac"] > 0 and not torch.equal(weights(plain), weights(branch))


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only")
def test_the_same_seed_twice_is_the_same_run(write_recipe: Recipe, tmp_path: Path) -> None:
    recipe = write_recipe("{name: sage, guide: {name: random, eps: 0.5, sigma: 0.5}}", steps=3)
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert run_of(recipe, tmp_path / name, seed=seed) == 3
    a, b, c = (load_file(tmp_path / name / "policy" / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a) and not all(torch.equal(a[name], c[name]) for name in a)
    rows = [[comparable(row) for row in read_metrics(tmp_path / name)] for name in "abc"]
    assert rows[0] == rows[1] != rows[2] and [row["step"] for row in rows[0]] == [0, 1, 2]


def test_arms_of_one_seed_see_the_same_prompts(write_recipe: Recipe) -> None:
    arms = [make(write_recipe(m, name=f"{i}.yaml")) for i, m in enumerate(["{name: no_kl}", "{name: sage}"])]
    other = make(write_recipe(), ("seed", "1"))
    seen = [[own_problems(loop, step) for step in range(20)] for loop in (*arms, other)]
    assert seen[0] == seen[1] != seen[2]
    torch.set_num_threads(2)
    try:
        assert [own_problems(arms[0], step) for step in range(20)] == seen[0]
    finally:
        torch.set_num_threads(1)
    first, second = [p for step in seen[0][:15] for p in step], [p for step in seen[0][15:] for p in step]
    assert sorted(map(str, first)) == sorted(map(str, arms[0].problems))  # 15 steps of 4 go through all 60 once
    assert second != first[: len(second)]  # and the next epoch in another order


def test_arms_share_their_first_rollout(write_recipe: Recipe) -> None:
    arms = [make(write_recipe(m, name=f"{i}.yaml")) for i, m in enumerate(["{name: no_kl}", "{name: sage}"])]
    found = [train_step(loop, 0) for loop in arms]
    for name in ("reward/mean", "completions/length_mean", "policy/entropy"):
        assert found[0][name] == found[1][name]
