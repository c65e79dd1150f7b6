"""A file of contrib/methods is one paper: its docstring names the paper, the recipe and the test with hand-made numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sage_rlvr
from sage_rlvr.config import read_recipe
from sage_rlvr.registry import HOMES, contributed, registry_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (Path(sage_rlvr.__file__).parent / "contrib" / "methods").glob("*.py") if path.stem != "__init__")


def parts_of(path: Path) -> dict[str, dict[str, str]]:
    """kind -> name in recipes -> name in Python, of what the file registers."""
    module = f"sage_rlvr.contrib.methods.{path.stem}"
    listed = {kind: {name: home.split(":") for name, home in contributed(kind).items()} for kind in HOMES}
    own = {kind: {name: one for name, (home, one) in homes.items() if home == module} for kind, homes in listed.items()}
    return {kind: names for kind, names in own.items() if names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_one_paper_with_its_recipe_and_its_numbers(path: Path):
    said, parts = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "", parts_of(path)
    methods = parts["method"]
    papers = {registry_of("method").about(name)[1] for name in methods}
    assert len(papers) == 1, f"{path.name}: methods of {sorted(papers)}; a file is one paper"
    assert set(re.findall(r"https://arxiv\.org/abs/([\d.]+)", said)) == papers - {""}
    recipes = re.findall(r"`sage-rlvr train (\w+) --task TASK`", said)
    assert recipes and set(recipes) <= set(methods)
    assert all(read_recipe(Path(name)).method.name == name for name in recipes)
    tests = re.findall(r"tests/[\w/]+\.py", said)
    assert tests and all((ROOT / name).is_file() for name in tests)
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in tests)
    untested = [one for own in parts.values() for name, one in own.items() if not re.search(rf"\b({one}|{name})\b", text)]
    assert not untested, f"{path.name}: {', '.join(tests)} has nothing of {untested}"
