"""`python -m lab tangent A B`: what one step of each arm does to pass@k, to first order, on the same batches.

Two arms that differ by less than the noise of training need many training seeds. Their gradients need none: on the same
completions the difference of two gradients has nothing of the noise that both share. theta are the weights of a policy, g_A the
gradient of arm A on a batch, and P divides by what AdamW divides by:

    change of pass@k in one step of arm A  =  -lr <grad J_k, P g_A>
    grad J_k  =  mean over problems of sum_i w_i grad log pi(y_i | x),   w_i = r_i (k / n) C(n - c, k - 1) / C(n - 1, k - 1)

The sum is over n completions y_i of a problem, c of them right (r_i = 1): an unbiased estimate of k (1 - p)^(k - 1) grad p, the
gradient of 1 - (1 - p)^k. It is a straight line through one point of training: it tells whether two arms part there and how fast,
not where they end. Clipping of the gradient is left out: the direction of AdamW does not depend on the gradient's scale.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from scipy.special import comb
from torch import Tensor

from lab.studies.gradients import gradient_of
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import TrainConfig, dump, read_recipe
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError, choose_from, require
from sage_rlvr.results.tables import Table
from sage_rlvr.runs import Checkpoint, config_differences, newest_complete
from sage_rlvr.runs.checkpoints import steps_in
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.sweeps.resolve import resolve
from sage_rlvr.tasks.abilities import Generated
from sage_rlvr.tasks.rows import Say
from sage_rlvr.training.groups import RolloutBatch
from sage_rlvr.training.loop import build
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.optimizer import learning_rate
from sage_rlvr.training.rollouts import judged, sampled
from sage_rlvr.training.scores import score_rows
from sage_rlvr.training.state import load_tensors
from sage_rlvr.verdicts.stats.curves import with_problems
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval

BLOCKS = 4
"""Parts of the problems, each with a gradient of pass@k of its own, for the interval over problems."""
WARM = 10
"""Batches whose squared gradients stand for AdamW's second moments where no run has stored them."""
PIECE = 1 << 24
"""Weights of one piece of an inner product."""
APART = 1 << 20
"""Step whose random numbers draw the completions of pass@k: no training reaches it."""


@dataclass(frozen=True)
class Tangent(Command):
    """What one step of each arm does to pass@k, to first order, at one point of training and on the same batches."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    """Two or more arms of the design, or methods by name. They differ in their method only."""
    recipe: str
    """A design file whose arms these are, or a recipe whose settings all methods get."""
    run: Path | None = None
    """A run of one of the arms: its newest checkpoint gives the policy, and AdamW's second moments. Default: the recipe's model,
    where the gradient of a KL to that model is 0."""
    batches: int = 200
    """Rollouts of `rollout.prompts_per_step` prompts."""
    k: tuple[int, ...] = (1, 8, 32)
    """Coverage whose change is read."""
    problems: int = 100
    """Test problems of pass@k, different ones."""
    samples: int = 32
    """Completions of each; at least the largest k."""
    steps: int = 80
    """Steps over which the straight line is drawn out in the table."""
    seed: int = 0
    """Of all completions and batches."""
    edits: tuple[str, ...] = ()
    """More settings of every arm, key=value, such as engine.threads=1."""

    def execute(self, session: Session) -> int:
        require(len(set(self.arms)) == len(self.arms) > 1, "arms", list(self.arms), "pass two or more different ones")
        require(min(self.k) >= 1 and max(self.k) <= self.samples, "--k", list(self.k), f"from 1 to --samples, {self.samples}")
        require(self.problems >= 2 * BLOCKS, "--problems", self.problems, f"{2 * BLOCKS} or more")
        require(self.batches > 2, "--batches", self.batches, "3 or more")
        configs = _configs(self.recipe, self.arms, self.edits)
        anchored = next((c for c in configs.values() if c.method.anchor is not None), configs[self.arms[0]])
        loop = build(replace(anchored, seed=self.seed))
        checkpoint = None if self.run is None else _restored(loop, self.run)
        methods = {name: config.method for name, config in configs.items()}
        session.note(f"gradient of pass@k from {self.problems} problems x {self.samples} completions")
        coverage = coverage_gradients(loop, self.k, self.problems, self.samples)
        first = checkpoint.step if checkpoint else 0
        measured = measure(loop, methods, coverage, self.batches, first=first, note=session.note)
        place = "the recipe's model" if checkpoint is None else f"{self.run} after {checkpoint.step} steps"
        session.say(
            f"At {place}: change of pass@k over {self.steps} steps like the next one, to first order; {self.batches} batches of "
            f"{loop.config.rollout.prompts_per_step} x {loop.config.rollout.group_size}, pass@k of {self.problems} test problems x "
            f"{self.samples}; pass@k there: " + ", ".join(f"{coverage.now[k]:.3f} at {k}" for k in self.k) + "; learning rate "
            f"{next_rate(loop, first):.3g}",
            "",
            table(measured, self.steps).markdown(),
            *impossible(measured, coverage.now, self.steps),
        )
        return 0


# ---- the arms


def _configs(recipe: str, arms: Sequence[str], edits: Sequence[str]) -> dict[str, TrainConfig]:
    """Arm -> its configuration. ConfigError unless the arms differ in their method alone."""
    pairs = [(key, value) for key, _, value in (text.partition("=") for text in edits)]
    if Path(recipe).name == "design.yaml" or "designs" in Path(recipe).parts:
        source = Path(recipe)
        planned = {arm.name: arm.config for arm in resolve(load_design(source), source, edits=pairs)[0]}
        for name in arms:
            require(name in planned, "arms", name, f"no arm of {recipe}{choose_from(name, list(planned))}")
        configs = {name: planned[name] for name in arms}
    else:
        configs = {name: _of_method(name, recipe, pairs) for name in arms}
    first = configs[arms[0]]
    for name, config in configs.items():
        if other := config_differences(dump(replace(config, method=first.method)), dump(first)):
            raise ConfigError(f"arms {arms[0]} and {name} differ in more than their method: {'; '.join(map(str, other))}")
    return configs


def _of_method(name: str, recipe: str, edits: Sequence[tuple[str, str]]) -> TrainConfig:
    config = read_recipe(recipe, edits, "train", settings={"method": {"name": name}})
    assert isinstance(config, TrainConfig)
    return config


def _restored(loop: TrainState, run: Path) -> Checkpoint:
    """Put the run's newest checkpoint into the loop."""
    steps = steps_in(run / "checkpoints")
    newest = newest_complete(list(steps))
    if newest is None:
        raise ConfigError(f"--run {run}: no checkpoint; pass the folder of a run of `sage-rlvr train`, or leave --run out")
    checkpoint = Checkpoint(steps[newest], newest, {})
    load_tensors(loop.policy, checkpoint.load("model"))
    loop.optimizer.load(checkpoint.load("optimizer"))
    return checkpoint


# ---- the gradient of pass@k


@dataclass(frozen=True, eq=False)
class Coverage:
    """k -> the gradient of pass@k in each block of problems, flat, in the order of the optimizer's parameters, in bfloat16, since
    there are many of them and each is half a gigabyte in float32; k -> pass@k."""

    gradients: Mapping[int, list[Tensor]]
    now: Mapping[int, float]


def pass_weights(right: Tensor, k: int) -> Tensor:
    """Weights of the completions' log-probs in the gradient of pass@k: right (P, n) bool -> (P, n), see the module."""
    n = right.shape[1]
    c = right.sum(1).numpy()
    share = torch.from_numpy(k / n * comb(n - c, k - 1) / comb(n - 1, k - 1)).to(torch.float32)
    return right.float() * share[:, None]


def coverage_gradients(loop: TrainState, ks: Sequence[int], problems: int, samples: int) -> Coverage:
    """Draw completions of the first test problems, and read grad J_k off them, block by block."""
    task, size = loop.task, loop.config.rollout.group_size
    test = list(task.draw("test", 1, problems, "distinct")) if isinstance(task, Generated) else task.problems("test")[:problems]
    at_once = max(1, loop.config.rollout.prompts_per_step * size // samples)
    gradients: dict[int, list[Tensor]] = {k: [] for k in ks}
    passed: dict[int, list[float]] = {k: [] for k in ks}
    for block in torch.arange(len(test)).tensor_split(BLOCKS):
        sums: dict[int, Tensor] = {}
        for some in block.split(at_once):
            numbers = some.tolist()
            prompts = [list(loop.ask(test[i]).ids) for i in numbers]
            rows = (some[:, None] * samples + torch.arange(samples)).reshape(-1)
            rollout = sampled(loop, prompts, APART, samples, rows, [test[i] for i in numbers])
            groups = judged(loop, [test[i] for i in numbers], prompts, rollout, some)
            right = groups.rewards.cpu() > 0
            scored = RolloutBatch.of([groups], loop.tokens.pad_id)
            for k in ks:
                weights = pass_weights(right, k)
                passed[k] += (1 - comb(samples - right.sum(1).numpy(), k) / comb(samples, k)).tolist()
                if not bool(weights.any()):
                    continue
                logps = score_rows(loop, loop.policy, scored, torch.arange(len(rows))).logps
                total = torch.where(rollout.drawn, logps, 0.0).sum(1) @ weights.reshape(-1).to(logps.device)
                total.backward()
                own = _taken(loop)
                _give_back_memory()
                sums[k] = own if k not in sums else sums[k].add_(own)
        for k in ks:
            gradients[k].append(sums.pop(k).div_(len(block)).bfloat16() if k in sums else torch.zeros(0))
    return Coverage(gradients, {k: math.fsum(values) / len(values) for k, values in passed.items()})


def _taken(loop: TrainState) -> Tensor:
    """The gradient that a backward pass left, flat and float32; it is cleared."""
    flat = torch.cat([torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in loop.optimizer.names])
    loop.optimizer.adam.zero_grad(set_to_none=True)
    return flat.float()


# ---- the arms' steps along it


def next_rate(loop: TrainState, step: int) -> float:
    """The learning rate of a step's first update, in warm-up or on its schedule; after the last step that of the last update."""
    total = loop.optimizer.total_steps
    return learning_rate(loop.config.optimizer, min(step * loop.config.updates.per_step, total - 1), total)


def _silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, eq=False)
class Measured:
    """(arm, k) -> the change of pass@k in one step, (batches, blocks); arm -> the mean of its metrics over the batches."""

    changes: Mapping[tuple[str, int], Tensor]
    metrics: Mapping[str, Mapping[str, float]]


def measure(
    loop: TrainState, methods: Mapping[str, Method], coverage: Coverage, batches: int, *, first: int = 0, note: Say = _silent
) -> Measured:
    """Take the gradient of every method on every batch, steps `first` and on of the loop, and its product with grad J_k."""
    scale, warm = _of_adam(loop), 0
    if scale is None:
        warm = min(WARM, max(1, batches // 5))
        scale = _of_batches(loop, methods, first, warm)
    directions = {
        (k, b): own.float().mul_(scale).mul_(-next_rate(loop, first)).bfloat16()
        for k, blocks in coverage.gradients.items()
        for b, own in enumerate(blocks)
        if len(own)
    }
    changes = {(name, k): torch.zeros(batches, BLOCKS) for name in methods for k in coverage.gradients}
    metrics: dict[str, dict[str, float]] = {name: {} for name in methods}
    for batch in range(batches):
        for name, method in methods.items():
            gradient, found = gradient_of(loop, method, first + warm + batch)
            for (k, b), direction in directions.items():
                changes[name, k][batch, b] = _product(direction, gradient)
            for key, value in found.items():
                metrics[name][key] = metrics[name].get(key, 0.0) + value / batches
            del gradient
            _give_back_memory()
        if (batch + 1) % 10 == 0:
            note(f"{batch + 1}/{batches} batches")
    return Measured(changes, metrics)


def _give_back_memory() -> None:
    """Let the C library return what graphs of many shapes have left: without it 60 gradients of SmolLM2 took 19 GB."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _product(direction: Tensor, gradient: Tensor) -> float:
    """Inner product of a bfloat16 and a float32 vector, a piece at a time."""
    pieces = zip(direction.split(PIECE), gradient.split(PIECE), strict=True)
    return math.fsum(float(torch.dot(one.float(), other)) for one, other in pieces)


def _of_adam(loop: TrainState) -> Tensor | None:
    """1 / (sqrt(v) + eps) of the optimizer's stored second moments v, corrected for their start, flat; None without any."""
    state, config = loop.optimizer.adam.state, loop.config.optimizer
    if not state:
        return None
    parts = []
    for parameter in loop.optimizer.names:
        moments = state[parameter]
        v = moments["exp_avg_sq"] / (1 - config.beta2 ** float(moments["step"]))
        parts.append((v.sqrt() + config.eps).reciprocal_().reshape(-1))
    return torch.cat(parts)


def _of_batches(loop: TrainState, methods: Mapping[str, Method], first: int, warm: int) -> Tensor:
    """The same of the mean square of the methods' gradients over `warm` batches."""
    total: Tensor | None = None
    for batch in range(warm):
        for method in methods.values():
            square = gradient_of(loop, method, first + batch)[0].square_()
            total = square if total is None else total.add_(square)
    assert total is not None
    return total.div_(warm * len(methods)).sqrt_().add_(loop.config.optimizer.eps).reciprocal_()


# ---- the table


def interval(changes: Tensor, steps: int) -> Interval:
    """The mean change over `steps`, with an interval over batches and over problems (their blocks), half-widths in quadrature."""
    values = changes.double() * steps
    batches = mean_interval(values.mean(1).numpy(), method="t", over="batches")
    return with_problems(batches, mean_interval(values.mean(0).numpy(), method="t", over="blocks of problems"))


def rows(measured: Measured, steps: int) -> Iterator[tuple[str, ...]]:
    """One row an arm, then one for each pair of arms."""
    arms = list(dict.fromkeys(name for name, _ in measured.changes))
    ks = list(dict.fromkeys(k for _, k in measured.changes))
    for name in arms:
        found = measured.metrics[name]
        about = f"{found.get('guide/q_mean', 1.0):.3f}", f"{found.get('kl/to_reference', 0.0):.4f}"
        yield (name, *about, *(interval(measured.changes[name, k], steps).bracketed("+.4f") for k in ks))
    for a, b in itertools.combinations(arms, 2):
        gaps = (measured.changes[a, k] - measured.changes[b, k] for k in ks)
        yield (f"{a} less {b}", "", "", *(interval(gap, steps).bracketed("+.4f") for gap in gaps))


def table(measured: Measured, steps: int) -> Table:
    """Arms and pairs of arms: mean q, KL to the reference on the batches, and the change of each pass@k over `steps`."""
    ks = dict.fromkeys(k for _, k in measured.changes)
    return Table(header=("arm", "mean q", "KL", *(f"pass@{k}" for k in ks)), rows=tuple(rows(measured, steps)))


def impossible(measured: Measured, now: Mapping[int, float], steps: int) -> list[str]:
    """A note on the changes, and the intervals, that are larger than pass@k can move from where it is. now: k -> pass@k there."""
    found = {key: interval(changes, steps) for key, changes in measured.changes.items()}
    far = [f"{name} at {k}: {one.value:+.4f}" for (name, k), one in found.items() if not -now[k] <= one.value <= 1 - now[k]]
    wide = [f"{name} at {k}" for (name, k), one in found.items() if one.width > 1]
    notes = []
    if far:
        notes.append(
            f"note: pass@k stays between 0 and 1, so these changes cannot happen: {', '.join(far)}. The straight line does not hold"
            " over so many steps, or too few batches and problems give its slope; pass fewer --steps, more --batches and --problems"
        )
    if wide:
        which = ", ".join(wide)
        notes.append(f"note: intervals wider than all values of pass@k say nothing: {which}; pass more --batches and --problems")
    return ["", *notes] if notes else []


__all__ = [
    *("Coverage", "Measured", "Tangent", "coverage_gradients", "impossible", "interval", "measure", "next_rate", "pass_weights"),
    "table",
]
