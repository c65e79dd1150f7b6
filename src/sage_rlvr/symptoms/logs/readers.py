"""Logs of several programs as a `LogTable`, recognized by their content.

    a run of this package   RUN/metrics.jsonl, with run.json in the same folder
    TRL                     trainer_state.json (in checkpoint-N too), completions/*.parquet, the dictionaries printed on a console
    verl                    the console ("step:1 - actor/entropy:0.3 - ..."), its file logger ({"step", "data"}), dumps of
    rollouts and validation (N.jsonl with input, output, score)
    wandb                   a CSV from the page, or the history as CSV, JSON or JSONL
    TensorBoard             event files, if tensorboard is installed
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.extras import install
from sage_rlvr.safe_io import read_bytes, read_parquet
from sage_rlvr.symptoms.logs.names import COMPONENT, HELD_OUT, PROGRAMS, bare, program_of
from sage_rlvr.symptoms.logs.table import CompletionRow, LogTable, curve_of

Row = tuple[int, dict[str, Any]]
"""A step and its metrics under the program's names."""
GOLDS = {"gold", "golds", "answer", "target", "solution", "ground_truth", "label", "reference"}
"""Columns of golds in a completion table, of which a reward function writes one by TRL's `log_extra`."""
STEPS = ("global_step", "trainer/global_step", "training/global_step", "step", "_step", "Step")
KNOWN = (
    "a run directory of ours, TRL's trainer_state.json or output_dir, verl's console, file logger or dumps, a wandb CSV or "
    "history, TensorBoard's event files"
)
NEVER_NULL = {"loss", "grad_norm", "actor/grad_norm", "reward"}
"""Metrics that a program writes in every row, so that null stands for NaN."""
TEXTS = 20_000  # largest number of completions that are read
RATES = [name for table in PROGRAMS.values() for name in table["lr"]]
_BARE = re.compile(r":\s*(-?(?:nan|inf))\b")  # a float that Python does not print as a literal
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_VERL_STEP = re.compile(r"(?:^|\s)step:(\d+)(?=\s-\s|\s*$)")
_VERL_VALUE = re.compile(r"-\s([\w/@.()+-]+):\s?(?:np\.\w+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?(?=\s|$)", re.IGNORECASE)


def read_log(path: str | Path) -> LogTable:
    """The log in a file or a folder. Raises DataError for one that no reader recognizes, with the known ones."""
    where = Path(path)
    if not where.exists():
        raise DataError(f"{where}: there is no such file or folder; pass {KNOWN}")
    table = _folder(where) if where.is_dir() else _file(where)
    if table is None:
        raise DataError(f"{where}: no reader knows this log; pass {KNOWN}")
    return table


def _read(file: Path) -> str:
    """A text file; invalid UTF-8, as left by a killed process, is replaced."""
    return read_bytes(file, limit=1 << 30).decode("utf-8-sig", errors="replace")


# ---- folders


def _folder(where: Path) -> LogTable | None:
    if (where / "metrics.jsonl").is_file():
        return _ours(where / "metrics.jsonl")
    states = sorted(where.glob("checkpoint-*/trainer_state.json"), key=lambda file: int(file.parent.name.rpartition("-")[2]))
    state = where / "trainer_state.json"
    if state.is_file() or states:
        return _trl_state(state if state.is_file() else states[-1], where)
    if (where / "completions").is_dir() or list(where.glob("completions_*.parquet")):
        texts = _completions(where)
        return _made("TRL", where, [], completions=texts) if texts else None
    events = sorted(where.rglob("*tfevents*"))
    if events:
        return _tensorboard(where, events)
    dumps = sorted((file for file in where.glob("*.jsonl") if file.stem.isdigit()), key=lambda file: int(file.stem))
    if dumps:
        return _verl_dumps(where, dumps)
    logs = [file for file in sorted(where.iterdir()) if file.suffix in (".log", ".jsonl", ".csv", ".json") and file.is_file()]
    for file in logs:
        table = _file(file)
        if table is not None:
            return table
    return None


def _file(file: Path) -> LogTable | None:
    if "tfevents" in file.name:
        return _tensorboard(file, [file])
    if file.suffix == ".parquet":
        texts = _texts_of(_parquet(file))
        return _made("TRL", file, [], completions=texts) if texts else None
    text = _read(file)
    if file.suffix == ".json" or text.lstrip()[:1] in "{[":
        table = _json(file, text)
        if table is not None:
            return table
    table = _csv(file, text) if file.suffix == ".csv" or _looks_csv(text) else None
    return table or _console(file, text)


# ---- runs of this package


def _ours(file: Path) -> LogTable:
    rows = [(int(row["step"]), row) for row in _objects(_read(file)) if "step" in row]
    record = file.parent / "run.json"
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    if record.is_file():
        run = json.loads(_read(record))
        settings, warnings = _settings(run.get("config", {})), [str(one.get("message", one)) for one in run.get("warnings", [])]
    diverged = sorted((file.parent / "diverged").glob("step-*/batch.json"))
    ended = str(json.loads(_read(diverged[-1])).get("error", "")) if diverged else ""
    return _made("sage-rlvr", file, rows, settings=settings, ended=ended, warnings=warnings, begins=0)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that a diagnosis uses."""
    method = config.get("method", {})
    beta = _find(method, "beta")
    rollout, optimizer = config.get("rollout", {}), config.get("optimizer", {})
    found = {"beta": beta, "lr": optimizer.get("lr")}
    found |= {name: rollout.get(name) for name in ("group_size", "temperature")}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _find(tree: Any, name: str) -> Any:
    """The first value of a key in a tree."""
    if isinstance(tree, Mapping):
        if name in tree:
            return tree[name]
        return next((value for one in tree.values() if (value := _find(one, name)) is not None), None)
    return None


# ---- TRL


def _trl_state(file: Path, folder: Path) -> LogTable:
    state = json.loads(_read(file))
    rows = [(int(row.get("step", 0)), dict(row)) for row in state["log_history"]]
    if not rows:
        raise DataError(f"{file}: log_history is empty; set logging_steps to 1 and train some steps")
    names = {match["name"] for _, row in rows for name in row if (match := COMPONENT.match(name)) and match["name"]}
    return _made("TRL", file, rows, completions=_completions(folder, names))


def _completions(folder: Path, rewards: Collection[str] = ()) -> list[CompletionRow]:
    files = sorted([*folder.glob("completions/completions_*.parquet"), *folder.glob("completions_*.parquet")])
    files = files[:: max(1, len(files) // 50)]
    return [row for file in files for row in _texts_of(_parquet(file), rewards)][:TEXTS]


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    for batch in read_parquet(file):
        yield from batch.to_pylist()


def _texts_of(rows: Iterable[Mapping[str, Any]], rewards: Collection[str] = ()) -> list[CompletionRow]:
    """Rows of TRL's completion table: step, prompt, completion, a column per reward function, columns of `log_extra`, advantage.

    rewards: names of the reward functions, if known; else every number that is no gold counts as a reward."""
    found = []
    for row in rows:
        if "completion" not in row:
            return []
        other = {"step", "prompt", "completion", "advantage", "images"} | GOLDS
        columns = [name for name in row if name in rewards] if rewards else [name for name in row if name not in other]
        values = [float(row[name]) for name in columns if isinstance(row[name], int | float)]
        numbers = [value for value in values if not math.isnan(value)]
        gold = next((row[name] for name in row if name in GOLDS and name not in rewards), None)
        found.append(
            CompletionRow(
                step=int(row.get("step") or 0),
                prompt=_text(row.get("prompt")),
                text=_text(row["completion"]),
                reward=sum(numbers) if numbers else None,
                gold=_gold(gold),
                messages=not isinstance(row.get("prompt"), str),
            )
        )
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(str(message.get("content", "")) for message in value or () if isinstance(message, Mapping))


# ---- verl


def _verl_dumps(where: Path, files: Sequence[Path]) -> LogTable | None:
    """Dumps of rollouts or validation, a file per step: the mean score of each, and the texts."""
    texts: list[CompletionRow] = []
    scores: dict[int, list[float]] = defaultdict(list)
    for file in files:
        for row in _objects(_read(file)):
            if not {"input", "output"} <= row.keys():
                return None
            step, score = int(row.get("step", file.stem)), row.get("score")
            scores[step] += [float(score)] if isinstance(score, int | float) else []
            if len(texts) < TEXTS:
                number = float(score) if isinstance(score, int | float) else None
                texts.append(CompletionRow(step, str(row["input"]), str(row["output"]), number, _gold(row.get("gts"))))
    rows = [(step, {"critic/score/mean": sum(some) / len(some)}) for step, some in scores.items() if some]
    return _made("verl", where, rows, completions=texts, more=_of_texts(texts))


def _gold(value: Any) -> str:
    return "" if value is None else str(value[0] if isinstance(value, list) and len(value) == 1 else value)


def _of_texts(texts: Sequence[CompletionRow]) -> dict[str, dict[int, float]]:
    """Curves of a table of completions: the share of prompts with equal rewards, mean length in characters."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    lengths: dict[int, list[int]] = defaultdict(list)
    for one in texts:
        lengths[one.step].append(len(one.text))
        if one.reward is not None:
            groups[one.step, one.prompt].append(one.reward)
    same: dict[int, list[bool]] = defaultdict(list)
    for (step, _), rewards in groups.items():
        if len(rewards) > 1:
            same[step].append(len(set(rewards)) == 1)
    return {
        "unmixed": {step: sum(some) / len(some) for step, some in same.items()},
        "length": {step: sum(some) / len(some) for step, some in lengths.items()},
    }


# ---- text


def _console(file: Path, text: str) -> LogTable | None:
    """verl's console, one step per line or one value per line; or the dictionaries that TRL prints."""
    plain = _ANSI.sub("", text)
    rows: list[Row] = []
    printed: list[Row] = []
    for line in plain.splitlines():
        match = _VERL_STEP.search(line)
        if match:
            rows.append((int(match[1]), {}))
            line = line[match.end() :]
        elif not (rows and line.lstrip().startswith("- ")):
            printed += _printed(line, printed)
            continue
        rows[-1][1].update({name: float(value) for name, value in _VERL_VALUE.findall(f" {line}")})
    if any(values for _, values in rows):
        return _made("verl", file, rows)
    return _made("TRL", file, printed) if printed else None


def _printed(line: str, before: Sequence[Row]) -> list[Row]:
    """The row of a printed dictionary, which has no step: one more than the rows of earlier epochs in this run."""
    start = line.find("{'")
    if start < 0 or "'reward'" not in line:
        return []
    try:
        values = ast.literal_eval(_BARE.sub(r": '\1'", line[start : line.rindex("}") + 1]))
    except (ValueError, SyntaxError):
        return []
    numbers = {name: number for name, value in values.items() if (number := _number(value)) is not None}
    step = before[-1][0] + 1 if before else 1
    epoch = numbers.get("epoch", math.inf)
    if before and epoch < before[-1][1].get("epoch", -math.inf):  # another run, or a resumed one
        step = min(number for number, row in before if row.get("epoch", math.inf) >= epoch)
    return [(step, numbers)]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one per line; other lines, such as torn ones, are left out."""
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _json(file: Path, text: str) -> LogTable | None:
    try:
        tree = json.loads(text)
    except ValueError:
        tree = list(_objects(text))
    if isinstance(tree, dict) and "log_history" in tree:
        return _trl_state(file, file.parent)
    if isinstance(tree, dict) and {"step", "data"} <= tree.keys():
        tree = [tree]
    if isinstance(tree, dict):  # a history by columns, {metric: {row: value}} or {metric: [value]}
        listed = {name: value for name, value in tree.items() if isinstance(value, dict | list) and value}
        columns = {name: list(value.values()) if isinstance(value, dict) else value for name, value in listed.items()}
        longest = max(map(len, columns.values()), default=0)
        tree = [{name: value[i] for name, value in columns.items() if i < len(value)} for i in range(longest)]
    objects = [one for one in tree if isinstance(one, dict)]
    if not objects:
        return None
    if {"step", "data"} <= objects[0].keys() and isinstance(objects[0]["data"], dict):  # verl's file logger
        return _made("verl", file, [(int(one["step"]), one["data"]) for one in objects if "data" in one])
    if {"input", "output"} <= objects[0].keys():
        return _verl_dumps(file, [file])
    if file.name == "metrics.jsonl" and "reward/mean" in objects[0]:
        return _ours(file)
    return _tracked(file, objects)


def _looks_csv(text: str) -> bool:
    head = text.partition("\n")[0]
    return head.count(",") >= 1 and any(f"{name}" in head for name in ("Step", "_step", "step"))


def _csv(file: Path, text: str) -> LogTable | None:
    return _tracked(file, list(csv.DictReader(io.StringIO(text))))


def _tracked(file: Path, objects: Sequence[Mapping[str, Any]]) -> LogTable | None:
    """Rows of a tracker's history, each with a step and some metrics; a row of other metrics may lack the trainer's step."""
    named = [{bare(str(name)): value for name, value in one.items() if name and "__M" not in str(name)} for one in objects]
    counter = next((name for name in STEPS if any(_step(one.get(name)) is not None for one in named)), "")
    rows: list[Row] = []
    for number, one in enumerate(named):
        found = _step(one.get(counter)) if counter else number
        step = found if found is not None else rows[-1][0] if rows else 0
        numbers = {name: value for name, cell in one.items() if (value := _number(cell)) is not None}
        if not any(math.isfinite(numbers.get(name, math.nan)) for name in RATES):  # empty cells of a row that is no update's
            numbers = {name: value for name, value in numbers.items() if not math.isnan(value)}
        rows.append((step, numbers))
    program = program_of({name for _, values in rows for name in values})
    return None if program is None else _made(program, file, rows)


def _step(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) else None


def _tensorboard(where: Path, files: Sequence[Path]) -> LogTable | None:
    """The last run under a folder: the event files of one folder are one run, with its restarts."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError as error:
        raise DataError(f"{where}: TensorBoard's event files need tensorboard; {install('trackers')}") from error
    runs: dict[Path, list[Row]] = defaultdict(list)
    began: dict[Path, float] = {}
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                rows[event.step][bare(tag)] = event.value
                began.setdefault(file.parent, event.wall_time)
        runs[file.parent] += sorted(rows.items())
    programs = {folder: program_of({name for _, values in rows for name in values}) for folder, rows in runs.items()}
    known = sorted((folder for folder, program in programs.items() if program), key=lambda folder: began[folder])
    if not known:
        return None
    folder = known[-1]
    more = [f"{len(known)} runs under {where}: {folder.name}, the last, is read"] if len(known) > 1 else []
    return _made(programs[folder] or "", where, runs[folder], notes=more)


# ---- one table


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and value.strip():
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _one_run(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows of the last run in a log, those of a restart in place of the steps that it repeats, and remarks on both."""
    kept: list[Row] = []
    notes = []
    for step, values in rows:
        if kept and step < kept[-1][0]:
            last, first = kept[-1][0], kept[0][0]
            if step <= first:
                notes.append(f"after step {last} steps begin again at {step}: several runs in one log, of which the last is read")
                kept = []
            else:
                notes.append(f"the steps go back from {last} to {step}: a restart, whose rows replace the earlier ones")
                kept = [row for row in kept if row[0] < step]
        kept.append((step, values))
    return kept, notes


def _gaps(steps: Sequence[int]) -> list[str]:
    """A remark on missing steps: distances above three times the usual one."""
    between = [(after - before, before, after) for before, after in pairwise(steps)]
    usual = sorted(size for size, _, _ in between)[len(between) // 2] if between else 0
    gaps = [f"{before} and {after}" for size, before, after in between if size > 3 * usual]
    more = f" and in {len(gaps) - 3} other places" if len(gaps) > 3 else ""
    return [f"no rows between steps {', '.join(gaps[:3])}{more}"] if gaps else []


def _made(
    program: str,
    source: Path,
    rows: Sequence[Row],
    *,
    completions: Sequence[CompletionRow] = (),
    settings: Mapping[str, Any] | None = None,
    ended: str = "",
    warnings: Sequence[str] = (),
    begins: int = 1,
    more: Mapping[str, Mapping[int, float]] | None = None,
    notes: Sequence[str] = (),
) -> LogTable:
    """The table of rows under a program's names."""
    own = PROGRAMS[program]
    rows, restarts = _one_run(rows)
    by_name: dict[str, dict[int, float]] = defaultdict(dict)
    for step, values in rows:
        for name, value in values.items():
            number = _number(value)
            if number is None and value is None and bare(name) in NEVER_NULL:
                number = math.nan  # from a writer of strict JSON
            if number is not None:
                by_name[bare(name)][step] = number
    columns = {short: by_name[name] for short, names in own.items() for name in names[::-1] if name in by_name}
    tested = next((name for name in by_name if HELD_OUT.match(name)), None)
    if tested is not None:
        columns.setdefault("held_out", by_name[tested])
    rewards = {}
    for name in by_name:
        match = COMPONENT.match(name)
        if match and program == "TRL":
            rewards[match["name"] or match["old"]] = by_name[name]
    for short, column in (more or (_of_texts(completions) if completions else {})).items():
        if column:
            columns.setdefault(short, dict(column))
    return LogTable(
        program=program,
        source=str(source),
        columns=columns,
        rewards=rewards if len(rewards) > 1 else {},
        completions=completions,
        settings=settings or {},
        ended=ended,
        warnings=warnings,
        begins=begins,
        notes=[*notes, *restarts, *_gaps(curve_of(columns.get("reward", {}))[0])],
    )


__all__ = ["KNOWN", "read_log"]
