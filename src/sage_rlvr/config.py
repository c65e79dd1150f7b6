"""The schemas of a run: keyword-only frozen dataclasses, made of YAML by `recipes.py` and `schema.py`.

A configuration is a value: these dataclasses are the only schema, YAML is how one is shared.

    config = load_config(TrainConfig, "recipe.yaml", [("rollout.group_size", "16")])   # or an error that teaches
    decode(TrainConfig, dump(config)) == config                                        # always

Methods, guides and schedules are chosen by name: `method: {name: sage, base: grpo, guide: {name: branch, ratio: 0.3}}`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError
from sage_rlvr.recipes import Tree, load, merge, override, parse_scalar, parse_yaml, short
from sage_rlvr.schema import build, decode, dump, to_yaml

if TYPE_CHECKING:
    from sage_rlvr.core.method import Method
    from sage_rlvr.tasks.base import Task
    from sage_rlvr.tasks.countdown import Countdown
    from sage_rlvr.tasks.teachers import Teacher

T = TypeVar("T")

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "EngineConfig",
    "FinetuneConfig",
    "LoraConfig",
    "ModelConfig",
    "OfflineConfig",
    "OptimizerConfig",
    "PairsConfig",
    "RolloutConfig",
    "SftConfig",
    "TrainConfig",
    "Tree",
    "UpdateConfig",
    "WorldConfig",
    "build",
    "decode",
    "dump",
    "load",
    "load_config",
    "merge",
    "override",
    "parse_scalar",
    "parse_yaml",
    "task_named",
    "task_of",
    "task_of_data",
    "to_yaml",
    "world_of",
]


def __getattr__(name: str) -> Any:
    """The name of version 0.1 for what `build` does; it goes with version 0.3."""
    if name != "MethodSpec":
        raise AttributeError(f"module 'sage_rlvr.config' has no attribute {name!r}")
    warnings.warn('MethodSpec(tree) is build("method", tree) now, and gives the method itself', DeprecationWarning)
    return partial(build, "method")


def load_config(schema: type[T], path: str | Path, overrides: Iterable[tuple[str, str]] = ()) -> T:
    """`decode(schema, load(path, overrides))`: a recipe file to a checked configuration."""
    return decode(schema, load(path, overrides), where=str(path))


def _require(holds: bool, name: str, value: Any, problem: str) -> None:
    if not holds:
        raise ConfigError(f"{name} = {short(value)}: {problem}")


def _positive(config: Any, *names: str) -> None:
    for name in names:
        _require(getattr(config, name) > 0, name, getattr(config, name), "must be above 0")


def _not_negative(config: Any, *names: str) -> None:
    for name in names:
        _require(getattr(config, name) >= 0, name, getattr(config, name), "must not be negative")


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The distribution of generated problems.

    name: the task. counts: how many numbers a problem has (2 to 5) -> weight, on any scale. max_number: largest number.
    min_target, max_target: bounds of the target, both included. targets: "expression" draws problems by their number of
    solutions, "uniform" draws the target evenly among those that the numbers reach. train_problems: size of the
    training pool. data_seed: seed of the problems, apart from the seed of the run, so that runs share their data.
    """

    name: Literal["countdown"] = "countdown"
    counts: dict[int, float] = field(default_factory=lambda: {4: 1.0})
    max_number: int = 12
    min_target: int = 1
    max_target: int = 100
    targets: Literal["expression", "uniform"] = "expression"
    train_problems: int = 20_000
    data_seed: int = 0

    def __post_init__(self) -> None:
        _positive(self, "train_problems")
        _not_negative(self, "data_seed")
        self.build()

    @classmethod
    def of(cls, world: Countdown) -> WorldConfig:
        """The configuration of a world."""
        return cls(**{field.name: getattr(world, field.name) for field in fields(cls) if field.name != "name"})

    def build(self) -> Countdown:
        """The world itself; raises what it refuses (a size without expressions, an empty range of targets)."""
        from sage_rlvr.tasks.countdown import Countdown

        return Countdown(
            counts=self.counts,
            max_number=self.max_number,
            min_target=self.min_target,
            max_target=self.max_target,
            targets=self.targets,
            train_problems=self.train_problems,
            data_seed=self.data_seed,
        )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """What one step samples.

    prompts_per_step: prompts P. group_size: completions G of each prompt. max_new_tokens: length limit of a completion,
    in tokens, the end token included. temperature: divides the logits; 1.0 samples the policy itself.
    """

    prompts_per_step: int = 32
    group_size: int = 8
    max_new_tokens: int = 24
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "prompts_per_step", "max_new_tokens")
        _require(
            self.temperature > 0, "temperature", self.temperature, "must be above 0; 0 (greedy) has nothing to explore"
        )
        _require(
            self.group_size >= 2,
            "group_size",
            self.group_size,
            "an advantage compares completions of one prompt, so a group needs at least 2 (the usual is 8)",
        )

    @property
    def completions(self) -> int:
        """Completions a step: prompts_per_step * group_size."""
        return self.prompts_per_step * self.group_size


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """How one step's completions are used.

    epochs: passes over them. minibatches: optimizer updates a pass; groups stay whole. micro_batch: groups in one
    forward pass, for memory alone (gradients add up to the same update); null is all groups of a mini-batch.
    """

    epochs: int = 1
    minibatches: int = 1
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        _positive(self, "epochs", "minibatches")
        _require(
            self.micro_batch is None or self.micro_batch > 0,
            "micro_batch",
            self.micro_batch,
            "must be above 0, or null",
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning rate.

    lr: peak learning rate. beta1, beta2, eps: AdamW's. weight_decay: AdamW's, on all weights but biases and those of
    normalization layers, as transformers' Trainer has it, in both engines. max_grad_norm: gradients are scaled down to this
    L2 norm; a huge number leaves them. schedule: shape of the learning rate after warmup_steps optimizer steps of
    linear rise; linear and cosine end at 0 with the run.
    """

    lr: float = 1e-4
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _positive(self, "lr", "eps", "max_grad_norm")
        _not_negative(self, "weight_decay", "warmup_steps")
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")


Tracker = Literal["trackio", "wandb", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """every: steps between checkpoints (the last step always has one). keep: how many of the newest stay on disk."""

    every: int = 50
    keep: int = 2

    def __post_init__(self) -> None:
        _positive(self, "every", "keep")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters in place of full fine-tuning (engines trl and verl).

    rank: of the update. alpha: its scale is alpha / rank; null is 2 * rank, as in the authors' code. dropout: on the
    adapter's input. target_modules: names of the layers, or "all-linear" for the attention and MLP projections.
    """

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"

    def __post_init__(self) -> None:
        _positive(self, "rank")
        _require(self.alpha is None or self.alpha > 0, "alpha", self.alpha, "must be above 0, or null for 2 * rank")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "must be in [0, 1)")
        _require(len(self.target_modules) > 0, "target_modules", self.target_modules, "names no layer")

    @property
    def scale(self) -> float:
        """alpha, filled in."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows with problems and gold answers, in place of a generated world (TRL engine).

    path: a Hub id (owner/name), or a local file (.jsonl, .json, .csv, .parquet) or folder of such. subset: the Hub's
    configuration name. split: likewise. revision: commit of the Hub's data; null is its newest, which may change.
    take: only the first so many rows; null for all. prompt: the prompt format (`sage_rlvr.tasks.prompts.FORMATS`), the same
    for SFT, RL and evaluation; "as_is" takes the rows' own prompts. problem_column, answer_column: null looks for the
    usual names. allow_unverifiable: train although more than 1 % of the golds cannot be verified against themselves.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    take: int | None = None
    prompt: Literal["sage", "boxed", "as_is"] = "sage"
    problem_column: str | None = None
    answer_column: str | None = None
    allow_unverifiable: bool = False

    def __post_init__(self) -> None:
        _require(bool(self.path.strip()), "path", self.path, "name a Hub id (owner/name), a local file or a folder")
        _require(self.take is None or self.take > 0, "take", self.take, "must be above 0, or null for all rows")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What runs the method.

    name: the engine: loop (the readable reference), trl (TRL's GRPOTrainer; the trl extra) or verl (its PPO trainer; the verl
    extra). threads: CPU threads (null: what torch chooses); bitwise equality holds at equal thread counts. dtype: of the
    weights. On TRL and verl float32 wherever they are trained: an optimizer without float32 copies loses what is below 1/256 of
    a bfloat16 weight, and bfloat16 is for the frozen weights under adapters. On the loop bfloat16 keeps such copies, and the
    log-probs are float32. args: fields of TRL's GRPOConfig (SFTConfig in an SFT recipe), or keys of verl's configuration, passed
    on untouched. lora: adapters; null is full fine-tuning.
    device: of the loop: cpu (null means that too), cuda, mps, or auto, the first of cuda, mps and cpu that is there. A run is
    bitwise reproducible on a CPU. TRL and verl take what they find.
    """

    added: ClassVar[tuple[str, ...]] = ("device",)  # see schema.dump

    name: Literal["loop", "trl", "verl"] = "loop"
    threads: int | None = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    args: dict[str, Any] = field(default_factory=dict)
    lora: LoraConfig | None = None
    device: Literal["cpu", "cuda", "mps", "auto"] | None = None

    def __post_init__(self) -> None:
        _require(
            self.threads is None or self.threads > 0,
            "threads",
            self.threads,
            "must be above 0, or null for torch's own",
        )
        alone = "an entry of the engines trl and verl; the loop has none: write engine.name trl, or leave it out"
        _require(self.name != "loop" or not self.args, "args", self.args, alone)
        _require(self.name != "loop" or self.lora is None, "lora", self.lora, alone)
        _require(
            self.name == "loop" or self.device is None,
            "device",
            self.device,
            f"an entry of the loop; {self.name} takes the device that it finds: leave it out (on TRL args: {{use_cpu: true}} keeps "
            "to the CPU)",
        )
        _require(
            self.dtype == "float32" or self.lora is not None or self.name == "loop",
            "dtype",
            self.dtype,
            "the optimizer would update bfloat16 weights, where a change below 1/256 of a weight rounds to nothing, so "
            "most of a run would be lost without a word: write float32 (on TRL with args: {bf16: true}, which computes in "
            "bfloat16 and keeps float32 weights), or train adapters (engine.lora)",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A small policy from scratch, in a stock transformers architecture.

    architecture: llama (RMS norms, rotary positions, SwiGLU) or gpt2 (layer norms, learned positions, GELU), without dropout.
    hidden, layers, heads, mlp: widths and counts; hidden is divisible by heads. positions: longest sequence in tokens.
    """

    architecture: Literal["llama", "gpt2"] = "llama"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    positions: int = 128

    def __post_init__(self) -> None:
        _positive(self, "hidden", "layers", "heads", "mlp", "positions")
        whole = self.hidden % self.heads == 0 and self.hidden // self.heads % 2 == 0
        _require(whole, "heads", self.heads, f"hidden = {self.hidden} must split into heads of an even width")


def _check_run(config: TrainConfig | SftConfig | OfflineConfig, updates_a_step: int = 1) -> None:
    _positive(config, "steps")
    _not_negative(config, "seed")
    _require(config.seed < 2**63, "seed", config.seed, "must be below 2**63")
    warmup = config.optimizer.warmup_steps
    updates = config.steps * updates_a_step
    _require(warmup < updates, "optimizer.warmup_steps", warmup, f"must be below the run's {updates} optimizer steps")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One RLVR run: `sage-rlvr train recipe.yaml`.

    seed: of everything random in the run. steps: rollouts, each followed by its updates. model: where the policy starts:
    "embedded" (the shipped base policy), a local folder, or a Hub id. base_model: likewise, the checkpoint before
    supervised fine-tuning, read only by an anchor of source "base"; null where `model` itself is that checkpoint.
    method: the name of a registered method and its arguments; a guide beside a method that takes none makes it `sage` of that
    method. task: the name of a registered task and its arguments, in place of `world`, the generated problems of Countdown.
    data: rows of a data set in place of it, judged as mathematics. teacher: the name of a registered teacher and its arguments, for
    a method whose rollout plan draws under guidance.
    plugins: name -> SHA-256 of the user's files that registered parts; in a recipe the list of these files.
    report_to: trackers that get the metrics too; a run may be continued with others.
    """

    seed: int = 0
    steps: int
    model: str = "embedded"
    base_model: str | None = None
    world: WorldConfig = field(default_factory=WorldConfig)
    data: DataConfig | None = None
    task: Task | None = None
    teacher: Teacher | None = None
    method: Method
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    updates: UpdateConfig = field(default_factory=UpdateConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    report_to: tuple[Tracker, ...] = ()
    plugins: dict[str, str] = field(default_factory=plugins.loaded)

    added: ClassVar[tuple[str, ...]] = ("plugins", "report_to", "task", "teacher")  # see schema.dump

    def __post_init__(self) -> None:
        _check_run(self, self.updates.epochs * self.updates.minibatches)
        named = "name 'embedded', a local folder, or a Hub id"
        _require(bool(self.model.strip()), "model", self.model, named)
        _require(self.base_model is None or bool(self.base_model.strip()), "base_model", self.base_model, named)
        prompts, pool = self.rollout.prompts_per_step, self.world.train_problems
        too_many = f"more prompts per step than world.train_problems = {pool}; raise the pool or sample fewer"
        generated = self.data is None and self.task is None
        _require(prompts <= pool or not generated, "rollout.prompts_per_step", prompts, too_many)
        one = "give task or data, not both: either says which problems are trained on"
        _require(self.data is None or self.task is None, "task", getattr(self.task, "name", None), one)
        alone = "give task or world, not both: either says which problems are trained on"
        _require(self.task is None or self.world == WorldConfig(), "task", getattr(self.task, "name", None), alone)
        self._check_updates(prompts, self.updates.minibatches, self.updates.micro_batch)
        self._check_method(self.method)

    @property
    def reference(self) -> str | None:
        """What the method's reference is loaded from, a name as in `model`; None where the method reads none.

        An anchor whose source is the run itself (snapshot@N, refresh_every) starts from here and moves later.
        """
        method = self.method
        if method.anchor is None or "ref_logps" not in method.needs:
            return None
        if method.anchor.source == "base":
            return self.model if self.base_model is None else self.base_model
        of_the_run = method.anchor.source == "sft" or method.anchor.snapshot_step is not None
        return self.model if of_the_run else method.anchor.source

    def _check_method(self, method: Method) -> None:
        """What the method and the run must agree on: the step of a snapshot, the length limit of a reward transform."""
        snapshot = None if method.anchor is None else method.anchor.snapshot_step
        late = (
            f"the anchor's source snapshot@{snapshot} is the policy after step {snapshot}, which no step of this run "
            f"would be held to; give more steps than {snapshot}, or an earlier snapshot"
        )
        _require(snapshot is None or snapshot < self.steps, "steps", self.steps, late)
        limit, made_for = self.rollout.max_new_tokens, getattr(method.reward_transform, "max_tokens", None)
        other = (
            f"the method's reward transform {type(method.reward_transform).__name__} is made for max_tokens = {made_for}, "
            f"another limit; set rollout.max_new_tokens to {made_for}, or the method's max_tokens to {limit}"
        )
        _require(made_for is None or made_for == limit, "rollout.max_new_tokens", limit, other)
        least, size = getattr(method.advantage, "least_group", 2), self.rollout.group_size
        small = f"the method's advantage {method.advantage} needs groups of {least} at least; raise it, or lower the method's k"
        _require(size >= least, "rollout.group_size", size, small)
        most = method.rollout.most if hasattr(method.rollout, "extra") else size
        full = f"the first stage of {type(method.rollout).__name__}, which draws at most {most} in all; lower it, or raise most"
        _require(size <= most, "rollout.group_size", size, full)
        taught = "is read by a rollout plan with guidance alone (compose, rollout: guided); leave it out, or take such a method"
        is_guided = bool(getattr(method.rollout, "guided", False))
        _require(self.teacher is None or is_guided, "teacher", type(self.teacher).__name__, taught)
        lacking = "the rollout plan draws under guidance, which a teacher writes; give teacher: rules, patch, policy or your own"
        _require(self.teacher is not None or not is_guided, "teacher", None, lacking)

    def _check_updates(self, prompts: int, parts: int, micro: int | None) -> None:
        whole = (
            f"must divide rollout.prompts_per_step = {prompts}, because a mini-batch holds whole groups; "
            f"try {_divisor_near(prompts, parts)}"
        )
        _require(prompts % parts == 0, "updates.minibatches", parts, whole)
        large = f"a mini-batch has {prompts // parts} groups of {self.rollout.group_size}; write null for all of them"
        _require(micro is None or micro <= prompts // parts, "updates.micro_batch", micro, large)


def _divisor_near(number: int, wanted: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - wanted), d))


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised training of a base policy on generated solutions: `sage-rlvr sft recipe.yaml`.

    seed: of weights and data order. steps: optimizer steps. batch_size: examples a step. task: in place of `world`, one with
    `examples` and `characters`. model: sizes of one from scratch, or an existing one (a folder, a Hub id), which goes on with its
    own tokenizer and then needs no `characters`. The rest as in `TrainConfig`.
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

    added: ClassVar[tuple[str, ...]] = ("report_to", "task")  # see schema.dump

    def __post_init__(self) -> None:
        _check_run(self)
        _positive(self, "batch_size")
        spelled = isinstance(self.model, str) or hasattr(self.task, "characters")
        taught = self.task is None or (hasattr(self.task, "examples") and spelled)
        lacking = "a policy is trained from scratch on examples; give the task examples(split, seed, start, n) and characters"
        _require(taught, "task", getattr(self.task, "name", None), lacking)
        alone = "give task or world, not both: either says which problems are taught"
        _require(self.task is None or self.world == WorldConfig(), "task", getattr(self.task, "name", None), alone)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Supervised fine-tuning of an existing model before RL, on TRL: `sage-rlvr sft recipe.yaml` with engine.name trl.

    seed: of adapters and data order. epochs: passes over the rows. batch_size: rows an optimizer step. max_length: tokens of
    prompt and solution together; rows whose prompt is longer than half of it are left out (paper, E.2). numeric_answers:
    only rows whose answer is a number. model, data, optimizer: as in `TrainConfig`. Defaults: the paper's Table 7, and
    the learning rate of the released code, because the table's cell is blank.
    """

    seed: int = 3407
    epochs: int = 2
    batch_size: int = 1
    max_length: int = 2048
    numeric_answers: bool = True
    model: str
    data: DataConfig
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=2e-4, weight_decay=0.01, schedule="linear", warmup_steps=5)
    )
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(name="trl"))
    report_to: tuple[Tracker, ...] = ()

    added: ClassVar[tuple[str, ...]] = ("report_to",)  # see schema.dump

    def __post_init__(self) -> None:
        _positive(self, "epochs", "batch_size", "max_length")
        _not_negative(self, "seed")
        _require(self.engine.name == "trl", "engine.name", self.engine.name, "fine-tuning a model needs the engine trl")
        _require(bool(self.model.strip()), "model", self.model, "name a local folder, or a Hub id")


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Right and wrong completions of one problem, of sample stores (`sage-rlvr eval --samples`).

    attempts: a store of first attempts; losers are its wrong ones. again: a store of second attempts at its failed problems, guided
    or not; null for none. split: of the task, which the problems are from. most: winners of a problem at most; null for all.
    distinct: winners of a problem that have one text count once. seed: of the losers and of what SFT learns.
    share: of the right first attempts that SFT learns, 0.2 as published.
    """

    attempts: str
    again: str | None = None
    split: Literal["train", "validation", "test"] = "train"
    most: int | None = None
    distinct: bool = False
    seed: int = 0
    share: float = 0.2

    def __post_init__(self) -> None:
        _require(bool(self.attempts.strip()), "attempts", self.attempts, "name the folder of a sample store")
        _require(self.most is None or self.most > 0, "most", self.most, "must be above 0, or null for all")
        _not_negative(self, "seed")
        _require(0 < self.share <= 1, "share", self.share, "must be above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Training on the samples of stores: `sage-rlvr offline recipe.yaml`.

    loss: "sft" learns a share of the right first attempts; "dpo" prefers winners to losers, with `model` as its reference; "reward"
    trains a reward model, a linear head on the policy's last hidden state at the end of a completion. beta: of DPO (the paper
    states none; 0.1 is ours). batch_size: pairs, or completions of SFT, a step; the steps go over them again and again, each time
    in another order. model, task, seed, steps, optimizer: as in `TrainConfig`.
    """

    seed: int = 0
    steps: int
    batch_size: int = 16
    loss: Literal["sft", "dpo", "reward"]
    beta: float = 0.1
    model: str
    task: Task
    pairs: PairsConfig
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-5))
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    report_to: tuple[Tracker, ...] = ()

    def __post_init__(self) -> None:
        _check_run(self)
        _positive(self, "batch_size", "beta")
        _require(bool(self.model.strip()), "model", self.model, "name 'embedded', a local folder, or a Hub id")
        _require(self.engine.name == "loop", "engine.name", self.engine.name, OFF_TRL)


OFF_TRL = (
    "offline training runs on the loop alone: TRL's DPOTrainer counts every token of a completion, so that what an environment "
    "wrote between a policy's turns would be learned; write engine.name loop, or leave it out"
)


def task_of(config: TrainConfig) -> Task:
    """The task of a recipe: `task`; else the rows of `data`, judged as mathematics; else the generated `world`."""
    if config.task is not None:
        return config.task
    return config.world.build() if config.data is None else task_of_data(config.data)


def task_of_data(data: DataConfig) -> Task:
    """Rows of a data set, judged as mathematics."""
    from sage_rlvr.tasks.math import MathTask
    from sage_rlvr.tasks.prompts import FORMATS
    from sage_rlvr.tasks.rows import DataSource

    return MathTask(DataSource.of(data), FORMATS[data.prompt])


def task_named(name: str, template: str = "boxed") -> Task:
    """The task of a recipe file, or one by a word of `sage_rlvr.tasks.task_named`."""
    if name.endswith((".yaml", ".yml")):
        return task_of(load_config(TrainConfig, name))
    from sage_rlvr import tasks

    return tasks.task_named(name, template)


def world_of(name: str) -> WorldConfig:
    """The world of a recipe file (RL or SFT), or a named one of `sage_rlvr.tasks.countdown.WORLDS`; ConfigError for others."""
    from sage_rlvr.tasks.countdown import WORLDS

    if name.endswith((".yaml", ".yml")):
        return load_config(TrainConfig if "method" in load(name) else SftConfig, name).world  # type: ignore[attr-defined]
    if name not in WORLDS:
        raise ConfigError(f"world {name!r}: give a recipe file or one of {', '.join(WORLDS)}")
    return WorldConfig.of(WORLDS[name])
