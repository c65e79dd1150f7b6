"""Word problems from a grammar: verdicts by hand, laws of what is drawn, the tokenizer of words, and the audit."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.contrib.audit import audit
from sage_rlvr.contrib.tasks.word_problems import SPLITS, WordProblems
from sage_rlvr.contrib.tasks.word_problems.draws import bucket
from sage_rlvr.contrib.tasks.word_problems.story import BACK, NAMES, Fact, Story, story_of
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS, described, task_named
from sage_rlvr.tasks.countdown.tokenizer import build_tokenizer

TASK = WordProblems(train_problems=50)
# Ann 7, Dan 10, Eve 20, Ben 2; Kim 22 is given too, and Eve has 2 fewer than she
STORY = story_of("Dan=Ann+3 Ann=7 Eve=Dan*2 Ben=Ann-5 Kim=22 Eve=Kim-2 Eve?")


def test_it_is_told_and_solved_as_by_hand() -> None:
    assert STORY.text == (
        "Dan has 3 more than Ann. Ann has exactly 7. Eve has 2 times as many as Dan. Ben has 5 fewer than Ann. Kim has exactly 22. "
        "Eve has 2 fewer than Kim. How many does Eve have?"
    )
    assert STORY.values == {"Ann": 7, "Dan": 10, "Eve": 20, "Ben": 2, "Kim": 22}
    assert TASK.solutions(STORY) == [LONG, SHORT]
    assert TASK.reference(STORY) == SHORT and TASK.doc(STORY)["answer"] == "20"
    assert [TASK.kinds_of(STORY, text) for text in TASK.solutions(STORY)] == [["2", "+×"], ["1", "−"]]


LONG = "Ann has exactly 7, Dan has 3 more than Ann, so Dan has 7+3=10, Eve has 2 times as many as Dan, so Eve has 10*2=20"
DAN = "Ann has exactly 7, Dan has 3 more than Ann, so Dan has 7+3=10"
SHORT = "Kim has exactly 22, Eve has 2 fewer than Kim, so Eve has 22-2=20"


@pytest.mark.parametrize(
    ("text", "reason", "key"),
    [
        (LONG, "right", "Ann Dan Eve"),
        (SHORT, "right", "Kim Eve"),
        (DAN, "another person", "Ann Dan"),
        ("Ann has exactly 7", "another person", "Ann"),
        (LONG.replace(DAN[19:], "Ben has 5 fewer than Ann, so Ben has 7-5=2"), "no such fact", None),
        (LONG.replace("3 more", "4 more"), "no such fact", None),
        (LONG.replace("7+3=10", "7-3=4"), "value", None),  # the fact read the wrong way
        (LONG.replace("7+3=10", "7+3=11"), "value", None),
        (LONG.replace("7+3=10", "8+3=10"), "value", None),
        (LONG.replace("7+3=10", "3+7=10"), "value", None),  # one spelling
        (LONG.replace("7+3=10", "07+3=10"), "value", None),
        (LONG.replace("so Dan", "so Eve"), "value", None),  # another person's
        (LONG.replace("10*2=20", "10*2=020"), "value", None),
        ("Dan has exactly 10, Eve has 2 times as many as Dan, so Eve has 10*2=20", "not given", None),
        (LONG.replace("exactly 7", "exactly 8"), "not given", None),
        (LONG.replace("exactly 7", "exactly 07"), "not given", None),
        ("Eve has exactly 20", "not given", None),
        (f"{SHORT}, Eve has 2 times as many as Dan, so Dan has 20/2=10", "more after the answer", None),
        (f"{DAN}, Dan has 3 more than Ann, so Ann has 10-3=7", "was there before", None),
        ("Ann has exactly 7, Dan has 3 more than Ann, Eve has 2 times as many as Dan", "not a chain", None),
        ("Ann has exactly 7, Dan has 3 more than Ann", "not a chain", None),
        ("Dan has 3 more than Ann, so Dan has 7+3=10", "not a chain", None),
        ("Ann has 7, Dan has 3 more than Ann, so Dan has 7+3=10", "not a chain", None),
        (f"{LONG}.", "not a chain", None),
        (LONG.replace(", ", ","), "not a chain", None),
        ("", "not a chain", None),
        ("Ann has exactly 7, " * 120, "too long", None),
    ],
)
def test_verdicts_by_hand(text: str, reason: str, key: str | None) -> None:
    verdict = TASK.verify(STORY, text)
    assert verdict.reason == reason and verdict.right == (reason == "right") and TASK.answer_key(STORY, text) == key


def test_a_fact_is_read_in_both_directions() -> None:
    story = story_of("Eve=20 Eve=Dan*2 Dan=Ann+3 Ben=Ann-5 Ben?")
    text = (
        "Eve has exactly 20, Eve has 2 times as many as Dan, so Dan has 20/2=10, Dan has 3 more than Ann, so Ann has 10-3=7, "
        "Ben has 5 fewer than Ann, so Ben has 7-5=2"
    )
    assert TASK.solutions(story) == [text] and TASK.verify(story, text).right


WORLDS = st.sampled_from([
    WordProblems(),
    WordProblems({4: 1, 5: 3}, given=2, ways=(2, 3)),
    WordProblems({5: 1}, loops=0, max_value=20),
    WordProblems({4: 1, 5: 1}, given=2, loops=2, steps=(1, 2), ways=(5, 40), max_value=60),
    WordProblems({5: 1}, steps=(2, 3), ways=(2, 2), blind=0.7),
    WordProblems({7: 1}, loops=2, steps=(2, 3), blind=0.6),
])  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(WORLDS, st.sampled_from(sorted(SPLITS)), st.integers(0, 3), st.integers(0, 100))  # the draws before `index` cost the time
def test_what_is_drawn_is_within_its_bounds_and_all_its_right_answers_are_listed(
    world: WordProblems, split: str, seed: int, index: int
) -> None:
    (problem, text), *none = world.examples(split, seed, index, 1)
    assert not none and world.examples(split, seed, 0, index + 1)[index] == (problem, text)
    low, behind = SPLITS[split]
    solutions = world.solutions(problem)
    assert low <= bucket(problem) < behind and text in solutions and len(set(solutions)) == len(solutions)
    assert all(world.verify(problem, one).right for one in solutions)
    assert set(problem.values.values()) <= set(range(1, world.max_value + 1))
    people = sorted(problem.values)
    assert len(people) in world.people and len(problem.given) == world.given and problem.queried not in problem.given
    assert len(problem.facts) == len(people) - 1 + world.loops + world.given
    assert world.ways[0] <= len(solutions) <= world.ways[1] and problem.blind <= world.blind
    assert all(len(TOKENIZER.encode(one)) < world.max_new_tokens for one in solutions)
    shortest = min(len(chain) for chain in problem.chains) - 1
    assert world.steps[0] <= shortest <= world.steps[1] and story_of(problem.problem_id) == problem
    assert world.verify(problem, world.reference(problem)).right and world.reference(problem).count("=") == shortest
    # every other chain of people, written down with whatever facts there are, is wrong: the list is whole
    if len(people) > 5:
        return
    linked = {(a, b) for a in people for b in problem.moves.get(a, ())}
    for length in range(1, len(people) + 1):
        for chain in permutations(people, length):
            if chain in problem.chains or any(pair not in linked for pair in pairwise(chain)):
                continue
            assert not world.verify(problem, problem.written(chain)).right


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 400), st.permutations(NAMES), st.integers(0, 5), st.data())
def test_the_same_story_told_anew_lies_in_the_same_split(index: int, names: list[str], turn: int, data: st.DataObject) -> None:
    """Other names, another order, differences told from the other side, and products as differences."""
    [(problem, _)] = TASK.examples("test", 0, index, 1)
    to = dict(zip(NAMES, names, strict=True)) | {"": ""}
    facts = []
    for fact in problem.facts:
        told = Fact(to[fact.who], fact.amount, fact.operator, to[fact.other])
        if fact.operator and data.draw(st.booleans()):
            gap = problem.values[fact.who] - problem.values[fact.other]
            told = Fact(told.other, abs(gap), BACK["+" if gap > 0 else "-"], told.who)
        facts.append(told)
    again = Story((*facts[turn:], *facts[:turn]), to[problem.queried])
    assert bucket(again) == bucket(problem) and sorted(map(len, again.chains)) == sorted(map(len, problem.chains))


@settings(deadline=None)
@given(st.lists(st.integers(2, 1 + len(WordProblems.characters)), max_size=40))
def test_a_token_is_a_word_and_a_text_has_one_spelling_in_tokens(ids: list[int]) -> None:
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids


TOKENIZER = build_tokenizer(WordProblems.characters)


def test_the_tokenizer_knows_the_words_and_nothing_else() -> None:
    text = STORY.text + TASK.solutions(STORY)[0]
    assert len(TOKENIZER) == len(WordProblems.characters) + 2 and TOKENIZER.decode(TOKENIZER.encode(text)) == text
    words = TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode("Dan has 3 more than Ann. "))
    assert words == ["Dan", " has ", "3", " more than ", "Ann", ". "]
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER.encode("Zoe has 3")


def test_how_many_take_part_goes_by_the_weights() -> None:
    """A share of 3 in 4, within five standard deviations of 400 draws; and one number alone."""
    world = WordProblems(people={4: 3, 5: 1})
    four = sum(len(problem.values) == 4 for problem in world.draw("train", 0, 400))
    assert 300 - 45 < four < 300 + 45
    assert {len(problem.values) for problem in WordProblems(people={5: 2}).draw("train", 0, 20)} == {5}


def test_equal_weights_are_one_task_and_keys_may_be_text() -> None:
    six = WordProblems(dict.fromkeys(range(3, 9), 1))
    assert replace(six, train_problems=5).people == six.people
    assert WordProblems({3: 1, 4: 2, 5: 3}) == WordProblems({3: 0.1, 4: 0.2, 5: 0.3})
    a, b = WordProblems({"10": 1, "9": 1}), WordProblems({9: 0.5, 10: 0.5})
    assert a == b and hash(a) == hash(b) and a.identity == b.identity and a.draw("test", 0, 5) == b.draw("test", 0, 5)
    assert pickle.loads(pickle.dumps(a)) == a and a != WordProblems({9: 1, 10: 2})
    twelve = WordProblems({12: 1}, steps=(1, 11), ways=(1, 900), max_value=99)
    assert all(twelve.verify(p, text).right for p in twelve.draw("test", 0, 3) for text in twelve.solutions(p))


def test_each_right_chain_is_taught_as_often() -> None:
    """Of stories with three chains each is drawn in a third of 450, within five standard deviations."""
    world = WordProblems({4: 1}, loops=2, ways=(3, 3))
    taught = Counter(world.solutions(problem).index(text) for problem, text in world.examples("train", 3, 0, 450))
    assert len(taught) == 3 and all(100 < n < 200 for n in taught.values())


def test_stories_vary_in_all_they_may() -> None:
    rows = TASK.draw("train", 0, 200)
    assert rows[:5] != TASK.draw("train", 1, 5) and rows[:5] != TASK.draw("validation", 0, 5)
    assert len({[not fact.operator for fact in p.facts].index(True) for p in rows}) > 3  # where the given number is told
    assert {fact.operator for p in rows for fact in p.facts} == {"", "+", "-", "*"}
    # a person with two facts, in one as the one who has and in the other as the one to compare with
    assert any({f.who for f in p.facts if f.operator == "*"} & {f.other for f in p.facts} for p in rows)


def test_a_split_hangs_on_all_numbers() -> None:
    """Golden buckets: a change of what is hashed would draw every split anew."""
    said = ("Ann=7 Dan=Ann+3 Dan?", "Ann=7 Dan=Ann+3 Ann?", "Dan=10 Dan=Ann+3 Ann?", "Ann=7 Dan=Ann+4 Dan?")
    assert [bucket(story_of(one)) for one in said] == [96, 97, 58, 0]


def test_a_blind_walk_by_hand() -> None:
    """From Ann half the walks go by Dan to Eve and half end at Ben; from Kim every walk is at Eve in one step."""
    assert STORY.blind == (0.5 + 1) / 2 and story_of("Eve=20 Eve=Dan*2 Dan=Ann+3 Ben=Ann-5 Ben?").blind == 1
    hard = WordProblems({6: 1}, steps=(2, 5), blind=0.4).draw("test", 0, 30)
    assert max(problem.blind for problem in hard) <= 0.4


def test_problems_differ_and_splits_share_none() -> None:
    rows = {split: TASK.problems(split) for split in SPLITS}
    assert all(len(found) == len({p.problem_id for p in found}) == 50 for found in rows.values())
    buckets = [{bucket(p) for p in found} for found in rows.values()]
    assert all(not a & b for a, b in combinations(buckets, 2))
    assert TASK.draw("test", 0, 30) == [problem for problem, _ in TASK.examples("test", 0, 0, 30)]


@pytest.mark.parametrize(
    ("problem_id", "message"),
    [
        ("Ann=7", "is no id of a word problem"),
        ("Ann=7 Dan=Ann%3 Dan?", "is no id of a word problem"),
        ("Ann=007 Dan=Ann+3 Dan?", "is no id of a word problem"),
        ("Ann=7 Dan=Ann+3 Dan??", "is no id of a word problem"),
        ("Ann=7 Dan=Ann+3 Eve?", "nothing tells how many Eve would have"),
        ("Ann=7 Dan=Eve+3 Ann?", "nothing tells how many Dan, Eve would have"),
        ("Ann=7 Dan=Ann-7 Dan?", "nothing tells how many Dan would have"),  # none left
        ("Ann=999999 Dan=Ann*2 Dan?", "nothing tells how many Dan would have"),
        ("Ann=7 Dan=Ann+3 Dan=11 Dan?", "contradicts the other facts; leave it out"),
        ("Ann=7 Dan=Ann+3 Ann=Dan-3 Dan?", "Ann has 3 fewer than Dan: a fact gives .* none is told twice"),
        ("Ann=7 Ann=7 Dan=Ann+3 Dan?", "none is told twice"),
        ("Ann=7 Ann=Ann*1 Ann?", "compares two"),
        ("Ann=7 Dan=Ann+0 Dan?", "by 1 or more"),
        ("Zoe=7 Dan=Zoe+3 Dan?", "Zoe has no token; take names from Ann"),
    ],
)
def test_stories_that_are_none(problem_id: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        story_of(problem_id)


@pytest.mark.slow
def test_refusals() -> None:
    with pytest.raises(DataError, match="sampling 'without-replacement': word_problems has only iid"):
        TASK.draw("test", 0, 3, "without-replacement")
    with pytest.raises(ConfigError, match="split 'dev': choose one of"):
        TASK.examples("dev", 0, 0, 1)
    with pytest.raises(ConfigError, match="seed -1"):
        TASK.examples("test", -1, 0, 1)
    for setting, value in {"people": {13: 1}, "given": 3, "loops": 2, "steps": (3, 2), "ways": (0, 2), "blind": 0}.items():
        with pytest.raises(ConfigError, match=f"word_problems: {setting} "):
            WordProblems(**{setting: value})
    for wrong in (
        {"people": {"x": 1}}, {"people": [3]}, {"people": {3.5: 1}}, {"people": {"4": 1, 4: 2}}, {"people": {float("inf"): 1}},
        {"steps": 3}, {"steps": (1.5, 2)}, {"ways": ("a", 2)}, {"given": "1"}, {"loops": 0.5}, {"max_value": 40.5}, {"blind": "1"},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=r"people is \{whole number: weight\}, steps and ways"):
            WordProblems(**wrong)
    with pytest.raises(DataError, match="widen one of them, people or max_value"):
        WordProblems(ways=(90, 99)).examples("test", 0, 0, 1)
    with pytest.raises(DataError, match="ask for fewer or widen it"):
        small = WordProblems(people={2: 1}, given=1, loops=0, steps=(1, 1), ways=(1, 1), max_value=2, train_problems=10**6)
        small.problems("train")


def test_it_is_a_task_by_name_and_passes_its_audit() -> None:
    assert task_named("word_problems") == WordProblems() and TASKS["word_problems"] is WordProblems
    told = {
        WordProblems(): "3 or 4 or 5 or 6 people, numbers given 1, spare facts 1, 1 to 5 steps, numbers up to 40",
        WordProblems({9: 2}, loops=4, blind=0.5): (
            "9 people, numbers given 1, spare facts 4, 1 to 5 steps, a blind walk right at most 0.5, numbers up to 40"
        ),
    }
    assert {task: described(task.identity) for task in told} == {task: f"word problems: {said}" for task, said in told.items()}
    found = audit(WordProblems())
    assert found.passed and not any(check.rows for check in found.checks)
