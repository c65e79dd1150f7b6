"""Readers for the files of result folders: design.json, run.json and the record of a run; error texts for other files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.evaluation.store import is_store
from sage_rlvr.runs import RECORD, file_sha256, is_run, read_metrics, read_record
from sage_rlvr.safe_io import read_json, read_text, understood
from sage_rlvr.verdicts.design import BASE, Arm, Design, Envelope, questions_of
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.sources import State, TrainingRun

TAKES = (
    "Valid paths are files of rows (docs/reference/rows.md), folders of `sage-rlvr demo` or `sweep` (with runs/ and "
    "evaluations/), run directories (run.json), records (.npz), sample stores (store.json) and folders with a summary.json; "
    "NAME=PATH[,PATH...] sets the name of an arm."
)
PARTS = ("runs", "evaluations", RECORD, "store.json", "summary.json")
SHOWN = 6
AWAY = "move it away to read the folder without it"
SEEDED = re.compile(r"(.+)-s(\d+)")


def read_design(path: Path) -> dict[str, Any]:
    """design.json of a sweep's folder; {} without that file."""
    file = path / "design.json"
    if not file.exists():
        return {}
    facts: dict[str, Any] = read_json(file, advice=AWAY)
    with understood(file, advice=AWAY):
        design_of(facts)
        evaluate = facts.get("evaluate", {})
        parts = [facts.get("left_out", []), facts.get("base_evaluated", []), *map(evaluate.get, ("ood", "temperatures"), ([], []))]
        if not all(isinstance(part, list) for part in parts) or not all(map(_is_run, facts.get("runs", []))):
            raise TypeError("`arms` or `runs` has an entry of the wrong type")
        if not all(isinstance(arm.get("recipe", ""), str) for arm in facts.get("arms", ())):
            raise TypeError("the recipe of an arm is not a file name")
    return facts


def _is_run(entry: Mapping[str, Any]) -> bool:
    kinds = {"arm": str, "seed": int, "evaluated": list, "complete": bool}
    return all(isinstance(entry[key], kind) for key, kind in kinds.items())


def design_of(facts: Mapping[str, Any]) -> Design:
    """The design in a design.json."""
    written = facts.get("arms", ())
    labels = {str(arm["name"]): str(arm.get("label") or arm["name"]) for arm in written}

    def named(tree: Mapping[str, Any], link: str) -> str | None:
        return labels.get(tree.get(link, ""), tree.get(link))

    arms = tuple(
        Arm(
            name=labels[arm["name"]], key=arm["name"], recipe=arm.get("recipe", ""), why=arm.get("why", ""),
            guided=bool(arm.get("guided")), plain=named(arm, "plain"), placebo=named(arm, "placebo"), no_kl=named(arm, "no_kl"),
            matched=tuple(labels[key] for key in arm.get("matched", ())), equation=arm.get("equation", ""),
            config=arm.get("config", {}),
        )
        for arm in written
    )  # fmt: skip
    rivals = (facts.get("baselines") or {}).items()
    baselines = tuple(Envelope(name=name, arms=tuple(labels.get(key, key) for key in keys)) for name, keys in rivals)
    return Design(
        arms=arms, control=named(facts, "control"), seeds=tuple(facts.get("seeds", ())), title=str(facts.get("title", "")),
        notes=str(facts.get("notes", "")), questions=questions_of(facts.get("questions", ())),
        baselines=baselines, oracle=named(facts, "oracle"),
        discarded=tuple(facts.get("discarded", ())), facts=facts,
    )  # fmt: skip


def read_run(path: Path, arm: str, seed: int) -> TrainingRun:
    """Read run.json and metrics.jsonl of a run directory. Raises DataError with the reason if that fails."""
    facts = read_record(path, advice="leave this run out, or train it again")
    config = facts["config"]
    rows, steps = read_metrics(path), config.get("steps", 0)
    whole = (path / "policy" / "config.json").is_file() and len(rows) >= steps
    return TrainingRun(
        arm=arm, seed=config.get("seed", seed), path=path, state="trained" if whole else "training",
        config=config, versions={str(name): str(v) for name, v in facts.get("versions", {}).items()},
        processors=tuple(facts.get("processors", ())),
        commit=str((facts.get("git") or {}).get("commit") or ""), created=str(facts.get("created") or ""),
        start=start_of(facts), metrics=rows, warnings=facts.get("warnings", ()),
    )  # fmt: skip


def start_of(facts: Mapping[str, Any]) -> str:
    """Hash of the weights that a run was trained from; "" where its run.json has none."""
    return str(facts.get("data", {}).get("model_sha256") or "")


def record_of(run: Path, split: str) -> Record:
    """The record of a run directory. Raises DataError if the run's weights have changed since the evaluation."""
    own, of_sweep = _record_paths(run, split)
    swept = not own.exists() and of_sweep.exists()  # by a sweep or a demo
    record = load_record(of_sweep if swept else own)
    if other_weights(record, run):
        raise DataError(
            f"{run}: {of_sweep if swept else own.name} was made with other weights than policy/ (the run was continued, or is not "
            "finished); "
            f"evaluate it again: {suggest('eval', run)}"
        )
    return record


def store_of(run: Path) -> Path:
    """The only sample store of a run directory without an exact record. Raises DataError for none or several, with the next
    step."""
    stores = stores_of(run)
    if len(stores) == 1:
        return stores[0]
    if stores:
        names = ", ".join(map(str, stores[:SHOWN])) + ", ..." * (len(stores) > SHOWN)
        raise DataError(f"{run}: no exact record and {len(stores)} sample stores; pass the path of one of them: {names}")
    ways = f"{suggest('eval', run)} (if the task lists all right completions), else {suggest('eval', run, '--samples', '64')}"
    raise DataError(f"{run}: no evaluation found, neither a record nor samples; create one with: {ways}")


def stores_of(run: Path) -> list[Path]:
    """The sample stores of a run directory."""
    return sorted(store for store in run.glob("samples/*") if is_store(store))


def has_store(path: Path) -> bool:
    """Whether a path is a sample store, or a run directory with one."""
    return is_store(path) or (is_run(path) and bool(stores_of(path)))


def has_record(run: Path, split: str) -> bool:
    """Whether a run directory has an exact record, in itself or in its sweep."""
    return any(file.exists() for file in _record_paths(run, split))


def _record_paths(run: Path, split: str) -> tuple[Path, Path]:
    return run / f"evaluation-{split}.npz", record_path(run.parent.parent, run.name, "" if split == "test" else split)


def other_weights(record: Record, run: Path) -> bool:
    """Whether the run's weight files differ from those that the record was made with (for an adapter, only the adapter's files)."""
    own = [file_sha256(file) for file in sorted((run / "policy").glob("*.safetensors"))]
    return bool(own) and not str(record.meta.get("weights")).startswith(" ".join(own))


def label_of(run: Path, index: int) -> tuple[str, int]:
    """Arm and training seed of a run directory as its sweep names them."""
    stem, seed = address(run, index)
    return design_of(read_design(run.parent.parent)).called(stem), seed


def address(path: Path, index: int) -> tuple[str, int]:
    """Arm and training seed of "grpo-s3"; for other names the seed is the index in the list."""
    stem = path.name.removesuffix(".npz")
    match = SEEDED.fullmatch(stem)
    return (match[1], int(match[2])) if match else (stem, index)


def is_base(record: Record) -> bool:
    """Whether a record is of the base policy."""
    return record.meta.get("name") == BASE or record.meta.get("model") == "embedded"


def state_of(entry: Mapping[str, Any]) -> State:
    """The state of a run in a design.json; older files have "1/2" for a run in training."""
    state: State = entry.get("status", "not run")
    return state if state in get_args(State) else "training"


# ------------------------------------------------------------------------------------------------------------------
# refusals


def check_record(path: Path) -> None:
    """Raise DataError for a file that is not an .npz archive; `load_record` handles a missing file."""
    if not path.is_file() or zipfile.is_zipfile(path):
        return
    if path.suffix == ".npz":
        raise DataError(f"{path} is damaged (not an .npz archive); create it again with: {suggest('eval', 'RUN')}")
    raise DataError(f"{path} is not a record of an evaluation{_instead(path)}. {TAKES}")


def _instead(path: Path) -> str:
    """The next step for a file without results: sweep a design, train a recipe, pass the folder."""
    if path.name in (RECORD, "design.json", "summary.json", "store.json"):
        return f"; pass its folder: {path.parent}"
    if path.suffix not in (".yaml", ".yml"):
        return ""
    keys = set(re.findall(r"^(\w+):", read_text(path), re.MULTILINE))
    kinds = {
        "arms": ("sweep", "a design", "the folder that it creates"), "method": ("train", "a recipe", "its run directory"),
        "steps": ("sft", "a recipe", "its run directory"),
    }  # fmt: skip
    for key, (command, what, then) in kinds.items():
        if key in keys:
            return f", but {what}: `{suggest(command, path)}` runs it first, then pass {then}"
    return ""


def nothing_in(folder: Path) -> str:
    """The error text for a folder without results: a page of compare, folders with results inside, or the commands that create
    one."""
    page, head = folder / "report.html", f"{folder} contains no runs, evaluations or samples"
    if page.is_file():
        return f"{head}; it contains a page: {page}. {TAKES}"
    if records := len(list(folder.glob("*.npz"))):
        whole = (folder.parent / "runs").is_dir()
        what = f"pass its parent, {folder.parent}" if whole else f"pass the files: {folder}/*.npz"
        return f"{folder} is a folder of {records} record{'s' * (records > 1)}; {what}"
    inside = [str(p) for p in sorted(folder.iterdir()) if any((p / name).exists() for name in PARTS)]
    if inside:
        more = ", ..." * (len(inside) > SHOWN)
        return f"{head} itself, but folders inside it do; pass one of them: {', '.join(inside[:SHOWN])}{more}"
    return f"{head}. {TAKES} `sage-rlvr demo` and `{suggest('sweep', 'DESIGN')}` create such folders."
