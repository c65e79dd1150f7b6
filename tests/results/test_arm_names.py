"""The printed names of arms: as few parts of a path as tell it from the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.api.compare import comparison_of
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.files import shortest

PARTS = st.lists(st.sampled_from(["runs", "grpo", "seed_0", "policy"]), min_size=1, max_size=4)


@given(st.sets(PARTS.map("/".join), min_size=1, max_size=6))
def test_names_are_unique_ends_of_paths_and_none_could_be_shorter(paths: set[str]) -> None:
    short = shortest(paths)
    assert len(set(short.values())) == len(paths)
    for path, name in short.items():
        assert f"/{path}".endswith(f"/{name}")
        end = name.partition("/")[2]
        assert not end or any(f"/{other}".endswith(f"/{end}") for other in paths - {path})


def compared(*words: str) -> dict[str, object]:
    return comparison_of(words, split=None, k=None, samples=None).verdicts


def write(path: Path, arm: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": str(i), "n": 4, "c": i % 5} | ({"arm": arm} if arm else {}) for i in range(12)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_files_of_one_name_are_called_by_their_folders_too(tmp_path: Path) -> None:
    words = [write(tmp_path / folder / "eval" / "samples.jsonl") for folder in ("base", "rl")]
    (one,) = compared(*words)["verdicts"]  # type: ignore[misc]
    assert (one["control"], one["arm"]) == ("base/eval/samples", "rl/eval/samples")
    with pytest.raises(DataError, match="was passed twice"):
        compared(words[0], words[0])


def test_arms_of_rows_that_are_paths_are_shortened_and_kept_whole(tmp_path: Path) -> None:
    whole = "/models/grpo/global_step_200/huggingface"
    found = compared(write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", whole), write(tmp_path / "c.jsonl", "Qwen/Qwen3-4B"))
    assert [one["arm"] for one in found["verdicts"]] == ["huggingface", "Qwen/Qwen3-4B"]  # type: ignore[attr-defined]
    assert [one["full_arms"] for one in found["read"]] == [["a"], [whole], ["Qwen/Qwen3-4B"]]  # type: ignore[attr-defined]
