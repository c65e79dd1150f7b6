"""Support per method: counts by hand, the joined loss against the prompts' own, and the page as its command makes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.studies import supports
from lab.studies.supports import BASE, GROUP, GROUPS, TREE, Task, outcome, supported, table, train, write_docs
from lab.theory.expected import loss_of_group
from sage_rlvr.core.method import Method
from sage_rlvr.errors import DataError
from sage_rlvr.methods import METHODS, grpo, rloo

PAGE = Path(__file__).resolve().parents[2] / "pages" / "results" / "support.md"


def rows_of(text: str) -> dict[str, str]:
    """The rows of the page's table by their method."""
    body = text.partition("<!-- support:begin -->")[2].partition("<!-- support:end -->")[0]
    lines = [line for line in body.replace("\\_", "_").splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}


def test_what_is_kept_gained_and_lost_is_counted_by_hand():
    task = Task.draw(0)
    solved = [TREE.probs(one)[right] for one, right in zip(task.reference, task.right, strict=True)]
    before = sum(int((chances > 1 / 256).sum()) for chances in solved)
    same = outcome(task, task.reference)
    assert (same.kept, same.gained, same.lost, same.kl) == (before, 0, 0, 0.0) and same.steps == 0
    assert same.solved == pytest.approx(float(sum(map(torch.sum, solved))) / len(solved))
    one_leaf = torch.full((len(TREE),), 1e-6, dtype=torch.float64)
    one_leaf[0] = 1.0  # right in every prompt
    collapsed = outcome(task, TREE.logits_of(one_leaf).expand_as(task.reference))
    had = sum(float(TREE.probs(one)[0]) > 1 / 256 for one in task.reference)
    assert (collapsed.kept, collapsed.gained, collapsed.lost) == (had, len(solved) - had, before - had)
    assert collapsed.distinct == pytest.approx(1.0, abs=0.01)


def test_the_loss_of_several_prompts_is_the_mean_of_their_own():
    task, method = Task.draw(1), rloo(beta=0.2)
    joined = task.loss(method, task.reference, torch.Generator().manual_seed(4), 0)[0]
    generator = torch.Generator().manual_seed(4)
    own = []
    for ref, right in zip(task.reference, task.right, strict=True):
        listing = TREE.listing(ref, ref, right.float())
        drawn = torch.multinomial(listing.probs, GROUPS * GROUP, True, generator=generator).reshape(-1, GROUP)
        own.append(loss_of_group(method, listing, TREE.logps(ref), drawn))
    assert float(joined) == pytest.approx(float(sum(own)) / len(own), abs=1e-6)


@pytest.mark.slow
def test_training_ends_at_the_goal_and_what_a_tree_lacks_is_named(monkeypatch):
    monkeypatch.setattr(supports, "GOAL", 0.4)
    found = train(grpo(), 0)
    assert 0.4 <= found.solved < 0.5 and 0 < found.steps < 100 and found.kl > 0
    assert train(grpo(), 0) == found

    class Hidden(Method):
        needs = frozenset({"hidden"})

    blind = Hidden(**{name: getattr(grpo(), name) for name in ("name", "advantage", "surrogate", "anchor", "reduction")})
    shown = table(supported([("grpo", grpo()), ("twin", replace(grpo(), name="twin")), ("blind", blind)], [0]))
    rows = {row[0]: row for row in shown.rows}
    assert rows["blind"][-1] == "reads hidden" and rows["blind"][1] == "–" and rows["grpo"][1] == f"{found.steps}"
    assert rows["twin"][7].startswith("+0.0") and rows[BASE][7] == "–"


def test_the_page_is_written_by_its_command(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(DataError, match=r"name the folder that holds results/support\.md"):
        write_docs([], tmp_path)
    (tmp_path / "results" / "support.md").write_text("# S\n\n<!-- support:begin -->\n<!-- support:end -->\n", encoding="utf-8")
    assert write_docs(supported([], [0]), tmp_path) == [tmp_path / "results" / "support.md"]
    assert set(rows_of((tmp_path / "results" / "support.md").read_text(encoding="utf-8"))) == {BASE}


@pytest.mark.slow
def test_rows_of_the_page_are_those_the_command_makes():
    made = table(supported([(name, METHODS[name]()) for name in ("grpo", "distinct", "clip_cov")])).markdown()
    page = rows_of(PAGE.read_text(encoding="utf-8"))
    assert set(page) == {BASE, *METHODS}, "make it again: python -m lab map --support --docs lab/pages"
    lines = made.replace("\\_", "_").splitlines()[2:]  # the page has one column more, for methods that are not there
    assert all(any(row.startswith(line) for row in page.values()) for line in lines)
