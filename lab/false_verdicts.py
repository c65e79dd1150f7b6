"""How often a verdict over k, or a check of independence, is false: `python -m lab false-verdicts`.

**Over k.** Both arms are one policy (A/A), or policies whose true curves are equal in the population of problems: the two
probabilities of each problem change places at random, so that single problems differ and no k does. Any gain or loss at any k is
then false.

**Where curves cross.** A true curve that gains and then loses: how often a gain or loss has the wrong sign at some k, and how often
the set of the first loss misses it.

**A colder base.** An arm that is its base at a lower temperature, said to do more than the base (`lab.beyond_base`).

**Problems unlocked.** A base that is drawn again, said to unlock or to lose problems in some stratum (`lab.unlocked`).

**Independence.** Files of independent draws, of many shapes. Any finding is a false alarm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import optimize

from lab.beyond_base import DESIGNS, false_yes, yes_table
from lab.stress.interval_coverage import WORLDS, _runs, lone
from lab.studies.pages import percent, remade
from lab.unlocked import false_table
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table
from sage_rlvr.runs import write_text_atomic
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.curves import CurveComparison, crossing, paired_count_curve, seed_ks, seeds_curve
from sage_rlvr.verdicts.stats.laws import beta_ppf, norm_ppf
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k, pass_at_k
from sage_rlvr.verdicts.stats.plan import EvaluationSize, assume, pilot_of_counts, see_checkpoints
from sage_rlvr.verdicts.stats.samples.independence import check_pair, check_samples

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
        (one.name, str(one.first), percent(one.wrong, one.of), f"{one.sets} of {one.of}", percent(one.missed, one.of))
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


def over_seeds(seeds: int, problems: int = 60, n: int = 64, fixed: bool = False) -> Aa:
    """Two halves of one method's training runs, as `relabelled` has them."""
    types = WORLDS[0].draw()

    def draw(rng: Rng) -> CurveComparison:
        counts = rng.binomial(n, _runs(rng.choice(types, problems), 2 * seeds, rng))
        ks = seed_ks(n)
        scores = np.stack([np.asarray(pass_at_k(n, counts, k)) for k in ks], axis=2)
        return seeds_curve(scores[:seeds], scores[seeds:], ks, fixed=fixed)

    which = ", these problems" if fixed else ""
    return Aa(f"{seeds} training seeds, {problems} problems x {n}{which}", draw)


def two_methods(seeds: int, problems: int, fixed: bool, n: int = 64) -> Aa:
    """Two methods whose mean curves are equal in the population of problems and differ on single problems: the two of each problem
    change places at random. Runs of both scatter (`_runs`); one run each is judged as checkpoints are, which do not."""
    one, other = (world.draw() for world in WORLDS[:2])

    def draw(rng: Rng) -> CurveComparison:
        rows = rng.integers(len(one), size=problems)
        p = np.stack([one[rows], 0.5 * one[rows] + 0.5 * other[rng.integers(len(other), size=problems)]])
        p = np.where(rng.random(problems) < 0.5, p, p[::-1])
        if seeds == 1:
            return paired_count_curve(n, *rng.binomial(n, p), resamples=RESAMPLES)
        left, right = (rng.binomial(n, _runs(x, seeds, rng)) for x in p)
        ks = seed_ks(n)
        scores = [np.stack([np.asarray(pass_at_k(n, side, k)) for k in ks], axis=2) for side in (left, right)]
        return seeds_curve(*scores, ks, fixed=fixed)

    return Aa(f"{problems} problems, {seeds} seeds", draw)


PROBLEMS, RUNS = (12, 30, 60, 100, 300), (1, 5, 10)


def population_table(times: int) -> Table:
    """False verdicts about such problems by problems and training seeds: by the default rule, and with the problems fixed."""
    rows = []
    for problems in PROBLEMS:
        found = {
            (seeds, fixed): false_verdicts(two_methods(seeds, problems, fixed), times)
            for seeds in RUNS
            for fixed in ((False, True) if seeds > 1 else (False,))
        }
        rows.append((str(problems), *(percent(one.either, one.of) for one in found.values())))
    head = ("problems", "1 run", *(f"{seeds} seeds{how}" for seeds in RUNS[1:] for how in ("", ", these problems")))
    return Table(header=head, rows=tuple(rows))


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


def _requests(rng: Rng, p: Floats, n: int, size: int = 8, correlation: float = 0.5) -> tuple[Ints, Ints]:
    """Answers and outcomes: p moves from request to request (a Beta), so that outcomes within one have this correlation."""
    spread = (1 - correlation) / correlation
    own = rng.beta(np.maximum(p * spread, 1e-9)[:, None], np.maximum((1 - p) * spread, 1e-9)[:, None], (len(p), n // size))
    right = (rng.random((len(p), n)) < own.repeat(size, axis=1)).astype(int)
    return np.where(right, 0, rng.integers(1, 2**40, right.shape)), right


def _repeats(rng: Rng, p: Floats, n: int, share: float = 0.3) -> tuple[Ints, Ints]:
    """Each sample repeats the one before it with probability `share`."""
    answers = np.where(rng.random((len(p), n)) < p[:, None], 0, rng.integers(1, 2**40, (len(p), n)))
    again = rng.random((len(p), n)) < share
    for t in range(1, n):
        answers[:, t] = np.where(again[:, t], answers[:, t - 1], answers[:, t])
    return answers, (answers == 0).astype(int)


def _half_copied(rng: Rng, p: Floats, n: int, share: float = 0.3) -> tuple[Ints, Ints]:
    """On a share of the problems the second half of the samples is the first."""
    answers = np.where(rng.random((len(p), n)) < p[:, None], 0, rng.integers(1, 2**40, (len(p), n)))
    copied = rng.random(len(p)) < share
    answers[copied, n // 2 :] = answers[copied, : n // 2]
    return answers, (answers == 0).astype(int)


DEPENDENT: Mapping[str, Callable[[Rng, Floats, int], tuple[Ints, Ints]]] = {
    "correlation .5 within requests of 8": _requests,
    "each sample repeats the last with probability .3": _repeats,
    "second half copied on 30 % of the problems": _half_copied,
}


def detection_table(files: int, seed: int = SEED) -> Table:
    """How often dependence is found, from answers and from outcomes alone."""
    types, rows = WORLDS[1].draw(), []
    for name, law in DEPENDENT.items():
        for problems, n in ((30, 16), (30, 64), (100, 16)):
            rng, found = np.random.default_rng([seed, problems, n, *name.encode()]), [0, 0]
            for _ in range(files):
                answers, right = law(rng, rng.choice(types, problems), n)
                for i, given in enumerate((answers, right)):
                    found[i] += bool(check_samples(given.tolist(), correct=list(right)).findings)
            rows.append((name, f"{problems} x {n}", *(percent(hits, files) for hits in found)))
    return Table(header=("dependence", "problems x samples", "found from answers", "from outcomes alone"), rows=tuple(rows))


PLANNED = (30, 60, 100)


def power_table(times: int, n: int = 64, seed: int = SEED) -> Table:
    """How often the verdict finds a difference as large as `plan` says that it finds with 80 % power: assumed, on 0/1 outcomes that
    differ on 10 % of the problems, and after a pilot of as many problems. Found: the band over k excludes 0 at this k, on the right
    side. wider: the mean of `CurveComparison.widening`."""
    rows = []
    for problems in PLANNED:
        design, rng = EvaluationSize(problems=problems, samples=1, seeds=1), np.random.default_rng([seed, problems])
        assumed = assume(k=1, samples=1, noise_share=0.0)
        x = see_checkpoints(design, replace(assumed, band=1.0))  # n = 1 has one k, so the band is one interval
        differ = max(0.1, x)
        weights = [(differ + x) / 2, (differ - x) / 2, (1 - differ) / 2, (1 - differ) / 2]
        hits = 0
        for _ in range(times):
            kinds = rng.choice(4, problems, p=weights)
            one, other = (np.isin(kinds, right).astype(int) for right in ((0, 2), (1, 2)))
            band = paired_count_curve(1, one, other, resamples=RESAMPLES)
            hits += band.outcomes[0] == "better"
        rows.append((str(problems), "assumed, 10 % differ", f"{x:.3f}", percent(hits, times), ""))
        for name, world, k in (("AIME-like", WORLDS[0], 16), ("AMC-like", WORLDS[1], 1)):
            types, hits, wider, sizes = world.draw(), 0, [], []
            for _ in range(times):
                logits = rng.normal(0.0, 0.7, problems)
                pilot_p = rng.choice(types, problems)
                counts = rng.binomial(n, pilot_p), rng.binomial(n, _moved(pilot_p, logits))
                pilot = pilot_of_counts(n, *counts, k)
                size = EvaluationSize(problems=problems, samples=n, seeds=1)
                x = see_checkpoints(size, pilot)
                p = rng.choice(types, problems)
                shift = _shift_for(types, x, k)
                a, b = _moved(p, rng.normal(0.0, 0.7, problems) + shift), p
                band = paired_count_curve(n, rng.binomial(n, a), rng.binomial(n, b), resamples=RESAMPLES)
                hits += band.outcomes[k - 1] == "better"
                wider.append(band.widening)
                sizes.append(x)
            plan_of = f"pilot, {name}, pass@{k} of {n}"
            rows.append((str(problems), plan_of, f"{np.mean(sizes):.3f}", percent(hits, times), f"{np.mean(wider):.2f}"))
    return Table(header=("problems", "plan", "its 80 % difference", "found", "band wider"), rows=tuple(rows))


def _moved(p: Floats, shift: Floats) -> Floats:
    """p with its logits moved; 0 stays 0."""
    odds = np.where(p < 1, p / np.maximum(1 - p, 1e-300), 1e300) * np.exp(shift)
    return np.where(p > 0, odds / (1 + odds), 0.0)


def _shift_for(types: Floats, difference: float, k: int) -> float:
    """The shift of the logits, beside a scatter of 0.7, that raises pass@k of a world by so much."""
    some = types[:4000]
    scatter = 0.7 * norm_ppf((np.arange(len(some)) * 0.618034 + 0.5 / len(some)) % 1.0 * 0.999 + 0.0005)
    base = float(np.mean(exact_pass_at_k(some, k)))

    def short(shift: float) -> float:
        return float(np.mean(exact_pass_at_k(_moved(some, scatter + shift), k))) - base - difference

    return float(optimize.brentq(short, -3.0, 20.0, xtol=1e-3)) if short(20.0) > 0 else 20.0


@dataclass(frozen=True)
class FalseVerdicts(Command):
    """Simulate how often a verdict over k and a check of independence are false where nothing differs."""

    published: Path | None = None
    """Folder with base.jsonl and rl.jsonl: bootstrap copies of these counts are compared too."""
    replicates: int = 2000
    """Simulated comparisons per design."""
    files: int = 1100
    """Simulated files per kind of file; 0 leaves out the checks of independence."""
    dependent: int = 200
    """Simulated files per kind of dependence and size; 0 leaves them out."""
    power: int = 500
    """Simulated comparisons per number of problems of a plan; 0 leaves them out."""
    population: int = 1000
    """Simulated comparisons per number of problems and of training seeds; 0 leaves them out."""
    colder: int = 200
    """Simulated studies per design of an arm that is its base at a lower temperature; 0 leaves them out."""
    unlocked: int = 400
    """Simulated redraws of the base per design: how often problems are said to be unlocked or lost; 0 leaves them out."""
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
        if self.population:
            made["population"] = population_table(self.population).markdown()
            session.say(made["population"])
        if self.colder:
            made["colder"] = yes_table([false_yes(one, self.colder) for one in DESIGNS]).markdown()
            session.say(made["colder"])
        if self.unlocked:
            made["unlocked"] = false_table(self.unlocked).markdown()
            session.say(made["unlocked"])
        if self.files:
            alarms = [false_alarms(law, self.files) for law in LAWS]
            made["independence"] = alarm_table(alarms).markdown()
            session.say(made["independence"])
        if self.power:
            made["power"] = power_table(self.power).markdown()
            session.say(made["power"])
        if self.dependent:
            made["dependence"] = detection_table(self.dependent).markdown()
            session.say(made["dependence"])
        if self.docs is not None:
            where, page = remade(self.docs, "results/coverage.md", made)
            write_text_atomic(where, page)
        return 0


def verdict_table(rates: Sequence[Rate]) -> Table:
    """One row a design."""
    rows = [
        (one.name, *(percent(hits, one.of) for hits in (one.either, one.gain, one.loss, one.crossing))) for one in rates
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
