"""What a step costs, from a probe: the scaling by hand, and a probe of a small model against its own steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from byte_tokenizer import CHATML
from chat_policy import chat_policy
from sage_rlvr.cli.app import main
from sage_rlvr.config import TrainConfig, read_recipe
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.counts import footprint, memory, probe, room
from sage_rlvr.training.counts.probe import Cost, decoding, line, survival
from sage_rlvr.training.loop import build, train_step

SMALL = {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 8}


def config(**edits: Any) -> TrainConfig:
    found = read_recipe("grpo", [("rollout", json.dumps(SMALL)), *((k, json.dumps(v)) for k, v in edits.items())], "train")
    assert isinstance(found, TrainConfig)
    return found


def cost(**changes: Any) -> Cost:
    known: dict[str, Any] = {
        "config": config(), "prompt_tokens": 40, "rows": 1000.0, "length": 6.0, "known": 1.0, "prefill": 0.5, "decode": (0.1, 0.01),
        "alive": (1.0, 0.5), "sampling": 2.0, "rest": 6.0, "memory": (1e9, 4e6), "room": 6 * 10**9, "passing": 1000.0, "rate": 2e11,
        "loading": 3.0, "took": 9.0,
    }  # fmt: skip
    return Cost(**known | changes)


def test_a_line_through_two_measurements_has_no_negative_part() -> None:
    assert line({10: 1.0, 30: 2.0}) == pytest.approx((0.5, 0.05))
    assert line({10: 1.0, 30: 6.0}) == pytest.approx((0.0, 0.2))  # noise: nothing is saved by a row less than none
    assert line({10: 2.0, 30: 1.0}) == (1.0, 0.0)
    assert line({20: 3.0}) == (0.0, 0.15)


def test_completions_that_were_cut_end_later_at_the_rate_of_those_before() -> None:
    """Four completions of 2, 4, 4 and 4 tokens, the last three cut: one of 14 tokens ended one."""
    found = survival(torch.tensor([2, 4, 4, 4]), 4, 7)
    assert found == pytest.approx((1, 1, 0.75, 0.75, 0.75 * 13 / 14, 0.75 * (13 / 14) ** 2, 0.75 * (13 / 14) ** 3))
    assert survival(torch.tensor([1, 2]), 3, 3) == pytest.approx((1, 0.5, 0))
    assert sum(survival(torch.tensor([2, 3]), 4, 4)) == 2.5  # the mean length


def test_decode_steps_have_fewer_rows_as_completions_end() -> None:
    assert decoding((0.1, 0.01), 8, (1.0, 0.5, 0.25, 0.0)) == pytest.approx((0.1 + 0.04) + (0.1 + 0.02))


def test_what_prompts_begin_with_counts_once() -> None:
    assert room.distinct([[1, 2, 3], [1, 2, 4], [1, 2, 3], [5]]) == 5


def test_a_step_that_does_not_fit_names_the_setting_that_helps() -> None:
    fits, not_ = cost(), cost(room=3 * 10**9)
    assert fits.fits and "5.0 GB at the peak, fits in the 6.0 GB that are free" in fits.room_line()
    assert not not_.fits and "does NOT fit in the 3.0 GB" in not_.room_line()
    assert "set updates.micro_batch 2 or less" in not_.room_line()  # half of the activations of four groups
    assert "a single group has no room: set a smaller rollout.group_size" in cost(room=15 * 10**8).room_line()
    assert cost(memory=None).fits and "not measured" in cost(memory=None).room_line()


def test_the_prediction_in_words() -> None:
    text = "\n".join(cost(known=0.5).lines())
    assert "seconds  8.0: 2.0 sampling, 6.0 scores and update" in text and "0.20 TFLOP/s" in text and "1,000 rows" in text
    assert "50% of the probe's did not end within it" in text
    assert cost().evaluation(10, 4) == pytest.approx(6 + 10 * (0.5 + 0.1 + 0.02))


def test_room_is_not_claimed_where_the_system_does_not_say() -> None:
    assert cost(room=None).fits and cost(room=None).room_line() == "not measured on this system"


def test_free_memory_is_that_of_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU beside a GPU this process holds its resident memory, and nothing of the GPU's counts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(memory, "unused_memory", lambda config: 1000)
    monkeypatch.setattr(memory, "_bytes_in", lambda file, name: 24)
    assert memory.free_memory(config(**{"engine": {"device": "cpu"}})) == 1024


def test_other_engines_and_models_without_room_are_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"engine\.name trl: only the loop is probed"):
        probe.probe(config(**{"engine": {"name": "trl"}}))
    monkeypatch.setattr(probe, "free_memory", lambda config: 10**6)
    with pytest.raises(ConfigError, match=r"weights, gradients and optimizer take 0\.0 GB, and 0\.0 GB are free"):
        probe.probe(config())


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"updates": {"minibatches": 2, "micro_batch": 1}}])
def test_a_probe_predicts_the_steps_of_this_machine(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Within a factor of two beside other processes; on a quiet machine it is 1.3."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4}
    model = chat_policy(tmp_path / "policy", CHATML, **sizes)
    task = {"name": "countdown_chat", "counts": {3: 1.0}, "max_number": 6, "max_target": 20, "train_problems": 60}
    big = {"prompts_per_step": 16, "group_size": 8, "max_new_tokens": 16}
    tree = {"model": model, "task": task, "rollout": big, "optimizer.lr": 1e-6, "engine": {"threads": 1}, **changes}
    known = read_recipe("real/grpo", [(key, json.dumps(value)) for key, value in tree.items()], "train")
    assert isinstance(known, TrainConfig)
    loop = build(known)
    train_step(loop, 0)
    for _ in range(3):  # other processes may take the cores between a probe and the steps that it predicts
        found = probe.probe(known)
        memory.reset_peak(loop)
        took = sorted(probe._step(loop, step) for step in (1, 2, 3))[1]
        if took / 2 < found.seconds < 2 * took:
            break
    assert took / 2 < found.seconds < 2 * took
    peak = memory.peak_memory(loop)
    assert peak is None or (found.peak is not None and peak / 2 < found.peak < 2 * peak)


@pytest.mark.slow
def test_show_and_doctor_say_what_a_step_takes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(probe, "probe", lambda config, say, base: asked.append(config.model) or cost(config=config))
    for words in ("show grpo", "doctor", "doctor grpo"):
        with pytest.raises(SystemExit) as caught:
            main([*words.split(), "--model", "embedded"])
        assert caught.value.code == 0 and "A step on this machine, from a probe of 9 s" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["show", "grpo"])
    assert "probe" not in capsys.readouterr().out and asked == ["embedded"] * 3
    with pytest.raises(SystemExit):
        main(["show", "paper/full_qwen_3b_grpo", "--model", "Qwen/Qwen2.5-3B"])
    assert "no probe on this machine: it has no weights of Qwen/Qwen2.5-3B" in capsys.readouterr().out


def test_a_run_warns_before_its_first_step_where_a_step_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(config())
    assert room.lacks_room(loop, 0) == ""  # a small model
    monkeypatch.setattr(room, "LARGE", 1000)
    monkeypatch.setattr(room, "unused_memory", lambda config: 10**12)
    assert room.lacks_room(loop, 0) == ""
    state = 12 * sum(p.numel() for p in loop.policy.parameters())
    monkeypatch.setattr(room, "unused_memory", lambda config: state + 1000)
    said = room.lacks_room(loop, 0)
    assert "memory: a step takes up to" in said and "a single group has no room" in said
    full = footprint.Size.of("embedded")
    prompts = [loop.ask(problem).ids for problem in loop.problems[:4]]
    assert full.numbers == state // 12 and all(prompts)
    activations = footprint.forward_pass(full, 1, 64, False).kept  # of 64 rows
    monkeypatch.setattr(room, "unused_memory", lambda config: state + activations)
    assert "set updates.micro_batch 1 or less" in room.lacks_room(loop, 0)
    assert room.lacks_room(replace(loop, config=config(**{"updates": {"micro_batch": 1}})), 0) == ""
