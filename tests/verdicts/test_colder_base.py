"""The base sampled at several temperatures as a control: what is compared, and whether an arm is called sharpened or more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sage_rlvr.render import Page, report_of
from sage_rlvr.results.details.samples import by_difference
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.runs import write_json_atomic
from sage_rlvr.verdicts import colder, of_temperatures
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.design import BASE, COLDER, Arm, Design, Question
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.sources import Store
from sage_rlvr.verdicts.summary_io import plain, read_summary
from sage_rlvr.verdicts.text.colder import beside_base, between
from sage_rlvr.verdicts.text.rows import answer

N, PROBLEMS, TASK = 64, 60, "countdown_chat"
TEMPERATURES = (1.0, 0.6, 0.3)


def share(t: float) -> np.ndarray:
    """Probability of a right completion of each problem: cooling sharpens an easy half and loses the hard one. Linear in t, so that
    every temperature lies on the line of mixtures of the others."""
    easy = np.arange(PROBLEMS) % 2 == 0
    return np.where(easy, 0.1 + 0.5 * (1 - t), 0.06 * t) * np.linspace(0.5, 1.5, PROBLEMS)


def counts(arm: str, p: np.ndarray, t: float = 1.0, seed: int | None = None) -> SampledMeasurement:
    right = np.random.default_rng(int(100 * t) + len(arm) + 1000 * (seed or 0)).binomial(N, p)
    named: dict[str, Any] = {"arm": arm, "seed": seed, "path": Path(f"{arm}-{t}"), "task": TASK, "temperature": t}
    named["store"] = Store(arm=arm, path=Path(f"{arm}-{t}"), seed=seed)
    floor = Chance("answers", (0.01,) * PROBLEMS)
    named |= {"problems": tuple(map(str, range(PROBLEMS))), "n": N, "identity": {"revision": arm}, "chance": floor}
    return SampledMeasurement(**named, values=right)


def results(**arms: np.ndarray) -> Results:
    questions = [Question(a=name, b=BASE, metric=Metric(k=k)) for k in (N, 1) for name in arms]
    questions += [Question(a=name, b=COLDER, metric=Metric(k=1, at="b best")) for name in arms]
    design = Design(
        arms=tuple(Arm(name=name, key=name) for name in arms), base=BASE, control=next(iter(arms)), seeds=(0,),
        questions=tuple(questions), facts={"evaluate": {"problems": PROBLEMS, "split": "test"}, "runs": []},
    )  # fmt: skip
    rows = [counts(BASE, share(t), t) for t in TEMPERATURES] + [counts(name, p, seed=0) for name, p in arms.items()]
    return Results(design=design, k=N, table=Measurements(tuple(rows)), chances={TASK: rows[0].chance})


def turned(found: Results) -> Results:
    """The base also at a temperature so low that its pass@1 falls again."""
    return replace(found, table=Measurements((counts(BASE, 0.8 * share(0.3), 0.1), *found.table.rows)))


def test_an_arm_that_is_its_base_at_a_lower_temperature_is_only_sharpened() -> None:
    found = results(sharp=share(0.6))
    rows = [row for row in compare(found) if row.why == "colder"]
    assert str(rows[0].metric) == "pass@1, against the other's best temperature"
    assert [(row.metric.k, row.metric.at) for row in rows[1:]] == [(k, "mixture") for k in (8, 16, 32, 64)]
    assert not any(row.outcome == "higher" for row in rows)
    text = answer(compare(found), found)
    assert "Only sharpened, as far as can be told: sharp." in text and "sharp beside T = 0.6 (pass@1" in text
    assert "yes, higher" not in text


def several(seeds: int, **arms: np.ndarray) -> Results:
    """Arms with several training seeds, each the same policy with its own samples."""
    found = results(**arms)
    rows = [counts(name, p, seed=seed) for name, p in arms.items() for seed in range(seeds)]
    return replace(found, table=Measurements((*found.table.where(arm=BASE).rows, *rows)))


@pytest.mark.slow
def test_arms_with_several_training_seeds_are_compared_too() -> None:
    """Interval over training seeds and the base's samples; same rows, same words."""
    found = several(4, sharp=share(0.6), learned=np.full(PROBLEMS, share(0.6).mean()), steep=np.clip(2 * share(0.3), 0, 1))
    rows = [row for row in compare(found) if row.why == "colder"]
    alone = [row for row in compare(results(sharp=share(0.6))) if row.why == "colder"]
    assert [row.metric for row in rows if row.a == "sharp"] == [row.metric for row in alone]
    assert {row.comparison.over for row in rows} == {"training seeds"} and {row.comparison.difference.n for row in rows} == {4}
    overs = {"training seeds and problems", "training seeds and the control's samples"}
    assert {row.comparison.difference.over for row in rows} == overs
    ends = {row.a: row.comparison.outcome for row in rows if row.metric.k == 8}
    assert ends == {"sharp": "tied", "learned": "better", "steep": "better"}
    found = turned(found)
    text = answer(compare(found), found)
    assert "higher at k = 8" in text and "One run of each" not in text
    two = several(2, sharp=share(0.6))
    assert {row.comparison.reason for row in compare(two) if row.why == "colder"} == {"two seeds"}


def test_a_guesser_is_a_rival() -> None:
    """Guesses that are right half of the time on every problem leave no arm above the base at any temperature."""
    found = results(learned=np.full(PROBLEMS, share(0.6).mean()))
    rows = [replace(row, chance=Chance("given", (0.5,) * PROBLEMS)) for row in found.table.rows]  # type: ignore[type-var]
    beaten = replace(found, table=Measurements(tuple(rows)))
    ends = [{row.outcome for row in compare(one) if row.metric.at == "mixture"} for one in (found, beaten)]
    assert "higher" in ends[0] and "higher" not in ends[1] and "lower" in ends[1]


def test_an_arm_below_the_mixtures_of_temperatures_is_below_although_one_temperature_is_as_low() -> None:
    """At T = 0.6 the base keeps a third of what a line from T = 1 to 0.3 has on the hard half."""
    bent = {t: share(t) * np.where(np.arange(PROBLEMS) % 2 == 0, 1, 1 if t != 0.6 else 1 / 3) for t in TEMPERATURES}
    found = results(bent=bent[0.6])
    base = [counts(BASE, p, t) for t, p in bent.items()]
    found = replace(found, table=Measurements((*base, *found.table.where(arm="bent").rows)))
    ends = {row.metric.k: row.outcome for row in compare(found) if row.metric.at == "mixture"}
    assert ends[32] == "lower"


def test_an_arm_above_every_temperature_says_at_which_k() -> None:
    found = turned(results(learned=np.full(PROBLEMS, share(0.6).mean())))
    text = answer(compare(found), found)
    assert "lower temperature? Yes, higher at k = 8, 16" in text and ": learned." in text and "nly sharpened" not in text
    assert "learned beside T = 0.6 (" in text


def test_beyond_the_best_pass1_of_the_base_pass_at_k_is_held_against_that_temperature() -> None:
    found = results(steep=np.clip(2 * share(0.3), 0, 1))
    rows = {(row.metric.k, row.metric.at): row for row in compare(found) if row.why == "colder"}
    assert set(rows) == {(k, "b best") for k in (1, 8, 16, 32, 64)}
    best = found.table.where(arm=BASE, task=TASK, temperature=0.3).scores()
    assert best is not None
    for (k, _), row in rows.items():
        assert row.comparison.mean_b == pytest.approx(best.passes([k]).mean())
    assert rows[1, "b best"].outcome == "higher"


def test_an_arm_with_less_of_both_than_its_base_is_below() -> None:
    found = results(worse=share(1.0) / 5)
    text = answer(compare(found), found)
    assert "lower temperature? No, lower at k = 8, 16" in text and ": worse." in text


def test_an_untrained_arm_is_not_called_sharpened() -> None:
    found = results(untrained=share(1.0))
    base = (counts(BASE, share(1.0)), counts(BASE, 0.8 * share(1.0), 0.6))  # cooling gains nothing
    found = replace(found, table=Measurements((*base, *found.table.where(arm="untrained").rows)))
    text = answer(compare(found), found)
    assert "No difference from the base at the same temperature can be told: untrained." in text and "sharpened" not in text


def test_a_control_of_compare_at_several_temperatures_is_one_too() -> None:
    design = Design(arms=(Arm(name="start", key="start"), Arm(name="trained", key="trained")), control="start", every=True)
    sampled = (*(counts("start", share(t), t) for t in TEMPERATURES), counts("trained", share(0.6)))
    found = Results(design=design, k=N, table=Measurements(sampled), chances={TASK: sampled[0].chance})
    rows = [row for row in compare(found) if row.why == "colder"]
    assert {row.b for row in rows} == {"start at any temperature"} and {row.family for row in rows} == {"exploratory"}
    text = answer(compare(found), found, findings_of(found).verdicts)
    question = "Does it do more than start at a lower temperature?"
    assert f"{question} trained: only sharpened, as far as can be told (start at T = " in text


def test_a_base_at_one_temperature_is_no_such_control() -> None:
    found = results(sharp=share(0.6))
    found = replace(found, table=found.table.where(temperature=1.0))
    assert not any(row.why == "colder" for row in compare(found))
    assert "lower temperature" not in answer(compare(found), found)


def test_a_stored_summary_has_the_same_answer(tmp_path: Path) -> None:
    found = results(sharp=share(0.6))
    rows = compare(found)
    write_json_atomic(tmp_path / "summary.json", plain(summary_of(found, findings_of(found))))
    again = read_results(tmp_path)
    assert answer(compare(again), again) == answer(rows, found)
    assert read_summary(tmp_path / "summary.json")["sampled"][0]["label"] == "base"


def test_an_arm_beside_a_hotter_base_is_not_called_sharpened() -> None:
    found = results(flat=share(0.6))
    base = (counts(BASE, share(0.6), 1.3), counts(BASE, share(0.3)))
    found = replace(found, table=Measurements((*base, *found.table.where(arm="flat").rows)))
    row = next(row for row in compare(found) if row.why == "colder")
    assert colder.nearest_colder(found, row)[0] == 1.3
    tied = [replace(row, comparison=replace(row.comparison, outcome="tied", mde=0.1), metric=Metric(k=k)) for k in (8, N)]
    (one,) = colder.colder_base_comparisons(tied, found)
    assert one.finding == "flattened" and "higher temperature" in beside_base(one) and "sharpened" not in beside_base(one)


def test_the_largest_k_is_shown_where_the_base_has_more_samples_than_are_read() -> None:
    found = replace(results(sharp=share(0.6)), k=32)
    (one,) = colder.colder_base_comparisons(compare(found), found)
    assert list(one.passes) == [1, 8, 32]


def test_colder_samples_of_the_arm_do_not_move_the_nearest_temperature_of_a_summary(tmp_path: Path) -> None:
    found = results(sharp=share(0.6))
    own, base = found.table.where(arm="sharp").rows, found.table.where(arm=BASE).rows
    found = replace(found, table=Measurements((*base, counts("sharp", share(0.3), 0.5, seed=0), *own)))
    write_json_atomic(tmp_path / "summary.json", plain(summary_of(found, findings_of(found))))
    again = read_results(tmp_path)
    assert [one.temperature for one in colder.colder_base_comparisons(compare(again), again)] == [0.6]


@pytest.mark.slow
def test_the_page_draws_the_base_as_a_line_of_temperatures_and_its_other_curves_thin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(sharp=share(0.6))
    monkeypatch.setattr("sage_rlvr.results.details.samples.sample_sets", lambda *a: ())
    values = report_of(found)
    frontier = values["frontier"]
    assert [p["temperature"] for p in frontier["curves"]["base"]] == list(TEMPERATURES) and list(frontier["arms"]) == ["sharp"]
    assert frontier["chance"] == pytest.approx(1 - 0.99**64) and frontier["k"] == 64
    page = Page(values)
    assert values["colder"] == ["base at T = 0.6", "base at T = 0.3"]
    assert [page.looks[name].marker for name in values["colder"]] == ["", ""] and page.looks["base"].marker
    text = page.html()
    assert {"frontier", f"passk-{TASK.replace('_', '-')}"} <= set(page.figures) and text.count("<svg") >= 3


def test_problems_on_which_policies_differ_come_first() -> None:
    def one(*rights: bool) -> Any:
        owners = ("alike", "alike", "apart", "apart")
        return SimpleNamespace(owners=owners, is_right=np.array(rights))

    assert by_difference([one(True, False, False, False), one(False, True, True, True)]) == ["apart", "alike"]
    assert by_difference([one(True, False, False, False)]) == []


def test_what_is_significant_before_correction_is_not_called_the_same() -> None:
    """At the same pass@k for k > 1, a higher pass@1 than at every sampled temperature: the base does not do the same."""
    found = results(sharp=share(0.6), other=share(0.6))
    rows = [row for row in compare(found) if row.why == "colder" and row.a == "sharp"]
    assert [one.finding for one in colder.colder_base_comparisons(rows, found)] == ["sharpened"]
    gap = replace(rows[0].comparison.difference, value=0.05, low=0.01, high=0.09)
    rows[0] = replace(rows[0], comparison=replace(rows[0].comparison, difference=gap, p=0.03, outcome="better"), adjusted=0.3)
    (one,) = colder.colder_base_comparisons(rows, found)
    assert one.finding == "unknown" and "does the same" not in beside_base(one)
    assert beside_base(one).startswith("sharp: cannot be told (the base at T = 0.6 has the nearest pass@1: ")
    assert "; higher before correction at k = 1; detectable" in beside_base(one)


def findings_at(found: Results) -> dict[str, colder.ColderBaseComparison]:
    return {one.arm: one for one in colder.colder_base_comparisons(compare(found), found)}


@pytest.mark.slow
def test_no_yes_while_the_base_has_its_largest_pass1_at_its_lowest_temperature(tmp_path: Path) -> None:
    """The arm stays the same; a temperature at which pass@1 falls again, or 0, below which there is none, makes it a yes."""
    found = results(learned=np.full(PROBLEMS, share(0.6).mean()), steep=np.clip(2 * share(0.3), 0, 1))
    assert {one.finding for one in findings_at(found).values()} == {"too hot"}
    assert "T = 0.15" in beside_base(findings_at(found)["learned"])
    write_json_atomic(tmp_path / "summary.json", plain(summary_of(found, findings_of(found))))
    again = read_results(tmp_path)
    assert [*map(beside_base, findings_at(again).values())] == [*map(beside_base, findings_at(found).values())]
    assert {one.finding for one in findings_at(turned(found)).values()} == {"above"}
    greedy = replace(found, table=Measurements((counts(BASE, share(0.25), 0.0), *found.table.rows)))
    assert findings_at(greedy)["learned"].finding == "above"


@pytest.mark.parametrize(("coldest", "following"), [(1.0, 0.5), (0.4, 0.2), (0.3, 0.15), (0.15, 0.075), (0.1, 0.05), (0.07, 0.05)])
def test_the_next_temperature_is_half_and_never_greedy(coldest: float, following: float) -> None:
    """`eval` refuses several samples at T = 0."""
    assert colder.below(coldest) == following


def test_only_a_fall_that_is_told_from_noise_says_that_no_lower_temperature_has_more() -> None:
    """64 samples of 60 problems: 60 right samples fewer at the lowest temperature are noise (beside a standard error of
    sqrt(60 * 2 * 64 / 4) = 44, p = .086), 120 are not (p = .003, below .05 / 2). None is worth sampling below .05."""
    half = np.full(60, 32)

    def rises(fewer: int, coldest: float = 0.1) -> bool:
        return of_temperatures.may_rise({1.0: (64, half // 2), 0.2: (64, half), coldest: (64, half - fewer)})

    assert [rises(fewer) for fewer in (-2, 0, 1, 2)] == [True, True, True, False]
    assert not rises(-2, 0.05) and not rises(-2, 0.0)


def test_many_temperatures_make_no_fall_of_noise() -> None:
    """The largest of six equal temperatures lies above the lowest by chance: 90 right samples (p = .02) are no fall among six."""
    lowest, warmer = np.full(60, 32), np.full(60, 33)
    warmer[:30] += 1
    base = {t: (64, lowest) for t in (0.1, 0.3, 0.4, 0.5, 0.6, 1.0)}
    assert of_temperatures.may_rise(base | {0.2: (64, warmer)})
    assert not of_temperatures.may_rise({0.1: (64, lowest), 0.2: (64, warmer)})


@pytest.mark.parametrize(("coldest", "said"), [(0.2, "too hot"), (0.05, "above")])
def test_a_rise_within_the_noise_of_few_samples_is_no_best_of_the_base(coldest: float, said: str) -> None:
    """40 problems, 8 samples: the base has 4 right ones of each at all temperatures but 13 more in all at the lowest, which is
    noise; the arm has 7."""
    flat, most = np.full(40, 4), np.full(40, 4)
    most[:13] += 1
    rows = [replace(row, problems=row.problems[:40], n=8, chance=None) for row in results(learned=share(1.0)).table.rows]
    base = [replace(rows[0], temperature=t, values=most if t == coldest else flat) for t in (1.0, 0.5, coldest)]
    (found,) = findings_at(replace(
        results(learned=share(1.0)), k=8, chances={}, table=Measurements((*base, replace(rows[-1], values=np.full(40, 7)))),
    )).values()  # fmt: skip
    assert found.finding == said


def test_an_arm_is_beyond_the_base_only_if_that_is_shown() -> None:
    """Of 8 completions the base solves 6 of half of the problems and none of the others at T = 0.5, 5 and 1 at T = 1. An arm with
    one right completion more than T = 0.5 is held against the mixtures at the pass@1 of T = 0.5, .375."""
    half = np.arange(60) < 30
    base = {1.0: np.where(half, 5, 1), 0.5: np.where(half, 6, 0), 0.3: np.where(half, 4, 0)}
    more = base[0.5].copy()
    more[-1] = 1

    def sample(arm: str, right: np.ndarray, t: float) -> SampledMeasurement:
        return replace(counts(arm, share(1.0), t, seed=None if arm == BASE else 0), values=right, n=8)

    found = replace(results(more=share(1.0)), k=8)
    rows = (*(sample(BASE, right, t) for t, right in base.items()), sample("more", more, 1.0))
    one, eight = (row for row in compare(replace(found, table=Measurements(rows))) if row.why == "colder")
    assert one.comparison.difference.value == pytest.approx(1 / 480) and one.comparison.outcome != "better"
    assert (eight.metric.at, eight.metric.k) == ("mixture", 8) and eight.comparison.outcome != "better"


def line(p: dict[float, np.ndarray], **arms: np.ndarray) -> Results:
    """The base, its mixtures with rl by the share of rl (1: rl itself), and further arms, each sampled once at T = 1."""
    found = results(rl=p[1.0], **arms)
    design = replace(found.design, arms=(*found.design.arms, *(Arm(name=f"m{a:g}", key=f"m{a:g}") for a in p if a < 1)))
    mixture = {"policy": "rl", "base": BASE, "layers": "all"}
    mixed = [replace(counts(f"m{a:g}", q), mixture={**mixture, "share": a}) for a, q in p.items() if a < 1]
    rows = (counts(BASE, share(1.0)), *mixed, *(row for row in found.table.rows if row.arm != BASE))
    return replace(found, design=design, table=Measurements(rows))


def mixtures(lift: float = 0.0) -> dict[float, np.ndarray]:
    """Mixtures as good as colder bases, half way better by `lift`, and the policy at their end."""
    shares = {a: share(1 - 0.6 * a) for a in (0.25, 0.5, 0.75, 1.0)}
    return shares | {0.5: np.clip(shares[0.5] + lift, 0, 1)}


@pytest.mark.slow
def test_an_arm_is_held_against_the_weights_between_the_base_and_a_policy() -> None:
    """On the line: no yes. Above it: yes, since the policy at its end is on it. A policy below its own mixtures is told so."""
    found = line(mixtures(), on=share(0.7), above=np.full(PROBLEMS, share(0.45).mean()))
    rows = compare(found)
    ends = {(row.a, row.metric.k): row.outcome for row in rows if row.why == "weights"}
    assert {arm for arm, _ in ends} == {"rl", "on", "above"}
    assert "higher" in {end for (arm, _), end in ends.items() if arm == "above"}
    assert "higher" not in {end for (arm, _), end in ends.items() if arm == "on"}
    text = between(rows, found)
    assert text.startswith("Does it do more than weights between base and rl, without training? ")
    assert "above: yes, higher at k = " in text and "on: yes" not in text and "rl: yes" not in text
    below = line(mixtures(0.2))
    assert "rl: no, lower at k = " in between(compare(below), below)
    other = replace(below, table=Measurements(tuple(
        replace(row, mixture={**row.mixture, "base": "another"}) if row.mixture else row for row in below.table.rows
    )))  # fmt: skip
    assert not [row for row in compare(other) if row.why == "weights"]  # mixtures of another base


@pytest.mark.slow
def test_mixtures_of_two_policies_that_are_not_there_and_a_base_drawn_twice() -> None:
    found = line(mixtures(), on=share(0.7))
    kept = [row for row in found.table.rows if row.arm != "rl"]
    more = [replace(row, arm=f"{row.arm} 2", mixture={**row.mixture, "policy": "rl2"}) for row in kept if row.mixture]
    again = replace(counts("again", share(1.0)), identity={"revision": BASE})
    both = replace(found, table=Measurements((*kept, *more, again)))
    names = {row.b for row in compare(both) if row.why == "weights" and row.a == "on"}
    assert names == {"weights between base and policy rl", "weights between base and policy rl2"}
    assert between(compare(both), both).count("without training? on: ") == 2


def test_a_policy_above_its_mixtures_waits_for_a_larger_share() -> None:
    """The pass@1 of the mixtures still rises at the largest share: nearer to the policy they may reach it."""
    found = line({0.25: share(0.8), 0.5: share(0.4), 1.0: np.full(PROBLEMS, share(0.45).mean())})
    text = between(compare(found), found)
    assert "rl: cannot be told, since their pass@1 is not shown to fall at the largest share, 0.5 (higher so far at k = " in text


@pytest.mark.slow
def test_an_arm_on_the_line_of_mixtures_is_seldom_above_it() -> None:
    told = 0
    for number in range(60):
        found = line(mixtures(), on=share(0.7))
        rng = np.random.default_rng(number)
        rows = [replace(row, values=rng.binomial(N, row.values / N)) for row in found.table.rows]
        again = replace(found, table=Measurements(tuple(rows)))
        told += "on: yes" in between(compare(again), again)
    assert told <= 8  # counts drawn from counts are wider than the line's own
