"""The first rollout of any GRPO or RLOO trainer of TRL, without an update: `preflight(trainer)`, a line before `trainer.train()`.

    rows of trainer.train_dataset -> the trainer's generation -> its reward functions -> a forward pass of policy and reference

The trainer is unchanged: weights, generators of random numbers, training modes, metrics and counters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch

from sage_rlvr.errors import ConfigError, DataError, refuse
from sage_rlvr.symptoms.finding import SymptomReport
from sage_rlvr.symptoms.first_rollout import (
    CAP,
    TRL_NAMES,
    CompletionSeen,
    FirstRollout,
    PayCall,
    Payer,
    Price,
    PromptSeen,
    RateSchedule,
    RunPlan,
    Surplus,
    prompts_to_draw,
)
from sage_rlvr.symptoms.learning import surprises, weight_facts
from sage_rlvr.symptoms.on_loop import golds_in
from sage_rlvr.symptoms.preflight import preflight_of
from sage_rlvr.symptoms.rewards import number
from sage_rlvr.training.trl.batch import ends_of
from sage_rlvr.training.trl.card import truncated
from sage_rlvr.training.trl.held_out import (
    called,
    check_trainer,
    evaluating,
    generators_restored,
    name_of,
    replaced,
    rollout,
    trl_class,
)
from sage_rlvr.verifiers.foreign import NOT_COLUMNS
from sage_rlvr.verifiers.rewards import text_of

MORE_ROWS = 24  # rows whose golds may be exchanged
SCORED = 64  # completions of which log-probs are computed


def preflight(trainer: Any, *, draw: int | None = None, say: bool = True) -> SymptomReport:
    """Draw some groups as this trainer would, and report what keeps its reward from rising; nothing is updated.

        trainer = GRPOTrainer(...)
        preflight(trainer)
        trainer.train()

    Args:
        trainer: A GRPOTrainer, RLOOTrainer or SageTrainer.
        draw: Prompts; each gets `num_generations` completions. None: eight, or enough for 64 completions.
        say: Whether to print the report, on the first process.

    Returns:
        The report: `.findings`, `.first` (the cause to repair first), `.exit_code` (0, 1 or 3) and `.tree()` for JSON.

    Raises:
        ConfigError: For any other object, a reward model, and the trainers that `PassAtK` refuses too.
    """
    check(trainer)
    draw = prompts_to_draw(trainer.args.num_generations) if draw is None else draw
    refuse((draw < 1, f"draw = {draw}: draw at least one prompt"))
    began = time.perf_counter()
    with unchanged(trainer):
        first = first_rollout(trainer, draw)
    size = trainer.args.num_generations
    took = time.perf_counter() - began
    head = f"preflight of {type(trainer).__name__}: {len(first.prompts)} prompts x {size} completions, {took:.0f} s, no update"
    report = preflight_of(first, head)
    if say and trainer.is_world_process_zero():
        print(report, flush=True)
    return report


def check(trainer: Any) -> None:
    """Raise ConfigError unless `first_rollout` can sample through this trainer."""
    home = trl_class(trainer)
    given = getattr(trainer, "__name__", type(trainer).__name__)
    refuse(
        (
            home is None or not hasattr(trainer, "reward_funcs"),
            f"preflight: {given} is no GRPOTrainer or RLOOTrainer of TRL; pass the trainer that you call train() on",
        )
    )
    check_trainer(trainer, "preflight")
    refuse((trainer.train_dataset is None, "preflight: the trainer has no train_dataset; pass one"))


@contextmanager
def unchanged(trainer: Any) -> Iterator[None]:
    """Context that restores generators, training modes, metrics and counters of a trainer."""
    # TRL syncs vLLM's weights if this number differs from the step; it must do so again at the first step.
    step = getattr(trainer, "_last_loaded_step", None)
    with ExitStack() as stack:
        stack.enter_context(generators_restored(trainer.accelerator.device))
        stack.enter_context(evaluating(trainer))
        try:
            yield
        finally:
            if step is not None:
                trainer._last_loaded_step = step


def first_rollout(trainer: Any, draw: int) -> FirstRollout:
    """One rollout of a trainer, within `unchanged`."""
    size = trainer.args.num_generations
    rows = [dict(row) for row in islice(iter(trainer.train_dataset), draw + MORE_ROWS)]
    asks = getattr(trainer, "environment_factories", None)  # an environment may write the prompt
    if not rows or ("prompt" not in rows[0] and not asks):
        columns = ", ".join(rows[0]) if rows else "none"
        raise DataError(f"preflight: the rows have the columns {columns}; TRL reads the column prompt: rename one")
    asked = rows[:draw]
    began = time.perf_counter()
    drawn = generated(trainer, asked, size)
    sampling = time.perf_counter() - began
    tokenizer = trainer.processing_class
    plain = getattr(tokenizer, "tokenizer", tokenizer)
    prompts = tuple(
        PromptSeen(drawn.prompts[i], tuple(drawn.prompt_ids[i]), plain.decode(drawn.prompt_ids[i], skip_special_tokens=False))
        for i in range(0, len(drawn.ids), size)
    )
    ends = ends_of(trainer)
    payer = Functions(trainer, rows, drawn)
    calls = [PayCall(i // size, text, place=i) for i, text in enumerate(drawn.texts)]
    began = time.perf_counter()
    failure: Exception | None = None
    values: list[Any] = [None] * len(calls)
    try:
        values = payer.pay(calls)
    except Exception as error:  # a reward is a user's program, and its error is the finding
        failure = error.__cause__ if isinstance(error, DataError) and isinstance(error.__cause__, Exception) else error
    price = Price(sampling=sampling, reward=time.perf_counter() - began)
    completions = tuple(
        CompletionSeen(call.prompt, tuple(ids), call.text, not ids or ids[-1] not in ends, number(value), value, not all(own), i)
        for i, (call, ids, value, own) in enumerate(zip(calls, drawn.ids, values, drawn.own, strict=True))
    )
    return FirstRollout(
        names=TRL_NAMES,
        tokenizer=tokenizer,
        template_options=dict(getattr(trainer, "chat_template_kwargs", None) or {}),
        prompts=prompts,
        completions=completions,
        limit=trainer.max_completion_length,
        payer=payer,
        plan=plan_of(trainer, drawn),
        price=price,
        longer=None if drawn.environments else partial(_longer, trainer, asked[:4], ends),
        failure=failure,
        padding_side=getattr(plain, "padding_side", "left"),
    )


@dataclass(frozen=True)
class TrlRollout:
    """Completions by TRL's own rollout, in the order of the rows, a group each.

    prompts, prompt_ids   as the generation got them
    ids, own              tokens, and which of them are the policy's: those of tools and environments are not
    replies, texts        as TRL gives them to rewards; what was said in them
    columns               further ones of a `rollout_func`
    environments          that of each completion, in the state in which it ended; none without an `environment_factory`
    images                whether the prompts have images, without which the policy's distributions are others
    """

    prompts: list[Any]
    prompt_ids: list[list[int]]
    ids: list[list[int]]
    own: list[list[bool]]
    replies: list[Any]
    columns: Mapping[str, Any]
    environments: list[Any]
    images: bool

    @cached_property
    def texts(self) -> list[str]:
        """The replies as text: the content of a reply, or all of its messages and calls of tools if it has several."""
        return [said(reply) for reply in self.replies]


def said(reply: Any) -> str:
    """A reply as text. With tools also the calls, and the words of the tools."""
    if isinstance(reply, str) or (len(reply) == 1 and not reply[0].get("tool_calls")):
        return text_of(reply)
    lines = []
    for message in reply:
        calls = message.get("tool_calls") or ()
        lines += [text_of([{"content": message.get("content")}]), *(str(call) for call in calls)]
    return "\n".join(line for line in lines if line)


def generated(trainer: Any, rows: Sequence[Mapping[str, Any]], times: int) -> TrlRollout:
    """`times` completions for each row, with the trainer's tools, environments or rollout function."""
    with torch.no_grad(), replaced(trainer, num_generations_eval=times):
        result = rollout(trainer, [row for row in rows for _ in range(times)])
    count = len(result["completion_ids"])
    if count != len(rows) * times:
        raise DataError(f"preflight: the generation returned {count} completions for {len(rows) * times} prompts")
    ids = [list(map(int, one)) for one in result["completion_ids"]]
    mask = result.get("tool_mask")
    return TrlRollout(
        prompts=list(result["prompts"]),
        prompt_ids=[list(map(int, one)) for one in result["prompt_ids"]],
        ids=ids,
        own=[[True] * len(one) for one in ids] if mask is None else [list(map(bool, one)) for one in mask],
        replies=list(result["completions"]),
        columns=result.get("extra_fields") or {},
        environments=list(getattr(trainer, "environments", None) or ()),
        images=any(row.get(name) is not None for row in rows for name in ("image", "images")),
    )


def _longer(trainer: Any, rows: Sequence[Mapping[str, Any]], ends: Any, limit: int) -> list[tuple[int, bool]]:
    """Completions of a few rows at another limit; [] under vLLM, which was started with a fixed one."""
    if trainer.use_vllm:
        return []
    with unchanged(trainer), replaced(trainer, max_completion_length=limit), replaced(
        trainer.generation_config, max_new_tokens=limit
    ):
        drawn = generated(trainer, rows, 4)
    return [(len(row), not row or row[-1] not in ends) for row in drawn.ids]


# ---- settings, and log-probs


def plan_of(trainer: Any, drawn: TrlRollout) -> RunPlan:
    """The trainer's use of a rollout, and the comparison of sampler, policy and reference on this one."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    per_step = max(1, args.generation_batch_size // args.num_generations)
    accumulated = max(1, args.gradient_accumulation_steps)
    updates = max(1, args.steps_per_generation * getattr(args, "num_iterations", 1) // accumulated)
    total = args.max_steps
    if total <= 0:
        rows = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else per_step
        total = max(1, int(args.num_train_epochs * rows / per_step)) * updates
    schedule = schedule_of(args, total)
    facts = weight_facts(model.parameters(), args.learning_rate, total, copies=False, schedule=schedule)
    return RunPlan(
        prompts=per_step,
        group_size=args.num_generations,
        updates=updates,
        steps=max(1, total // updates),
        lr=args.learning_rate,
        schedule=schedule,
        beta=float(getattr(args, "beta", 0.0) or 0.0),
        positions=getattr(model.config, "max_position_embeddings", None),
        temperature=args.temperature,
        sampling=_sampling(args),
        **facts,
        **_compared(trainer, model, drawn),
    )


def schedule_of(args: Any, total: int) -> RateSchedule:
    """The schedule that the trainer will create; a constant one if it depends on what is measured in the run."""
    from transformers import get_scheduler

    warmup = args.get_warmup_steps(total)
    unused = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    made = get_scheduler(args.lr_scheduler_type, unused, warmup, total, scheduler_specific_kwargs=args.lr_scheduler_kwargs or None)
    rates = getattr(made, "lr_lambdas", None)
    return RateSchedule(warmup=warmup, updates=total) if rates is None else RateSchedule.of(rates[0], total, warmup)


def _sampling(args: Any) -> str:
    from sage_rlvr.training.engines import sampling_warning

    return sampling_warning(truncated(args))


@torch.no_grad()
def _compared(trainer: Any, model: Any, drawn: TrlRollout) -> dict[str, Any]:
    """Entropy, surplus and KL to the reference of a part of the completions, on the policy's own tokens; {} if the weights are not
    complete on this process, or prompts have images, which these forward passes lack."""
    device, heat = trainer.accelerator.device, float(trainer.args.temperature)
    some = [i for i in range(0, len(drawn.ids), max(1, len(drawn.ids) // SCORED)) if any(drawn.own[i])]
    if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
        return {}
    if drawn.images or not some:
        return {}
    entropy, total, variance, tokens = 0.0, 0.0, 0.0, 0
    log_ratios = []
    for i in some:
        first = len(drawn.prompt_ids[i])
        ids = torch.tensor([[*drawn.prompt_ids[i], *drawn.ids[i]]], device=device)
        own = torch.tensor(drawn.own[i], dtype=torch.bool, device=device)
        chosen, law = ids[0, first:, None][own], _law(model, ids, first, heat)[own]
        logps, (expected, variances) = law.gather(1, chosen)[:, 0], surprises(law)
        entropy -= float((law.exp() * law).sum())
        total += float(((-logps).clamp(max=CAP) - expected).double().sum())
        variance += float(variances.double().sum())
        tokens += len(chosen)
        with _reference(trainer, model) as reference:
            if reference is not None:
                log_ratios.append(_law(reference, ids, first, heat)[own].gather(1, chosen)[:, 0] - logps)
    facts: dict[str, Any] = {"entropy": entropy / tokens, "surplus": Surplus(total, variance, tokens)}
    if log_ratios:
        log_ratio = torch.cat(log_ratios).double()
        facts["kl_mean"] = float((log_ratio.exp() - 1 - log_ratio).mean())
    return facts


def _law(model: Any, ids: torch.Tensor, first: int, heat: float) -> torch.Tensor:
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, first - 1 : -1]
    return torch.log_softmax(logits.float() / heat, dim=-1)


@contextmanager
def _reference(trainer: Any, model: Any) -> Iterator[Any]:
    """The model of TRL's KL term; None without one. For an adapter: its copy "ref", or the model without it."""
    if not float(getattr(trainer.args, "beta", 0.0) or 0.0):
        yield None
        return
    if getattr(trainer, "ref_model", None) is not None:
        yield trainer.ref_model
        return
    if not hasattr(model, "disable_adapter"):
        yield None
        return
    if "ref" in model.peft_config:
        active = model.active_adapter
        model.set_adapter("ref")
        try:
            yield model
        finally:
            model.set_adapter(active)
        return
    with model.disable_adapter():
        yield model


# ---- the reward


class Functions(Payer):
    """The trainer's reward functions, weighted, as TRL calls them."""

    def __init__(self, trainer: Any, rows: Sequence[Mapping[str, Any]], drawn: TrlRollout) -> None:
        functions = list(trainer.reward_funcs)
        models = [one for one in functions if isinstance(one, torch.nn.Module)]
        if models:
            raise ConfigError("preflight: a reward of this trainer is a model; preflight judges reward functions only")
        self.functions, self.trainer, self.given, self.rows = functions, trainer, rows, len(rows)
        self.weights = [float(one) for one in trainer.reward_weights]
        self.names = tuple(name_of(one) for one in functions)
        self.columns = tuple(name for name in rows[0] if name not in (*NOT_COLUMNS, *drawn.columns))
        self.chat = bool(drawn.replies) and not isinstance(drawn.replies[0], str)
        self.drawn, self.size = drawn, trainer.args.num_generations
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self.ids = lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def weights_of_parts(self) -> Mapping[str, float]:
        several = len(self.names) > 1
        return {f"weight of {name}": weight for name, weight in zip(self.names, self.weights, strict=True)} if several else {}

    def pay(self, calls: Sequence[PayCall]) -> list[Any]:
        rows = [self._row(call) for call in calls]
        places = [call.place for call in calls]
        given = {
            "prompts": [self.drawn.prompts[call.prompt * self.size] for call in calls],
            "completions": [self._reply(call.text, place) for call, place in zip(calls, places, strict=True)],
            "completion_ids": [
                self.ids(call.text) if place is None else self.drawn.ids[place] for call, place in zip(calls, places, strict=True)
            ],
            "trainer_state": self.trainer.state,
            "log_extra": _not_logged,
            "log_metric": _not_logged,
        }
        given |= self._of_rollout(places)
        given |= {name: [row[name] for row in rows] for name in self.columns if name not in given}
        parts = [self._values(function, given, len(calls)) for function in self.functions]
        return [self._total([part[i] for part in parts]) for i in range(len(calls))]

    def _reply(self, text: str, place: int | None) -> Any:
        """The reply that was drawn, with its tools' messages, or a text of preflight's own."""
        if place is not None:
            return self.drawn.replies[place]
        return [{"role": "assistant", "content": text}] if self.chat else text

    def _of_rollout(self, places: Sequence[int | None]) -> dict[str, Any]:
        """Environments and columns that a rollout returned."""
        if not self.drawn.environments and not self.drawn.columns:
            return {}
        if None in places:
            raise DataError("preflight: only completions of the rollout have an environment, or columns of its function")
        known = [place for place in places if place is not None]
        given = {name: [column[place] for place in known] for name, column in self.drawn.columns.items()}
        environments = [self.drawn.environments[place] for place in known] if self.drawn.environments else None
        return given if environments is None else given | {"environments": environments}

    def _values(self, function: Any, given: Mapping[str, Any], count: int) -> list[Any]:
        values = list(called(function, given))
        if len(values) != count:
            raise DataError(f"{name_of(function)} returned {len(values)} rewards for {count} completions")
        return values

    def _total(self, values: Sequence[Any]) -> Any:
        """The weighted sum as TRL computes it, ignoring None; a value that is no number is passed on."""
        numbers = [number(value) for value in values]
        for value, one in zip(values, numbers, strict=True):
            if one is None and value is not None:
                return value
        kept = [weight * one for weight, one in zip(self.weights, numbers, strict=True) if one is not None and one == one]
        return sum(kept) if kept else None

    def _row(self, call: PayCall) -> dict[str, Any]:
        row = self.given[call.prompt if call.gold is None else call.gold]
        return {**row, **{reads: row[other] for reads, other in call.swap.items()}}

    def golds(self, row: int) -> dict[str, str]:
        return golds_in(self.given[row])

    def cells(self, row: int) -> dict[str, Any]:
        return self.given[row]


def _not_logged(*args: Any, **columns: Any) -> None:
    """Replace TRL's log_extra and log_metric, whose values belong to a training batch."""


__all__ = ["preflight"]
