"""Knights and Knaves: who is a knight and who a knave, by the conclusion of a completion.

    CONCLUSION:
    (1) Zoey is a knave
    (2) Oliver is a knight

"published" is the rule of Xie et al., On Memorization of Large Language Models in Logical Reasoning (arXiv 2410.23123):
the text after the first "CONCLUSION:" must contain each person's identity as a phrase, no "if", and no item beyond the last person;
without that word a text with all the item numbers is read completely. The phrases may be anywhere, so an answer that calls
everybody both is right under it. "strict" requires exactly one item per person after the last "CONCLUSION:", which no contradiction
passes: the rule for training. Its items are (1), 1., or a list of bullets.

Both read a text without its Markdown emphasis (**Zoey** is a *knave*); the published code does not remove it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.verdict import Verdict

Rule = Literal["published", "strict"]
HEADING = "CONCLUSION:"
MAX_COMPLETION = 1_000_000  # characters that are read
_NEXT_QUESTION = "### Question"  # a base model continues with another question
_ENDS = ("### Reason", "Let's think step by step again", "let's go back and check", "###")
_ITEM = re.compile(r"\(([0-9]{1,2})\)\s*(\S[^()\n]*?) is a (knight|knave)\b")
_NUMBERED = re.compile(r"^[ \t]*([0-9]{1,2})[.):][ \t]*(\S[^()\n]*?) is a (knight|knave)\b", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*()[-+\u2022\u2013][ \t]*(\S[^()\n]*?) is a (knight|knave)\b", re.MULTILINE)
_STAR = re.compile(r"^([ \t]*)\*(?=[ \t])", re.MULTILINE)  # a bullet, not emphasis
_EMPHASIS = re.compile(r"[*_`]+")


def identity(name: str, knight: bool) -> str:
    """The phrase that is searched for: "Zoey is a knave"."""
    return f"{name} is a {'knight' if knight else 'knave'}"


def conclusion(names: Sequence[str], solution: Sequence[bool]) -> str:
    """The answer in the published format."""
    rows = (f"({i}) {identity(*pair)}" for i, pair in enumerate(zip(names, solution, strict=True), start=1))
    return "\n".join((HEADING, *rows))


def judge(names: Sequence[str], solution: Sequence[bool], completion: str, rule: Rule = "published") -> Verdict:
    """Right iff the completion concludes that person i is a knight iff solution[i]. Never raises an error on a text.

    Reasons. wrong: "no conclusion", "conditional", "more items than people", "identity", "items" (strict only).
    undecided: "not a text", "completion of more than N characters".
    """
    if rule not in get_args(Rule):
        raise ConfigError(f"rule: {rule!r} is none of {', '.join(get_args(Rule))}.")
    if not isinstance(completion, str):
        return Verdict("undecided", "not a text")
    if len(completion) > MAX_COMPLETION:
        return Verdict("undecided", f"completion of more than {MAX_COMPLETION} characters")
    completion = _EMPHASIS.sub("", _STAR.sub(r"\1-", completion.split(_NEXT_QUESTION, 1)[0]))
    return (_published if rule == "published" else _strict)(names, solution, completion)


def _published(names: Sequence[str], solution: Sequence[bool], text: str) -> Verdict:
    concluded = text.split(HEADING, 2)[1:2]
    if concluded and concluded[0]:
        text = concluded[0]
    elif not all(f"({i})" in text for i in range(1, len(names) + 1)):
        return Verdict("wrong", "no conclusion")
    for end in _ENDS:
        text = text.split(end, 1)[0]
    if f"({len(names) + 1})" in text:
        return Verdict("wrong", "more items than people")
    if "if" in text:
        return Verdict("wrong", "conditional")
    correct = all(identity(*pair) in text for pair in zip(names, solution, strict=True))
    return Verdict("right", "right") if correct else Verdict("wrong", "identity")


def _strict(names: Sequence[str], solution: Sequence[bool], text: str) -> Verdict:
    _, heading, text = text.rpartition(HEADING)
    if not heading:
        return Verdict("wrong", "no conclusion")
    items = _ITEM.findall(text) or _NUMBERED.findall(text)
    wanted: list[tuple[int, str]] = list(enumerate(names, start=1))
    if not items:  # bullets have no numbers, and so no order
        items = sorted(_BULLET.findall(text), key=lambda item: item[1])
        wanted = sorted(wanted, key=lambda pair: pair[1])
        items = [(str(i), *item[1:]) for (i, _), item in zip(wanted, items, strict=False)] if len(items) == len(wanted) else []
    if [(int(i), name) for i, name, _ in items] != wanted:
        return Verdict("wrong", "items")
    if text.count(" is a kn") != len(names):
        return Verdict("wrong", "items")  # a second identity next to an item
    correct = all((kind == "knight") == solution[int(i) - 1] for i, _, kind in items)
    return Verdict("right", "right") if correct else Verdict("wrong", "identity")


__all__ = ["HEADING", "Rule", "conclusion", "identity", "judge"]
