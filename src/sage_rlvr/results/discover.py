"""Sort the paths of a reading by arm and training seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import EMBEDDED, check_paired, embedded_record, load_record, record_path
from sage_rlvr.evaluation.store import SampleStore, is_store
from sage_rlvr.results import files
from sage_rlvr.runs import RECORD, is_run, read_metrics, read_record
from sage_rlvr.verdicts.design import BASE, Arm, Design
from sage_rlvr.verdicts.files import RowFiles, arms_in, rows_in
from sage_rlvr.verdicts.readers import Choice
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.sources import GivenRows, Store, TrainingRun
from sage_rlvr.verdicts.summary_io import design_of_summary, read_summary
from sage_rlvr.verdicts.text import notes as note_texts

TEST = "test"  # the split if neither the caller nor a sweep sets one


@dataclass(kw_only=True, eq=False)
class Sources:
    """Contents of the paths, by arm."""

    design: Design = field(default_factory=lambda: Design(arms=()))
    records: dict[tuple[str, int, str], Record] = field(default_factory=dict)
    runs: dict[tuple[str, int], TrainingRun] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    given: list[GivenRows] = field(default_factory=list)
    stored: Mapping[str, Any] | None = None
    stored_in: Path | None = None
    notes: list[str] = field(default_factory=list)

    def seeds(self, arm: str) -> list[int]:
        """Training seeds with an exact record of the main task."""
        return sorted(seed for name, seed, task in self.records if (name, task) == (arm, ""))


def check_exist(paths: Sequence[str]) -> None:
    """Raise DataError for a path of an arm that is nothing."""
    for path in paths:
        if rows_in(path) is None and not Path(path).exists() and path != EMBEDDED and not path.endswith(".npz"):
            raise DataError(f"{path}: no such file or folder. {files.TAKES}")


def gather(items: Sequence[str], *, split: str | None, apart: bool, choice: Choice) -> Sources:
    """Sort all paths. Raises DataError for a path that is not a folder, run, record, store, summary or file of rows."""
    builder = _SourcesBuilder(split, apart, choice)
    for name, label, words in arms_in(items, apart=apart):
        for index, word in enumerate(words):
            if (rows := rows_in(word)) is not None:
                builder.rows.add(*rows, name=name, label=label, index=index if len(words) > 1 else None)
            else:
                check_exist([word])
                longer = label if apart and "/" in label else ""  # the last part is the name of another arm too
                builder.add(Path(word), name or longer, index)
    return builder.finished()


class _SourcesBuilder:
    """`Sources` under construction. `rows`: the files of rows, with the order of all arms."""

    def __init__(self, split: str | None, apart: bool, choice: Choice) -> None:
        self.requested_split, self.split, self.apart = split, split or TEST, apart
        self.sources = Sources()
        self.designs: list[Design] = []
        self.rows = RowFiles(choice)
        self.weights: dict[tuple[str, str], set[str]] = {}

    def finished(self) -> Sources:
        """The checked sources with their design."""
        sources = self.sources
        self.rows.finish()
        sources.given = self.rows.given
        sources.design = self._design()
        if sources.records:  # a summary is read only where there is nothing else to compare exactly
            sources.stored = sources.stored_in = None
        counts = [len(sources.seeds(name)) for name in self.rows.order if sources.seeds(name)]
        if self.apart and counts and (len(set(counts[1:])) > 1 or counts[0] not in (1, *counts[1:])):
            raise DataError("the arms have different numbers of training seeds; pass the same number of records for each")
        for task in {of for *_, of in sources.records}:
            check_paired([record for (*_, of), record in sources.records.items() if of == task])
        if not self.apart and sources.records and BASE not in self.rows.order:
            sources.notes.append(note_texts.without_base(sources.design.control))
        if sources.design.discarded:
            sources.notes.append(note_texts.discarded(sources.design.discarded))
        return sources

    def _design(self) -> Design:
        """The folder's design with the arms of further paths. For separate paths, the first is the control of all others."""
        base, loose = BASE if BASE in self.rows.order else None, [name for name in self.rows.order if name != BASE]
        known = {arm.name: arm for design in reversed(self.designs) for arm in design.arms}
        extra_arms = tuple(name for name in loose if name not in known)
        if len(self.designs) == 1 and not (self.apart and extra_arms):
            arms = (*known.values(), *(Arm(name=name, key=name) for name in extra_arms))
            return replace(self.designs[0], arms=arms, base=base, extra_arms=extra_arms)
        names = list(self.rows.order) if self.apart else loose
        arms = tuple(known.get(name) or Arm(name=name, key=self.rows.order[name]) for name in names)
        seeds = sorted({seed for _, seed in self.sources.runs} | {seed for _, seed, _ in self.sources.records})
        control = names[0] if names else base
        if self.apart:  # the first is a base where it has one record for all seeds; several of its own are paired with the others'
            base = control if control and len(self.sources.seeds(control)) < 2 else None
        return Design(arms=arms, base=base, control=control, seeds=tuple(seeds), every=self.apart)

    # ---- one path

    def add(self, path: Path, name: str, index: int) -> None:
        """Add a path of any kind."""
        for design in self.designs:
            name = design.called(name)
        if str(path) == EMBEDDED:
            path = embedded_record(self.split)
        if path.suffix == ".npz" or path.is_file():
            self._file(path, name, index)
        elif is_store(path):
            self._store(path, name, index)
        elif is_run(path):
            self._run(path, name, index)
        elif (path / "runs").is_dir() or (path / "evaluations").is_dir():
            if name:
                raise DataError(f"{name}={path}: a result folder has its own arm names; pass {path} without NAME=")
            self._folder(path)
        elif (path / "summary.json").is_file():
            self.sources.stored, self.sources.stored_in = read_summary(path / "summary.json"), path / "summary.json"
            self.designs.append(design_of_summary(self.sources.stored))
            self.rows.order |= {arm.name: arm.key for arm in self.designs[-1].arms} | {BASE: BASE}
        else:
            raise DataError(files.nothing_in(path) if path.is_dir() else f"{path} does not exist. {files.TAKES}")

    def _file(self, path: Path, name: str, index: int) -> None:
        files.check_record(path)
        record = load_record(path)
        if not self.apart:
            arm, seed = files.address(path, index)
            self._record(record, name or (BASE if files.is_base(record) else arm), seed)
            return
        own, folder = name or str(record.meta["name"]), Path(str(record.meta.get("model", path))).parent
        if 1.0 not in record.logps:
            raise DataError(f"{own}: its record has no temperature 1; evaluate it with --temperatures 1.0")
        self._record(record, own, index)
        if is_run(folder):  # run.json has the number of training steps
            start, metrics = files.start_of(read_record(folder, ())), read_metrics(folder)
            self.sources.runs[own, index] = TrainingRun(arm=own, seed=index, path=folder, metrics=metrics, start=start)

    def _record(self, record: Record, arm: str, seed: int, task: str = "") -> None:
        if not self.apart and record.meta.get("split") != self.split and task == "":
            self.sources.notes.append(note_texts.of_other_split(arm, str(record.meta.get("split")), self.split))
            return
        weights, seen = str(record.meta.get("weights") or ""), self.weights.setdefault((arm, task), set())
        if self.apart and weights and weights in seen:
            raise DataError(f"{arm}: two of its records have the same weights, so they are not two training seeds")
        seen.add(weights)
        self.rows.order.setdefault(arm, arm)
        seed = 0 if arm == BASE and not self.apart else seed
        while arm != BASE and (arm, seed, task) in self.sources.records:
            seed += 1
        self.sources.records[arm, seed, task] = record

    def _store(self, path: Path, name: str, index: int) -> None:
        folder = next((parent for parent in list(path.parents)[:3] if is_run(parent)), None)
        arm, seed, stores = path.name, index, self.sources.stores
        if folder is not None:
            arm, seed = files.label_of(folder, index)
        elif not name and not self.apart:
            with SampleStore.open(path) as store:
                model = store.identity.model
            arm = BASE if model in (BASE, "embedded") else Path(model).name
        arm = name or (path.name if self.apart else arm)
        self.rows.order.setdefault(arm, arm)
        if self.apart and any(store.path == path and store.arm == arm for store in stores):
            raise DataError(f"{arm}: {path} was passed twice; each training seed or temperature needs its own store")
        if self.apart or all(store.path != path for store in stores):
            is_known = folder is not None or bool(name and index)
            stores.append(Store(arm=arm, path=path, seed=seed if is_known else None))

    def _run(self, path: Path, name: str, index: int) -> None:
        arm, seed = files.label_of(path, index)
        run, runs = files.read_run(path, name or arm, seed), self.sources.runs
        if self.apart:
            own = name or path.name
            if self.requested_split or files.has_record(path, self.split):
                self._record(files.record_of(path, self.split), own, index)
            else:
                self._store(files.store_of(path), own, index)
            runs[own, index] = run
            return
        self.rows.order.setdefault(run.arm, files.address(path, 0)[0])
        seed = run.seed
        while (run.arm, seed) in runs:
            seed += 1
        runs[run.arm, seed] = replace(run, seed=seed)
        own_record = path / f"evaluation-{self.split}.npz"
        if own_record.is_file() and (run.arm, seed, "") not in self.sources.records:
            self._checked(load_record(own_record), path, run.arm, seed)
        for store in files.stores_of(path):
            self._store(store, run.arm, seed)

    def _checked(self, record: Record, folder: Path, arm: str, seed: int, task: str = "") -> None:
        """Add a record unless the weights of its run, in `folder`, have changed since."""
        if files.other_weights(record, folder):
            self.sources.notes.append(note_texts.of_other_weights(arm, seed))
        else:
            self._record(record, arm, seed, task)

    # ---- the folder of a sweep or a demo

    def _folder(self, path: Path) -> None:
        facts = files.read_design(path)
        own = str(facts.get("evaluate", {}).get("split", TEST))
        self.split = self.requested_split or own  # a sweep on validation problems is read as one
        design = files.design_of(facts)
        self.designs += [design] * bool(facts)
        self.rows.order |= {arm.name: arm.key for arm in design.arms}
        self.sources.notes += [str(text) for text in facts.get("left_out", [])]
        for task in ["", *facts.get("evaluate", {}).get("ood", [])] if self.split == own else [self.split]:
            self._records(path, task, facts, design)
        for file in sorted(path.glob(f"runs/*/{RECORD}")):  # later: a run that `eval` evaluated too is not two seeds
            self._run(file.parent, "", 0)
        for entry in facts.get("runs", []):
            key = design.called(str(entry["arm"])), int(entry["seed"])
            folder = path / "runs" / f"{entry['arm']}-s{entry['seed']}"
            run = self.sources.runs.get(key) or TrainingRun(arm=key[0], seed=key[1], path=folder, metrics=read_metrics(folder))
            self.sources.runs[key] = replace(run, state=files.state_of(entry))
        for store in sorted([*path.glob("runs/base/samples/*"), *path.glob("samples*")]):
            if is_store(store):
                self._store(store, BASE if store.parts[-3] == BASE else "", 0)

    def _records(self, path: Path, task: str, facts: Mapping[str, Any], design: Design) -> None:
        temperatures = facts.get("evaluate", {}).get("ood_temperatures" if task and task != self.split else "temperatures")
        names = {file.stem for file in path.glob("evaluations/*.npz")}
        if facts:
            names = {f"{entry['arm']}-s{entry['seed']}" for entry in facts.get("runs", []) if task in entry["evaluated"]}
            names |= {BASE} if task in facts.get("base_evaluated", []) else set()
        task_key = "" if task == self.split else task
        for name in sorted(names):
            file, match = record_path(path, name, task), files.SEEDED.fullmatch(name)
            if name == BASE and file.is_file():
                self._record(load_record(file).only(temperatures), BASE, 0, task_key)
            elif match and file.is_file():
                arm, seed = design.called(match[1]), int(match[2])
                self._checked(load_record(file).only(temperatures), path / "runs" / name, arm, seed, task_key)
