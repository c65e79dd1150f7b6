"""Inputs of guides, advantages and objectives: `Signals` of a generation batch and `Batch` of one update.

Shapes: P prompts, G completions per prompt, B = P * G rows (row-major: row p * G + g), T columns, d hidden
size. All log-probabilities and entropies are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.laws import Laws
from sage_rlvr.errors import ConfigError, DataError, choose_from

Mask = Bool[Tensor, "B T"]  # true at counted tokens


def _detached(value: Tensor) -> Tensor:
    return value.detach().to(torch.float32)


@dataclass(frozen=True, eq=False)
class Signals:
    """The signals of the completions of one step, detached and in float32 for any input dtype.

    old_logps, ref_logps   (B, T) log pi_old, log pi_ref of the sampled tokens; ref_logps may be None if unused
    mask                   (B, T) true at counted completion tokens; values elsewhere are ignored, also NaN
    row_ids                (B,)   number of the completion within the step, unchanged by shuffles and micro-batches
    entropies, ref_entropies (B, T) entropy at the prefix, temperature-scaled, untruncated, of policy and reference
    rewards (B,), hidden (B, T, d)
    answers                (B,)   int64, equal within a group iff two completions give the same answer; 0 for none
    problems               (B,)   int64, the problem of the row, the same number each time the problem is asked
    ref_right              (B,)   log-probability of a correct completion of the row's problem under the reference, exact
    advantages             (B,)   before token weights, for those
    entropy_drift          (B, T) sum_a pi_a^2 (log pi_a + H) of the state, policy, temperature-scaled, untruncated
    base_counts            (B, 2) int64, stored samples of the base model for the row's problem: the correct ones, and all
    places                 (B, T) int64, `ids.name_id` of the task's class of the state before each token
    Raises DataError for a shape that does not fit or for row_ids that repeat.
    """

    old_logps: Float[Tensor, "B T"]
    ref_logps: Float[Tensor, "B T"] | None
    mask: Bool[Tensor, "B T"]
    row_ids: Int[Tensor, " B"]
    entropies: Float[Tensor, "B T"] | None = None
    ref_entropies: Float[Tensor, "B T"] | None = None
    rewards: Float[Tensor, " B"] | None = None
    hidden: Float[Tensor, "B T d"] | None = None
    answers: Int[Tensor, " B"] | None = None
    problems: Int[Tensor, " B"] | None = None
    ref_right: Float[Tensor, " B"] | None = None
    advantages: Float[Tensor, " B"] | None = None
    entropy_drift: Float[Tensor, "B T"] | None = None
    places: Int[Tensor, "B T"] | None = None
    base_counts: Int[Tensor, "B 2"] | None = None

    def __post_init__(self) -> None:
        for name in ("old_logps", "ref_logps", "entropies", "ref_entropies", "rewards", "hidden", "ref_right"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _detached(value))
        object.__setattr__(self, "mask", self.mask.detach().bool())
        object.__setattr__(self, "row_ids", self.row_ids.detach().long())
        self._check_shapes()

    def _check_shapes(self) -> None:
        rows = tuple(self.mask.shape[:1])
        wanted = {
            "row_ids": rows,
            "rewards": rows,
            "answers": rows,
            "problems": rows,
            "ref_right": rows,
            "advantages": rows,
            "base_counts": (*rows, 2),
            "hidden": tuple(self.mask.shape),
        }
        for one in fields(self):
            value, shape = getattr(self, one.name), wanted.get(one.name, tuple(self.mask.shape))
            actual = None if value is None else tuple(value.shape[:2] if one.name == "hidden" else value.shape)
            if actual is not None and actual != shape:
                raise DataError(f"Signals.{one.name} has shape {actual}, but the mask has shape {shape}.")
        if len(set(self.row_ids.tolist())) != self.row_ids.numel():
            raise DataError(
                "Signals.row_ids repeat; number the completions of a step 0..B-1, so that noise differs between them."
            )

    def take(self, rows: Int[Tensor, " N"], row_ids: Int[Tensor, " N"] | None = None) -> Signals:
        """Return these rows as a batch, in this order; a row may occur in it several times.

        row_ids: their numbers, which must not repeat; None numbers them anew from 0.
        """
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "row_ids"}
        taken: dict[str, Any] = {name: None if value is None else value[rows] for name, value in columns.items()}
        return Signals(row_ids=torch.arange(len(rows)) if row_ids is None else row_ids, **taken)

    def total(self, counts: Tensor) -> Tensor:
        """Return the sum of counts over all rows of the batch; an engine whose processes hold some of them each overrides it."""
        return counts

    @property
    def positions(self) -> Int[Tensor, "B T"]:
        """Return the index of each counted token among the counted tokens of its row, -1 elsewhere; padding does not change it."""
        return torch.where(self.mask, torch.cumsum(self.mask.long(), dim=1) - 1, -1)

    def require(self, name: str, who: str) -> Tensor:
        """Return the signal called `name`; raise DataError that names `who` if the signal was not computed."""
        if name not in FIELDS:
            raise DataError(f"{who} reads Signals.{name}, which does not exist{choose_from(name, FIELDS)}")
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            raise DataError(f"{who} needs Signals.{name}, which is None; compute it in the engine (see method.needs).")
        return value


FIELDS = tuple(field.name for field in fields(Signals))
NEEDS = (*FIELDS, "logps", "entropy_gradient", "distributions")
"""Names that a part may list in `needs`; the last three are of the update, see `Method.needs`."""


def check_needs(who: str, needs: object) -> frozenset[str]:
    """Return the `needs` of a part; empty for None, and for a property of a class. Raise ConfigError for an unknown name.

    who: the part, as messages call it.
    """
    if isinstance(needs, str):
        raise ConfigError(f"{who}: needs = {needs!r}: a set of names is expected: frozenset({{{needs!r}}})")
    names = frozenset(needs) if isinstance(needs, (frozenset, set, tuple, list)) else frozenset()
    for name in names.difference(NEEDS):
        raise ConfigError(f"{who}: needs {name!r}, which is not a signal{choose_from(name, NEEDS)}")
    return names


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of one update, or of one micro-batch of it.

    logps       (B, T) log pi_theta of the sampled tokens, in the graph
    old_logps   (B, T) of the policy that generated them; ref_logps (B, T) of the reference, None without an anchor
    mask        (B, T) bool; advantages (B,) or (B, T); log_q (B, T) from `shape`, None = 0
    entropies   (B, T) detached, only for the metrics; of the current policy and in the graph if method.needs has "entropy_gradient"
    max_tokens  the longest completion that sampling allowed, for the fixed-budget reduction
    q_clamped   (B, T) bool from `q_clamped`, only for the metrics: true if a factor of q is at an edge of its band
    kl_weights  (B,) from `credit`, the factor of each row on beta of a KL in the loss; None = 1
    log_probs, ref_log_probs  (B, T, V) of every next token, or `Laws` of a large vocabulary, the first in the graph; only estimator
                "exact" reads them
    group_size  completions of a prompt if the batch contains complete groups in order; else None
    loss_weights  (B, T) from `credit`, of each extra that weights its term of the loss, by the extra's slot
    weights     (B,) factor on a row's share of the loss; None = 1. Rows that represent completions listed with their
                probabilities p_i have B * p_i, so that the mean over rows is the expectation (lab/theory/tree.py).
    """

    logps: Float[Tensor, "B T"]
    old_logps: Float[Tensor, "B T"]
    ref_logps: Float[Tensor, "B T"] | None
    mask: Bool[Tensor, "B T"]
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]
    log_q: Float[Tensor, "B T"] | None = None
    entropies: Float[Tensor, "B T"] | None = None
    max_tokens: int | None = None
    q_clamped: Bool[Tensor, "B T"] | None = None
    log_probs: Float[Tensor, "B T V"] | Laws | None = None
    ref_log_probs: Float[Tensor, "B T V"] | Laws | None = None
    weights: Float[Tensor, " B"] | None = None
    kl_weights: Float[Tensor, " B"] | None = None
    group_size: int | None = None
    loss_weights: Mapping[str, Float[Tensor, "B T"]] = field(default_factory=dict)


def masked_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float:
    """Return the mean over the counted tokens as a Python float; 0 if none is counted. Values elsewhere may be NaN."""
    total = torch.where(mask, values.detach().float(), 0.0).sum()
    return float(total / mask.sum().clamp(min=1))
