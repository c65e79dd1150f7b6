"""Files of a user that register parts: `--plugin my_file.py`, or `plugins: [my_file.py]` in a recipe.

A file is executed once per process. The environment carries its path on, so that the processes of a sweep, of TRL and of
the verifiers have the same parts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from sage_rlvr.errors import ConfigError, SageError
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
        _execute(file, digest)
    except Exception as error:
        del _loaded[file]
        if isinstance(error, SageError):
            raise type(error)(f"plugin {path}: {error}") from error
        raise ConfigError(f"plugin {path}: {type(error).__name__}: {error}") from error
    return digest


def module_of(path: str | Path) -> ModuleType:
    """The file as a module, executed as `use` does it; for a function of the user's that a recipe names by its file."""
    return sys.modules[_name(Path(path).resolve(), use(path))]


def _name(file: Path, digest: str) -> str:
    return f"sage_rlvr_plugin_{file.stem}_{digest[:8]}"


def _execute(file: Path, digest: str) -> None:
    name = _name(file, digest)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError("is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)


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


def use_inherited() -> None:
    """The plugins that the process which started this one had."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        use(path)


def loaded() -> dict[str, str]:
    """File name -> SHA-256 of the plugins in use, as a run records them."""
    use_inherited()
    return {file.name: digest for file, digest in sorted(_loaded.items())}
