"""The programs of the repair world: a function family with one site changed, its unit tests, and edits of its lines.

A problem is a pure function of (family, constants, site, change). Programs whose right version is in one split are in no other.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.sandbox import compared
from sage_rlvr.verifiers.sandbox_child import calls

ENTRY = "f"
KINDS = ("start", "compare", "operator", "bound", "variable", "result")
"""Kinds of defects: a first value, a comparison, an operation, a limit that is off by one, another variable, the returned value."""
TESTS = 6  # a problem
LINES = 2000  # lines that the tests of a changed program may run
SPLITS = {"test": (0,), "validation": (1,), "train": (2, 3, 4)}  # hash of the right program, modulo 5
EDIT = re.compile(r"\s*([0-9]{1,3})[ \t]*:(.*)")  # characters of one line: over many its spaces take quadratic time

# A site is «kind:right¦wrong¦...»; the types of the arguments are before the program: xs a list, n and b numbers from 0 on, y any.
FAMILIES: dict[str, tuple[str, str]] = {
    "sum of those above": ("xs", """
        total = «start:0¦1»
        for x in xs:
            if x «compare:>¦>=¦<» {k}:
                total «operator:+=¦-=» «variable:x¦total»
        return «result:total + {c}¦total»"""),
    "count of multiples": ("xs", """
        count = «start:{c}¦{c} + 1»
        for x in xs:
            if x % {k} «compare:==¦!=» «bound:0¦1»:
                count «operator:+=¦-=» 1
        return «result:count¦x»"""),
    "largest": ("xs", """
        best = xs[«start:0¦-1»] * {k}
        for x in xs:
            if x * {k} «compare:>¦<» best:
                best = «variable:x¦best» * {k}
        return best «operator:+¦-» {c}"""),
    "product of a range": ("n", """
        result = «start:{k}¦0»
        for i in range(«bound:1¦2¦0», n + «bound:1¦2¦0»):
            result «operator:*=¦+=» «variable:i¦n»
        return «result:result + {c}¦i»"""),
    "power": ("b, n", """
        result = «start:{k}¦0»
        for i in range(«bound:n¦n + 1¦1, n»):
            result = result «operator:*¦+» «variable:b¦n»
        return result + {c}"""),
    "clamp": ("y", """
        if y «compare:<¦>» {c}:
            return «variable:{c}¦y»
        if y > {c} + {k}:
            return {c} «operator:+¦-» {k}
        return «result:y¦{k}»"""),
    "greatest common divisor": ("b, n", """
        a = n + {k}
        while b «compare:!=¦>» «bound:0¦1»:
            a, b = «variable:b¦a», a «operator:%¦-» b
        return «result:a + {c}¦b + {c}»"""),
    "distance": ("b, n", """
        gap = b «operator:-¦+» n * {k}
        if gap «compare:<¦>» «bound:0¦1»:
            gap = «variable:-gap¦-b»
        return «result:gap + {c}¦gap»"""),
    "sum of digits": ("n", """
        total = «start:{c}¦n»
        while n «compare:>¦>=» «bound:0¦1»:
            total += n «operator:%¦//» {k}
            n = n // {k}
        return «result:total¦n»"""),
    "recurrence": ("n", """
        a, b = «start:{c}, 1¦1, {c}»
        for i in range(«bound:n¦n + 1¦1, n + 2»):
            a, b = «variable:b¦a», a «operator:+¦-» {k} * b
        return «result:a¦b»"""),
    "first place": ("xs, y", """
        for i in range(«bound:0¦1», len(xs)):
            if xs[i] «compare:==¦!=» y «operator:+¦-» {c}:
                return «result:i * {k}¦i»
        return «start:-1¦0»"""),
    "growing": ("xs", """
        for i in range(len(xs) - «bound:1¦2»):
            if xs[i] + {k} «compare:>¦<» xs[i + «variable:1¦0»] + {k} «operator:+¦-» {c}:
                return «result:False¦True»
        return True"""),
    "alternating sum": ("xs", """
        sign, total = «start:1¦-1», {c}
        for x in xs:
            total «operator:+=¦-=» sign * «variable:x¦total»
            sign = «result:-sign¦sign»
        return total * {k}"""),
}  # fmt: skip
SITE = re.compile(r"«(\w+):([^»]*)»")


@dataclass(frozen=True)
class Broken:
    """A function with one defect. `all_problems` makes it; `Repair`, its hints and the sandbox read it.

    source: the program in the prompt; fixed: before the change; tests: (arguments, repr of the value);
    output: message of the first failing test on `source`. guidance: a hint in the prompt; "" in a new problem.
    """

    problem_id: str
    family: str
    kind: str
    source: str
    fixed: str
    tests: tuple[tuple[tuple[Any, ...], str], ...]
    output: str
    guidance: str = ""


def numbered(source: str) -> str:
    """The lines of a program with their numbers, from 1."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(source.splitlines(), 1))


def edited(source: str, completion: str) -> str | None:
    """The program with the lines of a completion inserted, each at its original indentation; None without an edit.

    A line that is named twice has its last text; a number beyond the program is no edit.
    """
    lines = source.splitlines()
    matches = [edit.groups() for line in completion.split("\n") if (edit := EDIT.fullmatch(line))]
    edits = [(int(number), text) for number, text in matches if 1 <= int(number) <= len(lines)]
    for number, text in edits:
        old = lines[number - 1]
        lines[number - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
    return "\n".join(lines) if edits else None


def edit_to(source: str, wanted: str) -> str:
    """The completion that changes a program into `wanted`, of equally many lines."""
    pairs = zip(source.splitlines(), wanted.splitlines(), strict=True)
    return "\n".join(f"{n}: {new.strip()}" for n, (old, new) in enumerate(pairs, 1) if old != new)


# ------------------------------------------------------------------------------------------------------------------
# the programs; only code above is run


def _versions(family: str, k: int, c: int) -> Iterator[tuple[str, str, str]]:
    """(kind, changed, right) for each change of each site."""
    given, body = FAMILIES[family]
    text = f"def {ENTRY}({given}):" + "\n".join(line[4:] for line in body.format(k=k, c=c).split("\n"))
    sites = list(SITE.finditer(text))
    right = SITE.sub(lambda site: site[2].split("¦")[0], text)
    for index, site in enumerate(sites):
        for other in site[2].split("¦")[1:]:
            taken = iter(range(len(sites)))
            changed = SITE.sub(
                lambda match, taken=taken, index=index, other=other: (  # type: ignore[misc]
                    other if next(taken) == index else match[2].split("¦")[0]
                ),
                text,
            )
            yield site[1], changed, right


def _tests(given: str, right: str) -> tuple[tuple[tuple[Any, ...], str], ...]:
    """Arguments drawn by the program's hash, and the results of the right program; the first are the smallest."""
    chance = np.random.Generator(np.random.Philox(int(_hash(right), 16)))
    scope: dict[str, Any] = {}
    exec(right, scope)

    def argument(name: str, size: int) -> Any:
        if name == "xs":
            return [int(x) for x in chance.integers(-3, 10, 1 + size)]
        return int(chance.integers(0, 3 + 2 * size)) if name in "nb" else int(chance.integers(-5, 12))

    inputs = [tuple(argument(name.strip(), size) for name in given.split(",")) for size in range(TESTS)]
    return tuple((arguments, repr(scope[ENTRY](*arguments))) for arguments in inputs)


class _TooLong(BaseException):
    pass


def tested(changed: str, tests: Sequence[Any]) -> Verdict | None:
    """The verdict of the tests on a changed program, run in this process, because it is trusted; None for one that runs more than
    `LINES` lines.

    The limit counts lines and not time, so that the problems are the same on every machine.
    """
    left = LINES

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= frame.f_code.co_filename == "program"
        if left < 0:
            raise _TooLong
        return count

    before, results = sys.gettrace(), []
    for arguments, _ in tests:
        sys.settrace(count)  # set again: one that has raised an error is removed
        try:
            results += calls(changed, ENTRY, [list(arguments)])
        finally:
            sys.settrace(before)
        if left < 0:
            return None
    return compared(results, ENTRY, tests)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def all_problems() -> dict[str, tuple[Broken, ...]]:
    """Every problem of every split: changes that at least one test distinguishes from the right program. A text that results
    from several right programs is only in the first of their splits."""
    problems: dict[str, dict[str, Broken]] = {split: {} for split in SPLITS}
    for family, (k, c) in product(FAMILIES, tuple(product(range(2, 8), range(4)))):
        tests = None
        for kind, changed, right in _versions(family, k, c):
            tests = _tests(FAMILIES[family][0], right) if tests is None else tests
            verdict = tested(changed, tests)
            split = next(split for split, rest in SPLITS.items() if int(_hash(right), 16) % 5 in rest)
            one_value = len({wanted for _, wanted in tests}) == 1  # "return" and that value would repair it
            if verdict is not None and not verdict.right and not one_value:
                name = f"repair-{_hash(changed)}"
                problems[split].setdefault(changed, Broken(name, family, kind, changed, right, tests, verdict.reason))
    taken: set[str] = set()
    made = {}
    for split, some in problems.items():
        made[split] = tuple(sorted((p for p in some.values() if p.source not in taken), key=lambda one: one.problem_id))
        taken |= set(some)
    return made


@cache
def _siblings() -> dict[str, tuple[Broken, ...]]:
    """Id of a problem -> itself first, and all problems from the same right program."""
    siblings: dict[str, list[Broken]] = {}
    rows = [one for some in all_problems().values() for one in some]
    for one in rows:
        siblings.setdefault(one.fixed, []).append(one)
    return {one.problem_id: (one, *siblings[one.fixed]) for one in rows}


@cache
def wrong_edits(problem_id: str) -> tuple[tuple[str, str], ...]:
    """(edit, message of the first failing test) of edits that do not repair a problem: lines of other changes of its program."""
    problem, *others = _siblings()[problem_id]
    edits = []
    for other in others:
        edit = edit_to(problem.fixed, other.source)
        program = edited(problem.source, edit)
        if program is None or program == problem.source:
            continue
        verdict = tested(program, problem.tests)
        if verdict is not None and not verdict.right:
            edits.append((edit, verdict.reason))
    return tuple(edits)


__all__ = [
    "ENTRY", "FAMILIES", "KINDS", "SPLITS", "Broken", "all_problems", "edit_to", "edited", "numbered", "tested", "wrong_edits",
]  # fmt: skip
