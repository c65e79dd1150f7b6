"""Notes on files of rows: what is left out, what may not be comparable, and signs that samples are not independent.

A table is named with its arm, training seed and file (`GivenTable.name`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.verdicts.sources import GivenTable
from sage_rlvr.verdicts.text.words import many

NO_CLUSTERS = "Temperatures are not compared with each other: these comparisons have no clusters of problems."

# ------------------------------------------------------------------------------------------------------------------
# signs of dependent samples: EQUAL_COUNTS, one_text and all_or_none are words for `sign`, without name and full stop

EQUAL_COUNTS = (
    "two training seeds have the same counts on every problem, too few to tell chance from a copy; if one is a copy of the other, "
    "the intervals over training seeds are too short"
)


def sign(name: str, words: str, others: int = 0) -> str:
    """A sign in the table or the pair of tables of this name. others: the number of other tables with a sign of its kind."""
    more = f" and {many(others, 'other set')} of samples" if others else ""
    return f"{name}{more}: {words}."


def left_out_of_others(tables: int) -> str:
    """The number of tables whose samples are left out because they are copies in another table of the file."""
    return f"The same places are left out of {tables} more sets of samples of that file."


def one_text(problems: int) -> str:
    """All samples of each problem are equal texts."""
    return (
        f"the samples of each of {problems} problems are one and the same text: copies of one sample, as in a file that was joined "
        "with itself, or greedy decoding; n is then 1, and pass@k at k > 1 says nothing"
    )


def all_or_none(solved: int, unsolved: int) -> str:
    """On every problem all samples are right, or none."""
    return (
        f"of {solved} problems all samples are right and of the other {unsolved} none, as greedy decoding or copies of one sample "
        "give, or problems that are all certain or out of reach; pass@k is the same at every k"
    )


# ------------------------------------------------------------------------------------------------------------------
# problems


def unscored(table: GivenTable) -> str:
    """The number of completions of a table without a score."""
    completions, problems = table.table.unscored.values(), len(table.table.unscored)
    return f"{table.name}: {many(sum(completions), 'completion')} of {many(problems, 'problem')} without a score count as wrong."


def without_unscored(tables: Sequence[GivenTable], omitted: int, compared: int) -> str:
    """The number of problems left out because some table omits their completions without a score."""
    by = ", ".join(f"{len(one.table.omitted):,} in {one.name}" for one in tables if one.table.omitted)
    return f"{many(omitted, 'problem')} left out on both sides for completions without a score ({by}); {compared:,} compared."


def in_common(problems: int, left_out: Sequence[tuple[GivenTable, int]]) -> str:
    """The number of problems that all tables have. left_out: the tables with others, and how many."""
    by = ", ".join(f"{n:,} of {len(one.table.problems):,} in {one.name}" for one, n in left_out)
    return f"--common: {many(problems, 'problem')} on all sides, which the verdict is about; left out {by}."


def prompt_twice(one: str, other: str) -> str:
    """Two ids with one prompt; without full stop."""
    return f"the problems {one[:40]!r} and {other[:40]!r} have the same prompt, so one problem counts twice"


def prompts_twice(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Pairs of ids with one prompt in the table of this name: the first, and the number of others."""
    more = f"; so do {len(pairs) - 1} others" if len(pairs) > 1 else ""
    return f"{name}: {prompt_twice(*pairs[0])}{more}."


def two_prompts(problem: str, one: tuple[str, GivenTable], other: tuple[str, GivenTable]) -> str:
    """Two prompts of one problem, each with its table; without full stop."""
    return f"problem {problem[:60]!r} has the prompt {one[0][:60]!r} in {one[1].name} and {other[0][:60]!r} in {other[1].name}"


def other_template(two_prompts: str) -> str:
    """Every problem has two prompts, such as these."""
    return f"{two_prompts}, and so for every problem: only another template if the ids mean the same problems."


# ------------------------------------------------------------------------------------------------------------------
# samples


def unequal_sizes(fewest: int, example: tuple[GivenTable, str] | None, most: int, largest: GivenTable, in_order: bool) -> str:
    """The fewest and the most samples of a problem. example: a table and a problem with the fewest, None if a sample store has
    them; largest: a table with the most; in_order: whether the first samples of each problem can be selected."""
    where = "" if example is None else f" ({example[0].name}, for example {example[1][:40]!r})"
    first = f"; --samples {fewest} takes the first {fewest} of each problem" if in_order else ""
    return (
        f"Unequal numbers of samples: {fewest:,} for some problems{where}, {most:,} for others ({largest.name}). All are used, and "
        f"pass@k is read up to k = {fewest:,}. If failed or cut completions were dropped, count them as incorrect{first}."
    )


def single_samples(arm: str, seeds: int) -> str:
    """Several training seeds of an arm have one sample of each problem: they may be sampling seeds."""
    return (
        f'{arm}: {seeds} training seeds with one sample of each problem. If "seed" is that of sampling, remove it from the rows: '
        "they are then samples of one run."
    )


def no_temperature(path: Path, assumed: float) -> str:
    """The rows of a file have no temperature, and other rows or stores have one."""
    return f'{path}: no temperature in the rows; T = {assumed:g} is assumed. Write "temperature" into them to have it checked.'
