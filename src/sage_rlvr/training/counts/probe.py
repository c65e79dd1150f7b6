"""Cost of a recipe's step on this machine, from a probe of about twenty seconds: the loop on few prompts, scaled by rows.

    sampling   the prompts with one new token, and with a few more, of few and of all prompts: the prefill, and a decode step as a
               line over the rows; completions of few prompts to their end give the lengths
    the rest   complete steps on one prompt and on few: scores, update and memory as a line over the rows of a forward pass

A row is a token that a forward pass computes: the common prefix of all prompts counts once, a prompt once for its group, and all
tokens of each completion. The probe trains a copy in memory and writes no file.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sage_rlvr.config import TrainConfig
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.devices import GROWTH, FreedMemory, dtype_of, slow_bfloat16
from sage_rlvr.models.folders import config_folder
from sage_rlvr.tasks.base import turns_of
from sage_rlvr.training.base_samples import BaseSamples
from sage_rlvr.training.counts.dry_run import tensor_bytes
from sage_rlvr.training.counts.memory import free_memory, peak_memory, reset_peak
from sage_rlvr.training.counts.room import distinct, smaller
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.rollouts import draw_rollout, problems_of_step

PART_SECONDS = 1.0  # of one part of the probe at most, as far as its size can be chosen
MORE_TOKENS = 6  # decode steps whose time is measured
SMALL = 2  # new tokens of the smaller of two steps
STEP = 1  # that is taken again and again: step 0 may do more than others
GB = 1e9
Line = tuple[float, float]
"""(at 0, slope) of a cost over a number of rows."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A step as the probe predicts it.

    prompt_tokens, rows: of all prompts, and of a forward pass over all completions; passing: rows of one forward pass with
    gradient. length: mean new tokens of a completion; alive: share of completions that have a t-th token; known: the share of the
    probe's completions that ended by themselves or at the recipe's limit.
    prefill: seconds of one prompt; decode: of a decode step over its rows; sampling, rest: of a step; loading, took: of loading,
    and of the probe after it. advice: of a faster dtype. memory: bytes at the peak over rows of a forward pass, None if it
    cannot be measured; room: bytes that a run can have. rate: products, operations per second.
    """

    config: TrainConfig
    prompt_tokens: int
    rows: float
    length: float
    known: float
    prefill: float
    decode: Line
    alive: tuple[float, ...]
    sampling: float
    rest: float
    memory: Line | None
    room: int | None
    passing: float
    rate: float
    loading: float
    took: float
    advice: str = ""
    growth: float = 1.0
    """Resident memory of a run divided by that of a step: `devices.GROWTH` if the process keeps freed memory."""

    @property
    def dtype(self) -> str:
        """Dtype of the weights: `engine.dtype`, `auto` resolved."""
        return dtype_of(self.config.engine)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.sampling + self.rest

    @property
    def peak(self) -> float | None:
        """Bytes at the peak of a step."""
        return None if self.memory is None else self.memory[0] + self.memory[1] * self.passing

    def evaluation(self, problems: int, samples: int) -> float:
        """Seconds of an evaluation by samples, including the start of its process and its loading."""
        return 2 * self.loading + problems * (self.prefill + decoding(self.decode, samples, self.alive))

    def lines(self) -> Iterator[str]:
        """The prediction in words."""
        rollout = self.config.rollout
        yield (
            f"A step on this machine, from a probe of {self.took:.0f} s: {self.dtype} products at {self.rate / 1e12:.2f} TFLOP/s "
            f"with {torch.get_num_threads()} threads"
        )
        yield (
            f"  tokens   {self.prompt_tokens:,} of {rollout.prompts_per_step} prompts and about {self.length:.0f} of each of "
            f"{rollout.completions} completions{_unknown(self.known)}; {self.rows:,.0f} rows in a pass over all of them"
        )
        yield f"  seconds  {self.seconds:.1f}: {self.sampling:.1f} sampling, {self.rest:.1f} scores and update"
        yield f"  run      {self.config.steps:,} steps in {in_time(self.config.steps * self.seconds)}, without evaluation"
        yield f"  memory   {self.room_line()}"
        if self.advice:
            yield f"  {self.advice}"

    @property
    def fits(self) -> bool:
        """True if a run has enough memory, or if memory cannot be measured."""
        return self.peak is None or self.room is None or self.growth * self.peak <= self.room

    def room_line(self) -> str:
        """The peak, whether it fits, and if not the setting that helps."""
        if self.peak is None or self.memory is None or self.room is None:
            return "not measured on this system"
        kept = f", {self.growth * self.peak / GB:.1f} GB with the freed memory that a run keeps" * (self.growth > 1)
        text = f"{self.peak / GB:.1f} GB at the peak{kept}"
        if self.fits:
            return f"{text}, fits in the {self.room / GB:.1f} GB that are free"
        groups = self.config.updates.micro_batch or self.config.rollout.prompts_per_step // self.config.updates.minibatches
        share = (self.room / self.growth - self.memory[0]) / (self.memory[1] * self.passing) if self.memory[1] > 0 else 0.0
        return f"{text}, does NOT fit in the {self.room / GB:.1f} GB that are free; {smaller(groups, share)}"


def _unknown(known: float) -> str:
    return "" if known > 0.9 else f" ({1 - known:.0%} of the probe's did not end within it: their length is extrapolated)"


def in_time(seconds: float) -> str:
    """Return seconds as "40 s", "12 min" or "3.4 h"."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def check_state(config: TrainConfig) -> None:
    """Raise ConfigError if the counted weights, reference, gradients and moments exceed the free memory."""
    where, room = config_folder(config.model), free_memory(config)
    if where is None or room is None:
        return
    state = sum(tensor_bytes(config, where, eight_bit=False).values())
    if state > room:
        raise ConfigError(
            f"model {config.model}: weights, gradients and optimizer take {state / GB:.1f} GB, and {room / GB:.1f} GB are free; "
            "choose a smaller model, engine.dtype bfloat16, or a machine with more memory"
        )


def probe(config: TrainConfig, say: Callable[[str], None] = lambda line: None, base: BaseSamples | None = None) -> Cost:
    """Load the policy and measure a step.

    Raise ConfigError if the recipe is for another engine, has not enough memory, or samples episodes.

    Args:
        config: the recipe.
        say: called with the current measurement.
        base: as in `loop.build`.
    """
    if config.engine.name != "loop":
        raise ConfigError(f"engine.name {config.engine.name}: only the loop is probed; `doctor RECIPE` counts for the others")
    check_state(config)
    began = time.perf_counter()
    say(f"probe: loading {config.model}")
    loop = build(config, base)
    if turns_of(loop.task) > 1:
        raise ConfigError(f"task {loop.task.name}: a step of episodes is not probed")
    loading, began = time.perf_counter() - began, time.perf_counter()
    prompts = _prompts(loop)
    say("probe: a small step, which chooses the size of the others")
    cap, few = _sizes(loop, prompts)
    say(f"probe: sampling, {few} of {len(prompts)} prompts with {cap} new tokens")
    part = _with(loop, few, cap)
    lengths = _lengths(part, prompts[:few])
    alive = survival(lengths, cap, config.rollout.max_new_tokens)
    prefill, decode = _sampling(loop, prompts, few)
    say("probe: whole steps")
    rest, memory = _steps(loop, lengths, few, cap)
    passes = passes_of(config, prompts, sum(alive))
    return Cost(
        config=config,
        prompt_tokens=sum(map(len, prompts)),
        rows=sum(passes),
        length=sum(alive),
        known=float((lengths < cap).double().mean()) if cap < config.rollout.max_new_tokens else 1.0,
        prefill=prefill / len(prompts),
        decode=decode,
        alive=alive,
        sampling=prefill + decoding(decode, config.rollout.completions, alive),
        rest=rest[0] + rest[1] * sum(passes),
        memory=memory,
        room=free_memory(config),
        passing=max(passes),
        rate=_rate(loop),
        loading=loading,
        took=time.perf_counter() - began,
        advice=slow_bfloat16(loop.policy),
        growth=GROWTH if FreedMemory.is_kept else 1.0,
    )


# ---- sizes


def _prompts(loop: TrainState) -> list[list[int]]:
    """Return the prompts of the measured step."""
    return [list(loop.ask(problem).ids) for problem in problems_of_step(loop, STEP, 0, loop.config.rollout.prompts_per_step)]


def _with(loop: TrainState, prompts: int, tokens: int) -> TrainState:
    """Return the loop with so many prompts per step and at most so many new tokens."""
    rollout, updates = loop.config.rollout, loop.config.updates
    small = replace(rollout, prompts_per_step=prompts, max_new_tokens=min(tokens, rollout.max_new_tokens))
    micro = None if updates.micro_batch is None else min(updates.micro_batch, prompts)
    several = math.gcd(updates.minibatches, prompts)
    config = replace(loop.config, rollout=small, updates=replace(updates, minibatches=several, micro_batch=micro))
    return replace(loop, config=config)


def _sizes(loop: TrainState, prompts: Sequence[list[int]]) -> tuple[int, int]:
    """Return (new tokens, prompts) that a part of the probe can afford; makes the first calls, which are slower."""
    _draw(loop, prompts[:1], 2)
    first, more = _draw(loop, prompts[:1], 1), _draw(loop, prompts[:1], 1 + MORE_TOKENS)
    each = max(1e-4, (more - first) / MORE_TOKENS)
    cap = min(loop.config.rollout.max_new_tokens, max(16, int(PART_SECONDS / each)))
    least, size = loop.config.updates.minibatches, loop.config.rollout.group_size
    small = _with(loop, least, SMALL)
    _step(small)  # makes the optimizer's moments
    per_row = _step(small) / (distinct(_prompts(small)) + least * size * SMALL)
    sizes = range(least, len(prompts) + 1, least)  # a mini-batch holds whole groups
    fits = [n for n in sizes if per_row * (distinct(prompts[:n]) + n * size * cap / 2) < PART_SECONDS]
    return cap, max(fits, default=least)


def survival(lengths: Any, cap: int, limit: int) -> tuple[float, ...]:
    """Return the share of completions with at least t new tokens, t from 1 to `limit`; lengths equal to `cap` were truncated.

    Beyond the cap completions end at the rate at which tokens ended them below it.
    """
    known = [float((lengths >= t).double().mean()) for t in range(1, cap + 1)]
    ended, tokens = float((lengths < cap).sum()), float(lengths.sum())
    stays = 1 - ended / tokens if tokens else 1.0
    while len(known) < limit and known[-1] > 1e-3:
        known.append(known[-1] * stays)
    return tuple(known)


def passes_of(config: TrainConfig, prompts: Sequence[Sequence[int]], length: float) -> list[float]:
    """Return the rows of each forward pass with gradient over groups of completions of this mean length."""
    groups = config.updates.micro_batch or len(prompts) // config.updates.minibatches
    parts = [prompts[first : first + groups] for first in range(0, len(prompts), groups)]
    return [distinct(part) + len(part) * config.rollout.group_size * length for part in parts]


# ---- measured


def _draw(loop: TrainState, prompts: Sequence[list[int]], tokens: int) -> float:
    """Return the seconds of sampling groups with so many new tokens."""
    small, began = _with(loop, len(prompts), tokens), _now(loop)
    draw_rollout(small, list(prompts), STEP)
    return _now(loop) - began


def _lengths(loop: TrainState, prompts: Sequence[list[int]]) -> Any:
    """Return the (B,) new tokens of completions of these prompts."""
    return draw_rollout(loop, list(prompts), STEP).lengths.cpu()


def _sampling(loop: TrainState, prompts: Sequence[list[int]], few: int) -> tuple[float, Line]:
    """Return (seconds of the prefill of all prompts with their first token, a decode step over its rows)."""
    size = loop.config.rollout.group_size
    first = _draw(loop, prompts[:few], 1)
    most = max(few, min(len(prompts), int(few * 2 * PART_SECONDS / max(first, 1e-6))))
    steps = {}
    for count in {few, most}:
        first = _draw(loop, prompts[:count], 1)
        steps[count * size] = max(0.0, _draw(loop, prompts[:count], 1 + MORE_TOKENS) - first) / MORE_TOKENS
    return first * len(prompts) / count if count == most else _draw(loop, prompts[:most], 1) * len(prompts) / most, line(steps)


def _steps(loop: TrainState, lengths: Any, few: int, cap: int) -> tuple[Line, Line | None]:
    """Return (seconds of a step without its sampling, bytes at its peak) over the rows of a step."""
    least, seconds, peaks = loop.config.updates.minibatches, {}, {}
    for count, tokens in ((least, SMALL), (few, cap)):
        part = _with(loop, count, tokens)
        prompts = _prompts(part)
        drawn = _draw(part, prompts, tokens)
        reset_peak(loop)
        took = _step(part)
        passes = passes_of(part.config, prompts, float(lengths.clamp(max=tokens).double().mean()))
        seconds[sum(passes)] = max(0.0, took - drawn)
        if (peak := peak_memory(loop)) is not None:
            peaks[max(passes)] = float(peak)
    return line(seconds), line(peaks) if peaks else None


def _step(loop: TrainState, step: int = STEP) -> float:
    """Return the seconds of a complete step."""
    began = _now(loop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of completions that the probe cuts
        train_step(loop, step)
    return _now(loop) - began


def decoding(decode: Line, rows: int, alive: Sequence[float]) -> float:
    """Return the seconds of the decode steps after the first token, with fewer rows as completions end."""
    return sum(decode[0] + decode[1] * rows * share for share in alive[1:] if rows * share >= 0.5)


def line(points: dict[Any, float]) -> Line:
    """Return the line through one or two points; neither part is negative."""
    (low, at_low), *more = sorted(points.items())
    if not more:
        return 0.0, at_low / low
    high, at_high = more[-1]
    slope = min(max(0.0, (at_high - at_low) / (high - low)), at_high / high)
    return max(0.0, at_high - slope * high), slope


def _now(loop: TrainState) -> float:
    if next(loop.policy.parameters()).device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _rate(loop: TrainState) -> float:
    """Return the speed of products of the model's width and dtype, operations per second.

    On a GPU many are queued per synchronization, and they are larger: small ones end sooner than Python starts them.
    """
    weight = next(loop.policy.parameters())
    width: int = loop.policy.config.hidden_size
    rows, queued = (16384, 100) if weight.device.type == "cuda" else (512, 1)
    began, many = 0.0, 0
    a = torch.ones(rows, width, dtype=weight.dtype, device=weight.device)
    b = torch.ones(width, 4 * width, dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        torch.mm(a, b)
        began = _now(loop)
        while (spent := _now(loop) - began) < 0.2:
            for _ in range(queued):
                torch.mm(a, b)
            many += queued
    return 2 * rows * width * 4 * width * many / spent
