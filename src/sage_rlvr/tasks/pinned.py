"""Files of public repositories at one commit: fetched once over https, accepted only with the right SHA-256, and cached.

    https://raw.githubusercontent.com/<repository>/<commit>/<path> -> at most `size` bytes -> SHA-256 -> cache folder

The cache is named by checksum: $SAGE_RLVR_CACHE, else $XDG_CACHE_HOME/sage-rlvr, else ~/.cache/sage-rlvr. A file copied into it by
hand is used like a fetched one, for machines without a network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from sage_rlvr.errors import DataError
from sage_rlvr.runs.files import write_bytes_atomic
from sage_rlvr.safe_io import read_bytes

SECONDS = 60  # seconds of silence before a download is aborted


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file, as `math_sets` names it and `fetch` gets it: repository "owner/name" on GitHub, commit (40 hex digits), path,
    SHA-256, size in bytes."""

    repository: str
    commit: str
    path: str
    sha256: str
    size: int

    @property
    def url(self) -> str:
        """The address of the file."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"

    @property
    def kept(self) -> Path:
        """The file in the cache."""
        return cache_folder() / f"{self.sha256[:16]}-{self.path.rpartition('/')[2]}"

    def is_(self, data: bytes) -> bool:
        """Whether these are its bytes."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


def cache_folder() -> Path:
    """The folder of fetched files; it need not exist yet."""
    if named := os.environ.get("SAGE_RLVR_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sage-rlvr"


class _HttpsOnly(HTTPRedirectHandler):
    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://"):
            raise OSError(f"sent on to {newurl!r:.100}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    return build_opener(_HttpsOnly).open(url, timeout=SECONDS)


def fetch(file: Pinned, open_url: Callable[[str], IO[bytes]] = _open) -> bytes:
    """The bytes of a pinned file, from the cache or the network. Raises `DataError` if neither has them, or has others."""
    with suppress(DataError):
        data = read_bytes(file.kept, file.size)
        if file.is_(data):
            return data  # a damaged one is fetched again
    try:
        with open_url(file.url) as stream:
            data = stream.read(file.size + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(
            f"{file.url}: not fetched ({error}). Without a network, put that file at {file.kept}, or name a folder of data "
            "files: SAGE_RLVR_DATA=<folder>"
        ) from error
    if not file.is_(data):
        raise DataError(
            f"{file.url}: these are not the bytes that were pinned (SHA-256 {file.sha256}, {file.size} bytes; got "
            f"{hashlib.sha256(data).hexdigest()}, {len(data)} bytes or more). Is a proxy between? Nothing was kept"
        )
    with suppress(OSError):  # in one step, so that no reader sees half a file; a cache that cannot be written is not an error
        write_bytes_atomic(file.kept, data)
    return data


__all__ = ["Pinned", "cache_folder", "fetch"]
