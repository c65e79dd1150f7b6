"""`python -m lab shared`: its tables and claims from stored worlds, its page as the command makes it, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.studies.pages import filled
from lab.studies.shared import measure as study
from lab.studies.shared.command import made, picture, tables_of, write_docs
from lab.theory.shared import Law, SharedWorld
from sage_rlvr.errors import DataError

DOCS = Path(__file__).resolve().parents[2] / "pages"
STORED = DOCS / "results" / "shared"


@pytest.fixture(scope="module")
def found() -> list[study.Found]:
    """The worlds of the page."""
    return [study.read(path) for path in sorted(STORED.glob("world-*.json"))]


def test_the_page_is_made_by_its_command_from_the_stored_worlds(found, tmp_path):
    text = (DOCS / "results" / "shared.md").read_text(encoding="utf-8")
    assert len(found) == study.WORLDS and filled(text, tables_of(found)) == text
    assert len(picture(found).axes) == 2
    with pytest.raises(DataError, match=r"name the folder that holds results/shared\.md"):
        write_docs(found, tmp_path)


def test_a_claim_compares_world_by_world_and_an_interval_that_holds_0_leaves_it_open():
    clear = study.claim("x", "y", [(0.5, 0.1), (0.6, 0.2), (0.7, 0.31)])
    assert (clear.left, clear.right, clear.verdict) == (pytest.approx(0.6), pytest.approx(0.61 / 3), "holds")
    assert study.claim("x", "y", [(b, a) for a, b in [(0.5, 0.1), (0.6, 0.2), (0.7, 0.31)]]).verdict == "fails"
    both = study.claim("x", "y", [(0.5, 0.1), (0.1, 0.5)])
    assert (both.verdict, both.more, clear.more) == ("open", 1, 3)


def test_the_best_point_reaches_the_level_and_the_gap_is_between_starts_of_one_beta():
    points = [study.Point("a", b, 1.0, one, many, 1.0) for b, one, many in ((1, 0.1, 0.9), (2, 0.2, 0.8), (3, 0.3, 0.85))]
    ends = [("base", 0.9), ("concentrated", 0.5)]
    rests = [study.Rest("reverse", 0.1, start, 0.1, many, 0.0, 0.0) for start, many in ends]
    rests += [study.Rest("reverse", 0.2, start, 0.1, 0.9, 0.0, 0.0) for start, _ in ends]
    world = study.Found(0, (0.1, 0.9), tuple(points), tuple(rests), {}, {})
    assert study.best(world, "a", 0.15) == points[2] and study.best(world, "a", 0.05) == points[0]
    assert study.best(world, "a", 0.4) is None and study.best(world, "b", 0.0) is None
    assert study.gap(world, "reverse") == (pytest.approx(0.4), 0.1)


@pytest.mark.slow
def test_a_run_goes_on_from_stored_worlds_and_refuses_those_of_other_settings(found, tmp_path, monkeypatch, capsys):
    small, draw = Law(prompts=12, types=2, strategies=3, answers=3), SharedWorld.draw
    asked = []
    monkeypatch.setattr(study, "STEPS", 2)
    monkeypatch.setattr(study, "REST_STEPS", 2)
    monkeypatch.setattr(study, "ARMS", study.ARMS[:1] + study.ARMS[9:10])
    monkeypatch.setattr(study.SharedWorld, "draw", lambda seed: asked.append(seed) or draw(seed, small))
    first = study.find(2, tmp_path)
    assert study.find(2, tmp_path) == first and asked == [0, 1]
    assert {point.arm for point in first[0].points} == {arm.name for arm in study.ARMS}
    kept = json.loads((tmp_path / "world-1.json").read_text(encoding="utf-8"))
    kept["settings"]["rate"] = 0.5
    (tmp_path / "world-1.json").write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(DataError, match="measured with other settings"):
        study.find(2, tmp_path)
    assert main(["shared", "--worlds", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stored_world_is_measured_again_alike(found):
    world, arm = SharedWorld.draw(0), study.ARMS[3]
    theta = world.fit(arm.make(0.08), steps=study.STEPS, rate=study.RATE, group_size=study.GROUP)
    again = [study._point(world, theta, arm.name, 0.08, t) for t in study.TEMPERATURES]
    kept = [point for point in found[0].points if point.arm == arm.name and point.strength == 0.08]
    for one, other in zip(again, kept, strict=True):
        assert (one.pass1, one.pass256) == (pytest.approx(other.pass1, abs=2e-3), pytest.approx(other.pass256, abs=2e-3))


def test_every_table_has_rows(found):
    assert {name for name, table in made(found).items() if table.rows} == {"claims", "frontier", "rests", "kept", "turned"}
