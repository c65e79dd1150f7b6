"""Registries: map a name in a recipe to the class or function that builds the part. Each part is registered where it is defined.

    @GUIDES.register                                   # name: the class attribute `name`, else the name in snake_case
    @dataclass(frozen=True)
    class Rarity(Banded): ...

    GUIDES["rarity"], GUIDES.help()["rarity"], GUIDES.label("rarity")

Parts from outside join by an entry point (group `sage_rlvr.guides`, ...) or by a plugin (`plugins.py`); both are looked
for when a name is asked for that is not here, and when all are listed. Parts of `contrib` join by entry points too.

Parts of the core are found by `gather`: a new file in a folder that gathers is known without a line elsewhere.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sage_rlvr import plugins
from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.extras import advice

if TYPE_CHECKING:
    from importlib import metadata

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])

HOMES = {
    "advantage": "sage_rlvr.core.advantages:ADVANTAGES",
    "extra": "sage_rlvr.core.extras:EXTRAS",
    "generator": "sage_rlvr.models.vllm:GENERATORS",
    "guide": "sage_rlvr.core.guides:GUIDES",
    "method": "sage_rlvr.methods:METHODS",
    "reduction": "sage_rlvr.core.reductions:REDUCTIONS",
    "rollout_plan": "sage_rlvr.core.rollout_plans:ROLLOUT_PLANS",
    "schedule": "sage_rlvr.core.schedules:SCHEDULES",
    "surrogate": "sage_rlvr.core.surrogates:SURROGATES",
    "task": "sage_rlvr.tasks:TASKS",
    "teacher": "sage_rlvr.tasks.teachers:TEACHERS",
    "verifier": "sage_rlvr.verifiers:VERIFIERS",
}  # kind: module and name of its registry, imported when it is first asked for


CONTRIB = Path(__file__).with_name("contrib")
"""Has entry_points.txt, as the metadata of an installed package has. It is no part of this package's own metadata: those are of
the last install, and a checkout that has moved on, or is on the path without an install, would list other parts than it has."""

CALLED = ("signals", "rewards", "seen", "batch", "log_ratio", "log_ratios", "key")  # what parts are called with


class UnknownPart(ConfigError, KeyError):
    """A name without a registry entry, entry point or plugin."""

    __str__ = Exception.__str__  # KeyError would put quotes around it


class Registry(MutableMapping[str, P], Generic[P]):
    """The parts of one kind by name; a mapping in the order in which they were registered, those of entry points last.

    kind: the noun of messages ("guide"), a key of `HOMES`. remember: whether a function that is registered makes parts,
    which then know their call (`call_of`), so that a configuration can be written down again. check: refuses a class whose
    declaration alone shows that it cannot work; given what messages call it ("guide 'late'"), and the class. form: what such a
    class declares, in words.
    """

    def __init__(
        self,
        kind: str,
        parts: Mapping[str, P] | None = None,
        *,
        remember: bool = True,
        check: Callable[[str, Any], object] | None = None,
        form: str = "",
    ) -> None:
        self.kind, self.remember, self.check, self.form = kind, remember, check, form
        self._parts: dict[str, P] = dict(parts or {})
        self._labels: dict[str, str] = {}
        self._about: dict[str, tuple[str, str]] = {}

    # ---- to register

    @overload
    def register(
        self,
        part: F,
        *,
        name: str | None = None,
        label: str | None = None,
        about: str = "",
        arxiv: str = "",
        added: tuple[str, ...] = (),
    ) -> F: ...

    @overload
    def register(
        self,
        part: None = None,
        *,
        name: str | None = None,
        label: str | None = None,
        about: str = "",
        arxiv: str = "",
        added: tuple[str, ...] = (),
    ) -> Callable[[F], F]: ...

    def register(
        self,
        part: Any = None,
        *,
        name: str | None = None,
        label: str | None = None,
        about: str = "",
        arxiv: str = "",
        added: tuple[str, ...] = (),
    ) -> Any:
        """Add a part: a frozen dataclass, or a function that makes one; its annotated signature is what a recipe may set.

        As a decorator, with or without arguments. name: in recipes. label: in tables and figures, the name where None.
        about, arxiv: what it is in a few words, and the number of its paper, for lists. added: arguments of a function that runs
        were recorded without; at their default they are not recorded, as of a dataclass in `schema.dump`.
        ConfigError for a class that is no frozen dataclass or that the registry's check refuses, and for a name that another part
        has.
        """
        if part is None:
            return functools.partial(self.register, name=name, label=label, about=about, arxiv=arxiv, added=added)
        name = name or getattr(part, "name", None) or in_snake_case(part.__name__)
        if self.remember and inspect.isclass(part) and not _is_frozen(part):
            raise ConfigError(
                f"{self.kind} {name!r}: decorate the class {part.__name__} with @dataclass(frozen=True), so that its "
                "settings can be recorded and compared"
            )
        if self.remember and inspect.isfunction(part):
            self._refuse_rule(name, part)
        if self.check is not None and inspect.isclass(part):
            self.check(f"{self.kind.replace('_', ' ')} {name!r}", part)
        if inspect.isclass(part) and not part.__module__.startswith("sage_rlvr."):  # of its own parts the tests know
            _refuse_arguments(f"{self.kind.replace('_', ' ')} {name!r}", part)
        if name in contributed(self.kind) and not part.__module__.startswith("sage_rlvr."):
            self._load(self._entry_points()[name])  # so that it is refused below, as beside a part of the core
        there = self._parts.get(name)
        if there is not None and _written(there) != _written(part):
            raise ConfigError(
                f"{self.kind} {name!r} is already registered as {'.'.join(_written(there))}; use another name="
            )
        plugins.registered(self.kind, part)
        if self.remember and not inspect.isclass(part):
            part = _remembering(name, part, added)
        elif self.remember:
            part._registered = name
        self._parts[name] = part
        if label is not None:
            self._labels[name] = label
        self._about[name] = about, arxiv
        return part

    def _refuse_rule(self, name: str, function: Any) -> None:
        """ConfigError for a function that is itself what a part does when it is called: `_remembering` calls it for options."""
        given = [key for key in inspect.signature(function).parameters if key in CALLED]
        if not given:
            return
        kind = self.kind.replace("_", " ")
        raise ConfigError(
            f"{kind} {name!r}: a registered function makes parts of this kind from options of a recipe, and {', '.join(given)} "
            f"{'is no option' if len(given) == 1 else 'are no options'}; declare a class for the rule: @dataclass(frozen=True), "
            f"{self.form or 'equation and __call__(self, ' + ', '.join(inspect.signature(function).parameters) + ')'}"
        )

    def __setitem__(self, name: str, part: Any) -> None:
        """Register, whatever stands there; with `del` for tests."""
        self._parts.pop(name, None)
        self.register(part, name=name)

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    # ---- to look up

    def __getitem__(self, name: str) -> P:
        if name not in self._parts:
            plugins.use_inherited()
        if name not in self._parts and name in (declared := self._entry_points()):
            self._load(declared[name])
        if name not in self._parts:
            raise UnknownPart(self.unknown(name))
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        plugins.use_inherited()
        declared = self._entry_points()  # last, in their own order: not in that in which they were asked for
        return iter([*(name for name in self._parts if name not in declared), *declared])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._parts or name in list(self))

    def unknown(self, name: object) -> str:
        """The error text for an unknown name: the nearest name and all names."""
        return f"unknown {self.kind.replace('_', ' ')} {name!r}{choose_from(name, self)}{self.own}"

    @property
    def own(self) -> str:
        """What messages about an unknown name add where no plugin is loaded."""
        return "" if plugins.loaded() else ". A part of your own needs --plugin FILE.py"

    def items(self) -> ItemsView[str, P]:
        """The parts by name; one from outside that does not load is left out with a warning."""
        parts = {}
        for name in self:
            try:
                parts[name] = self[name]
            except ConfigError as error:
                warnings.warn(f"part not loaded: {' '.join(str(error).split())}", stacklevel=2)
        return parts.items()

    def values(self) -> ValuesView[P]:
        """The parts, those that load."""
        return dict(self.items()).values()

    def name_of(self, part: object) -> str | None:
        """The name of an entry; None for what is not registered."""
        return next((name for name, entry in self._parts.items() if entry is part), None)

    def help(self) -> dict[str, str]:
        """name -> the first sentence of the part's docstring."""
        return {name: first_sentence(part) for name, part in self.items()}

    def label(self, name: str) -> str:
        """The name of the part in tables and figures."""
        self._ask(name)
        return self._labels.get(name, name)

    def about(self, name: str) -> tuple[str, str]:
        """A short description of the part, by default the first sentence of its docstring, and the arXiv number of its paper or
        ""."""
        self._ask(name)
        words, arxiv = self._about.get(name, ("", ""))
        return words or first_sentence(self[name]), arxiv

    def _ask(self, name: str) -> None:
        """Import the file of contrib that has the part, since what is said of a part is registered with it."""
        if name not in self._parts and name in contributed(self.kind):
            self[name]

    def _entry_points(self) -> dict[str, list[metadata.EntryPoint]]:
        """name -> the entry points that declare it; a name with several is refused when it is asked for. A name of `contrib` is
        its own, whatever packages are installed."""
        from importlib import metadata  # a fifth of the time that `--help` may take

        group, own = f"sage_rlvr.{self.kind}s", contributed(self.kind)
        entries = {name: [metadata.EntryPoint(name, home, group)] for name, home in own.items()}
        for entry in metadata.entry_points(group=group):
            if entry.name not in own:
                entries.setdefault(entry.name, []).append(entry)
        return entries

    def _load(self, entries: list[metadata.EntryPoint]) -> None:
        entry = entries[0]
        if len(entries) > 1:
            listed = " and ".join(sorted(map(plugins.described, entries)))
            raise ConfigError(
                f"{self.kind} {entry.name!r} is declared by several packages: {listed}; the choice would depend on their "
                "order. Uninstall all but one of them"
            )
        part = plugins.load_entry_point(self.kind, entry)
        if entry.name not in self._parts:  # else the module has registered it itself
            self.register(part, name=entry.name)


@functools.cache
def contributed(kind: str) -> dict[str, str]:
    """name -> "module:object" of what `contrib` adds of a kind, or of the command line's "command". Read as text: `--help` must not
    wait for importlib.metadata, which takes a fifth of its time."""
    text = CONTRIB.joinpath("entry_points.txt").read_text(encoding="utf-8")
    section = text.partition(f"[sage_rlvr.{kind}s]\n")[2].partition("\n[")[0]
    lines = (line.partition("=") for line in section.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): home.strip() for name, _, home in lines}


def gather(package: str, registry: Registry[P]) -> dict[str, P]:
    """Import every file of a package, and give what they register: its name in Python -> the part.

    The order is the alphabet's, a folder standing where its name does; what a file imports comes before it. Pages, help and
    refusals list parts in this order.
    """
    parts: dict[str, P] = {}
    for file in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
        module = importlib.import_module(file.name)
        parts |= {
            name: part
            for name, part in vars(module).items()
            if getattr(part, "__module__", None) == file.name and registry.name_of(part) is not None
        }
    return parts


def declared(folder: Path, registry: str) -> list[str]:
    """Names in Python of what the files of a folder register (`@GUIDES.register`), read from their text: no torch is loaded."""
    pattern = re.compile(rf"^@{registry}\.register\b.*\n(?:@.*\n)*(?:class|def) (\w+)", re.MULTILINE)
    return [name for file in sorted(folder.rglob("*.py")) for name in pattern.findall(file.read_text(encoding="utf-8"))]


def help_of(kind: str) -> dict[str, str]:
    """`registry_of(kind).help()`. Where torch is not installed: of the parts of this package alone, read from their text."""
    try:
        return registry_of(kind).help()
    except ModuleNotFoundError as error:
        if advice(error) is None:
            raise
    registry = HOMES[kind].partition(":")[2]
    return dict(pair for file in sorted(Path(__file__).parent.rglob("*.py")) for pair in _written_in(file, registry))


def _written_in(file: Path, registry: str) -> Iterator[tuple[str, str]]:
    """(name, first sentence of the docstring) of each part that a file registers by a decorator."""
    text = file.read_text(encoding="utf-8")
    if f"@{registry}.register" not in text:
        return
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    for node in nodes:
        for mark in node.decorator_list:
            call = mark if isinstance(mark, ast.Call) else ast.Call(mark, [], [])
            if ast.unparse(call.func) == f"{registry}.register":
                named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                name = named.get("name") or _own_name(node) or in_snake_case(node.name)
                yield name, _first_sentence(ast.get_docstring(node) or "")


def _own_name(node: ast.AST) -> str | None:
    """The class attribute `name`, where the class sets it to a text: name = "a", or name, local = "a", False."""
    for line in node.body if isinstance(node, ast.ClassDef) else ():
        if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None:
            continue
        target: ast.expr = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = line.value.elts if isinstance(line.value, ast.Tuple) else [line.value]
        for name, value in zip(names, values, strict=False):
            if ast.unparse(name) == "name":
                return str(ast.literal_eval(value))
    return None


def registry_of(kind: str) -> Registry[Any]:
    """The registry of a kind of part, a key of `HOMES`."""
    if kind not in HOMES:
        raise ConfigError(f"unknown kind of part {kind!r}; choose from: {', '.join(HOMES)}")
    module, _, name = HOMES[kind].partition(":")
    registry: Registry[Any] = getattr(importlib.import_module(module), name)
    return registry


def register(kind: str, part: Any = None, *, name: str | None = None, label: str | None = None) -> Any:
    """`registry_of(kind).register(part)`: add a part of your own, for example register("guide", MyGuide)."""
    return registry_of(kind).register(part, name=name, label=label)


def call_of(part: object) -> tuple[str, dict[str, Any]] | None:
    """(name, arguments with their defaults) of the registered function that made the part; None where none did."""
    call: tuple[str, dict[str, Any]] | None = getattr(part, "_call", None)
    return call


def first_sentence(part: object) -> str:
    """The first paragraph of a docstring in one line, up to its first full stop before a capital."""
    return _first_sentence(inspect.getdoc(part) or "")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[\w)\]])(?<!\bDr)\. (?=[A-Z])", paragraph)[0].removesuffix(".")


def _remembering(name: str, function: Callable[..., Any], added: tuple[str, ...]) -> Callable[..., Any]:
    """The function, whose results know the name and the arguments that made them, in an attribute that no copy inherits."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        part = function(*args, **kwargs)
        if part is None:
            raise ConfigError(f"{name}: the registered function {function.__qualname__} returned None; it must return the part")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        unsaid = {key for key in added if bound.arguments[key] == signature.parameters[key].default}
        given = {key: value for key, value in bound.arguments.items() if key not in unsaid}
        object.__setattr__(part, "_call", (name, given))
        object.__setattr__(part, "_made_in", function.__module__)
        return part

    return make


def _refuse_arguments(who: str, part: type) -> None:
    """ConfigError for a method that does not take the arguments of the one that it overrides: it will be called with them."""
    for name, own in vars(part).items():
        base = next((vars(kind)[name] for kind in part.__mro__[1:] if name in vars(kind)), None)
        if name == "__init__" or not (inspect.isfunction(own) and inspect.isfunction(base)):
            continue
        given = inspect.signature(base).parameters.values()
        # Where the base is open, the part's other members decide what more it is called with: a state, say.
        is_open = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in given)
        called_with = inspect.signature(own).bind_partial if is_open else inspect.signature(own).bind
        try:
            called_with(
                *(one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)),
                **{one.name: one for one in given if one.kind is one.KEYWORD_ONLY},
            )
        except TypeError as error:
            location = f"{inspect.getsourcefile(own)}:{own.__code__.co_firstlineno}"
            called = ", ".join(str(one.replace(annotation=one.empty)) for one in given)
            raise ConfigError(f"{who}: {location}: {own.__qualname__} is called with ({called}): {error}") from error


def in_snake_case(name: str) -> str:
    """GroupNormalized: group_normalized."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _written(part: Any) -> tuple[str, str]:
    return str(part.__module__), str(part.__qualname__)


def _is_frozen(part: type) -> bool:
    """Whether the class itself is decorated: a base that is would leave its own fields out."""
    return "__dataclass_params__" in vars(part) and bool(part.__dataclass_params__.frozen)  # type: ignore[attr-defined]
