"""Runs of the built-in loop, and disturbed models. Without TRL."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from sage_rlvr.symptoms.finding import SymptomReport

Run = tuple[Callable[[], SymptomReport], Callable[[], Path | None]]
"""What gives the preflight of a run, and what trains it and gives its log; None where the program leaves none."""
Around = Callable[[], AbstractContextManager[Any]]


def on_loop(recipe: str, *, around: Around = nullcontext, **edits: Any) -> Callable[[Path], Run]:
    """A case of a recipe on the built-in loop. around: a context in which it runs."""

    def make(folder: Path) -> Run:
        import sage_rlvr
        from sage_rlvr.api.train import read
        from sage_rlvr.symptoms.on_loop import preflight_recipe

        given = {"steps": 16, **{key.replace("__", "."): value for key, value in edits.items()}}
        listed = [(key, str(value)) for key, value in given.items()]

        def before() -> SymptomReport:
            _, config = read("train", recipe, edits=listed)
            with around():
                return preflight_recipe(config, cost=False)

        def after() -> Path:
            with around():
                sage_rlvr.train(recipe, run=folder / "run", edits=listed, quiet=True, say=lambda line: None)
            return folder / "run"

        return before, after

    return make


def disturb(model: Any, size: float = 0.3) -> None:
    """Move the weights of a model by a share of their size: another checkpoint of it."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for weight in model.parameters():
            weight += size * weight.std().nan_to_num() * torch.randn(weight.shape, generator=generator)


@contextmanager
def other_sampler(size: float = 0.25) -> Iterator[None]:
    """Completions are sampled by another checkpoint than the policy: that of the first step, disturbed."""
    from sage_rlvr.training import rollouts

    plain, made = rollouts.sample, dict[int, Any]()

    def sample(policy: Any, *args: Any, **given: Any) -> Any:
        if id(policy) not in made:
            made[id(policy)] = copy.deepcopy(policy)
            disturb(made[id(policy)], size)
        return plain(made[id(policy)], *args, **given)

    rollouts.sample = sample
    try:
        yield
    finally:
        rollouts.sample = plain


__all__ = ["Around", "Run", "disturb", "on_loop", "other_sampler"]
