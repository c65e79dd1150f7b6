"""The Rarity guide by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sage_rlvr.core import Key, Signals
from sage_rlvr.core.guides import GUIDES
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.errors import ConfigError

KEY = Key(0)


def signals_of(surprisals, references=None, mask=None) -> Signals:
    logps = -torch.tensor(surprisals)
    refs = None if references is None else -torch.tensor(references)
    return Signals(
        logps, refs, torch.ones_like(logps) if mask is None else torch.tensor(mask), torch.arange(len(logps))
    )


def log_q_of(guide: Rarity, signals: Signals) -> torch.Tensor:
    return guide(signals, step=0, total_steps=10, key=KEY)


def test_each_token_pays_until_the_cap_is_spent():
    """Surprisals 1, 2, 3 with cap 4: 1, 2 and the last nat that is left; a fourth token nothing."""
    found = log_q_of(Rarity(power=0.5, cap=4.0), signals_of([[1.0, 2.0, 3.0, 5.0]]))
    assert found[0].tolist() == pytest.approx([0.5, 1.0, 0.5, 0.0])


def test_a_completion_is_raised_by_its_rarity_up_to_the_cap():
    found = log_q_of(Rarity(), signals_of([[0.5, 1.0], [3.0, 9.0], [9.0, 3.0]])).sum(1)
    assert found.tolist() == pytest.approx([0.75, math.log(16), math.log(16)], abs=1e-5)


def test_the_default_band_never_binds_and_sages_does():
    signals = signals_of([[6.0, 0.1]])
    assert log_q_of(Rarity(), signals)[0, 0] == pytest.approx(math.log(16), abs=1e-5)
    assert log_q_of(Rarity(q_min=0.6, q_max=1.4), signals)[0, 0] == pytest.approx(math.log(1.4))


def test_no_cap_is_tempering():
    found = log_q_of(Rarity(power=0.1, cap=math.inf), signals_of([[1.0, 20.0]]))
    assert found[0].tolist() == pytest.approx([0.1, 2.0], abs=1e-5)


def test_a_sharpened_reference_multiplies():
    guide = Rarity(power=0.5, cap=4.0, reference_power=0.25)
    found = log_q_of(guide, signals_of([[1.0, 2.0]], [[2.0, 4.0]]))
    assert found[0].tolist() == pytest.approx([0.5 - 0.5, 1.0 - 1.0], abs=1e-6)
    assert guide.needs == {"ref_logps"} and Rarity().needs == frozenset()


def test_a_hole_in_the_mask_spends_nothing():
    found = log_q_of(Rarity(power=0.5, cap=4.0), signals_of([[1.0, math.nan, 5.0]], mask=[[1, 0, 1]]))
    assert found[0].tolist() == pytest.approx([0.5, 0.0, 1.5])


@pytest.mark.parametrize("wrong", [{"cap": 0.0}, {"cap": math.nan}, {"power": math.inf}, {"reference_power": math.nan}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match="Rarity"):
        Rarity(**wrong)


def test_it_is_in_the_registry_and_says_its_equation():
    assert GUIDES["rarity"] is Rarity and Rarity().depends_on == "token"
    assert "pi_ref" not in Rarity().equation and "pi_ref(y_t)^0.25" in Rarity(reference_power=0.25).equation
