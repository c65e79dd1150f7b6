"""Recipes from the training YAML of SAGE's authors, with one line for each key whose meaning differs here.

    imported = import_config("train_config.yaml", sft_run="runs/mine-sft")
    imported.train, imported.sft          YAML text of a train recipe, and of the SFT recipe before it (None without one)
    imported.findings                     kept: as in their code; changed: different here; dropped: not read here

Their file is that of github.com/tally0818/SAGE at c9b3b69 (TRL 0.23, one process), with nested sections or the older flat keys.
Read keys.py (`KEYS`: what their code reads, and where), notes.py (`REFUSALS` and `NOTES`: what is rejected or differs), then
this file, which looks a file up in those tables and writes the recipes; command.py is `python -m lab authors-yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.authors_yaml.keys import (
    DERIVED,
    KEYS,
    NAMES,
    PROJECTIONS,
    REQUIRED,
    SCHEDULES,
    SECRETS,
    SFT_ORIGINS,
    TRAIN_ORIGINS,
)
from lab.authors_yaml.notes import NOTES, REFUSALS, Kind
from sage_rlvr.errors import ConfigError, nearest
from sage_rlvr.recipes import Tree, load
from sage_rlvr.schema import decode


@dataclass(frozen=True)
class Finding:
    """One line about one place of the source: what their code does with it, and what a recipe here does."""

    kind: Kind
    place: str
    theirs: str
    here: str

    def __str__(self) -> str:
        return f"{self.kind:<7} {self.place}: {self.theirs}; here {self.here}"


@dataclass(frozen=True)
class Imported:
    """YAML text of the recipes, and the findings in the order of the file's stages."""

    train: str
    sft: str | None
    findings: tuple[Finding, ...]


def import_config(path: str | Path, sft_run: str = "runs/sft", plain: bool = False) -> Imported:
    """Read their training YAML. sft_run: the run directory that the SFT recipe will have, whose adapter (or policy) the train
    recipe starts from. plain: as their train_grpo reads the file, without the guide.

    `ConfigError`, with file and line, for a key that their code has not (and the nearest that it has), for their evaluation
    YAML, for what their code itself stops at, and for batch sizes of which no update holds whole groups.
    """
    tree = load(path)
    _check_training(tree, str(path))
    theirs = Theirs(tree, str(path), plain=plain, sft_run=sft_run)
    for refused, key, text in REFUSALS:
        if refused(theirs):
            raise ConfigError(f"{theirs.said(key)}: {text.format_map(theirs)}")
    train, sft = _train_recipe(theirs), None if theirs.instruct else _sft_recipe(theirs)
    findings = [*_unread(theirs), *_notes(theirs)]
    head = [f"From {theirs.file}, a training configuration of SAGE's authors (tally0818/SAGE)"]
    if sft is not None:
        head.append(f"Before it: the SFT recipe beside this one, with --run {sft_run}")
    said = [str(finding) for finding in findings if finding.kind != "kept"]
    return Imported(
        _yaml(train, [*head, *said], theirs.origins_of(TRAIN_ORIGINS)),
        None if sft is None else _yaml(sft, head[:1], theirs.origins_of(SFT_ORIGINS)),
        tuple(findings),
    )


def _check_training(tree: Mapping[str, Any], path: str) -> None:
    data, generation = tree.get("data"), tree.get("generation")
    marks = {"target", "runtime", "k", "eval_limit", "datasets", "algorithms", "eval_steps"} & set(tree)
    nested = isinstance(data, dict) and {"datasets", "eval_limit"} & set(data)
    if marks or nested or (isinstance(generation, dict) and "k" in generation):
        raise ConfigError(
            f"{path}: this is the authors' evaluation configuration (its samples per problem, temperature and data sets are "
            "arguments of an evaluation and no part of a recipe); give their training one, configs/train_config.yaml"
        )


class Theirs(dict[str, Any]):
    """Their YAML, looked up as their code does it: `theirs.steps` is read by `KEYS`, and checked, when it is first asked for;
    what follows from several keys is computed by `DERIVED`."""

    def __init__(self, tree: Tree, path: str, **given: Any) -> None:
        super().__init__(given)
        self.path, self.file, self.origins = path, Path(path).name, tree.origins
        self.leaves = dict(self._walk(tree, ()))
        known = {place for key in KEYS.values() for place in key.places} | set(SECRETS) | set(NAMES)
        for place in self.leaves:
            if place not in known:
                word = place.rpartition(".")[2]
                near = next((p for p in sorted(known) if p.rpartition(".")[2] == word), nearest(place, sorted(known)))
                hint = f"did you mean {near}?" if near else "their code reads no such key"
                raise ConfigError(f"{self.spot(place)}: unknown key; {hint}")

    def _walk(self, node: Mapping[Any, Any], place: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            here = (*place, str(key))
            if isinstance(value, dict):
                yield from self._walk(value, here)
            elif value is not None or here not in {("sft",), ("sage",), ("lora",), ("rl",)}:
                yield ".".join(here), value

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __missing__(self, name: str) -> Any:
        self[name] = DERIVED[name](self) if name in DERIVED else self._read(name)
        return self[name]

    def _read(self, name: str) -> Any:
        key, place = KEYS[name], self.place(name)
        if place is not None:
            value = self.leaves[place]
            return decode(key.kind, value, where=f"{self.spot(place)} = {value!r}")
        if key.default is REQUIRED:
            word = key.places[0].rpartition(".")[2]
            raise ConfigError(f"{self.path}: no {_nested(key.places)}; their code stops there (KeyError: {word!r})")
        return key.default

    def place(self, name: str) -> str | None:
        """The place that their code takes the value from, None where it is given nowhere."""
        there = [place for place in KEYS[name].places if place in self.leaves]
        if name == "group":  # only a whole number above 0 is taken there
            there = [p for p in there if type(self.leaves[p]) is int and self.leaves[p] > 0]
        return there[0] if there else None

    def spot(self, place: str) -> str:
        """train_config.yaml:41: rl.epsilon"""
        file, _, line = self.origins.get(tuple(place.split(".")), self.path).rpartition(":")
        return f"{Path(file or line).name}{':' + line if file else ''}: {place}"

    def said(self, name: str) -> str:
        """Where the value stands and what it says, for a finding."""
        place = self.place(name)
        if place is None:
            return f"{self.file}: {_nested(KEYS[name].places)} (not given)"
        return f"{self.spot(place)} = {_show(self.leaves[place])}"

    def origins_of(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Place in a recipe -> where in their file its value stands."""
        return {place: self.spot(found) for place, name in keys.items() if (found := self.place(name))}


def _nested(places: tuple[str, ...]) -> str:
    return next((place for place in places if "." in place), places[0])


def _show(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---- findings


def _unread(theirs: Theirs) -> Iterator[Finding]:
    """What has no part in the arithmetic: places that their code passes over, names, and secrets, which are not repeated."""
    for name, key in KEYS.items():
        chosen = theirs.place(name)
        for place in key.places:
            value, taken = theirs.leaves.get(place), theirs.leaves.get(chosen or "")
            if chosen and place in theirs.leaves and value != taken:
                why = f"not read: {chosen} = {_show(taken)} goes before it"
                yield Finding("dropped", f"{theirs.spot(place)} = {_show(value)}", why, "likewise")
    for place, what in NAMES.items():
        if (value := theirs.leaves.get(place)) not in (None, False):
            here = "the run directory is --run, and nothing is uploaded"
            yield Finding("dropped", f"{theirs.spot(place)} = {_show(value)}", what, here)
    for place in SECRETS:
        if theirs.leaves.get(place):
            yield Finding("dropped", theirs.spot(place), "holds a secret", "not repeated; log in instead")


def _notes(theirs: Theirs) -> Iterator[Finding]:
    for note in NOTES:
        if note.when(theirs):
            texts = (text.format_map(theirs) for text in (note.theirs, note.here))
            yield Finding(note.kind, theirs.said(note.key), *texts)


# ---- the recipes


def _train_recipe(theirs: Theirs) -> dict[str, Any]:
    start = theirs.model if theirs.instruct else f"{theirs.sft_run}/{'policy' if theirs.full else 'adapter'}"
    return {
        "seed": theirs.rl_seed,
        "steps": theirs.rollouts,
        "model": start,
        **({} if theirs.instruct else {"base_model": theirs.model}),
        "data": {
            "path": theirs.data,
            "subset": theirs.subset or None,
            "split": theirs.split,
            "take": theirs.take,
            "prompt": "sage",
            "problem_column": "prompt",
            "answer_column": "solution",
        },
        "method": theirs.base if theirs.guide is None else _sage(theirs),
        "rollout": {
            "prompts_per_step": theirs.problems,
            "group_size": theirs.group,
            "max_new_tokens": theirs.completion,
            "temperature": theirs.temperature,
        },
        "updates": {"minibatches": theirs.updates},
        "optimizer": {
            "lr": theirs.lr,
            "weight_decay": theirs.decay,
            "schedule": SCHEDULES[theirs.schedule],
            "warmup_steps": 0 if theirs.constant else theirs.warmup_steps,
        },
        "checkpoint": {"every": theirs.every},
        "engine": _trl(
            theirs, _batch_args(theirs, theirs.per_device, theirs.accumulation) | _sampling(theirs) | _rest(theirs)
        ),
    }


def _sft_recipe(theirs: Theirs) -> dict[str, Any]:
    args = {
        "optim": theirs.sft_optim,
        "gradient_checkpointing": bool(theirs.checkpointing),
        "logging_steps": theirs.sft_logging_steps,
        "completion_only_loss": False,
    }
    constant = SCHEDULES[theirs.sft_schedule] == "constant"
    return {
        "seed": theirs.seed,
        "model": theirs.model,
        "epochs": theirs.sft_epochs,
        "batch_size": theirs.sft_rows * theirs.sft_accumulation,
        "max_length": theirs.sequence,
        "numeric_answers": True,
        "data": {
            "path": theirs.sft_data,
            "split": theirs.sft_split,
            "take": theirs.sft_take,
            "prompt": "sage",
            "problem_column": "problem",
            "answer_column": "expected_answer",
        },
        "optimizer": {
            "lr": theirs.sft_lr,
            "weight_decay": theirs.sft_decay,
            "schedule": SCHEDULES[theirs.sft_schedule],
            "warmup_steps": 0 if constant else theirs.sft_warmup,
        },
        "engine": _trl(theirs, _batch_args(theirs, theirs.sft_rows, theirs.sft_accumulation) | args),
    }


def _sage(theirs: Theirs) -> dict[str, Any]:
    name, band = theirs.guide, {"q_min": theirs.q_min, "q_max": theirs.q_max}
    guides = {
        "branch": lambda: {"ratio": theirs.branch_ratio, "threshold": theirs.branch_threshold, **band},
        "random": lambda: {"eps": _cycles(theirs, "eps"), "sigma": _cycles(theirs, "sig"), **band},
        "token": lambda: {
            "alpha": _cycles(theirs, "alpha"),
            "sigma": _cycles(theirs, "sig"),
            **band,
            "norm": theirs.token_norm,
            "signal": "reference" if theirs.token_source == "ref" else "policy",
        },
    }
    return {"name": "sage", "base": theirs.base, "guide": {"name": name, **guides[name]()}}


def _cycles(theirs: Theirs, prefix: str) -> dict[str, Any]:
    upper, lower = (theirs[f"{theirs.guide}_{prefix}_{bound}"] for bound in ("ub", "lb"))
    cycles, decay = theirs.cycles, theirs[f"{theirs.guide}_decay_rate"]
    return {"name": "cosine_cycles", "upper": upper, "lower": lower, "cycles": cycles, "decay": decay}


def _trl(theirs: Theirs, args: dict[str, Any]) -> dict[str, Any]:
    engine = {"name": "trl", "threads": None}
    if theirs.full:
        return {**engine, "dtype": "float32", "args": args}
    modules = [theirs.modules] if isinstance(theirs.modules, str) else list(theirs.modules)
    everywhere = modules == ["all-linear"] or set(modules) == PROJECTIONS
    lora = {"rank": theirs.rank, "alpha": theirs.alpha, "dropout": theirs.dropout}
    lora["target_modules"] = "all-linear" if everywhere else modules
    return {**engine, "dtype": "bfloat16", "lora": lora, "args": args}


def _batch_args(theirs: Theirs, rows: int, accumulation: int) -> dict[str, Any]:
    return {} if accumulation == 1 else {"per_device_train_batch_size": rows}


def _sampling(theirs: Theirs) -> dict[str, Any]:
    cut = {"min_p": theirs.min_p or None, "top_p": theirs.top_p, "top_k": theirs.top_k}
    off = {"min_p": None, "top_p": 1.0, "top_k": cut["top_k"] if theirs.top_k <= 0 else None}
    found = {name: value for name, value in cut.items() if value != off[name]}
    if not theirs.vllm:
        return found
    return found | {
        "use_vllm": True,
        "vllm_mode": theirs.vllm_mode,
        "vllm_max_model_length": theirs.prompt + theirs.completion,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "generation_kwargs": {"stop": ["</SOLUTION>"], "include_stop_str_in_output": True},
    }


def _rest(theirs: Theirs) -> dict[str, Any]:
    found = {"optim": theirs.optimizer, "gradient_checkpointing": bool(theirs.checkpointing)}
    found |= {} if theirs.logging == 1 else {"logging_steps": theirs.logging}
    return found | ({"report_to": "wandb"} if theirs.wandb else {})


def _yaml(recipe: Mapping[str, Any], head: list[str], origins: Mapping[str, str]) -> str:
    """Block style for two levels and flow style below; `head` and where values come from as comments."""
    lines = [f"# {line}" for line in head]
    for key, value in recipe.items():
        if isinstance(value, dict) and key in ("rollout", "optimizer", "engine", "data", "method"):
            lines.append(f"{key}:")
            lines += [_line(f"  {name}: {_flow(part)}", origins.get(f"{key}.{name}")) for name, part in value.items()]
        else:
            lines.append(_line(f"{key}: {_flow(value)}", origins.get(key)))
    return "\n".join(lines) + "\n"


def _line(text: str, origin: str | None) -> str:
    return text if origin is None else f"{text:<40}  # {origin}"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()
