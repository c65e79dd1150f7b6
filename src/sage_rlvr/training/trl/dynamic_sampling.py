"""Dynamic sampling on TRL: groups that a rollout plan drops are replaced by new ones, or masked out of the loss.

    draw a generation batch -> keep the groups that the plan marks -> draw new prompts for the others -> ...

As in training/rollouts.py the groups of a rollout are numbered as they are drawn, and the first ones that the plan keeps
fill the batch. Everything is decided on the rewards of all ranks, so that all ranks decide alike. The prompt of a refill is a
function of (args.seed, global step, its number); its completions come from TRL's generation, as all do. A batch of TRL
has a fixed number of rows: where the refills run out, the rows of dropped groups stay in it with their mask at 0. An
update without a kept row moves nothing, as in the loop; under fp16 and DeepSpeed it is a step of gradient 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from math import gcd
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn.functional import pad

from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans import RolloutPlan, kept_by, learned_by
from sage_rlvr.core.state import State
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.groups import rows_of_groups
from sage_rlvr.training.rollouts import kept_metrics
from sage_rlvr.training.trl.batch import GenerationBatch, counted, scored_parts
from sage_rlvr.training.trl.protocols import Inputs, PolicyTrainer
from sage_rlvr.training.trl.reward_source import looked_at


def draw_all(trainer: PolicyTrainer, inputs: list[dict[str, Any]]) -> GenerationBatch:
    """Return TRL's generation batch for `inputs`, all groups kept."""
    output, rewards = trainer._draw(inputs)
    return GenerationBatch(output, rewards, torch.arange(rewards.numel(), device=rewards.device), rewards.numel())


def draw_kept(trainer: PolicyTrainer, inputs: list[dict[str, Any]], plan: RolloutPlan, name: str) -> GenerationBatch:
    """TRL's generation batch for `inputs`, this rank's rows, with dropped groups drawn anew under `plan`.

    `name` distinguishes several rollouts of one optimizer step. Logs the loop's names; TRL's own metrics stay those of the
    first draw, a sample of what the policy does with the prompts of the sampler.
    """
    outputs, rewards, seen, tokens = _draws(trainer, inputs, plan, name)
    kept = kept_groups(plan, seen, trainer.parts)
    trainer.parts = learned_by(plan, seen, trainer.parts)
    wanted = len(inputs) * trainer.accelerator.num_processes // trainer.num_generations
    slots = filled_slots(kept, wanted)
    alive, row_ids = kept[slots], rows_of_groups(slots, rewards.shape[1])
    first, count = trainer.accelerator.process_index * len(inputs), len(inputs)
    output, here = outputs[0], slice(first, first + count)
    if len(outputs) > 1:
        merged = together(outputs, trainer.processing_class)
        output = {name: value if value.dim() == 0 else value[row_ids[here]] for name, value in merged.items()}
    if len(outputs) > 1 or not alive.all():
        leave_out(output, ~alive.repeat_interleave(rewards.shape[1])[here], trainer)
    for metric, value in rollout_metrics(rewards, alive, rewards[slots], tokens, len(outputs) - 1).items():
        trainer._metrics["train"][metric].append(value)
    final = torch.where(alive[:, None], rewards[slots], torch.nan)
    return GenerationBatch(output, final, row_ids, rewards.numel(), float(alive.float().mean()) or 1.0)


def _draws(
    trainer: PolicyTrainer, inputs: list[dict[str, Any]], plan: RolloutPlan, name: str
) -> tuple[list[Inputs], Tensor, Tensor, int]:
    """The first draw and its refills, rewards (P', G) of all of them, what the plan looks at, (P', G), and their tokens. With
    refills the outputs are those of all ranks; only the first draw stays this rank's."""
    own = [repr(row) for row in inputs]  # before TRL writes into the rows
    output, rewards = trainer._draw(inputs)
    outputs, wanted, tokens = [output], len(rewards), _tokens(output, trainer)
    seen = looked_at(trainer, output, rewards)
    prompts: Iterator[dict[str, Any]] | None = None
    while (missing := wanted - int(kept_groups(plan, seen, trainer.parts).sum())) > 0 and len(outputs) <= plan.max_refills:
        if prompts is None:
            data = trainer._remove_unused_columns(trainer.train_dataset)
            key, step = Key(trainer.args.seed), trainer.state.global_step
            prompts = refill_prompts(data, set(gather_object(own)), key, step, name)
            outputs = [of_all_ranks(output, trainer)]
        with _metrics_aside(trainer):
            more, its_rewards = trainer._draw(_share(trainer, prompts, missing))
        outputs.append(of_all_ranks(more, trainer))
        seen = torch.cat([seen, looked_at(trainer, more, its_rewards)])
        rewards, tokens = torch.cat([rewards, its_rewards]), tokens + _tokens(more, trainer)
    return outputs, rewards, seen, tokens


def kept_groups(plan: RolloutPlan, rewards: Tensor, state: State) -> Tensor:
    """(P,) bool: which groups of rewards (P, G) the plan keeps, by the completions that have a reward (others: NaN)."""
    kept = torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
    for rows in scored_parts(rewards):
        kept[rows[:, 0] // rewards.shape[1]] = kept_by(plan, rewards.flatten()[rows], state)
    return kept


def refill_prompts(rows: Any, own: set[str], key: Key, step: int, name: str) -> Iterator[dict[str, Any]]:
    """Rows of the training data in an order of this step and name, without end: those not in `own` (their reprs) first.

    Where all are used up `own` follow, and then it begins again: a data set is never too small to refill from.
    """
    order = key.permutation(step, f"refill/{name}", len(rows)).tolist()
    while True:
        seen = []
        for number in order:
            row = rows[number]
            if repr(row) in own:
                seen.append(row)
            else:
                yield row
        yield from seen


def filled_slots(kept: Tensor, wanted: int) -> Tensor:
    """(wanted,) group numbers: those of the first draw, the dropped ones of them replaced by the first kept refills."""
    slots = torch.arange(wanted, device=kept.device)
    empty = (~kept[:wanted]).nonzero().flatten()
    spare = wanted + kept[wanted:].nonzero().flatten()
    count = min(len(empty), len(spare))
    slots[empty[:count]] = spare[:count]
    return slots


def _share(trainer: PolicyTrainer, prompts: Iterator[dict[str, Any]], missing: int) -> list[dict[str, Any]]:
    """This rank's rows of `missing` new groups, or of a few more where those do not split evenly over the ranks."""
    size, ranks = trainer.num_generations, trainer.accelerator.num_processes
    together = ranks // gcd(size, ranks)
    drawn = list(islice(prompts, -(-missing // together) * together))
    rows = [dict(row) for row in drawn for _ in range(size)]
    local = len(rows) // ranks
    first = trainer.accelerator.process_index * local
    return rows[first : first + local]


@contextmanager
def _metrics_aside(trainer: PolicyTrainer) -> Iterator[None]:
    """TRL's metrics of a refill are dropped, but for its count of tokens, which is a running total."""
    plain = trainer._metrics["train"]
    trainer._metrics["train"] = defaultdict(list)
    try:
        yield
    finally:
        if "num_tokens" in (refill := trainer._metrics["train"]):
            plain["num_tokens"] = refill["num_tokens"]
        trainer._metrics["train"] = plain


def _tokens(output: Inputs, trainer: PolicyTrainer) -> int:
    return int(trainer.accelerator.reduce(counted(output).sum(), reduction="sum"))


# ---- tensors of a rollout: prompts are padded on the left, all else on the right


def _padding(name: str, tokenizer: Any) -> float:
    if name in ("prompt_ids", "completion_ids"):
        return int(getattr(tokenizer, "tokenizer", tokenizer).pad_token_id)
    return 1 if name == "tool_mask" else 0


def of_all_ranks(output: Inputs, trainer: PolicyTrainer) -> Inputs:
    """The rows of all ranks, in their order, padded to the widest rank. ConfigError if a value is not one row per row."""
    gathered: Inputs = {}
    for name, value in output.items():
        if not isinstance(value, Tensor) or name == "pixel_values":
            raise ConfigError(
                f"SageTrainer: dynamic sampling redraws prompts, and {name} of a rollout with images does not have one "
                "row per completion; use dapo(dynamic_sampling=False), or text-only prompts."
            )
        if value.dim() >= 2:
            index, left = _padding(name, trainer.processing_class), name.startswith("prompt_")
            value = trainer.accelerator.pad_across_processes(value, dim=1, pad_index=index, pad_first=left)
        gathered[name] = value if value.dim() == 0 else trainer.accelerator.gather(value)
    return gathered


def together(parts: list[Inputs], tokenizer: Any) -> Inputs:
    """Several draws as one, padded to the widest."""
    merged: Inputs = {}
    for name, value in parts[0].items():
        columns = [part[name] for part in parts]
        if value.dim() >= 2:
            width, index = max(column.shape[1] for column in columns), _padding(name, tokenizer)
            lacking = [width - column.shape[1] for column in columns]
            sides = [(lack, 0) if name.startswith("prompt_") else (0, lack) for lack in lacking]
            deep = (0, 0) * (value.dim() - 2)
            columns = [pad(column, (*deep, *side), value=index) for column, side in zip(columns, sides, strict=True)]
        merged[name] = value if value.dim() == 0 else torch.cat(columns)
    return merged


def leave_out(output: Inputs, dropped: Tensor, trainer: PolicyTrainer) -> None:
    """Take `dropped` (rows,) out of loss, normalizer and q: their tool_mask is 0, and the tokens are counted anew.

    The completion's own mask stays, because the model attends by it: the log-probs of a dropped row stay finite.
    """
    mask = output.get("tool_mask", torch.ones_like(output["completion_mask"]))
    output["tool_mask"] = mask.masked_fill(dropped[:, None], 0)
    output["num_items_in_batch"] = torch.tensor(max(1, _tokens(output, trainer)), device=mask.device)


def rollout_metrics(rewards: Tensor, alive: Tensor, final: Tensor, tokens: int, refills: int) -> dict[str, float]:
    """The loop's metrics of everything drawn, rewards (P', G), and of the batch, alive (P,) bool and final (P, G)."""
    lowest, highest = (torch.where(rewards.isnan(), bound, rewards) for bound in (torch.inf, -torch.inf))
    return {
        "reward/mean": float(rewards.nanmean()),
        "reward/zero_variance_frac": float((highest.amax(dim=1) <= lowest.amin(dim=1)).float().mean()),
        "rollout/tokens": float(tokens),
        **kept_metrics(rewards, final[alive], len(alive), refills),
    }
