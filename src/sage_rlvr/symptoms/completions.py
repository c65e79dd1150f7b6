"""Checks of the completions: their ends, contents and similarity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance
from typing import Any

from sage_rlvr.symptoms.finding import Finding
from sage_rlvr.symptoms.first_rollout import CompletionSeen, FirstRollout
from sage_rlvr.verdicts.stats.intervals import wilson

CUT = 0.05  # share of truncated completions from which a remark is useful
MOST, NEARLY = 0.5, 0.9
TIMES = 4  # multiple of the limit that is tried
ALIKE = 0.35  # distinct completions of a group over its size
REPEATED = 0.3  # distinct n-grams over all of them


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the completions."""
    if not first.completions:
        return
    yield from _length(first)
    yield from _inside(first)
    yield from _alike(first)
    yield from _answers(first)


def _length(first: FirstRollout) -> Iterator[Finding]:
    share, total = first.cut, len(first.completions)
    if share < CUT:
        return
    limit, names = first.limit, first.names
    room = first.plan.positions
    most = TIMES * limit if room is None else min(TIMES * limit, room - max(len(one.ids) for one in first.prompts))
    drawn = first.longer(most) if first.longer is not None and most > limit and share >= MOST else []
    cut_there = sum(cut for _, cut in drawn) / len(drawn) if drawn else 0.0
    evidence: dict[str, Any] = {"cut": f"{round(share * total)} of {total}", names.limit: limit}
    without_gold_first = sorted((one for one in first.completions if one.cut), key=first.contains_gold)
    behind = sum(map(first.contains_gold, without_gold_first))
    texts = tuple(one.text for one in without_gold_first[:2])
    if drawn and cut_there > 0.75:
        yield Finding(
            cause="never-ends",
            severity="warning",
            sentence=f"{share:.0%} of the completions are cut at {limit:,} tokens, and {cut_there:.0%} still at {most:,}: the "
            "policy hardly ever writes its end token",
            next_step="check the prompt's template and the end token (eos_token, generation_config), or fine-tune on texts "
            "that end",
            evidence=evidence | {f"cut at {most:,}": f"{sum(cut for _, cut in drawn)} of {len(drawn)}"},
            examples=texts,
        )
        return
    enough = ""
    if drawn:
        lengths = sorted(length for length, _ in drawn)
        enough = f"; 90 % end within {lengths[min(len(lengths) - 1, math.ceil(0.9 * len(lengths)) - 1)]:,} tokens"
    where = f", {behind} of them behind their gold" if behind else ""
    if not behind and all(first.golds):
        where = ", before their answer"
    ended, lost = _earned(first, cut=False), _earned(first, cut=True)
    if ended and lost:
        evidence |= {"reward of cut ones": fmean(lost), "of ended ones": fmean(ended)}
    costs = share >= NEARLY or (share >= 0.25 and _more(ended, lost))
    yield Finding(
        cause="limit-too-short",
        severity="warning" if costs else "note",
        sentence=f"{share:.0%} of the completions are cut at the limit of {limit:,} tokens{where}{enough}",
        next_step=f"raise {names.limit}, or ask for shorter answers",
        evidence=evidence,
        examples=texts,
    )


def _earned(first: FirstRollout, *, cut: bool) -> list[float]:
    """Rewards of the completions that are cut, or of those that ended."""
    return [one.reward for one in first.completions if one.cut == cut and one.reward is not None and math.isfinite(one.reward)]


def _more(ended: Sequence[float], lost: Sequence[float]) -> bool:
    """Whether completions that ended earn more than cut ones, by two standard errors."""
    if len(ended) < 2 or len(lost) < 2:
        return False
    error = math.sqrt(variance(ended) / len(ended) + variance(lost) / len(lost))
    return fmean(ended) - fmean(lost) > 2 * error


def _inside(first: FirstRollout) -> Iterator[Finding]:
    total = len(first.completions)
    empty = sum(not one.text.strip() for one in first.completions)
    if empty > 0.2 * total:
        yield Finding(
            cause="empty-completions",
            severity="warning",
            sentence=f"{empty} of {total} completions are empty: the policy ends at once",
            next_step="check that the prompt opens the assistant's turn, and does not end with an end token",
        )
    plain = getattr(first.tokenizer, "tokenizer", first.tokenizer)
    special = set(getattr(plain, "all_special_ids", ()))
    alone = [one for one in first.completions if not one.answered]  # between turns there are end tokens
    inside = [one for one in alone if special & set(one.ids[: len(one.ids) - (not one.cut)])]
    if len(inside) > 0.1 * total:
        yield Finding(
            cause="special-tokens",
            severity="warning",
            sentence=f"{len(inside)} of {total} completions have special tokens before their end, which a reward may not see",
            next_step="check the end tokens (generation_config.eos_token_id): the model may end its turn with another one",
            examples=tuple(plain.decode(list(one.ids), skip_special_tokens=False) for one in inside[:2]),
        )
    looping = [one for one in first.completions if repeats(one.ids)]
    if len(looping) > 0.25 * total:
        yield Finding(
            cause="repetition",
            severity="warning",
            sentence=f"{len(looping)} of {total} completions repeat the same tokens",
            next_step="check the prompt's template first; else fine-tune before RL, or raise the temperature",
            examples=tuple(one.text for one in looping[:2]),
        )


def repeats(ids: Sequence[int], n: int = 4) -> bool:
    """Whether a completion of 32 tokens or more is mostly one phrase again and again."""
    grams = [tuple(ids[place : place + n]) for place in range(len(ids) - n + 1)]
    return len(ids) >= 32 and len(set(grams)) < REPEATED * len(grams)


def _alike(first: FirstRollout) -> Iterator[Finding]:
    groups = [group for group in first.groups if len(group) > 1]
    if not groups:
        return
    distinct = sum(len({one.ids for one in group}) for group in groups) / sum(map(len, groups))
    if distinct > ALIKE:
        return
    entropy = {} if first.plan.entropy is None else {"entropy": first.plan.entropy}
    right = sum(map(bool, first.rewards)) / max(1, len(first.rewards))
    yield Finding(
        cause="entropy-collapse",
        severity="note" if right > 0.95 else "warning",
        sentence=f"of a group of {len(groups[0])} completions {distinct * len(groups[0]):.1f} differ: equal completions have equal "
        f"rewards, at temperature {first.plan.temperature:g}",
        next_step=f"raise {first.names.temperature} (1 is usual), or start from a checkpoint with more entropy",
        evidence={"distinct": distinct} | entropy,
        examples=tuple(_most_frequent(group) for group in groups[:2]),
    )


def _most_frequent(group: Sequence[CompletionSeen]) -> str:
    texts = [one.text for one in group]
    return max(set(texts), key=texts.count)


def _answers(first: FirstRollout) -> Iterator[Finding]:
    """Findings of this package's verifier on completions without an answer."""
    reasons = first.reasons
    if reasons is None or not reasons.total or reasons.unanswered <= MOST * reasons.total or first.cut >= MOST:
        return  # truncated before its answer
    there = first.elsewhere
    share = wilson(reasons.unanswered, reasons.total)
    sentence = f"no answer {first.read_at}".rstrip()
    sentence += f" in {reasons.unanswered} of {reasons.total} completions{reasons.often('no answer')}"
    if there is not None and there.answers:
        yield Finding(
            cause="answer-elsewhere",
            severity="warning",
            sentence=sentence,
            next_step=there.words(first.read_at),
            evidence={"share": share.value},
            examples=first.examples(),
        )
    else:
        yield Finding(
            cause="no-answer",
            severity="warning",
            sentence=sentence,
            next_step="read some completions; ask for the format in the prompt, or train on it first (sage-rlvr sft)",
            evidence={"share": share.value},
            examples=first.examples(),
        )


__all__ = ["found", "repeats"]
