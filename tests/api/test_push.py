"""The model card of a run of the loop, and its upload to the Hub, with the Hub's client replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import sage_rlvr
from command import call
from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.hashes import NO_RESULTS
from sage_rlvr.training.model_card import facts_of, render

Recipe = Callable[..., Path]


class Hub:
    """In place of HfApi: notes the calls, and what would be uploaded."""

    calls: list[tuple[str, dict[str, Any]]]
    error: Exception | None = None

    def create_repo(self, repo: str, **given: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("create_repo", {"repo_id": repo, **given}))

    def upload_folder(self, **given: Any) -> str:
        self.calls.append(("upload_folder", given))
        return f"https://huggingface.co/{given['repo_id']}/commit/1"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    kind = type("HfApi", (Hub,), {"calls": [], "error": None})
    monkeypatch.setattr(huggingface_hub, "HfApi", kind)
    return kind


@pytest.fixture
def run(write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    method = "{name: sage, base: {name: grpo, beta: 0.05}, guide: branch}"
    return sage_rlvr.train(write_recipe(method), run="run", seed=3, quiet=True).path


def test_a_run_of_the_loop_has_a_card(run: Path) -> None:
    card = (run / "policy" / "README.md").read_text()
    record = json.loads((run / "run.json").read_text())["config"]
    front, _, text = card.removeprefix("---\n").partition("\n---\n")
    assert '- "sage-rlvr"' in front and '- "trl"' not in front
    assert "base_model" not in front, "a local folder is no model of the Hub"
    hashed = ("reference: local policy, SHA-256", "reward `countdown`: verifier countdown-v1-")
    for words in ("k3", "Branch(", *hashed, "trained: 2 steps, 2 updates"):
        assert words in text, words
    assert f"| optimizer.lr | {record['optimizer']['lr']} |" in text and "| seed | 3 |" in text
    assert str(Path(record["model"]).parent) not in card, "a card for others has no path of this machine"


def test_a_card_names_the_kl_that_the_engine_descends_and_no_folder_of_its_reference(run: Path) -> None:
    start = str(run / "policy")
    method = {"name": "grpo", "beta": 0.1, "source": start, "estimator": "exact", "divergence": "forward"}
    recipe = {"steps": 1, "model": start, "method": method}
    card = render(facts_of(decode(TrainConfig, recipe)))
    assert "estimator exact, divergence forward" in card and "exact_forward(pi, pi_ref)" in card and "k3" not in card
    assert "pi_ref = local policy, SHA-256 " in card and start not in card
    assert card.count('- "grpo"') == 1
    card = render(facts_of(decode(TrainConfig, recipe | {"engine": {"name": "verl"}})))
    assert "estimator k3 of the sampled token" in card and "0.1 * k3(pi, pi_ref)" in card
    assert "exact_forward" not in card and start not in card
    stored = {"name": "likelihood", "policy": False, "file": f"{Path.cwd()}/right.jsonl"}
    method = {"name": "compose", "advantage": "group_centered", "beta": 0, "extras": [stored]}
    card = render(facts_of(decode(TrainConfig, recipe | {"method": method})))
    assert "the file right.jsonl" in card and str(Path.cwd()) not in card


def test_push_uploads_policy_and_card(run: Path, hub: type[Hub], capsys: pytest.CaptureFixture[str]) -> None:
    (run / "policy" / "notes.txt").write_text("mine")
    assert call("push", run, "owner/name", "--private") == 0
    assert capsys.readouterr().out.strip() == "https://huggingface.co/owner/name/commit/1"
    (made, created), (sent, uploaded) = hub.calls
    assert (made, sent) == ("create_repo", "upload_folder")
    assert created == {"repo_id": "owner/name", "private": True, "exist_ok": True}
    assert Path(uploaded["folder_path"]) == run / "policy"
    chosen = huggingface_hub.utils.filter_repo_objects(
        [file.name for file in (run / "policy").iterdir()], allow_patterns=uploaded["allow_patterns"]
    )
    assert {"README.md", "config.json", "model.safetensors"} < set(chosen) and "notes.txt" not in set(chosen)


def test_push_from_python_takes_a_run(run: Path, hub: type[Hub]) -> None:
    assert sage_rlvr.push(run, "owner/name").endswith("/commit/1")
    assert hub.calls[0][1]["private"] is False


def test_push_writes_results_into_the_card_that_it_uploads(hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, right in (("base", 1), ("rl", 3)):
        Path(f"{name}.jsonl").write_text("".join(f'{{"id": {i}, "n": 4, "c": {right}}}\n' for i in range(20)))
    Path("policy").mkdir()
    Path("policy/config.json").write_text("{}")
    Path("policy/README.md").write_text(f"---\ntags:\n- mine\n---\n\nMine.\n\n{NO_RESULTS}\n")
    assert call("push", "policy", "owner/name", "--results", "base.jsonl", "none.jsonl") == 2 and not hub.calls
    assert call("push", "policy", "owner/name", "--results", "base.jsonl", "rl.jsonl") == 0
    card = huggingface_hub.ModelCard.load("policy/README.md")
    assert card.data.model_name == "name" and card.data.tags == ["mine"]
    shown = {one.metric_name: one.metric_value for one in card.data.eval_results}
    assert shown == {"pass@1": 0.75, "pass@2": 1, "pass@4": 1}
    assert "Mine." in card.text and "rl is better at k = 1 to 3; whether it" in card.text and NO_RESULTS not in card.text


@pytest.mark.parametrize("name", ["name", "owner/", "a/b/c"])
def test_a_repository_needs_an_owner(run: Path, hub: type[Hub], name: str) -> None:
    with pytest.raises(ConfigError, match="owner/name"):
        sage_rlvr.push(run, name)
    assert not hub.calls


def test_what_cannot_be_pushed_is_refused_before_the_hub(run: Path, hub: type[Hub]) -> None:
    (run / "policy" / "README.md").unlink()
    with pytest.raises(ConfigError, match="there is no model card"):
        sage_rlvr.push(run, "owner/name")
    (run / "policy" / "README.md").write_text("mine")
    (run / "policy" / "config.json").rename(run / "policy" / "adapter_config.json")
    (run / "policy" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(run)}))
    with pytest.raises(ConfigError, match="which nobody else has"):
        sage_rlvr.push(run, "owner/name")
    shutil.rmtree(run / "policy")
    with pytest.raises(ConfigError, match=r"contains no policy.*sage-rlvr train RECIPE --run run"):
        sage_rlvr.push(run, "owner/name")
    assert not hub.calls


def test_an_error_of_the_hub_says_what_to_do(run: Path, hub: type[Hub]) -> None:
    hub.error = huggingface_hub.errors.LocalTokenNotFoundError("Token is required")
    with pytest.raises(ConfigError, match=r"owner/name: the upload failed: .*Token is required\. Log in with `hf auth login`"):
        sage_rlvr.push(run, "owner/name")
