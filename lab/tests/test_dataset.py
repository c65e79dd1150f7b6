"""The dataset of counts: the loader returns the counts of the sources."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from lab.dataset import SCHEMA, SOURCES, load

ROOT = Path(__file__).parents[2]


def test_the_loader_returns_the_counts_of_the_sources():
    rows = load()
    assert all(row.keys() == {*SCHEMA.names} for row in rows)
    kept = Counter(
        (row["source"], row["arm"], row["seed"], row["temperature"], row["id"], row["n"], row["c"])
        for row in rows
    )
    wanted: Counter[tuple[object, ...]] = Counter()
    for source in SOURCES:
        file = ROOT / source.file
        for row in map(json.loads, (file if file.is_file() else file / "counts.jsonl").read_text().splitlines()):
            arm = source.arm or row["arm"]
            if arm != source.copied:
                key = (arm, row.get("seed"), row.get("temperature"), row["id"], row["n"], row["c"])
                wanted[source.name, *key] += 1
    assert not any(row["source"].startswith("/") for row in rows)
    assert kept == wanted and set(kept.values()) == {1} and len(kept) > 14_000


def test_every_folder_of_counts_is_in_it():
    """Except the experiment on the anchor's place, which is not run to the end."""
    folders = {file.parent.name for file in (ROOT / "lab/experiments").glob("*/counts.jsonl")}
    assert folders - {"2026-11-29_smollm2_place"} == {source.file.name for source in SOURCES if not source.file.suffix}
