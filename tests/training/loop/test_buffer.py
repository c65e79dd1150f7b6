"""The answer buffer in a run: what fills it, what a step does with it, resumes, and a run in which it stays empty."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from loop_recorded import draw_groups
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.contrib.replay.rft import Likelihood
from sage_rlvr.core.extras.replay.answers import Answers
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.tasks.abilities import Environment
from sage_rlvr.tasks.base import answer_id
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.training import buffer as memory
from sage_rlvr.training import loop as engine
from sage_rlvr.training import samplers
from sage_rlvr.training.loop import build, train, train_step
from sage_rlvr.training.problems import files_of
from sage_rlvr.training.watch import BufferWatch

Recipe = Callable[..., Path]
RFT = "{name: rft, base: 6, base_prompts: 30, prompts: 8}"
EXIT = "{name: expert_iteration, prompts: 8}"
REPLAY = "{name: replay, weight: 0.5, prompts: 8, draw: any}"
DPH = "{name: dph, weight: 0.5, base: 6, base_prompts: 30, prompts: 8}"
COMPOSED = (
    "{name: compose, beta: 0.05, advantage: leave_one_out, reduction: {name: fixed_budget}, "
    "extras: [{name: likelihood, weight: 0.3, draw: hard, take: 2, answers: 3, prompts: 8, evict: commonest}]}"
)


def config_of(recipe: Path, *overrides: tuple[str, str]) -> TrainConfig:
    return load_config(TrainConfig, recipe, overrides)


def go(recipe: Path, folder: Path, steps: int | None = None, **overrides: str) -> int:
    """Train; with `steps`, killed after the checkpoint of that step."""
    config = config_of(recipe, *overrides.items())
    with RunDir.open(folder, dump(config)) as run:
        if steps is None:
            return train(config, run, Silent())
        plain, real = engine.train_step, engine.train_step

        def limited(loop: Any, step: int) -> dict[str, float]:
            if step == steps:
                raise KeyboardInterrupt
            return plain(loop, step)

        engine.train_step = limited  # type: ignore[assignment]
        try:
            with pytest.raises(KeyboardInterrupt):
                train(config, run, Silent())
        finally:
            engine.train_step = real
        return steps


def rows(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time/step_s"} for row in read_metrics(folder)]


def kept(folder: Path, step: int) -> Answers:
    tensors = load_file(folder / "checkpoints" / f"step-{step:06d}" / "parts.safetensors")
    return Answers.of({name.rpartition(".")[2]: one for name, one in tensors.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [RFT, *(pytest.param(method, marks=pytest.mark.slow) for method in (REPLAY, EXIT, DPH, COMPOSED))],
    ids=["rft", "replay", "expert_iteration", "dph", "composed"],
)
def test_a_killed_run_ends_as_one_that_was_not(write_recipe: Recipe, tmp_path: Path, method: str) -> None:
    """Killed at step 1, before its first checkpoint but that of the filled buffer, and again at 3 after one at 2."""
    more = "updates: {minibatches: 2, micro_batch: 1}\ncheckpoint: {every: 2, keep: 9}\n"
    recipe = write_recipe(method, steps=4, more=more)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    go(recipe, whole)
    go(recipe, parts, 1)
    assert (parts / "checkpoints" / "step-000000").is_dir() is ("base" in method)
    go(recipe, parts, 3)
    assert go(recipe, parts) == 4
    assert rows(whole) == rows(parts)
    for group in ("model", "optimizer", "parts"):
        one, two = (load_file(f / "checkpoints" / "step-000004" / f"{group}.safetensors") for f in (whole, parts))
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one), group
    assert len(kept(whole, 4)) == rows(whole)[-1]["replay/answers"] > 0
    assert any(row["replay/rows"] > 0 and row["optimizer/grad_norm"] > 0 for row in rows(whole) if "optimizer/grad_norm" in row)


@pytest.mark.slow
def test_a_resume_samples_the_base_only_once(write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(RFT, steps=3)
    go(recipe, tmp_path, 1)
    before = kept(tmp_path, 0)
    monkeypatch.setattr(memory, "base_answers", lambda *_: pytest.fail("sampled again"))
    assert go(recipe, tmp_path) == 3
    assert all(torch.equal(one, kept(tmp_path, 3).tensors()[name]) for name, one in before.tensors().items())


@pytest.mark.slow
def test_the_base_is_sampled_alike_however_many_problems_at_a_time(
    write_recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is stored is what it answered: right, its own log-probs, each answer once; the cost is said and counted at step 0."""
    found = []
    for prompts in ("2", "4"):
        loop = build(config_of(write_recipe(RFT), ("rollout.prompts_per_step", prompts)))
        assert memory.fill(loop)
        found.append(memory.stored(loop))
    assert "180 completions of 30 problems sampled from the base" in capfd.readouterr().err
    assert found[0].tokens.shape == found[1].tokens.shape and torch.equal(found[0].tokens, found[1].tokens)
    one, pairs = found[1], {(int(p), int(a)) for p, a in zip(found[1].problem, found[1].answer, strict=True)}
    assert len(pairs) == len(one) > 5 and int(one.tried[:, 1].sum()) == 180 and set(one.step.tolist()) == {-1}
    texts = loop.tokens.decode([t[m].tolist() for t, m in zip(one.tokens, one.mask, strict=True)], [True] * len(one))
    assert all(loop.task.verify(loop.problems[p], text).right for p, text in zip(one.problem.tolist(), texts, strict=True))
    scored = memory.ReplayStep(loop, loop.method.buffer, 0, one)
    drawn = scored.rows(0)
    assert torch.allclose(scored.logps(drawn), drawn.answers.logps, atol=1e-4)
    first, second = (train_step(loop, step) for step in (0, 1))
    assert first["rollout/tokens"] == first["replay/sampled"] == int(one.sampled) > 0 and second["rollout/tokens"] == 0.0


@pytest.mark.slow
def test_the_base_is_another_model_where_the_run_names_one(write_recipe: Recipe, tiny_policy: Path, warm_policy: Path) -> None:
    """A policy that is never right rehearses the answers of a base that is, with the base's log-probs."""
    config = config_of(write_recipe(DPH, model=tiny_policy), ("base_model", str(warm_policy)))
    loop = build(config)
    memory.fill(loop)
    held = memory.stored(loop)
    own = build(config_of(write_recipe(DPH)))
    memory.fill(own)
    assert len(held) > 5 and all(torch.equal(one, memory.stored(own).tensors()[n]) for n, one in held.tensors().items())
    drawn = memory.ReplayStep(loop, loop.method.buffer, 0, held)
    gaps = (drawn.logps(drawn.rows(0)).detach() - drawn.rows(0).answers.logps).abs()
    assert float(gaps.max()) > 1.0 and train_step(loop, 0)["replay/kl"] > 1.0


def test_alone_samples_scores_and_loads_nothing_that_it_does_not_need(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = [build(config_of(write_recipe(method))) for method in (RFT, EXIT)]
    assert [loop.reference for loop in loops] == [None, None]
    memory.fill(loops[0])
    monkeypatch.setattr(engine, "step_scores", lambda *_, **__: pytest.fail("scored a rollout"))
    assert "reward/mean" in train_step(loops[1], 0)
    monkeypatch.setattr(samplers, "draw", lambda *_: pytest.fail("sampled a rollout"))
    metrics = train_step(loops[0], 0)
    assert "reward/mean" not in metrics and metrics["replay/rows"] > 0


def test_one_step_of_expert_iteration_is_the_textbooks(write_recipe: Recipe) -> None:
    """-(1/P) sum over prompts of the mean log-prob of their distinct right answers, one row after the other, over 8 tokens."""
    loop = build(config_of(write_recipe("{name: expert_iteration, prompts: 40}"), ("rollout.prompts_per_step", "40")))
    found = draw_groups(loop, 0).groups[0]
    texts = loop.tokens.texts(found.rollout)
    right = {(i // 4, texts[i]): i for i in reversed(range(160)) if found.rewards.reshape(-1)[i] > 0}
    loss = torch.zeros(())
    for (prompt, _), i in right.items():
        n = sum(1 for other, _ in right if other == prompt)
        completion = found.rollout.tokens[i][found.rollout.mask[i]].tolist()
        ids = [*found.prompts[prompt], *completion]
        laws = loop.policy(torch.tensor([ids])).logits[0, -len(completion) - 1 : -1].log_softmax(-1)
        loss = loss - laws[range(len(completion)), completion].sum() / n / 40 / 8
    wanted = torch.autograd.grad(loss, list(loop.policy.parameters()))
    seen: list[torch.Tensor] = []

    class Looks:
        def step(self, number: int) -> dict[str, float]:
            seen.extend(p.grad.clone() for p in loop.policy.parameters())
            return {}

    loop.optimizer = Looks()  # type: ignore[assignment]
    metrics = train_step(loop, 0)
    assert len(right) > 3 and metrics["replay/rows"] == metrics["replay/added"] == len(right)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert max(float((a - b).abs().max()) for a, b in zip(seen, wanted, strict=True)) < 1e-5
    assert max(float(one.abs().max()) for one in wanted) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "updates: {epochs: 2, minibatches: 2}\n"])
def test_weight_zero_is_no_buffer_bit_for_bit(write_recipe: Recipe, more: str) -> None:
    plain = build(config_of(write_recipe("{name: grpo}", more=more)))
    other = build(config_of(write_recipe("{name: replay, beta: 0.05, weight: 0.0}", name="b.yaml", more=more)))
    for step in range(2):
        one, two = train_step(plain, step), train_step(other, step)
        assert one.items() <= two.items() and two["replay/rows"] == 0.0
    assert all(torch.equal(a, b) for a, b in zip(plain.policy.parameters(), other.policy.parameters(), strict=True))
    assert two["replay/answers"] > 0  # stored all the same


def test_replay_draws_what_earlier_rollouts_left(write_recipe: Recipe) -> None:
    """Step 0 has nothing to replay; at step 1 the rows are those of step 0, with their advantages."""
    recipe = write_recipe("{name: replay, prompts: 60, draw: any}")
    loop = build(config_of(recipe, ("rollout.prompts_per_step", "20")))
    first = train_step(loop, 0)
    left = memory.stored(loop)
    twin = build(loop.config)
    groups = draw_groups(twin, 0).groups[0]
    advantages = loop.method.advantage(groups.rewards).reshape(-1)[groups.rewards.reshape(-1) > 0]
    assert first["replay/rows"] == 0.0 and set(left.step.tolist()) == {0}
    assert set(left.advantage.tolist()) == set(advantages.tolist())
    second = train_step(loop, 1)
    assert second["replay/rows"] == len(left) > 0 and second["replay/ratio_mean"] != 1.0
    assert set(memory.stored(loop).step.tolist()) == {0, 1}


def test_replay_alone_stores_the_advantages_of_rewards(write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], memory.credit
    monkeypatch.setattr(memory, "credit", lambda *args, **named: (asked.append(named), real(*args, **named))[1])
    method = "{name: compose, beta: 0.0, extras: [{name: replay, alone: true, prompts: 8}]}"
    loop = build(config_of(write_recipe(method), ("rollout.prompts_per_step", "20")))
    assert [train_step(loop, step)["replay/rows"] > 0 for step in (0, 1)] == [False, True]
    assert set(memory.stored(loop).advantage.tolist()) > {0.0} or len(set(memory.stored(loop).advantage.tolist())) > 1
    assert asked == [{"step": step, "total_steps": loop.config.steps} for step in (0, 1)]  # for a schedule on the advantage
    assert loop.tokens.decode([], []) == []


def test_a_step_that_diverges_leaves_the_buffer_as_it_was(
    write_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(write_recipe(EXIT, steps=2), ("rollout.prompts_per_step", "40"))
    broken = {"replay/loss": float("nan"), "replay/logp": 0.0}
    monkeypatch.setattr(memory, "buffer_loss", lambda buffer, logps, *_: (logps.sum() * float("nan"), broken))
    words = r"loss of the buffer is nan at step 0.*the batch in"
    with RunDir.open(tmp_path / "run", dump(config)) as run, pytest.raises(engine.TrainingDiverged, match=words):
        train(config, run, Silent())
    listed = json.loads((tmp_path / "run" / "diverged" / "step-000000" / "batch.json").read_text())
    assert len(listed["prompts"]) == 40 and len(kept(tmp_path / "run", 0)) == 0


# ---- a file


def write_answers(path: Path, *lines: tuple[Any, Any]) -> Path:
    path.write_text("".join(json.dumps({"problem": p, "completion": c}) + "\n" for p, c in lines))
    return path


def test_a_file_is_verified_and_stored(write_recipe: Recipe, tmp_path: Path) -> None:
    loop = build(config_of(write_recipe(EXIT)))
    problems = loop.problems[:3]
    lines = [(p.problem_id, text) for p in problems for text in sorted(loop.task.solutions(p))]
    file = write_answers(tmp_path / "right.jsonl", *lines, lines[0])
    recipe = write_recipe("{name: rft, base: 0, file: FILE}".replace("FILE", str(file)))
    config = config_of(recipe)
    assert list(files_of(config)) == [str(file)]
    loop = build(config)
    assert memory.fill(loop)
    held = memory.stored(loop)
    wanted = {(i, answer_id(text)) for i, p in enumerate(problems) for text in loop.task.solutions(p)}
    assert {(int(p), int(a)) for p, a in zip(held.problem, held.answer, strict=True)} == wanted
    assert held.found.tolist() == [2, *[1] * (len(wanted) - 1)] and int(held.sampled) == 0
    before = train_step(loop, 0)["replay/logp"]
    for step in range(1, 12):
        after = train_step(loop, step)["replay/logp"]
    assert after > before + 0.5


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([("FIRST", "GOOD"), ("FIRST", "1+1")], r"wrong\.jsonl:2: .* is wrong \(.*\): '1\+1'; remove or correct"),
        ([("nobody", "1+1")], r"wrong\.jsonl:1: problem 'nobody' is none of the 60 training problems of countdown"),
        ([("FIRST", 3)], r"wrong\.jsonl:1: give \{\"problem\": id"),
        ([("FIRST", None)], r"wrong\.jsonl:1: give"),
        ([], r"wrong\.jsonl: contains no answers; write lines \{\"problem\": id"),
    ],
)
def test_a_file_with_a_wrong_line_is_refused_by_name_and_place(
    write_recipe: Recipe, tmp_path: Path, lines: list[tuple[Any, Any]], words: str
) -> None:
    loop = build(config_of(write_recipe(EXIT)))
    first = loop.problems[0]
    known = {"FIRST": first.problem_id, "GOOD": min(loop.task.solutions(first))}
    write_answers(tmp_path / "wrong.jsonl", *[(known.get(p, p), known.get(c, c)) for p, c in lines])
    with pytest.raises(DataError, match=words):
        memory.file_answers(loop, str(tmp_path / "wrong.jsonl"))


def test_the_truth_is_every_answer_that_the_task_lists(
    write_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = build(config_of(write_recipe("{name: sft_oracle, take: 3, prompts: 5}")))
    assert memory.fill(loop) and "stored from the list of countdown (an oracle)" in "".join(capsys.readouterr())
    held = memory.stored(loop)
    wanted = {(i, answer_id(text)) for i, p in enumerate(loop.problems) for text in loop.task.solutions(p)}
    assert {(int(p), int(a)) for p, a in zip(held.problem, held.answer, strict=True)} == wanted and len(held) == len(wanted)
    found = train_step(loop, 0)
    assert 5 < found["replay/rows"] <= 15 and found["rollout/tokens"] == 0  # nothing is sampled
    assert "all right answers that the task lists (an oracle)" in loop.method.describe()
    monkeypatch.setattr(memory, "Enumerable", Environment)  # as if it listed none
    with pytest.raises(ConfigError, match=r"Likelihood: oracle: countdown cannot list its correct completions .*as a file"):
        memory.fill(loop)


def test_a_file_that_is_not_there_is_refused(write_recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"Likelihood: file = '.*nowhere\.jsonl': no such file .* of lines \{\"problem\": id"):
        files_of(config_of(write_recipe("{name: rft, base: 0, file: nowhere.jsonl}")))


# ---- what is said of a run


def test_a_task_that_does_not_say_what_an_answer_is_is_told(
    write_recipe: Recipe, tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Countdown, "answer_key")
    with pytest.warns(UserWarning, match="Countdown has no answer_key.*only if their texts agree"):
        go(write_recipe(EXIT, model=tiny_policy, steps=1), tmp_path / "run")


def test_a_run_with_an_empty_buffer_says_so(write_recipe: Recipe, tiny_policy: Path, tmp_path: Path) -> None:
    """A random policy is never right: said at the end of a short run, once, and in run.json; no update was made."""
    recipe = write_recipe(EXIT, model=tiny_policy, steps=3)
    said = r"Likelihood trained on no stored answer in the 3 steps up to step 2 .*no answer was correct"
    with pytest.warns(UserWarning, match=said):
        go(recipe, tmp_path / "run")
    kept_ = {one["kind"]: one for one in json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]}["empty buffer"]
    assert "0 answers stored" in kept_["message"]
    assert [row["replay/answers"] for row in rows(tmp_path / "run")] == [0.0] * 3
    weights, start = (load_file(f / "model.safetensors") for f in (tmp_path / "run" / "policy", tiny_policy))
    assert all(torch.equal(weights[name], start[name]) for name in weights)


@pytest.mark.parametrize(
    ("stored", "weight", "words"), [(0, 1.0, "no answer was correct"), (5, 1.0, "no stored answer"), (5, 0.0, "weight is 0")]
)
def test_the_watch_says_why_after_ten_steps(stored: int, weight: float, words: str) -> None:
    said: list[tuple[str, int, str]] = []
    watch = BufferWatch(Likelihood(weight=weight), 100, lambda *one: said.append(one))
    for step in range(40):
        watch.see(step, {"replay/rows": float(step == 3), "replay/answers": float(stored)})
    assert [(kind, step) for kind, step, _ in said] == [("empty buffer", 13)] and words in said[0][2]
