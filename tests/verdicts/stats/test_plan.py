"""Plans: published sizes, the two equations by hand, what to buy next, pilots."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.stats.intervals import OverProblems
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.plan import (
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
from sage_rlvr.verdicts.stats.power import detectable


def test_published_sizes():
    """+0.015 at SD 0.01 takes 7 runs per arm with a known SD. +0.02 at 10 % discordant takes 1,963 problems by normal quantiles,
    and more by the rule that decides."""
    plain = math.ceil(0.1 * ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) / 0.02) ** 2)
    assert plain == 1963 < problems_needed(0.02, assume(k=1, samples=1), 1) < 1.44 * 1.2 * plain
    assert runs_needed(0.015, 0.01, known=True) == 7
    assert runs_needed(0.015, 0.01) == 10
    assert detectable(math.sqrt(2) * 0.01, 10) <= 0.015 < detectable(math.sqrt(2) * 0.01, 9)


@pytest.mark.parametrize("problems", [30, *(pytest.param(n, marks=pytest.mark.slow) for n in (60, 134))])
def test_the_plan_without_a_pilot_is_found_four_times_in_five(problems):
    """0/1 outcomes that differ on 10 % of the problems, or on as many as the difference needs, judged by the interval itself."""
    design = EvaluationSize(problems=problems, samples=1, seeds=1)
    x = see_checkpoints(design, replace(assume(k=1, samples=1, noise_share=0.0), band=1.0))
    differ, rng, many = max(0.1, x), np.random.default_rng(0), 2000
    weights = [(differ + x) / 2, (differ - x) / 2, (1 - differ) / 2, (1 - differ) / 2]
    kinds = rng.choice(4, (many, problems), p=weights)
    found = 0
    for row in kinds:
        moments = OverProblems.of(np.isin(row, (0, 2)), np.isin(row, (1, 2)), shares=True)
        found += float(moments.means[0] - moments.means[1]) > float(moments.reach(0.95)[0])
    assert 0.75 < found / many < 0.88
    assert see_checkpoints(design, assume(k=1, samples=1, noise_share=0.0)) > x  # a band over many k is wider


def test_methods_need_seeds_and_problems():
    pilot = Pilot(true=0.05, noise=12.8, run_sd=0.01, k=256, source="")
    design = EvaluationSize(problems=60, samples=256, seeds=4)
    sd = math.sqrt(2 * 0.01**2 + 12.8 / 256 / 60)
    these = see_methods(design, pilot, fixed=True)
    assert these == pytest.approx(detectable(sd, 4, alpha=0.05 / 5))  # a band over k = 1, 4, 16, 64, 256
    assert see_methods(design, pilot) > math.hypot(these, 0.1)
    assert see_methods(EvaluationSize(problems=60, samples=256, seeds=2), pilot) == math.inf


@pytest.mark.slow
def test_what_to_buy_next():
    problems_help = Pilot(true=0.1, noise=0.0, run_sd=0.02, k=1, source="")
    plan = make_plan(EvaluationSize(problems=60, samples=16, seeds=3), problems_help, run_cost=100)
    assert plan.next_checkpoints[0].what == "120 problems (if there are more of them)"
    assert plan.checkpoints / 2 < plan.next_checkpoints[0].detectable < plan.checkpoints / math.sqrt(2)  # intervals of few are wide
    assert plan.next_checkpoints[1].gain == 0.0  # more samples of exact scores
    assert plan.next_checkpoints[0].cost == 2 * 60 * 16  # one checkpoint an arm
    assert plan.next_methods[0].what == "4 training seeds" and plan.next_methods[-1].gain == 0.0
    assert plan.next_methods[0].cost == 2 * (100 + 60 * 16)
    samples_help = Pilot(true=0.0, noise=10.0, run_sd=0.0, k=1, source="")
    steps = make_plan(EvaluationSize(problems=60, samples=16, seeds=3), samples_help).next_checkpoints
    assert steps[0].detectable == steps[1].detectable or steps[0].gain > steps[1].gain
    one = make_plan(EvaluationSize(problems=60, samples=16, seeds=1), problems_help)
    assert one.methods == math.inf and one.next_methods[0].what == "3 training seeds"
    assert "still nothing" in "\n".join(plan_lines(one))


def test_five_problems_see_nothing():
    few, enough = (make_plan(EvaluationSize(problems=n, samples=64, seeds=3), assume(k=16, samples=64)) for n in (5, 6))
    assert few.checkpoints == math.inf > enough.checkpoints
    assert "claims about checkpoints: cannot detect any difference: fewer than 6 problems" in plan_lines(few)


def test_a_pilot_of_counts_has_the_rule_of_its_own_band():
    """More problems, more samples and a narrower band all see more; the pilot's clusters count, not its problems."""
    rng = np.random.default_rng(3)
    p = rng.beta(1, 2, 60)
    a, b = rng.binomial(16, p), rng.binomial(16, rng.permutation(p))
    pilot = pilot_of_counts(16, a, b, 4)
    size = EvaluationSize(problems=60, samples=16, seeds=1)
    x = see_checkpoints(size, pilot)
    assert pilot.band > 1.05
    assert see_checkpoints(replace(size, problems=240), pilot) < 0.6 * x
    assert see_checkpoints(replace(size, samples=64), pilot) < x
    assert see_checkpoints(size, replace(pilot, band=1.0)) < x
    copies = pilot_of_counts(16, np.tile(a, 3), np.tile(b, 3), 4, cluster=np.tile(np.arange(60), 3))
    assert see_checkpoints(replace(size, problems=180), copies) == pytest.approx(x, rel=0.1)


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
    line = needed_line(design, pilot, 0.02)
    assert line.endswith("with 400 problems no number of samples suffices")
    problems, samples = design_needed(design, pilot, 0.06)
    assert samples is not None
    for needed in (EvaluationSize(problems=problems, samples=16, seeds=1), EvaluationSize(problems=400, samples=samples, seeds=1)):
        assert 0.055 < see_checkpoints(needed, pilot) <= 0.06
    assert "this design suffices (" in needed_line(design, pilot, 0.1)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        design_needed(design, pilot, 0.0)


def test_refusals():
    for bad in ({"problems": 0}, {"samples": 0}, {"seeds": 0}):
        with pytest.raises(ConfigError, match="whole numbers from 1"):
            EvaluationSize(**{"problems": 60, "samples": 256, "seeds": 3} | bad)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        assume(k=1, samples=8, discordant=1.5)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        problems_needed(0.0, assume(k=1, samples=1), 1)
    with pytest.raises(ConfigError, match="not negative"):
        Pilot(true=-1.0, noise=0.0, run_sd=0.0, k=1, source="")
