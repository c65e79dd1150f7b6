"""What the pipelines of the old house said of the synthetic folders, one row a line: synthetic.json.

    python tests/frozen/synthetic.py         writes the folders to a temporary place and freezes what is said of them

This file imports the old pipelines (`compare`, `sweep`, `report`, `demo`) and goes with them; synthetic.json stays.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from sage_rlvr.evaluation.compare import control_error
from sage_rlvr.evaluation.curves import CurveComparison
from sage_rlvr.evaluation.frontier import compare_count_frontiers, compare_frontiers
from sage_rlvr.evaluation.leash import (
    LeashCounts,
    leash_at_k,
    leash_discoveries,
    leash_intervals,
    leash_noise_floor,
    mcnemar_p,
    rate_intervals,
)
from sage_rlvr.evaluation.passk import pass_at_k
from sage_rlvr.evaluation.patterns import compare_patterns
from sage_rlvr.evaluation.perplexity import perplexities, perplexity_excess
from sage_rlvr.verbs.records import compare_records, eval_lines, load_arms, more_lines, power_lines, support_lines
from sage_rlvr.verbs.report import study_of
from sage_rlvr.verbs.stores import compare_store_frontiers, compare_stores, read_stores

from frozen import folders
from frozen.freeze import BEST, EQUAL, HERE, Row, comparison, number, printed, summary_rows, write_rows
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.evaluation import (
    curve,
    frontier,
    gap_to_frontier,
    paired_count_curve,
    paired_curve,
    paired_seeds,
    probability_of_improvement,
    seed_interval,
    seed_ks,
    seeds_curve,
    share_intervals,
    success_probability,
)
from sage_rlvr.evaluation.sample_report import arrays, report_lines
from sage_rlvr.evaluation.sample_studies import _solutions
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.verdicts import (
    SUPPORT_EPS,
    Scored,
    _exact_cells,
    arms_of,
    count_comparisons,
    own_interval,
)
from sage_rlvr.experiments.demo import Job, results
from sage_rlvr.experiments.summary import summarise as summarise_sweep
from sage_rlvr.experiments.sweep import LABELS
from sage_rlvr.recipes import recipe
from sage_rlvr.report import Result, SeedSummary, Study, Summary, book, summarise, summarise_seeds
from sage_rlvr.report.parts import Tabular
from sage_rlvr.report.sections.stores import common_k, comparable, counts_of, told_apart
from sage_rlvr.report.sections.verdicts import fronts_of
from sage_rlvr.report.summary import control_pairs, corrected, seed_differences

ARMS = ("no_kl", "grpo", "sage_branch")
K = 256


# ------------------------------------------------------------------------------------------------------------------
# rows of what exact pipelines give


def exact_rows(source: str, pipeline: str, shown: Summary | SeedSummary) -> Iterator[Row]:
    """Comparisons, bands and single-arm numbers of a summary over one or several training seeds. Of one seed both families are
    written: "as on the demo's page" without correction, "corrected" as in the terminal and in `report`."""
    if isinstance(shown, SeedSummary):
        lists = {"verdicts": shown.verdicts}
        bands: Mapping[str, CurveComparison] = seed_differences(shown)
    else:
        lists = {"as on the demo's page": shown.verdicts, "corrected": corrected(shown)}
        bands = shown.differences
    for where, verdicts in lists.items():
        for v in verdicts:
            yield comparison(source, pipeline, where, "mean", (v.a, v.b, f"pass@{v.k}"), asdict(v.comparison))
    for name, band in bands.items():
        yield from band_rows(source, pipeline, *name.split(" − "), "", band)
    if isinstance(shown, SeedSummary):
        yield from _seed_numbers(source, pipeline, shown)
    else:
        yield from _against_rows(source, pipeline, shown)
        yield from _one_seed_numbers(source, pipeline, shown)


def band_rows(source: str, pipeline: str, a: str, b: str, task: str, band: CurveComparison) -> Iterator[Row]:
    """One row a k of a band that holds at all k at once."""
    columns = zip(band.ks, band.difference.tolist(), band.low.tolist(), band.high.tolist(), band.verdicts, strict=True)
    for k, value, low, high, verdict in columns:
        told = {
            "difference": {"value": value, "low": low, "high": high, "n": band.n, "over": band.over},
            "verdict": verdict, "level": band.about,
        }  # fmt: skip
        row = comparison(source, pipeline, "band over all k", "band", (a, b, f"pass@{k}"), told)
        yield row | {"row": "band", "task": task, "ks": list(band.ks)}


def _seed_numbers(source: str, pipeline: str, shown: SeedSummary) -> Iterator[Row]:
    for name, passes in shown.passes.items():
        for k, interval in passes.items():
            yield number(source, pipeline, f"{name}/pass@{k}", asdict(interval))
    for word, found in (("best pass@1", shown.best), ("distinct", shown.distinct)):
        for name, interval in found.items():
            yield number(source, pipeline, f"{name}/{word}", asdict(interval))
    for name, seeds in shown.frontiers.items():
        for label, points in zip(shown.labels, seeds, strict=True):
            for p in points:
                yield number(source, pipeline, f"{name}/frontier/{label}/T = {p.temperature:g}", asdict(p))


def _one_seed_numbers(source: str, pipeline: str, shown: Summary) -> Iterator[Row]:
    for row in shown.rows:
        for k, interval in row.passes.items():
            yield number(source, pipeline, f"{row.name}/pass@{k}", asdict(interval))
        if row.distinct is not None:
            yield number(source, pipeline, f"{row.name}/distinct", asdict(row.distinct))
        if row.support is not None:
            yield number(source, pipeline, f"{row.name}/support", asdict(row.support))
        yield number(source, pipeline, f"{row.name}/best", asdict(row.best))
    for one in shown.curves:
        for k, interval in zip(one.ks, one.points, strict=True):
            yield number(source, pipeline, f"{one.name}/curve/{k}", asdict(interval))
    for name, points in shown.frontiers.items():
        for p in points:
            yield number(source, pipeline, f"{name}/frontier/T = {p.temperature:g}", asdict(p))


def _against_rows(source: str, pipeline: str, shown: Summary) -> Iterator[Row]:
    base, k = shown.result.base, shown.result.k
    for one in shown.against_frontier:
        where = "against the base's frontier"
        row = comparison(source, pipeline, where, "home against best", (one.name, base, "pass@1"), asdict(one.pass1))
        yield row | {"at": "a at T = 1, b at its best T"}
        if one.best is not None:
            row = comparison(source, pipeline, where, "best", (one.name, base, "pass@1"), asdict(one.best))
            yield row | {"at": BEST}
        equal = {"difference": None if one.equal.difference is None else asdict(one.equal.difference)}
        equal |= {"detectable": one.equal.detectable, "detectable_high": one.equal.detectable_high}
        equal |= {"verdict": one.equal.reason, "level": "these checkpoints"}
        row = comparison(source, pipeline, where, "equal", (one.name, base, f"pass@{k}"), equal)
        yield row | {"at": "equal pass@1, a at T = 1"}
        facts = {"base_passk": one.equal.base_passk, "temperature": one.equal.temperature}
        yield number(source, pipeline, f"{one.name}/equal pass@1 on {base}'s frontier", facts)
        yield number(source, pipeline, f"{one.name}/best of {base}", asdict(one.best_base))


def more_rows(source: str, pipeline: str, results: Sequence[Result], k: int) -> Iterator[Row]:
    """What `compare` adds of every pair: the chance of an improvement, and the temperature frontiers."""
    first = results[0]
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    several = len(results) > 1
    for a, b in [(name, first.base) for name in trained] + list(control_pairs(first)):
        both = [(r.arm(a), r.arm(b)) for r in results]
        scores = [np.stack([pair[i].p for pair in both]) for i in (0, 1)]
        over = "training seeds" if several else "problems"
        yield chance_row(source, pipeline, a, b, "", probability_of_improvement(*scores, over=over))
        if several:
            ks = seed_ks(k)
            band = seeds_curve(*(np.stack([curve(pair[i].p, ks) for pair in both]) for i in (0, 1)), ks)
        else:
            band = paired_curve(curve(both[0][0].p, first.ks), curve(both[0][1].p, first.ks), first.ks)
        yield from band_rows(source, pipeline, a, b, "", band)
        if not several:
            yield gap_row(source, pipeline, a, b, "", k, compare_frontiers(both[0][0].ps, both[0][1].ps, k=k))
            continue
        gaps = [gap_to_frontier(frontier(x.ps, k), frontier(y.ps, k)).value for x, y in both]
        known = [gap for gap in gaps if gap is not None]
        if len(known) == len(gaps):
            told = asdict(paired_seeds(known, np.zeros(len(known))))
            yield comparison(source, pipeline, "frontiers", "frontier", (a, b, f"pass@{k}"), told) | {"at": EQUAL}


def chance_row(source: str, pipeline: str, a: str, b: str, task: str, found: Any) -> Row:
    """P(A > B) of a problem's pass@1, with its interval."""
    told = {"difference": asdict(found.interval), "verdict": found.verdict, "level": found.level}
    return comparison(source, pipeline, "P(a > b)", "chance", (a, b, "P(a > b)"), told) | {"row": "chance", "task": task}


def gap_row(source: str, pipeline: str, a: str, b: str, task: str, k: int, found: Any) -> Row:
    """Two frontiers of one seed; without an interval where they have no common range."""
    gap = {"value": found.value} if found.difference is None else asdict(found.difference)
    told = {
        "difference": gap, "verdict": found.verdict, "detectable": found.detectable, "detectable_high": found.detectable_high,
        "level": "these checkpoints",
    }  # fmt: skip
    row = comparison(source, pipeline, "frontiers", "frontier", (a, b, f"pass@{k}"), told)
    return row | {"at": EQUAL, "task": task, "range": [x if np.isfinite(x) else None for x in (found.low, found.high)]}


def lines_rows(source: str, pipeline: str, name: str, lines: Sequence[str]) -> list[Row]:
    """Lines as printed."""
    return [printed(source, pipeline, f"{name}/{i:03d}", line) for i, line in enumerate(lines) if line.strip()]


def exact_leash_rows(source: str, pipeline: str, records: Mapping[str, Sequence[Any]], base: str) -> Iterator[Row]:
    """Kept, found and lost of the base's support, of every arm: counts and rates."""
    words = ("completions above 1/256", "problems above 1/256", f"problems solved in {K}")
    for name, rows in records.items():
        if name == base:
            continue
        cells = [_exact_cells(records[base][0].logps[1.0], row.logps[1.0], K, SUPPORT_EPS) for row in rows]
        for word, *tables in zip(words, *cells, strict=True):
            counts = [LeashCounts(*table.sum(axis=0).tolist()) for table in tables]
            where = f"{name} against {base}/kept and found/{word}"
            yield from _leash_numbers(source, pipeline, where, counts, rate_intervals(tables[0]) if len(rows) == 1 else {})


def _leash_numbers(
    source: str, pipeline: str, where: str, counts: Sequence[LeashCounts], rates: Mapping[str, Any]
) -> Iterator[Row]:
    for word in ("preserved", "expanded", "shrunk", "outside"):
        values = [getattr(one, word) for one in counts]
        told = asdict(seed_interval(values)) if len(values) > 2 else {"value": values[0]}
        yield number(source, pipeline, f"{where}/{word}", told)
    for rate in counts[0].rates:
        found = rates.get(rate) if len(counts) < 3 else seed_interval([one.rates[rate] for one in counts])
        if found is not None:
            yield number(source, pipeline, f"{where}/{rate}", asdict(found))


# ------------------------------------------------------------------------------------------------------------------
# rows of sample stores


def store_rows(source: str, pipeline: str, named: Mapping[str, Sequence[tuple[str, Scored]]], k: int) -> Iterator[Row]:
    """`compare` of sample stores: mean scores (corrected), bands, chances, kept and found, own numbers."""
    data = arms_of(named)
    yield from count_rows(source, pipeline, data, k)
    (base, home), *others = data.items()
    for name, own in others:
        for task in home:
            yield from _pair_rows(source, pipeline, name, own[task], base, home[task], task, k)


def count_rows(source: str, pipeline: str, data: Mapping[str, Mapping[str, Scored]], k: int) -> Iterator[Row]:
    """Mean scores of every arm, and of every arm against the first."""
    base = next(iter(data))
    for (name, metric, task), c in count_comparisons(data, k).items():
        yield comparison(source, pipeline, "mean scores", "mean", (name, base, f"pass@{metric}"), asdict(c)) | {"task": task}
    for name, own in data.items():
        for task, scored in own.items():
            for metric in (1, k):
                yield number(source, pipeline, f"{name}/{task}/pass@{metric}", asdict(own_interval(scored, metric)))


def _pair_rows(
    source: str, pipeline: str, name: str, a: Scored, base: str, b: Scored, task: str, k: int
) -> Iterator[Row]:
    where = f"{name} against {base}/{task}/kept and found"
    if max(len(a.right), len(b.right)) == 1:
        yield from band_rows(source, pipeline, name, base, task, paired_count_curve(a.n, a.right[0], b.right[0]))
        yield chance_row(source, pipeline, name, base, task, probability_of_improvement(a.right[0], b.right[0]))
        counts = (b.n, b.right[0], a.n, a.right[0])
        yield from _leash_numbers(source, pipeline, where, [leash_at_k(*counts, k)], leash_intervals(*counts, k))
        floor, seen, found = leash_noise_floor(*counts, k), leash_at_k(*counts, k), leash_discoveries(*counts)
        yield number(source, pipeline, f"{where}/by chance alone", {"expanded": floor.expanded, "shrunk": floor.shrunk})
        p = mcnemar_p(round(seen.expanded), round(seen.shrunk))
        yield number(source, pipeline, f"{where}/McNemar's p", {"value": p})
        for word, hits in (("new", found.new), ("lost", found.lost)):
            names = [one for one, hit in zip(a.problems, hits.tolist(), strict=True) if hit]
            yield number(source, pipeline, f"{where}/{word} beyond luck", {"problems": names})
        columns = {"p_new": found.p_new, "p_lost": found.p_lost, "adjusted": found.adjusted}
        yield number(source, pipeline, f"{where}/lone solvers", columns)
        return
    left, right = np.broadcast_arrays(a.right, b.right)
    ks = seed_ks(k)
    curves = [np.stack([np.asarray(pass_at_k(a.n, rows, j)) for j in ks], axis=2) for rows in (left, right)]
    shared = [control_error(b.n, b.right, j) for j in ks] if len(b.right) == 1 else 0.0
    yield from band_rows(source, pipeline, name, base, task, seeds_curve(*curves, ks, shared=shared))
    yield chance_row(source, pipeline, name, base, task, probability_of_improvement(left, right, over="training seeds"))
    counted = [leash_at_k(b.n, old, a.n, new, k) for new, old in zip(left, right, strict=True)]
    yield from _leash_numbers(source, pipeline, where, counted, {})


def pair_studies(source: str, pipeline: str, name: str, a: Path, base: str, b: Path) -> Iterator[Row]:
    """Patterns and perplexity of two stores."""
    one, two = SampleStore.open(a), SampleStore.open(b)
    task = one.identity.task
    for word, found in compare_patterns(_solutions(one, None), _solutions(two, None)).items():
        where = f"{name} against {base}/{task}/pattern {word}"
        yield number(source, pipeline, f"{where}/shares", {"fisher_p": found.fisher_p, **asdict(found.micro)})
        if found.by_problem is not None:
            told = asdict(found.by_problem)
            row = comparison(source, pipeline, "patterns", "pattern", (name, base, f"pattern {word}"), told)
            yield row | {"task": task}
    rows = [store.table(("problem", "base_logps"), n=None) for store in (one, two)]
    given: list[Any] = []
    for part in rows:
        given += [perplexities(arrays(part["base_logps"])), part["problem"].to_pylist()]
    excess = perplexity_excess(*given, quantile=0.95)
    yield number(source, pipeline, f"{name} against {base}/{task}/perplexity above 95 % of {base}'s", asdict(excess))


# ------------------------------------------------------------------------------------------------------------------
# the pipelines


def sweep_rows(path: Path) -> Iterator[Row]:
    """`sweep`: summary.json, which summary.md prints."""
    yield from summary_rows(summarise_sweep(path), "sweep")


def report_rows(source: str, items: Sequence[str], pipeline: str = "report") -> Iterator[Row]:
    """`report`: verdicts, frontiers, tables, of exact records or of stores."""
    study = study_of(items, LABELS)
    if study.results:
        many = len(study.results) > 1
        shown = summarise_seeds(study.results) if many else summarise(study.results[0])
        yield from exact_rows(source, pipeline, shown)
        for one in fronts_of(study):
            told = {
                "difference": None if one.difference is None else asdict(one.difference), "verdict": one.verdict,
                "detectable": one.detectable, "detectable_high": one.detectable_high, "family": one.family,
                "level": "these methods" if many else "these checkpoints",
            }  # fmt: skip
            row = comparison(source, pipeline, "frontiers", "frontier", (one.a, one.b, one.metric), told)
            yield row if one.home else row | {"at": EQUAL}
            yield printed(source, pipeline, f"frontiers/{one.a} vs {one.b}/{one.metric}", one.sentence)
    else:
        yield from _report_of_stores(source, pipeline, study)
    for section in book(study).sections:
        for i, part in enumerate(part for part in section.parts if isinstance(part, Tabular)):
            for j, row in enumerate(part.table.rows):
                cells = [" ".join(f"{head}: {cell}".split()) for head, cell in zip(part.table.header, row, strict=True)]
                name = "/".join(("tables", section.key, str(i), f"{j:02d}", row[0]))
                yield printed(source, pipeline, name, " | ".join(cells))


def _report_of_stores(source: str, pipeline: str, study: Study) -> Iterator[Row]:
    for sets in comparable(told_apart(study.samples)):
        counts, k = counts_of(sets), common_k(sets)
        if len(counts) > 1:
            yield from count_rows(source, pipeline, counts, k)


def demo_rows(path: Path) -> Iterator[Row]:
    """`demo`: the terminal ("corrected") and its page."""
    found = folders.records("demo", folders.WORLD, folders.facts()["problems"], folders.facts()["temperatures"])
    jobs = {}
    for arm in ARMS:
        file = recipe(f"{arm}.yaml")
        config = load_config(TrainConfig, file, [("seed", "0")])
        job = Job(folders.LABELS[arm], file, 0, path / "runs" / f"{arm}-s0", (), config)
        jobs[job] = found[f"{arm}-s0"]
    (result,) = results(found["base"], jobs, [0])
    yield from exact_rows("demo", "demo", summarise(result))
    yield from lines_rows("demo", "demo", "notes", result.notes)


def compare_rows(source: str, path: Path, seeds: Sequence[int]) -> Iterator[Row]:
    """`compare` of records: the base first, then the three arms."""
    home = path / "evaluations"
    named = {folders.LABELS[arm]: [home / f"{arm}-s{seed}.npz" for seed in seeds] for arm in ARMS}
    words = [f"base={home / 'base.npz'}", *(f"{name}={','.join(map(str, paths))}" for name, paths in named.items())]
    loaded = load_arms(words, "test")
    result, over = compare_records(loaded, K)
    pipeline = f"compare, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    yield from exact_rows(source, pipeline, summarise(result) if over is None else over)
    yield from more_rows(source, pipeline, [result] if over is None else over.results, K)
    yield from exact_leash_rows(source, pipeline, dict(loaded), "base")
    yield from lines_rows(source, pipeline, "more lines", more_lines(result, over, K))
    yield from lines_rows(source, pipeline, "support lines", support_lines(loaded, K))


def eval_rows(source: str, path: Path) -> Iterator[Row]:
    """`eval` of one record: pass@k by temperature, and by power."""
    for name in ("base", "grpo-s0"):
        kind, said = source, folders.facts()
        record = folders.records(kind, folders.WORLD, said["problems"], said["temperatures"])[name]
        for t, rows in record.logps.items():
            for k, interval in zip((1, 8, K), share_intervals(curve(success_probability(rows), [1, 8, K])), strict=True):
                yield number(source, "eval", f"{name}/T = {t:g}/pass@{k}", asdict(interval))
        yield from lines_rows(source, "eval", f"{name}/lines", eval_lines(record, (1, 8, K)))
        yield from lines_rows(source, "eval", f"{name}/power lines", power_lines(record, (1, 8, K)))


def stores_rows(path: Path) -> Iterator[Row]:
    """`compare`, `report` and `samples` of stores."""
    base, *others = ("base", "GRPO", "SAGE")
    one = {arm: [path / f"{arm}-{task}-T1-s0" for task in ("sums", "riddles")] for arm in (base, *others)}
    three = {arm: [path / f"{arm}-sums-T1-s{seed}" for seed in ((0,) if arm == base else (0, 1, 2))] for arm in (base, *others)}
    cold = {arm: [path / f"{arm}-sums-T{t}-s0" for t in ("1", "0.6", "0.3")] for arm in (base, *others)}
    for pipeline, arms in (("compare, 1 seed", one), ("compare, 3 seeds", three)):
        words = _words(arms)
        yield from store_rows("stores", pipeline, read_stores(words), 16)
        yield from lines_rows("stores", pipeline, "lines", compare_stores(words, patterns=arms is one))
        yield from report_rows("stores", words, pipeline.replace("compare", "report"))
    for name in others:
        for a, b in zip(one[name], one[base], strict=True):
            yield from pair_studies("stores", "compare, 1 seed", name, a, base, b)
    yield from _frontier_rows(cold)
    for store in sorted(path.glob("*-T1-s0")):
        yield from lines_rows("stores", "samples", store.name, report_lines(SampleStore.open(store)))


def _words(arms: Mapping[str, Sequence[Path]]) -> list[str]:
    return [f"{name}={','.join(map(str, paths))}" for name, paths in arms.items()]


def _frontier_rows(arms: Mapping[str, Sequence[Path]]) -> Iterator[Row]:
    named = read_stores(_words(arms), ignore=("temperature",))
    tables = {
        name: {float(t): (scored.n, scored.right[0]) for t, (_, scored) in zip((1.0, 0.6, 0.3), rows, strict=True)}
        for name, rows in named.items()
    }
    base, *others = tables
    for name in others:
        found = compare_count_frontiers(tables[name], tables[base], k=16)
        yield gap_row("stores", "compare --frontier", name, base, "sums", 16, found)
    yield from lines_rows("stores", "compare --frontier", "lines", compare_store_frontiers(_words(arms)))


def frozen_synthetic(out: Path) -> list[Row]:
    """Every row, of folders written to `out`."""
    made = folders.write_all(out)
    return [
        *sweep_rows(made["sweep"]),
        *report_rows("sweep", [str(made["sweep"])]),
        *compare_rows("sweep", made["sweep"], (0, 1, 2)),
        *compare_rows("sweep", made["sweep"], (0,)),
        *eval_rows("sweep", made["sweep"]),
        *demo_rows(made["demo"]),
        *report_rows("demo", [str(made["demo"])]),
        *compare_rows("demo", made["demo"], (0,)),
        *stores_rows(made["stores"]),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(write_rows(HERE / "synthetic.json", frozen_synthetic(Path(folder))), "rows")
