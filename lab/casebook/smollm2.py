"""Short runs of SmolLM2-135M-Instruct on the built-in loop: twelve with one fault each, and two sound ones.

    Casebook.smollm2 -> make(OUT) -> OUT/NAME, a run without its checkpoint -> keep -> smollm2/NAME: metrics.jsonl, run.json

A kept log has the metrics that `diagnose` reads, in four digits. A run whose log is kept is not made again. The model is
`smollm2-countdown`, the task Countdown in words with sums and differences of four numbers, or its problems as rows with a reward.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lab.casebook.loop_runs import Around, other_sampler
from sage_rlvr.errors import DataError
from sage_rlvr.symptoms.logs.names import OURS

LOGS = Path(__file__).with_name("smollm2")
REWARDS = Path(__file__).with_name("countdown_rewards.py")
WORLD: dict[str, Any] = {
    **{"counts": {4: 1.0}, "max_number": 7, "min_target": 10, "max_target": 20, "operators": "+-", "train_problems": 100},
}
TASK: dict[str, Any] = {"name": "countdown_chat", **WORLD}
SETTINGS: dict[str, Any] = {
    "model": "smollm2-countdown",
    "rollout": {"prompts_per_step": 4, "group_size": 8, "max_new_tokens": 24, "temperature": 0.5},
    "optimizer": {"lr": 2e-5},
    "checkpoint": {"every": 1000},
    "engine": {"device": "cpu", "threads": 1, "dtype": "bfloat16", "reuse_sampling": True},
}

ONCE_MORE = {"engine.reuse_sampling": False}  # the policy scores what another model sampled
AGAIN = {"updates.epochs": 2, "updates.minibatches": 2}
PAIRS = {"rollout.group_size": 2, "rollout.prompts_per_step": 16}
WEAK = {"name": "grpo", "beta": 1e-4}


@dataclass(frozen=True)
class ShortRun:
    """A run. name: that of the casebook's case with the same fault; cause: "" for a sound run; reward: a function of
    countdown_rewards.py, by which rows are judged; targets: added to the rows' targets; around: a context in which it runs."""

    name: str
    cause: str = ""
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "grpo", "beta": 0.02})
    steps: int = 10
    edits: Mapping[str, Any] = field(default_factory=dict)
    reward: str = ""
    targets: int = 0
    around: Around = nullcontext

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return self.name.replace(" ", "-")


RUNS = (
    ShortRun("sound 1", steps=24),
    ShortRun("limit too short", "limit-too-short", edits={"rollout.max_new_tokens": 6}),
    ShortRun("learning rate too high", "lr-too-high", edits={"optimizer.lr": 5e-4}),
    ShortRun("beta too high", "beta-too-high", method={"name": "grpo", "beta": 20.0}),
    ShortRun("entropy collapse", "entropy-collapse", edits={"rollout.temperature": 0.02}),
    ShortRun("reference wrong", "reference-differs", steps=8, edits={"base_model": "smollm2"}),
    ShortRun("length hacking", "pays-length", method={"name": "no_kl"}, reward="length", steps=14, edits={"optimizer.lr": 3e-5}),
    ShortRun("sampler mismatch", "sampler-mismatch", steps=8, edits=ONCE_MORE, around=partial(other_sampler, 0.05)),
    ShortRun("groups dropped", "groups-dropped", method={"name": "dapo", "max_refills": 1}, steps=8, edits=PAIRS),
    ShortRun("all wrong", "all-wrong", reward="right", targets=7000, steps=8),
    ShortRun("KL blow-up", "kl-blow-up", method=WEAK, reward="slashes", steps=14, edits={"optimizer.lr": 1e-4}),
    ShortRun("sound 2", method={"name": "rloo", "beta": 0.02}, reward="right", steps=16, edits={"seed": 1}),
    ShortRun("timeouts earn 0", "reward-timeouts", reward="slow", steps=8, edits={"task.seconds": 0.3}),
    ShortRun("stale samples", "stale-samples", steps=8, edits=AGAIN | {"optimizer.lr": 1e-4}),
)
"""The runs, in the order in which they are made."""


def recipe_of(run: ShortRun, out: Path) -> dict[str, Any]:
    """The recipe of a run; rows for its reward are written under out."""
    tree: dict[str, Any] = json.loads(json.dumps(SETTINGS)) | {"steps": run.steps, "method": dict(run.method), "task": TASK}
    if run.reward:
        tree["task"] = {"name": "jsonl", "file": str(rows_file(out, run.targets)), "reward": f"{REWARDS}:{run.reward}"}
    for key, value in run.edits.items():
        where, _, name = key.rpartition(".")
        part = tree.setdefault(where, {}) if where else tree
        part[name] = value
    return tree


def rows_file(out: Path, more: int) -> Path:
    """Write the task's problems as rows: prompt, numbers, target."""
    from sage_rlvr.tasks.countdown.chat import CountdownChat

    task = CountdownChat(**WORLD)
    file = out / f"rows-{more}.jsonl"
    rows = []
    for problem in task.problems("train"):
        asked = replace(problem, target=problem.target + more)
        rows.append({"prompt": list(task.messages(asked)), "numbers": list(asked.numbers), "target": asked.target})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def make(out: Path, only: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Make and keep the logs that are missing. An interrupted run begins again."""
    out.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        named = not only or any(word in run.name for word in only)
        if not named or (LOGS / run.folder).is_dir():
            continue
        say(f"SmolLM2, {run.name}")
        # a process each, which returns all of its memory
        process = get_context("spawn").Process(target=train, args=(run, out))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise DataError(f"SmolLM2, {run.name}: the run ended with {process.exitcode}; its messages are above")


def train(run: ShortRun, out: Path) -> None:
    """Train a run and keep its log; exit with 1 if it was interrupted."""
    import yaml

    import sage_rlvr

    folder, recipe = out / run.folder, out / f"{run.folder}.yaml"
    shutil.rmtree(folder, ignore_errors=True)
    recipe.write_text(yaml.safe_dump(recipe_of(run, out)), encoding="utf-8")
    with run.around():
        made = sage_rlvr.train(recipe, run=folder, quiet=True, say=lambda line: None)
    if not made.finished:
        sys.exit(1)
    keep(folder, LOGS / run.folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def keep(run: Path, to: Path) -> None:
    """Copy what `diagnose` reads of a run: its metrics, and of run.json the settings and the warnings."""
    names = {"step", *(name for options in OURS.values() for name in options)}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({name: short(value) for name, value in row.items() if name in names}) for row in rows]
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    config = record["config"]
    kept = {
        "config": {"method": config["method"], "rollout": config["rollout"], "optimizer": config["optimizer"]},
        "warnings": [{"message": one["message"]} for one in record.get("warnings", [])],
    }
    to.mkdir(parents=True, exist_ok=True)
    (to / "run.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (to / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def short(value: Any) -> Any:
    """A number in four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read() -> Iterator[dict[str, Any]]:
    """What `diagnose` names first in each kept log, and the reward at its start and end."""
    from sage_rlvr.symptoms.logs.curves import Curves
    from sage_rlvr.symptoms.logs.diagnose import diagnose

    for run in RUNS:
        folder = LOGS / run.folder
        if folder.is_dir():
            found = diagnose(folder)
            reward = Curves(found.table).reward
            ends = {"start": short(reward.start), "end": short(reward.end)}
            yield {"name": run.name, "cause": run.cause, "diagnose": found.report.first, "reward": ends}


__all__ = ["LOGS", "RUNS", "keep", "make", "read"]
