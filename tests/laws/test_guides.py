"""Laws that every guide obeys; a new guide joins by entering `GUIDES` and, if it has required fields, `EXAMPLES`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sage_rlvr.core import Banded, Branch, Compose, Flat, Place, Placebo, Random, Token
from sage_rlvr.core.guides import GUIDES, Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.testing import (
    check_dependence,
    check_guide,
    check_needs,
    check_no_gradient,
    check_precision,
    run,
    signals,
)

EXAMPLES = {
    "branch_p80": Branch(threshold="p80"),
    "branch_reference": Branch(signal="reference"),
    "token_rank": Token(norm="rank"),
    "token_zscore": Token(norm="zscore"),
    "token_reference": Token(signal="reference"),
    "random_often": Random(eps=0.9, sigma=0.5),
    "place": Place(("first", "third")),
    "place_first": Place(first=2, outside=True),
    "placebo_place": Placebo(Place(("second",), ratio=1.0)),
    "placebo": Placebo(Branch()),
    "placebo_token": Placebo(Token()),
    "placebo_length": Placebo(Token(), within="length"),
    "placebo_row": Placebo(Token(), within="row"),
    "placebo_centered": Placebo(Token(), centered=True),
    "placebo_length_centered": Placebo(Branch(), within="length", centered=True),
    "placebo_row_centered": Placebo(Branch(), within="row", centered=True),
    "compose": Compose((Branch(), Random(eps=0.5), Random(eps=0.5))),
    "product": Branch() * Token(),
}
ALL = {name: EXAMPLES[name] if name in EXAMPLES else kind() for name, kind in GUIDES.items()} | EXAMPLES
guides = pytest.mark.parametrize("guide", ALL.values(), ids=ALL.keys())
seeds = st.integers(min_value=0, max_value=2**31 - 1)


@guides
@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_the_laws_of_a_guide(guide, seed):
    check_guide(guide, seed)


@pytest.mark.parametrize("kind", GUIDES.values(), ids=GUIDES.keys())
def test_all_but_the_first_argument_go_by_name(kind):
    """Two numbers in another order would pass unseen."""
    assert len([one for one in fields(kind) if one.init and not one.kw_only]) <= 1


class Careless(Guide):
    """A guide that computes in bf16, or in float16 between float32 ends, and lets the gradient through."""

    needs, depends_on, equation = frozenset({"entropies"}), "state", "careless"

    def __init__(self, spoil):
        self.spoil = spoil

    def __call__(self, signals, step, total_steps, key):
        return torch.where(signals.mask, self.spoil(signals.entropies), 0.0)


def test_a_careless_guide_breaks_both_laws():
    with pytest.raises(AssertionError):
        check_no_gradient(Careless(lambda values: 0.1 * values))
    for spoil in (lambda v: (v.bfloat16() * 0.1).float(), lambda v: (0.1 * v.half()).float()):
        with pytest.raises(AssertionError, match="16 bits"):
            check_precision(Careless(spoil), 3)
    with pytest.raises(AssertionError):
        check_precision(Careless(lambda v: ((0.1 * v + 1e4) - 1e4).float()), 3)  # float32 that loses digits


@settings(max_examples=20, deadline=None)
@given(seed=seeds, step=st.integers(0, 100))
def test_placebo_keeps_the_values_and_not_the_places(seed, step):
    known = signals(seed, rows=8, columns=20)
    real, sham = run(Branch(), known, step), run(Placebo(Branch()), known, step)
    assert torch.equal(real[known.mask].sort().values, sham[known.mask].sort().values)
    assert known.mask.sum() < 20 or not torch.equal(real, sham)


@pytest.mark.parametrize("within", ["batch", "length", "row"])
@settings(max_examples=20, deadline=None)
@given(seed=seeds, step=st.integers(0, 100))
def test_placebo_keeps_the_values_of_each_set_and_centered_they_sum_to_zero(within, seed, step):
    known = signals(seed, rows=8, columns=6)
    lengths = known.mask.sum(1)
    numbers = {"batch": torch.zeros(8), "length": lengths, "row": torch.arange(8)}[within]
    real, sham, centered = (
        run(guide, known, step)
        for guide in (Token(), Placebo(Token(), within=within), Placebo(Token(), within=within, centered=True))
    )
    for number in numbers.unique():
        here = known.mask & (numbers == number)[:, None]
        assert torch.equal(real[here].sort().values, sham[here].sort().values)
        assert abs(float(centered[here].double().sum())) < 1e-5
        assert not here.any() or torch.allclose(centered[here], sham[here] - real[here].mean(), atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_flat_is_neutral_in_products_and_products_add_logs(seed):
    known = signals(seed)
    branch, token = run(Branch(), known), run(Token(), known)
    assert torch.equal(run(Branch() * Flat(), known), branch)
    assert torch.equal(run(Flat() * Branch(), known), branch)
    assert torch.equal(run(Branch() * Token(), known), branch + token)
    assert torch.equal(run(Compose(()), known), torch.zeros_like(branch))


@dataclass(frozen=True)
class ByColumn(Banded):
    """q grows from column to column, padding included: what every author writes first."""

    needs: ClassVar[frozenset[str]] = frozenset()
    depends_on: ClassVar[str] = "state"
    equation: ClassVar[str] = "1 + t / 100"
    q_min: float = 0.6
    q_max: float = 1.4

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> Tensor:
        return 1.0 + torch.arange(signals.mask.shape[1]).expand(signals.mask.shape) / 100


@dataclass(frozen=True)
class Dishonest(Banded):
    """Declares what the fields say, and reads what `reads` says."""

    needs: ClassVar[frozenset[str]] = frozenset({"entropies"})
    equation: ClassVar[str] = "q of a state"
    reads: str = "old_logps"
    shift: int = 0
    depends_on: str = "state"
    looks_ahead: bool = False
    q_min: float = 0.6
    q_max: float = 1.4

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> Tensor:
        values = torch.where(signals.mask, getattr(signals, self.reads), 0.0)
        zeros = torch.zeros_like(values)
        if self.shift > 0:  # tokens before
            values = torch.cat([zeros[:, : self.shift], values[:, : -self.shift]], dim=1)
        if self.shift < 0:
            values = torch.cat([values[:, -self.shift :], zeros[:, : -self.shift]], dim=1)
        return 1.0 + values.abs().clamp(max=4.0) / 10


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        (Dishonest(), "depends_on = 'state', but q of token 0 changes when only the log-prob of that drawn token does"),
        (Dishonest(depends_on="nothing"), "depends_on = 'nothing', but q changes with the signals"),
        (Dishonest(reads="entropies", depends_on="nothing"), "depends_on = 'nothing', but q changes with the signals"),
        (Dishonest(reads="ref_entropies"), "q reads Signals.ref_entropies, which needs = .'entropies'. does not declare"),
        (Dishonest(reads="ref_logps", depends_on="token"), "q reads Signals.ref_logps, which needs"),
        (Dishonest(shift=-1, depends_on="token"), "q up to token 0 changes with signals of later tokens; declare looks_ahead"),
        (Dishonest(reads="entropies", shift=-1), "q up to token 0 changes with signals of later tokens"),
    ],
    ids=lambda value: "" if isinstance(value, str) else f"{value.reads}-{value.shift}-{value.depends_on}",
)
def test_a_false_declaration_fails(guide: Guide, said: str) -> None:
    """Each objective that `show` prints, and each refusal, is derived from the declarations."""
    with pytest.raises(AssertionError, match=said):
        for law in (check_dependence, check_needs):
            law(guide, 0)


@pytest.mark.parametrize(
    "guide",
    [
        Dishonest(depends_on="token"),
        Dishonest(shift=2),  # log-probs of tokens before are of the state
        Dishonest(reads="entropies"),
        Dishonest(reads="entropies", shift=-1, looks_ahead=True),
    ],
)
def test_a_true_declaration_passes(guide: Guide) -> None:
    for seed in range(5):
        check_dependence(guide, seed)
        check_needs(guide, seed)


def test_a_broken_law_says_the_remedy() -> None:
    said = r"left padding changes q; read signals only where signals\.mask is true; signals\.positions numbers"
    with pytest.raises(AssertionError, match=said):
        check_guide(ByColumn())
