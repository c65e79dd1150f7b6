"""How often a verdict over k, or a check of independence, is false: `python -m lab false-verdicts`.

**Over k.** Both arms are one policy (A/A), or policies whose true curves are equal in the population of problems: the two
probabilities of each problem change places at random, so that single problems differ and no k does. Any gain or loss at any k is
then false.

**Where curves cross.** A true curve that gains and then loses: how often a gain or loss has the wrong sign at some k, and how often
the set of the first loss misses it.

**Independence.** Files of independent draws, of many shapes. Any finding is a false alarm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.stress.interval_coverage import WORLDS, _runs, lone
from lab.studies.pages import remade
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.stats.curves import CurveComparison, crossing, paired_count_curve, seed_ks, seeds_curve
from sage_rlvr.stats.intervals import wilson
from sage_rlvr.stats.laws import beta_ppf
from sage_rlvr.stats.passk import Floats, Ints, exact_pass_at_k, pass_at_k
from sage_rlvr.stats.samples.independence import check_pair, check_samples

Rng = np.random.Generator

SEED = 3407
RESAMPLES = 1000  # of each band, a quarter of what a verdict draws


@dataclass(frozen=True)
class Aa:
    """One A/A design. draw: a generator of random numbers -> the band of one simulated comparison."""

    name: str
    draw: Callable[[Rng], CurveComparison]


@dataclass(frozen=True)
class Rate:
    """False verdicts of `of` comparisons: any gain or loss, gains, losses, a gain before a loss."""

    name: str
    of: int
    either: int
    gain: int
    loss: int
    crossing: int


def false_verdicts(design: Aa, times: int, seed: int = SEED) -> Rate:
    """Simulate a design."""
    rng = np.random.default_rng(seed)
    verdicts = [crossing(design.draw(rng)) for _ in range(times)]
    return Rate(
        name=design.name,
        of=times,
        either=sum(bool(v.gain or v.loss) for v in verdicts),
        gain=sum(bool(v.gain) for v in verdicts),
        loss=sum(bool(v.loss) for v in verdicts),
        crossing=sum(v.crosses for v in verdicts),
    )


@dataclass(frozen=True)
class Crossed:
    """Of `of` comparisons of curves that truly cross: those with a gain or loss of the wrong sign (wrong), with a set of the first
    loss (sets), and with a set that lacks the true first loss (missed). first: that k, 0 where there is none."""

    name: str
    of: int
    first: int
    wrong: int
    sets: int
    missed: int


def where_curves_cross(name: str, a: Floats, b: Floats, problems: int, n: int, times: int, seed: int = SEED) -> Crossed:
    """Problems drawn from a, b (types,) with replacement, as they are. The truth at each k is the mean over all types."""
    rng = np.random.default_rng(seed)
    ks = np.arange(1, n + 1)
    truth = np.mean(exact_pass_at_k(a[:, None], ks) - exact_pass_at_k(b[:, None], ks), axis=0)
    first = int(ks[truth < 0][0]) if np.any(truth < 0) else 0
    wrong = sets = missed = 0
    for _ in range(times):
        rows = rng.integers(len(a), size=problems)
        left, right = rng.binomial(n, a[rows]), rng.binomial(n, b[rows])
        band = paired_count_curve(n, left, right, resamples=RESAMPLES)
        sign = np.array([{"better": 1, "worse": -1}.get(one, 0) for one in band.outcomes])
        wrong += bool(np.any(sign * truth < 0))
        found = crossing(band).first_loss
        sets += found is not None
        missed += found is not None and not found[0] <= first <= found[1]
    return Crossed(name=name, of=times, first=first, wrong=wrong, sets=sets, missed=missed)


def crossed_table(found: Sequence[Crossed]) -> Table:
    """One row a design."""
    rows = [
        (one.name, str(one.first), _share(one.wrong, one.of), f"{one.sets} of {one.of}", _share(one.missed, one.of))
        for one in found
    ]
    return Table(header=("design", "true first loss", "wrong sign", "sets given", "set misses it"), rows=tuple(rows))


def of_policies(
    name: str, a: Floats, b: Floats, problems: int, n: int | tuple[int, int], *, size: int | tuple[int, int] = 1,
    label: bool = True,
) -> Aa:  # fmt: skip
    """Problems drawn from a, b (types,) with replacement, the two of each changing places at random. n: samples, or a range.
    size: problems in a cluster, which are copies of one, or a range; label: whether the band knows."""

    def draw(rng: Rng) -> CurveComparison:
        rows = rng.integers(len(a), size=problems)
        p = np.stack([a[rows], b[rows]])
        p = np.where(rng.random(problems) < 0.5, p, p[::-1])
        sizes = np.full(problems, size) if isinstance(size, int) else rng.integers(size[0], size[1] + 1, problems)
        p = p.repeat(sizes, axis=1)
        many = [np.full(p.shape[1], n) if isinstance(n, int) else rng.integers(n[0], n[1] + 1, p.shape[1]) for _ in p]
        left, right = (rng.binomial(m, x) for m, x in zip(many, p, strict=True))
        cluster = np.arange(problems).repeat(sizes) if label and size != 1 else None
        return paired_count_curve(many[0], left, right, n_b=many[1], cluster=cluster, resamples=RESAMPLES)

    return Aa(name, draw)


def over_seeds(seeds: int, problems: int = 60, n: int = 64) -> Aa:
    """Two halves of one method's training runs, as `relabelled` has them."""
    types = WORLDS[0].draw()

    def draw(rng: Rng) -> CurveComparison:
        counts = rng.binomial(n, _runs(rng.choice(types, problems), 2 * seeds, rng))
        ks = seed_ks(n)
        scores = np.stack([np.asarray(pass_at_k(n, counts, k)) for k in ks], axis=2)
        return seeds_curve(scores[:seeds], scores[seeds:], ks)

    return Aa(f"{seeds} training seeds, {problems} problems x {n}", draw)


def simulated() -> Iterator[Aa]:
    """Designs that need no data of others."""
    p, q = (world.draw() for world in WORLDS[:2])
    amc, mixed = WORLDS[1].draw(), lone(WORLDS[0], 0.03)
    one, zero, coin = np.ones(1), np.zeros(1), np.full(1, 0.1)
    rare = np.full(1, 0.001)
    yield of_policies("AIME-like, one policy, 30 problems x 16", p, p, 30, 16)
    yield of_policies("AIME-like against AMC-like, 30 x 16", p, q, 30, 16)
    yield of_policies("AIME-like against AMC-like, 134 x 64", p, q, 134, 64)
    yield of_policies("AIME-like against AMC-like, 400 x 64", p, q, 400, 64)
    yield of_policies("each alone on 3 % of problems, 134 x 64", *mixed, 134, 64)
    yield of_policies("each alone on 3 % of problems, 400 x 64", *mixed, 400, 64)
    yield of_policies("all p = 0.1, one policy, 200 x 64", coin, coin, 200, 64)
    yield of_policies("all p = 0.001, one policy, 200 x 64", rare, rare, 200, 64)
    yield of_policies("AMC-like, n from 16 to 128, 200 problems", amc, p, 200, (16, 128))
    yield of_policies("40 clusters of 5 copies, labeled, x 32", p, amc, 40, 32, size=5)
    yield of_policies("the same, not labeled", p, amc, 40, 32, size=5, label=False)
    yield of_policies("300 clusters of 3 copies, labeled, x 32", p, amc, 300, 32, size=3)
    yield of_policies("8 clusters of 20 copies, labeled, x 32", p, amc, 8, 32, size=20)
    yield of_policies("60 clusters of 1 to 12 copies, labeled, x 32", p, amc, 60, 32, size=(1, 12))
    yield of_policies("n = 1, 60 problems", amc, amc, 60, 1)
    yield of_policies("n = 1, 400 problems", amc, amc, 400, 1)
    yield of_policies("n = 1, 400 problems, policies differ", p, amc, 400, 1)
    yield of_policies("one problem x 64", amc, amc, 1, 64)
    yield of_policies("5 problems x 64", amc, amc, 5, 64)
    yield of_policies("6 problems x 64", amc, amc, 6, 64)
    yield of_policies("6 problems x 64, policies differ", p, amc, 6, 64)
    yield of_policies("10 problems x 16, policies differ", p, amc, 10, 16)
    yield of_policies("all right, 100 x 8", one, one, 100, 8)
    yield of_policies("all wrong, 100 x 8", zero, zero, 100, 8)
    yield of_policies("nearly all right (p = 0.999), 100 x 8", np.full(1, 0.999), np.full(1, 0.999), 100, 8)
    yield over_seeds(3)
    yield over_seeds(6)


def published(folder: Path) -> Iterator[Aa]:
    """Bootstrap copies of two published files of counts, base.jsonl and rl.jsonl (`passk-inference`, examples/deepscaler32k)."""
    p, q = shares(folder)
    yield of_policies("published base against itself, 1,060 x 128", p, p, len(p), 128)
    yield of_policies("published RL against itself, 1,060 x 128", q, q, len(p), 128)
    yield of_policies("published pair, sides exchanged at random, 1,060 x 128", p, q, len(p), 128)
    yield of_policies("published pair, sides exchanged, 300 x 128", p, q, 300, 128)
    yield of_policies("published pair, sides exchanged, 100 x 32", p, q, 100, 32)


def shares(folder: Path) -> tuple[Floats, Floats]:
    """c / n of base.jsonl and rl.jsonl, in one order of problems. DataError where their problems differ."""
    base, rl = (read_shares(folder / name) for name in ("base.jsonl", "rl.jsonl"))
    if base.keys() != rl.keys():
        raise DataError(f"{folder}: base.jsonl and rl.jsonl have different problems; pass counts of the same problems.")
    return np.array(list(base.values())), np.array([rl[name] for name in base])


def read_shares(path: Path) -> dict[str, float]:
    """id -> c / n of JSON lines."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row["c"] / row["n"] for row in rows}


# ---- independence

LAWS: Mapping[str, Callable[[Rng, int, int], Ints]] = {
    "two answers": lambda rng, problems, n: _drawn(rng, rng.dirichlet((1.0, 1.0), problems), n),
    "five answers": lambda rng, problems, n: _drawn(rng, rng.dirichlet(np.full(5, 0.5), problems), n),
    "skewed (likeliest 0.9)": lambda rng, problems, n: _drawn(rng, np.tile([0.9, 0.05, 0.03, 0.02], (problems, 1)), n),
    "nearly one (0.99)": lambda rng, problems, n: _drawn(rng, np.tile([0.99, 0.005, 0.005], (problems, 1)), n),
    "long tail": lambda rng, problems, n: rng.zipf(1.5, (problems, n)),
    "30 equally likely": lambda rng, problems, n: rng.integers(30, size=(problems, n)),
    "n / 2 equally likely": lambda rng, problems, n: rng.integers(max(2, n // 2), size=(problems, n)),
    "texts, nearly all different": lambda rng, problems, n: rng.integers(2**40, size=(problems, n)),
    "half dead, half long tail": lambda rng, problems, n: np.where(
        (np.arange(problems) % 2 == 0)[:, None], 0, rng.zipf(1.3, (problems, n))
    ),
}
SHAPES = ((5, 4), (5, 32), (5, 256), (30, 8), (30, 16), (128, 32), (200, 5), (200, 64), (500, 7), (1000, 16), (2000, 4))


def _drawn(rng: Rng, p: Floats, n: int) -> Ints:
    """(problems, n) answers of p (problems, answers)."""
    edges = np.cumsum(p, axis=1)[:, None, :-1]
    return np.asarray((rng.random((len(p), n))[..., None] > edges).sum(axis=2))


@dataclass(frozen=True)
class Alarms:
    """Of `files` pairs of files of one law: how many had a finding (alarms), and the kinds of the findings."""

    law: str
    files: int
    alarms: int
    kinds: tuple[str, ...]


def false_alarms(law: str, files: int, shapes: Sequence[tuple[int, int]] = SHAPES, seed: int = SEED) -> Alarms:
    """Pairs of independent files of one policy, with outcomes, shapes in turn. `texts` where the likeliest has at most 0.9."""
    rng = np.random.default_rng([seed, *law.encode()])
    texts = law not in ("nearly one (0.99)", "half dead, half long tail", "two answers", "five answers")
    kinds: set[str] = set()
    alarms = 0
    for i, own in enumerate(rng.spawn(files)):
        problems, n = shapes[i % len(shapes)]
        both = LAWS[law](own, problems, 2 * n)
        a, b = both[:, :n], both[:, n:]
        right = (a == a.min()).astype(int)
        found = [*check_samples(a.tolist(), correct=list(right), texts=texts).findings, *check_pair(a.tolist(), b.tolist())]
        alarms += bool(found)
        kinds |= {one.kind for one in found}
    return Alarms(law, files, alarms, tuple(sorted(kinds)))


@dataclass(frozen=True)
class FalseVerdicts(Command):
    """Simulate how often a verdict over k and a check of independence are false where nothing differs."""

    published: Path | None = None
    """Folder with base.jsonl and rl.jsonl: bootstrap copies of these counts are compared too."""
    replicates: int = 2000
    """Simulated comparisons per design."""
    files: int = 1100
    """Simulated files per kind of file; 0 leaves out the checks of independence."""
    docs: Path | None = None
    """Folder of pages: fill the tables of results/coverage.md."""

    def execute(self, session: Session) -> int:
        made: dict[str, str] = {}
        designs = [*(published(self.published) if self.published else ()), *simulated()] if self.replicates else []
        if designs:
            rates = [false_verdicts(one, self.replicates) for one in designs]
            made["verdicts"] = verdict_table(rates).markdown()
            session.say(made["verdicts"])
            types = np.array([0.3, 0.0002]).repeat([70, 30]), np.array([0.15, 0.02]).repeat([70, 30])
            crossed = [where_curves_cross("seven in ten gain, three lose, 200 x 64", *types, 200, 64, self.replicates)]
            if self.published:
                base, rl = shares(self.published)
                crossed.append(where_curves_cross("published pair, 1,060 x 128", rl, base, len(rl), 128, self.replicates))
                crossed.append(where_curves_cross("published pair, 300 x 128", rl, base, 300, 128, self.replicates))
            made["crossed"] = crossed_table(crossed).markdown()
            session.say(made["crossed"])
        if self.files:
            alarms = [false_alarms(law, self.files) for law in LAWS]
            made["independence"] = alarm_table(alarms).markdown()
            session.say(made["independence"])
        if self.docs is not None:
            where, page = remade(self.docs, "results/coverage.md", made)
            write_text_atomic(where, page)
        return 0


def verdict_table(rates: Sequence[Rate]) -> Table:
    """One row a design."""
    rows = [
        (one.name, *(_share(hits, one.of) for hits in (one.either, one.gain, one.loss, one.crossing))) for one in rates
    ]
    return Table(header=("design", "gain or loss", "gain", "loss", "gain, then loss"), rows=tuple(rows))


def alarm_table(alarms: Sequence[Alarms]) -> Table:
    """One row a kind of file, and all together."""
    rows = [(one.law, f"{one.files:,}", str(one.alarms), ", ".join(one.kinds)) for one in alarms]
    files, found = sum(one.files for one in alarms), sum(one.alarms for one in alarms)
    # one-sided, exact (Clopper and Pearson)
    high = float(beta_ppf(0.95, found + 1, files - found)) if found < files else 1.0
    rows.append(("all", f"{files:,}", f"{found} (95 % limit: {high:.5f} of files)", ""))
    return Table(header=("answers", "files", "false alarms", "kinds"), rows=tuple(rows))


def _share(hits: int, of: int) -> str:
    found = wilson(hits, of)
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
