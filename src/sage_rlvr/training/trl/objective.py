"""What a run optimises, in words beside its checkpoints, so that a resume cannot go on with another guide or method."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError

RECORD = "sage_objective.json"  # in a checkpoint's folder
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of objects without a repr of their own: another in every process


def objective_words(method: Method | None, anchor: Anchor | None) -> str:
    """A method by its `describe()`, which begins with its name; else the guide, KL estimator and beta beside TRL's loss."""
    if method is not None:
        words = f"method {method.describe()}"
    elif anchor is not None:
        words = f"guide={anchor.guide!r}, estimator {anchor.estimator}, beta {anchor.beta!r}"
    else:
        words = "no KL term"
    return _ADDRESS.sub("", words)


def save_objective(trainer: Any, folder: Path) -> None:
    """Beside a checkpoint's files, whole or not at all."""
    if trainer.args.should_save:
        part = folder / f"{RECORD}.part"
        part.write_text(json.dumps({"objective": objective_words(trainer.method, trainer.anchor)}), encoding="utf-8")
        os.replace(part, folder / RECORD)


def check_objective(trainer: Any, checkpoint: str | None) -> None:
    """ConfigError where the run that wrote `checkpoint` optimised something else; silent where it does not say."""
    record = None if checkpoint is None else Path(checkpoint) / RECORD
    if record is None or trainer.objective_may_change or not record.is_file():
        return
    was, now = (
        json.loads(record.read_text(encoding="utf-8"))["objective"],
        objective_words(trainer.method, trainer.anchor),
    )
    if was != now:
        raise ConfigError(
            f"{checkpoint}: the run that wrote it had another objective:\n{was}\nThis one has:\n{now}\nGive the trainer the "
            "guide or method that it was started with, start anew without resume_from_checkpoint, or go on with the new one "
            "on purpose: trainer.objective_may_change = True."
        )
