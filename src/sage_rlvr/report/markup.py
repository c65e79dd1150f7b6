"""A page as Markdown from a Jinja template, and its HTML by markdown-it-py. No text of unknown origin becomes markup.

In a template every value is escaped for Markdown unless it is `Markup`; raw HTML of the Markdown stays text, but for our own
folds and line breaks in cells. Images become the figures of the page, so the HTML loads nothing.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

from sage_rlvr.results.tables import NONE, Table

CHIPS = frozenset({"better", "worse", "tied", "identical", "larger", "smaller", "cannot"})
"""First words of outcomes, which the page draws as a chip where they stand in bold."""
_OPEN = re.compile(r"<details><summary>(.*)</summary>")


def tabled(table: Table, chips: bool = False) -> Markup:
    """A table as GitHub Markdown with its notes; what stands beneath the first line of a cell is small. chips: the first line of
    a cell is an outcome."""
    header, *rows = (
        "| " + " | ".join(_cell(text, chips and bool(i) and bool(column)) for column, text in enumerate(line)) + " |"
        for i, line in enumerate((table.header, *table.rows))
    )
    lines = "\n".join([header, "| --- |" + " ---: |" * (len(table.header) - 1), *rows])
    return Markup("\n\n".join([lines, *map(escaped, table.notes)]))


def visible(text: str) -> str:
    """Text of unknown origin that cannot disturb what stands around it: control characters, marks that turn the direction of
    writing and halves of surrogate pairs are spelled out, as in "[U+202E]"; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _disturbs(c) else f"[U+{ord(c):04X}]" for c in text)


def escaped(value: Any) -> Markup:
    """One line of Markdown that shows the value as it is; `Markup` stays."""
    if isinstance(value, Markup):
        return value
    flat = " ".join(visible(str(value)).split())
    safe = re.sub(r"([\\`*\[\]#|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", flat).replace("&", "&amp;")
    safe = re.sub("<(?! )", "&lt;", safe)
    safe = re.sub("^>", "&gt;", safe)  # no quotation begins
    return Markup(re.sub(r"^(\d{0,9})([-+.)=])(?=[-=]|\s|$)", r"\1\\\2", safe))  # no list, rule or heading begins


def plain(value: Any) -> Markup:
    """A line inside a tag, where no Markdown is read."""
    return Markup(html.escape(" ".join(visible(str(value)).split()), quote=False))


def fenced(text: str) -> Markup:
    """A block of code that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}text\n{visible(text)}\n{fence}")


def template(name: str, **values: Any) -> str:
    """A template of this folder with its values; runs of empty lines become one."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(asset), finalize=escaped if name.endswith(".md.j2") else _shown,
    )  # fmt: skip
    environment.filters |= {"plain": plain, "fenced": fenced, "md": tabled}
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(name).render(values)).strip() + "\n"


def asset(name: str) -> str:
    """A file of this folder as text."""
    return resources.files("sage_rlvr.report").joinpath(name).read_text("utf-8")


def to_html(text: str, figures: Mapping[str, Markup]) -> tuple[Markup, list[tuple[str, str]]]:
    """The HTML of a page's Markdown, and (anchor, title) of its sections. figures: key, an image's file name without its
    ending -> what stands in its place."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    alternatives = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    reader.block.ruler.before("fence", "fold", _fold, alternatives)
    reader.inline.ruler.before("backticks", "cell_break", _break)
    reader.core.ruler.push("page", _page)
    for kind, rule in _RULES.items():
        reader.add_render_rule(kind, rule)
    env: dict[str, Any] = {"figures": figures, "sections": []}
    return Markup(reader.render(text, env)), env["sections"]


def _disturbs(character: str) -> bool:
    kind = unicodedata.category(character)
    if kind == "Cf":  # the joiners of emoji and of Indic scripts and soft hyphens do no harm
        return character not in "\u200c\u200d\u00ad"
    return kind in ("Cc", "Cs", "Zl", "Zp")


def _cell(text: str, chip: bool) -> str:
    first, *rest = map(escaped, text.split("\n"))
    return "<br>".join([f"**{first}**" if chip and first != NONE else first, *rest])


def _shown(value: Any) -> Any:
    return visible(value) if type(value) is str else value


# ------------------------------------------------------------------------------------------------------------------
# reading: folds, breaks in cells, anchors, chips and figures


def _fold(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    line = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    opened = _OPEN.fullmatch(line)
    if not opened and line != "</details>":
        return False
    if not silent:
        state.line = start + 1
        token = state.push("fold_open" if opened else "fold_close", "details", 1 if opened else -1)
        token.content = html.unescape(opened[1]) if opened else ""
    return True


def _break(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("<br>", state.pos):
        return False
    if not silent:
        state.push("cell_break", "br", 0)
    state.pos += 4
    return True


def _page(state: StateCore) -> None:
    """Anchors of headings, chips, and paragraphs of figures alone."""
    for before, token, after in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if token.type != "inline":
            continue
        children = token.children or []
        _chip(children)
        if before.type == "heading_open" and before.tag == "h2":
            title = "".join(child.content for child in children)
            anchor = re.sub(r"\W+", "-", title.lower()).strip("-")
            before.attrSet("id", anchor)
            state.env["sections"].append((anchor, title))
        images = [child for child in children if child.type == "image"]
        if before.type == "paragraph_open" and images and len(images) * 2 - 1 >= len(children):
            before.tag = after.tag = "div"
            before.attrSet("class", "figures")


def _chip(children: Sequence[Token]) -> None:
    for opened, inside, closed in zip(children, children[1:], children[2:], strict=False):
        word = (
            inside.content.partition(" ")[0] if opened.type == "strong_open" and closed.type == "strong_close" else ""
        )
        if word in CHIPS and len(inside.content) < 30:
            opened.tag = closed.tag = "span"
            opened.attrSet("class", f"word {word}" + (" alone" if inside.content != word else ""))


# ------------------------------------------------------------------------------------------------------------------
# writing; each rule draws one kind of token


def _fold_open(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return f"<details><summary>{html.escape(tokens[i].content)}</summary>\n"


def _fold_close(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return "</details>\n"


def _cell_break(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return "</div><div>"


def _table_open(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return '<div class="scroll" tabindex="0" role="region" aria-label="table, scrolls sideways"><table>\n'


def _table_close(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return "</table></div>\n"


def _cell_open(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return '<th scope="col"><div>' if tokens[i].tag == "th" else "<td><div>"


def _cell_close(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return f"</div></{tokens[i].tag}>"


def _fence(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    return f'<pre tabindex="0">{html.escape(tokens[i].content)}</pre>\n'


def _image(self: RendererHTML, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    key = PurePosixPath(str(tokens[i].attrs["src"])).stem
    return str(env["figures"].get(key, html.escape(tokens[i].content)))


_RULES = {
    "fold_open": _fold_open, "fold_close": _fold_close, "cell_break": _cell_break, "table_open": _table_open,
    "table_close": _table_close, "th_open": _cell_open, "td_open": _cell_open, "th_close": _cell_close,
    "td_close": _cell_close, "fence": _fence, "image": _image,
}  # fmt: skip
