"""`python -m lab dataset`: the counts of every run that this repository has, as one table (lab/data/README.md is its card).

    rows = load()   # [{"source", "model", "arm", "seed", "task", "temperature", "id", "n", "c", "license"}, ...]
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lab.room.smollm2 import REPEATED, ROOMS
from lab.room.worlds import EXPERIMENTS
from lab.unlocked import SHIPPED
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.runs.files import write_bytes_atomic
from sage_rlvr.verdicts.readers import read_evaluation

ROOT = Path(__file__).parents[1]
FILE = ROOT / "lab" / "data" / "counts.parquet"
SMOLLM2 = "SmolLM2-135M-Instruct after SFT (smollm2-countdown)"
SCHEMA = pa.schema({
    "source": pa.string(), "model": pa.string(), "arm": pa.string(), "seed": pa.int32(), "task": pa.string(),
    "temperature": pa.float64(), "id": pa.string(), "n": pa.int16(), "c": pa.int16(), "license": pa.string(),
})  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A file of counts. arm: of a file without arms; copied: an arm whose rows are those of another source and are left out."""

    file: Path
    model: str
    license: str
    arm: str = ""
    task: str = ""
    copied: str = ""

    @property
    def name(self) -> str:
        """The file's path in this repository."""
        return (self.file.relative_to(ROOT) if self.file.is_absolute() else self.file).as_posix()


SOURCES = (
    Source(EXPERIMENTS / "2026-11-27_demo_smollm2", SMOLLM2, "Apache-2.0"),
    *(Source(EXPERIMENTS / folder, SMOLLM2, "Apache-2.0") for folder in ROOMS.values()),
    *(Source(EXPERIMENTS / folder, SMOLLM2, "Apache-2.0", copied="base") for folder in REPEATED.values()),
    Source(SHIPPED / "base.jsonl", "DeepSeek-R1-Distill-Qwen-1.5B", "MIT", arm="base", task="mathematics"),
    Source(SHIPPED / "rl.jsonl", "DeepScaleR-1.5B", "MIT", arm="rl", task="mathematics"),
)


def rows_of(source: Source, root: Path = Path()) -> Iterator[dict[str, Any]]:
    """One row per policy, temperature and problem."""
    file = root / source.file
    for table in read_evaluation(file if file.is_file() else file / "counts.jsonl").tables:
        of = table.group
        if source.copied and of.arm == source.copied:
            continue
        about: dict[str, Any] = {"source": source.name, "model": source.model, "arm": source.arm or of.arm}
        about |= {"seed": of.seed, "task": source.task or of.task, "temperature": of.temperature, "license": source.license}
        for problem, n, c in zip(table.problems, table.n.tolist(), table.c.tolist(), strict=True):
            yield {**about, "id": problem, "n": n, "c": c}


def load(file: Path = FILE) -> list[dict[str, Any]]:
    """The rows of the stored table."""
    return list(pq.read_table(file).to_pylist())


@dataclass(frozen=True)
class Dataset(Command):
    """Write the counts of every run of this repository as one table of Parquet."""

    out: Path = FILE

    def execute(self, session: Session) -> int:
        rows = [row for source in SOURCES for row in rows_of(source)]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), buffer, compression="zstd", compression_level=19)
        write_bytes_atomic(self.out, buffer.getvalue())
        session.say(f"{self.out}: {len(rows):,} rows, {len(buffer.getvalue()):,} bytes")
        return 0


__all__ = ["FILE", "SCHEMA", "SOURCES", "Dataset", "Source", "load", "rows_of"]
