"""A few attacks of each battery, that the batteries see what gets through, and that the pages say what was found."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.stress.battery import damages, hostile, kills, page
from lab.stress.battery.commands import Command
from lab.stress.battery.world import RECIPE, Ending, inputs, run, warm, whole
from sage_rlvr.verifiers import Verdict

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "pages" / "results" / "battery.md").read_text(encoding="utf-8")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the batteries fork and read /proc")


def faults(found: dict[str, dict[str, Any]]) -> list[str]:
    return [fault for row in found.values() for fault in row["faults"]]


# ---- what the batteries see

SAME = {"a": "1"}


@pytest.mark.parametrize(
    ("ending", "made", "file", "wanted"),
    [
        (Ending(0, "", "", 1.0), SAME, "run/checkpoints", "same"),
        (Ending(0, "", "", 1.0), {"a": "2"}, "run/checkpoints", "wrong: another result"),
        (Ending(0, "", "", 1.0), {"a": "2"}, "rows.jsonl", "another input"),
        (Ending(0, "", "", 1.0), {"a": "2"}, "recipe.yaml", "another input"),
        (Ending(2, "", "recipe.yaml: no mapping", 1.0), {}, "recipe.yaml", "refused"),
        (Ending(2, "", "something is wrong", 1.0), {}, "recipe.yaml", "wrong: the file is not named"),
        (Ending(2, "", "", 1.0), {}, "recipe.yaml", "wrong: code 2 without a word"),
        (Ending(1, "", "recipe.yaml", 1.0), {}, "recipe.yaml", "wrong: code 1"),
        (Ending(70, "", "recipe.yaml: a fault", 1.0), {}, "recipe.yaml", "traceback: "),
        (Ending(0, "", "Traceback (most recent call last)", 1.0), SAME, "recipe.yaml", "traceback: "),
        (Ending(0, "\x1b[2J", "", 1.0), SAME, "recipe.yaml", "wrong: a raw escape"),
        (Ending(-14, "", "", 9.0), {}, "recipe.yaml", "hang: "),
        (Ending(-11, "", "", 1.0), {}, "recipe.yaml", "traceback: ended by signal 11"),
    ],
)
def test_a_damage_that_gets_through_is_seen(ending: Ending, made: dict[str, str], file: str, wanted: str) -> None:
    case = damages.Case(file, "a key lost", Command(()))
    said = damages.outcome(case, ending, made, SAME, dict)
    assert said.startswith(wanted) and (":" in wanted or said == wanted)
    assert (":" in said) == bool(page.faults_of([{"faults": [said] if ":" in said else []}]))


def test_a_verifier_that_fails_is_seen() -> None:
    def ask(text: str, place: dict[str, str]) -> Verdict:
        if text == "raise":
            raise ValueError("x")
        return Verdict("right" if text == "right" else "wrong", "")

    asked = [("f", text, {}) for text in ("raise", "right", "wrong", "wrong")]
    found = hostile.judged(asked, ask, 9.0, threads=1)
    assert found["outcomes"] == {"right": 1, "wrong": 2}
    assert page.faults_of([found]) == Counter(traceback=1, wrong=1)
    assert page.faults_of([hostile.judged(asked[2:], ask, -1.0, threads=1)]) == Counter(hang=2)


# ---- a few attacks


@pytest.mark.slow
@linux
def test_hostile_answers_to_every_verifier() -> None:
    assert not faults(hostile.battery(24, seed=1))


@pytest.mark.slow
@linux
def test_recipes_damaged_in_every_way(tmp_path: Path) -> None:
    warm()
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    chance, wanted = random.Random(0), damages.SHOW.made(ready, run(ready, *damages.SHOW.words).out)
    cases = [damages.Case("recipe.yaml", how, damages.SHOW) for how in damages.OF_FILES]
    said = {case.how: damages.attack(ready, tmp_path / "room", case, wanted, chance) for case in cases}
    assert said == {how: outcome for how, outcome in said.items() if outcome in damages.OUTCOMES}
    assert list(said.values()).count("refused") > len(said) / 2


@linux
@pytest.mark.slow
def test_kills_of_six_commands(tmp_path: Path) -> None:
    warm()
    found = kills.battery(inputs(tmp_path / "inputs"), tmp_path / "room", 6, seed=2)
    assert len(found) == 6 and all(row["equal"] == row["ended"] > 0 for row in found.values())
    assert not faults(found)


@linux
@pytest.mark.slow
def test_damages_of_every_file(tmp_path: Path) -> None:
    warm()
    found = damages.battery(whole(tmp_path / "whole"), tmp_path / "room", 150, seed=2)
    assert not faults(found)


@linux
@pytest.mark.slow
def test_five_hundred_hostile_answers() -> None:
    assert not faults(hostile.battery(500, seed=2))


# ---- what the pages say


def test_the_pages_quote_the_figures() -> None:
    sentence = PAGE.split("\n\n")[2]
    reliability, index = (
        (ROOT / "pages" / name).read_text("utf-8") for name in ("concepts/reliability.md", "results/index.md")
    )
    assert sentence in " ".join(reliability.split()) and "battery.md" in index
    assert sentence.endswith(": 0 tracebacks, 0 hangs, 0 wrong results.")
    for name, word, least in (
        ("Kills", "kills", 100),
        ("Damages", "damages", 500),
        ("Hostile", "hostile answers", 10_000),
    ):
        part = PAGE.split(f"## {name}\n")[1].split("\n## ")[0]
        attacks = sum(int(number) for number in re.findall(r"^\| `[^|]+` \| (\d+) \|", part, re.MULTILINE))
        assert attacks >= least and f"{attacks:,} {word}" in sentence
