"""`report`: what lies in folders, runs, records and sample stores, read into one `Study` and written as a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.cli.found import BASE, Found, Policy, facts_of, gather
from sage_rlvr.cli.report_samples import sample_sets
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation.record import Record, check_paired
from sage_rlvr.report import (
    Result,
    RunFacts,
    Structure,
    Study,
    arm_from_logps,
    book,
    grids_of,
    learning_of,
    markdown,
    render,
    training_of,
    write_pictures,
)
from sage_rlvr.report.parts import joined
from sage_rlvr.report.summary import control_pairs
from sage_rlvr.runs import read_metrics, write_bytes_atomic
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.passk import exact_pass_at_k
from sage_rlvr.stats.samples.structure import classes_of_answers, effective_classes, reachable_classes


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
    sets, trouble = sample_sets(found, shown)
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
        learning=learning_of(configs),
        left_out=(*left, *found.notes, *trouble),
        control=found.control,
        sources=tuple(found.sources),
    )
    return replace(study, title=title or _title(study, found.tiers))


def _counted(found: Found) -> str:
    """How many arms there are, and how many of them have an exact evaluation."""
    many, exact = len(found.arms), sum(bool(policy.records) for policy in found.arms.values())
    beside = " beside the base" if found.base.records or found.base.stores else ""
    return f"{many} arm{'s' * (many != 1)}{beside}, {exact} of them evaluated exactly"


def _title(study: Study, tiers: Sequence[str]) -> str:
    """The usual title where training was compared, after a sweep's own; else whose samples or evaluations these are."""
    exact = [arm.name for arm in study.results[0].arms] if study.results else []
    names = list(dict.fromkeys([*exact, *(s.arm for s in study.samples)]))
    if len(exact) > 1 or not names or any(run.config for run in study.runs):
        if len(tiers) != 1:
            return study.title
        return f"{tiers[0][:1].upper()}{tiers[0][1:]}: {study.title[:1].lower()}{study.title[1:]}"
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
    facts, rows = facts_of(run), read_metrics(run)
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
        return decode(TrainConfig, config).method.describe()
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
    added = [name for name, policy in found.arms.items() if policy.why]
    return replace(result, pairs=_pairs(result, found.control, named=not found.folders, added=added))


def _pairs(
    result: Result, control: str | None, *, named: bool = False, added: Collection[str] = ()
) -> tuple[tuple[str, str], ...]:
    """The usual controls, and every arm against the control of the sweep (of the arms that the sweep `added`, those that are
    nobody's usual control). Without a sweep, arms that have none against the first trained one. named: the order of the arms is
    the reader's, so of each pair the later stands against the earlier, as `compare` has it."""
    place = {arm.name: i for i, arm in enumerate(result.arms)}
    usual = control_pairs(result)
    if named:
        usual = tuple((b, a) if place[a] < place[b] else (a, b) for a, b in usual)
    trained = [arm.name for arm in result.arms if arm.trained and arm.name != result.base]
    covered = {name for pair in usual for name in pair}
    if control in trained:
        covered = {name for pair in usual for name in pair if control in pair or name in added}
    against = control if control in trained else trained[0] if trained else ""
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
    from sage_rlvr.tasks.countdown.expressions import solve
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
        write_bytes_atomic(out, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"-o {out}: {error.strerror or error}; name a file in a folder that can be written to"
        ) from error
    return written


def _relative(folder: Path, start: Path) -> str:
    return Path(os.path.relpath(folder, start)).as_posix()


__all__ = ["study_of", "write"]
