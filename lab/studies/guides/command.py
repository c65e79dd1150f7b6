"""`python -m lab guides`: tables, sentences, files and the picture of the guide lab (studies/guides/measure.py)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from lab.studies.guides.figures import Curve, guides_figure
from lab.studies.pages import remade
from sage_rlvr.results.tables import Table, table
from sage_rlvr.runs import writing
from sage_rlvr.verdicts.stats.paired import signed
from sage_rlvr.verdicts.summary_io import plain

if TYPE_CHECKING:
    from lab.studies.guides.rows import GuideLabResult, GuideRow, SignalRow
    from sage_rlvr.verdicts.stats.intervals import Interval

SHOWN_BUDGET = 0.1
PICTURE = "guides.png"
KINDS = {
    "paper": "the paper's", "policy": "the policy", "reference": "and the reference", "rewards": "and rewards",
    "control": "control", "oracle": "the best q",
}  # fmt: skip
CURVES = (
    "Random", "Token", "Branch", "rarity", "rarity x reference", "drift", "fitted, reference", "unlikeliness", "policy hotter",
)  # fmt: skip
ORACLES = {"support": "oracle, support", "distinct": "oracle, distinct", "passk": "oracle, pass@256"}


def tables(result: GuideLabResult, budget: float = SHOWN_BUDGET) -> dict[str, str]:
    """Markdown by heading: the guides at one budget, guides as they would be trained, what each signal knows, the band, budgets."""
    near = min(_budgets(result), key=lambda d: abs(d - budget))
    every = [row for row in result.rows if row.kind == "oracle" or row.budget in _budgets(result)]
    here = [row for row in every if row.budget == near]
    own = [row for row in result.rows if row not in every]  # those of the grid are not as they would be trained
    made = {
        f"At a KL budget of {near:g} nats per completion": table(GUIDE, here),
        "As they would be trained": table(OWN, own),
        "Paired with noise of the same KL budget: distinct in 256": table(NOISE, [row for row in here if row.against]),
        "What each signal knows": table(SIGNAL, result.signals),
        "The oracle inside the band": table(BAND, result.bands),
        "Distinct right answers by budget": _by_budget(every),
    }
    return {heading: one.markdown() for heading, one in made.items()}


def _budgets(result: GuideLabResult) -> list[float]:
    return sorted({row.budget for row in result.rows if row.kind == "oracle"})


def _cell(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return ""
    return f"{interval.value:+.{digits}f} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"


def _told(found: Mapping[str, Interval] | None, metric: str, digits: int = 2) -> str:
    return _cell(None if found is None else found[metric], digits)


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""


def _name(row: GuideRow) -> str:
    return row.name + (f" ({row.variant})" if row.variant not in ("", "all tokens", "paper", "temperature") else "")


def _share(row: GuideRow) -> str:
    return "" if row.share is None else f"{100 * row.share['distinct']:.0f} %, {100 * row.share['support']:.0f} %"


def _noise(name: str) -> Callable[[GuideRow], str]:
    return lambda row: _told((row.against or {}).get(name), "distinct")


# header -> the cell of a row: guides at one budget; with their own strength and band, and the base; against noise of the same KL
# budget; what a signal knows; what a q in [0.6, 1.4] at each token reaches
GUIDE: dict[str, Callable[[GuideRow], str]] = {
    "guide (variant chosen on validation)": _name,
    "reads": lambda row: KINDS[row.kind],
    "pass@1": lambda row: f"{row.change['pass1'].value:+.4f}",
    "pass@256": lambda row: _told(row.change, "passk", 4),
    "distinct in 256": lambda row: _told(row.change, "distinct"),
    "support: net, gained, lost": lambda row: f"{row.change['support'].value:+.2f}, {row.gained:.2f}, {row.lost:.2f}",
    "distinct, against hotter": lambda row: _told(row.hotter, "distinct"),
    "distinct, at equal pass@1": lambda row: _told(row.equal_pass1, "distinct"),
    "support, at equal pass@1": lambda row: _told(row.equal_pass1, "support"),
    "of the best: distinct, support": _share,
}
OWN: dict[str, Callable[[GuideRow], str]] = {
    "guide": lambda row: row.name,
    "q": lambda row: row.equation,
    "budget, nats": lambda row: _number(row.budget, ".2g"),
    **{head: GUIDE[head] for head in ("pass@1", "pass@256", "distinct in 256")},
    "support": lambda row: _told(row.change, "support"),
    "distinct, against hotter at that budget": GUIDE["distinct, against hotter"],
}
NOISE = {"guide": OWN["guide"], **{f"against {name}": _noise(name) for name in ("Random", "placebo of rarity")}}
SIGNAL: dict[str, Callable[[SignalRow], str]] = {
    "guide": lambda row: row.name,
    "share of the best gain, small KL budget: distinct, pass@256": lambda row: (
        f"{row.efficiency_distinct:+.3f}, {row.efficiency_pass:+.3f}"
    ),
    "AUC: right from wrong": lambda row: _number(row.auc_right, ".3f"),
    "AUC: just below eps from the other right ones": lambda row: _number(row.auc_lifted, ".3f"),
    "rank correlation with the oracle's log q": lambda row: _number(row.rank_lifted, "+.2f"),
}
BAND: dict[str, Callable[[dict[str, float]], str]] = {
    "budget": lambda row: f"{row['budget']:g}",
    "support gained in the band (at budget)": lambda row: f"{row['support']:+.1f} ({row['support_budget']:.2g})",
    "support, no band": lambda row: f"{row['support_bound']:+.1f}",
    "distinct gained in the band (at budget)": lambda row: f"{row['distinct']:+.1f} ({row['distinct_budget']:.2g})",
    "distinct, no band": lambda row: f"{row['distinct_bound']:+.1f}",
}


def _by_budget(rows: Sequence[GuideRow]) -> Table:
    """Change of distinct right answers, one column a budget; empty where no strength of the guide reaches it."""
    found: dict[str, dict[float, str]] = {}
    for row in rows:
        band = "" if row.in_band is None else f", {100 * row.in_band:.0f} %"
        found.setdefault(row.name, {})[row.budget] = f"{row.change['distinct'].value:+.2f}{band}"
    columns: dict[str, Callable[[str], str]] = {"guide": str}
    for budget in sorted({row.budget for row in rows}):
        columns[f"{budget:g}"] = lambda name, budget=budget: found[name].get(budget, "")  # type: ignore[misc]
    return table(columns, found, "Change, and the share of tokens whose q lies in [0.6, 1.4].")


def sentences(result: GuideLabResult, budget: float = SHOWN_BUDGET) -> list[str]:
    """What the tables say, each with its interval."""
    near = min(_budgets(result), key=lambda d: abs(d - budget))
    at = {row.name: row for row in result.rows if row.budget == near}
    facts, best, top = result.facts, at[result.favorite], {m: at[name].change[m] for m, name in ORACLES.items()}
    small = facts["small_p_sensitivity"] / facts["sensitivity"] if facts["sensitivity"] else math.nan
    others = ("rarity", "fitted, policy", "fitted, reference", "right", "rare and right")
    named = dict.fromkeys(("Branch", "Token", "policy hotter", best.name, "fitted, reference", "right", "rare and right"))
    shares = ((name, at[name].share) for name in named if name in at)
    noise = {goal: max(row.draw_sd[goal] for row in at.values() if row.draw_sd) for goal in ("distinct", "support")}
    blind = max(row.auc_right for row in result.signals if row.kind in ("paper", "policy", "reference"))
    lifted = {row.name: row.auc_lifted for row in result.signals}
    return [
        f"{result.policy}: pass@1 {facts['pass1']:.3f}, pass@256 {facts['passk']:.3f}, {facts['distinct']:.1f} distinct in 256, "
        f"{facts['support']:.1f} of {facts['right_completions']:.1f} right completions above 1/256, KL from the {result.reference} "
        f"{facts['kl_from_base']:.2f} nats per completion. Drawn: {facts['sampled_right']:.3f} right.",
        f"pass@256 moves by {facts['sensitivity']:.3f} a nat of log odds of being right, {100 * small:.0f} % of it on the "
        f"{100 * facts['small_p_share']:.0f} % of problems with p < 0.02.",
        *(f"{name} at {near:g} nats: {_said(at[name])}." for name in ("Branch", "Token", "Random") if name in at),
        f"Best guide without rewards on validation, {best.name} ({best.variant}): {_said(best)}; {_equal(best)}.",
        *(f"{name}: {_said(at[name])}." for name in others if name in at and name != best.name),
        f"The best q at {near:g} nats: support {_cell(top['support'], 1)}, distinct {_cell(top['distinct'], 1)}, pass@256 "
        f"{_cell(top['passk'], 3)}. Shares of it in distinct answers: "
        + ", ".join(f"{name} {100 * share['distinct']:.0f} %" for name, share in shares if share) + ".",
        f"Drawing the wrong completions again moves no mean of distinct by more than {noise['distinct']:.2f} and none of "
        f"support by more than {noise['support']:.2f} (one standard deviation).",
        f"No signal without rewards tells right from wrong with an AUC above {blind:.2f}. Which right completions sit just "
        f"below 1/256: Branch {lifted['Branch']:.2f}, Token {lifted['Token']:.2f}, surprisal {lifted['surprisal']:.2f}, rarity "
        f"{lifted['rarity']:.2f}, all signals of the policy fitted {lifted['fitted, policy']:.2f}.",
    ]  # fmt: skip


def _said(row: GuideRow) -> str:
    text = f"distinct {_told(row.change, 'distinct')}, support {_told(row.change, 'support')}"
    against = f"; against the policy sampled hotter at that budget, distinct {_told(row.hotter, 'distinct')}"
    return text if row.hotter is None else text + against


def _equal(row: GuideRow) -> str:
    if row.equal_pass1 is None:
        return "its pass@1 is above that of the policy at any temperature"
    found = row.equal_pass1
    return (
        f"against the temperature of equal pass@1, distinct {_told(found, 'distinct')}, support {_told(found, 'support')}, "
        f"pass@256 {signed(found['passk'].value)}"
    )


def page(results: Sequence[GuideLabResult]) -> str:
    """guides.md: per policy the sentences and all tables."""
    parts = []
    for result in results:
        head = (
            f"{result.problems} test problems drawn by {result.draw} ({result.different} different), {result.samples} samples a "
            f"problem for the wrong part, seed {result.seed}; variants chosen on as many validation problems; 95 % intervals over "
            "problems."
        )
        parts += [f"## {result.policy}", head, "\n".join(f"- {line}" for line in sentences(result))]
        parts += [f"### {name}\n\n{table}" for name, table in tables(result).items()]
    return "\n\n".join(parts) + "\n"


def curves(results: Sequence[GuideLabResult]) -> dict[str, dict[str, dict[str, Curve]]]:
    """What the picture shows: policy -> metric -> guide -> (budget, gain, low, high)."""
    found: dict[str, dict[str, dict[str, Curve]]] = {}
    for result, (metric, oracle) in product(results, ORACLES.items()):
        budgets, points = _budgets(result), {}
        for row in result.rows:
            if row.name in (*CURVES, oracle) and row.budget in budgets:
                gain = row.change[metric]
                points.setdefault(row.name, []).append((row.budget, gain.value, gain.low, gain.high))
        lines = {name: sorted(points[name]) for name in (*CURVES, oracle) if name in points}
        found.setdefault(result.policy, {})[metric] = {"oracle" if n == oracle else n: x for n, x in lines.items()}
    return found


def write(results: Sequence[GuideLabResult], folder: Path) -> list[Path]:
    """guides.json, guides.md and guides.png; returns the paths. Raises CheckpointError where they cannot be written."""
    with writing("guides", folder, 4 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        listed = plain([dataclasses.asdict(result) for result in results])
        (folder / "guides.json").write_text(json.dumps(listed, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        (folder / "guides.md").write_text(page(results), encoding="utf-8")
        guides_figure(curves(results), folder / PICTURE)
    return [folder / name for name in ("guides.json", "guides.md", PICTURE)]


def write_docs(results: Sequence[GuideLabResult], docs: Path) -> list[Path]:
    """The measured part of lab/pages/results/guides.md, between its two marks, and its picture, made again."""
    where, text = remade(docs, "results/guides.md", {"measured": page(results).rstrip()})
    picture = docs / "images" / PICTURE
    with writing("pages", docs, 2 << 20):
        where.write_text(text, encoding="utf-8")
        guides_figure(curves(results), picture)
    return [where, picture]
