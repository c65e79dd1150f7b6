"""What each door of the package loads, in statements of our own modules: a fresh interpreter opens it and counts.

`python tests/test_doors.py` prints all of them. A ceiling is raised only with an issue that allows it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOADED = """
import json, sys
ours = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "sage_rlvr"]
packages = {name.partition(".")[0] for name in sys.modules} | {"sage_rlvr.contrib"} & {*sys.modules}
print("\\n" + json.dumps([sorted(filter(None, ours)), sorted(packages)]))
"""
COMPARE = """
from sage_rlvr.cli import main
try:
    main(["compare", "examples/deepscaler/base.jsonl", "examples/deepscaler/rl.jsonl"])
except SystemExit as stop:
    assert not stop.code
"""


@dataclass(frozen=True)
class Door:
    """A way into the package. code: opens it; ceiling: statements at most; without: packages that it does not load."""

    name: str
    code: str
    ceiling: int
    without: frozenset[str] = frozenset()


NO_TRAINING = frozenset({"torch", "transformers", "pandas", "matplotlib", "pydantic", "yaml", "pyarrow", "jinja2", "sympy"})
DOORS = (
    Door("compare two files", COMPARE, 7_000, NO_TRAINING),
    Door("readers", "import sage_rlvr.verdicts.readers", 1_500, NO_TRAINING | {"scipy"}),
    Door("math_reward", "from sage_rlvr.verifiers.rewards import math_reward", 1_500, NO_TRAINING),
    Door("core with methods", "import sage_rlvr.core, sage_rlvr.methods", 3_000, NO_TRAINING - {"torch"} | {"sage_rlvr.contrib"}),
    Door("the training loop", "import sage_rlvr.training.loop", 11_500),
)


def opened(door: Door) -> tuple[int, int, set[str]]:
    """Statements of our modules that are loaded behind a door, their number, and the names of all loaded packages."""
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", door.code + LOADED],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, check=True,
    )  # fmt: skip
    ours, loaded = json.loads(done.stdout.splitlines()[-1])
    return sum(statements(Path(file)) for file in ours), len(ours), set(loaded)


@functools.cache
def statements(file: Path) -> int:
    """The statements of a file without docstrings and texts that stand alone."""
    nodes = (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.stmt))
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def as_case(door: Door) -> Any:
    """What loads torch takes seconds."""
    marks = [] if "torch" in door.without else [pytest.mark.slow]
    return pytest.param(door, id=door.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("door", [as_case(door) for door in DOORS])
def test_a_door_loads_no_more_than_its_ceiling(door: Door) -> None:
    found, modules, loaded = opened(door)
    assert found <= door.ceiling, f"{door.name}: {found:,} statements in {modules} modules, and {door.ceiling:,} are allowed"
    assert not loaded & door.without


if __name__ == "__main__":
    for one in DOORS:
        count, files, others = opened(one)
        heavy = ", ".join(sorted(others & {*NO_TRAINING, "numpy", "scipy"}))
        print(f"{one.name:<20}{count:>7,} of {one.ceiling:>6,} statements, {files:>3} modules; {heavy}")
