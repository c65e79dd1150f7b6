"""The sum of pi(y)^power over all completions: bounds that hold the truth, on a policy whose completions can all be listed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.config import WorldConfig
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.evaluate import Target, evaluate
from sage_rlvr.evaluation.exact import log_normalizers
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.models.enumeration.completions import enumerate_completions
from sage_rlvr.models.policy import load_policy
from sage_rlvr.verdicts.stats.tempered import tempered

WORLD = WorldConfig(counts={2: 1.0}, max_number=12, max_target=144, train_problems=60)
POWERS = (1.0, 1.5, 2.0, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("floor", [0.03, 1e-3])
def test_the_bounds_hold_what_a_much_deeper_list_says(warm_policy: Path, floor: float) -> None:
    model, tokens = load_policy(str(warm_policy))
    task = WORLD.build()
    problems = task.problems("test", 0, 3)
    found = log_normalizers(model, tokens, task, problems, POWERS, max_new_tokens=8, floor=floor)
    for i, problem in enumerate(problems):
        deep = enumerate_completions(model, tokens, tokens.encode_prompt(task.prompt(problem)), 8, floor=1e-6)
        ended = deep.probs[deep.finished].numpy()
        for power in POWERS[1:]:
            low, high = found[power][i]
            below = np.log(np.sum(ended**power))
            above = np.log(np.sum(ended**power) + float((deep.probs[~deep.finished] ** power).sum()))
            assert low <= below + 1e-5 and above <= high + 1e-5  # float32, twice: the two lists are of other batches
            assert low < high  # something is always left at these floors
    assert found[1.0].tolist() == [[0.0, 0.0]] * 3
    assert (np.diff(found[4.0]) < np.diff(found[1.5])).all()  # sharper powers leave less to what is unlikely


def test_a_lower_floor_narrows_and_too_many_prefixes_raise_it(warm_policy: Path) -> None:
    model, tokens = load_policy(str(warm_policy))
    task = WORLD.build()
    problems = task.problems("test", 0, 2)
    wide, narrow, forced = (
        log_normalizers(model, tokens, task, problems, (2.0,), max_new_tokens=8, floor=floor, most_states=most)[2.0]
        for floor, most in ((0.03, 10_000), (1e-3, 10_000), (1e-3, 12))
    )
    assert (np.diff(narrow) < np.diff(wide)).all() and (np.diff(forced) > np.diff(narrow)).all()


def test_a_power_below_one_is_refused(warm_policy: Path) -> None:
    model, tokens = load_policy(str(warm_policy))
    for wrong in (0.9, math.inf, math.nan):
        with pytest.raises(DataError, match=r"use powers in \[1, inf\)"):
            log_normalizers(model, tokens, WORLD.build(), [], (1.0, wrong), max_new_tokens=8)


def test_a_record_keeps_them_and_they_give_what_sampling_the_listed_law_would(
    warm_policy: Path, tmp_path: Path
) -> None:
    seen: list[int] = []
    target = Target("warm", str(warm_policy), WORLD)
    record = evaluate(target, problems=6, powers=POWERS, progress=seen.append)
    assert sum(seen) == 2 * len(set(record.meta["problem_ids"]))
    again = load_record(save_record(record, tmp_path / "one.npz"))
    assert list(again.norms) == list(POWERS)
    assert all(np.array_equal(again.norms[p], record.norms[p]) for p in POWERS)
    model, tokens = load_policy(str(warm_policy))
    task = WORLD.build()
    problem = task.problems("test", 1, 6, distinct=False)[0]
    deep = enumerate_completions(model, tokens, tokens.encode_prompt(task.prompt(problem)), 8, floor=1e-6)
    squares = deep.probs[deep.finished].numpy() ** 2
    right = np.array([task.verify(problem, text).right for text in deep.texts(tokens)])
    two = next(one for one in tempered(record.logps[1.0], record.norms) if one.power == 2.0)
    assert two.p[0] == pytest.approx(squares[right].sum() / squares.sum(), abs=1e-3 + two.bound[0])
    assert evaluate(target, problems=6).norms == {}


LAW = {"temperatures": np.array([1.0]), "offsets": np.array([0, 1, 3]), "logps": np.log([[0.5, 0.25, 0.125]])}
META = {"format": 1, "name": "warm", "problem_ids": ["a", "b"], "split": "test", "world": {}}


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in ("meta", "temperatures", "offsets", "logps")),
        *({"meta": np.array(text)} for text in ("{", "[1]", "null", "[" * 100_000, '{"format": 1}', '{"format": 2}')),
        *({"meta": np.array(json.dumps(META | more))} for more in ({"problem_ids": 3}, {"problem_ids": ["a"]}, {"name": [1]})),
        *({"meta": np.array(json.dumps(META | more))} for more in ({"world": "x"}, {"seed": "x"}, {"seconds": "x"})),
        {"meta": np.array(3)},
        {"temperatures": np.array(["x"])},
        {"temperatures": np.array([1.0, 2.0])},
        {"temperatures": np.array(1.0)},
        {"offsets": np.array([0.0, 1.0, 3.0])},
        {"offsets": np.array([0, 2, 1])},
        {"offsets": np.array([0, 5, 3])},
        {"offsets": np.array([[0, 1, 3]])},
        {"offsets": np.array([0])},
        {"logps": np.log([0.5, 0.25, 0.125])},
        {"logps": np.array([[-1, -2, -3]])},
        {"logps": np.array([[-1.0, math.nan, -3.0]])},
        {"logps": np.array([[-1.0, 2.0, -3.0]])},
        {"powers": np.array([2.0])},
        {"powers": np.array([2.0]), "norms": np.zeros((1, 3, 2))},
        {"powers": np.array(["x"]), "norms": np.zeros((1, 2, 2))},
    ],
    ids=range(32),
)
def test_a_record_that_is_no_whole_evaluation_is_refused(tmp_path: Path, change: dict[str, np.ndarray | None]) -> None:
    """Each in one sentence with the file and the command that makes it again."""
    whole = {"meta": np.array(json.dumps(META)), **LAW}
    np.savez(tmp_path / "one.npz", **whole)
    assert load_record(tmp_path / "one.npz").problems == 2
    np.savez(tmp_path / "one.npz", **{name: value for name, value in (whole | change).items() if value is not None})
    with pytest.raises(DataError, match=r"one\.npz: .*; create it again with: sage-rlvr eval RUN$"):
        load_record(tmp_path / "one.npz")
