"""The command line: the table of commands, and what happens round each of them.

YAML first; `--a.b value` edits the recipe before it is decoded. A command is one class in one file: options, help and work.
"""

from __future__ import annotations

import difflib
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any

import tyro

from sage_rlvr.cli.audit import Audit, Verify
from sage_rlvr.cli.compare import Compare
from sage_rlvr.cli.doctor import Doctor
from sage_rlvr.cli.evaluate import Eval
from sage_rlvr.cli.page import Report
from sage_rlvr.cli.plan import Plan
from sage_rlvr.cli.samples import Samples
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.cli.show import ImportConfig, Show
from sage_rlvr.cli.study import Guides, Theory
from sage_rlvr.cli.sweep import Demo, Sweep
from sage_rlvr.cli.train import Sft, Train
from sage_rlvr.errors import ConfigError, SageError

COMMANDS: dict[str, type[Command]] = {
    "demo": Demo,
    "sweep": Sweep,
    "sft": Sft,
    "train": Train,
    "eval": Eval,
    "compare": Compare,
    "samples": Samples,
    "report": Report,
    "plan": Plan,
    "show": Show,
    "import-config": ImportConfig,
    "theory": Theory,
    "guides": Guides,
    "audit": Audit,
    "verify": Verify,
    "doctor": Doctor,
}
FAULT = 70  # EX_SOFTWARE of sysexits.h; 1 means "interrupted and saved", so a crash needs a code of its own


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 interrupted by Ctrl-C or SIGTERM and saved, 2 refused (the message says what to
    do), 70 a fault of this program (with Python's traceback)."""
    _quiet_libraries()
    session = Session()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv), session)
    except SageError as error:
        session.err.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        session.note(error)
        code = 2
    except KeyboardInterrupt:
        session.note("interrupted; what was finished is saved, the same command continues")
        code = 1
    except Exception:
        traceback.print_exc()
        session.note(f"a fault of sage-rlvr, exit code {FAULT}: please report it with the lines above")
        code = FAULT
    sys.exit(code)


def _run(words: list[str], session: Session) -> int:
    command, unknown = parse(words)
    session.edits = _edits(words[0], command, unknown)
    return command.execute(session)


def parse(words: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that was typed, and the words that are none of its options. `--help` and bad options end the process."""
    name = words[0] if words else "--help"
    if name in COMMANDS:
        return tyro.cli(COMMANDS[name], prog=f"sage-rlvr {name}", args=words[1:], return_unknown_args=True)
    if not name.startswith("-"):
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(COMMANDS)}"
        raise ConfigError(f"unknown command {name!r}; {hint}")
    every: Any = reduce(operator.or_, (Annotated[c, tyro.conf.subcommand(n)] for n, c in COMMANDS.items()))
    return tyro.cli(every, prog="sage-rlvr", args=words, return_unknown_args=True)


def _quiet_libraries() -> None:
    """Progress bars of weight loading say nothing on a 3 MB model; warnings of ours stay."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.formatwarning = lambda message, category, *rest: f"{category.__name__}: {message}\n"


def _edits(name: str, command: Command, unknown: Sequence[str]) -> list[tuple[str, str]]:
    """["--a.b", "v", "--c=w"] -> [("a.b", "v"), ("c", "w")]; anything else is refused by name."""
    found: list[tuple[str, str]] = []
    rest = list(unknown)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or not command.edits_recipe:
            raise ConfigError(f"{word!r}: `sage-rlvr {name}` has no such argument; see `sage-rlvr {name} --help`")
        key, equals, value = word[2:].partition("=")
        if not equals and not rest:
            raise ConfigError(f"{word}: a value is missing; write {word} VALUE")
        found.append((key.replace("-", "_"), value if equals else rest.pop(0)))
    return found
