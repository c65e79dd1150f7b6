"""The sample store: what is kept of a sample, whose samples they are, and what is missing."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import CHUNK, Chunk, Identity, Sample, SampleStore, seed_of
from sage_rlvr.evaluation.store.sample import escape, unescape
from samples_common import DECODING, IDENTITY, PROBLEMS, SMALL, TURNS, draw, evaluate, rows


def test_seeds_are_these_for_ever():
    # printf '["sage-rlvr", 7, "sums", "a", 0]' | sha256sum: the first 16 digits, without the last bit
    assert seed_of(7, "sums", "a", 0) == 3249822245820446637
    first = seed_of(1, "t", "p", 2)
    assert (
        len({first, seed_of(2, "t", "p", 2), seed_of(1, "u", "p", 2), seed_of(1, "t", "q", 2), seed_of(1, "t", "p", 3)})
        == 5
    )
    assert IDENTITY.seed_of("a", 3) == seed_of(7, "sums", "a", 3)


@given(st.text(st.characters(exclude_categories=())))
@example("\ud800")
@example("\ud83d\ude00 are two surrogates, and \\ud800 is none")
@example("\x00escaped:\\ud800")
def test_any_text_becomes_utf8_and_comes_back(text: str):
    kept = escape(text)
    kept.encode("utf-8")
    assert unescape(kept) == text
    assert unescape(escape(kept)) == kept


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=())),
    values=st.lists(st.floats(width=32), max_size=5),
    reason=st.text(max_size=3),
)
def test_a_sample_comes_back_bit_for_bit(text: str, values: list[float], reason: str):
    sample = Sample(
        problem=text or "p", sample=0, text=text, verdict="wrong", reason=reason, prompt_hash="h", seed=2**63 - 1,
        token_ids=list(range(len(values))), rollout_logps=values, answer=text, finish=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, SampleStore.open(folder, replace(IDENTITY, chunk_size=1)) as store:
        store.commit([sample])
        (back,) = store.samples()
        for name in ("problem", "text", "answer", "reason", "seed", "finish", "base_logps", "q"):
            assert getattr(back, name) == getattr(sample, name), name
        assert back.rollout_logps.tobytes() == np.asarray(values, np.float32).tobytes()  # NaN and infinities too
        assert list(back.token_ids) == sample.token_ids and back.rollout_logps.dtype == np.float32


def test_turns_come_back_and_are_of_the_store_and_its_tokens(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 2, TURNS) as store:
        back = store.samples()
        assert [row.turns for row in back] == [draw(row.problem, row.sample, TURNS).turns for row in back]
        assert back[0].response == tuple(text for who, text, _ in back[0].turns or () if who == "policy") != back[0].text
        assert "turns" in store.columns and Identity.of(TURNS.tree()) == TURNS
    with evaluate(tmp_path / "c", PROBLEMS, 2, SMALL) as plain:
        assert "turns" not in plain.columns and plain.samples()[0].response == plain.samples()[0].text
        with pytest.raises(DataError, match=r"'turns'.* not in a sample store"):
            plain.table(("turns",))
    with pytest.raises(ConfigError, match=r"turns: 1 -> 3"):
        SampleStore.open(tmp_path / "c", TURNS)
    good = draw("a", 0, TURNS)
    four = (("policy", "a", 1),) * 4
    with SampleStore.open(tmp_path / "e", replace(TURNS, chunk_size=1)) as store:
        for turns in (None, (), four, ((*good.turns[0][:2], 99),)):  # type: ignore[index]
            with pytest.raises(DataError, match="turns do not fit a store of episodes of at most 3 turns"):
                store.commit([replace(good, turns=turns)])
    with pytest.raises(ConfigError, match=r"Identity.turns = 0"):
        replace(SMALL, turns=0)


def test_a_megabyte_of_text(tmp_path: Path):
    long = replace(draw("a", 0, SMALL), text="x\ud800" * 500_000)
    with SampleStore.open(tmp_path, SMALL) as store:
        store.commit([long, draw("a", 1, SMALL)])
        assert store.samples()[0].text == long.text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"verdict": "maybe"}, "maybe"),
        ({"finish": "eos"}, "finish"),
        ({"sample": -1}, "numbered from 0"),
        ({"seed": 2**63}, "seed"),
        ({"problem": ""}, "not empty"),
        ({"rollout_logps": [0.5]}, r"shape \(1,\)"),
        ({"token_ids": [0.5]}, "whole numbers"),
        ({"seed": IDENTITY.seed_of("a", 1)}, "one sample"),
        ({"turns": (("policy", "a", 2),)}, "turns do not fit a store of episodes of at most 1 turns"),
        ({"reason": None}, "^problem 'a', sample 0: reason = None: must be a text$"),
        ({"prompt_hash": None}, "sample 0: prompt_hash = None: must be a text"),
        ({"text": 5}, "sample 0: text = 5: must be a text"),
        ({"answer": 5}, "sample 0: answer = 5: must be a text"),
        ({"problem": None}, "problem None, sample 0: the problem's id is a text"),
        ({"seed": 0.5}, r"seed 0.5 is not in \[0, 2\^63\)"),
        ({"latency_s": "1 s"}, "sample 0: latency_s = '1 s': must be a number of seconds"),
        ({"rollout_logps": [None, 0.5]}, r"sample 0: rollout_logps = \[None, 0.5\]: must be a list of numbers"),
    ],
)
def test_an_unusable_sample_is_refused_and_nothing_is_written(tmp_path: Path, change: dict, word: str):
    with SampleStore.open(tmp_path, SMALL) as store:
        good = [
            replace(draw("a", i), token_ids=[1, 2], rollout_logps=[0, 0], base_logps=None, entropies=None)
            for i in (0, 1)
        ]
        with pytest.raises(DataError, match=word):
            store.commit([replace(good[0], **change), good[1]])
        assert len(store.table()) == 0


@pytest.mark.parametrize(("value", "cause"), [(float("inf"), "x = inf: .*not JSON compliant"), ({1}, r"x = \{1\}: .*set")])
def test_a_fact_that_is_no_json_value_is_refused_and_the_store_is_whole(tmp_path: Path, value: object, cause: str):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        with pytest.raises(DataError, match=cause) as told:
            store.note(x=value)
        assert "damaged" not in str(told.value) and "x" not in store.facts() and len(store.samples()) == 2


@pytest.mark.parametrize("numbers", [range(31), range(1, 33), [*range(32), 3], [*range(32), 40]])
def test_a_chunk_is_whole_or_refused(tmp_path: Path, numbers):
    with SampleStore.open(tmp_path, IDENTITY) as store, pytest.raises(DataError, match="no whole chunks of 32"):
        store.commit([draw("a", number) for number in numbers])


def test_settings_have_one_spelling():
    same = replace(IDENTITY, decoding={**DECODING, "temperature": 1, "top_k": None, "min_p": 0})
    assert same == IDENTITY and IDENTITY.chunk_size == CHUNK == 32
    for identity in (IDENTITY, replace(IDENTITY, together=8)):
        assert Identity.of(identity.tree()) == identity
    with pytest.raises(ConfigError, match=r"Identity\.together = 0"):
        replace(IDENTITY, together=0)


@pytest.mark.parametrize(
    "bad", [{"temperature": None}, {"temperature": float("nan")}, {"top_p": 0}, {"preset": None}, {"max_new_tokens": 0}, {"x": {1}}]
)  # fmt: skip
def test_settings_without_meaning_are_refused(bad: dict):
    with pytest.raises(ConfigError, match=f"decoding.{next(iter(bad))}" if "x" not in bad else "decoding"):
        replace(IDENTITY, decoding=DECODING | bad)


def test_the_advice_for_samples_of_another_version_is_one(tmp_path: Path) -> None:
    """To judge them again would not help where the prompts differ too."""
    old = replace(IDENTITY, versions={"sage_rlvr": "0.0.7"}, template_hash="old", verifier_hash="v-old")
    evaluate(tmp_path, ["a"], 2, old).close()
    with pytest.raises(ConfigError, match=r"were made by sage-rlvr 0\.0\.7") as caught:
        SampleStore.open(tmp_path, replace(IDENTITY, versions={"sage_rlvr": "0.1"}))
    assert "reverify" not in str(caught.value)


def test_another_identity_is_refused_with_what_differs(tmp_path: Path):
    evaluate(tmp_path, ["a"], 32).close()
    hot = replace(IDENTITY, decoding={**DECODING, "temperature": 0.6}, model="other", versions={"numpy": "3"})
    with pytest.raises(ConfigError) as caught:
        SampleStore.open(tmp_path, hot)
    message = str(caught.value)
    binding, noted = message.split("would only be noted")
    assert 'model: "tiny" -> "other"' in binding and "decoding.temperature: 1.0 -> 0.6" in binding
    assert "versions.numpy" in noted and "versions" not in binding and "top_p" not in message
    with pytest.raises(ConfigError, match="run reverify"):
        SampleStore.open(tmp_path, replace(IDENTITY, verifier_hash="v1"))


def test_other_versions_are_noted(tmp_path: Path):
    problems = ["a"]
    evaluate(tmp_path, problems, 32).close()
    with pytest.warns(UserWarning, match=r"versions.numpy 2 -> 3"):
        newer = SampleStore.open(tmp_path, replace(IDENTITY, versions={"numpy": "3"}))
    newer.commit(rows(newer.claim(problems, 64)))
    assert [json.loads(v)["numpy"] for v in newer.table(["versions"])["versions"].to_pylist()] == ["2"] * 32 + [
        "3"
    ] * 32
    assert newer.facts()["changes"][0]["changed"] == {"versions.numpy": ["2", "3"]}


def test_a_store_of_another_format_is_told_apart(tmp_path: Path):
    SampleStore.open(tmp_path / "later", IDENTITY)
    tree = json.loads((tmp_path / "later" / "store.json").read_text())
    (tmp_path / "later" / "store.json").write_text(json.dumps(tree | {"format": 2}))
    with pytest.raises(DataError, match=r"store.json: a sample store of format 2, and this version .* reads format 1"):
        SampleStore.open(tmp_path / "later")
    with pytest.raises(DataError, match="no sample store"):
        SampleStore.open(tmp_path / "elsewhere")


def test_the_chunks_that_lack_come_evenly_and_a_top_up_keeps_what_is_there(tmp_path: Path):
    problems = ["p10", "p2"]
    with SampleStore.open(tmp_path, IDENTITY) as store:
        assert store.missing(problems, 40) == [Chunk("p10", 0), Chunk("p2", 0), Chunk("p10", 32), Chunk("p2", 32)]
    with evaluate(tmp_path, problems, 64) as store:
        assert store.missing(problems, 64) == []
        assert store.missing(problems, 128) == [Chunk("p10", 64), Chunk("p2", 64), Chunk("p10", 96), Chunk("p2", 96)]
        digest = store.digest(n=64)
    with evaluate(tmp_path, problems, 128) as store:
        assert store.digest(n=64) == digest != store.digest()
        table = store.table(["problem", "sample"])
        assert table["problem"].to_pylist() == ["p2"] * 128 + ["p10"] * 128  # ids by the value of their numbers
        assert table["sample"].to_pylist() == list(range(128)) * 2
        assert store.table(["problem"], problems=problems, n=3)["problem"].to_pylist() == ["p10"] * 3 + ["p2"] * 3
        with pytest.raises(DataError, match=r"2 chunks are missing for n = 160 .* 'p2' from sample 128"):
            store.counts(160)
        with pytest.raises(DataError, match="'p3' from sample 0"):
            store.table(problems=["p2", "p3"])
        with pytest.raises(DataError, match="columns \\['scores'\\]"):
            store.table(["scores"])


def test_counts_are_those_of_the_samples(tmp_path: Path):
    problems = ["a", "b"]
    with evaluate(tmp_path, problems, 64) as store:
        counts = store.counts(40)
    assert counts.problems == ("a", "b")
    for place, problem in enumerate(problems):
        drawn = [draw(problem, number) for number in range(40)]
        for label in ("right", "wrong", "undecided"):
            assert getattr(counts, label)[place] == sum(s.verdict == label for s in drawn)
        assert counts.truncated[place] == sum(s.finish == "length" for s in drawn)
    assert counts.n.tolist() == [40, 40] == (counts.right + counts.wrong + counts.undecided).tolist()
    assert counts.finish_unknown.tolist() == [0, 0]


def test_greedy_decoding_has_one_sample(tmp_path: Path):
    greedy = replace(IDENTITY, decoding=DECODING | {"temperature": 0}, chunk_size=None)
    with evaluate(tmp_path, ["a", "b"], 1, greedy) as store:
        assert store.counts(1).n.tolist() == [1, 1]
        with pytest.raises(ConfigError, match="one completion 4 times"):
            store.missing(["a"], 4)
    with pytest.raises(ConfigError, match="chunk_size"):
        replace(greedy, chunk_size=32)


def test_wrong_questions_are_refused(tmp_path: Path):
    with SampleStore.open(tmp_path, IDENTITY) as store:
        with pytest.raises(DataError, match=r"'a'.* occur twice"):
            store.missing(["a", "b", "a"], 1)
        for n in (0, -1, 2.0, True):
            with pytest.raises(ConfigError, match="whole number >= 1"):
                store.missing(["a"], n)


@pytest.mark.parametrize("took", [float("nan"), np.float64(1.5), np.float32(1.5), 2, None])
def test_what_a_caller_gives_as_seconds_is_kept(tmp_path: Path, took: float | None) -> None:
    with SampleStore.open(tmp_path, SMALL) as store:
        store.commit([replace(draw("a", number, SMALL), latency_s=took) for number in range(2)])
    with SampleStore.open(tmp_path) as again:
        assert {row.latency_s for row in again.samples()} == {None if took is None or np.isnan(took) else took}
