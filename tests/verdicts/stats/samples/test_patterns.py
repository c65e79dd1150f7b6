"""Reasoning patterns: the sentences of patterns.yaml, both averages of Eq. (13) by hand, cautions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.stats.samples.patterns import Pattern, compare_patterns, load_patterns, pattern_frequencies
from sage_rlvr.verdicts.text.patterns import pattern_words

RULES = load_patterns()
HITS = [(name, text) for name, rule in RULES.items() for text in rule.hits]
FALSE_HITS = [(name, text) for name, rule in RULES.items() for text in rule.false_hits]
WORD = {"x": Pattern("x", "", (re.compile("yes"),), (), (), ())}


def test_there_are_the_three_of_the_paper_with_examples():
    assert list(RULES) == ["constraint_setup", "structural_reasoning", "proof_by_contradiction"]
    assert all(len(rule.hits) >= 7 and len(rule.false_hits) >= 7 and rule.says for rule in RULES.values())


@pytest.mark.parametrize(("name", "text"), HITS)
def test_hits(name, text):
    assert RULES[name].matches(text)
    assert RULES[name].matches("So.\n\n" + text.replace(" ", "\n  ").replace("'", "’").upper())


@pytest.mark.parametrize(("name", "text"), FALSE_HITS)
def test_false_hits(name, text):
    assert RULES[name].spans(text) == []


def test_no_rule_is_idle():
    """Without any one `match` some hit is missed, without any one `unless` some false hit is counted."""
    for rule in RULES.values():
        for regex in rule.match:
            rest = replace(rule, match=tuple(other for other in rule.match if other is not regex))
            assert not all(rest.matches(text) for text in rule.hits), (rule.name, regex.pattern)
        for regex in rule.unless:
            rest = replace(rule, unless=tuple(other for other in rule.unless if other is not regex))
            assert any(rest.matches(text) for text in rule.false_hits), (rule.name, regex.pattern)


def test_the_phrases_of_the_paper_count_without_our_own():
    paper = load_patterns(paper_only=True)
    quoted = {
        "constraint_setup": ["let $x$ be", "denote $y$"],
        "structural_reasoning": ["of the form", "decompose it into"],
        "proof_by_contradiction": ["assume for contradiction", "leads to a contradiction"],
    }
    for name, phrases in quoted.items():
        assert all(paper[name].matches(phrase) for phrase in phrases), name
    assert RULES["structural_reasoning"].matches("We consider two cases.")
    assert not paper["structural_reasoning"].matches("We consider two cases.")


def test_a_blanked_phrase_does_not_hide_another():
    rule = RULES["proof_by_contradiction"]
    assert rule.matches("There is no contradiction yet. Assume for contradiction that x > 0.")
    assert rule.spans("Assume the contrary. This leads to a contradiction.") == [
        "Assume the contrary", "leads to a contradiction",
    ]  # fmt: skip


def test_both_averages_by_hand():
    texts = ["yes", "no", "no", "no", "yes", "yes", "yes"]
    correct = [1, 1, 1, 1, 1, 0, 0]
    problems = ["a", "a", "a", "a", "b", "b", "c"]
    found = pattern_frequencies(texts, correct, problems, patterns=WORD)["x"]
    assert found.micro.value == pytest.approx(2 / 5)  # a: 1 of 4, b: 1 of 1
    assert found.macro.value == pytest.approx((1 / 4 + 1) / 2)
    assert (found.hits, found.solutions, found.problems_with) == (2, 5, 2)
    assert (found.problems, found.problems_unsolved) == (2, 1)  # c has no correct solution, so no 1 / C_i
    assert found.micro.n == found.macro.n == 2 and found.micro.over == "problems"


def arm(hits: dict[str, int], sizes: dict[str, int]):
    texts = [t for p, n in sizes.items() for t in ["yes"] * hits.get(p, 0) + ["no"] * (n - hits.get(p, 0))]
    problems = [p for p, n in sizes.items() for _ in range(n)]
    return texts, [True] * len(texts), problems


def test_few_hits_are_called_few_and_keep_an_interval():
    sizes = {f"p{i}": 13 for i in range(20)}
    rare = pattern_frequencies(*arm({"p0": 2}, sizes), patterns=WORD)["x"]
    assert "2 of 260 correct solutions, in 1 of 20 problems" in rare.caution
    none = pattern_frequencies(*arm({}, sizes), patterns=WORD)["x"]
    assert none.micro.low == 0.0 and none.micro.high > 0.1  # 20 problems, not 260 solutions
    assert none.macro.high > 0.1 and none.caution
    often = pattern_frequencies(*arm({p: 6 for p in sizes}, sizes), patterns=WORD)["x"]
    assert often.caution == "" and not often.sparse
    assert often.micro.width < none.micro.width + 0.4


def test_two_of_260_against_nine_of_276_is_no_finding():
    few = arm({"p0": 1, "p1": 1}, {f"p{i}": 13 for i in range(20)})
    more = arm({"p0": 5, "p2": 4}, {f"p{i}": 12 for i in range(23)})
    found = compare_patterns(few, more, patterns=WORD)["x"]
    assert found.fisher_p == pytest.approx(0.064, abs=5e-4)  # before clustering
    said = pattern_words(found)
    assert "x: 2 of 260 (0.008 [0.000, 0.083]) against 9 of 276 (0.033 [0.002, 0.147]); Fisher p = 0.064" in said
    assert found.micro.value == pytest.approx(2 / 260 - 9 / 276) and found.micro.contains(0.0)
    assert "before clustering" in said and "cannot be told" in said
    assert found.by_problem is not None and found.by_problem.difference.n == 20  # solved by both
    swapped = compare_patterns(more, few, patterns=WORD)["x"]
    assert swapped.fisher_p == pytest.approx(found.fisher_p)
    assert swapped.by_problem.difference.value == pytest.approx(-found.by_problem.difference.value)


def test_a_plain_difference_is_told_and_strangers_are_not_paired():
    sizes = {f"p{i}": 10 for i in range(40)}
    less, more = (
        arm({p: i % 3 for i, p in enumerate(sizes)}, sizes),
        arm({p: 7 + i % 3 for i, p in enumerate(sizes)}, sizes),
    )
    assert "higher over the 40 problems solved by both" in pattern_words(compare_patterns(more, less, patterns=WORD)["x"])
    other = arm({}, {f"z{i}": 10 for i in range(20)})
    apart = compare_patterns(more, other, patterns=WORD)["x"]
    assert apart.by_problem is None and "no problem was solved by both" in pattern_words(apart)


def test_refusals(tmp_path: Path):
    with pytest.raises(DataError, match="no solution is correct"):
        pattern_frequencies(["yes"], [False], ["a"])
    with pytest.raises(DataError, match="2 texts"):
        pattern_frequencies(["yes", "no"], [True], ["a", "b"])
    cases = {
        "a: {says: x}": "a needs says and match",
        "a: {match: [{regex: x}], matc: []}": "a needs says and match",
        "a: {match: [{regex: '('}]}": "no regex",
        "a: {match: [x]}": "no regex",
        "[]": "defines no pattern",
        "a: [": "cannot be read",
    }
    for i, (text, words) in enumerate(cases.items()):
        file = tmp_path / f"{i}.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            load_patterns(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_patterns(tmp_path / "none.yaml")
