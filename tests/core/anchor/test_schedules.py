"""Schedules are pure functions of the step."""

from __future__ import annotations

import math
import warnings

import pytest

from sage_rlvr.core import SCHEDULES, Constant, Cosine, CosineCycles, Linear, as_schedule
from sage_rlvr.core.schedules import is_zero, show
from sage_rlvr.errors import ConfigError

EXAMPLES = [Constant(0.3), Linear(0.3, 0.1), Cosine(0.3, 0.1), CosineCycles(0.3, 0.1)]


def test_every_schedule_has_an_example():
    assert {type(example) for example in EXAMPLES} == set(SCHEDULES.values())


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_starts_at_the_upper_value_and_stays_between(schedule):
    values = [schedule(step, 100) for step in range(100)]
    assert values[0] == pytest.approx(0.3)
    assert all(0.1 - 1e-12 <= value <= 0.3 + 1e-12 for value in values)
    assert values == [schedule(step, 100) for step in range(100)] and isinstance(values[0], float)


@pytest.mark.parametrize("schedule", [Linear(0.3, 0.1), Cosine(0.3, 0.1)])
def test_reaches_its_end_at_the_last_step_and_stays(schedule):
    assert schedule(99, 100) == pytest.approx(0.1, abs=1e-12)
    assert schedule(500, 100) == pytest.approx(0.1, abs=1e-12)
    assert schedule(0, 1) == pytest.approx(0.3), "a single step is the first step"


def test_middle_by_hand():
    assert Linear(0.3, 0.1)(5, 11) == pytest.approx(0.2)
    assert Cosine(0.3, 0.1)(5, 11) == pytest.approx(0.2)
    assert Cosine(1.0, 0.0)(25, 101) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert CosineCycles(1.0, 0.0, cycles=2, decay=0.5)(5, 20) == pytest.approx(0.5)
    assert CosineCycles(1.0, 0.0, cycles=2, decay=0.5)(15, 20) == pytest.approx(0.25)


def test_tail_when_cycles_do_not_divide_the_steps():
    """1003 steps in 8 cycles: L = 125 and steps 1000..1002 are left over."""
    final, released = CosineCycles(0.3, 0.1), CosineCycles(0.3, 0.1, tail="released")
    assert [final(step, 1003) for step in (1000, 1002)] == [0.1, 0.1]
    assert released(1000, 1003) == released(875, 1003) > 0.14
    assert all(final(step, 1003) == released(step, 1003) for step in range(1000))


@pytest.mark.parametrize(("cycles", "steps"), [(8, 3), (8, 15), (2, 1)])
def test_cycles_of_one_step_never_anneal_and_say_so_once(cycles, steps):
    schedule = CosineCycles(0.4, 0.1, cycles=cycles, decay=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = [schedule(step, steps) for step in range(steps)]
    assert values[: min(cycles, steps)] == pytest.approx([0.4] * min(cycles, steps))
    (message,) = (str(warning.message) for warning in caught)
    assert caught[0].filename == __file__
    for number in (f"{cycles} cycles", f"total_steps = {steps}", "0.4", "0.1", f"at least {2 * cycles} steps"):
        assert number in message


def test_cycles_of_two_steps_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert min(CosineCycles(0.4, 0.1)(step, 16) for step in range(16)) < 0.25


@pytest.mark.filterwarnings("ignore:CosineCycles")
def test_more_cycles_than_steps():
    assert CosineCycles(0.4, 0.1, cycles=8, decay=0.5)(2, 3) == pytest.approx(0.1)
    assert [CosineCycles(0.4, 0.1, cycles=8, decay=1.0)(s, 3) for s in range(3)] == pytest.approx([0.4] * 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(math.nan),
        lambda: Linear(0.1, math.inf),
        lambda: Cosine("0.1", 0.0),
        lambda: CosineCycles(0.3, 0.1, cycles=0),
        lambda: CosineCycles(0.3, 0.1, cycles=2.5),
        lambda: CosineCycles(0.3, 0.1, tail="last"),
        lambda: as_schedule("fast"),
        lambda: as_schedule(True),
    ],
)
def test_refusals(make):
    with pytest.raises(ConfigError):
        make()


def test_numbers_become_constants_and_schedules_stay():
    assert as_schedule(0.05) == Constant(0.05) and as_schedule(1) == Constant(1.0)
    assert as_schedule(EXAMPLES[1]) is EXAMPLES[1]
    assert show(0.05) == "0.05" and show(Linear(0.1, 0.0)) == "Linear(start=0.1, end=0.0)"


def test_is_zero():
    assert all(map(is_zero, (0, 0.0, Constant(0.0), Linear(0.0, 0.0), CosineCycles(0.0, 0.0))))
    assert not any(map(is_zero, (0.05, Linear(0.0, 0.1), CosineCycles(0.1, 0.0), lambda step, total: 0.0)))
