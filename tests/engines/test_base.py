"""Policies and tokens: what a rollout says as text."""

from __future__ import annotations

import torch

from sage_rlvr.engines.base import NO_ANSWER, Tokens
from sage_rlvr.engines.sampler import Rollout
from sage_rlvr.tasks.countdown import Countdown, Problem, build_tokenizer

TOKENS = Tokens.of(build_tokenizer())
PROBLEM = Problem((3, 4), 7)


def rollout_of(rows: list[list[int]], finished: list[bool]) -> Rollout:
    width = max(map(len, rows))
    ids = torch.tensor([row + [TOKENS.pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    return Rollout(ids, mask, torch.zeros(ids.shape), torch.zeros(ids.shape), torch.tensor(finished))


def test_texts_end_before_the_end_token_and_what_is_no_answer_is_marked() -> None:
    """A model's vocabulary may be padded beyond the tokenizer's 21 ids; such an id decodes to nothing."""
    three, plus, four = TOKENS.encode("3+4")
    end = TOKENS.eos_id
    rows = [[three, plus, four, end], [three, plus, four], [three, plus, 25, four, end], [25, three, plus, four, end]]
    texts = TOKENS.texts(rollout_of(rows, [True, False, True, True]))
    assert texts[0] == "3+4" and all(text == "3+4" + NO_ANSWER for text in texts[1:])
    world = Countdown({2: 1.0})
    assert [world.verify(PROBLEM, text).right for text in texts] == [True, False, False, False]


def test_known_ids_are_those_of_the_vocabulary() -> None:
    assert TOKENS.known == frozenset(range(21))
