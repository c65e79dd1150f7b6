"""benchmarks/real.py on a tiny model: every arm runs, counts the same tokens, and the last line has its ratios."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.real_work import SMOLLM2, WORKLOADS, Passes, small

ROOT = Path(__file__).parents[2]
KEYS = {f"{kind}_{name}" for kind in ("textbook", "floor", "own", "bytes") for name in WORKLOADS} | {"trl_w1", "generate_b256"}


def bench(*words: str) -> tuple[str, dict[str, float | None]]:
    """Its output and its last line."""
    command = [sys.executable, str(ROOT / "benchmarks" / "real.py"), "--tiny", "--threads", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_own_arms_take_turns_and_the_last_line_has_the_ratios() -> None:
    out, ratios = bench("--arms", "ours", "textbook", "sft", "sampler", "generate", "--workloads", "w1", "w3", "sft", "b256")
    assert set(ratios) == KEYS
    assert ratios["trl_w1"] is None and ratios["textbook_w2"] is None
    assert all(ratios[name] > 0 for name in ("textbook_w1", "floor_w1", "own_w3", "bytes_w3", "generate_b256"))  # type: ignore[operator]
    turns = [line.split()[2] for line in out.splitlines() if line.startswith("  turn ")]
    assert turns == ["ours", "textbook"] * 2 + ["sft", "sampler", "generate"]
    parts = next(line for line in out.splitlines() if line.startswith("  ours ") and "backward" in line)
    assert all(label in parts for label in ("sample", "reference", "backward", "optimizer", "rest"))
    assert "MISSED" in out and "because: " in out  # nothing is near its floor at this size


@pytest.mark.slow
def test_minutes_take_a_step_against_the_textbook() -> None:
    out, ratios = bench("--minutes", "0.1", "--workloads", "w4")
    assert all(ratios[f"{kind}_w4"] > 0 for kind in ("textbook", "floor", "own"))  # type: ignore[operator]
    turns = [line.split()[1:3] for line in out.splitlines() if line.startswith("  turn ")]
    assert turns[:2] == [["1", "ours"], ["1", "textbook"]] and ratios["trl_w1"] is None


@pytest.mark.slow
def test_an_arm_that_is_not_installed_is_named_with_the_command() -> None:
    out, ratios = bench("--arms", "llama", "vllm", "--vllm-python", "/no/such/python", "--workloads", "b64")
    if importlib.util.find_spec("vllm") is None:
        assert "vllm       not installed: make .venv-vllm/.installed" in out
    assert ratios == dict.fromkeys(KEYS)


def test_trl_takes_turns_with_the_loop() -> None:
    pytest.importorskip("trl")
    out, ratios = bench("--arms", "ours", "trl", "--workloads", "w1", "w3")
    assert ratios["trl_w1"] is not None and ratios["trl_w1"] > 0
    assert [line.split()[2] for line in out.splitlines() if line.startswith("  turn ")] == ["ours", "trl"] * 2
    parts = next(line for line in out.splitlines() if line.startswith("  trl ") and "backward" in line)
    assert all(
        float(parts.split(label)[1].split()[0]) > 0 for label in ("sample", "reference", "policy forward", "backward")
    )


def test_sft_of_trl_takes_turns_with_ours() -> None:
    pytest.importorskip("trl")
    out, _ = bench("--arms", "sft", "sft-trl", "--workloads", "sft")
    assert "SFT: a step of TRL's SFTTrainer takes " in out and "sft-trl: " not in out.partition("sft-trl: torch")[2]


def test_the_floor_counts_prompts_once_and_no_last_token() -> None:
    passes = Passes.of([[1, 2, 3], [1, 2, 4, 5]], [2, 2, 3, 1])
    assert (passes.rows, passes.logits) == (7 + 4, 2 + 4)
    assert Passes.of([[1, 2, 3], [1, 2, 4, 5]], [2, 2, 3, 1], tree=True).rows == 5 + 4
    # by hand: 30 layers of q and o (576 x 576), k and v (576 x 192) and three of (576 x 1536)
    assert SMOLLM2.body == 2 * 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert passes.operations(SMOLLM2, 4) == 4 * (11 * SMOLLM2.body + 6 * 2 * 49152 * 576)


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_begin_alike_and_lengths_are_within_the_limit(name: str) -> None:
    for work in (WORKLOADS[name], small(WORKLOADS[name])):
        prompts, lengths = work.ids(200), work.lengths()
        assert {tuple(ids[: work.shared]) for ids in prompts} == {tuple(prompts[0][: work.shared])}
        assert len({tuple(ids) for ids in prompts}) == work.prompts
        assert all(work.least <= len(ids) <= work.most and min(ids) > 0 and max(ids) < 199 for ids in prompts)
        assert len(lengths) == work.rows and max(lengths) <= work.new and (len(set(lengths)) > 1) == work.uneven


def test_a_part_inside_another_counts_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    clock = importlib.import_module("real_arms").Clock("cpu")
    times = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr(clock, "now", lambda: next(times))
    with clock.part("outer"), clock.part("inner"):
        pass
    assert clock.taken() == {"inner": 3.0, "outer": 3.0} and clock.taken() == {}


def test_products_at_their_shapes_add_up_to_the_passes_and_bytes_to_what_a_step_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    floors = importlib.import_module("real_floors")
    prompts, lengths = [[1, 2, 3], [1, 2, 4, 5]], [2, 2, 3, 1]
    assert floors.decode_sizes(lengths) == {3: 1, 1: 1} and floors.decode_sizes([3] * 17) == {32: 2}
    parts = floors.parts(prompts, lengths, step=True)
    rows = {part: sum(n * times for _, sizes, _ in products for n, times in sizes.items()) for part, products in parts.items()}
    assert rows == {"sample": 7 + 4, "reference": 7 + 4, "backward": 2 * (7 + 4)}
    weights, token = SMOLLM2.body + SMOLLM2.logits, 2 * 30 * 3 * 64 * 2  # two bytes a weight, two operations
    # own tokens: 1, 1 and 1 + 2 are read; the first prompt at one step, the second at two
    assert floors.bytes_read(prompts, lengths, 2, SMOLLM2) == 3 * weights + token * (1 + 1 + 3 + 3 * 1 + 4 * 2)
