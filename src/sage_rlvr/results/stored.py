"""summary.json: rows and their design as strict JSON and back. Format 2; format 1 (of version 0.1) is read by tables of its names.

format    2
rows      the list of comparisons: a, b, metric {name, k, at, temperature, matched}, task, why, family, difference, p, adjusted,
          family_size, outcome, reason, mde, mde_limit, over, mean_a, mean_b, problems, left_out, covers
arms ...  scores and training, see `results.summary`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.moved import renamed
from sage_rlvr.reading import read_json, understood
from sage_rlvr.results.comparisons import TEMPERED, Row
from sage_rlvr.results.design import BASE, Arm, Design, Envelope, Question, Why
from sage_rlvr.results.metric import PAPER, Metric
from sage_rlvr.stats.comparison import Comparison, Outcome, Reason, outcome_of, seeds_reason
from sage_rlvr.stats.intervals import Interval

FORMAT = 2


def read_summary(path: Path) -> dict[str, Any]:
    """A summary.json of format 1 or 2. DataError names a file that cannot be read, or holds no comparisons as they were written."""
    again = f"make it again with: {suggest('sweep', 'DESIGN')}"
    found: dict[str, Any] = read_json(path, advice=again)
    known = found.get("format", found.get("schema"))
    if known not in (1, FORMAT):
        raise DataError(f"{path}: format {known!r}; this version reads 1 and {FORMAT}, use the version that wrote it")
    with understood(path, advice=again):
        found = renamed(found) if known == FORMAT else _upgraded(renamed(found))
        rows_of_summary(found, design_of_summary(found))
    return found


def design_of_summary(found: Mapping[str, Any]) -> Design:
    """The design of a stored summary: arms, control and questions; controls by structure are in its rows."""
    arms = tuple(
        Arm(
            name=row["label"], key=key, recipe=row["recipe"], why=row["why"], guided="dose" in row,
            matched=tuple(row.get("matched", ())),
        )
        for key, row in found["arms"].items()
    )
    control = found["arms"].get(found["control"], {}).get("label", found["control"] or None)
    # where right answers cannot be listed the base has samples alone
    base = found["base"] or any(row["policy"] == BASE for row in found.get("sampled") or ())
    return Design(
        arms=arms, base=BASE if base else None, control=control,
        seeds=tuple(found["seeds"]), title=found["title"], notes=found["notes"],
        questions=tuple(Question(**q) for q in found.get("questions", ())),
        envelopes=tuple(Envelope(name=e["name"], arms=tuple(e["arms"])) for e in found.get("envelopes", ())),
        ceiling=found.get("ceiling"), discarded=tuple(found.get("discarded", ())), facts=found,
    )  # fmt: skip


def rows_of_summary(found: Mapping[str, Any], design: Design) -> list[Row]:
    """Its comparisons, not yet corrected."""
    return [_row(row) for row in found["rows"]] if "rows" in found else list(_old_rows(found, design))


_OF_COMPARISON = ("p", "outcome", "reason", "mde", "mde_limit", "over", "mean_a", "mean_b", "problems")
_OF_ROW = ("a", "b", "task", "why", "family", "adjusted", "family_size", "left_out", "covers")


def row_tree(row: Row) -> dict[str, Any]:
    """A row as strict JSON can hold it."""
    tree = {name: getattr(row, name) for name in _OF_ROW} | {name: getattr(row.comparison, name) for name in _OF_COMPARISON}
    tree |= {"metric": asdict(row.metric), "difference": asdict(row.comparison.difference)}
    return dict(plain(tree))


def _row(tree: Mapping[str, Any]) -> Row:
    comparison = Comparison(
        difference=interval(tree["difference"]), p=_number(tree["p"]), outcome=tree["outcome"], reason=Reason(tree["reason"]),
        mde=_number(tree["mde"], math.inf), over=tree["over"], mean_a=_number(tree["mean_a"]), mean_b=_number(tree["mean_b"]),
        problems=tree["problems"],
    )  # fmt: skip
    return Row(
        a=tree["a"], b=tree["b"], metric=Metric(**tree["metric"]), comparison=comparison, task=tree["task"], why=tree["why"],
        left_out=tree["left_out"], covers=tuple(tree["covers"]) if tree["covers"] else None,
    )  # fmt: skip


def interval(tree: Mapping[str, Any]) -> Interval:
    """An interval of JSON; null ends are infinite."""
    low, high = _number(tree["low"], -math.inf), _number(tree["high"], math.inf)
    return Interval(
        value=_number(tree["value"]), low=low, high=high, level=tree["level"], over=tree["over"], n=tree["n"]
    )


def _number(x: float | None, otherwise: float = math.nan) -> float:
    return otherwise if x is None else x


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it: numpy becomes lists and numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


# ------------------------------------------------------------------------------------------------------------------
# format 1

_WHY: dict[str, Why] = {
    "control": "control", "plain": "plain", "placebo": "placebo", "no_kl": "no_kl", "matched": "matched", "base": "base",
    "frontier_base": "base", "frontier_control": "control", "near": "control", "away": "control", "power": "power",
}  # fmt: skip
_KS = (1, 8, 64, 256)


def _upgraded(old: Mapping[str, Any]) -> dict[str, Any]:
    """A summary of format 1 in the places of format 2, but for its rows."""
    ends, control = old.get("endpoints") or {}, old["arms"][old["control"]]
    found = {name: value for name, value in old.items() if name != "schema"}
    found |= {"format": FORMAT, "title": old["title"], "ks": list(_KS), "gains": ends.get("gains")}
    for name in ("cold", "power"):
        found[name] = {key: v for key, v in ends[name].items() if key != "comparisons"} if ends.get(name) else None
    found["relabelled"] = old["relabelled"] | {"have": len(control["seeds"])}
    found["relabelled"]["first"] = [_worded(text) for text in old["relabelled"].get("first", ())]
    return found


def _worded(text: str) -> str:
    """A sentence of format 1 in today's words."""
    return re.sub(r"this design [a-z ]+ of ([\d.]+) \(4 times in 5\)", r"minimum detectable difference \1 (80 % power)", text)


def _old_metrics(worlds: Sequence[str]) -> dict[tuple[bool, str], tuple[Metric, str]]:
    """(of power, name as format 1 wrote it) -> metric and task."""
    out: dict[tuple[bool, str], tuple[Metric, str]] = {}
    for k, name, power in product(_KS, ("pass", "distinct"), (False, True)):
        bare = Metric(name=name, k=k)  # type: ignore[arg-type]
        named = {
            "{}": bare, f"{{}} at T = {PAPER:g}": replace(bare, temperature=PAPER),
            "{} at equal pass@1 near T = 1": replace(bare, at="near"), "{}, each at its best": replace(bare, at="best"),
            "mean {} at equal pass@1": replace(bare, at="equal"),
            "{} at equal pass@1": replace(bare, at="a equal" if power else "equal"),
        }  # fmt: skip
        out |= {(power, form.format(bare.bare)): (metric, "") for form, metric in named.items()}
        out |= {(power, f"{bare.bare} on {world}"): (bare, world) for world in worlds}
    return out


def old_lists(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The comparisons of a summary of format 1, in order, but for those of the raw KL."""
    ends = found.get("endpoints") or {}
    return [*found["comparisons"], *(row for of in ("cold", "power") for row in (ends.get(of) or {}).get("comparisons", ()))]


def _old_rows(found: Mapping[str, Any], design: Design) -> Iterator[Row]:
    metrics, made = _old_metrics(tuple(found["away"])), old_lists(found)
    ends = ("", " at any temperature", " at the same raw KL")
    names = {name + end: name for name in (*design.names, BASE) for end in ends} | {TEMPERED: TEMPERED}
    why_of = {
        (names[row["a"]], names[row["b"]]): _WHY[row["kind"]]
        for row in made
        if row["kind"] in ("plain", "placebo", "no_kl")
    }
    for row in made:
        a, b, why = names[row["a"]], names[row["b"]], _WHY[row["kind"]]
        metric, task = metrics[why == "power", row["metric"]]
        if row["kind"] in ("near", "control", "frontier_control"):
            why = "control" if b == design.control else why_of.get((a, b), why)
        metric = replace(metric, matched=why == "matched")
        yield Row(a=a, b=b, metric=metric, comparison=_old_comparison(row), task=task, why=why)
    for row in (found.get("endpoints") or {}).get("leash") or ():
        pair, metric = (row["a"], row["b"]), Metric(name="raw KL", at="end")
        yield Row(a=pair[0], b=pair[1], metric=metric, comparison=_old_comparison(row), why=why_of.get(pair, "control"))


def _old_comparison(row: Mapping[str, Any]) -> Comparison:
    """Its outcome is read off its numbers again."""
    gap, p = interval(row["difference"]), _number(row["p"])
    reason = seeds_reason(gap.n) or (Reason.NONE if math.isfinite(p) else Reason.NO_SCATTER)
    outcome: Outcome = "unknown" if reason else outcome_of(gap, p, gap.level)
    return Comparison(
        difference=gap, p=p, outcome=outcome, reason=reason, mde=_number(row.get("detectable"), math.inf), over="training seeds",
        mean_a=_number(row.get("mean_a")), mean_b=_number(row.get("mean_b")), problems=row.get("problems"),
    )  # fmt: skip
