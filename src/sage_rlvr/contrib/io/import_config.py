"""Settings of TRL and of verl as a recipe: `sage-rlvr import-config FILE`.

    imported = import_config("grpo.yaml")       a GRPOConfig (YAML or JSON), or verl's overrides (key=value, a shell script, YAML)
    imported.recipe, imported.findings          a recipe's tree, and one line for each key of the file

There is no separate table of fields. A recipe becomes fields of TRL by `trl.arguments`, and words of verl by `verl.arguments` and
`verl.fields`; a recipe is proposed, converted to fields by these, and each key of the file is compared with the result.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import yaml

from sage_rlvr.config import TrainConfig, Tree, decode, dump, override, parse_yaml
from sage_rlvr.config.parts import PEFT_NAMES, Tracker
from sage_rlvr.contrib.methods.cispo import Cispo
from sage_rlvr.contrib.methods.gspo import Gspo
from sage_rlvr.core.advantages import GroupCentered, GroupNormalized
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, nearest, short, suggest
from sage_rlvr.extras import install
from sage_rlvr.methods import METHODS
from sage_rlvr.paths import anchored
from sage_rlvr.safe_io import read_json, read_text
from sage_rlvr.training.engines import ESTIMATOR, FAR
from sage_rlvr.training.trl.arguments import NO_KEY, PART, grpo_arguments, grpo_config
from sage_rlvr.training.trl.arguments import OWNED as OF_TRL
from sage_rlvr.training.verl.arguments import CHAT, MODEL, OPTIMIZER, ROLLOUT, flattened, verl_words
from sage_rlvr.training.verl.arguments import OWNED as OF_VERL
from sage_rlvr.training.verl.fields import ESTIMATORS, SPELLED, method_fields
from sage_rlvr.training.verl.terms import ACTOR, OWN

# Options of TRL's scripts besides a GRPOConfig (ScriptArguments, ModelConfig) -> the key of a recipe.
SCRIPT = {
    "model_name_or_path": "model",
    "dataset_name": "data.path",
    "dataset_config": "data.subset",
    "dataset_train_split": "data.split",
    "use_peft": "engine.lora",
    "lora_target_modules": "engine.lora.target_modules",
    **{name if name.startswith("lora_") else f"lora_{name}": f"engine.lora.{ours}" for name, ours in PEFT_NAMES.items()},
    "dtype": "engine.dtype",
    "torch_dtype": "engine.dtype",
}
# Defaults of verl 0.9 for missing keys, for the keys that decide a recipe.
VERL_DEFAULTS: dict[str, Any] = {
    **OWN,
    "data.train_batch_size": 1024,
    "data.max_response_length": 512,
    CHAT: {},
    f"{ROLLOUT}.n": 1,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_epochs": 1,
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.weight_decay": 0.01,
    f"{OPTIMIZER}.betas": [0.9, 0.999],
    f"{OPTIMIZER}.clip_grad": 1.0,
    f"{OPTIMIZER}.lr_scheduler_type": "constant",
    f"{OPTIMIZER}.lr_warmup_steps": -1,
    f"{MODEL}.lora_rank": 0,
    f"{MODEL}.lora_alpha": 16,
    f"{MODEL}.target_modules": "all-linear",
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    "trainer.save_freq": -1,
}
ROOTS = ("actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "data", "global_profiler", "hydra", "ray_kwargs")
ROOTS += ("reward", "reward_model", "reward_manager", "rollout", "sage", "sandbox_fusion", "trainer", "transfer_queue")
NAMED = ("grpo", "dr_grpo", "rloo", "grpo_token_mean", "dapo", "gspo", "cispo")  # methods that may name a result
SET_BY_RUN = "the run sets this key"
UNSAFE = ("hub_token", "push_to_hub_token")
_WORD = re.compile(r"\+{0,2}[a-z_]\w*(\.\w+)*=", re.ASCII)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})", re.ASCII)  # $name, ${name}, ${name:-text}


@dataclass(frozen=True)
class ImportedKey:
    """A key of the file. kind: "taken over", "passed on" (to engine.args), "default" (needless), "no counterpart" or
    "unknown"; detail: the place, or the reason."""

    key: str
    value: Any
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind:<15} {self.key} = {short(self.value, 60)}: {self.detail}"


@dataclass(frozen=True)
class Imported:
    """A recipe's tree, and a finding for each key of the file. source: "TRL" or "verl"."""

    recipe: dict[str, Any]
    findings: tuple[ImportedKey, ...]
    source: str

    @property
    def lines(self) -> list[str]:
        """The findings as text, those that need a decision last; many fields at the library's default are one line."""
        order = ("default", "taken over", "passed on", "no counterpart", "unknown")
        findings = sorted(self.findings, key=lambda one: order.index(one.kind))
        plain = [one for one in findings if one.kind == "default"]
        shown = [str(one) for one in findings if one.kind != "default" or len(plain) <= 10]
        if len(plain) > 10:
            shown.insert(0, f"{'default':<15} {len(plain)} keys have the value that a run of this recipe has without them")
        if not {"data", "task"} & set(self.recipe):
            shown.append("no data set: the recipe trains on the built-in world of Countdown; add task or data")
        return shown

    @property
    def text(self) -> str:
        """The recipe as YAML."""
        return str(yaml.safe_dump(self.recipe, sort_keys=False, allow_unicode=True, width=120))


def import_config(path: str | Path, edits: Iterable[tuple[str, str]] = (), defaults: Mapping[str, Any] | None = None) -> Imported:
    """Read settings of TRL or verl, and write the recipe with them.

    Args:
        path: A GRPOConfig or a script's config of TRL as YAML or JSON; or verl's overrides, one key=value per line or word (a shell
            script too), or as YAML.
        edits: (key, value) of the recipe that the file lacks, such as ("steps", "200").
        defaults: Values of GRPOConfig for keys that the file lacks; by default those of the installed TRL.

    Raises:
        ConfigError: For a file of another kind, and if the recipe lacks a value, which the message names.
    """
    given = read_settings(Path(path))
    method = {key: value for key, value in given.items() if key.lstrip("+") == "sage.method"}  # a recipe's mapping, used as a whole
    flat = flattened({key: value for key, value in given.items() if key not in method}) | method
    bare = {key.lstrip("+"): value for key, value in flat.items()}
    if any(key.partition(".")[0] in ROOTS and "." in key for key in bare):
        variables, used = _shell(Path(path))
        settings = {key: _filled(value, variables) for key, value in bare.items() if "." in key or key not in used}
        return _finish(_Verl(settings), edits, Path(path))
    return _finish(_Trl(dict(given), dict(trl_defaults() if defaults is None else defaults)), edits, Path(path))


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping of a YAML or JSON file, or the key=value words of a file of overrides."""
    if path.suffix in (".bin", ".pt", ".pkl"):
        raise ConfigError(f"{path}: a pickle, which could run code; write the settings as JSON: args.to_json_string()")
    if path.suffix == ".json":
        settings: dict[str, Any] = read_json(path, error=ConfigError, advice="pass the JSON of a GRPOConfig", strict=False)
        return settings
    text = read_text(path, error=ConfigError)
    words = [word for line in text.splitlines() for word in _words(line)]
    if not words:
        return dict(parse_yaml(text, str(path)))
    return {key: _value(value) for key, _, value in (word.partition("=") for word in words)}


def _words(line: str) -> list[str]:
    """The key=value words of a line of a shell script, or the line itself, as in key=[1, 2]."""
    line = line.strip().removesuffix("\\").strip()
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation mark that the line does not close
        words = []
    if _WORD.match(line) and line.partition("=")[2].startswith(("[", "{")):  # a shell would remove the spaces of these
        return [line]
    return [word for word in words if _WORD.match(word)]


def _value(text: str) -> Any:
    try:
        return parse_yaml(f"value: {text}")["value"]
    except ConfigError:
        return text


def _shell(path: Path) -> tuple[dict[str, str], set[str]]:
    """The variables that a shell script sets, and the names of those that it reads."""
    text = "" if path.suffix == ".json" else read_text(path, error=ConfigError)
    words: list[str] = []
    for line in text.splitlines():
        with suppress(ValueError):  # a quotation mark that the line does not close
            words += shlex.split(line.strip().removesuffix("\\"), comments=True)
    variables = dict(word.split("=", 1) for word in words if _ASSIGNED.match(word))
    return variables, {one[1] or one[2] for one in _VARIABLE.finditer(text)}


def _filled(value: Any, variables: Mapping[str, str], depth: int = 8) -> Any:
    """A value with the variables of its file, else those of the environment; unknown ones are unchanged."""
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def named(one: re.Match[str]) -> str:
        name = one[1] or one[2]
        return variables.get(name, os.environ.get(name, one[0] if one[3] is None else one[3]))

    text = _VARIABLE.sub(named, value)
    return value if text == value else _filled(_value(text), variables, depth - 1) if depth else text


def _open(value: Any) -> list[str]:
    """The variables of a shell that are left in a value."""
    return [one[0] for text in (value if isinstance(value, list) else [value]) for one in _VARIABLE.finditer(str(text))]


def _at(value: Any, ours: Any) -> Any:
    """The file's value if it is the recipe's path, which is absolute in the recipe; otherwise the recipe's."""
    return value if isinstance(value, str) and ours == str((Path.cwd() / Path(value).expanduser()).resolve()) else ours


def trl_defaults() -> dict[str, Any]:
    """The default of each field of GRPOConfig of the installed TRL."""
    try:
        from trl import GRPOConfig
    except ModuleNotFoundError as error:
        raise ConfigError(
            "import-config: keys that the file lacks have the defaults of the installed TRL, and TRL is not installed; "
            f"{install('trl')}"
        ) from error
    made = ((f.name, f.default, f.default_factory) for f in fields(GRPOConfig))
    return {name: value if factory is MISSING else factory() for name, value, factory in made}


# ---- a recipe, and its fields


class _Source:
    """The common part of both libraries. given: keys of the file; lost: key -> why it has no counterpart.

    split: keys of engine.args that decide how a rollout is split.
    """

    name: str
    split: tuple[str, ...]
    owned: Mapping[str, str]

    def __init__(self, given: dict[str, Any], defaults: Mapping[str, Any]):
        self.given, self.defaults, self.all = given, defaults, given
        self.lost: dict[str, str] = {}
        self.ratio = 0.0  # fraction of the warm-up, if the file gives it as a part of the run

    def read(self, key: str) -> Any:
        """The value of the file, else the library's default."""
        return self.given.get(key, self.defaults.get(key))

    def recipe(self) -> dict[str, Any]:
        """The proposed recipe."""
        raise NotImplementedError

    def forward(self, config: TrainConfig) -> dict[str, Any]:
        """The fields of the library of a recipe."""
        raise NotImplementedError

    def warmup(self, config: TrainConfig) -> int:
        """The warm-up of `ratio` in updates."""
        raise NotImplementedError

    def passed(self) -> dict[str, Any]:
        """Keys of the file without a key of a recipe, for engine.args."""
        raise NotImplementedError

    def unknown(self) -> dict[str, str]:
        """Keys that the library does not have -> the message."""
        raise NotImplementedError

    def stranger(self, key: str, known: Iterable[str], library: str) -> str:
        """The message for a key that the library does not have."""
        near = nearest(key, known, 0.8)
        hint = f"; did you mean {near}?" if near else ""
        return f"no field of {library}{hint}"

    def schedule(self, name: Any, key: str) -> str:
        """The recipe's schedule of a learning rate."""
        known = {"constant_with_warmup": "constant"}.get(str(name), str(name))
        if known in ("constant", "linear", "cosine"):
            return known
        self.lost[key] = "recipes have constant, linear and cosine"
        return "constant"

    def whole(self, key: str, number: float, what: str) -> int:
        """A count, which must be an integer. Raises ConfigError otherwise."""
        if number != int(number) or number < 1:
            raise ConfigError(f"{key} = {self.read(key)!r}: {what} would be {number:g}; a recipe needs a whole number")
        return int(number)


def _finish(source: _Source, edits: Iterable[tuple[str, str]], path: Path) -> Imported:
    """The recipe with the edits, and the findings from comparing it with its fields."""
    unknown = source.unknown()
    tree = source.recipe()
    passed = {key: value for key, value in source.passed().items() if key not in unknown}
    edited = Tree({**tree, "engine": {"name": source.name, **tree.get("engine", {})}})
    edits = list(edits)
    for key, text in edits:
        edited = override(edited, key, text)
    for key, option in (("steps", "--steps N"), ("model", "--model FOLDER or HUB_ID")):
        if edited.get(key) is None:
            raise ConfigError(f"{path}: the settings have no {key}; pass {option}")
    # relative paths of a command are relative to the current folder, and those of the written recipe to its folder
    names = [f.name for f in fields(TrainConfig) if f.name in edited]
    rest = [name for name in edited if name not in names]  # keys that no recipe has, for which `decode` raises an error
    edited = Tree(anchored({name: edited[name] for name in names + rest}, (), lambda key_path: Path.cwd()))
    split = {key: value for key, value in passed.items() if key in source.split}
    config = _with_args(edited, split, path)
    if source.ratio and not {"optimizer", "optimizer.warmup_steps"} & {key.lstrip("-") for key, _ in edits}:
        edited = Tree({**edited, "optimizer": edited["optimizer"] | {"warmup_steps": source.warmup(config)}})
        config = _with_args(edited, split, path)
    became = source.forward(config)
    passed = {key: value for key, value in passed.items() if key in split or key not in became or not _same(became[key], value)}
    edited = Tree({**edited, "engine": edited["engine"] | ({"args": passed} if passed else {})})
    became = source.forward(_with_args(edited, passed, path))
    findings = tuple(_finding(source, key, value, became, unknown, passed, edited["method"]) for key, value in source.all.items())
    return Imported(dict(edited), findings, {"trl": "TRL", "verl": "verl"}[source.name])


def _with_args(tree: Mapping[str, Any], args: Mapping[str, Any], path: Path) -> TrainConfig:
    engine = tree["engine"] | ({"args": dict(args)} if args else {})
    return decode(TrainConfig, {**tree, "engine": engine}, where=str(path))


def _finding(
    source: _Source,
    key: str,
    value: Any,
    became: Mapping[str, Any],
    unknown: Mapping[str, str],
    passed: Mapping[str, Any],
    method: Any,
) -> ImportedKey:
    if key in unknown:
        return ImportedKey(key, value, "unknown", unknown[key])
    if key in source.lost:
        return ImportedKey(key, value, "no counterpart", source.lost[key])
    if key in passed:
        return ImportedKey(key, value, "passed on", f"engine.args.{key}")
    if key not in source.owned:
        return ImportedKey(key, value, "default", "what a run of this recipe has without the key")
    key_path = source.owned[key]
    if key_path == SET_BY_RUN:
        return ImportedKey(key, value, "default", key_path)
    if key_path in NO_KEY:
        return ImportedKey(key, value, "no counterpart", key_path)
    key_path = _recipe_key(key_path, method)
    if key in became and _same(became[key], value):
        return ImportedKey(key, value, "taken over", key_path)
    if key in source.defaults and _same(source.defaults[key], value) and (key not in became or value is None):
        return ImportedKey(key, value, "default", "what a run of this recipe has without the key")
    if key not in became:
        return ImportedKey(key, value, "no counterpart", f"this recipe has no use for it ({key_path})")
    return ImportedKey(key, value, "no counterpart", f"this recipe trains with {short(became[key], 40)} ({key_path})")


def _recipe_key(key_path: str, method: Any) -> str:
    """The recipe's key for a part of a method: method.anchor.beta -> method.beta."""
    part, _, option = key_path.removeprefix("method.").partition(".")
    if not key_path.startswith("method.") or not isinstance(method, Mapping):
        return key_path
    for name in (f"clip_{option}", option) if option else ():
        if name in method:
            return f"method.{name}"
    return key_path if part in method else "method.name"


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-9)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _fitting(parts: Iterable[Method], forward: Callable[[Method], Mapping[str, Any]], wanted: Mapping[str, Any]) -> Method:
    """The candidate whose fields differ least from the wanted ones."""
    best: tuple[int, Method] | None = None
    for method in parts:
        try:
            became = forward(method)
        except ConfigError:  # the library has no such combination
            continue
        wrong = sum(not _same(became[key], value) for key, value in wanted.items() if key in became)
        if best is None or wrong < best[0]:
            best = wrong, method
    assert best is not None  # GRPO without a KL term has one
    return best[1]


def _candidates(
    surrogates: Iterable[Callable[[], Any]],
    reductions: Iterable[Any],
    advantages: Iterable[Any],
    anchors: Iterable[Anchor | None],
    **more: Any,
) -> Iterator[Method]:
    """All methods of these parts, the plainest first."""
    for surrogate, reduction, advantage, anchor in product(surrogates, reductions, advantages, list(anchors)):
        with suppress(ConfigError):  # parts that cannot be combined, or a number that a part does not accept
            yield Method("compose", advantage, surrogate(), anchor, reduction, **more)


def method_tree(method: Method) -> dict[str, Any]:
    """The method by the name of a published one with its options, or else composed of parts."""
    anchor, clip = method.anchor, method.surrogate
    keys: dict[str, Any] = {"beta": 0.0}
    if anchor is not None:
        keys = {name: getattr(anchor, name) for name in ("beta", "estimator", "refresh_every")}
    numbers = {f.name: getattr(clip, f.name) for f in fields(clip) if f.name in ("low", "high", "dual")}
    options = {**keys, **numbers, **{f"clip_{name}": value for name, value in numbers.items()}}
    options |= {"dynamic_sampling": method.rollout is not None}
    for name in NAMED:
        known = {key: option.default for key, option in inspect.signature(METHODS[name]).parameters.items()}
        taken = {key: value for key, value in options.items() if key in known}
        with suppress(ConfigError):  # a number that this method does not accept
            if replace(METHODS[name](**taken), name=method.name) == method:
                return {"name": name, **{key: value for key, value in taken.items() if key == "beta" or value != known[key]}}
    slots = {"advantage": method.advantage, "surrogate": clip, "reduction": method.reduction, "rollout_plan": method.rollout}
    parts = {slot: dump(part) for slot, part in slots.items() if part is not None}
    return {"name": "compose", **parts, **({"extras": dump(method.extras)} if method.extras else {}), **keys}


# ---- TRL


class _Trl(_Source):
    name, split = "trl", ("per_device_train_batch_size",)

    def __init__(self, given: dict[str, Any], defaults: Mapping[str, Any]):
        super().__init__(given, defaults)
        self.owned = OF_TRL | PART | SCRIPT | {"per_device_train_batch_size": "engine.args.per_device_train_batch_size"}
        self.ranks = 1

    def unknown(self) -> dict[str, str]:
        known = {*self.defaults, *self.owned, "reward_funcs"}
        return {key: self.stranger(key, known, "GRPOConfig") for key in self.given if key not in known}

    def passed(self) -> dict[str, Any]:
        for key in set(UNSAFE) & set(self.given):
            self.lost[key] = "a secret; run `hf auth login` instead"
        if "reward_funcs" in self.given:
            self.lost["reward_funcs"] = "write task.reward: FILE.py:NAME; a function of TRL's form is accepted"
        if self.given.get("push_to_hub"):
            self.lost["push_to_hub"] = f"after the run: {suggest('push', 'RUN', 'owner/name')}"
        passed = {key: value for key, value in self.given.items() if key not in self.owned and key not in self.lost}
        # a full GRPOConfig as JSON has every field
        passed = {key: value for key, value in passed.items() if key not in self.defaults or not _same(self.defaults[key], value)}
        micro = self.read("per_device_train_batch_size")
        return passed if micro is None else {"per_device_train_batch_size": micro, **passed}

    def recipe(self) -> dict[str, Any]:
        prompts, minibatches, epochs = self._batch()
        updates = minibatches * epochs
        there = {ours: self.given[name] for name, ours in SCRIPT.items() if name in self.given}
        data = {ours.partition(".")[2]: value for ours, value in there.items() if ours.startswith("data.")}
        report = self.read("report_to")
        tree: dict[str, Any] = {
            "seed": self.read("seed"),
            "steps": self._steps(updates),
            "model": self.given.get("model_name_or_path"),
            "chat_template_kwargs": self.given.get("chat_template_kwargs"),
            "data": {**data, "prompt": "as_is"} if "path" in data else None,  # TRL uses the prompts of the rows
            "method": method_tree(self._method()),
            "rollout": {
                "prompts_per_step": prompts,
                "group_size": self.read("num_generations"),
                "max_new_tokens": self.read("max_completion_length"),
                "temperature": float(self.read("temperature")),
            },
            "updates": {"epochs": epochs, "minibatches": minibatches},
            "optimizer": self._optimizer(),
            "checkpoint": {"every": max(1, int(self.read("save_steps")) // updates), **self._kept()},
            "engine": self._engine(),
            "report_to": [name for name in ([report] if isinstance(report, str) else report or []) if name in get_args(Tracker)],
        }
        return {key: value for key, value in tree.items() if value not in (None, [], {})}

    def _batch(self) -> tuple[int, int, int]:
        """Prompts per step, mini-batches and epochs. TRL counts rows of one device, micro-batches and accumulation."""
        micro, parts = self.read("per_device_train_batch_size"), self.read("gradient_accumulation_steps")
        window, rows = self.read("steps_per_generation"), self.read("generation_batch_size")
        if window is None:
            window = parts if rows is None else max(1, rows // micro)
        elif rows is not None:  # both are in the JSON of a GRPOConfig object, and give the number of devices
            self.ranks = max(1, rows // (micro * window))
        if window % parts:  # an update of several rollouts: that many prompts at once
            window = parts * max(1, window // parts)
        prompts = self.whole("num_generations", micro * self.ranks * window / self.read("num_generations"), "prompts of a step")
        return prompts, window // parts, self.read("num_iterations")

    def _steps(self, updates: int) -> int | None:
        most = self.read("max_steps")
        if most is not None and most > 0:
            return self.whole("max_steps", most / updates, "steps (rollouts)")
        self.lost["num_train_epochs"] = "recipes count steps (rollouts): rows * epochs / prompts per step; see steps"
        return None

    def _optimizer(self) -> dict[str, Any]:
        warmup, ratio = self.read("warmup_steps") or 0, self.given.get("warmup_ratio")
        if ratio or 0 < warmup < 1:
            self.ratio, warmup = float(ratio or warmup), 0
        names = {"lr": "learning_rate", "beta1": "adam_beta1", "beta2": "adam_beta2", "eps": "adam_epsilon"}
        names |= {"weight_decay": "weight_decay", "max_grad_norm": "max_grad_norm"}
        rates = {ours: float(self.read(theirs)) for ours, theirs in names.items()}
        schedule = self.schedule(self.read("lr_scheduler_type"), "lr_scheduler_type")
        return {**rates, "schedule": schedule, "warmup_steps": int(warmup)}

    def warmup(self, config: TrainConfig) -> int:
        return math.ceil(self.ratio * config.steps * config.updates.per_step)

    def _kept(self) -> dict[str, int]:
        if "save_total_limit" in self.given and not self.given["save_total_limit"]:
            self.lost["save_total_limit"] = "recipes keep a number of checkpoints; see checkpoint.keep"
        return {"keep": self.read("save_total_limit")} if self.read("save_total_limit") else {}

    def _engine(self) -> dict[str, Any]:
        lora = {SCRIPT[key].rpartition(".")[2]: self.given[key] for key in SCRIPT if key.startswith("lora_") and key in self.given}
        adapters = self.given.get("use_peft", bool(lora))
        init = self.read("model_init_kwargs") or {}
        dtype = str(self.given.get("dtype", self.given.get("torch_dtype", init.get("dtype", init.get("torch_dtype", "float32")))))
        if dtype not in ("float32", "bfloat16") or (dtype == "bfloat16" and not adapters):
            why = "recipes keep float32 weights where all are trained; engine.args.bf16: true computes in bfloat16"
            self.lost |= {key: why for key in ("dtype", "torch_dtype", "model_init_kwargs") if key in self.given}
            dtype = "float32"
        engine: dict[str, Any] = {"threads": None, "dtype": dtype}
        if not adapters:
            return engine
        modules = lora.pop("target_modules", "all-linear")
        lora["target_modules"] = modules[0] if modules == ["all-linear"] else modules
        return engine | {"lora": {"rank": 16, "alpha": 32.0, "dropout": 0.05} | lora}  # TRL's defaults

    def _method(self) -> Method:
        low, high = float(self.read("epsilon")), float(self.read("epsilon_high") or self.read("epsilon"))
        beta, every = float(self.read("beta")), self.read("ref_model_sync_steps") if self.read("sync_ref_model") else None
        kinds: tuple[Any, ...] = ("k3", "k3_is") if beta > 0 else ()
        anchors = [Anchor(beta, estimator=kind, refresh_every=every) for kind in kinds] or [None]
        extras = (EntropyBonus(float(self.given["entropy_coef"])),) if self.given.get("entropy_coef") else ()
        self.owned = dict(self.owned) | ({"entropy_coef": "method.extras"} if extras else {})
        scaling = {True: "group", False: "none"}.get(self.read("scale_rewards"), self.read("scale_rewards"))
        wanted = {key: self.read(key) for key in PART} | {"epsilon_high": high, "scale_rewards": scaling}
        clips: list[Callable[[], Any]] = [lambda: Clip(low, high, self.read("delta")), lambda: Gspo(low, high)]
        clips.append(lambda: Cispo(high=high - 1))
        parts = ((SequenceMean(), TokenMean(), FixedBudget()), (GroupNormalized(), GroupCentered()), anchors)
        return _fitting(_candidates(clips, *parts, extras=extras), grpo_config, wanted)

    def forward(self, config: TrainConfig) -> dict[str, Any]:
        arguments = grpo_arguments(config, str(self.given.get("output_dir")), self.ranks)
        arguments["generation_batch_size"] = config.rollout.completions
        if self.given.get("scale_rewards") in (True, False):
            arguments["scale_rewards"] = arguments["scale_rewards"] == "group"
        arguments |= self._script(config) | {"save_total_limit": config.checkpoint.keep}
        for name in ("warmup_ratio", "warmup_steps", "data_seed"):  # the recipe has them in another form
            value = self.given.get(name, 0)
            part = name == "warmup_ratio" or 0 < (value or 0) < 1
            if name in self.given and (value is None or (part and (not value or self.warmup(config) == arguments["warmup_steps"]))):
                arguments[name] = value
        return arguments

    def _script(self, config: TrainConfig) -> dict[str, Any]:
        """The recipe's values for the keys of a script."""
        arguments: dict[str, Any] = {"use_peft": config.engine.lora is not None}
        tree = flattened(dump(config))
        for key, key_path in SCRIPT.items():
            if key_path in tree and key != "use_peft":
                arguments[key] = _at(self.given.get(key), tree[key_path])
        if self.given.get("lora_target_modules") == ["all-linear"] and arguments.get("lora_target_modules") == "all-linear":
            arguments["lora_target_modules"] = ["all-linear"]
        return arguments


# ---- verl


class _Verl(_Source):
    name, split = "verl", ("trainer.n_gpus_per_node", "trainer.nnodes")

    def __init__(self, given: dict[str, Any]):
        super().__init__(given, VERL_DEFAULTS)
        for key, value in given.items():
            if names := _open(value):
                self.lost[key] = f"neither the file nor the environment sets {', '.join(dict.fromkeys(names))}"
        self.given = {key: value for key, value in given.items() if key not in self.lost}
        here = ("algorithm.norm_adv_by_std_in_grpo", "algorithm.filter_groups.metric", *method_fields(METHODS["grpo"](), 1))
        chat = [key for key in given if key.startswith(f"{CHAT}.")]
        self.owned = (
            OF_VERL
            | dict.fromkeys(here, "method")
            | dict.fromkeys(chat, "chat_template_kwargs")
            | {
                f"{OPTIMIZER}.lr_warmup_steps_ratio": "optimizer.warmup_steps",
                f"{OPTIMIZER}.override_optimizer_config.eps": "optimizer.eps",
            }
        )

    def unknown(self) -> dict[str, str]:
        known = [*self.owned, *self.defaults]
        strange = [key for key in self.given if key.partition(".")[0] not in ROOTS or "." not in key]
        return {key: self.stranger(key, known, "verl") for key in strange}

    def passed(self) -> dict[str, Any]:
        own = ("hydra.", "sage.", "reward.reward_manager.", "custom_reward_function.", "reward.custom_reward_function.")
        for key in self.given:
            if key.startswith(own[-2:]):
                self.lost[key] = "verl's reward functions have other arguments; write task.reward: FILE.py:NAME(completion, row)"
            elif key.startswith(own) and key not in self.owned:
                self.owned = dict(self.owned) | {key: SET_BY_RUN}
        return {key: value for key, value in self.given.items() if key not in self.owned and key not in self.lost}

    def recipe(self) -> dict[str, Any]:
        prompts, part = self.read("data.train_batch_size"), self.read(f"{ACTOR}.ppo_mini_batch_size")
        minibatches = self.whole(f"{ACTOR}.ppo_mini_batch_size", max(1, prompts / part), "mini-batches of a step")
        epochs, logger = self.read(f"{ACTOR}.ppo_epochs"), self.read("trainer.logger") or []
        every, keep = self.read("trainer.save_freq"), self.read("trainer.max_actor_ckpt_to_keep")
        if every <= 0 and "trainer.save_freq" in self.given:
            self.lost["trainer.save_freq"] = "recipes always save at the end; checkpoint.every is 50"
        tree: dict[str, Any] = {
            "seed": self.given.get("sage.seed", self.given.get("data.seed")),
            "steps": self.given.get("trainer.total_training_steps"),
            "model": self.given.get(f"{MODEL}.path"),
            "chat_template_kwargs": self._chat(),
            "task": self._task(),
            "method": self._method(),
            "rollout": {
                "prompts_per_step": prompts,
                "group_size": self.read(f"{ROLLOUT}.n"),
                "max_new_tokens": self.read("data.max_response_length"),
                "temperature": float(self.read(f"{ROLLOUT}.temperature")),
            },
            "updates": {"epochs": epochs, "minibatches": minibatches},
            "optimizer": self._optimizer(minibatches * epochs),
            "checkpoint": ({"every": every} if every > 0 else {}) | ({"keep": keep} if keep else {}),
            "engine": {"threads": None} | self._lora(),
            "report_to": [name for name in ([logger] if isinstance(logger, str) else logger) if name in get_args(Tracker)],
        }
        if tree["steps"] is None and "trainer.total_epochs" in self.given:
            self.lost["trainer.total_epochs"] = "recipes count steps (rollouts): rows * epochs / train_batch_size; see steps"
        return {key: value for key, value in tree.items() if value not in (None, [], {})}

    def _chat(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for key, value in self.given.items():
            if key.startswith(f"{CHAT}."):
                *above, last = key.removeprefix(f"{CHAT}.").split(".")
                node = options
                for name in above:
                    node = node.setdefault(name, {})
                node[last] = value
        return options

    def _task(self) -> dict[str, Any] | None:
        rows, held = (self._file(f"data.{name}_files") for name in ("train", "val"))
        if rows is None and held is not None:
            self.lost["data.val_files"] = "task.test_file stands beside a task.file, which the recipe does not have"
        test = {"test_file": held} if held is not None and held != rows else {}
        return None if rows is None else {"name": "jsonl", "file": rows, "prompt": "as_is", **test}

    def _file(self, key: str) -> str | None:
        """The only file of a key; None if there is none, or if it is not known."""
        files = self.given.get(key)
        file = files[0] if isinstance(files, list) and len(files) == 1 else files
        if isinstance(file, list):
            self.lost[key] = "task.file and task.test_file are one file or one folder each; put the files into a folder"
        elif "$" in str(file):
            self.lost[key] = "a recipe's files are plain paths; set task.file and task.test_file"
        return os.path.expanduser(file) if isinstance(file, str) and key not in self.lost else None

    def _lora(self) -> dict[str, Any]:
        rank = self.read(f"{MODEL}.lora_rank")
        modules = self.given.get(f"{MODEL}.target_modules", "all-linear")
        return {"lora": {"rank": rank, "alpha": float(self.read(f"{MODEL}.lora_alpha")), "target_modules": modules}} if rank else {}

    def _optimizer(self, updates: int) -> dict[str, Any]:
        key = f"{OPTIMIZER}.lr_scheduler_type"
        warmup = self.read(f"{OPTIMIZER}.lr_warmup_steps")
        if warmup < 0:
            self.ratio, warmup = float(self.given.get(f"{OPTIMIZER}.lr_warmup_steps_ratio") or 0.0), 0
        first, second = self.read(f"{OPTIMIZER}.betas")
        eps = {} if (eps := self.given.get(f"{OPTIMIZER}.override_optimizer_config.eps")) is None else {"eps": float(eps)}
        return {
            "lr": float(self.read(f"{OPTIMIZER}.lr")),
            "weight_decay": float(self.read(f"{OPTIMIZER}.weight_decay")),
            **{"beta1": float(first), "beta2": float(second), **eps},
            "max_grad_norm": float(self.given.get(f"{ACTOR}.grad_clip", self.read(f"{OPTIMIZER}.clip_grad"))),
            "schedule": self.schedule(self.read(key), key),
            "warmup_steps": warmup * updates,
        }

    def warmup(self, config: TrainConfig) -> int:
        return int(self.ratio * config.steps) * config.updates.per_step  # verl counts steps

    def _method(self) -> Any:
        """The method of `+sage.method` as written; otherwise the one with matching fields."""
        if (own := self._node("method")) is not None:
            return own | ({} if (guide := self._node("guide")) is None else {"guide": guide})
        named, normalized = self.read("algorithm.adv_estimator"), self.read("algorithm.norm_adv_by_std_in_grpo")
        advantage = SPELLED.get(named, GroupNormalized)() if normalized or named != "grpo" else GroupCentered()
        if named not in SPELLED:
            why = f"recipes on verl have {' and '.join(SPELLED)}; this recipe trains with {type(advantage).__name__}"
            self.lost["algorithm.adv_estimator"] = why
        if "sage.guide" in self.given:
            self.lost["sage.guide"] = "a guide of verl's own loss; set method.guide in the recipe"
        if self.read("algorithm.use_kl_in_reward"):
            self.lost["algorithm.use_kl_in_reward"] = (
                "verl divides this KL by the group's standard deviation; see placement: reward of dr_grpo and rloo"
            )
        clip, beta = self.read(f"{ACTOR}.clip_ratio_c"), float(self.read(f"{ACTOR}.kl_loss_coef"))
        estimator = ESTIMATORS.get(self.read(f"{ACTOR}.kl_loss_type"))
        anchors: list[Anchor | None] = [None]
        if self.read(f"{ACTOR}.use_kl_loss") and beta > 0 and estimator is not None:
            anchors = [Anchor(beta, estimator=estimator), None]  # type: ignore[arg-type]
        low, high = float(self.read(f"{ACTOR}.clip_ratio_low")), float(self.read(f"{ACTOR}.clip_ratio_high"))
        clips: list[Callable[[], Any]] = [lambda: Clip(low, high, None if clip in (None, FAR) else float(clip))]
        limit, entropy = self.read("data.max_response_length"), self.read(f"{ACTOR}.entropy_coeff")
        scale = self.read(f"{ACTOR}.loss_scale_factor")
        budget = FixedBudget(None if scale in (None, limit) else int(scale))
        more = {
            "extras": (EntropyBonus(float(entropy)),) if entropy else (),
            "rollout": DynamicSampling() if self.read("algorithm.filter_groups.enable") else None,
        }
        wanted = {key: self.read(key) for key in method_fields(METHODS["grpo"](), limit)}
        parts = ((SequenceMean(), TokenMean(), budget), (advantage,), anchors)
        return method_tree(_fitting(_candidates(clips, *parts, **more), lambda method: method_fields(method, limit), wanted))

    def _node(self, kind: str) -> dict[str, Any] | None:
        """+sage.method=rloo +sage.method.beta=0.1 as {name: rloo, beta: 0.1}; None without it."""
        prefix = f"sage.{kind}"
        if (named := self.given.get(prefix)) is None:
            return None
        options = {key.removeprefix(f"{prefix}."): value for key, value in self.given.items() if key.startswith(f"{prefix}.")}
        return {**({"name": named} if isinstance(named, str) else named), **options}

    def forward(self, config: TrainConfig) -> dict[str, Any]:
        words = verl_words(config, Path("."), template=None, longest=0)
        settings = flattened({key.lstrip("+"): _value(text) for key, _, text in (word.partition("=") for word in words)})
        settings = method_fields(config.method, config.rollout.max_new_tokens) | settings
        settings[f"{ROLLOUT}.response_length"] = config.rollout.max_new_tokens
        settings[f"{MODEL}.path"] = _at(self.given.get(f"{MODEL}.path"), settings[f"{MODEL}.path"])
        estimator = self.given.get("algorithm.adv_estimator")
        centered = {"algorithm.norm_adv_by_std_in_grpo": not isinstance(config.method.advantage, GroupCentered)}
        spelled = {"algorithm.adv_estimator": estimator} if estimator in (*SPELLED, ESTIMATOR) else {}
        in_another_form = ["sage.", "data.train_files", "data.val_files", "trainer.logger"]
        if self.read(f"{OPTIMIZER}.lr_warmup_steps") < 0 and self.warmup(config) == config.optimizer.warmup_steps:
            in_another_form.append(f"{OPTIMIZER}.lr_warmup_steps")
        same = {key: value for key, value in self.given.items() if key.startswith(tuple(in_another_form))}
        return settings | centered | spelled | same


__all__ = ["Imported", "ImportedKey", "import_config", "method_tree", "read_settings", "trl_defaults"]
