"""`compare` of evaluations in memory: the same verdict as from files, whatever the form."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sage_rlvr
from sage_rlvr.errors import DataError

N = 8
BASE, RL = (np.random.default_rng(seed).random((30, N)) < rate for seed, rate in ((0, 0.3), (1, 0.6)))


def rows(hits: Any) -> list[dict[str, Any]]:
    return [{"id": i, "correct": bool(one)} for i, samples in enumerate(hits) for one in samples]


def frame(hits: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    made = pandas.DataFrame(rows(hits))
    made["temperature"] = None  # a missing optional cell is no cell
    return made


def table(hits: Any) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.Table.from_pylist(rows(hits))


def by_id(hits: Any) -> dict[str, list[bool]]:
    return {str(i): samples.tolist() for i, samples in enumerate(hits)}


def as_numpy(hits: Any) -> list[dict[str, Any]]:
    return [{"id": np.int64(i), "n": np.int64(N), "c": samples.sum()} for i, samples in enumerate(hits)]


@pytest.mark.parametrize("made", [np.asarray, np.ndarray.tolist, list, by_id, rows, frame, table, as_numpy])
def test_every_form_has_the_verdict_of_the_files(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, hits in (("base", BASE), ("rl", RL)):
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows(hits)))
    by_file = sage_rlvr.compare("base.jsonl", "rl.jsonl")
    for found in (sage_rlvr.compare({"base": made(BASE), "rl": made(RL)}), sage_rlvr.compare(base="base.jsonl", rl=made(RL))):
        assert found.answer == by_file.answer and found.scores == by_file.scores
        assert "plan --from" not in repr(found)  # the objects have no path


@pytest.mark.slow
def test_seeds_ragged_lists_and_positions() -> None:
    seeds = np.random.default_rng(2).random((3, 30, N)) < 0.5
    for several in (seeds, list(seeds), [rows(one) for one in seeds], [by_id(one) for one in seeds], seeds.tolist()):
        found = sage_rlvr.compare(BASE, several)
        assert {row["seeds"] for row in found.scores if row["policy"] == "policy 2"} == {3}
    ragged = [samples[: 2 + i % 3].tolist() for i, samples in enumerate(RL)]
    found = sage_rlvr.compare(BASE, ragged)
    assert {row["samples"] for row in found.scores} == {2} and "Unequal numbers of samples" in repr(found)
    both = sage_rlvr.compare([row | {"arm": arm} for arm, hits in (("base", BASE), ("rl", RL)) for row in rows(hits)])
    assert both.answer == sage_rlvr.compare(base=BASE, rl=RL).answer


def test_one_row_of_a_frame_per_policy_and_k_and_a_picture() -> None:
    pytest.importorskip("pandas")
    found = sage_rlvr.compare(base=BASE, rl=RL, chance=0.5)
    made = found.to_frame().set_index(["policy", "k"])
    assert [*made.index] == [(name, k) for name in ("base", "rl") for k in (1, 2, 4, 8)]
    assert made.loc[("base", 1), "pass"] == pytest.approx(BASE.mean()) and (made["low"] <= made["pass"]).all()
    assert made.loc[("base", 2), "chance"] == 0.75 and made["below_chance"].any() and not made["below_chance"].all()
    assert [axes.get_ylabel() for axes in found.plot().axes] == ["pass@k", "difference"]
    assert "<svg" in found._repr_html_() and "rl is better" in found._repr_html_()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (3, "base: int is no evaluation; pass a path, rows"),
        ([], "base: an empty list"),
        (np.zeros(3), "base: ndarray of 1 dimensions"),
        ([[1, 0], [0, 2]], "base in memory, problem 1, sample 1: score = 2"),
        ([[1, "x"]], "base: problem 0: .* is no list of 0 and 1"),
        ([{"id": 0, "correct": True}, 3], "base in memory, row 2: 3 is no dict"),
        ([{"id": 0, "n": 2, "c": 3}], "base in memory, row 1: c = 3: more correct samples"),
        ([[], [1, 0]], "base: problem 0 has no samples"),
        ({"id": [0, 1], "correct": [1, 0]}, r"base: a dict of columns \(id, correct\), not of problems"),
        ([[1, None]], "problem 0, sample 1: correct = None: no score"),
    ],
)
def test_a_bad_object_is_named_by_its_place(bad: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        sage_rlvr.compare(base=bad, rl=[[1, 0]])


def test_two_columns_of_one_name_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame([["a", 1, 0], ["b", 1, 0]], columns=["id", "correct", "correct"])
    with pytest.raises(DataError, match="base: several columns have the name 'correct'"):
        sage_rlvr.compare(base=twice, rl=[[1, 0]])


def test_objects_need_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = sage_rlvr.compare(base=BASE, rl=rows(RL))
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        found.to_frame()
