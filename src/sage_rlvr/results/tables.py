"""Tables of strings, for a terminal, Markdown and HTML alike: the one helper, and scores, effects and training as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.results.comparisons import Row
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.words import chip
from sage_rlvr.stats.intervals import Interval

NOT_RUN = "not run"
NONE = "–"
CHIPS = f"A cell: the outcome for the arm of the row, the difference, its 95 % interval. {NONE}: not compared."


@dataclass(frozen=True, kw_only=True)
class Table:
    """A header and rows of strings. A cell may hold a newline (an interval stands under its number); `notes` explain columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """GitHub Markdown; newlines in cells become <br>, pipes are escaped."""
        lines = [self.header, tuple("---" if i == 0 else "---:" for i in range(len(self.header))), *self.rows]
        table = "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)
        return table + "".join(f"\n\n{escaped(note)}" for note in self.notes)

    def fitting(self, width: int) -> tuple[Table, tuple[str, ...]]:
        """The columns that a terminal of this width has room for, and the headers of the others."""
        columns = list(zip(self.header, *self.rows, strict=True))
        widths = [max(len(line) for cell in column for line in cell.split("\n")) + 3 for column in columns]
        kept = [i for i in range(len(columns)) if sum(widths[: i + 1]) <= width]
        shown = Table(
            header=tuple(self.header[i] for i in kept), rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            notes=self.notes,
        )  # fmt: skip
        return shown, tuple(" ".join(head.split()) for head in self.header[len(kept) :])


def escaped(cell: str) -> str:
    """A cell in Markdown."""
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", "<br>")


def table(columns: Mapping[str, Callable[[Any], str]], things: Iterable[Any], *notes: str) -> Table:
    """One row per thing: header -> the cell of a thing."""
    rows = tuple(tuple(cell(thing) for cell in columns.values()) for thing in things)
    return Table(header=tuple(columns), rows=rows, notes=notes)


def effects(rows: Sequence[Row], names: Sequence[str] = ()) -> Table:
    """Rows: arms in this order; columns: rival and metric. A cell: outcome, difference, interval."""
    columns: dict[tuple[str, Metric, str], None] = {}
    cells: dict[tuple[str, tuple[str, Metric, str]], list[str]] = {}
    for row in rows:
        key = ("its placebo" if row.why == "placebo" else row.b, row.metric, row.task)
        columns.setdefault(key)
        cells.setdefault((row.a, key), []).append(chip(row))
    arms = [
        *(name for name in names if any(name == a for a, _ in cells)),
        *dict.fromkeys(a for a, _ in cells if a not in names),
    ]
    heads = tuple(f"vs {rival}\n{metric}" + (f" on {task}" if task else "") for rival, metric, task in columns)
    body = tuple((name, *("\n".join(cells.get((name, key), [NONE])) for key in columns)) for name in arms)
    return Table(header=("arm", *heads), rows=body, notes=(CHIPS,))


def cell(found: Interval | Mapping[str, Any] | float | None, digits: int = 3, *, inline: bool = False) -> str:
    """A value with its interval: beneath it, or in brackets behind it. An interval of JSON is a mapping."""
    if found is None or isinstance(found, (int, float)):
        return NONE if found is None else f"{found:,.{digits}f}"
    tree = found if isinstance(found, Mapping) else vars(found)
    value, low, high = (math.inf if tree[end] is None else tree[end] for end in ("value", "low", "high"))
    text = f"{value:,.{digits}f}"
    if not math.isfinite(high - low):
        return f"{text} (one seed)" if inline else text
    return (
        f"{text} ({low:.{digits}f} to {high:.{digits}f})" if inline else f"{text}\n{low:.{digits}f}–{high:.{digits}f}"
    )


# ------------------------------------------------------------------------------------------------------------------
# scores and training, from the tree of `results.summary`


def scores(found: Mapping[str, Any]) -> Table:
    """Arm, seeds, pass@k with intervals, distinct right completions, best pass@1 at any temperature, raw KL."""
    ks, wanted = list(found["ks"]), len(found["seeds"])
    columns: dict[str, Callable[[Any], str]] = {"arm": lambda row: row["label"]}
    columns["seeds"] = lambda row: "" if row["label"] == "base" else f"{len(row['seeds'])} of {wanted}"
    for k in ks:
        columns[f"pass@{k}"] = lambda row, k=k: cell(row["pass"][str(k)]) if "pass" in row else NOT_RUN
    columns[f"distinct in {ks[-1]}"] = lambda row: cell(row.get("distinct"), 1)
    columns["best pass@1\nat any T"] = lambda row: cell(row.get("best_pass1"))
    columns["raw KL"] = lambda row: cell(row.get("kl_raw"))
    base = [] if found["base"] is None else [base_row(found["base"])]
    return table(columns, [*base, *found["arms"].values()])


def base_row(base: Mapping[str, Any]) -> dict[str, Any]:
    """The base among the arms."""
    return {
        "label": "base",
        "seeds": [0],
        "pass": base["pass"],
        "distinct": base["distinct"],
        "best_pass1": base["best"]["pass1"],
    }


def away(rows: Mapping[str, Any], found: Mapping[str, Any]) -> Table:
    """pass@k on another world."""
    columns: dict[str, Callable[[Any], str]] = {"arm": lambda row: row["label"]}
    columns["seeds"] = lambda row: (
        f"{len(row.get('seeds', ()))} of {len(found['seeds'])}" if row["label"] != "base" else ""
    )
    for k in found["ks"]:
        columns[f"pass@{k}"] = lambda row, k=k: cell(row["pass"][str(k)]) if "pass" in row else NOT_RUN
    columns["best pass@1\nat any T"] = lambda row: cell(row.get("best_pass1"))
    base = [] if rows["base"] is None else [base_row(rows["base"])]
    arms = [{"label": arm["label"]} | (rows["arms"].get(name) or {}) for name, arm in found["arms"].items()]
    return table(columns, [*base, *arms])


def costs(found: Mapping[str, Any]) -> Table:
    """Support against the base, tokens, seconds, and how much the guide did."""

    def kept(what: str) -> Callable[[Any], str]:
        return lambda row: f"{row['support'][what]['value']:,.0f}" if "support" in row else ""

    def strength(what: str, form: str) -> Callable[[Any], str]:
        return lambda row: (
            ", ".join(f"{row['dose'][f'{what}_{when}']:{form}}" for when in ("first", "last"))
            if row.get("dose")
            else ""
        )

    columns: dict[str, Callable[[Any], str]] = {"arm": lambda row: row["label"]}
    columns |= {"support kept": kept("preserved"), "gained": kept("gained"), "lost": kept("lost")}
    columns["tokens drawn, M"] = lambda row: f"{row['tokens'] / 1e6:.2f}" if "tokens" in row else ""
    columns["training, s"] = lambda row: f"{row['train_seconds']:.0f}" if "train_seconds" in row else ""
    columns["q not 1 on\n(first, last tenth)"] = strength("active", ".1%")
    columns["mean q\n(first, last tenth)"] = strength("q", ".4f")
    note = (
        "Support: right completions with probability above 1/256, over all problems, against the base. Tokens and seconds (by the "
        "clock, one thread per run) are means per run."
    )
    return table(columns, [row for row in found["arms"].values() if row["seeds"]], note)


def training(found: Mapping[str, Any]) -> Table | None:
    """Training reward beside the test score, gradient norms in thirds of the run, zero-variance groups; None where not logged."""
    rows = [row for row in found["arms"].values() if "reward" in row or "grad_norm" in row]
    if not rows:
        return None

    def of(what: str, when: str) -> Callable[[Any], str]:
        return lambda row: cell(row[what][when]) if what in row else ""

    columns: dict[str, Callable[[Any], str]] = {"arm": lambda row: row["label"]}
    columns |= {"training reward,\nfirst tenth": of("reward", "first"), "last tenth": of("reward", "last")}
    columns["test pass@1"] = lambda row: cell(row["pass"]["1"]) if "pass" in row else ""
    columns |= {
        "gradient norm,\nearly third": of("grad_norm", "early"),
        "middle": of("grad_norm", "middle"),
        "late": of("grad_norm", "late"),
    }
    columns |= {"zero-variance groups,\nfirst tenth": of("dead", "first"), "last tenth ": of("dead", "last")}
    note = (
        "Training reward: mean of the samples that were drawn, each tenth of the steps on the problems that it drew. Gradient "
        "norms are those before clipping. Zero-variance groups: the share of the groups drawn in which all rewards are equal, so "
        "that no advantage is left."
    )
    return table(columns, rows, note)
