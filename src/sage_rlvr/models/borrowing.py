"""A policy whose next token comes from another policy at the states of some classes: shows what the base's choices there restore.

    next token ~ base     if the state after the text so far is of one of the classes
               ~ policy   otherwise

Both policies read every token; temperature and truncation apply to the one that is sampled from, and the log-probs are its own. The
task defines the classes (`tasks.abilities.ClassifiesStates`). A class belongs to a state, not to a token: a token sampled there may
contain more than the class's name suggests, such as an operator with a bracket, or the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from transformers import PreTrainedModel

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.models.generation import Decoding, SamplerGenerator
from sage_rlvr.models.interpolation import located
from sage_rlvr.models.llama.decoder import Folded, Plain
from sage_rlvr.models.policy import Tokens, load_policy
from sage_rlvr.models.sampler import Lender, decode_weights, prefill
from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.tasks.base import Task, turns_of


@dataclass(frozen=True)
class Borrowing:
    """The policy that samples from base at the states of these classes. policy, base: folders, Hub ids or names of `NAMED`.

    `sage_rlvr.evaluate` makes it; an evaluation by samples loads it.
    """

    policy: str
    base: str
    classes: tuple[str, ...]

    def load(self, dtype: str = "float32") -> tuple[PreTrainedModel, Tokens]:
        """Return the policy without its base."""
        return load_policy(self.policy, dtype)

    @property
    def revision(self) -> str:
        """Return the hash of both weights and the classes, the identity in a sample store."""
        parts = (located(self.policy), located(self.base), *sorted(self.classes))
        return hashlib.sha256("\n".join(("borrowing", *parts)).encode()).hexdigest()


def classes_of(task: Task, names: Sequence[str]) -> tuple[str, ...]:
    """Return these classes in the order of the task.

    Raise ConfigError for unknown ones, and for a task without classes or with episodes.
    """
    if not isinstance(task, ClassifiesStates):
        raise ConfigError(f"--at: task {task.name} has no classes of states; give it `state_classes` and `state_class(text)`")
    if turns_of(task) > 1:
        raise ConfigError(f"--borrow: task {task.name} has episodes, and classes of states are of one text; omit it")
    for name in names:
        if name not in task.state_classes:
            raise ConfigError(f"--at {name!r}: task {task.name} has no such class of states{choose_from(name, task.state_classes)}")
    return tuple(name for name in task.state_classes if name in names)


class BorrowingGenerator(SamplerGenerator):
    """`SamplerGenerator` that samples the next token from `base` after a text for which `at` is true. The weights of `base` must
    not change.

    together: as in `SamplerGenerator`; several prompts in one pass need an engine-shaped policy and base.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tokens,
        decoding: Decoding,
        base: PreTrainedModel,
        at: Callable[[str], bool],
        at_once: int = 4,
        together: bool = True,
    ) -> None:
        super().__init__(model, tokens, decoding, at_once, together)
        widths = [int(one.config.get_text_config().vocab_size) for one in (model, base)]
        if widths[0] != widths[1]:
            raise ConfigError(f"--borrow: the heads have {widths[0]:,} and {widths[1]:,} words; pass the model the policy is from")
        self.base, self.at = base, at

    @cached_property
    def _spelled(self) -> Callable[[int], str]:
        """Return a function from a token to its text by itself, as in the signal `places`."""
        return lru_cache(maxsize=None)(lambda token: str(self.tokens.tokenizer.decode([token])))

    def _lender(self, prompts: Sequence[Sequence[int]]) -> Lender:
        return Lender(self.base, prefill(self.base, prompts, self._base_weights), self._spelled, self.at)

    @cached_property
    def _base_weights(self) -> Folded | Plain | None:
        return decode_weights(self.base)


__all__ = ["Borrowing", "BorrowingGenerator", "classes_of"]
