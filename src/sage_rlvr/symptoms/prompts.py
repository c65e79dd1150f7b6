"""Checks of the prompt as the policy reads it: start token, chat template, generation prompt, thinking, length, padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import FirstRollout

MARK = "qzxjkv"  # placeholder for a user's message
DIGITS = "7913"  # for tokenizers without letters


@dataclass(frozen=True)
class Frame:
    """The chat template's text around one user's message. before, after: with the assistant's turn opened; closed: the text after
    the message without that."""

    before: str
    after: str
    closed: str

    @property
    def opening(self) -> str:
        """The generation prompt."""
        return self.after[len(self.closed) :] if self.after.startswith(self.closed) else self.after


def frame_of(tokenizer: Any, options: Any) -> Frame | None:
    """The frame of a tokenizer's chat template; None without one, or if it does not write the message."""
    plain = getattr(tokenizer, "tokenizer", tokenizer)
    if getattr(plain, "chat_template", None) is None:
        return None
    for mark in (MARK, DIGITS):
        messages = [{"role": "user", "content": mark}]
        try:
            opened, closed = (
                plain.apply_chat_template(messages, tokenize=False, add_generation_prompt=wanted, **dict(options))
                for wanted in (True, False)
            )
        except Exception:  # a template is a foreign program; `sage_rlvr.tasks.chat` raises an error for a broken one
            return None
        if mark in opened and mark in closed:
            before, _, after = opened.rpartition(mark)
            return Frame(before, after, closed.rpartition(mark)[2])
    return None


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the prompts."""
    plain = getattr(first.tokenizer, "tokenizer", first.tokenizer)
    yield from _start(first, plain)
    frame = frame_of(first.tokenizer, first.template_options)
    if frame is not None:
        yield from _template(first, frame)
    yield from _room(first)
    if first.padding_side != "left":
        yield Finding(
            cause="padding-side",
            severity="warning",
            sentence=f"the tokenizer pads on the {first.padding_side}: behind a short prompt of a batch the policy reads padding, "
            "and continues that",
            next_step="set tokenizer.padding_side = 'left' before you sample",
            evidence={"padding_side": first.padding_side},
        )


def _start(first: FirstRollout, tokenizer: Any) -> Iterator[Finding]:
    start = getattr(tokenizer, "bos_token_id", None)
    if start is None:
        return
    doubled = [one for one in first.prompts if one.ids[:2] == (start, start)]
    if doubled:
        yield Finding(
            cause="bos-doubled",
            severity="warning",
            sentence=f"{len(doubled)} of {len(first.prompts)} prompts begin with {tokenizer.bos_token!r} twice: the template "
            "writes one, and the tokenizer adds another",
            next_step="pass messages instead of a text that the template rendered, or tokenize with add_special_tokens=False",
            evidence={"first tokens": str(list(doubled[0].ids[:4]))},
            examples=(doubled[0].text[:80],),
        )


def _template(first: FirstRollout, frame: Frame) -> Iterator[Finding]:
    opening, head = frame.opening, frame.before[-24:]
    missing, closed, twice = [], [], []
    for one in first.prompts:
        text = one.text
        if one.given and not isinstance(one.given, str) and one.given[-1].get("role") == "assistant":
            continue  # a prefill
        ends = bool(frame.after) and text.rstrip().endswith(frame.after.strip())
        nested = (head.strip() and len(head) > 4 and f"{head}{frame.before}" in text) or text.endswith(frame.after + frame.after)
        doubled = bool(opening.strip()) and len(opening) > 4 and text.count(opening) > one.turns + 1 and one.turns == 0
        if frame.after.strip() and (nested or (doubled and isinstance(one.given, str))):
            twice.append(one)
        elif frame.after.strip() and not ends and opening.strip() and not text.rstrip().endswith(opening.strip()):
            (closed if frame.closed.strip() and text.rstrip().endswith(frame.closed.strip()) else missing).append(one)
    if twice:
        yield Finding(
            cause="template-twice",
            severity="warning",
            sentence=f"{len(twice)} of {len(first.prompts)} prompts have the chat template inside the chat template",
            next_step="pass the row's own words as messages; the trainer applies the template",
            examples=(twice[0].text[-150:],),
        )
    if closed:
        yield Finding(
            cause="generation-prompt-missing",
            severity="warning",
            sentence=f"{len(closed)} of {len(first.prompts)} prompts end behind the user's turn: the policy has to open its "
            f"own turn with {opening!r}, or writes another message of the user",
            next_step="render with add_generation_prompt=True, or pass messages",
            examples=(closed[0].text[-80:],),
        )
    if missing:
        given = "the rows give text" if isinstance(missing[0].given, str) else "the rows give messages"
        yield Finding(
            cause="template-missing",
            severity="warning",
            sentence=f"{len(missing)} of {len(first.prompts)} prompts do not end with what this tokenizer's chat template writes "
            f"({frame.after!r}); {given}",
            next_step="make the column prompt a list of messages ([{'role': 'user', 'content': ...}]); a base model without "
            "training on this template may ignore this",
            examples=tuple(one.text[-80:] for one in missing[:2]),
        )
    ended = [one for one in first.prompts if one.text.rstrip().endswith("</think>")]
    if ended:
        yield Finding(
            cause="thinking-off",
            severity="note",
            sentence=f"{len(ended)} of {len(first.prompts)} prompts end with </think>: the model answers without thinking",
            next_step="if it should think, set chat_template_kwargs {enable_thinking: true}",
            examples=(ended[0].text[-60:],),
        )


def _room(first: FirstRollout) -> Iterator[Finding]:
    longest, room = max(len(one.ids) for one in first.prompts), first.plan.positions
    if room is None or longest + first.limit <= room:
        return
    full = longest >= room
    yield Finding(
        cause="prompt-cut",
        severity="cannot learn" if full else "warning",
        sentence=f"the longest prompt has {longest:,} tokens; with {first.names.limit} = {first.limit:,} that is more than the "
        "model's "
        f"{room:,} positions",
        next_step=f"lower {first.names.limit}, leave out long rows, or use a model with more positions",
        evidence={"prompt tokens": longest, "positions": room},
    )


__all__ = ["Frame", "found", "frame_of"]
