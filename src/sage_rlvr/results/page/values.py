"""Compute the values of a page from a summary: for report.md.j2 and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.models.folders import long_name
from sage_rlvr.results import tables
from sage_rlvr.results.page import answers, scores, training
from sage_rlvr.results.page.scores import Scores
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.metric import PAPER, REFERENCE, Metric
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, signed
from sage_rlvr.verdicts.summary_io import interval, row_of_tree, rows_of_summary
from sage_rlvr.verdicts.text import limits
from sage_rlvr.verdicts.text import rows as row_texts
from sage_rlvr.verdicts.text.words import interval_text


def page_of(
    summary: Mapping[str, Any], browser: Mapping[str, Any] | None = None, *, title: str = "", brief: bool = False
) -> dict[str, Any]:
    """The values of report.md.j2 by name, from a summary and nothing else, with `order` (of the arms' colors).

    browser: the texts of samples, of `details.samples.browser_of`. brief: only the sentences and tables of a summary."""
    k, base, them = max(summary["ks"]), summary["baseline"], tables.evaluated(summary)
    about = _about(summary, them)
    values: dict[str, Any] = {"summary": summary, "brief": brief, "base": base, "k": k, "about": about, "seeds": about["seeds"]}
    values |= _comparison_values(summary, list(dict.fromkeys([*them, *(row["label"] for row in summary["arms"].values())])))
    values |= scores.scores_of(summary, them, base)
    values |= training.runs_of(summary, them, base, k)
    values |= answers.answers_of(summary, k)
    stores = list(dict.fromkeys(store["arm"] for store in browser["data"]["sets"])) if browser else []
    values["samples"] = browser and {name: browser[name] for name in ("count", "about")}
    values["browser"] = browser and browser["data"]
    values |= _colors(summary, values, [*them], stores)
    own_title = str(summary["title"])
    values["title"] = title or own_title[:1].upper() + own_title[1:] or _usual_title(summary, [*them, *stores])
    return values


def _colors(summary: Mapping[str, Any], values: Mapping[str, Any], exact: list[str], stores: list[str]) -> dict[str, Any]:
    """The order of names by which they get their colors, and the names of the base at lower temperatures, drawn like the base."""
    sampled = summary["sampled"]
    bases = [row for row in sampled if row["policy"] == BASE]
    colder = [row["label"] for row in bases if row["temperature"] != REFERENCE] if len(bases) > 1 else []
    order = [*exact, *(row["label"] for row in bases), *(row["label"] for row in summary["arms"].values()), *stores]
    for drawn in (*(one["lines"] for one in values["distinct"]), *(one["tails"] for one in values["perplexity"])):
        order += drawn
    order += [*(row["label"] for row in sampled), *summary["states"], *(summary.get("training") or ())]
    return {"order": [name for name in dict.fromkeys(order) if name not in colder], "colder": colder}


def _usual_title(summary: Mapping[str, Any], names: list[str]) -> str:
    """The names of the policies, or their number."""
    if not names:
        names = [row["policy"] for row in summary["sampled"]]
    names = list(dict.fromkeys(names))
    return " · ".join(names) if 0 < len(names) < 5 else f"{len(names)} policies"


# ------------------------------------------------------------------------------------------------------------------
# words


def _about(summary: Mapping[str, Any], them: Scores) -> dict[str, Any]:
    """The facts of training and evaluation: day of the training, base policy with its size, steps, training seeds, problems."""
    policy = summary["policy"] or {}
    size = policy.get("parameters")
    seeds = max((len(row["seeds"]) for row in them.values()), default=0)
    return {
        "policies": len(them),
        "seeds": seeds,
        "trained_seeds": seeds if summary["arms"] else 0,
        "model": long_name(policy["model"]) if policy.get("model") else "",
        "millions": f"{size / 1e6:,.2f}" if size else "",
        "sampled_on": sorted({row["task"] for row in summary["sampled"]}),
    }


def _comparison_values(summary: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """The question, the answer, and the rows by section: primary, exploratory, at T = 0.3, against the tempered base."""
    rows = rows_of_summary(summary)
    cold = [row for row in rows if row.metric.temperature == PAPER and not row.task]
    power = [row for row in rows if row.why == "power" and row.family != "primary"]
    main = [row for row in rows if row not in cold and row not in power]
    groups = {
        "primary": [row for row in main if row.family == "primary"],
        "exploratory": [row for row in main if row.family != "primary"],
        "cold": cold,
        "power": power,
    }
    chance = tables.chance_in(summary)
    first, *rest = summary["answer"]
    return {
        "failed": list(summary["failed"]),
        "question": row_texts.question(groups["primary"]),
        "answer": first,
        "detail": " ".join(rest),
        "starts": row_texts.starts(summary["starts"]),
        "families": row_texts.families(rows),
        "caveats": _caveats(summary, rows),
        "notes": summary["notes"],
        "said": {name: _rows(group, order) for name, group in groups.items()},
        "compared": bool(rows),
        "room": tables.room(summary),
        "gains": [_gain(row, chance) for row in summary["gains"] or ()],
        "relabelled": _relabelled(summary),
        "left_out": list(dict.fromkeys(summary["left_out"])),
        "sources": summary.get("sources") or (),
    }


def _caveats(summary: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """The limits of the outcomes."""
    caveats, arms = row_texts.cautions(rows), summary["arms"].values()
    if not arms or not summary["baseline"]:
        return caveats
    if any(len(row["seeds"]) > 1 for row in (*arms, *summary["sampled"])):
        caveats.append(limits.FIXED)
    else:  # ONCE after the sentence on seeds that a claim needs, which the cautions may have
        caveats = [*dict.fromkeys([*caveats, row_texts.CLAIM]), limits.ONCE]
    if any(len(row.get("frontier", ())) > 1 for row in arms):
        caveats.append(limits.CHOSEN_HERE)
    return caveats


def _rows(rows: Sequence[Row], order: Sequence[str]) -> dict[str, Any] | None:
    """Rows as lines of groups, as a table of arms and groups, and as full sentences; None without rows."""
    if not rows:
        return None
    texts = [row_texts.sentence(row) for row in rows]
    return {"lines": row_texts.lines(rows), "table": tables.effects(rows, order), "sentences": texts}


def _gain(row: Mapping[str, Any], chance: Chance | None) -> dict[str, Any]:
    """The paper's gain, and the interval of Branch minus GRPO in these results."""
    metric, gap = Metric.parse(row["metric"]), row["difference"]
    tested = gap["low"] is not None
    floor = ""
    if chance is not None and metric.k not in (None, 1):
        floor = f"{chance.at(metric.k):.3f}"
    return {
        **row,
        "metric": str(metric),
        "gain": signed(row["gain"]),
        "tested": tested,
        "difference": signed(gap["value"]) if tested else "",
        "interval": interval_text(interval(gap)) if tested else "",
        "chance": floor,
    }


def _relabelled(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """A/A check of the control: counts of splits without a significant difference; None without a control."""
    if not summary["control"]:
        return None
    first = [row_texts.sentence(row_of_tree(tree)) for tree in summary["relabelled"].get("first", ())]
    return {**summary["relabelled"], "first": first, "control": tables.control_of(summary), "needs": 2 * FEWEST_SEEDS}
