"""The page that several files read: a sweep whose names and texts are attacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frozen.folders import write_all
from report.page_common import ARM, BREAKOUT, hostile
from sage_rlvr.render import Page, report_of
from sage_rlvr.results.details import samples
from sage_rlvr.results.details.samples import sample_sets
from sage_rlvr.results.read import read_results


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folders")
    write_all(out)
    return out


@pytest.fixture(scope="module")
def page(folders: Path) -> Page:
    """A sweep of which one arm's name, the title and all texts are attacks, with stores beside it."""
    design = folders / "sweep" / "design.json"
    facts = json.loads(design.read_text())
    for arm in facts["arms"]:
        if arm["name"] == "sage_branch":
            arm["label"] = ARM
    design.write_text(json.dumps(facts | {"left_out": [f"more seeds: no time {BREAKOUT}"]}))
    results = read_results(folders / "sweep", *sorted((folders / "stores").glob("[bG]*-sums-T1-s0")))
    for run in results.runs.values():
        assert isinstance(run.config, dict)
        run.config["note"] = BREAKOUT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "sample_sets", lambda *given: hostile(sample_sets(*given)))
        return Page(report_of(results, title=f"Ours {BREAKOUT}"))


@pytest.fixture(scope="module")
def html(page: Page) -> str:
    return page.html()
