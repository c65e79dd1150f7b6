"""docs/results: map.md with its picture, and methods.md, a section per method from its docstring, parts and place on the map."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab.studies.objectives import Placed, picture, tables_of
from lab.studies.pages import remade
from lab.theory.utility import SHARES
from sage_rlvr.methods import METHODS
from sage_rlvr.recipes import load, trainable
from sage_rlvr.runs import writing
from sage_rlvr.text import escaped as in_markdown

HEAD = """# Every method

What each method computes with its defaults, as `sage-rlvr show` prints it. The two axes are those of [the map](../methods/map.md).

<!-- made by `python -m lab map --docs lab/pages` -->
"""


def write_docs(found: Sequence[Placed], docs: Path) -> list[Path]:
    """Make results/methods.md, the table of results/map.md and images/map.png in docs again."""
    where, made = remade(docs, "results/map.md", tables_of(found))
    one_by_one, image = where.with_name("methods.md"), docs / "images" / "map.png"
    with writing("page", docs, 1 << 20):
        where.write_text(made, encoding="utf-8")
        one_by_one.write_text(each(found, docs), encoding="utf-8")
        picture(found, image)
    return [where, one_by_one, image]


def each(found: Iterable[Placed], docs: Path) -> str:
    """The page results/methods.md. docs: where longer pages of some methods are, methods/NAME.md."""
    recipes = recipes_of()
    longer = {file.stem for file in (docs / "methods").glob("*.md")}
    return HEAD + "".join(section(one, recipes.get(one.name, ()), one.name in longer) for one in found)


def section(one: Placed, recipes: Sequence[str], longer: bool) -> str:
    """A method's heading, first sentence, docstring, objective and facts."""
    made = METHODS[one.name]
    first, _, rest = (inspect.getdoc(made) or "").partition("\n")
    facts = [("parts", one.parts), ("engines", one.engines)]
    if one.axes is not None:
        weights = ", ".join(f"{w:.2f} at {p:g}" for p, w in zip(SHARES, one.axes.weights, strict=True))
        pulls = f"concentration {one.axes.concentration:.2f}, returning {one.axes.returning:.2f}"
        facts += [("f'(P)", weights), ("among right answers", pulls)]
    lines = [f"- {name}: {in_markdown(value)}" for name, value in facts]
    lines += ["- recipes: " + ", ".join(recipes)] if recipes else []
    more = [f"[longer page](../methods/{one.name}.md)"] if longer else []
    lines.append("- " + ", ".join([*more, f"[signature](../reference/methods.md#sage_rlvr.methods.{made.__name__})"]))
    text = "\n\n".join(part for part in (rest.strip("\n"), one.method.describe()) if part)
    return f"\n## {one.name}\n\n{in_markdown(first)}\n\n```text\n{text}\n```\n\n" + "\n".join(lines) + "\n"


def recipes_of(family: str = "countdown") -> dict[str, list[str]]:
    """By a method's name: the shipped recipes of a family that train with it, each with the beta that it sets."""
    found: dict[str, list[str]] = {}
    for name in trainable(family):
        method = load(f"{family}/{name}").get("method")
        if isinstance(method, Mapping):
            beta = f" with beta {method['beta']}" if "beta" in method else ""
            found.setdefault(method["name"], []).append(f"`{name}`{beta}")
    return found
