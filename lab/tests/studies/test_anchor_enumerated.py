"""The list of completions under a policy: a tree whose probabilities sum to one, and what cannot be listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.tests.studies.anchor_common import WORLD, rows_of
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError
from sage_rlvr.models.enumeration.completions import enumerate_completions, enumerate_to
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.sampler import sample


@pytest.mark.slow
@pytest.mark.parametrize("floor", [1e-9, 1e-3, 0.05])
def test_the_list_is_a_tree_whose_probabilities_sum_to_one(tiny: Any, floor: float) -> None:
    model, tokens = tiny
    listed = enumerate_completions(model, tokens, tokens.encode_prompt("1 2=3:"), 3, floor=floor)
    assert float(listed.probs.sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(listed.probs[~listed.dropped].sum()) == pytest.approx(1.0 - listed.remainder, abs=1e-6)
    rows = rows_of(listed)
    known = set(rows)
    assert len(known) == len(rows) and not any(row[:t] in known for row in rows for t in range(1, len(row)))
    assert listed.finished.tolist() == [row[-1] == tokens.eos_id for row in rows]
    assert all(len(row) == 3 for row, cut in zip(rows, ~(listed.finished | listed.dropped), strict=True) if cut)
    assert (listed.remainder > 0) == bool(listed.dropped.any()) and not (listed.finished & listed.dropped).any()


@pytest.mark.slow
def test_probabilities_are_those_of_a_plain_forward_pass(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    listed = enumerate_completions(model, tokens, prompt, 4, floor=1e-3)
    with torch.no_grad():
        table = listed.logits(model)
        for row in range(0, len(listed.probs), 37):
            answer = listed.tokens[row][listed.mask[row]]
            logits = model(torch.tensor([[*prompt, *answer.tolist()]])).logits[0, len(prompt) - 1 : -1]
            states = listed.states[row][listed.mask[row]]
            assert torch.allclose(table[states], logits, atol=1e-4)
            logp = torch.log_softmax(logits.double(), -1)[torch.arange(len(answer)), answer].sum()
            assert float(listed.probs[row].log()) == pytest.approx(float(logp), abs=1e-4)


def test_a_lower_floor_leaves_less_and_enumerate_to_finds_one(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    left = [enumerate_completions(model, tokens, prompt, 4, floor=f).remainder for f in (1e-2, 1e-3, 1e-4)]
    assert left[0] > left[1] > left[2]
    assert enumerate_to(model, tokens, prompt, 4, remainder=left[1]).remainder <= left[1]


def test_right_completions_have_the_probability_of_the_exact_evaluation(warm_policy: Path) -> None:
    model, tokens = load_policy(str(warm_policy))
    problem = WORLD.problems("test", 0, 1)[0]
    listed = enumerate_completions(model, tokens, tokens.encode_prompt(WORLD.prompt(problem)), 8, floor=1e-6)
    found = dict(zip(listed.texts(tokens), listed.probs[listed.finished].tolist(), strict=True))
    exact = solution_logps(model, tokens, WORLD, [problem])[1.0][0]
    chances = [
        (found[text], np.exp(logp)) for text, logp in zip(WORLD.solutions(problem), exact, strict=True) if text in found
    ]
    assert chances and max(a for a, _ in chances) > 1e-6
    assert all(a == pytest.approx(b, rel=1e-3) for a, b in chances)


def test_the_sampler_draws_them_as_often_as_the_list_says(tiny: Any) -> None:
    model, tokens = tiny
    prompt, n = tokens.encode_prompt("1 2=3:"), 4000
    listed = enumerate_completions(model, tokens, prompt, 3, floor=1e-9)
    drawn = sample(model, [prompt], group_size=n, max_new_tokens=3, eos_id=tokens.eos_ids, pad_id=0, key=Key(5))
    counts: dict[tuple[int, ...], int] = {}
    for row, m in zip(drawn.tokens, drawn.mask, strict=True):
        text = tuple(row[m].tolist())
        counts[text] = counts.get(text, 0) + 1
    chances = dict(zip(rows_of(listed), listed.probs.tolist(), strict=True))
    assert set(counts) <= set(chances)
    likely = {row: p for row, p in chances.items() if n * p > 10}
    assert len(likely) > 10
    for row, p in likely.items():
        assert abs(counts.get(row, 0) - n * p) < 5 * np.sqrt(n * p * (1 - p)) + 1


def test_what_cannot_be_listed_is_refused(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    with pytest.raises(DataError, match="more than 50 prefixes"):
        enumerate_completions(model, tokens, prompt, 6, floor=1e-6, most_states=50)
    with pytest.raises(DataError, match="out of reach"):
        enumerate_to(model, tokens, prompt, 6, remainder=1e-4, most_states=50)
    with pytest.raises(DataError, match="no tokens"):
        enumerate_completions(model, tokens, [], 6)
    for limit, floor in ((0, 1e-3), (3, 0.0), (3, 1.0)):
        with pytest.raises(DataError, match="max_new_tokens >= 1, and a floor"):
            enumerate_completions(model, tokens, prompt, limit, floor=floor)
