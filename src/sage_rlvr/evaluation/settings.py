"""The settings of an evaluation, declared once: options of `sage-rlvr eval` and of `sage_rlvr.evaluate`, a store's identity.

A command takes them by inheritance (`class Eval(EvalSettings)`), so that a field is an option and its docstring the help.
Nothing heavy is imported here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.recipes import parse_yaml

Sampling = Literal["iid", "without-replacement"]
Preset = Literal["untruncated", "paper", "released_code"]


@dataclass(frozen=True, kw_only=True)
class ProblemSettings:
    """Which problems are evaluated."""

    task: str | None = None
    """A task by name, NAME:WORLD (gsm_symbolic:unseen), reasoning_gym:NAME, a recipe's (.yaml), or a .jsonl file with problem and
    answer (default: a run's own, else Countdown). Exact where it lists its solutions."""
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    split: Literal["train", "validation", "test"] = "test"
    """train: the first of the problems that a run trains on, whatever seed and sampling; for offline training, and for what it
    knows by heart."""
    problems: int | None = None
    """Default: 300 of Countdown; of other tasks all rows, else the first so many."""
    seed: int = 1
    """Of the problems, not of training; the same seed means the same problems."""
    sampling: Sampling = "iid"
    """iid: independent draws of problems from the world's own distribution; without-replacement: all problems of the split equally
    likely, none twice."""


@dataclass(frozen=True, kw_only=True)
class ExactSettings(ProblemSettings):
    """Options of an exact evaluation only."""

    temperatures: tuple[float, ...] = (1.0,)
    """The temperatures at which the policy is read. By samples each has a store of its own, and `compare` takes them together."""
    frontier: bool = False
    """Exact: add the fifteen temperatures of the frontier."""
    power_tempering: bool = False
    """Exact: also temper the policy over whole completions, pi(y)^power normalized per problem: what it reaches with no reward."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    """Exact: the ks of pass@k that are printed."""
    cross_check: int = 0
    """Exact: also draw this many completions at temperature 1 for each of 40 problems and compare them with the exact numbers."""
    out: Path | None = None
    """Exact: where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz; of a named
    world with its name)."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings(ProblemSettings):
    """Settings for sampling, judging and storing completions."""

    samples: int = 0
    """Draw this many completions of each problem instead of evaluating exactly; whole chunks of a store that has others."""
    store: Path | None = None
    """Of samples: where they are kept (default <run>/samples/<task>-..., or runs/samples/<model>/<task>-...)."""
    preset: Preset = "untruncated"
    """Of samples: untruncated (T 1), paper (T 0.3, min_p 0.01), released_code (T 0.3, top-p 0.95, top-k 50 but on vLLM)."""
    temperature: float | None = None
    """Of samples: another temperature than the preset's, 0 being greedy. Stores of a policy at several are its frontier."""
    max_new_tokens: int | None = None
    """Of samples: default 32 for Countdown, what a run on another task was trained with, else 3072."""
    template: Literal["sage", "boxed", "as_is"] = "boxed"
    """Of samples: the prompt format of a mathematics problem, and where its answer is read."""
    chat_template: Literal["model", "format"] = "model"
    """Of samples: the chat template of the policy's tokenizer, or the prompt format's own for all arms alike."""
    chat_template_kwargs: str | None = None
    """Of samples: variables of the chat template, such as '{enable_thinking: false}' (default: those of the run's recipe)."""
    sampling_seed: int = 0
    """Of samples: from it and its address each sample has a seed of its own."""
    generator: str = "auto"
    """Of samples: sampler, transformers, vllm, server or your own; auto is transformers on a GPU, else sampler."""
    server: str | None = None
    """Of samples: address of an OpenAI-compatible server, for --generator server."""
    server_model: str | None = None
    """Of samples: the policy's name on that server (default: its path)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of samples: auto is the dtype of a store that is continued, else as engine.dtype auto: bfloat16 on a GPU or on a CPU with
    instructions for it, else float32."""
    threads: int = 1
    """Of samples: CPU threads."""
    base_logprobs: str | None = None
    """Of samples: also the log-probs of every token under this model, for perplexities."""
    guide: str | None = None
    """Of samples: also q of this guide at every token, by name (`sage-rlvr parts guides`) or as '{name: branch, ratio: 1}'."""
    retry_failures_of: Path | None = None
    """Of samples: a store of attempts; the problems whose first wrong one is there are attempted again, guided by --hints."""
    hints: str = "nothing"
    """Of --retry-failures-of: nothing (the control), rules, patch, {name: policy, model: FOLDER}, FILE.py:FUNCTION, or your own."""

    @classmethod
    def of(cls, command: Any) -> SampleSettings:
        """The settings among the fields of a command."""
        return cls(**{field.name: getattr(command, field.name) for field in fields(SampleSettings)})

    def store_name(self, task: Any) -> str:
        """A store's name by default: task, preset or temperature, and where the task has a prompt format, which."""
        law = self.preset if self.temperature is None else f"{self.preset}-T{self.temperature:g}"
        form = "" if task.form is None else f"-{self.template}"
        split = "-train" if self.split == "train" else ""
        by = re.sub("[^a-z0-9]+", "-", self.hints.lower()).strip("-")
        again = "" if self.retry_failures_of is None else f"-after-{self.retry_failures_of.name}-{by}"
        options = "".join(f"-{name}-{json.dumps(value)}" for name, value in self.options.items())
        chat = re.sub("[^A-Za-z0-9._-]+", "_", options)
        return f"{Path(self.task or task.name).stem}-{law}{form}{chat}{split}{again}"

    @property
    def options(self) -> dict[str, Any]:
        """chat_template_kwargs, read. ConfigError for anything but a mapping."""
        return dict(parse_yaml(self.chat_template_kwargs or "{}", "--chat-template-kwargs"))


@dataclass(frozen=True, kw_only=True)
class AfterSampling:
    """Quantities computed from the samples of a complete store."""

    rejudge: bool = False
    """Of samples: draw nothing, and judge the samples of the store again by today's verifier."""
    effective_rank: bool = False
    """Of samples: also the effective rank of the policy's last hidden states on each problem's first sample."""
    rerank_with: str | None = None
    """Of samples: also pass@1 of the sample of each problem that this reward model (of `offline`, loss: reward) ranks first."""
    kl_to: str | None = None
    """Of samples: also the exact reverse and forward KL to this model, run or its sample store, on stored completions of both. The
    completions of the other are drawn by the same settings where they lack."""
    kl_samples: int = 8
    """Of --kl-to: on the first so many samples of each problem."""


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """Does a policy solve more than a guesser, and how much room does it leave for training?"""

    gate: bool = False
    """Also a verdict: is pass@k above the chance floor at every k that will be read, and how much room is left? Exit code 3 where
    it fails. WHAT may then be a sample store."""
    gate_ks: tuple[int, ...] = ()
    """Of --gate: the ks that will be read (default: 1, 8 and the largest: the samples of each problem, or of --ks). The room is
    read at the largest."""
    gate_room: Literal["any", "much", "little"] = "any"
    """Of --gate: fail unless the room is this."""
    gate_much: tuple[float, float] = (0.2, 0.5)
    """Of --gate: much room is a pass@k from the first to the second. Below, the problems are out of reach."""
    gate_little: float = 0.9
    """Of --gate: little room is a pass@k from here on. Between, it is some room."""

    def check_gate(self, one_law: bool) -> None:
        """ConfigError for options of the gate that do not go together. one_law: whether the policy is read at one temperature."""
        given = [f.name for f in fields(GateSettings) if f.name != "gate" and getattr(self, f.name) != f.default]
        low, high = self.gate_much
        refuse(
            (given and not self.gate, f"{_options(given)}: settings of the gate; add --gate"),
            (self.gate and not one_law, "--gate: judges a policy at one temperature; pass one of --temperatures, omit --frontier"),
            (any(k < 1 for k in self.gate_ks), f"--gate-ks {' '.join(map(str, self.gate_ks))}: each k must be 1 or larger"),
            (
                not 0 <= low < high < self.gate_little <= 1,
                f"--gate-much {low:g} {high:g}, --gate-little {self.gate_little:g}: shares that ascend, from 0 to 1",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class EvalSettings(GateSettings, AfterSampling, SampleSettings, ExactSettings):
    """Every option of an evaluation: which problems, those of an exact one, those of samples, those of the gate."""

    def by_samples(self) -> bool:
        """Whether the evaluation is by samples. Raises ConfigError for options of the other kind."""
        sampled = bool(self.samples) or self.rejudge
        others = _own(ExactSettings) if sampled else _own(SampleSettings) | _own(AfterSampling)
        others -= {"samples", "temperatures"}
        given = [f for f in fields(self) if f.name in others and getattr(self, f.name) != f.default]
        if given:
            which = "exact evaluation; omit --samples" if sampled else "evaluation by samples; add --samples N"
            raise ConfigError(f"{_options(f.name for f in given)}: settings of an {which}")
        if sampled and self.temperature is not None and self.temperatures != (1.0,):
            several = " ".join(f"{t:g}" for t in self.temperatures)
            raise ConfigError(f"--temperature {self.temperature:g} with --temperatures {several}: omit the first")
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise ConfigError(f"--temperatures {' '.join(map(str, self.temperatures))}: pass at least one, each once")
        self.check_gate(one_law=len(self.temperatures) == 1 and not self.frontier)
        self._check_kl()
        return sampled

    def _check_kl(self) -> None:
        """ConfigError for options of --kl-to that do not go together."""
        if self.kl_to is None:
            given = self.kl_samples != AfterSampling.kl_samples
            refuse((given, f"--kl-samples {self.kl_samples}: a setting of --kl-to; add it"))
            return
        kl_to = f"--kl-to {self.kl_to}"
        refuse(
            (len(self.temperatures) > 1, f"{kl_to}: the KL at one temperature; pass one of --temperatures"),
            (self.kl_samples < 1, f"--kl-samples {self.kl_samples}: at least one sample of each problem is needed"),
            (
                self.retry_failures_of is not None,
                f"{kl_to} with --retry-failures-of: second attempts have hints in their prompts, the base's have none; omit one",
            ),
            (self.rejudge, f"{kl_to} with --rejudge: one draws and the other does not; run one after the other"),
            (
                self.generator == "server",
                f"{kl_to} with --generator server: the weights of both are needed here; use another generator",
            ),
        )

    def by_temperature(self) -> list[EvalSettings]:
        """Of an evaluation by samples: the settings of each store. --store with several temperatures is a folder of stores."""
        if self.temperatures == (1.0,):
            return [self]
        settings = []
        for t in self.temperatures:
            own = None if self.preset == "untruncated" and t == 1 else t  # the preset's, whose store is named without it
            store = None if self.store is None else self.store / f"T{t:g}"
            settings.append(replace(self, temperatures=(1.0,), temperature=own, store=store))
        return settings


def _options(names: Iterable[str]) -> str:
    """Fields as on the command line: "--gate-ks, --gate-room"."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _own(settings: type) -> set[str]:
    """The options that a class of settings adds to those of the problems."""
    return {f.name for f in fields(settings)} - {f.name for f in fields(ProblemSettings)}
