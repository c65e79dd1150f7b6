"""A design of experiments: arms x training seeds x evaluation, from strict YAML to checked arms; missing controls are added.

    title: Table 1               what the summary calls it
    seeds: [0, 1, 2]             every arm is trained with each; paired: a seed means the same prompts and random streams
    base: {steps: 250}           edits of every arm's recipe, {dotted key: value}; or the name of a design whose edits these are
    arms:                        name -> recipe (a method or recipe by name, or a path beside the design), with own edits
      grpo: grpo
      strong: {recipe: sage_branch, edits: {method.guide.ratio: 1.0}}
    control: grpo                the arm that all others are held against
    controls: auto               what is missing of no_kl, unguided, placebo, matched is added (none, or a list of these)
    evaluate: {problems: 300}    see `EvaluateSpec`
    plugins: [my_parts.py]       files that register parts of your own, beside the design, as in a recipe
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sage_rlvr import plugins
from sage_rlvr.config import SftConfig, TrainConfig, WorldConfig, decode, load, load_config, task_of, world_of
from sage_rlvr.config.parts import positive
from sage_rlvr.core import GUIDES, METHODS
from sage_rlvr.errors import ConfigError, Told, choose_from, refuse, require, short
from sage_rlvr.evaluation.evaluate import FRONTIER
from sage_rlvr.paths import anchored
from sage_rlvr.recipes import Recipe, Tree, dotted, find, locate, place_of, read, use_plugins
from sage_rlvr.results.comparisons import above_colder
from sage_rlvr.results.design import BASE, COLDER, TEMPERED, Question
from sage_rlvr.results.metric import is_of_samples, known_metrics, known_of_samples
from sage_rlvr.results.read import K
from sage_rlvr.sweeps.controls import KINDS, Kind, PlannedArm, controls_of, free_name, linked, twin_of
from sage_rlvr.sweeps.jobs import Exact, Sampled
from sage_rlvr.tasks.abilities import Enumerable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """recipe: the name of a method or a shipped recipe, or a path from the design's folder. edits: {dotted key: value}, after those
    of `base`. label: its name in tables and sentences (default: `label_of` an unedited recipe, else the arm's name).
    kl_matched: arms of another method at several betas, read at this arm's raw or exact KL; those of a guided arm are found."""

    recipe: str
    edits: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    kl_matched: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """A small store of samples of every policy at temperature 1. problems, n: number of problems, and samples per problem.
    score_base: also log-probs under the base policy, for perplexities. guide: also this guide's q at every token, by its name
    or with its settings as text ("{name: branch, ratio: 1.0}"); null for none. base_temperatures: further temperatures at which
    the base is sampled: a control without reward. kl: also the exact KL of every arm to the base (as `eval --kl-to`), on the first
    so many samples of each problem of both; 0 for none."""

    problems: int = 40
    n: int = 64
    score_base: bool = True
    guide: str | None = "branch"
    base_temperatures: tuple[float, ...] = ()
    kl: int = 0

    def __post_init__(self) -> None:
        positive(self, "problems", "n")
        given = self.base_temperatures
        good = 1.0 not in given and all(t > 0 for t in given) and len(set(given)) == len(given)
        require(good, "base_temperatures", list(given), "all above 0, none twice, and without 1.0, which is always sampled")
        require(0 <= self.kl <= self.n, "kl", self.kl, f"must be 0 (no exact KL) to n = {self.n}, the samples of each problem")


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """The evaluation of every policy: exact, on the training task of its arm; only by `samples` for a task that cannot enumerate
    its right completions.

    problems, split, sampling, temperatures: as in `sage-rlvr eval` (split train: the first of the arm's own training problems);
    tables are read at temperature 1. ood: other worlds (named, or a recipe file), with ood_problems and ood_temperatures of
    their own. samples: null for no stores.
    """

    problems: int = 300
    split: Literal["train", "validation", "test"] = "test"
    sampling: Literal["iid", "without-replacement"] = "iid"
    temperatures: tuple[float, ...] = FRONTIER
    ood: tuple[str, ...] = ()
    ood_problems: int = 100
    ood_temperatures: tuple[float, ...] = FRONTIER
    samples: SampleSpec | None = None

    def __post_init__(self) -> None:
        positive(self, "problems", "ood_problems")
        for name in ("temperatures", "ood_temperatures"):
            given = getattr(self, name)
            good = 1.0 in given and all(t > 0 for t in given) and len(set(given)) == len(given)
            require(good, name, list(given), "all above 0, none twice, and including 1.0, the temperature of the tables")


@dataclass(frozen=True, kw_only=True)
class SelectSpec:
    """Selection of one of several arms on validation problems; only the selected arm is evaluated on the design's split.

    among: the arms. by: the mean over seeds of pass@1, of pass@256, or of the gap in pass@256 at equal pass@1 to the base's
    temperature frontier.
    """

    among: tuple[str, ...]
    by: Literal["pass@1", "pass@256", "frontier"] = "frontier"
    problems: int = 300


@dataclass(frozen=True, kw_only=True)
class DesignSpec:
    """See the module. policy: an SFT recipe whose policy all arms start from (trained first); null: what the recipes name.
    reuse_runs: sweeps beside this one's folder, whose finished runs of the same configuration and weights are taken over,
        with their exact evaluations of the same problems and temperatures.
    notes: a line or two for the summary. questions: the primary comparisons, each {a: sage, b: grpo, metric: pass@256}, or with the
        fields of `results.metric.Metric`: {a: sage, b: grpo, metric: {k: 256, at: near}} (default: arms against their controls at
        pass@1 and pass@256); all others are exploratory. steps_differ: arms may train for different numbers of steps (a learning
        curve).
    baselines: name -> arms, the rivals of every other arm, which is held against the best of them at its own pass@1.
    oracle: the arm that says how much room there is, trained on right answers that it was given.
    discarded: candidates that were left behind on validation problems, by any name; each counts in the primary family's correction
        as many times as one that is run, with p = 1."""

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
            plain = _NAME.fullmatch(name) and name not in ("base", "sft")
            require(bool(plain), ("arms", name), recipe, "must be a folder name of letters, digits, _ and . (not base, not sft)")
        require(self.control in self.arms, "control", self.control, f"no such arm{choose_from(self.control, self.arms)}")
        for name, arms_of in self.baselines.items():
            require(bool(arms_of), ("baselines", name), [], "list at least one arm")
            free = name not in (*self.arms, BASE)
            require(free, ("baselines", name), list(arms_of), "an arm has this name; use another name")
            self._require_arms(arms_of, "baselines", name)
        if self.oracle:
            require(self.oracle in self.arms, "oracle", self.oracle, f"no such arm{choose_from(self.oracle, self.arms)}")
        rivals = {name for arms_of in self.baselines.values() for name in arms_of}
        idle = bool(self.baselines) and not {*self.arms} - rivals - {self.oracle}
        refuse((idle, "baselines: every arm is a baseline or the oracle; add the arms to compare with them"))
        for name in self.arms:
            own = self.spec(name).kl_matched
            place = ("arms", name, "kl_matched")
            for i, other in enumerate(own):
                known = other in self.arms and other != name
                require(known, (*place, str(i)), other, f"no other arm{choose_from(other, self.arms)}")
            require(len(own) != 1, place, list(own), "interpolation in the KL needs at least two arms; list more")
        for i, name in enumerate(self.discarded):
            place = ("discarded", str(i))
            require(bool(self.baselines), place, name, "counts as a candidate against baselines, but the design has no baselines")
            require(name not in self.arms, place, name, "is an arm of this design; remove it from `arms` or from `discarded`")
        for i, name in enumerate(self.reuse_runs):
            beside = Path(name).name == name and name not in ("", "..") and "\\" not in name
            require(beside, ("reuse_runs", str(i)), name, "expected the name of a folder next to this sweep's folder, not a path")
        if self.select is not None:
            self._require_arms(self.select.among, "select", "among")
        chosen = self.select is not None and self.control in self.select.among
        require(not chosen, "control", self.control, "is a candidate of `select`, and would not be evaluated unless selected")

    def _require_arms(self, names: Sequence[str], *place: str) -> None:
        """Refuse a name in the list at `place` that is no arm, at the line of that name."""
        for i, name in enumerate(names):
            require(name in self.arms, (*place, str(i)), name, f"no such arm{choose_from(name, self.arms)}")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The controls to add where they are missing."""
        return KINDS if self.controls == "auto" else () if self.controls == "none" else tuple(self.controls)

    def spec(self, name: str) -> ArmSpec:
        """The arm of that name, a bare recipe written out."""
        found = self.arms[name]
        return ArmSpec(recipe=found) if isinstance(found, str) else found


def load_design(path: Path) -> DesignSpec:
    """A design file, or a shipped one by its name, strictly decoded. `ConfigError` names the place and what would be right."""
    return decode(DesignSpec, _written(find(path, "designs")), where=str(path))


def _written(path: Path) -> Tree:
    """The tree of a design's file; where `base` names another design, that one's edits with the lines on which they stand there."""
    tree = read(path)
    use_plugins(tree, path)
    arms = tree.get("arms")
    if "control" not in tree and isinstance(arms, dict):
        raise ConfigError(
            f"{path}: the key 'control' is missing: the arm that all others are compared with; set control: to one of "
            f"{', '.join(map(str, arms))}"
        )
    if not isinstance(other := tree.get("base"), str):
        return tree
    spot = tree.origins[("base",)]
    try:
        file = find(other, "designs", folder=path.parent)
        use_plugins(theirs := read(file), file)
    except ConfigError as error:
        raise ConfigError(f"{spot}: base: {error}") from error
    if not isinstance(edits := theirs.get("base"), dict):
        raise ConfigError(f"{spot}: base = {other!r}: that design has no edits; use the design that has them")
    lines = {place: line for place, line in theirs.origins.items() if place[:1] == ("base",) and place[1:]}
    return Tree({**tree, "base": edits}, {**tree.origins, **lines})


def label_of(stem: str) -> str | None:
    """The label of a recipe that is called after a method (`rloo`), a guide (`placebo`) or both (`rloo_branch`), as they are
    registered: RLOO, Placebo, RLOO+Branch, and of SAGE itself SAGE-Branch. None for other names."""
    for registry in (METHODS, GUIDES):
        if stem in registry:
            label = registry.label(stem)
            return None if label == stem else label
    for name in METHODS:
        guide = stem.removeprefix(f"{name}_")
        if guide != stem and guide in GUIDES:
            return f"{METHODS.label(name)}{'-' if name == 'sage' else '+'}{GUIDES.label(guide)}"
    return None


def resolve(
    design: DesignSpec, source: Path, policy: str | None = None, edits: Sequence[tuple[str, str]] = ()
) -> tuple[list[PlannedArm], list[str]]:
    """The arms with all missing controls, and sentences about controls that do not exist.

    source: the design's file, beside which paths of recipes start and which errors name. policy: the model of every arm, where
    the design makes its own. edits: (a.b, value) of the command line, in every arm.
    """
    arms: list[PlannedArm] = []
    for name in design.arms:
        spec = design.spec(name)
        edits_of_arm = {**design.base, **spec.edits}
        edited = {key: anchored(value, place_of(key), lambda place: source.parent) for key, value in edits_of_arm.items()}
        own = {**({} if policy is None else {"model": policy}), **edited}
        try:
            recipe = locate(spec.recipe, folder=source.parent)
            changes = [*((key, json.dumps(value)) for key, value in own.items()), *edits]
            config = load_config(TrainConfig, recipe, changes)
        except ConfigError as error:
            raise ConfigError(_in_design(error, design, name, source, edits)) from error
        label = spec.label or (None if spec.edits else label_of(Path(spec.recipe).stem)) or name
        twin = twin_of(arms, config)
        same = f"{source}: arms {twin and twin.name!r} and {name!r} have the same configuration; keep one of them"
        refuse((twin is not None, same))
        arms.append(
            PlannedArm(
                name=name,
                label=label,
                recipe=recipe.name if recipe.above else recipe.file.name,
                config=replace(config, seed=0),
                matched=spec.kl_matched,
                dropped=_dropped(recipe, changes),
            )
        )
    everyones = plugins.loaded()  # a process has the plugins of all arms, also of those behind its own, and its run says so
    arms = [replace(arm, config=replace(arm.config, plugins=everyones)) for arm in arms]
    said: list[str] = []
    for arm in list(arms):
        for kind, control, name, label, why in controls_of(arm, arms):
            if kind not in design.kinds:
                continue
            if control is None:
                said.append(why)
            elif twin_of(arms, control) is None:
                arms.append(PlannedArm(name=free_name(arms, name), label=label, recipe="", config=control, why=why))
    arms = [linked(arm, arms) for arm in arms]
    _check_questions(design, arms, source)
    return arms, list(dict.fromkeys(said))


def _check_questions(design: DesignSpec, arms: Sequence[PlannedArm], source: Path) -> None:
    """Every question names arms that are there, a task that is evaluated, and a metric of the list of comparisons."""
    names = sorted({BASE, TEMPERED, COLDER, *design.baselines, *(arm.name for arm in arms), *(arm.label for arm in arms)})
    task, few = task_of(arms[0].config), design.evaluate.samples
    exact = isinstance(task, Enumerable)
    tasks = ["", *map(suffix_of, design.evaluate.ood)] if exact else ["", task.name]
    most = min(K, few.n if few else 1)
    metrics = known_metrics() if exact else [*known_of_samples(most), *above_colder(most)]
    listed = list(dict.fromkeys(metric.written for metric in metrics))
    for question in design.questions:
        asked = question.metric.written
        at_any_k = not exact and is_of_samples(question.metric, most)  # the list of an error has the first and the last k alone
        for noun, word, known in (
            ("arm", question.a, names),
            ("arm", question.b, names),
            ("metric", asked, [*listed, asked] if at_any_k else listed),
            ("task", question.task, tasks),
        ):
            refuse((word not in known, f"{source}: questions: {word!r}: no such {noun}{choose_from(word, known)}"))
        if problem := _unmatched(question, design, arms):
            raise ConfigError(f"{source}: questions: {asked}: {problem}")


def _unmatched(question: Question, design: DesignSpec, arms: Sequence[PlannedArm]) -> str:
    """Why there will be no comparison at equal KL or of exact KLs, and the next step; "" where nothing is missing."""
    metric, few = question.metric, design.evaluate.samples
    if "exact KL" in (metric.name, metric.matched) and not (few and few.kl):
        return "needs the exact KL of every arm to the base; set evaluate.samples.kl, such as 8 (samples of each problem)"
    if not metric.matched:
        return ""
    a, b = (next((arm for arm in arms if word in (arm.name, arm.label)), None) for word in (question.a, question.b))
    if any(one and other and other.name in one.matched for one, other in ((a, b), (b, a))):
        return ""
    return (
        f"{question.a} is not read at equal KL against {question.b}; set kl_matched of arm {question.a} to {question.b} and more "
        "arms of its method at other betas"
    )


def _dropped(recipe: Recipe, changes: Sequence[tuple[str, str]]) -> str:
    """In a sentence, what a recipe says of its method that another method's name among the edits drops; "" where nothing."""
    was, now = (load(recipe, some).get("method") for some in ((), changes))
    if not isinstance(was, dict) or not isinstance(now, dict) or was.get("name") == now.get("name"):
        return ""
    lost = ", ".join(f"{key} {short(value)}" for key, value in was.items() if key not in now)
    return f"{lost} of {recipe.name if recipe.above else recipe.file.name} is dropped with method {was.get('name')}" if lost else ""


def _in_design(error: ConfigError, design: DesignSpec, arm: str, source: Path, edits: Sequence[tuple[str, str]]) -> str:
    """The refusal of an arm's recipe with file and line of the design. An edit of the design is named by its place there
    (`base.steps`, `edits.method.beta`), one of the command line as it is typed."""
    own, typed = design.spec(arm).edits, {place_of(key) for key, _ in edits}
    parts = {place_of(key): (("base",), key) for key in design.base} | {place_of(key): (("arms", arm, "edits"), key) for key in own}
    origins = _written(source).origins if source.is_file() else {}
    lines = []
    for told in error.told or (Told(problem=str(error)),):
        where, names = ("arms", arm), {p: f"{parts[p][0][-1]}.{dotted(p)}" for p in parts if p not in typed}
        if told.written in names:
            part, key = parts[told.written]
            where, told = (*part, key), replace(told, source="", place=(part[-1], *told.place))
        elif mine := [names[p] for p in told.edited if p in names]:
            others = tuple(p for p in told.edited if p not in names)
            told = replace(told, source=f"{told.source} with {', '.join(mine)}", edited=others)
        around = (origins[where[:n]] for n in range(len(where), 0, -1) if where[:n] in origins)
        lines.append(f"{next(around, source)}: arm {arm!r}: {told}")
    return "\n".join(lines)


def sft_config(design: DesignSpec, source: Path) -> tuple[Path, SftConfig] | None:
    """The recipe of the policy that the design makes first; source: the design's file."""
    if design.policy is None:
        return None
    try:
        path = find(design.policy, folder=source.parent)
    except ConfigError as error:
        raise ConfigError(f"{source}: policy: {error}") from error
    return path, load_config(SftConfig, path)


def world_named(name: str, folder: Path) -> WorldConfig:
    """`world_of`, a file's path being one from `folder`."""
    return world_of(str(folder / name) if name.endswith((".yaml", ".yml")) else name)


def suffix_of(world: str) -> str:
    """What the records of another world end with: its name, or the stem of its recipe."""
    return Path(world).stem if world.endswith((".yaml", ".yml")) else world


def exact_of(spec: EvaluateSpec, task: Any) -> Exact:
    """The main evaluation of an arm of that task."""
    return Exact(task, spec.problems, spec.split, spec.sampling, spec.temperatures)


def sampled_of(spec: EvaluateSpec, task: Any) -> Sampled | None:
    """The evaluation by samples of an arm of that task, where the design has one."""
    if (few := spec.samples) is None:
        return None
    named = {"problems": few.problems, "n": few.n, "guide": few.guide, "scored": few.score_base, "kl": few.kl}
    return Sampled(task=task, split=spec.split, sampling=spec.sampling, **named)
