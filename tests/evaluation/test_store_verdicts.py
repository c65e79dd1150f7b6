"""The sample store: verdicts over verdicts, log-probs under a base, repeats, and other forms of a store."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sage_rlvr.contrib.io.archive import from_parquet, to_parquet
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.store import Chunk, Identity, PromptAndGold, Sample, SampleStore
from samples_common import DECODING, PROBLEMS, SMALL, TURNS, Verdict, draw, evaluate, lenient, rows


def test_new_verdicts_lie_over_the_old_ones(tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 4, SMALL) as store:
        old = store.table(["verdict", "answer"])
        assert store.reverify(lenient, "v1", by="me", batch=3) == 8
        assert set(store.table(["verdict"])["verdict"].to_pylist()) == {"right"}
        assert (
            store.samples()[0].answer == "\udfff" and store.samples()[0].reason == f"a: {draw('a', 0, SMALL).text[:1]}"
        )
        assert store.table(["verdict", "answer"], verifier="v0").equals(old)
        assert store.counts(verifier="v0").right.sum() < store.counts().right.sum() == 8
        passes = store.verifiers()
        assert [(p["verifier_hash"], p["by"], p["rows"]) for p in passes] == [
            ("v0", None, 8), ("v1", "me", 3), ("v1", "me", 3), ("v1", "me", 2)
        ]  # fmt: skip
        assert all(p["at"].endswith("+00:00") for p in passes[1:])
        assert store.reverify(lenient, "v1") == 0


def test_a_top_up_by_a_verifier_that_the_samples_have_left_is_mixed_and_must_be_judged_too(tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 4, SMALL) as store:  # open under v0 all the time
        store.reverify(lenient, "v1")
        store.commit(rows(store.claim(PROBLEMS, 6, 2), SMALL))
        with pytest.raises(DataError, match="several verifiers are mixed"):
            store.counts()
        with pytest.raises(DataError, match="4 of 12 samples have no verdict of 'v1'"):
            store.table(verifier="v1")
        assert store.counts(4).right.sum() == 8
        for name in ("v0", "v1"):
            with pytest.raises(ConfigError, match=rf'verifier_hash: "v0, v1" -> "{name}"'):
                SampleStore.open(tmp_path, replace(SMALL, verifier_hash=name))
        assert store.reverify(lenient, "v1") == 4 and store.counts().right.sum() == 12
    with pytest.raises(ConfigError, match=r'verifier_hash: "v1" -> "v0"(?s:.)*--rejudge\), after which'):
        SampleStore.open(tmp_path, SMALL)


def judged_by_v1(chunks: list[Chunk], identity: Identity) -> list[Sample]:
    made = rows(chunks, identity)
    said = lenient([row.problem for row in made], [row.text for row in made])
    return [replace(row, verdict=v.label, reason=v.reason, answer=v.answer) for row, v in zip(made, said, strict=True)]


def test_after_reverify_the_new_verifier_tops_up_and_leaves_what_it_alone_would_have_left(tmp_path: Path):
    newer = replace(SMALL, verifier_hash="v1")
    evaluate(tmp_path / "s", PROBLEMS, 4, SMALL).close()
    with pytest.raises(ConfigError, match=r'verifier_hash: "v0" -> "v1"(?s:.)*run reverify'):
        SampleStore.open(tmp_path / "s", newer)
    with SampleStore.open(tmp_path / "s") as store:
        store.reverify(lenient, "v1", by="me")
    with SampleStore.open(tmp_path / "s", newer) as store:
        store.commit(judged_by_v1(store.claim(PROBLEMS, 6, 9), newer))
        assert store.counts().n.tolist() == [6, 6] and store.identity.verifier_hash == "v1"
        assert [(p["verifier_hash"], p["rows"]) for p in store.verifiers()] == [("v0", 8), ("v1", 4), ("v1", 8)]
        digest = store.digest()
    facts = SampleStore.open(tmp_path / "s").facts()
    assert facts["identity"]["verifier_hash"] == "v1"
    assert facts["changes"][-1]["changed"] == {"verifier_hash": ["v0", "v1"]}
    with SampleStore.open(tmp_path / "s", newer) as store:  # and goes on
        assert not store.missing(PROBLEMS, 6)
    with SampleStore.open(tmp_path / "alone", newer) as store:
        store.commit(judged_by_v1(store.claim(PROBLEMS, 6, 9), newer))
        assert store.digest() == digest


STAMP = ("scored under", "base h")


def scores_of(samples: list[Sample]) -> list[np.ndarray]:
    return [np.asarray(sample.token_ids) / -100 for sample in samples]


def bare(chunks: list[Chunk]) -> list[Sample]:
    return [replace(row, base_logps=None) for row in rows(chunks, SMALL)]


def scored_at_once(path: Path) -> str:
    with SampleStore.open(path, replace(SMALL, versions=dict(SMALL.versions) | dict([STAMP]))) as store:
        drawn = bare(store.claim(PROBLEMS, 6, 9))
        store.commit([replace(row, base_logps=scores_of([row])[0]) for row in drawn])
        return store.digest()


@pytest.mark.slow
@pytest.mark.parametrize("fatal", range(7))
def test_samples_are_scored_afterwards_as_if_they_had_been_at_once(tmp_path: Path, fatal: int):
    with SampleStore.open(tmp_path / "s", SMALL) as store:
        store.commit(bare(store.claim(PROBLEMS, 6, 9)))
        left = [fatal]

        def dying(samples: list[Sample]) -> list[np.ndarray]:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return scores_of(samples)

        with contextlib.suppress(KeyboardInterrupt):
            store.score(dying, STAMP)
    told: list[int] = []
    with SampleStore.open(tmp_path / "s") as store:
        done = 12 if fatal == 0 else 2 * (fatal - 1)
        assert store.score(scores_of, STAMP, progress=told.append) == 12 - done == sum(told)
        assert store.digest() == scored_at_once(tmp_path / "whole") and store.unscored(STAMP) == []
        assert store.score(lambda samples: [2 * x for x in scores_of(samples)], ("scored under", "other")) == 12
        assert store.samples()[0].base_logps.tolist() == pytest.approx((2 * scores_of(store.samples()[:1])[0]).tolist())


def test_scores_that_do_not_fit_are_refused_and_texts_alone_are_left(tmp_path: Path):
    with SampleStore.open(tmp_path / "s", SMALL) as store:
        store.commit(bare(store.claim(["a"], 2)))
        with pytest.raises(DataError, match="one number per token"):
            store.score(lambda samples: [np.zeros(1)] * len(samples), STAMP)
        assert len(store.unscored(STAMP)) == 1
    with SampleStore.open(tmp_path / "t", SMALL) as store:
        drawn = [replace(row, token_ids=None, rollout_logps=None, entropies=None) for row in bare([Chunk("a", 0, 2)])]
        store.commit(drawn)
        with pytest.warns(UserWarning, match="2 samples have no token ids"):
            assert store.score(scores_of, STAMP) == 0


@pytest.mark.parametrize("said", [[], [Verdict("right", "x")], [Verdict("no", "x")] * 2])
def test_a_verifier_that_answers_wrongly_changes_nothing(tmp_path: Path, said: list):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        with pytest.raises(DataError, match="reverify: "):
            store.reverify(lambda problems, texts: said, "v1")
        assert [p["verifier_hash"] for p in store.verifiers()] == ["v0"]


def test_a_seed_used_twice_is_refused(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        again = [replace(draw("a", number - 2, SMALL), sample=number) for number in (2, 3)]
        store.commit(again)
        with pytest.raises(DataError, match=r"samples 0 of problem 'a' and 2 of 'a' have the same seed"):
            store.counts()
        assert store.counts(2).n == [2]
        assert store.counts(check=False).n == [4]


def test_completions_that_chance_would_not_repeat(tmp_path: Path):
    fake = [
        replace(draw("a", 0, SMALL), sample=n, seed=n, token_ids=[1, 2, 3, 4], base_logps=None, entropies=None)
        for n in (0, 1)
    ]
    likely = [replace(row, rollout_logps=[-0.1] * 4) for row in fake]
    unlikely = [replace(row, rollout_logps=[-9.0] * 4) for row in fake]
    unknown = [replace(row, rollout_logps=None) for row in fake]
    for name, drawn, identity, certain in (
        ("likely", likely, SMALL, []),
        ("unlikely", unlikely, SMALL, [True]),
        ("cut", unlikely, replace(SMALL, decoding=DECODING | {"top_p": 0.9}), [False]),
        ("unknown", unknown, SMALL, []),
    ):
        with SampleStore.open(tmp_path / name, identity) as store:
            store.commit(drawn)
            assert [repeat.certain for repeat in store.repeats()] == certain, name
    with pytest.raises(DataError, match=r"the same 4 tokens, .* probability e\^-36"):
        SampleStore.open(tmp_path / "unlikely").counts()
    with pytest.warns(UserWarning, match="does not follow its seeds"):
        SampleStore.open(tmp_path / "cut").counts()


def test_one_text_for_every_sample_of_every_problem_is_suspicious(tmp_path: Path):
    with SampleStore.open(tmp_path, SMALL) as store:
        for problem in "abc":
            plain = [replace(draw(problem, n, SMALL), text="42", token_ids=None, rollout_logps=None) for n in (0, 1)]
            store.commit([replace(row, base_logps=None, entropies=None) for row in plain])
        with pytest.warns(UserWarning, match="on all 3 problems every sample is the same text"):
            store.counts()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.counts(problems=["a", "b"])  # too few to say


def test_chance_alarms_as_rarely_as_promised(monkeypatch: pytest.MonkeyPatch):
    """With the alarm at one in two, honest draws of a policy with a long tail set it off in fewer than half of the runs."""
    monkeypatch.setattr(repeats, "ALARM", 0.5)
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1, 2001) / np.sum(1 / np.arange(1, 2001))
    alarms = 0
    for _ in range(200):
        drawn, many = np.unique(rng.choice(len(p), 64, p=p), return_counts=True)
        alarms += bool((np.log(p[drawn[many > 1]]) < repeats.limit(64 * 63 // 2)).any())
    assert alarms < 100


# ---- Parquet


@pytest.mark.parametrize("identity", [SMALL, TURNS], ids=["completions", "episodes"])
def test_a_store_goes_to_parquet_and_comes_back(tmp_path: Path, identity: Identity):
    with evaluate(tmp_path / "s", PROBLEMS, 6, identity) as store:
        store.want(PROBLEMS, 6)
        store.reverify(lenient, "v1")
        store.describe({"a": PromptAndGold("1 + 1 =", "2"), "b": PromptAndGold("say \ud800")})
        said = [(row.reason, row.response) for row in store.samples() if row.finish == "stop"]
        assert all(reason.endswith(f": {text[:1]}") for reason, text in said)  # of episodes the policy's turns are judged
        assert isinstance(said[0][1], tuple) is (identity is TURNS)
        assert to_parquet(store, tmp_path / "all.parquet") == 12
        digest = store.digest()
    assert from_parquet(tmp_path / "all.parquet", tmp_path / "t") == 12
    with SampleStore.open(tmp_path / "t", replace(identity, verifier_hash="v1")) as back:
        assert back.digest() == digest and back.wanted() == {"problems": 2, "n": 6}
        assert back.missing(PROBLEMS, 6) == []
        assert back.questions() == {"a": PromptAndGold("1 + 1 =", "2"), "b": PromptAndGold("say \ud800")}
    with pytest.raises(ConfigError, match="already has a sample store"):
        from_parquet(tmp_path / "all.parquet", tmp_path / "t")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["prompt"].to_pylist()[5] == "1 + 1 =" and table["gold"].to_pylist()[5:7] == ["2", None]
    assert table["sample"].to_pylist()[:6] == list(range(6)) and table["rollout_logps"].to_pylist()[1][0] == -np.inf
    assert json.loads(table.schema.metadata[b"sage_rlvr"])["identity"]["decoding"]["temperature"] == 1.0
    pq.write_table(table.drop_columns(["seed"]), tmp_path / "less.parquet")
    with pytest.raises(DataError, match="lacks the identity or a column"):
        from_parquet(tmp_path / "less.parquet", tmp_path / "u")
    data = bytearray((tmp_path / "all.parquet").read_bytes())
    chunk = pq.read_metadata(tmp_path / "all.parquet").row_group(0).column(0)
    data[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 1] ^= 1
    (tmp_path / "flipped.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"flipped.parquet: .*not a Parquet file"):
        from_parquet(tmp_path / "flipped.parquet", tmp_path / "u")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a Parquet file"):
        from_parquet(tmp_path / "torn.parquet", tmp_path / "u")


@pytest.mark.parametrize("kept", [{"chance": {"law": "values", "each": [0.25, 0.5]}}, {"chance": None}, {}])
def test_the_chance_floor_goes_to_parquet_and_comes_back(kept: dict[str, Any], tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        store.note(**kept)
        to_parquet(store, tmp_path / "all.parquet")
    from_parquet(tmp_path / "all.parquet", tmp_path / "t")
    with SampleStore.open(tmp_path / "t", SMALL) as back:
        assert {name: fact for name, fact in back.facts().items() if name == "chance"} == kept


def test_a_parquet_file_without_prompts_and_golds_makes_a_store_without_them(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        store.describe({"a": PromptAndGold("1 + 1 =", "2")})
        to_parquet(store, tmp_path / "all.parquet")
        digest = store.digest()
    table = pq.read_table(tmp_path / "all.parquet")
    pq.write_table(table.drop_columns(["prompt", "gold"]), tmp_path / "all.parquet")
    assert from_parquet(tmp_path / "all.parquet", tmp_path / "t") == 12
    with SampleStore.open(tmp_path / "t", SMALL) as back:
        assert back.digest() == digest and back.questions() == {}


def replaced(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("name", "values"), [("token_ids", [1, None, 3]), ("rollout_logps", [None]), ("entropies", [0.5, None])]
)
def test_a_null_within_a_list_of_a_parquet_file_is_refused_with_its_place(name: str, values: list[Any], tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        to_parquet(store, tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    lists = table[name].to_pylist()
    lists[1], lists[8] = None, values  # a whole list may be unknown
    pq.write_table(replaced(table, name, lists), tmp_path / "all.parquet")
    with pytest.raises(DataError, match=rf"all.parquet: problem 'b', sample 2: {name} = \[.*None.* has a null among its values"):
        from_parquet(tmp_path / "all.parquet", tmp_path / "new")
    assert not (tmp_path / "new" / "store.json").exists()


@pytest.mark.parametrize("wanted", [5, None, [1], {"problems": "2"}, {"n": -1}, {"n": True}, {"other": 1}])
def test_a_requested_size_that_is_none_is_refused(wanted: Any, tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        to_parquet(store, tmp_path / "all.parquet")
        store.note(wanted=wanted)
        with pytest.raises(DataError, match=r"s: wanted = .*: must be an object"):
            store.wanted()
    table = pq.read_table(tmp_path / "all.parquet")
    about = json.loads(table.schema.metadata[b"sage_rlvr"]) | {"wanted": wanted}
    pq.write_table(table.replace_schema_metadata({"sage_rlvr": json.dumps(about)}), tmp_path / "all.parquet")
    with pytest.raises(DataError, match=r"all.parquet, its metadata: wanted = .*: must be an object"):
        from_parquet(tmp_path / "all.parquet", tmp_path / "new")
    assert not (tmp_path / "new" / "store.json").exists()


def test_a_partial_import_says_how_it_is_completed(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        store.want(PROBLEMS, 6)
        digest = store.digest()
        to_parquet(store, tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    pq.write_table(table.slice(0, 5), tmp_path / "cut.parquet")
    with pytest.raises(DataError, match=r"cut.parquet: problem 'a': of samples 4 to 5 it does not have each once"):
        from_parquet(tmp_path / "cut.parquet", tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    pq.write_table(table.slice(0, 6), tmp_path / "some.parquet")
    from_parquet(tmp_path / "some.parquet", tmp_path / "some")
    advice = r"imported from some.parquet: import a file with all samples into another folder, or sample .* with eval --store"
    with SampleStore.open(tmp_path / "some") as store:
        said = store.lacking(store.counts())
        assert said.startswith("samples of 1 of 2 problems; ") and re.search(advice, said) and "same eval" not in said
    with evaluate(tmp_path / "some", PROBLEMS, 6, SMALL) as store:  # the second advice
        assert store.digest() == digest


@pytest.mark.parametrize(
    "harm",
    [
        lambda table: table.replace_schema_metadata({"sage_rlvr": "[" * 100_000}),
        lambda table: table.replace_schema_metadata({"sage_rlvr": "[1]"}),
        lambda table: table.replace_schema_metadata({"sage_rlvr": '{"identity": [1]}'}),
        lambda table: table.replace_schema_metadata({"sage_rlvr": "{}"}),
        lambda table: table.replace_schema_metadata({}),
        lambda table: table.replace_schema_metadata(
            {"sage_rlvr": json.dumps(json.loads(table.schema.metadata[b"sage_rlvr"]) | {"chance": {"law": "x", "each": []}})}
        ),
        lambda table: table.set_column(0, "problem", [list(range(len(table)))]),
        lambda table: table.set_column(6, "token_ids", [["x"] * len(table)]),
        lambda table: table.drop_columns(["text"]),
    ],
)
def test_a_parquet_file_of_another_kind_makes_no_store(harm: Any, tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL) as store:
        to_parquet(store, tmp_path / "all.parquet")
    pq.write_table(harm(pq.read_table(tmp_path / "all.parquet")), tmp_path / "all.parquet")
    with pytest.raises(SageError, match=r"all.parquet|identity"):
        from_parquet(tmp_path / "all.parquet", tmp_path / "new")
    assert not (tmp_path / "new" / "store.json").exists()
