"""The runs as arrays: what each setting's base shows and how its score changes, plain or on resampled problems and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lab.room.base import facts
from lab.room.cohort import Cohort, pass_at
from sage_rlvr.verdicts.stats.arrays import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What the analysis reads. facts: per run and problem; solved (R, N): any right of K after RL; rights: share right after RL."""

    settings: tuple[tuple[str, str, str, str], ...]
    rows: tuple[tuple[int, ...], ...]
    facts: Mapping[str, Floats]
    solved: Floats
    rights: Floats
    problems: Ints  # (R,): runs of one value share their problems
    k: int

    def family(self, methods: tuple[str, ...]) -> Readings:
        """The settings of these methods."""
        kept = [i for i, setting in enumerate(self.settings) if setting[3] in methods]
        return replace(self, settings=tuple(self.settings[i] for i in kept), rows=tuple(self.rows[i] for i in kept))

    def groups(self, field: int) -> Ints:
        """A number for each setting's level (0), model (1), domain (2) or method (3)."""
        return np.unique([setting[field] for setting in self.settings], return_inverse=True)[1].astype(np.int64)

    def means(
        self, weights: Floats | None = None, seeds: Floats | None = None
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of each setting: means of the base's facts, score after RL less the base's, pass@1's gain.

        weights (P, N): of problems, by their set; seeds (S, R): of runs, by setting. Rows sum to 1; None is the plain mean.
        """
        of_runs = {name: self._over_problems(values, weights) for name, values in self.facts.items()}
        after, rights = self._over_problems(self.solved, weights), self._over_problems(self.rights, weights)
        table = np.zeros((len(self.rows), len(self.solved)))
        if seeds is None:
            for place, rows in enumerate(self.rows):
                table[place, list(rows)] = 1 / len(rows)
        else:
            table = seeds
        base = {name: table @ values for name, values in of_runs.items()}
        return base, table @ after - base["solved"], table @ rights - base["right"]

    def _over_problems(self, values: Floats, weights: Floats | None) -> Floats:
        return np.asarray(values.mean(axis=1) if weights is None else (values * weights[self.problems]).sum(axis=1))

    def resampled(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Weights of one bootstrap: problems of each set, the same for all runs that share them; runs within a setting."""
        n = self.solved.shape[1]
        problems = rng.multinomial(n, np.full(n, 1 / n), size=int(self.problems.max()) + 1) / n
        seeds = np.zeros((len(self.rows), len(self.solved)))
        for place, rows in enumerate(self.rows):
            seeds[place, list(rows)] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows))) / len(rows)
        return problems, seeds


def readings_of(cohort: Cohort) -> Readings:
    """From independent draws: cohort.before and after (R, N, K)."""
    settings = cohort.settings()
    sets = sorted({(run.level, run.domain) for run in cohort.runs})
    k = cohort.before.shape[-1]
    return Readings(
        settings=tuple(settings),
        rows=tuple(map(tuple, settings.values())),
        facts=facts(cohort.before),
        solved=pass_at(cohort.after, k),
        rights=(cohort.after > 0).mean(axis=-1),
        problems=np.array([sets.index((run.level, run.domain)) for run in cohort.runs]),
        k=k,
    )
