"""Attacks and their figures: python -m lab.stress.battery kills|damages|hostile|all --count N --seed S --out FILE

Exit code 1 where an attack got through."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.stress.battery import damages, hostile, kills, page
from lab.stress.battery.world import inputs, warm, whole

USUAL = {"kills": 100, "damages": 800, "hostile": 10_000}


def attacked(name: str, room: Path, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """The figures of one battery, by command, file or verifier."""
    if name == "hostile":
        return hostile.battery(count, seed)
    warm()
    if name == "kills":
        return kills.battery(inputs(room / "inputs"), room / name, count, seed)
    return damages.battery(whole(room / "whole"), room / name, count, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.stress.battery", description=__doc__)
    parser.add_argument("name", choices=[*USUAL, "all"])
    parser.add_argument("--count", type=int, help=f"attacks of each; default {USUAL}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the figures as a Markdown page")
    asked = parser.parse_args()
    if asked.count is not None and asked.count < 1:
        parser.error(f"--count {asked.count}: at least 1 attack")
    found, seconds = {}, {}
    with tempfile.TemporaryDirectory() as room:
        for name in USUAL if asked.name == "all" else [asked.name]:
            began = time.monotonic()
            found[name] = attacked(name, Path(room), asked.count or USUAL[name], asked.seed)
            seconds[name] = time.monotonic() - began
    if asked.out:
        asked.out.write_text(page.text(found, seconds, asked.seed), encoding="utf-8")
    faults = sum(len(row["faults"]) for part in found.values() for row in part.values())
    print(f"{faults} faults" if faults else "no fault")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
