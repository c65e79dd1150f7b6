"""Repair of small Python functions: one defect of six kinds, unit tests that run as real code in a sandbox.

    function family, constants -> right program -> one site changed -> message of a failing test -> "LINE: its new text"

A completion edits lines of the numbered program; the edited program is right if every unit test passes
(`sage_rlvr.verifiers.sandbox`). Other right edits than undoing the change count: the tests decide, not the text.

With turns > 1 it is an episode. The prompt is only the program; a turn is "test", or edits of the current program, and the
environment answers with the message of the first failing test. It ends when all tests pass, or with the last turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from sage_rlvr.contrib.tasks.repair.hints import edited_lines, explained, leaked, pointed
from sage_rlvr.contrib.tasks.repair.programs import (
    ENTRY,
    KINDS,
    SPLITS,
    Broken,
    all_problems,
    edit_to,
    edited,
    numbered,
    wrong_edits,
)
from sage_rlvr.errors import ConfigError, require
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import Response, Task, Turn, hash_of
from sage_rlvr.tasks.checks import Case, Check, duplicates
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.sandbox import PROGRAMS, SECONDS, require_sandbox
from sage_rlvr.verifiers.versions import version_hash

TEST = "test"
TURN = 40  # characters of a turn, about: the limit of an episode is this much per turn
POOL_SECONDS = 30.0  # seconds of a worker per program, in addition to the program's limit
KEPT = 1 << 16  # cached verdicts on programs
NOTHING = f"write {TEST}, or LINE: its new text"
EditedProgram = tuple[Broken, str | None]  # a problem, and the edited program; None without an edit


@TASKS.register
@dataclass(frozen=True)
class Repair(Task):
    """Small Python functions with one defect, to be repaired by edits of lines; unit tests run in a sandbox.

    kinds: kinds of defects (KINDS). count: most problems per split, None = all. trace: whether the prompt contains the message of a
        failing test, with one turn. seconds: time limit for the tests of one program. turns: most turns of the policy in an
        episode; 1 = one completion, and no episode. hints: share of `examples` with guidance in the prompt, so that a policy learns
        to read it. Raises ConfigError if the system cannot confine programs: none is run then.
    """

    kinds: tuple[Literal["start", "compare", "operator", "bound", "variable", "result"], ...] = KINDS  # type: ignore[assignment]
    count: int | None = None
    trace: bool = True
    seconds: float = SECONDS
    turns: int = 1
    hints: float = 0.0

    def __post_init__(self) -> None:
        if not self.kinds or not set(self.kinds) <= set(KINDS):
            raise ConfigError(f"kinds {self.kinds}: choose some of {', '.join(KINDS)}")
        if (self.count is not None and self.count < 1) or not self.seconds > 0 or self.turns < 1:
            raise ConfigError(
                f"count {self.count}, seconds {self.seconds}, turns {self.turns}: at least 1 problem and 1 turn, and a time above 0"
            )
        require(0 <= self.hints <= 1, "hints", self.hints, "the share of examples with guidance in their prompt, from 0 to 1")

    name = "repair"
    characters: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\n"

    @property
    def max_new_tokens(self) -> int:
        """Tokens of a completion; for an episode, tokens of the policy in all turns."""
        return 64 if self.turns == 1 else TURN * self.turns

    def ready(self, say: Any, split: str) -> None:
        """Raise ConfigError on a system that cannot confine a program."""
        require_sandbox()

    def problems(self, split: str = "test") -> tuple[Broken, ...]:
        """The problems of a split, in an order that is independent of their contents."""
        require_sandbox()
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        return tuple(one for one in all_problems()[split] if one.kind in self.kinds)[: self.count]

    def question(self, problem: Broken) -> str:
        """The numbered program; with `trace` and in one turn, the message of its first failing test; then guidance, if any."""
        additions = (problem.output if self.trace and self.turns == 1 else "", problem.guidance)
        return "\n".join([numbered(problem.source), *filter(None, additions)])

    def prompt(self, problem: Broken) -> str:
        """The numbered program, the message of a test, and the word that asks for an edit."""
        return f"{self.question(problem)}\nfix:\n"

    def messages(self, problem: Broken) -> list[dict[str, str]]:
        """The prompt as a conversation."""
        tool = f" Write {TEST} alone to hear what a failing test says; you have {self.turns} turns." if self.turns > 1 else ""
        words = (
            f"The function {ENTRY} below fails its unit tests. Mend it. Answer with the lines to change alone, each as LINE: its "
            f"new text.{tool}"
        )
        return [{"role": "user", "content": f"{words}\n\n{self.question(problem)}"}]

    # ---- one completion, or an episode

    def verify(self, problem: Broken, completion: str) -> Verdict:
        """The verdict of the unit tests on the edited program."""
        return self.verify_all([(problem, completion)])[0]

    def judge(self, problem: Broken, responses: Sequence[str]) -> Verdict:
        """The verdict of the unit tests on the program after the turns."""
        return self.verify_all([(problem, tuple(responses))])[0]

    def judge_all(self, pairs: Sequence[tuple[Broken, Response]]) -> list[Verdict]:
        """`verify_all`: turns are edits one after the other."""
        return self.verify_all(pairs)

    def verify_all(self, pairs: Sequence[tuple[Broken, Response]]) -> list[Verdict]:
        """Many at once, each edited program run once."""
        return _tested([(problem, self.answer_key(problem, completion)) for problem, completion in pairs], self.seconds)

    def answer_key(self, problem: Broken, completion: Response) -> str | None:
        """The edited program; None without an edit."""
        if isinstance(completion, str):
            return edited(problem.source, completion)
        program = None
        for text in completion:
            program = edited(problem.source if program is None else program, text) or program
        return program

    def reply(self, problem: Broken, responses: Sequence[str]) -> str | None:
        """The message of the first failing test on the program after the turns; None if all pass, or no turn is left."""
        return self.reply_all([(problem, responses)])[0]

    def reply_all(self, pairs: Sequence[tuple[Broken, Sequence[str]]]) -> list[str | None]:
        """Many at once, each edited program run once."""
        lines = [edited(problem.source, responses[-1]) is not None for problem, responses in pairs]
        runs = [edits or responses[-1].strip() == TEST for edits, (_, responses) in zip(lines, pairs, strict=True)]
        programs = [
            self.answer_key(problem, tuple(responses)) if run else None
            for run, (problem, responses) in zip(runs, pairs, strict=True)
        ]
        verdicts = _tested([(problem, program) for program, (problem, _) in zip(programs, pairs, strict=True)], self.seconds)
        replies: list[str | None] = []
        for run, program, verdict, (problem, responses) in zip(runs, programs, verdicts, pairs, strict=True):
            unedited = program in (None, problem.source)
            output = problem.output if unedited else verdict.reason
            over = len(responses) >= self.turns or (run and not unedited and verdict.right)
            replies.append(None if over else output if run else NOTHING)
        return replies

    def examples(self, split: str, seed: int, start: int, n: int) -> list[tuple[Broken, str | tuple[Turn, ...]]]:
        """Examples start..start+n-1: problem and the edit that undoes its change; epoch after epoch, each in a different order.

        For episodes: the tests, their message, the edit; in every other epoch with a wrong edit before it, which is not learned.
        """
        rows = self.problems(split)
        examples: list[tuple[Broken, str | tuple[Turn, ...]]] = []
        for number in range(start, start + n):
            epoch, position = divmod(number, len(rows))
            order = np.random.Generator(np.random.Philox([seed, epoch])).permutation(len(rows))
            one = rows[int(order[position])]
            problem = self._hinted(one, np.random.Generator(np.random.Philox([seed, number, 1])))
            examples.append((problem, edit_to(one.source, one.fixed) if self.turns == 1 else self._episode(one, seed, number)))
        return examples

    def _episode(self, problem: Broken, seed: int, number: int) -> tuple[Turn, ...]:
        """An episode that ends right, of at most `turns` turns."""
        chance = np.random.Generator(np.random.Philox([seed, 1 + number]))
        before = [Turn("policy", TEST), Turn("environment", problem.output)]
        wrong, program = wrong_edits(problem.problem_id), problem.source
        if self.turns > 2 and wrong and chance.random() < 0.5:
            edit, output = wrong[int(chance.integers(len(wrong)))]
            before += [Turn("policy", edit, learned=False), Turn("environment", output)]
            program = edited(program, edit) or program
        return (*before, Turn("policy", edit_to(program, problem.fixed)))

    # ---- guidance

    def _hinted(self, problem: Broken, chance: np.random.Generator) -> Broken:
        """The problem of an example; a share `hints` with the guidance of `patch`, or of `rules` after a wrong edit."""
        if chance.random() >= self.hints:
            return problem
        wrong = wrong_edits(problem.problem_id)
        if not wrong or chance.random() < 0.5:
            return self.guided(problem, self.pointer(problem))
        edit, output = wrong[int(chance.integers(len(wrong)))]
        return self.guided(problem, self.explain(problem, [edit], Verdict("wrong", output)))

    def guided(self, problem: Broken, guidance: str) -> Broken:
        """The problem with guidance in its prompt."""
        return replace(problem, guidance=guidance)

    def reference(self, problem: Broken) -> str:
        """The edit that undoes the change."""
        return edit_to(problem.source, problem.fixed)

    def where(self, problem: Broken, text: str) -> str:
        """The lines that a completion edits; "" without an edit."""
        return edited_lines(problem, text)

    def pointer(self, problem: Broken) -> str:
        """The line of the defect and its kind."""
        return pointed(problem)

    def explain(self, problem: Broken, responses: Sequence[str], verdict: Verdict) -> str:
        """The last edit of the attempt, the message of the tests, and the kind of step to try."""
        return explained(responses, verdict)

    def leaks(self, problem: Broken, hint: str) -> bool:
        """Whether guidance contains the new text of a line that the reference edits, ignoring spaces."""
        return leaked(problem, hint)

    # ---- identity for stores and audits

    def fingerprint(self, problems: Sequence[Broken]) -> str:
        """Hash of programs, tests and prompts."""
        prompting = [self.trace] if self.turns == 1 else ["turns", self.turns, self.max_new_tokens]
        return hash_of([[p.problem_id, p.source, p.tests] for p in problems] + prompting)

    @property
    def _verifier_version(self) -> str:
        """The verifier's version, and the limits of the program and of the worker."""
        return version_hash("repair", seconds=self.seconds, pool_seconds=POOL_SECONDS)

    def audit_cases(self, k: int) -> Iterator[Case | Check]:
        """Undone changes, programs as they were, changes of another line, and repeated problems."""
        rows = self.problems()
        yield Case("gold right against itself", [(p, edit_to(p.source, p.fixed)) for p in rows])
        wrong = {"no edit": [(p, "it is right") for p in rows], "a line as it was": [(p, _unchanged(p)) for p in rows]}
        yield Case("", wrong, "wrong")
        yield duplicates("programs that stand once", ((p.problem_id, p.source, p.fixed) for p in rows))

    def audited(self) -> str:
        """Describe the subject of an audit."""
        return f"{len(self.problems())} programs with one defect of the kinds {', '.join(self.kinds)}"


def _unchanged(problem: Broken) -> str:
    return f"1: {problem.source.splitlines()[0]}"


# ---- running programs

_SAID: dict[tuple[str, str, float], Verdict] = {}  # of a problem and a program: an episode requests it and is judged by it


def _tested(programs: Sequence[EditedProgram], seconds: float) -> list[Verdict]:
    """The verdicts of the unit tests on edited programs, each run once and cached, unless it was not run at all."""
    # before any key is looked up: if it were cleared later, verdicts of this call would be lost
    if len(_SAID) > KEPT:
        _SAID.clear()
    keys = [(p.problem_id, program or "", seconds) for p, program in programs]
    jobs = {
        key: (program, ENTRY, problem.tests, seconds)
        for key, (problem, program) in zip(keys, programs, strict=True)
        if program is not None and program != problem.source and key not in _SAID
    }
    judged = dict(zip(jobs, _pool().verify(list(jobs.values())) if jobs else [], strict=True))
    none, same = Verdict("wrong", "no line is edited"), Verdict("wrong", "the program is as it was")
    verdicts = [
        none if program is None else same if program == problem.source else judged.get(key) or _SAID[key]
        for key, (problem, program) in zip(keys, programs, strict=True)
    ]
    _SAID.update({key: one for key, one in judged.items() if one.label != "undecided"})
    return verdicts


@cache
def _pool() -> Pool:
    return Pool(function=PROGRAMS, seconds=POOL_SECONDS)


__all__ = ["KINDS", "TEST", "Broken", "Repair", "edit_to", "edited", "numbered"]
