"""Signal anatomy: classes of tokens, a table by hand, sums that must agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sage_rlvr.contrib.analysis.anatomy import _rank_correlation, classify, token_anatomy
from sage_rlvr.errors import DataError
from sage_rlvr.tasks.countdown import COUNTDOWN_CLASSES

TEXT = {
    "end or special": ["<|im_end|>", "<eos>", "</s>", "<end_working_out>", "</SOLUTION>"],
    "blank": [" ", "\n\n", "Ġ", "▁", "Ċ"],
    "number": ["7", " 42", "3.14", "1,000", "Ġ12"],
    "operator": [" +", "=", "\\times", " \\frac", "<=", "Ġ-", "*", "%"],
    "bracket": ["(", ")", "[", "\\left(", "\\]", "{}"],
    "mathematics": ["$", "$$", " x", "n", "\\pi", " \\alpha", "&"],
    "connective: contrast": [" However", "But", "ĠWait", "▁instead"],
    "connective: consequence": ["Therefore", " so", "Hence", " since"],
    "connective: opening": ["Let", " suppose", "ĠAssume", " maybe", "If"],
    "punctuation": [".", ",", ":", "?", "..."],
    "word": [" triangle", "ing", "a", "I", "don't", "naïve", "Ġanswer"],
    "other": ["x1", "3rd"],
}


@pytest.mark.parametrize("name", TEXT)
def test_classes_of_text(name):
    assert classify(TEXT[name]) == [name] * len(TEXT[name])


def test_classes_of_countdown_cover_its_vocabulary():
    characters = [*"0123456789+-*/()= :", "<pad>", "<eos>"]
    found = classify(characters, COUNTDOWN_CLASSES)
    assert "other" not in found
    assert found[10:16] == [
        "sum or difference", "sum or difference", "product or quotient", "product or quotient",
        "opening bracket", "closing bracket",
    ]  # fmt: skip
    assert classify(["x"], COUNTDOWN_CLASSES) == ["other"]


def test_a_table_by_hand():
    tokens = ["1", "2", "but", "but", "."]
    h, s = [0.1, 0.3, 2.0, 3.0, 0.1], [2.0, 1.0, 0.5, 1.5, 0.1]
    q = np.array([1.0, 1.0, 1.2, 1.4, 0.6], dtype=np.float32)
    found = token_anatomy(tokens, h, s, q, top=0.4, quantiles=(0.5,))
    rows = {row.name: row for row in found.classes}
    number, but, full_stop = rows["number"], rows["connective: contrast"], rows["punctuation"]
    assert (number.tokens, number.share) == (2, pytest.approx(0.4))
    assert number.entropy.mean == pytest.approx(0.2) and number.surprisal.quantiles == {0.5: 1.5}
    assert (but.top_entropy, number.top_entropy) == (1.0, 0.0)  # the two highest entropies
    assert (but.top_surprisal, number.top_surprisal) == (0.5, 0.5)
    assert (but.raised, but.clamped, but.lowered) == (1.0, 0.5, 0.0)
    assert (full_stop.raised, full_stop.clamped, full_stop.lowered) == (0.0, 1.0, 1.0)
    assert number.q.mean == 1.0 and number.raised == 0.0
    assert (number.correlation, but.correlation) == (pytest.approx(-1.0), pytest.approx(1.0))
    assert np.isnan(full_stop.correlation)
    assert found.correlation == pytest.approx(stats.spearmanr(h, s).statistic)
    assert found.raised is None and found.correlation_by_problem is None  # no problems named
    assert [row.tokens for row in found.classes] == [2, 2, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("1+x. "), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_classes_add_up_to_all_tokens(rows):
    tokens, h, s = zip(*rows, strict=True)
    found = token_anatomy(tokens, h, s, top=0.3)
    assert sum(row.tokens for row in found.classes) == found.tokens == len(rows)
    for field in ("share", "top_entropy", "top_surprisal"):
        assert sum(getattr(row, field) for row in found.classes) == pytest.approx(1.0)
    assert sum(row.share * row.entropy.mean for row in found.classes) == pytest.approx(np.mean(h))


def test_a_constant_signal_ranks_no_class_higher():
    found = token_anatomy(["1", "1", "1", "x"], [1.0] * 4, [0.0, 1.0, 2.0, 3.0], top=0.25)
    assert {row.name: row.top_entropy for row in found.classes} == {"number": 0.75, "mathematics": 0.25}
    assert np.isnan(found.correlation)
    # one token above the edge, three tied for one more place: x holds 1 of 2 places, 1 has the other
    edge = token_anatomy(list("x111"), [3.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0], top=0.5)
    assert {row.name: row.top_entropy for row in edge.classes} == pytest.approx({"number": 0.5, "mathematics": 0.5})


def test_intervals_over_problems():
    rng = np.random.default_rng(0)
    problems = np.repeat(np.arange(12), 40).tolist()
    h = rng.exponential(size=480)
    q = np.clip(1 + 0.3 * np.maximum(h - 1.2, 0), 0.6, 1.4)
    found = token_anatomy(["1"] * 480, h, h + rng.normal(size=480), q, problems=problems)
    assert found.raised.value == pytest.approx(np.mean(h > 1.2)) and found.raised.n == 12
    assert found.raised.low < found.raised.value < found.raised.high
    assert found.clamped.value == pytest.approx(np.mean(q >= 1.4))
    inside = found.correlation_by_problem
    assert inside.n == 12 and inside.low < found.correlation < inside.high
    without = token_anatomy(["1"] * 480, h, h, problems=problems)
    assert without.raised is None and without.classes[0].q is None
    assert without.correlation_by_problem.value == pytest.approx(1.0)


def test_refusals():
    with pytest.raises(DataError, match="entropies of shape"):
        token_anatomy(["1"], [1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="surprisals of shape"):
        token_anatomy(["1"], [1.0], [np.nan])
    with pytest.raises(DataError, match="for 0 tokens"):
        token_anatomy([], [], [])
    with pytest.raises(DataError, match="outside band"):
        token_anatomy(["1"], [1.0], [1.0], [1.5])
    with pytest.raises(DataError, match="top = 1"):
        token_anatomy(["1"], [1.0], [1.0], top=1.0)
    with pytest.raises(DataError, match="2 problems for 1 tokens"):
        token_anatomy(["1"], [1.0], [1.0], problems=["a", "b"])


def test_every_cell_of_a_class_has_an_interval_over_problems():
    """Twenty problems of ten tokens; within a problem all tokens are alike, so tokens say no more than problems do."""
    rng = np.random.default_rng(0)
    level = rng.random(20)
    owners = np.repeat(np.arange(20), 10)
    tokens = ["1" if i % 10 < 4 else "but" for i in range(200)]
    h, s = level[owners], 2 * level[owners] + rng.normal(0, 0.01, 200)
    q = np.where(level[owners] > 0.5, 1.2, 1.0)
    found = token_anatomy(tokens, h, s, q, problems=owners.tolist())
    number = next(row for row in found.classes if row.name == "number")
    names = (
        "share",
        "entropy",
        "surprisal",
        "q",
        "top_entropy",
        "top_surprisal",
        "raised",
        "lowered",
        "clamped",
        "correlation",
    )
    assert set(number.intervals) == set(names)
    for name, i in number.intervals.items():
        value = getattr(number, name)
        assert i.value == pytest.approx(getattr(value, "mean", value)) and i.low <= i.value <= i.high, name
    half = stats.t.ppf(0.975, 19) * level.std(ddof=1) / np.sqrt(20)
    entropy = number.intervals["entropy"]
    assert entropy.width == pytest.approx(2 * half, rel=0.15)  # of 80 tokens taken singly it would be half of that
    assert token_anatomy(tokens, h, s).classes[0].intervals == {}


def test_the_interval_of_a_rank_correlation_covers():
    """Forty problems of eight tokens with a common part; the truth from 20,000 problems."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        common = np.repeat(rng.normal(size=n), 8)
        return common + rng.normal(size=8 * n), common + rng.normal(size=8 * n), np.repeat(np.arange(n), 8)

    truth, held = stats.spearmanr(*draw(20_000)[:2]).statistic, 0
    for seed in range(60):
        held += _rank_correlation(*draw(40), seed=seed).contains(truth)
    assert held >= 52  # 57 expected, below 52 once in fifty
