"""Pinned files: the right bytes are kept and used again, others are refused, and no network is a message."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request

import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.tasks import pinned
from sage_rlvr.tasks.math import SETS
from sage_rlvr.tasks.pinned import Pinned, cache_folder, fetch

DATA = b"a row\n"
FILE = Pinned("owner/name", "a" * 40, "folder/rows.jsonl", hashlib.sha256(DATA).hexdigest(), len(DATA))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never(url: str) -> io.BytesIO:
    raise AssertionError(url)


def test_it_is_fetched_once(cache: Path):
    asked = []

    def network(url: str) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(DATA)

    assert fetch(FILE, network) == DATA == fetch(FILE, never)
    assert asked == [f"https://raw.githubusercontent.com/owner/name/{'a' * 40}/folder/rows.jsonl"]
    assert [path.name for path in cache.iterdir()] == [f"{FILE.sha256[:16]}-rows.jsonl"]
    FILE.kept.write_bytes(DATA[:-1])  # damaged: fetched anew
    assert fetch(FILE, network) == DATA and len(asked) == 2 and FILE.kept.read_bytes() == DATA


@pytest.mark.parametrize("served", [b"b row\n", b"a row", b"a row\n\n", b""])
def test_other_bytes_are_refused_and_not_kept(cache: Path, served: bytes):
    with pytest.raises(DataError, match="not the bytes that were pinned"):
        fetch(FILE, lambda url: io.BytesIO(served))
    assert not cache.exists()


def test_no_more_is_read_than_was_pinned():
    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size == len(DATA) + 1
            return b"x" * size

    with pytest.raises(DataError, match="or more"):
        fetch(FILE, lambda url: Endless())


def test_without_a_network_the_message_says_where_to_put_the_file():
    def offline(url: str) -> io.BytesIO:
        raise URLError("no route")

    with pytest.raises(DataError, match=rf"no route.*put that file at {re.escape(str(FILE.kept))}.*SAGE_RLVR_DATA"):
        fetch(FILE, offline)


def test_it_is_not_sent_on_to_plain_http():
    handler = pinned._HttpsOnly()
    with pytest.raises(OSError, match="not https"):
        handler.redirect_request(Request("https://a.example"), io.BytesIO(), 302, "", {}, "http://a.example/x")
    assert handler.redirect_request(Request("https://a.example"), io.BytesIO(), 302, "", {}, "https://b.example/x")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SAGE_RLVR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/sage-rlvr")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sage-rlvr"


def test_the_pins_of_the_tasks_are_whole():
    pins = [pin for source in SETS.values() for pin in source.pins]
    assert len(pins) == 9 and all(re.fullmatch("[0-9a-f]{40}", pin.commit) for pin in pins)
    assert all(re.fullmatch("[0-9a-f]{64}", pin.sha256) and pin.size > 0 for pin in pins)
