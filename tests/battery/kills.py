"""SIGKILL at random instants. The same command again must end well, and with what an undisturbed one leaves."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.battery.world import Started, must, run

CLOCK = ("seconds", "time/", "per_second", "memory", "written", "started", "ended")  # what no two runs share
Print = Callable[[Path], dict[str, str]]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def weights(path: Path) -> str:
    return _digest([(name, array.tobytes()) for name, array in sorted(load_file(path).items())])


def metrics(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return _digest([{k: v for k, v in row.items() if not any(mark in k for mark in CLOCK)} for row in rows])


def record(path: Path) -> str:
    with np.load(path, allow_pickle=False) as found:
        return _digest([(name, found[name].tobytes()) for name in sorted(found.files) if found[name].dtype.kind in "fiub"])


def of_run(folder: Path) -> dict[str, str]:
    """Weights, metrics and record of every run under a folder, clocks left out."""
    found = {f"{p.relative_to(folder)}": weights(p) for p in sorted(folder.rglob("policy/*.safetensors"))}
    found |= {f"{p.relative_to(folder)}": metrics(p) for p in sorted(folder.rglob("metrics.jsonl"))}
    return found | {f"{p.relative_to(folder)}": record(p) for p in sorted(folder.rglob("evaluation-*.npz"))}


def of_store(folder: Path) -> dict[str, str]:
    """The samples and verdicts of every SQLite store under a folder, in order."""
    found = {}
    for path in sorted(folder.rglob("*.sqlite")):
        with sqlite3.connect(path) as db:
            rows = db.execute(
                "select problem, sample, seed, finish, text, token_ids, rollout_logps, verdict, answer "
                "from samples join verdicts using (id) order by problem, sample, pass"
            ).fetchall()
        found[str(path.relative_to(folder))] = f"{len(rows)}:{_digest(rows)}"
    return found


def of_text(name: str) -> Print:
    return lambda folder: {name: _digest((folder / name).read_bytes())}


@dataclass(frozen=True)
class Command:
    """words as typed in a folder of `inputs`; after: what must stand there before it; made: what it leaves, as digests."""

    words: tuple[str, ...]
    made: Print
    after: tuple[tuple[str, ...], ...] = ()


TRAIN = ("train", "recipe.yaml", "--run", "run", "--quiet")
EXACT = ("eval", "run", "--problems", "6", "--temperatures", "0.5", "1.0")
COMMANDS = {
    "train": Command(TRAIN, of_run),
    "sft": Command(("sft", "sft.yaml", "--run", "run", "--quiet"), of_run),
    "eval": Command(EXACT, of_run, (TRAIN,)),
    "eval --samples": Command(
        ("eval", "run", "--samples", "16", "--problems", "12", "--store", "store", "--quiet"), of_store, (TRAIN,)
    ),
    "sweep": Command(("sweep", "matrix.yaml", "--out", "sweep", "--workers", "2"), of_run),
    "report": Command(("report", "run", "-o", "page.html"), of_text("page.html"), (TRAIN, EXACT)),
    "audit": Command(("audit", "rows.jsonl", "--out", "audit.md"), of_text("audit.md")),
}


def prepare(inputs: Path, folder: Path, command: Command) -> Path:
    shutil.copytree(inputs, folder)
    for words in command.after:
        must(folder, *words)
    return folder


def attack(name: str, inputs: Path, room: Path, count: int, seed: int) -> dict[str, object]:
    """`count` kills of one command, one to three before it may end; the faults found, each with its number."""
    command = COMMANDS[name]
    ready = prepare(inputs, room / "ready", command)
    shutil.copytree(ready, room / "undisturbed")
    began = time.monotonic()
    must(room / "undisturbed", *command.words)
    takes = time.monotonic() - began
    wanted, faults, kills, number = command.made(room / "undisturbed"), [], 0, 0
    while kills < count:
        number += 1
        chance = random.Random(f"{seed} {name} {number}")
        shutil.copytree(ready, room / "killed")
        left: list[Started] = []
        for _ in range(chance.randint(1, 3)):
            started = Started(room / "killed", *command.words)
            left.append(started)
            time.sleep(chance.uniform(0.3, 1.05) * takes)
            kills += started.kill(alone=chance.random() < 0.5)
        ending = run(room / "killed", *command.words, seconds=60 + 10 * takes)
        if ending.code != 0 or ending.fault():
            faults.append(f"{number}: code {ending.code}: {ending.fault() or ending.said.strip()[-300:]}")
        elif (found := command.made(room / "killed")) != wanted:
            differing = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
            faults.append(f"{number}: differs from the undisturbed one: {', '.join(differing)}")
        for started in left:
            started.kill(alone=False)  # orphans, where there still are any
        shutil.rmtree(room / "killed")
    return {"kills": kills, "attempts": number, "faults": faults}


def battery(inputs: Path, room: Path, count: int, seed: int) -> dict[str, dict[str, object]]:
    """`count` kills in all, shared by the commands."""
    share = -(-count // len(COMMANDS))
    found = {}
    for name in COMMANDS:
        found[name] = attack(name, inputs, room / name.replace(" ", ""), share, seed)
        print(f"kills  {name}: {found[name]['kills']} kills, {len(found[name]['faults'])} faults", flush=True)  # type: ignore[arg-type]
        for fault in found[name]["faults"]:  # type: ignore[attr-defined]
            print(f"       {fault}", flush=True)
    return found
