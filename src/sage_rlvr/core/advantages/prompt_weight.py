"""The kind of part that weighs prompts, by how many of their completions were right. Its parts are in prompts.py."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.advantages.base import Advantage, Groups, GroupSignals, checked, require_binary
from sage_rlvr.core.keys import Key
from sage_rlvr.core.parts import Part, check_part
from sage_rlvr.registry import Registry

Of = Literal["group", "base"]
PerPrompt = Float[Tensor, " P"]
COUNTED = {"group": "of the group's n completions", "base": "of the prompt's n stored samples of the base model"}


@dataclass(frozen=True, eq=False, repr=False)
class PromptWeight(Part):
    """Weight w_x >= 0 of a prompt, a function of how many of n completions were right.

    A subclass is a frozen dataclass with `of`, `equation` and `weigh`. ConfigError for a misspelled member.
    """

    @property
    def of(self) -> Of:
        """The completions that are counted: those of the step's group, or the base model's stored samples (`base_counts`)."""
        return "group"

    @property
    def gates(self) -> bool:
        """Whether every weight is 0 or 1."""
        return False

    @property
    def random(self) -> bool:
        """Whether it draws: the call gets the step and the run's `Key` after all else."""
        return False

    @abstractmethod
    def weigh(self, right: PerPrompt, tried: PerPrompt) -> PerPrompt:
        """Weights (P,), of `right` right ones among `tried`, both (P,) float64 on the CPU."""

    @property
    def legend(self) -> str:
        """The meaning of c and n."""
        return f"c right {COUNTED[self.of]}"

    @property
    def needs(self) -> frozenset[str]:
        """The stored counts, where those are weighed."""
        return frozenset({"base_counts"} if self.of == "base" else ())

    def raises(self, advantage: Advantage) -> str:
        """The objective that this weight times an advantage ascends in expectation; "" = not known."""
        if not advantage.ascends:
            return ""
        of_prompt = "a constant of the prompt" if self.of == "base" else "at c/n = P(right), for large G"
        return f"w_x * ({advantage.ascends}), w_x {of_prompt}"

    def __call__(self, verdicts: Groups, seen: GroupSignals, *drawn: int | Key) -> PerPrompt:
        """Weights (P,) float32 of the prompts with these verdicts (P, G). DataError for verdicts other than 0 and 1 of a group."""
        who = type(self).__name__
        if self.of == "base":
            right, tried = seen.require("base_counts", who)[:, 0].cpu().double().unbind(dim=1)
        else:
            labels = checked(verdicts, 1, who)
            require_binary(labels, who, advice="it counts right completions: use a verifier with right and wrong, or of: base")
            right = labels.sum(dim=1).cpu().double()
            tried = torch.full_like(right, labels.shape[1])
        return self.weigh(right, tried).float().to(verdicts.device)


PROMPT_WEIGHTS: Registry[type] = Registry(
    "prompt_weight",
    check=check_part(PromptWeight, "w"),
    form="sage_rlvr.core.PromptWeight as its base, equation and weigh(self, c, n)",
)
