"""Only the right, only the wrong, or both with weights: PSR, NSR and W-REINFORCE, which are REINFORCE in expectation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sage_rlvr.core.advantages.base import ADVANTAGES, Groups, checked, require_binary
from sage_rlvr.errors import ConfigError


@ADVANTAGES.register
@dataclass(frozen=True)
class Signed:
    """right * r - wrong * (1 - r), no baseline (arXiv 2506.01347). (1, 0) is PSR, (0, 1) NSR, (lambda, 1) W-REINFORCE.

    E[grad log pi] = 0, so its expected gradient is (right + wrong) grad P whatever the two are: REINFORCE, with beta in effect
    divided by right + wrong. What is published as their difference can come only from sampling noise, from dropping rows and
    normalizing by what is left, from clipping, or from several updates per rollout. DataError for rewards other than 0 and 1.
    """

    right: float = 0.1
    wrong: float = 1.0

    def __post_init__(self) -> None:
        if self.right < 0 or self.wrong < 0 or not 0 < self.right + self.wrong < float("inf"):
            raise ConfigError(
                f"Signed: right = {self.right!r}, wrong = {self.wrong!r}; give two numbers >= 0, not both 0: 1 and 0 are PSR, "
                "0 and 1 NSR, 0.1 and 1 the paper's W-REINFORCE."
            )

    @property
    def gives_labels(self) -> bool:
        """Whether A is the label itself, 0 or 1, as Pacs reads it."""
        return (self.right, self.wrong) == (1, 0)

    @property
    def equation(self) -> str:
        paid, fined = f"{self.right:g} r", f"{self.wrong:g} (1 - r)"
        return paid if not self.wrong else f"-{fined}" if not self.right else f"{paid} - {fined}"

    @property
    def ascends(self) -> str:
        total = f"{self.right + self.wrong:g}"
        return f"{total} grad P, P = P(right): as RLOO, with beta divided by {total}; only the noise differs"

    def __call__(self, rewards: Groups) -> Groups:
        values = checked(rewards, 1, "Signed")
        require_binary(values, "Signed", "LeaveOneOut, which is the same in expectation and takes any reward")
        return torch.where(values == 1, self.right, -self.wrong)
