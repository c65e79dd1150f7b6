"""The sample store: a log belongs to its file, a new file needs no log, a lost row is sampled again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from sage_rlvr.contrib.io import archive
from sage_rlvr.contrib.io.archive import from_parquet, to_parquet
from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation import sampling
from sage_rlvr.evaluation.store import SampleStore, database
from samples_common import PROBLEMS, SMALL, evaluate, rows

FILES = ("store.sqlite", "store.sqlite-wal", "store.sqlite-journal")


def left_by_a_kill(store: SampleStore, folder: Path) -> Path:
    """A folder with the files of an open store, as SIGKILL would leave them."""
    folder.mkdir()
    for name in FILES:
        if (store.path / name).exists():
            shutil.copy(store.path / name, folder)
    return folder


# ---- a log belongs to its file


def test_a_copy_over_a_store_that_is_open_is_refused_at_the_next_opening(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 2, SMALL):
        pass
    older = (tmp_path / "s" / "store.sqlite").read_bytes()
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL):
        pass
    with evaluate(tmp_path / "s", PROBLEMS, 6, SMALL):
        with open(tmp_path / "s" / "store.sqlite", "r+b") as file:  # the same file, in place
            file.write(older)
            file.truncate()
        with pytest.raises(DataError, match=r"store.sqlite-wal: this log was not written for the store.sqlite beside it"):
            SampleStore.open(tmp_path / "s")


def test_a_copy_restored_beside_a_stale_log_is_refused_and_not_overwritten(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL) as store:
        killed = left_by_a_kill(store, tmp_path / "killed")
    with evaluate(tmp_path / "s", PROBLEMS, 64, SMALL) as store:
        digest = store.digest()
    whole = (tmp_path / "s" / "store.sqlite").read_bytes()
    (killed / "store.sqlite").write_bytes(whole)
    log = (killed / "store.sqlite-wal").read_bytes()
    with pytest.raises(
        DataError, match=r"store.sqlite-wal: this log was not written for the store.sqlite beside it.*move"
    ):
        SampleStore.open(killed)
    assert (killed / "store.sqlite").read_bytes() == whole and (killed / "store.sqlite-wal").read_bytes() == log
    (killed / "store.sqlite-wal").unlink()  # as the message says
    with SampleStore.open(killed) as store:
        assert store.digest() == digest


def test_a_log_of_another_store_is_refused(tmp_path: Path):
    with evaluate(tmp_path / "one", PROBLEMS, 4, SMALL) as one:
        killed = left_by_a_kill(one, tmp_path / "killed")
    evaluate(tmp_path / "two", PROBLEMS, 6, SMALL).close()
    shutil.copy(killed / "store.sqlite-wal", tmp_path / "two")
    with pytest.raises(DataError, match="was not written for"):
        SampleStore.open(tmp_path / "two")


def test_a_new_store_beside_the_log_of_a_deleted_one_is_refused_until_the_log_is_gone(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL) as store:
        killed = left_by_a_kill(store, tmp_path / "killed")
    (killed / "store.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match="was not written for"):
            SampleStore.open(killed, SMALL)
    (killed / "store.sqlite-wal").unlink()
    with SampleStore.open(killed, SMALL) as store:
        assert len(store.missing(PROBLEMS, 4)) == 4


def test_a_log_that_was_moved_into_the_file_in_part_or_often_still_belongs_to_it(tmp_path: Path):
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL) as store:
        for number in range(8):
            folder = left_by_a_kill(store, tmp_path / str(number))
            with SampleStore.open(folder) as left:
                assert left.digest() == store.digest()
            mode = ("PASSIVE", "TRUNCATE", "RESTART")[number % 3]
            store._db.execute(f"PRAGMA wal_checkpoint({mode})")
            with SampleStore.open(left_by_a_kill(store, tmp_path / f"moved{number}")) as left:
                assert left.digest() == store.digest()
            store.commit(rows(store.claim(PROBLEMS, 6 + 2 * number, 2), SMALL))


def in_the_middle_of_a_commit(folder: Path, copy: Path) -> None:
    """A store whose file system has no shared memory, copied while its rollback journal holds a commit."""
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with SampleStore.open(folder, SMALL) as store:
        chunks = store.claim(PROBLEMS, 64, 99)
        store._db.execute("PRAGMA cache_size = 2")  # so that pages are written before the end
        with store.transaction(write=True):
            store.commit(rows(chunks, SMALL))
            left_by_a_kill(store, copy)


def test_a_rollback_journal_of_another_file_is_refused(tmp_path: Path):
    evaluate(tmp_path / "s", PROBLEMS, 4, SMALL).close()
    with SampleStore.open(tmp_path / "s") as store:
        digest = store.digest()
    in_the_middle_of_a_commit(tmp_path / "s", tmp_path / "killed")
    assert (tmp_path / "killed" / "store.sqlite-journal").read_bytes().startswith(b"\xd9\xd5")
    shutil.copytree(tmp_path / "killed", tmp_path / "same")
    with SampleStore.open(tmp_path / "same") as store:
        assert store.digest() == digest
    evaluate(tmp_path / "s", PROBLEMS, 32, SMALL).close()
    shutil.copy(tmp_path / "s" / "store.sqlite", tmp_path / "killed")
    with pytest.raises(DataError, match=r"store.sqlite-journal: this log was not written for"):
        SampleStore.open(tmp_path / "killed")


def test_a_damaged_store_names_all_files_that_a_copy_replaces(tmp_path: Path):
    evaluate(tmp_path, PROBLEMS, 2, SMALL).close()
    (tmp_path / "store.sqlite").write_bytes(b"no database at all" * 99)
    with pytest.raises(DataError, match=r"move store.sqlite, store.sqlite-wal and store.sqlite-shm out of the folder"):
        SampleStore.open(tmp_path)


# ---- a new file needs no log


def read_by_another(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[sqlite3.Connection]:
    """While a store is made, another process reads it, so that SQLite cannot move the log into the file at the end."""
    readers, real = [], database.note

    def note(db: sqlite3.Connection, facts: dict) -> None:
        real(db, facts)
        if not readers:
            (_, _, file) = db.execute("PRAGMA database_list").fetchone()
            readers.append(sqlite3.connect(file))
            readers[0].execute("BEGIN")
            readers[0].execute("SELECT count(*) FROM sqlite_master").fetchone()

    monkeypatch.setattr(database, "note", note)
    return readers


def test_a_new_store_is_moved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        readers = read_by_another(patch, tmp_path)
        patch.setattr(database, "PATIENCE_S", 0.2)
        with warnings.catch_warnings(), contextlib.suppress(RunLocked, DataError):
            warnings.simplefilter("ignore")
            SampleStore.open(tmp_path, SMALL)
        readers[0].close()
    evaluate(tmp_path, PROBLEMS, 4, SMALL).close()
    assert len(SampleStore.open(tmp_path).table()) == 8


def test_a_store_made_of_parquet_is_moved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with evaluate(tmp_path / "s", PROBLEMS, 4, SMALL) as store:
        to_parquet(store, tmp_path / "all.parquet")
    real, readers = archive.rows_of, []

    def rows_read_by_another(table):
        (half,) = (tmp_path / "new").glob(".tmp-*-store.sqlite")
        readers.append(sqlite3.connect(half))
        readers[0].execute("BEGIN")
        readers[0].execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield from real(table)

    with monkeypatch.context() as patch:
        patch.setattr(archive, "rows_of", rows_read_by_another)
        patch.setattr(database, "NOTICE_S", 0.2)
        with pytest.raises(RunLocked, match="another process has held its lock"):
            from_parquet(tmp_path / "all.parquet", tmp_path / "new")
    readers[0].close()
    assert not (tmp_path / "new" / "store.sqlite").exists()
    assert from_parquet(tmp_path / "all.parquet", tmp_path / "new") == 8


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
def test_a_disk_that_fills_while_a_store_is_made_leaves_none_or_a_whole_one(
    tmp_path: Path, disk: Callable[[int], Path]
):
    with evaluate(tmp_path / "s", PROBLEMS, 64, SMALL) as store:
        digest = store.digest()
        to_parquet(store, tmp_path / "all.parquet")
    refused = made = 0
    for size in range(4096 * 8, 4096 * 120, 4096 * 5):
        place = disk(size)
        for name in ("e", "p"):
            try:
                if name == "e":
                    SampleStore.open(place / "e", SMALL).close()
                else:
                    from_parquet(tmp_path / "all.parquet", place / "p")
                made += 1
            except DataError as error:
                assert "full" in str(error) or "Free some space" in str(error)
                refused += 1
        for name in ("e", "p"):
            if (place / name / "store.sqlite").exists():
                shutil.copytree(place / name, tmp_path / f"{name}{size}")  # where there is room to read it
                with SampleStore.open(tmp_path / f"{name}{size}") as store:
                    assert name == "e" or store.digest() == digest
    assert refused > 3 and made > 3


# ---- what is lost is sampled again


@pytest.mark.parametrize(
    ("harm", "partial"),
    [
        ("DELETE FROM samples WHERE problem = 'b' AND sample = 3", True),
        ("DELETE FROM samples WHERE problem = 'b' AND sample = 2", True),
        ("DELETE FROM samples WHERE id < 4; DELETE FROM verdicts WHERE id = 1", True),
        ("DELETE FROM samples WHERE id > 6", False),
    ],
)
def test_a_lost_row_is_reported_and_sampled_again(harm: str, partial: bool, tmp_path: Path):
    with evaluate(tmp_path, PROBLEMS, 4, SMALL) as store:
        digest = store.digest()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as db:
        db.executescript(harm)
    word = "only 1 of 2 exist; run the same eval command again" if partial else "1 chunks are missing for n = 4"
    with pytest.raises(DataError, match=word):
        SampleStore.open(tmp_path).counts(4 - partial)
    with evaluate(tmp_path, PROBLEMS, 4, SMALL) as store:
        assert store.digest() == digest


def test_a_lost_verdict_is_reported(tmp_path: Path):
    evaluate(tmp_path, PROBLEMS, 4, SMALL).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        db.execute("DELETE FROM verdicts WHERE id = 7")
    with pytest.raises(DataError, match="damaged: 1 of 8 samples have lost their verdict"):
        SampleStore.open(tmp_path).counts()


@pytest.mark.parametrize("name", ["identity", "wanted", "changes", "created"])
def test_a_lost_fact_is_a_sentence(name: str, tmp_path: Path):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        db.execute("DELETE FROM meta WHERE key = ?", (name,))
    with pytest.raises(DataError, match=f"the entry '{name}' is missing"):
        SampleStore.open(tmp_path).wanted()


# ---- waits


def test_a_lock_that_another_process_holds_is_reported_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    evaluate(tmp_path, ["a"], 2, SMALL).close()
    monkeypatch.setattr(database, "NOTICE_S", 0.1)
    with (
        SampleStore.open(tmp_path, SMALL) as store,
        contextlib.closing(
            sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None, check_same_thread=False)
        ) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.5, lambda: other.execute("ROLLBACK")).start()
        with pytest.warns(
            UserWarning, match=r"another process holds its lock; this process waits up to 600 s. If it is"
        ):
            assert store.claim(["a"], 4)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(database, "PATIENCE_S", 0.3)
        with (
            pytest.warns(UserWarning),
            pytest.raises(RunLocked, match=r"has held its lock for 0 s \(writers .*process \d+\)"),
        ):
            store.claim(["a"], 6)
        other.execute("ROLLBACK")


def test_a_folder_in_which_another_process_makes_a_store_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "NOTICE_S", 0.1)
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    with (
        FileLock(tmp_path / "lock"),
        pytest.raises(RunLocked, match="is creating a store here and has not ended"),
        pytest.warns(UserWarning, match="another process is creating a store here; this process waits up to 0 s"),
    ):
        SampleStore.open(tmp_path, SMALL)


CLAIM = """
import sys
from pathlib import Path
from samples_common import *
store = SampleStore.open(Path(sys.argv[1]), SMALL)
print(store.claim(["a"], 2), flush=True)
sys.stdin.readline()
"""


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
            work = sampling.SamplingRun(task, {}, SimpleNamespace(name="tiny", at_once=1))  # type: ignore[arg-type]
            monkeypatch.setattr(sampling.SamplingRun, "samples", lambda self, identity, chunks: rows(chunks, identity))
            state = " \\(stopped\\)" if sys.platform.startswith("linux") else ""
            with pytest.warns(
                UserWarning, match=rf"waiting for 1 chunks that process {other.pid}{state} is sampling.*kill -CONT PID"
            ):
                work.run(store, 2, pause=0.05)
            assert len(store.table()) == 2
        finally:
            other.kill()
            other.wait()
