"""A command that is proposed for a file that no reader knows, from the look of its columns. Nothing is read by it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sage_rlvr.errors import suggest
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import MAYBE_WORDS, SCORE_WORDS, says_score

LOOKED_AT = 1000  # rows
MOST_VALUES = 4  # different texts of a column of verdicts
IDS = re.compile(r"(^|_)(id|ids|idx|index|uid|uuid|qid|key|task|problem|question|prompt|name)$|[a-z](Id|ID)$")
RIGHT = re.compile(r"pass(ed)?|correct|right|true|yes|ok|success|accepted|c", re.IGNORECASE)
GOLDS = ("gold", "target", "gt", "gts", "ground_truth", "expected_answer", "expected", "reference", "label", "solution", "answer")
TEXTS = ("response", "responses", "completion", "completions", "generation", "generations", "output", "outputs", "text", "texts",
         "prediction", "predictions", "model_output", "code", "resps")  # fmt: skip


@dataclass(frozen=True)
class _Column:
    """A column. values: those that are not missing; listed: whether each is a list with a value for each completion."""

    path: str
    values: list[Any]
    listed: bool
    rows: int

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def truths(self) -> bool:
        """Whether all values are truth values, or 0 and 1."""
        return all(isinstance(one, (bool, int, float)) and one in (0, 1) for one in self.values)

    @property
    def right(self) -> str:
        """The text that means correct, "" if the values are no verdicts in words."""
        words = {one for one in self.values if isinstance(one, str)}
        found = [one for one in sorted(words) if RIGHT.fullmatch(one)]
        verdicts = len(found) == 1 and 1 < len(words) <= MOST_VALUES and all(isinstance(one, str) for one in self.values)
        return found[0] if verdicts else ""

    @property
    def is_score(self) -> bool:
        """Whether it may be the score."""
        numbers = all(isinstance(one, (bool, int, float)) for one in self.values)
        named = says_score(self.name, SCORE_WORDS | MAYBE_WORDS)
        return bool(self.right) or (numbers and named) or all(isinstance(one, bool) for one in self.values)

    @property
    def is_id(self) -> bool:
        """Whether it may identify problems."""
        kind = all(isinstance(one, (str, int)) and not isinstance(one, bool) for one in self.values)
        return kind and not self.listed and len(self.values) == self.rows and bool(IDS.search(self.name))

    @property
    def is_text(self) -> bool:
        """Whether it may be the completion."""
        return self.name.lower() in TEXTS and all(isinstance(one, (str, list, Mapping)) for one in self.values)

    def words(self) -> str:
        """The column as it is shown."""
        different = len({str(one) for one in self.values})
        if self.is_id and not self.listed:
            return f"{self.path} ({different:,} values in {self.rows:,} rows)"
        kind = "true or false" if self.truths else "numbers" if self.is_score else "texts"
        kind = f"texts such as {self.right!r}" if self.right else kind
        return f"{self.path} ({'lists of ' * self.listed}{kind})"


def proposed(file: RowFile) -> str:
    """Return a sentence with a command for a file, to be checked by its user; "" if its columns do not suggest one."""
    if file.container in ("archive", "empty"):
        return ""
    trees = [tree for _, tree in islice(file.rows(), LOOKED_AT)]
    found = [column for path in _paths(trees) if (column := _column(path, trees)) is not None]
    scores = sorted((one for one in found if one.is_score), key=lambda one: (not says_score(one.name), not one.truths))
    texts = [one for one in found if one.is_text]
    lead = next(iter([*scores, *texts]), None)
    ids = sorted((one for one in found if one.is_id), key=lambda one: _fit(one, lead is not None and lead.listed))
    if lead is None or not ids:
        return ""
    golds = [one for one in found if one.name.lower() in GOLDS and not one.listed and _one_each(trees, ids[0].path, one.path)]
    golds.sort(key=lambda one: GOLDS.index(one.name.lower()))
    texts += [one for one in found if one.name.lower() in GOLDS and one not in golds]  # such as a solution that is code
    if not scores and not golds:
        return ""
    fields, shown, options = [("id", ids[0].path)], [ids[0]], []
    if scores:
        name = "correct" if scores[0].truths or scores[0].right else "score"
        fields.append((name, f"{scores[0].path}={scores[0].right}" if scores[0].right else scores[0].path))
        shown += scores
    else:
        options = ["--judge", "boxed"]
    fields += [(name, one[0].path) for name, one in (("text", texts), ("gold", golds)) if one and one[0] not in shown]
    words = ",".join(f"{name}={path}" for name, path in fields)
    shown += [one[0] for one in (texts, golds) if one and one[0] not in shown]
    return (
        f"Its columns look like {', '.join(one.words() for one in shown)}; if that is right: "
        f"{suggest('compare', file.path, 'OTHER', '--fields', words, *options)}. "
    )


def _fit(column: _Column, unique: bool) -> tuple[bool, bool, int]:
    """Order of columns that may identify problems: unique if a row is a problem, else repeated; named so; short values."""
    different = len({str(one) for one in column.values})
    return (
        (different == column.rows) != unique, not column.name.lower().endswith(("id", "idx")),
        sum(len(str(one)) for one in column.values) // max(1, len(column.values)),
    )  # fmt: skip


def _one_each(trees: Sequence[Any], problem: str, path: str) -> bool:
    """Whether a column has one value for each problem."""
    from sage_rlvr.verdicts.readers.named import at

    pairs = {(str(at(tree, problem)), str(at(tree, path))) for tree in trees}
    return len(pairs) == len({name for name, _ in pairs})


def _paths(trees: list[Any]) -> list[str]:
    """The paths of all columns, and of the fields of their objects and lists of objects."""
    paths: dict[str, None] = {}
    for tree in trees:
        for name, value in tree.items():
            inner = value[0] if isinstance(value, list) and value else value
            if isinstance(inner, Mapping):
                paths.update(dict.fromkeys(f"{name}/{field}" for field in inner))
            paths.setdefault(str(name))
    return list(paths)


def _column(path: str, trees: list[Any]) -> _Column | None:
    from sage_rlvr.verdicts.readers.named import at

    values = [value for tree in trees if (value := at(tree, path)) is not None]
    listed = bool(values) and all(isinstance(value, list) for value in values)
    flat = [one for value in values for one in (value if listed else [value]) if one is not None]
    return _Column(path, flat, listed, len(trees)) if flat else None
