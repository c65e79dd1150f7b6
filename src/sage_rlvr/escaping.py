"""Escape untrusted text for the terminal and for Markdown."""

from __future__ import annotations

import re
import unicodedata


def visible(text: str) -> str:
    """Return text that cannot disturb its surroundings, on a page or a terminal.

    Control characters (those that begin a terminal's commands), marks that turn the direction of writing and halves of surrogate
    pairs are spelled out, as in "[U+202E]"; line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_SPELLED)


class _Spelled(dict[int, str]):
    """Code of a character -> how it is shown; filled as characters occur."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = self[code] = character if character in "\n\t" or not _disturbs(character) else f"[U+{code:04X}]"
        return shown


_SPELLED = _Spelled()


def _disturbs(character: str) -> bool:
    if character in "\u200c\u200d\u00ad":  # the joiners of emoji and of Indic scripts and soft hyphens do no harm
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def escaped(value: object) -> str:
    """Return one line of Markdown that shows the value as it is."""
    flat = " ".join(visible(str(value)).split())
    safe = re.sub(r"([\\`*\[\]#|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", flat).replace("&", "&amp;")
    safe = re.sub("^>", "&gt;", re.sub("<(?! )", "&lt;", safe))  # no quotation begins
    return re.sub(r"^(\d{0,9})([-+.)=])(?=[-=]|\s|$)", r"\1\\\2", safe)  # no list, rule or heading begins


__all__ = ["escaped", "visible"]
