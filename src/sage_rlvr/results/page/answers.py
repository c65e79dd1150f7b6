"""Right answers: their kinds and patterns, the number of distinct ones, and the perplexity of samples under the base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sage_rlvr.results.page.scores import band, drawn, slug
from sage_rlvr.results.tables import NONE, Columns, Table, cell, table

MOST_CLASSES = 10  # in a figure; the table has all
Tree = Mapping[str, Any]


def answers_of(summary: Tree, k: int) -> dict[str, Any]:
    """The values of the template's sections on answers."""
    kinds = summary.get("kinds") or []
    return {
        "structure": [_structure(kind) for kind in kinds],
        "kinds": _numbers_of_kinds(kinds, k) if kinds else None,
        "patterns": _patterns(summary["patterns"]) if summary.get("patterns") else None,
        "distinct": _distinct(summary),
        "perplexity": [{**one, "slug": slug(one["task"]), "table": _tails(one)} for one in summary.get("perplexity") or ()],
    }


def _structure(kind: Tree) -> dict[str, Any]:
    """A figure and a table of a classification, the most frequent kinds under the base first."""
    arms = kind["classes"]
    of_base = next(iter(arms.values()))
    order = sorted(of_base, key=lambda name: -of_base[name]["share"]["value"])
    shares = {arm: {key: drawn(classes[key]["share"]) for key in order[:MOST_CLASSES]} for arm, classes in arms.items()}
    columns: Columns = {kind["kind"]: str}
    for arm, classes in arms.items():
        columns[arm] = lambda key, classes=classes: _class_cell(classes[key])  # type: ignore[misc]
    note = (
        "Exact share of the right answers; below it the number of completions of this kind in the support: for the base all, for "
        "each arm those kept, gained and lost (means over training seeds if there are several)."
    )
    made = table(columns, order, f"{note} {kind['spelling']}".strip())
    return {"kind": kind["kind"], "shares": shares, "rest": max(0, len(order) - MOST_CLASSES), "table": made}


def _class_cell(one: Tree) -> str:
    support = f"{one['supported']:,} in support" if "supported" in one else "{kept:,.0f} +{gained:,.0f} −{lost:,.0f}".format(**one)
    return f"{one['share']['value']:.1%}\n{support}"


def _numbers_of_kinds(kinds: list[Tree], k: int) -> Table:
    columns: Columns = {"arm": str}
    for kind in kinds:
        for head, name in ((f"effective {kind['kind']}", "effective"), (f"{kind['kind']} in {k} samples", "reached")):
            columns[head] = lambda arm, of_arm=kind[name]: cell(of_arm[arm], 2)  # type: ignore[misc]
    note = (
        "effective: the exponential of the entropy of the kinds among the right answers of a problem, mean over problems; in "
        f"{k} samples: expected number of distinct kinds among the right samples."
    )
    return table(columns, kinds[0]["classes"], note)


def _patterns(sets: list[Tree]) -> Table:
    """Reasoning patterns among right samples."""
    columns: Columns = {"samples": lambda one: one["samples"], "task": lambda one: one["task"]}
    for name in dict.fromkeys(name for one in sets for name in one["shares"]):
        columns[name] = lambda one, name=name: cell(one["shares"].get(name))  # type: ignore[misc]
    note = "Share of a problem's right samples with the pattern, mean over problems (Eq. 13), 95 % intervals over problems."
    return table(columns, sets, note, *[text for one in sets for text in one["cautions"]][:6])


def _distinct(summary: Tree) -> list[dict[str, Any]]:
    """Expected number of distinct right answers over k: exact, else from samples."""
    shown = [one for one in summary.get("distinct") or () if one["of"] == "rows" or not summary.get("curves")]
    out = [{**one, "slug": f"-{slug(one['name'])}", "lines": _bands(one["lines"])} for one in shown]
    if curves := summary.get("curves"):
        about = "Expected number of distinct right completions among k samples of a problem, exact, mean over problems."
        if max((len(row["seeds"]) for row in summary["arms"].values()), default=1) > 2:
            about += " Bands: 95 % intervals over training seeds."
        lines = _bands({name: curve["distinct"] for name, curve in curves.items()})
        out.insert(0, {"slug": "", "lines": lines, "about": about})
    return out


def _bands(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: band(intervals) for name, intervals in lines.items()}


def _tails(one: Tree) -> Table:
    """Quantiles of the perplexity under the base."""
    columns: Columns = {"samples": lambda row: row["name"], "number": lambda row: f"{row['samples']:,}"}
    for q in next((row["quantiles"] for row in one["quantiles"] if row["quantiles"]), {}):
        columns[f"{float(q):.0%} quantile"] = lambda row, q=q: cell(row["quantiles"][q], 2) if row["quantiles"] else NONE  # type: ignore[misc]
    note = "Quantiles of the perplexity under the base, each with its 95 % interval over problems. Training seeds are pooled."
    return table(columns, one["quantiles"], note, *dict.fromkeys(filter(None, (row["caution"] for row in one["quantiles"]))))
