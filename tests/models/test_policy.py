"""Policies and tokens: what a rollout says as text; and what is said of a guide that does nothing."""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.core import Anchor, Branch, Flat, Guide, Placebo, Token
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo, sage
from sage_rlvr.models import policy as base
from sage_rlvr.models.policy import NO_ANSWER, Tokens, load_policy, load_tokens, run_facts, weights_hash
from sage_rlvr.models.sampler import Rollout
from sage_rlvr.tasks.chat import render
from sage_rlvr.tasks.countdown import Countdown, Problem, build_tokenizer
from sage_rlvr.training.watch import GuideWatch, check_vocabulary

TOKENS = Tokens.of(build_tokenizer())
PROBLEM = Problem((3, 4), 7)


def rollout_of(rows: list[list[int]], finished: list[bool]) -> Rollout:
    width = max(map(len, rows))
    ids = torch.tensor([row + [TOKENS.pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    return Rollout(ids, mask, torch.zeros(ids.shape), torch.zeros(ids.shape), torch.tensor(finished))


def test_texts_end_before_the_end_token_and_what_is_no_answer_is_marked() -> None:
    """A model's vocabulary may be padded beyond the tokenizer's 21 ids; such an id decodes to nothing."""
    three, plus, four = TOKENS.encode("3+4")
    end = TOKENS.eos_id
    rows = [[three, plus, four, end], [three, plus, four], [three, plus, 25, four, end], [25, three, plus, four, end]]
    texts = TOKENS.texts(rollout_of(rows, [True, False, True, True]))
    assert texts[0] == "3+4" and all(text == "3+4" + NO_ANSWER for text in texts[1:])
    world = Countdown({2: 1.0})
    assert [world.verify(PROBLEM, text).right for text in texts] == [True, False, False, False]


def test_known_ids_are_those_of_the_vocabulary() -> None:
    assert TOKENS.known == frozenset(range(21))


# ---- ends and beginnings


def test_every_end_that_the_model_declares_ends_a_completion(tiny_policy: Path, tmp_path: Path) -> None:
    model, tokens = load_policy(str(tiny_policy))
    assert tokens.eos_ids == (tokens.eos_id,) == (1,)
    model.generation_config.eos_token_id = [7, 1]
    assert Tokens.of(tokens.tokenizer, model).eos_ids == (1, 7)
    model.save_pretrained(tmp_path)
    tokens.tokenizer.save_pretrained(tmp_path)
    assert load_policy(str(tmp_path))[1].eos_ids == (1, 7)
    assert Tokens(tokens.tokenizer, 3, 0).eos_ids == (3,)


@pytest.mark.parametrize("kept", [True, False], ids=["generation_config.json", "config.json alone"])
def test_the_ends_are_the_same_with_and_without_the_weights(kept: bool, tiny_policy: Path, tmp_path: Path) -> None:
    model, tokens = load_policy(str(tiny_policy))
    model.config.eos_token_id = model.generation_config.eos_token_id = [1, 6]
    model.save_pretrained(tmp_path)
    tokens.tokenizer.save_pretrained(tmp_path)
    if not kept:
        (tmp_path / "generation_config.json").unlink()
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": [1, 6]}))
    assert load_tokens(str(tmp_path)).eos_ids == load_policy(str(tmp_path))[1].eos_ids == (1, 6)
    for file in (*tmp_path.glob("*config.json"), *tmp_path.glob("model*")):
        if file.name != "tokenizer_config.json":
            file.unlink()
    assert load_tokens(str(tmp_path)).eos_ids == (1,)  # of a tokenizer alone its own end


def test_prompts_open_as_the_tokenizer_opens_a_text_and_completions_do_not() -> None:
    assert TOKENS.opening == () and TOKENS.encode_prompt("3+4") == TOKENS.encode("3+4")
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    ends = [("<bos>", start), ("<eos>", end)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=ends)
    tokens = Tokens.of(tokenizer)
    assert tokens.opening == (start,) and tokens.encode("3+4") == TOKENS.encode("3+4")
    assert tokens.encode_prompt("3+4") == tokens.encode_prompt("<bos>3+4") == [start, *TOKENS.encode("3+4")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=ends)
    assert Tokens.of(tokenizer).opening == ()  # an end is no beginning


# ---- what a resume must find unchanged


def test_the_libraries_that_train_on_trl_are_facts_of_the_run(
    tiny_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = decode(TrainConfig, {"steps": 2, "model": str(tiny_policy), "method": "grpo"})
    on_trl = replace(config, engine=replace(config.engine, name="trl"))
    monkeypatch.setattr(base, "version", {"trl": "1.16.0", "peft": "0.1"}.__getitem__)
    assert {**run_facts(config), "trl": "1.16.0", "peft": "0.1"} == run_facts(on_trl)


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"])
def test_facts_change_with_the_files_of_policy_and_reference(tiny_policy: Path, tmp_path: Path, changed: str) -> None:
    folders = [tmp_path / "policy", tmp_path / "reference"]
    for folder in folders:
        AutoModelForCausalLM.from_pretrained(tiny_policy).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
    method = {"name": "grpo", "beta": 0.05, "source": str(folders[1])}
    config = decode(TrainConfig, {"steps": 2, "model": str(folders[0]), "method": method})
    seen = [run_facts(config)]
    assert seen[0] == run_facts(config)
    for folder in folders:
        with open(folder / changed, "ab") as handle:
            handle.write(b" ")
        assert run_facts(config) not in seen
        seen.append(run_facts(config))
    based = decode(
        TrainConfig, {"steps": 2, "model": str(tiny_policy), "base_model": str(folders[0]), "method": "grpo"}
    )
    facts = run_facts(based)
    with open(folders[0] / changed, "ab") as handle:
        handle.write(b" ")
    assert run_facts(based) != facts and "reference" in facts
    plain = decode(TrainConfig, {"steps": 2, "model": "some/name", "method": {"name": "no_kl"}})
    assert run_facts(plain) == {"model_sha256": "hub:some/name", "model_files": {}}


# ---- a folder that is not believed


def sharded(folder: Path) -> None:
    """Its weights in several files with an index."""
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="8KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 2


def retensored(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def indexed(folder: Path, name: str) -> None:
    """One tensor of a sharded folder lies elsewhere, as the index says."""
    sharded(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = next(iter(index["weight_map"].values()))
    shutil.copy(folder / shard, folder.parent / "elsewhere.safetensors")
    index["weight_map"] = {tensor: name if at == shard else at for tensor, at in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def linked(folder: Path) -> None:
    indexed(folder, "linked.safetensors")
    (folder / "linked.safetensors").symlink_to(folder.parent / "elsewhere.safetensors")


def endless(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def said_in_config(folder: Path, **changed: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickled": (pickled, r"pytorch_model\.bin is a pickle.*safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no model\.safetensors"),
    "torn": (lambda f: (f / "model.safetensors").write_bytes(b"torn"), "could not be loaded"),
    "endless weights": (lambda f: endless(f / "model.safetensors"), r"no model\.safetensors"),
    "a tensor lost": (
        lambda f: retensored(f, lambda t: t.pop("model.layers.0.mlp.up_proj.weight")),
        r"lack the tensor model\.layers\.0\.mlp\.up_proj\.weight",
    ),
    "a tensor of another shape": (
        lambda f: retensored(f, lambda t: t.update({"model.norm.weight": torch.ones(3)})),
        "could not be loaded|lack the tensor",
    ),
    "a layer fewer": (
        lambda f: said_in_config(f, num_hidden_layers=json.loads((f / "config.json").read_text())["num_hidden_layers"] - 1),
        r"config.json has no place for the tensor model\.layers\.\d+\.\S+ and \d+ more of the weight files",
    ),
    "a layer more": (
        lambda f: said_in_config(f, num_hidden_layers=json.loads((f / "config.json").read_text())["num_hidden_layers"] + 1),
        "lack the tensor model.layers",
    ),
    "20,000 layers": (lambda f: said_in_config(f, num_hidden_layers=20_000), r"num_hidden_layers = 20,000, but the weight files"),
    "20,000 layers below": (
        lambda f: said_in_config(f, text_config={"num_hidden_layers": 20_000}),
        r"text_config.num_hidden_layers = 20,000, but the weight files hold \d+ tensors",
    ),
    "a tensor more": (lambda f: retensored(f, lambda t: t.update({"more": torch.ones(3)})), "no place for the tensor more of"),
    "an index above": (lambda f: indexed(f, "../elsewhere.safetensors"), "'../elsewhere.safetensors' as a file of tensors"),
    "an absolute index": (lambda f: indexed(f, str(f.parent / "elsewhere.safetensors")), "as a file of tensors"),
    "a link out": (linked, "outside the folder; copy that file into the folder"),
    "an index of pickles": (lambda f: indexed(f, "elsewhere.bin"), "'elsewhere.bin' as a file of tensors"),
    "a shard lost": (lambda f: indexed(f, "nowhere.safetensors"), r"no nowhere\.safetensors"),
    "an index of numbers": (
        lambda f: (sharded(f), (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')),
        "weight_map does not name a file",
    ),
    "weights elsewhere": (lambda f: said_in_config(f, transformers_weights="../elsewhere.safetensors"), "as a file of tensors"),
    "another width": (lambda f: said_in_config(f, hidden_size=48), "could not be loaded|lack the tensor"),
    "no number": (lambda f: said_in_config(f, num_hidden_layers="many"), "could not be loaded"),
    "no architecture": (lambda f: said_in_config(f, model_type="none such"), "could not be loaded"),
    "an end that is none": (lambda f: (f / "generation_config.json").write_text('{"eos_token_id": "x"}'), "eos_token_id|could not"),
    "an end beyond all tokens": (
        lambda f: (f / "generation_config.json").write_text(f'{{"eos_token_id": {10**30}}}'),
        "eos_token_id = 1000",
    ),
    **{
        f"{name} {what}": (lambda f, name=name, data=data: (f / name).write_bytes(data), f"{name}: .*save the model again")
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
        for what, data in {"nested": b"[" * 100_000, "a list": b"[1]", "cut": b"{", "no text": b"\xff"}.items()
    },
    "an adapter, too": (lambda f: (f / "adapter_config.json").write_text("{}"), "whole model .* and an adapter"),
    "endless config": (lambda f: endless(f / "config.json"), "not a regular file"),
    "endless template": (lambda f: endless(f / "chat_template.jinja"), "not a regular file"),
    "a tokenizer that is none": (lambda f: (f / "tokenizer.json").write_text('{"model": 3}'), "tokenizer .* could not be loaded"),
    "nested tokenizer": (lambda f: (f / "tokenizer.json").write_text("[" * 100_000), "tokenizer .* could not be loaded"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_folder_that_is_not_to_be_loaded_is_refused(tiny_policy: Path, tmp_path: Path, harm: str) -> None:
    """One sentence with the file, and neither a pickle, nor a file outside, nor a random tensor in its place."""
    folder, (change, said) = tmp_path / "policy", HARM[harm]
    shutil.copytree(tiny_policy, folder)
    change(folder)
    with pytest.raises(ConfigError, match=said):
        load_policy(str(folder))


def test_a_template_that_is_endless_is_refused_before_it_is_compiled(tiny_policy: Path) -> None:
    tokenizer = load_policy(str(tiny_policy))[1].tokenizer
    tokenizer.chat_template = "{{ messages }}" * 2_000_000
    began = time.process_time()
    with pytest.raises(ConfigError, match="its chat template has 28,000,000 characters, more than the 1,000,000"):
        render(tokenizer, [{"role": "user", "content": "?"}])
    assert time.process_time() - began < 5


@pytest.mark.parametrize("stored", [True, False])
def test_tied_embeddings_and_computed_buffers_are_no_superfluous_tensors(tiny_policy: Path, tmp_path: Path, stored: bool) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy, folder)
    said_in_config(folder, tie_word_embeddings=True)

    def tie(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop("lm_head.weight", None)
        if stored:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)

    retensored(folder, tie)
    model, _ = load_policy(str(folder))
    assert torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight)


def test_an_edit_to_any_shard_is_another_policy(tiny_policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy, folder)
    before = load_policy(str(folder))[0].state_dict()
    sharded(folder)
    after = load_policy(str(folder))[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    seen = {weights_hash(str(folder))}
    for file in sorted(folder.glob("*.safetensors")):
        save_file({name: t + 1 for name, t in load_file(file).items()}, file, {"format": "pt"})
        assert weights_hash(str(folder)) not in seen
        seen.add(weights_hash(str(folder)))
    assert not any("hub:" in one for one in seen)


# ---- a guide that does nothing


def metrics_of(active: float, clamped: float) -> dict[str, float]:
    return {"guide/active_frac": active, "guide/clamped_frac": clamped}


def shown(guide: Guide, steps: list[dict[str, float]]) -> list[str]:
    """What a watch says of these steps."""
    watch = GuideWatch(Anchor(0.05, guide))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, metrics in enumerate(steps):
            watch.see(step, metrics)
    return [str(each.message) for each in caught]


def test_ten_idle_steps_in_a_row_are_said_once_and_nine_are_not():
    idle, awake = metrics_of(0.0, 0.0), metrics_of(1e-4, 0.0)
    assert shown(Branch(), [*[idle] * 9, awake, *[idle] * 9]) == []
    (said,) = shown(Branch(), [awake, *[idle] * 25, awake, *[idle] * 25])
    assert said.startswith("Branch does nothing: q = 1 at every counted token in the 10 steps up to step 10 ")
    assert "guide/active_frac = 0" in said and "threshold='p80'" in said
    assert len(shown(Branch(), [*[idle] * 5, {"reward/mean": 0.0}, *[idle] * 5])) == 1, (
        "a step without an update is none"
    )


def test_ten_steps_with_every_token_clamped_are_said_once():
    edge, inside = metrics_of(1.0, 1 - 1e-8), metrics_of(1.0, 0.999)
    assert shown(Branch(), [*[edge] * 9, inside, *[edge] * 9]) == []
    (said,) = shown(Branch() * Token(), [edge] * 30)
    assert (
        said.startswith("Branch * Token is clamped everywhere") and "q in [0.36, 1.96]" in said and "to step 9" in said
    )


def test_flat_and_no_kl_are_meant_to_do_nothing():
    assert shown(Flat(), [metrics_of(0.0, 0.0)] * 30) == []
    GuideWatch(None).see(0, metrics_of(0.0, 1.0))


@pytest.mark.parametrize(
    "guide", [Branch(threshold=10.0), Branch(threshold=math.log(21)), Placebo(Branch(threshold=4.0))]
)
def test_a_threshold_that_no_entropy_exceeds_is_refused(guide: Guide):
    """ln 21 = 3.0445 nats is the entropy of 21 equally likely tokens."""
    for part in (Anchor(0.05, guide), Anchor(0.05, Token() * guide), sage(grpo(), guide)):
        with pytest.raises(ConfigError, match=r"^Branch: threshold = .* 21 logits.*ln\(21\) = 3.045.*'p80'"):
            check_vocabulary(part, 21)
        check_vocabulary(part, 151_936)  # ln of that is 11.93


def test_what_can_fire_or_has_no_weight_is_admitted():
    for guide in (Branch(threshold=3.0), Branch(threshold="p80"), Token(), Flat(), Rarity(), Placebo(Token())):
        check_vocabulary(Anchor(0.05, guide), 21)
    check_vocabulary(None, 2)
