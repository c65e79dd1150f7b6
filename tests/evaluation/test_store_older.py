"""Stores of formats 2 (completions) and 3 (episodes): read as they are, converted by the first write, whole or not at all.

assets/store_format_*.sqlite.gz were written by the last version of those formats: two problems of `samples_common`, four samples
each, judged again by `lenient` as v1 in batches of five, with the claim of a killed writer. In format 3 there are no problems.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation.store import Identity, PromptAndGold, SampleStore
from sage_rlvr.evaluation.store.database import Database
from sage_rlvr.evaluation.store.sample import sha_63
from samples_common import PROBLEMS, SMALL, TURNS, evaluate, lenient, rows

ASSETS = Path(__file__).parent / "assets"
DIGESTS = {  # as the version that wrote the stores printed them
    2: "13a4b01adb77708731f24df623acd8920a20714e298408ac2d98da91e5d31dd0",
    3: "38b50c6b08d9fce7d30939d08177ad3daa19dbdf52a3f874a09952aa93e3cb13",
}
QUESTIONS = {"a": PromptAndGold("1 + 1 =", "2"), "b": PromptAndGold("say \ud800")}
HASHED = (  # columns of a sample in the order of its hash
    "problem, sample, seed, prompt_hash, text, text_hash, token_ids, rollout_logps, base_logps, entropies, q, finish, latency_s, "
    "versions"
)
both = pytest.mark.parametrize("version", [2, 3])


def older(folder: Path, version: int) -> Path:
    """A folder with the stored store of a format."""
    folder.mkdir()
    (folder / "store.sqlite").write_bytes(gzip.decompress((ASSETS / f"store_format_{version}.sqlite.gz").read_bytes()))
    return folder


def identity_of(version: int) -> Identity:
    return replace({2: SMALL, 3: TURNS}[version], verifier_hash="v1")


def version_of(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def same_in_the_present_format(folder: Path, version: int) -> SampleStore:
    """A store of the same samples and verdicts, made now."""
    store = evaluate(folder, PROBLEMS, 4, {2: SMALL, 3: TURNS}[version])
    store.reverify(lenient, "v1", by="me", batch=5)
    return store


@both
def test_it_is_read_and_stays_what_it_was(tmp_path: Path, version: int) -> None:
    folder = older(tmp_path / "s", version)
    before = (folder / "store.sqlite").read_bytes()
    with SampleStore.open(folder, identity_of(version)) as store, same_in_the_present_format(tmp_path / "new", version) as new:
        assert store.digest() == new.digest() == DIGESTS[version]
        assert repr(store.samples()) == repr(new.samples()).replace(str(float(os.getpid())), "7.0")
        assert repr(store.counts()) == repr(new.counts())
        assert repr(store.counts(verifier="v0")) == repr(new.counts(verifier="v0"))
        keys = ("verifier_hash", "by", "rows")
        assert [[p[key] for key in keys] for p in store.verifiers()] == [[p[key] for key in keys] for p in new.verifiers()]
        assert store.verifiers()[1]["at"] is not None and store.verifiers()[0]["at"] is None
        assert store.wanted() == {"problems": 2, "n": 4} and store.policy_name_or_path() == "model"
        assert store.questions() == (QUESTIONS if version == 2 else {})
        assert store.missing(PROBLEMS, 4) == [] and len(store.missing(["a", "b", "c"], 6)) == 5
    assert (folder / "store.sqlite").read_bytes() == before


@both
def test_a_top_up_converts_it_and_ends_as_a_store_made_now(tmp_path: Path, version: int) -> None:
    identity, folders = identity_of(version), (older(tmp_path / "s", version), tmp_path / "new")
    same_in_the_present_format(folders[1], version).close()
    digests = []
    for folder in folders:
        with SampleStore.open(folder) as store:
            store.note(identity=identity.tree())
        with SampleStore.open(folder, identity) as store:
            store.describe(QUESTIONS)
            assert len(store.claim(["a", "b", "c"], 6, 99)) == 5  # the claim of the killed writer is free
            store.release()
        with evaluate(folder, ["a", "b", "c"], 6, identity) as store:
            assert version_of(folder) == 4 and store.questions() == QUESTIONS
            assert store.reverify(lenient, "v2") == 18
            digests.append((store.digest(), store.digest(n=2), store.counts(verifier="v0", n=4, problems=PROBLEMS).right.tolist()))
            assert store._db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)  # type: ignore[union-attr]
    assert digests[0] == digests[1]
    schemas = []
    for folder in folders:
        with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
            schemas.append([(name, db.execute(f"PRAGMA table_info({name})").fetchall()) for name in names])
    assert schemas[0] == schemas[1]


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from sage_rlvr.evaluation.store import SampleStore
calls, real, fatal = 0, sqlite3.connect, int(sys.argv[2])
def count(sql):
    global calls
    calls += 1
    if calls == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
def connect(*args, **options):
    db = real(*args, **options)
    db.set_trace_callback(count)
    return db
store = SampleStore.open(Path(sys.argv[1]))
store.close()
sqlite3.connect = connect
store.note(wanted={"problems": 2, "n": 4})
"""


@pytest.mark.parametrize("fatal", [20, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 60, 4))])
def test_a_kill_leaves_it_old_or_converted(tmp_path: Path, fatal: int) -> None:
    folder = older(tmp_path / "s", 2)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(fatal)], env=environment, check=False)
    assert done.returncode in (0, -signal.SIGKILL) and (fatal > 40 or done.returncode)
    with SampleStore.open(folder) as store:
        assert store.digest() == DIGESTS[2] and version_of(folder) in (2, 4)
        store.note(wanted={})
        assert store.digest() == DIGESTS[2] and version_of(folder) == 4


def test_a_full_disk_leaves_it_as_it_was(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 3)
    with SampleStore.open(folder) as store:
        digest = store.digest()
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()  # type: ignore[union-attr]
        store._db.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[union-attr]
        with pytest.raises(DataError, match=r"disk is full.*Free some space"):
            store.want(PROBLEMS, 9)
        assert store.digest() == digest and version_of(folder) == 3


def test_it_is_not_converted_while_an_earlier_version_writes_to_it(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 2)
    identity = identity_of(2)
    with SampleStore.open(folder, identity) as store:
        with FileLock(folder / "writer-12345-abcdefgh.lock"):
            with pytest.raises(RunLocked, match=r"an earlier version .*process 12345.*, in format 2; .* run the same command"):
                store.claim(PROBLEMS, 6)
            assert store.digest() == DIGESTS[2] and version_of(folder) == 2  # reading goes on
        chunks = store.claim(PROBLEMS, 6)
        assert store.commit(rows(chunks, identity)) == chunks and version_of(folder) == 4


def test_it_is_read_in_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = older(tmp_path / "s", 2)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with SampleStore.open(folder) as store:
        assert store.digest() == DIGESTS[2] and len(list(folder.iterdir())) == 1
        with pytest.raises(DataError, match="readonly"):
            store.want(["a"], 9)


def test_a_process_that_reads_it_while_another_converts_it_goes_on(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 2)
    with SampleStore.open(folder) as reader, SampleStore.open(folder) as writer:
        verifiers = reader.verifiers()
        writer.want(PROBLEMS, 9)
        assert reader.verifiers() == writer.verifiers() == verifiers and reader.digest() == DIGESTS[2]
        reader.want(PROBLEMS, 10)
        assert writer.wanted() == {"problems": 2, "n": 10}


def test_a_process_that_writes_first_after_another_converted_it_goes_on(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 2)
    with SampleStore.open(folder) as late, SampleStore.open(folder) as writer:
        writer.want(PROBLEMS, 9)
        late.note(x=1)
        assert writer.facts()["x"] == 1 and late.digest() == DIGESTS[2]


def test_a_transaction_begins_with_the_tables_that_there_are(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 2)
    late = Database(folder)
    assert late.facts()
    with SampleStore.open(folder) as writer:
        writer.want(PROBLEMS, 9)
    with late.transaction(write=True) as db:
        db.execute("INSERT INTO meta VALUES ('x', '1')")
    assert late.facts()["x"] == 1


def test_a_row_that_is_none_is_reported_by_the_conversion(tmp_path: Path) -> None:
    folder = older(tmp_path / "s", 2)
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db, db:
        db.execute("UPDATE samples SET versions = '{' WHERE id = 3")
        (row,) = db.execute(f"SELECT {HASHED} FROM samples WHERE id = 3")
        values = [value if isinstance(value, bytes) else repr(value).encode() for value in row]
        sha = sha_63(b"".join(len(value).to_bytes(8, "little") + value for value in values))
        db.execute("UPDATE samples SET sha = ? WHERE id = 3", (sha,))
    with SampleStore.open(folder) as store, pytest.raises(DataError, match=r"damaged: CHECK constraint failed: json_valid"):
        store.want(PROBLEMS, 9)
    assert version_of(folder) == 2


@both
@pytest.mark.parametrize(
    ("harm", "place"),
    [
        ("UPDATE samples SET text = 'another' WHERE problem = 'a' AND sample = 2", r"samples \(problem 'a', sample 2\)"),
        ("UPDATE samples SET seed = seed + 1 WHERE id = 8", r"samples \(problem 'b', sample 3\)"),
        ("UPDATE verdicts SET verdict = 'wrong' WHERE id = 1 AND pass = 0", r"verdicts \(problem 'a', sample 0, pass 0\)"),
        ("UPDATE meta SET value = '\"other\"' WHERE key = 'place'", r"meta \(key 'place'\)"),
        ("UPDATE problems SET gold = '3' WHERE problem = 'a'", r"problems \(problem 'a'\)"),
    ],
)
def test_a_changed_row_is_reported_by_the_conversion(harm: str, place: str, version: int, tmp_path: Path) -> None:
    folder = older(tmp_path / "s", version)
    if version == 3 and "problems" in harm:
        pytest.skip("this store keeps no problems")
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db, db:
        assert db.execute(harm).rowcount == 1
    with SampleStore.open(folder) as store:
        with pytest.raises(DataError, match=rf"store.sqlite: damaged: a row of {place} was changed after it was written\. .*copy"):
            store.note(x=1)
        assert version_of(folder) == version and store.wanted() == {"problems": 2, "n": 4}
