r"""Mathematics as typed, without backslashes: names of functions and constants, ** for powers. Text only.

    typeset:  2*sqrt(3)/pi     -> 2*\sqrt{3}/\pi        the parser reads a name without a backslash as a product of letters
    unread:   erf(2)           -> erf                   the name of an unknown function

The contents of `\text{}` and the like are unchanged, and so is a word that is no name of mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sage_rlvr.verifiers.latex import BLOCK
from sage_rlvr.verifiers.style import LONGEST

_MOST_BRACKETS = 40  # brackets of a text, which is read recursively; deeper ones are undecided anyway

_GREEK = "alpha beta gamma delta epsilon theta lambda sigma omega phi psi Delta Omega"
_CONSTANTS = {name: f"\\{name}" for name in f"pi {_GREEK}".split()} | {"infinity": r"\infty", "infty": r"\infty"}
_LETTERS = {*_GREEK.split()}
_KNOWN = "sin cos tan cot sec csc sinh cosh tanh ln log arcsin arccos arctan gcd max min"
_FUNCTIONS = {name: f"\\{name}" for name in _KNOWN.split()}
_FUNCTIONS |= {"asin": r"\arcsin", "acos": r"\arccos", "atan": r"\arctan", "log2": r"\log_{2}", "log10": r"\log_{10}"}
_BARE = _FUNCTIONS.keys() - {"sec", "min", "max", "gcd"}
"""Functions that may precede an argument without brackets. sec and min are units too, and need the brackets."""
_JOINED = re.compile(
    r"(?<![A-Za-z\\])[xyz]?(?:(?:arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|csc|sec|ln|log|exp|sqrt)(?:[xyz]|pi|theta|(?<=ln)[a-z]))+"
    r"(?![A-Za-z])"
)
"""Functions that are written together with their argument, as in sinx, xlnx and sinxcosx. cost and sint are not."""
_JOINT = re.compile(r"(arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|csc|sec|ln|log|exp|sqrt)([xyz]|pi|theta|(?<=ln)[a-z])")
_TIMES_PI = re.compile(r"(?<![A-Za-z\\])([kmn])pi(?![A-Za-z])")
_CALLS: dict[str, Callable[[str], str]] = {
    "cbrt": r"\sqrt[3]{{{}}}".format,
    "exp": "e^{{{}}}".format,
    "abs": r"\left|{}\right|".format,
    "floor": r"\lfloor {{{}}}\rfloor".format,
    "ceil": r"\lceil {{{}}}\rceil".format,
    "factorial": "({})!".format,
}
"""Names with another notation for the argument."""
_PAIRS = {"binomial", "binom", "comb", "nCr"}
_UNREAD = (
    "lcm mod round sum prod product integrate integral diff limit lim det rank trace norm re im conjugate sign sgn erf zeta perm "
    "nPr root sup inf acot asec acsc asinh acosh atanh"
)
_OF_INFINITY = re.compile(r"(?:\A|(?<=[(\[,;+\-])|(?<=[(\[,;+\-] ))(?:inf|oo)(?=\s*(?:[,;)\]]|\Z))")
_UNION = re.compile(r"(?<=[)\]}])\s*(?:U|union)\s*(?=\\?[(\[{])")
_REALS = re.compile(r"\s*(?:\\text\s*\{)?\s*all\s+(?:the\s+)?real(?:\s+numbers|s)\s*\}?\s*")
_CUBE_ROOT = re.compile(r"\\sqrt\[3\]\s*(?:(\d+)|\(([^()]*)\))")
_REPEATING = re.compile(r"(?<![\w.])(\d+\.)\((\d+)\)(?![\w.(])")  # 0.(3); 0.1(6) may be a product
# one space on either side or none: in **47** Check the asterisks are bold type
_POWER = re.compile(r"(?<=[\w)}\]])(?:\*\*| \*\* )(?=[\w({\\+-])")
_ROOT = re.compile(r"\s*(?:\\|(?<![A-Za-z\\]))sqrt(?![A-Za-z])")
_ROOTED = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)")
_WIDE_ROOT = re.compile(r"\\sqrt\s*(?:\(|\\left\s*\(|\d\d|\d*\.\d|\\sqrt(?![A-Za-z]))")
"""A root of more than one character without braces: TeX reads only the first, or raises an error."""
_SIGNED = re.compile(
    r"\^\s*(?P<sign>-|\+(?=\d))(?:(?P<exponent>(?:\d+(?:\.\d+)?|[A-Za-z]|\\(?:pi|infty)(?![A-Za-z]))(?![A-Za-z]|\.?\d)"
    r"|\\[dt]?frac\{[^{}]*\}\{[^{}]*\})(?!\s*\^)|(?=\())"
)
"""An exponent with a sign and without braces, which is an error in TeX."""
_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_TOWER = re.compile(r"\^(\{[^{}]*\}|[0-9A-Za-z])\^(\{[^{}]*\}|[0-9A-Za-z])")  # an error in TeX; it is read from the right
_ROUND = re.compile(r"\s*(?:\\left\s*)?\(")
_NAMES = sorted({"sqrt", *_CONSTANTS, *_FUNCTIONS, *_CALLS, *_PAIRS}, key=len, reverse=True)
_NAME = rf"(?<![A-Za-z\\])(?:{'|'.join(_NAMES)})(?![A-Za-z])"
_TOKEN = re.compile(rf"(?P<kept>{BLOCK}|\\[A-Za-z]+|\\.)|(?P<name>{_NAME})", re.DOTALL)
_PLAIN = re.compile(
    rf"{_NAME}|\*\*|{_TOWER.pattern}|{_OF_INFINITY.pattern}|{_UNION.pattern}|{_JOINED.pattern}|{_TIMES_PI.pattern}|{_WIDE_ROOT.pattern}|{_CUBE_ROOT.pattern}"
    rf"|{_REPEATING.pattern}|\^\s*[-+]"
)
_CALL = re.compile(rf"(?<![A-Za-z\\])({'|'.join(_UNREAD.split())})\s*\(")
_ARGUMENT = re.compile(
    rf"\s*(?:\(|\\left\s*\(|\^|_|\{{)|\s*(?:\d|\\[a-zA-Z]|[A-Za-z](?![A-Za-z])|{_NAME})"
)
_FACTOR = re.compile(r"\s+(?=-?\w)(-?(?:\d+(?:\.\d+)?)?(?:[A-Za-z](?![A-Za-z])|\\?pi(?![A-Za-z]))?)(?![\w.])")
_BRACKET = re.compile(r"\s*\(|\s*\^| [xyz](?![A-Za-z])")


def typeset(text: str) -> str:
    r"""A text with names of functions and constants as commands, ** as ^, U between intervals as a union, and braces around the
    argument of a root and around an exponent with a sign.

    `2*sqrt(3)/pi` -> `2*\sqrt{3}/\pi`; `all real numbers` -> `\mathbb{R}`
    """
    if _REALS.fullmatch(text[:LONGEST]):
        return r"\mathbb{R}"
    if len(text) > LONGEST or not _PLAIN.search(text) or text.count("(") > _MOST_BRACKETS:
        return text
    text = _CUBE_ROOT.sub(r"\\sqrt[3]{\1\2}", _REPEATING.sub(r"\1\\overline{\2}", text))
    text = _JOINED.sub(lambda joined: _JOINT.sub(r" \1 \2", joined[0]), text).lstrip() if _JOINED.search(text) else text
    text = _TIMES_PI.sub(r"\1 \\pi", text)
    return _signed(_named(_raised(_UNION.sub(r"\\cup ", _OF_INFINITY.sub(r"\\infty", text)))))


def unread(text: str) -> str:
    """The first name of a function that the parser would read as a product of letters; "" if there is none."""
    found = _CALL.search(re.sub(BLOCK, " ", text))
    return found[1] if found else ""


def _named(text: str) -> str:
    runs = re.findall(r"[A-Za-z]+", re.sub(rf"{BLOCK}|\\[A-Za-z]+", " ", text))
    words = any(len(run) > 1 and run not in _NAMES for run in runs)  # gamma rays are not a product
    made, at = [], 0
    while token := _TOKEN.search(text, at):
        made.append(text[at : token.start()])
        at, name = token.end(), token["name"]
        argument, behind = _bracketed(text, at)
        rooted, end = _rooted(text, at) if _ROOT.fullmatch(token[0]) else ("", 0)
        if end:
            made.append(rf"\sqrt{{{rooted}}}")
            at = end
        elif name is None:
            made.append(token[0])
        elif name in _CONSTANTS and not (words and name in _LETTERS):
            made.append(_CONSTANTS[name])
        elif name in _CALLS and behind:
            made.append(_CALLS[name](_named(argument)))
            at = behind
        elif name == "exp" and (factor := _FACTOR.match(text, at)):
            made.append(f"e^{{{_named(factor[1])}}}")
            at = factor.end()
        elif name in _PAIRS and argument.count(",") == 1:
            made.append(r"\binom{{{}}}{{{}}}".format(*_named(argument).split(",")))
            at = behind
        elif name == "sqrt" and _ARGUMENT.match(text, at):
            made.append(r"\sqrt")
        elif name in _FUNCTIONS and (_ARGUMENT if name in _BARE else _BRACKET).match(text, at):
            made.append(_FUNCTIONS[name])
        else:
            made.append(name)
        if name is not None and made[-1].startswith("\\") and text[at : at + 1].isalpha():
            made.append(" ")
    return "".join([*made, text[at:]])


def _rooted(text: str, at: int) -> tuple[str, int]:
    """(the number, bracket or root under the root whose name ends at `at`, the place after it); ("", 0) for any other text."""
    argument, behind = _bracketed(text, at)
    if behind:
        return _named(argument), behind
    if number := _ROOTED.match(text, at):
        return number[1], number.end()
    if inner := _ROOT.match(text, at):
        rooted, behind = _rooted(text, inner.end())
        return (rf"\sqrt{{{rooted}}}", behind) if behind else ("", 0)
    return "", 0


def _signed(text: str) -> str:
    """A text with x^-1 as x^{-1} and 2^-(1/2) as 2^{-(1/2)}, except in units."""
    made, at = [], 0
    for power in _SIGNED.finditer(re.sub(BLOCK, lambda block: " " * len(block[0]), text)):
        argument, behind = _bracketed(text, power.end()) if power["exponent"] is None else ("", power.end())
        if behind and power.start() >= at and text[behind:].lstrip()[:1] != "^":  # a tower stays
            exponent = power["exponent"] or f"({argument})"
            made.append(f"{text[at : power.start()]}^{{{power['sign']}{exponent}}}")
            at = behind
    return "".join([*made, text[at:]])


def _bracketed(text: str, at: int) -> tuple[str, int]:
    """(the contents of the round brackets that open at `at`, the place after them); ("", 0) if none open or none close."""
    opened = _ROUND.match(text, at)
    if opened is None:
        return "", 0
    depth = 1
    for place in range(opened.end(), len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[opened.end() : place].removesuffix(r"\right"), place + 1
    return "", 0


def _raised(text: str) -> str:
    """A text with x**2 as x^{2}, x**(1/3) as x^{1/3}, and 2**3**2 as 2^{3^{2}}, from the right as in Python."""
    while tower := _TOWER.search(text):
        text = f"{text[: tower.start()]}^{{{tower[1]}^{tower[2]}}}{text[tower.end() :]}"
    made, at = [], 0
    while power := _POWER.search(text, at):
        exponent, behind = _exponent(text, power.end())
        made += [text[at : power.start()], exponent]
        at = behind
    return "".join([*made, text[at:]])


def _exponent(text: str, at: int) -> tuple[str, int]:
    """(the text for the ** that ends at `at` and its exponent, the place after that)."""
    argument, behind = _bracketed(text, at)
    if behind:
        base = _raised(argument)
    elif plain := _EXPONENT.match(text, at):
        base, behind = plain[0], plain.end()
    else:
        return "^", at
    if power := _POWER.match(text, behind):
        above, behind = _exponent(text, power.end())
        base = f"({base}){above}" if argument else f"{base}{above}"
    return f"^{{{base}}}", behind


__all__ = ["typeset", "unread"]
