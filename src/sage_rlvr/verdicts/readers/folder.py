"""A folder whose files are the completions of one policy: TRL's completions/, or one file for each seed of sampling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.file import Container, Numbered, RowFile

PARTS = re.compile(r"completions_\d+\.parquet|output-rs\d+\.jsonl")
"""Files that together are one set of completions: of TRL by step, of NeMo-Skills by seed."""


def parts_of(folder: Path) -> list[Path]:
    """The files of a folder that are one set of completions, by their number; [] if there are none."""
    found = [path for path in folder.iterdir() if PARTS.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: (int(re.findall(r"\d+", path.name)[-1]), path.name))


@dataclass(frozen=True, eq=False)
class RowFolder(RowFile):
    """The rows of all files of a folder, numbered through."""

    @cached_property
    def parts(self) -> list[RowFile]:
        """The files."""
        return [RowFile(path) for path in parts_of(self.path)]

    @cached_property
    def container(self) -> Container:
        """The container of the files, which is the same for all."""
        return self.parts[0].container

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys that all files have. Raises DataError if they are of two kinds."""
        first, *others = self.parts
        kept = first.keys.intersection(*(one.keys for one in others))
        kinds = sorted({re.sub(r"\d+", "*", one.path.name) for one in self.parts})
        if len(kinds) > 1:
            raise DataError(f"{self.path}: the folder has files of two programs ({' and '.join(kinds)}); move one of them")
        return kept

    @cached_property
    def _starts(self) -> list[int]:
        return []

    def check_size(self) -> None:
        """Check every file."""
        for one in self.parts:
            one.check_size()

    def rows(self, columns: Sequence[str] = ()) -> Numbered:
        """(number, tree) of every row of every file."""
        self._starts.clear()
        number = 0
        for part in self.parts:
            self._starts.append(number)
            last = 0
            for last, tree in part.rows(columns):
                yield number + last, tree
            number += last

    def location(self, number: int) -> str:
        """The file of a row, and its place there."""
        index = max((i for i, start in enumerate(self._starts) if start < number), default=0)
        return self.parts[index].location(number - (self._starts[index] if self._starts else 0))

