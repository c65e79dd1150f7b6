"""Every kind of file, damaged in every way, given to the commands that read it.

Each then gives the same result as undamaged, or one message that names the file, with code 2. Where nothing can tell a changed
value from one that a user or a model wrote (a recipe, rows, stored samples), a valid other value is another input; what the program
seals by a hash or a checksum (`SEALED`) may never lead to another result. No traceback, no hang, no raw escape on the terminal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from lab.stress.battery.commands import Command, under
from lab.stress.battery.world import Ending, run

SECONDS = 30.0
OUTCOMES = {
    "same": "the same result",
    "refused": "refused by name",
    "another input": "another valid input",
    "as without it": "as without the file",
}
Damage = Callable[[Path, random.Random], None]
Made = dict[str, str]

SHOW, DRY = Command(("show", "recipe.yaml")), Command(("train", "recipe.yaml", "--run", "new", "--dry-run"))
NEW = Command(("train", "recipe.yaml", "--run", "new", "--quiet", "--steps", "1"), under("new"))
MORE = Command(
    ("train", "recipe.yaml", "--run", "run", "--quiet", "--steps", "8"), under("run/policy", "run/metrics.jsonl")
)
PAGE = Command(("report", "run", "--format", "md", "-o", "page.md"), under("page.md"))
EVAL = Command(("eval", "run", "--problems", "2", "--out", "new.npz"), under("new.npz"))
DRAW = Command(("eval", "run", "--samples", "1", "--problems", "2", "--store", "new", "--quiet"), under("new"))
TWO = Command(("compare", "a=run", "b=run"))
AUDIT = Command(("audit", "rows.jsonl", "--out", "audit.md"), under("audit.md"))
ASK = Command(
    ("eval", "bytes", "--samples", "1", "--task", "rows.jsonl", "--max-new-tokens", "2", "--store", "new", "--quiet"),
    under("new"),
)
READ = Command(("samples", "store"))
TOP_UP = Command(("eval", "run", "--samples", "12", "--problems", "8", "--store", "store", "--quiet"), under("store"))
STORE_PAGE = Command(("report", "store", "--format", "md", "-o", "page.md"), under("page.md"))
ARMS, ARMS_PAGE = (
    Command(("compare", "sweep")),
    Command(("report", "sweep", "--format", "md", "-o", "page.md"), under("page.md")),
)
PLAN = Command(
    ("sweep", "design.yaml", "--out", "sweep", "--dry-run"), lambda folder, said: {"plan": ""}
)  # what is left may differ
KEPT = (
    Command(("compare", "stored")),
    Command(("report", "stored", "--format", "md", "-o", "page.md"), under("page.md")),
)
HARNESS = Command(("samples", "new", "--from-lm-eval", "lm_eval.jsonl", "--model", "m"), under("new"))
RESULTS = Command(
    ("samples", "new", "--from-lm-eval", "harness/samples_countdown_2026-01-01T00-00-00.jsonl"), under("new")
)

READERS: dict[str, tuple[Command, ...]] = {
    "recipe.yaml": (SHOW, DRY, NEW),
    "design.yaml": (PLAN,),
    "rows.jsonl": (AUDIT, ASK),
    "rows.parquet": (Command(("audit", "rows.parquet", "--out", "audit.md"), under("audit.md")),),
    "model/config.json": (NEW,),
    "model/generation_config.json": (NEW,),
    "model/model.safetensors": (NEW,),
    "model/tokenizer.json": (NEW,),
    "model/tokenizer_config.json": (NEW,),
    "run/run.json": (PAGE, EVAL, MORE, TWO),
    "run/metrics.jsonl": (PAGE, MORE),
    "run/evaluation-test.npz": (PAGE, TWO),
    "run/policy/config.json": (EVAL,),
    "run/policy/generation_config.json": (EVAL, DRAW),
    "run/policy/model.safetensors": (EVAL,),
    "run/policy/tokenizer.json": (EVAL, DRAW),
    "run/policy/tokenizer_config.json": (DRAW,),
    "run/checkpoints/step-000006/MANIFEST.json": (MORE,),
    "run/checkpoints/step-000006/state.json": (MORE,),
    "run/checkpoints/step-000006/model.safetensors": (MORE,),
    "run/checkpoints/step-000006/optimizer.safetensors": (MORE,),
    "run/checkpoints/step-000006": (MORE,),
    "run/checkpoints": (MORE,),
    "run/policy": (EVAL, MORE),
    "store/store.json": (READ, TOP_UP, STORE_PAGE),
    "store/samples/*.parquet": (READ, TOP_UP, STORE_PAGE),
    "store.parquet": (Command(("samples", "new", "--from-parquet", "store.parquet"), under("new")),),
    "lm_eval.jsonl": (HARNESS,),
    "harness/results_2026-01-01T00-00-00.json": (RESULTS,),
    "sweep/design.json": (ARMS, ARMS_PAGE, PLAN),
    "sweep/summary.json": (ARMS, ARMS_PAGE),
    "sweep/recipes/grpo.yaml": (ARMS, PLAN),
    "sweep/evaluations/grpo-s0.npz": (ARMS, ARMS_PAGE, PLAN),
    "sweep/runs/grpo-s0/run.json": (ARMS, ARMS_PAGE, PLAN),
    "sweep/runs/grpo-s0/metrics.jsonl": (ARMS_PAGE,),
    "stored/summary.json": KEPT,
}  # fmt: skip
SEALED = ("run/checkpoints", "evaluation-test.npz", "evaluations/", "store/")


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
    except (ValueError, IndexError):
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
    odd = (
        None,
        True,
        -1,
        1e308,
        "",
        "x",
        [],
        [[]],
        {},
        {"a": 1},
        "\x1b[2J",
        "../../etc",
        10**30,
        float("nan"),
        float("inf"),
    )
    _edit(path, chance, lambda home, key: home.__setitem__(key, chance.choice(odd)))


def _arrays(path: Path, change: Callable[[dict[str, Any], str], None], chance: random.Random) -> None:
    """The arrays of a safetensors or npz file, changed at one name and written again; any other file is flipped instead."""
    if path.suffix == ".safetensors":
        held, write = load_file(path), lambda found: save_file(found, path, metadata={"format": "pt"})
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as there:
            held, write = dict(there), lambda found: np.savez(path, **found)
    else:
        return flip(path, chance)
    change(held, chance.choice(sorted(held)))
    write(held)


def lose_array(path: Path, chance: random.Random) -> None:
    _arrays(path, lambda held, name: held.pop(name), chance)


def other_shape(path: Path, chance: random.Random) -> None:
    _arrays(path, lambda held, name: held.update({name: np.concatenate([np.ravel(held[name])] * 2)}), chance)


def not_finite(path: Path, chance: random.Random) -> None:
    _arrays(path, lambda held, name: held.update({name: np.full(held[name].shape, np.nan, np.float32)}), chance)


def _become(data: bytes) -> Damage:
    def become(path: Path, chance: random.Random) -> None:
        path.write_bytes(data)

    return become


def _replaced(make: Callable[[Path], object]) -> Damage:
    def replace(path: Path, chance: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


def twice(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


OF_FILES: dict[str, Damage] = {
    "cut at a random length": cut, "a bit flipped": flip, "a key lost": lose_key, "a value of another type": other_type,
    "an array lost": lose_array, "an array of another shape": other_shape, "NaN": not_finite,
    "missing": lambda path, chance: path.unlink(), "empty": _become(b""), "[1]": _become(b"[1]"), "null": _become(b"null"),
    "{}": _become(b"{}"), "nested 100,000 deep": _become(b"[" * 100_000), "not UTF-8": _become(b"\xff\xfe{\x80}"),
    "NULs": _become(b"\0" * 4096), "a number": _become(b"3"), "text": _become(b"hello: world\n"), "twice in itself": twice,
    "a folder": _replaced(Path.mkdir), "a FIFO": _replaced(os.mkfifo),
    "endless": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a loop of links": _replaced(lambda path: path.symlink_to(path.name)),
}  # fmt: skip
if os.geteuid() != 0:  # root may read everything
    OF_FILES["not to be read"] = lambda path, chance: path.chmod(0)
GONE = (
    "missing",
    "a folder",
    "a FIFO",
    "endless",
    "a loop of links",
    "not to be read",
)  # there is no such file, as far as one can tell
OFTEN = (
    "cut at a random length",
    "a bit flipped",
    "a key lost",
    "a value of another type",
)  # those that differ from time to time


def _stray(name: str) -> Damage:
    def put(path: Path, chance: random.Random) -> None:
        (path / name).mkdir()
        (path / name / "x").write_bytes(b"x")

    return put


OF_FOLDERS: dict[str, Damage] = {
    "renamed": lambda path, chance: shutil.move(path, path.with_name("step-000099")),
    "a copy beside it": lambda path, chance: shutil.copytree(path, path.with_name("step-000099")),
    "a folder .tmp- in it": _stray(".tmp-x"), "a folder .old- in it": _stray(".old-x"),
    "an odd folder in it": _stray("step-0000zz"),
    "missing": lambda path, chance: shutil.rmtree(path),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is damaged, how, and who reads it then."""

    file: str
    how: str
    reader: Command

    def __str__(self) -> str:
        return f"{self.file}, {self.how}: sage-rlvr {' '.join(self.reader.words)}"


def there(ready: Path) -> dict[str, tuple[Command, ...]]:
    """The files of `READERS` that a world has."""
    found = {pattern: sorted(ready.glob(pattern)) for pattern in READERS}
    return {str(file.relative_to(ready)): READERS[pattern] for pattern, files in found.items() for file in files}


def cases(ready: Path, count: int, seed: int) -> list[Case]:
    """Every kind of damage on every file, each with one of its readers, in a random order; then those that differ from time to
    time. Of fewer, the first."""
    chance = random.Random(f"{seed} damages")
    found = []
    for file, readers in there(ready).items():
        for how in OF_FOLDERS if (ready / file).is_dir() else OF_FILES:
            found.append(Case(file, how, chance.choice(readers)))
    chance.shuffle(found)
    files = [file for file in there(ready) if not (ready / file).is_dir()]
    while len(found) < count:
        file = chance.choice(files)
        found.append(Case(file, chance.choice(OFTEN), chance.choice(there(ready)[file])))
    return found[:count]


def outcome(case: Case, ending: Ending, made: Made, wanted: Made, without: Callable[[], Made]) -> str:
    """One of `OUTCOMES`, or a fault: its kind, a colon, and what is wrong. without: what is made where the file is missing."""
    if fault := ending.fault():
        return fault
    if ending.code == 0 and made == wanted:
        return "same"
    path = Path(case.file)
    if ending.code == 0:
        if case.how in GONE and made == without():
            return "as without it"
        sealed = any(mark in case.file for mark in SEALED)
        return f"wrong: another result: {told(ending.said)}" if sealed else "another input"
    if ending.code != 2:
        return f"wrong: code {ending.code}: {told(ending.said)}"
    names = [
        path.name,
        *path.parts[-2:-1],
        *([path.stem] if "_" in path.stem else []),
        *(["nan"] if case.how == "NaN" else []),
    ]
    named = any(name in ending.said for name in names)
    return "refused" if named else f"wrong: the file is not named: {told(ending.said)}"


def told(said: str) -> str:
    return " ".join(said.split())[-300:]


def read(ready: Path, room: Path, case: Case, chance: random.Random) -> tuple[Ending, Made]:
    """How the reader ended after the damage, and what it made."""
    shutil.copytree(ready, room, symlinks=True)
    path = room / case.file
    (OF_FOLDERS if path.is_dir() else OF_FILES)[case.how](path, chance)
    ending = run(room, *case.reader.words, seconds=SECONDS)
    try:
        made = case.reader.made(room, ending.out) if ending.code == 0 else {}
    except (ValueError, OSError) as error:
        made = {"unreadable": repr(error)}
    finally:
        shutil.rmtree(room)
    return ending, made


def attack(ready: Path, room: Path, case: Case, wanted: Made, chance: random.Random) -> str:
    """The outcome of one damage."""
    ending, made = read(ready, room, case, chance)
    return outcome(case, ending, made, wanted, lambda: read(ready, room, replace(case, how="missing"), chance)[1])


def undamaged(ready: Path, room: Path) -> dict[Command, Made]:
    """What each reader makes of the undamaged files."""
    wanted = {}
    for reader in dict.fromkeys(reader for readers in there(ready).values() for reader in readers):
        shutil.copytree(ready, room)
        ending = run(room, *reader.words)
        wanted[reader] = reader.made(room, ending.out)
        if ending.code != 0 or not wanted[reader]:
            raise RuntimeError(f"sage-rlvr {' '.join(reader.words)} ended with {ending.code}:\n{ending.said}")
        shutil.rmtree(room)
    return wanted


def battery(ready: Path, room: Path, count: int, seed: int) -> dict[str, dict[str, object]]:
    """`count` damages, each with one command that reads the file; figures by the first folder or file of its path."""
    wanted = undamaged(ready, room)
    found: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(cases(ready, count, seed)):
        began = time.monotonic()
        said = attack(ready, room, case, wanted[case.reader], random.Random(f"{seed} damage {number}"))
        row = found.setdefault(kind_of(case.file), {"attacks": 0, "seconds": 0.0, "outcomes": Counter(), "faults": []})
        row["attacks"] += 1
        row["seconds"] += time.monotonic() - began
        row["outcomes"][said.split(":")[0]] += 1
        if ":" in said:
            row["faults"].append(f"{number}: {case}: {said}")
            print(f"damages  {number}: {case}\n         {said}", flush=True)
    print(
        f"damages  {count} of {len(there(ready))} files, {sum(len(row['faults']) for row in found.values())} faults",
        flush=True,
    )
    return found


def kind_of(file: str) -> str:
    """The row of the table that a file belongs to."""
    parts = Path(file).parts
    return (
        parts[0]
        if len(parts) == 1
        else "/".join(parts[:2])
        if parts[1] in ("checkpoints", "policy", "samples")
        else "/".join(parts[:1] + parts[-1:])
    )
