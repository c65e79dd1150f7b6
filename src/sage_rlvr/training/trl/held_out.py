"""Completions of held-out rows by a trainer's own generation, transformers or vLLM, and their rewards.

    rows of this process -> calls of TRL's rollout, left before it scores -> HeldOut (row, completion, ids, cut) -> rewards

Nothing of the training changes: the generators of random numbers, the training mode of every module, TRL's metrics and sampling
settings are restored. No completion is scored by a forward pass: TRL does that after the point at which its rollout is left.
Tools, environments, a `rollout_func` and images are those of the training, since the rollout is.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import random
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import trl

from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError, refuse, short
from sage_rlvr.training.trl.batch import ends_of
from sage_rlvr.training.trl.versions import INSTALL_TESTED
from sage_rlvr.verifiers.foreign import NOT_COLUMNS

Reward = Callable[..., Any]
PADDING = -1  # instead of a row, if this process has fewer than the others
NEW_ENVIRONMENTS = "self.environment_factories[name]()"  # in TRL's source: as many environments as a call has completions
ASYNC = "trl.experimental.async_grpo"
SEAMS = {  # methods of TRL's trainers, and what their source must contain
    "_generate": ("_generate_single_turn(", "self._metrics[mode]"),
    "_generate_single_turn": (
        "self.vllm_generation.generate(",
        "generation_config=self.generation_config",
        "generation_kwargs=self.generation_kwargs",
    ),
    "_generate_and_score_completions": ("self._generate(prompts)",),
}


@dataclass(frozen=True)
class HeldOut:
    """One completion of a held-out row.

    row: its number. prompt, completion: text or messages, as TRL gives them to a reward, with images and an environment's first
    observation. environment: the instance in which it was sampled, if there is one; more: columns that a `rollout_func` returned.
    """

    row: int
    completion: Any
    ids: list[int]
    cut: bool
    prompt: Any = None
    environment: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)


# ---- what the installed TRL must look like


def check_trainer(trainer: Any, who: str = "PassAtK") -> None:
    """ConfigError unless `sample` can draw through this trainer: its class, and the source of TRL's rollout. who: asks."""
    source = trl_class(trainer)
    apart = any(cls.__module__.startswith(ASYNC) for cls in type(trainer).__mro__)
    lacking = [f"{name}: {text}" for name, texts in SEAMS.items() for text in texts if text not in _source(source, name)]
    evaluates = any("self.num_generations_eval" in _source(source, name) for name in SEAMS)
    returned = returned_names(source._generate) if source is not None else []
    lacking += [f"_generate: returns {name}" for name in ("completion_ids", "completions") if name not in returned]
    lacking += [] if evaluates else ["num_generations_eval"]
    fixed = getattr(trainer, "environments", None) and NEW_ENVIRONMENTS not in _source(source, "_generate_and_score_completions")
    refuse(
        (
            apart,
            f"{who}: {type(trainer).__name__} samples in a process of its own, on a server whose weights change during a "
            "completion, so no completion is of the policy at one step; evaluate its checkpoints with sage-rlvr eval instead.",
        ),
        (
            source is None,
            f"{who}: trainer = {type(trainer).__name__} does not derive from a trainer of TRL; pass a GRPOTrainer, an "
            "RLOOTrainer or a SageTrainer.",
        ),
        (
            lacking,
            f"{who}: the generation of {type(trainer).__name__} in TRL {trl.__version__} has an unexpected structure; not found: "
            f"{', '.join(lacking)}; {INSTALL_TESTED}, or pass a GRPOTrainer, an RLOOTrainer or a SageTrainer.",
        ),
        (
            fixed,
            f"{who}: the environments of TRL {trl.__version__} are one list, as long as a training batch; {INSTALL_TESTED}, or "
            "evaluate the checkpoints with sage-rlvr eval.",
        ),
    )


def trl_class(trainer: Any) -> type[Any] | None:
    """The trainer of TRL that `trainer` is or derives from: the class that defines the generation."""
    return next((cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl.") and "_generate" in vars(cls)), None)


def _source(cls: type | None, name: str) -> str:
    return inspect.getsource(vars(cls)[name]) if cls is not None and name in vars(cls) else ""


def returned_names(function: Any) -> list[str]:
    """The names in the tuple that a function returns: TRL's releases return a completion's ids and text in other places."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tuples = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)]
    return [name.id for name in tuples[0].elts if isinstance(name, ast.Name)] if tuples else []


# ---- nothing of the training changes


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of `owner` with other values for a while; a method's replacement does not remain as an attribute of the
    instance."""
    before = {name: getattr(owner, name) for name in values}
    of_class = [name for name in values if name not in vars(owner)]
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if name in of_class:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def generators_restored(device: torch.device) -> Iterator[None]:
    """The generators of Python, numpy and torch, of the CPU and of `device`, end as they were."""
    python, array = random.getstate(), np.random.get_state()
    accelerator = device.type not in ("cpu", "mps")
    # fork_rng wants the type of an accelerator also where it forks none: the generator of the CPU is always restored.
    with torch.random.fork_rng(devices=[device] if accelerator else [], device_type=device.type if accelerator else "cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


@contextmanager
def evaluating(trainer: Any) -> Iterator[None]:
    """The model in eval mode, with metrics of its own in the trainer; both end as they were, module by module."""
    modes = [(module, module.training) for module in trainer.model.modules()]
    metrics = trainer._metrics["eval"]
    trainer._metrics["eval"] = defaultdict(list)
    trainer.model.eval()
    try:
        yield
    finally:
        trainer._metrics["eval"] = metrics
        for module, training in modes:
            module.training = training


@contextmanager
def at_temperature(trainer: Any, temperature: float) -> Iterator[None]:
    """The trainer samples at `temperature`, by whatever generates: TRL reads it from its generator's settings at each call.

    A `rollout_func` finds it in `trainer.args.temperature` and `trainer.temperature`.
    """
    with ExitStack() as stack:
        if getattr(trainer, "rollout_func", None):
            stack.enter_context(replaced(trainer.args, temperature=temperature))
            stack.enter_context(replaced(trainer, temperature=temperature))
        stack.enter_context(_generating_at(trainer, temperature))
        yield


@contextmanager
def _generating_at(trainer: Any, temperature: float) -> Iterator[None]:
    if trainer.use_vllm:
        generator, options = trainer.vllm_generation, trainer.vllm_generation.generation_kwargs
        if "temperature" in options:  # of GRPOConfig.generation_kwargs, which override the field
            options = options | {"temperature": temperature}
        with replaced(generator, temperature=temperature, generation_kwargs=options):
            yield
    else:
        # TRL passes both: `generation_kwargs` replace the model's own defaults.
        options = trainer.generation_kwargs | {"temperature": temperature}
        with replaced(trainer.generation_config, temperature=temperature), replaced(trainer, generation_kwargs=options):
            yield


def training_temperature(args: Any) -> float:
    """The temperature at which TRL samples under these arguments."""
    return float((args.generation_kwargs or {}).get("temperature", args.temperature))


# ---- sampling


def share_of(rows: int, rank: int, world: int) -> list[int]:
    """The rows of one process, as many on each: TRL gathers in every call, so all processes must make the same calls."""
    own = list(range(rank, rows, world))
    return own + [PADDING] * (-(-rows // world) - len(own))


def calls_of(rows: Sequence[int], n: int, batch: int) -> list[tuple[list[int], int]]:
    """(rows, completions of each) for every call of the generator: complete rows if n fits into a batch, else a row in pieces."""
    if n <= batch:
        width = batch // n
        return [(list(rows[first : first + width]), n) for first in range(0, len(rows), width)]
    pieces = [min(batch, n - first) for first in range(0, n, batch)]
    return [([row], count) for row in rows for count in pieces]


def batch_of(trainer: Any, n: int, rows: int) -> int:
    """Completions per call: the batch size of evaluation, or everything where vLLM makes its own batches."""
    return n * rows if trainer.use_vllm else trainer.args.per_device_eval_batch_size


class _Drawn(Exception):
    """Raised instead of TRL's scoring of a rollout, once it is sampled."""


def rollout(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One completion of each row by TRL's own rollout, by the names that its `_generate` returns; "prompts" are those it was given.

    `_generate_and_score_completions` resets the environments, gives each row its tools, adds images and first observations to the
    prompts and calls `_generate`; it is left there, before it computes rewards and log-probs.
    """
    home, generate, result = trl_class(trainer), trainer._generate, dict[str, Any]()
    names = returned_names(home._generate)  # type: ignore[union-attr]

    def drawn(prompts: list[Any]) -> None:
        result.update(zip(names, generate(prompts), strict=False), prompts=prompts)
        raise _Drawn

    with replaced(trainer, _generate=drawn), suppress(_Drawn):
        home._generate_and_score_completions(trainer, [dict(row) for row in rows])  # type: ignore[union-attr]
    return result


Rewards = list[float | None]


def sample(
    trainer: Any,
    rows: Sequence[Mapping[str, Any]],
    n: int,
    temperature: float,
    key: Key,
    score: Callable[[Sequence[HeldOut]], Rewards],
    batch: int | None = None,
) -> tuple[list[HeldOut], Rewards]:
    """n completions of this process's share of `rows`, and their rewards by `score`.

    Raise DataError if the generator returns another number than requested, or from `score`. It is called once, with all
    completions; with environments after each call of the generator, because TRL resets them for the next.

    The draws are a function of `key`, the process and the batch, but those of a vLLM server, whose generator is not reached.
    """
    accelerator, ends = trainer.accelerator, ends_of(trainer)
    own = share_of(len(rows), accelerator.process_index, accelerator.num_processes)
    # The engines of one tensor-parallel group sample the same tokens from equal generators: they get equal seeds.
    colocated = trainer.use_vllm and trainer.args.vllm_mode == "colocate"
    group = accelerator.process_index // (trainer.args.vllm_tensor_parallel_size if colocated else 1)
    drawn, rewards = list[HeldOut](), Rewards()
    failure = ""  # raised after the last call: other processes are inside of theirs
    with at_temperature(trainer, temperature):
        for call, (chunk, times) in enumerate(calls_of(own, n, batch or batch_of(trainer, n, len(own)))):
            numbers = [row for row in chunk for _ in range(times)]
            _seed(key.fold(f"{group}, {call}"))
            trainer.model.eval()  # TRL's continuous batching leaves the model in training mode
            with replaced(trainer, num_generations_eval=times):
                result = rollout(trainer, [rows[max(row, 0)] for row in numbers])
            if len(result["completion_ids"]) != len(numbers):
                failure = failure or _incomplete(trainer, len(result["completion_ids"]), len(chunk), times)
                continue
            part = _held_out(result, numbers, ends, getattr(trainer, "environments", None))
            drawn += part
            if getattr(trainer, "environments", None) and not failure:
                try:
                    rewards += score(part)
                except DataError as error:
                    failure = str(error)
    if failure:
        raise DataError(failure)
    return drawn, rewards or score(drawn)


def _held_out(result: Mapping[str, Any], numbers: Sequence[int], ends: Any, environments: Sequence[Any] | None) -> list[HeldOut]:
    """The completions of a call that are of a row, as `rollout` returned them."""
    columns, part = result.get("extra_fields") or {}, []
    for place, row in enumerate(numbers):
        if row == PADDING:
            continue
        ids = list(result["completion_ids"][place])
        cut = not ids or ids[-1] not in ends
        more = {name: values[place] if isinstance(values, list) else values for name, values in columns.items()}
        environment = environments[place] if environments else None
        part.append(HeldOut(row, result["completions"][place], ids, cut, result["prompts"][place], environment, more))
    return part


def _incomplete(trainer: Any, returned: int, prompts: int, times: int) -> str:
    where = "the vLLM server" if trainer.use_vllm and trainer.args.vllm_mode == "server" else "the generation"
    return (
        f"PassAtK: {where} returned {returned} completions for {prompts} prompts with n = {times} ({prompts * times} expected); "
        "start the server of the TRL installed here (trl vllm-serve), or set vllm_mode='colocate' or use_vllm=False."
    )


def _seed(key: Key) -> None:
    torch.manual_seed(key.seed)
    np.random.seed(key.seed % 2**32)
    random.seed(key.seed)


# ---- rewards


def rewards_of(reward: Reward, rows: Sequence[Mapping[str, Any]], drawn: Sequence[HeldOut], state: Any) -> list[float | None]:
    """A reward per completion, None without one, by a function of TRL's signature, called once with this process's completions.

    DataError for a function that raises, or returns another number of rewards or something that is no number.
    """
    if not drawn:
        return []
    own = {
        "prompts": [rows[one.row]["prompt"] if one.prompt is None else one.prompt for one in drawn],
        "completions": [one.completion for one in drawn],
        "completion_ids": [one.ids for one in drawn],
        "trainer_state": state,
        "log_extra": _not_logged,
        "log_metric": _not_logged,
    }
    own |= {name: [one.more.get(name) for one in drawn] for name in drawn[0].more}
    own |= {"environments": [one.environment for one in drawn]} if drawn[0].environment is not None else {}
    # A column of such a name is left out, as TRL's argument counts.
    columns = [name for name in rows[0] if name not in NOT_COLUMNS and name not in own]
    values = called(reward, own | {name: [rows[one.row][name] for one in drawn] for name in columns})
    name = name_of(reward)
    count = len(values) if isinstance(values, Sized) else None
    if count != len(drawn):
        size = short(values) if count is None else f"{count} values"
        raise DataError(
            f"PassAtK: the reward {name} returned {size} for {len(drawn)} completions; return one number or None for each."
        )
    return [_number(value, name, one) for value, one in zip(list(values), drawn, strict=True)]


def name_of(function: Any) -> str:
    """The name of a reward in messages and files: that of the function, or that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))


def called(reward: Reward, arguments: Mapping[str, Any]) -> Any:
    """Return a reward's result, awaited if it is async. Raise DataError from the exception that it raises."""
    try:
        values = reward(**arguments)
        if inspect.isawaitable(values):  # in a thread of its own: a notebook's main thread already runs an event loop
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(asyncio.run, _awaited(values)).result()
        return values
    except Exception as error:
        raise DataError(
            f"PassAtK: the reward {name_of(reward)} raised {type(error).__name__}: {error} on {len(arguments['completions'])} "
            f"held-out completions with the arguments {', '.join(arguments)}; correct the function, or give the rows the columns "
            "that it reads."
        ) from error


async def _awaited(values: Any) -> Any:
    return await values


def _number(value: Any, name: str, one: HeldOut) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.inf
    if math.isinf(number):
        raise DataError(
            f"PassAtK: the reward {name} returned {short(value)} for a completion of held-out row {one.row}; return a finite "
            "number, or None for no answer."
        )
    return None if math.isnan(number) else number  # TRL stores None as NaN


def _not_logged(*args: Any, **columns: Any) -> None:
    """Replacement for TRL's `log_metric` and `log_extra`, whose values belong to the training batch."""


__all__ = [
    "HeldOut",
    "Reward",
    "called",
    "check_trainer",
    "evaluating",
    "generators_restored",
    "name_of",
    "replaced",
    "returned_names",
    "rewards_of",
    "rollout",
    "sample",
    "training_temperature",
    "trl_class",
]
