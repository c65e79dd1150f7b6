"""Episodes in training: one update by hand, what every method counts, what is refused, fine-tuning, resumption."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from episodes_common import Asked, Digit, Digits, Taught, digit_policy, save_digit_policy
from loop_recorded import draw_groups
from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.core.rollout_plans import GuidedStages
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.episodes import responses_of
from sage_rlvr.models.policy import PromptRenderer
from sage_rlvr.tasks import TASKS
from sage_rlvr.training.groups import RolloutBatch
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.samplers import sampler_of
from sage_rlvr.training.scores import score_rows
from sage_rlvr.training.sft import sft_step, texts_of
from sage_rlvr.verifiers import Verdict

Make = Callable[..., TrainState]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_digit_policy(tmp_path_factory.mktemp("models") / "digits")


@pytest.fixture
def make(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """make(method, "a.b", "value", ...) -> a loop of P = 4, G = 4 on episodes."""
    monkeypatch.setitem(TASKS, "digits", Digits)

    def loop(method: str = "{name: grpo, beta: 0.05}", *words: str) -> TrainState:
        path = tmp_path / "recipe.yaml"
        path.write_text(
            f"steps: 6\nmodel: {policy}\ntask: {{name: digits}}\nmethod: {method}\noptimizer: {{lr: 1e-3}}\n"
            "rollout: {prompts_per_step: 4, group_size: 4, max_new_tokens: 12}\n"
        )
        made = build(load_config(TrainConfig, path, list(zip(words[::2], words[1::2], strict=True))))
        torch.manual_seed(1)
        for parameter in made.policy.parameters():
            parameter.data.add_(0.02 * torch.randn_like(parameter))  # so that the KL has a gradient
        return made

    return loop


class Descent:
    """Stands in for the optimizer and remembers the gradient."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.seen = model, torch.zeros(0)

    def step(self, step: int) -> dict[str, float]:
        self.seen = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        return {}


def textbook(loop: TrainState) -> Tensor:
    """GRPO's gradient, a row after the other, each its whole conversation through the plain model: the sum is over the tokens that
    the policy drew, by their places in it."""
    policy, tokens, task = copy.deepcopy(loop.policy), loop.tokens, loop.task
    rows = RolloutBatch.of(draw_groups(loop, 0).groups, tokens.pad_id)
    problems = [problem for part in rows.groups for problem in part.problems]
    said = responses_of(tokens, rows.rollout)
    right = [float(task.judge(problems[i // 4], turns).right) for i, turns in enumerate(said)]  # type: ignore[attr-defined]
    rewards = torch.tensor(right).reshape(-1, 4)
    worth = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    assert float(rewards.std(1).max()) > 0 and max(map(len, said)) > 1
    loss = torch.zeros(())
    for i, turns in enumerate(said):
        problem, ids, own = problems[i // 4], [], []
        for number, text in enumerate(turns):
            last, finished = number + 1 == len(turns), bool(rows.rollout.finished[i])
            mine = tokens.encode(text.rstrip("\N{REPLACEMENT CHARACTER}"))
            length = sum(own)
            mine += [] if last and not finished and length + len(mine) == 12 else [tokens.eos_id]
            reply = [] if last else tokens.encode(f"\n{task.reply(problem, turns[: number + 1])}\n")  # type: ignore[attr-defined]
            ids, own = ids + mine + reply, own + [True] * len(mine) + [False] * len(reply)
        prompt = tokens.encode(task.prompt(problem))
        places = torch.tensor(own).nonzero().flatten()
        taken = (places, torch.tensor(ids)[places])

        def laws(model: torch.nn.Module, prompt: list[int] = prompt, ids: list[int] = ids) -> Tensor:
            return torch.log_softmax(model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1], -1)

        logps = laws(policy)[taken]
        with torch.no_grad():
            log_r = laws(loop.reference)[taken]  # type: ignore[arg-type]
        ratio, log_r = torch.exp(logps - logps.detach()), log_r - logps
        loss = loss + (-ratio * worth[i] + 0.05 * (log_r.exp() - log_r - 1)).mean() / len(said)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def test_one_update_is_the_textbook_step_over_the_policys_own_tokens(make: Make) -> None:
    loop = make()
    wanted, loop.optimizer = textbook(loop), Descent(loop.policy)  # type: ignore[assignment]
    metrics = train_step(loop, 0)
    assert torch.allclose(loop.optimizer.seen, wanted, atol=2e-6)  # type: ignore[attr-defined]
    rollout = draw_groups(loop, 0).first_stage.rollout
    assert metrics["completions/length_mean"] == float(rollout.drawn.sum(1).float().mean()) < float(rollout.mask.sum() / 16)
    assert metrics["rollout/tokens"] == int(rollout.drawn.sum()) and metrics["sampler/logp_gap_max"] < 1e-4
    turns = [len(said) for said in responses_of(loop.tokens, rollout)]
    assert metrics["episodes/turns_mean"] == sum(turns) / 16 > 1
    assert metrics["episodes/reply_tokens_mean"] == 3 * (sum(turns) / 16 - 1)  # a mark between two line ends


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "{name: grpo, beta: 0.05}",
        "{name: sage, base: {name: dr_grpo, beta: 0.05}, guide: {name: branch, threshold: 0.2}}",
        "{name: gspo}",
        "{name: erank, stride: 2}",
        "{name: dars, beta: 0.05}",
        "{name: adaptive_entropy, target: 0.9}",
    ],
)
def test_micro_batches_of_episodes_give_the_same_gradient(make: Make, method: str) -> None:
    """Each scores its own rows in conversations of other widths: what a part counts is the policy's tokens, wherever they lie."""
    ends = []
    for size in ("1", "4"):
        loop = make(method, "updates.micro_batch", size)
        loop.optimizer = Descent(loop.policy)  # type: ignore[assignment]
        metrics = train_step(loop, 0)
        ends.append((loop.optimizer.seen, metrics["loss"], metrics["episodes/turns_mean"]))  # type: ignore[attr-defined]
    assert torch.allclose(ends[0][0], ends[1][0], atol=2e-6) and float(ends[0][0].abs().max()) > 1e-3
    assert ends[0][1] == pytest.approx(ends[1][1], abs=1e-5) and ends[0][2] == ends[1][2] > 1


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("{name: rft}", "stores each answer as one text"),
        ("{name: rlpr}", "needs the probability of a reference answer"),
        ("{name: alpha_dpg, z: exact}", "reads the probability of all correct answers"),
    ],
)
def test_parts_that_know_completions_of_one_text_are_refused(make: Make, method: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*digits has episodes of up to 3 turns"):
        make(method)


def test_fine_tuning_learns_the_turns_that_are_to_be_learned() -> None:
    (model, tokens), task = digit_policy(), Digits()
    first, second = texts_of(task.examples("train", 0, 0, 2), PromptRenderer.of(task, tokens))
    eos = tokens.eos_id
    assert second.prompt == tuple(tokens.encode("2?\n"))
    assert second.tokens == (*tokens.encode("0"), eos, *tokens.encode("\n>\n2"), eos)
    assert first.own == (True, True) and second.own == (False,) * 5 + (True,) * 2

    class Still:
        def step(self, step: int) -> dict[str, float]:
            return {}

    loss = sft_step(model, Still(), [second], 0)["loss"]  # type: ignore[arg-type]
    ids = torch.tensor([*second.prompt, *second.tokens])
    laws = torch.log_softmax(model(ids[None, :-1]).logits[0].detach(), -1)
    assert loss == pytest.approx(-float(laws[[7, 8], ids[[8, 9]]].mean()), abs=1e-5)


# ---- guidance


@dataclass(frozen=True)
class Larger:
    """Says 9, of an episode's own turns alone."""

    leak: bool = True

    def teach(self, task: Digits, problem: Digit, said: Sequence[str], verdict: Verdict) -> str:
        assert 1 <= len(said) <= 3 and task.judge(problem, said) == verdict
        return "9"


class Every(GuidedStages):
    """Guides every prompt, as few of these groups have no right episode, and trains on every group."""

    def extra(self, rewards: Tensor) -> Tensor:
        return torch.full((len(rewards),), self.each)

    def keeps(self, rewards: Tensor) -> Tensor:
        return torch.ones(len(rewards), dtype=torch.bool)


def test_guided_episodes_weigh_by_the_policys_own_tokens(make: Make) -> None:
    loop = make("{name: compose, beta: 0.0, advantage: leave_one_out, rollout_plan: guided}", "teacher", "rules")
    loop.task = Taught()
    loop.ask = replace(loop.ask, task=loop.task)
    loop.config = replace(loop.config, teacher=Larger())
    loop = replace(loop, method=replace(loop.method, rollout=Every(each=4, clip=1e9)))
    drawn = draw_groups(loop, 1)
    assert any(len(said) > 1 for said in responses_of(loop.tokens, drawn.second_stage[0].rollout))
    rows = RolloutBatch.of(drawn.groups, loop.tokens.pad_id)
    logps = score_rows(loop, loop.policy, rows, torch.arange(len(rows.owners)), entropies=False).logps
    weights, _ = sampler_of(loop.method).weights(rows, logps)
    assert weights is not None and rows.rollout.own is not None
    problems = [problem for part in rows.groups for problem in part.problems]
    for place in rows.column("guided").nonzero().squeeze(1).tolist():
        own = rows.rollout.drawn[place][rows.rollout.mask[place]]
        ids = rows.rollout.tokens[place][rows.rollout.mask[place]]
        sums = []
        for problem in (problems[int(rows.owners[place])], Asked(problems[int(rows.owners[place])].digit, "9")):
            prompt = list(loop.ask(problem).ids)
            logits = loop.policy(torch.tensor([prompt + ids.tolist()])).logits[0, len(prompt) - 1 : -1].detach()
            sums.append(float(torch.log_softmax(logits, -1).gather(1, ids[:, None]).squeeze(1)[own].sum()))
        assert float(weights[place]) == pytest.approx(math.exp(sums[0] - sums[1]), rel=1e-3)
    assert train_step(loop, 1)["sampler/logp_gap_max"] < 1e-4
