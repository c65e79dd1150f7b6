"""Imports that the package should not need, which may only become fewer: `python -m tests.ratchet.imports` prints them.

    --write    store today's; a circle or a module that was not stored is printed, and `git diff` shows it

circles    modules of which each imports the next, lazy imports and those under TYPE_CHECKING included
late       module -> imports inside its functions without a comment that says why they are late. Commands (cli, and files of contrib
           with a `Command`) are left out: the overview answers before libraries are loaded
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.ratchet.measure import PACKAGE

STORED = Path(__file__).with_name("imports.json")
COMMAND = re.compile(r"^class \w+\(Command\):", re.MULTILINE)


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name from the package on -> file; of a folder its `__init__`, of the package itself ""."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_in(tree: ast.AST, package: str) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """(full name, statement) of what a tree imports absolutely; `from a import b` gives a.b. Names of `package`: .a"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name.removeprefix(package) if f"{name}.".startswith(f"{package}.") else name, node


def graph_of(package: Path) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports; a name that a module defines counts as this module."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for full, _ in imports_in(ast.parse(path.read_text(encoding="utf-8")), package.name):
            if not full.startswith("."):
                continue
            whole, above = full[1:], full[1:].rpartition(".")[0]
            target = whole if whole in modules else above
            if target in modules and target != name:
                graph[name].add(target)
    return graph


def circles_of(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules in which each is reached from each other, sorted."""
    reach = {name: _reached(graph, name) for name in graph}
    circles = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph if a in reach[a]}
    return [list(circle) for circle in sorted(circles)]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += graph[one]
    return found


def late_of(package: Path) -> dict[str, int]:
    """Module -> the number of its import statements inside functions, as this file's docstring counts them; modules with some."""
    found = {}
    for name, path in modules_of(package).items():
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        late = {node.lineno for each in functions for _, node in imports_in(each, package.name)}
        kept = [line for line in late if not _explained(lines, line)]
        if kept and name.split(".")[0] != "cli" and not COMMAND.search(text):
            found[name] = len(kept)
    return found


def _explained(lines: list[str], number: int) -> bool:
    """Whether the import in a line has a comment, or is one of several in a row of which the first has."""
    while "#" not in lines[number - 1]:
        number -= 1
        if not lines[number - 1].strip().startswith(("import ", "from ")):
            return False
    return True


def measure(package: Path = PACKAGE) -> dict[str, Any]:
    """{"circles": [[module, ...], ...], "late": {module: number}} of the package as it stands."""
    return {"circles": circles_of(graph_of(package)), "late": late_of(package)}


def new_in(found: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """What is found and not stored, in sentences."""
    known = [set(circle) for circle in stored["circles"]]
    out = [f"circle of imports: {', '.join(c)}" for c in found["circles"] if not any(set(c) <= one for one in known)]
    for name, number in found["late"].items():
        if number > (before := stored["late"].get(name, 0)):
            out.append(f"{name}: {number} imports inside functions, stored {before}")
    return out


def main() -> None:
    """Print, and with an option store, today's imports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = measure()
    print(json.dumps(found, indent=1))
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"circles": [], "late": {}}
    print("\n".join(new_in(found, stored)))
    if options.write:
        STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
