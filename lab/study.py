"""`python -m lab study`: the study on SmolLM2, what was predicted against what came out, from counts and exact KLs.

`--docs docs` fills docs/findings.md and draws its pictures and the README's; `--readme README.md` fills its sentences; `--pages
lab/pages` the tables of lab/pages/results/smollm2.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

from lab.primaries import (
    ARM,
    BASE,
    FEWEST,
    RIVALS,
    Counts,
    Endpoint,
    K,
    NotRun,
    Question,
    endpoint,
    endpoints,
    endpoints_of_200_steps,
    holm,
)
from lab.room.command import LAB_PAGES
from lab.room.exploratory import beyond, beyond_lines, headline, regression_table, repeated
from lab.room.smollm2 import (
    COLUMNS,
    KS,
    REPEATED,
    REPEATS,
    ROOMS,
    Room,
    against_base,
    arms_table,
    chance_of_room,
    complete_rooms,
    less_base,
    seeds_table,
    together,
)
from lab.room.worlds import EXPERIMENTS
from lab.studies.pages import remade
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table

PAGE = "findings.md"
DETAILS = "results/smollm2.md"
COST = "cost.jsonl"
"""Of `python -m lab counts SWEEP --cost`."""
ROOM_LAW = "room.svg"
"""Drawn by `python -m lab room --docs lab/pages`."""
MARGIN = 0.05
"""The difference in pass@32 that the protocol's predictions of endpoint 1 name."""
FAILED, HELD, OPEN = "failed", "held", "cannot be told"
LEVEL = 0.05
RULE = "on these problems (Student's t over training seeds, the protocol's rule)"

Judge = Callable[[Endpoint, float], str]
"""(endpoint, Holm's p) -> whether the prediction held."""


def above_margin(one: Endpoint, p: float) -> str:
    """Predicted: more than the margin."""
    return HELD if one.low > MARGIN and p < LEVEL else FAILED if one.high < MARGIN else OPEN


def within_margin(one: Endpoint, p: float) -> str:
    """Predicted: between minus the margin and the margin."""
    return HELD if one.low > -MARGIN and one.high < MARGIN else FAILED if one.low > MARGIN or one.high < -MARGIN else OPEN


def positive(one: Endpoint, p: float) -> str:
    """Predicted: above 0."""
    return OPEN if not p < LEVEL else HELD if one.value > 0 else FAILED


def negative(one: Endpoint, p: float) -> str:
    """Predicted: below 0."""
    return OPEN if not p < LEVEL else HELD if one.value < 0 else FAILED


OF_200_STEPS: tuple[tuple[str, Judge], ...] = (
    ("above +0.05", above_margin),
    ("positive", positive),
    ("within 0.05 of 0", within_margin),
    ("positive", positive),
    ("within 0.05 of 0", within_margin),
)
"""Predictions of the protocol of 200 steps (lab/experiments/2026-11-28_smollm2_200_kl/README.md), in its order."""
PREDICTIONS: dict[str, tuple[tuple[str, Judge], ...]] = {
    "much room": (("above +0.05", above_margin), ("positive", positive)),
    "little room": (("within 0.05 of 0", within_margin), ("negative", negative)),
    "little room, repeated": (("positive", positive), ("negative", negative)),
}
"""Of the protocols, for endpoints 1 and 2 (lab/experiments/2026-11-27_smollm2_much_room/README.md, and the repetition's own)."""


def counts_at_1(room: Room) -> Counts:
    """n and c of each policy's problems at T = 1."""
    rows = {policy: list(zip(table.n.tolist(), table.c.tolist(), strict=True)) for policy, table in room.counts.items()}
    return {(arm, seed): own for (arm, seed, t), own in rows.items() if t == 1.0}


def endpoints_of(room: Room) -> list[Endpoint]:
    """Endpoint 1 as `lab.primaries`; endpoint 2 as `sage-rlvr compare`, which estimates the noise of the base in another way."""
    first, second = endpoints(counts_at_1(room), room.kls, room.seeds)
    found = less_base(room.runs(ARM), room.counts[BASE, None, 1.0], K)
    gap = found.difference
    return [first, replace(second, value=gap.value, low=gap.low, high=gap.high, p=found.p)]


def rooms_of(experiments: Path = EXPERIMENTS, note: Callable[[object], None] | None = None) -> dict[str, Room]:
    """The complete rooms, and the complete repetitions of those. note: is given the reason why one is left out."""
    there = {name: folder for name, folder in REPEATED.items() if (experiments / folder).is_dir()}
    return complete_rooms(experiments, note) | complete_rooms(experiments, note, there)


def complete_200_steps(experiments: Path, note: Callable[[object], None] | None = None) -> list[Endpoint] | None:
    """The endpoints of 200 steps; None, with a note, before its runs have ended."""
    try:
        return endpoints_of_200_steps(experiments)
    except NotRun as error:
        if note is not None:
            note(error)
        return None


def primaries_table(rooms: Mapping[str, Room], experiments: Path = EXPERIMENTS) -> Table:
    """Every primary endpoint of these rooms, and of 200 steps where they are run; failed predictions first. A repetition comes with
    the room that it repeats."""
    families = {name: (endpoints_of(room), PREDICTIONS[name]) for name, room in rooms.items()}
    if (longer := complete_200_steps(experiments)) is not None:
        families["200 steps"] = (longer, OF_200_STEPS)
    rows = []
    for name, (found, predictions) in families.items():
        for one, p, (predicted, judge) in zip(found, holm(found), predictions, strict=True):
            told = not math.isnan(p)
            without = "not judged" if one.seeds < FEWEST else "not defined"
            outcome = f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})" if told else without
            seeds = str(one.seeds) + (f", {one.left_out} left out" if one.left_out else "")
            verdict = judge(one, p) if told else OPEN
            rows.append((verdict, (name, one.name, predicted, outcome, f"{p:.3f}" if told else "", seeds, verdict)))
    order = (FAILED, OPEN, HELD)
    head = ("room", "endpoint", "predicted", "outcome (95 %)", "Holm's p", "training seeds", "prediction")
    notes = (
        "Intervals: training seeds, in the second endpoint also the base's samples, not the choice of problems; not adjusted.",
        "Holm's p: over the two endpoints of a room"
        + (", or the five of 200 steps." if "200 steps" in families else "."),
        *over_rooms({name: found for name, (found, _) in families.items() if name in ROOMS}),
        *(all_seeds(room, rooms[room], rooms[name]) for name, room in REPEATS.items() if name in rooms),
    )
    return Table(header=head, rows=tuple(row for _, row in sorted(rows, key=lambda row: order.index(row[0]))), notes=notes)


def over_rooms(found: Mapping[str, list[Endpoint]]) -> list[str]:
    """A line on Holm's p if the endpoints of several rooms were one family, as in no protocol; none for one room."""
    if len(found) < 2:
        return []
    family = [(f"{name}, {number}", one) for name, endpoints in found.items() for number, one in enumerate(endpoints, 1)]
    adjusted = zip(family, holm([one for _, one in family]), strict=True)
    told = "; ".join(f"{name}: {p:.3f}" for (name, _), p in adjusted if not math.isnan(p))
    return [f"Were the {len(family)} endpoints of {' and '.join(found)} one family, Holm's p would be: {told}."]


def all_seeds(name: str, first: Room, fresh: Room) -> str:
    """Both endpoints over the training seeds of a room and of its repetition: a description, as the first led to the second.
    name: of the room."""
    whole = together(first, fresh)
    found = "; ".join(
        f"{one.name} {one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f}), {one.seeds} seeds" for one in endpoints_of(whole)
    )
    why = f"a description without correction, as the first {len(first.seeds)} prompted the others"
    return f"All {len(whole.seeds)} training seeds of {name} together, {why}: {found}."


def as_trained(room: Room) -> Table:
    """k3 less each k3_is, whatever their KLs: a secondary endpoint of the repetition."""
    counts, rows = counts_at_1(room), []
    for rival in RIVALS:
        found = [endpoint(Question("", ARM, (rival,), k=k), counts, room.kls, room.seeds) for k in KS]
        rows.append((rival, *(f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})" for one in found)))
    notes = ("GRPO with k3 at beta 0.02 less the arm; 95 % intervals over training seeds, not adjusted. KLs: below.",)
    return Table(header=("arm", *COLUMNS), rows=tuple(rows), notes=notes)


def hours_line(file: Path, room: Room) -> str:
    """A line on the time of the training steps, from the rows of `python -m lab counts SWEEP --cost`."""
    seconds = [json.loads(line)["seconds"] for line in file.read_text(encoding="utf-8").splitlines()]
    runs = f"{len(seconds)} of {len((ARM, *RIVALS)) * len(room.seeds)} runs"
    return f"training steps of {runs} took {sum(seconds) / 3600:.1f} hours of one core, with other work on the machine"


def tables_of(rooms: Mapping[str, Room], experiments: Path = EXPERIMENTS) -> dict[str, str]:
    """The sentences and the table of the page of findings by their marks."""
    return {"primaries": primaries_table(rooms, experiments).markdown(), **headlines_of(rooms, experiments)}


def headlines_of(rooms: Mapping[str, Room], experiments: Path = EXPERIMENTS) -> dict[str, str]:
    """The sentences on all training seeds of a repeated room by their mark; none without a repetition."""
    whole = repeated(rooms).get("little room")
    if whole is None:
        return {}
    return {"headline": headline(whole, beyond(whole, chance_of_room(experiments / ROOMS["little room"], whole)))}


def details_of(rooms: Mapping[str, Room], experiments: Path = EXPERIMENTS) -> dict[str, str]:
    """The tables of the laboratory's page by their marks."""
    tables = {"regression": regression_table(rooms).markdown()}
    for name, room in repeated(rooms).items():
        tables["beyond"] = beyond_lines(room, chance_of_room(experiments / ROOMS[name], room))
        tables[f"arms {name}, all seeds"] = arms_table(room).markdown()
        tables[f"less the base {name}, all seeds"] = against_base(room).markdown()
    for name, room in rooms.items():
        tables[f"arms {name}"] = arms_table(room).markdown()
        tables[f"less the base {name}"] = against_base(room).markdown()
        tables[f"k3 less k3_is {name}"] = as_trained(room).markdown()
        tables[f"runs {name}"] = seeds_table(room).markdown()
    return tables


@dataclass(frozen=True)
class Study(Command):
    """Print the study on SmolLM2: predictions and outcomes, every arm, every training run, from the stored counts."""

    docs: Path | None = None
    """Fill findings.md under this folder, draw images/study.png, study.svg and little_room.png, and copy images/room.svg."""
    readme: Path | None = None
    """Fill the sentences of this file."""
    pages: Path | None = None
    """Fill the tables of results/smollm2.md under this folder, as in lab/pages."""
    experiments: Path = EXPERIMENTS
    """The folder of the experiments."""

    def execute(self, session: Session) -> int:
        rooms = rooms_of(self.experiments, session.note)
        if not rooms:
            raise DataError(f"{self.experiments}: no room of the study is complete; nothing is judged before")
        complete_200_steps(self.experiments, session.note)
        tables, details = tables_of(rooms, self.experiments), details_of(rooms, self.experiments)
        for name, table in {**tables, **details}.items():
            session.say(f"## {name}, {RULE}", "", table, "")
        for name, room in rooms.items():
            file = self.experiments / {**ROOMS, **REPEATED}[name] / COST
            if file.is_file():
                session.say(f"{name}: {hours_line(file, room)}", "")
        if self.pages is not None:
            where, text = remade(self.pages, DETAILS, details)
            where.write_text(text, encoding="utf-8")
        if self.readme is not None:
            where, text = remade(self.readme.parent, self.readme.name, headlines_of(rooms, self.experiments))
            where.write_text(text, encoding="utf-8")
        if self.docs is not None:
            from lab.figures.study import draw, draw_first  # matplotlib

            where, text = remade(self.docs, PAGE, tables)
            where.write_text(text, encoding="utf-8")
            images = self.docs / "images"
            fresh = {room: rooms[name] for name, room in REPEATS.items() if name in rooms}
            draw(self.experiments, {name: room for name, room in rooms.items() if name in ROOMS}, images, fresh)
            for name, room in repeated(rooms).items():
                draw_first(room, chance_of_room(self.experiments / ROOMS[name], room), images)
            copyfile(LAB_PAGES / "images" / ROOM_LAW, images / ROOM_LAW)
        return 0
