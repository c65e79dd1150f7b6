"""Repair of small Python functions: one defect of six kinds, unit tests that run as real code in a sandbox.

    function family, constants -> right program -> one site changed -> what a failing test says -> "LINE: its new text"

A problem is a pure function of (family, constants, site, change). Programs whose right version is in one split are in no other.
A completion edits lines of the numbered program; the edited program is right where every unit test passes
(`sage_rlvr.verifiers.sandbox`). Right edits other than the undone change count: the tests decide, and not the text.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np

from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.base import code_hash, hash_of
from sage_rlvr.tasks.checks import Case, Check, duplicates
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.sandbox import PROGRAMS, SECONDS, compared, require_sandbox
from sage_rlvr.verifiers.sandbox_child import calls

ENTRY = "f"
KINDS = ("start", "compare", "operator", "bound", "variable", "result")
"""Of a defect: a first value, a comparison, an operation, a limit that is off by one, another variable, what is returned."""
TESTS = 6  # a problem
WORDS = {
    **{"start": "a first value", "compare": "a comparison", "operator": "an operation", "bound": "a limit"},
    **{"variable": "a variable", "result": "what is returned"},
}  # of a kind, in guidance
TRIED = 80  # characters of an attempt, and of what was said of it, that guidance repeats
LINES = 2000  # that the tests of a changed program may run
SPLITS = {"test": (0,), "validation": (1,), "train": (2, 3, 4)}  # of the hash of the right program, modulo 5
EDIT = re.compile(r"\s*([0-9]{1,3})[ \t]*:(.*)")  # of one line: over many its spaces take quadratic time

# A site is «kind:right¦wrong¦...»; what the arguments are stands before the program: xs a list, n and b numbers from 0 on, y any.
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
    """A function with one defect. source: as it is given; fixed: before the change; tests: (arguments, repr of the value);
    said: what the first failing test says of `source`. guidance: what its prompt holds beside; "" as it is drawn.
    """

    problem_id: str
    family: str
    kind: str
    source: str
    fixed: str
    tests: tuple[tuple[tuple[Any, ...], str], ...]
    said: str
    guidance: str = ""


def numbered(source: str) -> str:
    """The lines of a program with their numbers, from 1."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(source.splitlines(), 1))


def edited(source: str, completion: str) -> str | None:
    """The program with the lines that a completion names put in, each at the indentation that it had; None without an edit.

    A line that is named twice has its last text; a number beyond the program is no edit.
    """
    lines = source.splitlines()
    found = [edit.groups() for line in completion.split("\n") if (edit := EDIT.fullmatch(line))]
    edits = [(int(number), text) for number, text in found if 1 <= int(number) <= len(lines)]
    for number, text in edits:
        old = lines[number - 1]
        lines[number - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
    return "\n".join(lines) if edits else None


def edit_to(source: str, wanted: str) -> str:
    """The completion that makes `wanted` of a program with as many lines."""
    pairs = zip(source.splitlines(), wanted.splitlines(), strict=True)
    return "\n".join(f"{n}: {new.strip()}" for n, (old, new) in enumerate(pairs, 1) if old != new)


def edits_in(completion: str) -> list[tuple[int, str]]:
    """(number of a line, its new text) of the edits of a completion."""
    found = (EDIT.fullmatch(line) for line in completion.split("\n"))
    return [(int(edit[1]), edit[2].strip()) for edit in found if edit]


def edited_lines(problem: Broken, text: str) -> str:
    """The lines that a completion edits, in words; "" for none."""
    numbers = sorted({number for number, _ in edits_in(text) if 1 <= number <= len(problem.source.splitlines())})
    return f"edit line {' and '.join(map(str, numbers))}" if numbers else ""


def explained(said: Sequence[str], verdict: Verdict) -> str:
    """An attempt's last words, what the tests said of it, and the kind of step to try."""
    tried = "; ".join(f"{number}: {text}" for number, text in edits_in(said[-1]))[:TRIED]
    if not tried:
        return "nothing was edited: write LINE: its new text"
    step = "an index or a name" if "raised" in verdict.reason else "where it ends" if "longer" in verdict.reason else "another edit"
    return f"tried {tried}\n{verdict.reason[:TRIED]}; try {step}"


# ------------------------------------------------------------------------------------------------------------------
# the programs; what runs here is written above


def _versions(family: str, k: int, c: int) -> Iterator[tuple[str, str, str]]:
    """(kind, changed, right) of each change of each site."""
    given, body = FAMILIES[family]
    text = f"def {ENTRY}({given}):" + "\n".join(line[4:] for line in body.format(k=k, c=c).split("\n"))
    sites = list(SITE.finditer(text))
    right = SITE.sub(lambda site: site[2].split("¦")[0], text)
    for place, site in enumerate(sites):
        for other in site[2].split("¦")[1:]:
            taken = iter(range(len(sites)))
            changed = SITE.sub(
                lambda found, taken=taken, place=place, other=other: (  # type: ignore[misc]
                    other if next(taken) == place else found[2].split("¦")[0]
                ),
                text,
            )
            yield site[1], changed, right


def _tests(given: str, right: str) -> tuple[tuple[tuple[Any, ...], str], ...]:
    """Arguments drawn by the program's hash, and what the right program gives; the first are the smallest."""
    chance = np.random.Generator(np.random.Philox(int(_hash(right), 16)))
    scope: dict[str, Any] = {}
    exec(right, scope)

    def argument(name: str, size: int) -> Any:
        if name == "xs":
            return [int(x) for x in chance.integers(-3, 10, 1 + size)]
        return int(chance.integers(0, 3 + 2 * size)) if name in "nb" else int(chance.integers(-5, 12))

    asked = [tuple(argument(name.strip(), size) for name in given.split(",")) for size in range(TESTS)]
    return tuple((arguments, repr(scope[ENTRY](*arguments))) for arguments in asked)


class _TooLong(BaseException):
    pass


def _said(changed: str, tests: Sequence[Any]) -> Verdict | None:
    """What the tests say of a changed program, run here, as it is one of ours; None for one that runs more than `LINES` lines.

    By lines and not by a clock, so that the problems are the same on every machine.
    """
    left = LINES

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= frame.f_code.co_filename == "program"
        if left < 0:
            raise _TooLong
        return count

    before, found = sys.gettrace(), []
    for arguments, _ in tests:
        sys.settrace(count)  # anew: one that has raised is taken off
        try:
            found += calls(changed, ENTRY, [list(arguments)])
        finally:
            sys.settrace(before)
        if left < 0:
            return None
    return compared(found, ENTRY, tests)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _all() -> dict[str, tuple[Broken, ...]]:
    """Every problem of every split: changes that at least one test tells from the right program. One text that several right
    programs lead to is in the first of their splits alone."""
    found: dict[str, dict[str, Broken]] = {split: {} for split in SPLITS}
    for family, (k, c) in product(FAMILIES, tuple(product(range(2, 8), range(4)))):
        tests = None
        for kind, changed, right in _versions(family, k, c):
            tests = _tests(FAMILIES[family][0], right) if tests is None else tests
            said = _said(changed, tests)
            split = next(split for split, rest in SPLITS.items() if int(_hash(right), 16) % 5 in rest)
            one_value = len({wanted for _, wanted in tests}) == 1  # "return" and that value would mend it
            if said is not None and not said.right and not one_value:
                name = f"repair-{_hash(changed)}"
                found[split].setdefault(changed, Broken(name, family, kind, changed, right, tests, said.reason))
    taken: set[str] = set()
    made = {}
    for split, some in found.items():
        made[split] = tuple(sorted((p for p in some.values() if p.source not in taken), key=lambda one: one.problem_id))
        taken |= set(some)
    return made


@cache
def _siblings() -> dict[str, tuple[Broken, ...]]:
    found: dict[str, list[Broken]] = {}
    for one in (p for rows in _all().values() for p in rows):
        found.setdefault(one.fixed, []).append(one)
    return {right: tuple(rows) for right, rows in found.items()}


def wrong_edits(problem: Broken) -> tuple[tuple[str, str], ...]:
    """(edit, what the first failing test then says) of edits that do not mend it: lines of other changes of its program."""
    return _wrong_edits(problem.source, problem.fixed)


@cache
def _wrong_edits(source: str, fixed: str) -> tuple[tuple[str, str], ...]:
    found = []
    for other in _siblings()[fixed]:
        edit = edit_to(fixed, other.source)
        program = edited(source, edit)
        if program is None or program == source:
            continue
        said = _said(program, other.tests)
        if said is not None and not said.right:
            found.append((edit, said.reason))
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repair:
    """Small Python functions with one defect, to be mended by edits of lines; unit tests run in a sandbox.

    kinds: of the defects (KINDS). count: problems a split at most, None = all. trace: whether the prompt says what a failing test
    said. seconds: for the tests of one program. hints: share of `examples` whose prompt holds guidance, so that a policy learns
    to read it. ConfigError where the system can confine no program: none is run then.
    """

    kinds: tuple[Literal["start", "compare", "operator", "bound", "variable", "result"], ...] = KINDS
    count: int | None = None
    trace: bool = True
    seconds: float = SECONDS
    hints: float = 0.0

    def __post_init__(self) -> None:
        if not self.kinds or not set(self.kinds) <= set(KINDS):
            raise ConfigError(f"kinds {self.kinds}: choose some of {', '.join(KINDS)}")
        if (self.count is not None and self.count < 1) or not self.seconds > 0:
            raise ConfigError(f"count {self.count}, seconds {self.seconds}: at least 1 problem, and a time above 0")
        if not 0 <= self.hints <= 1:
            raise ConfigError(f"hints = {self.hints}: the share of examples with guidance in their prompt, from 0 to 1")

    name = "repair"
    characters: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\n"
    max_new_tokens: ClassVar[int] = 64

    def ready(self, say: Any, split: str) -> None:
        """Refuses a system that cannot confine a program."""
        require_sandbox()

    def problems(self, split: str = "test") -> tuple[Broken, ...]:
        """Those of a split, in an order that says nothing of them."""
        require_sandbox()
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        return tuple(one for one in _all()[split] if one.kind in self.kinds)[: self.count]

    def asked(self, problem: Broken) -> str:
        """The numbered program and, with `trace`, what its first failing test says; then guidance, where there is some."""
        said = (problem.said if self.trace else "", problem.guidance)
        return "\n".join([numbered(problem.source), *filter(None, said)])

    def prompt(self, problem: Broken) -> str:
        """The numbered program, what a test said, and the word that asks for an edit."""
        return f"{self.asked(problem)}\nfix:\n"

    def messages(self, problem: Broken) -> list[dict[str, str]]:
        """The prompt as a conversation."""
        words = (
            f"The function {ENTRY} below fails its unit tests. Mend it. Answer with the lines to change alone, each as LINE: its "
            "new text."
        )
        return [{"role": "user", "content": f"{words}\n\n{self.asked(problem)}"}]

    def verify(self, problem: Broken, completion: str) -> Verdict:
        """The verdict of the unit tests on the edited program."""
        return self.verify_all([(problem, completion)])[0]

    def verify_all(self, pairs: Sequence[tuple[Broken, str]]) -> list[Verdict]:
        """Many at once, each edited program run once."""
        programs = [edited(problem.source, text) for problem, text in pairs]
        asked = {
            (problem.problem_id, program): (program, ENTRY, problem.tests, self.seconds)
            for (problem, _), program in zip(pairs, programs, strict=True)
            if program is not None and program != problem.source
        }
        said = dict(zip(asked, _pool().verify(list(asked.values())), strict=True))
        none, same = Verdict("wrong", "no line is edited"), Verdict("wrong", "the program is as it was")
        return [
            none if program is None else said.get((problem.problem_id, program), same)
            for (problem, _), program in zip(pairs, programs, strict=True)
        ]

    def answer_key(self, problem: Broken, text: str) -> str | None:
        """The edited program."""
        return edited(problem.source, text)

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Broken, str]]:
        """Examples start..start+n-1: problem and the edit that undoes its change; epoch after epoch, each in its own order."""
        rows = self.problems(split)
        found = []
        for number in range(start, start + n):
            order = np.random.Generator(np.random.Philox([seed, number // len(rows)])).permutation(len(rows))
            one = rows[int(order[number % len(rows)])]
            asked = self._hinted(one, np.random.Generator(np.random.Philox([seed, number, 1])))
            found.append((asked, edit_to(one.source, one.fixed)))
        return found

    # ---- guidance

    def _hinted(self, problem: Broken, chance: np.random.Generator) -> Broken:
        """The problem of an example; a share `hints` with the guidance of `patch`, or of `rules` after a wrong edit."""
        if chance.random() >= self.hints:
            return problem
        wrong = wrong_edits(problem)
        if not wrong or chance.random() < 0.5:
            return self.guided(problem, self.pointer(problem))
        edit, said = wrong[int(chance.integers(len(wrong)))]
        return self.guided(problem, self.explain(problem, [edit], Verdict("wrong", said)))

    def guided(self, problem: Broken, guidance: str) -> Broken:
        """The problem with guidance in its prompt."""
        return replace(problem, guidance=guidance)

    def reference(self, problem: Broken) -> str:
        """The edit that undoes the change."""
        return edit_to(problem.source, problem.fixed)

    def where(self, problem: Broken, text: str) -> str:
        """The lines that a completion edits; "" for none."""
        return edited_lines(problem, text)

    def pointer(self, problem: Broken) -> str:
        """The line of the defect and its kind."""
        return f"{edited_lines(problem, self.reference(problem))}, {WORDS[problem.kind]}"

    def explain(self, problem: Broken, said: Sequence[str], verdict: Verdict) -> str:
        """The last edit that was tried, what the tests said, and the kind of step to try."""
        return explained(said, verdict)

    def leaks(self, problem: Broken, hint: str) -> bool:
        """Whether the new text of a line that the reference edits stands in guidance, spaces aside."""
        return any("".join(text.split()) in "".join(hint.split()) for _, text in edits_in(self.reference(problem)))

    def fingerprint(self, problems: Sequence[Broken]) -> str:
        """Of programs, tests and how they are asked."""
        return hash_of([[p.problem_id, p.source, p.tests] for p in problems] + [self.trace])

    @property
    def verifier_hash(self) -> str:
        """Of the sandbox and its limits."""
        return code_hash(["sandbox", "sandbox_child"], seconds=self.seconds)

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """Undone changes, programs as they were, changes of another line, and repeated problems."""
        rows = self.problems()
        yield Case("gold right against itself", [(p, edit_to(p.source, p.fixed)) for p in rows])
        wrong = {"no edit": [(p, "it is right") for p in rows], "a line as it was": [(p, _unchanged(p)) for p in rows]}
        yield Case("", wrong, "wrong")
        yield duplicates("programs that stand once", ((p.problem_id, p.source, p.fixed) for p in rows))

    @property
    def audited(self) -> str:
        """What an audit looks at, in words."""
        return f"{len(self.problems())} programs with one defect of the kinds {', '.join(self.kinds)}"


def _unchanged(problem: Broken) -> str:
    return f"1: {problem.source.splitlines()[0]}"


@cache
def _pool() -> Pool:
    return Pool(function=PROGRAMS, seconds=30.0)


__all__ = ["KINDS", "Broken", "Repair", "edit_to", "edited", "numbered"]
