"""The sample store: what was committed stays, what was not is missing, and the order in which it came does not matter."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import Chunk, Identity, SampleStore
from samples_common import PROBLEMS, SMALL, TURNS, evaluate, lenient, report, rows

# ---- interruptions

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("killed"), st.integers(0, 1), st.floats(0, 1)),
        st.tuples(st.just("again"), st.integers(0, 1), st.just(0)),
    ),
    max_size=8,
)


@cache
def in_one_go(identity_turns: int) -> tuple[str, bytes]:
    identity = {1: SMALL, 3: TURNS}[identity_turns]
    with tempfile.TemporaryDirectory() as folder, evaluate(Path(folder), PROBLEMS, 6, identity) as store:
        return store.digest(), report(store)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@example([("commit", 0, 2), ("killed", 0, 0.97), ("killed", 1, 0.0)], SMALL)
@example([("commit", 0, 2), ("killed", 0, 0.97), ("killed", 1, 0.0)], TURNS)
@given(STEPS, st.sampled_from([SMALL, TURNS]))
def test_any_interruption_ends_in_the_same_table(steps: list[tuple], identity: Identity):
    check_interruptions(steps, identity)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([SMALL, TURNS]))
def test_any_of_many_interruptions_ends_in_the_same_table(steps: list[tuple], identity: Identity):
    check_interruptions(steps, identity)


def check_interruptions(steps: list[tuple], identity: Identity) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as closed:
        folder = Path(name) / "0"
        writers = [closed.enter_context(SampleStore.open(folder, identity)) for _ in range(2)]
        for step, a, b in steps:
            if step == "killed":
                folder = killed(folder, writers[a], b, identity)
                writers = [closed.enter_context(SampleStore.open(folder, identity)) for _ in range(2)]
            elif step == "commit":
                writers[a].commit(rows(writers[a].claim(PROBLEMS, 6, b), identity))
            else:  # the same chunks twice
                lacking = writers[a].missing(PROBLEMS, 6)
                have = [Chunk(p, f, 2) for p in PROBLEMS for f in (0, 2, 4) if Chunk(p, f, 2) not in lacking]
                assert writers[a].commit(rows(have, identity)) == []
        closed.close()
        with evaluate(folder, PROBLEMS, 4, identity) as store:
            assert store.missing(PROBLEMS, 4) == []
        with evaluate(folder, PROBLEMS, 6, identity, most=1) as store:
            assert (store.digest(), report(store)) == in_one_go(identity.turns)
        assert not list(folder.glob("writer-*")) and not list(folder.glob(".tmp-*"))


def killed(folder: Path, store: SampleStore, share: float, identity: Identity = SMALL) -> Path:
    """The folder as a kill in the middle of a commit leaves it: what the log grew by is written in part."""
    log, fresh = folder / "store.sqlite-wal", folder.with_name(str(int(folder.name) + 1))
    before = log.stat().st_size if log.exists() else 0
    store.commit(rows(store.claim(PROBLEMS, 6, 1), identity))
    fresh.mkdir()
    shutil.copy(folder / "store.sqlite", fresh)
    data = log.read_bytes() if log.exists() else b""
    (fresh / log.name).write_bytes(data[: before + int(share * (len(data) - before))])
    return fresh


def test_a_log_that_is_cut_at_any_length_has_whole_chunks(tmp_path: Path):
    with SampleStore.open(tmp_path / "0", SMALL) as store:
        store.commit(rows([Chunk("a", 0, 2)], SMALL))
        one = (tmp_path / "0" / "store.sqlite-wal").stat().st_size
        store.commit(rows([Chunk("a", 2, 2)], SMALL))
        data = (tmp_path / "0" / "store.sqlite-wal").read_bytes()
        for number, length in enumerate([*range(0, len(data), 509), len(data)], start=1):
            folder = tmp_path / str(number)
            folder.mkdir()
            shutil.copy(tmp_path / "0" / "store.sqlite", folder)
            (folder / "store.sqlite-wal").write_bytes(data[:length])
            with SampleStore.open(folder) as cut:
                have = len(cut.table()) // 2
                assert cut.missing(["a"], 4) == [Chunk("a", 0, 2), Chunk("a", 2, 2)][have:]
                assert have == 2 * (length == len(data)) or (have == 1) == (one <= length < len(data)) or have == 0
        assert have == 2


@pytest.mark.slow
def test_a_damaged_store_is_refused_with_a_sentence_or_read(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL) as store:
        store.reverify(lenient, "v1")
        known = store.counts()
    data, refused = (tmp_path / "s" / "store.sqlite").read_bytes(), 0
    (tmp_path / "t").mkdir()
    for place in np.random.default_rng(0).integers(0, len(data), 150):
        harmed = bytearray(data)
        harmed[place] ^= 1 << int(place) % 8
        (tmp_path / "t" / "store.sqlite").write_bytes(harmed)
        try:
            with SampleStore.open(tmp_path / "t") as store:
                assert store.digest() and report(store) and store.counts().n.tolist() == known.n.tolist()
        except DataError as error:
            assert str(tmp_path / "t") in str(error)
            refused += 1
    assert refused > 10
    for harmed in (data[: len(data) // 2], b"no database at all" * 99):
        (tmp_path / "t" / "store.sqlite").write_bytes(harmed)
        with pytest.raises(DataError, match=r"damaged: .*Restore it from a copy"):
            SampleStore.open(tmp_path / "t").digest()


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
        "ALTER TABLE meta RENAME TO kept; CREATE VIEW meta AS WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT kept.* FROM kept, c",
    ],
)
def test_a_store_that_brings_a_program_is_refused(made: str, tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as db:
        db.executescript(made)
    with pytest.raises(DataError, match=r"damaged: the (trigger 't'|view 'meta') is not part of a sample store"):
        SampleStore.open(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path: Path):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        digest, chunks = store.digest(), store.claim(["a"], 4)
        long = [replace(row, text="x" * 10**6) for row in rows(chunks, SMALL)]
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 9}")
        with pytest.raises(DataError, match=r"disk is full.*unchanged. Free some space"):
            store.commit(long)
        assert store.digest() == digest
        store._db.execute("PRAGMA max_page_count = 1073741823")
        assert store.commit(long) == chunks


def test_a_file_system_without_a_log_ahead_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Plain(sqlite3.Connection):
        def execute(self, sql: str, *more):
            return super().execute("SELECT 'delete'" if sql.endswith("= WAL") else sql, *more)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, factory=Plain, **k: real(*a, factory=factory, **k))
    with pytest.warns(UserWarning, match=r"no write-ahead log on this file system \(delete\).*use a separate store on each"):
        evaluate(tmp_path / "s", ["a"], 2, SMALL).close()
    assert len(SampleStore.open(tmp_path / "s").table()) == 2


def test_a_store_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with evaluate(tmp_path, ["a"], 2, SMALL) as store:
        digest = store.digest()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with SampleStore.open(tmp_path) as store:
        assert store.digest() == digest and sorted(tmp_path.iterdir()) == before
        with pytest.raises(DataError, match="readonly"):
            store.want(["a"], 9)


# ---- processes

WORK = textwrap.dedent(
    """
    import os, signal, sqlite3, sys
    from pathlib import Path
    from samples_common import *
    folder, n, fatal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    identity = TURNS if sys.argv[4] == "3" else SMALL
    calls, real = 0, sqlite3.connect
    def count(sql):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    def connect(*args, **options):
        db = real(*args, **options)
        db.set_trace_callback(count)
        return db
    sqlite3.connect = connect
    print("ready", flush=True)
    sys.stdin.readline()
    store = SampleStore.open(folder, identity)
    while chunks := store.claim(PROBLEMS, n):
        print(*(f"{c.problem}{c.first}" for c in chunks), flush=True)
        assert store.commit(rows(chunks, identity)) == chunks
    """
)


def work(folder: Path, n: int, fatal: int = 0, turns: int = 1) -> subprocess.Popen:
    """A process that samples until nothing is left, or until its `fatal`-th SQL statement, at which it is killed."""
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


@pytest.mark.parametrize("identity", [SMALL, TURNS], ids=["completions", "episodes"])
@pytest.mark.parametrize("fatal", [60, pytest.param(None, marks=pytest.mark.slow)])
def test_sigkill_of_a_writer_leaves_a_store_that_goes_on(tmp_path: Path, fatal: int | None, identity: Identity):
    for number in [fatal] if fatal else range(1, 120, 7):
        folder = tmp_path / str(number)
        process = work(folder, 6, number, identity.turns)
        process.communicate("go\n")
        assert process.returncode == -signal.SIGKILL
        with evaluate(folder, PROBLEMS, 6, identity) as store:
            assert (store.digest(), report(store)) == in_one_go(identity.turns)


@pytest.mark.slow
def test_sigkills_at_random_moments_and_three_writers_at_once(tmp_path: Path):
    rng, n = np.random.default_rng(0), 400
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
        one.release()
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
        later = [replace(row, latency_s=9.0) for row in rows([Chunk("a", 0, 2)], SMALL)]
        assert store.commit(later) == []
        assert store.commit([*later, *rows([Chunk("b", 0, 2)], SMALL)]) == [Chunk("b", 0, 2)]
        for change in ({"seed": 5}, {"token_ids": np.asarray(later[0].token_ids) + 1}):
            with pytest.raises(DataError, match="problem 'a', sample 0 already exists with other tokens"):
                store.commit([replace(later[0], **change), later[1]])
        assert len(store.table()) == 4


def test_a_store_opened_twice_keeps_its_log_when_another_process_closes(tmp_path: Path):
    """A second opening in this process must not drop its locks: another process that closes would then delete the log in use."""

    def asked_elsewhere() -> str:
        code = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
            "print(*db.execute(\"SELECT value FROM meta WHERE key = 'wanted'\").fetchone()); db.close()"
        )
        words = [sys.executable, "-c", code, str(tmp_path / "s" / "store.sqlite")]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    with SampleStore.open(tmp_path / "s", SMALL) as store:
        store.want(PROBLEMS, 4)
        SampleStore.open(tmp_path / "s").close()
        assert '"n": 4' in asked_elsewhere()
        assert (tmp_path / "s" / "store.sqlite-wal").exists()
        store.want(PROBLEMS, 6)
        assert '"n": 6' in asked_elsewhere()
    assert '"n": 6' in asked_elsewhere() and not (tmp_path / "s" / "store.sqlite-wal").exists()
