"""Independence of samples: what each check finds, by hand where a number can be computed; independent draws raise nothing."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.passk import pass_at_k
from sage_rlvr.verdicts.stats.samples import independence
from sage_rlvr.verdicts.stats.samples.independence import (
    MULTIPLES,
    _Coded,
    _Model,
    _pairs,
    _split_of_twice,
    check_counts,
    check_multiples,
    check_pair,
    check_samples,
)

WINDOW_PLACES = [0, 1, 2, 3, 4, 5, 6, 7, 15, 23, 31]  # of four groups of eight: the first, and the last answer of each other


def windows(problems: int = 60, answers: int = 4, seed: int = 0, broken: float = 0.0) -> np.ndarray:
    """The structure of remax-rl's groups: four requests whose seeds step by one, answer i of a request with seed s drawn with
    s + i, so that answer j + 1 of a group is answer j of the next. (problems, 32)"""
    rng = np.random.default_rng(seed)
    stream = rng.integers(answers, size=(problems, 11))
    rows = np.stack([stream[:, g + j] for g in range(4) for j in range(8)], axis=1)
    return np.where(rng.random(rows.shape) < broken, rng.integers(answers, size=rows.shape), rows)


def kinds(found) -> list[str]:
    return [one.kind for one in getattr(found, "findings", found)]


# ---- copies


@pytest.mark.parametrize("group", [8, None])
@pytest.mark.parametrize("broken", [0.0, 0.02])
def test_shifted_windows_of_four_groups_of_eight_are_eleven_answers(group, broken):
    rows = windows(broken=broken)
    found = check_samples(rows.tolist(), group=group)
    (one,) = found.findings
    assert one.kind == "copies" and one.certain and one.effective_n == 11
    assert (one.evidence["group"], one.evidence["lag"]) == (8, 7)
    assert one.words.startswith("answer j + 1 of a group of 8 is answer j of the next group")
    assert "32 answers are 11 independent ones" in one.words
    assert np.flatnonzero(found.kept[0]).tolist() == WINDOW_PLACES and set(found.effective.tolist()) == {11}


def test_counts_are_of_the_independent_samples():
    rows = windows(problems=40)
    correct = rows == 0
    n, c = check_samples(rows.tolist()).counts(list(correct))
    assert n.tolist() == [11] * 40 and c.tolist() == correct[:, WINDOW_PLACES].sum(axis=1).tolist()


def test_a_file_that_is_nearly_all_wrong_answers_is_enough_where_one_in_eight_problems_tells():
    rows = windows(problems=120, answers=2).tolist()
    silent = [row if i % 8 == 0 else [None] * 32 for i, row in enumerate(rows)]
    assert set(check_samples(silent).effective.tolist()) == {11}


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda x: np.concatenate([x, x], axis=1), range(8)),  # the same group twice
        (lambda x: np.repeat(x, 2, axis=1), range(0, 16, 2)),  # each answer twice in a row
        (lambda x: np.concatenate([x, x[:, ::-1]], axis=1), range(8)),  # backwards
    ],
)
def test_other_copies_at_fixed_places(make, kept):
    found = check_samples(make(np.random.default_rng(0).integers(12, size=(60, 8))).tolist())
    assert kinds(found)[0] == "copies" and np.flatnonzero(found.kept[0]).tolist() == list(kept)


def test_groups_with_the_same_answers_in_another_order():
    rng = np.random.default_rng(0)
    group = rng.integers(9, size=(80, 8))
    rows = np.concatenate([group, rng.permuted(group, axis=1), rng.integers(9, size=(80, 8))], axis=1)
    found = check_samples(rows.tolist())
    assert kinds(found) == ["equal groups"] and found.findings[0].effective_n == 16
    assert np.flatnonzero(found.kept[0]).tolist() == [*range(8), *range(16, 24)]


@pytest.mark.parametrize("times", [2, 3, 4])
def test_every_text_several_times_in_any_order(times):
    rng = np.random.default_rng(0)
    rows = rng.permuted(np.repeat(rng.integers(2**40, size=(30, 6)), times, axis=1), axis=1)
    found = check_samples(rows.tolist())
    assert kinds(found) == ["multiples"] and found.findings[0].evidence["times"] == times
    assert set(found.effective.tolist()) == {6}


def test_the_bet_on_a_pair_by_hand():
    """Answers A A B: the second is A with chance 1/2 (one A and one B are open), the third is B for certain."""
    log_e = _pairs(_Coded.of(["AAB"])).log_e
    eps = np.array(independence._DOUBT)
    assert np.exp(log_e[:, 0, 1]) == pytest.approx((1 - eps) / 0.5 + eps)
    assert log_e[:, :2, 2] == pytest.approx(np.zeros((2, 2)))
    assert np.exp(_pairs(_Coded.of(["ABA"])).log_e[:, 0, 1]) == pytest.approx(eps)  # a miss


@pytest.mark.parametrize("answers", ["AAB", "AABBC", "AAABC"])
def test_no_bet_gains_on_average_over_all_orders(answers):
    """E of every pair and of every model is 1 on average over the orders of a multiset: exchangeability is all that is needed."""
    orders = list(itertools.permutations(answers))
    values = np.exp(np.array([_pairs(_Coded.of([order])).log_e for order in orders]))
    n = len(answers)
    assert values.mean(axis=0) == pytest.approx(np.ones_like(values[0]))
    for model in (_Model(0, 1), _Model(2, 1), _Model(2, 3)):
        t = model.first(n)
        assert np.prod(values[:, :, t, t + model.lag], axis=2).mean(axis=0) == pytest.approx(1.0)


def test_multiples_of_binomial_counts_are_no_more_frequent_than_the_table_has_them():
    p = np.linspace(0.001, 0.5, 400)[:, None]
    for n in (*range(1, 40), 64, 128, 256, 1000):
        pmf = stats.binom.pmf(np.arange(n + 1), n, p)
        for r, bound in MULTIPLES.items():
            assert (pmf[:, r::r].sum(axis=1) / (1 - pmf[:, 0])).max() <= bound + 1e-9, (r, n)


# ---- other findings


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("some", [20, 40])
def test_texts_twice_on_some_problems(some, side_by_side):
    """Also side by side, which looks sorted and is not."""
    rng = np.random.default_rng(0)
    rows = rng.integers(10**6, size=(40, 8))
    twice = [np.repeat(row, 2) if i < some else row for i, row in enumerate(rows)]
    found = check_samples([(row if side_by_side else rng.permutation(row)).tolist() for row in twice], texts=True)
    assert kinds(found) in (["multiples"], ["copies"]) and found.effective.tolist() == [8] * 40


@pytest.mark.parametrize("times", [2, 4])
def test_outcomes_several_times_in_a_row_leave_all_independent_ones(times):
    rng = np.random.default_rng(0)
    own = (rng.random((40, 8)) < rng.uniform(0.1, 0.9, (40, 1))).astype(int)
    found = check_samples(np.repeat(own, times, axis=1).tolist())
    assert kinds(found) == ["copies"] and found.effective.tolist() == [8] * 40
    assert found.findings[0].words.startswith(f"every answer occurs {times} times in a row")


@pytest.mark.parametrize("times", [2, 4])
def test_counts_of_samples_that_occur_several_times(times):
    rng = np.random.default_rng(0)
    c = rng.binomial(8, rng.uniform(0.1, 0.9, 40))
    (one,) = check_multiples(np.full(40, 8 * times), c * times)
    assert (one.kind, one.evidence["times"]) == ("counts in multiples", times)
    assert one.evidence["multiples"] == sum((c > 0) & (c < 8))
    assert check_multiples(np.full(40, 8), c) == () and check_multiples(np.full(40, 16), np.full(40, 16)) == ()


@pytest.mark.parametrize("r", [2, 3, 4, 8])
def test_binomial_counts_inside_are_multiples_no_more_often_than_the_table_has_them(r):
    p = np.linspace(0.005, 0.995, 199)[:, None]
    for n in r * np.arange(2, 40):
        inner = stats.binom.pmf(np.arange(1, n), n, p)
        assert (inner[:, r - 1 :: r].sum(axis=1) <= MULTIPLES[r] * inner.sum(axis=1) + 1e-12).all()


def test_sorted_answers_are_named_and_no_copies_are_looked_for():
    rows = np.sort(np.random.default_rng(0).integers(4, size=(60, 16)), axis=1)
    found = check_samples(rows.tolist())
    assert kinds(found) == ["sorted"] and found.kept.all() and not found.findings[0].certain
    correct = np.sort(np.random.default_rng(1).integers(2, size=(60, 16)), axis=1)[:, ::-1]
    assert kinds(check_samples(np.arange(960).reshape(60, 16).tolist(), correct=list(correct))) == ["sorted"]


def test_noise_that_all_prompts_share():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (200, 1)) + rng.normal(0, 1, (1, 32))
    correct = (rng.random((200, 32)) < 1 / (1 + np.exp(-logits))).astype(int)
    texts = rng.integers(2**40, size=correct.shape).tolist()
    assert kinds(check_samples(texts, correct=list(correct))) == ["shared noise"]
    apart = rng.permuted(correct, axis=1)
    assert kinds(check_samples(texts, correct=list(apart))) == []


def test_greedy_texts_called_samples():
    rows = [[f"text {i}"] * 8 for i in range(30)]
    found = check_samples(rows, texts=True)
    assert kinds(found) == ["greedy"] and found.findings[0].effective_n == 1 and found.kept.all()
    assert "all texts are equal on 30 of 30 problems" in found.findings[0].words
    assert kinds(check_samples(rows)) == []  # answers of easy problems are equal
    assert kinds(check_samples(rows[:2], texts=True)) == []


def test_problems_twice_become_clusters():
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    found = check_samples(rows, ids=["a", "b", "c"], prompts=["1 + 1?", "2 + 2?", "1 + 1?"])
    assert kinds(found) == ["problems twice"] and found.cluster.tolist() == [0, 1, 0]
    assert "3 problems are 2 different ones: 1 have the prompt of an earlier one (first: '1 + 1?')" in found.findings[0].words
    assert check_samples(rows, ids=["a", "b", "c"]).cluster is None


def test_cut_answers_and_sampling_seeds_by_hand():
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 8]]
    (found,) = check_samples(rows, cut=[[0, 0, 1], [0, 0, 0], [0, 1, 0]]).findings
    assert found.kind == "cut" and "2 of 9 answers (22.2 %)" in found.words
    assert check_samples(rows, cut=[[0, 0, 0]] * 3).findings == ()
    twice = check_samples(rows, sampling_seeds=[[1, 2, 3], [4, 4, 5], [6, 7, 7]])
    assert kinds(twice) == ["copies"] and twice.effective.tolist() == [3, 3, 2]  # seed 4 gave two answers, 7 one twice
    assert kinds(check_samples(rows, sampling_seeds=[[1, 2, 3]] * 3)) == ["shared seeds"]


# ---- two files


def test_two_files_that_share_their_samples_or_their_seeds():
    rng = np.random.default_rng(0)
    a, b = rng.integers(5, size=(2, 60, 16))
    assert kinds(check_pair(a.tolist(), b.tolist())) == []
    assert kinds(check_pair(a.tolist(), a.tolist())) == ["same samples"]
    assert kinds(check_pair(a.tolist(), rng.permuted(a, axis=1).tolist())) == ["same samples"]
    partly = np.where(rng.random(a.shape) < 0.4, a, b)
    assert kinds(check_pair(a.tolist(), partly.tolist())) == ["same noise"]
    assert kinds(check_pair(a.tolist(), partly[:, :9].tolist())) == ["same noise"]


@pytest.mark.parametrize("other", ["first half", "one dropped", "joined", "in some problems"])
def test_samples_of_one_file_among_others_of_the_second(other):
    """Long texts, which hardly ever occur twice."""
    rng = np.random.default_rng(0)
    a, own = rng.integers(10**6, size=(40, 8)), rng.integers(10**6, size=(40, 8))
    b = {
        "first half": np.concatenate([a[:, :4], own[:, :4]], axis=1), "one dropped": a[:, [0, 1, 2, 4, 5, 6, 7]],
        "joined": np.concatenate([own, a], axis=1), "in some problems": np.concatenate([a[:12], own[12:]]),
    }[other]  # fmt: skip
    (found,) = check_pair(a.tolist(), b.tolist())
    assert found.kind == "same samples" and check_pair(a.tolist(), own.tolist()) == ()
    assert kinds(check_pair(b.tolist(), a.tolist())) == ["same samples"]


def test_texts_of_shared_sampling_seeds_are_no_copies():
    """Two policies under the same seeds say the same now and then, at the same place; also when one file has fewer samples."""
    rng = np.random.default_rng(0)
    a = rng.integers(10**6, size=(60, 8))
    b = np.where(rng.random(a.shape) < 0.5, a, rng.integers(10**6, size=a.shape))
    for n in (8, 6):
        assert "same samples" not in kinds(check_pair(a.tolist(), b[:, :n].tolist()))


@pytest.mark.slow
@pytest.mark.parametrize(("p", "q"), [
    ([0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]), ([0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]),
    ([0.05, 0.45, 0.45, 0.05], [0.4, 0.1, 0.4, 0.1]),
])  # fmt: skip
def test_answers_that_stand_once_in_each_file_gain_nothing_for_any_two_policies(p, q):
    """The expectation over all draws of 4 and 3 samples."""
    total = 0.0
    for row in itertools.product(range(4), repeat=7):
        codes = np.unique(row, return_inverse=True)[1]
        hit, log_p, _, _ = _split_of_twice(codes, 4)
        e = np.exp(independence._bet(np.array([hit]), np.array([log_p]), 0.02))
        total += e * np.prod([p[x] for x in row[:4]]) * np.prod([q[x] for x in row[4:]])
    assert total <= 1 + 1e-9


def test_two_files_of_counts():
    """Equal counts by hand: n = 2, c = 1 twice has chance C(2, 1)^2 / C(4, 2) = 2/3, and E = (1 - eps) 3/2 + eps a problem."""
    (found,) = check_counts(2, [1] * 40, [1] * 40)
    eps = np.array(independence._DOUBT)
    assert found.kind == "same samples"
    assert found.evidence["log10_e"] == pytest.approx(np.log10(np.mean(((1 - eps) * 1.5 + eps) ** 40)))
    rng = np.random.default_rng(0)
    a, b = rng.binomial(16, rng.beta(0.5, 1, 200), (2, 200))
    assert check_counts(16, a, b) == () and kinds(check_counts(16, a, a)) == ["same samples"]
    assert check_counts(16, [16] * 500, [16] * 500) == () == check_counts(16, [0] * 500, [0] * 500)


def test_sorted_files_and_copies_share_no_noise():
    rng = np.random.default_rng(0)
    a, b = np.sort(rng.integers(4, size=(2, 200, 16)), axis=2)
    assert check_pair(a.tolist(), b.tolist()) == ()
    a, b = windows(300, seed=1).tolist(), windows(300, seed=2).tolist()
    kept = tuple(check_samples(x).kept for x in (a, b))
    assert check_pair(a, b, kept=kept) == ()


def test_counts_alone_cannot_be_called_the_same_samples_where_all_answers_are_equal():
    assert check_pair([[1] * 8] * 50, [[1] * 8] * 50) == ()


# ---- laws


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_names_of_answers_and_order_of_problems_do_not_matter(seed, problems, n, answers):
    rng = np.random.default_rng(seed)
    rows = rng.integers(answers, size=(problems, n)).tolist()
    found, named = check_samples(rows), check_samples([[f"answer {x}" for x in row] for row in rows])
    assert found.findings == named.findings and np.array_equal(found.kept, named.kept)
    back = check_samples(rows[::-1])
    assert kinds(back) == kinds(found) and np.array_equal(back.kept[::-1], found.kept)
    assert found.kept[:, 0].all() and (found.effective <= found.n).all()


@given(st.integers(0, 10_000), st.lists(st.integers(1, 12), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_unequal_numbers_of_samples_are_read(seed, sizes):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(3, size=n).tolist() for n in sizes]
    found = check_samples(rows, correct=[np.array(row) == 0 for row in rows], texts=True)
    n, c = found.counts([np.array(row) == 0 for row in rows])
    assert found.n.tolist() == sizes and (c <= n).all() and (n <= found.n).all()


def test_refusals():
    with pytest.raises(DataError, match="no problems"):
        check_samples([])
    with pytest.raises(DataError, match=r"correct\[0\] holds 2"):
        check_samples([[1, 2]], correct=[[2, 1]])
    with pytest.raises(DataError, match="one outcome a sample"):
        check_samples([[1, 2]], correct=[[1]])
    with pytest.raises(DataError, match="1 and 2 problems"):
        check_pair([[1]], [[1], [2]])
    with pytest.raises(DataError, match="3 and 2 problems"):
        check_counts(4, [1, 2, 3], [1, 2])
    for name in ("ids", "prompts", "cut"):
        with pytest.raises(DataError, match=f"{name} has 1 entries for 2 problems"):
            check_samples([[1, 2], [3, 4]], **{name: [[0, 0]]})


@pytest.mark.slow
def test_a_thousand_problems_of_128_texts_take_less_than_two_seconds():
    rows = np.random.default_rng(0).zipf(1.5, (1000, 128)).astype(str).tolist()
    start = time.process_time()
    assert kinds(check_samples(rows)) == []
    assert time.process_time() - start < 2


# ---- published samples


def remax_file() -> Path | None:
    spec = importlib.util.find_spec("remax")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = folder and folder / "_assets" / "evidence" / "verified_samples_completed_cohort.jsonl.gz"
    return found if found and found.is_file() else None


@pytest.mark.slow
@pytest.mark.skipif(remax_file() is None, reason="remax-rl 0.1.1 is not installed (pip install --no-deps remax-rl==0.1.1)")
def test_every_released_run_of_remax_has_eleven_answers_of_32():
    """The runs' own samples before and after training. Not to be found where at most two problems have more than one answer."""
    path = remax_file()
    assert path is not None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)  # the manifest
        runs = [json.loads(line) for line in lines]
    called, telling = Counter(), Counter()
    for run in runs:
        points = [point["prompts"].values() for point in run["checkpoints"].values() if point and point.get("prompts")]
        rows = [[key for group in prompt["draws"] for key in group] for point in points for prompt in point]
        if not rows:
            continue
        tell = sum(1 < len(set(row)) < len(row) for row in rows)
        size = "some" if tell > 2 else "few"
        telling[size] += 1
        called[size, tuple(sorted(set(check_samples(rows).effective.tolist())))] += 1
    assert called["some", (11,)] == telling["some"]
    assert sum(telling.values()) == 474 and called["some", (11,)] + called["few", (11,)] == 432


def test_pass_at_eight_over_the_groups_and_over_the_independent_samples_have_one_expectation():
    rows = windows(problems=4000)
    correct = rows == 0
    groups = correct.reshape(-1, 4, 8).any(axis=2).mean()
    n, c = check_samples(rows.tolist()).counts(list(correct))
    assert groups == pytest.approx(1 - 0.75**8, abs=0.01)
    assert np.mean(pass_at_k(n, c, 8)) == pytest.approx(1 - 0.75**8, abs=0.01)


# ---- serial dependence


def _drawn(rng, problems, n, size=1, repeat=0.0, copied=0.0):
    """Answers 0 (right) and others; p of a request's samples is drawn anew (correlation .5) where size > 1."""
    p = rng.beta(0.65, 0.85, problems)
    own = rng.beta(p[:, None], 1 - p[:, None], (problems, n // size)).repeat(size, axis=1) if size > 1 else p[:, None]
    answers = np.where(rng.random((problems, n)) < own, 0, rng.integers(1, 2**40, (problems, n)))
    again = rng.random((problems, n)) < repeat
    for t in range(1, n):
        answers[:, t] = np.where(again[:, t], answers[:, t - 1], answers[:, t])
    half = rng.random(problems) < copied
    answers[half, n // 2 :] = answers[half, : n // 2]
    return answers


@pytest.mark.parametrize("how", [{"size": 8}, {"repeat": 0.3}, {"copied": 0.3}])
@pytest.mark.parametrize("outcomes_only", [False, True])
def test_samples_that_resemble_earlier_ones_are_found(how, outcomes_only):
    for seed in range(3):
        answers = _drawn(np.random.default_rng(seed), 100, 32, **how)
        right = (answers == 0).astype(int)
        kinds = {one.kind for one in check_samples((right if outcomes_only else answers).tolist(), correct=list(right)).findings}
        assert kinds & {"serial", "equal groups"}, (seed, kinds)


def test_the_expectation_of_the_serial_bets_is_1_over_all_orders():
    """All 20 orders of three right and three wrong samples, and all 90 of three answers given twice."""

    orders = sorted(set(itertools.permutations([0, 0, 0, 1, 1, 1])))
    bets = np.array([independence._serial_outcomes(independence._outcomes([np.array(one)], np.array([6])), None) for one in orders])
    assert np.exp(bets).mean(axis=0) == pytest.approx(1.0)
    orders = sorted(set(itertools.permutations("aabbcc")))
    bets = np.array([independence._serial_answers(independence._Coded.of([one])) for one in orders])
    assert np.exp(bets).mean(axis=0) == pytest.approx(1.0)
