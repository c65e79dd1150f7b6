"""`sage-rlvr train` with engine.name trl: a run directory like the loop's, killed and continued, on one rank and on two."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")

import torch
from safetensors.torch import load_file

from sage_rlvr.cli.app import main
from sage_rlvr.errors import ConfigError, TrainingDiverged
from sage_rlvr.runs import comparable, read_metrics
from sage_rlvr.training.counts.dry_run import dry_run_lines
from sage_rlvr.training.model_card import render
from sage_rlvr.training.trl import callbacks
from sage_rlvr.training.trl import run as trl_run
from sage_rlvr.training.trl.card import facts, reward_identity
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.rewards import MathReward
from sage_rlvr.verifiers.versions import VERSIONS
from training.trl_runs.run_common import TREE, config, trained


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "policy" / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    one, other = weights(first), weights(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def steady(folder: Path) -> list[dict[str, Any]]:
    """The metrics that two equal runs share: no clock, and no count that TRL begins anew on a resume."""
    clocks = ("step_time", "epoch")
    return [{k: v for k, v in comparable(row).items() if k not in clocks} for row in read_metrics(folder)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert trained(folder, config()) == 4
    return folder


def test_a_run_directory_holds_metrics_policy_and_card(whole: Path, capsys: pytest.CaptureFixture[str]):
    rows = read_metrics(whole)
    assert [row["step"] for row in rows] == list(range(8))  # four rollouts of two updates
    assert rows[0]["kl/to_reference"] == pytest.approx(0, abs=1e-6) and rows[0]["kl/to_anchor"] > 1e-3
    assert rows[0]["optimizer/lr"] == rows[0]["learning_rate"] and rows[0]["optimizer/grad_norm"] > 0
    assert {"reward/mean", "reward/zero_variance_frac", "policy/entropy", "surrogate/clipped_frac"} <= rows[0].keys()
    card = (whole / "policy" / "README.md").read_text(encoding="utf-8")
    assert "0.3 * k3(pi, q pi_ref)" in card and "Branch(threshold=0.1, ratio=0.3" in card
    assert not list((whole / "policy").glob("*.bin"))
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(whole), "--problems", "10", "--out", str(whole / "record.npz")])
    assert ended.value.code == 0 and "pass@256" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["there", "lost"])
def test_the_same_command_again_has_nothing_to_do(policy: str, whole: Path, tmp_path: Path):
    """Also where a kill came between the last checkpoint and the policy: it is saved then, and it is the trained one."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    if policy == "lost":
        shutil.rmtree(folder / "policy")
    assert trained(folder, config()) == 4 and same(folder, whole)
    card = (folder / "policy" / "README.md").read_text(encoding="utf-8")
    assert card == (whole / "policy" / "README.md").read_text(encoding="utf-8") and "trained: 8 optimizer steps, ranks 1" in card
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("torn", ["no manifest", "a damaged file"])
def test_a_killed_run_continues_from_its_last_complete_checkpoint(torn: str, whole: Path, tmp_path: Path):
    """As a kill leaves it: no policy, metrics ahead of the newest whole checkpoint, the newest one torn."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "policy")
    newest = folder / "trl" / "checkpoint-8"
    if torn == "no manifest":
        (newest / "MANIFEST.json").unlink()
    else:
        (newest / "model.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="checkpoint skipped"):
        assert trained(folder, config()) == 4
    assert same(folder, whole) and steady(folder) == steady(whole)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_trackers_are_told_what_an_earlier_start_has_not(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed after the seventh update, whose rollout began at the sixth: TRL makes two updates, and the last one is new."""
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    told: list[dict[str, Any]] = []
    if name == "trackio":  # it has chosen its folder when it was imported
        for word, stand_in in {"init": lambda **_: None, "finish": lambda: None, "log": lambda row, **_: told.append(row)}.items():
            monkeypatch.setattr(f"trackio.{word}", stand_in)
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "policy")
    shutil.rmtree(folder / "trl" / "checkpoint-8")
    rows = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(rows[:7]))
    assert trained(folder, config(report_to=[name])) == 4 and same(folder, whole)
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (file,) = (folder / "trl" / "runs").rglob("events*")
        events = EventAccumulator(str(file))
        events.Reload()
        assert [event.step for event in events.Scalars("train/kl/to_reference")] == [8]
    elif name == "wandb":
        assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    else:
        assert [row["train/global_step"] for row in told if "train/kl/to_reference" in row] == [8]


def stop_in(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM while TRL computes the loss of its step."""
    plain = trl_run.SageTrainer._compute_loss

    def stopped(self: Any, model: Any, inputs: Any) -> torch.Tensor:
        if self.state.global_step == step:
            monkeypatch.setattr(trl_run.SageTrainer, "_compute_loss", plain)  # once: a second one ends the process
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, model, inputs)

    monkeypatch.setattr(trl_run.SageTrainer, "_compute_loss", stopped)


def test_a_run_asked_to_stop_ends_its_rollout_first(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the first of a rollout's two updates: TRL keeps no rollout in a checkpoint, and would draw the second's anew."""
    folder, given = tmp_path / "run", config(checkpoint={"every": 100})
    stop_in(2, monkeypatch)
    assert trained(folder, given) == 2
    assert [path.name for path in (folder / "trl").glob("checkpoint-*")] == ["checkpoint-4"]
    assert trained(folder, given) == 4 and same(folder, whole)


def test_an_older_checkpoint_stays_until_the_new_one_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """keep = 1, killed between TRL's files and the manifest: the one before it is there to go on from."""
    folder, given = tmp_path / "run", config(checkpoint={"every": 1, "keep": 1}, steps=2)

    def killed(folder: Path, step: int, keep: int) -> None:
        if step == 4:
            raise KeyboardInterrupt
        plain(folder, step, keep)

    plain = callbacks.seal_newest
    monkeypatch.setattr(callbacks, "seal_newest", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(folder, given)
    monkeypatch.setattr(callbacks, "seal_newest", plain)
    with pytest.warns(UserWarning, match="checkpoint-4"):
        assert trl_run.newest_checkpoint(folder / "trl") == folder / "trl" / "checkpoint-2"
        assert trained(folder, given) == 2
    assert [path.name for path in (folder / "trl").glob("checkpoint-*")] == ["checkpoint-4"]


STOPPED = """
import os, signal, sys
from sage_rlvr.cli import main
from sage_rlvr.training.trl import SageTrainer
plain = SageTrainer._compute_loss
def stopped(self, model, inputs):
    if self.state.global_step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return plain(self, model, inputs)
SageTrainer._compute_loss = stopped
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_signal_on_one_rank_stops_both_at_one_step(tmp_path: Path):
    recipe, script = tmp_path / "recipe.yaml", tmp_path / "stopped.py"
    recipe.write_text(json.dumps(TREE | {"checkpoint": {"every": 100}, "updates": {"minibatches": 2}}))
    script.write_text(STOPPED)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += [str(script), "train", str(recipe), "--run-dir", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert "the same command continues" in done.stderr, done.stderr[-3000:]
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]
    kept = json.loads((tmp_path / "run" / "trl" / "checkpoint-4" / "MANIFEST.json").read_text())["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= kept.keys()


def test_a_run_given_more_steps_is_the_longer_run(whole: Path, tmp_path: Path):
    """Two steps, then two more: weights bit for bit those of the four."""
    folder = tmp_path / "run"
    assert trained(folder, config(steps=2)) == 2
    assert trained(folder, config()) == 4
    assert same(folder, whole) and steady(folder) == steady(whole)


def test_a_gradient_that_is_not_finite_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = trl_run.SageTrainer._compute_loss
    kept: dict[str, torch.Tensor] = {}

    def broken(self: Any, model: Any, inputs: Any) -> torch.Tensor:
        kept.update({name: value.detach().clone() for name, value in self.model.named_parameters()})
        kept["trainer"] = self
        loss = plain(self, model, inputs)
        return loss * float("nan") if self.state.global_step == 3 else loss

    monkeypatch.setattr(trl_run.SageTrainer, "_compute_loss", broken)
    with pytest.raises(TrainingDiverged, match=r"not finite at step 3; no weight was changed"):
        trained(tmp_path / "run", config())
    trainer = kept.pop("trainer")
    assert all(torch.equal(kept[name], value) for name, value in trainer.model.named_parameters())
    assert len(read_metrics(tmp_path / "run")) == 3


def test_two_ranks_write_one_run(tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(TREE))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += ["-m", "sage_rlvr", "train", str(recipe), "--run-dir", str(tmp_path / "run"), "--steps", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert "ranks 2" in (tmp_path / "run" / "policy" / "README.md").read_text(encoding="utf-8")


def test_the_card_says_that_an_exact_kl_was_estimated(tmp_path: Path):
    with pytest.warns(UserWarning, match="the exact forward KL becomes k3"):
        trainer = trl_run.build(config(method={"name": "forward_kl", "beta": 0.3}), tmp_path)
    card = render(facts(trainer))
    assert "estimator k3 of the sampled token (the engine's estimate, in place of the exact sum" in card
    assert "0.3 * k3(pi, pi_ref)" in card and "exact_forward" not in card


def test_the_card_has_no_folder_of_the_reference(whole: Path, tmp_path: Path):
    method = {"name": "grpo", "beta": 0.3, "source": str(whole / "policy")}
    card = render(facts(trl_run.build(config(method=method), tmp_path)))
    assert "pi_ref = local policy, SHA-256 " in card and "- reference: local policy, SHA-256 " in card
    assert str(whole) not in card and card.count('- "grpo"') == 1


def test_lora_trains_an_adapter(tmp_path: Path):
    given = config(steps=2, engine={"name": "trl", "lora": {"rank": 2}})
    assert trained(tmp_path / "run", given) == 2
    assert (tmp_path / "run" / "policy" / "adapter_model.safetensors").is_file()
    assert trained(tmp_path / "run", given) == 2  # again: it may be replaced
    assert read_metrics(tmp_path / "run")[0]["kl/to_reference"] == pytest.approx(0, abs=1e-6)


def test_an_8_bit_optimizer_without_cuda_is_replaced_aloud():
    with pytest.warns(UserWarning, match="adamw_8bit: there is no CUDA device"):
        assert trl_run.usable_optimizer("adamw_8bit") == "adamw_torch"
    assert trl_run.usable_optimizer("sgd") == "sgd"


def test_a_method_beyond_trl_is_refused_before_anything_is_loaded(tmp_path: Path):
    method = {"name": "grpo", "estimator": "k2"}
    with pytest.raises(ConfigError, match="the loop engine"):
        trained(tmp_path / "run", config(method=method))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"logging_stepps": 3}, r"engine\.args\.logging_stepps: GRPOConfig .* did you mean logging_steps\?"),
        ({"top_p": "hello"}, r"engine\.args\.top_p = 'hello' is text; GRPOConfig expects values like 1\.0"),
        ({"top_k": True}, r"engine\.args\.top_k = True: GRPOConfig expects values like 0"),
        (
            {"vllm_mode": "no", "save_only_model": False, "eval_strategy": "never"},
            "GRPOConfig .* rejects the recipe: .*never",
        ),
    ],
)
def test_arguments_that_trl_does_not_take_are_named(args: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        trl_run.build(config(engine={"name": "trl", "args": args}), tmp_path)


def test_a_dry_run_names_an_argument_that_trl_does_not_have():
    with pytest.raises(ConfigError, match=r"engine\.args\.logging_stepps: .* did you mean logging_steps\?"):
        dry_run_lines(config(engine={"name": "trl", "args": {"logging_stepps": 3}}))


def test_a_model_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"model = '.*/nothing': no such folder"):
        trl_run.build(config(model=str(tmp_path / "nothing")), tmp_path / "out")


def test_the_card_says_what_the_verdicts_come_from():
    """Options and limits change the identity of a mathematics reward, and a pool that is made again does not."""
    limits = {"workers": 1, "seconds": 2.0}
    rewards = [
        MathReward(),
        MathReward(answer_in="tag"),
        MathReward(pool=Pool(**limits)),
        MathReward(pool=Pool(workers=1)),
    ]
    found = [reward_identity(reward) for reward in rewards]
    assert all(text.startswith(f"verifier math-v{VERSIONS['math']}-") for text in found)
    assert len(set(found)) == 4 and reward_identity(MathReward(pool=Pool(**limits))) == found[2]

    def judge() -> None:
        """A reward of one's own."""

    plain = reward_identity(judge)
    assert plain.startswith("source SHA-256 ")
    judge.verifiers = (json,)  # type: ignore[attr-defined]
    assert reward_identity(judge) != plain
