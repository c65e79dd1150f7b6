"""Borrowed states: none of them is the policy and all of them the base, bit for bit; some, the law that enumeration gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from conftest import tiny_llama
from models.generation_common import LAW, TOKENS
from models.sampler_common import EOS, PROMPTS, build, gpt2, llama
from models.sampler_common import run as drawn_by
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.borrowing import BorrowingGenerator, classes_of
from sage_rlvr.models.generation import Decoding, Generation, Request, SamplerGenerator
from sage_rlvr.models.sampler import Lender, prefill
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.countdown import Countdown

REQUESTS = [Request(tuple(TOKENS.encode(text)), tuple(range(9 * i, 9 * i + 9))) for i, text in enumerate(("3 5=8:", "2 7 11=20:"))]
COLD = Decoding(temperature=0.6, top_p=0.9, max_new_tokens=8)


def pair(make: Callable[[], PreTrainedModel]) -> tuple[PreTrainedModel, PreTrainedModel]:
    policy, base = build(make), build(make)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy, base


def tiny() -> PreTrainedModel:
    return tiny_llama()


def stock() -> PreTrainedModel:
    return gpt2(vocab_size=len(TOKENS.tokenizer), eos_token_id=TOKENS.eos_id, pad_token_id=TOKENS.pad_id)


def bits(rows: list[list[Generation]]) -> list[Any]:
    return [(row.text, row.token_ids.tolist(), row.logps.tolist(), row.finish) for some in rows for row in some]  # type: ignore[union-attr]


@pytest.mark.parametrize("law", [LAW, COLD], ids=["plain", "cold and cut"])
@pytest.mark.parametrize(("make", "together"), [(tiny, True), (tiny, False), (stock, False)])
def test_none_is_the_policy_and_all_is_the_base_bit_for_bit(
    make: Callable[[], PreTrainedModel], together: bool, law: Decoding
) -> None:
    policy, base = pair(make)
    ends = {False: policy, True: base}
    alone = {at: bits(SamplerGenerator(model, TOKENS, law, together=together).generate(REQUESTS)) for at, model in ends.items()}
    assert alone[False] != alone[True]
    for at in ends:
        made = BorrowingGenerator(policy, TOKENS, law, base, lambda text, at=at: at, together=together)
        assert bits(made.generate(REQUESTS)) == alone[at]


@torch.no_grad()
def test_each_token_is_drawn_from_whose_state_it_is() -> None:
    """Every log-prob is the one that a plain forward of the policy, or of the base, gives on the same text."""
    policy, base = pair(tiny)
    asked: list[str] = []
    task = Countdown()

    def at(text: str) -> bool:
        asked.append(text)
        return task.state_class(text).endswith("operator")

    rows = BorrowingGenerator(policy, TOKENS, LAW, base, at).generate(REQUESTS)
    seen = Counter()
    for request, some in zip(REQUESTS, rows, strict=True):
        for row in some:
            ids = np.asarray(row.token_ids).tolist()
            whole = torch.tensor([[*request.prompt, *ids]])
            laws = [model(whole).logits[0].log_softmax(-1) for model in (policy, base)]
            for place, token in enumerate(ids):
                lent = task.state_class(TOKENS.tokenizer.decode(ids[:place])).endswith("operator")
                seen[lent] += 1
                wanted = float(laws[lent][len(request.prompt) + place - 1, token])
                assert float(np.asarray(row.logps)[place]) == pytest.approx(wanted, abs=2e-5)
    assert min(seen[True], seen[False]) > 10 and "" in asked


@torch.no_grad()
def test_the_law_is_that_of_enumeration() -> None:
    """All texts of two tokens over a small vocabulary: the first from the policy, the second from the base behind an even token."""
    policy, base = pair(lambda: llama(vocab_size=6, num_hidden_layers=1))
    prompt, count = [2, 3], 4000
    ready = prefill(base, [prompt])
    lender = Lender(base, ready, str, lambda text: text != "" and int(text[-1]) % 2 == 0)
    made = drawn_by(policy, [prompt], group_size=count, max_new_tokens=2, lender=lender, eos_id=EOS)
    found = Counter(tuple(row[:n]) for row, n in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True))
    first = policy(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    wanted: dict[tuple[int, ...], float] = {(EOS,): float(first[EOS])}
    for a in (token for token in range(6) if token != EOS):
        second = (base if a % 2 == 0 else policy)(torch.tensor([[*prompt, a]])).logits[0, -1].softmax(-1)
        wanted |= {(a, b): float(first[a] * second[b]) for b in range(6)}
    assert sum(wanted.values()) == pytest.approx(1, abs=1e-5) and set(found) <= set(wanted)
    distance = sum(abs(found[text] / count - p) for text, p in wanted.items()) / 2
    assert distance < 0.05  # of the two policies' own laws more than that
    own = {(EOS,): float(first[EOS])}
    for a in (token for token in range(6) if token != EOS):
        second = policy(torch.tensor([[*prompt, a]])).logits[0, -1].softmax(-1)
        own |= {(a, b): float(first[a] * second[b]) for b in range(6)}
    assert sum(abs(found[text] / count - p) for text, p in own.items()) / 2 > 0.1


def test_a_lender_that_does_not_fit_is_an_error() -> None:
    policy, base = pair(llama)
    ready = prefill(base, PROMPTS)
    lender = Lender(base, ready, str, lambda text: True)
    with pytest.raises(DataError, match="ready is of 3 prompts"):
        drawn_by(policy, PROMPTS[:1], lender=lender)
    with pytest.raises(DataError, match="trace=True with a lender"):
        drawn_by(policy, PROMPTS, lender=lender, trace=True)
    other = gpt2()
    with pytest.raises(DataError, match="prompts of one length"):
        drawn_by(policy, PROMPTS, lender=Lender(other, prefill(other, PROMPTS), str, lambda text: True))
    with pytest.raises(ConfigError, match="21 and 22 words"):
        BorrowingGenerator(policy, TOKENS, LAW, llama(vocab_size=22), lambda text: True)


def test_classes_are_those_of_the_task_in_its_order() -> None:
    task = Countdown()
    assert classes_of(task, ("operator", "first operator")) == ("first operator", "operator")
    with pytest.raises(ConfigError, match=r"operatr.*'operator'"):
        classes_of(task, ("operatr",))
    with pytest.raises(ConfigError, match="word_problems has no classes of states"):
        classes_of(task_named("word_problems"), ("operator",))
