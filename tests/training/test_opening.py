"""What a run prints before step 1 and after it: setting, prompt as it is trained on, warning, dose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from chat_policy import EMPTY, OFF, chat_policy, guided_config, rendered
from sage_rlvr.api.train import train
from sage_rlvr.config import EngineConfig, TrainConfig, decode, dump
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.errors import ConfigError
from sage_rlvr.models import devices
from sage_rlvr.models.policy import load_tokens
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_record
from sage_rlvr.training import loop, opening, sft

SETTING = r"parameters, float32 on cpu with 1 (of \d+ )?threads?( \(engine\.threads\))?, lr 1e-4 constant"


class Notes(Silent):
    """Keeps the notes, and how many steps were done at each."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.done = 0

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        self.done = done

    def note(self, line: str) -> None:
        self.lines.append((self.done, line))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)


def run_of(folder: Path, config: TrainConfig) -> Notes:
    notes = Notes()
    with RunDir.open(folder / "run", dump(config)) as run:
        loop.train(config, run, notes)
    return notes


@pytest.mark.parametrize("options", [{}, OFF])
def test_the_prompt_that_is_printed_is_the_one_that_is_trained_on(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trained, scores = [], loop.step_scores

    def seen(made: Any, groups: Any) -> Any:
        trained.extend(groups.prompts)
        return scores(made, groups)

    monkeypatch.setattr(loop, "step_scores", seen)
    config = guided_config(tmp_path, chat_template_kwargs=options)
    notes = run_of(tmp_path, config)
    tokenizer = load_tokens(config.model).tokenizer
    messages = config.task.messages(config.task.problems("train")[0])  # type: ignore[union-attr]
    ids = rendered(tokenizer, messages, **options)
    assert [list(prompt) for prompt in trained] == [ids, ids]
    assert (0, opening.decoded(tokenizer, ids)) in notes.lines
    assert f"first prompt, {len(ids)} tokens:" in notes.text and ("</think>" in notes.text) == bool(options)


def test_objective_setting_and_prompt_come_before_step_1_and_the_dose_after_it(tmp_path: Path):
    notes = run_of(tmp_path, guided_config(tmp_path))
    objective, setting, prompt, dose = notes.lines
    assert objective == (0, guided_config(tmp_path).method.describe())
    assert re.search(SETTING, setting[1]) and setting[0] == 0 and prompt[1].startswith("first prompt")
    assert re.fullmatch(r"after step 1: Branch: q != 1 at [\d.]+% of the tokens, clamped at [\d.]+%, mean q [\d.]+", dose[1])
    assert "learning rate" not in {one["kind"] for one in read_record(tmp_path / "run").get("warnings", ())}


def test_a_run_that_continues_prints_its_setting_alone(tmp_path: Path):
    run_of(tmp_path, guided_config(tmp_path))
    (line,) = run_of(tmp_path, guided_config(tmp_path, steps=3)).lines
    assert re.search(SETTING, line[1])
    assert run_of(tmp_path, guided_config(tmp_path, steps=3)).lines == []


def test_a_high_rate_for_a_large_model_is_warned_of_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "LARGE", 10_000)
    with pytest.warns(UserWarning, match=r"optimizer\.lr = 1e-4 with full fine-tuning of [\d.]+ k parameters.*1e-6"):
        run_of(tmp_path, guided_config(tmp_path))
    kept = {one["kind"]: one["step"] for one in read_record(tmp_path / "run")["warnings"]}
    assert kept["learning rate"] == 0


def setting(**changes: Any) -> opening.Setting:
    given = {"parameters": 135_000_000, "dtype": "float32", "device": "cpu", "lr": 1e-4, "schedule": "constant"}
    return opening.Setting(**given | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"trained": 135_000_000}, True),
        ({"trained": 460_000}, False),
        ({"lr": 1e-5}, False),
        ({"parameters": 20_000_000}, False),
        ({"parameters": None}, False),
    ],
)
def test_the_warning_is_for_full_fine_tuning_of_large_models_at_high_rates(changes: dict[str, Any], warned: bool):
    assert bool(setting(**changes).warning) == warned


def test_the_setting_names_what_is_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "cores", lambda: 8)
    line = setting(idle=1).line
    assert line == (
        f"135 M parameters, float32 on cpu with {torch.get_num_threads()} of 8 threads (engine.threads), lr 1e-4 constant; "
        "a GPU is there and unused (engine.device: auto)"
    )
    assert "7 GPUs are there and unused" in setting(device="cuda", idle=7).line and "threads" not in setting(device="cuda").line
    assert setting(trained=460_000).line.startswith("135 M parameters, 460 k of them trained, float32")


@pytest.mark.parametrize("kind", ["large", "small", "auto", "slow"])
def test_a_large_model_in_float32_is_told_of_the_faster_dtype(kind: str, monkeypatch: pytest.MonkeyPatch):
    """As `auto` decides: a large model, of a recipe in float32, on a device that multiplies in bfloat16."""
    monkeypatch.setattr(devices, "LARGE", 100 if kind == "small" else 5)
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: kind != "slow")
    engine = EngineConfig(dtype="auto" if kind == "auto" else "float32")
    said = devices.faster_dtype(torch.nn.Linear(3, 3), engine)
    assert said == ("engine.dtype: auto" if kind == "large" else "")
    assert setting(faster=said).line.endswith("; bfloat16 is faster here (engine.dtype: auto)") == bool(said)


def test_a_gpu_beside_a_run_on_the_cpu_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "is_there", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [opening.idle("cpu"), opening.idle("cuda"), opening.idle("cuda", 2)] == [2, 1, 0]


def test_the_dose_is_of_a_guide_that_acts():
    metrics = {"guide/active_frac": 0.25, "guide/clamped_frac": 0.01, "guide/q_mean": 1.02}
    assert opening.dose(Anchor(0.1, guide=Branch()), metrics).startswith("Branch: q != 1 at 25.0% of the tokens, clamped at 1.0%")
    assert not opening.dose(Anchor(0.1, guide=Flat()), metrics) and not opening.dose(None, metrics)
    assert not opening.dose(Anchor(0.1, guide=Branch()), {})


def test_a_wide_gap_of_the_sampler_is_told():
    assert "by 0.57 at most (sampler/logp_gap_max)" in opening.gap({"sampler/logp_gap_max": 0.57})
    assert not opening.gap({"sampler/logp_gap_max": 1e-4})


def test_a_long_prompt_is_cut_in_the_middle_and_white_space_at_its_end_is_shown(tmp_path: Path):
    tokenizer = load_tokens(chat_policy(tmp_path)).tokenizer
    text = opening.decoded(tokenizer, tokenizer("a" * 3000 + "\n\n", add_special_tokens=False)["input_ids"])
    assert "[... 1,002 characters ...]" in text and text.endswith("aaa\\n\\n") and text.startswith("first prompt, 3002 tokens:")


# ---- through the command


def test_errors_come_before_the_objective(tmp_path: Path):
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.enable_thinkin:"):
        tree = dump(guided_config(tmp_path, chat_template_kwargs={"enable_thinkin": False}))
        (tmp_path / "mine.yaml").write_text(json.dumps(tree))
        train(tmp_path / "mine.yaml", run=tmp_path / "run", say=said.append)
    assert "minimize" not in "".join(said) and not (tmp_path / "run").exists()


def test_quiet_prints_none_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.yaml").write_text(json.dumps(dump(guided_config(tmp_path))))
    train(tmp_path / "mine.yaml", run=tmp_path / "quiet", quiet=True)
    found = capsys.readouterr()
    assert not re.search("minimize|parameters|first prompt|after step 1", found.out + found.err)
    said: list[str] = []
    train(tmp_path / "mine.yaml", run=tmp_path / "loud", say=said.append)
    for words in ("minimize", "parameters", "first prompt", "after step 1"):
        assert sum(words in line for line in said) == 1, words


def test_sft_prints_its_setting_and_first_example(tmp_path: Path):
    config = decode(sft.SftConfig, {"steps": 1, "batch_size": 2, "model": {"hidden": 32, "layers": 1, "heads": 2, "mlp": 32}})
    notes = Notes()
    with RunDir.open(tmp_path / "sft", dump(config), kind="sft") as run:
        sft.train_sft(config, run, tmp_path / "out", notes)
    assert re.search(r"k parameters, float32 on cpu", notes.lines[0][1])
    assert re.fullmatch(r"first example, \d+ tokens, \d+ of them learned: .*=.*", notes.lines[1][1])
    assert EMPTY not in notes.text
