"""The figures as a page, lab/pages/results/battery.md, and the sentence of it that lab/pages/concepts/reliability.md quotes."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.stress.battery.damages import OUTCOMES

COVERED = {
    "kills": "12, 13 and 25",
    "damages": "15; of 6 and 23 the files of rows and recipes; of 16 and 17 a run that goes on after one of its files changed; "
    "of 27 the tokenizer's files",
    "hostile": "1 and 2; of 3 what reaches a verifier",
}
NOT_COVERED = (
    "Row 18 (vLLM) and of row 20 running out of memory and NCCL hangs are covered by no battery and by no test. The rows that are "
    "not named here are held by the tests that the page lists."
)
KINDS = {"traceback": "tracebacks", "hang": "hangs", "wrong": "wrong results"}
Figures = Mapping[str, Mapping[str, Mapping[str, Any]]]


def faults_of(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many faults of each kind: every fault says its kind before a colon."""
    return Counter(next(kind for kind in KINDS if f"{kind}:" in fault) for row in rows for fault in row["faults"])


def quoted(found: Figures) -> str:
    """The sentence that the page of reliability quotes."""
    parts, faults = [], faults_of(row for part in found.values() for row in part.values())
    if rows := found.get("kills"):
        signals, ended = (sum(row[name] for row in rows.values()) for name in ("attacks", "ended"))
        equal = sum(row["equal"] for row in rows.values())
        parts.append(
            f"{signals:,} kills over {len(rows)} commands, after which {equal:,} of {ended:,} ended as if undisturbed"
        )
    if rows := found.get("damages"):
        outcomes = sum((row["outcomes"] for row in rows.values()), Counter[str]())
        said = ", ".join(f"{outcomes[name]:,} {words}" for name, words in OUTCOMES.items())
        parts.append(f"{sum(row['attacks'] for row in rows.values()):,} damages ({said})")
    if rows := found.get("hostile"):
        right = sum(row["outcomes"]["right"] for row in rows.values())
        parts.append(
            f"{sum(row['attacks'] for row in rows.values()):,} hostile answers to {len(rows)} verifiers, {right} called right"
        )
    return f"{'; '.join(parts)}: {', '.join(f'{faults[kind]} {word}' for kind, word in KINDS.items())}."


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [*(f"| {' | '.join(map(str, line))} |" for line in lines), ""]


def machine() -> str:
    """In general words."""
    system = f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()}, Python {platform.python_version()}"
    return f"{system}, shared with other work"


def text(found: Figures, seconds: Mapping[str, float], seed: int) -> str:
    """The page: one table a battery."""
    words = f"python -m lab.stress.battery {next(iter(found)) if len(found) == 1 else 'all'} --seed {seed}"
    lines = ["# Batteries of attacks", "", f"Made by `python -m lab.stress.battery all` (`{words}`).", "", quoted(found), ""]
    lines += [
        "Its rows are those of [Reliability](../concepts/reliability.md); a fault that gets through has exit code 1.",
        "",
    ]
    for name, rows in found.items():
        lines += [f"## {name.capitalize()}", "", f"{seconds[name]:.0f} s. Rows {COVERED[name]}.", ""]
        lines += {"kills": _kills, "damages": _damages, "hostile": _hostile}[name](rows)
    lines += ["## What no battery covers", "", NOT_COVERED, "", f"Machine: {machine()}.", ""]
    return "\n".join(lines)


def _faults(row: Mapping[str, Any]) -> list[int]:
    counted = faults_of([row])
    return [counted[kind] for kind in KINDS]


def _kills(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = (
        "command",
        "kills",
        "ended after them",
        "bitwise equal",
        "tracebacks",
        "hangs",
        "wrong results",
        "seconds",
    )
    return table(
        header,
        ([f"`{n}`", r["attacks"], r["ended"], r["equal"], *_faults(r), f"{r['seconds']:.0f}"] for n, r in rows.items()),
    )


def _damages(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = ("file", "damages", *OUTCOMES.values(), *KINDS.values(), "seconds")
    return table(header, (
        [f"`{n}`", r["attacks"], *(r["outcomes"][one] for one in OUTCOMES), *_faults(r), f"{r['seconds']:.0f}"]
        for n, r in sorted(rows.items())
    ))  # fmt: skip


def _hostile(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = (
        "verifier",
        "answers",
        "wrong",
        "undecided",
        "right",
        "tracebacks",
        "hangs",
        "wrong results",
        "slowest, s",
        "seconds",
    )
    return table(header, (
        [f"`{n}`", r["attacks"], *(r["outcomes"][one] for one in ("wrong", "undecided", "right")), *_faults(r),
         f"{r['slowest']:.1f}", f"{r['seconds']:.0f}"]
        for n, r in rows.items()
    ))  # fmt: skip
