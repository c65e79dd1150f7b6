"""The first rollout of a recipe on the built-in loop, without an update: `preflight_recipe`.

    loop.build -> problems of the rows -> rollouts.draw_rollout -> the task's verdicts -> scores of policy and reference
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sage_rlvr.config import TrainConfig
from sage_rlvr.core.laws import per_token
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.errors import ConfigError, RewardFailed, SageError, refuse
from sage_rlvr.evaluation.base_samples import base_of
from sage_rlvr.symptoms.finding import Finding, SymptomReport
from sage_rlvr.symptoms.first_rollout import (
    CAP,
    CompletionSeen,
    FirstRollout,
    Names,
    PayCall,
    Payer,
    Price,
    PromptSeen,
    RateSchedule,
    RunPlan,
    Surplus,
    prompts_to_draw,
)
from sage_rlvr.symptoms.learning import surprises, weight_facts
from sage_rlvr.symptoms.preflight import preflight_of
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.tasks.base import gold_of, turns_of, verdicts
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.datasets import ANSWERS, SOLUTIONS
from sage_rlvr.tasks.jsonl import RewardTask
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.training.counts.probe import probe
from sage_rlvr.training.groups import Groups, RolloutBatch
from sage_rlvr.training.loop import build
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.optimizer import learning_rate
from sage_rlvr.training.rollouts import draw_rollout, judged, pairs_of, reasons_of
from sage_rlvr.training.scores import fixed_scores, reference_scores, score_rows
from sage_rlvr.verifiers.golds import gold_of as gold_in

Say = Callable[[str], None]
SCORED = 64  # completions of which distributions are computed
LAWS = 1 << 26  # log-probs in memory at a time


def preflight_recipe(
    config: TrainConfig,
    *,
    name: str = "recipe",
    draw: int | None = None,
    cost: bool = True,
    audits: Sequence[str] = (),
    say: Say = lambda line: None,
) -> SymptomReport:
    """Sample some groups as the run of a recipe would, and report what keeps its reward from rising.

    Args:
        config: The decoded recipe, of any engine; its rollout is drawn on the loop.
        name: What the report calls it.
        draw: Prompts; each gets the recipe's group_size completions. None: eight, or enough for 64 completions.
        cost: Also measure a step (`training.counts.probe`), about twenty seconds.
        audits: Lines of an audit of the verifier, printed below.
        say: Receives messages during the rollout.

    Raises:
        ConfigError: A model that does not load, a method without completions, a task with turns.
    """
    draw = prompts_to_draw(config.rollout.group_size) if draw is None else draw
    refuse((draw < 1, f"draw = {draw}: draw at least one prompt"))
    began = time.perf_counter()
    say(f"preflight: loading {config.model}")
    try:
        loop = build(config, base_of(config))
    except RewardFailed as error:
        return SymptomReport.of([f"{name}: the reward was called once"], [_refused(error)])
    say("preflight: one rollout, no update")
    first = first_rollout(loop, draw)
    if cost:
        first = replace(first, price=_price(config, first.price, say))
    first = replace(first, audits=tuple(audits))
    took = time.perf_counter() - began
    size = config.rollout.group_size
    head = f"{name}: {len(first.prompts)} prompts x {size} completions of {config.model}, {took:.0f} s, no update"
    return preflight_of(first, head)


def _refused(error: RewardFailed) -> Finding:
    return Finding(
        cause="reward-raises",
        severity="cannot learn",
        sentence=str(error),
        next_step="call the function by itself on that text, and return a finite number for every text",
    )


def _price(config: TrainConfig, price: Price, say: Say) -> Price:
    """The probe's prediction, or why there is none."""
    try:
        measured = probe(config, say, base_of(config))
    except ConfigError as error:
        return replace(price, lines=(f"no probe of the cost: {error}",))
    return replace(price, lines=tuple(measured.lines()), fits=measured.fits, advice=measured.room_line())


# ---- one rollout


def first_rollout(loop: TrainState, draw: int) -> FirstRollout:
    """One rollout of a loop as `build` made it; nothing of the loop is changed."""
    refuse((turns_of(loop.task) > 1, f"task {loop.task.name}: an episode has turns; preflight draws tasks with one completion"))
    config = loop.config
    refuse((config.method.is_replay_only, f"method {config.method.name} samples no completions; preflight has nothing to look at"))
    problems = loop.problems[: max(1, min(draw, len(loop.problems)))]
    asked = [loop.ask(problem) for problem in problems]
    prompts = [list(prompt.ids) for prompt in asked]
    began = time.perf_counter()
    with torch.no_grad():
        rollout = draw_rollout(loop, prompts, 0, 0, problems)
    sampling = time.perf_counter() - began
    began = time.perf_counter()
    failure: SageError | None = None
    groups: Groups | None = None
    try:
        groups = judged(loop, problems, prompts, rollout, torch.arange(len(problems)))
    except SageError as error:
        failure = error
    price = Price(sampling=sampling, reward=time.perf_counter() - began)
    tokenizer, size = loop.tokens.tokenizer, config.rollout.group_size
    texts = [text for _, text in pairs_of(loop, problems, rollout)]
    rewards = [None] * len(texts) if groups is None else groups.rewards.reshape(-1).tolist()
    completions = tuple(
        CompletionSeen(i // size, tuple(row[:length]), str(text), not ended, reward, reward)
        for i, (row, length, ended, text, reward) in enumerate(
            zip(rollout.tokens.tolist(), rollout.lengths.tolist(), rollout.finished.tolist(), texts, rewards, strict=True)
        )
    )
    seen = tuple(
        PromptSeen(
            prompt.messages if loop.ask.form is not None else prompt.text,
            prompt.ids,
            tokenizer.decode(list(prompt.ids), skip_special_tokens=False, clean_up_tokenization_spaces=False),
        )
        for prompt in asked
    )
    missing = [] if groups is None else list(groups.verdicts)
    chance = chance_of(loop.task, problems, _counted(loop.task, problems))
    pays = loop.method.reward_source is None
    return FirstRollout(
        names=Names(),
        tokenizer=tokenizer,
        template_options=config.chat_template_kwargs,
        prompts=seen,
        completions=completions,
        limit=config.rollout.max_new_tokens,
        payer=TaskPayer(loop, problems) if pays else NoPayer(),
        plan=plan_of(loop, groups),
        price=price,
        longer=partial(_longer, loop, problems, prompts),
        failure=failure,
        reasons=None if groups is None else reasons_of(groups),
        elsewhere=elsewhere_of(loop.task, pairs_of(loop, problems, rollout), missing) if groups is not None else None,
        read_at=read_at(loop.task),
        floor=None if chance is None else chance.at,
        right_from=loop.task.right_from if isinstance(loop.task, RewardTask) else 1.0,
    )


def _counted(task: Any, problems: Sequence[Any]) -> list[int] | None:
    return [len(task.solutions(problem)) for problem in problems] if isinstance(task, Enumerable) else None


def _longer(loop: TrainState, problems: list[Any], prompts: list[list[int]], limit: int) -> list[tuple[int, bool]]:
    """Completions of a few prompts at another limit."""
    config = replace(loop.config, rollout=replace(loop.config.rollout, max_new_tokens=limit))
    with torch.no_grad():
        rollout = draw_rollout(replace(loop, config=config), prompts[:4], 1, 0, problems[:4])
    return [(length, not ended) for length, ended in zip(rollout.lengths.tolist(), rollout.finished.tolist(), strict=True)]


def plan_of(loop: TrainState, groups: Groups | None) -> RunPlan:
    """The run's use of a rollout. groups: those of this one, for comparing sampler, policy and reference."""
    config, method = loop.config, loop.method
    rollout, updates = config.rollout, config.updates.per_step
    anchor, plan = method.anchor, method.rollout
    beta = 0.0 if anchor is None else anchor.beta_at(0, max(1, config.steps))
    adam, total = config.optimizer, updates * config.steps
    schedule = RateSchedule.of(lambda step: learning_rate(adam, step, total) / adam.lr, total, adam.warmup_steps)
    facts = weight_facts(loop.policy.parameters(), adam.lr, total, copies=True, schedule=schedule)
    measured = {} if groups is None else _compared(loop, groups)
    return RunPlan(
        prompts=rollout.prompts_per_step,
        group_size=rollout.group_size,
        updates=updates,
        steps=config.steps,
        lr=adam.lr,
        schedule=schedule,
        beta=beta,
        positions=getattr(loop.policy.config, "max_position_embeddings", None),
        refills=plan.max_refills if isinstance(plan, DynamicSampling) else None,
        temperature=rollout.temperature,
        **facts,
        **measured,
    )


@torch.no_grad()
def _compared(loop: TrainState, groups: Groups) -> dict[str, Any]:
    """Gap of sampler and scorer, surplus, entropy, and the KL to the reference, as in `RunPlan`."""
    rows = RolloutBatch.of((groups,), loop.tokens.pad_id)
    every = torch.arange(len(rows.owners), device=rows.owners.device)
    mask = rows.rollout.drawn
    scores = fixed_scores(loop, loop.policy, rows, every, entropies=True)
    reference = reference_scores(loop, rows, every)
    assert scores.entropies is not None
    facts: dict[str, Any] = {"entropy": float(scores.entropies[mask].mean())}
    facts["gap"] = mean_of(torch.where(mask, (rows.rollout.logps - scores.logps).abs(), 0.0), mask)
    facts["surplus"] = _surplus(loop, rows, every[:SCORED])
    if reference is not None:
        log_ratio = (reference.logps - scores.logps)[mask].double()
        facts["kl_mean"] = float((log_ratio.exp() - 1 - log_ratio).mean())
    return facts


def mean_of(values: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """(mean per counted token, its standard error over completions) of (B, T) values that are 0 elsewhere."""
    each, counts = values.double().sum(1), mask.sum(1).double()
    mean = float(each.sum() / counts.sum())
    spread = (each - mean * counts).square().sum() * len(each) / max(1, len(each) - 1)
    return mean, float(spread.sqrt() / counts.sum())


def _surplus(loop: TrainState, rows: RolloutBatch, some: torch.Tensor) -> Surplus:
    """The surplus of some rows, so many at a time that their distributions are `LAWS` numbers."""
    vocabulary, longest = loop.policy.get_input_embeddings().weight.shape[0], rows.rollout.tokens.shape[1]
    total, variance = 0.0, 0.0
    for part in some.split(max(1, LAWS // (vocabulary * longest))):
        drawn = rows.rollout.drawn[part]
        scores = score_rows(loop, loop.policy, rows, part, log_probs=True)
        assert scores.log_probs is not None
        expected = per_token(lambda _, log_probs: surprises(log_probs)[0], drawn, scores.log_probs)
        variances = per_token(lambda _, log_probs: surprises(log_probs)[1], drawn, scores.log_probs)
        seen = (-scores.logps[drawn]).clamp(max=CAP)
        total += float((seen - expected).double().sum())
        variance += float(variances.double().sum())
    return Surplus(total, variance, int(rows.rollout.drawn[some].sum()))


# ---- the reward


class NoPayer(Payer):
    """The payer of a method whose reward is the policy's own probability: no separate text can be judged."""

    names = ("the reward source",)

    def pay(self, calls: Sequence[PayCall]) -> list[Any]:
        return []

    def golds(self, row: int) -> dict[str, str]:
        return {}


class TaskPayer(Payer):
    """The verdicts of the loop's task. The gold of another row is that row's problem."""

    def __init__(self, loop: TrainState, problems: Sequence[Any]) -> None:
        self.task, self.problems, self.all = loop.task, problems, loop.problems
        self.rows = len(self.all)
        own = isinstance(self.task, RewardTask)
        self.names = (self.task.reward.rpartition(":")[2],) if isinstance(self.task, RewardTask) else (f"task {self.task.name}",)
        self.columns = tuple(self.problems[0].row) if own else ()

    def pay(self, calls: Sequence[PayCall]) -> list[Any]:
        pairs = [(self._problem(call), call.text) for call in calls]
        return [verdict.reward if verdict.label != "undecided" else 0.0 for verdict in verdicts(self.task, pairs)]

    def _problem(self, call: PayCall) -> Any:
        problem = self.problems[call.prompt] if call.gold is None else self.all[call.gold]
        if call.swap:
            row, raw = dict(problem.row), problem.raw
            for reads, other in call.swap.items():
                row[reads] = problem.row[other]
                raw = row[reads] if problem.row[reads] == raw else raw
            problem = replace(problem, row=row, raw=raw, answer=str(raw))
        return problem

    def golds(self, row: int) -> dict[str, str]:
        problem = self.all[row]
        if isinstance(self.task, Enumerable):
            listed = self.task.solutions(problem)
            return {"solution": listed[0]} if listed else {}
        if isinstance(self.task, RewardTask):
            return golds_in(problem.row)
        known = gold_of(self.task, problem)
        return {} if known is None else {"answer": known}

    def cells(self, row: int) -> Mapping[str, Any]:
        problem = self.problems[row]
        return problem.row if isinstance(self.task, RewardTask) else {}


def golds_in(row: Mapping[str, Any]) -> dict[str, str]:
    """Column -> the gold in it, as `sage_rlvr.verifiers.golds` reads it, of the columns that usually have one."""
    found = {}
    for name in (*ANSWERS, *SOLUTIONS):
        value = row.get(name)
        if value is None or value == "":
            continue
        try:
            found[name] = gold_in(value)[0]
        except ValueError:
            found[name] = str(value)
    return found


__all__ = ["first_rollout", "golds_in", "mean_of", "preflight_recipe"]
