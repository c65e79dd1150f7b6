"""The layering is what docs/contributing.md says, which is read as text.

Imports are read with ast, those inside functions and under TYPE_CHECKING included: a lazy import is still a dependency.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sage_rlvr.cli.app import command_of
from sage_rlvr.registry import HOMES, _written_in, contributed, registry_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sage_rlvr"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A part may import itself and the parts named here. A part names only parts above it: dependencies point one way.
# A new part without a line fails the test, so that its place is decided knowingly.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "members": {"errors"},
    "process": set(),
    "paths": set(),
    "escaping": set(),
    "safe_io": {"errors"},
    "runs": {"safe_io", "errors"},
    "plugins": {"safe_io", "errors"},
    "registry": {"plugins", "extras", "errors"},
    "core": {"members", "registry", "errors"},
    "methods": {"core", "registry", "errors"},
    "verifiers": {"registry", "errors"},
    "tasks": {"members", "paths", "plugins", "safe_io", "registry", "runs", "escaping", "verifiers", "errors"},
    "stats": {"safe_io", "errors"},
    "recipes": {"paths", "plugins", "safe_io", "registry", "errors"},
    "schema": {"plugins", "recipes", "registry", "errors"},
    "testing": {"core", "schema", "errors"},
    "progress": {"escaping"},
    "config": {"core", "methods", "plugins", "recipes", "schema", "tasks", "errors"},
    "models": {"plugins", "registry", "config", "core", "safe_io", "recipes", "runs", "tasks", "verifiers", "errors"},
    "training": {
        *("config", "core", "methods", "models", "paths", "plugins", "safe_io", "recipes", "runs", "stats", "tasks", "verifiers"),
        "errors",
    },
    "evaluation": {
        *("config", "core", "methods", "models", "progress", "recipes", "runs", "stats", "tasks", "training", "verifiers"),
        *("plugins", "safe_io", "escaping", "errors"),
    },
    "results": {
        *("config", "evaluation", "extras", "models", "safe_io", "registry", "runs", "stats", "tasks", "escaping", "verifiers"),
        "errors",
    },
    "render": {"results", "runs", "stats", "escaping", "errors"},
    "sweeps": {
        *("config", "core", "evaluation", "models", "process", "progress", "recipes", "render", "results", "runs", "stats"),
        *("paths", "plugins", "safe_io", "tasks", "training", "errors"),
    },
    "api": {
        *("config", "core", "evaluation", "sweeps", "models", "progress", "recipes", "registry", "render", "results"),
        *("plugins", "safe_io", "runs", "stats", "tasks", "escaping", "training", "verifiers", "errors"),
    },
    "cli": {
        *("api", "config", "core", "evaluation", "sweeps", "models", "plugins", "progress"),
        *("extras", "process", "safe_io", "recipes", "registry", "schema", "escaping"),
        *("render", "results", "runs", "stats", "tasks", "training", "verifiers", "errors"),
    },
    "contrib": set(),  # all of the above, filled in below: nothing above has it
    "trl": {"training"},
    "verl": {"training", "process", "errors"},
    "__main__": {"cli"},
    "__init__": {"api", "core", "extras", "methods", "registry", "tasks"},  # lazily: see test_importing_the_package_loads_no_torch
}

LAYERS["contrib"] = set(list(LAYERS)[: list(LAYERS).index("contrib")])

# Parts that stay free of heavy libraries: the only third-party packages they may import.
THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "process": set(),
    "escaping": set(),
    "safe_io": {"numpy", "pyarrow"},
    "core": {"torch", "jaxtyping"},
    "methods": set(),
    "verifiers": {"math_verify", "latex2sympy2_extended", "sympy"},
    # the tokenizer, when it is built; parquet files, the Hub and reasoning-gym, when they are read; a template's error
    "tasks": {"numpy", "tokenizers", "transformers", "pyarrow", "reasoning_gym", "datasets", "jinja2"},
    "stats": {"numpy", "scipy", "yaml"},
    "results": {"numpy", "pandas", "pyarrow"},  # pandas for data frames, pyarrow for Parquet and logs packed by Zstandard
    "render": {"numpy", "matplotlib", "jinja2", "markupsafe", "markdown_it"},
    "config": set(),
    "recipes": {"yaml"},
    "schema": {"yaml", "pydantic", "pydantic_core", "typing_extensions"},
}


def part_of(path: Path) -> str:
    """src/sage_rlvr/core/guides/flat.py -> core; src/sage_rlvr/cli.py -> cli."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Dotted names that a module imports, relative imports resolved."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["sage_rlvr", *path.relative_to(PACKAGE).parts[:-1]]
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            if source == "sage_rlvr":  # `from sage_rlvr import core` imports a part, not the package alone
                found |= {f"sage_rlvr.{alias.name}" for alias in node.names}
            found.add(source)
    return found


def parts_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("sage_rlvr.")}


def third_party(path: Path) -> set[str]:
    tops = {name.split(".")[0] for name in imports_of(path)}
    return tops - set(sys.stdlib_module_names) - {"sage_rlvr"}


def test_the_layers_have_an_order():
    above: set[str] = set()
    for part, allowed in LAYERS.items():
        assert allowed <= above, f"{part} depends on {sorted(allowed - above)}, which stand below it"
        above.add(part)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path: Path):
    part = part_of(path)
    assert part in LAYERS, f"{part} has no layer; give it a line in LAYERS and in docs/contributing.md"
    forbidden = parts_imported(path) - LAYERS[part] - {part}
    assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}; {part} may use {sorted(LAYERS[part])}"
    if part in THIRD_PARTY:
        heavy = third_party(path) - THIRD_PARTY[part]
        assert not heavy, f"{path.relative_to(ROOT)} imports {sorted(heavy)}, which {part} has no use for"


def test_the_reader_of_imports_sees_lazy_and_relative_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "core" / "guides").mkdir(parents=True)
    module = tmp_path / "core" / "guides" / "new.py"
    module.write_text(
        "import os\nfrom ..keys import Key\n\ndef f():\n    from sage_rlvr import runs\n    import scipy.io\n"
    )
    assert parts_imported(module) == {"core", "runs"}
    assert third_party(module) == {"scipy"}
    assert part_of(module) == "core"


# ---- contrib is below everything: parts of it are found by name, and never imported

LISTED = metadata.Distribution.at(PACKAGE / "contrib").entry_points


def reaches_into_contrib(path: Path) -> list[str]:
    """Imports of contrib, and strings with the name of a module there; docstrings and comments may name them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [node.value for node in strings if id(node) not in docs and "sage_rlvr.contrib" in node.value]
    return sorted(name for name in imports_of(path) if f"{name}.".startswith("sage_rlvr.contrib.")) + named


def test_nothing_outside_contrib_imports_it_or_names_its_modules():
    found = {str(path.relative_to(PACKAGE)): reaches_into_contrib(path) for path in MODULES if part_of(path) != "contrib"}
    assert not {name: uses for name, uses in found.items() if uses}


def test_what_reaches_into_contrib_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "core").mkdir()
    module = tmp_path / "core" / "one.py"
    module.write_text(
        '"""See sage_rlvr.contrib.tasks."""\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n'
        "    from sage_rlvr import contrib\n\ndef f():\n    from ..contrib.tasks import repair\n"
        '    return importlib.import_module("sage_rlvr.contrib.tasks.gsm_symbolic")\n'
    )
    modules = ["sage_rlvr.contrib", "sage_rlvr.contrib.tasks", "sage_rlvr.contrib.tasks.gsm_symbolic"]
    assert reaches_into_contrib(module) == modules
    module.write_text("from sage_rlvr import contributions\nimport contrib\n")
    assert reaches_into_contrib(module) == []


def test_the_list_of_contrib_is_what_its_files_register():
    """A part that no line lists is found only if its module was imported before: by chance."""
    registries = {home.partition(":")[2]: kind for kind, home in HOMES.items()}
    parts = {(entry.group, entry.name) for entry in LISTED if entry.group != "sage_rlvr.commands"}
    written = {
        (f"sage_rlvr.{kind}s", name)
        for path in sorted((PACKAGE / "contrib").rglob("*.py"))
        for registry, kind in registries.items()
        for name, _ in _written_in(path, registry)
    }
    assert written and parts == written


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: f"{entry.group}.{entry.name}")
def test_every_line_of_the_list_leads_to_the_part(entry: metadata.EntryPoint):
    kind = entry.group.removeprefix("sage_rlvr.").removesuffix("s")
    assert contributed(kind)[entry.name] == entry.value  # the text is read without importlib.metadata
    assert (command_of(entry.name) if kind == "command" else registry_of(kind)[entry.name]) is entry.load()


@pytest.mark.parametrize("module", ["sage_rlvr", "sage_rlvr.tasks", "sage_rlvr.cli.app", "sage_rlvr.methods"])
def test_importing_it_imports_nothing_of_contrib(module: str):
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith("sage_rlvr.contrib")]


# ---- the laboratory stands outside

LABORATORY = re.compile(r"(?<![\w./])lab/|python -m lab\b")


def of_the_laboratory(path: Path) -> list[str]:
    """Imports of lab, and strings with a path in lab/ or its command; docstrings and comments may name them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [node.value for node in strings if id(node) not in docs and LABORATORY.search(node.value)]
    return sorted(name for name in imports_of(path) if name.split(".")[0] == "lab") + named


def test_nothing_in_the_package_imports_the_laboratory_or_names_its_files():
    found = {str(path.relative_to(PACKAGE)): of_the_laboratory(path) for path in MODULES}
    assert not {name: uses for name, uses in found.items() if uses}


def test_what_reaches_for_the_laboratory_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    module = tmp_path / "one.py"
    module.write_text('"""See lab/README.md."""\n\ndef f():\n    from lab.theory import tree\n    return "lab/pages"\n')
    assert of_the_laboratory(module) == ["lab.theory", "lab/pages"]
    module.write_text('"""See lab/README.md."""\nx = "runs/lab/one"\ny = 1\n"""As `python -m lab anchor` prints it."""\n')
    assert of_the_laboratory(module) == []


# ---- the page is drawn from values

DRAWS = {  # what report may have of the floors below, by module; of statistics it has types alone
    "results": {"Results"},
    "results.page": {"report_of"},
    "results.page.scores": {"Band", "Line"},
    "results.page.training": {"TRAINING"},
    "results.tables": {"Table", "frame_of"},
    "results.row_text": {"End"},
    "runs": {"write_json_atomic", "write_text_atomic"},
    "errors": {"suggest"},
    "escaping": {"escaped", "visible"},
    "stats.curves": {"CurveComparison"},
    "stats.frontier": {"FrontierPoint", "GapCurve"},
    "stats.intervals": {"Interval"},
    "stats.passk": {"Floats"},
}
REACHES = {"records", "exact", "stores", "counts", "logps", "design", "metrics", "read_bytes", "iterdir"}
"""Attributes of `Results`, of records, of runs and of folders."""


def reached(path: Path) -> tuple[set[str], int]:
    """What a module of report takes beyond `DRAWS` and `REACHES`, and how often it reads results."""
    found, read = set(), 0
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_results = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "read"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("sage_rlvr")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sage_rlvr."):
            module = node.module.removeprefix("sage_rlvr.")
            if not module.startswith("render"):
                found |= {f"{module}.{alias.name}" for alias in node.names if alias.name not in DRAWS.get(module, ())}
        elif isinstance(node, ast.Attribute) and node.attr in REACHES:
            found.add(f".{node.attr}")
        elif isinstance(node, ast.Name) and node.id == "Results":
            read += 1
            found |= {"Results"} if node not in of_results else set()
    return found, read


def test_the_page_is_drawn_from_values_and_reads_results_once():
    modules = {path.name: reached(path) for path in (PACKAGE / "render").glob("*.py")}
    assert not {name: sorted(found) for name, (found, _) in modules.items() if found}
    assert sum(read for _, read in modules.values()) == 1


def test_what_reaches_past_the_values_is_seen(tmp_path: Path):
    module = tmp_path / "one.py"
    module.write_text("from sage_rlvr.results import Results, Run\n\ndef f(results: Results):\n    return results.records\n")
    assert reached(module) == ({"results.Run", ".records", "Results"}, 1)
    module.write_text("def f():\n    from sage_rlvr.evaluation.record import load_record\n    import sage_rlvr.stats\n")
    assert reached(module) == ({"evaluation.record.load_record", "sage_rlvr.stats"}, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["sage_rlvr", "sage_rlvr.render", "sage_rlvr.results", "sage_rlvr.cli.app", "sage_rlvr.verifiers.countdown"],
)
def test_importing_it_loads_no_torch(module: str):
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert {"torch", "transformers"}.isdisjoint(loaded)
    if module in ("sage_rlvr", "sage_rlvr.cli.app"):  # `--help` answers before a reader looks up
        assert {"numpy", "scipy", "pydantic", "tyro", "yaml", "matplotlib", "pyarrow"}.isdisjoint(loaded)


def test_the_contributing_page_names_every_folder_of_the_package():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    folders = sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py")))
    assert not [name for name in folders if f"`{name}`" not in page]


def test_every_module_says_what_it_is():
    silent = [str(p.relative_to(ROOT)) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert not silent
