"""User code that registers parts: files (`--plugin my_file.py`, `plugins: [my_file.py]` in a recipe) and entry points of
installed packages.

A file is executed once per process. Its path is in the environment, so that the processes of a sweep, of TRL and of
the verifiers have the same parts. A run records the hash of each file, and the package, version and hash of the code behind each
part from a package. Errors raised in plugin code are reported with the plugin's file and line (`blame`).
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from sage_rlvr.errors import ConfigError, SageError, nearest
from sage_rlvr.process import end_fork, watch
from sage_rlvr.safe_io import read_bytes

if TYPE_CHECKING:
    from importlib import metadata

VARIABLE = "SAGE_RLVR_PLUGINS"  # paths of plugins, joined by os.pathsep; read by every process
_loaded: dict[Path, str] = {}
_packages: dict[str, Package] = {}  # by the name of the module that is imported first
_kinds: dict[Any, str] = {}  # class or function of a registered part of a plugin or package -> its kind


@dataclasses.dataclass(frozen=True)
class Package:
    """An installed package whose entry points have given parts. path: its folder, or its file if it is one module."""

    name: str
    version: str
    path: Path

    def facts(self) -> dict[str, str]:
        """Return the facts that a run records."""
        return {"package": self.name, "version": self.version, "sha256": _sha256_of(self.path)}


def use(path: str | Path) -> str:
    """Execute the file unless that was done, and pass it on to child processes. Return its SHA-256.

    Raise ConfigError if it cannot be read or fails, and if another file of its name is loaded: runs record the name.
    """
    file = Path(path).resolve()
    if file in _loaded:
        return _loaded[file]
    twin = next((other for other in _loaded if other.name == file.name), None)
    if twin is not None:
        raise ConfigError(f"plugin {file}: {twin} is loaded and has the same file name, which runs record; rename one")
    advice = f"{path} was looked for in {file.parent}: plugins of a recipe start at its folder, --plugin at the working directory"
    read_bytes(file, error=ConfigError, advice=advice)
    digest = source_sha256(file)
    _loaded[file] = digest
    known = os.environ.get(VARIABLE, "").split(os.pathsep)
    os.environ[VARIABLE] = os.pathsep.join(filter(None, dict.fromkeys([*known, str(file)])))
    try:
        executed(file, _name(file, digest))
    except BaseException as error:
        del _loaded[file]
        line = next((f"line {line}: " for at, line in _frames(error) if at == file), "")
        _refuse_code(f"plugin {path}: ", line, error)
    return digest


def registered(kind: str, part: Any) -> None:
    """Record the kind of a part, whose class or function a registry has accepted: `blame` names the check of that kind."""
    if inspect.isclass(part) or inspect.isfunction(part):
        _kinds[part] = kind


def _refuse_code(who: str, location: str, error: BaseException) -> NoReturn:
    """Raise the error for code from outside that cannot be loaded; location: of the line that raised `error`, its `__cause__`.

    For sys.exit too: a plugin must not end the command with the exit code of success.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, SageError):
        raise type(error)(f"{who}{error}") from error
    raise ConfigError(f"{who}{location}{_message_of(error)}") from error


def source_sha256(file: Path) -> str:
    """Return the SHA-256 of a user's file, and of all files next to it that it imports."""
    digests: dict[Path, str] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        digests[one] = hashlib.sha256(one.read_bytes()).hexdigest()
        waiting += [other for other in dict.fromkeys(_local_imports(one, file.parent)) if other not in digests]
    if len(digests) == 1:
        return digests[file]
    return hashlib.sha256("".join(f"{one.name} {digests[one]}\n" for one in sorted(digests)).encode()).hexdigest()


def _local_imports(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder that a file's text imports; a package with all its files."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # its import will say so
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.partition(".")[0] for name in names if name}:
            module, package = folder / f"{name}.py", folder / name
            if (package / "__init__.py").is_file():
                yield from sorted(package.rglob("*.py"))
            elif module.is_file():
                yield module.resolve()


# ---- packages


def load_entry_point(kind: str, entry: metadata.EntryPoint) -> Any:
    """Return the part of an entry point. Raise ConfigError with package, file and line if its package cannot be imported."""
    who = f"{kind} {entry.name!r} of the package {described(entry)}"
    watch()
    try:
        part = entry.load()
    except BaseException as error:
        path = _module_path(entry.module)
        line = next((f"{file}:{line}: " for file, line in _frames(error) if path and _is_in(file, path)), "")
        _refuse_code(f"{who} cannot be loaded: ", line, error)
    path = _module_path(entry.module)
    if path is not None:
        dist = entry.dist
        _packages[_top(entry.module)] = Package(dist.name if dist else "?", dist.version if dist else "?", path)
    return part


def described(entry: metadata.EntryPoint) -> str:
    """Return an entry point's package, its version and its target."""
    dist = entry.dist
    return f"{f'{dist.name} {dist.version}' if dist else '?'} ({entry.value})"


def packages_of(value: object) -> dict[str, dict[str, str]]:
    """Return part -> package, version and SHA-256 of its code, of the parts of a configuration that came from entry points."""
    packages: dict[str, dict[str, str]] = {}
    for part in _within(value):
        for module in (getattr(part, "_made_in", None), type(part).__module__):
            package = _packages.get(_top(module or ""))
            if package is not None:
                call = getattr(part, "_call", None)
                packages[call[0] if call else getattr(part, "_registered", type(part).__name__)] = package.facts()
                break
    return dict(sorted(packages.items()))


def _within(value: object) -> Iterator[object]:
    """Yield parts within parts: fields of dataclasses, entries of lists and mappings."""
    inner: Sequence[object] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = value
    elif hasattr(value, "_made_in"):
        yield value
    for one in inner:
        yield from _within(one)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _module_path(module: str) -> Path | None:
    """Return the folder of a module's package, else its file; None if there is no file."""
    imported = sys.modules.get(_top(module))
    try:
        spec = imported.__spec__ if imported is not None else importlib.util.find_spec(_top(module))
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]).resolve() if folders else None if spec.origin is None else Path(spec.origin).resolve()


def _is_in(file: Path, path: Path) -> bool:
    return file == path or path in file.parents


def _sha256_of(path: Path) -> str:
    """Return the SHA-256 of a module's file, or of all Python files of a package."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def module_of(path: str | Path) -> ModuleType:
    """Return the file as a module, executed as `use` does it; for a user's function that a recipe names by its file."""
    return sys.modules[_name(Path(path).resolve(), use(path))]


def _name(file: Path, digest: str) -> str:
    return f"sage_rlvr_plugin_{file.stem}_{digest[:8]}"


def executed(file: Path, name: str) -> ModuleType:
    """Return a user's file as a module of that name. Like a script, it imports the files next to it."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError("is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    watch()
    try:
        spec.loader.exec_module(module)
    finally:
        end_fork()
    return module


def from_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without `--plugin FILE`, each of which is used."""
    rest: list[str] = []
    queue = list(words)
    while queue:
        word, equals, value = queue.pop(0).partition("=")
        if word != "--plugin":
            rest.append(word + equals + value)
        elif not equals and not queue:
            raise ConfigError("--plugin: a file is missing; write --plugin my_parts.py")
        else:
            use(value if equals else queue.pop(0))
    return rest


def use_inherited() -> None:
    """Use the plugins of the parent process."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        use(path)


def loaded() -> dict[str, str]:
    """Return file name -> SHA-256 of the plugins in use, as a run records them."""
    use_inherited()
    return {file.name: digest for file, digest in sorted(_loaded.items())}


# ---- whose mistake an exception is


def blame(error: BaseException) -> str | None:
    """Return the message for the author of a plugin whose code raised an exception: file, line, exception, next step. Else None.

    The line is the innermost one in a plugin's file, in a file next to it, or in the package of an entry point; else that of the
    plugin's class that lacks the attribute which is read, or of its function that is called with other arguments.
    """
    for file, line in _frames(error):
        if _is_outside(file):
            code = linecache.getline(str(file), line).strip()
            at = f" at `{code}`" if code else ""
            return f"{file}:{line}: {_message_of(error)}{at}. {_advice(_kind_at(file, line))}"
    part = next(filter(None, (_misused(error, module) for module in _modules())), None)
    if part is None:
        return None
    file, lines = _lines_of(part)
    return f"{file}:{lines.start}: {_message_of(error)}. {_advice(_kind_at(file, lines.start))}"


def _is_outside(file: Path) -> bool:
    """Return True if the file is a plugin's, is next to one, or belongs to a package whose entry points have given parts."""
    return file.parent in {one.parent for one in _loaded} or any(_is_in(file, package.path) for package in _packages.values())


def _modules() -> list[ModuleType]:
    """Return the modules of the plugins."""
    return [module for file, digest in _loaded.items() if (module := sys.modules.get(_name(file, digest))) is not None]


def _misused(error: BaseException, module: ModuleType) -> Any:
    """Return the class of a plugin's module that lacks an attribute, or its function whose arguments do not fit.

    Such an error is raised at the use of the part, and no line is the plugin's. None for any other error.
    """
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        return kind if kind.__module__ == module.__name__ else None
    called = BAD_CALL.match(str(error)) if isinstance(error, TypeError) else None
    part: Any = None if called is None else module
    for name in called[1].split(".") if called else ():
        part = getattr(part, name, None)
    return part


def _lines_of(part: Any) -> tuple[Path, range]:
    """Return the file of a class or function and its lines there; line 1 if Python does not know them."""
    try:
        file, (code, first) = Path(inspect.getsourcefile(part) or "?").resolve(), inspect.getsourcelines(part)
    except (OSError, TypeError):
        return Path(getattr(sys.modules.get(part.__module__), "__file__", None) or "?"), range(1, 2)
    return file, range(first, first + len(code))


def _kind_at(file: Path, line: int) -> str | None:
    """Return the kind of the registered part that has a line of a file; None for a line of no part."""
    for part, kind in _kinds.items():
        its_file, lines = _lines_of(part)
        if its_file == file and line in lines:
            return kind
    return None


BAD_CALL = re.compile(r"(\w+(?:\.\w+)*)\(\) (?:takes|missing|got) ")  # how Python begins where arguments do not fit
AUDITED = ("task", "verifier")  # kinds that `sage-rlvr audit` checks
CHECKED = ("advantage", "extra", "guide", "method", "reduction", "rollout_plan", "schedule", "surrogate")
"""Kinds with a check in sage_rlvr.testing."""


def _advice(kind: str | None) -> str:
    """Return the next step for the author of a part of that kind; None if no part is known."""
    interface = "Fix it there: docs/extending.md describes the interface"
    if kind in CHECKED:
        return f"{interface}, and sage_rlvr.testing.check_{kind} checks it"
    if kind in AUDITED:
        return f"{interface}, and `sage-rlvr audit` checks it in a recipe"
    return interface if kind else f"{interface}, and sage_rlvr.testing has a check for each kind of part"


def raised_at(error: BaseException) -> str:
    """Return "file.py:12", the innermost line of an exception outside this package, Python and installed packages.

    Without such a line, return the innermost.
    """
    frames = _frames(error) or [(Path("?"), 0)]
    homes = {Path(__file__).parent, Path(sysconfig.get_path("stdlib"))}
    outside = (at for at in frames if "site-packages" not in at[0].parts and homes.isdisjoint(at[0].parents))
    file, line = next(outside, frames[0])
    return f"{file.name}:{line}"


def _frames(error: BaseException) -> list[tuple[Path, int]]:
    """Return (file, line) of an exception's frames in files, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(Path(f.filename).resolve(), f.lineno or 1) for f in reversed(frames) if not f.filename.startswith("<")]


def _message_of(error: BaseException) -> str:
    """Return an exception in one line; for a missing attribute with the nearest name."""
    near = nearest(error.name, dir(error.obj)) if isinstance(error, AttributeError) and error.obj is not None else None
    text = f"{type(error).__name__}: {error}".rstrip(".") + (f"; did you mean {near!r}?" if near else "")
    return f"{text}; it must not end the process" if isinstance(error, SystemExit) else text
