"""The reference in the place of an answer: which tokens are kept at the border, and what the policy makes of those behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from byte_tokenizer import byte_tokenizer
from conftest import tiny_llama
from sage_rlvr.contrib.self_reward.rlpr import ReferenceProbability
from sage_rlvr.errors import DataError
from sage_rlvr.models.answer_substitution import Answered, replaced, substituted
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.countdown import build_tokenizer

WORDS = ["The answer is 42.", "so \\boxed{12} is it", "x = 12", "the answer is 12", "naïve 日本"]
MERGED = Tokens.of(byte_tokenizer(merged=WORDS))
DIGITS = Tokens.of(build_tokenizer())


def answered(text: str, reference: str, own: str, ids: list[int] | None = None) -> Answered:
    """A completion of `text` whose answer is the last place of `own`."""
    start = text.rindex(own)
    return Answered(MERGED.encode(text) if ids is None else ids, text, (start, start + len(own)), 0, reference)


def spelled(ids: list[int]) -> str:
    return str(MERGED.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("text", "own", "reference"),
    [
        (r"so \boxed{12} is it", "12", "7"),
        ("the answer is 12", "12", "3/4"),  # the space before the answer and a digit may be one token
        ("the answer is12", "12", "5"),
        ("naïve 日本 so 日本", "日本", "本"),  # a character of three bytes
        ("12", "12", "42"),  # all answer
        ("x =  12.", "12", "the answer"),
    ],
)
def test_the_tokens_are_those_of_the_text_with_the_reference_in_it(text: str, own: str, reference: str) -> None:
    one = answered(text, reference, own)
    found = replaced(MERGED, one)
    assert found is not None and one.span is not None
    assert spelled(found.lead + found.scored) == text[: one.span[0]] + reference
    assert spelled(found.scored).lstrip() == reference  # and nothing of the reasoning is scored but a space within a token
    kept = 0
    while kept < len(found.lead) and found.lead[kept] == one.ids[kept]:
        kept += 1
    assert kept == len(found.lead) or len(spelled(list(one.ids[: kept + 1]))) > one.span[0]  # own tokens, as far as they go


@pytest.mark.parametrize("spelling", ["as the tokenizer", "byte by byte"])
def test_an_answer_that_is_the_reference_leaves_the_tokens_as_they_were_sampled(spelling: str) -> None:
    text = r"so \boxed{12} is it"
    plain = MERGED.encode(text)
    ids = plain if spelling == "as the tokenizer" else [one for char in text for one in MERGED.encode(char)]
    assert (ids == plain) is (spelling == "as the tokenizer")
    found = replaced(MERGED, answered(text, "12", "12", ids))
    assert found is not None and found.lead + found.scored == ids[: len(found.lead) + len(found.scored)]
    assert "12" in spelled(found.scored)


def test_a_token_across_the_border_is_spelled_anew_with_the_reference() -> None:
    tokens = Tokens.of(byte_tokenizer(merged=["it isyes", "no"]))
    ids = tokens.encode("it isyes")
    assert [str(tokens.tokenizer.decode([one])) for one in ids] == ["it", " isyes"]
    found = replaced(tokens, Answered(ids, "it isyes", (5, 8), 0, "no"))
    assert found is not None and found.lead[:1] == ids[:1]
    assert str(tokens.tokenizer.decode(found.lead + found.scored)) == "it isno"
    again = replaced(tokens, Answered(ids, "it isyes", (5, 8), 0, "yes"))
    assert again is not None and again.lead + again.scored == ids


@pytest.mark.parametrize(("given", "lead", "scored"), [(0.0, "", "3*4"), (0.5, "9", "*4"), (0.9, "9-", "4")])
def test_own_tokens_in_the_place_of_the_references_first(given: float, lead: str, scored: str) -> None:
    found = replaced(DIGITS, Answered(DIGITS.encode("9-5"), "9-5", (0, 3), 0, "3*4"), given)
    assert found is not None and (found.lead, found.scored) == (DIGITS.encode(lead), DIGITS.encode(scored))


def test_a_completion_without_an_answer_is_not_replaced() -> None:
    assert replaced(DIGITS, Answered([3, 4], "12", None, 0, "7")) is None


def by_hand(model: PreTrainedModel, before: list[int], scored: list[int], temperature: float) -> torch.Tensor:
    """Log-probs of `scored` behind `before`, one plain forward."""
    logits = model(torch.tensor([before + scored])).logits[0, len(before) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)[range(len(scored)), scored].detach()


PROMPTS = [DIGITS.encode("3 4=12:"), DIGITS.encode("9 5=4:")]
ROWS = [("3*4", 0, "4*3"), ("3+4", 0, "4*3"), ("", 0, "4*3"), ("9-5", 1, "9-5"), ("95-", 1, "9-5")]


@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize(("baseline", "given"), [("initial", 0.0), ("current", 0.5), ("none", 0.5)])
def test_each_row_is_one_plain_forward(baseline: Any, given: float, at_once: int | None) -> None:
    policy, initial = tiny_llama(), tiny_llama(initializer_range=0.1)
    source = replace(ReferenceProbability(), debias=baseline, given=given, ngram=2)
    rows = [Answered(DIGITS.encode(t), t, (0, len(t)) if t else None, p, ref) for t, p, ref in ROWS]
    found = substituted(source, policy, initial, DIGITS, PROMPTS, rows, temperature=0.7, at_once=at_once)
    assert found.formed.tolist() == [True, True, False, True, True] and found.repeated.tolist() == [1, 1, 0, 1, 1]
    assert not found.logps.requires_grad and (found.before is None) is (baseline == "none")
    for i, one in enumerate(rows):
        whole = replaced(DIGITS, one, given)
        if whole is None:
            assert not found.mask[i].any()
            continue
        wanted = by_hand(policy, PROMPTS[one.prompt] + whole.lead, whole.scored, 0.7)
        torch.testing.assert_close(found.logps[i][found.mask[i]], wanted, rtol=0, atol=5e-6)
        if found.before is not None:
            bare = by_hand(initial if baseline == "initial" else policy, PROMPTS[one.prompt], whole.scored, 0.7)
            torch.testing.assert_close(found.before[i][found.mask[i]], bare, rtol=0, atol=5e-6)


def test_the_first_weights_are_asked_for_by_name() -> None:
    with pytest.raises(DataError, match="pass that model as initial="):
        substituted(ReferenceProbability(), tiny_llama(), None, DIGITS, PROMPTS, [Answered([3], "1", (0, 1), 0, "4*3")])


def test_rows_of_one_problem_without_reasoning_earn_one_number_exactly() -> None:
    """Why Countdown needs `given`: where all is answer, the reward says nothing of the completion."""
    rows = [Answered(DIGITS.encode(t), t, (0, 3), 0, "4*3") for t in ("3*4", "3+4", "4-3")]
    policy = tiny_llama()
    paid = ReferenceProbability().rewards_of(substituted(ReferenceProbability(), policy, policy, DIGITS, PROMPTS, rows))
    assert paid.rewards.unique().numel() == 1 and not paid.support.any()  # r = r' too
