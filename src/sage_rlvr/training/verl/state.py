"""Additional files of a checkpoint on verl: the objective as text, and the running state of the method's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from sage_rlvr.core.state import state_from, tensors_of
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.runs import replacing, write_json_atomic
from sage_rlvr.safe_io import read_json
from sage_rlvr.training.verl.objective import Objective

OBJECTIVE, PARTS = "sage_objective.json", "sage_parts.safetensors"  # in verl's global_step_N
LATEST = "latest_checkpointed_iteration.txt"  # in the folder of verl's checkpoints: the newest step


def folder_of_step(config: Any, step: int) -> Path:
    """verl's checkpoint of a step: the one it resumes from by name, else in trainer.default_local_dir."""
    if config.trainer.resume_mode == "resume_path" and str(config.trainer.resume_from_path).endswith(f"global_step_{step}"):
        return Path(config.trainer.resume_from_path)
    return Path(config.trainer.default_local_dir) / f"global_step_{step}"


def steps_done(checkpoints: Path) -> int:
    """The steps of verl's newest checkpoint; 0 without one."""
    latest = checkpoints / LATEST
    return int(latest.read_text()) if latest.is_file() else 0


def check_resume(objective: Objective, config: Any) -> None:
    """`check_objective` of the checkpoint that verl will resume from, if there is one."""
    settings = config.trainer
    if settings.resume_mode == "resume_path":
        check_objective(objective, Path(str(settings.resume_from_path)))
    elif settings.resume_mode == "auto" and (step := steps_done(Path(settings.default_local_dir))):
        check_objective(objective, folder_of_step(config, step))


def save_state(trainer: Any, folder: Path) -> None:
    """The objective and the parts' state, in the folder of the checkpoint that verl is about to write."""
    folder.mkdir(parents=True, exist_ok=True)
    objective = trainer.sage_objective
    write_json_atomic(folder / OBJECTIVE, {"objective": objective.words})
    if trainer.sage_parts:
        with replacing(folder / PARTS) as path:
            save_file(tensors_of(objective.method.parts, trainer.sage_parts), path)


def check_objective(objective: Objective, folder: Path) -> None:
    """ConfigError if the run that wrote the checkpoint optimized something else; silent if it does not say."""
    file = folder / OBJECTIVE
    if not file.is_file() or objective.may_change:
        return
    record = read_json(file, error=CheckpointError, advice="use an earlier checkpoint, or start a new run")
    if record["objective"] != objective.words:
        raise ConfigError(
            f"{folder}: the run that wrote this checkpoint had a different objective:\n{record['objective']}\nThe "
            f"current objective is:\n{objective.words}\nSet the sage node that the run was started with, set another "
            "trainer.default_local_dir to start anew, or continue with the new objective on purpose: "
            "+sage.objective_may_change=true"
        )


def restore_parts(trainer: Any, folder: Path) -> None:
    """The parts' state as `save_state` wrote it; CheckpointError if the checkpoint has that of other parts."""
    if trainer.sage_parts:
        tensors = load_file(folder / PARTS) if (folder / PARTS).is_file() else {}
        trainer.sage_parts = state_from(trainer.sage_objective.method.parts, tensors, str(folder))
