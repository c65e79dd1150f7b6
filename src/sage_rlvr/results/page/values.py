"""Compute the values of a page: for report.md.j2, its figures and summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.evaluation.record import Record
from sage_rlvr.models.folders import long_name
from sage_rlvr.results import sentences, tables
from sage_rlvr.results.design import BASE
from sage_rlvr.results.findings import Findings
from sage_rlvr.results.metric import PAPER, REFERENCE, Metric
from sage_rlvr.results.page import answers, samples, scores, training
from sage_rlvr.results.page.rows import row_sets
from sage_rlvr.results.page.scores import PolicyScores
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.row_text import interval_text
from sage_rlvr.results.summary_io import interval, row_of_tree
from sage_rlvr.stats.comparison import FEWEST_SEEDS, signed
from sage_rlvr.tasks.chance import Chance

HELD_FIXED = (
    "Intervals over training seeds hold these problems fixed: they cover new training runs of the same methods on these problems, "
    "not new problems."
)
ONE_SEED = (
    "Each arm was trained once: every result is about these checkpoints, on problems like these. Another seed could reorder the "
    "arms."
)
CHOSEN_HERE = "The best temperature of each policy was selected on these problems, so each best pass@1 has a small upward bias."


def page_of(
    results: Results,
    findings: Findings,
    summary: Mapping[str, Any],
    *,
    title: str = "",
    shown: int = 16,
    brief: bool = False,
) -> dict[str, Any]:
    """The values of report.md.j2 by name, with `order` (of the arms' colors), `browser` (data of the page's script) and `summary`
    (for summary.json).

    summary: of `summary_of`. shown: samples per problem and store on the page. brief: only the sentences and tables of a
    summary."""
    design, k, them = results.design, results.k, scores.policies(summary)
    base = design.base or next(iter(them), "")
    about = _about(summary, them)
    values: dict[str, Any] = {"summary": summary, "brief": brief, "base": base, "k": k, "about": about, "seeds": about["seeds"]}
    values |= _comparison_values(results, findings, summary, list(dict.fromkeys([*them, *design.names])))
    values |= scores.scores_of(
        summary,
        them,
        base,
        _differences(results, summary, them, base),
        control=design.control,
        record=None if design.facts else results.base_record,
        swept=bool(design.facts),
        stored=results.stored is not None,
    )
    values["crossings"] = [scores.verdict_of(verdict, summary) for verdict in findings.verdicts if verdict.curve]
    trained = training.in_order(results.runs, design)
    evaluated = {(row.arm, row.seed) for row in results.table.rows if row.is_main}
    values |= training.runs_of(summary, them, base, design, results.runs, trained, evaluated)
    stores = [] if brief else _sample_sets(results, shown)
    browsed = samples.browsed(stores)
    values["samples"] = samples.about(stores, browsed)
    values["browser"] = samples.data_of(browsed) if browsed else None
    if not brief:
        values |= answers.answers_of(_records(results), k, summary, stores, findings.verdicts)
    values |= _colors(summary, [*them], [*design.names], [s.arm for s in stores], [*trained])
    usual = _usual_title(summary, [*them, *(s.arm for s in stores)])
    values["title"] = title or design.title[:1].upper() + design.title[1:] or usual
    return values


def _differences(
    results: Results, summary: Mapping[str, Any], them: Mapping[str, PolicyScores], base: str
) -> list[dict[str, Any]]:
    """Paired differences over k: exact, else from samples."""
    arms = results.table.exact().where(task="").by_arm()
    exact = scores.exact_differences(results.design, arms, base, results.k, results.several)
    return exact or scores.sampled_differences(results.table, scores.sampled_apart(summary, them), results.k)


def _sample_sets(results: Results, shown: int) -> list[samples.SampleSet]:
    """The samples of stores, then those of files of rows."""
    sampled = results.table.sampled()
    return [*samples.sample_sets(sampled, results.design, shown), *row_sets(sampled.rows, shown)]


def _colors(
    summary: Mapping[str, Any], exact: list[str], arms: list[str], stores: list[str], trained: list[str]
) -> dict[str, Any]:
    """The order of names by which they get their colors, and the names of the base at lower temperatures, drawn like the base."""
    sampled = summary.get("sampled") or ()  # a stored summary has no stores
    bases = [row for row in sampled if row["policy"] == BASE]
    colder = [row["label"] for row in bases if row["temperature"] != REFERENCE] if len(bases) > 1 else []
    order = [*exact, *(row["label"] for row in bases), *arms, *stores, *(row["label"] for row in sampled), *trained]
    return {"order": [name for name in order if name not in colder], "colder": colder}


def _usual_title(summary: Mapping[str, Any], names: list[str]) -> str:
    """The names of the policies, or their number."""
    if not names:
        names = [row["policy"] for row in summary.get("sampled") or ()]
    names = list(dict.fromkeys(names))
    return " · ".join(names) if 0 < len(names) < 5 else f"{len(names)} policies"


def _records(results: Results) -> dict[str, list[Record]]:
    """The exact records of the main task of each policy, one per training seed, the base first."""
    names = dict.fromkeys(filter(None, (results.design.base, *results.design.names)))
    of_policy = {}
    for name in names:
        keys = sorted(key for key in results.records if key[0] == name and key[2] == "")
        if keys:
            of_policy[name] = [results.records[key] for key in keys]
    return of_policy


# ------------------------------------------------------------------------------------------------------------------
# words


def _about(summary: Mapping[str, Any], them: Mapping[str, PolicyScores]) -> dict[str, Any]:
    """What was trained and evaluated: day of the training, base policy with its size, steps, training seeds, problems."""
    policy = summary.get("policy") or {}
    size = policy.get("parameters")
    seeds = max((len(p.seeds) for p in them.values()), default=0)
    return {
        "policies": len(them),
        "seeds": seeds,
        "trained_seeds": seeds if summary["arms"] else 0,
        "model": long_name(policy["model"]) if policy.get("model") else "",
        "millions": f"{size / 1e6:,.2f}" if size else "",
        "sampled_on": sorted({row["task"] for row in summary.get("sampled") or ()}),
    }


def _comparison_values(results: Results, findings: Findings, summary: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """The answer and the rows by section: primary, exploratory, at T = 0.3, against the tempered base."""
    rows = findings.rows
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
    paragraphs = sentences.paragraphs(rows, results, findings.verdicts) if rows else [sentences.nothing(results)]
    return {
        "failed": list(summary.get("failed", ())),
        "answer": paragraphs[0],
        "detail": " ".join(paragraphs[1:]),
        "starts": sentences.starts(results.starts),
        "families": sentences.families(rows),
        "caveats": _caveats(results, summary, rows),
        "notes": summary["notes"],
        "said": {name: _rows(group, order) for name, group in groups.items()},
        "compared": bool(rows),
        "room": tables.room(summary),
        "gains": [_gain(row, chance) for row in summary.get("gains") or ()],
        "relabelled": _relabelled(summary),
        "left_out": list(dict.fromkeys([*results.notes, *summary["left_out"]])),
        "sources": list(results.sources),
    }


def _caveats(results: Results, summary: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """What the outcomes do not cover."""
    caveats = sentences.cautions(rows)
    if not summary["arms"] or not results.design.base:
        return caveats
    if results.several or results.stored:
        caveats.append(HELD_FIXED)
    else:  # ONE_SEED after the sentence on seeds that a claim needs, which the cautions may have
        caveats = [*dict.fromkeys([*caveats, sentences.CLAIM]), ONE_SEED]
    if any(len(row.get("frontier", ())) > 1 for row in summary["arms"].values()):
        caveats.append(CHOSEN_HERE)
    return caveats


def _rows(rows: Sequence[Row], order: Sequence[str]) -> dict[str, Any] | None:
    """Rows as lines of groups, as a table of arms and groups, and as full sentences; None without rows."""
    if not rows:
        return None
    texts = [sentences.sentence(row) for row in rows]
    return {"lines": sentences.lines(rows), "table": tables.effects(rows, order), "sentences": texts}


def _gain(row: Mapping[str, Any], chance: Chance | None) -> dict[str, Any]:
    """The paper's gain beside the interval of Branch minus GRPO here."""
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
    label = summary["arms"].get(summary["control"], {}).get("label", summary["control"])
    first = [sentences.sentence(row_of_tree(tree)) for tree in summary["relabelled"].get("first", ())]
    return {**summary["relabelled"], "first": first, "control": label, "needs": 2 * FEWEST_SEEDS}
