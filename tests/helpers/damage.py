"""Damage to files that leaves their names."""

from __future__ import annotations

import os
from pathlib import Path


def flip_bit(file: Path, at: float = 0.9) -> None:
    """Flip a bit at a fraction of a file's length; size and modification time stay."""
    data, times = bytearray(file.read_bytes()), os.stat(file)
    data[int(at * (len(data) - 1))] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def zero(file: Path, size: int = 4096) -> None:
    """Overwrite the end of a file, `size` bytes of it or half, with zeros."""
    data = bytearray(file.read_bytes())
    size = min(size, len(data) // 2)
    data[-size:] = bytes(size)
    file.write_bytes(data)


def truncate(file: Path) -> None:
    """Cut off the last bytes of a file."""
    os.truncate(file, file.stat().st_size - 8)
