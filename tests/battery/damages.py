"""Every kind of file, damaged in every way, given to every command that reads it: the command ends with a sentence.

A command may still succeed, where what was damaged is not read or can be made again. It may not end in a traceback, hang, or
take the machine's memory. Commands run in a forked child of one warm process: importing torch 400 times would be the whole time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.battery.world import Ending

SECONDS, MEMORY = 60.0, 6 << 30
Damage = Callable[[Path, random.Random], None]

READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "recipe.yaml": (("show", "recipe.yaml"), ("train", "recipe.yaml", "--run", "new", "--dry-run")),
    "matrix.yaml": (("sweep", "matrix.yaml", "--dry-run"),),
    "rows.jsonl": (("audit", "rows.jsonl", "--out", "audit.md"),
                   ("eval", "model", "--samples", "1", "--task", "rows.jsonl", "--max-new-tokens", "2", "--quiet")),
    "run/run.json": (("report", "run", "-o", "page.html"), ("eval", "run", "--problems", "2"),
                     ("train", "recipe.yaml", "--run", "run", "--quiet"), ("compare", "a=embedded", "b=run")),
    "run/metrics.jsonl": (("report", "run", "-o", "page.html"), ("train", "recipe.yaml", "--run", "run", "--quiet")),
    "run/evaluation-test.npz": (("report", "run", "-o", "page.html"), ("compare", "a=run", "b=run")),
    "run/policy/config.json": (("eval", "run", "--problems", "2"),),
    "run/policy/generation_config.json": (("eval", "run", "--problems", "2"),),
    "run/policy/model.safetensors": (("eval", "run", "--problems", "2"),),
    "run/policy/tokenizer.json": (("eval", "run", "--problems", "2"),),
    "run/policy/tokenizer_config.json": (("eval", "run", "--samples", "1", "--problems", "2", "--quiet"),),
    "model/model.safetensors": (("train", "recipe.yaml", "--run", "new", "--quiet", "--steps", "1"),),
    "checkpoint": (("train", "recipe.yaml", "--run", "run", "--quiet", "--steps", "8"),),
    "store/store.sqlite": (("samples", "store"), ("report", "store", "-o", "page.html")),
    "lm_eval.jsonl": (("samples", "imported", "--from-lm-eval", "lm_eval.jsonl", "--model", "m"),),
}  # fmt: skip


def _values(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [one for key, value in items for one in [(*path, key), *_values(value, (*path, key))]]


def _edit(path: Path, chance: random.Random, put: Callable[[Any, Any], None]) -> None:
    """One place of a JSON file, or of one line of JSON lines, changed; other files are cut instead."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
        number = chance.randrange(len(lines))
        tree = json.loads(lines[number])
        place = chance.choice(_values(tree))
    except (ValueError, IndexError, UnicodeDecodeError):
        return cut(path, chance)
    home = tree
    for key in place[:-1]:
        home = home[key]
    put(home, place[-1])
    lines[number] = json.dumps(tree)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(max(path.stat().st_size, 1))])


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 20))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def lose_key(path: Path, chance: random.Random) -> None:
    _edit(path, chance, lambda home, key: home.pop(key))


def other_type(path: Path, chance: random.Random) -> None:
    odd = (None, True, -1, 1e308, "", "x", [], [[]], {}, {"a": 1}, "\x1b[2J", "../../etc", 10**30, float("nan"))
    _edit(path, chance, lambda home, key: home.__setitem__(key, chance.choice(odd)))


def _become(data: bytes) -> Damage:
    def become(path: Path, chance: random.Random) -> None:
        path.write_bytes(data)

    return become


def folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def endless(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES: dict[str, Damage] = {
    "cut": cut, "flipped": flip, "a key lost": lose_key, "another type": other_type, "a folder": folder, "endless": endless,
    "missing": lambda path, chance: path.unlink(), "empty": _become(b""), "[1]": _become(b"[1]"), "null": _become(b"null"),
    "{}": _become(b"{}"), "nested": _become(b"[" * 100_000), "not UTF-8": _become(b"\xff\xfe{\x80}"), "NULs": _become(b"\0" * 4096),
    "a number": _become(b"3"), "text": _become(b"hello: world\n"), "twice": lambda path, chance: path.write_bytes(path.read_bytes() * 2),
}  # fmt: skip
TYPED = ("a key lost", "another type")


def forked(folder: Path, *words: str) -> Ending:
    """The command in a forked child, its streams in files, its memory and time bounded."""
    from sage_rlvr.cli import main

    out, err = folder / ".out", folder / ".err"
    began = time.monotonic()
    if (pid := os.fork()) == 0:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w", buffering=1, encoding="utf-8", errors="replace") for n in (1, 2))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            faulthandler.enable()
            code = main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)
    while time.monotonic() - began < SECONDS:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        status = signal.SIGALRM
    said = [path.read_text("utf-8", errors="replace") if path.exists() else "" for path in (out, err)]
    return Ending(os.waitstatus_to_exitcode(status), said[0], said[1], time.monotonic() - began)


def target(folder: Path, name: str, chance: random.Random) -> Path:
    """The file to damage; "checkpoint" is any file of the newest one."""
    if name != "checkpoint":
        return folder / name
    newest = sorted((folder / "run" / "checkpoints").glob("step-*"))[-1]
    return chance.choice(sorted(path for path in newest.rglob("*") if path.is_file()))


def attack(ready: Path, room: Path, seed: int, number: int) -> tuple[str, str]:
    """(what was done, why it is a fault or nothing) of one damage."""
    chance = random.Random(f"{seed} damage {number}")
    name = chance.choice(list(READERS))
    how = chance.choice([*DAMAGES, *TYPED, *TYPED])  # typed edits are the many kinds of damage, so they come more often
    words = chance.choice(READERS[name])
    shutil.copytree(ready, room, symlinks=True)
    path = target(room, name, chance)
    DAMAGES[how](path, chance)
    ending = forked(room, *words)
    shutil.rmtree(room)
    what = f"{number}: {path.relative_to(room)} {how}, sage-rlvr {' '.join(words)}"
    raw = "a raw escape reached the terminal" if "\x1b[2J" in ending.said else ""
    return what, ending.fault() or raw


def battery(ready: Path, room: Path, count: int, seed: int) -> dict[str, dict[str, object]]:
    """`count` damages, each with one command that reads the file."""
    import torch
    import transformers  # noqa: F401  imported once, before the forks

    torch.set_num_threads(1)
    os.environ.update({"HF_HUB_OFFLINE": "1", "COLUMNS": "120"})
    faults, kinds = [], Counter[str]()
    for number in range(count):
        what, fault = attack(ready, room, seed, number)
        kinds[what.split(" ")[1]] += 1
        if fault:
            faults.append(f"{what}: {fault}")
            print(f"damages  {what}\n         {fault}", flush=True)
    print(f"damages  {count} of {len(READERS)} kinds of file, {len(faults)} faults", flush=True)
    return {"damages": {"damages": count, "files": dict(kinds), "faults": faults}}
