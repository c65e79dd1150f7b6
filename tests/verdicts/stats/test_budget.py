"""Unequal budgets are refused, each difference by name with its next step."""

from __future__ import annotations

import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.budget import budget_differences, check_budget

HOME = {
    "task": "aime",
    "task_hash": "a1",
    "model": "grpo",
    "seed": 1,
    "n": 256,
    "template_hash": "t1",
    "verifier_hash": "v1",
    "decoding": {"preset": "paper", "temperature": 0.6, "top_p": 1.0, "max_new_tokens": 4096},
    "versions": {"vllm": "1.0"},
}


def other(**changes):
    decoding = HOME["decoding"] | {k: changes.pop(k) for k in list(changes) if k in HOME["decoding"]}
    return HOME | changes | {"decoding": decoding}


def test_what_belongs_to_the_arm_may_differ():
    check_budget({"GRPO": HOME, "Branch": other(model="branch", seed=2, versions={"vllm": "2.0"}, preset="mine")})
    assert budget_differences(HOME, other(top_p=1)) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 64}, "n: 256 for GRPO, 64 for Branch; .*compare the first 64 of each"),
        ({"temperature": 1.0}, "temperature: 0.6 for GRPO, 1.0 for Branch; .*compare their frontiers"),
        ({"max_new_tokens": 2048}, "max_new_tokens: 4096 for GRPO, 2048 for Branch"),
        ({"template_hash": "t2"}, 'template_hash: "t1" for GRPO, "t2" for Branch; a different prompt is a different task'),
        ({"verifier_hash": "v2"}, "verifier_hash: .*judge both again with the same verifier"),
        ({"top_p": 0.9}, "top_p: 1.0 for GRPO, 0.9 for Branch"),
        ({"task_hash": "a2"}, "task_hash: "),
        ({"stop": "x"}, 'stop: not recorded for GRPO, "x" for Branch; sample both again'),
    ],
)
def test_each_difference_is_named(change, words):
    with pytest.raises(DataError, match=words):
        check_budget({"GRPO": HOME, "Branch": other(**change)})


def test_all_differences_at_once_and_what_is_ignored():
    unequal = other(n=64, temperature=1.0, template_hash="t2")
    assert list(budget_differences(HOME, unequal)) == ["n", "temperature", "template_hash"]
    assert budget_differences(HOME, unequal, ignore={"temperature", "n"}) == {"template_hash": ("t1", "t2")}
    with pytest.raises(DataError) as caught:
        check_budget({"GRPO": HOME, "Same": other(), "Branch": unequal})
    assert str(caught.value).count("for Branch") == 3 and "Same" not in str(caught.value)
