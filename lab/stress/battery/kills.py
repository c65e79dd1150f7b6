"""SIGKILL and SIGTERM at random instants. Nothing may stay behind, and the same command again must end with what an undisturbed one
leaves: weights, metrics but clocks, records, rows of stores, summaries and pages, bit for bit.

One signal in five is SIGTERM. Half of the signals reach the command alone, whose processes then have to end by themselves. An
attempt has one to three signals, each followed by the same command; after the last it is left to end.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

from lab.stress.battery.commands import COMMANDS, Command, differing
from lab.stress.battery.world import Started, must, run

SHARES = {"train": 24, "sft": 16, "eval": 10, "eval --samples": 18, "sweep": 8, "audit": 5, "demo": 6, "samples": 4, "compare": 4,
          "report": 5}  # fmt: skip
ALONE = 30.0  # seconds within which the processes of a command that was killed alone have to be gone: they finish a step and save
OBEYED = (
    0,
    1,
    143,
    -signal.SIGTERM,
)  # codes after SIGTERM: done just then; saved; by the signal itself before anything was begun


def prepare(inputs: Path, folder: Path, command: Command) -> Path:
    shutil.copytree(inputs, folder)
    for name in command.after:
        must(folder, *COMMANDS[name].words)
    return folder


def strike(folder: Path, command: Command, chance: random.Random, takes: float) -> tuple[bool, str]:
    """Start the command and send it a signal at a random instant: (whether it still ran, what is wrong with how it ended)."""
    started = Started(folder, *command.words)
    term, alone = chance.random() < 0.2, chance.random() < 0.5
    time.sleep(chance.uniform(0.0, 1.05) * takes)
    if not started.signal(signal.SIGTERM if term else signal.SIGKILL, alone):
        return False, ""
    ending = started.end(ALONE + 2 * takes)
    if term and ending.code not in OBEYED:
        return True, ending.fault() or f"wrong: code {ending.code} after SIGTERM: {ending.said.strip()[-200:]}"
    if not term and ending.code != -signal.SIGKILL:
        return True, ending.fault()
    return True, "" if started.gone(
        ALONE
    ) else f"hang: processes were left {ALONE:.0f} s after {'one' if alone else 'all'} was killed"


def attack(name: str, inputs: Path, room: Path, count: int, seed: int) -> dict[str, object]:
    """`count` signals to one command, and the faults found, each with its number."""
    command, began = COMMANDS[name], time.monotonic()
    ready = prepare(inputs, room / "ready", command)
    shutil.copytree(ready, room / "undisturbed")
    undisturbed = must(room / "undisturbed", *command.words)
    wanted, takes = command.made(room / "undisturbed", undisturbed.out), undisturbed.seconds
    assert wanted, f"{name} left nothing that could differ"
    faults: list[str] = []
    kills = number = 0
    while kills < count:
        number += 1
        chance = random.Random(f"{seed} {name} {number}")
        folder = room / "killed"
        shutil.copytree(ready, folder)
        for _ in range(min(chance.randint(1, 3), count - kills)):
            hit, fault = strike(folder, command, chance, takes)
            kills += hit
            faults += [f"{number}: {fault}"] if fault else []
        ending = run(folder, *command.words, seconds=60 + 10 * takes)
        found = command.made(folder, ending.out)
        if ending.code != 0 or ending.fault():
            faults.append(f"{number}: {ending.fault() or f'wrong: code {ending.code}: {ending.said.strip()[-300:]}'}")
        elif found != wanted:
            faults.append(f"{number}: wrong: differs from the undisturbed one: {differing(found, wanted)}")
        shutil.rmtree(folder)
    return {"attacks": kills, "ended": number, "equal": number - len({f.split(":")[0] for f in faults}), "faults": faults,
            "seconds": time.monotonic() - began}  # fmt: skip


def battery(inputs: Path, room: Path, count: int, seed: int) -> dict[str, dict[str, object]]:
    """`count` signals in all, shared by the commands; each gets one where there are enough."""
    found = {}
    names = list(SHARES) if count >= len(SHARES) else list(SHARES)[:count]
    whole = sum(SHARES[name] for name in names)
    for name in names:
        found[name] = attack(
            name, inputs, room / name.replace(" ", ""), max(1, round(count * SHARES[name] / whole)), seed
        )
        shutil.rmtree(room / name.replace(" ", ""))
        print(
            f"kills  {name}: {found[name]['attacks']} in {found[name]['seconds']:.0f} s, {len(found[name]['faults'])} faults",
            flush=True,
        )  # type: ignore[arg-type]
        for fault in found[name]["faults"]:  # type: ignore[attr-defined]
            print(f"       {fault}", flush=True)
    return found
