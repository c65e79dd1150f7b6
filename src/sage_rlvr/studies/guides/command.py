"""`sage-rlvr study guides`: tables, sentences, files and the picture of the guide lab (studies/guides/measure.py)."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import DataError
from sage_rlvr.runs import writing
from sage_rlvr.stats.comparison import signed
from sage_rlvr.studies.guides.figures import guides_figure

if TYPE_CHECKING:
    from sage_rlvr.stats.intervals import Interval
    from sage_rlvr.studies.guides.measure import GuideLabResult, GuideRow

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
    near = min({row.budget for row in result.rows if row.kind == "oracle"}, key=lambda d: abs(d - budget))
    every = [row for row in result.rows if row.kind == "oracle" or row.budget in _budgets(result)]
    return {
        f"At a KL budget of {near:g} nats per completion": guide_table([row for row in every if row.budget == near]),
        "As they would be trained": own_table(
            [row for row in result.rows if row.variant.startswith(("own", "temperature 1"))]
        ),
        "Paired with noise of the same KL budget: distinct in 256": noise_table([row for row in every if row.budget == near]),
        "What each signal knows": signal_table(result),
        "The oracle inside the band": band_table(result),
        "Distinct right answers by budget": budget_table(every),
    }


def _budgets(result: GuideLabResult) -> list[float]:
    return sorted({row.budget for row in result.rows if row.kind == "oracle"})


def _cell(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return ""
    return f"{interval.value:+.{digits}f} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"


def guide_table(rows: Sequence[GuideRow]) -> str:
    """One line per guide at one budget."""
    lines = [
        "| guide (variant chosen on validation) | reads | pass@1 | pass@256 | distinct in 256 | support: net, gained, lost "
        "| distinct, against hotter | distinct, at equal pass@1 | support, at equal pass@1 | of the best: distinct, support |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = row.name + (f" ({row.variant})" if row.variant not in ("", "all tokens", "paper", "temperature") else "")
        share = "" if row.share is None else f"{100 * row.share['distinct']:.0f} %, {100 * row.share['support']:.0f} %"
        hotter = None if row.hotter is None else row.hotter["distinct"]
        equal = (None, None) if row.equal_pass1 is None else (row.equal_pass1["distinct"], row.equal_pass1["support"])
        lines.append(
            f"| {name} | {KINDS[row.kind]} | {row.change['pass1'].value:+.4f} | {_cell(row.change['passk'], 4)} "
            f"| {_cell(row.change['distinct'], 2)} | {row.change['support'].value:+.2f}, {row.gained:.2f}, {row.lost:.2f} "
            f"| {_cell(hotter, 2)} | {_cell(equal[0], 2)} | {_cell(equal[1], 2)} | {share} |"
        )
    return "\n".join(lines)


def noise_table(rows: Sequence[GuideRow]) -> str:
    """Differences from Random and from the placebo of rarity at the same KL budget."""
    names = ("Random", "placebo of rarity")
    lines = ["| guide | " + " | ".join(f"against {name}" for name in names) + " |", "|---|---|---|"]
    for row in rows:
        if row.against:
            found = [row.against.get(name) for name in names]
            cells = [_cell(None if one is None else one["distinct"], 2) for one in found]
            lines.append(f"| {row.name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def own_table(rows: Sequence[GuideRow]) -> str:
    """Guides with their own strength and band, and the base, at the KL budget that each has."""
    lines = [
        "| guide | q | budget, nats | pass@1 | pass@256 | distinct in 256 | support | distinct, against hotter at that budget |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        change = row.change
        hotter = "" if row.hotter is None else _cell(row.hotter["distinct"], 2)
        lines.append(
            f"| {row.name} | {row.equation} | {_number(row.budget, '.2g')} | {change['pass1'].value:+.4f} "
            f"| {_cell(change['passk'], 4)} | {_cell(change['distinct'], 2)} | {_cell(change['support'], 2)} | {hotter} |"
        )
    return "\n".join(lines)


def signal_table(result: GuideLabResult) -> str:
    """Correlations and AUCs of every signal."""
    lines = [
        "| guide | share of the best gain, small KL budget: distinct, pass@256 | AUC: right from wrong | AUC: just below eps from "
        "the other right ones | rank correlation with the oracle's log q |",
        "|---|---|---|---|---|",
    ]
    for row in result.signals:
        lines.append(
            f"| {row.name} | {row.efficiency_distinct:+.3f}, {row.efficiency_pass:+.3f} | {_number(row.auc_right, '.3f')} "
            f"| {_number(row.auc_lifted, '.3f')} | {_number(row.rank_lifted, '+.2f')} |"
        )
    return "\n".join(lines)


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""


def band_table(result: GuideLabResult) -> str:
    """What a q in [0.6, 1.4] at each token reaches."""
    lines = [
        "| budget | support gained in the band (at budget) | no band | distinct gained in the band (at budget) | no band |",
        "|---|---|---|---|---|",
    ]
    for row in result.bands:
        lines.append(
            f"| {row['budget']:g} | {row['support']:+.1f} ({row['support_budget']:.2g}) | {row['support_bound']:+.1f} "
            f"| {row['distinct']:+.1f} ({row['distinct_budget']:.2g}) | {row['distinct_bound']:+.1f} |"
        )
    return "\n".join(lines)


def budget_table(rows: Sequence[GuideRow]) -> str:
    """Change of distinct right answers, one column a budget; empty where no strength of the guide reaches it."""
    budgets = sorted({row.budget for row in rows})
    found: dict[str, dict[float, str]] = {}
    for row in rows:
        band = "" if row.in_band is None else f", {100 * row.in_band:.0f} %"
        found.setdefault(row.name, {})[row.budget] = f"{row.change['distinct'].value:+.2f}{band}"
    lines = [
        "Change, and the share of tokens whose q lies in [0.6, 1.4].", "",
        "| guide | " + " | ".join(f"{budget:g}" for budget in budgets) + " |", "|---|" + "---|" * len(budgets),
    ]  # fmt: skip
    lines += [
        f"| {name} | " + " | ".join(cells.get(budget, "") for budget in budgets) + " |" for name, cells in found.items()
    ]
    return "\n".join(lines)


def sentences(result: GuideLabResult, budget: float = SHOWN_BUDGET) -> list[str]:
    """What the tables say, each with its interval."""
    at = {row.name: row for row in result.rows if row.budget == min(_budgets(result), key=lambda d: abs(d - budget))}
    facts, found = result.facts, []
    near = at["oracle, support"].budget
    found.append(
        f"{result.policy}: pass@1 {facts['pass1']:.3f}, pass@256 {facts['passk']:.3f}, {facts['distinct']:.1f} distinct in 256, "
        f"{facts['support']:.1f} of {facts['right_completions']:.1f} right completions above 1/256, KL from the {result.reference} "
        f"{facts['kl_from_base']:.2f} nats per completion. Drawn: {facts['sampled_right']:.3f} right."
    )
    share = facts["small_p_sensitivity"] / facts["sensitivity"] if facts["sensitivity"] else math.nan
    found.append(
        f"pass@256 moves by {facts['sensitivity']:.3f} a nat of log odds of being right, {100 * share:.0f} % of it on the "
        f"{100 * facts['small_p_share']:.0f} % of problems with p < 0.02."
    )
    for name in ("Branch", "Token", "Random"):
        if name in at:
            found.append(f"{name} at {near:g} nats: {_said(at[name], 'hotter')}.")
    best = at[result.favorite]
    found.append(
        f"Best guide without rewards on validation, {best.name} ({best.variant}): {_said(best, 'hotter')}; {_equal(best)}."
    )
    for name in ("rarity", "fitted, policy", "fitted, reference", "right", "rare and right"):
        if name in at and name != best.name:
            found.append(f"{name}: {_said(at[name], 'hotter')}.")
    top = {metric: at[name].change[metric] for metric, name in ORACLES.items()}
    names = dict.fromkeys(
        ("Branch", "Token", "policy hotter", best.name, "fitted, reference", "right", "rare and right")
    )
    shares = {name: at[name].share for name in names if name in at}
    listed = ", ".join(f"{name} {100 * share['distinct']:.0f} %" for name, share in shares.items() if share)
    found.append(
        f"The best q at {near:g} nats: support {_cell(top['support'], 1)}, distinct {_cell(top['distinct'], 1)}, pass@256 "
        f"{_cell(top['passk'], 3)}. Shares of it in distinct answers: {listed}."
    )
    noise = {goal: max(row.draw_sd[goal] for row in at.values() if row.draw_sd) for goal in ("distinct", "support")}
    found.append(
        f"Drawing the wrong completions again moves no mean of distinct by more than {noise['distinct']:.2f} and none of "
        f"support by more than {noise['support']:.2f} (one standard deviation)."
    )
    blind_auc = max(row.auc_right for row in result.signals if row.kind in ("paper", "policy", "reference"))
    lifted = {row.name: row for row in result.signals}
    found.append(
        f"No signal without rewards tells right from wrong with an AUC above {blind_auc:.2f}. Which right completions sit just "
        f"below 1/256: Branch {lifted['Branch'].auc_lifted:.2f}, Token {lifted['Token'].auc_lifted:.2f}, surprisal "
        f"{lifted['surprisal'].auc_lifted:.2f}, rarity {lifted['rarity'].auc_lifted:.2f}, all signals of the policy fitted "
        f"{lifted['fitted, policy'].auc_lifted:.2f}."
    )
    return found


def _said(row: GuideRow, against: str) -> str:
    other = getattr(row, against)
    text = f"distinct {_cell(row.change['distinct'], 2)}, support {_cell(row.change['support'], 2)}"
    return (
        text
        if other is None
        else f"{text}; against the policy sampled hotter at that budget, distinct {_cell(other['distinct'], 2)}"
    )


def _equal(row: GuideRow) -> str:
    if row.equal_pass1 is None:
        return "its pass@1 is above that of the policy at any temperature"
    found = row.equal_pass1
    return (
        f"against the temperature of equal pass@1, distinct {_cell(found['distinct'], 2)}, support {_cell(found['support'], 2)}, "
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


def curves(
    results: Sequence[GuideLabResult],
) -> dict[str, dict[str, dict[str, list[tuple[float, float, float, float]]]]]:
    """What the picture shows: policy -> metric -> guide -> (budget, gain, low, high)."""
    found: dict[str, dict[str, dict[str, list[tuple[float, float, float, float]]]]] = {}
    for result in results:
        budgets, metrics = _budgets(result), found.setdefault(result.policy, {})
        for metric, oracle in ORACLES.items():
            lines = metrics.setdefault(metric, {})
            for name in (*CURVES, oracle):
                rows = [row for row in result.rows if row.name == name and row.budget in budgets]
                points = [(r.budget, r.change[metric].value, r.change[metric].low, r.change[metric].high) for r in rows]
                if points:
                    lines["oracle" if name == oracle else name] = sorted(points)
    return found


def write(results: Sequence[GuideLabResult], folder: Path) -> list[Path]:
    """guides.json, guides.md and guides.png; returns the paths. Raises CheckpointError where they cannot be written."""
    with writing("guides", folder, 4 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        listed = _plain([dataclasses.asdict(result) for result in results])
        (folder / "guides.json").write_text(json.dumps(listed, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        (folder / "guides.md").write_text(page(results), encoding="utf-8")
        guides_figure(curves(results), folder / PICTURE)
    return [folder / name for name in ("guides.json", "guides.md", PICTURE)]


def _plain(value: Any) -> Any:
    """The same with null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_docs(results: Sequence[GuideLabResult], docs: Path) -> list[Path]:
    """The measured part of docs/results/guides.md, between its two marks, and its picture, made again."""
    where = docs / "results" / "guides.md"
    mark = re.compile(r"(<!-- measured:begin -->\n).*(<!-- measured:end -->)", re.DOTALL)
    text = where.read_text(encoding="utf-8") if where.is_file() else ""
    if not mark.search(text):
        raise DataError(
            f"{where} has no <!-- measured:begin --> and <!-- measured:end -->; name the repository's docs/"
        )
    with writing("pages", docs, 2 << 20):
        where.write_text(mark.sub(lambda m: m[1] + page(results) + m[2], text), encoding="utf-8")
        guides_figure(curves(results), docs / "images" / PICTURE)
    return [where, docs / "images" / PICTURE]
