"""The kind of extra that stores distinct correct answers and trains on them.

    L = L_method + weight * reduction_buffer [ per-token loss of stored answers ]        alone: without L_method

Combination. Any advantage, surrogate, anchor and reduction can be used with any buffer; a method has at most one. A part defines
how stored answers are trained on; what is stored, and which of it is used in a step, are keywords that all parts share (`Buffer`).

Storage. Completions that the verifier calls correct, each *answer* of a prompt once; two completions give the same answer
if `Task.answer_key` is equal, and `representative` selects the text that is stored for it. They come from

    policy  the completions of every rollout, kept or not by a rollout plan
    base    `base` samples of each training problem before step 0, by the run's base model at the run's temperature
    stored  correct ones of the run's base samples, of problems whose share of correct samples is above `base_above`
    file    lines {"problem": id, "completion": text}, verified before step 0; a wrong one raises an error
    oracle   every correct completion that the task lists of each training problem: an oracle, the upper bound of a task

A prompt has at most `answers` of them; the rule `evict` selects which one is removed. At most `pool` prompts have any; those
that have gone longest without a new answer are removed first. Eviction is deterministic.

One step. The correct completions of the rollout are added. Update number n (a step has several with `updates`) then samples
`prompts` prompts: the ones with the smallest -log(u) / w, u a random number of (seed, n, problem), so the result is a function
of seed, update and content. Each contributes all its answers, or `take` of them. A part with `fresh = False` samples before
adding.

Loss. A part returns a loss per token and a weight per answer; weights of a prompt's answers add up to 1, and the sum over
prompts is divided by `prompts`, so that a prompt without an answer adds 0. `reduction` belongs to the buffer.

State. `Answers` as tensors by name (`start`). Every checkpoint contains it; the samples of the base are in the checkpoint of
step 0. A resumed run adds and samples exactly what an uninterrupted run would have.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.extras.base import Extra, MethodParts
from sage_rlvr.core.extras.replay.answers import Answers, Bounds, Draw, Evict, Representative, drawn
from sage_rlvr.core.keys import Key
from sage_rlvr.core.reductions import FixedBudget, Reduction
from sage_rlvr.core.schedules import Schedule, as_schedule, show
from sage_rlvr.core.state import has_state
from sage_rlvr.errors import ConfigError

PerToken = Float[Tensor, "R T"]
OWN_REDUCTION = FixedBudget()
LINE = '{"problem": id, "completion": text}'
"""Form of a line in a file of answers."""


@dataclass(frozen=True, eq=False)
class StoredAnswers:
    """The stored answers of one update, or some of them.

    answers            (R,)
    owners             (R,), the index of each answer's prompt, ascending from 0
    requested_prompts  number of prompts that the update asked for
    whole, tokens      rows and tokens of the complete update
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
        """Mask of the counted tokens of the stored texts."""
        return self.answers.mask

    def of_owners(self, first: int, last: int) -> StoredAnswers:
        """Return the answers of the prompts from `first` to before `last`, numbered from 0."""
        rows = (self.owners >= first) & (self.owners < last)
        return replace(self, answers=self.answers.take(rows), owners=self.owners[rows] - first)

    def shares(self, logits: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """Return a softmax of `logits` over the answers of each prompt; zeros make it uniform."""
        prompts = int(self.owners.max()) + 1
        logits = logits.detach().double()
        top = torch.full((prompts,), -math.inf, dtype=torch.float64).scatter_reduce(0, self.owners, logits, "amax")
        mass = (logits - top[self.owners]).exp()
        total = torch.zeros(prompts, dtype=torch.float64).index_add(0, self.owners, mass)
        return (mass / total[self.owners]).float()


@dataclass(frozen=True, kw_only=True)
class Buffer(Extra):
    """A store of correct answers, with the rules for what is stored and which of it a step trains on; a subclass defines the loss.

    weight: weight of the buffer's loss term. alone: train without the policy gradient; the method's advantage and
    surrogate are unused. policy: store the correct completions of every rollout. base: number of base-model samples per
    training problem before step 0. base_prompts: sample only the first N problems. file: .jsonl with a problem's id and
    a correct completion on each line. oracle: every correct completion that the task lists, before step 0 (an oracle).
    answers: maximum number of distinct answers per prompt. pool: maximum number of prompts with answers.
    representative: the text that represents an answer (first, newest, shortest, likeliest under the policy that wrote
    it). evict: which answer of a full prompt is evicted (oldest, newest, commonest). prompts: prompts per update. take:
    answers per prompt and update, at random; null: all. draw: from which prompts: any with an answer, those of the
    step, or preferably hard ones, by failure rate. reduction: the reduction of this term.

    A subclass also has `equation` (the loss of a token as one line) and `legend`; `ascends` and `prefers` describe this term.
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

    kind_name: ClassVar[str] = "buffer"

    @property
    def fresh(self) -> bool:
        """True, the default, if a step may also sample what its own rollout has added."""
        return True

    @property
    def base_above(self) -> float | None:
        """Share of correct samples above which the correct ones of a problem's base samples are stored; None: none are."""
        return None

    @property
    def reads_advantages(self) -> bool:
        """True if the stored answers include the advantages of their rollout."""
        return False

    def __post_init__(self) -> None:
        who = type(self).__name__
        for name, least in (("base", 0), ("base_prompts", 1), ("answers", 1), ("pool", 1), ("prompts", 1), ("take", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{who}: {name} = {value!r} must be at least {least}.")
        if not (self.policy or self.base or self.file or self.oracle or self.base_above is not None):
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
        """Return the loss per token (R, T), the weight (R,) of each stored answer, and metrics that are sums over rows / whole.

        Args:
            logps: (R, T) in the graph, 0 off the mask.
            rows: the answers. The weights of a prompt's answers should add up to 1.
        """

    @property
    def needs(self) -> frozenset[str]:
        """Signals of the rollout that it reads: the answer of each completion."""
        answers = frozenset({"answers"}) if self.policy else frozenset[str]()
        return answers if self.base_above is None else answers | {"base_counts"}

    @property
    def files(self) -> tuple[str, ...]:
        """The `file` of answers, if set."""
        return () if self.file is None else (self.file,)

    @property
    def file_contents(self) -> str:
        """Form of a line of that file."""
        return f"lines {LINE}"

    def conflict(self, method: MethodParts) -> str:
        """Return the reason if the buffer cannot be combined with the method; "" if it can."""
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
        """Return the state before the first step: no answers."""
        return Answers.none().tensors()

    def weight_at(self, step: int, total_steps: int) -> float:
        """Return the weight at a step. Raise ConfigError if a schedule leaves [0, inf)."""
        value = as_schedule(self.weight)(step, total_steps)
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"{type(self).__name__}: weight is {value} at step {step} of {total_steps}; use a schedule that stays "
                ">= 0."
            )
        return value

    def rows(self, kept: Answers, number: int, key: Key, now: Int[Tensor, " K"] | None = None) -> StoredAnswers:
        """Return what update `number` trains on; `now` are the problems of the step, for draw = "step"."""
        rows, owners = drawn(kept, self.draw, self.prompts, self.take, number, key, now)
        few = kept.take(rows)
        width = int(few.lengths.max()) if len(few) else 0
        few = replace(few, tokens=few.tokens[:, :width], logps=few.logps[:, :width])
        return StoredAnswers(few, owners, self.prompts, len(rows), int(few.lengths.sum()))

    def control(self) -> Buffer | None:
        """Return the buffer of a control arm, which differs only in the effect that this part claims; None if there is none."""
        return None

    def whole_prompts(self) -> None:
        """Raise ConfigError if `take` would cut a distribution over a prompt's answers."""
        if self.take is not None:
            raise ConfigError(
                f"{type(self).__name__}: take = {self.take} would drop answers that the weights are normalized over; "
                "limit answers instead."
            )

    def only(self, source: str, why: str) -> None:
        """Raise ConfigError unless all answers come from this source."""
        others = {"policy": self.policy, "base": bool(self.base), "file": self.file is not None, "oracle": self.oracle}
        if not others.pop(source) or any(others.values()):
            raise ConfigError(
                f"{type(self).__name__}: {why}; set {', '.join(_ONLY[source])}, or use Likelihood, which needs neither."
            )

    @property
    def lines(self) -> list[str]:
        """The term of stored answers, as `describe` prints it: what it weighs, where they come from, which of them a step takes."""
        sources = ["every rollout"] * self.policy
        if self.base:
            most = "each training problem" if self.base_prompts is None else f"the first {self.base_prompts:,} training problems"
            sources.append(f"{self.base} samples of {most} from the base model before step 0")
        if self.base_above is not None:
            share = f"{self.base_above:g} of the samples"
            sources.append(f"the base model's stored samples, of problems of which more than {share} are right")
        sources += [f"the file {self.file}"] * (self.file is not None)
        sources += ["all right answers that the task lists (an oracle)"] * self.oracle
        some = "all its answers" if self.take is None else f"{self.take} of its answers"
        drawn_from = {"any": "with an answer", "step": "of the step with an answer", "hard": "with an answer, hard ones first"}
        earlier = "" if self.fresh else " as it was before this step"
        return [
            f"  {show(self.weight)} * {self.reduction.equation} B/P w(y_i) [ {self.equation} ]",
            f"  over B stored right answers of P = {self.prompts} prompts; {self.legend}",
            f"  stored: distinct right answers of {' and of '.join(sources)}; at most {self.answers} per prompt, the "
            f"{self.evict} is evicted",
            f"  an update draws {self.prompts} prompts {drawn_from[self.draw]}, from each {some}{earlier}",
            f"  among texts with the same answer the {self.representative} is stored",
            f"  expected gradient: {self.ascends}",
            *([f"  among right answers of a prompt: {self.prefers}"] if self.alone and self.prefers else []),
        ]


_ONLY = {
    "policy": ("policy=True", "base=0", "file=None", "oracle=False"),
    "base": ("policy=False", "base=16 or another number of samples", "file=None", "oracle=False"),
}


def buffer_budget(buffer: Buffer, rows: StoredAnswers, max_tokens: int | None) -> float:
    """Return the divisor of the buffer's reduction, from the rows of a complete update."""
    return buffer.reduction.budget(rows.mask, max_tokens)


def buffer_loss(
    buffer: Buffer, logps: PerToken, rows: StoredAnswers, budget: float
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Return the buffer's term before its weight, and its metrics `buffer/...`; both add up over micro-batches of complete prompts.

    Args:
        buffer: the part.
        logps: (R, T) of the stored texts under the policy, in the graph, on any device; values off the mask are ignored.
        rows: the answers. Without any the term is 0 and the part is not called.
        budget: `buffer_budget` of the complete update.
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
