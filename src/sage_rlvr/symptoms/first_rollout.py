"""Input of preflight: one rollout of a run before any update. on_loop.py and on_trl.py make it, the checks read it."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sage_rlvr.verifiers.reasons import Elsewhere, Reasons

PROMPTS, COMPLETIONS, MOST = 8, 64, 32
CAP = 5.0  # nats; a larger surprise counts as this
TIMES = 1000  # updates of which the rate is computed
RARE = 1e-4  # chance that samples of the policy are outside of `Surplus.margin`


def prompts_to_draw(group_size: int) -> int:
    """Prompts by default: eight, or as many as give 64 completions, 32 at most."""
    return min(MOST, max(PROMPTS, -(-COMPLETIONS // group_size)))


@dataclass(frozen=True)
class Names:
    """Names of the settings in the place where they are changed."""

    limit: str = "rollout.max_new_tokens"
    group_size: str = "rollout.group_size"
    prompts: str = "rollout.prompts_per_step"
    lr: str = "optimizer.lr"
    beta: str = "method.beta"
    dtype: str = "engine.dtype"
    reuse: str = "updates"
    reference: str = "base_model"
    temperature: str = "rollout.temperature"
    warmup: str = "optimizer.warmup_steps"


TRL_NAMES = Names(
    "max_completion_length",
    "num_generations",
    "generation_batch_size",
    "learning_rate",
    "beta",
    "model_init_kwargs={'dtype': ...}",
    "steps_per_generation, num_iterations",
    "the model's adapter, or ref_model",
    "temperature",
    "warmup_steps, warmup_ratio",
)


@dataclass(frozen=True)
class PromptSeen:
    """A prompt: the row's part (text or messages), and the policy's input."""

    given: Any
    ids: tuple[int, ...]
    text: str

    @property
    def turns(self) -> int:
        """Turns of the assistant in the messages given; 0 for a text."""
        return 0 if isinstance(self.given, str) else sum(message.get("role") == "assistant" for message in self.given)


@dataclass(frozen=True)
class CompletionSeen:
    """A completion of prompt number `prompt`. cut: at the length limit. reward: None if it has none, or no number. answered:
    whether a tool or an environment wrote a part of it. place: its number in the rollout, where two may have one text."""

    prompt: int
    ids: tuple[int, ...]
    text: str
    cut: bool
    reward: float | None = None
    raw: Any = None
    answered: bool = False
    place: int | None = None

    def call(self) -> PayCall:
        """The completion, to be judged again."""
        return PayCall(self.prompt, self.text, place=self.place)


@dataclass(frozen=True)
class PayCall:
    """A text to be judged under prompt number `prompt`. gold: the row whose gold and other columns are used instead; swap:
    column -> the column whose value replaces it. place: of a completion of the rollout, its number; None for any other text."""

    prompt: int
    text: str
    gold: int | None = None
    swap: Mapping[str, str] = field(default_factory=dict)
    place: int | None = None


class Payer(ABC):
    """The reward of a run. names: names of its functions; columns: columns of a row that it may read."""

    names: tuple[str, ...] = ("the verifier",)
    columns: tuple[str, ...] = ()
    rows: int = 0
    """Rows in their order, whose golds may be used; row n belongs to prompt n."""

    @property
    def weights_of_parts(self) -> Mapping[str, float]:
        """Name of a function -> its weight in the reward; {} for one function."""
        return {}

    @abstractmethod
    def pay(self, calls: Sequence[PayCall]) -> list[Any]:
        """The reward of each call: a number, or whatever the function returns instead. An error of the reward is raised."""

    @abstractmethod
    def golds(self, row: int) -> dict[str, str]:
        """Column -> right answers of a row as texts; {} if none is known."""

    def cells(self, row: int) -> Mapping[str, Any]:
        """Column -> the value that the reward gets, of a row."""
        return {}


@dataclass(frozen=True)
class Surplus:
    """The surprise -log p of sampled tokens above its expectation under the policy, both capped at `CAP`.

    total: its sum, nats; variance: that of the sum, for samples of the policy; tokens: their number. Expectation and variance are
    exact, from the policy's distributions: a standard error from few samples is far too small if rare tokens are not among them.
    """

    total: float
    variance: float
    tokens: int

    @property
    def mean(self) -> float:
        """Nats per token; 0 on average for samples of the policy."""
        return self.total / max(1, self.tokens)

    @property
    def margin(self) -> float:
        """The largest mean, on either side of 0, that samples of the policy have but for a chance of `RARE`: Freedman's inequality,
        which also holds for few tokens."""
        log = math.log(2 / RARE)
        jump = log * CAP / 3
        return (jump + math.sqrt(jump * jump + 2 * log * self.variance)) / max(1, self.tokens)


@dataclass(frozen=True)
class RateSchedule:
    """The rates of a run's updates, over the rate in the settings. warmup: updates of the warm-up; updates: those of the run."""

    mean: float = 1.0
    highest: float = 1.0
    warmup: int = 0
    updates: int = 0

    @classmethod
    def of(cls, rate: Callable[[int], float], updates: int, warmup: int) -> RateSchedule:
        """Compute it from the rates, of some thousand updates if there are more. rate: number of an update -> share."""
        shares = [rate(step) for step in range(0, max(1, updates), max(1, updates // TIMES))]
        return cls(sum(shares) / len(shares), max(shares), warmup, updates)

    @property
    def short(self) -> bool:
        """Whether the run ends within its warm-up."""
        return self.warmup > self.updates


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run's use of its rollouts.

    prompts, group_size      per step
    updates                  optimizer steps of one rollout
    steps                    rollouts of the run
    lr, beta                 the settings
    schedule                 rates of the run's updates over lr
    parameters, trained      of the model
    rms, dtype               root mean square of the trained weights, and their type
    changed, changed_in_all  share of the weights that an update at the highest rate changes, and that all updates change, which is
                             another number if a float32 copy exists; None in float32
    positions                of the model
    refills                  draws after the first, of dynamic sampling
    kl_mean                  KL to the reference in this rollout, nats per token
    gap                      (mean, its standard error) of the difference of the log-probs of sampler and scorer
    surplus                  surprise of the sampled tokens above that of the policy's own
    masked                   share of completions that a correction would mask
    sampling                 a truncated sampling, in words
    """

    prompts: int
    group_size: int
    updates: int = 1
    steps: int = 1
    lr: float = 0.0
    schedule: RateSchedule = RateSchedule()
    beta: float = 0.0
    parameters: int = 0
    trained: int = 0
    rms: float = math.nan
    dtype: str = "float32"
    changed: float | None = None
    changed_in_all: float | None = None
    positions: int | None = None
    refills: int | None = None
    kl_mean: float | None = None
    gap: tuple[float, float] | None = None
    surplus: Surplus | None = None
    masked: float | None = None
    sampling: str = ""
    temperature: float = 1.0
    entropy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Price:
    """Cost of a step: measured seconds of sampling, and of a reward call; the prediction of a probe in lines, and whether
    it fits."""

    sampling: float = math.nan
    reward: float = math.nan
    lines: tuple[str, ...] = ()
    fits: bool = True
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstRollout:
    """One rollout without an update.

    limit: number of new tokens. longer: samples some completions at another limit -> (length, cut) of each. failure: the error that
        the reward raised, else None. reasons, elsewhere: statistics of the verdicts, if the run has a verifier of this package.
        floor: k -> chance floor.
    """

    names: Names
    tokenizer: Any
    template_options: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[PromptSeen, ...]
    completions: tuple[CompletionSeen, ...]
    limit: int
    payer: Payer
    plan: RunPlan
    price: Price = Price()
    longer: Callable[[int], list[tuple[int, bool]]] | None = None
    failure: BaseException | None = None
    padding_side: str = "left"
    reasons: Reasons | None = None
    elsewhere: Elsewhere | None = None
    read_at: str = ""
    floor: Callable[[int], float] | None = None
    audits: tuple[str, ...] = ()
    """Findings of an audit of the verifier, in lines."""
    right_from: float = 1.0

    @cached_property
    def groups(self) -> list[list[CompletionSeen]]:
        """The completions by prompt."""
        return [[one for one in self.completions if one.prompt == number] for number in range(len(self.prompts))]

    @cached_property
    def rewards(self) -> list[float]:
        """The rewards that are finite numbers."""
        return [one.reward for one in self.completions if one.reward is not None and math.isfinite(one.reward)]

    @cached_property
    def golds(self) -> list[tuple[str, ...]]:
        """The golds of each prompt's row, as texts."""
        return [tuple(self.payer.golds(number).values()) for number in range(len(self.prompts))]

    def contains_gold(self, one: CompletionSeen, prompt: int | None = None) -> bool:
        """Whether a completion contains a gold of its prompt, or of another one, as whole words."""
        return any(contains(one.text, gold) for gold in self.golds[one.prompt if prompt is None else prompt])

    @property
    def mixed(self) -> int:
        """Groups with more than one reward."""
        return sum(len({one.reward for one in group}) > 1 for group in self.groups)

    @property
    def stuck(self) -> bool:
        """Whether no group has a signal."""
        return self.mixed == 0

    @property
    def cut(self) -> float:
        """Share of completions that met the limit."""
        return sum(one.cut for one in self.completions) / max(1, len(self.completions))

    def examples(self, *, wrong: bool = True) -> tuple[str, ...]:
        """The three shortest texts with the lowest reward."""
        some = sorted(self.completions, key=lambda one: ((one.reward or 0.0) if wrong else 0.0, len(one.text)))
        return tuple(dict.fromkeys(one.text for one in some))[:3]


def contains(text: str, part: str) -> bool:
    """Whether a text contains another one as whole words, in upper or lower case."""
    return bool(part) and re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text, re.IGNORECASE) is not None


__all__ = [
    *("TRL_NAMES", "CompletionSeen", "FirstRollout", "Names", "PayCall", "Payer", "Price", "PromptSeen", "RunPlan", "RateSchedule"),
    *("Surplus", "contains", "prompts_to_draw"),
]
