"""`report`: what lies in folders, runs, records and sample stores, read into one `Study` and written as a page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation import exact_pass_at_k, expected_distinct_correct
from sage_rlvr.evaluation.compare import FEWEST_SEEDS
from sage_rlvr.evaluation.patterns import pattern_frequencies
from sage_rlvr.evaluation.perplexity import perplexities
from sage_rlvr.evaluation.record import Record, check_paired, load_record
from sage_rlvr.evaluation.sample_report import GUIDED, SCORED, arrays, made_under
from sage_rlvr.evaluation.sample_rows import unescape
from sage_rlvr.evaluation.samples import SampleStore
from sage_rlvr.evaluation.structure import classes_of_answers, effective_classes, reachable_classes
from sage_rlvr.report import (
    Result,
    RunFacts,
    SampleSet,
    Shown,
    Structure,
    Study,
    arm_from_logps,
    book,
    grids_of,
    markdown,
    render,
    replace_file,
    training_of,
    write_pictures,
)
from sage_rlvr.report.parts import joined
from sage_rlvr.report.summary import control_pairs
from sage_rlvr.runs import read_metrics

BASE = "base"
LONGEST = 4000  # characters of one sample on the page
MOST_SAMPLES = 20_000  # on one page
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
        raise DataError(
            f"{item}: no such file or folder; give a sweep's or demo's folder, a run, a record (.npz), a sample store"
        )
    return name, paths


def _add(found: Found, path: Path, name: str, index: int) -> None:
    if path.suffix == ".npz" or path.is_file():
        record = load_record(path)
        arm, seed = _address(found, path.stem, index)
        _add_record(found, record, name or (BASE if _is_base(record) else arm), seed)
    elif (path / "store.json").is_file():
        _add_store(found, path, name, index)
    elif (path / "run.json").is_file():
        _add_run(found, path, name, index)
    elif (path / "runs").is_dir() or (path / "evaluations").is_dir():
        if name:
            raise DataError(f"{name}={path}: a whole folder names its arms itself; give {path} alone")
        _add_folder(found, path)
    else:
        known = "a folder with runs/ and evaluations/, a run (run.json), a record (.npz), a sample store (store.json)"
        there = path / "report.html"
        page = f"; compare's page is already there: {there}" if there.is_file() else ""
        raise DataError(f"{path}: {'nothing of ' if path.exists() else 'is not there; wanted is '}{known}{page}")


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
    facts = _facts(path)
    arm, seed = _address(found, path.name, index)
    seed = int(facts["config"].get("seed", seed))
    policy = found.arm(name or arm)
    while seed in policy.runs and policy.runs[seed] != path:
        seed += 1
    policy.runs[seed] = path
    own = path / f"evaluation-{found.split}.npz"
    if own.is_file() and seed not in policy.records:
        _add_checked(found, own, path, policy.name, seed)
    for store in sorted(path.glob("samples/*/store.json")):
        if (seed, store.parent) not in policy.stores:
            policy.stores.append((seed, store.parent))


def _add_checked(found: Found, record: Path, run: Path, arm: str, seed: int) -> None:
    """A record, unless the run has other weights by now."""
    from sage_rlvr.engines.base import weights_hash

    loaded = load_record(record)
    policy = run / "policy"
    if (policy / "config.json").is_file() and loaded.meta.get("weights") != weights_hash(str(policy)):
        found.notes.append(
            f"{arm}, seed {seed}: its record is of other weights than the run has now; evaluate it again."
        )
        return
    _add_record(found, loaded, arm, seed)


def _facts(run: Path) -> dict[str, Any]:
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
    if matrix.get("control"):
        found.control = found.label(str(matrix["control"]))
    found.notes += [str(text) for text in matrix.get("left_out", [])]
    for run in sorted(path.glob("runs/*/run.json")):
        _add_run(found, run.parent, "", 0)
    for record in sorted(path.glob("evaluations/*.npz")):
        if record.stem == BASE:
            _add_record(found, load_record(record), BASE, 0)
        elif match := _SEEDED.fullmatch(record.stem):
            run = path / "runs" / record.stem
            _add_checked(found, record, run, found.label(match[1]), int(match[2]))
        else:
            found.notes.append(f"evaluations/{record.name} is of other problems than the report and stays outside it.")
    for store in sorted([*path.glob("runs/base/samples/*/store.json"), *path.glob("samples*/store.json")]):
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


# ------------------------------------------------------------------------------------------------------------------
# the study


def study_of(
    items: Sequence[str],
    labels: Mapping[str, str],
    *,
    split: str = "test",
    k: int = 256,
    shown: int = 16,
    title: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Study:
    """Everything that a report of these says. shown: samples of each problem and store on the page."""
    found = gather(items, labels, split)
    runs = tuple(_run_facts(found, policy, seed) for policy in found.arms.values() for seed in _seeds(policy))
    say(_counted(found))
    results, records, left = _results(found, {(r.arm, r.seed): r for r in runs}, k)
    structure = _structure(records, k) if results else None
    sets, trouble = _sample_sets(found, shown)
    configs = {
        run.arm: {key: v for key, v in run.config.items() if key != "seed"} for run in reversed(runs) if run.config
    }
    study = Study(
        results=results,
        distinct={name: _distinct(rows, results[0].ks) for name, rows in records.items()} if results else {},
        structure=structure,
        samples=tuple(sets),
        runs=runs,
        grids=grids_of(configs),
        left_out=(*left, *found.notes, *trouble),
        control=found.control,
        sources=tuple(found.sources),
    )
    return replace(study, title=title or _title(study))


def _counted(found: Found) -> str:
    """How many arms there are, and how many of them have an exact evaluation."""
    many, exact = len(found.arms), sum(bool(policy.records) for policy in found.arms.values())
    beside = " beside the base" if found.base.records or found.base.stores else ""
    return f"{many} arm{'s' * (many != 1)}{beside}, {exact} of them evaluated exactly"


def _title(study: Study) -> str:
    """The usual title where training was compared; else whose samples or evaluations these are."""
    exact = [arm.name for arm in study.results[0].arms] if study.results else []
    names = list(dict.fromkeys([*exact, *(s.arm for s in study.samples)]))
    if len(exact) > 1 or not names or any(run.config for run in study.runs):
        return study.title
    whose = joined(names) if len(names) < 4 else f"{len(names)} policies"
    return f"{'Evaluations' if exact else 'Samples'} of {whose}"


def _seeds(policy: Policy) -> list[int]:
    return sorted({*policy.runs, *policy.records, *policy.states})


def _run_facts(found: Found, policy: Policy, seed: int) -> RunFacts:
    state = policy.states.get(seed, "not run")
    evaluated = seed in policy.records
    run = policy.runs.get(seed)
    if run is None:
        return RunFacts(arm=policy.name, seed=seed, state="evaluated" if evaluated else state)
    facts, rows = _facts(run), read_metrics(run)
    steps = int(facts["config"].get("steps", 0))
    whole = (run / "policy" / "config.json").is_file() and len(rows) >= steps
    state = (
        ("trained and evaluated" if evaluated else "trained, not evaluated")
        if whole
        else f"{len(rows)} of {steps} steps"
    )
    return RunFacts(
        arm=policy.name,
        seed=seed,
        state=state,
        equation=_words(facts["config"]) + (f"\n\nWhy it is here: {policy.why}" if policy.why else ""),
        config=facts["config"],
        versions={str(name): str(v) for name, v in facts.get("versions", {}).items()},
        seconds=_total(rows, "time/step_s"),
        tokens=_total(rows, "rollout/tokens"),
        training=training_of(rows) if whole else None,
        commit=str((facts.get("git") or {}).get("commit") or ""),
    )


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The sum over all steps, None where one lacks it."""
    return float(sum(float(row[name]) for row in rows)) if rows and all(name in row for row in rows) else None


def _words(config: Mapping[str, Any]) -> str:
    """The objective of a run in words; "" for one that this version cannot read."""
    from sage_rlvr.config import TrainConfig, decode

    try:
        return decode(TrainConfig, config).method.build().describe()
    except (SageError, TypeError, ValueError, KeyError):
        return ""


def _results(
    found: Found, runs: Mapping[tuple[str, int | None], RunFacts], k: int
) -> tuple[tuple[Result, ...], dict[str, list[Record]], list[str]]:
    """One result a shared training seed, the records behind them (base first), and what is not in them."""
    there = {name: policy for name, policy in found.arms.items() if policy.records}
    left = [
        f"{name}: no exact evaluation, so it stands in no comparison of them"
        + ("; its numbers from samples have a table of their own." if policy.stores else ".")
        for name, policy in found.arms.items()
        if name not in there
    ]
    base = found.base.records.get(0)
    home = BASE
    if base is None and there:
        home = next(iter(there))
        left.append(f"No evaluation of the base was given; {home} takes its place as the control.")
    others = {name: policy for name, policy in there.items() if name != home}
    if base is None and not there:
        return (), {}, left if found.arms and not any(p.stores for p in found.arms.values()) else []
    seeds, kept, dropped = _shared_seeds(there if base is None else others)
    left += dropped
    names = [home, *(name for name in kept if name != home)]
    rows = {
        name: [base] if name == home and base is not None else [there[name].records[s] for s in seeds] for name in names
    }
    check_paired([record for some in rows.values() for record in some])
    results = tuple(_result(found, home, rows, i, seed, k, runs, len(seeds)) for i, seed in enumerate(seeds or [0]))
    return results, rows, left


def _shared_seeds(arms: Mapping[str, Policy]) -> tuple[list[int], list[str], list[str]]:
    """(seeds that all kept arms share, arms that are kept, sentences on the rest). Arms with fewer than three seeds are left out
    where others have three: a claim about methods is worth more than a claim about one checkpoint more."""
    if not arms:
        return [], [], []
    many = {name for name, policy in arms.items() if len(policy.records) >= FEWEST_SEEDS}
    kept = [name for name in arms if name in many] if many else list(arms)
    shared = sorted(set.intersection(*(set(arms[name].records) for name in kept)))
    if not shared:  # nothing paired: the seed that most arms have
        counts = [seed for policy in arms.values() for seed in policy.records]
        shared = [max(sorted(set(counts)), key=counts.count)]
        kept = [name for name in kept if shared[0] in arms[name].records]
    out = []
    for name, policy in arms.items():
        have = sorted(policy.records)
        if name not in kept:
            out.append(
                f"{name}: evaluated with training seed {', '.join(map(str, have))} alone, so it stands in no comparison here."
            )
        elif extra := sorted(set(have) - set(shared)):
            out.append(f"{name}: training seed {', '.join(map(str, extra))} is left out, other arms do not have it.")
    return shared, kept, out


def _result(
    found: Found,
    home: str,
    rows: Mapping[str, Sequence[Record]],
    place: int,
    seed: int,
    k: int,
    runs: Mapping[tuple[str, int | None], RunFacts],
    siblings: int,
) -> Result:
    mine = {name: some[min(place, len(some) - 1)] for name, some in rows.items()}
    for name, record in mine.items():
        if 1.0 not in record.logps:
            raise DataError(f"{name}: its record has no temperature 1; evaluate it with --temperatures 1.0")
    at_home = mine[home].logps[1.0]
    arms = [arm_from_logps(home, mine[home].logps, trained=False, k=k)]
    for name, record in mine.items():
        if name != home:
            run = runs.get((name, seed))
            extra = {} if run is None else {"training": run.training, "seconds": run.seconds}
            arms.append(arm_from_logps(name, record.logps, base=at_home, k=k, **extra))
    ks = (*(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n < k), k)
    meta = mine[home].meta
    result = Result(
        arms=tuple(arms), problems=mine[home].problems, base=home, split=str(meta["split"]), seed=seed, k=k, ks=ks,
        versions=dict(meta["versions"]), world=_world(meta["world"]), siblings=siblings,
    )  # fmt: skip
    return replace(result, pairs=_pairs(result, found.control, named=not found.folders))


def _pairs(result: Result, control: str | None, *, named: bool = False) -> tuple[tuple[str, str], ...]:
    """The usual controls; of arms that have none, each against the control of the sweep or the first trained arm. named: the
    order of the arms is the reader's, so of each pair the later stands against the earlier, as `compare` has it."""
    place = {arm.name: i for i, arm in enumerate(result.arms)}
    usual = control_pairs(result)
    if named:
        usual = tuple((b, a) if place[a] < place[b] else (a, b) for a, b in usual)
    trained = [arm.name for arm in result.arms if arm.trained and arm.name != result.base]
    against = control if control in trained else trained[0] if trained else ""
    covered = {name for pair in usual for name in pair}
    return (*usual, *((name, against) for name in trained if name not in covered and name != against))


def _world(world: Mapping[str, Any]) -> str:
    if world.get("name") != "countdown":
        return str(world.get("name", ""))
    sizes = " or ".join(str(n) for n in world["counts"])
    return (
        f"Countdown: {sizes} numbers of 1..{world['max_number']}, targets {world['min_target']}..{world['max_target']}"
    )


def _distinct(rows: Sequence[Record], ks: Sequence[int]) -> np.ndarray:
    """(S, K) expected number of different right completions in k samples, mean over problems."""
    out = []
    for record in rows:
        p = np.minimum(np.exp(np.concatenate(record.logps[1.0])), 1.0)
        out.append([float(np.sum(np.asarray(exact_pass_at_k(p, k)))) / record.problems for k in ks])
    return np.array(out)


def _structure(rows: Mapping[str, Sequence[Record]], k: int) -> Structure | None:
    """Operators and trees of all right expressions; None where the world is not Countdown."""
    base, first = next((name, some[0]) for name, some in rows.items())
    labels = _labels(first)
    if labels is None:
        return None
    classes: dict[str, dict[str, Any]] = {}
    effective: dict[str, dict[str, np.ndarray]] = {}
    reached: dict[str, dict[str, np.ndarray]] = {}
    for kind, of in labels.items():
        for name, some in rows.items():
            tables = [record.logps[1.0] for record in some]
            homes = [
                None if name == base else rows[base][min(i, len(rows[base]) - 1)].logps[1.0] for i in range(len(some))
            ]
            classes.setdefault(kind, {})[name] = [
                classes_of_answers(table, of, base=home, intervals=len(some) == 1)
                for table, home in zip(tables, homes, strict=True)
            ]
            effective.setdefault(kind, {})[name] = np.stack([effective_classes(table, of) for table in tables])
            reached.setdefault(kind, {})[name] = np.stack([reachable_classes(table, of, k) for table in tables])
    return Structure(classes=classes, effective=effective, reachable=reached, k=k)


def _labels(record: Record) -> dict[str, list[list[str]]] | None:
    """Kind -> of each problem the class of each right completion, in the order of the record."""
    from sage_rlvr.tasks.countdown_expressions import solve
    from sage_rlvr.verifiers.countdown import structure

    if record.meta["world"].get("name") != "countdown":
        return None
    known: dict[str, list[str]] = {}
    rows = []
    for name, scored in zip(record.meta["problem_ids"], record.logps[1.0], strict=True):
        if name not in known:
            numbers, _, target = str(name).partition("=")
            known[name] = [structure(text) for text in solve([int(n) for n in numbers.split("-")], int(target))]
        if len(known[name]) != len(scored):
            return None  # the record lists other completions than this version enumerates
        rows.append(known[name])
    return {
        "operators": [[text.partition(" ")[0] for text in row] for row in rows],
        "trees": [[text.partition(" ")[2] for text in row] for row in rows],
    }


# ------------------------------------------------------------------------------------------------------------------
# samples


def _sample_sets(found: Found, shown: int) -> tuple[list[SampleSet], list[str]]:
    stores = [
        (policy.name, seed, path) for policy in (found.base, *found.arms.values()) for seed, path in policy.stores
    ]
    fewest, trouble = _fewest(stores)
    out, left = [], MOST_SAMPLES
    for arm, seed, path in stores:
        with SampleStore.open(path) as store:
            counts = store.counts(check=False)
            if not len(counts.n):
                trouble.append(f"{arm}: {path.name} holds no samples yet.")
                continue
            if lacking := store.lacking(counts):
                trouble.append(f"{arm}: {path.name} has {lacking.partition(';')[0]}.")
            most = fewest[store.identity.task]
            one = _sample_set(store, arm, seed, min(shown, left // max(1, len(counts.problems))), most)
        left -= len(one.shown)
        out.append(one)
    return out, trouble


def _fewest(stores: Sequence[tuple[str, int | None, Path]]) -> tuple[dict[str, int], list[str]]:
    """Of each task the smallest n of its stores, which all are read to, and a sentence where that leaves samples out."""
    sizes: dict[str, dict[str, int]] = {}
    for arm, seed, path in stores:
        with SampleStore.open(path) as store:
            name = f"{arm} ({path.name})" if seed is None else f"{arm}, seed {seed} ({path.name})"
            if len(n := store.counts(check=False).n):
                sizes.setdefault(store.identity.task, {})[name] = int(n.min())
    fewest = {task: min(found.values()) for task, found in sizes.items()}
    said = []
    for task, found in sizes.items():
        more = [f"{name} has {n}" for name, n in found.items() if n > fewest[task]]
        if more:
            said.append(
                f"{task}: the first {fewest[task]} samples of each problem are read, the most that all stores have "
                f"({', '.join(more)})."
            )
    return fewest, said


def _sample_set(store: SampleStore, arm: str, seed: int | None, shown: int, n: int) -> SampleSet:
    """The first n samples of each problem; `shown` of them on the page."""
    counts = store.counts(n, check=False)
    rows = store.table(("problem", "answer", "verdict", "text", "base_logps", "versions"), n=n)
    names = [unescape(name) for name in rows["problem"].to_pylist()]
    right = np.array([verdict == "right" for verdict in rows["verdict"].to_pylist()], dtype=bool)
    law, ks = store.identity.decoding, [*(2**i for i in range(n.bit_length()) if 2**i < n), n]
    scored = sorted(made_under(rows, SCORED))
    known = len(scored) == 1 and not rows["base_logps"].null_count
    answers = rows["answer"].to_pylist()
    texts = [unescape(text) for text in rows["text"].to_pylist()]
    patterns = {}
    if right.any() and store.identity.task != "countdown":
        patterns = pattern_frequencies(texts, right, names, resamples=1000)
    distinct = [expected_distinct_correct(answers[i : i + n], right[i : i + n], ks) for i in range(0, len(answers), n)]
    guides = sorted(made_under(rows, GUIDED))
    return SampleSet(
        arm=arm,
        seed=seed,
        task=store.identity.task,
        law=f"T = {law['temperature']:g}, preset {law['preset']}, at most {law['max_new_tokens']} tokens, n = {n} of each problem"
        + (f", q of {', '.join(guides)}" if guides else ""),
        problems=tuple(counts.problems),
        n=n,
        right=counts.right,
        shown=tuple(_shown(store, min(shown, n))) if shown else (),
        scored=scored[0].split()[0] if known else None,
        perplexities=perplexities(arrays(rows["base_logps"])) if known else None,
        owners=tuple(names),
        is_right=right,
        ks=tuple(ks),
        distinct=np.array(distinct),
        patterns=patterns,
        guide=guides[0] if guides else None,
        temperature=float(law["temperature"]),
    )


def _shown(store: SampleStore, n: int) -> list[Shown]:
    """The first n samples of every problem, as the page shows them."""
    rows = store.samples(n=n)
    ids = [None if row.token_ids is None else np.asarray(row.token_ids) for row in rows]
    spelled = _spellings(store, ids, [row.text for row in rows])
    out = []
    for row, tokens in zip(rows, ids, strict=True):
        long = len(row.text) > LONGEST
        base = row.base_logps
        spell = None if spelled is None or tokens is None or long else tuple(spelled[int(i)] for i in tokens)
        out.append(
            Shown(
                problem=row.problem,
                sample=row.sample,
                text=row.text[:LONGEST],
                verdict=row.verdict,
                reason=row.reason,
                answer=row.answer,
                finish=row.finish,
                left_out=max(0, len(row.text) - LONGEST),
                tokens=spell,
                entropies=None if spell is None or row.entropies is None else tuple(np.asarray(row.entropies).tolist()),
                q=None if spell is None or row.q is None else tuple(np.asarray(row.q).tolist()),
                perplexity=None if base is None else float(perplexities([base])[0]),
            )
        )
    return out


def _spellings(store: SampleStore, rows: Sequence[Any], texts: Sequence[str]) -> dict[int, str] | None:
    """Token id -> its text, from the tokenizer of the store's policy; None where none is there or it spells other texts."""
    from sage_rlvr.engines.base import load_tokens

    known = sorted({int(i) for row in rows if row is not None for i in row})
    runs = [str(parent / "policy") for parent in list(store.path.parents)[:3] if (parent / "policy").is_dir()]
    named = [store.identity.model] if Path(store.identity.model).is_dir() else []
    for place in (*runs, *named, *(["embedded"] if store.identity.task == "countdown" else [])):
        try:
            tokenizer = load_tokens(place).tokenizer
        except SageError:
            continue
        spelled = {i: tokenizer.decode([i]) for i in known}
        pairs = [(row, text) for row, text in zip(rows, texts, strict=True) if row is not None][:32]
        if all(text in "".join(spelled[int(i)] for i in row) for row, text in pairs):
            return spelled
    return None


# ------------------------------------------------------------------------------------------------------------------
# writing


def write(study: Study, out: Path, form: str, png: Path | None) -> list[Path]:
    """The report as HTML or Markdown, and its figures as PNG where a folder is named. Returns what was written."""
    if out.is_dir():
        out = out / ("report.html" if form == "html" else "report.md")
    page = book(study)
    written = [out]
    pictures = None
    if png is not None:
        written += write_pictures(page, png)
        pictures = _relative(png, out.parent)
    text = render(page) if form == "html" else markdown(page, pictures)
    try:
        replace_file(out, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"-o {out}: {error.strerror or error}; name a file in a folder that can be written to"
        ) from error
    return written


def _relative(folder: Path, start: Path) -> str:
    return Path(os.path.relpath(folder, start)).as_posix()


__all__ = ["gather", "study_of", "write"]
