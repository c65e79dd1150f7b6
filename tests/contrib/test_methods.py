"""A file of contrib with a method is one paper: its docstring names the paper, the recipe, and the test with hand-made numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sage_rlvr
from sage_rlvr.config import read_recipe
from sage_rlvr.names import PARTS
from sage_rlvr.registry import registry_of

ROOT = Path(__file__).resolve().parents[2]
CONTRIB = Path(sage_rlvr.__file__).parent / "contrib"
FOLDERS = ("methods", "replay", "self_reward")
FILES = [path for folder in FOLDERS for path in sorted((CONTRIB / folder).glob("*.py")) if path.stem != "__init__"]


def parts_of(path: Path) -> dict[str, dict[str, str]]:
    """kind -> name in recipes -> name in Python, of what the file registers."""
    module = f"sage_rlvr.contrib.{path.parent.name}.{path.stem}"
    listed = {kind: {name: home.split(":") for name, home in homes.items()} for kind, homes in PARTS.items()}
    own = {kind: {name: one for name, (home, one) in homes.items() if home == module} for kind, homes in listed.items()}
    return {kind: names for kind, names in own.items() if names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_one_paper_with_its_recipe_and_its_numbers(path: Path):
    said, parts = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "", parts_of(path)
    methods = parts["method"]
    papers = {registry_of("method").about(name)[1] for name in methods}
    assert len(papers) == 1, f"{path.name}: methods of {sorted(papers)}; a file is one paper"
    assert set(re.findall(r"https://arxiv\.org/abs/(\d+\.\d+)", said)) == papers - {""}
    recipes = re.findall(r"`sage-rlvr train (\w+) --task TASK`", said)
    assert recipes and set(recipes) <= set(methods)
    assert all(read_recipe(Path(name)).method.name == name for name in recipes)
    tests = re.findall(r"tests/[\w/]+\.py", said)
    assert tests and all((ROOT / name).is_file() for name in tests)
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in tests)
    named = {one: rf"(?<![A-Za-z])({one}|{name})(?![A-Za-z])" for own in parts.values() for name, one in own.items()}
    untested = [one for one, pattern in named.items() if not re.search(pattern, text)]
    assert not untested, f"{path.name}: {', '.join(tests)} has nothing of {untested}"
