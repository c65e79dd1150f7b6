"""The guide lab: what any guide would do to a trained policy if Eq. (4) were reached, at one KL budget, and the best any q can.

Each guide's log q is scaled so that KL(pi_SAGE || pi_RLVR) is the same number of nats per completion (`theory/reweighting.py`),
variants are chosen on validation problems, and everything shown is of test problems: differences from no guide, from the policy
sampled hotter at the same KL budget, and from the policy at the temperature that has the same pass@1; the share of what the best
q reaches; and how well log q tells right from wrong, and the right ones just below eps from the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from lab.studies.guides.completions import INVERSE_TEMPERATURES, Atoms, collect
from lab.studies.guides.rows import GuideLabResult, GuideRow, Head, SignalRow
from lab.studies.guides.signals import (
    FAMILIES,
    TRAINABLE,
    Family,
    Kind,
    Variant,
    auc,
    features,
    lifted,
    mean_of_finite,
    placebo,
)
from lab.theory.reweighting import (
    Floats,
    Masses,
    best_support,
    best_tilt,
    distinct,
    efficiency,
    fit,
    influence,
    pass_at,
    scale_for,
    sensitivity,
    tilted,
)
from sage_rlvr.core.guides import band_of
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, Target
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.policy import load_policy
from sage_rlvr.training.reference import check_vocabularies
from sage_rlvr.verdicts.stats.intervals import Interval, column_intervals

K = 256
EPS = 1 / K
BUDGETS = (0.01, 0.03, 0.1, 0.3)
CHOICE_BUDGET = 0.1
BAND = (0.6, 1.4)
METRICS = ("pass1", "passk", "distinct", "support")
NOISE_DRAWS, REDRAWS = 4, 20
PLACEBO = "its log q, permuted over the batch's tokens"


def run_guide_lab(
    target: Target,
    *,
    reference: str = EMBEDDED,
    problems: int = 100,
    samples: int = 512,
    draw: str = "iid",
    seed: int = EVALUATION_SEED,
    max_new_tokens: int = 24,
    budgets: Sequence[float] = BUDGETS,
    progress: Callable[[str], None] = lambda text: None,
) -> GuideLabResult:
    """Everything for one policy; `problems` validation problems choose the variants and as many test problems show them.

    Raises DataError for fewer than 10 problems, 64 samples, or a budget that is not positive.
    """
    if problems < 10 or samples < 64 or not budgets or min(budgets) <= 0:
        raise DataError(
            f"problems = {problems}, samples = {samples}, budgets = {tuple(budgets)}: give at least 10 problems, 64 samples, and "
            "budgets above 0"
        )
    began = time.process_time()
    atoms: dict[str, Atoms] = {}
    policy, tokens = load_policy(target.model)
    base, base_tokens = load_policy(reference)
    check_vocabularies((target.model, policy, tokens), (reference, base, base_tokens))
    task = target.world.build()
    for split in ("validation", "test"):
        progress(f"{target.name}: {problems} {split} problems, {samples} completions each ...")
        chosen = task.draw(split, seed, problems, draw)
        atoms[split] = collect(
            policy, base, tokens, task, chosen, samples=samples, max_new_tokens=max_new_tokens, seed=seed
        )
    progress(f"{target.name}: guides ...")
    found = Lab(atoms["test"], budgets)
    chosen_families = choose(FAMILIES, atoms["validation"])
    families = [*chosen_families, *fitted(atoms["validation"])]
    rows, signals = found.everything(families)
    return GuideLabResult(
        policy=target.name, reference="base" if reference == EMBEDDED else reference, problems=problems,
        different=len(atoms["test"].masses.repeats), samples=samples, seed=seed, draw=draw,
        rows=tuple(rows), signals=tuple(signals), facts=found.facts(), frontier=found.frontier(), bands=tuple(found.bands()),
        favorite=favorite(chosen_families, atoms["validation"]),
        seconds=round(time.process_time() - began, 1),
    )  # fmt: skip


def choose(families: Sequence[Family], atoms: Atoms) -> list[Family]:
    """Each family with the one variant that has the most distinct right answers at the middle budget, on these problems."""
    best = {f.name: max(f.variants, key=lambda v: _gain(atoms, v)) for f in families if len(f.variants) > 1}
    return [replace(f, variants=(best[f.name],)) if f.name in best else f for f in families]


def favorite(families: Sequence[Family], atoms: Atoms) -> str:
    """The chosen family without rewards that has the most distinct right answers at the middle budget, on these problems."""
    blind = [family for family in families if family.kind in ("policy", "reference")]
    return max(blind, key=lambda f: _gain(atoms, f.variants[0])).name


def _gain(atoms: Atoms, variant: Variant) -> float:
    masses, log_q = atoms.masses, variant.of(atoms, Key(0)).sum(1)
    scale = scale_for(masses, log_q, CHOICE_BUDGET)
    return masses.mean(distinct(tilted(masses, scale * log_q)[0], K)) if math.isfinite(scale) else -math.inf


def fitted(atoms: Atoms) -> list[Family]:
    """The best linear combinations of cheap signals for small KL budgets, fitted on these problems."""
    found = []
    for kind, reference in (("policy", False), ("reference", True)):
        h = influence(atoms.masses, "distinct", K)
        coefficients = fit(atoms.masses, features(atoms, reference), h)
        count = len(coefficients)

        def of(a: Atoms, key: Key, c: Floats = coefficients, r: bool = reference) -> Floats:
            return np.asarray(((features(a, r) @ c) / a.mask.sum(1))[:, None] * a.mask)

        equation = f"log q = a linear in {count} signals, fitted on validation"
        found.append(Family(f"fitted, {kind}", kind, (Variant(f"{count} signals", equation, of),)))  # type: ignore[arg-type]
    return found


class Lab:
    """Measurements on the atoms of one policy; what several rows need is computed once."""

    def __init__(self, atoms: Atoms, budgets: Sequence[float]) -> None:
        self.atoms, self.budgets = atoms, tuple(budgets)
        self.masses = atoms.masses
        self.plain = self.metrics(self.masses)
        self.temperatures = [self.metrics(self.at_temperature(x)[0]) for x in INVERSE_TEMPERATURES]
        self.oracles = {
            budget: {goal: best_tilt(self.masses, goal, K, budget) for goal in ("distinct", "pass")} for budget in self.budgets
        }
        self.measured: dict[tuple[str, float], Floats] = {}
        self.lifts = {budget: best_support(self.masses, EPS, budget) for budget in self.budgets}

    def metrics(self, masses: Masses) -> Floats:
        """(P, 4) pass@1, pass@256, distinct, support of each problem."""
        support = masses.sums(self.supported(masses).astype(float))
        return np.stack([masses.success, pass_at(masses, K), distinct(masses, K), support], axis=1)

    def at_temperature(self, inverse: float, of: str = "tempered") -> tuple[Masses, Floats]:
        """The policy (or the reference, of="ref_tempered") at temperature 1 / inverse, and its KL from the policy at 1."""
        log_q = self.atoms.at(inverse, of) - self.atoms.at(1.0)
        mass = self.masses.mass * np.exp(log_q)
        kl = self.masses.sums(mass * log_q - mass + self.masses.mass)
        return Masses(self.masses.problem, self.masses.right, mass, self.masses.repeats), kl

    def everything(self, families: Sequence[Family]) -> tuple[list[GuideRow], list[SignalRow]]:
        """Controls, guides as they would be trained, guides at each budget, oracles; and what each signal knows."""
        rows, signals = [], []
        for family in families:
            (variant,) = family.variants
            draws = self.draws(variant)
            signals.append(self.signal(family.name, family.kind, variant.name, draws[0].sum(1)))
            asked = [(Head(family.name, family.kind, variant.name, variant.equation), draws)]
            if family.name in ("Branch", "rarity"):
                sham = Head(f"placebo of {family.name}", "control", variant.name, PLACEBO)
                asked.append((sham, [placebo(self.atoms, draws[0], seed) for seed in range(NOISE_DRAWS)]))
            rows += [row for head, q in asked for budget in self.budgets if (row := self.row(head, q, budget))]
        rows = [self.paired(row) for row in rows] + self.controls()
        rows += [self.own(variant) for variant in TRAINABLE]
        return rows + self.best(), signals

    def draws(self, variant: Variant) -> list[Floats]:
        """log q (A, T) of each draw of its noise, one where it has none."""
        return [variant.of(self.atoms, Key(i)) for i in range(NOISE_DRAWS if variant.noisy else 1)]

    def paired(self, row: GuideRow) -> GuideRow:
        """The same with its differences from the two noises of its budget."""
        others = {name: self.measured.get((name, row.budget)) for name in ("Random", "placebo of rarity")}
        own = self.measured[row.name, row.budget]
        return replace(
            row, against={n: self.intervals(own - o) for n, o in others.items() if o is not None and n != row.name}
        )

    def row(self, head: Head, draws: Sequence[Floats], budget: float) -> GuideRow | None:
        """One guide at one budget; None where no strength reaches it."""
        scales = [scale_for(self.masses, draw.sum(1), budget) for draw in draws]
        if not all(map(math.isfinite, scales)):
            return None
        tokens = [scale * draw for scale, draw in zip(scales, draws, strict=True)]
        return self.shown(head, tokens, budget, float(np.mean(scales)), self.in_band(tokens[0]))

    def in_band(self, log_q: Floats) -> float:
        """Share of a batch's tokens whose q is in [0.6, 1.4]."""
        low, high = math.log(BAND[0]) - 1e-9, math.log(BAND[1]) + 1e-9
        return float((self.atoms.token_mass * ((log_q >= low) & (log_q <= high))).sum())

    def own(self, variant: Variant) -> GuideRow:
        """A guide of core/guides with its own settings and band, at the KL budget that it has."""
        assert variant.guide is not None
        draws = self.draws(variant)
        budget = float(np.mean([self.masses.mean(tilted(self.masses, draw.sum(1))[1]) for draw in draws]))
        low, high = band_of(variant.guide)
        head = Head(variant.name, "control", f"own budget, q in [{low:g}, {high:g}]", variant.equation)
        return self.shown(head, draws, budget, 1.0, 1.0)

    def shown(self, head: Head, draws: Sequence[Floats], budget: float, scale: float, in_band: float) -> GuideRow:
        """The row of these log q (A, T), noise averaged problem by problem."""
        log_qs = [draw.sum(1) for draw in draws]
        after = [tilted(self.masses, log_q)[0] for log_q in log_qs]
        found = self.compared(head, after, budget, hotter=True)
        return replace(found, scale=scale, in_band=in_band, draw_sd=self.draw_sd(log_qs[0]))

    def compared(self, head: Head, after: Sequence[Masses], budget: float, *, hotter: bool = False) -> GuideRow:
        """Differences with intervals over problems; hotter: also from the policy sampled hotter at that budget."""
        found = np.mean([self.metrics(masses) for masses in after], axis=0)
        self.measured[head.name, budget] = found
        before, flows = self.supported(self.masses), []
        for inside in map(self.supported, after):
            moved = (inside & ~before, before & ~inside)
            flows.append([self.masses.mean(self.masses.sums(x.astype(float))) for x in moved])
        gained, lost = np.mean(flows, axis=0)
        equal, change, row_hotter = self.at_pass1(self.masses.mean(found[:, 0])), self.intervals(found - self.plain), None
        if hotter:
            row_hotter = self.intervals(found - (self.metrics(self.hotter(budget)) if budget > 1e-9 else self.plain))
        return GuideRow(
            *head, budget=budget, scale=1.0, in_band=None, change=change, gained=float(gained), lost=float(lost),
            hotter=row_hotter, equal_pass1=None if equal is None else self.intervals(found - equal),
            share=self.shares(change, budget),
        )  # fmt: skip

    def supported(self, masses: Masses) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(A,) right completions above eps."""
        return np.asarray(masses.right & (masses.mass > EPS))

    def intervals(self, differences: Floats) -> dict[str, Interval]:
        """(P, 4) -> mean and interval over the problems as they were drawn."""
        drawn = np.repeat(differences, self.masses.repeats.astype(int), axis=0)
        return dict(zip(METRICS, column_intervals(drawn), strict=True))

    def shares(self, change: Mapping[str, Interval], budget: float) -> dict[str, float] | None:
        """Change over the best q's change at the same KL budget; None at a KL budget for which no oracle was computed."""
        if budget not in self.oracles:
            return None
        best = self.best_gain(budget)
        return {name: change[name].value / best[name] if best[name] > 1e-9 else math.nan for name in best}

    def best_gain(self, budget: float) -> dict[str, float]:
        """The largest change of pass@256, distinct and support at that budget."""
        after = {
            goal: self.metrics(tilted(self.masses, log_q)[0]) - self.plain for goal, log_q in self.oracles[budget].items()
        }
        return {
            "passk": self.masses.mean(after["pass"][:, 1]),
            "distinct": self.masses.mean(after["distinct"][:, 2]),
            "support": self.lifts[budget].bound,
        }

    def hotter(self, budget: float, colder: bool = False) -> Masses:
        """The policy at the temperature above 1 (below, with `colder`) whose KL from it is `budget`; else the grid's end."""
        low, high = (1.0, INVERSE_TEMPERATURES[-1]) if colder else (INVERSE_TEMPERATURES[0], 1.0)
        for _ in range(30):
            middle = (low + high) / 2
            near = self.masses.mean(self.at_temperature(middle)[1]) < budget
            low, high = (middle, high) if near == colder else (low, middle)
        return self.at_temperature((low + high) / 2)[0]

    def at_pass1(self, wanted: float) -> Floats | None:
        """(P, 4) of the policy at the temperature with that mean pass@1; None above its best or below its worst."""
        means = [self.masses.mean(table[:, 0]) for table in self.temperatures]
        best = int(np.argmax(means))
        for i in range(best, 0, -1):  # from the best temperature to hotter ones pass@1 falls
            high, low = means[i], means[i - 1]
            if low <= wanted <= high:
                share = (wanted - low) / (high - low) if high > low else 0.0
                return np.asarray(share * self.temperatures[i] + (1 - share) * self.temperatures[i - 1])
        return None

    def draw_sd(self, log_q: Floats) -> dict[str, float]:
        """Spread of the mean distinct and support over wrong draws drawn again."""
        chance, found = np.random.Generator(np.random.Philox(0)), []
        for _ in range(REDRAWS):
            again = self.atoms.redrawn(chance).masses
            found.append([again.mean(column) for column in self.metrics(tilted(again, log_q)[0])[:, 2:].T])
        distinct_sd, support_sd = np.std(found, axis=0, ddof=1)
        return {"distinct": float(distinct_sd), "support": float(support_sd)}

    def controls(self) -> list[GuideRow]:
        """The policy hotter and colder at each budget, and the base at temperature 1, at the KL budget that it has."""
        rows = []
        for budget, (name, colder) in product(self.budgets, (("hotter", False), ("colder", True))):
            head = Head(f"policy {name}", "control", "temperature", "pi at another temperature")
            rows.append(self.compared(head, [self.hotter(budget, colder)], budget))
        base, _ = self.at_temperature(1.0, "ref_tempered")
        return [*rows, self.compared(Head("base", "control", "temperature 1", "pi_ref"), [base], math.nan)]

    def best(self) -> list[GuideRow]:
        """The oracles at each budget."""
        rows = []
        for budget in self.budgets:
            goals, support = self.oracles[budget], self.lifts[budget].log_q
            for name, log_q in (("distinct", goals["distinct"]), ("pass@256", goals["pass"]), ("support", support)):
                head = Head(f"oracle, {name}", "oracle", "", "the best q > 0 of whole completions")
                rows.append(self.compared(head, [tilted(self.masses, log_q)[0]], budget, hotter=True))
        return rows

    def bands(self) -> list[dict[str, float]]:
        """Support and distinct right answers with q in the band at each token, by budget: what is reached by lifting no token but
        those of one completion's own end, at which budget, and the bound, the best q without a band."""
        limit = self.atoms.alone * math.log(BAND[1])
        found: list[dict[str, float]] = []
        for budget in sorted(self.budgets):
            inside, free = best_support(self.masses, EPS, budget, limit), self.best_gain(budget)
            after, kl = tilted(self.masses, best_tilt(self.masses, "distinct", K, budget, limit))
            row = {
                "budget": budget,
                "support": inside.gained,
                "support_budget": inside.budget,
                "support_bound": free["support"],
                "distinct": self.masses.mean((self.metrics(after) - self.plain)[:, 2]),
                "distinct_budget": self.masses.mean(kl),
                "distinct_bound": free["distinct"],
            }
            if found and found[-1]["distinct"] > row["distinct"]:  # the q of a smaller budget is admitted, too
                row |= {name: found[-1][name] for name in ("distinct", "distinct_budget")}
            found.append(row)
        return found

    def signal(self, name: str, kind: Kind, variant: str, log_q: Floats) -> SignalRow:
        """What these log q (A,) know."""
        masses, budget = self.masses, min(self.budgets, key=lambda d: abs(d - CHOICE_BUDGET))
        lift = self.lifts[budget]
        ends = np.append(masses.starts[1:], len(masses.problem))
        columns: list[tuple[float, float, float]] = []
        for start, end in zip(masses.starts, ends, strict=True):
            here = slice(start, end)
            right, values = masses.right[here], log_q[here]
            first = auc(values, right, masses.mass[here])
            columns.append((first, *lifted(values[right], lift.chosen[here][right], lift.log_q[here][right])))
        means = [mean_of_finite(np.array(column), masses.repeats) for column in zip(*columns, strict=True)]
        parts = [efficiency(masses, log_q, influence(masses, goal, K)) for goal in ("distinct", "pass")]
        return SignalRow(name, kind, variant, *parts, *means)

    def facts(self) -> dict[str, float]:
        """The policy as it is, and what there is to gain."""
        masses, atoms = self.masses, self.atoms
        p = masses.success
        right = masses.mean(masses.sums(masses.right.astype(float)))
        drawn = float((atoms.sampled_right * masses.repeats).sum() / (atoms.draws * masses.repeats.sum()))
        return self.means(self.plain) | {
            "right_completions": right,
            "kl_from_base": masses.mean(masses.sums(masses.mass * (atoms.logps - atoms.ref_logps))),
            "sensitivity": masses.mean(sensitivity(p, K)),
            "small_p_share": masses.mean((p < 0.02).astype(float)),
            "small_p_sensitivity": masses.mean(np.where(p < 0.02, sensitivity(p, K), 0.0)),
            "sampled_right": drawn,
            "tokens": masses.mean(masses.sums(masses.mass * atoms.mask.sum(1))),
        }

    def means(self, table: Floats) -> dict[str, float]:
        """(P, 4) -> the mean of each metric."""
        return dict(zip(METRICS, [self.masses.mean(column) for column in table.T], strict=True))

    def frontier(self) -> dict[str, list[dict[str, float]]]:
        """Means of policy and base at every temperature of the grid."""
        base = [self.metrics(self.at_temperature(x, "ref_tempered")[0]) for x in INVERSE_TEMPERATURES]
        return {
            who: [{"temperature": 1 / x, **self.means(t)} for x, t in zip(INVERSE_TEMPERATURES, tables, strict=True)]
            for who, tables in (("policy", self.temperatures), ("base", base))
        }


def one_thread() -> None:
    """The lab's arithmetic is small; more threads only wait for each other."""
    torch.set_num_threads(1)
