"""The command line: the table of commands, argument parsing, error handling and exit codes.

YAML first; `--a.b value` edits the recipe before it is decoded. A command is one class in one file: options, help and work.
"""

from __future__ import annotations

import ast
import errno
import importlib
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import sage_rlvr
from sage_rlvr import extras, plugins
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, SageError, nearest, suggest
from sage_rlvr.escaping import visible
from sage_rlvr.process import end_with_parent
from sage_rlvr.progress import quiet_libraries
from sage_rlvr.registry import contributed

CONTRIB = ""  # the home of a command that contrib/entry_points.txt names
GROUPS = {
    "train": {
        "demo": "sweep:Demo",
        "train": "train:Train",
        "sft": "train:Sft",
        "offline": "train:Offline",
        "sweep": "sweep:Sweep",
    },
    "evaluate": {
        "eval": "evaluate:Eval",
        "samples": CONTRIB,
        "samples show": CONTRIB,
        "audit": CONTRIB,
        "verify": CONTRIB,
    },
    "compare": {
        "compare": "compare:Compare",
        "report": "page:Report",
        "plan": "plan:Plan",
    },
    "inspect": {
        "methods": "recipes:Methods",
        "recipes": "recipes:Recipes",
        "recipes copy": "recipes:CopyRecipe",
        "show": "recipes:Show",
        "parts": "recipes:Parts",
        "import-config": CONTRIB,
        "export verl": CONTRIB,
        "push": CONTRIB,
        "doctor": "doctor:Doctor",
    },
}  # name: file of this folder and class, imported when it is typed: the overview answers without their libraries
_HOMES = {name: home for group in GROUPS.values() for name, home in group.items()}
COMMANDS = {name: f"sage_rlvr.cli.{home}" if home else contributed("command")[name] for name, home in _HOMES.items()}
_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_OF_A_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EFBIG)  # there is a file for a folder, or the reverse
FAULT = 70  # EX_SOFTWARE of sysexits.h: Python's own 1 is what a pipe without a reader ends with


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done; 130 interrupted by Ctrl-C and saved, 143 by SIGTERM; 1 stdout closed early (broken pipe); 2
    an error in the input, with the next step in the message; 3 a rule of `compare --fail-on` is broken, or `eval --gate` fails;
    70 a bug in this program, with Python's traceback."""
    _quiet_libraries()
    end_with_parent()
    session = Session()
    try:
        try:
            code = _answered(list(sys.argv[1:] if argv is None else argv), session)
        finally:
            sys.stdout.flush()  # here, where a pipe without a reader is answered
    except BrokenPipeError:
        session.out.on_broken_pipe()  # what rich does when it notices first: exit code 1, nothing said
    except OSError as error:
        if not _is_stdouts(error):
            raise
        code = _unwritten(error, session)
    sys.exit(code)


def _answered(words: list[str], session: Session) -> int:
    try:
        return run(words, session)
    except SageError as error:
        session.err.print(type(error).__name__, style="bold red", end="")
        session.err.print(": ", end="")
        session.note(error)
        return 2
    except KeyboardInterrupt as stop:
        session.note("interrupted; finished work is saved, and the same command continues")
        return 128 + getattr(stop, "number", signal.SIGINT)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (needs := extras.advice(error)):
            session.note(f"sage-rlvr {words[0] if words else ''} {needs}")
            return 2
        if (isinstance(error, BrokenPipeError) and _reader_is_gone()) or _is_stdouts(error):
            raise
        if isinstance(error, OSError) and error.errno in (*_OF_A_DISK, *_OF_A_PLACE) and error.filename:
            from sage_rlvr.runs.files import disk_problem

            session.note(disk_problem(error, "", Path(os.fsdecode(error.filename))))
            return 2
        if (message := plugins.blame(error)) is not None:
            return _blamed(message, session)
        session.note(traceback.format_exc().rstrip())
        others = "".join(f" or in {name}" for name in plugins.loaded())
        session.note(f"a bug in sage-rlvr{others}, exit code {FAULT}: please report it with the lines above")
        return FAULT
    except BaseException as error:  # sys.exit of a part from outside, which would end as success; that of --help is not blamed
        if (message := plugins.blame(error)) is None:
            raise
        return _blamed(message, session)


def _blamed(message: str, session: Session) -> int:
    session.err.print("PluginError", style="bold red", end="")
    session.note(f": {message}")
    return 2


def _is_stdouts(error: Exception) -> bool:
    """Whether the error is that stdout takes no more (a full disk); errors of other files name theirs."""
    full = isinstance(error, OSError) and error.errno in (*_OF_A_DISK, errno.EFBIG)
    if not full or error.filename is not None:
        return False
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return True
    return False


def _unwritten(error: OSError, session: Session) -> int:
    """The exit code where stdout takes no more, with a sentence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would be tried again at the end
    session.note(f"stdout: cannot be written: {error.strerror}; the output is truncated. Redirect the output, or free some space")
    return 2


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads; a pipe to a worker may break as well, which is a fault."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always told
    return bool(poll.poll(0))


def run(words: Sequence[str], session: Session) -> int:
    """Run a command line. Returns the exit code."""
    words = plugins.from_words(words)
    if not words or words[0] in ("-h", "--help"):
        session.say(overview())
        return 0 if words else 2
    if words[0] == "--version":
        session.say(f"sage-rlvr {sage_rlvr.__version__}")
        return 0
    name, command, unknown = parse(words)
    session.edits = _edits(name, command, unknown)
    return command.execute(session)


def overview() -> str:
    """Every command by group, with the first sentence of its help."""
    lines = ["usage: sage-rlvr COMMAND [OPTIONS]"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:<13} {_headline(*COMMANDS[name].split(':'))}" for name in commands]
    lines += ["", "sage-rlvr COMMAND --help lists the options of a command; sage-rlvr --version prints the version."]
    lines += ["--plugin my_parts.py, with any command, registers parts of your own (docs/extending.md)."]
    lines += ["", "Exit codes: 0 done; 2 an error in the input, with the next step in the message;"]
    lines += ["3 a rule of `compare --fail-on` is broken, or `eval --gate` fails;"]
    lines += ["130 after Ctrl-C and 143 after SIGTERM, saved: the same command continues;"]
    lines += ["1 stdout was closed early (broken pipe); 70 a bug in this program."]
    return "\n".join(lines)


def _headline(module: str, name: str) -> str:
    """The first line of a class's docstring, read as text: importing the commands would take longer than the answer."""
    file = Path(sage_rlvr.__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return (ast.get_docstring(kind) or "").partition("\n")[0]


def command_of(name: str) -> type[Command]:
    """The class of a command, a key of `COMMANDS`."""
    module, kind = COMMANDS[name].split(":")
    command: type[Command] = getattr(importlib.import_module(module), kind)
    return command


def parse(words: Sequence[str]) -> tuple[str, Command, list[str]]:
    """Name and command that were typed, and the words that are none of its options. `--help` and bad options end the process."""
    import tyro

    first, rest = words[0], list(words[1:])
    if rest and f"{first} {rest[0]}" in COMMANDS:
        first = f"{first} {rest.pop(0)}"
    if first not in COMMANDS:
        raise ConfigError(f"unknown command {first!r}; {_instead(words)}")
    kind = command_of(first)
    _refuse_empty_paths(kind, rest)
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    return first, *tyro.cli(kind, prog=f"sage-rlvr {first}", args=rest, config=style, return_unknown_args=True)


def _refuse_empty_paths(command: type[Command], words: Sequence[str]) -> None:
    """An empty word would be the current folder to a path: a shell gives one where a variable is not set."""
    paths = {"--" + field.name.replace("_", "-") for field in fields(command) if "Path" in str(field.type)} | {"--run-dir", "-o"}
    for word, following in zip(words, [*words[1:], "-"], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in paths and not (value if equals else following):
            raise ConfigError(f"{name} '': the path is empty; pass a folder or a file")


def _instead(words: Sequence[str]) -> str:
    """Which command may have been meant."""
    if family := [name for name in COMMANDS if name.startswith(f"{words[0]} ")]:
        return f"choose from {', '.join(family)}"
    near = _nearest(" ".join(words[:2]), COMMANDS) or _nearest(words[0], COMMANDS)
    return near or f"choose from {', '.join(COMMANDS)}"


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    near = nearest(word, known, cutoff)
    return f"did you mean {near!r}?" if near else ""


def _quiet_libraries() -> None:
    """No progress bars of libraries, and warnings in a line."""
    quiet_libraries()
    warnings.formatwarning = lambda message, category, *rest: visible(f"{category.__name__}: {message}\n")


def _edits(name: str, command: Command, unknown: Sequence[str]) -> list[tuple[str, str]]:
    """["--a.b", "v", "--c=w"] -> [("a.b", "v"), ("c", "w")]; anything else is refused by name, with its neighbor."""
    options = ["--" + field.name.replace("_", "-") for field in fields(command)]
    edits: list[tuple[str, str]] = []
    rest = list(unknown)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not command.edits_recipe:
            near = _nearest(key.replace("_", "-"), options)
            raise ConfigError(
                f"{key!r}: `sage-rlvr {name}` has no such argument; {near or 'see'} {suggest(*name.split(), '--help')}"
            )
        if near := _nearest(key.replace("_", "-"), options, cutoff=0.8):
            raise ConfigError(f"{key}: neither an option nor a recipe key; {near}")
        if not equals and not rest:
            raise ConfigError(f"{key}: a value is missing; pass {key} VALUE")
        edits.append((key[2:].replace("-", "_"), value if equals else rest.pop(0)))
    return edits
