"""Checks of the completions in a log: prompts with a start token or a template too many, and golds that no reward is paid for.

TRL's tables contain golds if the reward function writes them (`log_extra("gold", answer)`); verl's dumps always do.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from sage_rlvr.symptoms.finding import Finding, shortened
from sage_rlvr.symptoms.logs.curves import Curves
from sage_rlvr.symptoms.logs.table import CompletionRow
from sage_rlvr.verifiers.answers import bare, last_number, marked_span, rational
from sage_rlvr.verifiers.countdown import parse

START = re.compile(r"<s>|</s>|<bos>|<eos>|<\|begin_of_text\|>|<\|startoftext\|>|<\|endoftext\|>|<｜begin▁of▁sentence｜>|\[CLS\]")
"""Tokens that tokenizers put before a text."""
TURN = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|start\|>|<\|turn>|\[INST\]|<\|user\|>|<\|assistant\|>|<｜User｜>|<｜Assistant｜>"
)
"""Marks by which chat templates begin a turn."""
OPENED_TWICE = re.compile(r"(assistant|model)\b\W*\n\W*\1\b\W*$")
"""The end of a prompt whose template opened the assistant's turn twice, also where special tokens were left out."""
OTHER_TURN = re.compile(r"^\W{0,3}(user|assistant|human|system)\b:?\s*$", re.IGNORECASE | re.MULTILINE)
"""A line that begins another turn."""
NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
PROMPTS = 12  # different prompts below which golds are not compared
AGREE = 0.5  # share of a prompt's completions with one answer
DIFFERENT = 0.8  # share of different golds; with fewer, answers meet the golds of other rows by chance


def prompts(curves: Curves) -> Iterator[Finding]:
    """Start tokens and templates in the text that the trainer renders or tokenizes once more."""
    rows = curves.table.completions
    if not rows:
        return
    # verl renders its prompts before it writes them, without special tokens
    texts = [one for one in rows if not one.messages and curves.table.program == "TRL"]
    if texts and all(START.match(one.prompt) for one in texts):
        yield Finding(
            cause="bos-doubled",
            severity="warning",
            sentence="every prompt is a text that begins with a start token, to which a tokenizer adds its own",
            next_step="remove it from the text, or pass messages; sage-rlvr preflight prints the prompt's tokens",
            examples=(texts[0].prompt,),
            step=rows[0].step,
        )
    twice = [one for one in rows if (one.messages and TURN.search(one.prompt)) or OPENED_TWICE.search(one.prompt)]
    if len(twice) > 0.5 * len(rows):
        yield Finding(
            cause="template-twice",
            severity="warning",
            sentence=f"{len(twice) / len(rows):.0%} of the prompts contain a rendered template, which is rendered again: "
            f"{shortened(twice[0].prompt)}",
            next_step="pass the row's own words; the trainer applies the template",
            step=rows[0].step,
        )
    turns = [one for one in texts if not TURN.search(one.prompt) and (TURN.search(one.text) or OTHER_TURN.search(one.text))]
    if turns and len(turns) > 0.2 * len(rows):
        yield Finding(
            cause="template-missing",
            severity="warning",
            sentence=f"prompts have no template, and {len(turns) / len(rows):.0%} of the completions begin another turn: "
            f"{shortened(turns[0].text)}",
            next_step="pass prompts as lists of messages, so that the trainer applies the chat template",
            step=rows[0].step,
        )


# ---- golds


@dataclass(frozen=True)
class Asked:
    """A prompt with its gold: the answers of its completions, and the highest reward."""

    gold: str
    answers: Sequence[str]
    best: float

    @cached_property
    def number(self) -> str:
        """The gold's value, or the only number in it, such as 18 in "18 points"; "" without one."""
        value = rational(bare(self.gold))
        if value is not None:
            return str(value[0])
        return answer_of(self.gold) if len(NUMBER.findall(self.gold)) == 1 else ""

    @cached_property
    def agreed(self) -> str:
        """The answer that half of the completions have; "" without one."""
        (text, times) = Counter(self.answers).most_common(1)[0]
        return text if times >= AGREE * len(self.answers) else ""

    def share(self, gold: str) -> float:
        """The share of the completions with this answer."""
        return self.answers.count(gold) / len(self.answers)


def answer_of(text: str) -> str:
    """The answer of a completion or a gold as a plain number: the value of a text that is an expression, what a mark (box,
    `<answer>`, "the answer is") names, or the last number. "" without one."""
    parsed = parse(text.strip())
    if parsed is not None:
        return str(Fraction(parsed.num, parsed.den)) if parsed.den else ""
    span = marked_span(text)
    found = last_number(text if span is None else text[slice(*span)])[0]
    value = None if found is None else rational(bare(found))
    return "" if value is None else str(value[0])


def golds(curves: Curves) -> Iterator[Finding]:
    """Golds that a reward does not read, that are another column's, or another row's.

    Read from the first steps: later, a policy may have learned to answer a wrong gold."""
    listed = _asked(_first(curves.table.completions))
    if len(listed) < PROMPTS:
        return
    begins = curves.table.completions[0].step
    paid = any(one.best > 0 for one in listed)
    known = [one for one in listed if one.number]
    own = sum(one.share(one.number) for one in known) / len(listed)
    others = sum(one.share(other.number) for one, other in zip(known, [*known[1:], *known[:1]], strict=True)) / len(listed)
    if not paid and own > max(0.02, 2 * others):
        yield _unread(known, own, begins)
        return
    if len({one.gold for one in listed}) == 1:
        if _varied(listed):
            yield Finding(
                cause="wrong-column",
                severity="warning",
                sentence=f"{len(listed)} different prompts have one gold, {shortened(listed[0].gold)}, and completions answer "
                "differently",
                next_step="check which column the reward judges with: sage-rlvr preflight",
                step=begins,
            )
        return
    yield from _moved(listed, begins)


def _unread(known: Sequence[Asked], own: float, begins: int) -> Finding:
    """Golds whose number completions state, unpaid: a gold that is more than a number is not read; else the answer is not."""
    met = next(one for one in known if one.share(one.number))
    dressed = met.number != met.gold
    return Finding(
        cause="gold-unreadable" if dressed else "answer-elsewhere",
        severity="cannot learn",
        sentence=f"{own:.0%} of the completions answer with the gold's number, such as {met.number} for {shortened(met.gold)}, and "
        "none is paid",
        next_step="print gold and answer as the reward compares them; sage-rlvr preflight pays the golds",
        step=begins,
    )


def _moved(listed: Sequence[Asked], begins: int) -> Iterator[Finding]:
    """Answers on which completions agree, that are no golds of their own prompts, and golds of others."""
    agreed = [one for one in listed if one.agreed]
    values = Counter(one.number for one in listed if one.number)
    if len(agreed) < PROMPTS or len(values) < DIFFERENT * len(listed):
        return
    own = sum(one.agreed == one.number for one in agreed) / len(agreed)
    if own > 0.1:
        return
    others = Counter(one.agreed for one in agreed) & values
    met = others.total() / len(agreed)
    if met > 0.6:
        example = next(one for one in agreed if one.agreed in others)
        yield Finding(
            cause="golds-shifted",
            severity="warning",
            sentence=f"completions agree on an answer for {len(agreed)} of {len(listed)} prompts: for {own:.0%} it is their gold, "
            f"for {met:.0%} that of another prompt (answer {example.agreed}, gold {shortened(example.gold)})",
            next_step="compare prompts and golds: a shuffle or filter moved one column; sage-rlvr preflight finds the rows",
            step=begins,
        )


def _first(rows: Sequence[CompletionRow]) -> list[CompletionRow]:
    """The rows with a gold of the first steps: a third of them, more if they have too few prompts."""
    kept: list[CompletionRow] = []
    seen: set[str] = set()
    with_gold = [one for one in rows if one.gold]
    for one in with_gold:
        enough = len(seen) >= 2 * PROMPTS and len(kept) * 3 >= len(with_gold)
        if enough and one.step != kept[-1].step:
            break
        kept.append(one)
        seen.add(one.prompt)
    return kept


def _asked(rows: Sequence[CompletionRow]) -> list[Asked]:
    groups: dict[tuple[str, str], list[CompletionRow]] = defaultdict(list)
    for one in rows:
        groups[one.prompt, one.gold].append(one)
    asked = []
    for (_, gold), group in groups.items():
        answers = [answer_of(one.text) for one in group]
        asked.append(Asked(gold.strip(), answers, max(one.reward or 0.0 for one in group)))
    return asked


def _varied(listed: Sequence[Asked]) -> bool:
    """Whether the most frequent answers of most prompts differ from the one gold."""
    most = [Counter(one.answers).most_common(1)[0][0] for one in listed]
    return sum(answer != listed[0].number for answer in most) > 0.5 * len(most) and len(set(most)) >= 3


TEXT_CHECKS = (prompts, golds)

__all__ = ["TEXT_CHECKS", "answer_of", "golds", "prompts"]
