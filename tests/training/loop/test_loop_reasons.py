"""A run whose completions have no answer where the task reads: its metrics, and the warning of its first step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loop_recorded import draw_groups
from sage_rlvr.runs import read_metrics
from sage_rlvr.tasks import task_named
from sage_rlvr.training.groups import together, union
from sage_rlvr.training.rollouts import draw, rewards_of, show
from training.loop.loop_common import make, run_of

RECIPE = """
steps: 2
model: embedded
method: {{name: grpo}}
task: {{name: jsonl, file: {file}, reward: math}}
rollout: {{prompts_per_step: 2, group_size: 4, max_new_tokens: {limit}}}
checkpoint: {{every: 1}}
"""


def recipe(folder: Path, limit: int) -> Path:
    """Rows that the shipped policy can spell: it answers with an expression, and never in a box."""
    rows = [{"prompt": f"{i} {i} {i}={3 * i}:", "answer": str(i)} for i in (1, 2, 3)]
    (folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "mine.yaml"
    path.write_text(RECIPE.format(file=folder / "my.jsonl", limit=limit))
    return path


@pytest.mark.slow
def test_a_run_without_answers_warns_at_its_first_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.warns(UserWarning, match=r"step 0: no answer in 8 of 8 completions"):
        run_of(recipe(tmp_path, 24), run)
    rows = read_metrics(run)
    assert [row["verifier/no_answer_frac"] for row in rows] == [1.0, 1.0]
    assert [row["verifier/undecided_frac"] for row in rows] == [0.0, 0.0]
    kept = {one["kind"]: one for one in json.loads((run / "run.json").read_text())["warnings"]}
    assert kept["no answer"]["step"] == 0 and "sage-rlvr sft" in kept["no answer"]["message"]


def test_the_watch_sees_where_the_completions_of_the_step_have_answers(tmp_path: Path) -> None:
    """The texts are those of the step, by the task's own golds."""
    loop = make(recipe(tmp_path, 24))
    told: list[tuple[str, int, str]] = []
    loop.reasons.tell = lambda *said: told.append(said)
    loop.task = task_named(str(tmp_path / "my.jsonl"))
    loop.problems = list(loop.task.problems("train"))
    (groups,) = draw_groups(make(recipe(tmp_path, 24)), 0).groups
    show(loop, 0, replace(groups, problems=[loop.problems[0], loop.problems[1]]))
    ((kind, step, sentence),) = told
    assert (kind, step) == ("no answer", 0) and r"no answer in \boxed{} in 8 of 8" in sentence
    assert "of 8 such texts 8 have one as the last number" in sentence


def test_a_run_that_is_cut_names_the_limit(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"step 0: 8 of 8 completions were cut at the length limit.*raise rollout.max_new_tokens"):
        run_of(recipe(tmp_path, 2), tmp_path / "run")
    assert [row["completions/unfinished_frac"] for row in read_metrics(tmp_path / "run")] == [1.0, 1.0]


def test_verdicts_follow_their_completions_through_a_rollout_plan(tmp_path: Path) -> None:
    """Kept groups, refills and second stages have the verdicts of their own completions."""
    few = (("method", "grpo"), ("rollout.prompts_per_step", "4"), ("rollout.group_size", "6"))
    loop = make(Path("recipes/countdown/base.yaml"), *few)
    first, more = draw(loop, 0, 0, 4), draw(loop, 0, 4, 2)
    every = together([first, more], loop.tokens.pad_id)
    kept = every.keep((every.rewards.sum(1) >= 0) & (every.numbers % 2 == 1))
    both = union(first, first, loop.tokens.pad_id)
    for part in (every, kept, both):
        assert len(part.verdicts) == part.rewards.numel()
        assert list(part.verdicts) == rewards_of(loop, part.problems, part.rollout)[3]
