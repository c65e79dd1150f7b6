"""A world of episodes for tests: name the digit that is asked for; the environment says how the last turn compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.tasks.base import Task, Turn
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.verifiers import Verdict

CHARACTERS = "0123456789<>!?\n"


@dataclass(frozen=True)
class Digit:
    """A problem: the digit."""

    digit: int

    @property
    def problem_id(self) -> str:
        return f"digit-{self.digit}"


@dataclass(frozen=True)
class Digits(Task):
    """A turn is right where it begins with the digit. The environment says < or > of its first digit, and ! to anything else."""

    turns: int = 3
    name = "digits"
    characters: ClassVar[str] = CHARACTERS
    max_new_tokens: ClassVar[int] = 12

    def problems(self, split: str) -> Sequence[Digit]:
        return [Digit(digit) for digit in range(1, 9)]

    def prompt(self, problem: Digit) -> str:
        return f"{problem.digit}?\n"

    def verify(self, problem: Digit, completion: str) -> Verdict:
        return self.judge(problem, (completion,))

    def judge(self, problem: Digit, said: Sequence[str]) -> Verdict:
        last = said[-1]
        good = last[:1] == str(problem.digit) and last.isascii()
        return Verdict("right" if good else "wrong", f"turn {len(said)}")

    def reply(self, problem: Digit, said: Sequence[str]) -> str | None:
        first = said[-1][:1]
        if first == str(problem.digit) or len(said) == self.turns:
            return None
        return "!" if not first.isdigit() else "<" if int(first) > problem.digit else ">"

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Digit, tuple[Turn, ...]]]:
        made = []
        for number in range(start, start + n):
            problem = self.problems(split)[number % 8]
            before = (Turn("policy", "0", learned=False), Turn("environment", ">"))
            made.append((problem, (*before * (number % 2), Turn("policy", str(problem.digit)))))
        return made


@dataclass(frozen=True)
class Asked(Digit):
    """A problem that is asked with guidance."""

    guidance: str = ""


@dataclass(frozen=True)
class Taught(Digits):
    """Guidance stands before the digit that is asked for; the rules of this task say 9."""

    name = "taught"

    def guided(self, problem: Digit, guidance: str) -> Digit:
        return Asked(problem.digit, guidance)

    def explain(self, problem: Digit, said: Sequence[str], verdict: Verdict) -> str:
        return "9"

    def prompt(self, problem: Digit) -> str:
        return getattr(problem, "guidance", "") + super().prompt(problem)


def digit_policy(seed: int = 0, positions: int = 48, **changes: Any) -> tuple[PreTrainedModel, Tokens]:
    """A random tiny Llama that ends a turn soon and says digits, and its tokens."""
    tokenizer = build_tokenizer(CHARACTERS)
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": positions, "tie_word_embeddings": False,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval(), Tokens.of(tokenizer)


def taught_digit_policy() -> tuple[PreTrainedModel, Tokens]:
    """One that was taught for some steps, so that it is right now and then."""
    from sage_rlvr.config import OptimizerConfig
    from sage_rlvr.training.optimizer import Optimizer
    from sage_rlvr.training.sft import sft_step, texts_of

    (model, tokens), task = digit_policy(initializer_range=0.05), Digits()
    asking, optimizer = PromptRenderer.of(task, tokens), Optimizer(model, OptimizerConfig(lr=5e-3), 14)
    for step in range(14):
        sft_step(model, optimizer, texts_of(task.examples("train", 0, 16 * step, 16), asking), step)
    return model.eval(), tokens


def save_digit_policy(folder: Path) -> Path:
    """The folder of a taught one."""
    model, tokens = taught_digit_policy()
    model.save_pretrained(folder)
    tokens.tokenizer.save_pretrained(folder)
    return folder
