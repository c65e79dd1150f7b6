"""The page in a browser, where Chromium is at hand: no complaints, filters by keyboard, on paper, without its script."""

from __future__ import annotations

import pytest

from chromium import Chromium, executable
from report.page_common import BREAKOUT, HOSTILE

# ------------------------------------------------------------------------------------------------------------------
# in a browser


needs_chromium = pytest.mark.skipif(
    executable() is None, reason="no Chromium is installed (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def opened(html: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    with Chromium(folder / "profile") as browser:
        yield browser, path


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_complains_of_nothing_and_scrolls_not_sideways(opened, width: int) -> None:
    browser, path = opened
    browser.messages.clear()
    browser.requests.clear()
    for scheme in ("light", "dark"):
        browser.show(path, width=width, scheme=scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.messages == []
    assert set(browser.requests) == {path.resolve().as_uri()}
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


@pytest.mark.slow
@needs_chromium
def test_the_pictures_fill_a_wide_page_side_by_side(opened) -> None:
    browser, path = opened
    browser.show(path, width=1200)
    edges = "[...document.querySelector('.figures').querySelectorAll(':scope > svg')].map(s => s.getBoundingClientRect())"
    assert browser.run(f"(e => e.length == 2 && e[0].top == e[1].top)({edges})")
    filled = "(e, m) => e.at(-1).right - e[0].left > 0.9 * (m.clientWidth - 32)"
    assert browser.run(f"({filled})({edges}, document.querySelector('main'))")


@pytest.mark.slow
@needs_chromium
def test_at_390_pixels_no_table_is_cut_and_folds_open_from_the_keyboard(opened) -> None:
    browser, path = opened
    browser.show(path, width=390)
    box = "document.querySelector('details .scroll')"
    assert browser.run("document.documentElement.scrollWidth <= 390")
    wide = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth)"
    assert browser.run(f"{wide}.map(b => b.scrollWidth + ' ' + b.textContent.slice(0, 99))") == []
    head = browser.run(f"getComputedStyle({box}.querySelector('td:nth-child(2)'), '::before').content")
    assert "attr" in head or "vs " in head, head
    chips = browser.run(f"[...{box}.querySelectorAll('.word')].map(w => w.textContent)")
    known = {"higher", "lower", "no", "cannot", "identical"}
    assert len(chips) >= 6 and {chip.split(" ")[0] for chip in chips} <= known
    shown = "document.querySelector('details.section ul').checkVisibility()"
    assert browser.run("[...document.querySelectorAll('details:not(.asked)')].every(d => !d.open)") and not browser.run(shown)
    browser.run("document.querySelector('details.section > summary').focus()")
    browser.press("Enter")
    assert browser.run(shown) and browser.run("document.querySelector('details.section ul').offsetHeight") > 100
    assert browser.messages == []


@pytest.mark.slow
@needs_chromium
def test_on_paper_all_is_open(opened) -> None:
    browser, path = opened
    browser.show(path)
    tall = "document.querySelector('details.section').offsetHeight"
    closed = browser.run(tall)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert closed < 100 < 300 < browser.run(tall)
    browser.send("Emulation.setEmulatedMedia", media="")


@pytest.mark.slow
@needs_chromium
def test_filters_work_from_the_keyboard(opened) -> None:
    browser, path = opened
    browser.show(path)
    per_problem = len(HOSTILE) + 2
    status = "document.getElementById('b-status').textContent"
    assert browser.run(status).startswith(f"{2 * per_problem} of {6 * per_problem} samples, 1 problem")
    assert browser.run("document.querySelectorAll('.column').length") == 2  # side by side
    assert browser.run("document.querySelectorAll('.token .heat').length") > 0
    parts = browser.run("[...document.querySelectorAll('.column')[0].querySelectorAll('.turn')].map(t => t.textContent)")
    assert parts == ["policy, turn 1a", "environment, turn 1it gave [U+202E]" + BREAKOUT, "policy, turn 2<eos>"]
    assert browser.run("document.querySelectorAll('.turn-reply .heat').length") == 0  # nobody drew a reply
    above = "[...document.querySelectorAll('#b-list > .asked pre, #b-list > .gold')].map(t => t.textContent)"
    assert browser.run(above) == [f"prompt {BREAKOUT}", f"gold: gold {BREAKOUT}"]
    assert browser.run("document.querySelector('.cut').textContent") == "cut at 3 tokens"
    browser.run("document.getElementById('b-verdict').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.getElementById('b-verdict').value") == "0"
    assert browser.run("[...document.querySelectorAll('.sample .word')].every(w => w.textContent === 'right')")
    browser.run("document.getElementById('b-verdict').value = ''; document.getElementById('b-search').focus()")
    browser.send("Input.insertText", text="SHORT")
    assert browser.run("[...document.querySelectorAll('.sample .sample-text')].map(t => t.textContent)") == ["short", "short"]
    assert browser.run(status).startswith(f"2 of {6 * per_problem} samples")
    browser.run("document.getElementById('b-search').value = ''; document.getElementById('b-problem').focus()")
    browser.press("End")
    assert browser.run("document.getElementById('b-problem').value") == ""
    assert browser.run("document.querySelectorAll('h3.problem').length") == 3
    shown = browser.run("document.querySelectorAll('.sample').length")
    browser.run("document.getElementById('b-more').focus()")
    browser.press("Enter")
    assert browser.run("document.querySelectorAll('.sample').length") > shown
    assert browser.messages == []


@pytest.mark.slow
@needs_chromium
def test_without_its_script_the_page_still_reads(opened) -> None:
    browser, path = opened
    browser.show(path, script=False)
    browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.getElementById('browser').hidden")
    assert "needs JavaScript, which is switched off" in browser.run("document.querySelector('noscript').textContent")
    assert browser.run("document.querySelectorAll('svg').length") > 8
