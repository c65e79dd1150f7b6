"""Scores of a rollout: log-probs, entropies and other signals of a method, under the policy and the reference.

A forward pass takes `updates.micro_batch` complete groups at a time, so that scoring needs no more memory than an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.extras import entropy_drift
from sage_rlvr.core.laws import Laws, per_token
from sage_rlvr.core.rollout_plans import is_guided
from sage_rlvr.core.signals import Signals
from sage_rlvr.models.llama.forward import Trace, recorded_states
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, unsupported_reason
from sage_rlvr.models.lm_head import chosen_logps
from sage_rlvr.models.scoring import TokenScores, on_mask, score
from sage_rlvr.tasks.base import turns_of
from sage_rlvr.training.groups import RolloutBatch
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.places import places_of, state_class_of
from sage_rlvr.training.reference import reference_right


def step_scores(loop: TrainState, groups: RolloutBatch) -> tuple[TokenScores, TokenScores | None]:
    """Return the scores of all rows of a rollout under the policy, with all that the method reads, and under the reference, if any.

    With one update per rollout, the training forward is the old policy's forward. With several, the old policy is scored first,
    out of the graph.
    """
    needs, once = loop.method.needs, loop.config.updates.once
    rows = torch.arange(len(groups.owners), device=groups.owners.device)  # row = prompt * group_size + member
    exact, drift, seen = once and "distributions" in needs, "entropy_drift" in needs, "hidden" in needs
    if groups.rollout.trace is not None:
        scores = traced_scores(loop, groups, groups.rollout.trace)
    elif once:
        # In graph, and read by the update: scored apart from it, the ratio to the old policy would be 1 only up to rounding.
        live = "entropy_gradient" in needs
        read = {"entropies": True, "entropy_grad": live, "log_probs": exact or drift, "hidden": seen}
        scores = score_rows(loop, loop.policy, groups, rows, **read)
    else:
        scores = fixed_scores(loop, loop.policy, groups, rows, entropies=True, log_probs=drift, hidden=seen)
    return scores, reference_scores(loop, groups, rows, log_probs=exact)


@torch.no_grad()
def drift_of(laws: Tensor | Laws, mask: Tensor) -> Tensor:
    """Return `entropy_drift` of the distributions at the counted tokens, (B, T), 0 elsewhere."""
    return on_mask(mask, per_token(lambda part, log_probs: entropy_drift(log_probs), mask, laws.detach()))


def reuses_sampling(loop: TrainState) -> bool:
    """True if updates read the sampler's activations (`engine.reuse_sampling`), which requires that both forwards are equal."""
    return loop.config.engine.reuse_sampling and unsupported_reuse_reason(loop) is None


def unsupported_reuse_reason(loop: TrainState) -> str | None:
    """Return the reason that an update needs a separate forward; None if it does not."""
    method, updates = loop.method, loop.config.updates
    if reason := unsupported_reason(loop.policy):
        return reason
    if loop.policy.device.type != "cpu":
        return "on a GPU the room for all activations would be taken before the first token"
    if method.is_replay_only:
        return "the method trains on stored answers only"
    if not updates.once:
        return "a step has several updates or micro-batches"
    if method.rollout is not None:
        return f"{type(method.rollout).__name__} draws a step's completions in several parts"
    if turns_of(loop.task) > 1:
        return "an episode is drawn turn by turn"
    read = sorted({"distributions", "entropy_gradient", "entropy_drift", "hidden"} & set(method.needs))
    return f"the method reads {', '.join(read)}" if read else None


def engine_line(loop: TrainState) -> str:
    """Return how the policy is computed, if not in the usual way; else ""."""
    if reason := unsupported_reason(loop.policy):
        return f"stock path (transformers' own forward, slower): {reason}"
    if not loop.config.engine.reuse_sampling:
        return ""
    reason = unsupported_reuse_reason(loop)
    without = "the update on sampled completions reads the sampler's activations, without a forward of the policy"
    return f"engine.reuse_sampling: {without if reason is None else f'not used: {reason}'}"


GAP_EVERY = 50
"""Steps between two measurements of the gap if the update makes no forward pass, so that a measurement costs one."""


def sampler_gap(loop: TrainState, groups: RolloutBatch, signals: Signals, step: int) -> dict[str, float]:
    """Return the distance of the sampler's log-probs from the scorer's, nats: largest and mean over the tokens that both computed.

    With `engine.reuse_sampling` the update uses the sampler's, and a forward in steps 0, 50, 100, ... measures the gap to it.
    """
    rollout, scored = groups.rollout, signals.old_logps
    if rollout.trace is not None:
        if step % GAP_EVERY:
            return {}
        rows = torch.arange(len(groups.owners), device=groups.owners.device)
        scored = fixed_scores(loop, loop.policy, groups, rows).logps
    # Tokens that both computed under the same prompt: a reply is the environment's, and a hint is only in the sampler's prompt.
    same = rollout.drawn
    if is_guided(loop.method.rollout):
        same = same & ~groups.column("guided")[:, None]
    gaps = (rollout.logps - scored.detach()).abs()[same]
    widest = (gaps.max(), gaps.mean()) if len(gaps) else (0.0, 0.0)
    return {"sampler/logp_gap_max": float(widest[0]), "sampler/logp_gap_mean": float(widest[1])}


def traced_scores(loop: TrainState, groups: RolloutBatch, trace: Trace) -> TokenScores:
    """Return scores of all rows of a rollout from the sampler's activations, in the graph: the log-probs are those of sampling."""
    rollout, net = groups.rollout, Net(loop.policy)
    layout = Layout.of(groups.prompts, rollout.tokens, rollout.mask, groups.owners, distinct=False)
    states = recorded_states(net, layout, trace)
    temperature, targets = loop.config.rollout.temperature, rollout.tokens[rollout.mask]
    both = chosen_logps(states, net.lm_head, targets, temperature, True, state_of_target=layout.of_token, logits=trace.logits)
    logps, entropies = (on_mask(rollout.mask, values) for values in both if values is not None)
    return TokenScores(logps, entropies)


def step_signals(loop: TrainState, groups: RolloutBatch, scores: TokenScores, reference: TokenScores | None) -> Signals:
    """Return the signals of a rollout for guides and advantages, computed with the policy that sampled it."""
    needs, laws = loop.method.needs, scores.log_probs
    assert scores.entropies is not None
    return Signals(
        old_logps=scores.logps,
        ref_logps=None if reference is None else reference.logps,
        # `drawn` and not `mask`: the replies of an environment are scored as context, and no loss may count them.
        mask=groups.rollout.drawn,
        row_ids=groups.column("row_ids"),
        entropies=scores.entropies,
        ref_entropies=None if reference is None else reference.entropies,
        rewards=groups.column("rewards"),
        hidden=scores.hidden,
        answers=groups.column("answers") if "answers" in needs else None,
        ref_right=torch.cat([reference_right(loop, part) for part in groups.groups]) if "ref_right" in needs else None,
        problems=groups.column("problem_ids") if "problems" in needs else None,
        entropy_drift=None if "entropy_drift" not in needs or laws is None else drift_of(laws, groups.rollout.mask),
        places=step_places(loop, groups) if "places" in needs else None,
        base_counts=step_base_counts(loop, groups) if "base_counts" in needs else None,
    )


def step_places(loop: TrainState, groups: RolloutBatch) -> Tensor:
    """Return (B, T) classes of the states of all rows; an environment's replies are read as context."""
    rollout = groups.rollout
    return places_of(state_class_of(loop.task), loop.tokens.tokenizer, rollout.tokens, rollout.mask)


def step_base_counts(loop: TrainState, groups: RolloutBatch) -> Tensor:
    """Return (B, 2) counts of the base model's stored samples of each row's problem: correct ones and all."""
    base = loop.base
    assert base is not None, "`build` asks for them"
    parts = [base.rows([str(problem.problem_id) for problem in part.problems], part.rewards.shape[1]) for part in groups.groups]
    return torch.cat(parts).to(groups.rollout.tokens.device)


def at_once(loop: TrainState, groups: RolloutBatch, rows: Tensor) -> Sequence[Tensor]:
    """Return `rows` (ascending) split by forward pass: `updates.micro_batch` complete groups each, or all of them."""
    count = loop.config.updates.micro_batch
    if count is None:
        return [rows]
    # Whole groups: a group cut in two would have its prompt computed twice, and `rows` ascending keeps one prompt's rows together.
    sizes = groups.owners[rows].unique_consecutive(return_counts=True)[1]
    parts: tuple[Tensor, ...] = rows.split([int(part.sum()) for part in sizes.split(count)])
    return parts


def score_rows(
    loop: TrainState,
    model: PreTrainedModel,
    groups: RolloutBatch,
    rows: Tensor,
    *,
    entropies: bool = False,
    log_probs: bool = False,
    entropy_grad: bool = False,
    hidden: bool = False,
) -> TokenScores:
    """Return log-probs of `rows` (ascending) of the rollout under `model`; only the prompts they belong to are computed."""
    owners, local = groups.owners[rows].unique(return_inverse=True)
    return score(
        model,
        [groups.prompts[int(g)] for g in owners],
        groups.rollout.tokens[rows],
        groups.rollout.mask[rows],
        local,
        temperature=loop.config.rollout.temperature,
        entropies=entropies,
        log_probs=log_probs,
        entropy_grad=entropy_grad,
        hidden=hidden,
    )


@torch.no_grad()
def fixed_scores(loop: TrainState, model: PreTrainedModel, groups: RolloutBatch, rows: Tensor, **read: bool) -> TokenScores:
    """Return `score_rows` out of the graph, `updates.micro_batch` groups at a time, so that it needs no more memory than an update.

    read: further keywords of `score_rows`.
    """
    parts = [score_rows(loop, model, groups, part, **read) for part in at_once(loop, groups, rows)]
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Laws):
            return Laws.cat(values)
        return None if values[0] is None else torch.cat(values)

    more = (column(name) for name in ("entropies", "log_probs", "hidden"))
    return TokenScores(torch.cat([part.logps for part in parts]), *more)


def reference_scores(loop: TrainState, groups: RolloutBatch, rows: Tensor, *, log_probs: bool = False) -> TokenScores | None:
    """Return the reference's log-probs (and entropies if the guide reads them); None if the method has no anchor."""
    if loop.reference is None:
        return None
    wanted = "ref_entropies" in loop.method.needs
    return fixed_scores(loop, loop.reference, groups, rows, entropies=wanted, log_probs=log_probs)
