"""Scores of a rollout: log-probs, entropies and other signals of a method, under the policy and the reference.

A forward pass takes `updates.micro_batch` whole groups at a time, so that scoring needs no more memory than an update.
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
from sage_rlvr.models.llama.net import Net, why_not
from sage_rlvr.models.lm_head import chosen_logps
from sage_rlvr.models.scoring import TokenScores, on_mask, score
from sage_rlvr.tasks.base import turns_of
from sage_rlvr.training.groups import CompletionRows
from sage_rlvr.training.loop_state import Loop
from sage_rlvr.training.reference import reference_right


def step_scores(loop: Loop, groups: CompletionRows) -> tuple[TokenScores, TokenScores | None]:
    """Of all rows of a rollout, under the policy with all that the method reads, and under the reference, if there is one.

    One update a rollout: the training forward is the old policy's forward. Several: the old policy is scored first, out of graph.
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
    """(B, T) `entropy_drift` of the distributions at the counted tokens, 0 elsewhere."""
    return on_mask(mask, per_token(lambda part, log_probs: entropy_drift(log_probs), mask, laws.detach()))


def reuses_sampling(loop: Loop) -> bool:
    """Whether updates read the sampler's activations (`engine.reuse_sampling`): where that is the forward they would have made."""
    return loop.config.engine.reuse_sampling and why_not_reused(loop) is None


def why_not_reused(loop: Loop) -> str | None:
    """Why an update needs a forward of its own; None if it does not."""
    method, updates = loop.method, loop.config.updates
    if reason := why_not(loop.policy):
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


def engine_line(loop: Loop) -> str:
    """How the policy is computed, where that is not the usual way; empty else."""
    if reason := why_not(loop.policy):
        return f"stock path (transformers' own forward, slower): {reason}"
    if not loop.config.engine.reuse_sampling:
        return ""
    reason = why_not_reused(loop)
    without = "the update on sampled completions reads the sampler's activations, without a forward of the policy"
    return f"engine.reuse_sampling: {without if reason is None else f'not used: {reason}'}"


GAP_EVERY = 50
"""Steps between two measurements of the gap where the update has no forward of its own, and the measurement costs one."""


def sampler_gap(loop: Loop, groups: CompletionRows, signals: Signals, step: int) -> dict[str, float]:
    """How far the sampler's log-probs lie from the scorer's, nats: the largest and the mean over the tokens that both computed.

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


def traced_scores(loop: Loop, groups: CompletionRows, trace: Trace) -> TokenScores:
    """Scores of all rows of a rollout from what the sampler computed, in graph: the log-probs are those that were drawn with."""
    rollout, net = groups.rollout, Net(loop.policy)
    layout = Layout.of(groups.prompts, rollout.tokens, rollout.mask, groups.owners, distinct=False)
    states = recorded_states(net, layout, trace)
    temperature, targets = loop.config.rollout.temperature, rollout.tokens[rollout.mask]
    both = chosen_logps(states, net.lm_head, targets, temperature, True, state_of_target=layout.of_token, logits=trace.logits)
    logps, entropies = (on_mask(rollout.mask, values) for values in both if values is not None)
    return TokenScores(logps, entropies)


def step_signals(loop: Loop, groups: CompletionRows, scores: TokenScores, reference: TokenScores | None) -> Signals:
    """The signals of a rollout for guides and advantages, computed with the policy that sampled it."""
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
    )


def at_once(loop: Loop, groups: CompletionRows, rows: Tensor) -> Sequence[Tensor]:
    """`rows` (ascending) as one forward pass takes them: those of `updates.micro_batch` whole groups, or all of them."""
    count = loop.config.updates.micro_batch
    if count is None:
        return [rows]
    # Whole groups: a group cut in two would have its prompt computed twice, and `rows` ascending keeps one prompt's rows together.
    sizes = groups.owners[rows].unique_consecutive(return_counts=True)[1]
    parts: tuple[Tensor, ...] = rows.split([int(part.sum()) for part in sizes.split(count)])
    return parts


def score_rows(
    loop: Loop,
    model: PreTrainedModel,
    groups: CompletionRows,
    rows: Tensor,
    *,
    entropies: bool = False,
    log_probs: bool = False,
    entropy_grad: bool = False,
    hidden: bool = False,
) -> TokenScores:
    """Log-probs of `rows` (ascending) of the rollout under `model`; only the prompts they belong to are computed."""
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
def fixed_scores(loop: Loop, model: PreTrainedModel, groups: CompletionRows, rows: Tensor, **read: bool) -> TokenScores:
    """`score_rows` out of graph, `updates.micro_batch` groups at a time, so that it needs no more memory than an update. read: what
    else, by its keywords."""
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


def reference_scores(loop: Loop, groups: CompletionRows, rows: Tensor, *, log_probs: bool = False) -> TokenScores | None:
    """The reference's log-probs (and entropies where the guide reads them); None if the method has no anchor."""
    if loop.reference is None:
        return None
    wanted = "ref_entropies" in loop.method.needs
    return fixed_scores(loop, loop.reference, groups, rows, entropies=wanted, log_probs=log_probs)
