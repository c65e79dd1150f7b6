"""The parts of the package: what its files register is in the table of names, public, and in today's order; docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sage_rlvr
from sage_rlvr import core, methods
from sage_rlvr.core import GUIDES, METHODS
from sage_rlvr.recipes import recipe, shipped
from sage_rlvr.registry import Registry
from sage_rlvr.sweeps import demo
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.sweeps.resolve import label_of, resolve

ROOT = Path(sage_rlvr.__file__).parent
FIRST = {"GUIDES": ["branch", "flat", "compose", "placebo"], "METHODS": ["bnpo", "compose", "dapo", "dr_grpo", "entropy_bonus"]}


def own(registry: Registry, within: str = "sage_rlvr.") -> dict[str, str]:
    """Python's name -> name in recipes of the parts that the package itself registers. within: what their modules begin with."""
    parts = {registry[name]: name for name in registry}
    return {part.__name__: name for part, name in parts.items() if part.__module__.startswith(within)}


@pytest.mark.parametrize(("registry", "package"), [(GUIDES, core), (METHODS, methods)], ids=["guides", "methods"])
def test_what_is_registered_is_public(registry: Registry, package):
    assert len(own(registry)) >= 7
    for where, names in ((sage_rlvr, set(own(registry))), (package, set(own(registry, package.__name__)))):
        lacks = names - set(where.__all__) | {name for name in names if not hasattr(where, name)}
        assert not lacks, f"{where.__name__} lacks {lacks}"
    assert set(own(GUIDES)) <= set(core.__all__)


def test_listing_the_names_loads_no_torch():
    code = "names = dir(sage_rlvr)\nassert {'Rarity', 'maxrl'} <= {*names} and 'torch' not in sys.modules"
    code = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); import sage_rlvr\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("registry", [GUIDES, METHODS], ids=["GUIDES", "METHODS"])
def test_the_order_of_pages_stays(registry: Registry, request):
    first = FIRST[request.node.callspec.id]
    assert list(registry)[: len(first)] == first


def test_labels_of_arms_are_those_of_the_registries():
    said = {"grpo": "GRPO", "sage_token": "SAGE-Token", "rloo_branch": "RLOO+Branch", "placebo": "Placebo", "maxrl": "MaxRL"}
    assert {stem: label_of(stem) for stem in said} == said
    assert label_of("replay") is None and label_of("branch_ratio1") is None  # nothing is registered that could be said
    arms, _ = resolve(demo.design((0,), ("maxrl", "replay"), 5)[1], recipe("demo.yaml", "designs"))
    assert [arm.label for arm in arms][:2] == ["MaxRL", "replay"]


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped("designs"))
def test_no_label_of_a_shipped_design_is_taken_twice(name: str):
    path = shipped("designs")[name]
    design = load_design(path)
    arms, _ = resolve(design, path)
    labels = [arm.label for arm in arms]
    assert len({*labels, *design.baselines}) == len(labels) + len(design.baselines)


# ---- docstrings

PUBLIC = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(ROOT).parts)
]


@functools.cache
def body_of(path: Path) -> list[ast.stmt]:
    """The statements of a file."""
    return ast.parse(path.read_text(encoding="utf-8")).body


def documented(node: ast.AST) -> bool:
    return bool(ast.get_docstring(node))  # type: ignore[arg-type]


def told() -> set[str]:
    """Members that are explained once for all who have them: where a protocol or a base class declares them, or in its text."""
    bodies = [body_of(path) for path in PUBLIC]
    classes = [node for body in bodies for node in body if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).split("[")[0] for node in classes for base in node.bases}
    found: set[str] = set()
    for node in classes:
        if node.name in bases or any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            for_readers = (member for block in node.body if isinstance(block, ast.If) for member in block.body)  # of types
            members = (*node.body, *for_readers)
            found |= {member.name for member in members if isinstance(member, ast.FunctionDef) and documented(member)}
            found |= set(re.findall(r"`(\w+)`", ast.get_docstring(node) or ""))
    return found


@pytest.mark.slow
def test_every_public_function_says_what_it_does():
    """The API reference shows what has a docstring, and nothing else of these files."""
    explained, silent = told(), []
    for path in PUBLIC:
        for node in body_of(path):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            silent += [] if documented(node) else [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"]
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                hidden = not isinstance(member, ast.FunctionDef) or member.name.startswith("_") or member.name in explained
                overload = isinstance(member, ast.FunctionDef) and "overload" in map(ast.unparse, member.decorator_list)
                if not (hidden or overload or documented(member)):
                    silent.append(f"{path.relative_to(ROOT)}:{member.lineno} {node.name}.{member.name}")
    assert not silent, f"say in a docstring what these do, with shapes and units: {silent}"


@pytest.mark.parametrize("package", [sage_rlvr, core, methods], ids=lambda package: package.__name__)
def test_every_exported_noun_says_what_it_is(package):
    nouns = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    nouns = {n: noun for n, noun in nouns.items() if n in package.__all__ and (inspect.isclass(noun) or inspect.isroutine(noun))}
    assert len(nouns) > 10 and not [name for name, noun in nouns.items() if not inspect.getdoc(noun)]
