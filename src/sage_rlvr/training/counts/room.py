"""Whether a step of a large model has room in the memory that is free, before it is made."""

from __future__ import annotations

from collections.abc import Sequence

from sage_rlvr.models.devices import LARGE, dtype_of
from sage_rlvr.models.folders import config_folder
from sage_rlvr.training.counts.memory import unused_memory
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.rollouts import problems_of_step


def lacks_room(loop: TrainState, step: int) -> str:
    """The warning before a step that may exceed the memory that is free; "" where it fits, as counted, and for small models.

    Counted: gradients, the optimizer's moments, and the activations of a micro batch at full length, as transformers keeps them.
    """
    config, numbers = loop.config, sum(p.numel() for p in loop.policy.parameters() if p.requires_grad)
    room = unused_memory(config)
    if numbers < LARGE or room is None or config_folder(config.model) is None:
        return ""
    from sage_rlvr.training.counts import footprint  # late: a small model needs none of it

    rollout, size, half = config.rollout, footprint.Size.of(config.model), dtype_of(config.engine) == "bfloat16"
    prompts = [loop.ask(problem).ids for problem in problems_of_step(loop, step, 0, rollout.prompts_per_step)]
    completions, _ = footprint.micro_batch(config)
    groups = completions // rollout.group_size
    rows = distinct(prompts[:groups]) + completions * rollout.max_new_tokens
    state, activations = 12 * numbers, rows * footprint.forward_pass(size, 1, 64, half).kept // 64
    if state + activations <= room:
        return ""
    parts = f"gradients and optimizer {state / 1e9:.1f}, activations of {rows:,} rows {activations / 1e9:.1f}"
    return (
        f"memory: a step takes up to {(state + activations) / 1e9:.1f} GB more ({parts}), and {room / 1e9:.1f} GB are free; "
        f"{smaller(groups, (room - state) / activations)}"
    )


def smaller(groups: int, share: float) -> str:
    """The setting that helps where a micro batch of so many groups has room for this share of its activations."""
    if (few := int(groups * share)) >= 1:
        return f"set updates.micro_batch {few} or less, which gives the same update"
    return "a single group has no room: set a smaller rollout.group_size or rollout.max_new_tokens, or engine.dtype bfloat16"


def distinct(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of the prompts, what several begin with counted once."""
    seen = {tuple(prompt[:n]) for prompt in prompts for n in range(1, len(prompt) + 1)}
    return len(seen)
