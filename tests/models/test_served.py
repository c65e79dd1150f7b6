"""What a server sends is checked before it is used: each bad field is refused with its request, place and value."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import DataError
from sage_rlvr.models.served import completion_of

GOOD: dict[str, Any] = {
    "choices": [
        {
            "text": "3+4", "finish_reason": "stop", "token_ids": [4, 5, 1],
            "logprobs": {"token_logprobs": [-0.5, 0.0, -30]},
        }
    ],
    "usage": {"completion_tokens": 3},
}  # fmt: skip
LIMIT, VOCABULARY = 8, 20


def read(answer: Any) -> Any:
    return completion_of(answer, "request 7", limit=LIMIT, vocabulary=VOCABULARY)


def changed(path: tuple[Any, ...], value: Any) -> Any:
    """`GOOD` with another value at a place."""
    answer = copy.deepcopy(GOOD)
    tree = answer
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value
    return answer


CHOICE = ("choices", 0)
IDS, LOGPS = (*CHOICE, "token_ids"), (*CHOICE, "logprobs", "token_logprobs")


def test_a_good_answer_is_read() -> None:
    assert read(GOOD) == ("3+4", [4, 5, 1], [-0.5, 0.0, -30.0], "stop")
    assert read({"choices": [{"text": "", "finish_reason": "length"}]}) == ("", None, None, "length")
    nothing = {"token_ids": None, "logprobs": None}
    assert read({"choices": [{"text": "a", "finish_reason": "stop", **nothing}], "usage": None})[1:3] == (None, None)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("choices",), [], "choices"),
        (("choices",), None, "choices"),
        (("choices",), {}, "choices"),
        (("choices",), GOOD["choices"] * 2, "choices"),
        (CHOICE, "text", "choices[0]"),
        (CHOICE, {"finish_reason": "stop"}, "choices[0].text"),
        (CHOICE, {"text": "3"}, "choices[0].finish_reason"),
        ((*CHOICE, "text"), None, "choices[0].text"),
        ((*CHOICE, "text"), 3, "choices[0].text"),
        ((*CHOICE, "text"), ["3"], "choices[0].text"),
        ((*CHOICE, "finish_reason"), None, "choices[0].finish_reason"),
        ((*CHOICE, "finish_reason"), "abort", "choices[0].finish_reason"),
        ((*CHOICE, "finish_reason"), ["stop"], "choices[0].finish_reason"),
        (IDS, "abc", "choices[0].token_ids"),
        (IDS, [4, VOCABULARY, 1], "choices[0].token_ids[1]"),
        (IDS, [-1, 5, 1], "choices[0].token_ids[0]"),
        (IDS, [4, 5, "1"], "choices[0].token_ids[2]"),
        (IDS, [4, 5.0, 1], "choices[0].token_ids[1]"),
        (IDS, [4, True, 1], "choices[0].token_ids[1]"),
        (IDS, [4, None, 1], "choices[0].token_ids[1]"),
        (IDS, [4, 10**30, 1], "choices[0].token_ids[1]"),
        (IDS, [4] * (LIMIT + 1), "choices[0].token_ids"),
        (IDS, [4, 1], "choices[0].logprobs.token_logprobs"),
        ((*CHOICE, "logprobs"), 5, "choices[0].logprobs"),
        (LOGPS, -1.0, "choices[0].logprobs.token_logprobs"),
        (LOGPS, [-1.0], "choices[0].logprobs.token_logprobs"),
        (LOGPS, [-1.0, math.nan, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, -math.inf, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, math.inf, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, -9999.0, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [3.0, -1.0, -1.0], "choices[0].logprobs.token_logprobs[0]"),
        (LOGPS, [-1.0, "-1.0", -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, None, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, False, -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (LOGPS, [-1.0, -(10**400), -1.0], "choices[0].logprobs.token_logprobs[1]"),
        (("usage",), "3", "usage"),
        (("usage",), {"completion_tokens": LIMIT + 1}, "usage.completion_tokens"),
        (("usage",), {"completion_tokens": "3"}, "usage.completion_tokens"),
        (("usage",), {"completion_tokens": 5}, "usage.completion_tokens"),
        (("usage",), {"completion_tokens": 0}, "usage.completion_tokens"),
        ((*CHOICE, "finish_reason"), "length", "choices[0].finish_reason"),
        ((*CHOICE, "text"), "\ud800", "choices[0].text"),
    ],
)
def test_a_bad_field_is_refused_with_its_request_and_place(path: tuple[Any, ...], value: Any, place: str) -> None:
    with pytest.raises(DataError) as error:
        read(changed(path, value))
    assert str(error.value).startswith(f"request 7: {place} = ")


def test_more_log_probs_than_tokens_may_be_are_refused_without_ids() -> None:
    answer = changed(LOGPS, [-1.0] * (LIMIT + 1))
    del answer["choices"][0]["token_ids"]
    with pytest.raises(DataError, match="token_logprobs"):
        read(answer)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["choices", "text", "token_ids", "logprobs", "token_logprobs"]), inner, max_size=3),
    max_leaves=8,
)
PLACES = [("choices",), CHOICE, (*CHOICE, "text"), (*CHOICE, "finish_reason"), IDS, (*CHOICE, "logprobs"), LOGPS, ("usage",)]


@pytest.mark.slow
@given(st.sampled_from(PLACES), TREES)
def test_whatever_stands_in_a_field_is_read_as_a_sample_or_refused(path: tuple[Any, ...], value: Any) -> None:
    try:
        text, ids, logps, finish = read(json.loads(json.dumps(changed(path, value))))
    except DataError:
        return
    assert isinstance(text, str) and finish in ("stop", "length")
    assert ids is None or (len(ids) <= LIMIT and all(type(one) is int and 0 <= one < VOCABULARY for one in ids))
    assert logps is None or all(math.isfinite(one) and one <= 1e-3 for one in logps)
    assert None in (ids, logps) or len(ids) == len(logps)
