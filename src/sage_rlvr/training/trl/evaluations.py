"""Stored evaluations of `PassAtK`: a row of counts per problem, the file that contains them, and the metrics computed from them.

    <folder>/step-000050-T1.jsonl            {"id", "n", "c", "step", "temperature", "seed", "keys", ...} per problem
    <folder>/samples/step-000050-T1.jsonl    {"id", "correct", "text", ...} per completion, if samples are stored
    <folder>/settings.json                   common settings of the evaluations of this folder

`sage-rlvr compare` reads both kinds of rows. Metrics come from the rows, so that a stored evaluation is logged like a new one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.runs import replacing, write_json_atomic
from sage_rlvr.runs.files import to_json
from sage_rlvr.safe_io import read_json, read_json_lines
from sage_rlvr.training.trl.held_out import HeldOut
from sage_rlvr.verdicts.stats.intervals import share_intervals
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.samples.diversity import pcmd_interval, pcmd_of_counts
from sage_rlvr.verifiers.rewards import text_of

JsonRows = list[dict[str, Any]]
AnswerKey = Callable[[Mapping[str, Any], str], str | None]
DELETE = "delete the file; the evaluation is then made anew"
LONGEST_KEY = 200  # characters; a longer answer is stored as a digest


# ---- rows


@dataclass(frozen=True)
class ScoredCompletion:
    """A completion with its reward (None: no answer), whether the reward counts as right, and its answer's canonical spelling."""

    one: HeldOut
    reward: float | None
    right: bool
    answer: str | None


def judged(
    completions: Sequence[HeldOut],
    rewards: Sequence[float | None],
    right_from: float,
    key: AnswerKey,
    rows: Sequence[Mapping[str, Any]],
) -> list[ScoredCompletion]:
    """Rewards at or above `right_from` count as right; the answers of the right completions are read by `key`."""
    results = []
    for one, reward in zip(completions, rewards, strict=True):
        right = reward is not None and reward >= right_from
        results.append(ScoredCompletion(one, reward, right, _answer(key, rows[one.row], one) if right else None))
    return results


def _answer(key: AnswerKey, row: Mapping[str, Any], one: HeldOut) -> str | None:
    try:
        answer = key(row, text_of(one.completion))
    except Exception as error:
        raise DataError(
            f"PassAtK: answer_key raised {type(error).__name__}: {error} on a completion of held-out row {one.row}; correct the "
            "function (row, text) -> answer or None, or leave answer_key out."
        ) from error
    return None if answer is None else _short(str(answer))


def _short(answer: str) -> str:
    if len(answer) <= LONGEST_KEY:
        return answer
    return "blake2:" + hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def count_rows(
    results: Sequence[ScoredCompletion], ids: Sequence[str], facts: Mapping[str, Any]
) -> list[tuple[int, dict[str, Any]]]:
    """(number, row of counts) of every problem in `results`. facts: fields that all rows have, such as the step."""
    by_row: dict[int, list[ScoredCompletion]] = {}
    for result in results:
        by_row.setdefault(result.one.row, []).append(result)
    return [(row, _counted(ids[row], group, facts)) for row, group in by_row.items()]


def _counted(name: str, group: Sequence[ScoredCompletion], facts: Mapping[str, Any]) -> dict[str, Any]:
    rewards = [one.reward for one in group if one.reward is not None]
    return {
        "id": name,
        "n": len(group),
        "c": sum(one.right for one in group),
        **facts,
        "keys": dict(Counter(one.answer for one in group if one.answer is not None)),
        "unfinished": sum(one.one.cut for one in group),
        "no_answer": len(group) - len(rewards),
        "reward": sum(rewards) / len(rewards) if rewards else None,
    }


def sample_rows(
    results: Sequence[ScoredCompletion], ids: Sequence[str], rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[tuple[int, dict[str, Any]]]:
    """(number, row of a sample) of every completion, with its text and its prompt."""
    return [
        (
            result.one.row,
            {
                "id": ids[result.one.row],
                "correct": result.right,
                "score": result.reward,
                "answer": result.answer,
                "text": text_of(result.one.completion),
                "cut": result.one.cut,
                **facts,
                "prompt": rows[result.one.row]["prompt"],
            },
        )
        for result in results
    ]


# ---- metrics


def metrics_of(rows: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> dict[str, float]:
    """Means over problems of an evaluation's rows, pass@k with its 95 % interval; fractions are of completions."""
    n, c = [row["n"] for row in rows], [row["c"] for row in rows]
    total = sum(n)
    rewards = [(row["reward"], row["n"] - row["no_answer"]) for row in rows if row["reward"] is not None]
    intervals = share_intervals(np.stack([pass_at_k(n, c, k) for k in ks], axis=1))
    curve = {f"eval_passk/pass@{k}": interval.value for k, interval in zip(ks, intervals, strict=True)}
    if len(rows) > 1:  # one problem has no interval
        curve |= {f"eval_passk/pass@{k}_low": interval.low for k, interval in zip(ks, intervals, strict=True)}
        curve |= {f"eval_passk/pass@{k}_high": interval.high for k, interval in zip(ks, intervals, strict=True)}
    more = {
        "eval_passk/distinct_right": sum(len(row["keys"]) for row in rows) / len(rows),
        "eval_passk/unfinished_frac": sum(row["unfinished"] for row in rows) / total,
        "eval_passk/no_answer_frac": sum(row["no_answer"] for row in rows) / total,
    }
    if (differ := pcmd_interval([pcmd_of_counts([*row["keys"].values()]) for row in rows])).n:
        more["eval_passk/pcmd"] = differ.value
    if rewards:
        more["eval_passk/reward_mean"] = sum(mean * count for mean, count in rewards) / sum(count for _, count in rewards)
    return {name: float(value) for name, value in (curve | more).items()}


def named(metrics: Mapping[str, float], temperature: float) -> dict[str, float]:
    """The same metrics under the name of a temperature other than that of the evaluations."""
    return {name.replace("eval_passk/", f"eval_passk_T{temperature:g}/"): value for name, value in metrics.items()}


# ---- files


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one run in a folder. Only the first process calls these methods."""

    folder: Path

    def file(self, step: int, temperature: float) -> Path:
        """The counts of an evaluation; the file exists once the evaluation is complete."""
        return self.folder / f"step-{step:06d}-T{temperature:g}.jsonl"

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
                    f"PassAtK: {self.folder} holds evaluations with other settings ({changes}); pass the settings that the run "
                    "was started with, or another folder."
                )
            if stored:
                return ""
        moved = self._set_aside(everything=bool(other)) if fresh else 0
        write_json_atomic(self.folder / "settings.json", dict(settings))
        return f"PassAtK: {moved} files of an earlier run in {self.folder} were moved into earlier-*" if moved else ""

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


# ---- held-out rows


def ids_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the rows in files: the column `id`, or else a digest of the prompt. DataError for two rows of one name.

    A number of the row would pair different problems of two files whose rows are in another order.
    """
    names = [str(row["id"]) if row.get("id") is not None else _digest(row["prompt"]) for row in rows]
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        first = places.setdefault(name, number)
        if first != number:
            what = "the same id" if rows[number].get("id") is not None else "the same prompt and no column id"
            raise DataError(f"PassAtK: held-out rows {first} and {number} have {what} ({name}); give every row its own id.")
    return names


def _digest(prompt: Any) -> str:
    return hashlib.sha256(to_json(prompt, "the prompt of a held-out row").encode("utf-8", "surrogatepass")).hexdigest()[:16]


__all__ = ["AnswerKey", "Evaluations", "count_rows", "ids_of", "judged", "metrics_of", "named", "sample_rows"]
