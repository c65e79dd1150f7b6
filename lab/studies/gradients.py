"""The gradients, tokens and metrics of one step of a method on a loop, which is left as it was; for `parts`.

The step is the loop's own `train_step`, with a surrogate and a reduction that write down what passes through them, and a
recorder in the place of the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.state import load_tensors, model_tensors


class Tap(Surrogate):
    """A surrogate that also keeps its log-ratios, in the graph."""

    equation = property(attrgetter("inner.equation"))
    legend = property(attrgetter("inner.legend"))
    ascends = property(attrgetter("inner.ascends"))
    needs = property(attrgetter("inner.needs"))
    sees_batch = property(attrgetter("inner.sees_batch"))
    reads_labels = property(attrgetter("inner.reads_labels"))

    def __init__(self, inner: Surrogate) -> None:
        self.inner, self.log_ratios = inner, torch.zeros(0)

    def __call__(self, log_ratios: Tensor, *more: Any) -> Any:
        self.log_ratios = log_ratios
        return self.inner(log_ratios, *more)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Of one update, each (B, T): the surrogate's force, d loss / d log-ratio; what a token adds to the loss, KL included; mask."""

    force: Tensor
    loss: Tensor
    mask: Tensor


class Watched(Reduction):
    """A reduction that also keeps the `Tokens` of each update."""

    equation = property(attrgetter("inner.equation"))
    divisor = property(attrgetter("inner.divisor"))

    def __init__(self, inner: Reduction, tap: Tap) -> None:
        self.inner, self.tap = inner, tap
        self.updates: list[Tokens] = []

    def budget(self, mask: Tensor, max_tokens: int | None = None) -> float:
        """That of the reduction that it watches."""
        return self.inner.budget(mask, max_tokens)

    def __call__(self, per_token: Tensor, mask: Tensor, budget: float | None = None) -> Tensor:
        leaf = per_token.detach().requires_grad_(True)
        (weight,) = torch.autograd.grad(self.inner(leaf, mask, budget), leaf)
        reduced = self.inner(per_token, mask, budget)
        (force,) = torch.autograd.grad(reduced, self.tap.log_ratios, retain_graph=True, materialize_grads=True)
        loss = torch.where(mask, leaf.detach() * weight, 0.0)
        self.updates.append(Tokens(torch.where(mask, force, 0.0), loss, mask))
        return reduced


class Recorder:
    """In the place of an optimizer: keeps the gradient of each update of a step. Update number `last` moves nothing; those before
    it are `path`'s, weights after each; without a path they are the optimizer's own and are written down as one."""

    def __init__(self, loop: TrainState, last: int, path: Sequence[Mapping[str, Tensor]] | None) -> None:
        self.loop, self.last, self.given, self.done = loop, last, path, 0
        self.path: list[dict[str, Tensor]] = []
        self.gradients: list[Tensor] = []

    def step(self, number: int) -> dict[str, float]:
        """Store the gradient in the place of an update; then step and store the policy, or take that of the given path."""
        self.done += 1
        adam = self.loop.optimizer.adam
        grads = [p.grad for p in self.loop.optimizer.names]
        self.gradients.append(torch.cat([g.detach().reshape(-1) for g in grads if g is not None]))
        if self.done > self.last:
            pass
        elif self.given is None:
            self.loop.optimizer.step(number)
            self.path.append(_copy(model_tensors(self.loop.policy)))
        elif self.given:  # a shorter path, of a method that stored nothing to train on, ends where it ends
            load_tensors(self.loop.policy, dict(self.given[min(self.done, len(self.given)) - 1]))
        adam.zero_grad(set_to_none=True)
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's own state."""
        return self.loop.optimizer.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put the optimizer's own state back."""
        self.loop.optimizer.load(tensors)


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def _as_it_was(loop: TrainState) -> Iterator[None]:
    weights, moments = _copy(model_tensors(loop.policy)), _copy(loop.optimizer.tensors())
    try:
        yield
    finally:
        load_tensors(loop.policy, weights)
        loop.optimizer.load(moments)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of one method: gradients and tokens of its updates, its metrics, the weights on the way. A method that trains on
    stored answers alone has no tokens, and no gradients where nothing is stored."""

    gradients: list[Tensor]
    tokens: list[Tokens]
    metrics: dict[str, float]
    path: list[dict[str, Tensor]]


def seen(
    loop: TrainState, method: Method, step: int, last: int = 0, path: Sequence[Mapping[str, Tensor]] | None = None
) -> Step:
    """A step of the loop with another method, of `last` + 1 updates, after which the loop is as it was."""
    tap = Tap(method.surrogate)
    watched = Watched(method.reduction, tap)
    recorder = Recorder(loop, last, path)
    updates = replace(loop.config.updates, epochs=last + 1, minibatches=1, micro_batch=None)
    state = {name: loop.parts.get(name, own) for name, own in method.start().items()}
    twin = replace(
        loop, method=replace(method, surrogate=tap, reduction=watched), config=replace(loop.config, updates=updates), parts=state
    )
    twin.optimizer = recorder  # type: ignore[assignment]
    with _as_it_was(loop):
        metrics = train_step(twin, step)
    return Step(recorder.gradients, watched.updates, metrics, recorder.path)


def gradient_of(loop: TrainState, method: Method, step: int) -> tuple[Tensor, dict[str, float]]:
    """The gradient of one update of the loop's step with another method, flat and float32, and the step's metrics.

    The same step and weights give every method that draws alike the same completions. Nothing moves, so nothing is copied.
    """
    recorder = Recorder(loop, 0, [])
    updates = replace(loop.config.updates, epochs=1, minibatches=1, micro_batch=None)
    twin = replace(loop, method=method, config=replace(loop.config, updates=updates), parts=method.start())
    twin.optimizer = recorder  # type: ignore[assignment]
    metrics = train_step(twin, step)
    (gradient,) = recorder.gradients
    return gradient.float(), metrics
