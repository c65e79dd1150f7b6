"""The support gate: above chance at every k, the room at the largest, its exit code, and stores that are only read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command import Capture, call, refused, said
from sage_rlvr.api.evaluate import evaluate
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation import sampling
from sage_rlvr.evaluation.gate import Gate, GatePoint, Room, ks_of
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.verdicts.chance import KEY, Chance
from sage_rlvr.verdicts.stats.intervals import Interval, passk_interval
from samples_common import IDENTITY, draw


def point(k: int, value: float, low: float, high: float, chance: float) -> GatePoint:
    return GatePoint(k=k, passed=Interval(value=value, low=low, high=high, level=0.95, over="problems", n=9), chance=chance)


def gate(*points: GatePoint, **changes: Any) -> Gate:
    return Gate(**{"points": points, "much": (0.2, 0.5), "little": 0.9} | changes)


@pytest.mark.parametrize(
    ("value", "room"),
    [
        (0.0, "out of reach"), (0.199, "out of reach"), (0.2, "much"), (0.5, "much"),
        (0.501, "some"), (0.899, "some"), (0.9, "little"), (1.0, "little"),
    ],
)  # fmt: skip
def test_the_room_goes_by_pass_at_the_largest_k(value: float, room: Room) -> None:
    found = gate(point(1, 0.1, 0.05, 0.2, 0.01), point(8, value, value, value, -1.0))
    assert found.room == room and found.certain and found.passed
    assert gate(*found.points, much=(0.0, 0.95), little=0.99).room == ("little" if value == 1 else "much")


def test_it_passes_only_where_every_interval_lies_above_chance() -> None:
    good, close, below = point(1, 0.2, 0.1, 0.3, 0.05), point(8, 0.4, 0.3, 0.5, 0.3), point(64, 0.6, 0.5, 0.7, 0.8)
    assert gate(good).passed and gate(good).failures == []
    assert gate(good, close).failures == ["pass@8 is not distinguishable from chance"]
    assert gate(good, below).failures == ["pass@64 is below chance"]
    (first, *_) = gate(good, close, below).lines()
    assert first.startswith("gate       FAILED: pass@8 is not distinguishable from chance; pass@64 is below chance; room: some")
    unknown = point(8, 0.4, float("-inf"), float("inf"), 0.1)  # one problem has no interval
    assert gate(unknown).failures == ["pass@8 is not distinguishable from chance"]
    assert gate(unknown).tree()["points"][0]["low"] is None and json.dumps(gate(unknown).tree(), allow_nan=False)


def test_a_required_room_fails_the_gate_and_an_interval_beyond_its_bounds_is_named() -> None:
    much = point(8, 0.4, 0.3, 0.45, 0.1)
    assert gate(much, wanted="much").passed
    assert gate(much, wanted="little").failures == ["the room at k = 8 is 'much', and 'little' is required"]
    assert "reaches beyond" not in gate(much).lines()[-1]
    wide = gate(point(8, 0.4, 0.3, 0.6, 0.1))
    assert not wide.certain and wide.lines()[-1].endswith("the interval reaches beyond these bounds; evaluate more problems")


def test_the_ks_by_default_and_by_hand() -> None:
    assert ks_of((), 64) == [1, 8, 64] and ks_of((), 8) == [1, 8] and ks_of((), 1) == [1]
    assert ks_of((32, 4), 64) == [4, 32]


# ------------------------------------------------------------------------------------------------------------------
# stores


def store_of(path: Path, right: list[int], n: int, chance: Chance | None) -> Path:
    """A store of problems with these many right samples of n."""
    identity = replace(IDENTITY, chunk_size=n)
    with SampleStore.open(path, identity) as store:
        for number, many in enumerate(right):
            rows = [draw(f"p{number}", i, identity) for i in range(n)]
            store.commit([replace(row, verdict="right" if i < many else "wrong") for i, row in enumerate(rows)])
        store.note(**{KEY: None if chance is None else chance.tree()})
    return path


def test_a_store_is_judged_without_its_policy(tmp_path: Path, capsys: Capture) -> None:
    right = [3, 0, 4, 1, 2, 5, 0, 4]
    store = store_of(tmp_path / "a", right, 8, Chance("answers", (0.02,) * 8))
    found = evaluate(store, gate=True)
    assert found.gate is not None and found.gate.passed and [one.k for one in found.gate.points] == [1, 8]
    for one in found.gate.points:
        assert one.passed == passk_interval(8, right, one.k) and one.chance == pytest.approx(1 - 0.98**one.k)
    assert call("eval", store, "--gate") == 0
    assert "gate PASSED: above chance at k = 1, 8; room: some" in said(capsys)[0]
    assert call("eval", store, "--gate", "--gate-room", "much", "--json") == 3
    tree = json.loads(capsys.readouterr().out)
    assert not tree["gate"]["passed"] and tree["gate"]["room"] == "some" and tree["paths"] == [str(store)]
    assert tree["gate"]["bounds"] == {"much": [0.2, 0.5], "little": 0.9, "required": "much"}
    assert call("eval", store, "--gate", "--gate-room", "much", "--gate-much", 0.2, 0.8) == 0
    poor = store_of(tmp_path / "b", [1, 0, 0, 0, 0, 0, 0, 1], 8, Chance("answers", (0.3,) * 8))
    assert call("eval", poor, "--gate", "--gate-ks", 4) == 3
    assert "pass@4 is below chance" in said(capsys)[0]


def test_what_a_store_cannot_answer_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    store = store_of(tmp_path / "a", [3, 1], 8, None)
    assert "no chance floor is known for sums" in refused(capsys, "eval", store, "--gate")
    known = store_of(tmp_path / "b", [3, 1], 8, Chance("golds", (1.0, 0.0)))
    assert "--gate-ks 16: there are 8 samples" in refused(capsys, "eval", known, "--gate", "--gate-ks", 16)
    assert "a sample store with no option" in refused(capsys, "eval", known)
    assert "a sample store with --task" in refused(capsys, "eval", known, "--gate", "--task", "math500")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_ks": (8,)}, "--gate-ks: settings of the gate; add --gate"),
        ({"gate": True, "gate_ks": (0,)}, "--gate-ks 0: each k must be 1 or larger"),
        ({"gate": True, "gate_much": (0.5, 0.2)}, "--gate-much 0.5 0.2, --gate-little 0.9: shares that ascend"),
        ({"gate": True, "gate_little": 0.4}, "shares that ascend"),
        ({"gate": True, "frontier": True}, "one temperature"),
        ({"gate": True, "temperatures": (1.0, 0.5)}, "one temperature"),
        ({"samples": 4, "kl_samples": 3}, "--kl-samples 3: a setting of --kl-to"),
        ({"samples": 4, "kl_to": "embedded", "kl_samples": 0}, "at least one sample of each problem"),
        ({"samples": 4, "kl_to": "embedded", "generator": "server"}, "use another generator"),
        ({"samples": 4, "kl_to": "embedded", "temperatures": (1.0, 0.5)}, "the KL at one temperature"),
        ({"kl_to": "embedded"}, "--kl-to: settings of an evaluation by samples; add --samples N"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        evaluate("embedded", quiet=True, **options)


# ------------------------------------------------------------------------------------------------------------------
# policies


def test_an_evaluation_ends_with_its_gate_and_the_stored_samples_are_enough(
    write_recipe: Callable[..., Path], warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words: dict[str, Any] = {"world": str(write_recipe()), "problems": 8, "samples": 16, "quiet": True, "store": tmp_path / "a"}
    plain = evaluate(warm_policy, **words)
    assert plain.gate is None

    def drawn_again(*_: Any) -> None:
        raise AssertionError("samples were drawn again")

    monkeypatch.setattr(sampling.SamplingRun, "samples", drawn_again)
    judged = evaluate(warm_policy, gate=True, **words)
    assert judged.gate is not None and [one.k for one in judged.gate.points] == [1, 8, 16]
    assert [line for line in judged.lines if line.startswith("gate")] == judged.gate.lines()[:1]
    assert evaluate(tmp_path / "a", gate=True).gate == judged.gate
    by_k = {row["k"]: row for row in judged.rows}
    assert all(by_k[one.k]["low"] == one.passed.low and by_k[one.k]["chance"] == one.chance for one in judged.gate.points)


def test_an_exact_evaluation_has_a_gate_too(
    write_recipe: Callable[..., Path], warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = evaluate(warm_policy, world=str(write_recipe()), problems=8, ks=(1, 4, 32), gate=True, quiet=True)
    assert found.gate is not None and [one.k for one in found.gate.points] == [1, 8, 32]
    at = {row["k"]: row for row in found.rows}
    assert found.gate.points[-1].passed.value == pytest.approx(at[32]["pass"]) and found.gate.points[-1].chance == at[32]["chance"]
