"""Tables of strings for the terminal, Markdown and HTML: scores, effects and training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sage_rlvr.escaping import escaped
from sage_rlvr.verdicts.chance import BELOW, KEY, UNKNOWN, Chance, chance_of_tree
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.metric import FEW, Metric
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, SEEDS, signed
from sage_rlvr.verdicts.stats.samples.clusters import CLUSTERS
from sage_rlvr.verdicts.text.rows import chip, column_of

NOT_RUN, SAMPLED = "not run", "sampled"
SAMPLES = "sampled: evaluated only by samples; see \"From samples\"."
NONE = "–"
EXACT_KL = "KL to base,\nnats per token"
EXACT = "KL to base: reverse, exact over the vocabulary, on completions of the trained policy at temperature 1."
CHIPS = (
    f"Each cell: outcome for the arm of the row, difference, 95 % interval and, if not significant, the detectable difference. "
    f"{NONE}: not compared."
)
SHOWN = (1, FEW, 32, 64)
"""The k of a table from samples, besides the largest."""
ROOM = (
    "Scores at the pass@1 of the arm at temperature 1, means over training seeds. Baselines: their best mixture over arms and "
    "temperatures; beyond their highest pass@1, their highest pass@k. Per completion: a random choice for each completion, with "
    "the base and a uniform guesser allowed; per problem: a random choice for each problem. "
    "Share of headroom: the gain relative to the distance from the baselines to the oracle, which was trained on right answers. "
    "Log odds: the gain over the baselines.",
)
Columns = dict[str, Callable[[Any], str]]
Tree = Mapping[str, Any]
TRAINING = {  # names of metrics.jsonl -> (title, unit of the axis)
    "reward/mean": ("Reward", "mean reward"),
    "kl/to_reference": ("Raw KL to the reference", "nats per token"),
    "kl/to_anchor": ("KL to the shaped reference", "nats per token"),
    "policy/entropy": ("Policy entropy", "nats per token"),
    "guide/q_mean": ("Mean of q", "mean over tokens"),
    "guide/active_frac": ("Tokens with q other than 1", "share of tokens"),
    "reward/zero_variance_frac": ("Zero-variance groups", "share of groups"),
    "optimizer/grad_norm": ("Gradient norm", "before clipping"),
}
"""The logged metrics that summary.json keeps step by step and the page draws."""


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas data frame. ModuleNotFoundError where pandas is not installed."""
    try:
        import pandas  # optional
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("to_frame() needs pandas: pip install pandas. `.rows` has the same as dicts") from error
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A header and rows of strings. A cell may contain newlines (number, then interval); `notes` explain the columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self, chips: bool = False) -> str:
        """GitHub Markdown; newlines in cells become <br>. chips: the first line of a cell is an outcome, in bold."""

        def line(cells: Sequence[str], bold: bool) -> str:
            texts = [_cell(text, bold and index > 0) for index, text in enumerate(cells)]
            return f"| {' | '.join(texts)} |"

        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        rule = "| --- |"
        for column in columns[1:]:
            rule += " :--- |" if _is_prose(column) else " ---: |"
        lines = [line(self.header, False), rule]
        lines += [line(row, chips) for row in self.rows]
        paragraphs = ["\n".join(lines), *(escaped(note) for note in self.notes)]
        return "\n\n".join(paragraphs)

    def only(self, wanted: Callable[[str], bool]) -> Table:
        """The table with the columns whose header is wanted."""
        kept = [i for i, head in enumerate(self.header) if wanted(head)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, header=tuple(self.header[i] for i in kept), rows=rows)

    def fitting(self, width: int) -> tuple[Table, tuple[str, ...]]:
        """The columns that fit into a terminal of this width, and the headers of the other columns."""
        kept, total = 0, 0
        for column in zip(self.header, *self.rows, strict=True):
            lines = [line for cell in column for line in cell.split("\n")]
            total += max(len(line) for line in lines) + 3
            kept += total <= width
        rows = tuple(row[:kept] for row in self.rows)
        left_out = tuple(" ".join(head.split()) for head in self.header[kept:])
        return Table(header=self.header[:kept], rows=rows, notes=self.notes), left_out


PROSE = 40  # characters of a line beyond which a column is read and not compared: it stands left and may wrap


def _is_prose(column: Sequence[str]) -> bool:
    return any(len(line) > PROSE for cell in column for line in cell.split("\n"))


def _cell(text: str, bold: bool) -> str:
    first, *rest = map(escaped, text.split("\n"))
    if bold and first != NONE:
        first = f"**{first}**"
    return "<br>".join([first, *rest])


def table(columns: Mapping[str, Callable[[Any], str]], things: Iterable[Any], *notes: str) -> Table:
    """A table with one row per item; `columns`: header -> function from an item to its cell."""
    rows = []
    for thing in things:
        rows.append(tuple(cell(thing) for cell in columns.values()))
    return Table(header=tuple(columns), rows=tuple(rows), notes=notes)


def effects(rows: Sequence[Row], names: Sequence[str] = ()) -> Table:
    """Rows: arms in this order; columns: second arm and metric. Each cell: outcome, difference, interval."""
    columns = grouped(rows, column_of)
    compared = dict.fromkeys(row.a for row in rows)
    arms = dict.fromkeys([*(name for name in names if name in compared), *compared])
    by_arm = [grouped(of_column, lambda row: row.a) for of_column in columns.values()]
    body = []
    for name in arms:
        cells = ["\n".join(map(chip, column.get(name, ()))) or NONE for column in by_arm]
        body.append((name, *cells))
    return Table(header=("arm", *columns), rows=tuple(body), notes=(CHIPS,))


def cell(estimate: Interval | Mapping[str, Any] | float | None, digits: int = 3) -> str:
    """A value with its interval on the next line. An interval over two training seeds is left out because it covers impossible
    values. An interval from JSON is a mapping."""
    if estimate is None:
        return NONE
    if isinstance(estimate, (int, float)):
        return f"{estimate:,.{digits}f}"
    tree = estimate if isinstance(estimate, Mapping) else vars(estimate)
    value, low, high = (math.inf if tree[end] is None else tree[end] for end in ("value", "low", "high"))
    text = f"{value:,.{digits}f}"
    too_few = tree.get("over", "").startswith(SEEDS) and tree.get("n", FEWEST_SEEDS) < FEWEST_SEEDS
    if too_few or not math.isfinite(high - low):
        return text
    return f"{text}\n{low:.{digits}f}–{high:.{digits}f}"


def in_line(estimate: Interval) -> str:
    """`cell` in one line: "0.099 (0.086–0.114)"."""
    value, *ends = cell(estimate).split("\n")
    return " ".join([value, *(f"({text})" for text in ends)])


# ------------------------------------------------------------------------------------------------------------------
# scores and training, from the tree of `results.summary`


def scores(summary: Mapping[str, Any], world: str | None = None) -> Table:
    """Arm, seeds, pass@k with intervals, distinct right completions, best pass@1 at any temperature, KL. world: scores on
    another task, without distinct completions and KL."""
    here = summary if world is None else summary["away"][world]
    wanted = len(summary["seeds"])
    chance = chance_in(summary, world or "")
    sampled = {} if world else {row["policy"]: len(row["seeds"]) for row in summary["sampled"]}

    def seeds(row: Mapping[str, Any]) -> str:
        if row["label"] == "base":
            return ""
        return f"{len(row.get('seeds', ())) or sampled.get(row['label'], 0)} of {wanted}"

    def score(row: Mapping[str, Any], k: int) -> str:
        if "pass" in row:
            return passed(row, k, chance)
        return SAMPLED if row["label"] in sampled else NOT_RUN

    columns: Columns = {"arm": lambda row: row["label"], "seeds": seeds}
    for k in summary["ks"]:
        columns[f"pass@{k}"] = partial(score, k=k)
    if world is None:
        columns[f"distinct in {summary['ks'][-1]}"] = lambda row: cell(row.get("distinct"), 1)
    shared = () if here["base"] is None else here["base"]["frontier"]  # other tasks have only the frontier of the base

    def best(row: Mapping[str, Any]) -> str:
        return cell(row.get("best_pass1")) if len(row.get("frontier", shared)) > 1 else NONE

    columns["best pass@1\nat any T"] = best
    if world is None:
        columns["raw KL"] = lambda row: cell(row.get("kl_raw"))
    exact = world is None and any("kl_exact" in arm for arm in summary["arms"].values())
    if exact:
        columns[EXACT_KL] = lambda row: cell(row.get("kl_exact"), 4)
    rows = [] if here["base"] is None else [base_row(here["base"], None if world else summary.get("curves"))]
    for key, arm in summary["arms"].items():
        rows.append({"label": arm["label"], **(here["arms"].get(key) or {})})
    made = with_chance(table(columns, rows), chance, {f"pass@{k}": k for k in summary["ks"]})
    notes = []
    if any(SAMPLED in row for row in made.rows):
        notes.append(SAMPLES)
    if exact:
        notes.append(EXACT)
    return replace(made, notes=(*notes, *made.notes))


def chance_in(summary: Mapping[str, Any], task: str = "") -> Chance | None:
    """The chance floor of a summary's task."""
    return chance_of_tree(summary[KEY].get(task))


def passed(row: Mapping[str, Any], k: int, chance: Chance | None) -> str:
    """The cell of a row's pass@k, marked where the policy lies below chance. A row from samples has `n`."""
    value = row["pass"].get(str(k))
    shown = cell(value)
    if chance is None or value is None:
        return shown
    tree = value if isinstance(value, Mapping) else {"value": value}
    mark = chance.below(k, tree["value"], tree.get("high") if "n" in row else None)
    return f"{shown}\n{BELOW}" if mark else shown


def with_chance(made: Table, chance: Chance | None, ks: Mapping[str, int]) -> Table:
    """The table with a last row of the chance floor, and a note of what guesses. ks: head of a column -> k."""
    if chance is None:
        return replace(made, notes=(*made.notes, f"{UNKNOWN[:1].upper()}{UNKNOWN[1:]}."))
    cells = [f"{chance.at(ks[head]):.3f}" if head in ks else "" for head in made.header[1:]]
    note = f"Chance: {chance.words}."
    if any(BELOW in cell for row in made.rows for cell in row):
        note += f" {BELOW[:1].upper()}{BELOW[1:]}: a lower pass@k than that."
    return replace(made, rows=(*made.rows, ("chance", *cells)), notes=(*made.notes, note))


def samples(summary: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """pass@k and KL of the sampled policies of each task of a summary, with its title."""
    out = []
    raw = {arm["label"]: arm["kl_raw"] for arm in summary["arms"].values() if "kl_raw" in arm}
    exact = {arm["label"]: arm["kl_exact"] for arm in summary["arms"].values() if "kl_exact" in arm}
    for task, rows in sampled_apart(summary).items():
        least = min(row["n"] for row in rows)
        chance = chance_in(summary, task)
        ks = [k for k in SHOWN if k < least and all(str(k) in row["pass"] for row in rows)]
        ks.append(least)
        columns: Columns = {"arm": lambda row: row["label"], "problems × samples": _size}
        for k in ks:
            columns[f"pass@{k}"] = partial(passed, k=k, chance=chance)
        if any(row["policy"] in raw for row in rows):
            columns["raw KL"] = lambda row: cell(raw.get(row["policy"]))
        notes = [_interval_note(rows)]
        if any(row["policy"] in exact for row in rows):
            columns[EXACT_KL] = lambda row: cell(exact.get(row["policy"]), 4)
            notes.append(EXACT)
        for name in ("no answer", "cut", "undecided"):
            columns[name] = lambda row, name=name: _fraction(row.get(f"{name.replace(' ', '_')}_frac"))  # type: ignore[misc]
        made = with_chance(table(columns, rows, *notes), chance, {f"pass@{k}": k for k in ks})
        out.append((f"From samples: {task}", made))
    return out


def _size(row: Mapping[str, Any]) -> str:
    """The size of an evaluation by samples."""
    text = f"{row['problems']} × {row['n']}"
    return f"{text}, {len(row['seeds'])} seeds" if len(row["seeds"]) > 1 else text


def _interval_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """The units of the intervals in a table from samples."""
    units = "problems"
    if any(row["pass"]["1"]["over"] == CLUSTERS for row in rows):
        units = "clusters of problems"
    over = f"over {units}"
    if any(len(row["seeds"]) > 1 for row in rows):
        over = f"over training seeds for arms with several, else {over}"
    return f"From samples; below each number its 95 % interval {over} and their samples."


def _fraction(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def base_row(base: Mapping[str, Any], curves: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of the base. A trained run that replaces the base has a raw KL. curves: those of the summary, whose intervals are
    over problems if every arm has one training seed."""
    row = {name: base[name] for name in ("pass", "distinct", "frontier")}
    own = (curves or {}).get(base.get("label", "base"), {})
    row["pass"] = {k: own.get("pass", {}).get(k, value) for k, value in row["pass"].items()}
    row |= base.get("trained") or {}
    row |= {"label": base.get("label", "base"), "seeds": [0], "best_pass1": base["best"]["pass1"]}
    return row | {"frontier_by_seed": {"0": base["frontier"]}}


def evaluated(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Label -> row of every policy with exact scores, the base first."""
    rows = [] if summary["base"] is None else [base_row(summary["base"], summary.get("curves"))]
    rows += [row for row in summary["arms"].values() if row["seeds"]]
    return {row["label"]: row for row in rows}


def strata(found: Iterable[tuple[str, Mapping[str, Any]]]) -> Table:
    """Problems by how often half of a side's samples solves them, one row per name and stratum. found: names, and trees of
    `stats.strata.Strata` with the side that is compared with the one that sorts."""

    def right(row: tuple[str, Tree, Tree]) -> str:
        _, of, one = row
        return f"{one['low']} of {of['half']}" if one["low"] == one["high"] else f"{one['low']} to {one['high']} of {of['half']}"

    rows = [(name, of, one) for name, of in found for one in of["strata"]]
    columns: Columns = {
        "pair": lambda row: row[0], "right in the half": right, "share": lambda row: f"{row[2]['share']:.2f}",
        "k": lambda row: str(row[1]["k"]), "other side": lambda row: cell(row[2]["other"]),
        "same half": lambda row: cell(row[2]["same"]),
        "naive difference": lambda row: signed(row[2]["other"] - row[2]["same"]), "drawn again": lambda row: cell(row[2]["again"]),
        "difference": lambda row: _signed_in_line(row[2]["difference"]),
    }  # fmt: skip
    return table(columns, rows)


def _signed_in_line(tree: Mapping[str, Any]) -> str:
    """A difference with its interval, if it has one: "+0.012 (−0.001 to +0.025)"."""
    low, high = (math.inf if tree[end] is None else tree[end] for end in ("low", "high"))
    return signed(tree["value"]) + (f" ({signed(low)} to {signed(high)})" if math.isfinite(high - low) else "")


def sampled_apart(summary: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Task -> its sampled policies, for every task with a policy that has no exact scores."""
    exact, sampled = evaluated(summary), summary["sampled"]  # a stored summary may have none
    tasks = dict.fromkeys(row["task"] for row in sampled if row["policy"] not in exact)
    return {task: [row for row in sampled if row["task"] == task] for task in tasks}


def control_of(summary: Mapping[str, Any]) -> str:
    """The name of the control; "" without one."""
    name: str = summary["arms"].get(summary["control"], {}).get("label", summary["control"])
    return name


def room(summary: Mapping[str, Any]) -> Table | None:
    """Headroom: each candidate between a set of baselines and the oracle at equal pass@1; None without baselines."""
    rows = [{**row, "metric": Metric.parse(row["metric"])} for row in summary["room"]]
    columns: Columns = {
        "arm": lambda r: r["arm"], "pass@1": lambda r: cell(r["pass1"]), "metric": lambda r: r["metric"].bare,
        "score": lambda r: cell(r["own"]), "chance": lambda r: cell(r.get("chance")),
        "baselines": lambda r: f"{cell(r['best'])}\n{r['rival']}",
        "mixture": lambda r: "per problem" if r["metric"].at == "hull" else "per completion",
        "tempered base": lambda r: cell(r["power"]), "oracle": lambda r: cell(r["oracle"]),
        "share of headroom": lambda r: "–" if r["share"] is None else f"{r['share']:+.0%}",
        "log odds": lambda r: "–" if r["log_odds"] is None else f"{r['log_odds']:+.2f}",
    }  # fmt: skip
    return table(columns, rows, *ROOM) if rows else None


def _first_and_last(row: Mapping[str, Any], what: str, form: str) -> str:
    strength = row.get("dose") or {}
    if f"{what}_first" not in strength:
        return ""
    return f"{strength[f'{what}_first']:{form}}, {strength[f'{what}_last']:{form}}"


def costs(summary: Mapping[str, Any]) -> Table:
    """Support relative to the base, tokens, seconds and strength of the guide."""
    columns: Columns = {"arm": lambda row: row["label"]}

    def support(row: Mapping[str, Any], name: str) -> str:
        return f"{row['support'][name]['value']:,.0f}" if "support" in row else ""

    for head, name in (("support kept", "preserved"), ("gained", "gained"), ("lost", "lost")):
        columns[head] = partial(support, name=name)
    columns["sampled tokens, M"] = lambda row: f"{row['tokens'] / 1e6:.2f}" if "tokens" in row else ""
    columns["training, s"] = lambda row: f"{row['train_seconds']:.0f}" if "train_seconds" in row else ""
    columns["q not 1 on\n(first, last tenth)"] = lambda row: _first_and_last(row, "active", ".1%")
    columns["mean q\n(first, last tenth)"] = lambda row: _first_and_last(row, "q", ".4f")
    rows = [row for row in summary["arms"].values() if row["seeds"] or "steps" in row]
    if any("log_q_sum_first" in (row.get("dose") or {}) for row in rows):  # not logged by older versions
        columns["sum of log q per completion\n(first, last tenth)"] = lambda row: _first_and_last(row, "log_q_sum", ".2f")
    note = (
        "Support: right completions with probability above 1/256, over all problems, relative to the base. Tokens and seconds "
        "(wall clock, one thread per run) are means per run."
    )
    return table(columns, rows, note)


TRAINED = {
    "training reward,\nfirst tenth": ("reward", "first"), "last tenth": ("reward", "last"), "{split} pass@1": ("pass", "1"),
    "gradient norm,\nearly third": ("grad_norm", "early"), "middle": ("grad_norm", "middle"), "late": ("grad_norm", "late"),
    "zero-variance groups,\nfirst tenth": ("dead", "first"), "last tenth ": ("dead", "last"),
}  # fmt: skip


def training(summary: Mapping[str, Any]) -> Table:
    """Training reward, test score, gradient norms in thirds of the run, zero-variance groups; runs without these metrics have no
    row."""
    columns: Columns = {"arm": lambda row: row["label"]}

    def logged(row: Mapping[str, Any], name: str, part: str) -> str:
        return cell(row[name][part]) if name in row else ""

    split = summary["evaluate"].get("split") or "test"
    for head, (name, part) in TRAINED.items():
        columns[head.format(split=split)] = partial(logged, name=name, part=part)
    note = (
        "Training reward: mean over the sampled completions; the first and last tenth of the steps have different problems. "
        "Gradient norms are before clipping. Zero-variance groups: the share of sampled groups in which all rewards are equal, so "
        "that every advantage is 0."
    )
    rows = [row for row in summary["arms"].values() if "reward" in row or "grad_norm" in row]
    return table(columns, rows, note)
