"""Stored evaluations of pass@k during a training, by `PassAtK` on TRL and `sage.passk` on verl: files, and metrics of one.

    <folder>/step-000050-T1.jsonl            {"id", "n", "c", "step", "temperature", ...} per problem
    <folder>/samples/step-000050-T1.jsonl    {"id", "correct", "text", ...} per completion, if samples are stored
    <folder>/settings.json                   common settings of the evaluations of this folder

`sage-rlvr compare` reads both kinds of rows. Metrics come from the rows, so that a stored evaluation is logged like a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.runs import replacing, write_json_atomic
from sage_rlvr.runs.files import to_json
from sage_rlvr.safe_io import read_json, read_json_lines
from sage_rlvr.verdicts.stats.intervals import share_intervals
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.samples.diversity import pcmd_interval, pcmd_of_counts

JsonRows = list[dict[str, Any]]
FRACTIONS = {"eval_passk/unfinished_frac": "unfinished", "eval_passk/no_answer_frac": "no_answer"}
DELETE = "delete the file; the evaluation is then made anew"


def metrics_of(rows: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> dict[str, float]:
    """Means over problems of an evaluation's rows, pass@k with its 95 % interval; fractions are of completions.

    Rows without keys, unfinished or no_answer give no metrics of these.
    """
    n, c = [row["n"] for row in rows], [row["c"] for row in rows]
    rewards = [(row["reward"], row["n"] - row.get("no_answer", 0)) for row in rows if row["reward"] is not None]
    intervals = share_intervals(np.stack([pass_at_k(n, c, k) for k in ks], axis=1))
    curve = {f"eval_passk/pass@{k}": interval.value for k, interval in zip(ks, intervals, strict=True)}
    if len(rows) > 1:  # one problem has no interval
        curve |= {f"eval_passk/pass@{k}_low": interval.low for k, interval in zip(ks, intervals, strict=True)}
        curve |= {f"eval_passk/pass@{k}_high": interval.high for k, interval in zip(ks, intervals, strict=True)}
    more = dict[str, float]()
    for metric, name in FRACTIONS.items():
        if all(name in row for row in rows):
            more[metric] = sum(row[name] for row in rows) / sum(n)
    if all("keys" in row for row in rows):
        more["eval_passk/distinct_right"] = sum(len(row["keys"]) for row in rows) / len(rows)
        if (differ := pcmd_interval([pcmd_of_counts([*row["keys"].values()]) for row in rows])).n:
            more["eval_passk/pcmd"] = differ.value
    if rewards:
        more["eval_passk/reward_mean"] = sum(mean * count for mean, count in rewards) / sum(count for _, count in rewards)
    return {name: float(value) for name, value in (curve | more).items()}


def named(metrics: Mapping[str, float], temperature: float) -> dict[str, float]:
    """The same metrics under the name of a temperature other than that of the evaluations."""
    return {name.replace("eval_passk/", f"eval_passk_T{temperature:g}/"): value for name, value in metrics.items()}


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one run in a folder. Only the first process calls these methods."""

    folder: Path

    def file(self, step: int, temperature: float) -> Path:
        """The counts of an evaluation; the file exists once the evaluation is complete."""
        return self.folder / f"step-{step:06d}-T{temperature:g}.jsonl"

    def all(self, step: int) -> list[Path]:
        """The evaluations of a step, the warmest first."""
        return sorted(self.folder.glob(f"step-{step:06d}-T*.jsonl"), key=lambda path: -float(path.stem.rpartition("-T")[2]))

    def last(self) -> Path | None:
        """The evaluation of the latest step after the first, None without one."""
        later = [path for path in self.folder.glob("step-*-T*.jsonl") if not path.name.startswith("step-000000-")]
        return max(later, default=None)

    def read(self, step: int, temperature: float) -> JsonRows | None:
        """The counts of a stored evaluation, None without one. CheckpointError for a damaged file."""
        path = self.file(step, temperature)
        if not path.is_file():
            return None
        rows = [row for _, row in read_json_lines(path, error=CheckpointError, advice=DELETE)]
        lacking = {"id", "n", "c", "keys", "unfinished", "no_answer", "reward"}.difference(*(rows[:1] or [{}]))
        if lacking:
            raise CheckpointError(f"{path}: the first row has no {', '.join(sorted(lacking))}; {DELETE}")
        return rows

    def write(self, step: int, temperature: float, counts: JsonRows, samples: JsonRows) -> None:
        """Store an evaluation. The counts come last: a kill between the two files leaves an evaluation that is made again."""
        path = self.file(step, temperature)
        if samples:
            _write_lines(self.folder / "samples" / path.name, samples)
        _write_lines(path, counts)

    def begin(self, settings: Mapping[str, Any], fresh: bool) -> str:
        """Compare `settings` with those of the folder; a warning, or "".

        fresh: training starts at step 0. Then evaluations of an earlier run are moved into earlier-1/, earlier-2/, ...; those
        of the same base before the first step stay. A resumed run with other settings raises ConfigError.
        settings["base"]: the digest of the base's weights; None where there is none, as of sharded weights.
        """
        stored = self._settings()
        other = {name: (stored.get(name), settings[name]) for name in settings if stored and stored.get(name) != settings[name]}
        if stored and settings["base"] is None:  # it may be another base, whose evaluations must not be taken for those of this one
            other["base"] = (stored.get("base"), None)
        if not fresh:
            other.pop("base", None)  # the digest of weights that a resumed run no longer has
            if other:
                changes = "; ".join(f"{name} was {was!r}, now {now!r}" for name, (was, now) in other.items())
                raise ConfigError(
                    f"{self.folder} holds evaluations with other settings ({changes}); pass the settings that the run "
                    "was started with, or another folder."
                )
            if stored:
                return ""
        moved = self._set_aside(everything=bool(other)) if fresh else 0
        write_json_atomic(self.folder / "settings.json", dict(settings))
        return f"{moved} files of an earlier run in {self.folder} were moved into earlier-*" if moved else ""

    def _settings(self) -> dict[str, Any]:
        path = self.folder / "settings.json"
        return dict(read_json(path, error=CheckpointError, advice=DELETE)) if path.is_file() else {}

    def _set_aside(self, everything: bool) -> int:
        files = [*self.folder.glob("step-*.jsonl"), *self.folder.glob("samples/step-*.jsonl")]
        stale = [path for path in files if everything or not path.name.startswith("step-000000-")]
        if not stale:
            return 0
        earlier = next(earlier for number in range(1, 10**6) if not (earlier := self.folder / f"earlier-{number}").exists())
        for path in stale:
            target = earlier / path.relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        return len(stale)


def _write_lines(path: Path, rows: JsonRows) -> None:
    text = "".join(to_json(row, f"{path.name}, row {row['id']!r}") + "\n" for row in rows)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


__all__ = ["Evaluations", "JsonRows", "metrics_of", "named"]
