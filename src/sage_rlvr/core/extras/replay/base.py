"""The kind of extra that stores distinct right answers and trains on them.

    L = L_method + weight * reduction_buffer [ per-token loss of stored answers ]        alone: without L_method

Where it stands. Any advantage, surrogate, anchor and reduction goes with any buffer; a method has at most one. A part says what
trains on the stored answers; what is stored, and which of it enters a step, are keywords that all parts share (`Buffer`).

What is stored. Completions that the verifier calls right, each *answer* of a prompt once; two completions give the same answer
where `Task.answer_key` says so, and `representative` says which text of them stands for it. They come from

    policy  the completions of every rollout, kept or not by a rollout plan
    base    `base` samples of each training problem before step 0, by the run's base model at the run's temperature
    file    lines {"problem": id, "completion": text}, verified before step 0; a wrong one raises an error
    oracle   every right completion that the task lists of each training problem: an oracle, the upper bound of a task

A prompt has at most `answers` of them; the rule `evict` says which goes. At most `pool` prompts have any; those go
first that have gone longest without an answer. Eviction is deterministic.

One step. The right completions of the rollout are added. Update number n (a step has several with `updates`) then draws
`prompts` prompts: the ones with the smallest -log(u) / w, u a number of (seed, n, problem), so the draw is a function of seed,
update and content. Each brings all its answers, or `take` of them. A part with `fresh = False` draws before adding.

The loss. A part gives a loss per token and a weight per answer; weights of a prompt's answers add up to 1, and the sum over
prompts is divided by `prompts`, so that one without an answer adds 0. `reduction` is the buffer's own.

State. `Answers` as tensors by name (`start`), in and out; it lies in every checkpoint, the samples of the base in that of step
0. A resume adds and draws what an uninterrupted run would have.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.extras.base import Extra, MethodParts
from sage_rlvr.core.extras.replay.answers import Answers, Bounds, Draw, Evict, Representative, drawn
from sage_rlvr.core.keys import Key
from sage_rlvr.core.reductions import FixedBudget, Reduction
from sage_rlvr.core.schedules import Schedule, as_schedule
from sage_rlvr.core.state import has_state
from sage_rlvr.errors import ConfigError

PerToken = Float[Tensor, "R T"]
OWN_REDUCTION = FixedBudget()
LINE = '{"problem": id, "completion": text}'
"""Of a file of answers."""


@dataclass(frozen=True, eq=False)
class StoredAnswers:
    """The stored answers of one update, or some of them: `answers` (R,) of prompts `owners` (R,), ascending from 0.

    requested_prompts: prompts that the update asked for; whole, tokens: rows and tokens of the whole update.
    """

    answers: Answers
    owners: Int[Tensor, " R"]
    requested_prompts: int
    whole: int
    tokens: int

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def mask(self) -> Bool[Tensor, "R T"]:
        """Which tokens of the stored texts count."""
        return self.answers.mask

    def of_owners(self, first: int, last: int) -> StoredAnswers:
        """The answers of the prompts from `first` to before `last`, numbered from 0."""
        rows = (self.owners >= first) & (self.owners < last)
        return replace(self, answers=self.answers.take(rows), owners=self.owners[rows] - first)

    def shares(self, logits: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """A softmax of `logits` over the answers of each prompt; zeros make it uniform."""
        prompts = int(self.owners.max()) + 1
        logits = logits.detach().double()
        top = torch.full((prompts,), -math.inf, dtype=torch.float64).scatter_reduce(0, self.owners, logits, "amax")
        mass = (logits - top[self.owners]).exp()
        total = torch.zeros(prompts, dtype=torch.float64).index_add(0, self.owners, mass)
        return (mass / total[self.owners]).float()


@dataclass(frozen=True, kw_only=True)
class Buffer(Extra):
    """What is stored, and which of it a step trains on; a part says how.

    weight: weight of the buffer's loss term. alone: train without the policy gradient; the method's advantage and
    surrogate are unused. policy: store the right completions of every rollout. base: number of base-model samples per
    training problem before step 0. base_prompts: sample only the first N problems. file: .jsonl with a problem's id and
    a right completion on each line. oracle: every right completion that the task lists, before step 0 (an oracle).
    answers: maximum number of distinct answers per prompt. pool: maximum number of prompts with answers.
    representative: the text that stands for an answer (first, newest, shortest, likeliest under the policy that wrote
    it). evict: which answer of a full prompt is evicted (oldest, newest, commonest). prompts: prompts per update. take:
    answers per prompt and update, at random; null: all. draw: from which prompts: any with an answer, those of the
    step, or preferably hard ones, by failure rate. reduction: the reduction of this term.

    A part also has `equation`, the loss of a token as one line, `legend`, and what `ascends` and `prefers` say of this term.
    """

    weight: float | Schedule = 1.0
    alone: bool = False
    policy: bool = True
    base: int = 0
    base_prompts: int | None = None
    file: str | None = None
    oracle: bool = False
    answers: int = 16
    pool: int = 20_000
    representative: Representative = "first"
    evict: Evict = "oldest"
    prompts: int = 16
    take: int | None = None
    draw: Draw = "any"
    reduction: Reduction = OWN_REDUCTION

    is_kind: ClassVar[bool] = True

    if TYPE_CHECKING:  # read-only, so that a part may give each as a class attribute, a field or a property

        @property
        def fresh(self) -> bool:
            """Whether a step draws from what its own rollout has added too, as by default."""

        @property
        def reads_advantages(self) -> bool:
            """Whether what is stored has the advantages that it had in its rollout."""

    else:  # plain values: a field of a dataclass without a default would take a property for its default
        fresh = True
        reads_advantages = False

    def __post_init__(self) -> None:
        who = type(self).__name__
        for name, least in (("base", 0), ("base_prompts", 1), ("answers", 1), ("pool", 1), ("prompts", 1), ("take", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{who}: {name} = {value!r} must be at least {least}.")
        if not (self.policy or self.base or self.file or self.oracle):
            raise ConfigError(
                f"{who}: no answer would ever be stored; set policy=True (right completions of the run), base=16 "
                "(samples of the base before step 0) or file=... (.jsonl)."
            )
        if self.draw == "hard" and not (self.policy or self.base):
            raise ConfigError(
                f"{who}: draw='hard' prefers problems that failed before, but problems from a file or the task's list "
                "were never tried; set draw='any', or set policy=True or base=16."
            )
        if self.base_prompts is not None and not self.base:
            raise ConfigError(
                f"{who}: base_prompts = {self.base_prompts} without samples of the base; set base, or remove "
                "base_prompts."
            )
        if (self.file is not None or self.oracle) and self.representative == "likeliest":
            raise ConfigError(
                f"{who}: representative='likeliest' compares log-probs under the policy that wrote the texts, which "
                "texts from a file or the task lack; set 'first' or 'shortest'."
            )

    @abstractmethod
    def stored_loss(self, logps: PerToken, rows: StoredAnswers) -> tuple[PerToken, Float[Tensor, " R"], dict[str, float]]:
        """Loss per token (R, T) of the stored answers, weight (R,) of each, and numbers that are sums over rows / whole.

        logps: in the graph, 0 off the mask. The weights of a prompt's answers add up to 1 as a rule.
        """

    @property
    def needs(self) -> frozenset[str]:
        """Signals of the rollout that it reads: what each completion answers."""
        return frozenset({"answers"}) if self.policy else frozenset()

    @property
    def files(self) -> tuple[str, ...]:
        """Its `file` of answers."""
        return () if self.file is None else (self.file,)

    @property
    def file_contents(self) -> str:
        """The form of a line."""
        return f"lines {LINE}"

    def conflict(self, method: MethodParts) -> str:
        """Why the buffer cannot be part of the method, for the error; "" where it can."""
        if reason := self.twice(method):
            return reason
        if not self.alone:
            return ""
        if method.anchor is not None and not method.anchor.is_off:
            return (
                "with alone=True has no rollout in its loss and therefore no KL term; set beta=0, or alone=False to add a policy "
                "gradient with its KL."
            )
        if self.reads_advantages and (method.advantage.needs is not None or has_state(method.advantage)):
            return "with alone=True scores no rollout, so the advantage must only need rewards: set GroupNormalized or alone=False."
        return ""

    @property
    def hook(self) -> str:
        return "stored_loss"

    @property
    def rule(self) -> Bounds:
        """The bounds of what is stored."""
        return Bounds(self.answers, self.pool, self.representative, self.evict)

    def start(self) -> dict[str, Tensor]:
        """The state before the first step: no answer."""
        return Answers.none().tensors()

    def weight_at(self, step: int, total_steps: int) -> float:
        """The weight at a step. ConfigError if a schedule leaves [0, inf)."""
        value = as_schedule(self.weight)(step, total_steps)
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"{type(self).__name__}: weight is {value} at step {step} of {total_steps}; use a schedule that stays "
                ">= 0."
            )
        return value

    def rows(self, kept: Answers, number: int, key: Key, now: Int[Tensor, " K"] | None = None) -> StoredAnswers:
        """What update `number` trains on; now: the problems of the step, for draw = "step"."""
        rows, owners = drawn(kept, self.draw, self.prompts, self.take, number, key, now)
        few = kept.take(rows)
        width = int(few.lengths.max()) if len(few) else 0
        few = replace(few, tokens=few.tokens[:, :width], logps=few.logps[:, :width])
        return StoredAnswers(few, owners, self.prompts, len(rows), int(few.lengths.sum()))

    def control(self) -> Buffer | None:
        """The buffer of a control arm, which differs in what this part claims alone; None where there is none."""
        return None

    def whole_prompts(self) -> None:
        """ConfigError if `take` would cut a law over a prompt's answers."""
        if self.take is not None:
            raise ConfigError(
                f"{type(self).__name__}: take = {self.take} would drop answers that the weights are normalized over; "
                "limit answers instead."
            )

    def only(self, source: str, why: str) -> None:
        """ConfigError unless all answers come from this source."""
        others = {"policy": self.policy, "base": bool(self.base), "file": self.file is not None, "oracle": self.oracle}
        if not others.pop(source) or any(others.values()):
            raise ConfigError(
                f"{type(self).__name__}: {why}; set {', '.join(_ONLY[source])}, or use Likelihood, which needs neither."
            )


_ONLY = {
    "policy": ("policy=True", "base=0", "file=None", "oracle=False"),
    "base": ("policy=False", "base=16 or another number of samples", "file=None", "oracle=False"),
}


def buffer_budget(buffer: Buffer, rows: StoredAnswers, max_tokens: int | None) -> float:
    """What the buffer's reduction divides by, of the rows of a whole update."""
    return buffer.reduction.budget(rows.mask, max_tokens)


def buffer_loss(
    buffer: Buffer, logps: PerToken, rows: StoredAnswers, budget: float
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The buffer's term before its weight, and its metrics `buffer/...`; those of micro-batches of whole prompts add up.

    logps (R, T) of the stored texts under the policy, in the graph, on the CPU or not; anything may stand off the mask. Without
    rows it is 0, and the part is not asked.
    """
    if not len(rows):
        return logps.sum(), {"replay/logp": 0.0, "replay/loss": 0.0}
    mask = rows.mask.to(logps.device)
    inside = torch.where(mask, logps.float(), 0.0)
    per_token, weights, metrics = buffer.stored_loss(inside, rows)
    scale = rows.whole / rows.requested_prompts
    loss = buffer.reduction(per_token * (scale * weights.detach())[:, None].to(logps.device), mask, budget)
    sums = {"logp": float(inside.detach().sum()) / rows.whole, "loss": float(loss.detach())}
    return loss, {f"replay/{name}": value for name, value in (sums | metrics).items()}
