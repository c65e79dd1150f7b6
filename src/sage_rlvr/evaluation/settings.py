"""The settings of an evaluation by samples, declared once: options of `sage-rlvr eval`, what the sampler does, a store's identity.

A command takes them by inheritance (`class Eval(SampleSettings)`), so that a field is an option and its docstring the help.
Nothing heavy is imported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

Preset = Literal["untruncated", "paper", "released_code"]
COMMON = ("problems", "split", "seed", "draw", "task")  # fields that an exact evaluation reads too


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Which problems are asked how, and how completions are drawn, judged and kept."""

    problems: int | None = None
    """Default: 300 of Countdown; of other tasks all rows, else the first so many."""
    split: Literal["train", "validation", "test"] = "test"
    """train: the first of the problems that a run trains on, whatever seed and draw; for offline training, and for what it knows
    by heart."""
    seed: int = 1
    """Of the problems, not of training; the same seed means the same problems."""
    draw: Literal["law", "census"] = "law"
    """law: independent draws from the world's own law; census: all problems of the split equally likely, none twice."""
    samples: int = 0
    """Draw this many completions of each problem instead of evaluating exactly; whole chunks of a store that has others."""
    task: str | None = None
    """A task by name, a recipe's (.yaml), or a .jsonl file with problem and answer (default: a run's own, else Countdown). Exact
    where it lists its solutions."""
    preset: Preset = "untruncated"
    """Of samples: untruncated (T 1), paper (T 0.3, min_p 0.01), released_code (T 0.3, top-p 0.95, top-k 50 but on vLLM)."""
    temperature: float | None = None
    """Of samples: another temperature than the preset's, 0 being greedy. Stores of a policy at several are its frontier."""
    template: Literal["sage", "boxed", "as_is"] = "boxed"
    """Of samples: how a mathematics problem is asked, and where its answer is read."""
    chat: Literal["model", "format"] = "model"
    """Of samples: the chat template of the policy's tokenizer, or the prompt format's own for all arms alike."""
    after: Path | None = None
    """Of samples: a store of attempts; the problems whose first wrong one is there are attempted again, guided by --teacher."""
    teacher: str = "nothing"
    """Of --after: nothing (the control), rules, patch, {name: policy, model: FOLDER}, FILE.py:FUNCTION, or one of your own."""
    store: Path | None = None
    """Of samples: where they are kept (default <run>/samples/<task>-..., or runs/samples/<model>/<task>-...)."""
    max_new_tokens: int | None = None
    """Of samples: default 32 for Countdown, what a run on another task was trained with, else 3072."""
    score_base: str | None = None
    """Of samples: also the log-probs of every token under this model, for perplexities."""
    guide: str | None = None
    """Of samples: also q of this guide at every token, by its name in `sage-rlvr parts guides`."""
    generator: str = "auto"
    """Of samples: sampler, transformers, vllm, server or your own; auto is transformers on a GPU, else sampler."""
    server: str | None = None
    """Of samples: address of an OpenAI-compatible server, for --generator server."""
    served_as: str | None = None
    """Of samples: the policy's name on that server (default: its path)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of samples: auto is bfloat16 on a GPU, else float32."""
    sampling_seed: int = 0
    """Of samples: from it and its address each sample has a seed of its own."""

    @classmethod
    def of(cls, command: Any) -> SampleSettings:
        """The settings among the fields of a command."""
        return cls(**{field.name: getattr(command, field.name) for field in fields(SampleSettings)})

    def store_name(self, task: Any) -> str:
        """A store's name by default: task, preset or temperature, and where the task has a prompt format, which."""
        law = self.preset if self.temperature is None else f"{self.preset}-T{self.temperature:g}"
        asked = "" if getattr(task, "form", None) is None else f"-{self.template}"
        split = "-train" if self.split == "train" else ""
        by = re.sub("[^a-z0-9]+", "-", self.teacher.lower()).strip("-")
        again = "" if self.after is None else f"-after-{self.after.name}-{by}"
        return f"{Path(self.task or task.name).stem}-{law}{asked}{split}{again}"


ONLY_SAMPLES = tuple(f.name for f in fields(SampleSettings) if f.name not in (*COMMON, "samples"))
