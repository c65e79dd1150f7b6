"""Verdicts from counts on several data sets: each claim with its level, Holm's p over the data sets, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.compare import (
    FEWEST_SEEDS,
    Comparison,
    over_data_sets,
    paired_counts,
    paired_seeds,
    sentence,
)
from sage_rlvr.evaluation.curves import (
    curve_sentence,
    improvement_sentence,
    paired_count_curve,
    probability_of_improvement,
)
from sage_rlvr.evaluation.intervals import Interval, passk_interval, seed_interval
from sage_rlvr.evaluation.leash import (
    leash_at_k,
    leash_discoveries,
    leash_intervals,
    leash_noise_floor,
    leash_sampling_error,
    mcnemar_p,
)
from sage_rlvr.evaluation.passk import pass_at_k

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scored:
    """Right answers of one arm on one data set: right (S, N) among n samples, one row a training seed, `problems` in order."""

    problems: tuple[str, ...]
    n: int
    right: Ints


Arms = Mapping[str, Mapping[str, Scored]]  # arm -> data set -> counts


def compare_counts(arms: Arms, k: int) -> list[str]:
    """Sentences of every arm against the first: pass@1 and pass@k on each data set (Holm over the data sets), the curve over
    all k, the probability of improvement and what was kept, found and lost (`leash_lines`), after each arm's own numbers."""
    check_alike(arms, k)
    (base, home), *others = arms.items()
    lines = [line for name, data in arms.items() for line in score_lines(name, data, k)]
    for name, data in others:
        for metric in dict.fromkeys((1, k)):
            found = over_data_sets({task: _compared(data[task], home[task], metric) for task in home})
            lines += [sentence(c, name, base, f"{task} pass@{metric}") + "." for task, c in found.items()]
        for task in home:
            lines += _more_lines(data[task], home[task], name, base, task)
            lines += leash_lines(data[task], home[task], k, name, base, task)
    return lines


def score_lines(name: str, data: Mapping[str, Scored], k: int) -> list[str]:
    """pass@1 and pass@k of one arm on each data set; over training seeds where there are several."""
    lines = []
    for task, scored in data.items():
        cells = [f"pass@{metric} {_own_interval(scored, metric)}" for metric in dict.fromkeys((1, k))]
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
            if len({len(scored.right), len(home[task].right), 1}) > 2:
                raise DataError(f"{name} and {base}: different numbers of training seeds on {task}; give each the same")


def _compared(a: Scored, b: Scored, k: int) -> Comparison:
    if max(len(a.right), len(b.right)) == 1:
        return paired_counts(a.n, a.right[0], b.right[0], k)
    left, right = np.broadcast_arrays(*(np.asarray(pass_at_k(x.n, x.right, k)) for x in (a, b)))
    return paired_seeds(left, right)


def _more_lines(a: Scored, b: Scored, name_a: str, name_b: str, task: str) -> list[str]:
    if max(len(a.right), len(b.right)) == 1:
        band = paired_count_curve(a.n, a.right[0], b.right[0])
        better = probability_of_improvement(a.right[0], b.right[0])
        return [
            f"{task}: {curve_sentence(band, name_a, name_b)}.",
            improvement_sentence(better, name_a, name_b, task) + ".",
        ]
    left, right = np.broadcast_arrays(a.right, b.right)
    if len(left) < FEWEST_SEEDS:
        return []
    better = probability_of_improvement(left, right, over="training seeds")
    return [improvement_sentence(better, name_a, name_b, task) + "."]


def leash_lines(a: Scored, b: Scored, k: int, name_a: str, name_b: str, task: str) -> list[str]:
    """Which of b's problems a kept, found and lost at k samples (Invisible Leash), beside what chance alone would show.

    One training run each; [] where there are several, whose problems are not one set of samples.
    """
    if max(len(a.right), len(b.right)) > 1:
        return []
    counts = (b.n, b.right[0], a.n, a.right[0])
    seen, floor = leash_at_k(*counts, k), leash_noise_floor(*counts, k)
    error = leash_sampling_error(*counts, k) if 2 * k <= min(a.n, b.n) else {}
    cells = []
    for word in ("preserved", "expanded", "shrunk", "outside"):
        said = f"{word} {getattr(seen, word):.4g}"
        cells.append(f"{said} (sampling error {error[word]:.2g})" if error else said)
    line = f"{task}: what {name_a} keeps of {name_b}'s problems at {k} samples: {', '.join(cells)}; two runs of one policy "
    line += f"would show {floor.expanded:.3g} expanded and as many shrunk"
    if k == a.n == b.n:
        line += f"; expanded against shrunk, McNemar's p = {mcnemar_p(round(seen.expanded), round(seen.shrunk)):.2g}"
    rates = [f"{name} {i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for name, i in leash_intervals(*counts, k).items()]
    rated = f"{task}: {', '.join(rates) or 'no problem is solved by either'}, 95 % intervals over {len(b.problems)} problems"
    found = leash_discoveries(*counts)
    told = []
    for word, hits in (("new", found.new), ("lost", found.lost)):
        names = [name for name, hit in zip(a.problems, hits.tolist(), strict=True) if hit]
        listed = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
        told.append(f"{len(names)} {word}{listed}")
    luck = f"{task}: problems that only one of the two solves, beyond luck (Holm, all {a.n} samples): {', '.join(told)}"
    return [line + ".", rated + ".", luck + "."]


def _own_interval(scored: Scored, k: int) -> Interval:
    if len(scored.right) == 1:
        return passk_interval(scored.n, scored.right[0], k)
    return seed_interval(np.asarray(pass_at_k(scored.n, scored.right, k)).mean(axis=1))


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
