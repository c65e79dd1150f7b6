"""The checks of an audit of a mathematics task, in one prompt format or several."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial

from sage_rlvr.tasks.chance import chance_of_golds
from sage_rlvr.tasks.checks import AuditFinding, Case, Check, CompletionPairs, JudgePairs, duplicates
from sage_rlvr.tasks.math import MathProblem, MathTask
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat, location_in_words, requested_locations
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers.answers import AnswerPlace
from sage_rlvr.verifiers.exact import normalized, number, parts, verify_exact
from sage_rlvr.verifiers.golds import no_answer

# Working that a sloppy extraction would read as the answer. No gold of a task above is one of its numbers.
WORKING = "At first sight it is 7919, or $\\frac{7919}{8191}$; that is refuted by 8191 - 7919 = 272.0001."
NO_GOLD = "7919.25"  # an answer that equals no gold as text: judging it makes the verifier parse the gold


def cases(
    task: MathTask, k: int, forms: Sequence[PromptFormat] = tuple(FORMATS.values()), answer_in: AnswerPlace | None = None
) -> Iterator[Case | Check]:
    """Checks of `task`, in each of `forms`. answer_in: read the answer at another place than the formats'."""
    problems = task.problems()
    golds = [(p, p.answer) for p in problems]
    solved = [(p, p.solved) for p in problems if p.solved]
    whole = partial(task.verify_all, answer_in="whole")
    algebra = partial(whole, algebra_only=True)
    yield answerable(golds)
    yield Case("gold right against itself", golds, judge=whole)
    yield Case("the same by algebra, not by spelling", golds, judge=algebra)
    yield Case("gold can be parsed", [(p, NO_GOLD) for p in problems], "decided", bar=False, judge=algebra)
    if solved:
        yield Case("answer of the source's worked solution", solved, bar=False, judge=whole)
    for form in forms:
        # The ceiling of a format: a demonstration with the gold, read like a completion; and one without an answer.
        read = partial(task.verify_all, **form.reading | ({"answer_in": answer_in} if answer_in else {}))
        perfect = [(p, form.assistant(WORKING, p.answer)) for p in problems]
        at = location_in_words(answer_in or form.answer_in, form.tag)
        yield Case(f"format {form.name!r}: perfect answer", perfect, judge=read, location=at)
        name = f"format {form.name!r}: working without an answer earns nothing"
        yield Case(name, [(p, WORKING) for p in problems], "not right", bar=False, judge=read)
        if form.thinking:
            name = f"format {form.name!r}: the gold in unfinished thinking earns nothing"
            unfinished = [(p, f"<{form.thinking}>{text}") for p, text in perfect]
            yield Case(name, unfinished, "not right", bar=False, judge=read)
        if task.published is None:
            yield from _own_prompts(problems, form, answer_in or form.answer_in)
    wrong: dict[str, list[tuple[MathProblem, str]]] = defaultdict(list)
    for i, p in enumerate(problems):
        for kind, answer in wrong_answers(p.answer, problems[i - 1].answer):
            wrong[kind].append((p, answer))
    yield Case("", wrong, "wrong", judge=whole)
    yield _second_opinion(wrong, {"gold": golds, "worked solution": solved}, whole, algebra)
    yield duplicates("rows that stand once", ((p.problem_id, p.text, p.answer) for p in problems))
    yield from _floors(task.integers, [p.answer for p in problems], k)


def answerable(golds: CompletionPairs) -> Check:
    """Whether the golds of (row, gold) are answers that a completion may give. A sentence is right against itself."""
    rows = tuple(AuditFinding(row.problem_id, "gold", why) for row, gold in golds if (why := no_answer(gold)))
    return Check("golds that a completion can give", len(golds) - len(rows), len(golds), rows, bar=True)


def _own_prompts(problems: Sequence[MathProblem], form: PromptFormat, location: str) -> Iterator[Check]:
    """Whether rows that name a place of the answer name the one that is read; a system message of the format does so itself."""
    if form.system or location not in ("boxed", "tag", "stated"):
        return
    read, other = location_in_words(location, form.tag), 0
    rows, silent = [], 0
    for problem in problems:
        requested = requested_locations(form.plain(problem.question))
        same = requested.get(location)
        if same is not None and (location != "tag" or same == form.tag):
            continue
        silent, other = silent + (not requested), other + bool(requested)
        for wanted, tag in list(requested.items())[:1]:
            option = f"answer_in: {wanted}" + (f", tag: {tag}" if tag else "")
            why = f"asks for it {location_in_words(wanted, tag)}; set {option}"
            rows.append(AuditFinding(problem.problem_id, "not read", why))
    if other or silent < len(problems):
        note = f"{silent} name no place" if silent else ""
        name = f"format {form.name!r}: rows' own prompts ask for the answer {read}"
        yield Check(name, len(problems) - other, len(problems), tuple(rows), bar=True, note=note)


def head(
    task: MathTask, forms: Sequence[PromptFormat] = tuple(FORMATS.values()), answer_in: AnswerPlace | None = None
) -> str:
    """Describe the subject of `cases`."""
    read = ", ".join(f"{form.name} ({_location_label(form, answer_in)})" for form in forms)
    return f"{len(task.problems())} rows ({task.whose}{task.taken}); formats and where the answer is read: {read}"


def _location_label(form: PromptFormat, answer_in: AnswerPlace | None) -> str:
    location = answer_in or form.answer_in
    return f"tag {form.tag}" if location == "tag" else location.replace("_", " ")


def _second_opinion(
    wrong: Mapping[str, CompletionPairs], known: Mapping[str, CompletionPairs], judge: JudgePairs, algebra: JudgePairs
) -> Check:
    """Contradictions between the second verifier and the first, on wrong answers and, only by algebra, on known ones."""
    cases = [(kind, *pair) for kinds in (wrong, known) for kind, pairs in kinds.items() for pair in pairs]
    verdicts = [
        verdict for kinds, by in ((wrong, judge), (known, algebra)) for pairs in kinds.values() for verdict in by(pairs)
    ]
    rows, compared = [], 0
    for (kind, problem, answer), verdict in zip(cases, verdicts, strict=True):
        second = verify_exact(answer, problem.answer)
        if "undecided" in (verdict.label, second.label):
            continue
        compared += 1
        if second.right != verdict.right:
            why = f"{kind}: math-verify {verdict.label}, exact {second.label} ({second.reason})"
            rows.append(AuditFinding(problem.problem_id, "disagreement", why))
    note = f"where both decide, of {len(cases)} answers right and wrong"
    return Check("second verifier agrees", compared - len(rows), compared, tuple(rows), note=note)


def _floors(integers: tuple[int, int] | None, golds: Sequence[str], k: int) -> list[Check]:
    """Shares that guessing reaches, as checks without a bar: `good` are the hits."""
    checks = []
    if integers is not None:
        values = integers[1] - integers[0] + 1
        share, name = Chance("values", (1 / values,)).at(k), f"guess floor: {k} uniform guesses in {integers[0]}..{integers[1]}"
        note = f"1 - (1 - 1/{values})^{k} = {share:.3f} of any such problem"
        checks.append(Check(name, share * len(golds), len(golds), note=note))
    small = sum((value := number(gold)) is not None and value.denominator == 1 and 0 <= value < k for gold in golds)
    checks.append(Check(f"guess floor: the integers 0..{k - 1}", small, len(golds)))
    hits = sum(chance_of_golds(golds).hits(k))
    checks.append(Check(f"guess floor: the {k} most frequent golds of the other rows", hits, len(golds)))
    return checks


# ---- answers that are wrong by construction: answers that a verifier must not accept

# Golds to which "+1" can be appended: numbers, single letters, and the operations between them.
_EXPRESSION = re.compile(
    r"(?:[0-9.+\-*/^_{}()\s]|\\[dt]?frac|\\sqrt|\\pi|\\cdot|\\left|\\right|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))+"
)


def wrong_answers(gold: str, other: str) -> list[tuple[str, str]]:
    r"""(kind, answer) pairs that differ from a gold in value: +1, -1, sign, reciprocal, part, another problem's.

    Numbers are changed as numbers, other expressions by writing `+1` and the like; for an answer with several parts each part is
    left out once. Kinds that would not change the value (the sign of 0) are left out.
    """
    made: list[tuple[str, str]] = []
    value = number(gold)
    if value is not None:
        changed = {"+1": value + 1, "-1": value - 1, "sign": -value}
        if value:
            changed["reciprocal"] = 1 / value
        made += [(kind, _written(new)) for kind, new in changed.items() if new != value]
    elif (
        _EXPRESSION.fullmatch(gold)
        and "\\pm" not in gold
        and normalized(gold).count("(") == normalized(gold).count(")")
    ):
        made += [
            ("+1", rf"{gold}+1"),
            ("-1", rf"{gold}-1"),
            ("sign", rf"-({gold})"),
            ("reciprocal", rf"\frac{{1}}{{{gold}}}"),
        ]
    around, several = parts(gold)
    if len(several) > 1 and value is None:
        left, right = {"": ("", ""), "{}": (r"\{", r"\}")}.get(around, (around[:1], around[-1:]))
        made += [("part", left + ",".join(several[:i] + several[i + 1 :]) + right) for i in range(len(several))]
    if not verify_exact(_value_of(other), _value_of(gold)).right:
        made.append(("another's", other))
    return made


def near_answers(gold: str) -> list[tuple[str, str]]:
    """(kind, answer) pairs of another value that a careless comparison of numbers accepts as the gold; [] for any other gold.

    They reveal truncation and rounding (+0.4, -0.4), absolute and relative tolerance (+0.4, +0.1 %), percent (/100, *100), halves
    and doubles, a tolerance that "nan" passes, and comparison of the last or the first digits, of their set, of a part of the
    number, or of its length. Decimals are used if possible.
    """
    value = number(gold)
    if value is None:
        return []
    digits = _written(abs(value))
    changed = {
        "+0.4": value + Fraction(2, 5),
        "-0.4": value - Fraction(2, 5),
        "+0.1 %": value * Fraction(1001, 1000),
        "+10": value + 10,
        "/100": value / 100,
        "*100": value * 100,
        "*2": value * 2,
        "/2": value / 2,
    }
    made = [(kind, _decimal(new)) for kind, new in changed.items() if new != value]
    made.append(("not a number", "nan"))
    if digits.isdigit():
        sign, first = "-" * (value < 0), str(int(digits[0]) % 9 + 1)
        made += [("a digit more", f"{sign}{digits}7"), ("a digit in front", f"{sign}7{digits}")]
        if len(digits) > 1:
            made += [("its digits reversed", sign + digits[::-1])] if int(digits[::-1]) != int(digits) else []
            made += [("its last digit dropped", sign + digits[:-1]), ("its first digit changed", sign + first + digits[1:])]
    return made


def _decimal(value: Fraction) -> str:
    """A number as a decimal, or as a/b if it has more than twelve decimals."""
    scaled = value * 10**12
    if scaled.denominator != 1:
        return _written(value)
    whole, rest = divmod(abs(scaled.numerator), 10**12)
    return "-" * (value < 0) + f"{whole}.{rest:012d}".rstrip("0").rstrip(".")


def _value_of(gold: str) -> str:
    """The right-hand side of x = 5."""
    return re.sub(r"^\s*[a-zA-Z]\s*=", "", gold)


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


# ---- answers that are right by construction: the gold in another form


def equal_answers(gold: str) -> list[tuple[str, str]]:
    r"""(kind, answer) pairs that equal a gold in another form: 5.0, 1,000, 1/2 for \frac12, $5$, x = 5, a set reversed."""
    value, made = number(gold), [("in dollars", f"${gold}$")]
    if value is not None:
        made += [(kind, text) for kind, text in _spellings(value) if _DIGITS.sub("", text) != _DIGITS.sub("", gold)]
        if "," in gold:
            made.append(("grouped", gold.replace(",", "")))
        elif value.denominator == 1:
            made.append(("grouped", f"{int(value):,}"))
        made.append(("as x =", f"x = {gold}"))
    if re.search(r"\\[dt]?frac(?![a-z])", gold):
        made.append(("other fraction command", _other_fraction(gold)))
    around, several = parts(gold)
    if len(several) > 1 and around == "{}":
        made.append(("reversed set", r"\{" + ", ".join(reversed(several)) + r"\}"))
    spelled = {kind: text for kind, text in made if text != gold}
    return [(kind, text) for kind, text in spelled.items() if verify_exact(text.removeprefix("x = "), gold).label != "wrong"]


_DIGITS = re.compile(r"[\s,$]")


def _spellings(value: Fraction) -> list[tuple[str, str]]:
    r"""A number as a decimal, as a/b and as \frac{a}{b}, if possible."""
    over, under = abs(value.numerator), value.denominator
    sign = "-" * (value < 0)
    spellings = [] if under == 1 else [("as a/b", f"{sign}{over}/{under}"), ("as \\frac", rf"{sign}\frac{{{over}}}{{{under}}}")]
    if 10**6 % under == 0:  # exact with six decimals
        text = f"{over / under:.6f}".rstrip("0") if under > 1 else f"{over}.0"
        spellings.append(("as a decimal", sign + text))
    return spellings


def _other_fraction(gold: str) -> str:
    if re.search(r"\\[dt]frac(?![a-z])", gold):
        return re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", gold)
    return re.sub(r"\\frac(?![a-z])", r"\\dfrac", gold)


__all__ = ["NO_GOLD", "WORKING", "answerable", "cases", "equal_answers", "head", "near_answers", "wrong_answers"]
