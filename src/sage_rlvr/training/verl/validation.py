"""pass@k of verl's validations: counts of right completions per problem, in files that `sage-rlvr compare` reads.

    +sage.passk=FOLDER              FOLDER/step-000020-T1.jsonl at each validation (trainer.test_freq, val_before_train)
    +sage.temperatures=[0.8,0.6]    the base at these too, once before the first step

verl samples and judges, val_kwargs.n completions per row; nothing is sampled a second time at val_kwargs.temperature. Works without
verl.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, refuse, suggest
from sage_rlvr.training.evaluations import Evaluations, JsonRows, metrics_of, named
from sage_rlvr.training.verl.state import steps_done
from sage_rlvr.training.verl.terms import ROLLOUT, Read
from sage_rlvr.verdicts.stats.passk import powers

KWARGS = f"{ROLLOUT}.val_kwargs"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Settings of the evaluations of a run.

    temperatures: further ones for the base, besides that of the validations
    settings: common to all files of a folder
    resumes: whether verl continues from a checkpoint
    """

    folder: Path
    temperature: float
    temperatures: tuple[float, ...]
    settings: dict[str, Any]
    resumes: bool = False

    @classmethod
    def of(cls, folder: str, temperatures: Sequence[float], read: Read) -> Settings:
        """The settings in verl's configuration. ConfigError if pass@k could not be measured."""
        n, own = int(read(f"{KWARGS}.n") or 1), float(read(f"{KWARGS}.temperature") or 0.0)
        before = bool(read("trainer.val_before_train"))
        refuse(
            (
                n < 2 or own <= 0,
                f"sage.passk: {KWARGS}.n = {n}, temperature = {own:g}: pass@k needs several different completions per row; set "
                f"{KWARGS}.n=16 {KWARGS}.temperature=1.0 {KWARGS}.do_sample=true",
            ),
            (
                not before and int(read("trainer.test_freq") or 0) <= 0,
                "sage.passk: verl never validates; set trainer.test_freq=20 or trainer.val_before_train=true",
            ),
            (
                not before and temperatures,
                f"sage.temperatures = {list(temperatures)}: the base is sampled before the first step, which "
                "trainer.val_before_train = False leaves out; set it to true, or +sage.temperatures=[]",
            ),
            (min(temperatures, default=1.0) <= 0, f"sage.temperatures = {list(temperatures)}: give numbers above 0, such as 0.4"),
        )
        common = {
            "n": n,
            "rows": str(read("data.val_files")),
            "max_completion_length": read(f"{ROLLOUT}.response_length"),
            "sampling": {name: read(f"{KWARGS}.{name}") for name in ("top_p", "top_k")},
            "base": None,  # its weights are at the workers: those of an earlier run in the folder are put aside
        }
        mode = read("trainer.resume_mode")
        resumes = mode == "resume_path" or (mode == "auto" and steps_done(Path(str(read("trainer.default_local_dir")))) > 0)
        return cls(Path(folder), own, tuple(heat for heat in dict.fromkeys(temperatures) if heat != own), common, resumes)

    @property
    def files(self) -> Evaluations:
        """The folder as files of evaluations."""
        return Evaluations(self.folder)


@dataclass
class Validation:
    """Writes the files of a run, in the process of verl's trainer."""

    settings: Settings
    note: Note
    begun: bool = False
    problems: dict[str, dict[str, str]] = field(default_factory=dict)
    seen: tuple[list[str], dict[str, list[Any]]] = ([], {})

    def run(self, trainer: Any, validate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """verl's `validate` with the file of this step and, at step 0, those of the base at the other temperatures.

        Its metrics, with pass@k and intervals."""
        step, settings = int(trainer.global_steps), self.settings
        if not self.begun:
            if moved := settings.files.begin(settings.settings, fresh=not settings.resumes):
                self.note(moved)
            self.begun = True
        metrics = self._evaluated(trainer, validate, step, settings.temperature)
        for heat in settings.temperatures if step == 0 else ():
            with_own = self._evaluated(trainer, validate, step, heat)
            metrics |= named({name: value for name, value in with_own.items() if name.startswith("eval_passk/")}, heat)
        return metrics

    def see(self, uids: Sequence[str], infos: Mapping[str, Sequence[Any]]) -> None:
        """Keep what verl's validation sampled: the prompt of each completion, and what its reward manager returned of it."""
        self.seen = (list(uids), {name: list(values) for name, values in infos.items()})

    def _evaluated(self, trainer: Any, validate: Callable[[], dict[str, Any]], step: int, heat: float) -> dict[str, Any]:
        self.problems.clear()
        own, manager = trainer.config.trainer.get("validation_data_dir"), trainer.agent_loop_manager
        trainer.agent_loop_manager = Noting(manager, self.problems)
        if heat != self.settings.temperature:
            _set_temperature(manager, heat)
            if own:  # verl's own dump is named only after the step
                trainer.config.trainer.validation_data_dir = f"{own}/T{heat:g}"
        try:
            metrics = validate()
        finally:
            trainer.agent_loop_manager = manager
            if heat != self.settings.temperature:
                _set_temperature(manager, self.settings.temperature)
                trainer.config.trainer.validation_data_dir = own
        rows = count_rows(*self.seen, self.problems, {"step": step, "temperature": heat})
        if not rows:
            self.note(f"warning: step {step}, T = {heat:g}: verl's validation returned no completion, so no file was written")
            return metrics
        self.settings.files.write(step, heat, rows, [])
        found = metrics_of(rows, powers(min(row["n"] for row in rows)))
        self.note(f"step {step}, T = {heat:g}: {_shown(found)} on {len(rows)} problems; {self.settings.files.file(step, heat)}")
        return metrics | found


class Noting:
    """verl's agent loop manager, noting which problem each prompt of a validation is."""

    def __init__(self, manager: Any, problems: dict[str, dict[str, str]]) -> None:
        self._manager, self._problems = manager, problems

    def generate_sequences(self, batch: Any) -> Any:
        """verl's call, passed on."""
        columns = {name: list(batch[name]) for name in ("uid", "raw_prompt", "extra_info", "data_source") if name in batch}
        for row in zip(*columns.values(), strict=True):
            one = {name: getattr(value, "data", value) for name, value in zip(columns, row, strict=True)}
            self._problems[str(one["uid"])] = problem_of(one)
        return self._manager.generate_sequences(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def problem_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The id and the task of a row of verl's: the name of the problem in extra_info (an export of this package), or a digest of its
    prompt, so that rows that repeat a prompt are one problem; extra_info.index for one that is not text."""
    more, source = row.get("extra_info") or {}, str(row.get("data_source", "unknown"))
    if more.get("problem") is not None:
        return {"id": str(more["problem"]), "task": source}
    try:
        text = json.dumps([dict(message) for message in row["raw_prompt"]], sort_keys=True)
    except TypeError:  # an image
        return {"id": f"{source}/{more.get('index')}", "task": source}
    return {"id": hashlib.sha256(f"{source}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16], "task": source}


def count_rows(
    uids: Sequence[str], infos: Mapping[str, Sequence[Any]], problems: Mapping[str, Mapping[str, str]], facts: Mapping[str, Any]
) -> JsonRows:
    """A row of counts per problem, in the order of the validation file. facts: fields of all rows.

    A completion is right if `acc` of its reward manager is 1; without acc, if its reward is at least 1."""
    grouped: dict[str, list[int]] = {}
    for number, uid in enumerate(uids):
        grouped.setdefault(problems[uid]["id"], []).append(number)
    order = dict.fromkeys(one["id"] for one in problems.values() if one["id"] in grouped)
    return [_counted(grouped[name], infos, problems[uids[grouped[name][0]]], facts) for name in order]


def _counted(
    places: Sequence[int], infos: Mapping[str, Sequence[Any]], problem: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    def column(name: str) -> list[Any]:
        return [infos[name][place] for place in places] if name in infos else [None] * len(places)

    rewards, silent = column("reward"), column("no_answer")
    marks = [reward if acc is None else acc for acc, reward in zip(column("acc"), rewards, strict=True)]
    answered = [float(reward) for reward, none in zip(rewards, silent, strict=True) if not none]
    row = {"id": problem["id"], "n": len(places), "c": sum(float(mark) >= 1 for mark in marks), **facts, "task": problem["task"]}
    if None not in (cut := column("cut")):
        row["unfinished"] = int(sum(map(float, cut)))
    if None not in silent:
        row["no_answer"] = int(sum(map(float, silent)))
    return {**row, "reward": sum(answered) / len(answered) if answered else None}


def _shown(metrics: Mapping[str, float]) -> str:
    ks = [name for name in metrics if name.startswith("eval_passk/pass@") and not name.endswith(("_low", "_high"))]
    shown = []
    for name in (ks[0], ks[-1]):
        interval = f" ({metrics[f'{name}_low']:.3f} to {metrics[f'{name}_high']:.3f})" if f"{name}_low" in metrics else ""
        shown.append(f"{name.partition('/')[2]} {metrics[name]:.3f}{interval}")
    return ", ".join(dict.fromkeys(shown))


def _set_temperature(manager: Any, heat: float) -> None:
    """Set val_kwargs.temperature in verl's agent loop workers, each of which has a copy of the configuration."""
    import ray

    workers = getattr(manager, "agent_loop_workers", None)
    if not workers:
        raise ConfigError(
            f"sage.temperatures: {type(manager).__name__} has no agent_loop_workers whose temperature could be set; set "
            f"+sage.temperatures=[] and sample the base with {suggest('eval', 'BASE', '--temperatures', '0.6')}"
        )
    ray.get([worker.__ray_call__.remote(_heated, heat) for worker in workers])


def _heated(worker: Any, heat: float) -> None:
    worker.config.actor_rollout_ref.rollout.val_kwargs.temperature = heat


__all__ = ["Settings", "Validation", "count_rows", "problem_of"]
