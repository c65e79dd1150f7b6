"""Recipes: parse YAML into a plain tree with the source of each value, and find the recipes shipped with the package.

    tree = load("maxrl", [("rollout.group_size", "16")])     # a file, the name of a shipped recipe, or of a method

`--a.b value` edits the tree. Precedence: default < `base:` file < YAML < override. `schema.py` makes values of the tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError, Issue, choose_from, nearest, short, suggest
from sage_rlvr.paths import ROW_SUFFIXES, KeyPath, anchored
from sage_rlvr.registry import names_of, own_hint
from sage_rlvr.safe_io import read_text

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
FAMILIES = ("countdown", "paper", "designs", "repair", "knights", "steps", "words", "gsm", "rows", "real")
SHORT = ("countdown", "designs")  # families whose recipes are also known by the stem of their file
DEFAULT_TASK = "countdown"
ROWS = "rows"  # the family whose base.yaml has the settings for a file of rows
METHODS = "methods"  # the file of a family that names methods


class Tree(dict):  # type: ignore[type-arg]
    """A plain nested dict that records the source of each value.

    `origins` maps a place such as ("rollout", "group_size") to "recipe.yaml:7" or "--rollout.group_size"; error
    messages quote it. Equality is that of dict.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, origins: Mapping[KeyPath, str] | None = None):
        super().__init__(values or {})
        self.origins: dict[KeyPath, str] = dict(origins or {})


# ---- YAML text -> tree

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def parse_scalar(text: str) -> bool | int | float | str | None:
    """Return an unquoted YAML scalar by the YAML 1.2 core schema: `1e-6` is a number; `no`, `on` and `010` are text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text) and len(text) <= 40:
        return int(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return float(text.lower().replace(".", ""))
    return text


class _Reader:
    """One pass over YAML events: no tags, anchors or aliases, no duplicate keys, bounded depth."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.origins: dict[KeyPath, str] = {}
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)

    def read(self) -> Any:
        """Return the one document of the text as plain values, None if it is empty; `origins` then has each value's line."""
        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        value = self._node(next(self.events), ())
        next(self.events)  # document end
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            raise ConfigError(f"{self.source}: contains more than one YAML document; write one recipe per file")
        return value

    def _node(self, event: Any, key_path: KeyPath) -> Any:
        spot = f"{self.source}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise ConfigError(f"{spot}: anchors and aliases (&a, *a) are not supported; write the value, or use `base:`")
        if event.tag is not None:
            raise ConfigError(f"{spot}: the tag {event.tag!r} is not supported; a recipe contains only plain values")
        if len(key_path) > MAX_DEPTH:
            raise ConfigError(f"{spot}: nested deeper than {MAX_DEPTH} levels; no recipe needs that")
        self.origins.setdefault(key_path, spot)
        if isinstance(event, yaml.ScalarEvent):
            return parse_scalar(event.value) if event.style is None else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(event, (*key_path, str(len(items)))))
            return items
        return self._mapping(key_path)

    def _mapping(self, key_path: KeyPath) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            spot = f"{self.source}:{event.start_mark.line + 1}"
            if not isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
                raise ConfigError(f"{spot}: a key must be a word or a number, not a list or a mapping")
            key = self._node(event, (*key_path, "(key)"))
            if key in mapping:
                raise ConfigError(f"{spot}: duplicate key {dotted((*key_path, str(key)))!r}; keep one of the two")
            self.origins[(*key_path, str(key))] = spot
            mapping[key] = self._node(next(self.events), (*key_path, str(key)))
        return mapping


def parse_yaml(text: str, source: str = "YAML") -> Tree:
    """Return the tree of a YAML text with a mapping at its top level. Raise ConfigError that names source, line and next step."""
    value, origins = _parse(text, source)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{source}: the top level must be `key: value` lines, not {short(value)}")
    return Tree(value or {}, origins)


def _parse(text: str, source: str) -> tuple[Any, dict[KeyPath, str]]:
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"{source}: {len(text):,} characters; a recipe may have {MAX_BYTES:,}. Is this the right file?"
        )
    try:
        reader = _Reader(text, source)
        return reader.read(), reader.origins
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from error


def read(path: Path) -> Tree:
    """Read a YAML file without its `base:`; use `load` for recipes. Raise ConfigError for an unreadable or too large file."""
    return parse_yaml(read_text(path, MAX_BYTES, ConfigError, "is this a recipe?"), str(path))


# ---- recipes by file and by name


@dataclass(frozen=True)
class Recipe:
    """A recipe that `locate` has found.

    name   of run directories and tables
    file   its file of settings
    above  settings that override those of the file, from a method by name and a task
    """

    name: str
    file: Path
    above: Tree = field(default_factory=Tree)

    def __str__(self) -> str:
        return str(self.file) if not self.above else self.name

    @property
    def settings(self) -> list[str]:
        """Return a YAML comment on the source of the settings of a method by name."""
        family = self.file.parent.name
        pretrained = ", those for a pretrained model, because the task is a file of rows" if family == ROWS else ""
        return [f"# settings: {family}/{self.file.stem}{pretrained}"] if self.above else []


def _folder(family: str) -> Path:
    """Return the folder of a family of recipes: inside the installed package, or in the repository's recipes/."""
    package = Path(__file__).resolve().parent
    inside = package / "assets" / "recipes"
    return (inside if inside.is_dir() else package.parents[1] / "recipes") / family


def is_shipped(file: Path) -> bool:
    """Return True if a file is a recipe of this package, whose paths start at the working directory."""
    folder = file.resolve().parent
    return folder == _folder("").resolve() or (folder.parent == _folder("").resolve() and folder.name in FAMILIES)


def shipped(*families: str) -> dict[str, Path]:
    """Return name ("countdown/sft", "paper/grpo", "designs/demo", ...) -> file of every shipped recipe, or of these families.

    Recipes of Countdown and designs have a short name too: "sft", "demo".
    """
    files: dict[str, Path] = {}
    for family in families or FAMILIES:
        for file in sorted(_folder(family).glob("*.yaml")):
            if file.stem == METHODS:
                continue
            files[f"{family}/{file.stem}"] = file
            if family in SHORT:
                files.setdefault(file.stem, file)
    return files


def named_methods(family: str = DEFAULT_TASK) -> dict[str, tuple[Tree, str]]:
    """Return name -> the settings {"method": ...} of a method on a task, and its comment.

    These are the entries of the task's methods.yaml, then those of recipes/methods.yaml.
    """
    methods: dict[str, tuple[Tree, str]] = {}
    for file in (_folder(family) / f"{METHODS}.yaml", _folder("") / f"{METHODS}.yaml"):
        if not file.is_file():
            continue
        tree, comments = read(file), _comments(read_text(file, MAX_BYTES))
        for name, settings in tree.items():
            lines = {("method", *key_path[1:]): line for key_path, line in tree.origins.items() if key_path[:1] == (name,)}
            methods.setdefault(name, (Tree({"method": {"name": name, **settings}}, lines), comments.get(name, "")))
    return methods


def _comments(text: str) -> dict[str, str]:
    """Return key -> the comment right above it, as a headline; for the keys at the top level."""
    comments, comment = {}, ""
    for line in text.splitlines():
        if line.startswith("#"):
            comment += line.lstrip("# ") + " "
            continue
        if line and not line[0].isspace():
            comments[line.partition(":")[0]] = _first_sentence(comment)
        comment = ""
    return comments


def tasks_with_base() -> dict[str, str]:
    """Return the values of `--task` -> the family whose base.yaml has the settings: the family, and the name of its task."""
    families: dict[str, str] = {}
    for family in FAMILIES:
        file = _folder(family) / "base.yaml"
        if file.is_file() and family != ROWS:
            families[family] = family
            task = read(file).get("task")
            if isinstance(task, dict):
                families.setdefault(str(task.get("name")), family)
    return families


def locate(name: str | Path, task: str | None = None, folder: Path = Path()) -> Recipe:
    """Return the recipe of a file, of a shipped recipe's name, or of a method's: the settings of a task with this method.

    ConfigError names the nearest of either kind.

    task: a family with a base.yaml ("countdown", the default, "words", ...), a recipe whose settings are used, or a file of
    rows. folder: where a relative path starts.
    """
    path, text = folder / name, str(name)
    if task is not None:
        if path.is_file() or Path(name).suffix:
            raise ConfigError(f"--task {task} with the recipe {name}: the recipe has a task; omit --task, or pass a method")
        return _method_on(task, text)
    if path.is_file():
        return Recipe(path.stem, path)
    family, _, short_name = text.rpartition("/")
    method = None
    free = not path.exists() and not path.suffix and (not family or family in tasks_with_base())
    if free and text not in shipped(family or DEFAULT_TASK):
        method = _method_of(family or DEFAULT_TASK, short_name)  # before a design of the same name
    if method is not None:
        return method
    file = find(name, folder=folder)
    return Recipe(file.stem, file)


def _method_on(task: str, method: str) -> Recipe:
    """Return the settings of a task with a method by name."""
    families = tasks_with_base()
    if task in families:
        family, above, file = families[task], Tree(), None
    elif task.endswith((".yaml", ".yml")):
        family, above, file = "", Tree(), find(task)
    elif task.endswith(ROW_SUFFIXES):
        family, above, file = ROWS, Tree({"task": {"name": "jsonl", "file": task}}, {("task",): "--task"}), None
    elif (generator := task.removeprefix("reasoning_gym:")) and generator != task:
        family, above, file = ROWS, Tree({"task": {"name": "reasoning_gym", "dataset": generator}}, {("task",): "--task"}), None
    else:
        raise ConfigError(
            f"--task {task!r}: no settings to train with{choose_from(task, families)}; or reasoning_gym:NAME, a recipe whose "
            f"settings are used (.yaml), or a file of rows ({', '.join(ROW_SUFFIXES)})"
        )
    if file is None and (own := _folder(family) / f"{method}.yaml").is_file():
        return Recipe(own.stem if family == DEFAULT_TASK else f"{family}-{own.stem}", own)
    recipe = _method_of(family, method)
    if recipe is None:
        known = [*named_methods(family), *names_of("method")]
        near = nearest(method, known)
        own = own_hint().removeprefix(".") if near else own_hint()
        hint = f"did you mean {near!r}?" if near else f"`{suggest('methods')}` lists all"
        raise ConfigError(f"{method!r}: unknown method; {hint}{own}")
    stem = recipe.name if file is None and not above else f"{Path(task).stem.replace(':', '-')}-{method}"
    return Recipe(stem, recipe.file if file is None else file, merge(above, recipe.above))


def _method_of(family: str, method: str) -> Recipe | None:
    """Return the base recipe of a family with a method by its name in methods.yaml, else in the registry.

    Return None if neither has it.
    """
    entries = named_methods(family)
    if method in entries:
        settings = entries[method][0]
    elif method in names_of("method"):
        settings = Tree({"method": {"name": method}}, {("method",): method})
    else:
        return None
    name = method if family in ("", DEFAULT_TASK) else f"{family}-{method}"
    return Recipe(name, _folder(family or DEFAULT_TASK) / "base.yaml", settings)


def trainable(task: str = DEFAULT_TASK) -> list[str]:
    """Return the names for `train NAME --task TASK`: recipes of the task with a method, methods of methods.yaml, registered ones.
    """
    files = [file.stem for name, file in shipped(task).items() if name == f"{task}/{file.stem}" and "method" in load(file)]
    return list(dict.fromkeys([*files, *named_methods(task), *names_of("method")]))


def maker_of(folder: str) -> str:
    """Return the command, from the comments of a shipped recipe, that makes a policy's folder; "" for none."""
    pattern = re.compile(r"^#\s*sage-rlvr (\S.* --(?:out|run) (\S+))\s*$", re.MULTILINE)
    commands = (pair for name, file in shipped().items() if "/" in name for pair in pattern.findall(read_text(file)))
    return next((suggest(*words.split()) for words, made in commands if folder in (made, f"{made}/policy")), "")


def find(name: str | Path, *families: str, folder: Path = Path()) -> Path:
    """Return the file of a path, seen from `folder`, or of a shipped recipe's name. ConfigError names the nearest of either."""
    path, known, short_name = folder / name, shipped(*families), str(name).removesuffix(".yaml")
    if path.is_file():
        return path
    if short_name in known:
        return known[short_name]
    if path.exists():  # a folder: who reads it says so
        return path
    if families and (tree := _recipe_named(short_name)):
        command = "train" if "method" in tree else "offline" if "loss" in tree else "sft"
        raise ConfigError(f"{name}: a recipe, but not one of {', '.join(families)}; run it with: {suggest(command, short_name)}")
    local = {file.stem: file for file in sorted(path.parent.glob("*.y*ml"))}
    named = [] if families else [*named_methods(), *(names_of("method") if not path.suffix else ())]
    if (near := nearest(path.stem, local)) is not None:
        hint = f"did you mean {local[near]}?"
    elif (not path.suffix or path.parent.is_dir()) and (near := nearest(short_name, [*known, *named])) is not None:
        hint = f"did you mean {near!r}?"
    else:
        there = f"YAML files there: {', '.join(file.name for file in local.values()) or 'none'}"
        there = there if path.parent.is_dir() else f"the folder {path.parent} does not exist"
        hint = f"{there}; `sage-rlvr recipes` lists recipes, `sage-rlvr methods` lists methods"
    what = "no such file, shipped recipe or method" if not families else "no such file, nor a shipped recipe"
    raise ConfigError(f"{path}: {what}; {hint}")


def _recipe_named(name: str) -> Tree | None:
    """Return the tree of a recipe or method of that name, None if there is none."""
    with suppress(ConfigError):
        return load(name)
    return None


def recipe(name: str, family: str = "countdown") -> Path:
    """Return the path of a shipped file, e.g. recipe("base.yaml"). `ConfigError` lists the existing ones."""
    file = _folder(family) / name
    if not file.is_file():
        there = ", ".join(sorted(p.name for p in file.parent.iterdir()))
        raise ConfigError(f"no recipe {name!r} in {family}; there are {there}")
    return file


def headline(file: Path) -> str:
    """Return the first sentence of a recipe's first comment, up to a full stop or a command ("#   sage-rlvr ...")."""
    lines = read_text(file, MAX_BYTES).splitlines()
    first = next((i for i, x in enumerate(lines) if x[:1] != "#" or x.startswith("#   ")), 0)
    return _first_sentence(" ".join(line.lstrip("# ") for line in lines[:first]))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[\w)\]])(?<!Dr)\. (?=[A-Z])", text.strip())[0].rstrip(".")


def copy(name: str, to: Path) -> Path:
    """Write a shipped recipe, or a method by name, to a file whose `base:` is the shipped recipe. Return the file.

    Raises ConfigError if `to` exists.
    """
    recipe = locate(name)
    to = to / f"{recipe.name}.yaml" if to.is_dir() else to
    if to.exists():
        raise ConfigError(f"{to}: exists; use another name, or move it away")
    family = recipe.file.parent.name
    if recipe.above:
        about = named_methods(family).get(Path(name).name, (None, ""))[1]
        text = f"# {about}.\n" if about else ""
        text += yaml.safe_dump({"base": f"{family}/{recipe.file.stem}", **recipe.above}, sort_keys=False, width=120)
    else:
        text = read_text(recipe.file, MAX_BYTES, ConfigError)
        text = re.sub(r"^base: (\w+)\.yaml$", lambda m: f"base: {family}/{m[1]}", text, flags=re.MULTILINE)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, encoding="utf-8")
    return to


# ---- tree -> tree: inheritance and overrides


def load(path: str | Path | Recipe, overrides: Iterable[tuple[str, str]] = (), task: str | None = None) -> Tree:
    """Read a recipe, merge it over the file that its `base:` names, load the `plugins:` of each, apply `--a.b value` edits.

    A base may have a base too. Nothing is decoded yet. Raises ConfigError for a missing, oversized or malformed file and for a
    malformed override.

    Args:
        path: a YAML file, the name of a shipped one, or of a method, or the result of `locate`.
        overrides: pairs such as ("optimizer.lr", "3e-5"); the value is a YAML scalar or flow collection.
        task: the task for a method by name, see `locate`.
    """
    tree = _over_its_bases(path if isinstance(path, Recipe) else locate(path, task))
    for key, text in overrides:
        tree = override(tree, key, text)
    return tree


def _over_its_bases(recipe: Recipe, below: tuple[Path, ...] = ()) -> Tree:
    """Return the tree of a recipe with its bases, the plugins of each loaded. below: the files whose bases have led here."""
    tree = read(recipe.file)
    base = tree.pop("base", None)
    if base is not None:
        tree = _inherit(recipe.file, base, tree, (*below, recipe.file))
    use_plugins(tree, recipe.file)
    if not recipe.above:
        return tree
    for key in recipe.above:  # a method in the place of another one, of which nothing stays
        tree.pop(key, None)
    return merge(tree, recipe.above)


def resolved(tree: Tree) -> Tree:
    """Return the tree with absolute paths, each relative to the place where it was written (`sage_rlvr.paths` has the rule)."""

    def start(key_path: KeyPath) -> Path | None:
        written = next((key_path[:n] for n in range(len(key_path), -1, -1) if key_path[:n] in tree.origins), None)
        source = "" if written is None else tree.origins[written]
        if source.startswith("--") or source.endswith("=") or not source:
            return Path.cwd()
        file = Path(source.rpartition(":")[0])
        return None if is_shipped(file) else file.parent

    return Tree(anchored(dict(tree), (), start), tree.origins)


def fitted(tree: Tree) -> Tree:
    """Return the tree with a shipped recipe's warm-up cut to half the run's updates if it is not shorter than the run.

    A warm-up that the user wrote is not changed and raises an error later: a user who shortens a run has not asked for a shipped
    one.
    """
    place = ("optimizer", "warmup_steps")
    origin = tree.origins.get(place, "")
    if not origin.rpartition(":")[0] or origin.startswith("--") or not is_shipped(Path(origin.rpartition(":")[0])):
        return tree
    plan = tree.get("updates")
    per_step = [plan.get(name, 1) for name in ("epochs", "minibatches")] if isinstance(plan, dict) else []
    counts = [tree.get("steps"), *per_step]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return tree  # which decoding refuses
    updates = math.prod(counts)
    if tree["optimizer"]["warmup_steps"] < updates:
        return tree
    return Tree(_set(tree, place, updates // 2), tree.origins)


def use_plugins(tree: Tree, path: Path) -> None:
    """Load the files that `plugins:` of a recipe or a design lists, relative to its `path`, and remove the list from the tree.

    A mapping (name: hash) is the record of a run.
    """
    files = tree.get("plugins", [])
    if isinstance(files, dict):
        return
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        spot = tree.origins.get(("plugins",), str(path))
        raise ConfigError(f"{spot}: plugins = {files!r}: expected a list of Python files such as [my_guide.py]")
    for file in tree.pop("plugins", []):
        plugins.use(path.parent / file)


def _inherit(path: Path, base: Any, tree: Tree, below: tuple[Path, ...]) -> Tree:
    spot = tree.origins.get(("base",), str(path))
    if not isinstance(base, str):
        raise ConfigError(f"{spot}: base = {base!r}: expected a YAML file in the same folder, or the name of a recipe")
    base_recipe = locate(base, folder=path.parent)
    if base_recipe.file.resolve() in [file.resolve() for file in below]:
        circle = " -> ".join(file.name for file in (*below, base_recipe.file))
        raise ConfigError(f"{spot}: base = {base!r}: the bases form a circle ({circle}); remove one of these `base:` lines")
    parent = _over_its_bases(base_recipe, below)
    if "world" not in tree and {"task", "data"} & tree.keys():
        parent.pop("world", None)  # other problems than those of the base recipe
    return merge(parent, tree)


def merge(below: Tree, above: Tree) -> Tree:
    """Merge deeply; `above` wins. Mappings join key by key.

    In two cases `above` replaces a mapping: if both name themselves differently (`name: branch` over `name: token`), and if the
    keys are numbers (`counts: {4: 1.0}` is one value).
    """
    return Tree(_merge(below, above), {**below.origins, **above.origins})


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, str) and isinstance(above, dict) and "name" not in above:
        below = {"name": below}
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if below.get("name") != above.get("name", below.get("name")) or not all(isinstance(key, str) for key in above):
        return above
    return {**below, **{key: _merge(below[key], value) if key in below else value for key, value in above.items()}}


def override(tree: Tree, key: str, text: str) -> Tree:
    """Return a new tree with one edit, as `--a.b value` on the command line makes it.

    key: dotted place, with or without leading dashes ("optimizer.lr"). text: YAML scalar or flow collection. Setting
    `x.name` to another name drops the old one's settings, like a mapping with a different name in `merge`.
    """
    name = "--" + key.lstrip("-")
    key_path = key_path_of(key)
    value, _ = _parse(text, name)
    try:
        if not all(key_path):
            raise ConfigError("an override is written --a.b value, for example --optimizer.lr 3e-5")
        edited = Tree(_set(tree, key_path, value), tree.origins)
    except ConfigError as error:
        issue = Issue(problem=f": {error}", key_path=key_path, source=name, written=key_path)
        refused = ConfigError(str(issue))
        refused.issues = (issue,)
        raise refused from None
    edited.origins = {p: o for p, o in tree.origins.items() if p[: len(key_path)] != key_path} | {key_path: name}
    return edited


def key_path_of(key: str) -> KeyPath:
    """Return the place that an override's key names: "--optimizer.max-grad-norm" -> ("optimizer", "max_grad_norm")."""
    return tuple(key.lstrip("-").replace("-", "_").split("."))


def _set(node: Any, key_path: KeyPath, value: Any) -> Any:
    if not key_path:
        return value
    if isinstance(node, str):
        node = {"name": node}
    if node is None:
        node = {}
    if isinstance(node, list) and key_path[0].isdigit() and int(key_path[0]) < len(node):
        return [_set(one, key_path[1:], value) if number == int(key_path[0]) else one for number, one in enumerate(node)]
    if not isinstance(node, dict):
        raise ConfigError(f"the value there is {node!r}, which has no key {key_path[0]!r}; set the whole value")
    key = next((k for k in node if str(k) == key_path[0]), key_path[0])
    if key_path == ("name",) and node.get("name") != value:
        return {"name": value}
    return {**node, key: _set(node.get(key), key_path[1:], value)}


# ---- words


def dotted(key_path: Sequence[str]) -> str:
    """Return ("rollout", "group_size") as "rollout.group_size", the form that `--a.b value` takes."""
    return ".".join(key_path)
