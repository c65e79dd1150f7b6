"""Text that an environment, a sandbox or a teacher brings from outside, made fit to stand in a prompt.

A policy's own program decides what a sandbox reports. Three things in such text must not reach the tokenizer as they are: what has
no encoding (lone surrogates, characters outside the vocabulary), which would end the run; control characters; and special tokens
spelled out, which the tokenizer would make real, so that a program could end a turn and begin another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any


def encodable(text: str, tokenizer: Any = None) -> str:
    r"""The text with what a prompt cannot hold as escapes, as in "\xe9", and special tokens broken by a space, as in "< |im_end|>".

    tokenizer: whose vocabulary and special tokens count; None: control characters and surrogates alone.
    """
    kept = {c: _kept(c, tokenizer) for c in set(text)}
    plain = "".join(c if kept[c] else _escape(c) for c in text)
    return plain if tokenizer is None else _broken(plain, _specials(tokenizer))


def _kept(character: str, tokenizer: Any) -> bool:
    if character == "\n" or " " <= character <= "~":  # what a tokenizer lacks of these is reported as before, by name
        return True
    if unicodedata.category(character) == "Cs" or (unicodedata.category(character) == "Cc" and character != "\t"):
        return False
    if tokenizer is None:
        return True
    try:
        ids = tokenizer(character, add_special_tokens=False)["input_ids"]
    except Exception:  # tokenizers raises plain Exceptions
        return False
    return bool(ids) and tokenizer.unk_token_id not in ids


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _specials(tokenizer: Any) -> list[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    return sorted((one for one in found if one.strip()), key=len, reverse=True)


def _broken(text: str, specials: Iterable[str]) -> str:
    for special in specials:
        if special in text:
            text = text.replace(special, f"{special[0]} {special[1:]}" if len(special) > 1 else _escape(special))
    return text


__all__ = ["encodable"]
