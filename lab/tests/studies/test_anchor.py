"""`python -m lab anchor`: its files, its exit code, and that lab/pages/concepts/anchor.md holds what the command makes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.studies.anchor import command as anchor_lab
from lab.studies.anchor.command import Findings, short_tables, write, write_docs
from lab.studies.anchor.figures import PICTURES
from lab.studies.pages import filled
from lab.theory import claims
from lab.theory.claims import Claim
from lab.theory.effect_map import gradient_map
from sage_rlvr.errors import DataError

DOCS = Path(__file__).resolve().parents[2] / "pages"
SMALL = {"Eq. (8)": claims.ALL["Eq. (8): the pseudo-KL token by token"]}


@pytest.fixture(scope="module")
def findings() -> Findings:
    """One real claim, the real map, no resting points, no policy."""
    found = SMALL["Eq. (8)"]()
    assert isinstance(found, Claim)
    return Findings([found], gradient_map(), [], None, {"claims": 0.0})


def table_of(page: str, name: str) -> str:
    found = re.search(rf"<!-- {name}:begin -->\n(.*?)\n<!-- {name}:end -->", page, re.DOTALL)
    assert found, name
    return found[1]


def without_noise(table: str) -> list[str]:
    """Rows of the map whose numbers carry no sampling noise, so that another machine prints the same."""
    return [line for line in table.splitlines() if "±" not in line and "Random" not in line]


@pytest.mark.slow
def test_the_page_holds_the_map_that_the_command_makes(findings: Findings) -> None:
    page = (DOCS / "concepts" / "anchor.md").read_text(encoding="utf-8")
    rows = without_noise(table_of(page, "map"))
    assert rows == without_noise(short_tables(findings)["map"]) and len(rows) > 12


@pytest.mark.slow
def test_the_page_holds_the_resting_points_that_the_command_makes(findings: Findings) -> None:
    whole = Findings(findings.claims, findings.gradient_map, list(claims.stationary_table()), None, {})
    page = (DOCS / "concepts" / "anchor.md").read_text(encoding="utf-8")
    assert table_of(page, "stationary") == short_tables(whole)["stationary"]


@pytest.mark.slow
def test_the_page_lists_the_claims_that_the_command_makes(findings: Findings) -> None:
    """Names and verdicts; digits of what is 0 up to rounding differ from machine to machine."""
    made = [(claim.name, claim.verdict) for claim in claims.run_all()]
    whole = (DOCS / "results" / "anchor_tables.md").read_text(encoding="utf-8").partition("## The map")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in whole.splitlines() if "| " in line]
    assert [(row[0], row[-1]) for row in cells[1:]] == made
    assert f"prints {len(made)} claims" in (DOCS / "concepts" / "theorems.md").read_text(encoding="utf-8")


def test_a_table_without_marks_is_refused_and_others_stay() -> None:
    page = "a\n<!-- map:begin -->\nold\n<!-- map:end -->\nb\n<!-- lab:begin -->\nkept\n<!-- lab:end -->\n"
    made = filled(page, {"map": "| new |"})
    assert made == page.replace("old", "| new |")
    assert filled(made, {"map": "| new |"}) == made
    with pytest.raises(DataError, match="stationary:begin"):
        filled(page, {"stationary": "x"})


@pytest.mark.slow
def test_everything_is_written(findings: Findings, tmp_path: Path) -> None:
    paths = write(findings, tmp_path / "theory")
    assert [path.name for path in paths] == ["theory.json", "theory.md", *(f"theory-{name}.png" for name in PICTURES)]
    assert all(path.stat().st_size > 200 for path in paths)
    listed = json.loads(paths[0].read_text())
    assert listed["claims"][0]["holds"] and len(listed["map"]) == len(findings.gradient_map)
    assert "## The map" in paths[1].read_text()


@pytest.mark.slow
def test_docs_are_made_again_and_a_wrong_folder_is_refused(findings: Findings, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"anchor\.md"):
        write_docs(findings, tmp_path)
    for folder in ("concepts", "results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "concepts" / "anchor.md").write_text(
        "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("map", "stationary"))
    )
    page, whole, *pictures = write_docs(findings, tmp_path)
    assert "Branch" in table_of(page.read_text(), "map") and whole.read_text().startswith("# The tables")
    assert len(pictures) == 3 and all(path.exists() for path in pictures)
    assert "Countdown policy" not in whole.read_text()
    whole.write_text(whole.read_text() + "\n\n## The Countdown policy\n\n| measured |\n")
    for _ in range(2):  # without the lab its table stays, once
        write_docs(findings, tmp_path)
        assert whole.read_text().endswith("\n\n## The Countdown policy\n\n| measured |\n")
        assert whole.read_text().count("| measured |") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "code"), [(True, 0), (False, 2)])
def test_the_command_prints_both_sides_and_its_code_says_whether_all_came_out(
    expected: bool, code: int, findings: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    claim = Claim("one", "a source", "2 > 1", 2.0, 1.0, ">", expected=expected)
    found = Findings([claim], findings.gradient_map, [], None, {"claims": 1.0})
    monkeypatch.setattr(anchor_lab, "find", lambda **options: found)
    monkeypatch.setattr(anchor_lab, "write", lambda *arguments: [tmp_path])
    assert main(["anchor", "--no-lab", "--out", str(tmp_path)]) == code
    said = capsys.readouterr().out
    assert f"{int(expected)} of 1 claims" in said and ("UNEXPECTED" in said) is not expected


@pytest.mark.slow
def test_the_settings_of_the_lab_reach_it_and_names_of_claims_stay_whole(
    findings: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "place/straight_through-loss/not-sequence"
    seen: dict[str, object] = {}
    found = Findings([Claim(name, "a source", "2 > 1", 2.0, 1.0, ">")], findings.gradient_map, [], None, {})
    monkeypatch.setattr(anchor_lab, "find", lambda **options: seen.update(options) or found)
    monkeypatch.setattr(anchor_lab, "write", lambda *arguments: [tmp_path])
    assert main(["anchor", "--problems", "2", "--draws", "0", "--out", str(tmp_path)]) == 0
    assert (seen["problems"], seen["draws"], seen["policy"]) == (2, 0, None)
    said = capsys.readouterr().out
    assert name in said and "2 > 1" in said


def test_options_that_contradict_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, reason in (
        (["--docs", str(tmp_path)], "anchor.md"),
        (["--policy", "embedded", "--no-lab"], "drop one"),
        (["--problems", "2", "--draws", "0", "--no-lab"], "--problems, --draws: settings of the lab"),
        (["--problems", "0"], "at least 1 problem"),
        (["--docs", str(DOCS), "--problems", "2"], "as it is by default"),
        (["--policy", "embedded"], "it is the lab's reference"),
        (["--policy", str(tmp_path / "none")], "no config.json"),
    ):
        assert main(["anchor", *words]) == 2 and reason in capsys.readouterr().err
