"""The Place guide against numbers worked out by hand, and the classes of states that it reads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.core import Place
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.ids import name_id
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.training.places import places_of


class Characters:
    """A tokenizer of single characters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def places(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, texts))
    tokens = torch.tensor([[ord(c) for c in text.ljust(width, "#")] for text in texts])
    mask = torch.tensor([[i < len(text) for i in range(width)] for text in texts])
    return places_of(CountdownChat.state_class, Characters(), tokens, mask), mask


def q_of(guide: Place, texts: list[str]) -> torch.Tensor:
    known, mask = places(texts)
    zero = torch.zeros(mask.shape)
    return guide(Signals(zero, zero, mask, torch.arange(len(mask)), places=known), 0, 1, Key(0)).exp()


def test_states_of_an_expression_by_hand():
    wanted = {  # state before each character of (3+4)*2 and its end
        "": "first operand", "(": "first operand", "(3": "first operator", "(3+": "operand", "(3+4": "operator",
        "(3+4)": "operator", "(3+4)*": "operand", "(3+4)*2": "operator", "(3+4)*2=": "behind",
    }  # fmt: skip
    assert {text: CountdownChat.state_class(text) for text in wanted} == wanted
    assert set(wanted.values()) == set(CountdownChat.state_classes)


def test_q_by_hand():
    operator = Place(("first operator", "operator"), ratio=0.5)
    # before 3: operand, +: operator, 4: operand, the end "|": operator
    assert q_of(operator, ["3+4|", "3+"]).tolist() == [[1.0, 1.5, 1.0, 1.5], [1.0, 1.5, 1.0, 1.0]]
    entrance = Place(("first operand", "first operator"), ratio=0.5)
    assert q_of(entrance, ["3+4|"]).tolist() == [[1.5, 1.5, 1.0, 1.0]]
    assert q_of(Place(("first operand", "first operator"), ratio=0.5, outside=True), ["3+4|"]).tolist() == [[1.0, 1.0, 1.5, 1.5]]
    assert q_of(Place(first=3, ratio=1.0), ["3+4|", "3+"]).tolist() == [[2.0, 2.0, 2.0, 1.0], [2.0, 2.0, 1.0, 1.0]]


@given(st.lists(st.text("3+(", min_size=1, max_size=12), min_size=1, max_size=4), st.floats(0.0, 1.0))
def test_mean_q_is_one_plus_ratio_times_the_share_of_the_place(texts: list[str], ratio: float):
    known, mask = places(texts)
    inside = (known == name_id("operator")) & mask
    q = q_of(Place(("operator",), ratio=ratio), texts)
    share = float(inside.sum() / mask.sum())
    assert math.isclose(float(q[mask].double().mean()), 1 + ratio * share, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({}, "classes is missing"),
        ({"classes": ("a",), "first": 2}, "first = 2"),
        ({"classes": "operator"}, "'operator'"),
        ({"first": 0}, "first = 0"),
        ({"first": 2, "ratio": math.nan}, "ratio = nan"),
    ],
)
def test_settings_that_name_no_place_are_refused(settings: dict, place: str):
    with pytest.raises(ConfigError) as error:
        Place(**settings)
    assert place in str(error.value)


def test_a_state_class_that_is_no_text_is_refused():
    tokens = torch.tensor([[51]])
    with pytest.raises(DataError, match="returned 3"):
        places_of(lambda text: 3, Characters(), tokens, tokens.bool())
