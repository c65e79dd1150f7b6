"""References that move on TRL, a kill between, and resumes that are refused. Needs TRL and peft."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")


from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.describe import objective_words
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.methods import grpo, sage
from sage_rlvr.training.trl import grpo_config, state
from training.trl_reference.reference_common import kls, loaded, lora, shifted, trained_adapter, trainer_of
from trl_common import arguments, same, weights

TARGETS = ["q_proj", "v_proj", "o_proj"]
GUIDE = Branch(ratio=0.3, threshold=1.2)


def policies(kind: str, path: Path) -> tuple[Any, dict[str, Any]]:
    """A policy and what its trainer needs beside it: weights in memory, a fresh adapter, an adapter of an SFT."""
    return {
        "full": lambda: (path, {}),
        "memory": lambda: (shifted(loaded(path)), {}),
        "fresh": lambda: (path, {"peft_config": lora()}),
        "adapter": lambda: (trained_adapter(path), {}),
    }[kind]()


MOVING = {"snapshot": {"source": "snapshot@2"}, "refreshed": {"refresh_every": 2, "source": "sft"}}


def moving(kind: str, how: str, path: Path, folder: Path, **changes: Any) -> Any:
    method = grpo(beta=0.5, **MOVING[how])
    model, more = policies(kind, path)
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    return trainer_of(model, path, arguments(folder, **options | grpo_config(method) | changes), method=method, **more)


FAST = [("memory", "snapshot"), ("adapter", "snapshot"), ("full", "refreshed")]
SLOW = [
    ("full", "snapshot"),
    ("fresh", "snapshot"),
    ("memory", "refreshed"),
    ("fresh", "refreshed"),
    ("adapter", "refreshed"),
]


@pytest.mark.parametrize(("kind", "how"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_moving_reference_and_a_kill(kind: str, how: str, tiny_policy: Path, tmp_path: Path):
    """KL 0 at the start and in the step after N; resumed from after N, before N and at N: the weights of the whole run."""
    whole = moving(kind, how, tiny_policy, tmp_path / "whole")
    whole.train()
    assert [kl == 0 for kl in kls(whole)] == [True, False, True, False]
    steps = [line["kl/reference_step"] for line in whole.state.log_history if "kl/reference_step" in line]
    assert steps == [0, 0, 2, 2]
    assert whole.reference_description.endswith(f"now that of step {2 if how == 'snapshot' else 4}")
    for step in (1, 2, 3):
        checkpoint = tmp_path / "whole" / "out" / f"checkpoint-{step}"
        assert (checkpoint / state.TENSORS).is_file() == (step >= 2)
        again = moving(kind, how, tiny_policy, tmp_path / f"from-{step}")
        again.train(resume_from_checkpoint=str(checkpoint))
        assert same(weights(whole), weights(again)), step
        assert kls(whole) == kls(again)


def test_a_checkpoint_without_the_reference_is_refused(tiny_policy: Path, tmp_path: Path):
    moving("full", "snapshot", tiny_policy, tmp_path, max_steps=3).train()
    checkpoint = tmp_path / "out" / "checkpoint-3"
    kept = (checkpoint / "trainer_state.json").rename(tmp_path / "kept")
    (checkpoint / "trainer_state.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"trainer_state.json: cannot be read: not a regular file"):
        moving("full", "snapshot", tiny_policy, tmp_path / "endless").train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "trainer_state.json").unlink()
    kept.rename(checkpoint / "trainer_state.json")
    (checkpoint / state.TENSORS).unlink()
    with pytest.raises(ConfigError, match=r"policy after step 2, which this checkpoint does not contain"):
        moving("full", "snapshot", tiny_policy, tmp_path / "again").train(resume_from_checkpoint=str(checkpoint))
    shutil.copytree(tmp_path / "out" / "checkpoint-1", tmp_path / "earlier")
    again = moving("full", "snapshot", tiny_policy, tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "earlier"))


@pytest.mark.parametrize("kind", ["memory", "adapter"])
def test_a_resume_with_another_reference_is_refused(kind: str, tiny_policy: Path, tmp_path: Path):
    """The SFT in memory was not done again, or the source was changed: the run would go on with another objective."""
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}

    def run(path: Path, source: str, model: Any) -> Any:
        return trainer_of(model, tiny_policy, arguments(path, **options), source=source)

    whole = run(tmp_path / "whole", "sft", policies(kind, tiny_policy)[0])
    whole.train()
    checkpoint = str(tmp_path / "whole" / "out" / "checkpoint-1")
    again = run(tmp_path / "again", "sft", policies(kind, tiny_policy)[0])
    again.train(resume_from_checkpoint=checkpoint)
    assert same(weights(whole), weights(again))
    other = run(tmp_path / "other", "base", policies(kind, tiny_policy)[0])
    with pytest.raises(ConfigError, match=r"a different reference \(sft: .*\) from this run \(base: "):
        other.train(resume_from_checkpoint=checkpoint)
    if kind == "memory":
        with pytest.raises(
            ConfigError, match="same source, different weights: the policy object passed to the trainer had already been trained"
        ):
            run(tmp_path / "path", "sft", loaded(tiny_policy)).train(resume_from_checkpoint=checkpoint)


def test_a_resume_with_another_objective_is_refused(tiny_policy: Path, tmp_path: Path):
    """Another guide, another method, a method in place of a guide; said on purpose, it goes on."""
    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    method, other = grpo(beta=0.5, source="sft"), sage(grpo(beta=0.5, source="sft"), GUIDE)

    def run(path: str, **more: Any) -> Any:
        fields = grpo_config(more["method"]) if "method" in more else {}
        return trainer_of(tiny_policy, tiny_policy, arguments(tmp_path / path, **options | fields), **more)

    def refused(found: Any, checkpoint: str, words: str) -> None:
        before = weights(found)
        with pytest.raises(ConfigError, match=f"(?s)a different objective.*{words}.*objective_may_change = True"):
            found.train(resume_from_checkpoint=checkpoint)
        assert before.keys() == weights(found).keys() and found.state.global_step <= 1

    run("guide", guide=GUIDE).train()
    shaped = str(tmp_path / "guide" / "out" / "checkpoint-1")
    refused(run("flat", guide=Flat()), shaped, r"guide=Branch\(threshold=1.2, ratio=0.3.*guide=Flat\(")
    refused(run("priced", method=method), shaped, r"guide=Branch.*method grpo: minimize")
    run("again", guide=GUIDE).train(resume_from_checkpoint=shaped)
    run("method", method=method).train()
    refused(
        run("other", method=other),
        str(tmp_path / "method" / "out" / "checkpoint-1"),
        r"method grpo: .*method grpo\+branch: ",
    )
    meant = run("meant", guide=Flat())
    meant.objective_may_change = True
    meant.train(resume_from_checkpoint=shaped)
    (Path(shaped) / state.OBJECTIVE).unlink()  # a checkpoint of an older release says nothing
    run("older", guide=Flat()).train(resume_from_checkpoint=shaped)


def test_the_address_of_an_object_is_no_part_of_an_objective():
    class Mine(Flat):
        __repr__ = object.__repr__

    first, second = (objective_words(None, Anchor(0.1, guide=Mine())) for _ in range(2))
    assert first == second and "Mine" in first and "0x" not in first
