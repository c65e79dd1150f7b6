"""Trainers of TRL with tools and environments, whose tiny policy's words are scripted."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trl
from datasets import Dataset

from byte_tokenizer import byte_tokenizer
from conftest import tiny_llama
from sage_rlvr.training.trl import held_out
from sage_rlvr.verifiers.rewards import text_of
from trl_common import arguments

ROWS = [{"prompt": f"{a} {a + 1}={2 * a + 1}:", "id": f"row {a}", "right": right} for a, right in ((1, 0), (2, 1), (3, 2), (4, 4))]


def reward_chat(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(text_of(one))) % 2) for one in completions]


class Counting:
    """An environment of TRL: `add` is its tool, and its observation is the row's `right`."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.right, self.asked = -1, 0

    def reset(self, right: int, **_: Any) -> str:
        """Begin with a row."""
        self.right, self.asked = right, 0
        return f" observed {right}"

    def add(self, a: int) -> str:
        """
        Add one.

        Args:
            a: A number.

        Returns:
            The sum.
        """
        self.asked += 1
        return str(a + 1)


CHAT_ROWS = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def add(a: int) -> str:
    """
    Add one.

    Args:
        a: A number.

    Returns:
        The sum.
    """
    return f"sum {a + 1}"


def chat_trainer(tmp_path: Path, template: str, **more: Any) -> Any:
    """With tools each completion calls `add` with 3 and then ends, by TRL's own loop; what the tiny policy says is scripted."""
    tokenizer = byte_tokenizer(template, eos_token="<|im_end|>", pad_token="</s>")
    rows = Dataset.from_list([CHAT_ROWS[n % 4] for n in range(12)])
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=4096)
    args = arguments(tmp_path, max_steps=2, max_completion_length=600, beta=0.0)
    trainer = trl.GRPOTrainer(model, reward_chat, args, train_dataset=rows, processing_class=tokenizer, **more)

    def scripted(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        called = ["<tool_response>" in tokenizer.decode(ids[-120:]) for ids in prompt_ids]
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
        texts = [f"{'done' if one else call}<|im_end|>" for one in called]
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], None

    trainer._generate_single_turn = scripted if more else trainer._generate_single_turn
    return trainer


WITH_TOOLS = pytest.mark.skipif(
    held_out.NEW_ENVIRONMENTS not in inspect.getsource(trl.GRPOTrainer._generate_and_score_completions),
    reason="this TRL has a fixed list of environments, and wants jmespath for its tools",
)
