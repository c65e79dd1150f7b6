"""A design of experiments: arms x training seeds x evaluation, decoded strictly from YAML. `resolve.py` makes its arms.

    title: Table 1               the title of the summary
    seeds: [0, 1, 2]             every arm is trained with each; paired: a seed means the same prompts and random streams
    base: {steps: 250}           edits of every arm's recipe, {dotted key: value}; or the name of a design whose edits these are
    arms:                        name -> recipe (a method or recipe by name, or a path next to the design), with edits
      grpo: grpo
      strong: {recipe: sage_branch, edits: {method.guide.ratio: 1.0}}
    control: grpo                the arm that all others are compared with
    controls: auto               a missing one of no_kl, unguided, placebo, matched is added (none, or a list of these)
    evaluate: {problems: 300}    see `EvaluateSpec`
    plugins: [my_parts.py]       files that register parts, next to the design, as in a recipe
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from sage_rlvr.config import (
    SftConfig,
    TrainConfig,
    WorldConfig,
    decode,
    load_config,
    override,
    parse_yaml,
    read_recipe,
    task_of,
    world_of,
)
from sage_rlvr.config.parts import positive
from sage_rlvr.errors import ConfigError, choose_from, refuse, require
from sage_rlvr.evaluation.evaluate import FRONTIER
from sage_rlvr.paths import anchored
from sage_rlvr.recipes import Tree, find, key_path_of, read, tasks_with_base, use_plugins
from sage_rlvr.sweeps.controls import KINDS, Kind
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.verdicts.design import BASE, Question

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """recipe: the name of a method or a shipped recipe, or a path from the design's folder. edits: {dotted key: value}, after those
    of `base`. label: its name in tables and sentences (default: `label_of` an unedited recipe, else the arm's name).
    kl_matched: arms of another method at several betas, interpolated at this arm's raw or exact KL; those of a guided arm are
        found automatically."""

    recipe: str
    edits: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    kl_matched: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """A small store of samples of every policy at temperature 1.

    problems, n: number of problems, and samples per problem
    score_base: also log-probs under the base policy, for perplexities
    guide: also this guide's q at every token, by its name or with its settings as text ("{name: branch, ratio: 1.0}"); null for
        none
    base_temperatures: further temperatures at which the base is sampled: a control without reward
    kl: also the exact KL of every arm to the base (as `eval --kl-to`), on the first this many samples of each problem of both; 0
        for none"""

    problems: int = 40
    n: int = 64
    score_base: bool = True
    guide: str | None = "branch"
    base_temperatures: tuple[float, ...] = ()
    kl: int = 0

    def __post_init__(self) -> None:
        positive(self, "problems", "n")
        allowed = _distinct_positive(self.base_temperatures) and 1.0 not in self.base_temperatures
        problem = "all above 0, none twice, and without 1.0, which is always sampled"
        require(allowed, "base_temperatures", list(self.base_temperatures), problem)
        require(0 <= self.kl <= self.n, "kl", self.kl, f"must be 0 (no exact KL) to n = {self.n}, the samples of each problem")


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """The evaluation of every policy: exact, on the training task of its arm; only by `samples` for a task that cannot enumerate
    its right completions.

    problems, split, sampling, temperatures: as in `sage-rlvr eval` (split train: the first of the arm's training problems); tables
        use temperature 1. ood: other worlds (named, or a recipe file), with ood_problems and ood_temperatures. samples: null for no
        stores.
    """

    problems: int = 300
    split: Literal["train", "validation", "test"] = "test"
    sampling: Literal["iid", "distinct", "without-replacement"] = "iid"
    temperatures: tuple[float, ...] = FRONTIER
    ood: tuple[str, ...] = ()
    ood_problems: int = 100
    ood_temperatures: tuple[float, ...] = FRONTIER
    samples: SampleSpec | None = None

    def __post_init__(self) -> None:
        positive(self, "problems", "ood_problems")
        for name, temperatures in (("temperatures", self.temperatures), ("ood_temperatures", self.ood_temperatures)):
            allowed = _distinct_positive(temperatures) and 1.0 in temperatures
            require(allowed, name, list(temperatures), "all above 0, none twice, and including 1.0, the temperature of the tables")


def _distinct_positive(temperatures: Sequence[float]) -> bool:
    return all(t > 0 for t in temperatures) and len(set(temperatures)) == len(temperatures)


@dataclass(frozen=True, kw_only=True)
class SelectSpec:
    """Selection of one of several arms on validation problems; only the selected arm is evaluated on the design's split.

    among: the arms. by: the mean over seeds of pass@1, of pass@256, or of the gap in pass@256 at equal pass@1 to the base's
    temperature frontier. problems: how many validation problems.
    """

    among: tuple[str, ...]
    by: Literal["pass@1", "pass@256", "frontier"] = "frontier"
    problems: int = 300

    def __post_init__(self) -> None:
        require(bool(self.among), "among", [], "list at least one arm")
        positive(self, "problems")


@dataclass(frozen=True, kw_only=True)
class DesignSpec:
    """A design, see the module.

    policy: an SFT recipe for the policy from which all arms start (trained first); null: the policies that the recipes name
    reuse_runs: sweeps in the same parent folder, whose finished runs of the same configuration and weights are reused, with
        their exact evaluations of the same problems and temperatures
    notes: a line or two for the summary
    questions: the primary comparisons, each {a: sage, b: grpo, metric: pass@256}, or with the fields of `results.metric.Metric`:
        {a: sage, b: grpo, metric: {k: 256, at: near}} (default: arms against their controls at pass@1 and pass@256); all others are
        exploratory
    steps_differ: whether arms may train for different numbers of steps (a learning curve)
    baselines: name -> arms, the rivals of every other arm, which is compared with the best of them at equal pass@1
    oracle: the arm that measures the headroom, trained on given right answers
    discarded: candidates that were rejected on validation problems, by any name; each counts in the primary family's correction as
        many times as one that is run, with p = 1"""

    title: str
    seeds: tuple[int, ...]
    arms: dict[str, str | ArmSpec]
    control: str
    base: dict[str, Any] = field(default_factory=dict)
    policy: str | None = None
    controls: Literal["auto", "none"] | tuple[Kind, ...] = "auto"
    evaluate: EvaluateSpec = field(default_factory=EvaluateSpec)
    select: SelectSpec | None = None
    reuse_runs: tuple[str, ...] = ()
    notes: str = ""
    steps_differ: bool = False
    questions: tuple[Question, ...] = ()
    baselines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    oracle: str | None = None
    discarded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.seeds), "seeds", [], "list at least one training seed")
        require(bool(self.arms), "arms", {}, "list at least one arm")
        require(len(set(self.seeds)) == len(self.seeds), "seeds", list(self.seeds), "a value occurs twice")
        for name, recipe in self.arms.items():
            valid = _NAME.fullmatch(name) is not None and name not in ("base", "sft")
            require(valid, ("arms", name), recipe, "must be a folder name of letters, digits, _ and . (not base, not sft)")
        self._require_arm(self.control, "control")
        self._check_baselines()
        for name in self.arms:
            self._check_kl_matched(name)
        for i, name in enumerate(self.discarded):
            key_path = ("discarded", str(i))
            require(
                bool(self.baselines), key_path, name, "counts as a candidate against baselines, but the design has no baselines"
            )
            require(name not in self.arms, key_path, name, "is an arm of this design; remove it from `arms` or from `discarded`")
        for i, name in enumerate(self.reuse_runs):
            is_folder_name = Path(name).name == name and name not in ("", "..") and "\\" not in name
            problem = "expected the name of a folder next to this sweep's folder, not a path"
            require(is_folder_name, ("reuse_runs", str(i)), name, problem)
        if self.select is not None:
            self._require_arms(self.select.among, "select", "among")
            problem = "is a candidate of `select`, and would not be evaluated unless selected"
            require(self.control not in self.select.among, "control", self.control, problem)

    def _check_baselines(self) -> None:
        """Raise an error for baselines and oracles that are not arms, or that leave no arm to compare with them."""
        for name, arms in self.baselines.items():
            key_path = ("baselines", name)
            require(bool(arms), key_path, [], "list at least one arm")
            require(name not in (*self.arms, BASE), key_path, list(arms), "an arm has this name; use another name")
            self._require_arms(arms, *key_path)
        if self.oracle:
            self._require_arm(self.oracle, "oracle")
        if self.baselines:
            rivals = {name for arms in self.baselines.values() for name in arms}
            compared = set(self.arms) - rivals - {self.oracle}
            refuse((not compared, "baselines: every arm is a baseline or the oracle; add the arms to compare with them"))

    def _check_kl_matched(self, name: str) -> None:
        """Raise an error for a list of arms at several betas that names no other arm, or only one."""
        matched = self.spec(name).kl_matched
        key_path = ("arms", name, "kl_matched")
        for i, other in enumerate(matched):
            is_other_arm = other in self.arms and other != name
            require(is_other_arm, (*key_path, str(i)), other, f"no other arm{choose_from(other, self.arms)}")
        require(len(matched) != 1, key_path, list(matched), "interpolation in the KL needs at least two arms; list more")

    def _require_arm(self, name: str, *key_path: str) -> None:
        require(name in self.arms, key_path, name, f"no such arm{choose_from(name, self.arms)}")

    def _require_arms(self, names: Sequence[str], *key_path: str) -> None:
        """Raise an error for a name in the list at `key_path` that is not an arm, with the line of that name."""
        for i, name in enumerate(names):
            self._require_arm(name, *key_path, str(i))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The controls to add if they are missing."""
        if self.controls == "auto":
            return KINDS
        return () if self.controls == "none" else self.controls

    def spec(self, name: str) -> ArmSpec:
        """The arm of that name, with a plain recipe name as a full specification."""
        arm = self.arms[name]
        return ArmSpec(recipe=arm) if isinstance(arm, str) else arm


def load_design(path: Path) -> DesignSpec:
    """Read a design file, or a shipped one by its name, strictly decoded. Raises `ConfigError` with the place and the valid
    values."""
    return decode(DesignSpec, read_design(find(path, "designs")), where=str(path))


def typed_design(
    methods: Sequence[str], seeds: Sequence[int], edits: Sequence[tuple[str, str]], task: str | None = None
) -> str:
    """The text of a design with these methods as arms, the first as the control, all edits in `base`, and no added controls.

    methods: names of methods, shipped recipes, or recipe files. edits: pairs (dotted key, YAML text), with paths relative to the
        working directory. task: a family of recipes, as in `train`; one whose answers cannot be listed is evaluated by samples.
    Raises ConfigError for an unknown method or task, or a malformed edit.
    """
    families = tasks_with_base()
    if task is not None and task not in families:
        raise ConfigError(f"--task {task}: no settings to train with{choose_from(task, families)}; for rows, write a design file")
    require(bool(seeds), "seeds", [], "pass at least one, --seeds 0 1 2")
    require(len(set(seeds)) == len(seeds), "seeds", list(seeds), "a seed occurs twice: pass each once")
    require(len(set(methods)) == len(methods), "methods", list(methods), "a name occurs twice")
    arms: dict[str, str] = {}
    for name in methods:
        own = Path(name)
        recipe = str(own.resolve()) if own.is_file() else name if task is None else f"{families[task]}/{name}"
        arms[own.stem if own.is_file() else name.replace("/", ".")] = recipe
    base: dict[str, Any] = {}
    for key, text in edits:
        override(Tree(), key, text)  # which raises an error for a malformed one
        base[key] = anchored(parse_yaml(f"x: {text}", f"--{key}")["x"], key_path_of(key), lambda place: Path.cwd())
    tree: dict[str, Any] = {"title": f"{', '.join(methods)}: {len(seeds)} training seeds", "seeds": [*map(int, seeds)]}
    tree |= {"base": base} if base else {}
    tree |= {"arms": arms, "control": next(iter(arms)), "controls": "none"}
    configs = {name: read_recipe(recipe, edits, "train") for name, recipe in arms.items()}  # so that an error names the arm
    for name, config in configs.items():
        if not isinstance(config, TrainConfig):
            raise ConfigError(f"--methods {name}: a recipe that trains no policy; pass a method, or a recipe of `sage-rlvr train`")
    if not isinstance(task_of(next(iter(configs.values()))), Enumerable):
        tree["evaluate"] = {"samples": {"problems": 100, "n": 64, "score_base": False, "guide": None}}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def read_design(path: Path) -> Tree:
    """The tree of a design's file; if `base` names another design, that design's edits with their lines in its file."""
    tree = read(path)
    use_plugins(tree, path)
    arms = tree.get("arms")
    if "control" not in tree and isinstance(arms, dict):
        raise ConfigError(
            f"{path}: the key 'control' is missing: the arm that all others are compared with; set control: to one of "
            f"{', '.join(map(str, arms))}"
        )
    other = tree.get("base")
    return _with_edits_of(other, tree, path) if isinstance(other, str) else tree


def _with_edits_of(other: str, tree: Tree, path: Path) -> Tree:
    """The tree with the `base` of the design called `other`, and the lines of its edits."""
    spot = tree.origins[("base",)]
    try:
        file = find(other, "designs", folder=path.parent)
        other_tree = read(file)
        use_plugins(other_tree, file)
    except ConfigError as error:
        raise ConfigError(f"{spot}: base: {error}") from error
    edits = other_tree.get("base")
    if not isinstance(edits, dict):
        raise ConfigError(f"{spot}: base = {other!r}: that design has no edits; use the design that has them")
    lines = {key_path: line for key_path, line in other_tree.origins.items() if key_path[:1] == ("base",) and len(key_path) > 1}
    return Tree({**tree, "base": edits}, {**tree.origins, **lines})


def sft_recipe(design: DesignSpec, source: Path) -> Path | None:
    """The recipe of the policy that the design trains first, checked; source: the design's file."""
    if design.policy is None:
        return None
    try:
        path = find(design.policy, folder=source.parent)
    except ConfigError as error:
        raise ConfigError(f"{source}: policy: {error}") from error
    load_config(SftConfig, path)
    return path


def world_named(name: str, folder: Path) -> WorldConfig:
    """`world_of`, with a file's path relative to `folder`."""
    return world_of(str(folder / name) if name.endswith((".yaml", ".yml")) else name)


def suffix_of(world: str) -> str:
    """The ending of records of another world: its name, or the stem of its recipe."""
    return Path(world).stem if world.endswith((".yaml", ".yml")) else world
