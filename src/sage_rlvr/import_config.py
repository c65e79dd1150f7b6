"""The training YAML of SAGE's authors as recipes of this package, and in a line each what it did not mean.

    imported = import_config("train_config.yaml", sft_run="runs/mine-sft")
    imported.train, imported.sft          YAML text of a train recipe, and of the SFT recipe before it (None without one)
    imported.findings                     kept: as their code has it; changed: otherwise here; dropped: nothing here reads it

Their file is that of github.com/tally0818/SAGE at c9b3b69 (TRL 0.23, one process): nested sections, or the flat keys that
came before. What their code does with a key was read there. The arithmetic is kept wherever it is what somebody would
want; every departure is a finding, and stands in the head of the recipe too.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sage_rlvr.errors import ConfigError
from sage_rlvr.import_notes import NOTES, Kind
from sage_rlvr.recipes import Tree, load

GUIDES = ("branch", "random", "token")

# What we call it -> the places where their code looks for it, in its order; the first that is there wins.
PLACES: dict[str, tuple[str, ...]] = {
    "seed": ("seed", "project.seed"),
    "rl seed": ("random_state", "rl.trainer_seed", "rl.seed", "rl.random_state"),
    "model": ("model_name", "model.name", "model.model_name"),
    "instruct": ("instruct", "model.instruction_tuned", "model.instruct"),
    "full": ("full_ft", "model.full_finetune", "model.full_ft", "do_full_ft"),
    "sequence": ("max_seq_len", "model.max_seq_len", "model.max_seq_length", "max_seq_length"),
    "checkpointing": ("gradient_checkpointing", "model.gradient_checkpointing"),
    "data": ("train_dataset", "data.train_dataset", "data.dataset"),
    "subset": ("train_dataset_config", "data.train_dataset_config", "data.dataset_config"),
    "split": ("train_split", "data.train_split", "data.split"),
    "take": ("max_train_samples", "data.max_train_samples"),
    "vllm": ("use_vllm", "generation.use_vllm"),
    "vllm mode": ("vllm_mode", "generation.vllm_mode"),
    "temperature": ("temperature", "generation.temperature", "rl.temperature"),
    "min_p": ("min_p", "generation.min_p", "vllm.min_p"),
    "top_p": ("top_p", "generation.top_p", "vllm.top_p"),
    "top_k": ("top_k", "generation.top_k", "vllm.top_k"),
    "generation batch": ("generation_batch_size", "generation.batch_size", "generation.generation_batch_size"),
    "prompt": ("max_prompt_length", "generation.max_prompt_length"),
    "completion": ("max_completion_length", "generation.max_completion_length"),
    "group": (
        "context_grpo.num_rollouts",
        "grpo.num_rollouts",
        "rl.num_rollouts",
        "rl.num_generations",
        "num_rollouts",
    ),
    "steps": ("max_steps", "rl.max_steps"),
    "save": ("save_steps", "rl.save_steps"),
    "lr": ("learning_rate", "rl.learning_rate"),
    "schedule": ("lr_scheduler", "rl.lr_scheduler", "rl.lr_scheduler_type"),
    "warmup": ("warmup_ratio", "rl.warmup_ratio"),
    "decay": ("weight_decay", "rl.weight_decay"),
    "loss": ("loss_type", "rl.loss_type"),
    "use_kl": ("use_kl", "rl.use_kl"),
    "beta": ("beta", "rl.beta", "rl.kl_coef"),
    "epsilon": ("epsilon", "rl.epsilon", "rl.epsilon_high"),
    "optimizer": ("optimizer", "rl.optimizer", "rl.optim"),
    "logging": ("logging_steps", "rl.logging_steps"),
    "per device": ("per_device_train_batch_size", "rl.per_device_train_batch_size"),
    "accumulation": ("gradient_accumulation_steps", "rl.gradient_accumulation_steps"),
    "rank": ("lora_rank", "lora.rank"),
    "alpha": ("lora_alpha", "lora.alpha"),
    "dropout": ("lora_dropout", "lora.dropout"),
    "modules": ("lora_target_modules", "lora.target_modules"),
    "bias": ("lora_bias", "lora.bias"),
    "guide": ("sage.guide",),
    "q_min": ("sage.q_min", "rl.q_min"),
    "q_max": ("sage.q_max", "rl.q_max"),
    "forward": ("use_fkl",),
    "wandb": ("wandb_enabled", "tracking.enabled", "tracking.wandb_enabled"),
    "upload": ("hf_upload", "hub.upload", "hub.hf_upload"),
    **{f"use_{name}": (f"use_{name}",) for name in GUIDES},
}
CYCLES = ["sig_ub", "sig_lb", "N", "num_cycles", "decay_rate"]
GUIDE_KEYS: dict[str, list[str]] = {
    "branch": ["ratio", "threshold", "use_source", "detach_entropy"],
    "random": ["eps_ub", "eps_lb", *CYCLES],
    "token": ["alpha_ub", "alpha_lb", *CYCLES, "use_source", "norm", "detach_surprisal"],
}
SFT_KEYS = ["dataset_name", "split", "max_samples", "num_epochs", "learning_rate", "per_device_train_batch_size"]
SFT_KEYS += [
    "warmup_steps",
    "logging_steps",
    "weight_decay",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "optim",
]
PLACES |= {
    f"{guide} {key}": (f"sage.{guide}.{key}", f"rl.{guide}.{key}") for guide in GUIDE_KEYS for key in GUIDE_KEYS[guide]
}
PLACES |= {f"sft {key}": (f"sft.{key}",) for key in SFT_KEYS}

# Places without a part in the arithmetic; secrets among them are never repeated.
SECRETS = ["wandb_api_key", "WANDB_API_KEY", "tracking.api_key", "tracking.wandb_api_key"]
SECRETS += ["hf_token", "hf_pat", "hub.token", "hub.hf_token"]
NAMES = ["project.name", "project.output_root", "output_root", "algorithm_name"]
NAMES += ["wandb_project", "tracking.project", "tracking.wandb_project", "hf_user_id", "hf_username", "hub.user_id"]
NAMES += ["hub.hf_user_id", "hub.username", "hf_private", "hub.private", "hub.hf_private"]

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
REDUCTIONS = {"grpo": "grpo", "bnpo": "grpo_token_mean", "dapo": "grpo_token_mean", "dr_grpo": "dr_grpo"}
MISSING = object()


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
    return _Import(_Source(tree, str(path)), sft_run, plain).run()


def _check_training(tree: Mapping[str, Any], path: str) -> None:
    data, generation = tree.get("data"), tree.get("generation")
    marks = {"target", "runtime", "k", "eval_limit", "datasets", "algorithms", "eval_steps"} & set(tree)
    nested = isinstance(data, dict) and {"datasets", "eval_limit"} & set(data)
    if marks or nested or (isinstance(generation, dict) and "k" in generation):
        raise ConfigError(
            f"{path}: this is the authors' evaluation configuration (its samples per problem, temperature and data sets are "
            "arguments of an evaluation and no part of a recipe); give their training one, configs/train_config.yaml"
        )


class _Source:
    """Their YAML, looked up as their code does it."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.path, self.origins = path, tree.origins
        self.leaves = dict(self._walk(tree, ()))
        self._check_known()

    def _walk(self, node: Mapping[Any, Any], place: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            here = (*place, str(key))
            if isinstance(value, dict):
                yield from self._walk(value, here)
            elif value is not None or here not in {("sft",), ("sage",), ("lora",), ("rl",)}:
                yield ".".join(here), value

    def _check_known(self) -> None:
        known = {place for places in PLACES.values() for place in places} | set(SECRETS) | set(NAMES)
        for place in self.leaves:
            if place not in known:
                word = place.rpartition(".")[2]
                near = [p for p in sorted(known) if p.rpartition(".")[2] == word] or difflib.get_close_matches(
                    place, known, n=1
                )
                hint = f"did you mean {near[0]}?" if near else "their code reads no such key"
                raise ConfigError(f"{self.spot(place)}: unknown key; {hint}")

    def spot(self, place: str) -> str:
        """train_config.yaml:41: rl.epsilon"""
        file, _, line = self.origins.get(tuple(place.split(".")), self.path).rpartition(":")
        return f"{Path(file or line).name}{':' + line if file else ''}: {place}"

    def place(self, key: str) -> str | None:
        """The place that their code takes `key` from, None where it is given nowhere."""
        there = [place for place in PLACES[key] if place in self.leaves]
        if key == "group":  # only a whole number above 0 is taken there
            there = [p for p in there if type(self.leaves[p]) is int and self.leaves[p] > 0]
        return there[0] if there else None

    def shadowed(self) -> Iterator[tuple[str, str]]:
        """(place that their code passes over, place that it takes instead), where the two differ."""
        for key, places in PLACES.items():
            chosen = self.place(key)
            for place in places:
                if chosen and place in self.leaves and self.leaves[place] != self.leaves[chosen]:
                    yield place, chosen

    def get(self, key: str, default: Any, kind: type | tuple[type, ...] | None = None) -> Any:
        """The value of `key`, or `default`. ConfigError where it is not of `kind`; an int passes for a float."""
        place = self.place(key)
        if place is None:
            return default
        value = self.leaves[place]
        wanted = kind if isinstance(kind, tuple) or kind is None else (kind,)
        plain_number = not isinstance(value, bool) or wanted is None or bool in wanted  # true is an int to Python
        if wanted is None or (isinstance(value, wanted) and plain_number):
            return value
        if float in wanted and type(value) is int:
            return float(value)
        words = " or ".join(
            {int: "a whole number", float: "a number", bool: "true or false"}.get(t, "text") for t in wanted
        )
        raise ConfigError(f"{self.spot(place)} = {value!r}: expected {words}")

    def said(self, key: str) -> str:
        """Where `key` stands and what it says, for a finding."""
        place = self.place(key)
        if place is None:
            nested = next((place for place in PLACES[key] if "." in place), PLACES[key][0])
            return f"{Path(self.path).name}: {nested} (not given)"
        return f"{self.spot(place)} = {_show(self.leaves[place])}"


def _show(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class _Import:
    """One import: `run` builds both recipes and collects what there is to say."""

    def __init__(self, source: _Source, sft_run: str, plain: bool) -> None:
        self.source, self.get, self.sft_run = source, source.get, sft_run
        self.findings: list[Finding] = []
        self.full = bool(self.get("full", False))
        self.instruct = bool(self.get("instruct", True))
        self.guide = None if plain else self._guide_name()
        self.model: str = self.get("model", MISSING, str)
        if self.model is MISSING:
            raise ConfigError(f"{source.path}: no model.name; their code stops there (KeyError: 'model_name')")

    def say(self, note: str, at: str | None = None, **numbers: Any) -> None:
        """Collect NOTES[note], at the key that it names or at another."""
        kind, key, theirs, here = NOTES[note]
        place = self.source.said(at or key)
        self.findings.append(Finding(kind, place, theirs.format(**numbers), here.format(**numbers)))

    def run(self) -> Imported:
        """The recipes as YAML texts, RL and (without `instruct`) SFT, with their findings in the order in which they came up.

        ConfigError where a key has no meaning here, or a value no counterpart; it names the key's line in the source.
        """
        self._names()
        train = self._train_recipe()
        sft = None if self.instruct else self._sft_recipe()
        head = [f"From {Path(self.source.path).name}, a training configuration of SAGE's authors (tally0818/SAGE)"]
        if sft is not None:
            head.append(f"Before it: the SFT recipe beside this one, with --run {self.sft_run}")
        head += [str(finding) for finding in self.findings if finding.kind != "kept"]
        return Imported(
            _yaml(train, head, self._origins(TRAIN_ORIGINS)),
            None if sft is None else _yaml(sft, head[:1], self._origins(SFT_ORIGINS)),
            tuple(self.findings),
        )

    def _origins(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Place in a recipe -> where in their file its value stands."""
        return {place: self.source.spot(found) for place, key in keys.items() if (found := self.source.place(key))}

    # ---- which guide

    def _guide_name(self) -> str | None:
        source = self.source
        flags = [name for name in GUIDES if self.get(f"use_{name}", False)]
        if source.place("guide") is None:
            if len(flags) > 1:
                named = ", ".join(f"use_{flag}" for flag in flags)
                raise ConfigError(f"{source.path}: {named}: their code takes one guide; keep one")
            return flags[0] if flags else None
        for flag in flags:
            self.say("not read", f"use_{flag}")
        name = self.get("guide", None)
        if name in (None, "", "none"):
            return None
        if name not in GUIDES:
            near = difflib.get_close_matches(str(name), GUIDES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{source.said('guide')}: choose from {', '.join(GUIDES)}, none{hint}")
        return str(name)

    # ---- the train recipe

    def _train_recipe(self) -> dict[str, Any]:
        batch = self._batch()
        optimizer, method, data = self._optimizer(batch["updates"]), self._method(batch["minibatches"]), self._data()
        recipe: dict[str, Any] = {
            "seed": self._seed(),
            "steps": batch["steps"],
            "model": self.model if self.instruct else f"{self.sft_run}/{'policy' if self.full else 'adapter'}",
            **({} if self.instruct else {"base_model": self.model}),
            "data": data,
            "method": method,
            "rollout": {
                "prompts_per_step": batch["prompts"],
                "group_size": batch["group"],
                "max_new_tokens": self.get("completion", 1024, int),
                "temperature": self.get("temperature", 1.0, float),
            },
            "updates": {"minibatches": batch["minibatches"]},
            "optimizer": optimizer,
            "checkpoint": {"every": self._every(batch["minibatches"])},
            "engine": {"name": "trl", "threads": None, **self._precision()},
        }
        recipe["engine"]["args"] = batch["args"] | self._sampling() | self._rest()
        if not self.instruct and "source" in method.get("base", method):
            self.say("reference", place="method.base.source" if self.guide else "method.source")
        self.say("reward")
        if self.source.place("prompt"):
            self.say("prompt")
        return recipe

    def _seed(self) -> int:
        seed, trainer = self.get("seed", 42, int), self.get("rl seed", MISSING, int)
        if trainer is not MISSING and seed != trainer:
            self.say("seeds", other=self.source.said("seed"))
        return int(seed if trainer is MISSING else trainer)

    def _batch(self) -> dict[str, Any]:
        """Their rows as problems, updates and rollouts; one process."""
        said, group, rows = self.source.said, self.get("group", 8), self.get("per device", 8, int)
        accumulate, steps = self.get("accumulation", 1, int), self.get("steps", 300, int)
        generated = self.get("generation batch", rows, int)
        if steps <= 0:
            raise ConfigError(f"{said('steps')}: TRL takes that as three epochs; write the number of optimizer steps")
        if min(rows, accumulate, generated) < 1 or generated % rows or generated % group:
            raise ConfigError(
                f"{said('generation batch')}: TRL stops, because {generated} rows are no multiple of "
                f"per_device_train_batch_size = {rows} and of {group} completions per problem"
            )
        chunks, update = generated // rows, rows * accumulate
        if chunks % accumulate and accumulate % chunks:
            raise ConfigError(
                f"{said('generation batch')}: {chunks} micro-batches a rollout and {accumulate} an update: an update would "
                "take parts of two rollouts, which a recipe cannot say; make one a multiple of the other"
            )
        if update % group:
            raise ConfigError(
                f"{said('per device')}: an update has {update} rows, no whole groups of {group}, which a recipe cannot say; "
                f"make per_device_train_batch_size x gradient_accumulation_steps a multiple of {group}"
            )
        problems, minibatches = max(generated, update) // group, max(1, chunks // accumulate)
        rollouts = -(-steps // minibatches)
        self.say("batch", rows=update, problems=problems, group=group, updates=minibatches, rollouts=rollouts)
        if steps % minibatches:
            self.say("steps", updates=minibatches)
        args = {} if accumulate == 1 else {"per_device_train_batch_size": rows}
        found = {"group": group, "prompts": problems, "minibatches": minibatches, "args": args}
        return found | {"updates": steps, "steps": rollouts}

    def _optimizer(self, updates: int) -> dict[str, Any]:
        schedule, ratio = self._schedule_name("schedule", "constant"), self.get("warmup", 0.1, float)
        if schedule == "constant":
            if ratio:
                self.say("warmup", steps=math.ceil(updates * ratio))
            self.say("schedule")
        return {
            "lr": self.get("lr", 2e-6, float),
            "weight_decay": self.get("decay", 0.01, float),
            "schedule": SCHEDULES[schedule],
            "warmup_steps": 0 if schedule == "constant" else math.ceil(updates * ratio),
        }

    def _schedule_name(self, key: str, default: str) -> str:
        name = str(self.get(key, default, str))
        if name not in SCHEDULES:
            raise ConfigError(f"{self.source.said(key)}: recipes have {', '.join(SCHEDULES)}; write one of them")
        return name

    def _every(self, minibatches: int) -> int:
        steps = self.get("save", 50, int)
        if steps < 1:
            raise ConfigError(f"{self.source.said('save')}: must be above 0")
        rollouts = int(max(1, steps // minibatches))
        self.say("save", rollouts=rollouts)
        return rollouts

    def _data(self) -> dict[str, Any]:
        take = self.get("take", None, (int, type(None)))
        if take is None:
            self.say("take")
        return {
            "path": self.get("data", "open-r1/DAPO-Math-17k-Processed", str),
            "subset": self.get("subset", "en", (str, type(None))) or None,
            "split": self.get("split", "train", str),
            "take": take,
            "prompt": "sage",
            "problem_column": "prompt",
            "answer_column": "solution",
        }

    # ---- the method

    def _method(self, minibatches: int) -> dict[str, Any]:
        said = self.source.said
        if self.guide and self.get("forward", False):
            raise ConfigError(
                f"{said('forward')}: their code raises here, it has no forward KL; take the key out, and see "
                "recipes/paper/forward_kl.yaml for that arm"
            )
        use_kl, beta = bool(self.get("use_kl", True)), self.get("beta", 0.05, float)
        if self.guide and not (use_kl and beta):
            raise ConfigError(
                f"{said('use_kl')}: their code stops, because a guide has no KL term to shape; set use_kl: true and beta above "
                "0, or import with --plain, as their train_grpo reads the file"
            )
        if not use_kl and beta:
            self.say("use_kl", beta=beta)
        base = self._base(beta if use_kl else 0.0, minibatches)
        if self.guide is None:
            return base
        if minibatches > 1:
            self.say("q")
        self._say_guide(self.guide)
        return {"name": "sage", "base": base, "guide": self._guide(self.guide)}

    def _base(self, beta: float, minibatches: int) -> dict[str, Any]:
        loss, high = self.get("loss", "grpo", str), self.get("epsilon", 0.2, float)
        if loss not in REDUCTIONS:
            raise ConfigError(
                f"{self.source.said('loss')}: their trainer has {', '.join(REDUCTIONS)}; write one of them"
            )
        self.say("epsilon", high=high, same=", which here is the same number" if high == 0.2 else "")
        if loss != "grpo":
            split = loss == "bnpo" and self.get("accumulation", 1, int) > 1
            self.say(f"{loss} split" if split else loss, updates=minibatches)
        source = {"source": "sft"} if beta and not self.instruct else {}
        return {"name": REDUCTIONS[loss], "beta": beta, "clip_low": 0.2, "clip_high": high, **source}

    def _guide(self, name: str) -> dict[str, Any]:
        band = {"q_min": self.get("q_min", 0.6, float), "q_max": self.get("q_max", 1.4, float)}
        if name == "branch":
            defaults = {"ratio": 0.3, "threshold": 1.2}
            return {"name": name, **{k: self.get(f"branch {k}", v, float) for k, v in defaults.items()}, **band}
        first = "eps" if name == "random" else "alpha"
        found = {"name": name, first: self._cycles(name, first), "sigma": self._cycles(name, "sig"), **band}
        if name == "token":
            found["norm"] = self.get("token norm", "minmax", str)
            found["signal"] = "reference" if self.get("token use_source", "new", str) == "ref" else "policy"
        return found

    def _cycles(self, guide: str, prefix: str) -> dict[str, Any]:
        bounds = {}
        for key, name in ((f"{prefix}_ub", "upper"), (f"{prefix}_lb", "lower")):
            bounds[name] = self.get(f"{guide} {key}", MISSING, float)
            if bounds[name] is MISSING:
                raise ConfigError(
                    f"{self.source.path}: no sage.{guide}.{key}; their code stops there (KeyError: '{key}')"
                )
        decay = self.get(f"{guide} decay_rate", 0.9, float)
        return {"name": "cosine_cycles", **bounds, "cycles": self._periods(guide), "decay": decay}

    def _periods(self, guide: str) -> int:
        return int(self.get(f"{guide} N", self.get(f"{guide} num_cycles", 1, int), int))

    def _say_guide(self, guide: str) -> None:
        flag = {"branch": "branch detach_entropy", "token": "token detach_surprisal"}.get(guide)
        if flag and self.source.place(flag):
            self.say("detach", flag)
        if guide == "branch":
            if self.get("branch use_source", "new") == "ref":
                self.say("branch ref")
            return
        times, steps = self.get("accumulation", 1, int), self.get("steps", 300, int)
        self.say("advance split" if times > 1 else "advance", times=times)
        if steps % self._periods(guide):
            self.say("tail", steps=steps, cycles=self._periods(guide))

    # ---- engine

    def _precision(self, quiet: bool = False) -> dict[str, Any]:
        """dtype and adapters; quiet where the other recipe has said it."""
        if not quiet:
            self.say("full" if self.full else "lora")
        if self.full:
            return {"dtype": "float32"}
        if self.get("bias", "none", str) != "none":
            raise ConfigError(f"{self.source.said('bias')}: adapters here train no biases; write none")
        modules = self.get("modules", sorted(PROJECTIONS), (list, str))
        alpha = self.get("alpha", None, (float, type(None)))
        lora = {"rank": self.get("rank", 8, int), "alpha": alpha, "dropout": self.get("dropout", 0.0, float)}
        named = [modules] if isinstance(modules, str) else modules
        everywhere = modules == "all-linear" or set(named) == PROJECTIONS
        return {"dtype": "bfloat16", "lora": lora | {"target_modules": "all-linear" if everywhere else named}}

    def _sampling(self) -> dict[str, Any]:
        top_k, top_p = self.get("top_k", -1, int), self.get("top_p", 1.0, float)
        min_p = self.get("min_p", 0.01, (float, type(None)))
        if top_k <= 0:
            self.say("top_k")
        if min_p:
            self.say("min_p")
        given = {
            "min_p": min_p or None,
            "top_p": top_p if top_p != 1.0 else None,
            "top_k": top_k if top_k > 0 else None,
        }
        found = {name: value for name, value in given.items() if value is not None}
        return found | (self._vllm() if self.get("vllm", False, bool) else {})

    def _vllm(self) -> dict[str, Any]:
        self.say("vllm")
        return {
            "use_vllm": True,
            "vllm_mode": self.get("vllm mode", "colocate", str),
            "vllm_max_model_length": self.get("prompt", 1024, int) + self.get("completion", 1024, int),
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 2.0,
            "generation_kwargs": {"stop": ["</SOLUTION>"], "include_stop_str_in_output": True},
        }

    def _rest(self) -> dict[str, Any]:
        optimizer = self.get("optimizer", "adamw_torch", str)
        if "8bit" in optimizer:
            self.say("optimizer")
        found = {"optim": optimizer, "gradient_checkpointing": bool(self.get("checkpointing", True))}
        if (every := self.get("logging", 1, int)) != 1:
            found["logging_steps"] = every
        if self.source.place("wandb") is None:
            self.say("no wandb")
        elif self.get("wandb", False):
            found["report_to"] = "wandb"
            self.say("wandb")
        return found

    # ---- what has no part in the arithmetic

    def _names(self) -> None:
        leaves, spot = self.source.leaves, self.source.spot
        for place, chosen in self.source.shadowed():
            theirs = f"not read: {chosen} = {_show(leaves[chosen])} goes before it"
            self.findings.append(Finding("dropped", f"{spot(place)} = {_show(leaves[place])}", theirs, "likewise"))
        here = "the run directory is --run, and nothing is uploaded"
        for place in NAMES:
            if leaves.get(place) not in (None, False):
                what = "is read by nothing" if place == "project.name" else "names a folder, a run or an account"
                self.findings.append(Finding("dropped", f"{spot(place)} = {_show(leaves[place])}", what, here))
        for place in SECRETS:
            if leaves.get(place):
                self.findings.append(Finding("dropped", spot(place), "holds a secret", "not repeated; log in instead"))
        if self.get("upload", False):
            self.say("upload")

    # ---- SFT

    def _sft_recipe(self) -> dict[str, Any]:
        length, samples = self.get("sequence", 2048, int), self.get("sft max_samples", None, (int, type(None)))
        cut = ", and cuts the others at 1,024, TRL 0.23's default" if length > 2048 else ""
        self.say("sequence", half=length // 2, cut=cut)
        self.say("sft loss")
        if not self.full:
            self.say("sft adapter")
        if samples is not None:
            self.say("samples")
        schedule = self._schedule_name("sft lr_scheduler_type", "linear")
        rows = self.get("sft per_device_train_batch_size", 1, int)
        accumulate = self.get("sft gradient_accumulation_steps", 1, int)
        args: dict[str, Any] = {} if accumulate == 1 else {"per_device_train_batch_size": rows}
        args |= {"optim": self.get("sft optim", "adamw_torch", str)}
        args |= {"gradient_checkpointing": bool(self.get("checkpointing", True))}
        args |= {"logging_steps": self.get("sft logging_steps", 10, int), "completion_only_loss": False}
        data = {"path": self.get("sft dataset_name", "unsloth/OpenMathReasoning-mini", str)}
        data |= {"split": self.get("sft split", "cot", str), "take": samples, "prompt": "sage"}
        return {
            "seed": self.get("seed", 42, int),
            "model": self.model,
            "epochs": self.get("sft num_epochs", 1, int),
            "batch_size": rows * accumulate,
            "max_length": length,
            "numeric_answers": True,
            "data": data | {"problem_column": "problem", "answer_column": "expected_answer"},
            "optimizer": {
                "lr": self.get("sft learning_rate", 2e-5, float),
                "weight_decay": self.get("sft weight_decay", 0.0, float),
                "schedule": SCHEDULES[schedule],
                "warmup_steps": 0 if schedule == "constant" else self.get("sft warmup_steps", 0, int),
            },
            "engine": {"name": "trl", "threads": None, **self._precision(quiet=True), "args": args},
        }


# ---- a recipe as text

# Place in a recipe -> key of PLACES, for the comments that say where a value comes from.
TRAIN_ORIGINS = {
    "seed": "rl seed",
    "steps": "steps",
    "data.path": "data",
    "data.take": "take",
    "rollout.prompts_per_step": "generation batch",
    "rollout.group_size": "group",
    "rollout.max_new_tokens": "completion",
    "rollout.temperature": "temperature",
    "optimizer.lr": "lr",
    "optimizer.weight_decay": "decay",
    "optimizer.schedule": "schedule",
    "optimizer.warmup_steps": "warmup",
    "checkpoint": "save",
}
SFT_ORIGINS = {
    "seed": "seed",
    "epochs": "sft num_epochs",
    "batch_size": "sft per_device_train_batch_size",
    "max_length": "sequence",
    "data.path": "sft dataset_name",
    "optimizer.lr": "sft learning_rate",
    "optimizer.weight_decay": "sft weight_decay",
    "optimizer.schedule": "sft lr_scheduler_type",
    "optimizer.warmup_steps": "sft warmup_steps",
}


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
