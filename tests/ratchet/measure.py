"""Measures of the package that may only fall: `python -m tests.ratchet.measure` prints them beside the stored ones.

    --write            lower the stored figures to today's, where they fell
    --raise "reason"   store today's figures although some rose; the reason is kept in the file

Counted per package (a folder of src/sage_rlvr, or "modules" for the files beside them), from the syntax trees:

nodes       syntax-tree nodes without docstrings: what a reader has to read
density     nodes per statement
lookups     getattr and hasattr with a name written out: members that no interface declares
and in the whole package
doubles     names of classes and type aliases that are defined more than once
walls       pairs of packages of which one imports the other, lazy imports included (tests/test_purity.py says which may)
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sage_rlvr"
STORED = Path(__file__).with_name("figures.json")
NOTHING: dict[str, Any] = {"packages": {}, "doubles": 0, "walls": 0, "reasons": []}


def measure() -> dict[str, Any]:
    """{"packages": {name: {"nodes", "density", "lookups"}}, "doubles": n, "walls": n} of the package as it stands."""
    sums: dict[str, Counter[str]] = {}
    names: Counter[str] = Counter()
    walls: set[tuple[str, str]] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "modules"
        counted = sums.setdefault(package, Counter())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        walls |= {(package, other) for other in imported(tree) if other != package}
        for node in without_docstrings(tree):
            counted["nodes"] += 1
            counted["statements"] += isinstance(node, ast.stmt)
            counted["lookups"] += is_lookup(node)
        names.update(defined(tree))
    packages = {
        name: {
            "nodes": counted["nodes"],
            "density": round(counted["nodes"] / max(1, counted["statements"]), 2),
            "lookups": counted["lookups"],
        }
        for name, counted in sums.items()
    }
    return {"packages": packages, "doubles": sum(times > 1 for times in names.values()), "walls": len(walls)}


def imported(tree: ast.Module) -> set[str]:
    """The packages of sage_rlvr that a module imports absolutely; those of its files beside the packages are "modules"."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sage_rlvr"):
            dotted = node.module.split(".") if node.module else []
            names |= {dotted[1]} if len(dotted) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("sage_rlvr.")}
    return {name if (PACKAGE / name).is_dir() else "modules" for name in names}


def without_docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree, but for expression statements that are only a text."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not is_text(child):
            yield from without_docstrings(child)


def is_text(node: Any) -> bool:
    """Whether a statement is a docstring, or a text after an attribute that documents it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_lookup(node: ast.AST) -> bool:
    """Whether a node is getattr(x, "name"), getattr(x, "name", default) or hasattr(x, "name")."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
    return called and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)


def defined(tree: ast.Module) -> list[str]:
    """Names of the classes and type aliases that a module defines at its top."""
    found = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[:1].isupper() and not name.isupper() and isinstance(node.value, ast.Subscript | ast.BinOp):
                found.append(name)
    return found


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """{"core nodes": 40000, ..., "doubles": 50, "walls": 100}"""
    rows = {f"{name} {what}": value for name, row in figures["packages"].items() for what, value in row.items()}
    return rows | {name: figures[name] for name in ("doubles", "walls")}


def risen(stored: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Figures above the stored ones, as sentences. A package that is not stored has none to exceed, so it is named too."""
    limits = flat(stored)
    out = []
    for name, value in flat(found).items():
        if name not in limits:
            out.append(f"{name}: {value:g} has no stored figure")
        elif value > limits[name]:
            out.append(f"{name}: {value:g}, stored {limits[name]:g}")
    return out


def main() -> None:
    """Print, and with an option store, today's figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--raise", dest="reason", default="")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else NOTHING
    found = measure()
    limits = flat(stored)
    for name, value in sorted(flat(found).items()):
        print(f"{name:<24} {value:>9g}  stored {limits.get(name, float('nan')):g}")
    rose = risen(stored, found)
    if options.reason:
        stored["reasons"].append({"date": date.today().isoformat(), "reason": options.reason, "rose": rose})
    elif options.write and rose:
        raise SystemExit("these rose; give a reason with --raise:\n" + "\n".join(rose))
    if options.write or options.reason:
        STORED.write_text(json.dumps({**found, "reasons": stored["reasons"]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
