"""Acting parts: every part of a recipe is put at its neutral element once, and what does not act is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.studies import parts
from lab.studies.gradients import Step, Tokens
from lab.studies.parts import (
    Place,
    Row,
    _place,
    find,
    measure,
    neutrals,
    table,
    trained,
    write_docs,
)
from sage_rlvr.contrib.methods.pacs import pacs
from sage_rlvr.contrib.replay.rft import rft
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.methods import METHODS, dapo, grpo, maxrl, rloo, sage

DOCS = Path(__file__).resolve().parents[2] / "pages"


def test_each_part_is_neutral_once_and_alone():
    fields = {name: {key[0] for key in neutrals(METHODS[name]())} for name in METHODS}
    assert fields["rloo"] == set() and fields["maxrl"] == {"advantage"} and fields["rft"] == {"buffer"}
    assert fields["dapo"] == {"advantage", "surrogate", "reduction", "rollout"}
    assert "advantage" not in {key[0] for key in neutrals(pacs())}  # its labels
    own, other = sage(grpo(beta=0.1), Branch()), neutrals(sage(grpo(beta=0.1), Branch()))
    assert other["guide", "Branch"].anchor == replace(own.anchor, guide=Flat())
    assert other["anchor", "k3 in the loss"].anchor.is_off and set(neutrals(rft())) == {("buffer", "Likelihood")}
    assert {key: one for key, one in neutrals(maxrl(beta=0.1)).items() if key[0] == "advantage"} == {
        ("advantage", "PowerNormalized"): replace(rloo(beta=0.1), name="maxrl")
    }
    assert neutrals(dapo())["rollout", "DynamicSampling"].rollout is None


def test_share_distance_and_cosine_by_hand():
    mask = torch.tensor([[True, True], [True, False]])
    force = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    other = torch.tensor([[1.0, 2.0], [4.0, 0.0]])

    def one(gradient, force):
        return Step([torch.tensor(gradient)], [Tokens(force, force, mask)], {}, [])

    place = _place("advantage", one([3.0, 4.0], force), one([3.0, 0.0], other), 0)
    assert place == Place(tokens=0.3333, rows=0.5, distance=1.333, cosine=0.6)
    same = _place("advantage", one([3.0, 4.0], force), one([3.0, 4.0], force), 0)
    assert same == Place(0.0, 0.0, 0.0, 1.0)
    none = _place("buffer", Step([], [], {}, []), Step([], [], {}, []), 0)
    assert none == Place(None, None, 0.0, None)
    assert _place("buffer", one([3.0, 4.0], force), Step([], [], {}, []), 0).distance is None


def row(*distances: float | None) -> Row:
    places = tuple(Place(0.5, 0.5, d, None if d is None else 0.9) for d in distances)
    named = {"recipe": "countdown/x", "field": "advantage", "part": "X", "neutral": "none"}
    return Row(**named, metric="advantage/abs_mean", value=0.5, neutral_value=None, places=places)


def test_a_part_that_changes_no_gradient_has_not_acted(monkeypatch, tmp_path):
    assert [one.verdict for one in (row(0.1, 0.0, 0.0), row(0.0, 0.0, 0.2), row(0.0, None, 0.0))] == [
        "first step", "later update", "moved",
    ]  # fmt: skip
    idle = row(0.0, 0.0, 0.0)
    assert not idle.acted and idle.verdict == "DID NOT ACT" and "DID NOT ACT" in table([idle]).markdown()
    monkeypatch.setattr(parts, "PROVEN", {"X": "it cancels: see the claim"})
    assert idle.verdict == "it cancels: see the claim"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "parts.md").write_text("<!-- parts:begin -->\n<!-- parts:end -->\n", encoding="utf-8")
    page, beside = write_docs([idle], tmp_path)
    assert "it cancels" in page.read_text(encoding="utf-8") and json.loads(beside.read_text(encoding="utf-8"))[0]["part"] == "X"


@pytest.mark.slow
def test_the_page_is_made_of_the_rows_beside_it_and_each_of_them_acted():
    found = [
        Row(**{**one, "places": tuple(Place(**place) for place in one["places"])})
        for one in json.loads((DOCS / "results" / "parts.json").read_text(encoding="utf-8"))
    ]
    text = (DOCS / "results" / "parts.md").read_text(encoding="utf-8")
    assert table(found).markdown() in text and all(one.acted or one.part in parts.PROVEN for one in found)
    assert {one.recipe for one in found} <= set(trained())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["countdown/mara", "countdown/cispo", "countdown/sage_branch", "countdown/dapo"])
def test_every_part_of_a_recipe_acts_and_the_loop_is_left_as_it_was(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PROMPTS", 4)
    rows = measure(recipe)
    assert rows and all(one.acted for one in rows), [one.verdict for one in rows]
    first = {one.field: one.places[0].distance for one in rows}
    assert first.get("anchor", 0.0) in (0.0, None) or recipe == "countdown/sage_branch"  # policy = reference
    kept = find([recipe], tmp_path)
    monkeypatch.setattr(parts, "measure", lambda name: pytest.fail("measured again"))
    assert find([recipe], tmp_path) == kept == rows
