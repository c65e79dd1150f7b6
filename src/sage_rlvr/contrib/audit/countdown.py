"""The audit of a Countdown world: all answers can be listed, so ceiling and floor are exact for each problem.

ceiling      share of all right expressions of the problems that are judged right
guess floor  mean over problems of 1 - (1 - right / expressions)^k: k expressions over its numbers, drawn uniformly
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

from sage_rlvr.contrib.audit.reference_parser import second_opinion
from sage_rlvr.tasks.checks import AuditFinding, Case, Check
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS, expressions_over, solve, templates
from sage_rlvr.tasks.countdown.problem import SPLITS, Problem, solutions, split_of
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import canonical

SEED = 1  # of the problems
EACH = 8  # answers of one kind per problem
# Problems that are audited; those on which both verifiers judge every existing expression; and examples per split
# that are searched for common problems. Five numbers make 285,600 expressions, so there it is fewer.
SIZES, SIZES_OF_FIVE = (200, 8, 2000), (40, 1, 200)

ProblemTexts = list[tuple[Problem, str]]


def cases(world: Countdown, k: int, sizes: tuple[int, int, int] | None = None) -> Iterator[Case | Check]:
    """Checks on the first distinct test problems of `world`. k: guesses of the guess floor.

    sizes: problems; those of them whose every expression the second verifier judges too; examples per split that are searched for
    common problems (default `SIZES`).
    """
    chosen, whole, drawn = _chosen(world, sizes)
    right = _right(chosen)
    mistakes, spelled = wrong(chosen), _spellings(chosen)
    yield Case("every right expression is right", right)
    yield Case("another spelling, put into the canonical one, is right", _mended(spelled))
    yield Case("every other spelling of it earns nothing", spelled, "not right")
    yield Case("", mistakes, "wrong")
    texts = right + spelled
    for pairs in mistakes.values():
        texts += pairs
    for p in chosen[:whole]:
        texts += [(p, text) for text in _expressions(p)]
    yield second(world.verify, _canonical, texts, f"of them every expression over the numbers of {whole} problems")
    yield apart(world, drawn)
    yield floor([len(solutions(p)) / expressions_over(p.numbers) for p in chosen], k)


def head(world: Countdown, sizes: tuple[int, int, int] | None = None) -> str:
    """Describe the subject of `cases`."""
    chosen, _, _ = _chosen(world, sizes)
    counts = "-".join(map(str, sorted({min(world.counts), max(world.counts)})))
    return (
        f"{len(chosen)} test problems as the law draws them, each once, seed {SEED}: {counts} numbers up to "
        f"{world.max_number}, targets {world.min_target} to {world.max_target}; {len(_right(chosen)):,} right expressions"
    )


def _chosen(world: Countdown, sizes: tuple[int, int, int] | None) -> tuple[list[Problem], int, int]:
    problems, whole, drawn = sizes or (SIZES_OF_FIVE if max(world.counts) == MAX_NUMBERS else SIZES)
    return world.problems("test", SEED, problems), whole, drawn


def _right(chosen: Sequence[Problem]) -> ProblemTexts:
    return [(p, text) for p in chosen for text in solutions(p)]


# ------------------------------------------------------------------------------------------------------------------
# what is judged


def _expressions(problem: Problem) -> list[str]:
    orders = sorted(set(permutations(problem.numbers)))
    return [text.format(*order) for text in templates(len(problem.numbers)).texts for order in orders]


def _spellings(problems: Sequence[Problem]) -> ProblemTexts:
    """The first right expression of each problem, in forms that the task does not request: all with the right value."""
    pairs: ProblemTexts = []
    for p in problems:
        text = solutions(p)[0]
        number = str(p.numbers[0])
        texts = [f"({text})", f" {text}", f"{text} ", f"{text}\n", f"0{text}", f"+{text}", f"{text}={p.target}"]
        texts += [
            re.sub(rf"(?<![0-9]){number}(?![0-9])", f"({number})", text, count=1),
            text.replace("+", " + "),
            text.replace("*", "\N{MULTIPLICATION SIGN}"),
        ]
        pairs += [(p, other) for other in texts if other != text]
    return pairs


def _mended(spelled: ProblemTexts) -> ProblemTexts:
    """The expressions among them, in canonical form."""
    whole = [(p, text) for p, text in spelled if set(text) <= set("0123456789+-*/() ") and not text.startswith("+")]
    return [(p, canonical(text)) for p, text in whole if not text.startswith("0(")]


def wrong(problems: Sequence[Problem]) -> dict[str, ProblemTexts]:
    """Answers that are wrong by construction, most of them with the right value, by kind."""
    kinds: dict[str, ProblemTexts] = defaultdict(list)
    for index, p in enumerate(problems):
        for kind, texts in _mistakes(p, problems[index - 1]).items():
            kinds[kind] += [(p, text) for text in texts]
    return {kind: pairs for kind, pairs in kinds.items() if pairs}


def _mistakes(p: Problem, other: Problem) -> dict[str, list[str]]:
    """Kind -> wrong answers of a problem. other: a problem whose answers are wrong for this one, unless it is the same problem."""
    text, (first, *rest) = solutions(p)[0], p.numbers
    return {
        "one number missing": _one_missing(p) or ["+".join(map(str, rest))],
        "a number used again": [f"{text}+{n}-{n}" for n in sorted(set(p.numbers))],
        "another number in its place": solve((first + 1, *rest), p.target)[:EACH],
        "of the target + 1": solve(p.numbers, p.target + 1)[:EACH],
        "of the target - 1": solve(p.numbers, p.target - 1)[:EACH],
        "another problem's": solutions(other)[:EACH] if other.key != p.key else [],
        "division by zero": [*_by_zero(p), f"{text}/({first}-{first})"],
        "a bare number": [str(p.target), *map(str, p.numbers)],
    }


def _one_missing(problem: Problem) -> list[str]:
    """Expressions for the target over all numbers but one, a few per omitted number."""
    numbers = problem.numbers
    shorter = {(*numbers[:i], *numbers[i + 1 :]) for i in range(len(numbers))}
    expressions = []
    for rest in sorted(shorter):
        expressions += solve(rest, problem.target)[:EACH]
    return expressions


def _by_zero(problem: Problem) -> list[str]:
    """Expressions over exactly the problem's numbers that divide by zero, a few: one number over others that make 0."""
    expressions = []
    for number in sorted(set(problem.numbers)):
        others = list(problem.numbers)
        others.remove(number)
        zeros = solve(others, 0)[:EACH] if len(others) > 1 else []
        expressions += [f"{number}/({zero})" for zero in zeros]
    return expressions[:EACH]


# ------------------------------------------------------------------------------------------------------------------
# the other checks


def _canonical(problem: Problem, text: str) -> bool:
    return second_opinion(problem.numbers, problem.target, text)


def second(
    verify: Callable[[Problem, str], Verdict], other: Callable[[Problem, str], bool], pairs: ProblemTexts, note: str = ""
) -> Check:
    """Contradictions between a second verifier and the first, each text once."""
    rows = []
    texts = list(dict.fromkeys(pairs))
    for p, text in texts:
        mine, theirs = verify(p, text), other(p, text)
        if mine.right != theirs:
            says = "right" if theirs else "wrong"
            rows.append(AuditFinding(p.problem_id, mine.label, f"{mine.reason}, and the second verifier says {says}"))
    return Check("second verifier agrees", len(texts) - len(rows), len(texts), tuple(rows), bar=True, note=note)


def apart(world: Any, drawn: int) -> Check:
    """Problems, up to the order of their numbers, that are in two splits or in another split than they were drawn for."""
    homes: dict[str, set[str]] = {}
    for split in SPLITS:
        for p, _ in world.examples(split, SEED, 0, drawn):
            homes.setdefault(p.problem_id, set()).update((split, split_of(p)))
    rows = []
    for problem_id, splits in homes.items():
        if len(splits) > 1:
            rows.append(AuditFinding(problem_id, "duplicate", f"in {', '.join(sorted(splits))}"))
    name = "problems that stand in one split"
    return Check(name, len(homes) - len(rows), len(homes), tuple(rows), bar=True, note=f"of {drawn:,} drawn a split")


def floor(shares: Sequence[float], k: int) -> Check:
    """k uniform guesses among all well-formed expressions over a problem's numbers. shares: of right ones, by problem."""
    hits = sum(Chance("answers", tuple(shares)).hits(k))
    note = f"mean of 1 - (1 - right/expressions)^{k}; one guess hits {sum(shares) / len(shares):.4f}"
    return Check(f"guess floor: {k} uniform expressions", hits, len(shares), note=note)


__all__ = ["SEED", "apart", "cases", "floor", "head", "second", "wrong"]
