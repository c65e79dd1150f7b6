"""`python -m lab room`: the room law on the released runs of remax-rl and on our own worlds."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.room.cohort import DOMAINS, METHODS, MODELS, installed, printed_table, read_cohort
from lab.room.study import Effort, study
from lab.studies.pages import remade
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import require
from sage_rlvr.reading import read_text
from sage_rlvr.results.tables import Table

PAGE, STORED, RUNS, PICTURE = "room.md", "room.json", "room_runs.csv", "room"
LAB_PAGES = Path(__file__).parents[1] / "pages"


@dataclass(frozen=True)
class Room(Command):
    """Does the room that a base leaves predict whether RL widens or narrows? On the 475 released runs of remax-rl 0.1.1; exploratory."""

    cohort: Path | None = None
    """verified_samples_completed_cohort.jsonl.gz; default: the one of the installed remax-rl."""
    stored: bool = False
    """Print the tables of the stored results, without the package."""
    docs: Path | None = None
    """Fill the page results/room.md under this folder, with its picture, room.json and room_runs.csv."""
    resamples: int = 400
    """Bootstrap resamples of problems and seeds."""
    splits: int = 200
    """Random halves of draws and problems."""
    simulations: int = 200
    """Simulated cohorts of each null."""

    def execute(self, session: Session) -> int:
        for name in ("resamples", "splits", "simulations"):
            require(getattr(self, name) > 1, f"--{name}", getattr(self, name), "must be above 1")
        found = read_stored() if self.stored else self._measured(session)
        tables = tables_of(found)
        for name, table in tables.items():
            session.say(f"## {name}", "", *([table.markdown()] if isinstance(table, Table) else [table]), "")
        if self.docs is not None:
            write(self.docs, found, tables)
        return 0

    def _measured(self, session: Session) -> dict[str, Any]:
        file = installed() if self.cohort is None else self.cohort
        try:
            printed = printed_table()
        except importlib.metadata.PackageNotFoundError:
            printed = {}
            session.note("remax-rl is not installed: its printed table is not compared")
        effort = Effort(resamples=self.resamples, splits=self.splits, simulations=self.simulations)
        found: dict[str, Any] = rounded(study(read_cohort(file), printed, effort))  # so that the stored file prints the same tables
        return found


def read_stored() -> dict[str, Any]:
    """lab/pages/results/room.json."""
    found: dict[str, Any] = json.loads(read_text(LAB_PAGES / "results" / STORED))
    return found


def write(docs: Path, found: dict[str, Any], tables: Mapping[str, Table | str]) -> None:
    """The page, the numbers, one row a run where they were read, and the picture."""
    from lab.room.picture import draw

    results, images = docs / "results", docs / "images"
    made = {name: table.markdown() if isinstance(table, Table) else table for name, table in tables.items()}
    where, text = remade(results, PAGE, made)
    where.write_text(text, encoding="utf-8")
    if "runs" in found:
        rows = found["runs"]
        (results / RUNS).write_text(csv_of(rows), encoding="utf-8")
    kept = {name: value for name, value in found.items() if name != "runs"}
    (results / STORED).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    images.mkdir(exist_ok=True)
    draw(kept, images / f"{PICTURE}.svg", images / f"{PICTURE}.png")


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated rows with a header."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def rounded(value: Any) -> Any:
    """Floats to six decimals, NaN as null, so that the stored file is small and valid JSON."""
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------------------------------------------------------
# tables


def ends(low: float, high: float, digits: int = 2, sign: str = "+") -> str:
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def tables_of(found: Mapping[str, Any]) -> dict[str, Table | str]:
    """The parts of the page by the names of their marks."""
    return {
        "checks": checks_of(found), "bands": bands_of(found), "settings": settings_of(found), "worlds": worlds_of(found),
        "slopes": slopes_of(found), **{f"predictors {name}": skill_of(found["skill"][name], found["k"]) for name in found["skill"]},
    }  # fmt: skip


def checks_of(found: Mapping[str, Any]) -> str:
    one, noise = found["checks"], found["noise"]
    copies = one["base_copies"]
    lines = [
        f"{one['runs']} runs with answers before and after, {one['without_after']} left out for want of the latter; "
        f"{one['without_base']} take the base of another run of their cell.",
        f"Printed pass@8 after RL (Qwen2.5-0.5B): {one['printed_cells_reproduced']} of {one['printed_cells']} cells come out to three "
        f"decimals. pass@8 stored with each checkpoint: {one['checkpoints_reproduced']} of {one['checkpoints']} come out.",
        f"Answer i + 1 of a group equals answer i of the next in {one['overlap']['before']:.4f} (base) and {one['overlap']['after']:.4f} "
        f"(after) of the places, so {found['k']} answers of a problem are independent of each other.",
        f"There are {one['bases']} bases. Runs of one cell hold copies of one sample of it"
        + (f": {copies['least']:.3f} to 1 of the answers are equal, {copies['median']:.3f} at the median." if copies else "."),
        f"Noise common to all problems (Cochran's Q / {found['k'] - 1}; about 1 if each problem had noise of its own, above "
        f"{noise['limit']:.2f} in 1 of 1,000): above in {noise['before']['above']} of {noise['before']['read']} bases, median "
        f"{noise['before']['median']:.1f}, largest {noise['before']['largest']:.1f}; after RL in {noise['after']['above']} of "
        f"{noise['after']['read']} policies, median {noise['after']['median']:.1f}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def bands_of(found: Mapping[str, Any]) -> Table:
    rows = []
    for family, bands in found["bands"].items():
        for band in bands:
            undecided = band["settings"] - band["wider"] - band["narrower"]
            domains = ", ".join(DOMAINS.get(name, name) for name in band["domains"])
            rows.append((family, f"{band['low']:.2f} to {band['high']:.2f}", *map(str, (band["settings"], band["wider"], band["narrower"], undecided)), domains))
    return Table(header=("methods", f"base pass@{found['k']}", "settings", "wider", "narrower", "undecided", "domains"), rows=tuple(rows))


def name_of(row: Mapping[str, Any]) -> str:
    level = "" if row["level"] == "level1" else f", {row['level'].replace('level', 'level ')}"
    return f"{DOMAINS.get(row['domain'], row['domain'])}{level}"


def settings_of(found: Mapping[str, Any]) -> Table:
    """A row a base, a column a method."""
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found["settings"]:
        bases.setdefault((MODELS.get(row["model"], row["model"]), name_of(row)), {})[row["method"]] = row

    def cell(row: Mapping[str, Any] | None) -> str:
        return "" if row is None else f"{row['change']:+.2f}<br>{ends(row['low'], row['high'])}"

    def levels(of: Mapping[str, Any]) -> float:
        return sum(row["base"] for row in of.values()) / len(of)

    k = found["k"]
    rows = []
    for (model, name), of in sorted(bases.items(), key=lambda pair: levels(pair[1])):
        one = sum(row["base1"] for row in of.values()) / len(of)
        rows.append((model, name, f"{one:.3f}", f"{levels(of):.3f}", *(cell(of.get(method)).replace("<br>", "\n") for method in METHODS)))
    return Table(header=("model", "domain", "base pass@1", f"base pass@{k}", *METHODS.values()), rows=tuple(rows))


def worlds_of(found: Mapping[str, Any]) -> Table:
    line = found["lines"]["without replay"]
    rows = []
    for arm in found["worlds"]:
        expected = [line["intercept"] + line["slope"] * room for room in arm["room"]]
        rows.append((
            arm["name"], f"{arm['base8']:.3f}", f"{arm['after8'] - arm['base8']:+.3f}", ends(*arm["base"], 3, ""), ends(*arm["change"], 3),
            ends(*expected, 3), str(arm["seeds"]), arm["experiment"],
        ))  # fmt: skip
    k = found["k"]
    head = ("arm", "base pass@8", "change of pass@8", f"base pass@{k}", f"change of pass@{k}", "change on the line", "seeds", "experiment")
    note = f"The line is that of the settings without replay; left-out domains lie {line['error']:.2f} (root mean square) from such a line."
    return Table(header=head, rows=tuple(rows), notes=(note,))


def slopes_of(found: Mapping[str, Any]) -> Table:
    rows = []
    for family, slopes in found["slopes"].items():
        rows += [(family, one["reading"], str(one["k"]), f"{one['slope']:+.2f}", ends(one["low"], one["high"]), one["over"]) for one in slopes]
    return Table(header=("methods", "reading", "k", "slope", "95 %", "over"), rows=tuple(rows))


def skill_of(skill: Mapping[str, Any], k: int) -> Table:
    """One family: every predictor."""
    rows = []
    for row in skill["rows"]:
        rows.append((
            row["predictor"].replace("pass@K", f"pass@{k}").replace("in K", f"in {k}"), f"{row['spearman']:+.2f}", f"{row['right']}",
            f"{row['balanced']:.2f}", f"{row['built_balanced'][0]:.2f}\n{ends(*row['built_balanced'][1:], 2, '')}",
            f"{row['r2']:+.2f}\n{ends(row['r2_low'], row['r2_high'])}", f"{row['built_r2'][0]:+.2f}\n{ends(*row['built_r2'][1:])}",
            f"{row['p']:.3f}", ends(row["lead_low"], row["lead_high"]), str(row["better_domains"]),
            f"{row['balanced_models']:.2f}", f"{row['r2_models']:+.2f}",
        ))  # fmt: skip
    head = (
        "number of the base", "rank correlation", f"signs right of {skill['settings']}", "balanced", "balanced, other domain's RL", "R2",
        "R2, other domain's RL", "p", "R2 less R2 of room", f"domains better than room, of {skill['domains']}", "balanced, models", "R2, models",
    )  # fmt: skip
    most = max(skill["up"], skill["settings"] - skill["up"])
    note = f"{skill['up']} of {skill['settings']} settings go up: the same sign for all is right {most} times. p: share of the {skill['orders']} orders of domains with R2 at least as high."
    return Table(header=head, rows=tuple(rows), notes=(note,))
