"""Logs of every program are read by content, and what their curves say. Most are written here; those in real/ were written by
TRL, its trackers, and verl's trainer (tests/verl_engine/write_logs.py, write_ray_logs.py)."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.errors import DataError
from sage_rlvr.symptoms.causes import CAUSES, PAGE
from sage_rlvr.symptoms.logs.curves import Curve
from sage_rlvr.symptoms.logs.diagnose import LINES, diagnose, diagnosis_of
from sage_rlvr.symptoms.logs.picture import picture
from sage_rlvr.symptoms.logs.readers import read_log
from sage_rlvr.symptoms.logs.table import CompletionRow, LogTable

STEPS = range(1, 31)
REAL = Path(__file__).with_name("real")
"""Logs of eight steps on the built-in policy, written by the programs in their names; timings are left out, floats shortened."""


def noise(step: int, size: float = 0.01) -> float:
    return size * math.sin(12.9898 * step)


def sound(step: int) -> dict[str, float]:
    """verl's metrics of a run that learns."""
    return {
        "actor/entropy": 0.6 - 0.005 * step + noise(step),
        "actor/kl_loss": 0.002 * step,
        "actor/pg_clipfrac": 0.001,
        "actor/grad_norm": 0.3 + noise(step, 0.05),
        "actor/lr": 1e-6,
        "critic/score/mean": 0.2 + 0.01 * step + noise(step, 0.02),
        "response_length/mean": 200.0 + step,
        "response_length/clip_ratio": 0.02,
    }


def console(rows: list[tuple[int, dict[str, float]]], *, lines: bool = False) -> str:
    """As verl's LocalLogger prints through Ray: one line a step, or (by some launchers) a value a line."""
    text = ["(TaskRunner pid=247607) Training Progress:   0%|          | 0/140 [00:00<?, ?it/s]"]
    for step, values in rows:
        parts = [f"step:{step}", *(f"{name}:{value!r}" for name, value in values.items())]
        text.append("\x1b[36m(TaskRunner pid=247607)\x1b[0m " + ("\n - ".join(parts) if lines else " - ".join(parts)))
    return "\n".join(text)


@pytest.mark.parametrize("lines", [False, True])
def test_the_console_of_verl(tmp_path: Path, lines: bool):
    rows = [(step, sound(step)) for step in STEPS]
    rows.insert(0, (0, {"val-core/openai/gsm8k/acc/mean@1": 0.31}))
    file = tmp_path / "run.log"
    file.write_text(console(rows, lines=lines))
    table = read_log(file)
    assert table.program == "verl" and table.steps == list(range(31))
    assert table.columns["reward"][7] == sound(7)["critic/score/mean"] and table.columns["held_out"] == {0: 0.31}
    assert diagnose(file).report.first is None


def test_numbers_of_numpy_on_the_console(tmp_path: Path):
    file = tmp_path / "run.log"
    file.write_text("step:1 - actor/entropy:np.float64(0.5) - critic/score/mean:1e-05 - actor/grad_norm:nan - actor/lr:1e-06")
    table = read_log(file)
    assert table.columns["entropy"] == {1: 0.5} and table.columns["reward"] == {1: 1e-5}
    assert math.isnan(table.columns["grad_norm"][1])
    assert diagnose(file).report.first == "not-finite"


def test_the_file_logger_and_the_dumps_of_verl(tmp_path: Path):
    logger = tmp_path / "metrics.jsonl.verl.jsonl"
    logger.write_text("".join(json.dumps({"step": step, "data": sound(step)}) + "\n" for step in STEPS))
    assert read_log(logger).columns["kl"][30] == 0.06
    dumps = tmp_path / "rollouts"
    dumps.mkdir()
    for step in range(1, 9):
        texts = [("a" * (4 + 3 * step * member), float(member) / 3) for member in range(4) for _ in range(4)]
        common = {"gts": "5", "step": step}
        rows = [{"input": f"q{i % 4}", "output": text, "score": score} | common for i, (text, score) in enumerate(texts)]
        (dumps / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_log(dumps)
    assert table.program == "verl" and len(table.completions) == 128 and table.completions[0].gold == "5"
    assert table.columns["reward"][1] == 0.5 and table.columns["unmixed"] == {step: 0.0 for step in range(1, 9)}
    assert diagnose(dumps).report.first == "pays-length"


def trl_row(step: int, **changes: float) -> dict[str, float]:
    """A row of log_history."""
    row = {
        **{"step": step, "reward": 0.2 + 0.01 * step + noise(step, 0.02), "frac_reward_zero_std": 0.3},
        "entropy": 0.6 - 0.004 * step,
        **{"kl": 0.002 * (step - 1), "completions/mean_length": 200.0, "completions/clipped_ratio": 0.02, "learning_rate": 1e-6},
        **{"grad_norm": 0.3, "loss": 0.001 * step, "clip_ratio/region_mean": 0.001},
    }
    return row | {name.replace("__", "/"): value for name, value in changes.items()}


def state(folder: Path, rows: list[dict[str, float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows, "global_step": len(rows)}))
    return folder


def test_the_state_of_a_trl_trainer_in_its_folder_or_a_checkpoint(tmp_path: Path):
    state(tmp_path / "out" / "checkpoint-9", [trl_row(step) for step in STEPS])
    state(tmp_path / "out" / "checkpoint-30", [trl_row(step) for step in STEPS])
    table = read_log(tmp_path / "out")
    assert table.program == "TRL" and "checkpoint-30" in table.source and table.columns["cut"][3] == 0.02
    assert diagnose(tmp_path / "out").report.first is None
    printed = tmp_path / "console.txt"
    printed.write_text("\n".join(str({k: str(v) for k, v in trl_row(step).items()}) for step in STEPS))
    assert read_log(printed).columns["reward"][30] == trl_row(30)["reward"]


def test_exports_of_trackers(tmp_path: Path):
    table = tmp_path / "wandb.csv"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        names = [name for name in trl_row(1) if name != "step"]
        writer.writerow(["Step", *(f"run-7 - train/{name}" for name in names), *(f"run-7 - train/{name}__MIN" for name in names)])
        for step in STEPS:
            values = [trl_row(step)[name] for name in names]
            writer.writerow([step, *values, *values])
    read = read_log(table)
    assert read.program == "TRL" and read.columns["reward"][12] == pytest.approx(trl_row(12)["reward"])
    history = tmp_path / "history.jsonl"
    rows = [{"_step": step - 1, "train/global_step": step} | {f"train/{n}": v for n, v in trl_row(step).items()} for step in STEPS]
    history.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_log(history).columns["entropy"][30] == trl_row(30)["entropy"]
    whole = tmp_path / "history.json"
    whole.write_text(json.dumps(rows))
    assert read_log(whole).steps == read.steps


def test_event_files(tmp_path: Path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in STEPS:
            for name, value in sound(step).items():
                writer.add_scalar(name, value, step)
    table = read_log(tmp_path)
    assert table.program == "verl" and table.columns["reward"][5] == pytest.approx(sound(5)["critic/score/mean"])


@pytest.mark.parametrize("file", sorted(REAL.glob("trl-*")), ids=lambda file: file.name)
def test_logs_that_trl_and_its_trackers_wrote(file: Path):
    if "tfevents" in file.name:
        pytest.importorskip("tensorboard")
    table = read_log(file)
    assert table.program == "TRL" and table.steps[-1] == 8 and not table.notes
    assert [16 * table.columns["reward"][step] for step in range(1, 9)] == pytest.approx([1, 6, 1, 1, 0, 1, 3, 1], abs=1e-3)
    assert {"unmixed", "entropy", "kl", "length", "cut", "clip", "grad_norm", "lr", "loss"} <= table.columns.keys()
    assert diagnosis_of(table).report.first is None


@pytest.mark.parametrize("file", sorted(REAL.glob("verl-*")), ids=lambda file: file.name)
def test_logs_that_verl_wrote(file: Path):
    if "tfevents" in file.name:
        pytest.importorskip("tensorboard")
    table = read_log(file)
    assert table.program == "verl" and table.steps == list(range(1, 9)) and not table.notes
    if file.is_dir():
        assert len(table.completions) == 128 and table.completions[0].gold.isdigit() and "unmixed" in table.columns
    else:
        assert {"entropy", "kl", "length", "cut", "clip", "grad_norm", "gap", "lr", "loss", "beta"} <= table.columns.keys()
        assert [round(32 * table.columns["reward"][step]) for step in range(1, 9)] == [2, 3, 4, 4, 1, 5, 1, 1]
    assert diagnosis_of(table).report.first is None


@pytest.mark.parametrize("kind", ["console.txt", "file.jsonl", "rollouts", "validation"])
def test_logs_of_a_whole_run_of_verl_under_ray(kind: str):
    """tests/verl_engine/write_ray_logs.py: console lines with Ray's colored prefix, and validation in every second step."""
    table = read_log(REAL / f"ray-verl-0.9.1.{kind}")
    assert table.program == "verl" and not table.notes
    assert table.steps == ([2, 4, 6] if kind == "validation" else [1, 2, 3, 4, 5, 6])
    if kind in ("rollouts", "validation"):
        assert len(table.completions) == (48 if kind == "validation" else 192) and all(one.gold for one in table.completions)
    else:
        assert {"entropy", "kl", "length", "cut", "clip", "grad_norm", "gap", "lr", "loss", "beta"} <= table.columns.keys()
        assert table.columns["held_out"][2] == 0.1875
    assert kind == "validation" or table.columns["reward"][2] == 0.21875
    assert diagnosis_of(table).report.first is None


def test_a_log_that_no_reader_knows_is_an_error_of_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = {"a.txt": "hello", "a.json": "{}", "a.jsonl": '{"x": 1}\n', "a.csv": "step,x\n1,2\n", "b.log": "step:1"}
    for name, text in texts.items():
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(DataError, match="no reader knows"):
            read_log(file)
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", str(tmp_path / "a.txt")])
    assert stop.value.code == 2 and "trainer_state.json" in capsys.readouterr().err


# ---- what curves say


def test_a_change_is_found_at_its_step_and_noise_has_none():
    steps = list(range(40))
    draws = np.random.default_rng(0).normal(size=40)
    level = np.where(np.arange(40) < 25, 1.0, 0.2)
    change = Curve.of("entropy", steps, level + 0.05 * draws).change()
    assert change is not None and change.step == 25 and change.before == pytest.approx(1.0, abs=0.05)
    assert Curve.of("entropy", steps, 0.05 * draws).change() is None
    assert Curve.of("entropy", steps, np.ones(40)).change() is None


def test_a_log_that_is_too_short_says_so(tmp_path: Path):
    found = diagnose(state(tmp_path, [trl_row(step) for step in range(1, 4)]))
    assert found.report.first is None and "too short to tell: 3 steps" in found.report.verdict
    assert "nothing wrong seen in 30 steps" in diagnose(state(tmp_path, [trl_row(step) for step in STEPS])).report.verdict
    nothing = tmp_path / "console.log"
    nothing.write_text(console([(step, {"actor/entropy": 0.5, "actor/lr": 1e-6}) for step in STEPS]))
    assert "no reward" in diagnose(nothing).report.verdict and found.report.exit_code == diagnose(nothing).report.exit_code == 1


@pytest.mark.parametrize(("rate", "severity"), [(1e-10, "cannot learn"), (1e-7, "note")])
def test_a_rate_that_still_climbs_is_a_warm_up(tmp_path: Path, rate: float, severity: str):
    rows = [trl_row(step, learning_rate=rate * (step - 1)) for step in range(1, 9)]
    for row in rows:
        del row["kl"]
    (one,) = diagnose(state(tmp_path, rows)).report.findings
    assert (one.cause, one.severity) == ("weights-do-not-move", severity) and "warm-up" in one.sentence


def test_restarts_further_runs_and_gaps_are_told(tmp_path: Path):
    resumed, twice, gap = (tmp_path / f"{name}.jsonl" for name in ("resumed", "twice", "gap"))
    steps = {
        resumed: [*range(1, 21), *range(11, 31)],
        twice: [*range(1, 21), *range(1, 11)],
        gap: [*range(1, 11), *range(40, 51)],
    }
    for file, numbers in steps.items():
        rows = [{"step": step, "data": sound(step) | {"critic/score/mean": place / 100}} for place, step in enumerate(numbers)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_log(resumed)
    assert table.columns["reward"][10] == 0.09 and table.columns["reward"][11] == 0.20 and len(table.steps) == 30
    assert "from 20 to 11: a restart" in table.notes[0]
    table = read_log(twice)
    assert table.steps == list(range(1, 11)) and table.columns["reward"][1] == 0.20
    assert "after step 20 steps begin again at 1" in table.notes[0]
    assert read_log(gap).notes == ["no rows between steps 10 and 40"]
    assert "note: no rows between steps 10 and 40" in diagnose(gap).lines


def test_a_restart_on_the_console_of_trl_is_found_by_its_epochs(tmp_path: Path):
    file = tmp_path / "console.txt"
    epochs = [0.1 * step for step in (*range(1, 13), *range(9, 21))]
    rows = [trl_row(step, epoch=epoch, reward=place) for place, (step, epoch) in enumerate(zip(range(1, 25), epochs, strict=True))]
    file.write_text("\n".join(str(row) for row in rows))
    table = read_log(file)
    assert table.steps == list(range(1, 21)) and table.columns["reward"][9] == 12.0 and "restart" in table.notes[0]


def test_null_is_a_nan_of_a_program_and_an_empty_cell_of_a_tracker(tmp_path: Path):
    rows = [trl_row(step) | ({"reward": None} if step == 9 else {}) for step in STEPS]
    found = diagnose(state(tmp_path, rows))
    assert found.report.first == "not-finite" and found.step == 9
    history = tmp_path / "history.json"
    names = [f"train/{name}" for name in trl_row(1)]
    empty = {name: math.nan for name in names} | {"_step": 90, "profiling/seconds": 1.0}
    history.write_text(json.dumps([{f"train/{name}": value for name, value in trl_row(step).items()} for step in STEPS] + [empty]))
    assert diagnose(history).report.first is None


def test_the_last_of_several_runs_of_tensorboard_is_read(tmp_path: Path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for run, began in (("a", 1e9), ("b", 2e9)):
        with tensorboard.SummaryWriter(str(tmp_path / run)) as writer:
            for step in STEPS:
                for name, value in sound(step).items():
                    writer.add_scalar(name, value + (run == "b"), step, walltime=began + step)
    table = read_log(tmp_path)
    assert table.columns["reward"][5] == pytest.approx(1 + sound(5)["critic/score/mean"]) and "b, the last" in table.notes[0]


# ---- what completions say


def asked(count: int, answer, reward, gold, *, group: int = 4, prompt="What is {a} + {b}?", **more) -> list[CompletionRow]:
    """Completions of sums, four prompts a step. answer, gold and reward: functions of (place, member, sum)."""
    rows = []
    for place in range(count):
        a, b = 10 + 5 * place, 5 + place % 4
        for member in range(group):
            text, right = answer(place, member, a + b), a + b
            paid = reward(place, member, right)
            rows.append(CompletionRow(1 + place // 4, prompt.format(a=a, b=b), text, paid, gold(place, right), **more))
    return rows


def first_of(rows: list[CompletionRow], **columns: float) -> str | None:
    """The cause named first in a table of completions, beside curves of a run with this reward."""
    steps = sorted({one.step for one in rows})
    mean = {step: float(np.mean([one.reward for one in rows if one.step == step])) + 1e-3 * step for step in steps}
    curves = {"reward": mean} | {name: dict.fromkeys(steps, value) for name, value in columns.items()}
    return diagnosis_of(LogTable(program="TRL", source="a", columns=curves, completions=rows)).report.first


def often(place: int, member: int, right: int) -> str:
    """Right three times of four."""
    return f"That is {right}." if member else f"That is {right + 1}."


def test_golds_of_a_sound_run_and_of_a_weak_policy_are_not_suspected():
    assert first_of(asked(24, often, lambda p, m, r: float(m > 0), lambda p, r: str(r))) is None
    weak = asked(24, lambda p, m, r: f"{r + 7 * m + p % 3 + 1}", lambda p, m, r: 0.0, lambda p, r: str(r))
    assert first_of(weak) is None
    yes = asked(24, lambda p, m, r: "yes", lambda p, m, r: float(m > 0), lambda p, r: "yes")
    assert first_of(yes) is None


def test_golds_that_a_reward_does_not_read_are_named():
    def unpaid(place: int, member: int, right: int) -> float:
        return 0.0

    assert first_of(asked(24, often, unpaid, lambda p, r: f"{r} apples")) == "gold-unreadable"
    assert first_of(asked(24, often, unpaid, lambda p, r: str(r))) == "answer-elsewhere"
    assert first_of(asked(24, often, unpaid, lambda p, r: str(900 + p))) is None


def test_golds_of_another_row_or_column_are_named():
    golds = [str(10 + 5 * place + 5 + place % 4) for place in range(24)]
    rows = asked(24, often, lambda p, m, r: 0.0, lambda p, r: golds[(p + 1) % 24])
    assert first_of(rows) == "golds-shifted"
    assert first_of(asked(24, often, lambda p, m, r: float(m == 2), lambda p, r: "4")) == "wrong-column"


def test_prompts_with_a_start_token_or_a_template_too_many_are_named():
    def first(prompt: str, answer=often, **more) -> str | None:
        return first_of(asked(12, answer, lambda p, m, r: float(m > 0), lambda p, r: str(r), prompt=prompt, **more))

    assert first("<s>[1] {a}+{b}") == "bos-doubled"
    assert first("<|im_start|>user\n{a}+{b}<|im_end|>\n", messages=True) == "template-twice"
    assert first("user\nuser\n{a}+{b}\nassistant\n\nassistant\n") == "template-twice"
    assert first("{a}+{b}", lambda p, m, r: f"{r}\nuser\nAnd {r}?\nassistant\n{r}") == "template-missing"
    assert first("<|im_start|>user\n{a}+{b}<|im_end|>\n<|im_start|>assistant\n") is None


def test_a_gold_in_the_table_is_not_a_reward(tmp_path: Path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [{"step": 1, "prompt": f"q{i}", "completion": "7", "right": 1.0, "gold": 7, "advantage": 0.0} for i in range(4)]
    folder = state(tmp_path, [trl_row(1, rewards__right__mean=1.0)])
    (folder / "completions").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "completions" / "completions_00001.parquet")
    assert {(one.reward, one.gold) for one in read_log(folder).completions} == {(1.0, "7")}
    assert {(one.reward, one.gold) for one in read_log(folder / "completions").completions} == {(1.0, "7")}


def test_advantages_that_are_rewards_are_those_of_groups_of_one(tmp_path: Path):
    def rows(scale: float) -> list[tuple[int, dict[str, float]]]:
        extremes = {"critic/score/max": 1.0, "critic/score/min": 0.0}
        advantages = {"critic/advantages/max": 1.0 - 1e-6 if scale == 0 else scale, "critic/advantages/min": -scale}
        return [(step, sound(step) | extremes | advantages) for step in STEPS]

    for scale, cause in ((0.0, "group-of-one"), (1.5, None)):
        file = tmp_path / f"{scale}.log"
        file.write_text(console(rows(scale)))
        assert diagnose(file).report.first == cause


LATE = 15
FAULTS = {
    "not-finite": lambda s: {"grad_norm": math.nan if s > LATE else 0.3},
    "all-wrong": lambda s: {"reward": 0.0, "frac_reward_zero_std": 1.0, "kl": 0.0},
    "all-right": lambda s: {"reward": 1.0, "frac_reward_zero_std": 1.0, "kl": 0.0},
    "reward-constant": lambda s: {"reward": 0.4, "frac_reward_zero_std": 1.0, "kl": 0.0},
    "limit-too-short": lambda s: {"reward": 0.0, "completions__clipped_ratio": 1.0, "frac_reward_zero_std": 1.0},
    "entropy-collapse": lambda s: {
        **({"entropy": 0.6, "frac_reward_zero_std": 0.3} if s < LATE else {"entropy": 0.01, "frac_reward_zero_std": 0.97}),
        "reward": 0.3 + noise(s),
    },
    "kl-blow-up": lambda s: {"kl": 0.02 if s < LATE else 0.3 * (s - LATE)},
    "lr-too-high": lambda s: {"reward": 0.3 if s < 6 else 0.0, "kl": 4.0 if s >= 6 else 0.1, "learning_rate": 1e-2},
    "weights-do-not-move": lambda s: {"kl": 1e-11, "reward": 0.2 + noise(s)},
    "beta-too-high": lambda s: {"kl": 1e-4 * s, "loss": 2e-3 * s, "reward": 0.2 + noise(s)},
    "reference-differs": lambda s: {"kl": 0.4 + noise(s)},
    "stale-samples": lambda s: {"clip_ratio__region_mean": 0.3},
    "sampler-mismatch": lambda s: {"sampling__sampling_logp_difference__mean": 0.3},
    "held-out-falls": lambda s: {"eval_passk__pass@1": 0.3 + (0.02 * s if s < LATE else 0.3 - 0.03 * (s - LATE))},
    "pays-format": lambda s: {"rewards__form__mean": min(1.0, 0.2 + 0.05 * s), "rewards__right__mean": 0.02 + noise(s)},
    "group-of-one": lambda s: {"frac_reward_zero_std": 1.0},
    "few-mixed": lambda s: {"frac_reward_zero_std": 0.93, "reward": 0.04 + noise(s)},
    "sampler-mismatch by its KL": lambda s: {"kl": 12.0 if s % 5 == 0 else 0.05},
    "all-wrong in one of two rewards": lambda s: {"rewards__form__mean": 0.5 + noise(s), "rewards__right__mean": 0.0},
    "weights-do-not-move by its schedule": lambda s: {"learning_rate": 1e-6 if s < 12 else 0.0},
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_in_a_log_is_named_first(tmp_path: Path, cause: str):
    found = diagnose(state(tmp_path, [trl_row(step, **FAULTS[cause](step)) for step in STEPS]))
    assert found.report.first == cause.split()[0], "\n".join(found.lines)
    assert len(found.lines) <= LINES and found.report.exit_code in (1, 3)
    if cause in ("not-finite", "kl-blow-up", "entropy-collapse"):
        assert abs(found.step - LATE) <= 5


def test_the_order_of_changes_is_told(tmp_path: Path):
    rows = [
        trl_row(s, entropy=0.6 if s < 10 else 0.02, frac_reward_zero_std=0.3 if s < 16 else 0.95, reward=0.4 if s < 22 else 0.1)
        for s in STEPS
    ]
    found = diagnose(state(tmp_path, rows))
    wanted = ["entropy", "unmixed", "reward"]
    assert [change.name for change in found.changes if change.name in wanted] == wanted
    assert "in order of change" in "\n".join(found.lines)


@pytest.mark.slow
def test_the_command_prints_draws_and_ends_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = state(tmp_path / "out", [trl_row(step, reward=0.0, frac_reward_zero_std=1.0, kl=0.0) for step in STEPS])
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", str(folder), "--out", str(tmp_path / "a.svg")])
    said = capsys.readouterr().out
    assert stop.value.code == 3 and "all-wrong" in said and f"{PAGE}#all-wrong" in said and len(said.splitlines()) <= LINES
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")
    assert picture(diagnose(folder), "png")[:4] == b"\x89PNG"
    with pytest.raises(SystemExit):
        main(["diagnose", str(folder), "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert tree["exit_code"] == 3 and tree["findings"][0]["cause"] == "all-wrong" and tree["program"] == "TRL"


def test_every_cause_is_a_heading_of_the_page():
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    headings = {line[4:] for line in text.splitlines() if line.startswith("### ")}
    assert set(CAUSES) == headings
