"""Checks of the responses of a completions server, made before anything of them is used or stored.

Each check returns the value in its own type, or raises DataError with the request, the field, the value and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sage_rlvr.errors import DataError, short

ROUNDING = 1e-3  # nats above 0 that a server's arithmetic may leave on a log-prob
IMPOSSIBLE = -9999.0  # vLLM's servers write this instead of -infinity, which JSON does not have
Decode = Callable[[Sequence[int]], Sequence[str]]
Finish = Literal["stop", "length"]
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}
FINISHES |= {"eos_token": "stop", "stop_sequence": "stop", "end_turn": "stop", "max_tokens": "length"}  # of other servers


def refusal(request: str, name: str, value: object, expected: str) -> DataError:
    """Return the error for a field of a response. request: the request; name: path of the field, as choices[0].text."""
    return DataError(
        f"{request}: {name} = {short(value)}: expected {expected}; no sample of this call was stored. Fix or update the server, "
        "then run the same command again, which keeps the committed samples"
    )


def only_choice(answer: Mapping[str, Any], request: str) -> Mapping[str, Any]:
    """Return the one choice of a response to a request for one completion."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise refusal(request, "choices", choices if "choices" in answer else answer, "a list with one completion")
    if len(choices) != 1:
        raise refusal(request, "choices", choices, f"one completion and not {len(choices)}")
    if not isinstance(choices[0], dict):
        raise refusal(request, "choices[0]", choices[0], "an object")
    return choices[0]


def checked_text(value: object, name: str, request: str) -> str:
    """Return the text of a completion."""
    if not isinstance(value, str):
        raise refusal(request, name, value, "a text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise refusal(request, name, value, "a text of whole characters; it has a lone surrogate, which no file can hold")
    return value


def check_spelling(text: str, ids: Sequence[int], decode: Decode, name: str, request: str) -> None:
    """Raise DataError if a text is not that of its token ids. decode: ids -> the valid texts, such as with and without the end
    token.

    Spaces and incomplete characters are ignored: servers differ in these.
    """
    right = decode(ids)
    if _bare(text) not in map(_bare, right):
        raise refusal(
            request, name, text, f"{short(right[0])}, the text of its token ids by the policy's tokenizer (is it another model?)"
        )


def _bare(text: str) -> str:
    return "".join(text.replace("\ufffd", "").split())


def checked_finish(value: object, name: str, request: str) -> Finish:
    """Return why a completion ended: "stop" or "length". Anything else, such as "abort", is not a sample of the policy."""
    if isinstance(value, str) and value in FINISHES:
        return FINISHES[value]
    raise refusal(request, name, value, "'stop' or 'length' (was the request aborted?)")


def checked_ids(value: object, name: str, request: str, *, limit: int, vocabulary: int) -> list[int] | None:
    """Return token ids (T,) of a completion; None if the server sends none. limit: tokens at most; vocabulary: ids are below it."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise refusal(request, name, value, "a list of token ids")
    checked_count(len(value), name, request, limit)
    for place, one in enumerate(value):
        if type(one) is not int or not 0 <= one < vocabulary:
            raise refusal(request, f"{name}[{place}]", one, f"a token id of the policy, 0 to {vocabulary - 1}")
    return value


def checked_count(count: int, name: str, request: str, limit: int) -> None:
    """Raise DataError for more tokens than were asked for."""
    if count > limit:
        raise refusal(request, name, f"{count:,} tokens", f"at most max_tokens = {limit:,}")


def checked_logps(value: object, name: str, request: str, *, count: int | None, limit: int) -> list[float] | None:
    """Return log-probs (T,) in nats of the sampled tokens; None if the server sends none.

    count: of the token ids, None if not known.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise refusal(request, name, value, "a list of log-probs")
    if count is not None and len(value) != count:
        raise refusal(request, name, f"{len(value)} numbers", f"one for each of the {count} token ids")
    checked_count(len(value), name, request, limit)
    for place, one in enumerate(value):
        if type(one) not in (int, float) or not IMPOSSIBLE < one <= ROUNDING:  # NaN is in no range
            raise refusal(request, f"{name}[{place}]", one, "the log-prob of a token that was drawn, a finite number of at most 0")
    return [float(one) for one in value]


def checked_usage(answer: Mapping[str, Any], request: str, limit: int) -> int | None:
    """Return the server's token count; None if it sends none. Raise DataError for more than requested, or not an integer."""
    usage = answer.get("usage")
    if usage is None:
        return None
    if not isinstance(usage, dict):
        raise refusal(request, "usage", usage, "an object")
    count = usage.get("completion_tokens")
    if count is None:
        return None
    if type(count) is not int or count < 0:
        raise refusal(request, "usage.completion_tokens", count, "a number of tokens")
    checked_count(count, "usage.completion_tokens", request, limit)
    return count


def check_finish(finish: Finish, count: int | None, usage: int | None, request: str, limit: int) -> None:
    """Raise DataError if a completion was cut before its limit, or if the server counts other tokens than it sent.

    count: of the tokens that were sent, None if they were not. The end token may be counted and not sent, or the reverse.
    """
    if count is not None and usage is not None and abs(count - usage) > (finish == "stop"):
        raise refusal(request, "usage.completion_tokens", usage, f"the number of the tokens that were sent, {count}")
    known = usage if count is None else count
    if finish == "length" and known is not None and known < limit:
        raise refusal(
            request, "choices[0].finish_reason", f"'length' after {known:,} tokens",
            f"max_tokens = {limit:,} of them (is the server's own limit of prompt and completion together lower?)",
        )  # fmt: skip


def checked_part(parent: Mapping[str, Any], name: str, path: str, request: str) -> Mapping[str, Any]:
    """Return an object within a response; an empty one if it is missing or null."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refusal(request, path, value, "an object")
    return value


def completion_of(
    answer: Mapping[str, Any],
    request: str,
    *,
    limit: int,
    vocabulary: int,
    decode: Decode | None = None,
) -> tuple[str, list[int] | None, Sequence[float] | None, Finish]:
    """Return text, token ids, log-probs and finish of a response of /v1/completions to a request for one completion.

    Args:
        answer: the response.
        request: its name, for messages.
        limit: tokens at most.
        vocabulary: ids are below it; None if not known.
        decode: see `check_spelling`; None: the text is not compared with the token ids.
    """
    choice = only_choice(answer, request)
    usage = checked_usage(answer, request, limit)
    text = checked_text(choice.get("text"), "choices[0].text", request)
    finish = checked_finish(choice.get("finish_reason"), "choices[0].finish_reason", request)
    ids = checked_ids(choice.get("token_ids"), "choices[0].token_ids", request, limit=limit, vocabulary=vocabulary)
    logprobs = checked_part(choice, "logprobs", "choices[0].logprobs", request)
    count = None if ids is None else len(ids)
    logps = checked_logps(
        logprobs.get("token_logprobs"), "choices[0].logprobs.token_logprobs", request, count=count, limit=limit
    )
    check_finish(finish, count if logps is None else len(logps), usage, request, limit)
    if ids is not None and decode is not None:
        check_spelling(text, ids, decode, "choices[0].text", request)
    return text, ids, logps, finish


def chat_completion_of(answer: Mapping[str, Any], request: str, *, limit: int) -> tuple[str, Finish]:
    """Return text and finish of a response of /v1/chat/completions to a request for one completion.

    Thinking that the server splits off (`reasoning_content`, or `reasoning`) is put back before the text in <think> tags.
    """
    choice = only_choice(answer, request)
    usage = checked_usage(answer, request, limit)
    message = checked_part(choice, "message", "choices[0].message", request)
    finish = checked_finish(choice.get("finish_reason"), "choices[0].finish_reason", request)
    check_finish(finish, None, usage, request, limit)
    name = next((one for one in ("reasoning_content", "reasoning") if message.get(one) is not None), None)
    if name is None:
        return checked_text(message.get("content"), "choices[0].message.content", request), finish
    thinking = checked_text(message[name], f"choices[0].message.{name}", request)
    if message.get("content") is None:  # cut before the thinking ended
        return f"<think>{thinking}", finish
    return f"<think>{thinking}</think>{checked_text(message['content'], 'choices[0].message.content', request)}", finish
