"""Convert values to Markdown and a page's Markdown to HTML with markdown-it-py. Untrusted text never becomes markup.

Every value is escaped for Markdown unless it is `Markup`. Raw HTML stays text, except the folds and line breaks of this package.
Images become the figures of the page, so the HTML loads no files.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

from sage_rlvr.escaping import escaped as in_markdown
from sage_rlvr.escaping import visible
from sage_rlvr.results.tables import Table
from sage_rlvr.verdicts.row import End

CHIPS: dict[str, str] = {end: f"word {end.name.lower().replace('_', ' ')}" for end in End}
"""Outcome -> CSS classes; an outcome in bold is displayed as a chip."""
OPEN = ("Samples",)
"""Sections that are not folded."""
LABEL = "data-label"
_OPEN = re.compile(r"<details><summary>(.*)</summary>")


def escaped(value: Any) -> Markup:
    """One line of Markdown that displays the value literally; `Markup` is returned unchanged."""
    return value if isinstance(value, Markup) else Markup(in_markdown(value))


def tabled(table: Table, chips: bool = False) -> Markup:
    """A table with its notes; further lines of a cell are small."""
    return Markup(table.markdown(chips))


def plain(value: Any) -> Markup:
    """A line inside an HTML tag, without Markdown."""
    return Markup(html.escape(" ".join(visible(str(value)).split()), quote=False))


def fenced(text: str) -> Markup:
    """A code block whose content cannot close it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return Markup(f"{fence}text\n{visible(text)}\n{fence}")


def as_script(data: Any) -> str:
    """ASCII JSON for a script element, without "<", ">" and "&", so that no text closes the element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def to_html(text: str, figures: Mapping[str, Markup]) -> Markup:
    """The HTML of a page's Markdown, each section behind its heading. figures: key (an image's file name without suffix) -> the
    replacement of the image."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    alternatives = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    reader.block.ruler.before("fence", "fold", _fold, alternatives)
    reader.inline.ruler.before("backticks", "cell_break", _break)
    reader.core.ruler.push("page", _page)
    reader.core.ruler.push("sections", _sections)
    for kind, form in _FORMS.items():
        reader.add_render_rule(kind, _rule(form))
    reader.add_render_rule("image", _image)
    return Markup(reader.render(text, {"figures": figures}))


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
    """Add anchors to headings, classes to chips and to paragraphs with only figures, and labels to cells."""
    _label(state.tokens)
    for before, token, after in _threes(state.tokens):
        if token.type != "inline":
            continue
        children = token.children or []
        for opened, inside, closed in _threes(children):
            if (opened.type, closed.type) == ("strong_open", "strong_close") and inside.content in CHIPS:
                opened.tag = closed.tag = "span"
                opened.attrSet("class", CHIPS[inside.content])
        if before.type == "heading_open" and before.tag == "h2":
            before.meta["title"] = "".join(child.content for child in children)
            before.attrSet("id", re.sub(r"\W+", "-", before.meta["title"].lower()).strip("-"))
        images = sum(child.type == "image" for child in children)
        if before.type == "paragraph_open" and images and images * 2 - 1 >= len(children):
            before.tag = after.tag = "div"
            before.attrSet("class", "figures")


def _sections(state: StateCore) -> None:
    """Fold every section of the page behind its heading, except those of `OPEN`. A link to its anchor unfolds it."""
    out: list[Token] = []
    folded = in_heading = False
    for token in state.tokens:
        title = token.meta.get("title", "")
        if title and folded:
            out.append(Token("section_close", "div", -1))
            folded = False
        if title and title not in OPEN:
            folded = in_heading = True
            out.append(Token("section_open", "div", 1, content=title, attrs=token.attrs))
        if not in_heading:
            out.append(token)
        in_heading = in_heading and token.type != "heading_close"
    if folded:
        out.append(Token("section_close", "div", -1))
    state.tokens = out


def _label(tokens: Sequence[Token]) -> None:
    """The head of its column beside every cell, for narrow screens."""
    heads: list[str] = []
    column = 0
    for token, inside in pairwise(tokens):
        if token.type == "thead_open":
            heads = []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            heads.append(", ".join(child.content for child in inside.children or () if child.type == "text"))
        elif token.type == "td_open":
            token.attrSet(LABEL, heads[column] if column else "")
            column += 1


def _threes(tokens: Sequence[Token]) -> list[tuple[Token, Token, Token]]:
    return [(a, b, c) for (a, b), (_, c) in pairwise(pairwise(tokens))]


# ------------------------------------------------------------------------------------------------------------------
# writing


_FORMS = {
    "section_open": '<details class="section"><summary><h2>{text}</h2></summary>\n<div{anchor}>\n',
    "section_close": "</div></details>\n",
    "fold_open": "<details><summary>{text}</summary>\n", "fold_close": "</details>\n", "cell_break": "</div><div>",
    "table_open": '<div class="scroll" tabindex="0" role="region" aria-label="table, scrolls sideways"><table>\n',
    "table_close": "</table></div>\n", "th_open": '<th scope="col"{prose}><div>', "td_open": "<td{prose}{label}><div>",
    "th_close": "</div></th>", "td_close": "</div></td>", "fence": '<pre tabindex="0">{text}</pre>\n',
}  # fmt: skip
"""Kind of a token -> its HTML, text being its content."""


def _rule(form: str) -> Callable[..., str]:
    def written(self: Any, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
        prose = ' class="prose"' if "left" in str(tokens[i].attrs.get("style", "")) else ""
        head = str(tokens[i].attrs.get(LABEL, ""))
        label = f' {LABEL}="{html.escape(head)}"' if head else ""
        anchor = f' id="{html.escape(str(tokens[i].attrs.get("id", "")))}"'
        return form.format(text=html.escape(tokens[i].content), prose=prose, label=label, anchor=anchor)

    return written


def _image(self: Any, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    key = PurePosixPath(str(tokens[i].attrs["src"])).stem
    return str(env["figures"].get(key, html.escape(tokens[i].content)))
