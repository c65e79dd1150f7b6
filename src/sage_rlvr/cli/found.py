"""What `report` is given, by arm: records, run directories and sample stores, found in folders or named one by one."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.config import parse_yaml
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.evaluation.record import Record, load_record
from sage_rlvr.evaluation.store import SampleStore

BASE = "base"
TAKES = (
    "A report takes folders of `sage-rlvr demo` or `sweep` (with runs/ and evaluations/), run directories (run.json), records "
    "(.npz) and sample stores (store.sqlite)."
)
PARTS = ("runs", "evaluations", "run.json", "store.sqlite")  # any of these makes a folder one that a report takes
SHOWN = 6
_SEEDED = re.compile(r"(.+)-s(\d+)")


@dataclass
class Policy:
    """What was found of one arm: records and run directories by training seed, stores with theirs, and its words."""

    name: str
    records: dict[int, Record] = field(default_factory=dict)
    runs: dict[int, Path] = field(default_factory=dict)
    stores: list[tuple[int | None, Path]] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    why: str = ""


@dataclass
class Found:
    """Everything that was named, sorted by arm; `labels` maps a recipe's stem to the arm's name."""

    labels: Mapping[str, str]
    split: str
    base: Policy = field(default_factory=lambda: Policy(BASE))
    arms: dict[str, Policy] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    control: str | None = None
    tiers: list[str] = field(default_factory=list)  # what sweeps call themselves
    folders: bool = False  # whole folders were named, so the order of the arms is theirs

    def arm(self, name: str) -> Policy:
        """The arm of that name, made where it is new; the base stands apart."""
        return self.base if name == BASE else self.arms.setdefault(name, Policy(name))

    def label(self, stem: str) -> str:
        """The arm's name of a recipe's stem."""
        return self.labels.get(stem, stem)


def gather(items: Sequence[str], labels: Mapping[str, str], split: str = "test") -> Found:
    """Sort what was named by arm and seed. DataError names what is none of folder, run, record and store."""
    found = Found(labels=dict(labels), split=split)
    for item in items:
        name, paths = ("", item) if Path(item).exists() else _named(item)
        for index, path in enumerate(paths.split(",") if name else [paths]):
            _add(found, Path(path), name, index)
            found.sources.append(path)
    return found


def _named(item: str) -> tuple[str, str]:
    name, equals, paths = item.rpartition("=")
    if not equals or not name:
        raise DataError(f"{item}: no such file or folder. {TAKES}")
    return name, paths


def _add(found: Found, path: Path, name: str, index: int) -> None:
    if path.suffix == ".npz" or path.is_file():
        _check_record(path)
        record = load_record(path)
        arm, seed = _address(found, path.stem, index)
        _add_record(found, record, name or (BASE if _is_base(record) else arm), seed)
    elif (path / "store.sqlite").is_file():
        _add_store(found, path, name, index)
    elif (path / "run.json").is_file():
        _add_run(found, path, name, index)
    elif (path / "runs").is_dir() or (path / "evaluations").is_dir():
        if name:
            raise DataError(f"{name}={path}: a whole folder names its arms itself; give {path} alone")
        _add_folder(found, path)
    else:
        raise DataError(_nothing_in(path) if path.is_dir() else f"{path} is not there. {TAKES}")


def _check_record(path: Path) -> None:
    """Refuse a file that is no .npz archive with what to give instead; a missing one is left to `load_record`."""
    if not path.is_file() or zipfile.is_zipfile(path):
        return
    if path.suffix == ".npz":
        raise DataError(f"{path} is damaged, no .npz archive; make it again with: {suggest('eval', 'RUN')}")
    raise DataError(f"{path} is no record of an evaluation{_instead(path)}. {TAKES}")


def _instead(path: Path) -> str:
    """What to do with a file that a report cannot read: sweep a matrix, train a recipe, name the folder of its parts."""
    if path.name in ("run.json", "store.sqlite", "matrix.json", "summary.json"):
        return f"; give its folder: {path.parent}"
    if path.suffix not in (".yaml", ".yml"):
        return ""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, ConfigError):
        return ""
    if "arms" in tree:
        return f", but a matrix: `{suggest('sweep', path)}` runs it first, then give the folder that it fills"
    verb = "train" if "method" in tree else "sft" if "steps" in tree else ""
    return f", but a recipe: `{suggest(verb, path)}` runs it first, then give its run directory" if verb else ""


def _nothing_in(folder: Path) -> str:
    """Why a folder gives no report, with the next step: compare's page, folders inside it, or the verbs that fill one."""
    page = folder / "report.html"
    head = f"{folder} holds no runs, evaluations or samples"
    if page.is_file():
        return f"{head}; compare's page is already there: {page}. {TAKES}"
    records = len(list(folder.glob("*.npz")))
    if records:
        whole = folder.parent if (folder.parent / "runs").is_dir() else None
        return f"{folder} is a folder of {records} record{'s' * (records > 1)}; " + (
            f"give the one above, {whole}" if whole else f"name them: {folder}/*.npz"
        )
    inside = [str(p) for p in sorted(folder.iterdir()) if any((p / name).exists() for name in PARTS)]
    if inside:
        more = ", ..." * (len(inside) > SHOWN)
        return f"{head} itself, but folders of such; name one of them: {', '.join(inside[:SHOWN])}{more}"
    return f"{head}. {TAKES} `sage-rlvr demo` and `{suggest('sweep', 'MATRIX')}` make such folders."


def _address(found: Found, stem: str, index: int) -> tuple[str, int]:
    """Arm and training seed of "grpo-s3"; of other names the place in the list is the seed."""
    match = _SEEDED.fullmatch(stem)
    return (found.label(match[1]), int(match[2])) if match else (found.label(stem), index)


def _is_base(record: Record) -> bool:
    return record.meta.get("name") == BASE or record.meta.get("model") == "embedded"


def _add_record(found: Found, record: Record, arm: str, seed: int) -> None:
    if record.meta.get("split") != found.split:
        found.notes.append(
            f"{arm}: a record of the {record.meta.get('split')} problems is left out, the report is of {found.split}."
        )
        return
    policy = found.arm(arm)
    while policy is not found.base and seed in policy.records:
        seed += 1
    policy.records[0 if policy is found.base else seed] = record


def _add_store(found: Found, path: Path, name: str, index: int) -> None:
    run = next((parent for parent in list(path.parents)[:3] if (parent / "run.json").is_file()), None)
    if run is not None:
        arm, seed = _address(found, run.name, index)
    else:
        model = SampleStore.open(path).identity.model
        arm, seed = (BASE if model in (BASE, "embedded") else found.label(Path(model).name)), index
    policy = found.arm(name or arm)
    known = None if policy is found.base or run is None else seed
    if (known, path) not in policy.stores:
        policy.stores.append((known, path))


def _add_run(found: Found, path: Path, name: str, index: int) -> None:
    facts = facts_of(path)
    arm, seed = _address(found, path.name, index)
    seed = int(facts["config"].get("seed", seed))
    policy = found.arm(name or arm)
    while seed in policy.runs and policy.runs[seed] != path:
        seed += 1
    policy.runs[seed] = path
    own = path / f"evaluation-{found.split}.npz"
    if own.is_file() and seed not in policy.records:
        _add_checked(found, own, path, policy.name, seed)
    for store in sorted(path.glob("samples/*/store.sqlite")):
        if (seed, store.parent) not in policy.stores:
            policy.stores.append((seed, store.parent))


def _add_checked(
    found: Found, record: Path, run: Path, arm: str, seed: int, asked: Collection[float] | None = None
) -> None:
    """A record, at these temperatures or all it has, unless the run has other weights by now."""
    from sage_rlvr.models.policy import weights_hash

    loaded = load_record(record)
    policy = run / "policy"
    if (policy / "config.json").is_file() and loaded.meta.get("weights") != weights_hash(str(policy)):
        found.notes.append(
            f"{arm}, seed {seed}: its record is of other weights than the run has now; evaluate it again."
        )
        return
    _add_record(found, loaded.only(asked), arm, seed)


def facts_of(run: Path) -> dict[str, Any]:
    """run.json of a run directory; a DataError says why it cannot be read."""
    try:
        facts: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
        if not isinstance(facts.get("config"), dict):
            raise ValueError("no config")
    except (OSError, ValueError) as error:
        raise DataError(f"{run / 'run.json'} cannot be read ({error}); leave this run out, or train it anew") from error
    return facts


def _add_folder(found: Found, path: Path) -> None:
    found.folders = True
    matrix = _matrix(path)
    stems = {str(arm["name"]): str(arm.get("label") or found.label(str(arm["name"]))) for arm in matrix.get("arms", [])}
    found.labels = {**found.labels, **stems}
    for arm in matrix.get("arms", []):
        found.arm(stems[str(arm["name"])]).why = str(arm.get("why") or "")
    for cell in matrix.get("cells", []):
        found.arm(found.label(str(cell["arm"]))).states[int(cell["seed"])] = str(cell.get("status", "not run"))
    if matrix.get("tier"):
        found.tiers.append(str(matrix["tier"]))
    if matrix.get("control"):
        found.control = found.label(str(matrix["control"]))
    found.notes += [str(text) for text in matrix.get("left_out", [])]
    for run in sorted(path.glob("runs/*/run.json")):
        _add_run(found, run.parent, "", 0)
    asked = matrix.get("evaluate", {}).get("temperatures")  # a record of an earlier sweep may have more
    for record in sorted(path.glob("evaluations/*.npz")):
        if record.stem == BASE:
            _add_record(found, load_record(record).only(asked), BASE, 0)
        elif match := _SEEDED.fullmatch(record.stem):
            run = path / "runs" / record.stem
            _add_checked(found, record, run, found.label(match[1]), int(match[2]), asked)
        else:
            found.notes.append(f"evaluations/{record.name} is of other problems than the report and stays outside it.")
    for store in sorted([*path.glob("runs/base/samples/*/store.sqlite"), *path.glob("samples*/store.sqlite")]):
        _add_store(found, store.parent, "", 0)


def _matrix(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "matrix.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path / 'matrix.json'} cannot be read ({error}); move it away to read the folder without it"
        ) from error
    return found if isinstance(found, dict) else {}
