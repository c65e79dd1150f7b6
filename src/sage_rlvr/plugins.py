"""Files of a user that register parts: `--plugin my_file.py`, or `plugins: [my_file.py]` in a recipe.

A file is executed once per process. The environment carries its path on, so that the processes of a sweep, of TRL and of
the verifiers have the same parts. What such a file does wrong is its author's to mend, and no fault of this program: `blame`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sage_rlvr.errors import ConfigError, SageError, nearest
from sage_rlvr.reading import read_bytes

VARIABLE = "SAGE_RLVR_PLUGINS"  # paths of plugins, joined by os.pathsep; read by every process
_loaded: dict[Path, str] = {}


def use(path: str | Path) -> str:
    """Execute the file unless that was done, and hand it on to the processes that this one starts. Returns its SHA-256.

    ConfigError where it cannot be read or fails, and where another file of its name is loaded: runs record the name.
    """
    file = Path(path).resolve()
    if file in _loaded:
        return _loaded[file]
    twin = next((other for other in _loaded if other.name == file.name), None)
    if twin is not None:
        raise ConfigError(f"plugin {file}: {twin} is loaded and has the same name, by which runs know it; rename one")
    source = read_bytes(file, error=ConfigError, advice=f"give --plugin {path} the path of a Python file")
    digest = hashlib.sha256(source).hexdigest()
    _loaded[file] = digest
    known = os.environ.get(VARIABLE, "").split(os.pathsep)
    os.environ[VARIABLE] = os.pathsep.join(filter(None, dict.fromkeys([*known, str(file)])))
    try:
        executed(file, _name(file, digest))
    except Exception as error:
        del _loaded[file]
        if isinstance(error, SageError):
            raise type(error)(f"plugin {path}: {error}") from error
        spot = next((f"line {line}: " for at, line in _frames(error) if at == file), "")
        raise ConfigError(f"plugin {path}: {spot}{_told(error)}") from error
    return digest


def module_of(path: str | Path) -> ModuleType:
    """The file as a module, executed as `use` does it; for a function of the user's that a recipe names by its file."""
    return sys.modules[_name(Path(path).resolve(), use(path))]


def _name(file: Path, digest: str) -> str:
    return f"sage_rlvr_plugin_{file.stem}_{digest[:8]}"


def executed(file: Path, name: str) -> ModuleType:
    """A user's file as a module of that name. As a script does, it imports the files beside it."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError("is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    return module


def from_words(words: Sequence[str]) -> list[str]:
    """The words of a command line without `--plugin FILE`, each of which is used."""
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


def options_for(part: object) -> list[str]:
    """["--plugin", FILE] of the plugin that a part was written in; empty where it was in none."""
    named = getattr(part, "__module__", "")
    own = (file for file, digest in _loaded.items() if _name(file, digest) == named)
    return next((["--plugin", os.path.relpath(file)] for file in own), [])


def use_inherited() -> None:
    """The plugins that the process which started this one had."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        use(path)


def loaded() -> dict[str, str]:
    """File name -> SHA-256 of the plugins in use, as a run records them."""
    use_inherited()
    return {file.name: digest for file, digest in sorted(_loaded.items())}


# ---- whose mistake an exception is


def blame(error: BaseException) -> str | None:
    """What to tell the author of a plugin whose code an exception came out of: file, line, exception, next step. Else None.

    It came out of one where the innermost frame that is neither this package's nor a library's is in a plugin's file, or in one
    beside it; where an object of a plugin's class lacks what is read of it; and where a plugin's function is called with
    arguments that it does not take.
    """
    folders = {file.parent for file in _loaded}
    own = next((frame for frame in _frames(error) if not _is_ours(frame[0])), None)
    if own is not None and not folders.isdisjoint(own[0].parents):
        file, line = own
        code = linecache.getline(str(file), line).strip()
        return f"{file}:{line}: {_told(error)}{f' at `{code}`' if code else ''}. {_ADVICE}"
    for file, digest in _loaded.items():
        module = sys.modules.get(_name(file, digest))
        if module is not None and (found := _lacking(error, module)) is not None:
            return f"{file}:{_line(file, found)}: {_told(error)}. {_ADVICE}"
    return None


_ADVICE = "Mend it there: docs/extending.md says what such a part has, and sage_rlvr.testing checks it (check_guide, ...)"
_CALLED = re.compile(r"(\w+(?:\.\w+)*)\(\) (?:takes|missing|got) ")  # how Python begins where arguments do not fit


def _lacking(error: BaseException, module: ModuleType) -> Any:
    """The class of a module of which an attribute was read that it lacks, or its function that was called wrongly; else None."""
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        return kind if kind.__module__ == module.__name__ else None
    called = _CALLED.match(str(error)) if isinstance(error, TypeError) else None
    found: Any = None if called is None else module
    for name in called[1].split(".") if called else ():
        found = getattr(found, name, None)
    return found


def _line(file: Path, part: Any) -> int:
    """The line of a class or function in its file; 1 where it is not to be found."""
    if hasattr(part, "__code__"):
        return int(part.__code__.co_firstlineno)
    head = re.compile(rf"\s*class {part.__name__}\b")
    return next((n for n, text in enumerate(linecache.getlines(str(file)), 1) if head.match(text)), 1)


def _frames(error: BaseException) -> list[tuple[Path, int]]:
    """(file, line) of an exception's frames in files, the innermost first."""
    found = traceback.extract_tb(error.__traceback__)
    return [(Path(f.filename), f.lineno or 1) for f in reversed(found) if not f.filename.startswith("<")]


def _is_ours(file: Path) -> bool:
    """Whether a file is this package's, Python's or an installed library's."""
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or not _homes().isdisjoint(file.resolve().parents)


@functools.cache
def _homes() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(map(Path.resolve, (Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in names))))


def _told(error: BaseException) -> str:
    """An exception in a line; of an attribute that is not there its neighbor."""
    near = nearest(error.name, dir(error.obj)) if isinstance(error, AttributeError) and error.obj is not None else None
    return f"{type(error).__name__}: {error}".rstrip(".") + (f"; did you mean {near!r}?" if near else "")
