"""The vectorised enumeration has a brute-force twin: all trees, Fraction arithmetic, printed by its own rules."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.tasks.countdown import Problem, solutions, verify
from sage_rlvr.tasks.countdown.expressions import (
    check_range,
    enumerate_targets,
    evaluate,
    expressions_over,
    reached,
    solve,
    templates,
)
from sage_rlvr.verifiers.countdown import canonical, value

Tree = int | tuple["Tree", str, "Tree"]


def trees(numbers: tuple[int, ...]) -> list[Tree]:
    if len(numbers) == 1:
        return [numbers[0]]
    return [
        (left, operator, right)
        for cut in range(1, len(numbers))
        for left in trees(numbers[:cut])
        for right in trees(numbers[cut:])
        for operator in "+-*/"
    ]


def total(tree: Tree) -> Fraction | None:
    if isinstance(tree, int):
        return Fraction(tree)
    a, b = total(tree[0]), total(tree[2])
    if a is None or b is None or (tree[1] == "/" and b == 0):
        return None
    return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[tree[1]]


def written(tree: Tree) -> str:
    if isinstance(tree, int):
        return str(tree)
    left, operator, right = tree
    texts = [written(left), written(right)]
    kinds = [side[1] if isinstance(side, tuple) else "" for side in (left, right)]
    if operator in "*/" and kinds[0] in ("+", "-"):
        texts[0] = f"({texts[0]})"
    if kinds[1] and (operator == "/" or (operator in "-*" and kinds[1] in "+-")):
        texts[1] = f"({texts[1]})"
    return texts[0] + operator + texts[1]


def brute_force(numbers: tuple[int, ...]) -> dict[str, Fraction | None]:
    return {written(tree): total(tree) for order in set(permutations(numbers)) for tree in trees(order)}


@pytest.mark.parametrize(
    "numbers", [(7,), (2, 3), (4, 4), (1, 5, 7), (2, 2, 3), (1, 2, 3, 4), (3, 3, 8, 8), (2, 2, 2, 6)]
)
def test_solutions_equal_the_brute_force_twin(numbers):
    everything = brute_force(numbers)
    for target in (1, 2, 7, 12, 24, 30):
        expected = {text for text, total_value in everything.items() if total_value == target}
        found = solve(numbers, target)
        assert len(found) == len(set(found))
        assert set(found) == expected


@pytest.mark.parametrize("n, count", [(1, 1), (2, 8), (3, 168), (4, 5856), (5, 285600)])
def test_count_of_expressions(n, count):
    assert expressions_over(range(1, n + 1)) == count
    if n <= 4:
        assert len(brute_force(tuple(range(1, n + 1)))) == count


def test_templates_are_canonical_and_distinct():
    for n in range(1, 5):
        texts = [text.format(*range(2, n + 2)) for text in templates(n).texts]
        assert len(set(texts)) == len(texts)
        assert all(canonical(text) == text for text in texts)


def test_two_numbers_by_hand():
    assert sorted(solve((3, 4), 12)) == ["3*4", "4*3"]
    assert solve((2, 6), 3) == ["6/2"]
    assert solve((5, 5), 1) == ["5/5"]
    assert solve((1, 1), 7) == []


def test_the_famous_problem_with_one_solution():
    assert solve((3, 3, 8, 8), 24) == ["8/(3-8/3)"]


def test_fractions_and_negative_intermediate_values_count():
    assert "1/(1/7)" not in solve((1, 7), 7)
    assert "(1-7)*(2-6)" in solve((1, 2, 6, 7), 24)
    assert value("(1-7)*(2-6)") == 24


def test_division_by_zero_absorbs_everything():
    table = templates(4)
    slots = np.array([5, 5, 5, 5], np.int64)[:, None, None]
    num, den = evaluate(table.operators, table.left, table.right, slots)
    for text, a, b in zip(table.texts, num[:, 0], den[:, 0], strict=True):
        try:
            assert Fraction(int(a), int(b)) == value(text.format(5, 5, 5, 5))
        except ZeroDivisionError:
            assert (a, b) == (0, 0)
            with pytest.raises(ZeroDivisionError):
                value(text.format(5, 5, 5, 5))


def test_every_solution_for_five_numbers_is_verified():
    problem = Problem((2, 3, 5, 7, 11), 31)
    found = solutions(problem)
    assert len(found) == len(set(found)) > 100
    assert all(verify(problem, text).right for text in found)


def test_refusals_name_the_bound():
    with pytest.raises(DataError, match="1 to 5"):
        solve((1, 2, 3, 4, 5, 6), 7)
    with pytest.raises(DataError, match="int64"):
        check_range(5, 10_000, 100)
    check_range(5, 100, 999)


@pytest.mark.parametrize("numbers", [(2, 3), (4, 4), (2, 2, 6), (3, 3, 8, 8), (1, 5, 7, 12)])
def test_one_enumeration_equals_solving_every_target(numbers):
    table = enumerate_targets(numbers, -3, 60)
    expected = {target: texts for target in range(-3, 61) if (texts := solve(numbers, target))}
    assert table.targets.tolist() == list(expected)
    for which, texts in enumerate(expected.values()):
        assert [table.text(which, rank) for rank in range(int(table.counts[which]))] == texts


def test_one_enumeration_of_five_numbers_is_remembered():
    table = reached((2, 3, 5, 7, 11), 31, 31)
    assert reached((2, 3, 5, 7, 11), 31, 31) is table
    assert [table.text(0, rank) for rank in range(int(table.counts[0]))] == solve((2, 3, 5, 7, 11), 31)
