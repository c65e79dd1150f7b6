"""Plans: published sizes, the two equations by hand, what to buy next, pilots."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.stats.passk import pass_at_k
from sage_rlvr.stats.plan import (
    EvaluationSize,
    Pilot,
    assume,
    design_needed,
    make_plan,
    needed_line,
    pilot_of_counts,
    pilot_of_exact,
    plan_lines,
    problems_needed,
    runs_needed,
    see_checkpoints,
    see_methods,
)
from sage_rlvr.stats.power import detectable


def test_published_sizes():
    """+0.02 at 10 % discordant takes about 1,960 problems, +0.015 at SD 0.01 7 runs per arm with a known SD."""
    assert problems_needed(0.02, 0.10) == 1963 and math.ceil(0.1 * (2.8 / 0.02) ** 2) == pytest.approx(1960, abs=1)
    assert runs_needed(0.015, 0.01, known=True) == 7
    assert runs_needed(0.015, 0.01) == 10
    assert detectable(math.sqrt(2) * 0.01, 10) <= 0.015 < detectable(math.sqrt(2) * 0.01, 9)


@pytest.mark.parametrize(("problems", "seen"), [(60, 0.114), (40, 0.140), (134, 0.077)])
def test_what_the_papers_data_sets_can_see(problems, seen):
    design = EvaluationSize(problems=problems, samples=256, seeds=1)
    assert see_checkpoints(design, assume(k=256, samples=256)) == pytest.approx(seen, abs=5e-4)


def test_what_methods_need_by_hand():
    pilot = Pilot(true=0.05, noise=12.8, run_sd=0.01, k=256, source="")
    design = EvaluationSize(problems=60, samples=256, seeds=4)
    sd = math.sqrt(2 * 0.01**2 + 12.8 / 256 / 60)
    assert see_methods(design, pilot) == pytest.approx(detectable(sd, 4))
    assert see_methods(EvaluationSize(problems=60, samples=256, seeds=2), pilot) == math.inf


def test_what_to_buy_next():
    problems_help = Pilot(true=0.1, noise=0.0, run_sd=0.02, k=1, source="")
    plan = make_plan(EvaluationSize(problems=60, samples=16, seeds=3), problems_help, run_cost=100)
    assert plan.next_checkpoints[0].what == "120 problems (if there are more of them)"
    assert plan.next_checkpoints[0].detectable == pytest.approx(plan.checkpoints / math.sqrt(2))
    assert plan.next_checkpoints[1].gain == 0.0  # more samples of exact scores
    assert plan.next_checkpoints[0].cost == 2 * 60 * 16  # one checkpoint an arm
    assert plan.next_methods[0].what == "4 training seeds" and plan.next_methods[1].gain == 0.0
    assert plan.next_methods[0].cost == 2 * (100 + 60 * 16)
    samples_help = Pilot(true=0.0, noise=10.0, run_sd=0.0, k=1, source="")
    steps = make_plan(EvaluationSize(problems=60, samples=16, seeds=3), samples_help).next_checkpoints
    assert {round(s.detectable, 6) for s in steps} == {round(steps[0].detectable, 6)}
    one = make_plan(EvaluationSize(problems=60, samples=16, seeds=1), problems_help)
    assert one.methods == math.inf and one.next_methods[0].what == "3 training seeds"
    assert "still nothing" in "\n".join(plan_lines(one))


def test_five_problems_see_nothing():
    few, enough = (make_plan(EvaluationSize(problems=n, samples=64, seeds=3), assume(k=16, samples=64)) for n in (5, 6))
    assert few.checkpoints == math.inf > enough.checkpoints
    assert "claims about checkpoints: cannot detect any difference: fewer than 6 problems" in plan_lines(few)


def test_the_detectable_difference_is_found_four_times_in_five():
    pilot = Pilot(true=0.04, noise=3.2, run_sd=0.0, k=1, source="")
    design = EvaluationSize(problems=60, samples=64, seeds=1)
    x = see_checkpoints(design, pilot)
    gaps = np.random.default_rng(0).normal(x, math.sqrt(0.04 + 3.2 / 64), (4000, 60))
    z = gaps.mean(axis=1) / math.sqrt((0.04 + 3.2 / 64) / 60)
    assert np.mean(z > stats.norm.ppf(0.975)) == pytest.approx(0.8, abs=0.02)


def test_a_pilot_of_exact_records():
    a, b = np.array([[0.5, 0.2, 0.0], [0.6, 0.2, 0.0], [0.4, 0.2, 0.0]]), np.full((3, 3), 0.1)
    pilot = pilot_of_exact(a, b, k=1)
    assert pilot.run_sd == pytest.approx(np.std([0.1, 2 / 15, 1 / 15], ddof=1) / math.sqrt(2))
    assert pilot.true == pytest.approx(np.mean([np.var(x - 0.1, ddof=1) for x in a]))
    own = np.mean([p * (1 - p) for p in a.ravel()]) + 0.09
    assert pilot.noise == pytest.approx(own)  # at k = 1 the variance of one coin
    assert "measured over 3 training seeds" in pilot.source
    assert pilot_of_exact(a[0], b[0], k=1).run_sd == 0.01
    with pytest.raises(DataError, match="same problems"):
        pilot_of_exact([0.1], [0.2], 1)


def test_a_pilot_of_counts_tells_the_samples_noise_from_the_problems():
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 4000)
    a, b = rng.binomial(20, p), rng.binomial(20, p)  # one policy twice: all variance is the samples'
    pilot = pilot_of_counts(20, a, b, k=1)
    assert pilot.noise == pytest.approx(2 * np.mean(p * (1 - p)), rel=0.07)
    assert pilot.true < 0.1 * pilot.noise / 20
    twice = pilot_of_counts(20, rng.binomial(20, p), rng.binomial(20, rng.permutation(p)), k=4)
    gaps = [rng.binomial(20, q, 3000) for q in (0.5, 0.2)]
    assert twice.true > 0.05
    assert np.var(pass_at_k(20, gaps[0], 4)) < np.var(pass_at_k(20, gaps[1], 4))


def test_a_pilot_of_unequal_numbers_of_samples_and_of_clusters():
    rng = np.random.default_rng(1)
    p = rng.beta(1, 2, 60)
    a, b = rng.binomial(16, p), rng.binomial(16, rng.permutation(p))
    plain = pilot_of_counts(16, a, b, 4)
    each = pilot_of_counts(np.full(60, 16), a, b, 4, n_b=np.full((1, 60), 16))
    assert (each.true, each.noise, each.source) == (pytest.approx(plain.true), pytest.approx(plain.noise), plain.source)
    more = pilot_of_counts(np.where(np.arange(60) < 30, 16, 32), np.where(np.arange(60) < 30, a, 2 * a), b, 4, n_b=16)
    assert "60 problems and 16 to 32 samples" in more.source and more.noise > 0
    copies = pilot_of_counts(16, np.tile(a, 3), np.tile(b, 3), 4, cluster=np.tile(np.arange(60), 3))
    assert "180 problems in 60 clusters" in copies.source
    v, three = (one.true + one.noise / 16 for one in (plain, copies))
    assert three == pytest.approx(3 * v)  # 180 problems that are 60
    with pytest.raises(DataError, match="one cluster"):
        pilot_of_counts(16, a, b, 4, cluster=np.zeros(60))


def test_what_a_difference_needs():
    pilot = Pilot(true=0.04, noise=1.6, run_sd=0.01, k=8, source="")
    design = EvaluationSize(problems=400, samples=16, seeds=1)
    assert design_needed(design, pilot, 0.05) == (440, 19)  # 2.8016^2 (0.04 + 1.6 / 16) / 0.05^2, 1.6 / (400 / 3139.6 - 0.04)
    line = needed_line(design, pilot, 0.02)
    assert line.endswith("2,748 problems of 16 samples; with 400 problems no number of samples suffices")
    problems, samples = design_needed(design, pilot, 0.045)
    assert samples is not None
    for needed in (EvaluationSize(problems=problems, samples=16, seeds=1), EvaluationSize(problems=400, samples=samples, seeds=1)):
        assert see_checkpoints(needed, pilot) <= 0.045
    assert see_checkpoints(EvaluationSize(problems=problems - 1, samples=16, seeds=1), pilot) > 0.045
    assert see_checkpoints(EvaluationSize(problems=400, samples=samples - 1, seeds=1), pilot) > 0.045
    assert "this design suffices (" in needed_line(design, pilot, 0.1)
    with pytest.raises(ConfigError, match="above 0"):
        design_needed(design, pilot, 0.0)


def test_refusals():
    for bad in ({"problems": 0}, {"samples": 0}, {"seeds": 0}):
        with pytest.raises(ConfigError, match="whole numbers from 1"):
            EvaluationSize(**{"problems": 60, "samples": 256, "seeds": 3} | bad)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        assume(k=1, samples=8, discordant=1.5)
    with pytest.raises(ConfigError, match="above 0"):
        problems_needed(0.0)
    with pytest.raises(ConfigError, match="not negative"):
        Pilot(true=-1.0, noise=0.0, run_sd=0.0, k=1, source="")
