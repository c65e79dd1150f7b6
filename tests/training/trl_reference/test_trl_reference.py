"""pi_ref on TRL is what the anchor's source says at step 0: the policy, the base, a path. Needs TRL and peft."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")


from conftest import save, tiny_llama
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo, no_kl, sage
from sage_rlvr.training.trl import SageTrainer, adapters, grpo_config, reference_model
from sage_rlvr.training.trl.arguments import making
from training.trl_reference.reference_common import kls, loaded, lora, made, shifted, trained_adapter, trainer_of
from trl_common import arguments, forward, same, weights

TARGETS = ["q_proj", "v_proj", "o_proj"]
GUIDE = Branch(ratio=0.3, threshold=1.2)


def start_kl(trainer: Any) -> float:
    trainer.args.max_steps = 1
    trainer.train()
    return kls(trainer)[0]


# ---- sft: the policy as it is handed over


def test_sft_of_a_path_is_stock_trl(tiny_policy: Path, tmp_path: Path):
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path))
    assert start_kl(trainer) == 0
    assert trainer.reference_description == f"sft: the policy as it was at step 0, loaded from {tiny_policy}"


def test_sft_is_the_policy_in_memory_and_not_its_path(tiny_policy: Path, tmp_path: Path):
    """The reference is a copy of the changed weights, tied ones still tied, and stays when the policy moves."""
    policy = shifted(loaded(tiny_policy))
    start = {name: value.clone() for name, value in policy.state_dict().items()}
    trainer = trainer_of(policy, tiny_policy, arguments(tmp_path))
    trainer.train()
    assert kls(trainer)[0] == 0 and kls(trainer)[-1] > 1e-3
    assert same(trainer.ref_model.state_dict(), start) and not same(weights(trainer), start)
    assert trainer.ref_model.lm_head.weight is trainer.ref_model.model.embed_tokens.weight
    assert not any(value.requires_grad for value in trainer.ref_model.parameters())
    assert trainer.reference_description == "sft: a frozen copy of the policy as it was at step 0"


def test_sft_needs_no_path_and_no_stock_vocabulary(tiny_policy: Path, tmp_path: Path):
    """A policy made on the spot, and one whose embedding has grown: stock TRL can load neither reference."""
    made = tiny_llama(vocab_size=30)
    assert start_kl(trainer_of(made, tiny_policy, arguments(tmp_path / "made"))) == 0
    grown = loaded(tiny_policy)
    grown.resize_token_embeddings(28, mean_resizing=False)
    assert start_kl(trainer_of(grown, tiny_policy, arguments(tmp_path / "grown"))) == 0
    with pytest.raises(ConfigError, match=r"28 logits.*use source='sft'"):
        trainer_of(grown, tiny_policy, arguments(tmp_path / "base"), source="base")
    with pytest.raises(ConfigError, match=r"needs a policy that was loaded from a path.*base_model="):
        trainer_of(tiny_llama(), tiny_policy, arguments(tmp_path / "base"), source="base")
    method = grpo(beta=0.5)  # beside a method, source='sft' would be refused
    with pytest.raises(ConfigError, match=r"use method=grpo\(\.\.\., source='sft'\)"):
        trainer_of(tiny_llama(), tiny_policy, arguments(tmp_path / "method", **grpo_config(method)), method=method)
    assert making(sage(method, GUIDE), "source='sft'") == "method=sage(grpo(..., source='sft'), ...)"


def test_a_forward_that_holds_on_to_the_policy_is_left_behind(tiny_policy: Path, tmp_path: Path):
    """A wrapper left by an earlier trainer computes with the policy's weights wherever it is called from."""
    policy = shifted(loaded(tiny_policy))
    plain = policy.forward
    policy.forward = lambda *args, **kwargs: plain(*args, **kwargs)
    ids = torch.arange(4, 12)[None]
    twin = reference_model.copy_of(policy)
    before = twin(ids).logits
    assert torch.equal(before, policy(ids).logits)
    shifted(policy)
    assert torch.equal(before, twin(ids).logits) and not torch.equal(before, policy(ids).logits)


def test_a_policy_that_is_not_its_class_is_not_copied(tiny_policy: Path):
    policy = loaded(tiny_policy)
    policy.model.layers[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"extra.*save_pretrained"):
        reference_model.copy_of(policy)


@pytest.mark.parametrize("object_given", [False, True], ids=["path", "object"])
def test_flat_is_stock_trl_whichever_way_the_policy_comes(object_given: bool, tiny_policy: Path, tmp_path: Path):
    def run(cls: type, **more: Any) -> Any:
        model = loaded(tiny_policy) if object_given else tiny_policy
        trainer = made(cls, model, tiny_policy, arguments(tmp_path), **more)
        trainer.train()
        return weights(trainer)

    assert same(run(trl.GRPOTrainer), run(SageTrainer, guide=Flat()))


def test_a_fresh_adapter_starts_as_the_policy_and_is_disabled_for_the_reference(tiny_policy: Path, tmp_path: Path):
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path), peft_config=lora())
    trainer.train()
    assert kls(trainer)[0] == 0 and kls(trainer)[-1] > 1e-4
    assert [*trainer.model.peft_config] == ["default"] and trainer.ref_model is None
    assert trainer.reference_description == "sft: the policy with its adapter disabled (the adapter is zero at step 0)"


def test_a_fresh_adapter_on_merged_weights_has_those_for_its_reference(tiny_policy: Path, tmp_path: Path):
    merged = trained_adapter(tiny_policy).merge_and_unload()
    trainer = trainer_of(merged, tiny_policy, arguments(tmp_path), peft_config=lora())
    assert start_kl(trainer) == 0


@pytest.mark.parametrize("init", [False, "pissa", "olora", "orthogonal"])
def test_a_fresh_adapter_that_acts_from_the_start_is_copied(init: Any, tiny_policy: Path, tmp_path: Path):
    """Disabled it would not be the policy; and making the copy must not rewrite the weights below, as PiSSA's would."""
    args = arguments(tmp_path)
    trainer = trainer_of(tiny_policy, tiny_policy, args, peft_config=lora(init_lora_weights=init))
    assert trainer.reference_description == "sft: a frozen copy of the policy as it was at step 0 (adapter 'ref')"
    if init != "orthogonal":
        ids = torch.arange(4, 12)[None]
        with torch.no_grad(), trainer.model.disable_adapter():
            moved = (trainer.model(ids).logits - loaded(tiny_policy)(ids).logits).abs().max()
        assert bool(moved > 0.1) == isinstance(init, str)  # once, and what follows asks for the sum
    if init in ("pissa", "olora"):
        torch.testing.assert_close(trainer.model(ids).logits, loaded(tiny_policy)(ids).logits, atol=1e-3, rtol=1e-3)
    assert start_kl(trainer) < 1e-9


def test_a_second_adapter_draws_nothing_at_random(tiny_policy: Path):
    """Made in the middle of a run, it must not shift the completions that follow."""
    policy = trained_adapter(tiny_policy)
    state = torch.get_rng_state()
    adapters.copy_adapter(policy)
    assert "ref" in policy.peft_config and torch.equal(torch.get_rng_state(), state)


def test_an_adapter_of_an_sft_is_copied_and_its_copy_is_frozen(tiny_policy: Path, tmp_path: Path):
    """All of it: TRL's own copy leaves out the factors of an embedding."""
    policy = trained_adapter(tiny_policy, target_modules=[*TARGETS, "embed_tokens"])
    start = {name: value.detach().clone() for name, value in policy.named_parameters() if "default" in name}
    trainer = trainer_of(policy, tiny_policy, arguments(tmp_path))
    trainer.train()
    assert kls(trainer)[0] == 0 and kls(trainer)[-1] > 1e-3
    kept = dict(trainer.model.named_parameters())
    assert len(start) == 14 and any("lora_embedding_A" in name for name in start)
    for name, value in start.items():
        assert torch.equal(kept[name.replace("default", "ref")], value), name
    assert any(not torch.equal(kept[name], value) for name, value in start.items())


def test_a_reference_that_is_not_the_policy_is_refused_at_step_0(tiny_policy: Path, tmp_path: Path):
    """Weights changed behind the trainer's back: no step is done on them."""
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path))
    shifted(trainer.model)
    before = weights(trainer)
    with pytest.raises(ConfigError, match=r"differs from the policy at the start.*save_pretrained"):
        trainer.train()
    assert same(before, weights(trainer))


def test_dropout_is_named_and_not_taken_for_another_reference(tiny_policy: Path, tmp_path: Path):
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path), peft_config=lora(lora_dropout=0.5))
    assert start_kl(trainer) == 0  # of nothing
    policy = trained_adapter(tiny_policy, lora_dropout=0.5)
    trainer = trainer_of(policy, tiny_policy, arguments(tmp_path))
    with pytest.warns(UserWarning, match="active dropout.*lora_dropout.*disable_dropout=True"):
        assert start_kl(trainer) > 1e-5
    policy = trained_adapter(tiny_policy, lora_dropout=0.5)
    assert start_kl(trainer_of(policy, tiny_policy, arguments(tmp_path, disable_dropout=True))) == 0


# ---- base: the model before any fine-tuning


def test_base_after_an_sft_is_not_the_policy(tiny_policy: Path, tmp_path: Path):
    """Of weights changed in memory, of a saved SFT policy beside its base, and of an SFT adapter."""
    trained = save(shifted(loaded(tiny_policy)), tmp_path / "sft")
    method = {"method": grpo(beta=0.5, source="base")}
    cases = {
        f"base: loaded from {tiny_policy}": [
            (shifted(loaded(tiny_policy)), {}),
            (trained, {"base_model": str(tiny_policy)}),
        ],
        "base: the policy with its adapter disabled": [
            (trained_adapter(tiny_policy), {}),
            (trained_adapter(tiny_policy), method),
        ],
    }
    for words, runs in cases.items():
        for model, more in runs:
            args = arguments(tmp_path, **(grpo_config(more["method"]) if "method" in more else {}))
            trainer = trainer_of(model, tiny_policy, args, **{} if "method" in more else {"source": "base"}, **more)
            assert start_kl(trainer) > 0.01, words
            assert trainer.reference_description == words
            assert at_reference(trainer, tiny_policy) < 1e-6, words


def at_reference(trainer: Any, path: Path) -> float:
    """Largest difference between the reference's log-probs in a rollout and those of the model at `path`."""
    trainer.model.train()
    rows = [{"prompt": "1 2=3:"}] * 6
    output = trainer._generate_and_score_completions(rows)
    with torch.no_grad():
        logps, _ = forward(loaded(path), output, trainer.args.temperature)
    mask = output["completion_mask"].bool()
    return float((output.get("sage_ref_logps", output["ref_per_token_logps"]) - logps)[mask].abs().max())


def test_a_base_that_is_the_policys_path_is_not_loaded_twice(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []
    plain = reference_model.grpo_trainer.create_model_from_path
    monkeypatch.setattr(
        reference_model.grpo_trainer,
        "create_model_from_path",
        lambda path, *a, **k: calls.append(path) or plain(path, *a, **k),
    )
    for more, loads in [({}, 2), ({"peft_config": lora()}, 1)]:
        calls.clear()
        trainer_of(tiny_policy, tiny_policy, arguments(tmp_path), source="base", base_model=f"{tiny_policy}/", **more)
        assert calls == [str(tiny_policy)] * loads
    assert reference_model.grpo_trainer.create_model_from_path is not plain  # put back as it was found


def test_base_beside_an_adapter_can_be_another_model(tiny_policy: Path, tmp_path: Path):
    """An adapter on merged SFT weights: disabled it is the SFT policy, so the base is loaded beside it."""
    merged = trained_adapter(tiny_policy).merge_and_unload()
    more = {"peft_config": lora(), "source": "base", "base_model": str(tiny_policy)}
    trainer = trainer_of(merged, tiny_policy, arguments(tmp_path), **more)
    assert start_kl(trainer) > 0.01 and trainer.reference_description == f"base: loaded from {tiny_policy}"
    assert at_reference(trainer, tiny_policy) < 1e-5


# ---- a path


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "adapter"])
def test_a_path_is_the_reference(adapter: bool, tiny_policy: Path, tmp_path: Path):
    other = save(shifted(loaded(tiny_policy)), tmp_path / "other")
    method = grpo(beta=0.5, source=str(other))
    more = {"peft_config": lora()} if adapter else {}
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method, **more)
    assert start_kl(trainer) > 0.01 and trainer.reference_description == f"{other}: loaded from {other}"
    assert at_reference(trainer, other) < 1e-5


def test_a_path_with_another_vocabulary_or_with_nothing_is_refused(tiny_policy: Path, tmp_path: Path):
    wide = save(tiny_llama(vocab_size=40), tmp_path / "wide")
    for more in ({}, {"peft_config": lora()}):
        with pytest.raises(ConfigError, match=r"40 logits.*do not share a vocabulary"):
            trainer_of(tiny_policy, tiny_policy, arguments(tmp_path), source=str(wide), **more)
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"empty.*could not be loaded"):
            trainer_of(tiny_policy, tiny_policy, arguments(tmp_path), source=str(tmp_path / "empty"), **more)


# ---- refusals


def test_refused_with_the_way_out(tiny_policy: Path, tmp_path: Path):
    def refused(words: str, model: Any = tiny_policy, args: dict[str, Any] | None = None, **more: Any) -> None:
        with pytest.raises(ConfigError, match=words):
            trainer_of(model, tiny_policy, arguments(tmp_path, **args or {}), **more)

    method = grpo(beta=0.5)
    refused(r"set it in the method: method=grpo\(\.\.\., source='sft'\)", args=grpo_config(method), method=method, source="sft")
    refused("write snapshot@N", source="snapshot@0")
    refused("set only one of them", args={"sync_ref_model": True}, source="snapshot@2")
    refused("ref_model_mixup_alpha=1.0", args={"sync_ref_model": True}, peft_config=lora())
    biased = save(tiny_llama(attention_bias=True), tmp_path / "biased")
    refused("q_proj.*bias='none'", biased, peft_config=lora(bias="all"))
    refused("base_model=", source="base", peft_config=lora(init_lora_weights="pissa"))
    refused("init_lora_weights = True first", peft.get_peft_model(loaded(tiny_policy), lora(init_lora_weights="pissa")))
    refused("without an adapter_name", peft.get_peft_model(loaded(tiny_policy), lora(), adapter_name="mine"))
    base = {"source": "base", "base_model": str(save(tiny_llama(), tmp_path / "twin")), "peft_config": lora()}
    refused("start from source='sft'", args={"sync_ref_model": True, "ref_model_mixup_alpha": 1.0}, **base)


def test_a_mixed_reference_says_so_and_none_says_none(tiny_policy: Path, tmp_path: Path):
    args = arguments(tmp_path, sync_ref_model=True, ref_model_sync_steps=5, ref_model_mixup_alpha=0.6)
    words = f"sft: the policy as it was at step 0, loaded from {tiny_policy}; mixed with 0.6 of the policy after every 5 steps"
    assert trainer_of(tiny_policy, tiny_policy, args).reference_description == words
    method = no_kl()
    trainer = trainer_of(tiny_policy, tiny_policy, arguments(tmp_path, **grpo_config(method)), method=method)
    assert trainer.reference_description == "none (no KL term)"
