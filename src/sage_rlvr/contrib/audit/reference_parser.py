"""A second verifier of Countdown completions, to check `verifiers/countdown.py`: it uses none of its parser.

    right iff  Python's grammar reads the text as a tree of integers under + - * /
      and  its numbers are the problem's, each equally often
          and  its value as an exact fraction is the target
          and  no pair of parentheses can be left out without changing the meaning of the text as algebra

The last line is the definition of the canonical form, tested literally: each pair is left out in turn, and
both texts are evaluated with independent values for their numbers, in the integers modulo the prime 2^61 - 1. Two equivalent texts
agree modulo the prime; two others agree with a chance of about 1e-17.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import add, mul, sub
from typing import Any, TypeVar

LONGEST = 200  # characters, as in the rule of the task
_PRIME = (1 << 61) - 1
_WRITTEN = re.compile(r"(?:[-+*/()]|0|[1-9][0-9]*)+")
_ZEROS = re.compile(r"(?<![0-9])0[0-9]")
_random = random.Random(7919)
_VALUES = [_random.randrange(1, _PRIME) for _ in range(LONGEST)]

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}

_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

T = TypeVar("T")


def second_opinion(numbers: Sequence[int], target: int, text: str) -> bool:
    """Whether `text` is a right completion for these numbers and this target, by the rule above; never raises an error on a
    text."""
    if len(text) > LONGEST or not _WRITTEN.fullmatch(text) or _ZEROS.search(text):
        return False
    tree = _tree(text)
    leaves = [] if tree is None else [n for n in _leaves(tree) if n is not None]
    if tree is None or len(leaves) < len(_leaves(tree)) or sorted(leaves) != sorted(numbers):
        return False
    try:
        value = _value(tree, [Fraction(n) for n in leaves], lambda a, b: a / b)
    except ZeroDivisionError:
        return False
    return value == target and not any(_means(text) == _means(shorter) for shorter in _without_a_pair(text))


def second_opinion_on_any_spelling(numbers: Sequence[int], target: int, text: str, operators: str = "+-*/") -> bool:
    """Whether `text` is a right answer of `countdown_chat`: the rule above without its last line, in any form."""
    for written, meant in (("×✕✖·⋅∙∗", "*"), ("÷∕⁄", "/"), ("−–—‒", "-"), ("\u00a0", " ")):
        text = re.sub(f"[{written}]", meant, text)
    match = re.fullmatch(r"\s*(?P<said>[-+*/() 0-9]+?)\s*(?:=\s*(?P<total>-?[0-9]+)\s*)?", text)
    if len(text) > LONGEST or match is None or (match["total"] or str(target)) != str(target) or _ZEROS.search(match["said"]):
        return False
    tree = _tree(match["said"])
    leaves = [] if tree is None else [n for n in _leaves(tree) if n is not None]
    if tree is None or len(leaves) < len(_leaves(tree)) or sorted(leaves) != sorted(numbers):
        return False
    used = {_SIGNS[type(node.op)] for node in ast.walk(tree) if isinstance(node, ast.BinOp)}
    try:
        return used <= set(operators) and _value(tree, [Fraction(n) for n in leaves], lambda a, b: a / b) == target
    except ZeroDivisionError:
        return False


def _tree(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _leaves(tree: ast.expr) -> list[int | None]:
    """The numbers in reading order; None for anything that is neither a number nor a binary operation."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return [*_leaves(tree.left), *_leaves(tree.right)]
    return [tree.value] if isinstance(tree, ast.Constant) and type(tree.value) is int else [None]


def _value(tree: ast.expr, values: list[T], divide: Callable[[T, T], T]) -> T:
    """The value with `values` for the numbers in reading order; the list is used up."""
    if not isinstance(tree, ast.BinOp):
        return values.pop(0)
    a, b = _value(tree.left, values, divide), _value(tree.right, values, divide)
    result: T = _OPERATIONS.get(type(tree.op), divide)(a, b)
    return result


def _means(text: str) -> int | None:
    """A text's value modulo the prime with the i-th independent value for its i-th number; None if it has none."""
    tree = _tree(text)
    if tree is None or None in _leaves(tree):
        return None
    try:
        return _value(tree, list(_VALUES), lambda a, b: a * pow(b, -1, _PRIME)) % _PRIME
    except ValueError:  # a divisor without an inverse: 0
        return None


def _without_a_pair(text: str) -> list[str]:
    """The text once for each pair of parentheses, with that pair left out."""
    waiting, texts = [], []
    for index, character in enumerate(text):
        if character == "(":
            waiting.append(index)
        elif character == ")":
            first = waiting.pop()
            texts.append(text[:first] + text[first + 1 : index] + text[index + 1 :])
    return texts


__all__ = ["second_opinion", "second_opinion_on_any_spelling"]
