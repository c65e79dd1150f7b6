"""The layering is what docs/contributing.md says, which is read as text.

Imports are read with ast, those inside functions and under TYPE_CHECKING included: a lazy import is still a dependency, and so is
a module that is imported by its name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from sage_rlvr.cli.app import command_of
from sage_rlvr.names import COMMANDS, PARTS, REGISTRIES
from sage_rlvr.registry import registry_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sage_rlvr"
MODULES = sorted(PACKAGE.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """The tree of a file as it is now: six tests read every module of the package."""
    return tree_of(path.read_text(encoding="utf-8"))


def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file as it is now."""
    return walked(parsed(path))


tree_of = functools.cache(ast.parse)
walked = functools.cache(lambda tree: tuple(ast.walk(tree)))

# A part may import itself and the parts named here. A part names only parts above it: dependencies point one way.
# A new part without a line fails the test, so that its place is decided knowingly.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "ids": set(),
    "names": set(),
    "members": {"errors"},
    "process": set(),
    "paths": set(),
    "escaping": set(),
    "safe_io": {"errors"},
    "verdicts": {"safe_io", "errors"},  # the ground floor: rows, readers, statistics and verdicts know nothing else of the package
    "runs": {"safe_io", "errors"},
    "plugins": {"process", "safe_io", "errors"},
    "registry": {"names", "plugins", "extras", "errors"},
    "core": {"ids", "members", "registry", "errors"},
    "methods": {"core", "registry", "errors"},
    "verifiers": {"process", "errors"},
    "tasks": {
        *("extras", "ids", "members", "paths", "plugins", "safe_io", "registry", "runs", "escaping", "verdicts", "verifiers"),
        "errors",
    },
    "recipes": {"paths", "plugins", "safe_io", "registry", "errors"},
    "schema": {"names", "plugins", "recipes", "registry", "errors"},
    "testing": {"core", "ids", "names", "schema", "errors"},
    "progress": {"escaping"},
    "config": {"core", "methods", "plugins", "recipes", "schema", "tasks", "errors"},
    "models": {"extras", "plugins", "registry", "config", "core", "safe_io", "recipes", "runs", "tasks", "verifiers", "errors"},
    "training": {
        *("config", "core", "methods", "models", "paths", "plugins", "safe_io", "recipes", "runs", "tasks", "verdicts"),
        *("verifiers", "extras", "ids", "names", "errors"),
    },
    "evaluation": {
        *("config", "core", "methods", "models", "progress", "recipes", "runs", "verdicts", "tasks", "training", "verifiers"),
        *("ids", "plugins", "safe_io", "escaping", "errors"),
    },
    "results": {
        *("config", "evaluation", "extras", "models", "safe_io", "registry", "runs", "verdicts", "tasks", "escaping", "verifiers"),
        "errors",
    },
    "render": {"results", "runs", "verdicts", "escaping", "errors"},
    "symptoms": {
        *("config", "core", "evaluation", "models", "render", "safe_io", "verdicts", "tasks", "training", "verifiers", "extras"),
        "errors",
    },
    "sweeps": {
        *("config", "core", "evaluation", "models", "process", "progress", "recipes", "render", "results", "runs", "verdicts"),
        *("paths", "plugins", "safe_io", "tasks", "training", "errors"),
    },
    "api": {
        *("config", "core", "evaluation", "sweeps", "models", "progress", "recipes", "registry", "render", "results"),
        *("plugins", "safe_io", "runs", "verdicts", "tasks", "escaping", "training", "verifiers", "extras", "errors"),
    },
    "cli": {
        *("api", "config", "core", "evaluation", "sweeps", "symptoms", "models", "plugins", "progress"),
        *("extras", "names", "process", "safe_io", "recipes", "registry", "schema", "escaping"),
        *("render", "results", "runs", "verdicts", "tasks", "training", "verifiers", "errors"),
    },
    "contrib": set(),  # all of the above, filled in below: nothing above has it
    "trl": {"api", "symptoms", "training", "errors"},
    "verl": {"api", "training", "process", "errors"},
    "__main__": {"cli"},
    "__init__": {"api", "core", "extras", "methods", "names", "registry", "tasks"},  # the most lazily
}

LAYERS["contrib"] = set(list(LAYERS)[: list(LAYERS).index("contrib")])

# Parts that stay free of heavy libraries: the only third-party packages they may import.
THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "ids": set(),
    "process": set(),
    "escaping": set(),
    "safe_io": {"numpy", "pyarrow"},
    "core": {"torch", "jaxtyping"},
    "methods": set(),
    "verifiers": {"math_verify", "latex2sympy2_extended", "sympy"},
    # the tokenizer, when it is built; parquet files, the Hub and reasoning-gym, when they are read; a template's error
    "tasks": {"numpy", "tokenizers", "transformers", "pyarrow", "reasoning_gym", "datasets", "jinja2"},
    "verdicts": {"numpy", "scipy", "yaml", "pyarrow"},  # pyarrow for logs packed by Zstandard
    "results": {"numpy", "pandas"},
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
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["sage_rlvr", *path.relative_to(PACKAGE).parts[:-1]]
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            if source == "sage_rlvr":  # `from sage_rlvr import core` imports a part, not the package alone
                found |= {f"sage_rlvr.{alias.name}" for alias in node.names}
            found.add(source)
    return found | (set() if part_of(path) == "names" else named_in(path, PACKAGE))


HOME = re.compile(r"\.?[a-z_][\w.]*:[A-Za-z_]\w*")  # "module:attribute", the module perhaps relative


def named_in(path: Path, package: Path) -> set[str]:
    """Modules of the package that a module names in order to import them: in `import_module("...")`, or as "module:attribute"."""
    found, names = set(), path.relative_to(package.parent).parts[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and HOME.fullmatch(node.value):
            found.add(node.value.partition(":")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            found |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    whole = {f"{'.'.join(names)}{name}" if name.startswith(".") else name for name in found}
    return {name for name in whole if name.startswith(f"{package.name}.")}


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


def test_modules_import_only_what_their_layer_may():
    for path in MODULES:
        part, name = part_of(path), path.relative_to(ROOT)
        assert part in LAYERS, f"{part} has no layer; give it a line in LAYERS and in docs/contributing.md"
        forbidden = parts_imported(path) - LAYERS[part] - {part}
        assert not forbidden, f"{name} imports {sorted(forbidden)}; {part} may use {sorted(LAYERS[part])}"
        heavy = third_party(path) - THIRD_PARTY.get(part, third_party(path))
        assert not heavy, f"{name} imports {sorted(heavy)}, which {part} has no use for"


# Inside `verdicts` too: functions of arrays know no rows, and readers know neither tables nor comparisons.
FLOORS = {"stats": {"stats"}, "readers": {"readers", "stats.arrays", "chance"}}


@pytest.mark.parametrize("floor", FLOORS)
def test_statistics_and_readers_know_nothing_of_what_stands_on_them(floor: str):
    for path in sorted((PACKAGE / "verdicts" / floor).rglob("*.py")):
        names = {name.removeprefix("sage_rlvr.verdicts.") for name in imports_of(path) if name.startswith("sage_rlvr.verdicts.")}
        forbidden = {name for name in names if not any(f"{name}.".startswith(f"{known}.") for known in FLOORS[floor])}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}"


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


# ---- no circle, and one name for one thing

def import_graph(package: Path) -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, lazy imports and those under TYPE_CHECKING included."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in names.items():
        graph[module] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in imported:
                target = name if name in names else name.rpartition(".")[0]
                if target in names and target != module:
                    graph[module].add(target)
        if module != f"{package.name}.names":  # the table of parts, which are imported when a recipe names them
            graph[module] |= (named_in(path, package) & {*names}) - {module}
    return graph


def circle_in(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """A circle of imports, its first module repeated at its end; () if there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as err:
        return tuple(reversed(err.args[1]))
    return ()


def classes_of(path: Path) -> list[str]:
    return [node.name for node in parsed(path).body if isinstance(node, ast.ClassDef)]


def test_no_circle_of_imports():
    assert circle_in(import_graph(PACKAGE)) == ()


def test_a_circle_is_found_through_lazy_and_typing_imports(tmp_path: Path):
    package = tmp_path / "pack"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "low" / "__init__.py").write_text("def f():\n    from pack.b import g\n    return g\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.low import f\n")
    assert set(circle_in(import_graph(package))) == {"pack.b", "pack.low"}


@pytest.mark.parametrize("text", ['import_module("pack.b").g()', 'F = {"one": ".b:g"}', 'F = "pack.b:g"'])
def test_a_circle_is_found_through_modules_that_are_named(text: str, tmp_path: Path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(text)
    (package / "b.py").write_text("from pack import a\n")
    assert set(circle_in(import_graph(package))) == {"pack.a", "pack.b"}


def test_no_two_public_classes_have_one_name():
    names = Counter(name for path in MODULES for name in classes_of(path) if not name.startswith("_"))
    assert not {name for name, times in names.items() if times > 1}


# ---- contrib is below everything: parts of it are found by name, and never imported

def reaches_into_contrib(path: Path) -> list[str]:
    """Imports of contrib, and strings with the name of a module there, which only names.py has; docstrings may name them."""
    docs = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    strings = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [node.value for node in strings if id(node) not in docs and "sage_rlvr.contrib" in node.value]
    return sorted(name for name in imports_of(path) if f"{name}.".startswith("sage_rlvr.contrib.")) + named


def test_nothing_outside_contrib_imports_it_or_names_its_modules():
    outside = [path for path in MODULES if part_of(path) not in ("contrib", "names")]
    found = {str(path.relative_to(PACKAGE)): reaches_into_contrib(path) for path in outside}
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


def test_the_table_of_names_is_what_the_package_registers():
    """A part without a line is found only if its module was imported before: by chance."""
    files = [path for path in MODULES if re.search(r"^@[A-Z_]+\.register", path.read_text(encoding="utf-8"), re.MULTILINE)]
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in files]
    assert len(modules) > 60
    for module in modules:
        importlib.import_module(module)
    parts = {kind: registry_of(kind)._parts.items() for kind in REGISTRIES}
    ours = {kind: {n: p for n, p in found if f"{p.__module__}.".startswith("sage_rlvr.")} for kind, found in parts.items()}
    assert {k: {n: f"{p.__module__}:{p.__qualname__}" for n, p in found.items()} for k, found in ours.items()} == PARTS


def test_every_command_of_the_table_is_there():
    for words, place in COMMANDS.items():
        module, _, name = place.partition(":")
        assert command_of(words) is getattr(importlib.import_module(module), name), words


@pytest.mark.parametrize("module", ["sage_rlvr", "sage_rlvr.tasks", "sage_rlvr.cli.app"])  # methods: test_doors
def test_importing_it_imports_nothing_of_contrib(module: str):
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith("sage_rlvr.contrib")]


# ---- the verifiers are a ground floor


def statements(path: Path) -> int:
    """Statements of a file without docstrings."""
    texts = {id(n) for n in nodes_of(path) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    return sum(isinstance(node, ast.stmt) and id(node) not in texts for node in nodes_of(path))


def test_a_reward_loads_its_verifier_and_no_more_of_the_package():
    """TRL's trainers import `math_reward`. The ceiling moves by an issue only."""
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from sage_rlvr.verifiers.rewards import math_reward"
    code += "; print(*(m.__file__ for name, m in sys.modules.items() if name.split('.')[0] == 'sage_rlvr'))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {part_of(Path(file)) for file in loaded} == {"__init__", "names", "errors", "verifiers"}
    assert sum(statements(Path(file)) for file in loaded) <= 1500


# ---- the laboratory stands outside

LABORATORY = re.compile(r"(?<![\w./])lab/|python -m lab\b")


def of_the_laboratory(path: Path) -> list[str]:
    """Imports of lab, and strings with a path in lab/ or its command; docstrings and comments may name them."""
    docs = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    strings = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
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

DRAWS = {  # what report may have of the floors below, by module; of verdicts it has types alone
    "results.read": {"read_results"},
    "results.report": {"report_of"},
    "results.page.scores": {"Band", "Drawn", "Line"},
    "results.tables": {"TRAINING", "Table", "frame_of"},
    "verdicts.row": {"End"},
    "runs": {"write_json_atomic", "write_text_atomic"},
    "errors": {"DataError", "suggest"},
    "escaping": {"escaped", "visible"},
    "verdicts.stats.arrays": {"Floats"},
}
REACHES = {"records", "exact", "stores", "counts", "logps", "design", "metrics", "read_bytes", "iterdir"}
"""Attributes of `Results`, of records, of runs and of folders."""


def reached(path: Path) -> tuple[set[str], int]:
    """What a module of report takes beyond `DRAWS` and `REACHES`, and how often it reads results."""
    found, read = set(), 0
    tree = parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("sage_rlvr")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sage_rlvr."):
            module = node.module.removeprefix("sage_rlvr.")
            if not module.startswith("render"):
                found |= {f"{module}.{alias.name}" for alias in node.names if alias.name not in DRAWS.get(module, ())}
        elif isinstance(node, ast.Attribute) and node.attr in REACHES:
            found.add(f".{node.attr}")
        elif isinstance(node, ast.Name) and node.id == "read_results":
            read += 1
    return found, read


def test_the_page_is_drawn_from_values_and_reads_results_once():
    modules = {path.name: reached(path) for path in (PACKAGE / "render").glob("*.py")}
    assert not {name: sorted(found) for name, (found, _) in modules.items() if found}
    assert sum(read for _, read in modules.values()) == 1


def test_the_layout_of_the_page_reads_the_summary_alone():
    measured = {f"sage_rlvr.verdicts.{name}" for name in ("results", "findings", "record", "measurements", "sources", "verdict")}
    of_results = tuple(f"sage_rlvr.{name}" for name in ("results.details", "results.read", "results.summary", "evaluation", "runs"))
    for path in (PACKAGE / "results" / "page").glob("*.py"):
        found = imports_of(path)
        assert not found & measured and not [name for name in found if name.startswith(of_results)], path.name


def test_what_reaches_past_the_values_is_seen(tmp_path: Path):
    module = tmp_path / "one.py"
    lines = ("from sage_rlvr.results.read import digest_of, read_results", "records = read_results('runs').records")
    module.write_text("\n".join(lines))
    assert reached(module) == ({"results.read.digest_of", ".records"}, 1)
    module.write_text("def f():\n    from sage_rlvr.evaluation.record import load_record\n    import sage_rlvr.verdicts.stats\n")
    assert reached(module) == ({"evaluation.record.load_record", "sage_rlvr.verdicts.stats"}, 0)


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
    silent = [str(p.relative_to(ROOT)) for p in MODULES if not ast.get_docstring(parsed(p))]
    assert not silent
