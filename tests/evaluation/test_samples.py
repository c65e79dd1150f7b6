"""The sample store: what was committed stays, what was not is missing, and the order in which it came does not matter."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.sample_rows import escape, unescape
from sage_rlvr.evaluation.samples import CHUNK, Chunk, Identity, Sample, SampleStore, seed_of
from samples_common import DECODING, IDENTITY, PROBLEMS, SMALL, draw, evaluate, report, rows

# ---- seeds, text, rows


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
        assert not (tmp_path / "journal.jsonl").exists() and len(store.table()) == 0


@pytest.mark.parametrize("numbers", [range(31), range(1, 33), [*range(32), 3], [*range(32), 40]])
def test_a_chunk_is_whole_or_refused(tmp_path: Path, numbers):
    with SampleStore.open(tmp_path, IDENTITY) as store, pytest.raises(DataError, match="no whole chunks of 32"):
        store.commit([draw("a", number) for number in numbers])


# ---- identity


def test_settings_have_one_spelling():
    same = replace(IDENTITY, decoding={**DECODING, "temperature": 1, "top_k": None, "min_p": 0})
    assert same == IDENTITY and IDENTITY.chunk_size == CHUNK == 32
    assert Identity.of(IDENTITY.tree()) == IDENTITY


@pytest.mark.parametrize(
    "bad", [{"temperature": None}, {"temperature": float("nan")}, {"top_p": 0}, {"preset": None}, {"max_new_tokens": 0}, {"x": {1}}]
)  # fmt: skip
def test_settings_without_meaning_are_refused(bad: dict):
    with pytest.raises(ConfigError, match=f"decoding.{next(iter(bad))}" if "x" not in bad else "decoding"):
        replace(IDENTITY, decoding=DECODING | bad)


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
    assert json.loads((tmp_path / "store.json").read_text())["changes"][0]["changed"] == {"versions.numpy": ["2", "3"]}


def test_a_store_of_another_format_is_told_apart(tmp_path: Path):
    SampleStore.open(tmp_path, IDENTITY)
    file = tmp_path / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(DataError, match="format 2, this version of sage-rlvr reads format 1"):
        SampleStore.open(tmp_path)
    with pytest.raises(DataError, match="no sample store"):
        SampleStore.open(tmp_path / "elsewhere")


def test_a_store_without_its_identity_is_not_taken_for_a_new_one(tmp_path: Path):
    evaluate(tmp_path, ["a"], 32).close()
    (tmp_path / "store.json").unlink()
    with pytest.raises(DataError, match="though the folder holds samples"):
        SampleStore.open(tmp_path, IDENTITY)


# ---- what is there


def test_the_chunks_that_lack_come_evenly_and_a_top_up_keeps_what_is_there(tmp_path: Path):
    problems = ["p10", "p2"]
    with SampleStore.open(tmp_path, IDENTITY) as store:
        assert store.missing(problems, 40) == [Chunk("p10", 0), Chunk("p2", 0), Chunk("p10", 32), Chunk("p2", 32)]
    with evaluate(tmp_path, problems, 64) as store:
        before = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
        assert store.missing(problems, 64) == []
        assert store.missing(problems, 128) == [Chunk("p10", 64), Chunk("p2", 64), Chunk("p10", 96), Chunk("p2", 96)]
        digest = store.digest(n=64)
    with evaluate(tmp_path, problems, 128) as store:
        assert before.items() <= {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}.items()
        assert store.digest(n=64) == digest != store.digest()
        table = store.table(["problem", "sample"])
        assert table["problem"].to_pylist() == ["p2"] * 128 + ["p10"] * 128  # ids by the value of their numbers
        assert table["sample"].to_pylist() == list(range(128)) * 2
        assert store.table(["problem"], problems=problems, n=3)["problem"].to_pylist() == ["p10"] * 3 + ["p2"] * 3
        with pytest.raises(DataError, match=r"2 chunks lack until every problem has n = 160 .* 'p2' from sample 128"):
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
        with pytest.raises(DataError, match=r"'a'.* stand twice"):
            store.missing(["a", "b", "a"], 1)
        for n in (0, -1, 2.0, True):
            with pytest.raises(ConfigError, match="whole number from 1 on"):
                store.missing(["a"], n)


# ---- interruptions

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("part"), st.integers(0, 1), st.floats(0, 1)),
        st.tuples(st.just("renamed"), st.integers(0, 1), st.floats(0, 1)),
        st.tuples(st.just("journal"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("damage"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("again"), st.integers(0, 1), st.just(0)),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def in_one_go() -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder, evaluate(Path(folder), PROBLEMS, 6, SMALL) as store:
        return store.digest(), report(store)


@settings(max_examples=20, deadline=None)
@example([("commit", 0, 2), ("journal", 0.96875, 0), ("part", 0, 0.0)])  # a torn line, then a kill
@given(STEPS)
def test_any_interruption_ends_in_the_same_table(in_one_go: tuple[str, bytes], steps: list[tuple]):
    check_interruptions(in_one_go, steps)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_any_of_many_interruptions_ends_in_the_same_table(in_one_go: tuple[str, bytes], steps: list[tuple]):
    check_interruptions(in_one_go, steps)


def check_interruptions(in_one_go: tuple[str, bytes], steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", UserWarning)  # damaged parts are reported, see below
        patch.setattr(os, "fsync", lambda descriptor: None)  # nothing here is about the power supply
        folder = Path(name)
        writers = [SampleStore.open(folder, SMALL), SampleStore.open(folder, SMALL)]
        for step, a, b in steps:
            writers = interrupt(folder, writers, step, a, b)
        for store in writers:
            store.close()
        with evaluate(folder, PROBLEMS, 4, SMALL) as store:
            assert store.missing(PROBLEMS, 4) == []
        with evaluate(folder, PROBLEMS, 6, SMALL, most=1) as store:
            assert (store.digest(), report(store)) == in_one_go
            assert sorted(path.name for path in (folder / "writers").iterdir()) == sorted(
                f"{store._writer.name}.{end}" for end in ("json", "lock")
            )
            assert not list(folder.glob("parts/.tmp-*"))
            named = [json.loads(line)["file"] for line in (folder / "journal.jsonl").read_bytes().splitlines()]
            assert {f"parts/{path.name}" for path in (folder / "parts").iterdir()} == set(named)


def interrupt(folder: Path, writers: list[SampleStore], step: str, a, b) -> list[SampleStore]:
    """One thing that happens to a store: a commit, a kill in the middle of one, damage, the same chunk twice."""
    journal = folder / "journal.jsonl"
    if step == "commit":
        writers[a].commit(rows(writers[a].claim(PROBLEMS, 6, b), SMALL))
    elif step in ("part", "renamed"):  # killed while the part is written, or before its line is whole
        before = journal.read_bytes() if journal.exists() else b""
        done = set((folder / "parts").glob("*")) if (folder / "parts").exists() else set()
        writers[a].commit(rows(writers[a].claim(PROBLEMS, 6, 1), SMALL))
        after = journal.read_bytes() if journal.exists() else b""
        kept = before.rfind(b"\n") + 1  # its whole lines: a torn last one is cut off first
        for part in set((folder / "parts").glob("part-*")) - done:
            if step == "part":
                half = part.with_name(f".tmp-{writers[a]._writer.name}-0.parquet")
                half.write_bytes(part.read_bytes()[: int(b * part.stat().st_size)])
                part.unlink()
        if after != before:
            journal.write_bytes(after[: kept + int(b * (len(after) - kept - 1))] if step == "renamed" else before)
        writers[a] = killed(folder, writers[a])
    elif step == "journal" and journal.exists():
        data = journal.read_bytes()
        journal.write_bytes(data[: int(a * len(data))])
        writers = [killed(folder, store) for store in writers]
    elif step == "damage":
        parts = sorted((folder / "parts").glob("part-*")) if (folder / "parts").exists() else []
        for part in parts[a : a + 1]:
            data = bytearray(part.read_bytes())
            data[int(b * (len(data) - 1))] ^= 1
            part.write_bytes(bytes(data))
    elif step == "again":
        have = [chunk for chunk in writers[a]._wanted(PROBLEMS, 6) if chunk not in writers[a].missing(PROBLEMS, 6)]
        assert writers[a].commit(rows(have, SMALL)) == []
    return writers


def killed(folder: Path, store: SampleStore) -> SampleStore:
    """Another process takes over: the system has dropped the lock of the old one, whose files are still there."""
    if store._writer is not None:
        store._writer._lock.release()
        store._writer = None
    return SampleStore.open(folder, SMALL)


def test_every_length_of_a_torn_line_is_ignored(tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    journal = tmp_path / "journal.jsonl"
    one = journal.read_bytes()
    evaluate(tmp_path, ["a"], 4, SMALL).close()
    two = journal.read_bytes()
    for length in range(len(one), len(two)):
        journal.write_bytes(two[:length])
        assert SampleStore.open(tmp_path).missing(["a"], 4) == [Chunk("a", 2, 2)]
    with evaluate(tmp_path, ["a"], 4, SMALL) as store:
        assert journal.read_bytes() == two and store.missing(["a"], 4) == []


def test_a_damaged_part_is_reported_and_sampled_again(tmp_path: Path):
    with evaluate(tmp_path, ["a", "b"], 32, most=1) as store:
        digest = store.digest()
        entry = json.loads((tmp_path / "journal.jsonl").read_bytes().splitlines()[1])
        part = tmp_path / entry["file"]
        data = part.read_bytes()
        for damaged, word in (
            (data[:-1], "truncated"),
            (data[:-9] + b"?" + data[-8:], "SHA-256"),
            (None, "No such file"),
        ):
            part.unlink() if damaged is None else part.write_bytes(damaged)
            with pytest.warns(UserWarning, match=f"{entry['file']}.*{word}.*1 chunks count as missing"):
                assert SampleStore.open(tmp_path).missing(["a", "b"], 32) == [Chunk("b", 0)]
        with pytest.warns(UserWarning, match="No such file"):
            store.commit(rows(store.claim(["a", "b"], 32)))
        assert store.digest() == digest and SampleStore.open(tmp_path).missing(["a", "b"], 32) == []


def test_a_part_that_comes_back_from_a_copy_is_not_counted_twice(tmp_path: Path):
    with evaluate(tmp_path, ["a", "b"], 2, SMALL) as store:
        digest = store.digest()
    (part,) = (tmp_path / "parts").iterdir()
    data = part.read_bytes()
    part.write_bytes(b"")
    with pytest.warns(UserWarning, match="2 chunks count as missing"), SampleStore.open(tmp_path, SMALL) as store:
        store.commit(rows(store.claim(["b"], 2), SMALL))
        part.write_bytes(data)
        assert store.digest() == digest and len(list((tmp_path / "parts").iterdir())) == 2
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(reversed(journal.read_bytes().splitlines(keepends=True))))
    assert SampleStore.open(tmp_path).digest() == digest  # whichever of the two is the first


def test_where_a_whole_line_is_damaged_nothing_is_swept(tmp_path: Path):
    evaluate(tmp_path, ["a", "b"], 2, SMALL, most=1).close()
    journal = tmp_path / "journal.jsonl"
    first, second = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first.replace(b"sha256", b"sha") + second)
    parts = set((tmp_path / "parts").iterdir())
    with pytest.warns(UserWarning, match=r"journal.jsonl:1: damaged line"), SampleStore.open(tmp_path, SMALL) as store:
        assert store.claim(["a", "b"], 2, 9) == [Chunk("a", 0, 2)]
        assert parts <= set((tmp_path / "parts").iterdir())


def test_a_journal_names_no_file_outside(tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    journal = tmp_path / "journal.jsonl"
    entry = json.loads(journal.read_bytes())
    shutil.copy(tmp_path / entry["file"], tmp_path / "outside.parquet")
    journal.write_text(json.dumps(entry | {"file": "parts/../outside.parquet"}) + "\n")
    with pytest.warns(UserWarning, match="damaged line"):
        assert len(SampleStore.open(tmp_path).table()) == 0


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        before = (tmp_path / "journal.jsonl").read_bytes()
        chunks = store.claim(["a"], 4)
        real, calls = os.fsync, []

        def full(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == 3:  # the part, its folder, and then the journal
                raise OSError(28, "No space left on device")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"No space left.*untouched. Free some space"):
            store.commit(rows(chunks, SMALL))
        monkeypatch.undo()
        assert (tmp_path / "journal.jsonl").read_bytes() == before
        assert store.commit(rows(chunks, SMALL)) == chunks


# ---- processes

WORK = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from samples_common import *
    folder, n, fatal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    calls = 0
    def count(real):
        def call(*args, **options):
            global calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return call
    os.fsync, os.replace = count(os.fsync), count(os.replace)
    print("ready", flush=True)
    sys.stdin.readline()
    store = SampleStore.open(folder, SMALL)
    while chunks := store.claim(PROBLEMS, n):
        print(*(f"{c.problem}{c.first}" for c in chunks), flush=True)
        assert store.commit(rows(chunks, SMALL)) == chunks
    """
)


def work(folder: Path, n: int, fatal: int = 0) -> subprocess.Popen:
    """A process that samples until nothing is left, or until its `fatal`-th sync or rename, at which it is killed."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here.parents[1] / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder), str(n), str(fatal)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("fatal", [13, pytest.param(None, marks=pytest.mark.slow)])
def test_sigkill_of_a_writer_leaves_a_store_that_goes_on(
    tmp_path: Path, in_one_go: tuple[str, bytes], fatal: int | None
):
    for number in [fatal] if fatal else range(1, 61, 5):
        folder = tmp_path / str(number)
        process = work(folder, 6, number)
        process.communicate("go\n")
        assert process.returncode == -signal.SIGKILL
        with evaluate(folder, PROBLEMS, 6, SMALL) as store:
            assert (store.digest(), report(store)) == in_one_go


@pytest.mark.slow
def test_two_processes_share_the_work_and_a_claim_dies_with_its_owner(tmp_path: Path):
    n = 8
    with SampleStore.open(tmp_path / "shared", SMALL) as mine:
        held = mine.claim(PROBLEMS, n, 2)
        both = [work(tmp_path / "shared", n), work(tmp_path / "shared", n)]
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate()[0].split() for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert mine.missing(PROBLEMS, n) == held  # what one has claimed the others leave alone
        assert sorted(said[0] + said[1]) == sorted(
            f"{p}{f}" for p in PROBLEMS for f in range(0, n, 2) if Chunk(p, f, 2) not in held
        )
    with (
        evaluate(tmp_path / "shared", PROBLEMS, n, SMALL) as shared,
        evaluate(tmp_path / "one", PROBLEMS, n, SMALL) as one,
    ):
        assert shared.digest() == one.digest() and report(shared) == report(one)


def test_claims_are_taken_once_given_back_and_dropped_with_the_writer(tmp_path: Path):
    with SampleStore.open(tmp_path, SMALL) as one, SampleStore.open(tmp_path, SMALL) as two:
        first = one.claim(["a", "b"], 2)
        assert first == [Chunk("a", 0, 2)] and two.claim(["a", "b"], 2, 9) == [Chunk("b", 0, 2)]
        assert one.claim(["a", "b"], 2, 9) == []
        one.release(first)
        assert two.claim(["a", "b"], 2) == first
        two.close()
        assert one.claim(["a", "b"], 2, 9) == [Chunk("a", 0, 2), Chunk("b", 0, 2)]


def test_threads_share_one_store(tmp_path: Path):
    with SampleStore.open(tmp_path / "threads", SMALL) as store:

        def run() -> None:
            while chunks := store.claim(PROBLEMS, 6):
                store.commit(rows(chunks, SMALL))

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with evaluate(tmp_path / "one", PROBLEMS, 6, SMALL) as one:
            assert store.digest() == one.digest()


def test_a_chunk_twice_is_dropped_when_it_is_the_same_and_refused_when_not(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        parts = list((tmp_path / "parts").iterdir())
        later = [replace(row, latency_s=9.0) for row in rows([Chunk("a", 0, 2)], SMALL)]
        assert store.commit(later) == [] and list((tmp_path / "parts").iterdir()) == parts
        assert store.commit([*later, *rows([Chunk("b", 0, 2)], SMALL)]) == [Chunk("b", 0, 2)]
        for change in ({"seed": 5}, {"token_ids": np.asarray(later[0].token_ids) + 1}):
            with pytest.raises(DataError, match="problem 'a', sample 0 is there already with other tokens"):
                store.commit([replace(later[0], **change), later[1]])
        assert len(store.table()) == 4


# ---- verdicts


class Verdict:
    def __init__(self, label: str, reason: str, answer: str | None = None):
        self.label, self.reason, self.answer = label, reason, answer


def lenient(problems: list[str], texts: list[str]) -> list[Verdict]:
    return [Verdict("right", f"{problem}: {text[:1]}", "\udfff") for problem, text in zip(problems, texts, strict=True)]


def test_new_verdicts_lie_over_the_old_ones(tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 4, SMALL) as store:
        parts = {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
        old = store.table(["verdict", "answer"])
        assert store.reverify(lenient, "v1", by="me", batch=3) == 8
        assert {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()} == parts
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
    with pytest.raises(ConfigError, match=r'verifier_hash: "v1" -> "v0"(?s:.)*--reverify\), after which'):
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
    facts = json.loads((tmp_path / "s" / "store.json").read_text())
    assert facts["identity"]["verifier_hash"] == "v1"
    assert facts["changes"][-1]["changed"] == {"verifier_hash": ["v0", "v1"]}
    with SampleStore.open(tmp_path / "s", newer) as store:  # and goes on, also where the old verdicts are lost again
        assert not store.missing(PROBLEMS, 6)
    with SampleStore.open(tmp_path / "alone", newer) as store:
        store.commit(judged_by_v1(store.claim(PROBLEMS, 6, 9), newer))
        assert store.digest() == digest
    next((tmp_path / "s" / "verdicts").iterdir()).unlink()
    with pytest.warns(UserWarning, match="run reverify again"), pytest.raises(ConfigError, match='"v0, v1" -> "v1"'):
        SampleStore.open(tmp_path / "s", newer)


# ---- log-probs under a base, afterwards

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


@pytest.mark.parametrize("fatal", range(7))
def test_samples_are_scored_afterwards_as_if_they_had_been_at_once(tmp_path: Path, fatal: int):
    with SampleStore.open(tmp_path / "s", SMALL) as store:
        store.commit(bare(store.claim(PROBLEMS, 6, 9)))
        parts = {path: path.read_bytes() for path in (tmp_path / "s" / "parts").iterdir()}
        left = [fatal]

        def dying(samples: list[Sample]) -> list[np.ndarray]:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return scores_of(samples)

        with contextlib.suppress(KeyboardInterrupt):
            store.score(dying, STAMP, batch=4)
    told: list[int] = []
    with SampleStore.open(tmp_path / "s") as store:
        done = 12 if fatal == 0 else 4 * ((fatal - 1) // 2)
        assert store.score(scores_of, STAMP, batch=4, progress=told.append) == 12 - done == sum(told)
        assert store.digest() == scored_at_once(tmp_path / "whole") and store.unscored(STAMP) == []
        assert all(path.read_bytes() == data for path, data in parts.items())
        assert json.loads((tmp_path / "s" / "journal.jsonl").read_text().splitlines()[-1])["supersedes"] == "base_logps"
        assert store.score(lambda samples: [2 * x for x in scores_of(samples)], ("scored under", "other")) == 12
        assert store.samples()[0].base_logps.tolist() == pytest.approx((2 * scores_of(store.samples()[:1])[0]).tolist())


def test_scores_that_are_lost_leave_the_samples_and_are_made_again(tmp_path: Path):
    with SampleStore.open(tmp_path, SMALL) as store:
        store.commit(bare(store.claim(PROBLEMS, 2, 9)))
        store.reverify(lenient, "v1")
        before = store.digest()
        store.score(scores_of, STAMP)
        assert set(store.table(["verifier"])["verifier"].to_pylist()) == {"v1"} and store.digest() != before
        scored = store.digest()
    newest = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])["file"]
    (tmp_path / newest).write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match="as the older parts have them, without its base_logps"):
        store = SampleStore.open(tmp_path)
        assert store.digest() == before
    assert store.score(scores_of, STAMP) == 4 and store.digest() == scored
    store.close()


def test_scores_that_do_not_fit_are_refused_and_texts_alone_are_left(tmp_path: Path):
    with SampleStore.open(tmp_path / "s", SMALL) as store:
        store.commit(bare(store.claim(["a"], 2)))
        with pytest.raises(DataError, match="one number a token"):
            store.score(lambda samples: [np.zeros(1)] * len(samples), STAMP)
        assert len(store.unscored(STAMP)) == 1 and len(list((tmp_path / "s" / "parts").iterdir())) == 1
    with SampleStore.open(tmp_path / "t", SMALL) as store:
        drawn = [replace(row, token_ids=None, rollout_logps=None, entropies=None) for row in bare([Chunk("a", 0, 2)])]
        store.commit(drawn)
        with pytest.warns(UserWarning, match="2 samples have no token ids"):
            assert store.score(scores_of, STAMP) == 0


def test_a_verdict_is_of_the_text_that_it_saw(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        store.reverify(lenient, "v1")
    next((tmp_path / "parts").glob("part-*")).unlink()
    with pytest.warns(UserWarning, match="count as missing"), SampleStore.open(tmp_path, SMALL) as store:
        fresh = [replace(row, text=row.text + "!", verdict="wrong") for row in rows(store.claim(["a"], 2), SMALL)]
        store.commit(fresh)
        assert store.table(["verifier"])["verifier"].to_pylist() == ["v0", "v0"]


def test_a_damaged_file_of_verdicts_is_reported(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        store.reverify(lenient, "v1")
    file = next((tmp_path / "verdicts").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="its verdicts do not count, run reverify again"):
        assert SampleStore.open(tmp_path).table(["verifier"])["verifier"].to_pylist() == ["v0", "v0"]


@pytest.mark.parametrize("said", [[], [Verdict("right", "x")], [Verdict("no", "x")] * 2])
def test_a_verifier_that_answers_wrongly_changes_nothing(tmp_path: Path, said: list):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        with pytest.raises(DataError, match="reverify: "):
            store.reverify(lambda problems, texts: said, "v1")
        assert not list((tmp_path / "verdicts").iterdir())


# ---- repeats


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
        drawn = rng.choice(len(p), 64, p=p)
        logps = [np.log(p[[y]]) for y in drawn]
        alarms += (
            repeats.impossible_repeat(["a"] * 64, list(range(64)), [drawn[[i]] for i in range(64)], logps, False)
            is not None
        )
    assert alarms < 100


def test_the_parts_can_be_read_by_anyone(tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    table = pq.read_table(next((tmp_path / "parts").iterdir()))
    assert table["sample"].to_pylist() == [0, 1] and table["rollout_logps"].to_pylist()[1][0] == -np.inf
    identity = json.loads(table.schema.metadata[b"sage_rlvr"])["identity"]
    assert identity["model"] == "tiny" and identity["decoding"]["temperature"] == 1.0 and "versions" not in identity
