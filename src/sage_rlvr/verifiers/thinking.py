r"""The thinking of a completion, which its answer follows. Text only, linear in its length.

    <think>maybe \boxed{4}                            -> None    unfinished: there is no answer
    <think>maybe 4</think> \boxed{5}                  -> 22      the first place of an answer
    <|channel|>analysis ... <|channel|>final ...      -> after the second mark
"""

from __future__ import annotations

import re
from functools import lru_cache

from sage_rlvr.errors import ConfigError

KNOWN = "think"
"""The tag that means all known marks."""
_CHANNEL = (r"<\|channel\|>\s*analysis(?![a-z])", r"<\|channel\|>\s*final(?![a-z])(?:\s*<\|message\|>)?")
_MARKS = (
    *((f"<{tag}>", f"</{tag}>") for tag in (KNOWN, "thinking", "thought", "reasoning", "seed:think")),
    (r"\[THINK\]", r"\[/THINK\]"),
    ("◁think▷", "◁/think▷"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    _CHANNEL,
)
"""(opening, closing) patterns of known models, with their capitalization."""
_TAG = re.compile(r"(?P<square>\[)?<?/?(?P<name>[\w:.|-]+)>?\]?")


def _marks_of(thinking: str) -> tuple[tuple[str, str], ...]:
    """The patterns of a setting: `KNOWN` means all known ones, another name its tag, which may be written with
    its brackets."""
    tag = _TAG.fullmatch(thinking)
    if tag is None:
        raise ConfigError(
            f"thinking: {thinking!r} is no tag; write its name, such as {KNOWN} for <{KNOWN}> and the other marks that are known, "
            "or an empty text to read completions from their beginning"
        )
    name = re.escape(tag["name"])
    if tag["square"]:
        return ((rf"\[{name}\]", rf"\[/{name}\]"),)
    return _MARKS if name == KNOWN else ((f"<{name}>", f"</{name}>"),)


@lru_cache(maxsize=64)
def _pattern(thinking: str) -> re.Pattern[str]:
    """All marks of a setting; the groups alternate between the opening and the closing mark of a kind."""
    return re.compile("|".join(f"({opening})|({closing})" for opening, closing in _marks_of(thinking)))


def check_thinking(thinking: str) -> None:
    """Raise ConfigError for an invalid setting."""
    if thinking:
        _pattern(thinking)


def behind_thinking(completion: str, thinking: str = KNOWN, in_thinking: bool = False) -> int | None:
    """Return the first character after the thinking, 0 without any; None if the thinking is not ended.

    thinking     its tag; "think" means all known marks; "" for texts that are read from their beginning
    in_thinking  True if the prompt opens the thinking, as some chat templates do: without a closing mark all is thinking

    One kind of mark counts: the one that the completion begins with, else the first that closes. The answer may follow its last
    closing mark if it is not opened again; a text may mention marks. Raises ConfigError for a tag that can never match.
    """
    if not thinking:
        return 0
    pattern = _pattern(thinking)
    first = pattern.match(completion, len(completion) - len(completion.lstrip()))
    counts = first.lastindex if first and first.lastindex and first.lastindex % 2 else 0  # the opening group of the kind
    last: dict[int, re.Match[str]] = {}  # the last mark of each kind, by its opening group
    closed: dict[int, int] = {}  # the end of the last closing mark of each kind, the kind that closes first in front
    for mark in pattern.finditer(completion):
        group = mark.lastindex or 0
        kind = group if group % 2 else group - 1
        last[kind] = mark
        if group != kind:
            closed[kind] = mark.end()
    counts = counts or next(iter(closed), 0)
    if not counts:
        return None if last or in_thinking else 0
    return closed[counts] if counts in closed and last[counts].end() == closed[counts] else None


__all__ = ["KNOWN", "behind_thinking", "check_thinking"]
