"""The hull, tested: identical methods as candidates, pairs of policies against all of them, and what stored experiments can tell.

Error rates. A method's success probabilities are drawn on 100 problems: logits N(-1.9, 1.45^2), which gives pass@1, @8, @256 of
about .21, .61, .99; a training seed adds N(0, .07^2) to all of them and N(0, .5^2) to each. At temperature T a logit z becomes
(z + 2.3) / T - 2.3. Candidate and rivals are drawn from the same law, so that the candidate lies on the hull of single policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.floor import DRAWS, WORLDS
from lab.hull_samples import samples_table, share
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.results.probabilities import NAME, Kept, load_probabilities
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.stats.frontier import FrontierPoint
from sage_rlvr.verdicts.stats.hull import PRICES, TINY, AboveHull, above_hull, compare_hull
from sage_rlvr.verdicts.stats.laws import t_ppf
from sage_rlvr.verdicts.stats.mixture import Table, above_mixtures, best_mixture, climb
from sage_rlvr.verdicts.stats.paired import PairedDifference, paired_seeds

Floats = NDArray[np.float64]
HEADS = "| candidate | metric | score | mixture per problem | lead over it | per completion | lead over it |"
EXPERIMENTS = Path(__file__).parent / "experiments"
SEED, PROBLEMS = 20_261_126, 100
DIFFICULTY = np.random.default_rng(SEED).normal(-1.9, 1.45, PROBLEMS)
OF_ALL, OF_EACH = 0.07, 0.5  # standard deviations of a seed's logits
PIVOT = -2.3
SETTINGS = {"T = 1": (1.0,), "three T, base, guesser": (0.7, 1.0, 1.3)}
GUESS, BASE = 0.026, 0.8  # chance of a guess; the base's logits are .8 of the others, less .8
RULES = ("rivals as drawn (before)", "mixture as drawn", "cross-fitted (now)")


def sigmoid(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-z)))


def method(rng: np.random.Generator, seeds: int, temperatures: Sequence[float]) -> list[Table]:
    """One method: a table of probabilities for each training seed."""
    noise = rng.normal(0, OF_ALL, (seeds, 1)) + rng.normal(0, OF_EACH, (seeds, PROBLEMS))
    return [{t: sigmoid((z - PIVOT) / t + PIVOT) for t in temperatures} for z in DIFFICULTY + noise]


def untrained(seeds: int, temperatures: Sequence[float]) -> list[list[Table]]:
    """The base at these temperatures and the guesser; the same in every seed."""
    z = BASE * DIFFICULTY - BASE
    base: Table = {t: sigmoid((z - PIVOT) / t + PIVOT) for t in temperatures}
    return [[base] * seeds, [{1.0: np.full(PROBLEMS, GUESS)}] * seeds]


def as_drawn(found: AboveHull, level: float = 0.95) -> tuple[bool, bool]:
    """(above, below) by the rule of before: every rival at every temperature as it was drawn; at each price the lowest high end."""
    seeds, prices = found.ahead.shape[1], np.array([found.mixture.price, 0.0, *PRICES])
    leads = found.ahead @ np.stack([prices, np.ones_like(prices)])
    means = leads.mean(axis=1)
    reach = float(t_ppf((1 + level) / 2, seeds - 1)) * np.maximum(leads.std(axis=1, ddof=1) / np.sqrt(seeds), TINY)
    return bool((means - reach)[:, 0].min() > 0), bool((means + reach).min(axis=0).max() < 0)


def rates(setting: str, rivals: int, seeds: int, k: int, draws: int) -> dict[str, tuple[int, int]]:
    """Rule -> how many of `draws` candidates, each from the law of its rivals, are above and below."""
    rng, temperatures = np.random.default_rng([SEED, rivals, seeds, k]), SETTINGS[setting]
    others = untrained(seeds, temperatures) if len(temperatures) > 1 else []
    counts = np.zeros((len(RULES), 2), dtype=int)
    for _ in range(draws):
        own, *them = (method(rng, seeds, temperatures) for _ in range(1 + rivals))
        found = above_mixtures(own, [*them, *others], k)
        assert found is not None
        plain = paired_seeds(found.mixed[0] @ (found.mixture.price, 1.0), np.zeros(seeds))
        now = compare_hull(found)
        marks = [as_drawn(found), *((one.outcome == "better", one.outcome == "worse") for one in (plain, now))]
        counts += np.array(marks, dtype=int)
    return {rule: (int(a), int(b)) for rule, (a, b) in zip(RULES, counts.tolist(), strict=True)}


def error_rates(draws: int, cells: Sequence[tuple[str, int, int, int]]) -> Iterator[str]:
    """A Markdown table, line by line."""
    yield "| setting | rivals | seeds | k | " + " | ".join(f"{rule}: above, below" for rule in RULES) + " |"
    yield "|---" * (4 + len(RULES)) + "|"
    for setting, rivals, seeds, k in cells:
        found = rates(setting, rivals, seeds, k, draws)
        shown = (f"{share(above, draws)}, {share(below, draws)}" for above, below in found.values())
        yield f"| {setting} | {rivals} | {seeds} | {k} | " + " | ".join(shown) + " |"


CELLS = [
    *product(["T = 1"], (3, 7, 11), (3, 5, 8), (8, 256)),
    *product(["three T, base, guesser"], (3, 11), (3, 8), (8, 256)),
]


def pairs_and_all(draws: int, policies: int = 8) -> Iterator[str]:
    """The best mixture of two policies against that of all, for policies that are good at different problems."""
    rng = np.random.default_rng(SEED)
    yield "| k | more than two policies in the best mixture | most that more than two add | mean |"
    yield "|---|---|---|---|"
    for k in (8, 64, 256):
        more, gains = 0, []
        for _ in range(draws):
            spread, shift = rng.uniform(0.5, 2, (policies, 1, 1)), rng.normal(0, 0.7, (policies, 1, 1))
            ps = sigmoid(spread * (DIFFICULTY + rng.normal(0, 0.7, (policies, 1, PROBLEMS))) + shift)
            pass1 = float(np.quantile(ps.mean(axis=(1, 2)), rng.uniform(0.2, 0.9)))
            found = best_mixture(ps, pass1, k)
            two = [best_mixture(ps[list(pair)], pass1, k) for pair in combinations(range(policies), 2)
                   if ps[list(pair)].mean(axis=(1, 2)).max() >= pass1]  # fmt: skip
            more += int((found.weights > 1e-6).sum() > 2)
            gains.append(found.height - max(one.height for one in two))
        yield f"| {k} | {more} of {draws} | {max(gains):+.4f} | {float(np.mean(gains)):+.4f} |"


# ------------------------------------------------------------------------------------------------------------------
# stored experiments


def untrained_policies(world: str, session: Session) -> tuple[Floats, Floats]:
    """The shipped base at every temperature on the test draws (temperatures, problems), and the guesser (problems,)."""
    from sage_rlvr.config.runs import WorldConfig
    from sage_rlvr.evaluation.evaluate import FRONTIER, evaluate, resolve
    from sage_rlvr.evaluation.exact import probabilities
    from sage_rlvr.tasks.countdown.expressions import expressions_over

    session.note(f"{world}: evaluating the shipped base at {len(FRONTIER)} temperatures, about a minute")
    target = resolve("embedded", WorldConfig.of(WORLDS[world]))
    record = evaluate(target, temperatures=FRONTIER, problems=DRAWS)
    drawn = target.problems(record.meta["split"], record.meta["seed"], record.problems, record.meta["sampling"])
    right = map(len, record.logps[1.0])
    guesses = np.array([n / expressions_over(p.numbers) for n, p in zip(right, drawn, strict=True)])
    return np.stack([probabilities(record.logps[t]) for t in FRONTIER]), guesses


def least_height(untrained: Floats, pass1: float, fast: float, k: int) -> float:
    """What mixtures per completion reach at least: untrained policies (policies, problems) and a rival whose pass@1 is `fast`, of
    which no right completion counts."""
    cells = np.concatenate([untrained, np.zeros((1, untrained.shape[1]))])
    return climb(cells, np.append(untrained.mean(axis=1), fast), pass1, k).height


def stored_lines(summary: dict[str, Any], untrained: Floats) -> Iterator[str]:
    """Of each candidate in pass@8 and pass@256: the best mixture per problem, and what one per completion has at least."""
    arms = {arm["label"]: arm for arm in summary["arms"].values()}
    for row in summary["room"]:
        metric = Metric.parse(row["metric"])
        if metric.name != "pass" or metric.k is None:
            continue
        rivals = next(e["arms"] for e in summary["baselines"] if e["name"] == row["envelope"])
        fast = max(point["pass1"] for name in rivals for point in arms[name]["frontier"])
        if fast < row["pass1"]:
            continue
        k = metric.k
        known = max(row["best"], least_height(untrained, row["pass1"], fast, k))
        lead = f"{row['own'] - row['best']:+.4f}"
        if k == max(summary["ks"]) and (again := crossfitted(summary, row)) is not None:
            lead = f"{again.difference.value:+.4f} ({again.difference.low:+.4f} to {again.difference.high:+.4f}, {again.outcome})"
        cells = (f"{row['own']:.4f}", f"{row['best']:.4f}", lead, f"at least {known:.4f}", f"at most {row['own'] - known:+.4f}")
        yield "| " + " | ".join((row["arm"], metric.bare, *cells)) + " |"


def crossfitted(summary: Mapping[str, Any], room: Mapping[str, Any]) -> PairedDifference | None:
    """The largest pass@k of a candidate against the mixture per problem, again from the scores of each seed."""
    arms = {arm["label"]: arm["frontier_by_seed"] for arm in summary["arms"].values() if "frontier_by_seed" in arm}
    names = [room["arm"], *next(e["arms"] for e in summary["baselines"] if e["name"] == room["envelope"])]
    seeds = sorted(set.intersection(*(set(arms[name]) for name in names)), key=int)
    lines = [[[_point(one) for one in arms[name][seed]] for seed in seeds] for name in names]
    found = above_hull(lines[0], lines[1:])
    return None if found is None else compare_hull(found)


def _point(tree: Mapping[str, float]) -> FrontierPoint:
    return FrontierPoint(temperature=tree["temperature"], pass1=tree["pass1"], passk=tree["passk"])


@dataclass(frozen=True)
class Hull(Command):
    """Test the comparison with mixtures on identical methods, and pairs of policies against all; or bound stored comparisons."""

    draws: int = 300
    """Simulated comparisons per row."""
    stored: bool = False
    """Instead: what mixtures per completion reach in the stored experiments, as far as their summaries tell."""
    samples: bool = False
    """Instead: the comparison from samples at the size of the study of SmolLM2, on its hull and above it; 2.5 % each is nominal."""

    def execute(self, session: Session) -> int:
        if self.stored:
            return self._stored(session)
        if self.samples:
            for line in samples_table(self.draws):
                session.say(line)
            return 0
        for line in chain(error_rates(self.draws, CELLS), [""], pairs_and_all(max(10, self.draws // 10))):
            session.say(line)
        return 0

    def _stored(self, session: Session) -> int:
        worlds: dict[str, Floats] = {}
        for path in sorted(EXPERIMENTS.glob("*/summary.json")):
            summary = json.loads(path.read_text(encoding="utf-8"))
            world, kept = world_of(summary), (path.parent / NAME).is_file()
            if not summary.get("room") or not (world or kept):
                continue
            if world and world not in worlds and not kept:
                base, guesses = untrained_policies(world, session)
                worlds[world] = np.concatenate([base, guesses[None]])
            lines = kept_lines(summary, load_probabilities(path.parent)) if kept else stored_lines(summary, worlds[world or ""])
            session.say(f"\n{path.parent.name}\n", HEADS, "|---" * (HEADS.count(" | ") + 1) + "|", *lines)
        return 0


def kept_lines(summary: dict[str, Any], kept: Kept) -> Iterator[str]:
    """Of each candidate in pass@8 and pass@256: its lead over the best mixture per completion, from the probabilities that are kept
    beside a summary."""
    names = {arm["label"] for arm in summary["arms"].values()}
    others = sorted({arm for arm, _ in kept} - names)  # the base, and the guesser where it is known
    for room in summary["room"]:
        metric = Metric.parse(room["metric"])
        if metric.name != "pass" or metric.k is None:
            continue
        rivals = next(e["arms"] for e in summary["baselines"] if e["name"] == room["envelope"])
        seeds = sorted(set.intersection(*({seed for arm, seed in kept if arm == name} for name in (room["arm"], *rivals))))
        own, *them = ([kept[name, seed] for seed in seeds] for name in (room["arm"], *rivals))
        found = above_mixtures(own, [*them, *([kept[name, 0]] * len(seeds) for name in others)], metric.k)
        if found is not None:
            c = compare_hull(found)
            d = c.difference
            lead = f"{d.value:+.4f} ({d.low:+.4f} to {d.high:+.4f}, {c.outcome})"
            yield f"| {room['arm']} | {metric.bare} | {c.mean_a:.4f} | | | {found.mixture.height:.4f} | {lead} |"


def world_of(summary: dict[str, Any]) -> str | None:
    """The level of a summary whose base is the shipped policy; None of any other."""
    base = summary.get("base") or {}
    levels = {0.1187: "easy", 0.0130: "hard"}  # its pass@1 on the test draws
    return next((name for level, name in levels.items() if abs(base.get("pass", {}).get("1", -1) - level) < 1e-4), None)
