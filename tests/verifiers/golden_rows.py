"""The cases of the golden verdicts: pairs of the tests and of the audit, and answers written by grammars.

A case that is right, or wrong in a known way, is not marked so: the file holds what the verifier says. Every random choice comes
from a seed of its own name, so that a grammar that grows moves no other one's cases. Nothing here takes an answer to an algebra
that may run for long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from lab.stress.battery.hostile import FAMILIES, NEAR
from sage_rlvr.contrib.audit.pairs import read_pairs
from sage_rlvr.contrib.tasks.countdown_steps import CountdownSteps
from sage_rlvr.contrib.tasks.repair.programs import all_problems, edit_to, wrong_edits
from sage_rlvr.contrib.tasks.word_problems import WordProblems
from sage_rlvr.contrib.tasks.word_problems.story import EXACTLY, NAMES, THEN
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.verifiers.knights_and_knaves import conclusion
from sage_rlvr.verifiers.units import UNITS
from verifiers import test_math, test_math_laws, test_math_reported, test_pool, test_style
from verifiers.golden import Case, GoldenRow

WHOLE = {"answer_in": "whole"}
Chance = random.Random
Pairs = Iterator[tuple[str, str]]
"""(answer, gold)."""


def cases() -> Iterator[GoldenRow]:
    """All of them, each once, in the order of the file."""
    seen = set()
    for judge, case in _all():
        row = GoldenRow(judge, case)
        if row.line not in seen:
            seen.add(row.line)
            yield row


def _all() -> Iterator[tuple[str, Case]]:
    yield from _mathematics()
    for answer, gold in _exact():
        yield "exact", [answer, gold]
    yield from (("countdown", case) for case in _countdown())
    yield from (("countdown_chat", case) for case in _countdown_chat())
    yield from (("countdown_steps", case) for case in _countdown_steps())
    yield from (("knights_and_knaves", case) for case in _knights())
    yield from (("word_problems", case) for case in _stories())
    yield from (("repair", case) for case in _programs())
    yield from (("reasoning_gym", case) for case in _gym())


# ------------------------------------------------------------------------------------------------------------------
# mathematics


def _mathematics() -> Iterator[tuple[str, Case]]:
    yield from (("math", [text, "4", reading]) for text, reading, _ in test_math.THOUGHT)
    yield from (("math,answer", [text, reading]) for text, reading, _ in test_math.THOUGHT)
    for answer, gold in _of_tests():
        if len(answer) + len(gold) <= 400:
            yield "math", [rf"so $\boxed{{{answer}}}$", gold, {}]
            yield "math", [gold, answer, WHOLE]
    for name, (grammar, count) in GRAMMARS.items():
        chance = Chance(name)
        for _ in range(count):
            answer, gold = grammar(chance)
            yield "math", [answer, gold, WHOLE]
    yield from (("math", case) for case in _places())
    yield from (("math", case) for case in _hostile())
    yield from (("math,answer", case[:1] + case[2:]) for case in _places(400))
    yield from (("math,gold", [value]) for value in _golds())


def _of_tests() -> Pairs:
    """The pairs of this folder's tests and of the audit."""
    for pair in read_pairs():
        yield pair.answer, pair.gold
    for rows in (test_math.EQUAL, test_math.DIFFERENT, test_math.UNDECIDED):
        yield from ((row[0], row[1]) for row in rows)
    for some in (test_math_reported.REPORTED_EQUAL, test_math_reported.REPORTED_DOUBTFUL, test_math_reported.REPORTED_DIFFERENT):
        yield from some
    yield from test_math_reported.EQUATIONS
    yield from ((text, "42") for text in test_style.UNKNOWN)
    yield from ((rf"42 \text{{ {words}}}", "42") for words in test_style.OPERATIONS)
    for (one, other), size in test_math_laws.SIZES.items():
        yield rf"1\text{{ {one}}}", rf"{size}\text{{ {other}}}"
        yield rf"2\text{{ {one}}}", rf"{size}\text{{ {other}}}"
    yield from ((answer, gold) for answer in test_pool.ANSWERS for gold in ("1/2", r"\{2,1\}", "2"))


def _number(chance: Chance, value: Fraction) -> str:
    """A spelling of a value."""
    over, under = value.numerator, value.denominator
    whole, rest = divmod(abs(over), under)
    sign = "-" if over < 0 else ""
    forms = [rf"\frac{{{over}}}{{{under}}}", rf"{sign}\dfrac{{{abs(over)}}}{{{under}}}", f"{over}/{under}", f"({over})/{under}"]
    if under == 1:
        forms += [
            str(over),
            f"{over}.0",
            f"{over}.",
            f"{over:,}",
            f"+{over}" if over > 0 else str(over),
            rf"{over}\%",
            f"{over * 100}%",
        ]
        forms += [
            f"{over:,}".replace(",", r"{,}"),
            f"{over:,}".replace(",", r"\,"),
            rf"{over}\times 10^{{0}}",
            f"{over}e0",
            f"{2 * over}/2",
        ]
    else:
        forms += [rf"{sign}{whole}\frac{{{rest}}}{{{under}}}", f"{sign}{whole} {rest}/{under}", rf"{over}\div{under}"]
        forms += [
            f"{float(value):.3f}",
            f"{float(value):.6g}",
            rf"{float(100 * value):.6g}\%",
            rf"\tfrac{{{2 * over}}}{{{2 * under}}}",
        ]
    return chance.choice(forms)


def _value(chance: Chance) -> Fraction:
    under = chance.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 25))
    return Fraction(chance.choice((1, 1, 1, -1)) * chance.randint(0, chance.choice((9, 60, 4_000))), under)


def _near(chance: Chance, value: Fraction) -> Fraction:
    """The value, or one that it is easily taken for."""
    change = (Fraction(0), Fraction(0), Fraction(0), Fraction(1), Fraction(-1), -2 * value, 9 * value, Fraction(1, 100))
    return value + chance.choice(change)


def _numbers(chance: Chance) -> tuple[str, str]:
    value = _value(chance)
    return _number(chance, _near(chance, value)), _number(chance, value)


def _surds(chance: Chance) -> tuple[str, str]:
    a, b, c = chance.randint(1, 9), chance.choice((2, 3, 5, 6, 7)), chance.randint(1, 9)
    golds = (
        rf"{a}\sqrt{{{b}}}",
        rf"{c}+\sqrt{{{b}}}",
        rf"\frac{{\sqrt{{{b}}}}}{{{a}}}",
        rf"{a}\pi",
        rf"\frac{{{a}\pi}}{{{c}}}",
        rf"2^{{{a}}}",
    )
    answers = (
        rf"\sqrt{{{a * a * b}}}", rf"{a}\sqrt{b}", rf"{a}*\sqrt{{{b}}}", rf"\sqrt{b}+{c}", rf"\sqrt{{{b}}}-{c}",
        rf"\sqrt{{{b}}}/{a}",
        rf"\frac{{{b}}}{{{a}\sqrt{{{b}}}}}", rf"{a} \pi", rf"\pi\cdot{a}", f"{a}π", rf"{a}\pi/{c}", str(2**a),
        f"{a * b**0.5:.4f}",
        rf"{a}√{b}", f"{a}*pi", f"sqrt({b})", rf"{b}^{{1/2}}", rf"{b}^{{0.5}}+{c}",
    )  # fmt: skip
    return chance.choice(answers), chance.choice(golds)


def _polynomials(chance: Chance) -> tuple[str, str]:
    a, b, x = chance.randint(1, 6), chance.randint(1, 9), chance.choice("xyntk")
    expanded = f"{x}^2+{a + b}{x}+{a * b}"
    answers = (
        f"({x}+{a})({x}+{b})", f"({x}+{b})({x}+{a})", f"{a * b}+{a + b}{x}+{x}^2", f"{x}^2+{a}{x}+{b}{x}+{a * b}",
        f"({x}-{a})({x}+{b})",
        rf"\left({x}+{a}\right)\left({x}+{b}\right)", f"{x}^{{2}}+{a + b}{x}", f"{x}*{x}+{a + b}*{x}+{a * b}",
        f"{x}({x}+{a + b})+{a * b}",
        f"({x}+{a})^2", rf"{x}^2+{a + b}\cdot {x}+{a * b}", f"({x.upper()}+{a})({x.upper()}+{b})", f"y={expanded}",
        f"f({x})={expanded}",
    )  # fmt: skip
    golds = (expanded, f"({x}+{a})({x}+{b})", f"{x}^2+{a + b}{x}+{a * b + 1}")
    return chance.choice(answers), chance.choice(golds)


def _functions(chance: Chance) -> tuple[str, str]:
    a, b = chance.randint(2, 6), chance.randint(2, 9)
    answers = (
        rf"\frac{{{a}}}{{{b}}}x", rf"\frac{{{a}x}}{{{b}}}", rf"{a}x/{b}", rf"e^{{{a}x}}", rf"(e^x)^{a}", rf"\ln({a}x)",
        rf"\ln {a}+\ln x",
        r"\sin^2 x+\cos^2 x", "1", rf"\log_{{{a}}}{{{b}}}", rf"\frac{{\ln {b}}}{{\ln {a}}}", rf"\frac{{1}}{{x+{a}}}",
        rf"(x+{a})^{{-1}}",
        rf"{a}\sin({b}x)", rf"{a}\sin {b}x", rf"\binom{{{b}}}{{2}}", str(b * (b - 1) // 2), rf"{a}!", rf"|{a}-{b}|",
        str(abs(a - b)),
        rf"\frac{{x^2-{a * a}}}{{x-{a}}}", rf"x+{a}", r"\sin(30^\circ)", r"\frac12", r"\tan 45^\circ", rf"{a}+{b}i", rf"{b}i+{a}",
    )  # fmt: skip
    return chance.choice(answers), chance.choice(answers)


def _collections(chance: Chance) -> tuple[str, str]:
    """Lists, sets, points."""
    parts = [chance.randint(-5, 9) for _ in range(chance.randint(2, 4))]
    other = list(parts)
    change = chance.randrange(5)
    if change == 0:
        chance.shuffle(other)
    elif change == 1:
        other[chance.randrange(len(other))] += 1
    elif change == 2:
        other.append(other[0])
    elif change == 3:
        other.pop()

    def spelled(rows: list[int]) -> str:
        texts = [_number(chance, Fraction(row)) if chance.random() < 0.2 and abs(row) < 9 else str(row) for row in rows]
        left, right = chance.choice(
            (("", ""), ("", ""), ("(", ")"), (r"\{", r"\}"), (r"\left(", r"\right)"), ("[", "]"), (r"\left\{", r"\right\}"))
        )
        joint = chance.choice((",", ", ", ", ", "; ", r" \text{ and } ", r",\ ", " or "))
        return left + joint.join(texts) + right

    return spelled(other), spelled(parts)


def _intervals(chance: Chance) -> tuple[str, str]:
    low = chance.randint(-6, 5)
    high = low + chance.randint(1, 6)

    def spelled() -> str:
        a, b = (low, high) if chance.random() < 0.8 else (low - 1, high)
        left, right = chance.choice("[("), chance.choice(")]")
        signs = ({"[": r"\le", "(": "<"}[left], {"]": r"\le", ")": "<"}[right])
        return chance.choice(
            (
                f"{left}{a},{b}{right}", rf"\left{left}{a},{b}\right{right}", f"{a}{signs[0]} x{signs[1]} {b}",
                rf"x\in{left}{a},{b}{right}",
                rf"(-\infty,{a})\cup({b},\infty)", rf"({b},\infty)\cup(-\infty,{a})", rf"x<{a} \text{{ or }} x>{b}",
                rf"[{a},\infty)", rf"x\ge {a}",
                rf"{a}\le x", rf"x\leq {b}", rf"(-\infty,{b}]", rf"\{{x\mid {a}<x<{b}\}}", rf"({a},{b})", rf"x \neq {a}",
                rf"\mathbb{{R}}\setminus\{{{a}\}}",
            )
        )  # fmt: skip

    return spelled(), spelled()


def _matrices(chance: Chance) -> tuple[str, str]:
    entries = [chance.randint(-3, 9) for _ in range(4)]

    def spelled() -> str:
        a, b, c, d = entries if chance.random() < 0.6 else entries[::-1]
        kind = chance.choice(("pmatrix", "bmatrix", "matrix", "vmatrix"))
        return chance.choice(
            (
                rf"\begin{{{kind}}}{a}&{b}\\{c}&{d}\end{{{kind}}}", rf"\begin{{{kind}}} {a} & {b} \\ {c} & {d} \end{{{kind}}}",
                rf"\begin{{{kind}}}{a}\\{b}\end{{{kind}}}", f"({a},{b})", rf"\langle {a},{b}\rangle",
                rf"{a}\mathbf{{i}}+{b}\mathbf{{j}}", f"[[{a},{b}],[{c},{d}]]",
            )
        )  # fmt: skip

    return spelled(), spelled()


def _units(chance: Chance) -> tuple[str, str]:
    names = sorted(name for name in UNITS if name.isascii() and name.isalpha())
    value, unit = chance.randint(1, 60), chance.choice(names)
    other = chance.choice((unit, unit, chance.choice(names), "km", "cm", "minutes", "dollars", "apples", "square feet"))

    def spelled(number: int, name: str) -> str:
        return chance.choice(
            (
                rf"{number}\text{{ {name}}}", rf"{number} \text{{{name}}}", f"{number} {name}", rf"{number}~\mathrm{{{name}}}",
                rf"{number}\,\text{{{name}}}",
                rf"{number}\text{{ {name}}}^2", rf"{number}\text{{ {name} per hour}}", rf"{number}\text{{ {name}/s}}",
                str(number), f"{number}{name}",
                rf"{number}\ \textbf{{{name}}}", rf"{number}.0\text{{ {name}s}}",
            )
        )  # fmt: skip

    return spelled(value * chance.choice((1, 1, 1, 10, 60, 100, 1000)), other), spelled(value, unit)


def _money(chance: Chance) -> tuple[str, str]:
    cents = chance.randint(1, 300) * chance.choice((1, 5, 100))

    def spelled(amount: int) -> str:
        dollars = f"{amount / 100:.2f}"
        short = f"{amount / 100:g}"
        return chance.choice(
            (
                rf"\${dollars}", f"${dollars}$", rf"\${short}", rf"{dollars}\text{{ dollars}}", f"{short} dollars",
                rf"{amount}\text{{ cents}}", f"{amount}¢",
                dollars, short, f"{short} USD", rf"\$ {short}", f"€{short}", rf"{short}\%", rf"{amount / 10000:g}",
                rf"\${short}\text{{ per hour}}", f"{amount}%",
            )
        )  # fmt: skip

    return spelled(cents if chance.random() < 0.7 else cents + 1), spelled(cents)


def _notations(chance: Chance) -> tuple[str, str]:
    """Degrees, times, dates, ratios, bases, percentages, repeating decimals, powers of ten."""
    a, b = chance.randint(1, 12), chance.randint(1, 59)
    base = chance.choice((2, 3, 5, 8))
    digits = "".join(str(chance.randrange(base)) for _ in range(3))
    month = chance.choice(("January", "March", "Sept.", "Oct", "December"))
    forms = (
        f"{a}:{b:02}", rf"{a}{{:}}{b:02}", rf"{a}:{b:02}\text{{ AM}}", f"{a}:{b:02} p.m.", rf"{a}\text{{ PM}}",
        f"{a + 12}:{b:02}", f"{a} o'clock",
        rf"{b}^\circ", f"{b}°", str(b), rf"{b}^{{\circ}}", rf"{b}\text{{ degrees}}", rf"{b}^\circ\text{{C}}",
        rf"\frac{{{b}\pi}}{{180}}",
        f"1{digits}_{base}", rf"1{digits}_{{{base}}}", rf"1{digits}_{{\text{{{base}}}}}", str(int(f"1{digits}", base)),
        f"1{digits}", rf"1{digits}\text{{ base }}{base}",
        f"{a}:{b}", rf"{a} : {b}", rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}", rf"{2 * a}:{2 * b}", rf"{a}\text{{ to }}{b}",
        f"{a}:{b}:{a}",
        rf"\text{{{month} {a}}}", f"{month} {a}", rf"{a}\text{{ {month}}}", rf"{b}\%", f"{b / 100:g}", f"{b} percent",
        rf"{b} \%", rf"\frac{{{b}}}{{100}}",
        rf"0.\overline{{{b}}}", rf"\frac{{{b}}}{{99}}", rf"0.\dot{{{a % 10}}}", rf"{a}\times 10^{{{b % 7}}}", f"{a}e{b % 7}",
        str(a * 10 ** (b % 7)),
        rf"{a} \cdot 10^{b % 7}", rf"{a}\text{{ million}}", f"{a}{'0' * 6}", f"{a} thousand", rf"{a}^\text{{th}}", f"{a}th",
        r"\infty", r"-\infty",
    )  # fmt: skip
    return chance.choice(forms), chance.choice(forms)


def _same_notation(chance: Chance) -> tuple[str, str]:
    """Two of few forms, so that many are equal."""
    seed = chance.randrange(1 << 30)
    forms = _notations(Chance(seed))
    other = chance.choice(forms)
    return chance.choice(
        (other, other.replace(" ", ""), rf"\text{{{other}}}", f"{other}.", f"${other}$", other.upper())
    ), chance.choice(forms)


WORDS = (
    "yes",
    "no",
    "Yes",
    "true",
    "False",
    "none",
    "never",
    "Evelyn",
    "east",
    "north",
    "blue",
    "odd",
    "even",
    "infinite",
    "undefined",
    "all",
    "Monday",
    "not",
)


def _texts(chance: Chance) -> tuple[str, str]:
    word, letter = chance.choice(WORDS), chance.choice("ABCDE")

    def spelled() -> str:
        mine = word if chance.random() < 0.7 else chance.choice(WORDS)
        choice = letter if chance.random() < 0.7 else chance.choice("ABCDE")
        return chance.choice(
            (
                mine, rf"\text{{{mine}}}", mine.upper(), mine.capitalize(), f"{mine}.", rf"\textbf{{{mine}}}", f"the {mine}",
                rf"\text{{{mine} and blue}}", f"not {mine}",
                choice, f"({choice})", rf"\text{{({choice})}}", rf"\textbf{{{choice}}}", f"{choice}.", f"{choice}) 5",
                rf"\text{{({choice}) }} 5", f"option {choice}",
                choice.lower(), rf"\mathrm{{{choice}}}", f"{choice}, {letter}", rf"\text{{{mine}, {choice}}}", r"\emptyset",
                r"\{\}", f"{mine} {chance.randint(1, 4)}",
            )
        )  # fmt: skip

    return spelled(), spelled()


def _equations(chance: Chance) -> tuple[str, str]:
    a, b, x = chance.randint(-4, 9), chance.randint(1, 9), chance.choice("xynS")

    def spelled() -> str:
        c = a if chance.random() < 0.8 else a + 1
        return chance.choice(
            (
                f"{x}={c}", f"{x} = {c}", str(c), f"{c}={x}", f"{x}={c}, y={b}", f"({c},{b})", f"{x}={c} or {x}={b}",
                rf"{x}={c} \text{{ and }} {x}={b}", f"{c},{b}",
                rf"{x}=\pm {b}", rf"\pm {b}", f"{b}, -{b}", rf"{x}\approx {c}", f"{x}={c}={c}.0", f"{c}+{b}={c + b}",
                f"{x}={c}+{b}={c + b}", str(c + b), f"y={b}x+{c}",
                f"{b}x+{c}", f"{b}x-y+{c}=0", f"{x}>{c}", f"{x}_1={c}, {x}_2={b}", rf"\angle ABC={b}^\circ", rf"f({b})={c}",
                rf"P={c}", f"{b}{x}={b * c}", rf"{c} \pm {b}",
            )
        )  # fmt: skip

    return spelled(), spelled()


def _styled(chance: Chance) -> tuple[str, str]:
    """A gold of the tests in one of their styles, or another gold in it."""
    gold = chance.choice(test_style.GOLDS)
    answer = gold if chance.random() < 0.75 else chance.choice(test_style.GOLDS)
    return chance.choice(list(test_style.STYLES.values()))(answer), gold


def _pieces(chance: Chance) -> tuple[str, str]:
    text = "".join(chance.choice(test_math_laws.PIECES) for _ in range(chance.randint(1, 9)))
    gold = chance.choice(("7", "7 cm", "B", "7:30", "x", "(1,2)", r"\{1,2\}", "25", r"\frac{1}{2}"))
    return (text, gold) if chance.random() < 0.8 else (gold, text)


def _letters(chance: Chance) -> tuple[str, str]:
    names = "".join(chance.sample("ABCDEF", chance.randint(2, 3)))
    forms = (
        names,
        names[::-1],
        rf"\overline{{{names}}}",
        rf"\angle {names}",
        rf"\triangle {names}",
        " ".join(names),
        names.lower(),
        rf"\text{{{names}}}",
        f"{names}D",
    )
    return chance.choice(forms), chance.choice(forms)


GRAMMARS: dict[str, tuple[Callable[[Chance], tuple[str, str]], int]] = {
    "numbers": (_numbers, 1000),
    "surds": (_surds, 250),
    "polynomials": (_polynomials, 200),
    "functions": (_functions, 200),
    "collections": (_collections, 400),
    "intervals": (_intervals, 300),
    "matrices": (_matrices, 150),
    "units": (_units, 450),
    "money": (_money, 250),
    "notations": (_notations, 300),
    "same notation": (_same_notation, 250),
    "texts": (_texts, 300),
    "equations": (_equations, 300),
    "pieces": (_pieces, 300),
    "letters": (_letters, 80),
}


def _places(count: int = 700) -> Iterator[list[Any]]:
    """[completion, gold, reading] of every place: with working around it, several answers, none, cut off."""
    chance = Chance(f"places {count}")
    for _ in range(count):
        gold, other = str(chance.randint(2, 99)), str(chance.randint(100, 999))
        answer = gold if chance.random() < 0.7 else other
        front = chance.choice(
            ("", "First 17, then 25.\n", rf"If \boxed{{{other}}} were it, no. ", "<SOLUTION>1</SOLUTION> ", f"answer: {other}. ")
        )
        behind = chance.choice(
            ("", ".", " Check: 42 - 25 = 17.", "\n\nDone", f" and not {other}", "\N{REPLACEMENT CHARACTER}", " </SOLUTION>", "}")
        )
        middle = chance.choice(
            (
                rf"\boxed{{{answer}}}", rf"\boxed {answer}", rf"$\fbox{{{answer}}}$", rf"\boxed{{x={answer}}}",
                rf"\boxed{{{answer}", rf"\boxed{{{answer}}}, \boxed{{{other}}}",
                rf"x=\boxed{{{answer}}} and x=\boxed{{{other}}}", f"<SOLUTION>{answer}</SOLUTION>", f"<SOLUTION>{answer}",
                f"<SOLUTION> {answer}\n</SOLUTION>",
                f"The answer is {answer}", f"**Answer:** {answer}", f"#### {answer}", f"the final answer is: **{answer}**",
                f"Answer = {answer} because it fits", f"{answer}",
                rf"\boxed{{\boxed{{{answer}}}}}", r"\boxed{}", rf"\\boxed{{{answer}}}",
                rf"The answer is $\frac{{{answer}}}{{1}}$", f"it is {answer}%", f"so -{answer}",
                f"`{answer}`", f"{answer} apples", rf"\boxed{{{answer}\text{{ cm}}}}", "", f"<answer>{answer}</answer>",
                f"it is {int(answer):,}.50",
            )
        )  # fmt: skip
        reading: dict[str, Any] = {
            "answer_in": chance.choice(("boxed", "boxed", "tag", "stated", "last_number", "anywhere", "whole"))
        }
        if reading["answer_in"] == "tag" and chance.random() < 0.5:
            reading["closed"] = False
        yield [front + middle + behind, gold, reading]


SLOW = {
    "power towers",
    "factorials",
    "huge integers",
    "long sums",
    "deep nesting",
    "a megabyte",
    "trees of commands",
    "lists",
    "huge exponents",
}
"""Families of hostile answers whose verdict is a limit's, or whose text is long."""


def _hostile() -> Iterator[list[Any]]:
    chance = Chance("hostile")
    families = sorted(set(FAMILIES) - SLOW)
    for _ in range(400):
        text = FAMILIES[chance.choice(families)](chance)[:300]
        form, reading = chance.choice(
            (
                (r"so \boxed{%s}", {}),
                ("<SOLUTION>%s</SOLUTION>", {"answer_in": "tag"}),
                ("it is %s", {"answer_in": "last_number"}),
                ("%s", WHOLE),
            )
        )
        yield [form.replace("%s", text), r"\frac{355}{113}", reading]
    for near in NEAR:
        for gold in ("355/113", "7"):
            yield [near.replace("%s", gold), gold, WHOLE]
    for nest, inside in (("{%s}", 41), ("(%s)", 41), ("(%s)", 6), (r"\sqrt{%s}", 12), ("-%s", 30), ("|%s|", 3)):
        text = "1"
        for _ in range(inside):
            text = nest.replace("%s", text)
        yield from ([text, gold, WHOLE] for gold in ("1", "2"))
    for digits in (300, 999, 1001):
        yield from ([text * digits, gold, WHOLE] for text in "19" for gold in ("1", "9" * digits))
    for text in ("9^{9^{9^{9}}}", "99999999!", "2^{(10^{9})}", "2^{2010}", "4^{1005}", "100!", r"100\cdot 99!"):
        yield from ([text, gold, WHOLE] for gold in ("3", "2^{2010}", "100!"))
    for control in range(33):
        yield [f"4{chr(control)}2", "42", WHOLE]
        yield ["42", f"4{chr(control)}2", WHOLE]


def _golds() -> Iterator[Any]:
    yield from (
        None,
        True,
        42,
        42.0,
        0.5,
        -3,
        "",
        " ",
        "42",
        " 42 ",
        ["42"],
        ["1", "2"],
        [],
        {"a": 1},
        "nan",
        r"\text{NaN}",
        "inf",
        1e300,
        2**70,
    )
    yield from (
        "6*7=42\n#### 42",
        "#### 42",
        "####",
        "42 ####",
        "# 42",
        "a\n####  1,000 ",
        r"it is \boxed{42}.",
        r"\boxed{-4} and \boxed{9}",
        r"\boxed{4",
        r"\boxed{}",
    )
    for letter, rests in (
        ("\f", ("rac{1}{2}", "oo")),
        ("\t", ("ext{a}", "heta", "imes 3", "an x", "able")),
        ("\r", ("ight)", "ho", "ain")),
        ("\n", ("eq 3", "u", "ew")),
    ):
        yield from (f"4{letter}{rest}" for rest in rests)
    yield from (f"{letter}oxed{{3}}" for letter in "\b\v\a\x00\x1f\x7f")
    chance = Chance("golds")
    for _ in range(60):
        yield chance.choice(("%s", "so #### %s", "step\n#### %s", r"\boxed{%s}", "%s.0", " %s\n")).replace(
            "%s", _number(chance, _value(chance))
        )


# ------------------------------------------------------------------------------------------------------------------
# the other verifiers


def _exact() -> Pairs:
    chance = Chance("exact")
    for grammar, count in ((_numbers, 250), (_collections, 200), (_intervals, 60), (_texts, 60), (_surds, 30)):
        yield from (grammar(chance) for _ in range(count))


def _damaged(chance: Chance, text: str, signs: str) -> str:
    """A text with one character left out, put in, replaced or twice; or as it is."""
    at = chance.randrange(len(text) + 1)
    sign = chance.choice(signs)
    return chance.choice(
        (
            text,
            text[:at] + sign + text[at:],
            text[:at] + text[at + 1 :],
            text[:at] + sign + text[at + 1 :],
            text[:at] + text[max(0, at - 1) :],
        )
    )


def _countdown() -> Iterator[list[Any]]:
    chance = Chance("countdown")
    world = Countdown(counts={2: 1.0, 3: 1.0, 4: 1.0}, train_problems=50)
    for problem, text in world.examples("train", 7, 0, 450):
        numbers, target = list(problem.numbers), problem.target
        yield [numbers, target, text]
        yield [numbers, target, _damaged(chance, text, "0123456789+-*/() =")]
    numbers, target = [3, 4, 12, 12], 45
    odd = (
        "",
        " ",
        "(",
        ")",
        "()",
        "3",
        "12/4*(12+3)",
        "12/4*12+3",
        "(12/4)*(12+3)",
        "12/(4*0)",
        "0/0",
        "-3",
        "3--4",
        "٣+4",
        "3 + 4",
        "3+4=7",
        "1" * 200,
        "1" * 201,
    )
    yield from ([numbers, target, text] for text in odd)
    yield from ([[0, 5], 0, text] for text in ("5/0", "0/5", "0*5", "5*0", "0-5", "5-0", "00*5", "0/5/0"))


def _countdown_chat() -> Iterator[list[Any]]:
    chance = Chance("countdown_chat")
    for operators in ("+-*/", "+-", "+*"):
        world = CountdownChat(operators=operators, counts={3: 1.0, 4: 1.0}, train_problems=50)
        for problem, text in world.examples("train", 7, 0, 60):
            numbers, target = list(problem.numbers), problem.target
            spelled = chance.choice(
                (
                    text,
                    text.replace("*", "×"),
                    text.replace("-", "−"),
                    text.replace("/", "÷"),
                    f"({text})",
                    " ".join(text),
                    f" {text}\n",
                    f"{text} = {target}",
                )
            )
            for answer in (spelled, _damaged(chance, spelled, "0123456789+-*/() =×÷"), f"{text}={target + 1}", f"{text}="):
                yield [numbers, target, answer, operators]


def _countdown_steps() -> Iterator[list[Any]]:
    chance = Chance("countdown_steps")
    for problem, text in CountdownSteps(counts={3: 1.0, 4: 1.0, 5: 1.0}, train_problems=50).examples("train", 7, 0, 220):
        for answer in (text, _damaged(chance, text, "0123456789+-*/() ="), text.rpartition(")")[0]):
            yield [list(problem.numbers), problem.target, answer]


def _knights() -> Iterator[list[Any]]:
    chance = Chance("knights_and_knaves")
    everybody = ("Zoey", "Oliver", "Mia", "Sam", "Jack", "Lily")
    for _ in range(300):
        names = chance.sample(everybody, chance.randint(2, 4))
        solution = [chance.random() < 0.5 for _ in names]
        said = list(solution) if chance.random() < 0.6 else [chance.random() < 0.5 for _ in names]
        gold = conclusion(names, said)
        lines = gold.splitlines()
        shuffled = [lines[0], *chance.sample(lines[1:], len(names))]
        text = chance.choice(
            (
                gold, f"If Zoey lied, then (1). {gold}", gold.replace(") ", "). "), gold.replace("(", "").replace(")", "."),
                gold.replace("(", "**(").replace(" is", "** is"),
                "\n".join(shuffled), gold.rpartition("\n")[0], f"{gold}\n(9) Jack is a knight",
                f"{gold}\n({len(names) + 1}) Jack is a knight", gold.replace("CONCLUSION:\n", ""),
                "\n".join([lines[0], *(f"- {line[4:]}" for line in lines[1:])]),
                "\n".join([lines[0], *(f"* **{line[4:]}**" for line in shuffled[1:])]), f"{gold}, if so",
                f"{gold}\n### Question CONCLUSION: no", f"{gold}\n{conclusion(names, [not one for one in said])}", gold.lower(),
                gold.replace("knave", "liar"), lines[0],
                f"{conclusion(names, solution)}\nlet's go back and check if", " ".join(lines), gold.replace("is a", "is not a"),
            )
        )  # fmt: skip
        yield from ([names, solution, text, rule] for rule in ("published", "strict"))


def _stories() -> Iterator[list[Any]]:
    chance = Chance("word_problems")
    for problem, text in WordProblems(train_problems=50).examples("train", 7, 0, 200):
        steps = text.split(THEN)
        yield [problem.problem_id, text]
        yield [problem.problem_id, _damaged(chance, text, "0123456789+-*/=,. ")]
        yield [
            problem.problem_id,
            chance.choice(
                (
                    THEN.join(steps[:-2]), THEN.join([*steps, *steps[-2:]]), text.partition(THEN)[2],
                    f"{problem.queried}{EXACTLY}{problem.values[problem.queried]}", text + ".",
                    text.replace(chance.choice(NAMES), chance.choice(NAMES)), THEN.join(steps[:-1]), "", text * 40,
                    THEN.join(steps[:1]), text.replace("so ", ""),
                )
            ),
        ]  # fmt: skip


def _programs() -> Iterator[list[Any]]:
    """[program, tests, completion or turns]: mended, edited wrongly, not edited, no Python. None runs for long."""
    chance = Chance("repair")
    for problem in chance.sample(all_problems()["test"], 20):
        right = edit_to(problem.source, problem.fixed)
        tests = [[list(arguments), wanted] for arguments, wanted in problem.tests]
        edits = [edit for edit, _ in wrong_edits(problem.problem_id)][:1]
        odd = chance.choice(
            (
                "",
                "test",
                "it is right",
                "99: return 1",
                "2: return undefined",
                "1: def f(:",
                "2: return 1/0",
                "2: import os",
                f"2: return {tests[0][1]}",
            )
        )
        for said in (right, *edits, odd, ["test", right], [*edits, right], ["test", odd]):
            yield [problem.source, tests, said]


def _gym() -> Iterator[list[Any]]:
    chance = Chance("reasoning_gym")
    for _ in range(250):
        gold = chance.choice(("Yes", "No", "42", "knight, knave", "1 0 1", "[1, 2]", "3/4", "blue"))
        answer = gold if chance.random() < 0.8 else "Maybe"
        inside = chance.choice(
            (
                answer,
                rf"\text{{{answer}}}",
                rf"\textbf{{{answer}}}",
                f" {answer} ",
                f"{answer}.",
                "",
                rf"\mathrm{{{answer}}}",
                answer.lower(),
            )
        )
        text = chance.choice(
            (rf"so \boxed{{{inside}}}", rf"\boxed{{{inside}", f"<answer>{inside}</answer>", f"<answer>{inside}", inside)
        )
        reading = chance.choice(
            ({"answer_in": "boxed"}, {"answer_in": "tag", "tag": "answer"}, {"answer_in": "tag", "tag": "answer", "closed": False})
        )
        yield [text, gold, reading]
    for text in (r"<think>\boxed{42}", r"<think>\boxed{41}</think> \boxed{42}", r"<think>\boxed{42}</think>"):
        yield [text, "42", {"answer_in": "boxed"}]
