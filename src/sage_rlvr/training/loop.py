"""The reference engine: GRPO and SAGE on one screen (`train_step`), in plain torch and transformers.

    collect   samplers.py draws groups, the verifier judges them, and the sampler keeps some     (rollouts.py, groups.py)
    score     log-probs and entropies of their tokens, under the policy and the reference        (scores.py, reference.py)
    shape     log q of the guide, which multiplies the reference                                 (core/guides)
    credit    advantages, including a KL in the reward                                           (core/method.py)
    update    mini-batches of complete groups, each in micro-batches, and the optimizer's steps  (optimizer.py)

The adapters of TRL and verl name the same five stages (trl/trainer.py, verl/trainer.py).

All random numbers are a function of (seed, step, name, row): two arms of one seed see the same prompts and, while their
policies agree, the same completions. On a CPU a run is bitwise reproducible (same kind of CPU, versions and thread count).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sage_rlvr.config import TrainConfig
from sage_rlvr.core.anchor import PER_COMPLETION
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import NO_SIGNAL, Advantages, credit, has_signal, objective, q_clamped, shape
from sage_rlvr.core.signals import Batch, Signals, masked_mean
from sage_rlvr.core.state import state_metrics
from sage_rlvr.errors import TrainingDiverged
from sage_rlvr.models.devices import dtype_of, faster_dtype, placed
from sage_rlvr.models.enumeration.solutions import lister
from sage_rlvr.models.policy import PromptRenderer, load_policy
from sage_rlvr.models.scoring import TokenScores
from sage_rlvr.runs import RunDir, writing
from sage_rlvr.training.base_samples import BaseSamples, checked_base
from sage_rlvr.training.counts.room import lacks_room
from sage_rlvr.training.groups import RolloutBatch
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.model_card import facts_of, render
from sage_rlvr.training.opening import after_first_step, announce, decoded, of_optimizer, setting_of
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.places import check_places
from sage_rlvr.training.problems import training_problems, unkeyed, unverified
from sage_rlvr.training.reference import (
    follow,
    kept_reference,
    load_initial,
    load_reference,
    restore_reference,
)
from sage_rlvr.training.replay import Replay, fill, numbered, recall
from sage_rlvr.training.samplers import sampler_of
from sage_rlvr.training.scores import (
    at_once,
    engine_line,
    reference_scores,
    sampler_gap,
    score_rows,
    step_scores,
    step_signals,
)
from sage_rlvr.training.state import (
    check_replaceable,
    checkpoint,
    kept_parts,
    restore_parts,
    resume,
    save_policy,
    undone_if_diverged,
)
from sage_rlvr.training.steps import mean_of, run_steps
from sage_rlvr.training.trackers import check_installed
from sage_rlvr.training.watch import ROWS, BufferWatch, GuideWatch, SourceWatch, check_vocabulary


def train_step(loop: TrainState, step: int) -> dict[str, float]:
    """Run one rollout and its updates; return the step's metrics (docs/reference/metrics.md). Steps count from 0.

    If the sampler keeps no group there is no policy gradient, and only stored answers change the policy; of the state of
    the method's parts, only that of the rollout plan and of the buffer changes then. If the step diverges nothing changes.
    """
    method, key, total = loop.method, loop.key, loop.config.steps
    sampler, replay = sampler_of(method), recall(loop, step)
    collected = sampler.collect(loop, step, replay)  # collect: sample, verify, keep, refill, store
    if not collected.groups:
        # `updates` takes the optimizer steps of stored answers, and returns their metrics.
        return replay.commit(collected.metrics | replay.updates(), collected.parts)
    groups = RolloutBatch.of(collected.groups, loop.tokens.pad_id)
    scores, reference = step_scores(loop, groups)  # score
    signals = step_signals(loop, groups, scores, reference)
    gap = sampler_gap(loop, groups, signals, step)
    # Of the policy that sampled, once per rollout: computed again from a policy that has moved, q would follow it.
    log_q = shape(method, signals, step, total, key)  # shape
    clamped = q_clamped(method, signals, step, total, key, log_q)
    # From the state that `collect` left: `loop.parts` is that before this rollout, without the change by the rollout plan.
    credited = credit(method, groups.rewards, signals, log_q, step, total, key, collected.parts)  # credit
    weights, weighed = sampler.weights(groups, scores.logps)
    whole = batch_of(loop, groups, signals, scores, reference, credited, log_q=log_q, q_clamped=clamped, weights=weights)
    moved = updates(loop, whole, groups, has_signal(method, credited.grouped, whole.mask), step, replay)  # update
    # Stores what needs advantages, after the updates: such a buffer trains on the answers of earlier steps only.
    for one_size, advantages in zip(groups.groups, groups.split(credited.grouped), strict=True):
        replay.see(one_size, advantages)
    # The parts' state changes last: an update that diverges leaves it, and the weights, as they were before the step.
    metrics = collected.metrics | gap | weighed | moved | advantage_metrics(credited.advantages, signals.mask)
    return replay.commit(metrics | state_metrics(credited.state), credited.state)


def batch_of(
    loop: TrainState,
    groups: RolloutBatch,
    signals: Signals,
    scores: TokenScores,
    reference: TokenScores | None,
    credited: Advantages,
    **fixed: Tensor | None,
) -> Batch:
    """Return the batch for the updates of a step, with log_q, q_clamped and weights of its rows fixed.

    With several updates each computes log-probs, distributions and entropies of its rows in the graph (`micro_batches`).
    """
    needs = loop.method.needs
    return Batch(
        logps=scores.logps,
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=credited.advantages,
        entropies=scores.entropies if "entropy_gradient" in needs else signals.entropies,
        max_tokens=loop.config.rollout.max_new_tokens,
        log_probs=scores.log_probs if "distributions" in needs else None,
        group_size=groups.group_size,
        ref_log_probs=None if reference is None else reference.log_probs,
        loss_weights=credited.loss_weights,
        kl_weights=credited.kl_weights,
        **fixed,
    )


def advantage_metrics(advantages: Tensor, mask: Tensor) -> dict[str, float]:
    """Return metrics of advantages (B,) or (B, T): mean size over counted tokens, fraction of completions whose advantage is 0."""
    spread = torch.where(mask, advantages if advantages.dim() == 2 else advantages[:, None], 0.0)
    idle = (spread == 0).all(dim=1).float().mean()
    return {"advantage/abs_mean": masked_mean(spread.abs(), mask), "advantage/zero_frac": float(idle)}


def updates(
    loop: TrainState, whole: Batch, groups: RolloutBatch, signal: Tensor, step: int, replay: Replay
) -> dict[str, float]:
    """Run `epochs` passes over shuffled mini-batches of complete groups; the ratio to the old policy is 1 only in the first update.

    If a rollout plan kept fewer groups the mini-batches are smaller, and an empty one is left out: the number of an
    update, which the learning rate reads, is a function of step, epoch and mini-batch only.
    """
    plan, collected = loop.config.updates, []
    if plan.once:  # one update without micro-batches: the rollout's scores are in graph, and may go backward a single time
        return update(loop, [whole], whole.mask, signal, step, step, replay)
    single = plan.per_step == 1  # a single update that diverges has moved nothing
    with nullcontext() if single else undone_if_diverged(loop):
        for epoch in range(plan.epochs):
            order = loop.key.permutation(step, f"minibatch/{epoch}", len(groups.prompts))
            for n, numbers in enumerate(order.tensor_split(plan.minibatches)):
                # Counted over all mini-batches, empty ones too: the learning rate and the buffer's draws are functions of it.
                number = (step * plan.epochs + epoch) * plan.minibatches + n
                if len(numbers):
                    # Ascending, whatever the order of the groups: `at_once` cuts them at the borders of groups.
                    rows = torch.isin(groups.owners, numbers.to(groups.owners.device)).nonzero().squeeze(1)
                    micro = micro_batches(loop, whole, groups, rows)
                    if "distributions" not in loop.method.needs and skips(loop, signal[rows], number, replay):
                        micro = iter([select(whole, rows, whole.logps[rows])])  # the rollout's scores, without a forward
                    collected.append(update(loop, micro, whole.mask[rows], signal[rows], step, number, replay))
    return mean_of(collected)


def skips(loop: TrainState, signal: Tensor, number: int, replay: Replay) -> bool:
    """Whether `updates.skip_without_signal` leaves out update `number`, whose rows' `has_signal` is `signal`."""
    if bool(signal.any()) or replay.descends(number):
        return False
    return loop.config.updates.skips(before_first=not loop.optimizer.adam.state)


def update(
    loop: TrainState, micro: Iterable[Batch], mask: Tensor, signal: Tensor, step: int, number: int, replay: Replay
) -> dict[str, float]:
    """Make one optimizer step from micro-batches that add up to one mini-batch, and from the buffer's term; return its metrics.

    If no row has a signal and there are no stored answers, only the KL has a gradient, and `updates.skip_without_signal` may skip
    the step: then there is no backward pass and no gradient norm.

    No weight changes if the loss or the gradient is not finite: `TrainingDiverged`. Gradients of earlier micro-batches remain, and
    a caller that continues must clear them (`set_aside`).

    Args:
        loop: the training state.
        micro: the micro-batches.
        mask: of the mini-batch's rows.
        signal: the rows' `has_signal`.
        step: the step.
        number: the count of updates so far.
        replay: the buffer's part of the step.
    """
    # The divisor of the whole mini-batch: micro-batches with one of their own would weigh tokens by their micro-batch.
    budget = loop.method.reduction.budget(mask, loop.config.rollout.max_new_tokens)
    skipped = skips(loop, signal, number, replay)
    collected: list[tuple[float, float, dict[str, float]]] = []
    for batch in micro:
        loss, metrics = objective(loop.method, batch, step, loop.config.steps, budget=budget)
        if not torch.isfinite(loss):  # before its backward: AdamW's moments never recover from one NaN
            raise TrainingDiverged(f"loss is {loss.item()} at step {step}")
        if not skipped:
            loss.backward()  # of each micro-batch before the next forward: its graph is freed, gradients add up
        tokens, rows = batch.mask.sum() / mask.sum(), batch.mask.any(dim=1).sum() / mask.any(dim=1).sum()
        collected.append((float(tokens), float(rows), metrics))
    # Each mean is weighted by what it is a mean over: micro-batches have other shares of the tokens than of the completions.
    names = collected[0][2]
    shares = {n: sum((rows if n in PER_COMPLETION else tokens) * m[n] for tokens, rows, m in collected) for n in names}
    stored = replay.descend(number)  # adds to the gradients above: before the optimizer's step, which clears them
    # Losses add up, since they share a divisor; other metrics are means. This total replaces both "loss" entries below.
    total = sum(m["loss"] for *_, m in collected) + stored["loss"]
    idle = not (bool(signal.any()) or stored.get(ROWS))
    moved = {"optimizer/lr": 0.0} if skipped else loop.optimizer.step(number)
    return shares | stored | {"loss": total, NO_SIGNAL: float(idle)} | moved


def micro_batches(loop: TrainState, whole: Batch, groups: RolloutBatch, rows: Tensor) -> Iterator[Batch]:
    """Yield `rows` of the rollout, `updates.micro_batch` groups at a time, each with a fresh forward pass in the graph.

    Distributions over the vocabulary exist for one micro-batch at a time; the reference's are computed again for each.
    """
    exact, live = "distributions" in loop.method.needs, "entropy_gradient" in loop.method.needs
    for some in at_once(loop, groups, rows):
        # The entropies of the rollout hold, but for an extra that descends them.
        scores = score_rows(loop, loop.policy, groups, some, entropies=live, log_probs=exact, entropy_grad=live)
        batch = select(whole, some, scores.logps)
        batch = replace(batch, entropies=scores.entropies) if live else batch
        if exact:
            reference = reference_scores(loop, groups, some, log_probs=True)
            laws = None if reference is None else reference.log_probs
            batch = replace(batch, log_probs=scores.log_probs, ref_log_probs=laws)
        yield batch


def select(whole: Batch, rows: Tensor, logps: Tensor) -> Batch:
    """Return `rows` of a batch with freshly computed `logps`; values fixed at the rollout (q, advantages) are only indexed.

    Every tensor of a `Batch` has a row per completion; a field that has not must be handled here by name.
    """
    fixed = {f.name: getattr(whole, f.name) for f in fields(whole) if f.name not in ("logps", "loss_weights")}
    indexed: dict[str, Any] = {name: value[rows] if isinstance(value, Tensor) else value for name, value in fixed.items()}
    weights = {slot: weight[rows] for slot, weight in whole.loss_weights.items()}
    return Batch(logps=logps, loss_weights=weights, **indexed)


def build(config: TrainConfig, base: BaseSamples | None = None) -> TrainState:
    """Load the policy, its reference and the task of a resolved recipe. base: the samples of `config.base_samples`.

    Raise DataError that names a training problem without base samples if the method reads them.
    """
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    method = config.method
    policy, tokens = load_policy(config.model, dtype_of(config.engine))
    placed(policy, config.engine.device)
    check_vocabulary(method, policy.config.vocab_size)
    policy.eval()  # dropout off: the policy that samples is the policy that is trained, and ratios start at exactly 1
    reference = load_reference(config, policy, tokens)
    task, problems = training_problems(config)
    if "ref_right" in method.needs:
        lister(task)  # ConfigError for a task that cannot list its right completions
    check_places(method, task)
    base = checked_base(method, base)
    if base is not None:
        base.check(str(problem.problem_id) for problem in problems)
    asking = PromptRenderer.of(task, tokens, options=config.chat_template_kwargs)
    updates = config.steps * config.updates.per_step
    optimizer = Optimizer(policy, config.optimizer, updates)
    return TrainState(
        config,
        method,
        policy,
        reference,
        tokens,
        task,
        asking,
        problems,
        optimizer,
        Key(config.seed),
        parts=method.start(),
        numbers={} if method.buffer is None else numbered(problems),
        base=base,
        initial=load_initial(config, policy, reference),  # before `train` loads a checkpoint into the policy
    )


def train(config: TrainConfig, run: RunDir, progress: Any, base: BaseSamples | None = None) -> int:
    """Train to `config.steps`, from the newest complete checkpoint if there is one. Return the step reached.

    A stop signal ends the run after the current step, which is saved. `TrainingDiverged` saves the last good weights and writes
    the batch's prompts to a file before it is raised. Raise ConfigError if <run>/policy contains anything but a former policy.
    base: as in `build`.
    """
    out = run.path / "policy"
    check_replaceable(out)
    check_installed(config.report_to)
    loop = build(config, base)
    loop.reasons.tell = run.warn
    newest = resume(run, loop.policy, loop.optimizer)
    restore_reference(loop, newest)
    restore_parts(loop, newest)
    if newest is None and fill(loop):
        save(loop, run, 0)  # so that a run that is killed before its first checkpoint samples nothing again
    begin = newest.step if newest else 0
    if begin < config.steps:  # the policy of an earlier, shorter run in this directory is not this run's result
        shutil.rmtree(out, ignore_errors=True)
    warnings = {
        "answers": unkeyed(loop.method, loop.task),
        "reward source": unverified(loop.method),
        "memory": lacks_room(loop, begin),
    }
    for kind, warning in warnings.items():
        if warning:
            run.warn(kind, begin, warning)
    watches = (
        GuideWatch(loop.method.anchor, run.warn),
        BufferWatch(loop.method.buffer, config.steps, run.warn),
        SourceWatch(loop.method.reward_source, config.steps, run.warn),
    )
    if begin < config.steps:
        first = decoded(loop.tokens.tokenizer, loop.ask(loop.problems[0]).ids)
        faster = faster_dtype(loop.policy, config.engine)
        setting = setting_of(loop.policy, faster=faster, **of_optimizer(config.optimizer))
        lines = {"objective": config.objective, "engine": engine_line(loop), "prompt": first}
        announce(progress.note, setting, begin=begin, tell=run.warn, **lines)

    def run_step(step: int) -> dict[str, float]:
        try:
            return train_step(loop, step)
        except TrainingDiverged as error:
            raise set_aside(loop, run, step, error) from error

    def on_step_end(step: int, metrics: dict[str, float]) -> None:
        for watch in watches:
            watch.see(step, metrics)
        if step == 0:
            after_first_step(progress.note, loop.method.anchor, metrics, run.warn, config.rollout.temperature)
        follow(loop, step + 1)  # before `save`: the checkpoint of this step has to hold the reference of the next

    on_train_end = partial(save_policy, loop.policy, loop.tokens.tokenizer, out, render(facts_of(config)))
    return run_steps(config, run, progress, begin, run_step, partial(save, loop, run), on_train_end, on_step_end)


def save(loop: TrainState, run: RunDir, step: int) -> None:
    """Write a checkpoint of all state that is not on disk elsewhere: weights, moments, the parts' state, a reference of the run."""
    groups, state = kept_reference(loop)
    checkpoint(run, loop.policy, loop.optimizer, step, groups | kept_parts(loop), **state)


def set_aside(loop: TrainState, run: RunDir, step: int, error: TrainingDiverged) -> TrainingDiverged:
    """Save the last good weights and the batch that broke the step; return the error that names their paths.

    Raises CheckpointError if they cannot be written.
    """
    loop.optimizer.adam.zero_grad(set_to_none=True)
    save(loop, run, step)
    # Drawn again: the weights are those from before the step, and all that is random is a function of (seed, step).
    tokens, mask, problems = sampler_of(loop.method).again(loop, step, recall(loop, step))
    folder = run.path / "diverged" / f"step-{step:06d}"
    tensors = {"tokens": tokens.contiguous(), "mask": mask.contiguous()}
    listed = {"step": step, "error": str(error), "prompts": [loop.ask(p).text for p in problems]}
    text = json.dumps(listed, indent=1)
    with writing(f"batch set aside ({error})", folder, len(text) + sum(t.nbytes for t in tensors.values())):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "rollout.safetensors")
        (folder / "batch.json").write_text(text)
    return TrainingDiverged(
        f"{error}. The weights from before this step are saved in {run.path / 'checkpoints'}, the batch in {folder}. "
        "Next: lower optimizer.lr or raise method.beta and train in a new directory, or inspect the batch"
    )
