"""Files of rows, by arm: PATH, FILE@WORD (only the rows of this arm, task or step), or NAME=PATH[,PATH...].

    read_files("base.jsonl", "rl.jsonl")    results from files of rows only
    RowFiles                                collects files of rows if run folders, stores and records are read too
                                            (`results.read_results`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.design import Arm, Design
from sage_rlvr.verdicts.measurements import Measurement, Measurements
from sage_rlvr.verdicts.packaged import packaged
from sage_rlvr.verdicts.readers import Choice, read_evaluation, reads
from sage_rlvr.verdicts.readers.file import HELD
from sage_rlvr.verdicts.results import K, Results
from sage_rlvr.verdicts.row_counts import measurements_of_rows
from sage_rlvr.verdicts.sources import GivenRows

SHOWN = 6  # arms named in an error
OTHER_FILES = (".yaml", ".yml", ".sqlite", ".py", ".html", ".md")
OTHER_NAMES = ("run.json", "design.json", "summary.json")
"""Endings and names of files without rows, unless a reader knows them; `results.files.check_record` has their errors."""


def read_files(
    *paths: str | Path, k: int | None = None, samples: int | None = None, choice: Choice | None = None
) -> Results:
    """Read files of rows. Each path is an arm, and the first is the control.

    Args:
        *paths: PATH, FILE@WORD, or NAME=PATH[,PATH...], of which several are training seeds.
        k: The largest k; by default the largest that a task allows, at most 256.
        samples: Use only the first this many samples of each problem.
        choice: What counts as correct, and the chance floor.

    Raises:
        DataError: For a file that cannot be read, and for files that cannot be compared.
    """
    if k is not None and k < 1:
        raise DataError(f"k = {k}: pass@k needs k >= 1; set another k, or omit k for the largest")
    choice = choice or Choice()
    files, words = RowFiles(choice), list(map(str, paths))
    for name, label, seeds in arms_in(words, apart=True):
        for index, word in enumerate(seeds):
            rows = rows_in(word)
            if rows is None:
                raise DataError(f"{word}: no file of rows (docs/reference/rows.md)")
            files.add(*rows, name=name, label=label, index=index if len(seeds) > 1 else None)
    files.finish()
    table, notes, grave = measurements_of_rows(files.given, (), samples, choice)
    chances: dict[str, Chance | None] = {}
    for one in table:
        chances.setdefault(one.task, one.chance)
    control = next(iter(files.order), None)
    arms = tuple(Arm(name=name, key=key) for name, key in files.order.items())
    rows_of_all: Measurements[Measurement] = Measurements(tuple(table))
    return Results(
        design=Design(arms=arms, base=control, control=control, every=True), table=rows_of_all, given=files.given, chances=chances,
        k=min(K, max((one.n for one in table), default=K)) if k is None else k, samples=samples,
        failed=[*grave, *(f"{one.name}, {one.task}: {sentence}" for one in table for sentence in one.failed)],
        notes=list(dict.fromkeys(notes)), sources=words,
    )  # fmt: skip


class RowFiles:
    """The files of rows that were passed. order: the arms in order of appearance, with their keys; others may be added to it."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.order: dict[str, str] = {}
        self.given: list[GivenRows] = []

    def add(self, path: Path, picks: Sequence[str], *, name: str, label: str, index: int | None) -> None:
        """Add a file of rows. label: the name of its arm if neither NAME= nor its rows give one; index: the place of the file
        among the training seeds of the arm, None for a single file."""
        evaluation = read_evaluation(path, picks, self.choice)
        for earlier in (one.evaluation for one in self.given if name and one.name == name):
            again = [table.group for table in earlier.tables] == [table.group for table in evaluation.tables]
            if again and earlier.path.resolve() == evaluation.path.resolve():
                raise DataError(f"{name}: {path} was passed twice; each training seed needs a file of its own")
        made = GivenRows(evaluation=evaluation, name=name, index=index, label=name or label)
        arms = list(dict.fromkeys(table.group.arm for table in evaluation.tables))
        if name and len(arms) > 1:
            shown = ", ".join(map(repr, arms[: SHOWN]))
            raise DataError(
                f"{name}={path}: the file has {len(arms)} arms ({shown}); pass {path} without NAME=, or select one: {path}@ARM"
            )
        for table in evaluation.tables:
            self.order.setdefault(made.arm_of(table), made.arm_of(table))
        self.given.append(made)

    def finish(self) -> None:
        """Check the scores of all files, and shorten arms that are paths."""
        _check_scores(self.given, self.choice)
        self._shorten()

    def _shorten(self) -> None:
        """Give arms of rows that are paths the shortest unique names; `GivenRows.arms` has the full ones."""
        paths = {table.group.arm for one in self.given if not one.name for table in one.evaluation.tables}
        short = {arm: name for arm, name in shortest(self.order).items() if arm in paths and _is_path(arm)}
        self.given = [replace(one, short=short) for one in self.given]
        self.order = {short.get(arm, arm): short.get(key, key) for arm, key in self.order.items()}


def arms_in(items: Sequence[str], *, apart: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Each item's name, "" without one, its label, and its paths. apart: whether each item has to be
    an arm of its own, so that two with one name raise DataError."""
    named = list(map(_named, items))
    labels = _labels([words[0] for name, words in named if not name])
    given: set[str] = set()
    for item, (name, words) in zip(items, named, strict=True):
        label = "" if name else labels[words[0]]
        if apart and label in given and items.count(item) > 1:
            raise DataError(f"{item} was passed twice; pass each policy once")
        if apart and (name or label) in given:
            raise DataError(f"two arms have the name {name or label!r}; pass NAME={item.rpartition('=')[2]} for one of them")
        given.add(name or label)
        yield name, label, words


def _named(item: str) -> tuple[str, list[str]]:
    """The name, "" without one, and the paths of an arm: PATH, or NAME=PATH[,PATH...]."""
    if Path(item).exists() or ("=" not in item and item.endswith(".npz")):
        return "", [item]
    name, _, paths = item.rpartition("=")
    return name, paths.split(",")


def _labels(words: Sequence[str]) -> dict[str, str]:
    """Path -> the name of its arm: for a file of rows the stem and its selections, for others the last part, with as many parent
    folders as make it unique."""
    whole = {}
    for word in words:
        path, picks = rows_in(word) or (Path(word), [])
        last = path.name if rows_in(word) is None else path.name.partition(".")[0]
        whole[word] = str(path.with_name("@".join([last, *picks]))) if path.name else word
    if len(set(whole.values())) < len(whole):  # base.csv and base.jsonl
        whole = {word: word for word in whole}
    short = shortest(whole.values())
    return {word: short[path] for word, path in whole.items()}


def shortest(names: Iterable[str]) -> dict[str, str]:
    """Name -> the shortest end of a path that no other name has."""
    parts = {name: [part for part in name.split("/") if part] or [name] for name in names}
    found = {}
    for name, own in parts.items():
        others = [other for one, other in parts.items() if one != name]
        sizes = range(1, len(own) + 1)
        size = next((n for n in sizes if all(other[-n:] != own[-n:] for other in others)), 0)
        found[name] = "/".join(own[-size:]) if size else name
    return found


def _is_path(arm: str) -> bool:
    """Whether the arm of a row looks like a path; "org/model" is the id of a model and no path."""
    return arm.startswith("/") or (arm.count("/") > 1 and " " not in arm)


def _check_scores(given: Sequence[GivenRows], choice: Choice) -> None:
    """Raise DataError for a name of `--correct` that is the score of no file of rows."""
    scores = list(dict.fromkeys(one.evaluation.score for one in given))
    if unused := [name for name in choice.wanted if name not in scores]:
        read = ", ".join(scores) or "none"
        raise DataError(f"--correct {unused[0]}: no file has a score of that name; scores that were read: {read}")


def rows_in(word: str) -> tuple[Path, list[str]] | None:
    """The file of rows that a word names, or the folder of such files, and its selections: PATH[@WORD...] or the name of a package.
    None for other paths."""
    path, picks = Path(word), list[str]()
    while path not in HELD.get() and not path.exists() and "@" in str(path):
        rest, _, pick = str(path).rpartition("@")
        path, picks = Path(rest), [pick, *picks]
    if path in HELD.get():
        return path, picks
    path = packaged(str(path)) or path
    if path.is_dir():
        from sage_rlvr.verdicts.readers.folder import parts_of

        return (path, picks) if parts_of(path) else None
    if not path.is_file() or path.suffix == ".npz":
        return None
    if (path.name in OTHER_NAMES or path.suffix in OTHER_FILES) and not picks and not reads(path):
        return None
    return path, picks
