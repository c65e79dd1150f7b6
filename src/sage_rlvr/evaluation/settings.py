"""The settings of an evaluation, declared once: options of `sage-rlvr eval` and of `sage_rlvr.evaluate`, a store's identity.

A command inherits them (`class Eval(EvalSettings)`), so that a field is an option and its docstring the help. No slow module is
imported.
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

Sampling = Literal["iid", "distinct", "without-replacement"]
Preset = Literal["untruncated", "paper", "released_code"]


SERVERS = ("server", "chat")
"""Generators that call a server by its address."""


@dataclass(frozen=True, kw_only=True)
class ProblemSettings:
    """The problems of an evaluation."""

    task: str | None = None
    """A task by name, NAME:WORLD (gsm_symbolic:unseen), reasoning_gym:NAME, a recipe's (.yaml), or a .jsonl file with problem and
    answer (default: that of a run, else Countdown). Exact where it lists its solutions."""
    world: str | None = None
    """Another world than the run's: a recipe file, or a named one such as demo-5."""
    split: Literal["train", "validation", "test"] = "test"
    """train: the first of the problems that a run trains on, for any seed and sampling; for offline training, and for what it
    knows by heart."""
    problems: int | None = None
    """Default: 300 of Countdown; of other tasks all rows, else the first so many."""
    seed: int = 1
    """Seed of the problems, not of training; the same seed means the same problems."""
    sampling: Sampling = "iid"
    """iid: independent draws of problems from the world's distribution; distinct: the first different ones of them;
    without-replacement: all problems of the split equally likely, none twice."""


@dataclass(frozen=True, kw_only=True)
class ExactSettings(ProblemSettings):
    """Options of an exact evaluation only."""

    temperatures: tuple[float, ...] = (1.0,)
    """The temperatures at which the policy is evaluated. With samples each has a separate store, and `compare` reads them
    together."""
    frontier: bool = False
    """Exact: add the fifteen temperatures of the frontier."""
    power_tempering: bool = False
    """Exact: also temper the policy over full completions, pi(y)^power normalized per problem: the scores it reaches without
    reward."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    """Exact: the ks of pass@k that are printed."""
    cross_check: int = 0
    """Exact: also draw this many completions at temperature 1 for each of 40 problems and compare them with the exact numbers."""
    out: Path | None = None
    """Exact: the file of the record (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz; for a named
    world with its name)."""


@dataclass(frozen=True, kw_only=True)
class DrawSettings(ProblemSettings):
    """Settings for drawing completions, equal for all policies of a comparison: prompts, generator, precision."""

    max_new_tokens: int | None = None
    """Samples: default 32 for Countdown, the training limit of a run on another task, otherwise 3072."""
    template: Literal["sage", "boxed", "as_is"] = "boxed"
    """Samples: the prompt format of a mathematics problem, and where its answer is read."""
    chat_template: Literal["model", "format"] = "model"
    """Samples: the chat template of the policy's tokenizer, or the prompt format's template, equal for all arms."""
    chat_template_kwargs: str | None = None
    """Samples: variables of the chat template, such as '{enable_thinking: false}' (default: those of the run's recipe)."""
    sampling_seed: int = 0
    """Samples: the base seed; each sample's seed follows from it and the sample's address."""
    generator: str = "auto"
    """Samples: sampler, transformers, vllm, server, chat or your own; auto is transformers on a GPU, else sampler."""
    server: str | None = None
    """Samples: address of an OpenAI-compatible server: of completions (--generator server), or of chat completions (chat)."""
    server_model: str | None = None
    """Samples: the policy's name on that server (default: its path)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Samples: auto is the dtype of a store that is continued, else as engine.dtype auto: bfloat16 on a GPU or on a CPU with
    instructions for it, else float32."""
    threads: int = 1
    """Samples: CPU threads."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings(DrawSettings):
    """Settings for sampling, judging and storing completions."""

    samples: int = 0
    """Draw this many completions of each problem instead of evaluating exactly; complete chunks of a store that has others."""
    store: Path | None = None
    """Samples: the folder of the store (default <run>/samples/<task>-..., or runs/samples/<model>/<task>-...)."""
    preset: Preset = "untruncated"
    """Samples: untruncated (T 1), paper (T 0.3, min_p 0.01), released_code (T 0.3, top-p 0.95, top-k 50 but on vLLM)."""
    temperature: float | None = None
    """Samples: another temperature than the preset's; 0 is greedy. Stores of a policy at several temperatures are its frontier."""
    base_logprobs: str | None = None
    """Samples: also the log-probs of every token under this model, for perplexities."""
    guide: str | None = None
    """Samples: also q of this guide at every token, by name (`sage-rlvr parts guides`) or as '{name: branch, ratio: 1}'."""
    retry_failures_of: Path | None = None
    """Samples: a store of attempts; problems with a wrong first attempt are attempted again, guided by --hints."""
    interpolate: tuple[str, ...] = ()
    """Samples: BASE and shares a from 0 to 1: evaluate the policy with the weights (1 - a) * BASE + a * WHAT, each a in a separate
    store. a = 0 is BASE, a = 1 is WHAT."""
    layers: Literal["all", "upper"] = "all"
    """For --interpolate: upper mixes only the upper half of the decoder's layers; all other weights are those of WHAT."""
    borrow: str | None = None
    """Samples: BASE, from which the next token is sampled at the states of --at; at other states it is sampled from WHAT."""
    at: tuple[str, ...] = ()
    """For --borrow: classes of states as the task names them, such as operator and "first operator" of Countdown."""
    hints: str = "nothing"
    """For --retry-failures-of: nothing (the control), rules, patch, {name: policy, model: FOLDER}, FILE.py:FUNCTION, or your
    own."""

    @classmethod
    def of(cls, command: Any) -> SampleSettings:
        """The settings among the fields of a command."""
        return cls(**{field.name: getattr(command, field.name) for field in fields(SampleSettings)})

    def store_name(self, task: Any) -> str:
        """A store's default name: task, preset or temperature, and the prompt format if the task has one."""
        law = self.preset if self.temperature is None else f"{self.preset}-T{self.temperature:g}"
        form = "" if task.form is None else f"-{self.template}"
        split = "-train" if self.split == "train" else ""
        by = re.sub("[^a-z0-9]+", "-", self.hints.lower()).strip("-")
        again = "" if self.retry_failures_of is None else f"-after-{self.retry_failures_of.name}-{by}"
        options = "".join(f"-{name}-{json.dumps(value)}" for name, value in self.options.items())
        chat = slug(options)
        return f"{Path(self.task or task.name).stem}-{law}{form}{chat}{split}{again}"

    @property
    def options(self) -> dict[str, Any]:
        """chat_template_kwargs, read. Raises ConfigError for anything but a mapping."""
        return dict(parse_yaml(self.chat_template_kwargs or "{}", "--chat-template-kwargs"))

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares a after BASE in --interpolate. Raises ConfigError unless they are distinct and from 0 to 1."""
        if not self.interpolate:
            refuse((self.layers != "all", f"--layers {self.layers}: a setting of --interpolate; add it"))
            return ()
        given = "--interpolate " + " ".join(map(str, self.interpolate))
        try:
            shares = tuple(map(float, self.interpolate[1:]))
        except ValueError as error:
            raise ConfigError(f"{given}: {error}; pass BASE and then shares, as in --interpolate BASE .25 .5") from None
        refuse(
            (not shares, f"{given}: pass BASE and then shares of WHAT, as in --interpolate BASE .25 .5"),
            (not all(0 <= share <= 1 for share in shares), f"{given}: shares of WHAT from 0, which is BASE, to 1"),
            (len(set(shares)) < len(shares), f"{given}: pass each share once"),
        )
        return shares


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub("[^A-Za-z0-9._-]+", "_", text)


@dataclass(frozen=True, kw_only=True)
class AfterSampling:
    """Quantities computed from the samples of a complete store."""

    rejudge: bool = False
    """Samples: generate nothing, and judge the samples of the store again by the current verifier."""
    effective_rank: bool = False
    """Samples: also the effective rank of the policy's last hidden states on each problem's first sample."""
    rerank_with: str | None = None
    """Samples: also pass@1 of the sample of each problem that this reward model (of `offline`, loss: reward) ranks first."""
    kl_to: str | None = None
    """Samples: also the exact reverse and forward KL to this model, run or its sample store, on stored completions of both. Missing
    completions of the other are sampled with the same settings."""
    kl_samples: int = 8
    """For --kl-to: the number of samples of each problem, the first ones."""


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """The support gate: whether a policy solves more than a guesser, and how much headroom training has."""

    gate: bool = False
    """Also a verdict: is pass@k above the chance floor at every k that will be read, and how much room is left? Exit code 3 if
    it fails. WHAT may then be a sample store."""
    gate_ks: tuple[int, ...] = ()
    """For --gate: the ks that will be read (default: 1, 8 and the largest: the samples of each problem, or of --ks). The room is
    read at the largest."""
    gate_room: Literal["any", "much", "little"] = "any"
    """For --gate: fail unless the room is this."""
    gate_much: tuple[float, float] = (0.2, 0.5)
    """For --gate: much room is a pass@k from the first to the second. Below, the problems are out of reach."""
    gate_little: float = 0.9
    """For --gate: little room is a pass@k from here on. Between, it is some room."""

    def check_gate(self, one_law: bool) -> None:
        """Raise ConfigError for options of the gate that cannot be combined. one_law: whether the policy is evaluated at one
        temperature."""
        given = [f.name for f in fields(GateSettings) if f.name != "gate" and getattr(self, f.name) != f.default]
        low, high = self.gate_much
        refuse(
            (given and not self.gate, f"{_options(given)}: settings of the gate; add --gate"),
            (
                self.gate and not one_law,
                "--gate: judges one policy at one temperature; pass one of --temperatures and of the shares of --interpolate, omit "
                "--frontier",
            ),
            (any(k < 1 for k in self.gate_ks), f"--gate-ks {' '.join(map(str, self.gate_ks))}: each k must be 1 or larger"),
            (
                not 0 <= low < high < self.gate_little <= 1,
                f"--gate-much {low:g} {high:g}, --gate-little {self.gate_little:g}: shares that ascend, from 0 to 1",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class EvalSettings(GateSettings, AfterSampling, SampleSettings, ExactSettings):
    """Every option of an evaluation: problems, exact evaluation, samples, gate."""

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
        self.check_gate(one_law=len(self.temperatures) == 1 and not self.frontier and len(self.shares) < 2)
        self._check_kl()
        self._check_borrow()
        return sampled

    def _check_borrow(self) -> None:
        """Raise ConfigError for options of --borrow that cannot be combined."""
        if self.borrow is None:
            refuse((self.at, f"--at {' '.join(self.at)}: a setting of --borrow; add --borrow BASE"))
            return
        others = {"--interpolate": self.interpolate, "--kl-to": self.kl_to, "--effective-rank": self.effective_rank}
        given = ", ".join(name for name, value in others.items() if value)
        refuse(
            (not self.at, f"--borrow {self.borrow}: at which states? add --at and classes of states"),
            (given, f"--borrow {self.borrow} with {given}: of one policy's weights, and two are drawn from; omit one"),
        )

    def _check_kl(self) -> None:
        """Raise ConfigError for options of --kl-to that cannot be combined."""
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
                self.generator in SERVERS,
                f"{kl_to} with --generator {self.generator}: the weights of both are needed here; use another generator",
            ),
        )

    def by_store(self) -> list[EvalSettings]:
        """The settings of each store, share and temperature of an evaluation by samples. --store with several is a folder of
        stores."""
        shares = self.shares
        if len(shares) < 2:
            return self._by_temperature()
        parts = []
        for share in shares:
            store = None if self.store is None else self.store / f"x{share:g}"
            parts += replace(self, interpolate=(self.interpolate[0], str(share)), store=store)._by_temperature()
        return parts

    def _by_temperature(self) -> list[EvalSettings]:
        if self.temperatures == (1.0,):
            return [self]
        settings = []
        for t in self.temperatures:
            own = None if self.preset == "untruncated" and t == 1 else t  # the preset's temperature, which the store's name omits
            store = None if self.store is None else self.store / f"T{t:g}"
            settings.append(replace(self, temperatures=(1.0,), temperature=own, store=store))
        return settings


def _options(names: Iterable[str]) -> str:
    """Fields as on the command line: "--gate-ks, --gate-room"."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _own(settings: type) -> set[str]:
    """The options that a class of settings adds to those of the problems."""
    return {f.name for f in fields(settings)} - {f.name for f in fields(ProblemSettings)}
