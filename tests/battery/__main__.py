"""python -m tests.battery [kills damages hostile] --count N --seed S --out FILE: attacks, figures, exit code 1 where one got through."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.battery import damages, hostile, kills
from tests.battery.world import inputs, whole

USUAL = {"kills": 100, "damages": 400, "hostile": 10_000}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.battery", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(USUAL)}; default: all")
    parser.add_argument("--count", type=int, help=f"attacks of each; default {USUAL}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    asked = parser.parse_args()
    names, found = asked.names or list(USUAL), {}
    if unknown := set(names) - set(USUAL):
        parser.error(f"no battery is called {', '.join(sorted(unknown))}; there are {', '.join(USUAL)}")
    with tempfile.TemporaryDirectory() as room:
        for name in names:
            count = asked.count or USUAL[name]
            if name == "kills":
                found[name] = kills.battery(inputs(Path(room) / "inputs"), Path(room) / name, count, asked.seed)
            elif name == "damages":
                found[name] = damages.battery(whole(Path(room) / "whole"), Path(room) / name, count, asked.seed)
            else:
                found[name] = hostile.battery(count, asked.seed)
    faults = sum(len(row["faults"]) for part in found.values() for row in part.values())  # type: ignore[arg-type, misc]
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{faults} faults" if faults else "no fault")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
