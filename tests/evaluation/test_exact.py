"""Exact evaluation: enumeration is a brute-force sum, and sampling agrees with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import save, tiny_llama
from sage_rlvr.config import TrainConfig, WorldConfig, load_config
from sage_rlvr.contrib.tasks.word_problems import WordProblems
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import evaluate as evaluation
from sage_rlvr.evaluation.evaluate import Target, cross_check, evaluate, identity_of, resolve
from sage_rlvr.evaluation.exact import probabilities, sampled_counts
from sage_rlvr.evaluation.sampling import choose
from sage_rlvr.models.enumeration import solutions
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.models.policy import load_policy
from sage_rlvr.tasks.countdown import Countdown, Problem
from sage_rlvr.training.problems import training_problems
from sage_rlvr.verdicts.stats.intervals import wilson

WORLD = WorldConfig(counts={2: 1.0}, max_number=12, max_target=144, train_problems=60)
TASK = Countdown({2: 1.0, 3: 1.0}, max_number=9)
PROBLEMS = [*TASK.problems("test", 0, 12), Problem((1, 1, 1), 97)]  # the last one has no solution


@pytest.fixture(scope="module")
def policy(warm_policy: Path):  # type: ignore[no-untyped-def]
    return load_policy(str(warm_policy))


def brute_force(policy, problem: Problem, temperature: float) -> float:  # type: ignore[no-untyped-def]
    """One unpadded forward pass for each right completion, in double precision."""
    model, tokens = policy
    total = 0.0
    for text in TASK.solutions(problem):
        prompt, answer = tokens.encode(TASK.prompt(problem)), [*tokens.encode(text), tokens.eos_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits.double() / temperature, -1)
        total += float(logps[range(len(answer)), answer].sum().exp())
    return total


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [512, 1])
def test_p_is_the_brute_force_sum_at_each_temperature(policy, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(solutions, "ROWS_PER_CHUNK", chunk)
    seen: list[int] = []
    found = solution_logps(*policy, TASK, PROBLEMS, (0.3, 1.0, 2.0), seen.append)
    assert sum(seen) == len(PROBLEMS) and list(found) == [0.3, 1.0, 2.0]
    for temperature, logps in found.items():
        assert [len(row) for row in logps] == [len(TASK.solutions(p)) for p in PROBLEMS]
        wanted = [brute_force(policy, p, temperature) for p in PROBLEMS]
        assert np.allclose(probabilities(logps), wanted, rtol=2e-4, atol=1e-9)
        assert (probabilities(logps) <= 1).all() and probabilities(logps)[-1] == 0
    assert not np.allclose(probabilities(found[0.3]), probabilities(found[2.0]))


@pytest.mark.slow
def test_problems_without_any_solution(policy) -> None:  # type: ignore[no-untyped-def]
    found = solution_logps(*policy, TASK, [PROBLEMS[-1]])
    assert [len(row) for row in found[1.0]] == [0] and probabilities(found[1.0]).tolist() == [0.0]
    first = solution_logps(*policy, TASK, [PROBLEMS[-1], PROBLEMS[0]])[1.0]
    assert np.allclose(first[1], solution_logps(*policy, TASK, [PROBLEMS[0]])[1.0][0], atol=1e-4)


def test_rounding_above_one_is_cut_off() -> None:
    rows = [np.log(np.array([0.5, 0.5000001])), np.zeros(0), np.log(np.array([0.25]))]
    assert probabilities(rows).tolist() == [1.0, 0.0, 0.25]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampling_agrees_within_its_interval(policy, temperature: float) -> None:  # type: ignore[no-untyped-def]
    n = 300
    solvable = PROBLEMS[:8]
    counts = sampled_counts(*policy, TASK, solvable, n=n, max_new_tokens=16, seed=5, temperature=temperature)
    p = probabilities(solution_logps(*policy, TASK, solvable, (temperature,))[temperature])
    assert p.max() > 0.1  # a policy that is never right would agree for nothing
    interval = wilson(int(counts.sum()), n * len(solvable), level=0.99)
    assert interval.low <= p.mean() <= interval.high
    assert np.allclose(counts / n, p, atol=4 * np.sqrt(0.25 / n))


def test_evaluate_records_what_it_did(warm_policy: Path, tmp_path: Path) -> None:
    record = evaluate(Target("warm", str(warm_policy), WORLD), problems=5, temperatures=(0.5, 1.0))
    again = evaluate(Target("warm", str(warm_policy), WORLD), problems=5, temperatures=(0.5, 1.0))
    ids = [p.problem_id for p in WORLD.build().problems("test", 1, 5, distinct=False)]
    assert record.problems == 5 and record.meta["problem_ids"] == ids and set(record.logps) == {0.5, 1.0}
    assert all(np.array_equal(a, b) for a, b in zip(record.logps[1.0], again.logps[1.0], strict=True))
    identity = identity_of(WORLD.build())
    assert "train_problems" not in identity and record.meta["world"] == identity
    with pytest.raises(DataError, match="split 'all': choose 'validation'"):
        evaluate(Target("warm", str(warm_policy), WORLD), split="all")
    model = tiny_llama()
    torch.nn.init.constant_(model.get_input_embeddings().weight, float("nan"))
    broken = save(model, tmp_path / "broken")
    with pytest.raises(DataError, match="broken: log-probabilities are NaN"):
        evaluate(Target("broken", str(broken), WORLD), problems=2)


def test_of_the_training_problems_the_first_of_those_that_a_run_trains_on(warm_policy: Path) -> None:
    """Each once and in its order, whatever seed and draw: exactly, and by samples."""
    config = replace(load_config(TrainConfig, "grpo"), world=WORLD)
    pool = [p.problem_id for p in training_problems(config)[1]]
    assert len(pool) == 60 == len(set(pool))
    for seed, sampling in ((1, "iid"), (2, "without-replacement")):
        record = evaluate(Target("warm", str(warm_policy), WORLD), split="train", problems=60, seed=seed, sampling=sampling)
        assert record.meta["problem_ids"] == pool and record.meta["split"] == "train"
        assert list(choose(WORLD.build(), "train", seed, 7, sampling).problems) == pool[:7]
    record = evaluate(Target("warm", str(warm_policy), WORLD), split="train", problems=300)
    assert record.meta["problem_ids"] == pool  # there are no more


def test_both_draws_score_a_repeated_problem_once_and_alike(warm_policy: Path) -> None:
    target, task = Target("warm", str(warm_policy), WORLD), WORLD.build()
    size = len(task.census("test"))
    law = evaluate(target, problems=2 * size)  # more draws than problems, so some must come twice
    census = evaluate(target, problems=size, sampling="without-replacement")
    assert law.meta["sampling"] == "iid" and census.meta["sampling"] == "without-replacement"
    assert sorted(census.meta["problem_ids"]) == sorted(p.problem_id for p in task.census("test"))
    by_id = dict(zip(census.meta["problem_ids"], census.logps[1.0], strict=True))
    assert len(set(law.meta["problem_ids"])) < 2 * size
    for name, row in zip(law.meta["problem_ids"], law.logps[1.0], strict=True):
        assert np.allclose(row, by_id[name], atol=1e-5)
    with pytest.raises(DataError, match="choose one of iid, distinct, without-replacement"):
        evaluate(target, sampling="all")


def test_the_cross_check_agrees_also_with_few_problems(warm_policy: Path) -> None:
    """More problems asked for than there are: the share is taken over those that were really sampled."""
    target = Target("warm", str(warm_policy), WORLD)
    record = evaluate(target, problems=6)
    found = cross_check(target, record, n=200, problems=40, max_new_tokens=8, seed=1)
    assert found["exact"] > 0.05 and found["agree"] == 1.0 and found["low"] <= found["sampled"] <= found["high"]
    assert found["level"] == 0.999
    narrow = cross_check(target, record, n=200, problems=40, max_new_tokens=8, seed=1, level=0.5)
    wide, half = (wilson(round(1200 * found["sampled"]), 1200, level=level) for level in (0.999, 0.5))
    assert (found["low"], found["high"]) == (wide.low, wide.high)
    assert (narrow["low"], narrow["high"], narrow["level"]) == (half.low, half.high, 0.5)


def test_the_cross_check_notices_another_policy(warm_policy: Path, tiny_policy: Path) -> None:
    record = evaluate(Target("warm", str(warm_policy), WORLD), problems=6)
    found = cross_check(Target("tiny", str(tiny_policy), WORLD), record, n=200, problems=6, max_new_tokens=8, seed=1)
    assert found["agree"] == 0.0


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "demo_world", lambda: WORLD)
    assert resolve("embedded") == Target("base", "embedded", WORLD)
    assert resolve("some/model") == Target("model", "some/model", WORLD)
    (tmp_path / "run.json").write_text('{"config": {"world": {"counts": {"3": 1.0}}}}')
    with pytest.raises(ConfigError, match="has not finished"):
        resolve(str(tmp_path))
    (tmp_path / "policy").mkdir()
    for name in ("adapter_config.json", "config.json"):
        (tmp_path / "policy" / name).write_text("{}")
        target = resolve(str(tmp_path))
    assert target.world.counts == {3: 1.0} and target.model == str(tmp_path / "policy") and target.run == tmp_path


def test_a_record_names_its_weights_and_a_mistyped_folder_is_answered_at_once(
    warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sage_rlvr.errors import ConfigError
    from sage_rlvr.models.policy import load_policy, weights_hash

    record = evaluate(Target("warm", str(warm_policy), WORLD), problems=2)
    assert record.meta["weights"] == weights_hash(str(warm_policy))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'embedded'"):
        load_policy("embeded")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "grpo-2").mkdir()
    (tmp_path / "runs" / "grpo-2" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no config\.json in.*did you mean 'runs/grpo-2'"):
        load_policy("runs/grpo-20")
    with pytest.raises(ConfigError, match="runs/grpo-2 is a run directory; use runs/grpo-2/policy"):
        load_policy("runs/grpo-2")


def test_completions_are_as_long_as_the_run_or_the_task_says(warm_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Target("words", "", WORLD, task=WordProblems())
    assert words.tokens == WordProblems().max_new_tokens == 90
    assert replace(words, limit=50).tokens == 50 and Target("warm", "", WORLD, limit=50).tokens == Countdown.max_new_tokens == 32
    asked: list[int] = []

    def counted(*_: object, max_new_tokens: int, **more: object) -> np.ndarray:
        asked.append(max_new_tokens)
        return np.zeros(2, dtype=np.int64)

    monkeypatch.setattr(evaluation, "sampled_counts", counted)
    monkeypatch.setattr(Target, "tokens", 17)
    target = Target("warm", str(warm_policy), WORLD)
    record = evaluate(target, problems=2, temperatures=(1.0,))
    cross_check(target, record, n=1, problems=2, seed=1)
    monkeypatch.setattr(evaluation, "log_normalizers", lambda *a, max_new_tokens, **k: asked.append(max_new_tokens) or {})
    evaluate(target, problems=2, temperatures=(1.0,), powers=(2.0,))
    assert asked == [17, 17]
