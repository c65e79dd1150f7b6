"""How often the demo on SmolLM2 has an answer: `python -m lab demo-power COUNTS...`.

Every training seed of stored runs is judged as the demo judges its one seed, by the questions of `sage_rlvr.sweeps.demo`: each arm
of that seed against the base at pass@1 and at the largest k, and against the base at any temperature. All arms of the seed are in
the family of Holm's correction. --problems and --samples: instead on so many different problems and samples of each, drawn at
random without replacement from those stored, `draws` times; a problem that is stored several times counts once.

An answer about an arm is one of: pass@k at the largest k is higher or lower than the base's; the arm does more, or less, than the
base at any temperature. "Only sharpened" is counted apart, because it rests on no significant difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.results.read import read_results
from sage_rlvr.results.tables import Table
from sage_rlvr.sweeps.demo import questions
from sage_rlvr.verdicts.colder import Finding, colder_base_comparisons
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.design import BASE, Arm, Design
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End
from sage_rlvr.verdicts.stats.intervals import wilson

SEED = 20_261_129
TOLD = (End.HIGHER, End.LOWER)
HEADS = ("arm", "seeds x draws", "pass@1 higher", "pass@k higher", "pass@k lower", "beyond the base", "only sharpened", "an answer")

Rng = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the demo says of an arm: its ends at pass@1 and at the largest k against the base, and its finding against the base at
    any temperature, None where the base has one temperature."""

    first: End
    last: End
    colder: Finding | None

    @property
    def is_told(self) -> bool:
        """Whether something is said that rests on a significant difference at k > 1, or at any temperature of the base."""
        return self.last in TOLD or self.colder in ("above", "below")


def answers_of(rows: Sequence[SampledMeasurement]) -> dict[str, Answer]:
    """Arm -> the answer of a demo with these rows: the base at its temperatures, and one run of each arm."""
    names = list(dict.fromkeys(row.arm for row in rows if row.arm != BASE))
    k = min(row.n for row in rows)
    design = Design(
        arms=tuple(Arm(name=name, key=name) for name in names), base=BASE, control=names[0], seeds=(0,),
        questions=questions(names, k, sampled=True),
    )  # fmt: skip
    results = Results(design=design, table=Measurements(tuple(rows)), k=k)
    made = compare(results)
    ends = {(row.a, row.metric): row.outcome for row in made if row.b == BASE}
    colder = {one.arm: one.finding for one in colder_base_comparisons(made, results)}
    return {
        name: Answer(first=ends[name, Metric(k=1)], last=ends[name, Metric(k=k)], colder=colder.get(name)) for name in names
    }


def runs_of(file: Path) -> Iterator[tuple[int | None, list[SampledMeasurement]]]:
    """Each training seed of a file of counts with the rows that a demo of that seed would have."""
    rows = read_results(file).table.sampled().rows
    base = [row for row in rows if row.arm == BASE]
    if not base:
        raise DataError(f"{file}: no counts of the base; `python -m lab counts FOLDER` prints them with the arms")
    for seed in dict.fromkeys(row.seed for row in rows if row.arm != BASE):
        yield seed, [*base, *(row for row in rows if row.arm != BASE and row.seed == seed)]


def drawn(rows: Sequence[SampledMeasurement], problems: int, samples: int, rng: Rng) -> list[SampledMeasurement]:
    """The rows on `problems` different problems, and `samples` samples of each. DataError where fewer are stored."""
    first = rows[0]
    different = [i for i, name in enumerate(first.problems) if " #" not in name]
    if problems > len(different):
        raise DataError(f"--problems {problems}: {len(different)} different ones are stored")
    if samples > min(row.n for row in rows):
        raise DataError(f"--samples {samples}: {min(row.n for row in rows)} of each problem are stored")
    taken = rng.choice(different, problems, replace=False)
    out = []
    for row in rows:
        if row.problems != first.problems:
            raise DataError(f"{row.name} has other problems than {first.name}")
        right = row.values[taken].astype(int)
        values = rng.hypergeometric(right, row.n - right, samples)
        out.append(replace(row, problems=tuple(row.problems[i] for i in taken), values=values, n=samples, table=None))
    return out


def shares(answers: Sequence[Answer], seeds: int) -> list[str]:
    """The cells of one arm: how many answers have each outcome, and the share of those told with Wilson's interval, which is as
    wide as for `seeds` independent runs, since draws of one run are not independent."""
    told = sum(one.is_told for one in answers) / len(answers)
    interval = wilson(round(told * seeds), seeds)
    return [
        f"{sum(one.first == End.HIGHER for one in answers)}",
        f"{sum(one.last == End.HIGHER for one in answers)}",
        f"{sum(one.last == End.LOWER for one in answers)}",
        f"{sum(one.colder == 'above' for one in answers)}",
        f"{sum(one.colder == 'sharpened' for one in answers)}",
        f"{told:.2f} ({interval.low:.2f} to {interval.high:.2f})",
    ]


@dataclass(frozen=True)
class DemoPower(Command):
    """Print how often the demo on SmolLM2 has an answer, from stored counts of its arms and base."""

    counts: tyro.conf.Positional[tuple[Path, ...]]
    """Files of counts, as `python -m lab counts` prints them; the same arms in each."""
    problems: int | None = None
    """Different problems (default: all that are stored, repeats included)."""
    samples: int | None = None
    """Samples of each problem (default: all)."""
    arms: tuple[str, ...] = ()
    """Only these arms are judged (default: all)."""
    draws: int = 4
    """Draws of problems and samples for each training seed, with --problems or --samples."""

    def execute(self, session: Session) -> int:
        """Print one row per arm."""
        if self.draws < 1:
            raise ConfigError(f"--draws {self.draws}: at least 1")
        rng = np.random.default_rng(SEED)
        answers: dict[str, list[Answer]] = {}
        seeds = 0
        for file in self.counts:
            for _, every in runs_of(file):
                rows = [row for row in every if row.arm == BASE or not self.arms or row.arm in self.arms]
                seeds += 1
                for one in self._draws(rows, rng):
                    for name, answer in answers_of(one).items():
                        answers.setdefault(name, []).append(answer)
        body = [(name, f"{seeds} x {len(some) // seeds}", *shares(some, seeds)) for name, some in answers.items()]
        session.say(Table(header=HEADS, rows=tuple(body)).markdown())
        return 0

    def _draws(self, rows: Sequence[SampledMeasurement], rng: Rng) -> Iterator[Sequence[SampledMeasurement]]:
        if self.problems is None and self.samples is None:
            yield rows
            return
        problems = self.problems or sum(" #" not in name for name in rows[0].problems)
        samples = self.samples or min(row.n for row in rows)
        for _ in range(self.draws):
            yield drawn(rows, problems, samples, rng)
