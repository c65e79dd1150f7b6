"""The sample store is a set of whole parts: killed, copied, restored, doubled or damaged, nothing is lost or changed unseen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import call, said
from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation import sampling
from sage_rlvr.evaluation.store import Chunk, Identity, PromptAndGold, SampleStore, claims
from sage_rlvr.evaluation.store import parts as store_parts
from samples_common import PROBLEMS, SMALL, TURNS, draw, evaluate, lenient, report, rows


@cache
def in_one_go(identity_turns: int) -> tuple[str, bytes]:
    identity = {1: SMALL, 3: TURNS}[identity_turns]
    with tempfile.TemporaryDirectory() as folder, evaluate(Path(folder), PROBLEMS, 6, identity) as store:
        return store.digest(), report(store)


def parts(folder: Path, kind: str = "samples") -> list[Path]:
    return sorted((folder / kind).glob("*.parquet"))


# ---- killed

WORK = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from sage_rlvr.evaluation.store import PromptAndGold
    from samples_common import *
    folder, n, fatal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    identity = TURNS if sys.argv[4] == "3" else SMALL
    calls = 0
    def counted(real):
        def call(*args, **options):
            global calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return call
    print("ready", flush=True)
    sys.stdin.readline()
    for name in ("open", "link", "replace", "unlink", "fsync", "listdir"):
        setattr(os, name, counted(getattr(os, name)))
    with SampleStore.open(folder, identity) as store:
        store.want(PROBLEMS, n)
        while chunks := store.claim(PROBLEMS, n):
            print(*(f"{c.problem}{c.first}" for c in chunks), flush=True)
            assert store.commit(rows(chunks, identity)) == chunks
        if fatal:
            store.reverify(lenient, "v1", batch=3)
            store.describe({"a": PromptAndGold("1 + 1 =", "2")})
    """
)


def work(folder: Path, n: int, fatal: int = 0, turns: int = 1) -> subprocess.Popen:
    """A process that samples until nothing is left, judges again and merges, or is killed at its `fatal`-th call of the system."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent / "helpers"), str(here.parents[1] / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder), str(n), str(fatal), str(turns)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == "ready\n"
    return process


def judged_by_all(folder: Path, identity: Identity) -> tuple[str, bytes]:
    """What the store has in the end, however often it was killed before."""
    with SampleStore.open(folder, identity) if not (folder / "verdicts").exists() else SampleStore.open(folder) as store:
        while chunks := store.claim(PROBLEMS, 6, 2):
            store.commit(rows(chunks, identity))
        store.reverify(lenient, "v1")
        store.describe({"a": PromptAndGold("1 + 1 =", "2")})
    with SampleStore.open(folder) as store:
        assert not list((folder / "writing").glob("*"))
        return store.digest(), report(store)


@pytest.mark.parametrize("identity", [SMALL, TURNS], ids=["completions", "episodes"])
@pytest.mark.parametrize("fatal", [30, 100, pytest.param(None, marks=pytest.mark.slow)])
def test_sigkill_of_a_writer_leaves_a_store_that_goes_on(tmp_path: Path, fatal: int | None, identity: Identity):
    whole = judged_by_all(tmp_path / "whole", identity)
    for number in [fatal] if fatal else range(1, 180, 7):
        folder = tmp_path / str(number)
        process = work(folder, 6, number, identity.turns)
        process.communicate("go\n")
        assert process.returncode == -signal.SIGKILL or number > 150
        assert judged_by_all(folder, identity) == whole, number


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("killed"), st.integers(0, 1), st.floats(0, 1)),
        st.tuples(st.just("merge"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("again"), st.integers(0, 1), st.just(0)),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([SMALL, TURNS]))
def test_any_interruption_ends_in_the_same_table(steps: list[tuple], identity: Identity):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as closed:
        folder = Path(name) / "0"
        writers = [closed.enter_context(SampleStore.open(folder, identity)) for _ in range(2)]
        for step, a, b in steps:
            if step == "killed":
                writers[a].claim(PROBLEMS, 6, 1)
                folder = copied(folder, folder.with_name(str(int(folder.name) + 1)), b)
                writers = [closed.enter_context(SampleStore.open(folder, identity)) for _ in range(2)]
            elif step == "commit":
                writers[a].commit(rows(writers[a].claim(PROBLEMS, 6, b), identity))
            elif step == "merge":
                writers[a].merge()
            else:  # the same chunks twice
                lacking = writers[a].missing(PROBLEMS, 6)
                have = [Chunk(p, f, 2) for p in PROBLEMS for f in (0, 2, 4) if Chunk(p, f, 2) not in lacking]
                assert writers[a].commit(rows(have, identity)) == []
        closed.close()
        with evaluate(folder, PROBLEMS, 4, identity) as store:
            assert store.missing(PROBLEMS, 4) == []
        with evaluate(folder, PROBLEMS, 6, identity, most=1) as store:
            assert (store.digest(), report(store)) == in_one_go(identity.turns)
        assert not list((folder / "writing").iterdir())


def copied(folder: Path, fresh: Path, share: float = 1.0) -> Path:
    """A copy of a store, of this share of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "store.json")
    for file in [folder / "store.json", *files[: round(share * len(files))]]:
        (fresh / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, fresh / file.relative_to(folder))
    return fresh


# ---- several writers


@pytest.mark.slow
def test_sigkills_at_random_moments_and_three_writers_at_once(tmp_path: Path):
    rng, n = np.random.default_rng(0), 200
    for _ in range(5):
        three = [work(tmp_path / "torn", n) for _ in range(3)]
        for process in three:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in three:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=rng.uniform(0.05, 0.5))
            process.kill()
            process.communicate()
    with evaluate(tmp_path / "torn", PROBLEMS, n, SMALL) as torn, evaluate(tmp_path / "one", PROBLEMS, n, SMALL) as one:
        assert torn.digest() == one.digest() and report(torn) == report(one)


@pytest.mark.slow
def test_two_processes_share_the_work_and_a_claim_dies_with_its_owner(tmp_path: Path):
    n = 8
    with SampleStore.open(tmp_path / "shared", SMALL) as mine:
        held = mine.claim(PROBLEMS, n, 2)
        both = [work(tmp_path / "shared", n), work(tmp_path / "shared", n)]
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate()[0].split() for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert mine.missing(PROBLEMS, n) == held  # what one has claimed the others leave alone
        wanted = [f"{p}{f}" for p in PROBLEMS for f in range(0, n, 2) if Chunk(p, f, 2) not in held]
        assert sorted(told[0] + told[1]) == sorted(wanted)
    with evaluate(tmp_path / "shared", PROBLEMS, n, SMALL) as shared, evaluate(tmp_path / "one", PROBLEMS, n, SMALL) as one:
        assert shared.digest() == one.digest() and report(shared) == report(one)


def test_claims_are_taken_once_given_back_and_dropped_with_the_writer(tmp_path: Path):
    with SampleStore.open(tmp_path, SMALL) as one, SampleStore.open(tmp_path, SMALL) as two:
        first = one.claim(["a", "b"], 2)
        assert first == [Chunk("a", 0, 2)] and two.claim(["a", "b"], 2, 9) == [Chunk("b", 0, 2)]
        assert one.claim(["a", "b"], 2, 9) == []
        one.release()
        assert two.claim(["a", "b"], 2) == first
        two.close()
        assert one.claim(["a", "b"], 2, 9) == [Chunk("a", 0, 2), Chunk("b", 0, 2)]


def test_a_chunk_that_another_writer_has_committed_is_not_claimed_again(tmp_path: Path):
    with SampleStore.open(tmp_path, SMALL) as one, SampleStore.open(tmp_path, SMALL) as two:
        assert one.claim(PROBLEMS, 2, 0) == [] == two.claim(PROBLEMS, 2, 0)  # both have looked
        one.commit(rows(one.claim(PROBLEMS, 2), SMALL))
        assert two.claim(PROBLEMS, 2, 9) == [Chunk("b", 0, 2)]


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


def test_a_store_is_made_once_whoever_makes_it(tmp_path: Path):
    seeds = range(8)
    gate, failed = threading.Barrier(len(seeds)), []

    def run(seed: int) -> None:
        gate.wait()
        try:
            SampleStore.open(tmp_path / "s", replace(SMALL, seed=seed)).close()
        except Exception as error:
            failed.append(str(error))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == len(seeds) - 1 and all("made otherwise" in text for text in failed)


def test_a_chunk_twice_is_dropped_when_it_is_the_same_and_refused_when_not(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        later = [replace(row, latency_s=9.0) for row in rows([Chunk("a", 0, 2)], SMALL)]
        assert store.commit(later) == []
        assert store.commit([*later, *rows([Chunk("b", 0, 2)], SMALL)]) == [Chunk("b", 0, 2)]
        for change in ({"seed": 5}, {"token_ids": np.asarray(later[0].token_ids) + 1}):
            with pytest.raises(DataError, match="problem 'a', sample 0 already exists with other tokens"):
                store.commit([replace(later[0], **change), later[1]])
        assert len(store.table()) == 4


CLAIM = """
import sys
from pathlib import Path
from samples_common import *
store = SampleStore.open(Path(sys.argv[1]), SMALL)
print(store.claim(["a"], 2), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_the_process_whose_claims_are_waited_for_is_named_and_said_to_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sampling, "NOTICE_S", 0.2)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent / "helpers"), str(here.parents[1] / "src")])
    with SampleStore.open(tmp_path, SMALL) as store:
        other = subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        try:
            assert other.stdout.readline().startswith(b"[Chunk")
            other.send_signal(signal.SIGSTOP)
            threading.Timer(1.0, other.kill).start()
            task = SimpleNamespace(problems={"a": None})
            run = sampling.SamplingRun(task, {}, SimpleNamespace(name="tiny", at_once=1))  # type: ignore[arg-type]
            monkeypatch.setattr(sampling.SamplingRun, "samples", lambda self, identity, chunks: rows(chunks, identity))
            state = " \\(stopped\\)" if sys.platform.startswith("linux") else ""
            with pytest.warns(
                UserWarning, match=rf"waiting for 1 chunks that process {other.pid}{state} is sampling.*kill -CONT PID"
            ):
                run.run(store, 2, pause=0.05)
            assert len(store.table()) == 2
        finally:
            other.kill()
            other.wait()


def test_a_file_system_without_locks_or_links_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    with SampleStore.open(tmp_path, SMALL) as store:
        monkeypatch.setattr(claims.os, "link", refuse)
        with pytest.raises(RunLocked, match=r"cannot lock or link files here \(Operation not supported\); put the store on"):
            store.claim(["a"], 2)


# ---- merged


def test_small_parts_are_merged_by_the_writer_and_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = SampleStore.open(tmp_path / "s", SMALL)
    while chunks := store.claim(PROBLEMS, 6):
        unknown = dict.fromkeys(("rollout_logps", "base_logps", "entropies"))
        store.commit([replace(row, **unknown) for row in rows(chunks, SMALL)])
    digest = store.digest()
    reader = SampleStore.open(tmp_path / "s")
    assert len(parts(tmp_path / "s")) == 6 and reader.digest() == digest
    copied(tmp_path / "s", tmp_path / "t")  # as a killed writer leaves it
    store.close()
    assert len(parts(tmp_path / "s")) == 1 and reader.digest() == digest == SampleStore.open(tmp_path / "s").digest()
    assert call("samples", tmp_path / "t", "--merge") == 0
    assert "6 parts merged into 1" in said(capsys)[0]
    assert len(parts(tmp_path / "t")) == 1 and SampleStore.open(tmp_path / "t").digest() == digest


def test_one_process_merges_at_a_time(tmp_path: Path):
    """Two would each write all of the samples."""
    store = evaluate(tmp_path, PROBLEMS, 6, SMALL, most=1)
    with open(tmp_path / "store.json", "rb") as merging:
        fcntl.flock(merging, fcntl.LOCK_EX)
        waits = threading.Thread(target=store.close)
        waits.start()
        waits.join(0.2)
        assert len(parts(tmp_path)) == 6
    waits.join()
    assert len(parts(tmp_path)) == 1


def test_parts_may_be_merged_while_another_process_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer, listed, seen = evaluate(tmp_path, PROBLEMS, 4, SMALL, most=1), store_parts.parts_in, []

    def listing(folder: Path, kind: str) -> list[str]:
        names = listed(folder, kind)
        seen.append(names)
        if len(seen) == 1:
            writer.close()  # after this the listed parts are gone
        return names

    monkeypatch.setattr(store_parts, "parts_in", listing)
    with SampleStore.open(tmp_path) as store:
        assert store.claim(PROBLEMS, 6, 9) == [Chunk("a", 4, 2), Chunk("b", 4, 2)]
    assert len(seen[0]) == 4


def test_large_parts_are_left_and_verdicts_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with evaluate(tmp_path, PROBLEMS, 6, SMALL, most=1) as store:
        store.reverify(lenient, "v1", by="me", batch=2)
        store.reverify(lambda problems, texts: lenient(problems, texts), "v2", by="me", batch=5)
        digest, passes = store.digest(), [(one["verifier_hash"], one["rows"]) for one in store.verifiers()]
        monkeypatch.setattr("sage_rlvr.evaluation.store.parts.SMALL", 0)
        assert store.merge() == (6, 6)
        monkeypatch.undo()
    assert passes[:2] == [("v0", 12), ("v1", 2)] and passes[-1] == ("v2", 2)
    with SampleStore.open(tmp_path) as store:
        assert store.digest() == digest and len(parts(tmp_path)) == 1
        assert len(store.table(verifier="v1")) == 12 and {row.reason for row in store.samples()}


def test_the_parts_are_read_by_pandas_as_they_are(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    with evaluate(tmp_path, PROBLEMS, 6, SMALL) as store:
        store.reverify(lenient, "v1")
        store.describe({"a": PromptAndGold("1 + 1 =", "2")})
        assert len(pandas.read_parquet(tmp_path / "samples")) == 12 and len(pandas.read_parquet(tmp_path / "verdicts")) == 12
    assert sorted(pandas.read_parquet(tmp_path / "samples")["sample"]) == sorted([*range(6), *range(6)])


# ---- copied


def test_a_copy_put_over_a_newer_store_and_a_newer_one_over_a_copy_lose_nothing(tmp_path: Path):
    evaluate(tmp_path / "old", PROBLEMS, 2, SMALL).close()
    evaluate(copied(tmp_path / "old", tmp_path / "new"), PROBLEMS, 6, SMALL).close()
    for over, under in (("old", "new"), ("new", "old")):
        both = copied(tmp_path / under, tmp_path / f"{over}-over-{under}")
        copied(tmp_path / over, both)
        with SampleStore.open(both, SMALL) as store:
            assert store.missing(PROBLEMS, 6) == [] and store.digest() == in_one_go(1)[0]


def test_copies_that_were_continued_apart_are_put_together(tmp_path: Path):
    evaluate(tmp_path / "one", ["a"], 2, SMALL).close()
    copied(tmp_path / "one", tmp_path / "two")
    evaluate(tmp_path / "one", ["a"], 6, SMALL).close()
    with evaluate(tmp_path / "two", PROBLEMS, 4, SMALL) as store:
        store.describe({"a": PromptAndGold("1 + 1 =", "2")})
    copied(tmp_path / "two", tmp_path / "one")
    with SampleStore.open(tmp_path / "one", SMALL) as store:
        assert store.missing(PROBLEMS, 6) == [Chunk("b", 4, 2)] and store.questions()["a"].gold == "2"
        store.commit(rows(store.claim(PROBLEMS, 6), SMALL))
        assert store.digest() == in_one_go(1)[0]


def test_a_folder_that_was_doubled_is_the_same_store(tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 6, SMALL) as store:
        store.reverify(lenient, "v1")
        digest = store.digest()
    for file in [*tmp_path.glob("*/*.parquet"), *tmp_path.glob("*/*.json")]:
        shutil.copy(file, file.with_name(f"{file.stem} (1){file.suffix}"))
    with SampleStore.open(tmp_path) as store:
        assert store.digest() == digest and store.merge() == (2, 1)
        assert store.digest() == digest and len(parts(tmp_path)) == 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_half_copied_folder_lacks_samples_and_is_completed(tmp_path: Path, share: float):
    store = evaluate(tmp_path / "s", PROBLEMS, 6, SMALL, most=1)
    copied(tmp_path / "s", tmp_path / "t", share)
    store.close()
    with evaluate(tmp_path / "t", PROBLEMS, 6, SMALL) as half:
        assert half.digest() == in_one_go(1)[0]


def test_a_part_that_was_copied_in_half_is_named_until_it_is_gone(tmp_path: Path):
    evaluate(tmp_path, PROBLEMS, 6, SMALL).close()
    (part,) = parts(tmp_path)
    part.write_bytes(part.read_bytes()[:-100])
    for identity in (None, SMALL):
        with pytest.raises(DataError, match=rf"{part}: damaged: its bytes do not have the hash in its name.*delete it"):
            SampleStore.open(tmp_path, identity).missing(PROBLEMS, 6)
    part.unlink()
    with evaluate(tmp_path, PROBLEMS, 6, SMALL) as store:
        assert store.digest() == in_one_go(1)[0]


def test_other_samples_of_the_same_chunk_are_a_conflict_that_names_both_files(tmp_path: Path):
    evaluate(tmp_path / "one", PROBLEMS, 2, SMALL).close()
    with SampleStore.open(tmp_path / "two", SMALL) as two:
        unknown = dict.fromkeys(("rollout_logps", "base_logps", "entropies"))
        two.commit([replace(draw("b", n, SMALL), token_ids=[1], **unknown) for n in (0, 1)])
    ((mine,), (theirs,)) = parts(tmp_path / "one"), parts(tmp_path / "two")
    shutil.copy(theirs, mine.parent)
    with pytest.raises(DataError) as caught:
        SampleStore.open(tmp_path / "one").counts()
    for word in (str(mine), str(mine.with_name(theirs.name)), "samples 0 to 1 of problem 'b'", "Move one of the two files"):
        assert word in str(caught.value)


@pytest.mark.parametrize("change", [{"seed": 8}, {"model": "other"}, {"chunk_size": 1}])
def test_a_part_of_another_store_is_named(tmp_path: Path, change: dict):
    evaluate(tmp_path / "one", PROBLEMS, 2, SMALL).close()
    evaluate(tmp_path / "two", PROBLEMS, 2, replace(SMALL, **change)).close()
    for part in parts(tmp_path / "two"):
        shutil.copy(part, tmp_path / "one" / "samples")
    with pytest.raises(DataError, match=rf"{parts(tmp_path / 'two')[0].name}: is a part of another store: .* move it"):
        SampleStore.open(tmp_path / "one").counts()


@pytest.mark.slow
def test_a_part_of_another_kind_and_a_file_without_a_hash_are_named(tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 2, SMALL) as store:
        store.reverify(lenient, "v1")
    (verdicts,) = parts(tmp_path, "verdicts")
    moved = Path(shutil.copy(verdicts, tmp_path / "samples"))
    with pytest.raises(DataError, match=rf"{moved.name}: damaged: is no part of samples.* Move it to .*verdicts"):
        SampleStore.open(tmp_path).counts()
    moved.rename(tmp_path / "samples" / "mine.parquet")
    with pytest.raises(DataError, match=r"mine.parquet: damaged: its name does not hold a hash.* Move it out"):
        SampleStore.open(tmp_path).counts()


# ---- damaged


def everything(folder: Path) -> tuple[str, bytes, object]:
    with SampleStore.open(folder) as store:
        return store.digest(), report(store), (store.questions(), store.facts(), store.table(verifier="v0"))


@pytest.mark.parametrize("step", [97, pytest.param(7, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_byte_of_any_file_is_detected_or_harmless(tmp_path: Path, step: int):
    with evaluate(tmp_path / "s", PROBLEMS, 2, SMALL) as store:
        store.reverify(lenient, "v1", by="me")
        store.describe({"a": PromptAndGold("1 + 1 =", "2")})
        store.want(PROBLEMS, 2)
        store.score(lambda samples: [np.asarray(one.token_ids) / -100 for one in samples], ("scored under", "base h"))
    whole, refused, flipped = everything(tmp_path / "s"), 0, 0
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"s", "samples", "verdicts", "scores", "problems", "notes"}
    for file in files:
        data = file.read_bytes()
        for place in range(0, len(data), step):
            flipped += 1
            file.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            try:
                assert everything(tmp_path / "s") == whole, (file, place)
            except DataError as error:
                assert file.name in str(error)
                refused += 1
        file.write_bytes(data)
    assert refused > 0.95 * flipped


def test_a_part_that_is_lost_is_drawn_again(tmp_path: Path):
    store = evaluate(tmp_path, PROBLEMS, 6, SMALL, most=1)
    copied(tmp_path, tmp_path / "t")
    store.close()
    parts(tmp_path / "t")[2].unlink()
    with SampleStore.open(tmp_path / "t") as store, pytest.raises(DataError, match="1 chunks are missing for n = 6"):
        store.counts(6)
    with evaluate(tmp_path / "t", PROBLEMS, 6, SMALL) as store:
        assert store.digest() == in_one_go(1)[0]


def test_a_lost_note_or_store_json_is_a_sentence(tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    (tmp_path / "store.json").unlink()
    with pytest.raises(DataError, match=r"no sample store \(store.json is missing\)"):
        SampleStore.open(tmp_path)
    with SampleStore.open(tmp_path, SMALL) as store:  # the same evaluation finds its samples
        assert store.missing(["a"], 2) == []
    (tmp_path / "store.json").unlink()
    with pytest.raises(DataError, match="is a part of another store"):
        SampleStore.open(tmp_path, replace(SMALL, seed=8))
    assert not (tmp_path / "store.json").exists()


# ---- disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """bytes -> an empty disk of that size."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        place = tmp_path / f"disk{size}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("only root may mount a small disk")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tmpfs is Linux's")
def test_a_full_disk_loses_nothing(tmp_path: Path, disk: Callable[[int], Path]):
    refused = 0
    for size in range(4096 * 4, 4096 * 40, 4096 * 4):
        place, committed = disk(size), []
        try:
            with SampleStore.open(place / "s", SMALL) as store:
                while chunks := store.claim(PROBLEMS, 6):
                    committed += store.commit(rows(chunks, SMALL))
        except DataError as error:
            assert "Free some space, then run the same command again" in str(error)
            refused += 1
        shutil.copytree(place, tmp_path / f"copy{size}")
        if (tmp_path / f"copy{size}" / "s" / "store.json").exists():
            with SampleStore.open(tmp_path / f"copy{size}" / "s") as store:
                assert set(committed).isdisjoint(store.missing(PROBLEMS, 6))
        with evaluate(tmp_path / f"copy{size}" / "s", PROBLEMS, 6, SMALL) as store:
            assert store.digest() == in_one_go(1)[0]
    assert refused > 2


def test_a_full_disk_at_the_merge_warns_and_leaves_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    store = evaluate(tmp_path, PROBLEMS, 6, SMALL, most=1)
    with monkeypatch.context() as patch:
        patch.setattr("sage_rlvr.runs.files.sync_file", full)
        with pytest.warns(UserWarning, match=r"No space left on device.*Free some space.*were not merged; all samples are there"):
            store.close()
    assert len(parts(tmp_path)) == 6 and SampleStore.open(tmp_path).digest() == in_one_go(1)[0]


def test_a_store_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with evaluate(tmp_path / "s", ["a"], 2, SMALL) as store:
        digest = store.digest()
    shutil.rmtree(tmp_path / "s" / "writing")
    before = sorted((tmp_path / "s").rglob("*"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("mkdir", "link", "replace", "unlink", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    with SampleStore.open(tmp_path / "s") as store:
        assert store.digest() == digest and sorted((tmp_path / "s").rglob("*")) == before
        with pytest.raises(DataError, match=r"Read-only file system; every committed sample is unchanged\. Fix this"):
            store.want(["a"], 9)


def test_a_part_has_page_checksums_for_other_readers(tmp_path: Path):
    evaluate(tmp_path, PROBLEMS, 6, SMALL).close()
    (part,) = parts(tmp_path)
    assert pq.read_table(part, page_checksum_verification=True).num_rows == 12
