"""YAML -> frozen dataclasses, strictly; a typo is answered with its neighbour. Any dataclasses: the schemas of this
package are in `config.py`.

    tree = load("recipe.yaml", [("rollout.group_size", "16")])   # plain tree that remembers where each value stands
    value = decode(Schema, tree, unions={"Shape": {"disc": Disc, "square": square}})
    decode(Schema, dump(value), unions=...) == value             # always

`--a.b value` edits the tree before it is decoded. Precedence: default < `base:` file < YAML < override. Unions are
chosen by name: `shape: {name: disc, radius: 0.3}`. A name stands for a dataclass or for a factory function whose
annotated signature is the schema; a bare string means its defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import math
import re
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import yaml

from sage_rlvr.errors import ConfigError, SageError

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
Place = tuple[str, ...]
Registry = Mapping[str, Any]
Built = tuple[Any, dict[str, Any]]
T = TypeVar("T")


# ------------------------------------------------------------------------------------------------------------------
# YAML text -> tree


class Tree(dict):  # type: ignore[type-arg]
    """A plain nested dict that remembers where its values were written.

    `origins` maps a place such as ("rollout", "group_size") to "recipe.yaml:7" or "--rollout.group_size"; error
    messages quote it. Equality is that of dict.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, origins: Mapping[Place, str] | None = None):
        super().__init__(values or {})
        self.origins: dict[Place, str] = dict(origins or {})


_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def parse_scalar(text: str) -> bool | int | float | str | None:
    """An unquoted YAML scalar by the YAML 1.2 core schema: `1e-6` is a number; `no`, `on` and `010` are text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text) and len(text) <= 40:
        return int(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    special = text.lower().lstrip("+-")
    if special in (".inf", ".nan"):
        return float(text.lower().replace(".", ""))
    return text


class _Reader:
    """One pass over YAML events: no tags, anchors or aliases, no duplicate keys, bounded depth."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.origins: dict[Place, str] = {}
        self.loader = yaml.SafeLoader(text)

    def read(self) -> Any:
        """The one document of the text as plain values, None where it is empty; `origins` then knows each value's line."""
        try:
            self.loader.get_event()  # stream start
            if self.loader.check_event(yaml.StreamEndEvent):
                return None
            self.loader.get_event()  # document start
            value = self._node((), 0)
            self.loader.get_event()  # document end
            if not self.loader.check_event(yaml.StreamEndEvent):
                raise ConfigError(f"{self.source}: holds more than one YAML document; keep one recipe a file")
            return value
        except yaml.YAMLError as error:
            raise ConfigError(f"{self.source}: not YAML: {' '.join(str(error).split())}") from error
        finally:
            self.loader.dispose()

    def _node(self, place: Place, depth: int) -> Any:
        event = self.loader.get_event()
        spot = f"{self.source}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise ConfigError(f"{spot}: anchors and aliases (&a, *a) are refused; write the value out, or use `base:`")
        if event.tag is not None:
            raise ConfigError(f"{spot}: the tag {event.tag!r} is refused; a recipe holds plain values only")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{spot}: nested deeper than {MAX_DEPTH} levels; no recipe needs that")
        self.origins.setdefault(place, spot)
        if isinstance(event, yaml.ScalarEvent):
            return parse_scalar(event.value) if event.style is None else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(place, depth))
        return self._mapping(place, depth)

    def _items(self, place: Place, depth: int) -> Iterator[Any]:
        index = 0
        while not self.loader.check_event(yaml.SequenceEndEvent):
            yield self._node((*place, str(index)), depth + 1)
            index += 1
        self.loader.get_event()

    def _mapping(self, place: Place, depth: int) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        while not self.loader.check_event(yaml.MappingEndEvent):
            spot = f"{self.source}:{self.loader.peek_event().start_mark.line + 1}"
            if not self.loader.check_event(yaml.ScalarEvent, yaml.AliasEvent):
                raise ConfigError(f"{spot}: a key must be a word or a number, not a list or a mapping")
            key = self._node((*place, "(key)"), depth + 1)
            if key in mapping:
                raise ConfigError(f"{spot}: duplicate key {dotted((*place, str(key)))!r}; keep one of the two")
            self.origins[(*place, str(key))] = spot
            mapping[key] = self._node((*place, str(key)), depth + 1)
        self.loader.get_event()
        return mapping


def parse_yaml(text: str, source: str = "YAML") -> Tree:
    """YAML text whose top level is a mapping -> Tree. Raises ConfigError that names source, line and next step."""
    value, origins = _parse(text, source)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: the top level must be `key: value` lines, not {_describe(value)}")
    return Tree(value, origins)


def _parse(text: str, source: str) -> tuple[Any, dict[Place, str]]:
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"{source}: {len(text):,} characters; a recipe may have {MAX_BYTES:,}. Is this the right file?"
        )
    try:
        reader = _Reader(text, source)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    return reader.read(), reader.origins


def _read_file(path: Path) -> Tree:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: {size:,} bytes; a recipe may have {MAX_BYTES:,}. Is this the right file?")
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); is this a recipe?"
        ) from error
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_neighbour_files(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _neighbour_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; the folder {folder} does not exist either"
    recipes = sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    near = _nearest(path.name, recipes)
    return f"; did you mean {folder / near}?" if near else f"; recipes there: {', '.join(recipes) or 'none'}"


# ------------------------------------------------------------------------------------------------------------------
# tree -> tree: inheritance and overrides


def load(path: str | Path, overrides: Iterable[tuple[str, str]] = ()) -> Tree:
    """Read a recipe, merge the file its `base:` names (one level), apply `--a.b value` edits; nothing is decoded yet.

    path: a YAML file. overrides: pairs such as ("optimizer.lr", "3e-5"); the value is a YAML scalar or flow collection.
    Raises ConfigError for a missing, oversized or malformed file and for a malformed override.
    """
    path = Path(path)
    tree = _read_file(path)
    base = tree.pop("base", None)
    if base is not None:
        tree = _inherit(path, base, tree)
    for key, text in overrides:
        tree = override(tree, key, text)
    return tree


def _inherit(path: Path, base: Any, tree: Tree) -> Tree:
    spot = tree.origins.get(("base",), str(path))
    if not isinstance(base, str):
        raise ConfigError(f"{spot}: base = {base!r}: expected the name of a YAML file beside this one")
    parent = _read_file(path.parent / base)
    if "base" in parent:
        raise ConfigError(
            f"{spot}: base = {base!r} has a base of its own ({parent['base']!r}); one level of inheritance is allowed. "
            f"Write the settings of {parent['base']!r} into {base!r}"
        )
    return merge(parent, tree)


def merge(below: Tree, above: Tree) -> Tree:
    """Deep merge; `above` wins. Mappings join key by key, with two exceptions in which `above` replaces the whole:
    mappings that name themselves differently (`name: branch` over `name: token`), and mappings with numbers as keys
    (`counts: {4: 1.0}` is one value)."""
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
    """A new tree with one edit, as `--a.b value` on the command line makes it.

    key: dotted place, with or without leading dashes ("optimizer.lr"). text: YAML scalar or flow collection. Setting
    `x.name` to another name drops the old one's settings, as a mapping with a different name does in `merge`.
    """
    name = "--" + key.lstrip("-")
    place = tuple(key.lstrip("-").replace("-", "_").split("."))
    if not all(place):
        raise ConfigError(f"{name}: an override is written --a.b value, for example --optimizer.lr 3e-5")
    value, _ = _parse(text, name)
    edited = Tree(_set(tree, place, value, name), tree.origins)
    edited.origins = {p: o for p, o in tree.origins.items() if p[: len(place)] != place} | {place: name}
    return edited


def _set(node: Any, place: Place, value: Any, name: str) -> Any:
    if not place:
        return value
    if isinstance(node, str):
        node = {"name": node}
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise ConfigError(f"{name}: {node!r} stands there, which has no part called {place[0]!r}; set the whole value")
    key = next((k for k in node if str(k) == place[0]), place[0])
    if place == ("name",) and node.get("name") != value:
        return {"name": value}
    return {**node, key: _set(node.get(key), place[1:], value, name)}


# ------------------------------------------------------------------------------------------------------------------
# tree -> dataclasses


def decode(schema: type[T], tree: Any, where: str = "", *, unions: Mapping[str, Registry]) -> T:
    """Build `schema` (a frozen dataclass, or any supported annotation) from a plain tree, strictly.

    schema: dataclasses, Optional, unions of scalars and named parts, tuple[X, ...], tuple[X, Y], dict[K, V], Literal.
    where: the file to quote when the tree (see `Tree`) does not know where a value came from.
    unions: annotation name -> {name: dataclass or factory}.
    Raises ConfigError (or the refusal of the part itself, such as CancellingGuide, with the place put in front):
    unknown key, missing key, wrong type, NaN or infinity, a number out of range.
    """
    origins = tree.origins if isinstance(tree, Tree) else {}
    value: T = Decoder(where, origins, unions, schema).value(schema, tree, ())[0]
    return value


class Deferred:
    """Base of a schema that keeps the tree of a named part, defaults filled in, and builds the part when asked.

    `union` is the annotation name whose registry has the part; a subclass is a dataclass with the one field `tree`.
    """

    union: ClassVar[str]
    tree: dict[str, Any]


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """A part warns when its recipe is read ("noise only"), and not each time that it is built again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_ABSENT = object()


class Decoder:
    """Each method returns (value, plain): the built object, and the tree that rebuilds it, every default filled in.

    But for the fields that a part names in `added`, because runs were recorded before it had them: while all of these have
    their defaults, which must mean what the part did without them, none stands in the tree.
    """

    def __init__(self, where: str, origins: Mapping[Place, str], unions: Mapping[str, Registry], root: Any):
        self.where, self.origins, self.unions, self.root = where, origins, unions, root
        self.names = {part: name for registry in unions.values() for name, part in registry.items()}

    # ---- messages

    def spot(self, place: Place) -> str:
        """Where the value at `place`, or the nearest mapping around it, was written: "recipe.yaml:7: a.b"."""
        around = (place[:n] for n in range(len(place), -1, -1))
        source = next((self.origins[p] for p in around if p in self.origins), self.where)
        return ": ".join(part for part in (source, dotted(place)) if part)

    def refuse(self, place: Place, tree: Any, problem: str) -> ConfigError:
        shown = "" if isinstance(tree, dict) and len(repr(tree)) > 60 else f" = {short(tree)}"
        spot = self.spot(place) + shown if place else self.spot(place) or "configuration"
        return ConfigError(f"{spot}: {problem}")

    def wrong(self, place: Place, tree: Any, expected: str) -> ConfigError:
        return self.refuse(place, tree, f"expected {expected}, got {_describe(tree)}{_hint(expected, tree)}")

    # ---- dispatch

    def value(self, schema: Any, tree: Any, place: Place) -> tuple[Any, Any]:
        """(decoded value, plain tree as it would be written) of `tree` by any supported annotation."""
        choices = self.choices(schema)
        if choices:
            return self.named(choices, tree, place)
        if isinstance(schema, type) and issubclass(schema, Deferred):
            plain = self.named(self.unions[schema.union], tree, place)[1]
            with silent():  # what there is to warn about, the line above has said
                return schema(plain), plain  # type: ignore[call-arg]
        origin = get_origin(schema)
        if origin in (Union, types.UnionType):
            return self.union(get_args(schema), tree, place)
        if origin is Literal:
            return self.literal(get_args(schema), tree, place, "")
        if origin is tuple:
            return self.sequence(get_args(schema), tree, place)
        if origin is dict:
            return self.dictionary(get_args(schema), tree, place)
        if origin is typing.Annotated:
            return self.value(get_args(schema)[0], tree, place)
        if dataclasses.is_dataclass(schema):
            return self.mapping(schema, tree, place)
        return self.scalar(schema, tree, place)

    def choices(self, schema: Any) -> dict[str, Any]:
        """name -> part for an annotation that is a registry, one of its members, or a union of such (else empty)."""
        if get_origin(schema) in (Union, types.UnionType):
            members = [self.choices(member) for member in get_args(schema)]
            return {} if not all(members) else {name: part for member in members for name, part in member.items()}
        if getattr(schema, "__name__", schema) in self.unions:
            return dict(self.unions[getattr(schema, "__name__", schema)])
        hashable = isinstance(schema, type)
        return {self.names[schema]: schema} if hashable and schema in self.names else {}

    # ---- leaves

    def scalar(self, schema: Any, tree: Any, place: Place) -> tuple[Any, Any]:
        """A leaf: null, bool, number or text of exactly that type. (value, tree as it will be read back.)"""
        if schema is Any:
            return tree, tree
        if schema is None or schema is types.NoneType:
            if tree is not None:
                raise self.wrong(place, tree, "null")
            return None, None
        if schema not in _SCALARS:
            raise self.refuse(place, tree, "this part cannot be set from YAML; build it in Python")
        if not _fits(schema, tree):
            raise self.wrong(place, tree, _SCALARS[schema])
        if isinstance(tree, (int, float)) and not isinstance(tree, bool) and not math.isfinite(_as_float(tree)):
            raise self.refuse(place, tree, "must be finite; use null where a limit is to be switched off")
        value = float(tree) if schema is float else tree
        return value, value

    def literal(self, options: tuple[Any, ...], tree: Any, place: Place, noun: str) -> tuple[Any, Any]:
        if any(tree == option and type(tree) is type(option) for option in options):
            return tree, tree
        shown = ", ".join(str(option) for option in options)
        near = _nearest(tree, options)
        raise self.refuse(place, tree, f"unknown {noun or 'choice'}{_did_you_mean(near, ';')} choose from: {shown}")

    # ---- containers

    def union(self, members: tuple[Any, ...], tree: Any, place: Place) -> tuple[Any, Any]:
        """The one member that fits the tree: null, a plain type, or a choice by name."""
        rest = [member for member in members if member is not types.NoneType]
        if tree is None and len(rest) < len(members):
            return None, None
        if len(rest) == 1:
            return self.value(rest[0], tree, place)
        for member in rest:
            if not self.choices(member) and _fits(member, tree):
                return self.value(member, tree, place)
        named = {name: part for member in rest for name, part in self.choices(member).items()}
        plain = [_phrase(member) for member in rest if not self.choices(member)]
        if isinstance(tree, (dict, str)) and named and (isinstance(tree, dict) or tree in named or not plain):
            return self.named(named, tree, place)
        raise self.wrong(place, tree, " or ".join(plain + ([f"one of {', '.join(named)}"] if named else [])))

    def sequence(self, args: tuple[Any, ...], tree: Any, place: Place) -> tuple[Any, Any]:
        """A list of one type and any length, or of as many items as there are types."""
        if not isinstance(tree, (list, tuple)):
            raise self.wrong(place, tree, "a list such as [1, 2]")
        schemas = [args[0]] * len(tree) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(schemas) != len(tree):
            raise self.refuse(place, tree, f"expected {len(schemas)} items, got {len(tree)}")
        pairs = [self.value(s, item, (*place, str(i))) for i, (s, item) in enumerate(zip(schemas, tree, strict=True))]
        return tuple(value for value, _ in pairs), [plain for _, plain in pairs]

    def dictionary(self, args: tuple[Any, ...], tree: Any, place: Place) -> tuple[Any, Any]:
        """A mapping; a key that is no text is parsed as YAML would, and none may stand there twice."""
        if not isinstance(tree, dict):
            raise self.wrong(place, tree, "a mapping such as {3: 0.5, 4: 0.5}")
        result: dict[Any, Any] = {}
        plain: dict[Any, Any] = {}
        for written, item in tree.items():
            inner = (*place, str(written))
            key = parse_scalar(written) if isinstance(written, str) and args[0] is not str else written
            if not _fits(args[0], key):
                raise self.refuse(inner, item, f"the key {written!r} must be {_phrase(args[0])}")
            if key in result:
                raise self.refuse(inner, item, f"the key {key!r} is given twice; keep one of the two")
            result[key], plain[key] = self.value(args[1], item, inner)
        return result, plain

    def mapping(self, schema: Any, tree: Any, place: Place) -> tuple[Any, Any]:
        """A dataclass from a mapping of its fields. One with a `name: Literal[...]` field also takes the bare name."""
        fields = _parameters(schema, self.unions)
        if isinstance(tree, str) and "name" in fields:
            tree = {"name": tree}
        if not isinstance(tree, dict):
            raise self.wrong(place, tree, f"a mapping with the keys {', '.join(fields)}")
        if get_origin(fields.get("name", (None,))[0]) is Literal and "name" in tree:
            self.literal(get_args(fields["name"][0]), tree["name"], (*place, "name"), f"{place[-1]}" if place else "")
        return self.call(schema, fields, tree, place)

    def named(self, choices: Registry, tree: Any, place: Place) -> tuple[Any, Any]:
        """`{name: branch, ratio: 0.3}` or just `branch`."""
        tree = {"name": tree} if isinstance(tree, str) else tree
        known = ", ".join(choices)
        if not isinstance(tree, dict):
            raise self.wrong(place, tree, f"a name ({known}) or a mapping such as {{name: {next(iter(choices))}}}")
        if "name" not in tree:
            raise self.refuse(place, tree, f"the key 'name' is missing; choose from: {known}")
        name = self.literal(tuple(choices), tree["name"], (*place, "name"), place[-1] if place else "name")[0]
        rest = {key: item for key, item in tree.items() if key != "name"}
        value, plain = self.call(choices[name], _parameters(choices[name], self.unions), rest, place)
        return value, {"name": name, **plain}

    def call(self, part: Any, fields: Mapping[str, tuple[Any, Any]], tree: Mapping[Any, Any], place: Place) -> Built:
        """Decode the arguments of a dataclass or factory, call it, and put the place before any refusal of its own."""
        for key in tree:
            if key not in fields:
                raise self.refuse((*place, str(key)), tree[key], self.unknown(key, fields))
        arguments: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        for key, (schema, default) in fields.items():
            if key in tree:
                arguments[key], plain[key] = self.value(schema, tree[key], (*place, key))
            elif default is inspect.Parameter.empty:
                raise self.refuse(place, tree, f"the key {key!r} is missing ({_phrase(schema)})")
            elif (shown := self.encode(default)) is not _ABSENT:
                plain[key] = shown
        added = getattr(part, "added", frozenset())
        if all(plain[key] == self.encode(fields[key][1]) for key in added):
            plain = {key: shown for key, shown in plain.items() if key not in added}
        try:
            return part(**arguments), plain
        except SageError as error:
            raise self.rephrase(error, place) from error
        except ValueError as error:
            raise ConfigError(f"{self.spot(place)}: {error}") from error

    def rephrase(self, error: SageError, place: Place) -> SageError:
        """The same kind of refusal, with file and place in front. A message that begins with a field name keeps it."""
        first = re.match(r"[a-z_]+(\.[a-z_0-9]+)*(?= = )", str(error))
        inner = (*place, *first.group().split(".")) if first else place
        text = str(error)[first.end() :] if first else f": {error}"
        return type(error)(f"{self.spot(inner)}{text}" if self.spot(inner) else str(error))

    def unknown(self, key: Any, fields: Mapping[str, Any]) -> str:
        near = _nearest(key, fields)
        if near is None:
            places = {p[-1]: dotted(p) for p in _places(self.root)}
            near = places.get(str(key)) or places.get(_nearest(key, places) or "")
        return f"unknown key{_did_you_mean(near, '.')} Keys here: {', '.join(fields) or 'none'}"

    def encode(self, value: Any) -> Any:
        """The plain tree of a default value; _ABSENT for what has no name (then the default itself keeps it)."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (tuple, list)):
            items = [self.encode(item) for item in value]
            return _ABSENT if any(item is _ABSENT for item in items) else items
        if isinstance(value, dict):
            return dict(value)
        if isinstance(value, Deferred):
            return value.tree
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return _ABSENT
        plain = {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        if any(item is _ABSENT for item in plain.values()):
            return _ABSENT
        name = self.names.get(type(value))
        return plain if name is None else {"name": name, **plain}


_SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def _fits(schema: Any, tree: Any) -> bool:
    """Whether the kind of `tree`, not yet its content, suits `schema`. A bool is no number; an int does for a float."""
    origin = get_origin(schema)
    if origin is Literal:
        return any(tree == option and type(tree) is type(option) for option in get_args(schema))
    if origin is tuple:
        return isinstance(tree, (list, tuple))
    if origin is dict or dataclasses.is_dataclass(schema):
        return isinstance(tree, dict)
    if schema is float:
        return isinstance(tree, (int, float)) and not isinstance(tree, bool)
    if schema is int:
        return isinstance(tree, int) and not isinstance(tree, bool)
    return isinstance(schema, type) and isinstance(tree, schema)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _phrase(schema: Any) -> str:
    """An annotation in words, for "expected ..." and for missing keys."""
    if schema in (None, types.NoneType):
        return "null"
    if get_origin(schema) in (Union, types.UnionType):
        return " or ".join(_phrase(member) for member in get_args(schema))
    if get_origin(schema) is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(schema))
    if get_origin(schema) is tuple:
        return "a list"
    if get_origin(schema) is dict:
        return "a mapping"
    return _SCALARS.get(schema, str(getattr(schema, "__name__", schema)))


def _describe(tree: Any) -> str:
    words = {bool: "the truth value ", int: "the whole number ", float: "the number ", str: "the text "}
    if type(tree) in words:
        return words[type(tree)] + short(tree)
    return "null" if tree is None else "a mapping" if isinstance(tree, dict) else "a list"


def _hint(expected: str, tree: Any) -> str:
    """The next step after a value of the wrong kind."""
    if expected == "true or false" and str(tree).lower() in ("yes", "no", "on", "off", "0", "1"):
        return f"; write {'true' if str(tree).lower() in ('yes', 'on', '1') else 'false'}"
    if expected == "text" and isinstance(tree, (bool, int, float)):
        return f"; put it in quotes: '{tree}'"
    if "number" in expected and isinstance(tree, str) and not isinstance(parse_scalar(tree), str):
        return f"; write it without quotes: {tree}"
    if expected == "a whole number" and isinstance(tree, float) and tree.is_integer():
        return f"; write {int(tree)}"
    return ""


def short(value: Any, limit: int = 80) -> str:
    text = repr(dict(value)) if isinstance(value, Tree) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _nearest(word: Any, options: Iterable[Any]) -> str | None:
    found = difflib.get_close_matches(str(word), [str(option) for option in options], n=1, cutoff=0.6)
    return found[0] if found else None


def _did_you_mean(near: str | None, otherwise: str) -> str:
    return f"; did you mean {near!r}?" if near else otherwise


def dotted(place: Sequence[str]) -> str:
    """("rollout", "group_size") -> "rollout.group_size", the form that `--a.b value` takes."""
    return ".".join(place)


def _parameters(part: Any, unions: Mapping[str, Registry]) -> dict[str, tuple[Any, Any]]:
    """name -> (annotation, default or Parameter.empty) of a dataclass or factory function."""
    hints = typing.get_type_hints(part, localns={name: types.new_class(name) for name in unions})
    if dataclasses.is_dataclass(part):
        return {f.name: (hints[f.name], _default(f)) for f in dataclasses.fields(part) if f.init}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: p for name, p in inspect.signature(part).parameters.items() if p.kind not in variadic}
    return {name: (hints.get(name, Any), p.default) for name, p in parameters.items()}


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is not dataclasses.MISSING:
        return f.default
    return inspect.Parameter.empty if f.default_factory is dataclasses.MISSING else f.default_factory()


def _places(schema: Any, place: Place = ()) -> Iterator[Place]:
    """Every place of a nested dataclass schema, for suggestions ("did you mean rollout.group_size?")."""
    if not dataclasses.is_dataclass(schema) or len(place) > 4:
        return
    hints = typing.get_type_hints(schema)
    for f in dataclasses.fields(schema):
        yield (*place, f.name)
        yield from _places(hints[f.name], (*place, f.name))


# ------------------------------------------------------------------------------------------------------------------
# dataclasses -> tree


def dump(config: Any) -> Any:
    """The plain tree (dict, list, numbers, text) that `decode` turns back into an equal configuration."""
    if isinstance(config, Deferred):
        return dump(config.tree)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: dump(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}
    if isinstance(config, Mapping):
        return {key: dump(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [dump(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def to_yaml(config: Any) -> str:
    """The resolved configuration as YAML text that `load` reads back."""
    text: str = yaml.safe_dump(dump(config), sort_keys=False, allow_unicode=True, width=120)
    return text
