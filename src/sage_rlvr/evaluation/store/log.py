"""Check that the log next to a store's file belongs to that file; SQLite does not check.

A killed writer leaves `store.sqlite-wal` (or `store.sqlite-journal` where the file system has no shared memory), and SQLite
applies the log to whatever `store.sqlite` lies there at the next opening, also to a copy that somebody has restored: its pages
are overwritten. So every transaction gives the store a new id, which stands in the header of page 1 (`PRAGMA application_id`)
and is a function of the id before. A log belongs to a file whose id is one of the log's, or the id right before them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import BinaryIO

from sage_rlvr.errors import DataError

SUFFIXES = ("-wal", "-journal")
_ID_AT = 68  # bytes of the header of page 1 before the id
_WAL, _FRAME = 32, 24  # bytes of the headers of a write-ahead log and of a page in it
_JOURNAL, _JOURNAL_HEADER = bytes.fromhex("d9d505f920a163d7"), 28
_PAGE_1 = b"\0\0\0\1"
_LOOKS, _PAUSE_S = 20, 0.05


def first_id(db: sqlite3.Connection) -> None:
    """Write the id of a new store."""
    _set_id(db, int.from_bytes(secrets.token_bytes(4), "big", signed=True))


def next_id(db: sqlite3.Connection) -> None:
    """The id of the transaction that has just begun: its first write, so that page 1 is the first page of a rollback journal."""
    (known,) = db.execute("PRAGMA application_id").fetchone()
    _set_id(db, _after(known))


def _set_id(db: sqlite3.Connection, value: int) -> None:
    db.execute(f"PRAGMA application_id = {value}")


def _after(known: int) -> int:
    return int.from_bytes(hashlib.sha256(b"%d" % known).digest()[:4], "big", signed=True)


def check_log(file: Path, descriptor: int) -> None:
    """Raise DataError for a log that was not written for the file next to it. descriptor: of the file, open to read.

    Another process may write both meanwhile, so a log that does not fit is looked at again.
    """
    for look in range(_LOOKS):
        foreign = [log for log in map(Path, (f"{file}{end}" for end in SUFFIXES)) if not _belongs(log, descriptor)]
        if not foreign:
            return
        if look + 1 < _LOOKS:
            time.sleep(_PAUSE_S)
    name = file.name
    raise DataError(
        f"{foreign[0]}: this log was not written for the {name} beside it, and reading the two together would overwrite {name}. "
        f"Nothing was changed. If {name} was restored from a copy, move {foreign[0].name} and {name}-shm out of {file.parent} and "
        f"run the command again; if {name} or the log was put here by mistake, restore the files that belong together"
    )


def _belongs(log: Path, descriptor: int) -> bool:
    """Whether the log, where there is one, was written for the file of the descriptor."""
    try:
        with open(log, "rb") as stream:
            ids = _wal_ids(stream) if log.name.endswith("-wal") else _journal_ids(stream)
    except FileNotFoundError:  # no log, or a log that its writer has just removed
        return True
    known = _id_in(os.pread(descriptor, 4, _ID_AT))
    # without any id the log is that of another program, such as `sqlite3 store.sqlite "DELETE ..."`: nothing to check it by
    return not ids or (known is not None and (known in ids or _after(known) == ids[0]))


def _wal_ids(log: BinaryIO) -> list[int]:
    """The ids of the transactions in a write-ahead log, oldest first: every transaction of ours writes page 1."""
    opening, ids = log.read(_WAL), list[int]()
    page = int.from_bytes(opening[8:12], "big")
    page = 1 << 16 if page == 1 else page
    while len(frame := log.read(_FRAME)) == _FRAME and frame[8:16] == opening[16:24]:  # other salts: what an older log left
        offset = log.tell()
        if frame[:4] == _PAGE_1 and (known := _id_at(log, offset)) is not None:
            ids.append(known)
        log.seek(offset + page)
    return ids


def _journal_ids(log: BinaryIO) -> list[int]:
    """The id before the transaction of a rollback journal, and the id that it would have had; [] where it holds no page."""
    opening = log.read(_JOURNAL_HEADER)
    if len(opening) < _JOURNAL_HEADER or not opening.startswith(_JOURNAL):  # ended well
        return []
    sector, page = (int.from_bytes(opening[at : at + 4], "big") for at in (20, 24))
    log.seek(sector)
    while len(number := log.read(4)) == 4:
        offset = log.tell()
        if number == _PAGE_1 and (known := _id_at(log, offset)) is not None:
            return [known, _after(known)]
        log.seek(offset + page + 4)  # a checksum follows each page
    return []


def _id_at(stream: BinaryIO, page: int) -> int | None:
    """The id in the page 1 that begins there; None where the file ends before it."""
    stream.seek(page + _ID_AT)
    return _id_in(stream.read(4))


def _id_in(data: bytes) -> int | None:
    return int.from_bytes(data, "big", signed=True) if len(data) == 4 else None
