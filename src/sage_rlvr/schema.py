"""Convert between a plain tree and configuration values: pydantic checks the types, and the signature of a part is its schema.

    value = decode(TrainConfig, tree)           # ConfigError with file, line, place and the next step
    decode(TrainConfig, dump(value)) == value   # always

Parts are chosen by name from their registry (`registry.py`): `guide: {name: branch, ratio: 0.3}`, or just `branch`. An
annotation that names a kind of part (`Guide`, `Method`, `Schedule`, ...) marks the place of such a choice.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError, Issue, SageError, choose_from, nearest, short
from sage_rlvr.names import REGISTRIES
from sage_rlvr.recipes import KeyPath, Recipe, Tree, dotted, fitted, load, parse_scalar, resolved
from sage_rlvr.registry import call_of, registry_of

T = TypeVar("T")

KINDS = {"".join(word.title() for word in kind.split("_")): kind for kind in REGISTRIES}  # RolloutPlan: rollout_plan
PLACEHOLDERS = {name: types.new_class(name) for name in KINDS}  # for annotations whose module is not imported
SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
}
FAR = 0.8  # how similar a key elsewhere in the recipe has to be: r is no slip of lr
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
EXPECTED = {  # pydantic's kind of error: what stands in a recipe there
    **{"bool_type": "true or false", "int_type": "a whole number", "float_type": "a number", "string_type": "text"},
    **{"none_required": "null", "tuple_type": "a list such as [1, 2]", "int_from_float": "a whole number"},
    "dict_type": "a mapping such as {3: 0.5, 4: 0.5}",
}


def decode(schema: type[T], tree: Any, where: str = "") -> T:
    """Build `schema` (a dataclass, or any annotation that `reader` knows) from a plain tree, strictly.

    where: the file to quote when the tree (see `recipes.Tree`) does not know where a value came from. Relative paths of a tree
    become absolute ones (`recipes.resolved`), and a shipped warm-up fits the run (`recipes.fitted`). A dataclass may have `also`,
    other names of its fields, and `parse`, a class method that builds it from its tree.
    Raises ConfigError with one line per problem, or the refusal of the part itself (such as CancellingGuide) with its place.
    """
    tree = fitted(resolved(tree)) if isinstance(tree, Tree) else tree
    try:
        value: T = _adapter(schema).validate_python(tree)
        return value
    except ValidationError as error:
        refusals = [_Refusal(details, schema, tree, where) for details in error.errors(include_url=False)]
        kind = refusals[0].kind if len(refusals) == 1 else ConfigError
        issues = [issue for refusal in refusals for issue in refusal.issues()]
        missing = sorted(set(tree.get("plugins") or ()) - set(plugins.loaded())) if isinstance(tree, dict) else []
        issues += [Issue(problem=f"created with the plugin {name}, which is not loaded; pass it with --plugin") for name in missing]
        refused = kind("\n".join(dict.fromkeys(map(str, issues))))
        refused.issues = tuple(dict.fromkeys(issues))
        raise refused from error


def load_config(schema: type[T], path: str | Path | Recipe, overrides: Iterable[tuple[str, str]] = ()) -> T:
    """Return `decode(schema, load(path, overrides))`: a recipe, by file or by name, as a checked configuration."""
    return decode(schema, load(path, overrides), where=str(path))


def build(kind: str, tree: Any) -> Any:
    """Return the part of a tree such as {"name": "grpo", "beta": 0.05}; kind: one of `names.REGISTRIES`."""
    return decode(PLACEHOLDERS[next(name for name, part_kind in KINDS.items() if part_kind == kind)], tree, where=kind)


# ---- what an annotation accepts


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_reader(hint), config=STRICT)


def _reader(hint: Any) -> Any:
    """Return the annotation as pydantic takes it: parts by name, dataclasses from mappings, tuples from lists."""
    origin, args = get_origin(hint), get_args(hint)
    if kind_of(hint):
        return Annotated[Any, PlainValidator(functools.partial(_choose, kind_of(hint)))]
    if dataclasses.is_dataclass(hint):
        return Annotated[Any, PlainValidator(getattr(hint, "parse", None) or functools.partial(_make, hint))]
    if origin in (Union, types.UnionType):
        return Annotated[Any, PlainValidator(functools.partial(_one_of, args))]
    if origin is Literal:
        return Annotated[Any, PlainValidator(functools.partial(_literal, args))]
    if origin is tuple:
        items = tuple(arg if arg is Ellipsis else _reader(arg) for arg in args)
        return Annotated[tuple[items], Field(strict=False), BeforeValidator(functools.partial(_items, args))]  # type: ignore[valid-type]
    if origin is dict:
        return Annotated[dict[_reader(args[0]), _reader(args[1])], BeforeValidator(functools.partial(_keys, args[0]))]  # type: ignore[misc]
    if origin is Annotated:
        return _reader(args[0])
    return hint if hint is Any or hint in SCALARS else Annotated[Any, PlainValidator(_unwritable)]


def _refused(text: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{text}", {"text": text})


def _expected(words: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{words}", {"words": words})


def _at(key: Any, value: Any, error: PydanticCustomError) -> ValidationError:
    """Return the error at a key of the mapping that is being read."""
    return ValidationError.from_exception_data("", [InitErrorDetails(type=error, loc=(key,), input=value)])


def _choose(kind: str, tree: Any) -> Any:
    """Return the part of `{name: branch, ratio: 0.3}` or just `branch`.

    A guide next to a method without one makes it sage of that method.
    """
    registry = registry_of(kind)
    tree = {"name": tree} if isinstance(tree, str) else tree
    if not isinstance(tree, dict):
        raise _expected(f"a name ({', '.join(registry)}) or a mapping such as {{name: {next(iter(registry), '')}}}")
    if "name" not in tree:
        raise _refused(f"the key 'name' is missing; choose from: {', '.join(registry)}")
    name, rest = tree["name"], {key: value for key, value in tree.items() if key != "name"}
    if not isinstance(name, str) or name not in registry:
        raise _at("name", name, _refused(f"unknown {kind.replace('_', ' ')}{choose_from(name, registry)}"))
    if kind == "method" and "guide" in rest and "guide" not in parameters(registry[name]):
        base = {"name": name, **{key: value for key, value in rest.items() if key != "guide"}}
        name, rest = "sage", {"base": base, "guide": rest["guide"]}
    return _make(registry[name], rest, lambda key: [other for other, part in registry.items() if key in parameters(part)])


def _make(part: Callable[..., Any], tree: Any, having: Callable[[str], list[str]] = lambda key: []) -> Any:
    """Call a dataclass or factory with a mapping of its parameters; one with a `name` also takes the bare name.

    having: the other choices that have a key, for the error on one that this part does not have.
    """
    fields = parameters(part)
    tree = {"name": tree} if isinstance(tree, str) and "name" in fields else tree
    if not isinstance(tree, dict):
        raise _expected(f"a mapping with the keys {', '.join(fields)}")
    tree = _renamed(tree, getattr(part, "also", {}))
    for key in tree:
        if key not in fields:
            others = "" if nearest(str(key), fields, FAR) else ", ".join(having(str(key))[:3])
            about = {"keys": ",".join(fields), "others": others}
            raise _at(str(key), tree[key], PydanticCustomError("unknown_key", "{keys}", about))
    for key, (hint, default) in fields.items():
        if key not in tree and default is inspect.Parameter.empty:
            raise _refused(f"the key {key!r} is missing ({phrase(hint)})")
    return part(**_arguments(part).validate_python(tree))


def _renamed(tree: dict[Any, Any], also: Mapping[str, str]) -> dict[Any, Any]:
    """Return the mapping with a field's other name replaced by the field's own."""
    for key in tree:
        if also.get(key) in tree:
            raise _at(key, tree[key], _refused(f"the same setting as {also[key]!r}; keep one of the two"))
    return {also.get(key, key): value for key, value in tree.items()}


@functools.cache
def _arguments(part: Callable[..., Any]) -> TypeAdapter[Any]:
    fields = {name: NotRequired[_reader(hint)] for name, (hint, _) in parameters(part).items()}
    schema = TypedDict("Arguments", fields)  # type: ignore[operator]
    schema.__pydantic_config__ = STRICT
    return TypeAdapter(schema)


def _one_of(members: tuple[Any, ...], tree: Any) -> Any:
    """Return the one member of a union that fits the tree: null, a plain type, or a choice by name."""
    if tree is None and types.NoneType in members:
        return None
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) == 1:
        return _adapter(rest[0]).validate_python(tree)
    plain = [member for member in rest if not kind_of(member)]
    for member in plain:
        try:
            return _adapter(member).validate_python(tree)
        except ValidationError as error:
            first = error.errors()[0]
            if first["loc"] or first["type"] not in {*EXPECTED, "expected", "literal"}:
                raise  # of the right kind, and wrong within
    named = [kind for member in rest if (kind := kind_of(member))]
    for kind in named:
        if isinstance(tree, dict) or tree in registry_of(kind) or not plain:
            return _choose(kind, tree)
    choices = [f"one of {', '.join(registry_of(kind))}" for kind in named]
    raise _expected(" or ".join([*map(phrase, plain), *choices]))


def _literal(options: tuple[Any, ...], tree: Any) -> Any:
    if any(tree == option and type(tree) is type(option) for option in options):
        return tree
    raise PydanticCustomError("literal", "{options}", {"options": options})


def _items(args: tuple[Any, ...], tree: Any) -> Any:
    if not isinstance(tree, (list, tuple)):
        raise _expected("a list such as [1, 2]")
    if Ellipsis not in args and len(tree) != len(args):
        raise _refused(f"expected {len(args)} items, got {len(tree)}")
    return tuple(tree)


def _keys(kind: Any, tree: Any) -> Any:
    """Return a mapping whose keys are read as YAML would; a repeated key is an error."""
    if not isinstance(tree, dict):
        raise _expected(EXPECTED["dict_type"])
    read: dict[Any, Any] = {}
    for written, value in tree.items():
        key = parse_scalar(written) if isinstance(written, str) and kind is not str else written
        if kind in SCALARS and (not isinstance(key, kind) or isinstance(key, bool)):
            raise _at(str(written), value, _refused(f"the key {written!r} must be {SCALARS[kind]}"))
        if key in read:
            raise _at(str(written), value, _refused(f"the key {key!r} is defined twice; keep one of the two"))
        read[key] = value
    return read


def _unwritable(tree: Any) -> Any:
    raise _refused("this part cannot be set from YAML; build it in Python")


# ---- what is said of a wrong value


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """One of pydantic's errors in the words of a recipe: file, line, place, value, what was expected, the next step."""

    error: Any
    schema: Any
    tree: Any
    where: str

    @property
    def key_path(self) -> KeyPath:
        """Place as it is written: a guide next to a method without one has made that method the base of a sage, see `_choose`."""
        key_path, node = [], self.tree
        for part in map(str, self.error["loc"]):
            moved = part == "base" and isinstance(node, dict) and "guide" in node and "base" not in node
            if not moved:
                key_path.append(part)
                node = node.get(part) if isinstance(node, dict) else None
        return tuple(key_path)

    @property
    def own(self) -> SageError | None:
        """The error that the part itself raised; None for pydantic's."""
        cause = self.error.get("ctx", {}).get("error")
        return cause if isinstance(cause, SageError) else None

    @property
    def kind(self) -> type[SageError]:
        return type(self.own) if self.own is not None else ConfigError

    def issues(self) -> list[Issue]:
        """Return the problems and their places: one, or each that the part's own error has."""
        if self.own is None:
            return [self._issue()]
        return [self._located(issue) for issue in self.own.issues or (Issue(problem=str(self.own)),)]

    def _issue(self) -> Issue:
        kind, context, value = self.error["type"], self.error.get("ctx", {}), self.error["input"]
        if kind == "value_error":
            return self._at(self.key_path, f": {context['error']}")
        if kind == "unknown_key":
            return self._shown(self._unknown(context["keys"].split(","), context["others"]))
        if kind == "literal":
            return self._shown(self._no_option(context["options"]))
        if kind == "finite_number":
            return self._shown("must be finite; use null to switch a limit off")
        if kind == "refused":
            return self._shown(context["text"])
        expected = context["words"] if kind == "expected" else EXPECTED.get(kind, self.error["msg"])
        return self._shown(f"expected {expected}, got {_describe(value)}{_hint(expected, value)}")

    def _at(self, key_path: KeyPath, problem: str) -> Issue:
        """Return the problem with the file and line of the value at `key_path`, or of the nearest mapping ("recipe.yaml:7: a.b").

        Edits from the command line are included ("recipe.yaml:7 with --a.b: a").
        """
        origins = self.tree.origins if isinstance(self.tree, Tree) else {}
        written = next((key_path[:n] for n in range(len(key_path), -1, -1) if key_path[:n] in origins), None)
        deeper = (p for p, o in origins.items() if len(p) > len(key_path) > 0 and p[: len(key_path)] == key_path and o[:2] == "--")
        source = self.where if written is None else origins[written]
        return Issue(problem=problem, key_path=key_path, source=source, written=written, edited=tuple(sorted(deeper)))

    def _shown(self, problem: str) -> Issue:
        value = self.error["input"]
        long = not self.key_path or (isinstance(value, dict) and len(repr(value)) > 60)
        issue = self._at(self.key_path, f"{'' if long else f' = {short(value)}'}: {problem}")
        return issue if issue.source or issue.key_path else dataclasses.replace(issue, source="configuration")

    def _located(self, own: Issue) -> Issue:
        """Return the part's own error with file and place in front: its place is one within the part, unless it knows a file."""
        if own.key_path and not own.source:
            return self._at((*self.key_path, *own.key_path), own.problem)
        issue = self._at(self.key_path, f": {own}")
        return issue if issue.source or issue.key_path else dataclasses.replace(issue, problem=str(own))

    def _unknown(self, keys: list[str], others: str) -> str:
        key, below = self.key_path[-1], self._below()
        of_method = "extras" in keys or self.key_path[:-1] == ("method",)
        if of_method and (spelled := _as_extra(self.error["input"])):
            takes = "" if "extras" in keys else ", and of the methods only name: compose takes extras"
            return f"unknown key; {spelled[0]} is an extra{takes}: write extras: [{spelled[1]}]"
        near = below.get(key) or (nearest(key, keys, FAR) if others else nearest(key, keys))
        if near is None and others and nearest(key, below) is None:
            return f"unknown key; it belongs to name: {others.replace(', ', ' or ')}. Keys here: {', '.join(keys)}"
        if near is None:
            places = {p[-1]: dotted(p) for p in _key_paths(self.schema)}
            near = below.get(nearest(key, below) or "") or places.get(key) or places.get(nearest(key, places, FAR) or "")
        return f"unknown key{f'; did you mean {near!r}?' if near else '.'} Keys here: {', '.join(keys) or 'none'}"

    def _below(self) -> dict[str, str]:
        """Return key -> its dotted place, of the keys of parts next to the unknown one: a guide's, say."""
        node: Any = self.tree
        for key in self.key_path[:-1]:
            node = node.get(key) if isinstance(node, dict) else None
        key_paths: dict[str, str] = {}
        for sibling, part in node.items() if isinstance(node, dict) else ():
            name, kind = part.get("name") if isinstance(part, dict) else part, "method" if sibling == "base" else sibling
            if kind in REGISTRIES and isinstance(name, str) and name in registry_of(kind):
                key_paths |= {key: dotted((*self.key_path[:-1], sibling, key)) for key in parameters(registry_of(kind)[name])}
        return key_paths

    def _no_option(self, options: tuple[Any, ...]) -> str:
        named = len(self.key_path) > 1 and self.key_path[-1] == "name"
        return f"unknown {self.key_path[-2] if named else 'choice'}{choose_from(self.error['input'], options)}"


def _as_extra(value: Any) -> tuple[str, str] | None:
    """Return the name and the mapping in one line of a value that names an extra; None for anything else."""
    part = {"name": value} if isinstance(value, str) else value
    name = part.get("name") if isinstance(part, dict) else None
    if not isinstance(name, str) or name not in registry_of("extra"):
        return None
    return name, yaml.safe_dump(part, default_flow_style=True, sort_keys=False, width=math.inf).strip()


def _describe(tree: Any) -> str:
    words = {bool: "the truth value ", int: "the whole number ", float: "the number ", str: "the text "}
    if type(tree) in words:
        return words[type(tree)] + short(tree)
    return "null" if tree is None else "a mapping" if isinstance(tree, dict) else "a list"


def _hint(expected: str, tree: Any) -> str:
    """Return the next step after a value of the wrong kind."""
    if expected == "true or false" and str(tree).lower() in ("yes", "no", "on", "off", "0", "1"):
        return f"; write {'true' if str(tree).lower() in ('yes', 'on', '1') else 'false'}"
    if expected == "text" and isinstance(tree, (bool, int, float)):
        return f"; put it in quotes: '{tree}'"
    if "number" in expected and isinstance(tree, str) and not isinstance(parse_scalar(tree), str):
        return f"; write it without quotes: {tree}"
    if expected == "a whole number" and isinstance(tree, float) and tree.is_integer():
        return f"; write {int(tree)}"
    return ""


def _key_paths(schema: Any, key_path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every place of a nested dataclass schema, for suggestions ("did you mean rollout.group_size?")."""
    if dataclasses.is_dataclass(schema) and len(key_path) < 5:
        for name, (hint, _) in parameters(schema).items():  # type: ignore[arg-type]
            yield (*key_path, name)
            yield from _key_paths(hint, (*key_path, name))


# ---- values -> tree


def dump(config: Any) -> Any:
    """Return the plain tree (dict, list, numbers, text) that `decode` turns back into an equal value, defaults filled in.

    Raise ConfigError for a part that no registered function has made.
    """
    if (call := call_of(config)) is not None:
        return {"name": call[0], **{key: dump(value) for key, value in call[1].items()}}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return _dump_fields(config)
    if isinstance(config, Mapping):
        return {key: dump(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [dump(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def _dump_fields(config: Any) -> dict[str, Any]:
    name = vars(type(config)).get("_registered")
    if name is None and kind_of(type(config)):
        raise ConfigError(
            f"{type(config).__name__} {getattr(config, 'name', '')!r} was built in Python, so no recipe can refer to "
            f"it; register a function that builds it: @sage_rlvr.{kind_of(type(config))}"
        )
    plain = {f.name: dump(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}
    return plain if name is None else {"name": name, **plain}


def to_yaml(config: Any) -> str:
    """Return the resolved configuration as YAML text that `recipes.load` reads back."""
    text: str = yaml.safe_dump(dump(config), sort_keys=False, allow_unicode=True, width=120)
    return text


# ---- signatures


def kind_of(hint: Any) -> str | None:
    """Return the kind of part that an annotation names, itself or an abstract class below it (TokenWeight: extra).

    None for any other.
    """
    if not isinstance(hint, type):
        return None
    if hint is PLACEHOLDERS.get(hint.__name__):
        return KINDS[hint.__name__]
    bases = hint.__mro__ if inspect.isabstract(hint) else (hint,)
    own = (base.__name__ for base in bases if base.__module__.startswith("sage_rlvr."))
    return next((KINDS[name] for name in own if name in KINDS), None)


@functools.cache
def parameters(part: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (annotation, default or Parameter.empty) of a dataclass or of a function with annotations."""
    hints = typing.get_type_hints(inspect.unwrap(part), localns=PLACEHOLDERS)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_name = {n: p for n, p in inspect.signature(part).parameters.items() if p.kind not in variadic}
    hints |= {n: p.annotation for n, p in by_name.items() if n not in hints and p.annotation is not p.empty}
    return {name: (hints.get(name, Any), p.default) for name, p in by_name.items()}


def phrase(hint: Any) -> str:
    """Return an annotation in words, for "expected ..." and for missing keys."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(phrase, args))
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    return {tuple: "a list", dict: "a mapping"}.get(origin) or SCALARS.get(hint, str(getattr(hint, "__name__", hint)))


__all__ = ["build", "decode", "dump", "kind_of", "parameters", "phrase", "to_yaml"]
