"""Checks of the reward function: the values it returns, the rewards of golds and of texts that solve nothing, length, order, time.

The reward is called on texts that are known to be right or wrong, as `audit --reward` does in a worker process; in these checks it
is called as in the run itself, on a few rows, within `SECONDS`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from sage_rlvr.errors import suggest
from sage_rlvr.symptoms.finding import Finding, shortened
from sage_rlvr.symptoms.first_rollout import CompletionSeen, FirstRollout, PayCall, contains
from sage_rlvr.tasks.checks import FORMS

SECONDS = 30.0  # seconds for all calls of these checks
NOTHING = ("", "I do not know.")
SHIFTS = (1, -1, 2, -2)
ROWS = 8  # whose golds are written
ALONE = 12  # completions that are judged one by one
SLOW = 0.25  # seconds of a call that times out, at least
EPS = 1e-6
EACH, ASKED, OTHERS = 4, 16, 32  # completions of a prompt, prompts, and rows whose golds they are judged with
OWN = 0.25  # share of right completions above which golds are in their order
LEAST, ENOUGH, ENOUGH_DENSE = 3, 0.25, 0.6  # prompts that are right under another row's gold, and their share
DIFFERENT = 0.8  # share of different golds; with fewer, answers meet the golds of other rows by chance


def number(value: Any) -> float | None:
    """A reward as a number; None for anything else."""
    if isinstance(value, bool | int | float):
        return float(value)
    item = getattr(value, "item", None)  # a scalar of torch or numpy
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return float(item())
    return None


@dataclass
class Probe:
    """Calls of the reward within a budget. `mean` is None once that is used up, or if no call returned a number."""

    first: FirstRollout
    left: float = SECONDS
    memory: dict[str, float | None] = field(default_factory=dict)

    def pay(self, calls: Sequence[PayCall]) -> list[float | None]:
        """Rewards of calls, None for each without a number; [] once the budget is used up, or if the reward raises an error on
        these texts."""
        if self.left <= 0 or not calls:
            return []
        began = time.perf_counter()
        try:
            return [number(value) for value in self.first.payer.pay(calls)]
        except Exception:  # a reward may raise an error on a gold in one form only; for completions, `failure` has it
            return []
        finally:
            self.left -= time.perf_counter() - began

    def mean(self, calls: Sequence[PayCall]) -> float | None:
        """The mean of `pay`."""
        values = [value for value in self.pay(calls) if value is not None]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Golds:
    """Rewards of golds: the best column and form, its mean, and the texts. controls: the mean of texts that solve nothing."""

    column: str
    form: str
    mean: float
    texts: tuple[str, ...]
    controls: float
    tried: int


def found(first: FirstRollout) -> Iterator[Finding]:
    """All findings of the reward."""
    if first.failure is not None:
        yield _raised(first)
        return
    values = list(_values(first))
    yield from values
    if not first.rewards:
        return
    probe = Probe(first)
    controls = _controls(probe)
    golds = _golds(probe, controls)
    inverted = list(_inverted(probe))
    yield from inverted
    top = max([*first.rewards, *([golds.mean] if golds else [])])
    constant = len(set(first.rewards)) == 1
    free = [one for one in controls.values() if one is not None]
    known = [*free, *([golds.mean] if golds else [])]
    if constant and free and all(abs(one - first.rewards[0]) < EPS for one in known):
        moved = list(_shifted(probe))
        yield from moved
        if first.rewards[0] > EPS:
            yield _constant(first, controls, golds)
        elif golds is not None and not moved:  # without golds `signal` says that nothing is paid
            yield _unpaid(probe, golds, controls)
        return
    if free and top > EPS and min(free) >= 0.9 * top:
        yield _everything(first, controls, top)
    elif golds is not None and not inverted and max(golds.mean, *first.rewards) <= golds.controls + EPS:
        yield _unpaid(probe, golds, controls)
    yield from _shifted(probe)
    yield from _strict(first, golds)
    yield from _timeouts(first)
    yield from _length(probe)
    if golds is not None:
        yield from _form(probe, golds)
    yield from _batch(probe)


# ---- the values


def _raised(first: FirstRollout) -> Finding:
    error = first.failure
    return Finding(
        cause="reward-raises",
        severity="cannot learn",
        sentence=f"{', '.join(first.payer.names)} ended with {type(error).__name__}: {error}",
        next_step="call the function on these completions by itself, and give it the columns that the rows have "
        f"({', '.join(first.payer.columns) or 'none'})",
        examples=first.examples(),
    )


def _values(first: FirstRollout) -> Iterator[Finding]:
    total = len(first.completions)
    rewards = [one.reward for one in first.completions]
    infinite = [one for one in first.completions if one.reward is not None and math.isinf(one.reward)]
    if infinite:
        yield Finding(
            cause="not-finite",
            severity="cannot learn",
            sentence=f"the reward is {infinite[0].reward} for {len(infinite)} of {total} completions: advantages and loss "
            "become NaN",
            next_step="return a finite number for every text, the empty one too",
            examples=tuple(one.text for one in infinite),
        )
    lacking = [one for one, reward in zip(first.completions, rewards, strict=True) if reward is None or math.isnan(reward)]
    if lacking:
        yield Finding(
            cause="reward-no-number",
            severity="cannot learn" if len(lacking) == total else "warning" if len(lacking) > 0.1 * total else "note",
            sentence=f"the reward is no number for {len(lacking)} of {total} completions: {', '.join(first.payer.names)} returned "
            f"{_kinds(lacking)}",
            next_step="return a number for every completion; None counts as no reward at all",
            examples=tuple(one.text for one in lacking),
        )


def _kinds(lacking: Sequence[CompletionSeen]) -> str:
    shown = {repr(one.raw) if one.raw is None or isinstance(one.raw, float) else type(one.raw).__name__ for one in lacking}
    return ", ".join(sorted(shown))


# ---- rewarded answers


def _controls(probe: Probe) -> dict[str, float | None]:
    """Means of texts that solve nothing, under the golds of all prompts."""
    prompts = range(min(ROWS, len(probe.first.prompts)))
    return {text: probe.mean([PayCall(number, text) for number in prompts]) for text in NOTHING}


def _golds(probe: Probe, controls: dict[str, float | None]) -> Golds | None:
    """Rewards of the rows' golds in the form with the highest reward; None without golds."""
    payer, rows = probe.first.payer, range(min(ROWS, len(probe.first.prompts)))
    known = [payer.golds(row) for row in rows]
    columns = list(dict.fromkeys(column for golds in known for column in golds))
    best: Golds | None = None
    free = max((one for one in controls.values() if one is not None), default=0.0)
    tried = 0
    for column in columns:
        for form, text in FORMS.items():
            calls = [PayCall(row, text.format(golds[column])) for row, golds in zip(rows, known, strict=True) if column in golds]
            mean = probe.mean(calls)
            tried += len(calls)
            if mean is not None and (best is None or mean > best.mean):
                best = Golds(column, form, mean, tuple(call.text for call in calls), free, tried)
            if best is not None and best.mean >= 1.0:
                return best
    return best


def _inverted(probe: Probe) -> Iterator[Finding]:
    """Whether the bare golds of rows earn less than those of other rows do in their place."""
    payer, rows = probe.first.payer, range(min(ROWS, len(probe.first.prompts)))
    known = [payer.golds(row) for row in rows]
    for column in known[0] if known else ():
        texts = [golds.get(column, "") for golds in known]
        pairs = [(row, texts[row], texts[row - 1]) for row in rows]
        pairs = [(row, own, other) for row, own, other in pairs if own and other and own != other]
        right = probe.pay([PayCall(row, text) for row, text, _ in pairs])
        wrong = probe.pay([PayCall(row, text) for row, _, text in pairs])
        if len(pairs) < 3 or len(right) != len(wrong) or None in right or None in wrong:
            continue
        values = [(a, b) for a, b in zip(right, wrong, strict=True) if a is not None and b is not None]
        if sum(a < b - EPS for a, b in values) < 0.9 * len(values):
            continue
        worse, better = fmean([a for a, _ in values]), fmean([b for _, b in values])
        yield Finding(
            cause="reward-inverted",
            severity="cannot learn",
            sentence=f"the rows' own golds (column {column!r}) earn {worse:.2g} on average, and golds of other rows in their place "
            f"{better:.2g}: training would move away from right answers",
            next_step="check the reward's sign: a distance or an error is subtracted, as in 1 - error",
            evidence={"right answer": worse, "wrong answer": better},
            examples=tuple(f"{wrong_text} for {text}" for _, text, wrong_text in pairs[:2]),
        )
        return


def _constant(first: FirstRollout, controls: dict[str, float | None], golds: Golds | None) -> Finding:
    also = "the golds and " if golds is not None else ""
    return Finding(
        cause="reward-constant",
        severity="cannot learn",
        sentence=f"all {len(first.rewards)} completions earn {first.rewards[0]:g}, and so do {also}texts without an answer: no "
        "advantage is ever other than 0",
        next_step="read the function: a default that is returned before the comparison, or an exception that is caught",
        evidence={"an empty text": controls[""]},
        examples=first.examples(),
    )


def _unpaid(probe: Probe, golds: Golds, controls: dict[str, float | None]) -> Finding:
    """Golds get no reward: because the reward reads another column, or because it cannot read the gold."""
    payer = probe.first.payer
    rows = range(len(golds.texts))
    for reads in payer.columns:
        for other in payer.columns:
            if reads == other:
                continue
            for column in dict.fromkeys((golds.column, *payer.golds(0))):
                texts = [FORMS[form].format(payer.golds(row).get(column, "")) for form in ("bare", r"\boxed{5}") for row in rows]
                calls = [PayCall(i % len(rows), text, swap={reads: other}) for i, text in enumerate(texts)]
                mean = probe.mean(calls[: len(rows)])
                if mean is None or mean <= golds.controls + 0.25:
                    mean = probe.mean(calls[len(rows) :])
                if mean is not None and mean > golds.controls + 0.25:
                    return Finding(
                        cause="wrong-column",
                        severity="cannot learn",
                        sentence=f"the rows' golds earn nothing as the reward is called, and {mean:.2g} on average once the "
                        f"values of column {other!r} stand in the place of {reads!r}",
                        next_step=f"read the column {other!r}, not {reads!r}",
                        evidence={"golds as called": golds.mean, "golds after the exchange": mean},
                        examples=golds.texts[:2],
                    )
    written = [str(payer.cells(row).get(golds.column, golds.texts[row])) for row in rows]  # with the spaces that golds.texts lack
    return Finding(
        cause="gold-unreadable",
        severity="cannot learn",
        sentence=f"the rows' own golds (column {golds.column!r}) earn no more than a text without an answer, in none of "
        f"{len(FORMS)} forms: the reward cannot read the gold, or looks for the answer at another place",
        next_step="print the gold as the reward gets it (units, spaces, LaTeX, a list?) and call the function on it, or "
        "audit it: " + suggest("audit", "--reward", "FILE.py:FUNCTION", "--rows", "ROWS"),
        evidence={"a gold": golds.mean, "an empty text": controls[""], "calls": golds.tried},
        examples=tuple(written[:3]),
    )


def _strict(first: FirstRollout, golds: Golds | None) -> Iterator[Finding]:
    """Completions that ended, contain their gold and earn 0, of a reward that pays the gold alone but no completion."""
    if golds is None or golds.mean <= EPS or max(map(abs, first.rewards)) > EPS or len(first.golds) < 2:
        return
    if first.elsewhere is not None and first.elsewhere.answers:
        return  # the verifier names the place of the answers
    ended = [one for one in first.completions if not one.cut and one.reward is not None]
    ended = [one for one in ended if not any(contains(first.prompts[one.prompt].text, gold) for gold in first.golds[one.prompt])]
    having = [one for one in ended if first.contains_gold(one)]
    chance = 0  # completions that contain another row's gold
    for one in ended:
        other = (one.prompt + 1) % len(first.golds)
        chance += first.golds[other] != first.golds[one.prompt] and first.contains_gold(one, other)
    if len(having) < max(2.0, 0.1 * len(ended), 2.0 * chance):
        return
    names = ", ".join(first.payer.names)
    shown = min(having, key=lambda one: len(one.text))
    gold = next(gold for gold in first.golds[shown.prompt] if contains(shown.text, gold))
    yield Finding(
        cause="reward-too-strict",
        severity="warning",
        sentence=f"{len(having)} of {len(ended)} completions that ended contain their gold, and {names} pays 0 for each: "
        f"{shortened(shown.text)} with the gold {shortened(gold)}; the gold alone ({golds.form}) earns {golds.mean:.2g}",
        next_step="compare what the function reads from this text with the gold: case, a full stop, words around it, or "
        "the place of the answer; else ask for that form in the prompt",
        evidence={"contain their gold": len(having), "contain another row's gold": chance},
        examples=tuple(one.text for one in having[:3]),
    )


def _everything(first: FirstRollout, controls: dict[str, float | None], top: float) -> Finding:
    return Finding(
        cause="pays-everything",
        severity="cannot learn" if first.stuck else "warning",
        sentence=f"texts without an answer earn {min(one for one in controls.values() if one is not None):.2g} on average, the "
        f"best completion {top:.2g}: the reward pays what solves nothing",
        next_step="reject a text in which no answer is found, and audit the reward",
        evidence={repr(text): value for text, value in controls.items() if value is not None},
    )


def _shifted(probe: Probe) -> Iterator[Finding]:
    """Whether completions are right under the gold of a neighboring row."""
    first = probe.first
    if first.payer.rows < 3 or len(first.prompts) < 3:
        return
    top = max(first.rewards)
    own = sum(reward >= max(top, EPS) for reward in first.rewards) if top > EPS else 0
    best, at = own, 0
    for shift in SHIFTS:
        calls = [
            replace(one.call(), gold=(one.prompt + shift) % first.payer.rows)
            for one in first.completions
            if one.reward is not None
        ]
        paid = [value for value in probe.pay(calls) if value is not None]
        high = max([top, *paid]) if paid else 0.0
        count = sum(value >= high for value in paid) if high > EPS else 0
        if count > best:
            best, at = count, shift
    if at and best >= own + 4 and best > 3 * own:
        where = "below" if at > 0 else "above"
        yield Finding(
            cause="golds-shifted",
            severity="cannot learn",
            sentence=f"{own} of {len(first.rewards)} completions are right under their own row's gold, and {best} under the "
            f"gold of the row {abs(at)} {where}: prompts and golds are out of step",
            next_step="look for a shuffle, sort or filter that moved one column of the data and not the other",
            evidence={"right with own gold": own, f"right with the gold {at:+d} rows away": best},
            examples=first.examples(wrong=False),
        )
        return
    yield from _permuted(probe, own)


def _permuted(probe: Probe, own: int) -> Iterator[Finding]:
    """Whether completions of many prompts are right under the gold of one other row each, and hardly any under their own: golds in
    any other order. own: completions with the highest reward."""
    first = probe.first
    prompts = [group[:EACH] for group in first.groups[:ASKED]]
    some = [one for group in prompts for one in group if one.reward is not None and math.isfinite(one.reward)]
    if own > OWN * len(first.rewards) or len(some) < LEAST:
        return
    paid = _under_other_golds(probe, some)
    top = max([*first.rewards, *(value for values in paid.values() for value in values)], default=0.0)
    if not paid or top <= EPS:  # not paid: the time of the probe ended within the first row
        return
    met: dict[int, list[int]] = {}  # prompt -> rows whose gold pays half of its unpaid completions
    kept = 0
    for number in range(len(prompts)):
        places = [place for place, one in enumerate(some) if one.prompt == number]
        need = max(2, math.ceil(len(places) / 2))
        kept += sum((some[place].reward or 0.0) >= top for place in places) >= need
        met[number] = [row for row, values in paid.items() if row != number and sum(values[p] >= top for p in places) >= need]
    pairs = _pairs(first, met)
    golds = [first.payer.golds(row) for row in paid]
    distinct = len({str(gold) for gold in golds}) / len(golds) if all(golds) else 1.0
    share = ENOUGH_DENSE if _dense(golds) else ENOUGH
    if distinct < DIFFERENT or len(pairs) < max(LEAST, share * len(prompts)) or kept > OWN * len(pairs):
        return
    number, row = next(iter(pairs.items()))
    shown = next(one for one, value in zip(some, paid[row], strict=True) if one.prompt == number and value >= top)
    yield Finding(
        cause="golds-shifted",
        severity="cannot learn",
        sentence=f"half of the completions are right under their own row's gold for {kept} of {len(prompts)} prompts, and under "
        f"the gold of one other row for {len(pairs)}: golds are in another order than prompts",
        next_step="look for a shuffle, sort or filter that moved one column of the data and not the other",
        evidence={"prompts right with own gold": kept, "with another row's": len(pairs), f"row of prompt {number}": row},
        examples=(shown.text,),
    )


def _under_other_golds(probe: Probe, some: Sequence[CompletionSeen]) -> dict[int, list[float]]:
    """Row -> rewards of the completions under its gold; as many rows as time allows."""
    paid: dict[int, list[float]] = {}
    floor = 0.5 * probe.left
    for row in range(min(probe.first.payer.rows, OTHERS)):
        if probe.left < floor:
            break
        values = probe.pay([PayCall(one.prompt, one.text, gold=row) for one in some])
        if len(values) == len(some):
            paid[row] = [0.0 if value is None or not math.isfinite(value) else value for value in values]
    return paid


def _pairs(first: FirstRollout, met: dict[int, list[int]]) -> dict[int, int]:
    """Prompt -> the other row with its answer. A prompt that several golds pay is left out, and a gold counts once: a common gold
    proves nothing."""
    pairs: dict[int, int] = {}
    seen: list[dict[str, str] | int] = []
    for number, rows in met.items():
        golds: list[dict[str, str] | int] = []
        for row in rows:
            gold: dict[str, str] | int = first.payer.golds(row) or row
            if gold not in golds and gold != first.payer.golds(number):
                golds.append(gold)
        if len(golds) == 1 and golds[0] not in seen:
            seen += golds
            pairs[number] = rows[0]
    return pairs


def _dense(golds: Sequence[dict[str, str]]) -> bool:
    """Whether golds are numbers so close to each other that a wrong answer is often another row's gold."""
    try:
        values = {float(next(iter(gold.values()))) for gold in golds}
    except (ValueError, StopIteration):
        return False
    return max(values) - min(values) < 4 * len(values)


# ---- changes that should not change a reward


def _alone(first: FirstRollout) -> list[tuple[CompletionSeen, float, float | None]]:
    """Completions judged one by one: (completion, seconds, reward)."""
    judged, spent = [], 0.0
    for one in first.completions[:: max(1, len(first.completions) // ALONE)][: 2 * ALONE]:
        began = time.perf_counter()
        (value,) = first.payer.pay([one.call()])
        took = time.perf_counter() - began
        judged.append((one, took, number(value)))
        spent += took
        if spent > SECONDS / 2:
            break
    return judged


def _timeouts(first: FirstRollout) -> Iterator[Finding]:
    reasons = first.reasons
    if reasons is not None and reasons.undecided:
        severe = reasons.undecided > 0.1 * reasons.total
        yield Finding(
            cause="reward-timeouts",
            severity="warning" if severe else "note",
            sentence=f"{reasons.undecided} of {reasons.total} verdicts are undecided and earn 0{reasons.often('undecided')}",
            next_step="raise the limit (task.seconds), or make the reward faster",
        )
        return
    judged = _alone(first)
    times = [seconds for _, seconds, _ in judged]
    fast = [seconds for _, seconds, reward in judged if reward]
    typical = median(fast or times)
    late = [one for one, seconds, reward in judged if seconds > max(SLOW, 10 * typical) and not reward]
    if len(late) >= 2 or (late and len(late) > 0.1 * len(judged)):
        yield Finding(
            cause="reward-timeouts",
            severity="warning",
            sentence=f"{len(late)} of {len(judged)} calls took {max(times):.2g} s, others {typical:.2g} s, and all of these "
            "earn 0: a "
            "time limit in the reward counts as wrong",
            next_step="return None on a timeout, so that the completion is left out, and raise the limit",
            examples=tuple(one.text for one in late),
        )
    elif typical > 1.0:
        yield Finding(
            cause="reward-slow",
            severity="warning",
            sentence=f"a call of the reward takes {typical:.1f} s; a step has {first.plan.prompts * first.plan.group_size:,} "
            "of them",
            next_step="make the function async, or judge in a pool of processes",
        )


def _length(probe: Probe) -> Iterator[Finding]:
    some = [one for one in probe.first.completions if one.text.strip() and one.reward is not None and not one.answered][: 2 * ROWS]
    doubled = probe.pay([PayCall(one.prompt, f"{one.text} {one.text}") for one in some])
    plain = probe.pay([one.call() for one in some])
    if not doubled or len(plain) != len(doubled):
        return
    changes = [after - before for before, after in zip(plain, doubled, strict=True) if before is not None and after is not None]
    rises = [change for change in changes if change > EPS]
    spread = max(probe.first.rewards) - min(probe.first.rewards)
    if len(rises) > 0.8 * len(changes) and spread > 0 and fmean(changes) > 0.1 * spread:
        yield Finding(
            cause="pays-length",
            severity="warning",
            sentence=f"the same completion written twice earns more in {len(rises)} of {len(changes)} cases, "
            f"{fmean(changes):.2g} on "
            f"average: the reward grows with length (rewards span {spread:.2g})",
            next_step="pay the answer only, or subtract a cost per token",
            evidence={"mean rise": fmean(changes)},
            examples=tuple(one.text for one in some[:2]),
        )


def _form(probe: Probe, golds: Golds) -> Iterator[Finding]:
    """Check the reward of a wrong answer in the gold's form: the gold of another row."""
    texts = golds.texts
    if len(set(texts)) < 3 or golds.mean <= golds.controls + EPS:
        return
    calls = [PayCall(i, texts[i - 1]) for i in range(len(texts)) if texts[i] != texts[i - 1]]
    wrong = probe.mean(calls)
    if wrong is None:
        return
    share = (wrong - golds.controls) / (golds.mean - golds.controls)
    if share >= 0.5 and _remembers(probe, golds, calls, wrong):
        yield Finding(
            cause="batch-dependent",
            severity="warning",
            sentence=f"the golds of other rows earn {wrong:.2g}, and next to nothing with a blank behind them: the reward "
            "remembers a text that it judged under another prompt",
            next_step="make prompt and gold a part of the key of the reward's cache",
            evidence={"right answer": golds.mean, "answer of another row": wrong},
            examples=tuple(call.text for call in calls[:2]),
        )
    elif share >= 0.5:
        yield Finding(
            cause="pays-format",
            severity="warning",
            sentence=f"a wrong answer in the right form earns {wrong:.2g}, the right one {golds.mean:.2g}, a text without the form "
            f"{golds.controls:.2g}: most of the reward is for the form",
            next_step="lower the weight of the form's reward, so that it cannot outweigh a right answer",
            evidence={"wrong answer": wrong, "right answer": golds.mean, **probe.first.payer.weights_of_parts},
            examples=tuple(call.text for call in calls[:2]),
        )


def _remembers(probe: Probe, golds: Golds, calls: Sequence[PayCall], wrong: float) -> bool:
    """Whether wrong answers earn less as texts that were not judged before, and right ones do not."""
    half = 0.5 * (golds.mean + golds.controls)
    new_wrong = probe.mean([replace(call, text=f"{call.text} ") for call in calls])
    new_right = probe.mean([PayCall(row, f"{text}  ") for row, text in enumerate(golds.texts)])
    return new_wrong is not None and new_right is not None and new_wrong < half <= new_right and wrong >= half


def _batch(probe: Probe) -> Iterator[Finding]:
    """Whether rewards are the same in another order."""
    some = [one for one in probe.first.completions if one.reward is not None]
    calls = [one.call() for one in some]
    again, reversed_ = probe.pay(calls), probe.pay(calls[::-1])[::-1]
    if len(again) != len(some) or len(reversed_) != len(some):
        return
    rewards = [one.reward for one in some]
    most = max(_differ(again, rewards), _differ(reversed_, rewards))
    if most:
        yield Finding(
            cause="batch-dependent",
            severity="warning" if most > 0.05 * len(some) else "note",
            sentence=f"{most} of {len(some)} completions earn something else when they are judged again or in another order",
            next_step="let the reward depend on the completion and its row only; a random judge needs a fixed seed per text",
            examples=tuple(one.text for one in some[:2]),
        )


def _differ(a: Sequence[float | None], b: Sequence[float | None]) -> int:
    return sum(x is not None and y is not None and abs(x - y) > EPS for x, y in zip(a, b, strict=True))


__all__ = ["Probe", "found", "number"]
