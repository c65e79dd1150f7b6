"""Verdicts from counts on several data sets: each claim with its level, Holm's p over all of them, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.stats.comparison import (
    FEWEST_SEEDS,
    Comparison,
    adjust,
    control_error,
    paired_counts,
    paired_seed_counts,
    sentence,
)
from sage_rlvr.stats.curves import (
    curve_sentence,
    improvement_sentence,
    paired_count_curve,
    probability_of_improvement,
    seed_ks,
    seeds_curve,
)
from sage_rlvr.stats.frontier import compare_count_frontiers, count_frontier, frontier_sentence
from sage_rlvr.stats.intervals import Interval, all_one, least_seen, passk_interval, seed_interval
from sage_rlvr.stats.leash import (
    LeashCounts,
    exact_cells,
    expected_cells,
    leash_at_k,
    leash_discoveries,
    leash_intervals,
    leash_noise_floor,
    leash_sampling_error,
    mcnemar_p,
    rate_intervals,
)
from sage_rlvr.stats.passk import pass_at_k
from sage_rlvr.stats.support import success_probability

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = Sequence[ArrayLike]  # log-probs of the right completions, one array a problem

LEASH_LEGEND = (
    "SRR: preserved / (preserved + shrunk), the share kept of what the control had; NDR: expanded / (preserved + expanded), "
    "the share that is new of what the arm has; SDS: the harmonic mean of these two; NSCR: (expanded - shrunk) / (preserved + "
    "expanded + shrunk), above 0 where more was found than lost."
)
SUPPORT_EPS = 1 / 256  # "in support" is more likely than this (Definition 4.1), as in the tables of exact records


@dataclass(frozen=True)
class Scored:
    """Right answers of one arm on one data set: right (S, N) among n samples, one row a training seed, `problems` in order."""

    problems: tuple[str, ...]
    n: int
    right: Ints


Arms = Mapping[str, Mapping[str, Scored]]  # arm -> data set -> counts


def compare_counts(arms: Arms, k: int) -> list[str]:
    """Sentences of every arm against the first: pass@1 and pass@k on each data set (Holm over all of these comparisons), the
    curve over all k, the probability of improvement and what was kept, found and lost (`leash_lines`), after each arm's own
    numbers."""
    found = count_comparisons(arms, k)
    (base, home), *others = arms.items()
    metrics = tuple(dict.fromkeys((1, k)))
    lines = [line for name, data in arms.items() for line in score_lines(name, data, k)]
    for name, data in others:
        for metric in metrics:
            lines += [sentence(found[name, metric, t], name, base, f"{t} pass@{metric}") + "." for t in home]
        for task in home:
            lines += _more_lines(data[task], home[task], name, base, task, k)
            lines += leash_lines(data[task], home[task], k, name, base, task)
    lines += legend_lines(lines)
    return [*lines, *holm_lines(list(found.values()), len(others), len(home), metrics)]


def count_comparisons(arms: Arms, k: int) -> dict[tuple[str, int, str], Comparison]:
    """(arm, k, data set) -> that arm against the first at pass@1 and pass@k, with Holm's correction over all of these."""
    check_alike(arms, k)
    (_, home), *others = arms.items()
    keys = [(name, metric, task) for name, _ in others for metric in dict.fromkeys((1, k)) for task in home]
    return dict(zip(keys, adjust([_compared(arms[n][t], home[t], m) for n, m, t in keys]), strict=True))


def legend_lines(lines: Sequence[str]) -> list[str]:
    """What SRR, NDR, SDS and NSCR are, once, where any of the lines names one of them; else []."""
    named = any(f"{rate} " in line for line in lines for rate in ("SRR", "NDR", "SDS", "NSCR"))
    return [LEASH_LEGEND] if named else []


def holm_lines(found: Sequence[Comparison], arms: int, tasks: int, metrics: Sequence[int]) -> list[str]:
    """Over which comparisons Holm's p was taken; [] where there is one alone."""
    family = max((c.family for c in found), default=1)
    if family < 2:
        return []
    parts = [_many(arms, "arm"), _many(tasks, "data set"), " and ".join(f"pass@{m}" for m in metrics)]
    return [
        f"Holm's p is over the {family} comparisons of mean scores above ({' x '.join(parts)}); bands over k, P(A > B), "
        "frontiers and rates of what was kept are each taken alone."
    ]


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n > 1 else ''}"


def score_lines(name: str, data: Mapping[str, Scored], k: int) -> list[str]:
    """pass@1 and pass@k of one arm on each data set; over training seeds where there are several."""
    lines = []
    for task, scored in data.items():
        cells = [f"pass@{metric} {own_interval(scored, metric)}" for metric in dict.fromkeys((1, k))]
        lines.append(f"{name}, {task}: " + "; ".join(cells))
    return lines


def check_alike(arms: Arms, k: int) -> None:
    """Refuse arms that were not evaluated on the same data sets, problems and numbers of seeds, or on too few samples."""
    (base, home), *others = arms.items()
    if not others:
        raise DataError(f"compare needs at least two arms, got {base!r} alone; the first is the control")
    for name, data in arms.items():
        if set(data) != set(home):
            raise DataError(
                f"{name} and {base} have different data sets ({', '.join(sorted(data))} against {', '.join(sorted(home))}); "
                "evaluate both on the same ones"
            )
        for task, scored in data.items():
            if scored.problems != home[task].problems:
                raise DataError(f"{name} and {base} have different problems of {task}; complete both evaluations first")
            if scored.n != home[task].n:
                raise DataError(
                    f"{task}: n = {scored.n} for {name}, {home[task].n} for {base}; compare the first "
                    f"{min(scored.n, home[task].n)} samples of each, or top the other up"
                )
            if scored.n < k:
                raise DataError(f"{name}, {task}: pass@{k} needs {k} samples, there are {scored.n}; give a smaller --k")
            if len(home[task].right) not in (1, len(scored.right)):
                raise DataError(f"{name} and {base}: different numbers of training seeds on {task}; give each the same")


def _compared(a: Scored, b: Scored, k: int) -> Comparison:
    if max(len(a.right), len(b.right)) == 1:
        return paired_counts(a.n, a.right[0], b.right[0], k)
    return paired_seed_counts(a.n, a.right, b.right, k)


def _more_lines(a: Scored, b: Scored, name_a: str, name_b: str, task: str, k: int) -> list[str]:
    if max(len(a.right), len(b.right)) == 1:
        band = paired_count_curve(a.n, a.right[0], b.right[0])
        better = probability_of_improvement(a.right[0], b.right[0])
        return [
            f"{task}: {curve_sentence(band, name_a, name_b)}.",
            improvement_sentence(better, name_a, name_b, f"{task}, a problem's pass@1") + ".",
        ]
    left, right = np.broadcast_arrays(a.right, b.right)
    if len(left) < FEWEST_SEEDS:
        return []
    ks = seed_ks(k)
    curves = (
        np.stack([np.asarray(pass_at_k(x.n, rows, j)) for j in ks], axis=2) for x, rows in ((a, left), (b, right))
    )
    better = probability_of_improvement(left, right, over="training seeds")
    shared = [control_error(b.n, b.right, j) for j in ks] if len(b.right) == 1 else 0.0
    return [
        f"{task}: {curve_sentence(seeds_curve(*curves, ks, shared=shared), name_a, name_b)}{_and_samples(b, name_b)}.",
        improvement_sentence(better, name_a, name_b, f"{task}, a problem's pass@1") + f"{_held(b, name_b)}.",
    ]


def _and_samples(control: Scored, name: str) -> str:
    return f" and {name}'s samples" if len(control.right) == 1 else ""


def _held(control: Scored, name: str) -> str:
    """What an interval over seeds leaves out where the control was evaluated once."""
    return f"; {name}'s samples, drawn once, are held fixed" if len(control.right) == 1 else ""


def leash_lines(a: Scored, b: Scored, k: int, name_a: str, name_b: str, task: str) -> list[str]:
    """Which of b's problems a kept, found and lost at k samples (Invisible Leash), beside what chance alone would show.

    Over several training seeds: means with Student intervals, seed s of a against seed s of b; [] below three.
    """
    if max(len(a.right), len(b.right)) > 1:
        left, right = np.broadcast_arrays(a.right, b.right)
        rows = [leash_at_k(b.n, old, a.n, new, k) for new, old in zip(left, right, strict=True)]
        head = f"{task}: what {name_a} keeps of {name_b}'s problems at {k} samples"
        both = f" and {name_b}'s samples" if len(b.right) == 1 else ""
        return leash_over_seeds(rows, f"{head}, these {len(b.problems)} problems{both} held fixed")
    counts = (b.n, b.right[0], a.n, a.right[0])
    seen, floor = leash_at_k(*counts, k), leash_noise_floor(*counts, k)
    error = leash_sampling_error(*counts, k) if 2 * k <= min(a.n, b.n) else {}
    cells = []
    for word in ("preserved", "expanded", "shrunk", "outside"):
        said = f"{word} {getattr(seen, word):.4g}"
        cells.append(f"{said} (sampling error {error[word]:.2g})" if error else said)
    line = f"{task}: what {name_a} keeps of {name_b}'s problems at {k} samples: {', '.join(cells)}; two runs of one policy "
    chance = f"{floor.expanded:.1f}" if floor.expanded >= 0.1 else f"{floor.expanded:.1g}"
    line += f"would show {chance} problems expanded and as many shrunk by chance alone"
    if k == a.n == b.n:
        line += f"; expanded against shrunk, McNemar's p = {mcnemar_p(round(seen.expanded), round(seen.shrunk)):.2g}"
    rates = [f"{name} {i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for name, i in leash_intervals(*counts, k).items()]
    rated = f"{task}: no problem is solved by either, so nothing is kept, found or lost"
    if rates:
        rated = f"{task}: {', '.join(rates)}, 95 % intervals over {len(b.problems)} problems"
    found = leash_discoveries(*counts)
    told = []
    for word, hits in (("new", found.new), ("lost", found.lost)):
        names = [name for name, hit in zip(a.problems, hits.tolist(), strict=True) if hit]
        listed = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
        told.append(f"{len(names)} {word}{listed}")
    luck = (
        f"{task}: problems that only one of the two solves, beyond luck (two-sided, at most 5 % chance of even one by luck, all "
        f"{a.n} samples): {', '.join(told)}"
    )
    return [line + ".", rated + ".", luck + "."]


def leash_over_seeds(rows: Sequence[LeashCounts], head: str) -> list[str]:
    """P, E, S, O and the rates, one row a training seed: means with Student intervals over the seeds. [] below three."""
    if len(rows) < FEWEST_SEEDS:
        return []
    names = {"preserved": "preserved", "expanded": "expanded", "shrunk": "shrunk", "outside": "out of support"}
    cells = [(said, [getattr(row, name) for row in rows], 0.0, math.inf) for name, said in names.items()]
    for name in rows[0].rates:
        cells.append((name, [row.rates[name] for row in rows], -1.0 if name == "NSCR" else 0.0, 1.0))
    told = []
    for said, values, least, most in cells:
        i = seed_interval(values)
        form = ",.1f" if most > 1 else ".3f"
        ends = f"[{max(i.low, least):{form}}, {min(i.high, most):{form}}]" if not all_one(values) else "(in each)"
        told.append(f"{said} {i.value:{form}} {ends}")
    return [f"{head}: {', '.join(told)}; Student's 95 % intervals over {len(rows)} training seeds."]


def exact_leash_lines(
    name_a: str, a: Sequence[Rows], name_b: str, b: Sequence[Rows], k: int, eps: float = SUPPORT_EPS
) -> list[str]:
    """What a kept, found and lost of b's support, exactly: log-probs of all right completions of each problem, one list of
    problems a training seed (b may have one alone).

    Definition 4.1 (probability above eps), over completions and over problems, and the problems expected to be solved in k
    samples. One seed: the counts have no error on these problems, the rates get intervals over problems (`rate_intervals`).
    Several: Student's over seeds (`leash_over_seeds`), [] below three.
    """
    pairs = [(old, new) for new, old in zip(a, b if len(b) > 1 else list(b) * len(a), strict=True)]
    cells = [_exact_cells(old, new, k, eps) for old, new in pairs]
    what = [
        f"right completions with probability above {_fraction(eps)} (Definition 4.1)",
        f"problems with one of them at least, of {len(b[0])}",
        f"problems expected to be solved in {k} samples",
    ]
    lines = []
    for said, *tables in zip(what, *cells, strict=True):
        head = f"{name_a} against {name_b}, exact, {said}"
        rows = [LeashCounts(*table.sum(axis=0).tolist()) for table in tables]
        if len(rows) > 1:
            lines += leash_over_seeds(rows, f"{head}, held fixed")
            continue
        (found,), rates = rows, rate_intervals(tables[0])
        counted = [("preserved", found.preserved), ("expanded", found.expanded), ("shrunk", found.shrunk)]
        numbers = ", ".join(f"{word} {_count(x)}" for word, x in (*counted, ("out of support", found.outside)))
        cells_ = ", ".join(f"{name} {i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for name, i in rates.items())
        told = f"{cells_}, 95 % intervals over {len(b[0])} problems" if rates else "none in either"
        lines.append(f"{head}: {numbers}; {told}.")
    return lines


def _exact_cells(old: Rows, new: Rows, k: int, eps: float) -> tuple[Floats, Floats, Floats]:
    return *exact_cells(old, new, eps), expected_cells(success_probability(old), success_probability(new), k)


def _fraction(eps: float) -> str:
    return f"1/{1 / eps:.0f}" if eps > 0 and abs(1 / eps - round(1 / eps)) < 1e-9 else f"{eps:g}"


def _count(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) else f"{x:,.2f}"


def frontier_lines(arms: Mapping[str, Mapping[str, Mapping[float, Scored]]], k: int) -> list[str]:
    """Temperature frontiers from samples: arm -> data set -> temperature -> counts of one policy. Each arm's points, then
    each arm against the first: mean gap in pass@k at equal pass@1 over the range that both cover."""
    for task in next(iter(arms.values())):
        check_alike(
            {f"{name} at T = {t:g}": {task: x} for name, of in arms.items() for t, x in of.get(task, {}).items()}, k
        )
    (base, home), *others = arms.items()
    for name, of in others:
        if set(of) != set(home):
            raise DataError(
                f"{name} and {base} have different data sets ({', '.join(sorted(of))} against {', '.join(sorted(home))}); "
                "evaluate both on the same ones"
            )
    tables = {
        (name, task): {t: (x.n, x.right[0]) for t, x in found.items()}
        for name, of in arms.items()
        for task, found in of.items()
    }
    lines = []
    for (name, task), table in tables.items():
        points = [f"T {p.temperature:g}: {p.pass1:.3f}, {p.passk:.3f}" for p in count_frontier(table, k)]
        lines.append(f"{name}, {task}, pass@1 and pass@{k} by temperature: {'; '.join(points)}.")
    for name, of in others:
        for task in of:
            gap = compare_count_frontiers(tables[name, task], tables[base, task], k=k)
            lines.append(f"{task}: {frontier_sentence(gap, name, base, k)}.")
    return lines


def own_interval(scored: Scored, k: int) -> Interval:
    """pass@k of one arm: over problems and their samples, of several training seeds over these (Student)."""
    if len(scored.right) == 1:
        return passk_interval(scored.n, scored.right[0], k)
    least = least_seen(scored.right.size)
    found = seed_interval(np.asarray(pass_at_k(scored.n, scored.right, k)).mean(axis=1), least=least)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high)) if len(scored.right) > 2 else found


def arms_of(loaded: Mapping[str, Sequence[tuple[str, Scored]]]) -> dict[str, dict[str, Scored]]:
    """Arm -> (data set, counts) of each evaluation, several of one data set being training seeds, to `Arms`."""
    out: dict[str, dict[str, Scored]] = {}
    for name, evaluations in loaded.items():
        data = out.setdefault(name, {})
        for task, scored in evaluations:
            if task not in data:
                data[task] = scored
                continue
            if (data[task].problems, data[task].n) != (scored.problems, scored.n):
                raise DataError(f"{name}, {task}: its training seeds differ in problems or n; evaluate them alike")
            data[task] = Scored(scored.problems, scored.n, np.concatenate([data[task].right, scored.right]))
    return out
