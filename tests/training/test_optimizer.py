"""Which weights decay, in numbers and by transformers' own rule, and that the state by name resumes bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from conftest import tiny_llama
from sage_rlvr.config import OptimizerConfig
from sage_rlvr.training.optimizer import Optimizer, decayed


def tiny_gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=21, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()


MODELS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def pull(model: PreTrainedModel, seed: int) -> None:
    """A gradient for every parameter, a function of the seed."""
    noise = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=noise)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_a_gradient_shrinks_matrices_and_leaves_biases_and_norms(name):
    """AdamW: p <- (1 - lr * weight_decay) p, here .99 p, and nothing else where the gradient is 0."""
    model = MODELS[name]()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = Optimizer(model, OptimizerConfig(lr=0.1, weight_decay=0.1), 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0)
    kept = {n for n, p in model.named_parameters() if torch.equal(p, before[n])}
    assert all(torch.allclose(p, 0.99 * before[n]) for n, p in model.named_parameters() if n not in kept)
    zero = {n for n, value in before.items() if not value.any()}  # GPT-2's biases start at 0, where decay shows nothing
    assert kept == {n for n, value in before.items() if value.dim() == 1} | zero
    assert {"model.norm.weight", "transformer.ln_f.weight"} & kept and set(decayed(model)) == set(before) - kept


@pytest.mark.parametrize("name", MODELS)
def test_the_rule_is_that_of_transformers_trainer(name):
    from transformers import Trainer

    model = MODELS[name]()
    theirs = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]  # it reads nothing of itself
    assert set(decayed(model)) == theirs & {n for n, _ in model.named_parameters()}  # tied weights have one name here


@pytest.mark.parametrize("name", MODELS)
def test_two_groups_resume_bit_for_bit_and_without_decay_are_one_adamw(name):
    config = OptimizerConfig(lr=1e-2, weight_decay=0.1, schedule="linear")
    model, other = MODELS[name](), MODELS[name]()
    whole = Optimizer(model, config, 4)
    for step in range(2):
        pull(model, step)
        whole.step(step)
    other.load_state_dict(model.state_dict())
    resumed = Optimizer(other, config, 4)
    resumed.load(whole.tensors())
    for step in (2, 3):
        for each, optimizer in ((model, whole), (other, resumed)):
            pull(each, step)
            optimizer.step(step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert {key: value.tolist() for key, value in whole.tensors().items()} == {
        key: value.tolist() for key, value in resumed.tensors().items()
    }
    plain, stock = MODELS[name](), MODELS[name]()
    ours, theirs = (
        Optimizer(plain, OptimizerConfig(lr=1e-2), 1),
        torch.optim.AdamW(stock.parameters(), lr=1e-2, weight_decay=0.0, fused=True),
    )
    for step in range(3):
        pull(plain, step), pull(stock, step)
        ours.step(step)
        torch.nn.utils.clip_grad_norm_(stock.parameters(), 1.0, foreach=True)
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), stock.parameters(), strict=True))


def test_a_bfloat16_weight_stands_still_until_its_copy_is_half_a_spacing_away():
    """Above 1 the values of bfloat16 are 1/128 apart, so 1 changes once its copy is 1/256 higher; below 1 they are 1/256
    apart, so it changes once its copy is 1/512 lower."""
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = Optimizer(model, OptimizerConfig(lr=0.9 / 512), 3)
    found = []
    for step in range(3):  # Adam moves each by its rate at every step: the first weight up, the second down
        (model.weight * torch.tensor([[-1.0, 1.0]], dtype=torch.bfloat16)).sum().backward()
        found.append((optimizer.step(step)["optimizer/changed_frac"], model.weight.flatten().tolist()))
    assert found == [(0.0, [1.0, 1.0]), (0.5, [1.0, 1 - 1 / 256]), (0.5, [1 + 1 / 128, 1 - 1 / 256])]


def test_without_weights_in_half_precision_nothing_is_counted():
    model = tiny_gpt2()
    pull(model, 0)
    assert set(Optimizer(model, OptimizerConfig(), 1).step(0)) == {"optimizer/grad_norm", "optimizer/lr"}
