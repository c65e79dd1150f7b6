"""The parts that recipes share: the world, a rollout, its updates, optimizer, checkpoints, adapters, data, engine and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from sage_rlvr.errors import require
from sage_rlvr.tasks.countdown import Countdown


def positive(config: Any, *names: str) -> None:
    """Raise ConfigError unless each of these fields is above 0."""
    for name in names:
        require(getattr(config, name) > 0, name, getattr(config, name), "must be above 0")


def not_negative(config: Any, *names: str) -> None:
    """Raise ConfigError unless each of these fields is 0 or above."""
    for name in names:
        require(getattr(config, name) >= 0, name, getattr(config, name), "must not be negative")


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The distribution of generated problems.

    name: the task.
    counts: how many numbers per problem (2 to 5) -> weight, on any scale.
    max_number: largest number.
    min_target, max_target: bounds of the target, both included.
    targets: "expression" draws problems by their number of solutions, "uniform" draws the target evenly among those that the
        numbers reach.
    train_problems: size of the training pool.
    data_seed: seed of the problems, separate from the seed of the run, so that runs share their data.
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
        positive(self, "train_problems")
        not_negative(self, "data_seed")
        self.build()

    @classmethod
    def of(cls, world: Countdown) -> WorldConfig:
        """Return the configuration of a world."""
        return cls(**{field.name: getattr(world, field.name) for field in fields(cls) if field.name != "name"})

    def build(self) -> Countdown:
        """Build the world; raise ConfigError for invalid settings (a size without expressions, an empty range of targets)."""
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
    """Sampling settings of one step.

    prompts_per_step: prompts P.
    group_size: completions G of each prompt.
    max_new_tokens: length limit of a completion, in tokens, the end token included.
    temperature: divides the logits; 1.0 samples the policy itself.
    """

    prompts_per_step: int = 32
    group_size: int = 8
    max_new_tokens: int = 24
    temperature: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "prompts_per_step", "max_new_tokens")
        require(
            self.temperature > 0, "temperature", self.temperature, "must be above 0; greedy sampling (0) does not explore"
        )
        require(
            self.group_size >= 2,
            "group_size",
            self.group_size,
            "an advantage compares completions of one prompt, so a group needs at least 2 (usually 8)",
        )

    @property
    def completions(self) -> int:
        """Completions per step: prompts_per_step * group_size."""
        return self.prompts_per_step * self.group_size


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """Use of one step's completions.

    epochs: passes over them.
    minibatches: optimizer updates per pass; groups are never split.
    micro_batch: groups in one forward pass, only to save memory (gradients add up to the same update); null is all groups of a
        mini-batch.
    skip_without_signal: which optimizer steps to leave out of those in which every advantage is 0 (each group's rewards are equal),
        so that the loss is only the KL term: never; at_start, those before the first step with a signal; always. AdamW scales such
        a step up to full size however small its gradient is. But a policy that has moved needs the KL's pull in them too: if
        rewards are rare, always acts like a smaller beta. Skipping leaves weights and moments unchanged.
    """

    epochs: int = 1
    minibatches: int = 1
    micro_batch: int | None = None
    skip_without_signal: Literal["never", "at_start", "always"] = "never"

    def __post_init__(self) -> None:
        positive(self, "epochs", "minibatches")
        require(
            self.micro_batch is None or self.micro_batch > 0,
            "micro_batch",
            self.micro_batch,
            "must be above 0, or null",
        )

    @property
    def once(self) -> bool:
        """True if a step is one update by one forward pass, which is then the old policy's own."""
        return self.per_step == 1 and self.micro_batch is None

    def skips(self, before_first: bool) -> bool:
        """Return True if an update without a signal is left out.

        before_first: no update has been made, and the moments are empty.
        """
        return self.skip_without_signal == "always" or (self.skip_without_signal == "at_start" and before_first)

    @property
    def per_step(self) -> int:
        """Optimizer steps of one step of the recipe: epochs * minibatches."""
        return self.epochs * self.minibatches


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning rate.

    lr: peak learning rate.
    beta1, beta2, eps: AdamW's.
    weight_decay: AdamW's, on all weights but biases and those of normalization layers, as in transformers' Trainer, in both
    engines.
    max_grad_norm: gradients are scaled down to this L2 norm; a huge number leaves them.
    schedule: shape of the learning rate after warmup_steps optimizer steps of linear rise; linear and cosine end at 0 with the run.
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
        positive(self, "lr", "eps", "max_grad_norm")
        not_negative(self, "weight_decay", "warmup_steps")
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")


Tracker = Literal["trackio", "wandb", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints. every: steps between two (the last step always has one). keep: number of the newest ones on disk."""

    every: int = 50
    keep: int = 2

    def __post_init__(self) -> None:
        positive(self, "every", "keep")


PEFT_NAMES = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}  # PEFT's name -> ours; a recipe takes both


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters instead of full fine-tuning (engines trl and verl).

    rank: of the update.
    alpha: its scale is alpha / rank; null is 2 * rank, as in the authors' code.
    dropout: on the adapter's input.
    target_modules: names of the layers, or "all-linear" for the attention and MLP projections.

    PEFT's names (r, lora_alpha, lora_dropout) are read too.
    """

    also: ClassVar[dict[str, str]] = PEFT_NAMES  # see schema.decode

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"

    def __post_init__(self) -> None:
        positive(self, "rank")
        require(self.alpha is None or self.alpha > 0, "alpha", self.alpha, "must be above 0, or null for 2 * rank")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must be in [0, 1)")
        require(len(self.target_modules) > 0, "target_modules", self.target_modules, "names no layer")

    @property
    def scale(self) -> float:
        """The value of alpha, filled in."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows with problems and gold answers, instead of generated problems.

    path: a Hub id (owner/name), or a local file (.jsonl, .json, .csv, .parquet) or folder of such.
    subset: the Hub's configuration name.
    split: likewise.
    revision: commit of the Hub's data; null is its newest, which may change.
    take: use only the first N rows; null for all.
    prompt: the prompt format (`sage_rlvr.tasks.prompts.FORMATS`), the same for SFT, RL and evaluation; "as_is" takes the rows' own
        prompts.
    answer_in, tag: where the answer is read instead of the format's place, which rows with prompts of their own need.
    thinking: the tag after which it is read (null: all known; "": none).
    in_thinking: whether the prompt opens the thinking.
    problem_column, answer_column: null looks for the usual names.
    allow_unverifiable: train although more than 1 % of the golds cannot be verified against themselves.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    take: int | None = None
    prompt: Literal["sage", "boxed", "as_is"] = "sage"
    answer_in: Literal["boxed", "tag", "stated", "last_number"] | None = None
    tag: str | None = None
    thinking: str | None = None
    in_thinking: bool = False
    problem_column: str | None = None
    answer_column: str | None = None
    allow_unverifiable: bool = False

    def __post_init__(self) -> None:
        require(bool(self.path.strip()), "path", self.path, "set a Hub id (owner/name), a local file or a folder")
        require(self.take is None or self.take > 0, "take", self.take, "must be above 0, or null for all rows")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine of the run.

    name: loop (the readable reference), trl (TRL's GRPOTrainer; the trl extra) or verl (its PPO trainer; the verl extra).
    threads: CPU threads (null: torch's choice); bitwise equality holds at equal thread counts.
    dtype: of the weights. On TRL and verl float32 wherever they are trained: an optimizer without float32 copies loses changes
        below 1/256 of a bfloat16 weight, and bfloat16 is for the frozen weights under adapters. On the loop bfloat16 keeps such
        copies, and a weight changes once its copy is about 1/512 of it away, so at small learning rates most weights do not change
        at first (optimizer/changed_frac); log-probs are float32; auto is bfloat16 on a GPU and on a CPU with instructions for it,
        else float32.
    args: fields of TRL's GRPOConfig (SFTConfig in an SFT recipe), or keys of verl's configuration, passed on unchanged.
    lora: adapters; null is full fine-tuning.
    device: of the loop: cpu (also null), cuda, mps, or auto, the first of cuda, mps and cpu that exists. A run is bitwise
    reproducible
        on a CPU. TRL and verl choose for themselves.
    reuse_sampling: of the loop: the update reads the activations that the sampler computed, if the method and the model allow
        it, instead of a forward of the policy. The log-probs are then the sampler's own, so the ratio is exactly 1; in bfloat16 the
        reference's differ from them by rounding. The run names its choice at the start.
    """

    name: Literal["loop", "trl", "verl"] = "loop"
    threads: int | None = 1
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    args: dict[str, Any] = field(default_factory=dict)
    lora: LoraConfig | None = None
    device: Literal["cpu", "cuda", "mps", "auto"] | None = None
    reuse_sampling: bool = False

    def __post_init__(self) -> None:
        require(
            self.threads is None or self.threads > 0,
            "threads",
            self.threads,
            "must be above 0, or null for torch's own",
        )
        external_only = "only for the engines trl and verl: set engine.name trl, or omit this key"
        require(self.name != "loop" or not self.args, "args", self.args, external_only)
        require(self.name != "loop" or self.lora is None, "lora", self.lora, external_only)
        other = "only for the loop, whose sampler and update are one engine: omit this key"
        require(self.name == "loop" or not self.reuse_sampling, "reuse_sampling", self.reuse_sampling, other)
        require(
            self.name == "loop" or self.device is None,
            "device",
            self.device,
            f"only for the loop; {self.name} selects the device itself: omit this key (on TRL, args: {{use_cpu: true}} selects "
            "the CPU)",
        )
        require(
            self.dtype != "auto" or self.name == "loop",
            "dtype",
            self.dtype,
            f"only for the loop; on {self.name} set float32, or bfloat16 with adapters (engine.lora)",
        )
        require(
            self.dtype == "float32" or self.lora is not None or self.name == "loop",
            "dtype",
            self.dtype,
            "the optimizer would update bfloat16 weights, where a change below 1/256 of a weight rounds to nothing, so "
            "most updates would have no effect: set float32 (on TRL with args: {bf16: true}, which computes in "
            "bfloat16 and keeps float32 weights), or train adapters (engine.lora)",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A small policy from scratch, in a stock transformers architecture.

    architecture: llama (RMS norms, rotary positions, SwiGLU) or gpt2 (layer norms, learned positions, GELU), without dropout.
    hidden, layers, heads, mlp: widths and counts; hidden is divisible by heads.
    positions: longest sequence in tokens.
    """

    architecture: Literal["llama", "gpt2"] = "llama"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    positions: int = 128

    def __post_init__(self) -> None:
        positive(self, "hidden", "layers", "heads", "mlp", "positions")
        whole = self.hidden % self.heads == 0 and self.hidden // self.heads % 2 == 0
        require(whole, "heads", self.heads, f"hidden = {self.hidden} must split into heads of an even width")


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Correct and wrong completions of one problem, from sample stores (`sage-rlvr eval --samples`).

    attempts: a store of first attempts; losers are its wrong ones.
    retries: a store of second attempts at its failed problems, with or without hints; null for none.
    split: of the task, which the problems are from.
    max_pairs: maximum number of winners of a problem; null for all.
    distinct: winners of a problem with the same text count once.
    seed: of the losers and of the SFT examples.
    share: of the correct first attempts that SFT learns, 0.2 as published.
    """

    attempts: str
    retries: str | None = None
    split: Literal["train", "validation", "test"] = "train"
    max_pairs: int | None = None
    distinct: bool = False
    seed: int = 0
    share: float = 0.2

    def __post_init__(self) -> None:
        require(bool(self.attempts.strip()), "attempts", self.attempts, "set the folder of a sample store")
        require(self.max_pairs is None or self.max_pairs > 0, "max_pairs", self.max_pairs, "must be above 0, or null for all")
        not_negative(self, "seed")
        require(0 < self.share <= 1, "share", self.share, "must be above 0 and at most 1")
