"""Completions of files of rows on the page, in the same browser as those of sample stores, without tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from sage_rlvr.evaluation.store import PromptAndGold, Sample
from sage_rlvr.results.details.samples import LONGEST, MOST_SAMPLES, SampleSet, by_standing, standings
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.measurements import SampledMeasurement
from sage_rlvr.verdicts.readers import CountTable

MOST_CHARACTERS = 16_000_000  # of all completions on one page
NAME = 60  # characters of a problem's id that are shown


def row_sets(counts: Sequence[SampledMeasurement], shown: int) -> tuple[SampleSet, ...]:
    """Every set of samples of a file with texts. Problems that only one side solves come first, and where a page cannot hold all
    problems, others are left out."""
    with_texts = [(c, c.table) for c in counts if c.table is not None and c.table.texts is not None]
    if not with_texts or not shown:
        return ()
    room = _room([table for _, table in with_texts]) // len(with_texts)  # completions of each set
    of_arm = grouped([c for c, _ in with_texts], lambda c: (c.arm, c.task))
    several = {key for key, sets in of_arm.items() if len({c.temperature for c in sets}) > 1}
    orders = {}
    for task, pairs in grouped(with_texts, lambda pair: pair[0].task).items():
        orders[task] = _in_order([(c.arm, table) for c, table in pairs])
    sets = []
    for c, table in with_texts:
        problems = orders[c.task][:room]
        arm = f"{c.arm} at T = {c.temperature:g}" if (c.arm, c.task) in several else c.arm
        many = min(shown, room // max(1, len(problems)))
        sets.append(_row_set(c, table, arm, problems, many))
    return tuple(sets)


def _room(tables: Sequence[CountTable]) -> int:
    """The number of completions on a page, by their number and their characters."""
    firsts = (row[0] for table in tables for row in islice(table.texts or (), 200))
    lengths = [min(len(text), LONGEST) for text in firsts if text is not None]
    mean = max(1.0, float(np.mean(lengths or [1])))
    return min(MOST_SAMPLES, int(MOST_CHARACTERS // mean))


def _in_order(tables: Sequence[tuple[str, CountTable]]) -> list[str]:
    """The problems of a task, those that only one arm solves first. tables: with their arms."""
    solved: dict[str, dict[str, bool]] = {}
    for arm, table in tables:
        own = solved.setdefault(arm, {})
        for problem, right in zip(table.problems, table.c.tolist(), strict=True):
            own[problem] = own.get(problem, False) or right > 0
    return by_standing(tables[0][1].problems, standings(solved))


def _row_set(c: SampledMeasurement, table: CountTable, arm: str, problems: Sequence[str], many: int) -> SampleSet:
    assert table.right is not None
    names = names_of(table.problems)
    index = {problem: i for i, problem in enumerate(table.problems)}
    shown: list[tuple[Sample, None]] = []  # without tokens
    for problem in problems:
        shown += [(sample, None) for sample in _samples(table, index[problem], names[problem], many)]
    owners = np.repeat([names[problem] for problem in table.problems], table.n)
    return SampleSet(
        arm=arm,
        policy=c.arm,
        seed=c.seed,
        task=c.task,
        law=f"{c.path.name}, n = {c.n} per problem",
        n=c.n,
        shown=tuple(shown),
        owners=tuple(owners.tolist()),
        is_right=np.concatenate(table.right),
        temperature=c.temperature,
        plain=True,
        questions={names[problem]: _question(table, problem, names[problem]) for problem in problems},
    )


def _samples(table: CountTable, i: int, name: str, many: int) -> list[Sample]:
    """Some completions of the i-th problem, numbered from 1."""
    assert table.texts is not None and table.right is not None
    texts, right = table.texts[i], table.right[i].tolist()
    unknown = [None] * len(texts)
    answers = unknown if table.answers is None else table.answers[i]
    cut = unknown if table.cut is None else table.cut[i]
    samples = []
    for j in chosen(right, many):
        text = texts[j]
        if text is None:
            continue
        sample = Sample(
            problem=name,
            sample=j + 1,
            text=text,
            verdict="right" if right[j] else "wrong",
            prompt_hash="",
            reason="cut by the length limit" if cut[j] else "",
            finish="length" if cut[j] else None,
            answer=None if answers[j] is None else str(answers[j]),
        )
        samples.append(sample)
    return samples


def chosen(right: Sequence[bool], many: int) -> list[int]:
    """The places of the first completions; the last gives way to a right or wrong one where the first are all of the other kind."""
    first = list(range(min(many, len(right))))
    kinds = {right[i] for i in first}
    if len(kinds) == 1 and len(first) > 1:
        others = [i for i, is_right in enumerate(right) if is_right not in kinds]
        if others:
            return [*first[:-1], others[0]]
    return first


def _question(table: CountTable, problem: str, name: str) -> PromptAndGold:
    """Prompt and gold; where the id is the prompt, as in logs of TRL and verl, it stands for it."""
    prompt = table.prompts.get(problem, "" if name == problem else problem)
    return PromptAndGold(prompt=prompt, gold=table.golds.get(problem))


def names_of(problems: Sequence[str]) -> Mapping[str, str]:
    """A short name for each id, all different."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for number, problem in enumerate(problems, 1):
        line = " ".join(problem.split())
        name = line if len(line) <= NAME else f"{line[: NAME - 3]}..."
        name = f"{number}: {name}" if name in taken else name
        names[problem] = name
        taken.add(name)
    return names


__all__ = ["chosen", "names_of", "row_sets"]
