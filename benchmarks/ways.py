"""Ways through the code: one number followed from the record that it is read from to the page that shows it.

    python benchmarks/ways.py [--stays]     --stays: the file and function of each, with its floor

A station is the last call before the next station that makes a form of the number (p, pass@k of a seed, its mean, a cell, a figure,
a page): its result holds the form, its arguments do not, and no call inside it made it. The way goes from the command down the call
stack to the first station, then from stack to stack by their last common call. Stays are the files of `src/sage_rlvr` that it is in
one after the other, returns counted anew; climbs are its steps into a file of a higher floor (docs/architecture.md).

A station is found by its value, so another quantity that comes to the same would be taken for it: the expected number of distinct
right completions in one sample is p, and in k samples, where one completion is right, pass@k. Therefore these two forms count only
inside the functions that define them (`MADE_IN`). Later forms hold means over seeds, at a k of their own (`SCORE`, `DIFFERENCE`).

Calls are seen by `sys.setprofile` on a small sweep in which all problems have the same chance p of a right answer (one per arm and
training seed), so that the number is known in each form beforehand.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import sage_rlvr
from sage_rlvr.cli.page import Report
from sage_rlvr.cli.session import Session
from sage_rlvr.evaluation.record import Record, load_record, save_record
from sage_rlvr.render import write_summary
from sage_rlvr.results.comparisons import Row
from sage_rlvr.stats.comparison import Comparison
from sage_rlvr.stats.curves import CurveComparison
from sage_rlvr.stats.intervals import Interval

ROOT, PACKAGE = Path(__file__).resolve().parents[1], f"{Path(str(sage_rlvr.__file__)).parent}/"
ARM, RIVAL = ("sage_branch", "SAGE-Branch"), ("grpo", "GRPO")
CHANCES = {ARM: (0.0051, 0.0062, 0.0077), RIVAL: (0.0041, 0.0057, 0.0063)}
SCORE, DIFFERENCE = 64, 256  # the k at which each stands in one table of a summary alone
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # no calls: newer Pythons have no frames of the first three
MADE_IN = {"p": ("stats/support.py", "success_probability"), "pass@": ("stats/passk.py", "curve")}  # by form
Form = tuple[str, type, Callable[[Any], bool]]  # its name, and which values have it


def dyed(out: Path) -> Path:
    """The synthetic sweep of tests/frozen at two temperatures, with the chances of `CHANCES` at temperature 1."""
    sys.path.append(str(ROOT / "tests"))
    from frozen.folders import write_sweep

    chances = {f"{arm}-s{seed}": p for (arm, _), known in CHANCES.items() for seed, p in enumerate(known)}
    for path in (write_sweep(out) / "evaluations").glob("*.npz"):
        found = load_record(path).only((0.3, 1.0))
        if p := chances.get(path.stem):
            alike = [row - np.logaddexp.reduce(row) + math.log(p) for row in found.logps[1.0]]
            found = replace(found, logps={**found.logps, 1.0: alike})
        save_record(found, path)
    return out


def ways() -> tuple[dict[str, list[Form]], dict[str, list[Form]]]:
    """Name of a way -> the forms of its number, first to last: those of a summary, those of a page."""

    def holds(values: Any, number: float) -> bool:
        found = np.asarray(values)
        return found.dtype.kind == "f" and bool((np.abs(found - number) <= 1e-9 * number).any())

    def made(k: int) -> list[Form]:
        return [
            ("record", Record, lambda x: x.meta["name"] == f"{ARM[0]}-s0"),
            ("p", np.ndarray, lambda x: x.ndim == 1 and len(x) > len(CHANCES[ARM]) and holds(x, CHANCES[ARM][0])),  # of problems
            (f"pass@{k}", np.ndarray, lambda x: holds(x, 1 - (1 - CHANCES[ARM][0]) ** k)),
        ]

    def written(cell: str, last: str) -> list[Form]:
        return [("cell", str, lambda x: f"{cell}\n" in x), ("Markdown", str, lambda x: f"{last}<br>" in x and "\n## " in x)]

    def drawn(number: float, label: str) -> list[Form]:
        def shown(x: Any, start: str) -> bool:
            return isinstance(x, str) and x.startswith(start) and f'aria-label="{label}"' in x

        return [
            ("figure", Figure, lambda x: any(holds(one.get_ydata(), number) for one in x.axes[0].lines)),
            ("SVG", str, lambda x: shown(x, "<svg")), ("body", tuple, lambda x: len(x) == 2 and shown(x[0], "")),
            ("HTML", str, lambda x: shown(x, "<!doctype")),
        ]  # fmt: skip

    mean = float(np.mean([1 - (1 - p) ** SCORE for p in CHANCES[ARM]]))
    gap = float(np.mean([(1 - q) ** DIFFERENCE - (1 - p) ** DIFFERENCE for p, q in zip(*CHANCES.values(), strict=True)]))
    number, signed, k = f"{mean:.3f}", f"{gap:+.3f}", str(SCORE)
    score: list[Form] = [
        *made(SCORE), ("interval", Interval, lambda x: holds(x.value, mean)),
        ("JSON", dict, lambda x: isinstance(x.get(k), dict) and holds(x[k].get("value"), mean)),
    ]  # fmt: skip
    compared: list[Form] = [
        *made(DIFFERENCE), ("comparison", Comparison, lambda x: holds(x.difference.value, gap)),
        ("row", list, lambda x: any(isinstance(r, Row) and r.family_size and holds(r.comparison.difference.value, gap) for r in x)),
    ]  # fmt: skip
    line: Form = ("line", tuple, lambda x: len(x) == 4 and isinstance(x[1], list) and holds(x[1], mean))
    band: Form = ("band", CurveComparison, lambda x: holds(x.difference, gap))
    return {
        "a summary: pass@k": [*score, *written(number, number)],
        "a summary: a difference": [*compared, *written(f"\n{signed}", f"<br>{signed}")],
    }, {
        "the page: pass@k": [*score, line, *drawn(mean, "pass@k of each policy")],
        "the page: a band of differences": [
            *made(DIFFERENCE), band, *drawn(gap, f"paired difference in pass@k: {ARM[1]} − {RIVAL[1]}"),
        ],
    }  # fmt: skip


def named(frame: FrameType) -> tuple[str, str]:
    """(file, function) of a call."""
    return frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname


class Watch:
    """The calls of a command that make one of the forms, each with the stack that it stood on."""

    def __init__(self, forms: list[Form]) -> None:
        self.forms, self.found = forms, list[tuple[str, tuple[FrameType, ...]]]()
        self.stack, self.given, self.inside = list[FrameType](), list[set[str]](), [set[str]()]

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """An event of a call of the package. Arguments are looked at with what is in dictionaries, and in those in them."""
        code = frame.f_code
        if event == "call" and code.co_name not in INLINED:
            given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
            for _ in range(2):
                given += [inner for one in given if isinstance(one, dict) for inner in one.values()]
            self.stack.append(frame)
            self.given.append(self._held(given))
            self.inside.append(set())
        elif event == "return" and self.stack and self.stack[-1] is frame:
            new = self._held([result]) - self.given.pop() - (inside := self.inside.pop())
            self.found += [(name, tuple(self.stack)) for name in new if self._makes(name)]
            self.inside[-1] |= new | inside
            self.stack.pop()

    def _held(self, values: list[Any]) -> set[str]:
        return {name for name, kind, has in self.forms if any(isinstance(one, kind) and has(one) for one in values)}

    def _makes(self, form: str) -> bool:
        """Whether the calls on the stack may make a form at all."""
        maker = MADE_IN.get(form.rstrip("0123456789"))
        return maker is None or any(named(frame) == maker for frame in self.stack)

    def stays(self) -> list[tuple[str, str]]:
        """(file, function) of every stay."""
        stations, place = list[tuple[FrameType, ...]](), len(self.found)
        for name, *_ in reversed(self.forms):
            place = max((i for i, (form, _) in enumerate(self.found[:place]) if form == name), default=-1)
            assert place >= 0, f"no call makes the form {name!r} before those that come after it"
            stations.insert(0, self.found[place][1])
        frames = list(stations[0])
        for one, two in pairwise(stations):
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(one, two, strict=False)))
            frames += [*reversed(one[max(shared - 1, 0) : -1]), *two[shared:]]
        return [next(stay) for _, stay in groupby(map(named, frames), key=lambda one: one[0])]


def walk(forms: dict[str, list[Form]], command: Callable[[], Any]) -> dict[str, list[tuple[str, str]]]:
    """Name of a way -> its stays, of ways that one command goes."""
    watches = {name: Watch(of) for name, of in forms.items()}

    def seen(frame: FrameType, event: str, result: Any) -> None:
        if event in ("call", "return") and frame.f_code.co_filename.startswith(PACKAGE):  # of all calls below it these are few
            for watch in watches.values():
                watch(frame, event, result)

    sys.setprofile(seen)
    try:
        command()
    finally:
        sys.setprofile(None)
    return {name: watch.stays() for name, watch in watches.items()}


def count(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Name of every way -> its stays, on a sweep that is written to a new folder."""
    sweep, (summary, page) = dyed(folder / "sweep"), ways()
    report = Report(runs=(str(sweep),), out=folder / "report.html")
    return walk(summary, partial(write_summary, sweep)) | walk(page, partial(report.execute, Session()))


def floors(stays: list[tuple[str, str]]) -> list[int]:
    """The floor of every stay, from the table of docs/architecture.md."""
    table = re.findall(r"^\| (\d) \| (`.*?) \|", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE)
    known = {name: int(floor) for floor, names in table for name in re.findall(r"`(\w+)`", names)}
    return [known[re.split(r"[/.]", file)[0]] for file, _ in stays]


def climbs(stays: list[tuple[str, str]]) -> int:
    """How many steps of a way go up to a higher floor."""
    return sum(b > a for a, b in pairwise(floors(stays)))


def main() -> None:
    """Goes every way; prints how many stays and climbs it has, and the stays where they are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        found = count(Path(folder))
    for name, stays in found.items():
        print(f"{name}: {len(stays)} stays, {climbs(stays)} climbs")
        for (file, function), height in zip(stays, floors(stays), strict=True) if "--stays" in sys.argv else ():
            print(f"  {height} {file}:{function}")


if __name__ == "__main__":
    main()
