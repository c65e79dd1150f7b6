"""What pages of the API reference show: each name once, where it is imported from (an extension of griffe, named in mkdocs.yml).

A package with `__all__` shows what stands there, any other module what it defines. A name that two of them have is shown by the
higher one, on the same floor by the one that defines it; `filters: public` of mkdocstrings reads the marks made here.
"""

from __future__ import annotations

import griffe

Found = griffe.Object | griffe.Alias


class Once(griffe.Extension):
    """Marks every object of the package as public or not."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        loader.resolve_aliases(implicit=True, external=False)
        shown: set[str] = set()
        floor = inside(pkg)
        while floor:
            names = {module.path: names_of(module) for module in floor}
            for own in (True, False):
                for module in floor:
                    for name in names[module.path]:
                        mark(module, name, own, shown)
            floor = [one for module in floor for one in inside(module)]
        hide_empty(pkg)


def inside(module: griffe.Module) -> list[griffe.Module]:
    return [member for member in module.members.values() if not member.is_alias and member.is_module]


def definition(found: Found | None) -> griffe.Object | None:
    """None for what comes from another package."""
    try:
        return found.final_target if found is not None and found.is_alias else found
    except griffe.AliasResolutionError:
        return None


def names_of(module: griffe.Module) -> list[str]:
    """`__all__`; all that a module without it defines."""
    if module.exports is None:
        return [name for name, member in module.members.items() if not (member.is_alias or member.is_module or name[0] == "_")]
    return list(dict.fromkeys(map(str, module.exports)))


def mark(module: griffe.Module, name: str, own: bool, shown: set[str]) -> None:
    """Show the name, unless a higher module does. own: of this module, or of others that it exports."""
    found = definition(module.members.get(name))
    if found is not None and found.path.startswith(f"{module.path}.") is own:
        module.members[name].public = found.path not in shown
        shown.add(found.path)


def hide_empty(module: griffe.Module) -> bool:
    """Hide the modules all of whose names are shown higher up. Whether this is one."""
    empty = [hide_empty(one) for one in inside(module)]
    own = [one for one in module.members.values() if not one.is_alias and (one.is_class or one.is_function) and one.name[0] != "_"]
    if module.exports is None and (own or empty) and all(empty) and not any(one.is_public for one in own):
        module.public = False
    return module.public is False
