"""Markdown of the page: text of any origin is shown as it is and becomes no markup, in Markdown, in HTML, in a script."""

from __future__ import annotations

import html
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from sage_rlvr.escaping import visible
from sage_rlvr.render.markup import as_script, escaped, fenced, plain, tabled, to_html
from sage_rlvr.results.tables import Table

TEXT = st.text(st.one_of(st.sampled_from("-+=*_`#<>&[]()!|~\\1. :\n\thttp/aé"), st.characters()))


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_is_shown_as_it_is(text: str) -> None:
    shown = to_html(str(escaped(text)), {})
    assert html.unescape(re.sub(r"</?p>", "", str(shown))).strip() == " ".join(visible(text).split())


@given(TEXT)
@settings(max_examples=200, deadline=None)
def test_no_text_becomes_markup_in_items_cells_folds_and_fences(text: str) -> None:
    table = Table(header=("a", text), rows=((text, f"1\n{text}"),), notes=(text,))
    fold = f"<details><summary>{plain(text)}</summary>\n\n{fenced(text)}\n\n</details>"
    source = f"- {escaped(text)}\n\n{fold}\n\n{tabled(table, True)}"
    shown = to_html(source, {})
    tags = set(re.findall(r"<(\w+)", str(shown)))
    allowed = {"ul", "li", "p", "details", "summary", "pre", "div", "table", "thead", "tbody", "tr", "td", "th"}
    assert tags <= allowed | {"strong", "span"}  # of a chip


def test_raw_html_and_foreign_links_of_the_markdown_stay_text() -> None:
    shown = to_html("<script>alert(1)</script> <img src=x> [a](javascript:alert(1)) ![x](http://h/y.png)", {})
    assert set(re.findall(r"<(\w+)", str(shown))) <= {"p", "div"}


def test_a_fence_cannot_be_closed_from_within() -> None:
    assert fenced("````\n# not a heading") == "`````text\n````\n# not a heading\n`````"


def test_folds_chips_cells_figures_and_anchors_become_html() -> None:
    table = Table(header=("arm", "vs GRPO\npass@1"), rows=(("A|B", "higher before correction\n+0.1"),))
    source = f"## Results\n\n![a](figures/k.png) ![b](f/j.png)\n\n{tabled(table, True)}"
    shown = to_html(source, {"k": Markup("<svg k>"), "j": Markup("<svg j>")})
    assert '<div id="results">' in shown
    assert '<div class="figures"><svg k> <svg j></div>' in shown
    assert '<span class="word higher before">higher before correction</span></div><div>+0.1</div>' in shown
    assert "<td><div>A|B</div></td>" in shown and "<div>vs GRPO</div><div>pass@1</div></th>" in shown


def test_every_section_but_the_samples_is_folded_behind_its_heading() -> None:
    shown = to_html("# Q\n\nanswer\n\n## Samples\n\ns\n\n## A *b* <c>\n\none\n\n## D\n\ntwo", {})
    top, *folds = shown.split('<details class="section">')
    assert "answer" in top and '<h2 id="samples">Samples</h2>' in top and "<p>s</p>" in top and "</details>" not in top
    assert [fold.count("</div></details>") for fold in folds] == [1, 1]
    assert folds[0].startswith("<summary><h2>A b &lt;c&gt;</h2></summary>\n<div id=\"a-b-c\">") and "one" in folds[0]
    assert "two" in folds[1] and "one" not in folds[1]


def test_visible_spells_out_what_disturbs() -> None:
    assert visible("a\nb\tc é \U0001f469\u200d\U0001f52c") == "a\nb\tc é \U0001f469\u200d\U0001f52c"
    assert visible("x\u202ey\x1b[0m\ufeff") == "x[U+202E]y[U+001B][0m[U+FEFF]"


def test_json_in_a_script_closes_nothing() -> None:
    text = as_script({"a": "</script><!--&\u2028\x00"})
    assert not set("<>&\u2028\x00") & set(text) and json.loads(text)["a"] == "</script><!--&\u2028\x00"
    with pytest.raises(ValueError, match="JSON"):
        as_script({"a": math.nan})
