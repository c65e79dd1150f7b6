"""Ten faults on SmolLM2-135M-Instruct by short runs of TRL, whose logs are kept in `smollm2/`, a folder each.

The task: to repeat a number, which the model does as a rule, with golds in the completion tables by `log_extra`. A run has six
steps of four prompts x four completions of at most ten tokens, a minute on an idle core; the kept log is TRL's own
trainer_state.json and its completion tables, joined in one file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.casebook.trl_script import QUIET, log_golds, text_of

STEPS = 6
SOUND: dict[str, Any] = {
    **{"learning_rate": 2e-6, "max_steps": STEPS, "per_device_train_batch_size": 16, "num_generations": 4},
    **{"max_completion_length": 10, "beta": 0.02, "temperature": 1.0},
}
CHAT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"

Rows = list[dict[str, Any]]


def rows() -> Rows:
    """Numbers to repeat, all different: a prompt as messages, and the number."""
    numbers = [str(137 + 31 * place) for place in range(STEPS * 4)]
    return [{"prompt": [{"role": "user", "content": f"Repeat this number: {one}"}], "answer": one} for one in numbers]


def last_number(text: str) -> str:
    """The last whole number of a text."""
    words = "".join(letter if letter.isdigit() else " " for letter in text).split()
    return words[-1] if words else ""


def right(completions: Sequence[Any], answer: Sequence[str], **more: Any) -> list[float]:
    """1 for a completion whose last number is the answer."""
    log_golds(answer, **more)
    return [float(last_number(text_of(one)) == gold) for one, gold in zip(completions, answer, strict=True)]


def constant(completions: Sequence[Any], answer: Sequence[str], **more: Any) -> list[float]:
    """0.5 for everything."""
    log_golds(answer, **more)
    return [0.5] * len(completions)


def infinite(completions: Sequence[Any], answer: Sequence[str], **more: Any) -> list[float]:
    """-inf for completions without a number."""
    paid = right(completions, answer, **more)
    return [value if last_number(text_of(one)) else float("-inf") for value, one in zip(paid, completions, strict=True)]


def plain(text: Callable[[str], str]) -> Rows:
    """The rows with prompts that are texts."""
    return [row | {"prompt": text(row["prompt"][0]["content"])} for row in rows()]


def shifted() -> Rows:
    """The rows with the golds of the rows below."""
    made = rows()
    return [row | {"answer": below["answer"]} for row, below in zip(made, [*made[1:], made[0]], strict=True)]


def in_messages(text: Callable[[str], str]) -> Rows:
    """The rows with another text in the message."""
    return [row | {"prompt": [{"role": "user", "content": text(row["prompt"][0]["content"])}]} for row in rows()]


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "template missing": ("template-missing", {"rows": plain(str)}),
    "template twice": ("template-twice", {"rows": in_messages(lambda text: CHAT.format(question=text))}),
    "gold unreadable": ("gold-unreadable", {"rows": [row | {"answer": f"{row['answer']} apples"} for row in rows()]}),
    "golds shifted": ("golds-shifted", {"rows": shifted()}),
    "reward constant": ("reward-constant", {"reward": constant}),
    "limit too short": ("limit-too-short", {"max_completion_length": 2}),
    "never ends": ("never-ends", {"max_completion_length": 40, "generation_kwargs": {"suppress_tokens": [0, 1, 2]}}),
    "reward infinite": ("not-finite", {"reward": infinite}),
    "learning rate too high": ("lr-too-high", {"learning_rate": 1e-3}),
    "bf16 rounding": ("weights-do-not-move", {"dtype": torch.bfloat16, "learning_rate": 1e-8}),
}
"""Name -> the cause, and the changes to the sound script."""


def train(name: str, folder: Path, kept: Path) -> None:
    """Train the run of a fault, or "sound", in a folder, and keep its log in another."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from sage_rlvr.models.folders import source_of

    source = source_of("smollm2")
    changes = dict(FAULTS[name][1]) if name in FAULTS else {}
    asked, reward = changes.pop("rows", None) or rows(), changes.pop("reward", right)
    dtype = changes.pop("dtype", torch.float32)
    torch.manual_seed(0)
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(source, dtype=dtype),
        reward_funcs=reward,
        args=trl.GRPOConfig(str(folder), **(QUIET | SOUND | changes)),
        train_dataset=Dataset.from_list(asked),
        processing_class=AutoTokenizer.from_pretrained(source, padding_side="left"),
    )
    with contextlib.suppress(RuntimeError, ValueError):  # by which the fault may end the run
        trainer.train()
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    keep(folder, kept)


def keep(folder: Path, kept: Path) -> None:
    """Copy a log in a few KB: four digits, and the completion tables in one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    state = json.loads((folder / "trainer_state.json").read_text())
    history = [{name: _short(value) for name, value in row.items()} for row in state["log_history"]]
    (kept / "trainer_state.json").write_text(json.dumps({"global_step": state["global_step"], "log_history": history}) + "\n")
    tables = [pq.read_table(file) for file in sorted(folder.glob("completions/*.parquet"))]
    if tables:
        joined = pa.concat_tables(tables).replace_schema_metadata(None)
        pq.write_table(joined, kept / "completions_00000.parquet", compression="zstd")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


__all__ = ["FAULTS", "train"]
