"""The reference engine: the whole of GRPO and SAGE on one screen (`train_step`), plain torch and transformers.

    sample -> verify -> signals -> reference log-probs -> shape (log q) -> advantage -> objective -> step

Everything random is a function of (seed, step, name, row): two arms of one seed see the same prompts and, while their
policies agree, the same completions. On a CPU a run is bitwise reproducible (same versions, same thread count).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.config import TrainConfig
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, advantages_of, objective, q_clamped, shape
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.engines.base import TextTask, Tokens, load_policy
from sage_rlvr.engines.optim import Optimiser
from sage_rlvr.engines.sampler import Rollout, sample
from sage_rlvr.engines.scoring import Scores, score
from sage_rlvr.engines.sft import check_replaceable, checkpoint, load_tensors, model_tensors, resume, save_policy
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.runs import RunDir, StopFlag, writing


@dataclass
class Loop:
    """What one training run holds: two models, a method, a task with its training problems, an optimiser."""

    config: TrainConfig
    method: Method
    policy: PreTrainedModel
    reference: PreTrainedModel | None
    tokens: Tokens
    task: TextTask
    problems: list[Any]
    optimiser: Optimiser
    key: Key


def train_step(loop: Loop, step: int) -> dict[str, float]:
    """One rollout and its updates. Step counts from 0; returns the step's metrics (DESIGN section 4 names)."""
    config, method, total = loop.config, loop.method, loop.config.steps
    problems = prompts_of_step(loop, step)
    prompts = [loop.tokens.encode_prompt(loop.task.render(p)) for p in problems]
    rollout = draw_rollout(loop, prompts, step)
    rewards, verdicts = rewards_of(loop, problems, rollout)  # (B,), row = prompt * group_size + member
    rows = torch.arange(len(rewards), device=rewards.device)

    once = config.updates.epochs == 1 and config.updates.minibatches == 1 and config.updates.micro_batch is None
    # One update a rollout: the training forward is the old policy's forward. Several: score the old policy first.
    if once:
        scores = score_rows(loop, loop.policy, prompts, rollout, rows, entropies=True)
    else:
        scores = fixed_scores(loop, loop.policy, prompts, rollout, rows, entropies=True)
    reference = reference_logps(loop, prompts, rollout, rows)
    assert scores.entropies is not None
    signals = Signals(
        old_logps=scores.logps,
        ref_logps=None if reference is None else reference.logps,
        mask=rollout.mask,
        row_ids=rows,
        entropies=scores.entropies,
        ref_entropies=None if reference is None else reference.entropies,
        rewards=rewards,
    )
    log_q = shape(method, signals, step, total, loop.key)
    grouped = rewards.reshape(-1, config.rollout.group_size)
    advantages = advantages_of(method, grouped, signals, log_q, step, total)
    whole = Batch(
        logps=scores.logps,
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=advantages,
        log_q=log_q,
        entropies=signals.entropies,
        max_tokens=config.rollout.max_new_tokens,
        q_clamped=q_clamped(method, signals, step, total, loop.key),
    )
    if once:
        metrics = update(loop, [whole], whole.mask, step, step)
    else:
        metrics = several_updates(loop, whole, prompts, rollout, step)
    gap = (rollout.logps - signals.old_logps).abs()[rollout.mask].max()
    return metrics | verdicts | rollout_metrics(rollout, grouped) | {"sampler/logp_gap_max": float(gap)}


def update(loop: Loop, parts: Iterable[Batch], mask: Tensor, step: int, number: int) -> dict[str, float]:
    """One optimiser step from micro-batches that add up to one mini-batch (its rows' `mask`). Number counts updates.

    Nothing moves if the loss or the gradient is not finite: `TrainingDiverged`, with the weights as they were.
    """
    budget = loop.method.reduction.budget(mask, loop.config.rollout.max_new_tokens)
    collected: list[tuple[float, dict[str, float]]] = []
    for part in parts:
        loss, metrics = objective(loop.method, part, step, loop.config.steps, budget=budget)
        if not torch.isfinite(loss):
            raise TrainingDiverged(f"loss is {loss.item()} at step {step}")
        loss.backward()
        collected.append((float(part.mask.sum() / mask.sum()), metrics))
    shares = {name: sum(share * m[name] for share, m in collected) for name in collected[0][1]}
    return shares | {"loss": sum(m["loss"] for _, m in collected)} | loop.optimiser.step(number)


def several_updates(
    loop: Loop, whole: Batch, prompts: list[list[int]], rollout: Rollout, step: int
) -> dict[str, float]:
    """`epochs` passes over shuffled mini-batches of whole groups; the ratio to the old policy leaves 1 after the first."""
    plan, collected = loop.config.updates, []
    alone = plan.epochs * plan.minibatches == 1  # a single update that diverges has moved nothing
    with nullcontext() if alone else undone_if_diverged(loop):
        for epoch in range(plan.epochs):
            order = loop.key.permutation(step, f"minibatch/{epoch}", len(prompts))
            for n, groups in enumerate(order.chunk(plan.minibatches)):
                number = (step * plan.epochs + epoch) * plan.minibatches + n
                rows = rows_of_groups(groups.sort().values, loop.config.rollout.group_size)
                parts = micro_batches(loop, whole, prompts, rollout, rows)
                collected.append(update(loop, parts, whole.mask[rows], step, number))
    return {name: sum(m[name] for m in collected) / len(collected) for name in collected[0]}


@contextmanager
def undone_if_diverged(loop: Loop) -> Iterator[None]:
    """A step whose third update diverges leaves the weights and moments from before its first, not from in between."""
    states = (model_tensors(loop.policy), loop.optimiser.tensors())
    weights, moments = ({name: tensor.clone() for name, tensor in state.items()} for state in states)
    try:
        yield
    except TrainingDiverged:
        load_tensors(loop.policy, weights)
        loop.optimiser.load(moments)
        raise


def micro_batches(
    loop: Loop, whole: Batch, prompts: list[list[int]], rollout: Rollout, rows: Tensor
) -> Iterator[Batch]:
    """`rows` of the rollout, `updates.micro_batch` groups at a time, each with a fresh forward pass in graph."""
    for part in rows.split(rows_at_once(loop, rows)):
        scores = score_rows(loop, loop.policy, prompts, rollout, part, entropies=False)  # those of the rollout hold
        yield select(whole, part, scores.logps)


def rows_at_once(loop: Loop, rows: Tensor) -> int:
    """How many of `rows` one forward pass takes: those of `updates.micro_batch` groups, or all of them."""
    groups = loop.config.updates.micro_batch
    return len(rows) if groups is None else groups * loop.config.rollout.group_size


def select(whole: Batch, rows: Tensor, logps: Tensor) -> Batch:
    """`rows` of a batch with freshly computed `logps`; what was fixed at the rollout (q, advantages) is only indexed."""
    fixed = {f.name: getattr(whole, f.name) for f in fields(whole) if f.name != "logps"}
    return Batch(logps=logps, **{n: v[rows] if isinstance(v, Tensor) else v for n, v in fixed.items()})


def rows_of_groups(groups: Tensor, group_size: int) -> Tensor:
    """Group numbers (g,) -> row numbers (g * group_size,)."""
    return (groups[:, None] * group_size + torch.arange(group_size)).reshape(-1)


def prompts_of_step(loop: Loop, step: int) -> list[Any]:
    """The step's problems: epoch after epoch over the training problems, each epoch in its own order."""
    count, total = loop.config.rollout.prompts_per_step, len(loop.problems)
    wanted = range(step * count, (step + 1) * count)
    orders = {e: loop.key.permutation(e, "prompts", total) for e in {i // total for i in wanted}}
    return [loop.problems[int(orders[i // total][i % total])] for i in wanted]


def draw_rollout(loop: Loop, prompts: list[list[int]], step: int) -> Rollout:
    """`group_size` completions of each prompt at the training temperature."""
    config = loop.config.rollout
    return sample(
        loop.policy,
        prompts,
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        eos_id=loop.tokens.eos_ids,
        pad_id=loop.tokens.pad_id,
        key=loop.key,
        step=step,
        temperature=config.temperature,
        entropies=False,  # the training forward computes them, with the rest of the signals
    )


def rewards_of(loop: Loop, problems: list[Any], rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
    """1 for right, 0 for wrong or undecided; the share of undecided verdicts is reported, never hidden."""
    texts = loop.tokens.texts(rollout)
    size = loop.config.rollout.group_size
    verdicts = [loop.task.verify(problems[i // size], text) for i, text in enumerate(texts)]
    undecided = sum(v.label == "undecided" for v in verdicts) / len(verdicts)
    rewards = torch.tensor([float(v.right) for v in verdicts], device=rollout.tokens.device)
    return rewards, {"verifier/undecided_share": undecided}


def score_rows(
    loop: Loop, model: PreTrainedModel, prompts: list[list[int]], rollout: Rollout, rows: Tensor, *, entropies: bool
) -> Scores:
    """Log-probs of `rows` (ascending) of the rollout under `model`; only the prompts they belong to are computed."""
    owners = rows // loop.config.rollout.group_size
    groups, local = owners.unique(return_inverse=True)
    return score(
        model,
        [prompts[int(g)] for g in groups],
        rollout.tokens[rows],
        rollout.mask[rows],
        local,
        temperature=loop.config.rollout.temperature,
        entropies=entropies,
    )


@torch.no_grad()
def fixed_scores(
    loop: Loop, model: PreTrainedModel, prompts: list[list[int]], rollout: Rollout, rows: Tensor, *, entropies: bool
) -> Scores:
    """`score_rows` out of graph, `updates.micro_batch` groups at a time, so that it needs no more memory than an update."""
    parts = [
        score_rows(loop, model, prompts, rollout, part, entropies=entropies)
        for part in rows.split(rows_at_once(loop, rows))
    ]
    if len(parts) == 1:
        return parts[0]
    found = [part.entropies for part in parts if part.entropies is not None]
    return Scores(torch.cat([part.logps for part in parts]), torch.cat(found) if entropies else None)


def reference_logps(loop: Loop, prompts: list[list[int]], rollout: Rollout, rows: Tensor) -> Scores | None:
    """The reference's log-probs (and entropies where the guide reads them); None where the method has no anchor."""
    if loop.reference is None:
        return None
    wanted = "ref_entropies" in loop.method.needs
    return fixed_scores(loop, loop.reference, prompts, rollout, rows, entropies=wanted)


def rollout_metrics(rollout: Rollout, grouped: Tensor) -> dict[str, float]:
    """Of one rollout: rewards (P, G), lengths in tokens, share of groups without a signal."""
    lengths = rollout.lengths.float()
    return {
        "reward/mean": float(grouped.mean()),
        "reward/dead_group_share": float((grouped == grouped[:, :1]).all(1).float().mean()),
        "completions/length_mean": float(lengths.mean()),
        "completions/unfinished_share": float((~rollout.finished).float().mean()),
    }


def build(config: TrainConfig) -> Loop:
    """Load the policy, its reference and the task of a resolved recipe."""
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    method = config.method.build()
    policy, tokens = load_policy(config.model, config.engine.dtype)
    policy.eval()  # dropout off: the policy that samples is the policy that is trained
    reference = None
    if "ref_logps" in method.needs:
        source = config.model if method.anchor.source == "base" else method.anchor.source
        reference = load_policy(source, config.engine.dtype)[0].eval().requires_grad_(False)
    task = config.world.build()
    problems = task.problems("train", config.world.data_seed, config.world.train_problems)
    updates = config.steps * config.updates.epochs * config.updates.minibatches
    optimiser = Optimiser(policy, config.optimizer, updates)
    return Loop(config, method, policy, reference, tokens, task, problems, optimiser, Key(config.seed))


def train(config: TrainConfig, run: RunDir, progress: Any) -> int:
    """Train to `config.steps`, from the newest complete checkpoint if there is one. Returns the step reached.

    A stop signal ends the run after the step in hand, saved. `TrainingDiverged` keeps the last good weights and writes
    the batch's prompts aside before it is raised. ConfigError where <run>/policy holds anything but a former policy.
    """
    check_replaceable(run.path / "policy")
    loop = build(config)
    step = resume(run, loop.policy, loop.optimiser)
    if step < config.steps:  # the policy of an earlier, shorter run in this directory is not this run's result
        shutil.rmtree(run.path / "policy", ignore_errors=True)
    progress.start(total=config.steps, done=step)
    stopping = False
    with StopFlag() as stop:
        while step < config.steps and not stopping:
            began = time.perf_counter()
            try:
                metrics = train_step(loop, step)
            except TrainingDiverged as error:
                raise set_aside(loop, run, step, error) from error
            run.log({"step": step, **metrics, "time/step_s": time.perf_counter() - began})
            step += 1
            progress.advance(step, metrics)
            stopping = stop.requested  # read once: what stops the loop also saves
            if step % config.checkpoint.every == 0 or step == config.steps or stopping:
                checkpoint(run, loop.policy, loop.optimiser, step)
    if step == config.steps:
        save_policy(loop.policy, loop.tokens.tokenizer, run.path / "policy")
    return step


def set_aside(loop: Loop, run: RunDir, step: int, error: TrainingDiverged) -> TrainingDiverged:
    """Save the last good weights and the batch that broke the step; return the error that says where they lie.

    Raises CheckpointError where they cannot be written.
    """
    loop.optimiser.adam.zero_grad(set_to_none=True)
    checkpoint(run, loop.policy, loop.optimiser, step)
    problems = prompts_of_step(loop, step)
    rollout = draw_rollout(loop, [loop.tokens.encode_prompt(loop.task.render(p)) for p in problems], step)
    folder = run.path / "diverged" / f"step-{step:06d}"
    tensors = {"tokens": rollout.tokens.contiguous(), "mask": rollout.mask.contiguous()}
    listed = {"step": step, "error": str(error), "prompts": [loop.task.render(p) for p in problems]}
    text = json.dumps(listed, indent=1)
    with writing(f"batch set aside ({error})", folder, len(text) + sum(t.nbytes for t in tensors.values())):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "rollout.safetensors")
        (folder / "batch.json").write_text(text)
    return TrainingDiverged(
        f"{error}. The weights before this step are saved in {run.path / 'checkpoints'}, the batch in {folder}. "
        "Next: lower optimizer.lr or raise method.beta in a new directory, or look at the batch"
    )
