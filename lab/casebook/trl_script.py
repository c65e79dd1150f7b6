"""A sound script with TRL's GRPOTrainer, of which a case changes one thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_rlvr.config import read_recipe, task_of
from sage_rlvr.models.folders import source_of

QUIET: dict[str, Any] = {
    **{"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "log_completions": True, "logging_steps": 1},
    **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "lr_scheduler_type": "constant", "warmup_steps": 0},
}
SOUND: dict[str, Any] = {
    **{"learning_rate": 1e-4, "max_steps": 16, "per_device_train_batch_size": 64, "num_generations": 8},
    **{"max_completion_length": 24, "beta": 0.02, "temperature": 1.0},
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
"""A chat template for the built-in policy, whose generation prompt is the colon."""


def problem_rows(count: int = 160, seed: int = 0) -> list[dict[str, Any]]:
    """Countdown problems as rows: prompt, numbers, target, how many numbers, a right answer."""
    task = task_of(read_recipe("grpo", [("seed", str(seed))], "train"))
    problems = list(task.problems("train"))[:count]
    rows = []
    for p in problems:
        row = {"prompt": task.prompt(p), "numbers": list(p.numbers), "target": p.target, "size": len(p.numbers)}
        rows.append(row | {"answer": task.reference(p)})
    return rows


def value_of(text: str, numbers: Sequence[int]) -> float | None:
    """The value of an expression that uses each number once; None for anything else."""
    if not re.fullmatch(r"[\d+\-*/() ]+", text) or sorted(map(int, re.findall(r"\d+", text))) != sorted(numbers):
        return None
    try:
        return float(eval(text))
    except (ArithmeticError, SyntaxError, TypeError):
        return None


def is_right(text: str, numbers: Sequence[int], target: Any) -> bool:
    """Whether an expression has the target's value."""
    value = value_of(text, numbers)
    return value is not None and abs(value - float(target)) < 1e-6


def text_of(completion: Any) -> str:
    """A completion as text."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def right(completions: Sequence[Any], numbers: Sequence[Any], target: Sequence[Any], **more: Any) -> list[float]:
    """1 for an expression of the target's value."""
    log_golds(target, **more)
    return [float(is_right(text_of(c), n, t)) for c, n, t in zip(completions, numbers, target, strict=True)]


def log_golds(golds: Sequence[Any], log_extra: Any = None, **_: Any) -> None:
    """Write the golds that a reward judges with into TRL's completion tables."""
    if log_extra is not None:
        log_extra("gold", list(golds))


def script(
    folder: Path,
    reward: Any = right,
    rows: Sequence[dict[str, Any]] | None = None,
    *,
    tokenizer: Any = None,
    dtype: torch.dtype = torch.float32,
    trainer: Callable[..., Any] = trl.GRPOTrainer,
    config: Callable[..., Any] = trl.GRPOConfig,
    **changes: Any,
) -> Any:
    """The trainer of the script."""
    source = source_of("embedded")
    torch.manual_seed(0)
    settings = QUIET | SOUND | changes
    args = config(str(folder), **settings)
    return trainer(
        model=AutoModelForCausalLM.from_pretrained(source, dtype=dtype),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(list(rows or problem_rows())),
        processing_class=tokenizer or tokens(),
    )


def tokens(**changes: Any) -> Any:
    """The built-in policy's tokenizer."""
    made = AutoTokenizer.from_pretrained(source_of("embedded"), padding_side="left")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def trained(trainer: Any, folder: Path) -> Path:
    """Train, and write the log as TRL's checkpoints have it."""
    try:
        trainer.train()
    finally:
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
    return folder
