"""A tiny chat policy whose template has the switch of Qwen 3: thinking is on unless enable_thinking is false."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byte_tokenizer import CHATML, byte_tokenizer
from conftest import tiny_llama
from sage_rlvr.config import TrainConfig, decode

_OPENED = "{{ '<|im_start|>assistant\\n' }}"
THINKING = CHATML.replace(
    _OPENED,
    _OPENED + "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}",
)
OFF = {"enable_thinking": False}
EMPTY = "<think>\n\n</think>\n\n"  # what the template writes with OFF


def chat_policy(folder: Path, template: str | None = THINKING, merged: Sequence[str] = (), **sizes: Any) -> str:
    """Weights and tokenizer over bytes, or pairs of bytes of the texts `merged`, saved in a folder."""
    tokenizer = byte_tokenizer(template, eos_token="<|im_end|>", merged=merged)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "initializer_range": 0.05} | sizes
    tiny_llama(**sizes, **ids).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def rows_file(folder: Path, count: int = 1) -> str:
    """A file of sums, by default of one row, so that the first prompt is the one that is trained on."""
    file = folder / "rows.jsonl"
    rows = [{"problem": f"{a} + 1?", "answer": str(a + 1), "solution": f"The sum is {a + 1}."} for a in range(1, count + 1)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def rendered(tokenizer: Any, messages: Any, **options: Any) -> list[int]:
    """The tokens of a prompt, by transformers alone."""
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, **options)["input_ids"])


def guided_config(folder: Path, **changes: Any) -> TrainConfig:
    """Two steps of GRPO with a guide on the row of `rows_file`. changes: keys of the recipe."""
    tree = {
        "steps": 2,
        "model": chat_policy(folder / "policy"),
        "task": {"name": "jsonl", "file": rows_file(folder)},
        "method": {"name": "sage", "base": {"name": "grpo", "beta": 0.1}, "guide": {"name": "branch", "threshold": "p80"}},
        "rollout": {"prompts_per_step": 1, "group_size": 4, "max_new_tokens": 4},
    }
    return decode(TrainConfig, tree | changes)
