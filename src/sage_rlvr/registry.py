"""Registries: map a name in a recipe to the class or function that builds the part. Each part is registered where it is defined.

    @GUIDES.register                                   # name: the class attribute `name`, else the name in snake_case
    @dataclass(frozen=True)
    class Rarity(Banded): ...

    GUIDES["rarity"], GUIDES.help()["rarity"], GUIDES.label("rarity")

Parts of this package have a line in names.py, by which those of `contrib` are imported at their first use. Parts from
outside come from an entry point (group `sage_rlvr.guides`, ...) or from a plugin (`plugins.py`); both are searched if a name
is unknown, and for a list of all.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sage_rlvr.errors import ConfigError, choose_from, short
from sage_rlvr.extras import advice
from sage_rlvr.names import PARTS, REGISTRIES

if TYPE_CHECKING:
    from importlib import metadata

P = TypeVar("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CALLED = ("signals", "rewards", "seen", "batch", "log_ratio", "log_ratios", "key")  # what parts are called with


class UnknownPart(ConfigError, KeyError):
    """A name without a registry entry, entry point or plugin."""

    __str__ = Exception.__str__  # KeyError would put quotes around it


class Registry(MutableMapping[str, P], Generic[P]):
    """The parts of one kind by name; a mapping in the order of names.py, then those of plugins, then those of entry points.

    kind: the noun of messages ("guide"), a key of `REGISTRIES`.
    remember: True if a registered function makes parts, which then store their call (`call_of`), so that a configuration can be
        written down again.
    check: raises for a class whose declaration alone shows that it cannot work; gets its name in messages ("guide 'late'") and the
        class.
    form: the declarations of such a class, in words.
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
    ) -> Callable[[F], F]: ...

    def register(
        self,
        part: Any = None,
        *,
        name: str | None = None,
        label: str | None = None,
        about: str = "",
        arxiv: str = "",
    ) -> Any:
        """Add a part: a frozen dataclass, or a function that makes one; its annotated signature is what a recipe may set.

        As a decorator, with or without arguments.

        Args:
            part: the class or function.
            name: in recipes.
            label: in tables and figures; None is the name.
            about: a short description, for lists.
            arxiv: the number of its paper.

        Raises:
            ConfigError: a class that is not a frozen dataclass or that fails the registry's check, or a name that another part has.
        """
        if part is None:
            return functools.partial(self.register, name=name, label=label, about=about, arxiv=arxiv)
        self._refuse_value(name, part)
        own = inspect.getattr_static(part, "name", None)
        name = name or (None if isinstance(own, property) else own) or in_snake_case(part.__name__)
        if not isinstance(name, str):
            raise ConfigError(f"{self.kind} {short(part)}: name = {short(name)}: must be a text")
        if self.remember and inspect.isclass(part) and not _is_frozen(part):
            raise ConfigError(
                f"{self.kind} {name!r}: decorate the class {part.__name__} with @dataclass(frozen=True), so that its "
                "settings can be recorded and compared"
            )
        if self.remember and inspect.isfunction(part):
            self._refuse_rule(name, part)
        if self.check is not None and inspect.isclass(part):
            self.check(f"{self.kind.replace('_', ' ')} {name!r}", part)
        is_own = part.__module__.startswith("sage_rlvr.")
        if inspect.isclass(part) and not is_own:  # of its own parts the tests know
            _refuse_arguments(f"{self.kind.replace('_', ' ')} {name!r}", part)
        if not is_own:
            self._import_own(name)  # a name that a part of this package has is refused below
        there = self._parts.get(name)
        if there is not None and _place(there) != _place(part):
            raise ConfigError(
                f"{self.kind} {name!r} is already registered as {'.'.join(_place(there))}; use another name="
            )
        if not is_own:
            _plugins().registered(self.kind, part)
        if self.remember and not inspect.isclass(part):
            part = _remembering(name, part)
        elif self.remember:
            part._registered = name
        self._parts[name] = part
        if label is not None:
            self._labels[name] = label
        self._about[name] = about, arxiv
        return part

    def _refuse_value(self, name: str | None, part: Any) -> None:
        """Raise ConfigError for a value that is neither class nor function, such as a number, a module or a functools.partial.

        A registry that remembers no calls may also hold values of a class of its own.
        """
        if hasattr(part, "__module__") and (not self.remember or (callable(part) and hasattr(part, "__qualname__"))):
            return
        called = self.kind.replace("_", " ") + (f" {name!r}" if name else "")
        raise ConfigError(
            f"{called}: {short(part)} is no class and no function; register a class of this kind, or a function that makes a part"
        )

    def _refuse_rule(self, name: str, function: Any) -> None:
        """Raise ConfigError for a function that is itself the part's computation: `_remembering` calls it for options."""
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
        """Register, replacing any part of that name; with `del` for tests."""
        self._parts.pop(name, None)
        self.register(part, name=name)

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    # ---- to look up

    def __getitem__(self, name: str) -> P:
        if name not in self._parts:
            _plugins().use_inherited()
            self._import_own(name)
        if name not in self._parts and name in (declared := self._entry_points()):
            self._load(declared[name])
        if name not in self._parts:
            raise UnknownPart(self.unknown(name))
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        _plugins().use_inherited()
        return iter(dict.fromkeys([*self._own, *self._parts, *self._entry_points()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._parts or name in list(self))

    def unknown(self, name: object) -> str:
        """Return the error text for an unknown name: the nearest name and all names."""
        return f"unknown {self.kind.replace('_', ' ')} {name!r}{choose_from(name, self)}{self.own}"

    @property
    def own(self) -> str:
        """Return the addition to messages about an unknown name if no plugin is loaded."""
        return own_hint()

    def items(self) -> ItemsView[str, P]:
        """Return the parts by name; one from outside that does not load is left out with a warning."""
        parts = {}
        for name in self:
            try:
                parts[name] = self[name]
            except ConfigError as error:
                warnings.warn(f"part not loaded: {' '.join(str(error).split())}", stacklevel=2)
        return parts.items()

    def values(self) -> ValuesView[P]:
        """Return the parts that load."""
        return dict(self.items()).values()

    def name_of(self, part: object) -> str | None:
        """Return the name of an entry; None if it is not registered."""
        return next((name for name, entry in self._parts.items() if entry is part), None)

    def help(self) -> dict[str, str]:
        """Return name -> the first sentence of the part's docstring."""
        return {name: first_sentence(part) for name, part in self.items()}

    def label(self, name: str) -> str:
        """Return the name of the part in tables and figures."""
        self._import_own(name)  # a label is registered with its part
        return self._labels.get(name, name)

    def about(self, name: str) -> tuple[str, str]:
        """Return a short description of the part, by default its docstring's first sentence, and the arXiv number of its paper or
        "".
        """
        self._import_own(name)
        words, arxiv = self._about.get(name, ("", ""))
        return words or first_sentence(self[name]), arxiv

    @property
    def _own(self) -> Mapping[str, str]:
        """Return name -> home of the parts of this package."""
        return PARTS.get(self.kind, {})

    def _import_own(self, name: str) -> None:
        """Import the module of a part of this package, which registers it."""
        if name in self._own and name not in self._parts:
            part = _imported(self._own[name])
            if name not in self._parts:  # its module does not, as those of tasks
                self.register(part, name=name)

    def _entry_points(self) -> dict[str, list[metadata.EntryPoint]]:
        """Return name -> the entry points of other packages that declare it; a name with several raises an error at its use."""
        from importlib import metadata  # a fifth of the time that `--help` may take

        entries: dict[str, list[metadata.EntryPoint]] = {}
        for entry in metadata.entry_points(group=f"sage_rlvr.{self.kind}s"):
            if entry.name not in self._own:
                entries.setdefault(entry.name, []).append(entry)
        return entries

    def _load(self, entries: list[metadata.EntryPoint]) -> None:
        entry, plugins = entries[0], _plugins()
        if len(entries) > 1:
            listed = " and ".join(sorted(map(plugins.described, entries)))
            raise ConfigError(
                f"{self.kind} {entry.name!r} is declared by several packages: {listed}; the choice would depend on their "
                "order. Uninstall all but one of them"
            )
        part = plugins.load_entry_point(self.kind, entry)
        if entry.name in self._parts:  # the module has registered it itself
            return
        try:
            self._refuse_value(entry.name, part)  # here too: None would make `register` a decorator
            self.register(part, name=entry.name)
        except ConfigError as error:
            raise ConfigError(f"{error} (of the package {plugins.described(entry)})") from error


def own_hint() -> str:
    """The addition to messages about an unknown name, if no plugin is loaded."""
    return "" if _plugins().loaded() else ". A part of your own needs --plugin FILE.py"


def _plugins() -> ModuleType:
    """plugins.py, imported when a name is not known here, when all are listed, and for parts from outside."""
    from sage_rlvr import plugins  # late: most imports of a method need no code from outside

    return plugins


def _asked(ask: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return the answer of the parts themselves; if torch or another module of an extra is missing, the other one."""
    try:
        return ask()
    except ModuleNotFoundError as error:
        if advice(error) is None:
            raise
    return otherwise()


def loads(kind: str) -> bool:
    """Return True if the registry of a kind can be imported: most need torch."""
    return _asked(lambda: registry_of(kind) is not None, lambda: False)


def names_of(kind: str) -> list[str]:
    """Return the names of the parts of a kind. A registry that was not imported, as without torch, has no parts of plugins."""
    from importlib import metadata  # slow to load

    _plugins().use_inherited()
    if REGISTRIES[kind].partition(":")[0] in sys.modules:
        return list(registry_of(kind))
    return list(dict.fromkeys([*PARTS[kind], *(entry.name for entry in metadata.entry_points(group=f"sage_rlvr.{kind}s"))]))


def help_of(kind: str) -> dict[str, str]:
    """Return `registry_of(kind).help()`; without torch, names with "" as sentence if one of the parts needs it."""
    return _asked(lambda: registry_of(kind).help(), lambda: dict.fromkeys(names_of(kind), ""))


def about_of(kind: str) -> dict[str, tuple[str, str]]:
    """Return name -> `Registry.about` of each part of a kind; without torch, as `help_of`."""

    def loaded() -> dict[str, tuple[str, str]]:
        registry = registry_of(kind)
        return {name: registry.about(name) for name in registry}

    return _asked(loaded, lambda: dict.fromkeys(names_of(kind), ("", "")))


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind of part, a key of `REGISTRIES`."""
    if kind not in REGISTRIES:
        raise ConfigError(f"unknown kind of part {kind!r}; choose from: {', '.join(REGISTRIES)}")
    registry: Registry[Any] = _imported(REGISTRIES[kind])
    return registry


def _imported(home: str) -> Any:
    """Return the attribute of a home, "module:attribute"."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def register(kind: str, part: Any = None, *, name: str | None = None, label: str | None = None) -> Any:
    """Add your part by `registry_of(kind).register(part)`, for example register("guide", MyGuide)."""
    return registry_of(kind).register(part, name=name, label=label)


def call_of(part: object) -> tuple[str, dict[str, Any]] | None:
    """Return (name, arguments with their defaults) of the registered function that made the part; None if none did."""
    call: tuple[str, dict[str, Any]] | None = getattr(part, "_call", None)
    return call


def first_sentence(part: object) -> str:
    """Return the first paragraph of a docstring in one line, up to its first full stop before a capital."""
    paragraph = " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[\w)\]])(?<!\bDr)\. (?=[A-Z])", paragraph)[0].removesuffix(".")


def _remembering(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose results store the name and the arguments that made them, in an attribute that no copy inherits."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        part = function(*args, **kwargs)
        if part is None:
            raise ConfigError(f"{name}: the registered function {function.__qualname__} returned None; it must return the part")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        object.__setattr__(part, "_call", (name, dict(bound.arguments)))
        object.__setattr__(part, "_made_in", function.__module__)
        return part

    return make


def _refuse_arguments(who: str, part: type) -> None:
    """Raise ConfigError for a method that does not accept the arguments of the one that it overrides."""
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
    """Return a name in snake case: GroupNormalized becomes group_normalized."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _place(part: Any) -> tuple[str, str]:
    return str(part.__module__), str(part.__qualname__)


def _is_frozen(part: type) -> bool:
    """Return True if the class itself is decorated: a base that is would leave its own fields out."""
    return "__dataclass_params__" in vars(part) and bool(part.__dataclass_params__.frozen)  # type: ignore[attr-defined]
