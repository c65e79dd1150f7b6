"""Start-up: CPU seconds and seconds by the clock of commands that load little, each in a process of its own.

    python benchmarks/startup.py [--repeats 5]

Median (least to most) of commands in turns; each counts the interpreter's start and every import. Wanted on an idle core: `--help`
under 0.3 s, `show` and `compare` under 2 s. Beside them `import torch` alone: `show` needs it, because it builds the method that
would be trained; `--help`, `recipes` and `compare` load none.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import tyro

SUMMARY = str(Path(__file__).parents[1] / "lab" / "experiments" / "2026-11-21_table1")
CODE = "import sys; from sage_rlvr.cli.app import main; sys.exit(main())"
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "sage-rlvr --help": (["-c", CODE, "--help"], 0.3),
    "sage-rlvr recipes": (["-c", CODE, "recipes"], None),
    "sage-rlvr show grpo": (["-c", CODE, "show", "grpo"], 2.0),
    "sage-rlvr compare SUMMARY": (["-c", CODE, "compare", SUMMARY], 2.0),
    "import torch": (["-c", "import torch"], None),
}


def seconds(words: list[str]) -> tuple[float, float]:
    """(CPU, clock) of one process. RuntimeError with what it said where it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def main(repeats: int = 5) -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(repeats + 1):
        for name, (words, _) in COMMANDS.items():
            found = seconds(words)
            if turn:  # the first writes compiled files and fills the disk's cache
                taken[name].append(found)
    print(f"{'':<44} {'CPU s':>22} {'by the clock':>22}")
    for name, (_, wanted) in COMMANDS.items():
        cells = [f"{statistics.median(c):.2f} ({min(c):.2f} .. {max(c):.2f})" for c in zip(*taken[name], strict=True)]
        middle = statistics.median(clock for _, clock in taken[name])
        said = "" if wanted is None else f"   wanted {wanted:g}: {'reached' if middle < wanted else 'MISSED'}"
        print(f"{name:<44} {cells[0]:>22} {cells[1]:>22}{said}")
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
