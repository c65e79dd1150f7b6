"""Weights are compared with their known hash when they are read; the hash of a large file is computed once."""

from __future__ import annotations

import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import refused
from conftest import tiny_llama
from damage import flip_bit, truncate, zero
from sage_rlvr.errors import ConfigError
from sage_rlvr.models import hashes
from sage_rlvr.models.hashes import CARD
from sage_rlvr.models.policy import load_policy, load_tokens, weights_hash
from sage_rlvr.runs import RunDir
from sage_rlvr.runs.files import file_sha256
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.training.state import save_policy

WEIGHTS, MANIFEST = "model.safetensors", "MANIFEST.json"


def saved(folder: Path, initializer_range: float = 0.2) -> Path:
    """A policy that this package saved."""
    save_policy(tiny_llama(initializer_range=initializer_range), build_tokenizer(), folder)
    return folder


def run_with_policy(folder: Path, seed: int) -> Path:
    """The policy of a run directory."""
    with RunDir.open(folder, {"steps": 1, "seed": seed, "method": {"name": "grpo"}}) as run:
        return saved(run.path / "policy", 0.1 * (seed + 1))


DAMAGES = [flip_bit, lambda file: flip_bit(file, 0.0), zero, truncate, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_policy_is_refused_with_its_file(damage: Callable[[Path], None], tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    load_policy(str(policy))
    damage(policy / WEIGHTS)
    for read in (load_policy, weights_hash):
        with pytest.raises(ConfigError, match=rf"{WEIGHTS}"):
            read(str(policy))


def test_the_error_has_both_hashes_and_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = saved(tmp_path / "policy")
    expected = file_sha256(policy / WEIGHTS)
    flip_bit(policy / WEIGHTS)
    message = refused(capsys, "eval", policy, "--task", "countdown", "--samples", 2, "--problems", 1, "--store", tmp_path / "store")
    assert all(word in message for word in (str(policy / WEIGHTS), expected, file_sha256(policy / WEIGHTS), MANIFEST))
    assert not (tmp_path / "store").exists()
    (policy / MANIFEST).unlink()
    load_policy(str(policy))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_damaged_file_beside_the_weights_is_refused(name: str, tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    text = (policy / name).read_text()
    (policy / name).write_text(text.replace("0", "1") if "0" in text else text.replace("true", "false"))
    for read in (load_policy, load_tokens, weights_hash):
        with pytest.raises(ConfigError, match=name):
            read(str(policy))


def test_a_manifest_that_is_gone_is_told(tmp_path: Path) -> None:
    with_card, of_run = tmp_path / "one", run_with_policy(tmp_path / "run", 0)
    save_policy(tiny_llama(), build_tokenizer(), with_card, f"{CARD}\n")
    for policy in (with_card, of_run):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_policy(str(policy))
        (policy / MANIFEST).unlink()
        with pytest.warns(UserWarning, match=rf"saved with a {MANIFEST}, which is missing"):
            load_policy(str(policy))


def test_a_policy_of_no_run_in_the_place_of_one_is_refused(tmp_path: Path) -> None:
    policy = run_with_policy(tmp_path / "run", 0)
    shutil.rmtree(policy)
    shutil.copytree(saved(tmp_path / "elsewhere"), policy)
    with pytest.raises(ConfigError, match="another run"):
        load_policy(str(policy))


def test_weights_of_another_run_are_refused(tmp_path: Path) -> None:
    one, other = (run_with_policy(tmp_path / f"run-{seed}", seed) for seed in (0, 1))
    load_policy(str(one))
    shutil.copy(other / WEIGHTS, one / WEIGHTS)
    with pytest.raises(ConfigError, match="SHA-256"):
        load_policy(str(one))
    shutil.rmtree(one)
    shutil.copytree(other, one)  # with its manifest
    with pytest.raises(ConfigError, match="another run"):
        load_policy(str(one))
    load_policy(str(shutil.copytree(other, tmp_path / "elsewhere")))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": []}', '{"files": {"model.safetensors": 3}}'])
def test_a_damaged_manifest_is_refused(content: str, tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    (policy / MANIFEST).write_text(content)
    with pytest.raises(ConfigError, match=MANIFEST):
        load_policy(str(policy))


ADDED = ("added_tokens.json", "special_tokens_map.json", "adapter_config.json", "merges.txt", "vocab.json", "other.safetensors")


@pytest.mark.parametrize("name", [*ADDED, "additional_chat_templates/tool.jinja"])
def test_an_added_file_that_a_loader_would_read_is_refused(name: str, tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    (policy / "notes.md").write_text("a file that no loader reads")
    load_policy(str(policy))
    (policy / name).parent.mkdir(exist_ok=True)
    (policy / name).write_text("{}")
    for read in (load_policy, weights_hash, *([] if "safetensors" in name else [load_tokens])):
        with pytest.raises(ConfigError, match=name):
            read(str(policy))


def test_a_policy_may_get_another_chat_template_and_a_warning_names_it(tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    (policy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    for read in (load_policy, load_tokens, weights_hash):
        with pytest.warns(UserWarning, match=r"chat_template\.jinja: not in the manifest, so it was added later"):
            read(str(policy))


def test_a_template_that_was_saved_is_known_and_another_one_is_named(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    save_policy(tiny_llama(), tokenizer, policy := tmp_path / "policy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tokens(str(policy))
    (policy / "chat_template.jinja").write_text("{{ messages[1]['content'] }}")
    with pytest.warns(UserWarning, match=r"chat_template\.jinja: "):
        load_tokens(str(policy))


def test_a_policy_is_readable_by_those_who_can_read_its_folder(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        policy = saved(tmp_path / "policy")
    finally:
        os.umask(former)
    assert {stat.S_IMODE(file.stat().st_mode) for file in policy.iterdir()} == {0o640}


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file that counts as large, and how often files were hashed."""
    counted, later = [], SimpleNamespace(s=10.0)
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 1)
    monkeypatch.setattr(hashes, "file_sha256", lambda file: counted.append(file) or file_sha256(file))
    now = hashes.time.time
    monkeypatch.setattr(hashes, "time", SimpleNamespace(time=lambda: now() + later.s))
    (file := tmp_path / "weights").write_bytes(b"weights" * 100)
    return SimpleNamespace(file=file, counted=counted, later=later)


def test_a_hash_is_computed_once(hashed: Any) -> None:
    known = {hashes.cached_sha256(hashed.file) for _ in range(3)}
    assert known == {file_sha256(hashed.file)} and len(hashed.counted) == 1


@pytest.mark.parametrize("damage", [flip_bit, zero, truncate, lambda file: file.write_bytes(b"others")])
def test_a_changed_file_is_hashed_again(hashed: Any, damage: Callable[[Path], None]) -> None:
    before = hashes.cached_sha256(hashed.file)
    damage(hashed.file)
    assert hashes.cached_sha256(hashed.file) == file_sha256(hashed.file) != before


def test_the_hash_of_a_file_that_changed_just_now_is_not_kept(hashed: Any) -> None:
    hashed.later.s = 0.0
    hashes.cached_sha256(hashed.file)
    hashes.cached_sha256(hashed.file)
    assert len(hashed.counted) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"sha256": 3}'])
def test_a_damaged_entry_is_no_hash(hashed: Any, content: str, tmp_path: Path) -> None:
    before = hashes.cached_sha256(hashed.file)
    (entry,) = (tmp_path / "cache" / "hashes").iterdir()
    assert json.loads(entry.read_text())["sha256"] == before
    entry.write_text(content)
    assert hashes.cached_sha256(hashed.file) == before
