"""Forms of the answers in a sample store: the forms that a policy tries, which of them are right, and which it no longer tries.

    families    families in n samples, among those of well-formed answers; families with a right sample, among those with
            a right answer
    right       different right answers in n samples, among those that exist
    marks       share of samples with a mark; pass@n of the problems whose right answers all have it, and of the others

A task that is `Formed` and `Recoverable` defines the forms (`tasks/abilities.py`). Every number is of the first n samples of
each problem and grows with n, so policies are compared at equal n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.tasks import known_task
from sage_rlvr.tasks.abilities import Formed, Recoverable
from sage_rlvr.tasks.base import Task
from sage_rlvr.verdicts.stats.arrays import Ints
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval, passk_interval
from sage_rlvr.verdicts.stats.samples.clusters import pooled_share


@dataclass(frozen=True, eq=False)
class Forms:
    """Counts for each of P problems, (P,) each, in n samples. `forms_of` makes it; reports and the laboratory read it.

    right: right samples
    families, right_families, right_answers: numbers of different families tried, families with a right sample, and right answers
        given
    families_exist, right_families_exist, right_answers_exist: how many exist
    marked: mark -> samples that have it
    needs: mark -> 1 if all right answers have it
    """

    problems: tuple[str, ...]
    n: int
    right: Ints
    families: Ints
    families_exist: Ints
    right_families: Ints
    right_families_exist: Ints
    right_answers: Ints
    right_answers_exist: Ints
    marked: Mapping[str, Ints]
    needs: Mapping[str, Ints]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each problem: problem, n, and the numbers as columns; for a mark `bracket` the columns `bracket` and
        `needs_bracket`."""
        columns = {name: getattr(self, name) for name in COUNTED} | dict(self.marked)
        columns |= {f"needs_{mark}": values for mark, values in self.needs.items()}
        counts = zip(*(values.tolist() for values in columns.values()), strict=True)
        rows = zip(self.problems, counts, strict=True)
        return [{"problem": problem, "n": self.n, **dict(zip(columns, row, strict=True))} for problem, row in rows]

    def means(self) -> dict[str, Interval]:
        """Mean over problems of each number but the marks, with its interval."""
        return {name: mean_interval(getattr(self, name)) for name in COUNTED}

    def solved(self, mark: str) -> dict[str, Interval]:
        """pass@n of the problems that need a mark and of the others; an empty group is left out."""
        parts = {"only": self.needs[mark] == 1, "others": self.needs[mark] == 0}
        return {name: passk_interval(self.n, self.right[part], self.n) for name, part in parts.items() if part.any()}

    def share(self, mark: str) -> Interval:
        """Share of samples with a mark."""
        return pooled_share(self.marked[mark], np.full(len(self.problems), self.n))

    def tree(self) -> dict[str, Any]:
        """Return the tree that `eval --json` prints."""
        marks = {}
        for mark in self.marked:
            solved = {name: _ends(one) | {"problems": one.n} for name, one in self.solved(mark).items()}
            marks[mark] = {"share": _ends(self.share(mark)), f"pass@{self.n}": solved}
        means = {name: _ends(one) for name, one in self.means().items() if name != "right"}
        return {"n": self.n, "problems": len(self.problems), **means, "marks": marks}

    def lines(self) -> list[str]:
        """For a terminal."""
        means, n = self.means(), self.n

        def of(name: str) -> str:
            return f"{means[name].bracketed('.2f')} of {means[f'{name}_exist'].value:.2f}"

        lines = [
            f"families   {of('families')} entered in {n} samples, {of('right_families')} that have a right answer found right; "
            f"{of('right_answers')} right answers",
        ]
        for mark in self.marked:
            solved = self.solved(mark)
            words = {"only": f"where only answers with a {mark} are right", "others": "elsewhere"}
            cells = [f"{one.bracketed('.3f')} {words[name]} (problems: {one.n})" for name, one in solved.items()]
            lines.append(f"{mark:<10} in {self.share(mark).bracketed('.1%')} of samples; pass@{n} {', '.join(cells)}")
        return lines


COUNTED = (
    "right", "families", "families_exist", "right_families", "right_families_exist", "right_answers", "right_answers_exist",
)  # fmt: skip


def _ends(one: Interval) -> dict[str, float]:
    return {"value": float(one.value), "low": float(one.low), "high": float(one.high)}


def task_of_store(store: SampleStore) -> Task | None:
    """Return the task of a store by its name; None if it is not installed, or has another verifier (other operators)."""
    task = known_task(store.identity.task)
    return task if task is not None and task.verifier_hash == store.verifiers()[-1]["verifier_hash"] else None


def forms_of(store: SampleStore, n: int, task: Task | None = None) -> Forms | None:
    """The forms of the first n samples of every problem. task: by default `task_of_store`; None for a task without forms."""
    task = task_of_store(store) if task is None else task
    if not (isinstance(task, Formed) and isinstance(task, Recoverable)) or store.identity.turns > 1:
        return None
    columns = store.lists(("problem", "text", "verdict", "answer"), n=n)
    samples: dict[str, list[tuple[str, bool, Any]]] = {}
    for name, text, verdict, answer in zip(*columns.values(), strict=True):
        samples.setdefault(name, []).append((text, verdict == "right", answer))
    rows = [_counted(task, name, some) for name, some in samples.items()]
    marks = task.answer_marks

    def column(name: str) -> Ints:
        return np.array([row[name] for row in rows], dtype=np.int64)

    counted = {name: column(name) for name in COUNTED}
    marked, needs = {mark: column(mark) for mark in marks}, {mark: column(f"needs {mark}") for mark in marks}
    return Forms(tuple(samples), n, **counted, marked=marked, needs=needs)


def _counted(task: Any, name: str, samples: list[tuple[str, bool, Any]]) -> dict[str, int]:
    """The numbers of one problem; samples: (text, whether it is right, answer)."""
    problem = task.problem_of(name.partition(" #")[0])
    exist, answers = set(task.families(problem)), list(task.answers(problem))
    right_forms = [task.answer_form(problem, text) for text in answers]
    drawn = [(task.answer_form(problem, text), right, answer) for text, right, answer in samples]
    right_exist = {form.family for form in right_forms}
    numbers = {
        "right": sum(right for _, right, _ in drawn),
        "families": len(exist & {form.family for form, _, _ in drawn}),
        "families_exist": len(exist),
        "right_families": len(right_exist & {form.family for form, right, _ in drawn if right}),
        "right_families_exist": len(right_exist),
        "right_answers": len({answer for _, right, answer in drawn if right}),
        "right_answers_exist": len(answers),
    }
    for mark in task.answer_marks:
        numbers[mark] = sum(mark in form.marks for form, _, _ in drawn)
        numbers[f"needs {mark}"] = int(bool(answers) and all(mark in form.marks for form in right_forms))
    return numbers


__all__ = ["Forms", "forms_of", "task_of_store"]
