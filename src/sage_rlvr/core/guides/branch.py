"""SAGE-Branch (arXiv 2605.18864, Eq. 11): q > 1 where the next token is uncertain."""

from __future__ import annotations

import math
import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from sage_rlvr.core.guides.base import GUIDES, Banded, DependsOn, PerToken, Source, batch_quantiles, require_source
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError


@GUIDES.register(label="Branch")
@dataclass(frozen=True)
class Branch(Banded):
    """q_t = 1 + ratio * ReLU(H_t - threshold), H_t the entropy at the prefix in nats (Eq. 11).

    `threshold` is in nats, or "p80": that percentile of the entropies of the batch's counted tokens, so that the
    same setting works for every vocabulary. `signal` takes H_t from the policy that generated the data or from the
    reference.

    threshold: entropy in nats, or a percentile as text. ratio: increase of q per nat above the threshold.
    """

    name: ClassVar[str] = "branch"
    threshold: float | str = 1.2
    _: KW_ONLY
    ratio: float = 0.3
    q_min: float = 0.6
    q_max: float = 1.4
    signal: Source = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_source("Branch", self.signal)
        if isinstance(self.threshold, str):
            self._share()
        elif not math.isfinite(self.threshold):
            raise ConfigError(f"Branch: threshold = {self.threshold!r}; set nats (1.2) or a text like 'p80'.")
        if not math.isfinite(self.ratio):
            raise ConfigError(f"Branch: ratio = {self.ratio!r} is not finite; the paper's value is 0.3.")

    def _share(self) -> float:
        """The percentile threshold as a share in [0, 1]."""
        text = str(self.threshold)
        share = float(text[1:]) / 100 if re.fullmatch(r"p\d+(\.\d+)?", text) else math.inf
        if share > 1:
            raise ConfigError(f"Branch: threshold = {text!r}; a percentile is written 'p80', from 'p0' to 'p100'.")
        return share

    def check_reach(self, logits: int) -> None:
        """Raise ConfigError for a threshold above ln(logits), the largest entropy over that many logits."""
        most = math.log(logits)
        if not isinstance(self.threshold, str) and self.threshold >= most:
            raise ConfigError(
                f"Branch: threshold = {self.threshold:g} nats is never exceeded: the policy has {logits:,} logits, "
                f"whose entropy is at most ln({logits}) = {most:.4g}, so q = 1 everywhere; set a lower threshold, or a "
                "percentile, for example 'p80'."
            )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_entropies" if self.signal == "reference" else "entropies"})

    @property
    def depends_on(self) -> DependsOn:
        return "batch" if isinstance(self.threshold, str) else "state"

    @property
    def reads_totals(self) -> bool:
        return True

    @property
    def equation(self) -> str:
        source = "pi_ref" if self.signal == "reference" else "pi_old"
        limit = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"1 + {self.ratio:g} * relu(H_t[{source}] - {limit})"

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
        """1 + ratio * relu(H - threshold), (B, T)."""
        (name,) = self.needs
        entropies = signals.require(name, "Branch")
        threshold: float | torch.Tensor
        if isinstance(self.threshold, str):
            (threshold,) = batch_quantiles(entropies, signals.mask, [self._share()], signals.total)
        else:
            threshold = self.threshold
        return 1.0 + self.ratio * torch.relu(entropies - threshold)
