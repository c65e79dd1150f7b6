"""Changes of SageTrainer to a batch of TRL: log(q pi_ref) for log pi_ref, the mask, the metrics, and the advantages.

    A, state = credit(method, r, signals, log q, state)        A (rows,), or (rows, T) if a part looks at tokens

Groups may be spread over ranks, so the signals that the core reads are gathered first. TRL's loss accepts both shapes and subtracts
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupCentered, GroupNormalized, sees
from sage_rlvr.core.anchor import PER_COMPLETION, Anchor, anchor_logps, anchor_metrics
from sage_rlvr.core.guides import clamped, factors, is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Advantages, Method, credit, has_signal, kl_prompts
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State, state_metrics
from sage_rlvr.errors import DataError
from sage_rlvr.tasks.base import answer_id
from sage_rlvr.training.base_samples import BaseCounts
from sage_rlvr.training.engines import kl_in_reward
from sage_rlvr.training.trl.protocols import Inputs, PolicyTrainer, TrlTrainer


@dataclass(frozen=True, eq=False)
class GenerationBatch:
    """A generation batch: `output`, this rank's rows of it, and values of all ranks.

    rewards     (P, G), NaN in dropped groups and for a completion without one
    row_ids     (P * G,), the number of each row among the `count` rows that were sampled for it
    kept_share  the share of groups that are not dropped among the P (1 if there is nothing to scale)
    """

    output: Inputs
    rewards: Tensor
    row_ids: Tensor
    count: int
    kept_share: float = 1.0


def counted(inputs: Inputs) -> Tensor:
    """(B, T) bool: the tokens that TRL's loss counts, those of the completion that no tool wrote."""
    mask: Tensor = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()


@torch.no_grad()
def shape_inputs(
    anchor: Anchor, inputs: Inputs, logps: Tensor, entropies: Tensor | None, state: Any, key: Key, accelerator: Any
) -> None:
    """ref_per_token_logps <- ref_per_token_logps + log q, float32, with `logps` and `entropies` (B, T) those of pi_old.

    Also sets sage_log_q, sage_ref_logps (the reference as it was) and sage_q_clamped, all (B, T). `state` is the
    trainer's: step and total steps of the schedules and the noise. Flat leaves the reference unchanged, including its dtype.
    """
    reference = inputs["ref_per_token_logps"]
    signals = Signals(logps, reference, counted(inputs), inputs["sage_row_ids"], entropies, places=inputs.get("sage_places"))
    rows, width = slice(None), reference.shape[1]
    # A guide of the batch reads percentiles or permutes rows: over the rows of one rank only, each rank would have another q.
    if of_batch := [part for part in factors(anchor.guide) if part.depends_on == "batch"]:
        if all(part.reads_totals for part in of_batch):
            signals = of_rank(signals, accelerator)
        else:
            signals, rows = over_ranks(signals, accelerator)
    step, total = state.global_step, state.max_steps
    whole = anchor.guide(signals, step=step, total_steps=total, key=key)
    log_q = whole[rows, :width]
    # The unshaped reference is kept for kl/to_reference, and sage_log_q marks the batch as shaped: shaping twice would square q.
    inputs["sage_log_q"], inputs["sage_ref_logps"] = log_q, reference
    inputs["sage_q_clamped"] = clamped(anchor.guide, signals, step, total, key, whole)[rows, :width]
    if not is_flat(anchor.guide):
        inputs["ref_per_token_logps"] = anchor_logps(reference, log_q)


def of_rank(signals: Signals, accelerator: Any) -> Signals:
    """The signals of this rank, whose `total` is over all ranks."""

    class OfRank(Signals):
        def total(self, counts: Tensor) -> Tensor:
            summed: Tensor = accelerator.reduce(counts, reduction="sum")
            return summed

    return OfRank(**{field.name: getattr(signals, field.name) for field in fields(signals)})


def over_ranks(signals: Signals, accelerator: Any) -> tuple[Signals, slice]:
    """The signals of all ranks, and which rows of them are this rank's."""
    names = (
        *("old_logps", "ref_logps", "mask", "row_ids", "entropies", "rewards", "answers", "problems", "hidden", "places"),
        "base_counts",
    )
    gathered = {name: pad_and_gather(getattr(signals, name), accelerator) for name in names}
    local = signals.mask.shape[0]
    first = accelerator.process_index * local
    return Signals(**gathered), slice(first, first + local)  # type: ignore[arg-type]


def pad_and_gather(value: Tensor | None, accelerator: Any) -> Tensor | None:
    """The rows of all ranks, (B, T) or (B, T, C) padded on the right to the widest of them; None stays None."""
    if value is not None and value.dim() >= 2:  # accelerate pads a bool into an int64, only on the padded rank
        value = accelerator.pad_across_processes(value.float() if value.dtype == torch.bool else value, dim=1)
    return None if value is None else accelerator.gather(value)


@torch.no_grad()
def anchor_means(anchor: Anchor, inputs: Inputs, logps: Tensor, accelerator: Any) -> dict[str, float]:
    """`anchor_metrics` of a shaped batch at the policy's `logps`, over the counted tokens of all ranks; {} without any."""
    mask = counted(inputs)
    reference, log_q = inputs["sage_ref_logps"], inputs["sage_log_q"]
    means = anchor_metrics(anchor, logps, reference, log_q, mask, inputs["sage_q_clamped"])
    # Ranks have other numbers of tokens than of completions to each other: each mean is weighted by what it is a mean over.
    over = torch.stack([mask.any(dim=1).sum() if name in PER_COMPLETION else mask.sum() for name in means]).float()
    sums = torch.stack([torch.tensor([*means.values()], device=mask.device) * over, over])
    totals, counts = accelerator.reduce(sums, reduction="sum").tolist()
    return {name: total / count for name, total, count in zip(means, totals, counts, strict=True) if count}


# ---- advantages

# Inputs of TRL's scorer other than text, by the names of all releases.
MULTIMODAL = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids", "pixel_position_ids",
)  # fmt: skip


def reads_logps(method: Method | None) -> bool:
    """True where the advantages read log-probs of the tokens, so that the policy scores them at generation."""
    return method is not None and (method.token_weight is not None or kl_in_reward(method) or "logps" in method.needs)




def computes_advantages(method: Method) -> bool:
    """Return True if `SageTrainer` computes the advantages, because TRL's formula differs or has no kept groups."""
    known = type(method.advantage) is GroupCentered or method.advantage == GroupNormalized()  # a subclass is another formula
    changed = any(extra.changes_credit for extra in method.extras)
    more = changed or method.rollout is not None or bool(method.start()) or kl_prompts(method.anchor) is not None
    return not known or more or reads_logps(method)


def total_rewards(by_function: Tensor, weights: Tensor) -> Tensor:
    """(rows, reward functions) -> (rows,): the weighted sum, NaN where no function gave a reward (None)."""
    totals = (by_function * weights.to(by_function)).nansum(dim=1)
    # nansum of nothing is 0, which would be a reward of 0 for a completion that no function judged.
    return totals.masked_fill(by_function.isnan().all(dim=1), torch.nan)


def scale_of(method: Method, max_tokens: int, kept_share: float = 1.0) -> float:
    """The factor on advantages and beta that makes TRL's divisor the method's.

    TRL divides by all rows, dropped ones too, and grants a completion `max_tokens`; a token mean counts what is there.
    """
    tokens = method.reduction.tokens if isinstance(method.reduction, FixedBudget) else None
    granted = 1.0 if tokens is None else max_tokens / tokens
    return granted if method.reduction.divisor == "batch" else granted / kept_share


def with_advantages(method: Method, output: Inputs, drawn: GenerationBatch, trainer: PolicyTrainer) -> None:
    """Put the advantages of `method` into `output`, this rank's rows of `drawn`, where TRL's are not the same.

    `sage_scale` is the factor that they are multiplied by already and beta is not yet. The trainer's `parts` become the state
    after this rollout: all ranks see all of it, so they are equal on all ranks.
    """
    scale = scale_of(method, trainer.max_completion_length, drawn.kept_share)
    if not computes_advantages(method) and scale == 1.0 and not drawn.rewards.isnan().any():
        return
    signals, log_q = None, None
    # The advantages read more of a completion than its reward: its length, its answer, its log-probs.
    if sees(method.advantage) or method.extras or reads_logps(method) or kl_prompts(method.anchor) is not None:
        signals, log_q = signals_of(output, drawn.rewards.flatten(), trainer.accelerator)
    state = trainer.state
    key = Key(trainer.args.seed)
    # From all ranks' rows on every rank: a group may be spread over ranks, and the parts' state has to stay equal on all of them.
    credited = group_advantages(
        method, drawn.rewards, signals, log_q, state.global_step, state.max_steps, key, trainer.parts
    )
    advantages, trainer.parts = credited.advantages, credited.state
    for metric, value in state_metrics(trainer.parts).items():
        trainer._metrics["train"][metric].append(value)
    local, width = output["completion_ids"].shape
    first = trainer.accelerator.process_index * local
    rows = advantages[first : first + local]
    # TRL's loss multiplies by beta later, in which this scale is too (`_beta_of_method`): reward and KL keep their proportion.
    output["advantages"] = (scale * (rows if rows.dim() == 1 else rows[:, :width])).to(output["advantages"])
    output["sage_scale"] = torch.tensor(scale)
    if credited.kl_weights is not None and not kl_in_reward(method):
        output["sage_kl_weights"] = credited.kl_weights[first : first + local]
    output["sage_signal"] = has_signal(method, credited.grouped.flatten()[first : first + local], counted(output))


ROLLOUT_ONLY = ("sage_logps", "sage_entropies", "sage_hidden", "sage_answers", "sage_problems", "sage_support", "sage_base_counts")
"""Fields that are read when a rollout is scored and not kept longer."""


def key_of(rewards: Any) -> Callable[[Mapping[str, Any], str], str | None]:
    """The answer key of the first reward function that has one; else the text itself, its spaces made one."""
    keys = (getattr(one, "answer_key", None) for one in (rewards if isinstance(rewards, list) else [rewards]))
    return next(filter(None, keys), lambda row, text: " ".join(text.split()) or None)


def ends_of(trainer: TrlTrainer) -> tuple[int, ...]:
    """The tokens that end a completion: a completion that ends by no such token was cut at the length limit."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    # TRL 1.0 has no `eos_token_ids`: its trainers end completions only by the tokenizer's token.
    return (*getattr(trainer, "eos_token_ids", ()), tokenizer.eos_token_id, tokenizer.pad_token_id)


def answers_of(output: Inputs, rows: list[dict[str, Any]], processor: Any, key: Any) -> Tensor:
    """(B,) int64, `answer_id` of what each completion of this rank's `rows` answers by `key(row, text)`."""
    kept = [ids[mask.bool()] for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)]
    texts = processor.batch_decode(kept, skip_special_tokens=True)
    answers = [answer_id(key(row, text)) for row, text in zip(rows, texts, strict=True)]
    return torch.tensor(answers, device=output["completion_ids"].device)


def problems_of(rows: list[dict[str, Any]], device: torch.device) -> Tensor:
    """(B,) int64, the problem of each row of the data: its prompt."""
    return torch.tensor([answer_id(repr(row["prompt"])) for row in rows], device=device)


def base_counts_of(rows: list[dict[str, Any]], counts: BaseCounts, device: torch.device) -> Tensor:
    """(B, 2) int64, right ones and all of the base model's samples of the problem of each row. DataError unless `counts` returns
    two such numbers."""
    found = []
    for row in rows:
        pair = counts(row)
        right, tried = pair if isinstance(pair, tuple) and len(pair) == 2 else (1, 0)
        if not 0 <= right <= tried or not tried:
            raise DataError(f"base_counts returned {pair!r}; it must return (right samples, all samples) of the row's problem")
        found.append((right, tried))
    return torch.tensor(found, dtype=torch.int64, device=device)


def gated(anchor: Anchor, inputs: Inputs, logps: Tensor) -> Tensor:
    """The reference's log-probs (B, T) for a loss in which the KL of rows with sage_kl_weights = 0 must not act: there those of the
    policy itself, detached, so that k3, and its gradient, are 0."""
    reference, weights = inputs["sage_ref_logps"], inputs["sage_kl_weights"]
    shaped = reference if is_flat(anchor.guide) else anchor_logps(reference, inputs["sage_log_q"])
    return torch.where(weights[:, None] > 0, shaped, logps.detach().to(shaped))


@contextmanager
def seen_states(model: Any | None) -> Iterator[list[Tensor]]:
    """A list that gains the last hidden states (B, L, C), detached, of each forward of `model`; it stays empty for None.

    They are what its decoder hands to the head, so that neither a forward nor a copy of a layer is added.
    """
    states: list[Tensor] = []
    if model is None:
        yield states
        return
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model  # of an adapter
    hook = plain.get_decoder().register_forward_hook(lambda module, args, output: states.append(output[0].detach()))
    try:
        yield states
    finally:
        hook.remove()


def predicting(states: list[Tensor], width: int) -> Tensor | None:
    """(B, `width`, C) the states that predict each token of the completions, from those of prompt and completion in chunks of
    rows; None without any."""
    return torch.cat([one[:, -width - 1 : -1] for one in states]) if states else None


@torch.no_grad()
def score(trainer: PolicyTrainer, output: Inputs, *, entropies: bool, hidden: bool) -> None:
    """sage_logps, sage_entropies and sage_hidden by a forward of the policy that generated `output`: TRL makes one at generation
    only where its weights will move before the loss."""
    ids, mask = (torch.cat([output[f"prompt_{part}"], output[f"completion_{part}"]], dim=1) for part in ("ids", "mask"))
    width = output["completion_ids"].shape[1]
    with seen_states(trainer.accelerator.unwrap_model(trainer.model) if hidden else None) as states:
        scores = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            ids,
            mask,
            width,
            batch_size=trainer.args.per_device_train_batch_size,
            compute_entropy=entropies,
            **{name: output[name] for name in MULTIMODAL if name in output},
        )
    if hidden:
        output["sage_hidden"] = predicting(states, width)
    output["sage_logps"] = scores[0]
    if entropies:
        output["sage_entropies"] = scores[1]


def signals_of(output: Inputs, rewards: Tensor, accelerator: Any) -> tuple[Signals, Tensor | None]:
    """The signals of a rollout, all ranks' rows, and its log q. `rewards`: (rows of all ranks,).

    `output` contains `sage_logps` of pi_old if a part reads them; otherwise they are zeros here (lengths read the mask).
    """
    mask, first = counted(output), accelerator.process_index * len(output["completion_ids"])
    local = Signals(
        old_logps=output.get("sage_logps", torch.zeros_like(mask, dtype=torch.float32)),
        ref_logps=output.get("sage_ref_logps"),
        mask=mask,
        row_ids=output["sage_row_ids"],
        entropies=output.get("sage_entropies"),
        rewards=rewards[first : first + len(mask)],
        answers=output.get("sage_answers"),
        problems=output.get("sage_problems"),
        hidden=output.get("sage_hidden"),
        places=output.get("sage_places"),
        base_counts=output.get("sage_base_counts"),
    )
    log_q = output.get("sage_log_q")
    return over_ranks(local, accelerator)[0], None if log_q is None else pad_and_gather(log_q, accelerator)


@torch.no_grad()
def group_advantages(
    method: Method,
    rewards: Tensor,
    signals: Signals | None,
    log_q: Tensor | None,
    step: int,
    total_steps: int,
    key: Key | None = None,
    state: State | None = None,
) -> Advantages:
    """`credit` for rewards (P, G), NaN where a completion is none of its group's: (P * G,) or (P * G, T), 0 there. So is its weight
    of the KL.

    A group that lacks some is a smaller group, and one of fewer than two gets 0. Statistics of the rollout, such as the quantiles
    of a token weight, are over all its rows. DataError if a group lacks some and the advantages of all groups hang together: BNPO's
    Beta density reads the share of right completions of each, and a running state moves with whole rollouts only.
    """
    state, scored = method.start() if state is None else state, ~rewards.isnan()
    whole = bool(state) or method.advantage.couples_prompts
    if whole and bool((scored.any(dim=1) & ~scored.all(dim=1)).any()):
        raise DataError(f"{method.name}: a completion has no reward (None); this method needs a reward for every completion.")
    parts = scored_parts(rewards)
    if not parts:
        return Advantages(rewards.new_zeros(rewards.numel()), torch.zeros_like(rewards), state)
    in_groups = torch.cat([part.flatten() for part in parts])
    alone = torch.ones(rewards.numel(), dtype=torch.bool, device=rewards.device).index_fill(0, in_groups, False)
    rows = torch.cat([in_groups, alone.nonzero().flatten()])
    own = [rewards.flatten()[part] for part in parts]
    chosen = None if signals is None else signals.take(rows, signals.row_ids[rows])
    shift = None if log_q is None else log_q[rows]
    credited = credit(method, own, chosen, shift, step, total_steps, key, state, ungrouped=int(alone.sum()))
    values = credited.advantages
    advantages, grouped = values.new_zeros(rewards.numel(), *values.shape[1:]), rewards.new_zeros(rewards.numel())
    advantages[rows], grouped[in_groups] = values, credited.grouped.flatten()
    kl_weights = None
    if credited.kl_weights is not None:
        kl_weights = rewards.new_zeros(rewards.numel())
        kl_weights[rows] = credited.kl_weights
    return Advantages(advantages, grouped.reshape(rewards.shape), credited.state, kl_weights=kl_weights)


def scored_parts(rewards: Tensor) -> list[Tensor]:
    """Rows (p, g) of the groups in rewards (P, G) that can be compared: all complete groups together, then one by one
    those that lack some rewards (NaN) and have two or more."""
    scored = ~rewards.isnan()
    whole, some = scored.all(dim=1), scored.sum(dim=1) >= 2
    ids = torch.arange(rewards.numel(), device=rewards.device).reshape(rewards.shape)
    parts = [ids[whole], *(ids[i : i + 1, scored[i]] for i in (some & ~whole).nonzero().flatten().tolist())]
    return [part for part in parts if part.numel()]
