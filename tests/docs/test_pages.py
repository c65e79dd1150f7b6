"""What the pages tell a reader to type is there: commands parse, recipes and designs exist, links lead somewhere."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from command import call
from sage_rlvr.cli.app import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SKILL = ROOT / "skills" / "judge-a-run" / "SKILL.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "AGENTS.md", SKILL, *DOCS.rglob("*.md")])
PARTS = sorted(
    p.stem if p.is_file() else p.name
    for p in (ROOT / "src" / "sage_rlvr").iterdir()
    if (p.suffix == ".py" or (p / "__init__.py").is_file()) and not p.name.startswith("_")
)
SECTIONS = ["Get started", "How-to", "Concepts", "Methods and findings", "Reference"]
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks that call sage-rlvr; a line that ends in a backslash goes on in the next."""
    blocks = "".join(SHELL.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    return [line for line in blocks.splitlines() if line.startswith("sage-rlvr ")]


TYPED = [(page.name, line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), TYPED, ids=[f"{page}-{i}" for i, (page, _) in enumerate(TYPED)])
def test_the_command_parses(page, line):
    words = shlex.split(re.sub(r" --plugin \S+", "", line), comments=True)[1:]  # a plugin is loaded before options are parsed
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            *_, unknown = parse(words)
    except SystemExit:
        pytest.fail(f"{page}: {line}\n{said.getvalue()}")
    edits = [
        word for word in unknown if word.startswith("--")
    ]  # of the recipe: --a.b value, or a field of its first level
    assert words[0] in ("train", "sft", "offline", "show", "demo", "sweep") or not edits, f"{page}: {line}: {edits}"
    for word in words:
        if word.startswith("recipes/"):
            assert (ROOT / word).is_file(), f"{page}: {line}: there is no {word}"


def test_there_are_commands_to_parse():
    assert len(TYPED) > 25 and {"README.md", "reproduce.md"} <= {page for page, _ in TYPED}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not re.match(r"https?:|#|mailto:", target):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_every_design_and_paper_recipe_has_its_place_among_the_experiments():
    text = (DOCS / "howto" / "reproduce.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.*]+)`", text))
    designs = {path.name for path in (ROOT / "recipes" / "designs").glob("*.yaml")}
    assert designs <= named
    shared = {"base", "full_base", "r1_base"}
    for path in (ROOT / "recipes" / "paper").glob("*.yaml"):
        assert path.stem in shared | named or any(path.match(f"{name}.yaml") for name in named if "*" in name), (
            path.name
        )


def words_of(page: Path) -> int:
    """Words of a page, code and tables included: what stands between blanks and has a letter or digit."""
    return len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8")))


def test_the_docs_are_short():
    assert 500 <= len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
    assert words_of(DOCS / "contributing.md") <= 900
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60
    pages = {page.name: words_of(page) for page in PAGES if page.name not in ("AGENTS.md", "SKILL.md")}
    assert sum(map(words_of, PAGES)) - words_of(ROOT / "AGENTS.md") - words_of(SKILL) <= 30_000, pages


def test_the_changelog_has_one_plain_line_per_entry():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    entries = lines[lines.index("### Added") + 2 :]
    assert len(entries) > 20 and all(re.match(r"- \S.*\.$", line) for line in entries)


def test_the_site_has_five_sections_and_every_page_is_in_one():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\nexclude_docs:")[0]
    assert re.findall(r"^  - (.+):$", nav, re.MULTILINE) == SECTIONS
    listed = {found for found in re.findall(r"([\w/]+\.(?:md|ipynb))$", nav, re.MULTILINE)}
    assert listed == {str(page.relative_to(DOCS)) for page in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))}


@pytest.mark.slow
def test_the_sentences_of_the_readme_are_those_that_the_study_prints():
    from lab.studies.pages import filled
    from lab.study import headlines_of, rooms_of

    text, made = (ROOT / "README.md").read_text(encoding="utf-8"), headlines_of(rooms_of())
    assert filled(text, made) == text
    effects = re.findall(r"[+-]\d\.\d+ \([+-]\d\.\d+ to [+-]\d\.\d+\)", text)
    assert len(effects) == 3 and all(effect in made["headline"] for effect in effects)


def test_the_guide_of_the_readme_is_whole(monkeypatch):
    """What a stranger copies: it registers itself, and a method with it says what it descends."""
    import torch

    from sage_rlvr.core.guides import GUIDES
    from sage_rlvr.core.keys import Key
    from sage_rlvr.core.signals import Signals

    (text,) = [b for b in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "@sage_rlvr" in b]
    monkeypatch.setattr(GUIDES, "_parts", dict(GUIDES._parts))
    module = types.ModuleType("my_guide")
    monkeypatch.setitem(sys.modules, "my_guide", module)  # dataclasses look for it there
    exec(compile(text, "my_guide.py", "exec"), vars(module))
    guide = module.Surprise()
    assert GUIDES["surprise"] is module.Surprise
    mask = torch.tensor([[True, True, False]])
    q = guide(Signals(torch.tensor([[0.0, -3.0, -9.0]]), None, mask, torch.tensor([0])), 0, 10, Key(0)).exp()
    assert q[0, 0] == 1 and 1.3 < q[0, 1] <= 1.4 and q[0, 2] == 1


@pytest.mark.parametrize("part", PARTS)
def test_every_public_part_has_its_place_in_the_reference(part):
    """A package's page shows its modules too (`show_submodules` in mkdocs.yml)."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    assert f"::: sage_rlvr.{part}\n" in pages, f"give sage_rlvr.{part} a page in docs/reference and mkdocs.yml"


def test_the_reference_names_nothing_that_is_gone():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    assert set(re.findall(r"::: sage_rlvr\.(\w+)", pages)) <= set(PARTS)


@pytest.mark.parametrize("name", ["tutorial", "judge"])
def test_a_notebook_is_stored_with_the_outputs_of_its_own_cells(name: str):
    """The site shows them as they stand; `make tutorial` makes them."""
    file = DOCS / f"{name}.ipynb"
    book = json.loads(file.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    sources = hashlib.sha256("\n\n".join("".join(cell["source"]) for cell in code).encode()).hexdigest()
    assert book["metadata"].get("executed") == sources, "a cell has changed: make tutorial runs them all and stores what they say"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs) and file.stat().st_size < 1 << 20
    said = json.dumps([output for output in outputs if "text" in output])
    assert "pass@1" in said and not re.search(r"/(tmp|home|root|work)/", said)


@pytest.mark.slow
def test_the_skill_of_judging_a_run_holds_when_it_is_followed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    text = SKILL.read_text(encoding="utf-8")
    (said,) = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
    typed = [line for line in commands(SKILL) if "examples/" in line]
    outputs = []
    for line in typed:
        assert call(*shlex.split(line)[1:]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0].splitlines()[0] == said
    verdict = json.loads(outputs[1])["verdicts"][0]
    assert (verdict["finding"], verdict["sentence"]) == ("sharpened", said)
    assert re.fullmatch(r"---\nname: judge-a-run\ndescription: [^\n]+\n---\n.*", text, re.DOTALL)
