"""Every canonical expression over a few numbers, and all their exact values at once.

A *template* is a canonical expression with slots for its numbers, in reading order. There are 1, 4, 28, 244, 2380 of
them over 1..5 slots. Template x distinct order of the numbers = every canonical expression, each exactly once, so that
the probability of being right can be summed instead of sampled. Values are int64 fractions num/den without reduction:
with numbers up to M both stay within 2^(n-1) M^n in magnitude, and a larger world raises an error instead of overflowing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.verifiers.countdown import ATOM, PRODUCT, SUM, kind_of, spell

MAX_NUMBERS = 5  # 285,600 expressions; six numbers have about 18 million
OPERATORS = "+-*/"
_ROWS = 128  # templates evaluated at once, so that five numbers fit into the processor's cache
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Templates:
    """All T templates over n slots. `templates` makes it; `solve` and `reached` evaluate it.

    Operation k writes register n + k; registers 0..n-1 contain the slots.

    texts: T strings with `{}` for each slot; operators, left, right: (T, n-1) operator number and operand registers.
    """

    texts: tuple[str, ...]
    operators: Integers
    left: Integers
    right: Integers

    def __len__(self) -> int:
        return len(self.texts)


Node = tuple[str, int, tuple[int, ...]]  # text, kind, postfix code (-1 = next slot, else operator number)


@cache
def _nodes(n: int) -> tuple[Node, ...]:
    """Canonical expressions over n slots. `a+(b+c)` and `a*(b*c)` are left out: they have the text of other parses."""
    if n == 1:
        return (("{}", ATOM, (-1,)),)
    nodes: list[Node] = []
    for size in range(1, n):
        for left, left_kind, left_code in _nodes(size):
            for right, right_kind, right_code in _nodes(n - size):
                for number, operator in enumerate(OPERATORS):
                    if (operator, right_kind) in (("+", SUM), ("*", PRODUCT)):
                        continue
                    text = spell(operator, left, left_kind, right, right_kind)
                    nodes.append((text, kind_of(operator), (*left_code, *right_code, number)))
    return tuple(nodes)


def _registers(code: tuple[int, ...], n: int) -> list[tuple[int, int, int]]:
    """Turn postfix code into (operator number, register of its left operand, of its right one)."""
    stack: list[int] = []
    made: list[tuple[int, int, int]] = []
    slots = iter(range(n))
    for item in code:
        if item < 0:
            stack.append(next(slots))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(n + len(made))
            made.append((item, left, right))
    return made


@cache
def templates(n: int) -> Templates:
    """All canonical templates over n slots, 1 <= n <= `MAX_NUMBERS`; computed once, always in the same order."""
    if not 1 <= n <= MAX_NUMBERS:
        raise DataError(f"{n} numbers: expressions are enumerated for 1 to {MAX_NUMBERS} numbers; use fewer numbers.")
    nodes = _nodes(n)
    table = np.array([_registers(code, n) for _, _, code in nodes], dtype=np.int64).reshape(len(nodes), n - 1, 3)
    operators, left, right = (np.ascontiguousarray(table[:, :, part]) for part in range(3))
    return Templates(tuple(text for text, _, _ in nodes), operators, left, right)


def expressions_over(numbers: Sequence[int], operators: str = OPERATORS, brackets: bool = True) -> int:
    """Return the number of canonical expressions with these operators over these numbers, some of which may be equal.

    brackets: False for only those without brackets."""
    return len(_rows_with(len(numbers), operators, brackets)) * len(set(permutations(numbers)))


@lru_cache(maxsize=1 << 14)
def count_right(numbers: tuple[int, ...], target: int, operators: str = OPERATORS, brackets: bool = True) -> int:
    """Count those of `expressions_over(numbers, operators, brackets)` that equal the target.

    It takes about 0.3 ms for four numbers, 20 ms for five. Raises `DataError` as `solve` does.
    """
    table, rows = templates(len(numbers)), _rows_with(len(numbers), operators, brackets)
    check_range(len(numbers), max(numbers), abs(target))
    slots = np.array(sorted(set(permutations(numbers))), dtype=np.int64).T[:, None, :]
    hits = 0
    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        num, den = evaluate(table.operators[part], table.left[part], table.right[part], slots)
        hits += int(np.count_nonzero((den != 0) & (num == target * den)))
    return hits


def guesses(numbers: tuple[int, ...], target: int, operators: str = OPERATORS) -> tuple[float, ...]:
    """Shares of right expressions among those without division, without brackets, and without both.

    Three guessers besides the one that draws any expression: they know that most targets need neither. () for `MAX_NUMBERS`
    numbers, because enumerating them takes long."""
    if len(numbers) == MAX_NUMBERS:
        return ()
    whole = operators.replace("/", "") or operators
    shares = []
    for allowed, brackets in ((whole, True), (operators, False), (whole, False)):
        shares.append(count_right(numbers, target, allowed, brackets) / expressions_over(numbers, allowed, brackets))
    return tuple(shares)


@cache
def _rows_with(n: int, operators: str, brackets: bool) -> NDArray[np.intp]:
    """The templates over n slots that have only these operators; without brackets, only those that have none."""
    table, allowed = templates(n), [OPERATORS.index(operator) for operator in operators]
    kept = np.isin(table.operators, allowed).all(1)
    if not brackets:
        kept &= np.array(["(" not in text for text in table.texts])
    return np.flatnonzero(kept)


def check_range(n: int, largest: int, target: int = 1) -> None:
    """Raise `DataError` for numbers whose exact fractions could exceed int64."""
    if (bound := 2 ** (n - 1) * max(largest, 1) ** n * max(target, 1)) >= 2**63:
        raise DataError(
            f"{n} numbers up to {largest} with target {target}: fractions may reach {float(bound):.1e}, beyond int64; "
            "use smaller numbers."
        )


def evaluate(operators: Integers, left: Integers, right: Integers, slots: Integers) -> tuple[Integers, Integers]:
    """Exact values of R programs on P assignments each, as fractions (num, den), both (R, P); 0/0 = division by zero.

    operators, left, right: (R, n-1) rows of `Templates`; slots: (n, R, P) or broadcastable to it, positive integers.
    """
    n, rows = slots.shape[0], len(operators)
    shape = (2 * n - 1, rows, slots.shape[2])
    num, den = np.empty(shape, np.int64), np.ones(shape, np.int64)
    num[:n] = slots
    each = np.arange(rows)
    for k in range(n - 1):
        operator = operators[:, k, None]
        an, ad = num[left[:, k], each], den[left[:, k], each]
        bn, bd = num[right[:, k], each], den[right[:, k], each]
        added = an * bd + np.where(operator == 0, bn, -bn) * ad
        divides = operator == 3
        multiplied = an * np.where(divides, bd, bn)
        bottom = ad * np.where(divides, bn, bd)
        # x/0 becomes 0/0, which every operation preserves. As x/0 it would become a number again: a / (x/0) = 0.
        num[n + k] = np.where(operator < 2, added, multiplied) * (bottom != 0)
        den[n + k] = bottom
    return num[-1], den[-1]


def solve(numbers: Sequence[int], target: int) -> list[str]:
    """All canonical expressions that use each of `numbers` once and equal `target`, in a fixed order, without repeats.

    About 0.2 ms for four numbers, 0.1 s for five. Raises `DataError` beyond `MAX_NUMBERS` or int64.
    """
    table = templates(len(numbers))
    check_range(len(numbers), max(numbers), abs(target))
    orders = sorted(set(permutations(numbers)))
    slots = np.array(orders, dtype=np.int64).T[:, None, :]
    num, den = evaluate(table.operators, table.left, table.right, slots)
    hits = np.argwhere((den != 0) & (num == target * den))
    return [table.texts[row].format(*orders[column]) for row, column in hits.tolist()]


@dataclass(frozen=True, eq=False)
class Reached:
    """The K integers of a range that some numbers reach, ascending, and every expression that reaches each of them. `reached` makes
    it; the draws of problems and the listing of solutions read it.

    targets, counts: (K,) integers and how many expressions reach each; hits: the expressions, grouped by target in the
    order of `solve`, as template * (number of orders) + order; starts: (K,) first hit of each target.
    """

    size: int
    orders: tuple[tuple[int, ...], ...]
    targets: Integers
    counts: Integers
    starts: Integers
    hits: NDArray[np.int32]

    def text(self, which: int, rank: int) -> str:
        """Expression `rank` (below `counts[which]`) of target `which`: `solve(numbers, targets[which])[rank]`."""
        row, column = divmod(int(self.hits[self.starts[which] + rank]), len(self.orders))
        return templates(self.size).texts[row].format(*self.orders[column])


def enumerate_targets(numbers: Sequence[int], low: int, high: int) -> Reached:
    """The results of `solve(numbers, target)` for every target in low..high, from one enumeration.

    About 0.5 ms for four numbers, 20 ms for five. Raises `DataError` beyond `MAX_NUMBERS` or int64.
    """
    table = templates(len(numbers))
    check_range(len(numbers), max(numbers), max(abs(low), abs(high)))
    orders = sorted(set(permutations(numbers)))
    slots = np.array(orders, dtype=np.int64).T[:, None, :]
    hits, values = [], []
    for first in range(0, len(table), _ROWS):
        rows = slice(first, first + _ROWS)
        num, den = evaluate(table.operators[rows], table.left[rows], table.right[rows], slots)
        num, den = num.ravel(), den.ravel()
        value = num // np.where(den == 0, 1, den)
        kept = np.flatnonzero((den != 0) & (value * den == num) & (value >= low) & (value <= high))
        hits.append((kept + first * len(orders)).astype(np.int32))
        values.append(value[kept])
    value = np.concatenate(values)
    targets, starts, counts = np.unique(np.sort(value), return_index=True, return_counts=True)
    # stable: within a target the expressions stay in the order of `solve`, by which `Reached.text` counts
    grouped = np.concatenate(hits)[np.argsort(value, kind="stable")]
    return Reached(len(numbers), tuple(orders), targets, counts, starts, grouped)


_many, _few = (lru_cache(maxsize=size)(enumerate_targets) for size in (4096, 256))  # five numbers: up to 0.2 MB each


def reached(numbers: tuple[int, ...], low: int, high: int) -> Reached:
    """`enumerate_targets`, cached for the most recent ascending numbers (4096 of them; 256 of five numbers)."""
    return (_many if len(numbers) < MAX_NUMBERS else _few)(numbers, low, high)
