"""Rewards that the policy computes, on the loop: by hand, with the first weights and the current ones, through a filter."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import tiny_llama
from loop_recorded import draw_groups
from sage_rlvr.config import OptimizerConfig, TrainConfig, dump, load_config
from sage_rlvr.errors import DataError
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.progress import Silent
from sage_rlvr.recipes import locate
from sage_rlvr.runs import RunDir
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.training.loop import build, train, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.sft import sft_step, texts_of
from sage_rlvr.training.state import model_tensors
from sage_rlvr.training.watch import SourceWatch

Recipe = Callable[..., Path]
RLPR = "{name: rlpr, given: 0.5}"


def loop_of(path: Path, *edits: tuple[str, str]) -> TrainState:
    return build(load_config(TrainConfig, path, list(edits)))


def mean_probability(model: Any, prompt: list[int], lead: list[int], scored: list[int]) -> Tensor:
    logits = model(torch.tensor([prompt + lead + scored])).logits[0, -len(scored) - 1 : -1].float()
    return torch.softmax(logits, -1)[range(len(scored)), scored].mean()


def is_expression(text: str) -> bool:
    """By Python's own grammar: numbers, + - * / between two, parentheses."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return all(isinstance(node, ast.Expression | ast.BinOp | ast.Constant | ast.operator) for node in ast.walk(tree))


@torch.no_grad()
def by_hand(loop: TrainState, groups: Any, initial: Any) -> Tensor:
    """r of each completion of two-number problems, written out: one plain forward each, half of y* (rounded down) given."""
    texts, size = loop.tokens.texts(groups.rollout), groups.rewards.shape[1]
    found = []
    for i, text in enumerate(texts):
        problem, prompt = groups.problems[i // size], groups.prompts[i // size]
        if not is_expression(text):
            found.append(torch.tensor(0.0))
            continue
        answer, own = (loop.tokens.encode(one) for one in (loop.task.reference(problem), text))
        count = len(answer) // 2
        with_own = mean_probability(loop.policy, prompt, own[:count], answer[count:])
        alone = 0.0 if initial is None else mean_probability(initial, prompt, [], answer[count:])
        found.append(0.9 * torch.clamp(with_own - alone, 0, 1) + 0.1)
    return torch.stack(found).reshape(-1, size)


@pytest.mark.slow
@pytest.mark.parametrize("debias", ["initial", "current", "none"])
def test_rewards_by_hand_before_and_after_the_policy_moves(write_recipe: Recipe, debias: str) -> None:
    method = f"{{name: rlpr, given: 0.5, debias: {debias}}}"
    path = write_recipe(method, more="updates: {minibatches: 2, micro_batch: 1}\n")
    loop, first = loop_of(path, ("optimizer.lr", "3e-3")), loop_of(path).policy
    assert (loop.initial is None) is (debias != "initial")
    for step in range(3):
        groups = draw_groups(loop, step).first_stage
        wanted = by_hand(loop, groups, {"initial": first, "current": loop.policy, "none": None}[debias])
        torch.testing.assert_close(groups.rewards, wanted, rtol=0, atol=2e-6)
        assert groups.rewards.unique().numel() > 4 and not groups.rewards.requires_grad
        assert groups.right is not None and groups.right.shape == (4, 4)
        metrics = train_step(loop, step)
        assert metrics["reward/mean"] == pytest.approx(float(groups.rewards.mean()))
        assert metrics["verifier/right_frac"] == float(groups.right.float().mean())
    moved = max(float((a - b).abs().max()) for a, b in zip(loop.policy.parameters(), first.parameters(), strict=True))
    assert moved > 1e-3  # and "initial" did not move with it


def test_the_reference_is_the_initial_policy_where_it_stays(write_recipe: Recipe) -> None:
    for more, same in (("", True), (", refresh_every: 1", False)):
        loop = loop_of(write_recipe(f"{{name: rlpr, beta: 0.1, source: sft{more}}}"))
        assert (loop.initial is loop.reference) is same and loop.initial is not loop.policy


def test_a_completion_that_was_cut_off_earns_nothing(write_recipe: Recipe) -> None:
    loop = loop_of(write_recipe(RLPR), ("rollout.max_new_tokens", "3"))
    groups = draw_groups(loop, 0).first_stage
    cut = ~groups.rollout.finished.reshape(4, 4)
    assert cut.any() and not groups.rewards[cut].any() and groups.support is not None and not groups.support[cut].any()


def test_the_filter_looks_at_the_support_and_moves_where_nothing_is_kept(write_recipe: Recipe) -> None:
    """A bar that no group reaches: no update, and the mean comes down. The format's spread does not count."""
    loop = loop_of(write_recipe("{name: rlpr, given: 0.5, max_refills: 1}"))
    loop.parts = {"rollout": {"std_mean": torch.tensor(9.0), "steps": torch.tensor(10)}}
    drawn = draw_groups(loop, 0)
    assert not drawn.kept_mask.any() and drawn.refills == 1 and drawn.first_stage.support is not None
    mean = drawn.first_stage.support.std(dim=1, correction=0).mean()
    before = {name: tensor.clone() for name, tensor in model_tensors(loop.policy).items()}
    metrics = train_step(loop, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model_tensors(loop.policy).items())
    assert float(loop.parts["rollout"]["std_mean"]) == pytest.approx(float(0.99 * 9 + 0.01 * mean), abs=1e-6)
    assert int(loop.parts["rollout"]["steps"]) == 11 and metrics["rollout/groups_kept"] == 0
    loop.parts = {"rollout": {"std_mean": 2 * mean - 1e-6, "steps": torch.tensor(10)}}  # half of it is the bar
    kept = draw_groups(loop, 0)
    spread = kept.first_stage.support.std(dim=1, correction=0)  # type: ignore[union-attr]
    assert torch.equal(kept.kept_mask, spread >= mean - 1e-6) and 0 < int(kept.kept_mask.sum()) < len(spread)


def test_a_run_says_that_no_verifier_is_asked(write_recipe: Recipe, tmp_path: Path) -> None:
    config = load_config(TrainConfig, write_recipe(RLPR))
    with pytest.warns(UserWarning, match="only computed for metrics"), RunDir.open(tmp_path / "run", dump(config)) as run:
        train(config, run, Silent())
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]
    assert [one["kind"] for one in kept] == ["reward source"]


def test_a_reward_that_pays_for_no_reference_is_said(write_recipe: Recipe, tmp_path: Path) -> None:
    """All completions are cut off behind their first token, so that none has an answer; one step that pays ends the count."""
    config = load_config(TrainConfig, write_recipe(RLPR), [("rollout.max_new_tokens", "1")])
    said_so = pytest.warns(UserWarning, match=r"ReferenceProbability assigned no reward to a reference.*self_reward/mean = 0")
    with said_so, RunDir.open(tmp_path / "run", dump(config)) as run:
        train(config, run, Silent())
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]
    assert [one["kind"] for one in kept] == ["reward source", "unpaid"] and "after the last" in kept[1]["message"]
    said: list[tuple[str, int, str]] = []
    watch = SourceWatch(config.method.reward_source, 100, lambda *one: said.append(one))
    for step in range(40):
        watch.see(step, {"self_reward/mean": 0.1 * (step == 3)})
    assert [(kind, step) for kind, step, _ in said] == [("unpaid", 13)]
    SourceWatch(None, 1, lambda *one: said.append(one)).see(0, {})
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["1+1", None])
def test_rows_of_a_users_own_with_reference_answers(tmp_path: Path, warm_policy: Path, answer: str | None) -> None:
    """The verifier has no say in the rewards, and a row without an answer is named."""
    rows = [{"id": f"r{i}", "prompt": f"{i} {i}={2 * i}:"} | ({"answer": answer} if answer else {}) for i in range(1, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def score(completion, row):\n    return 0.0\n")
    reward = "exact" if answer else f"{tmp_path / 'mine.py'}:score"
    path = tmp_path / "own.yaml"
    path.write_text(
        f"steps: 2\nmodel: {warm_policy}\nmethod: {{name: rlpr, given: 0.5}}\n"
        f"task: {{name: jsonl, file: {tmp_path / 'rows.jsonl'}, reward: '{reward}'}}\n"
        "rollout: {prompts_per_step: 2, group_size: 4, max_new_tokens: 8}\n"
    )
    if answer is None:
        with pytest.raises(DataError, match=r"problem 'r1': no reference answer.*name its column \(answer_column\)"):
            loop_of(path)
        return
    loop = loop_of(path)
    found = [train_step(loop, step) for step in range(2)]
    assert all(0.1 < row["reward/mean"] < 1 for row in found) and any(row["optimizer/grad_norm"] > 0 for row in found)
    assert all(row["verifier/right_frac"] not in (row["reward/mean"], 1.0) for row in found), "verdicts are no rewards"


@pytest.mark.slow
def test_knights_and_knaves_by_the_solutions_probability(tmp_path: Path) -> None:
    """A policy that half knows four puzzles: the reward is of its working, and how well it ranks is a metric."""
    path = locate("rlpr", "knights")
    edits = [("task.train_count", "4"), ("rollout.prompts_per_step", "4"), ("model", str(tmp_path / "base"))]
    task: Any = load_config(TrainConfig, path, edits).task
    tokens = Tokens.of(build_tokenizer(task.characters))
    torch.manual_seed(0)
    model = tiny_llama(vocab_size=len(tokens.tokenizer), max_position_embeddings=576, initializer_range=0.05)
    told = [(puzzle, task.worked(puzzle)) for puzzle in task.problems("train")]
    batch, optimizer = texts_of(told, PromptRenderer.of(task, tokens)), Optimizer(model, OptimizerConfig(lr=5e-3), 200)
    for step in range(200):
        if sft_step(model, optimizer, batch, step)["loss"] < 0.02:
            break
    model.save_pretrained(tmp_path / "base")
    tokens.tokenizer.save_pretrained(tmp_path / "base")
    loop = loop_of(path, *edits)
    rows = [train_step(loop, step) for step in range(2)]
    assert all(0 < row["verifier/right_frac"] < 1 and 0 <= row["reward/auc"] <= 1 for row in rows), rows
    assert all(0.02 < row["reward/mean"] < 1 for row in rows)
