"""The command line: the table of commands, argument parsing, error handling and exit codes.

YAML first; `--a.b value` edits the recipe before it is decoded. A command is one class in one file: options, help and execution.
"""

from __future__ import annotations

import ast
import errno
import importlib
import os
import select
import signal
import stat
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TextIO

import sage_rlvr
from sage_rlvr import extras, plugins
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, SageError, nearest, suggest
from sage_rlvr.escaping import visible
from sage_rlvr.names import COMMANDS as OF_CONTRIB
from sage_rlvr.process import end_fork, end_with_parent, never_silently_ended
from sage_rlvr.progress import quiet_libraries

CONTRIB = ""  # for a command whose class is in names.py
GROUPS = {
    "train": {
        "demo": "sweep:Demo",
        "train": "train:Train",
        "preflight": CONTRIB,
        "sft": "train:Sft",
        "offline": "train:Offline",
        "sweep": "sweep:Sweep",
        "diagnose": "diagnose:Diagnose",
    },
    "evaluate": {
        "eval": "evaluate:Eval",
        "widen": "widen:Widen",
        "samples": CONTRIB,
        "samples show": CONTRIB,
        "audit": CONTRIB,
        "verify": CONTRIB,
    },
    "compare": {
        "compare": "compare:Compare",
        "report": "page:Report",
        "browse": "browse:Browse",
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
}  # name: file of this folder and class, imported on use: the overview needs none of their libraries
_HOMES = {name: home for group in GROUPS.values() for name, home in group.items()}
COMMANDS = {name: f"sage_rlvr.cli.{home}" if home else OF_CONTRIB[name] for name, home in _HOMES.items()}
_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_OF_A_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EFBIG)  # a file for a folder, or the reverse
_RECURSION = sys.getrecursionlimit()
FAULT = 70  # EX_SOFTWARE of sysexits.h: Python's 1 is the exit code for a pipe without a reader


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done; 130 interrupted by Ctrl-C, 143 by SIGTERM; 1 stdout closed early (broken pipe); 2 an error
    in the input, with the next step in the message; 3 a rule of `compare --fail-on` is broken, `eval --gate` fails, or
    `preflight` and `diagnose` see a run that cannot learn (1: warnings); 70 a bug in this program, with Python's traceback."""
    _quiet_libraries()
    end_with_parent()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    session = Session()
    streams = _Streams(session)
    try:
        with never_silently_ended(lasting=argv is None) as done:
            try:
                code = _answered(list(sys.argv[1:] if argv is None else argv), session, streams)
            finally:
                end_fork()
                streams.put_back()
                sys.stdout.flush()  # where a pipe without a reader is handled
            for name, harm in streams.lost.items():
                session.note(f"{name} was {harm} by a plugin or a library, so output is lost; remove that")
            code = done(code or (2 if streams.lost else 0))
    except BrokenPipeError:
        session.out.on_broken_pipe()  # if rich notices first: exit code 1, without a message
    except OSError as error:
        if not _is_streams(error):
            raise
        code = _unwritten(error)
    sys.exit(code)


class _Streams:
    """stdout and stderr as the command found them, which foreign code may close or replace. lost: name -> what happened."""

    def __init__(self, session: Session) -> None:
        self.session, self.lost = session, dict[str, str]()
        self.found: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}

    def put_back(self) -> None:
        """Restore them; a closed one is reopened, because Python closes only the object and leaves the file open."""
        for number, (name, stream) in enumerate(self.found.items(), start=1):
            if stream.closed:
                self.lost[f"sys.{name}"], self.found[name] = "closed", _reopened(number)
            elif getattr(sys, name) is None:
                self.lost[f"sys.{name}"] = "set to None"
            setattr(sys, name, self.found[name])
        self.session.out.file, self.session.err.file = self.found["stdout"], self.found["stderr"]


def _reopened(number: int) -> TextIO:
    try:
        return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    except OSError:
        return open(os.devnull, "w")


def _answered(words: list[str], session: Session, streams: _Streams) -> int:
    try:
        return run(words, session)
    except SageError as error:
        session.err.print(type(error).__name__, style="bold red", end="")
        session.err.print(": ", end="")
        session.note(error)
        return 2
    except KeyboardInterrupt as stop:
        saved = "; finished work is saved, and the same command continues" if session.resumes else ""
        session.note(f"interrupted{saved}")
        return 128 + getattr(stop, "number", signal.SIGINT)
    except Exception as error:
        streams.put_back()
        if isinstance(error, ValueError) and "closed" in streams.lost.values():
            return 2  # written to it; `main` reports it
        if isinstance(error, RecursionError) and (limit := sys.getrecursionlimit()) < _RECURSION:
            sys.setrecursionlimit(_RECURSION)
            session.note(f"sys.setrecursionlimit({limit}) of a plugin or a library ended this command; remove that call")
            return 2
        if isinstance(error, ModuleNotFoundError) and (needs := extras.advice(error)):
            session.note(f"sage-rlvr {words[0] if words else ''} {needs}")
            return 2
        if (isinstance(error, BrokenPipeError) and _reader_is_gone()) or _is_streams(error):
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
    except BaseException as error:  # sys.exit of a foreign part, which would end as success; that of --help is not an error
        if (message := plugins.blame(error)) is None:
            raise
        return _blamed(message, session)


def _blamed(message: str, session: Session) -> int:
    session.err.print("PluginError", style="bold red", end="")
    session.note(f": {message}")
    return 2


def _is_streams(error: Exception) -> bool:
    """Whether the error is that stdout or stderr cannot be written (a full disk, a closed file); errors of other files name
    their file."""
    full = isinstance(error, OSError) and error.errno in (*_OF_A_DISK, errno.EFBIG, errno.EBADF)
    return full and error.filename is None and not (_takes(sys.stdout) and _takes(sys.stderr))


def _takes(stream: TextIO) -> bool:
    """Whether a stream can be written. A terminal or pipe is never full and is not written to; a file gets a line end, which
    is removed again."""
    try:
        stream.flush()
        file = stream.fileno()
        about = os.fstat(file)
        if stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode) or stream.isatty():
            return True
        os.write(file, b"\n")
        if stat.S_ISREG(about.st_mode):
            os.ftruncate(file, about.st_size)
            os.lseek(file, min(about.st_size, os.lseek(file, 0, os.SEEK_CUR)), os.SEEK_SET)
    except OSError:
        return False
    return True


def _unwritten(error: OSError) -> int:
    """The exit code if stdout or stderr cannot be written, with a sentence on the other one."""
    name, full, other = ("stderr", sys.stderr, sys.stdout) if _takes(sys.stdout) else ("stdout", sys.stdout, sys.stderr)
    _discard(full)
    closed = "it was closed by a plugin or a library; remove that"
    advice = closed if error.errno == errno.EBADF else "redirect the output, or free some space"
    try:
        print(
            f"{name}: cannot be written: {error.strerror}; the output is truncated. To mend: {advice}. Then run the same command "
            "again: a run continues",
            file=other,
            flush=True,
        )
    except OSError:
        _discard(other)
    return 2


def _discard(stream: TextIO) -> None:
    """Redirect a stream to nothing: its unwritten data would be tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe without a reader; a pipe to a worker may break as well, which is an error."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always printed
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
    session.edits, session.resumes = _edits(name, command, unknown), command.resumes
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
    lines += ["3 a rule of `compare --fail-on` is broken, `eval --gate` fails, or a run cannot learn (`preflight`, `diagnose`);"]
    lines += ["130 after Ctrl-C and 143 after SIGTERM, saved: the same command continues;"]
    lines += ["1 warnings of `preflight` or `diagnose`, a log too short to judge, or stdout was closed early;"]
    lines += ["70 a bug in this program."]
    return "\n".join(lines)


def _headline(module: str, name: str) -> str:
    """The first line of a class's docstring, read as text: importing the commands would be too slow."""
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
    """The typed name and command, and the words that are none of its options. `--help` and bad options end the process."""
    import tyro

    first, rest = words[0], list(words[1:])
    if rest and f"{first} {rest[0]}" in COMMANDS:
        first = f"{first} {rest.pop(0)}"
    if first not in COMMANDS:
        raise ConfigError(f"unknown command {first!r}; {_instead(words)}")
    kind = command_of(first)
    _refuse_empty_paths(kind, rest)
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    rest, edits = _apart(kind, rest)
    command, unknown = tyro.cli(kind, prog=f"sage-rlvr {first}", args=rest, config=style, return_unknown_args=True)
    return first, command, [*edits, *unknown]


def _apart(kind: type[Command], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without `--a.b value`, and these: for a command with an optional argument, which would otherwise be the value."""
    if not kind.optional_argument:
        return list(words), []
    options = {"--help", *("--" + field.name.replace("_", "-") for field in fields(kind))}
    left, edits, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        key, equals, _ = word.partition("=")
        if not key.startswith("--") or key.replace("_", "-") in options:
            left.append(word)
            continue
        edits.append(word)
        if not equals and rest:
            edits.append(rest.pop(0))
    return left, edits


def _refuse_empty_paths(command: type[Command], words: Sequence[str]) -> None:
    """Raise an error for an empty word, which would mean the current folder as a path: a shell passes one for an unset variable."""
    paths = {"--" + field.name.replace("_", "-") for field in fields(command) if "Path" in str(field.type)} | {"--run-dir", "-o"}
    for word, following in zip(words, [*words[1:], "-"], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in paths and not (value if equals else following):
            raise ConfigError(f"{name} '': the path is empty; pass a folder or a file")


def _instead(words: Sequence[str]) -> str:
    """The command that may have been meant."""
    if family := [name for name in COMMANDS if name.startswith(f"{words[0]} ")]:
        return f"choose from {', '.join(family)}"
    near = _nearest(" ".join(words[:2]), COMMANDS) or _nearest(words[0], COMMANDS)
    return near or f"choose from {', '.join(COMMANDS)}"


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    near = nearest(word, known, cutoff)
    return f"did you mean {near!r}?" if near else ""


def _quiet_libraries() -> None:
    """Disable progress bars of libraries, and print warnings in one line."""
    quiet_libraries()
    warnings.formatwarning = lambda message, category, *rest: visible(f"{category.__name__}: {message}\n")


def _edits(name: str, command: Command, unknown: Sequence[str]) -> list[tuple[str, str]]:
    """["--a.b", "v", "--c=w"] -> [("a.b", "v"), ("c", "w")]; anything else raises an error with its name and the nearest option."""
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
