"""`python -m lab casebook`: run the casebook and print its table."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import SageError

RESULTS = Path(__file__).with_name("results.json")
BEGIN, END = "<!-- casebook:begin `python -m lab casebook --docs` -->", "<!-- casebook:end -->"


@dataclass(frozen=True)
class Casebook(Command):
    """Run one fault after the other, and sound runs, and print what preflight and diagnose name first.

    A run that is there already is not made again; its log is read again. Needs TRL. Runs of SmolLM2 take hours, so that their
    logs are kept beside this command and read again."""

    out: Path = Path("runs/casebook")
    """Where the runs go."""
    only: tuple[str, ...] = ()
    """Names of cases, in part; by default all, and the sound runs."""
    smollm2: bool = False
    """Train the runs of SmolLM2 whose logs are missing, one after another on one thread, and no others."""
    docs: bool = False
    """Keep the results beside this command, and write the table into the how-to page."""

    def execute(self, session: Session) -> int:
        """Run, print, and write."""
        warnings.simplefilter("ignore")
        from lab.casebook.smollm2 import make, read

        if self.smollm2:
            make(self.out / "smollm2", self.only, session.note)
            results = json.loads(RESULTS.read_text(encoding="utf-8"))
        else:
            results = {"faults": list(self._faults(session)), "sound": list(self._sound(session))}
        results["smollm2"] = list(read())
        session.say(*lines_of(results))
        if self.docs:
            write(results)
        return 0

    def _faults(self, session: Session) -> Iterator[dict[str, Any]]:
        from lab.casebook.cases import CASES

        for case in CASES:
            if not self.only or any(word in case.name for word in self.only):
                found = run_case(self.out / case.name.replace(" ", "-"), case.make)
                row = {"name": case.name, "cause": case.cause, "thread": case.thread, "log": case.log, **found}
                session.note(line_of(row))
                yield row

    def _sound(self, session: Session) -> Iterator[dict[str, Any]]:
        from lab.casebook.healthy import healthy

        for number, (name, make) in enumerate(healthy().items()):
            if not self.only or any(word in name for word in self.only):
                found = run_case(self.out / f"sound-{number:02}", make)
                session.note(f"{name}: {found['preflight'] or 'nothing'}, {found['diagnose'] or 'nothing'}")
                yield {"name": name, **found}


def run_case(folder: Path, make: Any) -> dict[str, Any]:
    """What is named first before and after a run; null if nothing is."""
    from sage_rlvr.symptoms.logs.diagnose import diagnose

    folder.mkdir(parents=True, exist_ok=True)
    before, after = folder / "preflight.json", folder / "log.json"
    if not after.is_file():
        preflight, train = make(folder)
        report = preflight()
        before.write_text(json.dumps({"first": report.first, **report.tree()}, indent=1))
        try:
            log = train()
        except (SageError, RuntimeError, ValueError):  # of a run that its fault ends; the log up to there is read
            log = folder / "run" if (folder / "run").is_dir() else folder
        after.write_text(json.dumps(None if log is None else str(log.relative_to(folder))))
    named = json.loads(after.read_text())
    return {
        "preflight": json.loads(before.read_text())["first"],
        "diagnose": None if named is None else diagnose(folder / named).report.first,
        "has_log": named is not None,
    }


def line_of(row: dict[str, Any]) -> str:
    """A fault and what was named."""
    return f"{row['name']:<23} {row['cause']:<21} preflight: {row['preflight'] or '-':<21} diagnose: {row['diagnose'] or '-'}"


def counts_of(results: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """(how many, of how many) by what is counted."""
    faults, sound = results["faults"], results["sound"]
    large = [row for row in results["smollm2"] if row["cause"]]
    controls = [row for row in results["smollm2"] if not row["cause"]]
    shown = sum(row["diagnose"] in (row["cause"], row["log"] or "-") for row in faults)
    return {
        "preflight": (sum(row["preflight"] == row["cause"] for row in faults), len(faults)),
        "diagnose": (sum(row["diagnose"] == row["cause"] for row in faults), len(faults)),
        "diagnose, as far as a log shows it": (shown, len(faults)),
        "either": (sum(row["cause"] in (row["preflight"], row["diagnose"]) for row in faults), len(faults)),
        "false alarms of preflight": (sum(row["preflight"] is not None for row in sound), len(sound)),
        "false alarms of diagnose": (sum(row["diagnose"] is not None for row in sound), len(sound)),
        "diagnose, SmolLM2": (sum(row["diagnose"] == row["cause"] for row in large), len(large)),
        "false alarms of diagnose, SmolLM2": (sum(row["diagnose"] is not None for row in controls), len(controls)),
    }


def lines_of(results: dict[str, Any]) -> list[str]:
    """The table as text."""
    rows = [line_of(row) for row in results["faults"]]
    warned = [row for row in results["sound"] if row["preflight"] or row["diagnose"]]
    alarms = [f"{row['name']}: {row['preflight']}, {row['diagnose']}" for row in warned]
    large = []
    for row in results["smollm2"]:
        start, end = row["reward"]["start"], row["reward"]["end"]
        large.append(f"SmolLM2, {row['name']:<23} reward {start:.2f} to {end:.2f}, diagnose: {row['diagnose'] or '-'}")
    return [*rows, *alarms, *large, *(f"{name}: {some} of {of}" for name, (some, of) in counts_of(results).items())]


def table_of(results: dict[str, Any]) -> str:
    """The table of the page."""
    counts = counts_of(results)
    large = {row["name"]: row for row in results["smollm2"]}
    lines = ["| fault | thread | preflight | diagnose | diagnose, SmolLM2 |", "|---|---|---|---|---|"]
    for row in results["faults"]:
        cells = [_mark(row, tool) for tool in ("preflight", "diagnose")]
        cells.append(_mark(large[row["name"]], "diagnose") if row["name"] in large else "")
        lines.append(f"| {row['name']} | {row['thread']} | {' | '.join(cells)} |")
    named = [f"**{some} of {of}**" for some, of in (counts[name] for name in ("preflight", "diagnose", "diagnose, SmolLM2"))]
    lines.append(f"| **named first** | | {' | '.join(named)} |")
    tools = ("preflight", "diagnose", "diagnose, SmolLM2")
    alarms = [f"{some} of {of}" for some, of in (counts[f"false alarms of {tool}"] for tool in tools)]
    lines.append(f"| false alarms, sound runs | | {' | '.join(alarms)} |")
    return "\n".join(lines)


def _mark(row: dict[str, Any], tool: str) -> str:
    """A tick for the fault's own cause, else the one that was named."""
    return "✓" if row[tool] == row["cause"] else row[tool] or "–"


def write(results: dict[str, Any]) -> None:
    """Keep the results, and write the table between its marks on the page."""
    from sage_rlvr.symptoms.causes import PAGE

    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = Path(__file__).parents[2] / PAGE
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{table_of(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


__all__ = ["RESULTS", "Casebook", "counts_of", "run_case", "table_of"]
