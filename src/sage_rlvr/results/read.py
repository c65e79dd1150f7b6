"""`read_results(*paths)`: the only code that opens result folders. Does not import torch.

A path is the folder of a sweep or demo, a run directory, a record (.npz), a sample store, a folder with only a summary.json, or a
file of rows that a reader knows (`verdicts.readers`). NAME=PATH[,PATH...] sets the name of an arm and lists its training seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import chance_of_record, chance_of_store
from sage_rlvr.evaluation.judged import problems_in, reasons_of
from sage_rlvr.evaluation.kl import kls_in
from sage_rlvr.evaluation.store import Identity, SampleStore
from sage_rlvr.results.discover import Sources, gather
from sage_rlvr.safe_io import understood
from sage_rlvr.verdicts.chance import KEY, Chance, chance_of_tree
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.measurements import MIXTURE, ExactMeasurement, Measurement, Measurements, SampledMeasurement
from sage_rlvr.verdicts.readers import Choice
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.results import K, Results
from sage_rlvr.verdicts.row_counts import measurements_of_rows
from sage_rlvr.verdicts.sources import Store
from sage_rlvr.verdicts.stats.budget import check_budget
from sage_rlvr.verdicts.stats.frontier import frontier
from sage_rlvr.verdicts.stats.support import reachable, success_probability
from sage_rlvr.verdicts.text import notes as note_texts


def read_results(
    *paths: str | Path, split: str | None = None, k: int | None = None, apart: bool = False, samples: int | None = None,
    choice: Choice | None = None,
) -> Results:  # fmt: skip
    """Read all paths.

    Args:
        *paths: See the head of this module.
        split: Which records; by default those of the sweep's split, else test.
        k: The largest k; by default the largest that all allow, at most 256.
        apart: Whether every path is a separate arm and the first is the control (`compare`).
        samples: Use only the first this many samples of each problem of a store or a file of rows.
        choice: What stands for correct in a file of rows.

    Raises:
        DataError: For a path that is nothing, and for evaluations that cannot be compared.
    """
    if k is not None and k < 1:
        raise DataError(f"k = {k}: pass@k needs k >= 1; set another k, or omit k for the largest")
    words = list(map(str, paths))
    sources = gather(words, split=split, apart=apart, choice=choice or Choice())
    if sources.stored is not None:
        k = _k_of_summary(sources, k)
    sampled, notes, grave = _sampled(sources, samples, choice or Choice(), strict=apart)
    if k is None:
        sizes = [one.n for one in sampled]  # arms passed apart are compared on every task and temperature up to its own n
        k = K if sources.records or not sizes else min(K, (max if apart else min)(sizes))
    table: Measurements[Measurement] = Measurements((*exact_rows(sources.records, sources.design, k), *sampled))
    notes = [*sources.notes, *notes, *note_texts.notes_on_bases(table.sampled())]
    notes += note_texts.notes_of_pairs(sources.design, table.exact())
    return Results(
        design=sources.design, table=table, records=sources.records, runs=sources.runs, given=sources.given,
        chances=_chances(sources, sampled), starts=_starts(sources, sampled), k=k,
        samples=samples, stored=sources.stored, stored_in=sources.stored_in,
        failed=[*grave, *_failed(sampled)] if sources.stored is None else list(sources.stored["failed"]),
        notes=list(dict.fromkeys(notes)), sources=words,
    )  # fmt: skip


def digest_of(weights: str) -> str:
    """The hash of weights as sample stores have it (`models.policy.revision_of`)."""
    return weights if weights.startswith("hub:") else hashlib.sha256(weights.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------
# what is read of sources


def exact_rows(records: Mapping[tuple[str, int, str], Record], design: Design, k: int) -> list[ExactMeasurement]:
    """The rows of all exact records, by (arm, training seed, task); those of an arm by seed and temperature."""
    rows = []
    for (arm, seed, task), record in sorted(records.items(), key=lambda item: item[0][1]):
        values = {t: success_probability(logps) for t, logps in record.logps.items()}
        problems = tuple(map(str, record.meta["problem_ids"]))
        for point in frontier(values, k):
            t = point.temperature
            row = ExactMeasurement(
                arm=arm, seed=seed, task=task, temperature=t, problems=problems, values=values[t], logps=record.logps[t],
                point=point, distinct=float(np.mean(reachable(record.logps[t], k))), for_all_seeds=arm == design.base,
            )  # fmt: skip
            rows.append(row)
    return rows


def _k_of_summary(sources: Sources, k: int | None) -> int:
    """The largest k of a stored summary, which has no samples to compute another k from."""
    assert sources.stored is not None and sources.stored_in is not None
    with understood(sources.stored_in):
        largest = max(sources.stored["ks"])
        if k not in (None, largest):
            kept = ", ".join(map(str, sources.stored["ks"]))
            raise DataError(
                f"k = {k}: {sources.stored_in} has only scores at k = {kept} and comparisons up to {largest}, and no samples to "
                "compute other k from; omit k, or compare the evaluations of the runs"
            )
    return int(largest)


def _chances(sources: Sources, sampled: Sequence[SampledMeasurement]) -> dict[str, Chance | None]:
    """The chance floor on the problems of every task."""
    floors: dict[str, Chance | None] = {}
    for (_, _, task), record in sources.records.items():
        if task not in floors:
            floors[task] = chance_of_record(record)
    if sources.stored is not None and sources.stored_in is not None:
        with understood(sources.stored_in):
            kept = sources.stored.get(KEY) or {}
            floors |= {task: chance_of_tree(tree) for task, tree in kept.items()}
    for one in sampled:
        floors.setdefault(one.task, one.chance)
    return floors


def _starts(sources: Sources, sampled: Sequence[SampledMeasurement]) -> dict[str, list[str]]:
    """Arm -> the arms whose every run was trained from its weights, as far as runs and evaluations have their hashes."""
    weights: dict[str, set[str]] = {}
    for (arm, _, task), record in sources.records.items():
        known = weights.setdefault(arm, set())
        if not task:
            known.add(str(record.meta.get("weights") or ""))
    for one in sampled:
        weights.setdefault(one.arm, set()).add(str(one.identity.get("revision", "")))
    starts: dict[str, list[str]] = {}
    for arm in sources.design.names:
        own = [run.start for (name, _), run in sources.runs.items() if name == arm]
        for other, known in weights.items():
            if own and other != arm and all(start and known & {start, digest_of(start)} for start in own):
                starts.setdefault(other, []).append(arm)
    return starts


# ------------------------------------------------------------------------------------------------------------------
# samples


def _sampled(
    sources: Sources, samples: int | None, choice: Choice, *, strict: bool
) -> tuple[list[SampledMeasurement], list[str], list[str]]:
    """The measurements of all stores and files of rows, with notes, and those that are read before any result.

    `strict` (arms passed for a comparison) raises DataError for unfinished stores and unequal numbers of samples; else the smallest
    number of samples of all stores of a task is used."""
    notes: list[str] = []
    whole = [one for store in sources.stores if (one := _of_store(store, samples, strict, notes)) is not None]
    if strict:
        _check_stores(whole)
    stores = []
    for one in whole:
        fewest = one.n if strict else min(other.n for other in whole if other.task == one.task)
        cut = one if one.n == fewest or one.store is None else _of_store(one.store, fewest, strict, notes)
        if cut is None:
            continue
        if cut.n < one.n:
            notes.append(note_texts.first_samples(one.task, cut.n, one.arm, one.n))
        stores.append(cut)
    rows, more, grave = measurements_of_rows(sources.given, stores, samples, choice)
    return [*(_with_fields_of_rows(store, rows) for store in stores), *rows], [*notes, *more], grave


def _with_fields_of_rows(store: SampledMeasurement, rows: Sequence[SampledMeasurement]) -> SampledMeasurement:
    """The measurement of a store with the clusters and, if it has none, the chance floor of files of the same task."""
    same = next((one for one in rows if one.task == store.task), None)
    return store if same is None else replace(store, cluster=same.cluster, chance=store.chance or same.chance)


def _of_store(store: Store, n: int | None, strict: bool, notes: list[str]) -> SampledMeasurement | None:
    """The measurement of a store; None for a store without samples. notes: gains a sentence on an incomplete store."""
    path = store.path
    with SampleStore.open(path) as opened:
        counts, identity = opened.counts(n, check=strict), opened.identity.tree()
        facts = opened.facts()
        chance = chance_of_store(facts, counts.problems)
        reasons = reasons_of(opened, n)
        failed = problems_in(opened, reasons, n)
        many, lacking, judges = sorted(set(counts.n.tolist())), opened.lacking(counts), opened.verifiers()
        kls = _kls(store, opened.identity, notes)
    if strict and lacking:
        raise DataError(f"{path}: has {lacking}, so the evaluation is not complete")
    if strict and len(many) != 1:
        few, most = (many[0], many[-1]) if many else (0, 0)
        hint = f", or pass --samples {few}" if few else ""
        raise DataError(f"{path}: its problems have {few} to {most} samples; finish the evaluation first{hint}")
    if lacking or not many:
        notes.append(note_texts.unfinished(store.arm, path, lacking if many else ""))
    if len(many) != 1:
        return _of_store(store, many[0], strict, notes) if many else None
    identity |= {"n": many[0], "verifier_hash": judges[-1]["verifier_hash"]} if judges else {"n": many[0]}
    return SampledMeasurement(
        arm=store.arm, seed=store.seed, task=str(identity["task"]), temperature=float(identity["decoding"]["temperature"]),
        problems=tuple(counts.problems), values=counts.right, n=many[0], path=path, store=store, identity=identity, chance=chance,
        reasons=reasons.counted, failed=failed, kls=kls, mixture=facts.get(MIXTURE) or {},
    )  # fmt: skip


def _kls(store: Store, identity: Identity, notes: list[str]) -> dict[str, float]:
    """Revision of a base -> the exact KL to it, nats per token. notes: gains a sentence on a file of other weights or problems."""
    kls = kls_in(store.path)
    of = (identity.revision, identity.task_hash, float(identity.decoding["temperature"]))
    stale = [path for path, kl in kls.items() if tuple(map(kl.about.get, ("policy_revision", "task_hash", "temperature"))) != of]
    notes += [note_texts.kl_of_other_samples(store.arm, path) for path in stale]
    return {str(kl.about["base_revision"]): kl.per_token for path, kl in kls.items() if path not in stale}


def _failed(sampled: Iterable[SampledMeasurement]) -> list[str]:
    """Reasons why more than half of the samples failed, with the name of the policy."""
    return [f"{one.name}, {one.task}: {sentence}" for one in sampled for sentence in one.failed]


def _check_stores(stores: Sequence[SampledMeasurement]) -> None:
    """Raise DataError for unequal budgets on a task (temperatures of frontiers may differ, and those of the control, the first arm,
    where it has those of the others), for a frontier with stores of several policies, and for two stores of the same weights in
    one arm."""
    for task in dict.fromkeys(c.task for c in stores):
        here = [c for c in stores if c.task == task]
        read_at: dict[str, set[float]] = {}
        for c in here:
            read_at.setdefault(c.arm, set()).add(c.temperature)
        control, *others = read_at.values()
        wide = len(control) > 1 and all(len(other) > 1 or other <= control for other in others)
        check_budget({f"{c.arm} ({c.path})": c.identity for c in here}, ("temperature",) if wide else ())
        policies: dict[str, tuple[str, str]] = {}
        for c in here if wide else ():
            policy = str(c.identity["model"]), str(c.identity["revision"])
            if policies.setdefault(c.arm, policy) != policy:
                raise DataError(
                    f"{c.path}: a different policy than the other stores of {c.arm} on {task}; a frontier needs one "
                    "policy"
                )
    seen: dict[tuple[object, str], Path] = {}
    for c in stores:
        revision = str(c.identity["revision"])
        first = seen.setdefault((c.policy_key, revision), c.path)
        if first != c.path and "unknown" not in revision:
            raise DataError(
                f"{c.arm}: {first} and {c.path} hold samples of the same weights ({revision[:12]}), so they are not "
                "two training seeds; pass one of them; `eval --samples` adds samples to a store"
            )
