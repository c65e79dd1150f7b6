"""`eval` and `compare` of exact records: where a policy and its record lie, and lines from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sage_rlvr.config import world_of
from sage_rlvr.errors import DataError, SageError, suggest
from sage_rlvr.evaluation.record import Record, check_paired, load_record, record_path
from sage_rlvr.evaluation.verdicts import exact_leash_lines, legend_lines
from sage_rlvr.report import Result, SeedSummary, arm_from_logps, summarise_seeds
from sage_rlvr.report.summary import control_pairs
from sage_rlvr.runs import read_metrics
from sage_rlvr.stats.comparison import paired_seeds, sentence
from sage_rlvr.stats.curves import (
    curve_sentence,
    improvement_sentence,
    paired_curve,
    probability_of_improvement,
    seed_ks,
    seeds_curve,
)
from sage_rlvr.stats.frontier import compare_frontiers, frontier, frontier_sentence, gap_to_frontier
from sage_rlvr.stats.intervals import share_interval
from sage_rlvr.stats.passk import curve
from sage_rlvr.stats.support import reachable, success_probability
from sage_rlvr.stats.tempered import tempered

if TYPE_CHECKING:
    from sage_rlvr.evaluation.evaluate import Target


def target_of(what: str, world: str | None) -> Target:
    """`engines.evaluate.resolve`, with a damaged run.json refused by name."""
    from sage_rlvr.evaluation.evaluate import resolve

    chosen = None if world is None else world_of(world)
    try:
        return resolve(what, chosen)
    except SageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{Path(what) / 'run.json'} is damaged ({error!r}); evaluate {Path(what) / 'policy'} with --world RECIPE instead"
        ) from error


def eval_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """A table in text: one line a temperature, 95 % intervals over problems."""
    head = (
        f"{record.meta['name']}: {record.problems} {record.meta['split']} problems, exact, 95 % intervals over problems"
    )
    lines = [head, "  T     " + "".join(f"pass@{k:<18}" for k in ks) + "distinct right in 256"]
    for t in sorted(record.logps, reverse=True):
        rows = record.logps[t]
        values = curve(success_probability(rows), list(ks))
        cells = []
        for column in values.T:
            found = share_interval(column)
            cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]  ")
        lines.append(f"  {t:<5g} " + "".join(f"{cell:<23}" for cell in cells) + f"{np.mean(reachable(rows, 256)):.1f}")
    return lines


def power_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """The same over powers of whole completions, with the bound that the normalizer leaves; [] where there are none."""
    if not record.norms:
        return []
    lines = [
        f"{record.meta['name']} tempered over whole completions, pi(y)^power normalized per problem; +-: bound of the normalizer",
        "  power " + "".join(f"pass@{k:<18}" for k in ks) + "+- pass@1  distinct right in 256",
    ]
    for one in tempered(record.logps[1.0], record.norms):
        cells = [share_interval(column) for column in curve(one.p, list(ks)).T]
        said = "".join(f"{f'{c.value:.3f} [{c.low:.3f}, {c.high:.3f}]  ':<23}" for c in cells)
        note = f"{one.bound.mean():<9.1g}  {one.distinct(256):.1f}"
        lines.append(
            f"  {one.power:<5g} " + (said + note if one.known else "not available: " + note.split()[0] + " open")
        )
    return lines


def print_cross_check(console: Console, found: Mapping[str, float]) -> None:
    """What `cross_check` found, in one line; a disagreement is loud, and says what to do."""
    agree = bool(found["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {found['sampled']:.4f} ({100 * found['level']:g} % "
        f"interval {found['low']:.4f} to {found['high']:.4f}), exact {found['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, trust neither before `sage-rlvr doctor` has passed; if it does, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", markup=False, soft_wrap=True
    )


TOP_K = 256  # of pass@k in `compare` and `plan` where none was asked for
Loaded = list[tuple[str, list[Record]]]  # each arm's name and records, one a training seed


def load_arms(arms: Sequence[str], split: str) -> Loaded:
    """The records of NAME=PATH[,PATH...] arms, refused where they are not of the same problems."""
    if len(arms) < 2:
        raise DataError(f"compare needs at least two arms, got {list(arms)}; the first is the control")
    loaded = [named_records(arm, split) for arm in arms]
    counts = sorted({len(records) for _, records in loaded[1:]})
    if len(counts) > 1 or len(loaded[0][1]) not in (1, counts[0]):
        raise DataError("arms differ in their number of training seeds; give each the same number of records")
    for name, records in loaded:
        known = [str(r.meta["weights"]) for r in records if r.meta.get("weights")]
        if len(set(known)) < len(known):
            raise DataError(f"{name}: two of its records are of the same weights, so they are no two training seeds")
    check_paired([record for _, records in loaded for record in records])
    return loaded


def compare_records(loaded: Loaded, k: int) -> tuple[Result, SeedSummary | None]:
    """Result of the first seed and, where every arm but the control has several, the claims over training seeds."""
    seeds = len(loaded[1][1])
    results = [_result([(name, rows[min(s, len(rows) - 1)]) for name, rows in loaded], k) for s in range(seeds)]
    return results[0], summarise_seeds(results) if seeds > 1 else None


def support_lines(loaded: Loaded, k: int) -> list[str]:
    """What each arm kept, found and lost of the first one's support, exactly; and where they were trained for unlike lengths."""
    rows = {name: [record.logps[1.0] for record in records] for name, records in loaded if 1.0 in records[0].logps}
    (base, home), *others = rows.items()
    lines = [line for name, own in others for line in exact_leash_lines(name, own, base, home, k)]
    lines += legend_lines(lines)
    return lines + steps_lines({n: [steps_of(Path(str(r.meta["model"])).parent) for r in rs] for n, rs in loaded})


def steps_of(run: Path) -> int | None:
    """Training steps done in a run directory, None where it is none."""
    if not (run / "run.json").is_file():
        return None
    return max((row["step"] + 1 for row in read_metrics(run)), default=None)


def steps_lines(steps: Mapping[str, Sequence[int | None]]) -> list[str]:
    """A line where arms were trained for different numbers of steps; [] where not, or where nothing is known of it."""
    known = {name: sorted({n for n in found if n is not None}) for name, found in steps.items()}
    told = {name: " and ".join(f"{n:,}" for n in found) for name, found in known.items() if found}
    if len(set(told.values())) < 2:
        return []
    said = "; ".join(f"{name}: {text}" for name, text in told.items())
    return [
        f"Training steps differ ({said}): a difference between these arms is also one of how long they were trained."
    ]


def more_lines(result: Result, over_seeds: SeedSummary | None, k: int) -> list[str]:
    """What `compare` says beyond the table's sentences: each pair over all k, the chance of an improvement on a problem, and
    their temperature frontiers where both were evaluated at several temperatures."""
    trained = [arm.name for arm in result.arms if arm.trained and arm.name != result.base]
    pairs = [(name, result.base) for name in trained] + list(control_pairs(result))
    seeds = [result] if over_seeds is None else list(over_seeds.results)
    lines = []
    for a, b in pairs:
        arms = [(r.arm(a), r.arm(b)) for r in seeds]
        if over_seeds is None:
            band = paired_curve(curve(arms[0][0].p, result.ks), curve(arms[0][1].p, result.ks), result.ks)
        else:
            ks = seed_ks(k)
            band = seeds_curve(*(np.stack([curve(pair[i].p, ks) for pair in arms]) for i in (0, 1)), ks)
        lines.append(curve_sentence(band, a, b))
        over = "problems" if over_seeds is None else "training seeds"
        scores = (np.stack([pair[i].p for pair in arms]) for i in (0, 1))
        better = probability_of_improvement(*scores, over=over)
        lines.append(improvement_sentence(better, a, b, "a problem's pass@1 (the same at every k)"))
        if all(len(arm.ps) > 1 for pair in arms for arm in pair):
            lines.append(_frontier_line(arms, a, b, k))
    return [line + "." for line in lines]


def _frontier_line(arms: Sequence[tuple[Any, Any]], a: str, b: str, k: int) -> str:
    if len(arms) == 1:
        return frontier_sentence(compare_frontiers(arms[0][0].ps, arms[0][1].ps, k=k), a, b, k)
    gaps = [gap_to_frontier(frontier(x.ps, k), frontier(y.ps, k)).value for x, y in arms]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        none = len(gaps) - len(known)
        return f"{a} vs {b}, temperature frontiers: no common range of pass@1 in {none} training seeds"
    found = paired_seeds(known, np.zeros(len(known)))
    return sentence(found, a, b, f"mean gap in pass@{k} at equal pass@1, temperature frontiers")


def named_records(arm: str, split: str) -> tuple[str, list[Record]]:
    """(name, its records) of NAME=PATH[,PATH...], each path a record or a run directory; without NAME= the first one's name."""
    name, equals, paths = arm.rpartition("=")
    records = []
    for text in paths.split(","):
        path = Path(text)
        records.append(_of_run(path, split) if path.is_dir() else load_record(path))
    return (name if equals else str(records[0].meta["name"])), records


def _of_run(run: Path, split: str) -> Record:
    """The record in a run directory, refused where the run has other weights by now than those that were evaluated."""
    from sage_rlvr.models.policy import weights_hash

    own = run / f"evaluation-{split}.npz"
    beside = record_path(run.parent.parent, run.name, "" if split == "test" else split)
    swept = not own.exists() and beside.exists()  # by a sweep or a demo
    record = load_record(beside if swept else own)
    if record.meta.get("weights") != weights_hash(str(run / "policy")):
        raise DataError(
            f"{run}: {beside if swept else own.name} is of other weights than its policy/ (the run went on, or is not finished); "
            f"evaluate it again: {suggest('eval', run)}"
        )
    return record


def _result(named: Sequence[tuple[str, Record]], k: int) -> Result:
    base_name, base = named[0]
    if 1.0 not in base.logps:
        raise DataError(f"{base_name}: its record has no temperature 1; evaluate it with --temperatures 1.0")
    home = base.logps[1.0]
    arms = [arm_from_logps(base_name, base.logps, trained=False, k=k)]
    arms += [arm_from_logps(name, record.logps, base=home, k=k) for name, record in named[1:]]
    names = tuple(name for name, _ in named[1:])
    pairs = tuple((b, a) for i, a in enumerate(names) for b in names[i + 1 :])
    ks = (*(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n < k), k)
    return Result(
        arms=tuple(arms),
        problems=base.problems,
        base=base_name,
        split=base.meta["split"],
        k=k,
        ks=ks,
        pairs=pairs,
        versions=base.meta["versions"],
    )
