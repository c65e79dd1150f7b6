"""`preflight`: one rollout of a run before it is trained, with an audit of its reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, SageError, refuse
from sage_rlvr.progress import reporting

VERL_GROUP = "actor_rollout_ref.rollout.n"
SCRIPTS = (".sh", ".txt", ".json")


@dataclass(frozen=True)
class Preflight(Command):
    """Say before training what keeps a reward from rising: one rollout, no update.

    RECIPE is a recipe or a method, as of train; or verl's command in a shell script, or a GRPOConfig of TRL as YAML or JSON.
    Without it --model, --rows and --reward give the same settings. In a script of TRL: from sage_rlvr.trl import preflight;
    preflight(trainer). Exit code 0: nothing wrong seen; 1: warnings; 3: this run cannot learn; 2: an error in the input."""

    edits_recipe: ClassVar[bool] = True
    optional_argument: ClassVar[bool] = True

    recipe: tyro.conf.Positional[str | None] = None
    """A recipe, a method, a script with verl's command, or settings of TRL."""
    task: str | None = None
    """Settings for a method by name, as of train: a task, a recipe, or a file of rows."""
    rows: str | None = None
    """A file of rows, as --task."""
    model: str | None = None
    """A model folder or Hub id."""
    reward: str | None = None
    """FILE.py:FUNCTION that judges the completions of --rows."""
    draw: int | None = None
    """Prompts; each gets the run's group_size completions (default: eight, or enough for 64 completions)."""
    json: bool = False
    """Print the report as JSON."""
    fast: bool = False
    """Leave out the probe of a step's cost (20 seconds) and the audit (up to 30)."""

    def execute(self, session: Session) -> int:
        """Draw, judge, report."""
        report = self.report(session)
        if self.json:
            session.say_plainly([json.dumps(report.tree(), indent=1, ensure_ascii=False)])
        else:
            session.say(*report.lines())
        return report.exit_code

    def report(self, session: Session) -> Any:
        """The report of the named run."""
        where = self.rows or self.task
        refuse(
            (self.recipe is None and where is None, "preflight: pass a recipe, or --model, --rows and --reward"),
            (self.rows is not None and self.task is not None, "--rows and --task: both name the rows; pass one"),
        )
        edits = [("model", self.model)] if self.model else []
        edits += [("task.reward", self.reward)] if self.reward else []
        edits += session.edits
        if self.recipe is not None and Path(self.recipe).suffix in SCRIPTS:
            if (alone := group_of_one(Path(self.recipe))) is not None:
                return alone
            name, config = Path(self.recipe).name, _imported(Path(self.recipe), where, edits, session)
        else:
            from sage_rlvr.api.train import read

            name, config = read("train", self.recipe or "grpo", where, edits)
        from sage_rlvr.symptoms.on_loop import preflight_recipe

        config = _on_the_loop(config, session)
        audits = [] if self.fast else list(_audited(config, session))
        with reporting(session.note, "preflight: sampling and judging"):
            return preflight_recipe(config, name=name, draw=self.draw, cost=not self.fast, audits=audits, say=session.note)


def group_of_one(script: Path) -> Any:
    """The report on verl's command with n = 1 and an estimator that compares a group; None for any other."""
    from sage_rlvr.contrib.io.import_config import read_settings
    from sage_rlvr.symptoms.finding import Finding, SymptomReport
    from sage_rlvr.training.verl.arguments import flattened

    settings = {key.lstrip("+"): value for key, value in flattened(read_settings(script)).items()}
    if "algorithm.adv_estimator" not in settings or settings["algorithm.adv_estimator"] == "gae":
        return None
    if settings.get(VERL_GROUP, 1) != 1:
        return None
    finding = Finding(
        cause="group-of-one",
        severity="warning",
        sentence=f"{VERL_GROUP} is 1 with algorithm.adv_estimator = {settings['algorithm.adv_estimator']}: a group of one has "
        "no other completion to be compared with, and verl then uses the reward itself as the advantage, without a baseline",
        next_step=f"set {VERL_GROUP}=8 or more",
    )
    return SymptomReport.of([f"{script.name}: verl's command, nothing was drawn"], [finding])


def _imported(script: Path, rows: str | None, edits: list[tuple[str, str]], session: Session) -> Any:
    """The recipe of verl's or TRL's settings, on the named rows."""
    from sage_rlvr.config import TrainConfig, decode
    from sage_rlvr.contrib.io.import_config import import_config

    if rows is not None:
        edits = [("task", json.dumps({"name": "jsonl", "file": str(Path(rows).expanduser().resolve())})), *edits]
    elif not any(key.partition(".")[0] in ("task", "data", "world") for key, _ in edits):
        raise ConfigError(f"{script}: its rows are not read from there; name them: --rows FILE (jsonl, json, csv or parquet)")
    imported = import_config(script, edits)
    session.note(*imported.lines)
    return decode(TrainConfig, imported.recipe, where=str(script))


def _on_the_loop(config: Any, session: Session) -> Any:
    """The recipe of another engine as the loop samples it."""
    from sage_rlvr.config import task_of
    from sage_rlvr.config.parts import EngineConfig

    if config.data is not None:
        config = replace(config, task=task_of(config), data=None)
    if config.engine.name == "loop":
        return config
    session.note(f"preflight: drawn on the built-in loop; {config.engine.name} is not started")
    return replace(config, engine=EngineConfig(threads=config.engine.threads))


def _audited(config: Any, session: Session) -> Iterator[str]:
    """Failed checks of an audit of the user's reward; verifiers of this package were audited when they were written."""
    from sage_rlvr.contrib.audit.rewards import audit_reward
    from sage_rlvr.tasks.jsonl import RewardTask

    task = config.task
    if not isinstance(task, RewardTask) or ":" not in task.reward:
        return
    session.note(f"preflight: auditing {task.reward}")
    try:
        report = audit_reward(task.reward, task.file, right_from=task.right_from, problems=8, seconds=min(task.seconds, 5.0), k=16)
    except SageError as error:
        yield f"audit of {task.reward}: not done: {error}"
        return
    for check in report.checks:
        if check.bar and not check.passed:
            found = next(iter(check.rows), None)
            yield f"audit: {check.name}: {check.good:g} of {check.total}" + (f"; {found.reason}" if found else "")


__all__ = ["Preflight", "group_of_one"]
