"""The size of the house: logical lines, which are statements without docstrings, and lines of the longest files.

    python benchmarks/size.py

`src` and `benchmarks` with the templates and scripts of the page, whose lines that are not blank count as one each; `tests` apart.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG = 400


def statements(path: Path) -> int:
    """Statements of a Python file, without docstrings and other strings that stand alone."""
    found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.stmt)]
    return sum(not (isinstance(n, ast.Expr) and isinstance(getattr(n.value, "value", None), str)) for n in found)


def main() -> None:
    """Prints the counts and the files above 400 lines."""
    counted = {name: sum(map(statements, (ROOT / name).rglob("*.py"))) for name in ("src", "benchmarks", "tests")}
    drawn = [path for end in ("j2", "js", "css") for path in (ROOT / "src").rglob(f"*.{end}")]
    counted["templates and scripts"] = sum(bool(line.strip()) for path in drawn for line in path.read_text("utf-8").splitlines())
    for name, number in counted.items():
        print(f"{name}: {number:,} logical lines")
    print(f"together, without tests: {sum(n for name, n in counted.items() if name != 'tests'):,}")
    lines = {path: len(path.read_text("utf-8").splitlines()) for name in ("src", "tests") for path in (ROOT / name).rglob("*.py")}
    for path, number in sorted(lines.items(), key=lambda item: -item[1]):
        if number > LONG:
            print(f"{number:5} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
