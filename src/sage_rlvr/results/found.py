"""What `Results.read` is given, sorted by arm and training seed; and the counts of sample stores."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.evaluation.record import Record, check_paired, load_record, record_path
from sage_rlvr.evaluation.store import is_store
from sage_rlvr.results.design import BASE, Arm, Design, Question
from sage_rlvr.results.read import Counts, Results, Run, Store
from sage_rlvr.results.stored import design_of_summary, read_summary
from sage_rlvr.runs import file_sha256, read_metrics
from sage_rlvr.stats.budget import check_budget

TAKES = (
    "Results are folders of `sage-rlvr demo` or `sweep` (with runs/ and evaluations/), run directories (run.json), records "
    "(.npz), sample stores (store.sqlite) and folders with a summary.json; NAME=PATH[,PATH...] names them."
)
PARTS = ("runs", "evaluations", "run.json", "store.json", "store.sqlite", "summary.json")
SHOWN = 6
_SEEDED = re.compile(r"(.+)-s(\d+)")


def gather(items: Sequence[str], *, split: str, apart: bool) -> Results:
    """Everything that was named. DataError names what is none of folder, run, record, store and summary."""
    found = _Found(split, apart)
    given: set[str] = set()
    for item in items:
        called = item.rpartition("=")[0] or Path(item).name
        if apart and called in given:
            raise DataError(f"two arms are called {called!r}; write NAME={item.rpartition('=')[2]} for one of them")
        given.add(called)
        name, paths = ("", item) if Path(item).exists() or ("=" not in item and item.endswith(".npz")) else _named(item)
        for index, path in enumerate(paths.split(",") if name else [paths]):
            found.add(Path(path), name, index)
    return found.finished(items)


def _named(item: str) -> tuple[str, str]:
    name, equals, paths = item.rpartition("=")
    if not equals or not name:
        raise DataError(f"{item}: no such file or folder. {TAKES}")
    return name, paths


class _Found:
    """`Results` while they are gathered. `order` holds the arms as they were met."""

    def __init__(self, split: str, apart: bool) -> None:
        self.split, self.apart = split, apart
        self.results = Results(design=Design(arms=()), strict=apart)
        self.designs: list[Design] = []
        self.order: dict[str, str] = {}
        self.weights: dict[tuple[str, str], set[str]] = {}

    def finished(self, items: Sequence[str]) -> Results:
        """With the design of one folder, or one of everything that was named."""
        results, loose = self.results, [name for name in self.order if name != BASE]
        results.sources = list(items)
        has_base = BASE in self.order
        if len(self.designs) == 1 and all(self.designs[0].arm(name) for name in loose):
            results.design = replace(self.designs[0], base=BASE if has_base else None)
        else:
            results.design = self._made(list(self.order) if self.apart else loose, has_base)
        if self.apart and results.records:
            counts = [len(results.seeds(name)) for name in self.order if results.seeds(name)]
            if len(set(counts[1:])) > 1 or counts[0] not in (1, *counts[1:]):
                raise DataError("arms differ in their number of training seeds; give each the same number of records")
        for task in {of for *_, of in results.records}:
            check_paired([record for (*_, of), record in results.records.items() if of == task])
        if not self.apart and results.records and not has_base:
            results.notes.append(
                f"No evaluation of the base was given; {results.design.control} takes its place as the control."
            )
        return results

    def _made(self, names: list[str], has_base: bool) -> Design:
        """The design of what was named one by one: the first is the control of all others."""
        arms = tuple(self._arm(name) for name in names)
        seeds = sorted({seed for (_, seed) in self.results.runs} | {seed for _, seed, _ in self.results.records})
        if self.apart:
            return Design(arms=arms, base=names[0], control=names[0], seeds=tuple(seeds), every=True)
        base = BASE if has_base else None
        return Design(arms=arms, base=base, control=names[0] if names else base, seeds=tuple(seeds))

    def _arm(self, name: str) -> Arm:
        known = next((arm for design in self.designs if (arm := design.arm(name))), None)
        return known or Arm(name=name, key=self.order[name])

    # ---- one path

    def add(self, path: Path, name: str, index: int) -> None:
        """A path of whichever kind."""
        if path.suffix == ".npz" or path.is_file():
            self._file(path, name, index)
        elif is_store(path):
            self._store(path, name, index)
        elif (path / "run.json").is_file():
            self._run(path, name, index)
        elif (path / "runs").is_dir() or (path / "evaluations").is_dir():
            if name:
                raise DataError(f"{name}={path}: a whole folder names its arms itself; give {path} alone")
            self._folder(path)
        elif (path / "summary.json").is_file():
            self.results.stored = read_summary(path / "summary.json")
            self.designs.append(design_of_summary(self.results.stored))
            self.order |= {arm.name: arm.key for arm in self.designs[-1].arms} | {BASE: BASE}
        else:
            raise DataError(_nothing_in(path) if path.is_dir() else f"{path} is not there. {TAKES}")

    def _file(self, path: Path, name: str, index: int) -> None:
        _check_record(path)
        record = load_record(path)
        arm, seed = _address(path, index)
        own = name or (str(record.meta["name"]) if self.apart else BASE if _is_base(record) else arm)
        if self.apart and 1.0 not in record.logps:
            raise DataError(f"{own}: its record has no temperature 1; evaluate it with --temperatures 1.0")
        self._record(record, own, index if self.apart else seed)
        run = Path(str(record.meta["model"])).parent
        if self.apart and (run / "run.json").is_file():  # it says how long it was trained
            self.results.runs[own, index] = Run(arm=own, seed=index, path=run, metrics=read_metrics(run))

    def _record(self, record: Record, arm: str, seed: int, task: str = "") -> None:
        if not self.apart and record.meta.get("split") != self.split and task == "":
            self.results.notes.append(
                f"{arm}: a record of the {record.meta.get('split')} problems is left out; these are {self.split} problems."
            )
            return
        weights = str(record.meta.get("weights") or "")
        if self.apart and weights and weights in self.weights.setdefault((arm, task), set()):
            raise DataError(f"{arm}: two of its records are of the same weights, so they are no two training seeds")
        self.weights.setdefault((arm, task), set()).add(weights)
        self.order.setdefault(arm, arm)
        seed = 0 if arm == BASE and not self.apart else seed
        while arm != BASE and (arm, seed, task) in self.results.records:
            seed += 1
        self.results.records[arm, seed, task] = record

    def _store(self, path: Path, name: str, index: int) -> None:
        run = next((parent for parent in list(path.parents)[:3] if (parent / "run.json").is_file()), None)
        if run is not None:
            arm, seed = _label(run, index)
        else:
            with Store(arm="", path=path).open() as store:
                model = store.identity.model
            arm, seed = (BASE if model in (BASE, "embedded") else Path(model).name), index
        arm = name or (path.name if self.apart else arm)
        self.order.setdefault(arm, arm)
        known = None if run is None and not (name and index) else seed
        if self.apart and any(store.path == path and store.arm == arm for store in self.results.stores):
            raise DataError(f"{arm}: {path} is named twice; a training seed or temperature takes a store of its own")
        if self.apart or all(store.path != path for store in self.results.stores):
            self.results.stores.append(Store(arm=arm, path=path, seed=known))

    def _run(self, path: Path, name: str, index: int) -> None:
        arm, seed = _label(path, index)
        run = read_run(path, name or arm, seed)
        if self.apart:
            self._record(_record_of(path, self.split), name or path.name, index)
            self.results.runs[name or path.name, index] = run
            return
        self.order.setdefault(run.arm, path.name.rpartition("-s")[0] or path.name)
        seed = run.seed
        while (run.arm, seed) in self.results.runs:
            seed += 1
        self.results.runs[run.arm, seed] = replace(run, seed=seed)
        own = path / f"evaluation-{self.split}.npz"
        if own.is_file() and (run.arm, seed, "") not in self.results.records:
            self._checked(load_record(own), path, run.arm, seed)
        for store in sorted(found for found in path.glob("samples/*") if is_store(found)):
            self._store(store, run.arm, seed)

    def _checked(self, record: Record, run: Path, arm: str, seed: int, task: str = "") -> None:
        """A record, unless the run has other weights by now."""
        if _other_weights(record, run):
            self.results.notes.append(
                f"{arm}, seed {seed}: its record is of other weights than the run has now; evaluate it again."
            )
        else:
            self._record(record, arm, seed, task)

    # ---- the folder of a sweep or a demo

    def _folder(self, path: Path) -> None:
        facts = read_matrix(path)
        design = design_of(facts)
        self.designs += [design] * bool(facts)
        self.order |= {arm.name: arm.key for arm in design.arms}
        self.results.notes += [str(text) for text in facts.get("left_out", [])]
        for run in sorted(path.glob("runs/*/run.json")):
            self._run(run.parent, "", 0)
        tasks = ["", *facts.get("evaluate", {}).get("ood", [])] if self.split == "test" else [self.split]
        for task in tasks:
            self._records(path, task, facts, design)
        for cell in facts.get("cells", []):
            key = design.called(str(cell["arm"])), int(cell["seed"])
            place = path / "runs" / f"{cell['arm']}-s{cell['seed']}"
            run_ = self.results.runs.get(key) or Run(arm=key[0], seed=key[1], path=place, metrics=read_metrics(place))
            self.results.runs[key] = replace(run_, state=_state(str(cell.get("status", "not run"))))
        for found in sorted([*path.glob("runs/base/samples/*"), *path.glob("samples*")]):
            if is_store(found):
                self._store(found, "", 0)

    def _records(self, path: Path, task: str, facts: Mapping[str, Any], design: Design) -> None:
        asked = facts.get("evaluate", {}).get("ood_temperatures" if task and task != self.split else "temperatures")
        known = {f"{cell['arm']}-s{cell['seed']}" for cell in facts.get("cells", []) if task in cell["evaluated"]}
        known |= {BASE} if not facts or task in facts.get("base_evaluated", []) else set()
        names = known if facts else {file.stem for file in path.glob("evaluations/*.npz")}
        place = "" if task == self.split else task
        for name in sorted(names):
            file = record_path(path, name, task)
            if name == BASE and file.is_file():
                self._record(load_record(file).only(asked), BASE, 0, place)
            elif (match := _SEEDED.fullmatch(name)) and file.is_file():
                self._checked(
                    load_record(file).only(asked), path / "runs" / name, design.called(match[1]), int(match[2]), place
                )


# ------------------------------------------------------------------------------------------------------------------
# files


def read_matrix(path: Path) -> dict[str, Any]:
    """matrix.json of a sweep's folder, {} where there is none."""
    try:
        found = json.loads((path / "matrix.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path / 'matrix.json'} cannot be read ({error}); move it away to read the folder without it"
        ) from error
    return found if isinstance(found, dict) else {}


def design_of(facts: Mapping[str, Any]) -> Design:
    """The design that a matrix.json holds."""
    labels = {str(arm["name"]): str(arm.get("label") or arm["name"]) for arm in facts.get("arms", [])}

    def named(key: Any) -> str | None:
        return None if key is None else labels.get(str(key), str(key))

    arms = tuple(
        Arm(
            name=labels[arm["name"]], key=arm["name"], recipe=arm.get("recipe", ""), why=arm.get("why", ""),
            guided=bool(arm.get("guided")), plain=named(arm.get("plain")), placebo=named(arm.get("placebo")),
            no_kl=named(arm.get("no_kl")), matched=tuple(labels[key] for key in arm.get("matched", ())),
            equation=arm.get("equation", ""), config=arm.get("config", {}),
        )
        for arm in facts.get("arms", [])
    )  # fmt: skip
    return Design(
        arms=arms, control=named(facts.get("control")), seeds=tuple(facts.get("seeds", ())), title=str(facts.get("tier", "")),
        notes=str(facts.get("notes", "")), questions=tuple(Question(**q) for q in facts.get("questions", ())), facts=facts,
    )  # fmt: skip


def read_run(path: Path, arm: str, seed: int) -> Run:
    """A run directory: run.json and metrics.jsonl; a DataError says why it cannot be read."""
    try:
        facts: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
        config = facts["config"]
        if not isinstance(config, dict):
            raise ValueError("no config")
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path / 'run.json'} cannot be read ({error!r}); leave this run out, or train it anew"
        ) from error
    rows, steps = read_metrics(path), int(config.get("steps", 0))
    whole = (path / "policy" / "config.json").is_file() and len(rows) >= steps
    return Run(
        arm=arm, seed=int(config.get("seed", seed)), path=path, state="trained" if whole else f"{len(rows)} of {steps} steps",
        config=config, versions={str(name): str(v) for name, v in facts.get("versions", {}).items()},
        commit=str((facts.get("git") or {}).get("commit") or ""), metrics=rows,
    )  # fmt: skip


def _record_of(run: Path, split: str) -> Record:
    """The record of a run directory, refused where the run has other weights by now than those that were evaluated."""
    own = run / f"evaluation-{split}.npz"
    beside = record_path(run.parent.parent, run.name, "" if split == "test" else split)
    swept = not own.exists() and beside.exists()  # by a sweep or a demo
    record = load_record(beside if swept else own)
    if _other_weights(record, run):
        raise DataError(
            f"{run}: {beside if swept else own.name} is of other weights than its policy/ (the run went on, or is not finished); "
            f"evaluate it again: {suggest('eval', run)}"
        )
    return record


def _other_weights(record: Record, run: Path) -> bool:
    """Whether the weight files of the run are not those that the record is of (of an adapter, its own files alone count)."""
    own = [file_sha256(file) for file in sorted((run / "policy").glob("*.safetensors"))]
    return bool(own) and not str(record.meta.get("weights")).startswith(" ".join(own))


def _label(run: Path, index: int) -> tuple[str, int]:
    """Arm and training seed of a run directory, in the words of the sweep that it lies in."""
    stem, seed = _address(run, index)
    return design_of(read_matrix(run.parent.parent)).called(stem), seed


def _address(path: Path, index: int) -> tuple[str, int]:
    """Arm and training seed of "grpo-s3"; of other names the place in the list is the seed."""
    stem = path.name.removesuffix(".npz")
    match = _SEEDED.fullmatch(stem)
    return (match[1], int(match[2])) if match else (stem, index)


def _is_base(record: Record) -> bool:
    return record.meta.get("name") == BASE or record.meta.get("model") == "embedded"


def _state(status: str) -> str:
    """The state of a cell in words."""
    done, slash, steps = status.partition("/")
    if status == "trained" or (slash and done == steps):
        return "trained, not evaluated"
    return f"{done} of {steps} steps" if slash else status


def _check_record(path: Path) -> None:
    """Refuse a file that is no .npz archive with what to give instead; a missing one is left to `load_record`."""
    if not path.is_file() or zipfile.is_zipfile(path):
        return
    if path.suffix == ".npz":
        raise DataError(f"{path} is damaged, no .npz archive; make it again with: {suggest('eval', 'RUN')}")
    raise DataError(f"{path} is no record of an evaluation{_instead(path)}. {TAKES}")


def _instead(path: Path) -> str:
    """What to do with a file that holds no results: sweep a design, train a recipe, name the folder of its parts."""
    if path.name in ("run.json", "store.json", "matrix.json", "summary.json", "store.sqlite"):
        return f"; give its folder: {path.parent}"
    if path.suffix not in (".yaml", ".yml"):
        return ""
    keys = set(re.findall(r"^(\w+):", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
    if "arms" in keys:
        return f", but a design: `{suggest('sweep', path)}` runs it first, then give the folder that it fills"
    command = "train" if "method" in keys else "sft" if "steps" in keys else ""
    return f", but a recipe: `{suggest(command, path)}` runs it first, then give its run directory" if command else ""


def _nothing_in(folder: Path) -> str:
    """Why a folder gives nothing, with the next step: compare's page, folders inside it, or the commands that fill one."""
    page, head = folder / "report.html", f"{folder} holds no runs, evaluations or samples"
    if page.is_file():
        return f"{head}; a page is already there: {page}. {TAKES}"
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
    return f"{head}. {TAKES} `sage-rlvr demo` and `{suggest('sweep', 'DESIGN')}` make such folders."


# ------------------------------------------------------------------------------------------------------------------
# counts of sample stores


def read_counts(results: Results) -> Iterator[Counts]:
    """Right ones among n of every store. `strict` results (of arms that were named to be compared) refuse unfinished stores and
    unequal budgets; others read all stores of a task to the fewest samples that one has, and note it."""
    found = [one for store in results.stores if (one := _counts(results, store, results.samples)) is not None]
    if results.strict:
        _check_stores(found)
        yield from found
        return
    fewest = {task: min(c.n for c in found if c.task == task) for task in {c.task for c in found}}
    for c in found:
        if c.n == fewest[c.task]:
            yield c
        elif (cut := _counts(results, c.store, fewest[c.task])) is not None:
            results.notes.append(
                f"{c.task}: the first {cut.n} samples of each problem are read, the most that all stores have "
                f"({c.store.arm} has {c.n})."
            )
            yield cut


def _counts(results: Results, store: Store, n: int | None) -> Counts | None:
    path = store.path
    with store.open() as opened:
        counts, identity = opened.counts(n, check=results.strict), opened.identity.tree()
        many, lacking = sorted(set(counts.n.tolist())), opened.lacking(counts)
        judges = opened.verifiers()
    if results.strict and lacking:
        raise DataError(f"{path}: has {lacking}, so it is no whole evaluation yet")
    if results.strict and len(many) != 1:
        few, most = (many[0], many[-1]) if many else (0, 0)
        hint = f", or give --samples {few}" if few else ""
        raise DataError(f"{path}: its problems have {few} to {most} samples; finish the evaluation first{hint}")
    if not many:
        results.notes.append(f"{store.arm}: {path.name} holds no samples yet.")
        return None
    if lacking:
        results.notes.append(f"{store.arm}: {path.name} has {lacking}.")
    if len(many) > 1:
        return _counts(results, store, many[0])
    identity |= {"n": many[0], "verifier_hash": judges[-1]["verifier_hash"]} if judges else {"n": many[0]}
    return Counts(
        store=store, task=str(identity["task"]), temperature=float(identity["decoding"]["temperature"]),
        problems=tuple(counts.problems), n=many[0], right=counts.right, identity=identity,
    )  # fmt: skip


def _check_stores(found: Sequence[Counts]) -> None:
    """Refuse unequal budgets on a task (temperatures of frontiers may differ), and two stores of the same weights in one arm."""
    for task in dict.fromkeys(c.task for c in found):
        here = [c for c in found if c.task == task]
        laws = {c.store.arm: {d.temperature for d in here if d.store.arm == c.store.arm} for c in here}
        wide = all(len(law) > 1 for law in laws.values())
        check_budget({f"{c.store.arm} ({c.store.path})": c.identity for c in here}, ("temperature",) if wide else ())
        if wide:
            _check_policies(here)
    seen: dict[tuple[str, str, float, str], Path] = {}
    for c in found:
        revision = str(c.identity["revision"])
        first = seen.setdefault((c.store.arm, c.task, c.temperature, revision), c.store.path)
        if first != c.store.path and "unknown" not in revision:
            raise DataError(
                f"{c.store.arm}: {first} and {c.store.path} hold samples of the same weights ({revision[:12]}), so they are no "
                "two training seeds; give one of them, with more samples if more are wanted (eval --samples)"
            )


def _check_policies(found: Sequence[Counts]) -> None:
    """Refuse a frontier whose stores are of several policies."""
    policies: dict[tuple[str, str], tuple[str, str]] = {}
    for c in found:
        policy = str(c.identity["model"]), str(c.identity["revision"])
        if policies.setdefault((c.store.arm, c.task), policy) != policy:
            raise DataError(
                f"{c.store.path}: another policy than {c.store.arm}'s other stores of {c.task}; a frontier is of one policy"
            )
