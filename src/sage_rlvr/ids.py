"""Names as numbers, for tensors that identify the problem, answer or place of a row or token."""

from __future__ import annotations

import hashlib


def name_id(name: str) -> int:
    """Return 64 bits of a hash of `name` as a signed integer, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
