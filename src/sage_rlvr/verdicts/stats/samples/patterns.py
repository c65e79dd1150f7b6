"""The frequency at which correct solutions show a reasoning pattern (SAGE, arXiv 2605.18864, Eq. 13, section 5.3 and appendix G).

    freq(pattern) = (1/N) sum_i (1/C_i) sum_{j <= C_i} 1[pattern in correct solution j of problem i]

The equation divides by C_i, so N can only be the problems with a correct solution: that is `macro`, in which each such
problem counts once. `micro` is the mean over all correct solutions, in which easy problems count more. The paper does not state
which it printed; both are given, with counts and with intervals over problems, since solutions of one problem resemble each other.
The rules are in patterns.yaml next to this file, with sentences they must and must not match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.safe_io import MIB, read_text
from sage_rlvr.verdicts.stats.intervals import RESAMPLES, SEED, Interval, share_interval
from sage_rlvr.verdicts.stats.paired import PairedDifference, Reason, paired
from sage_rlvr.verdicts.stats.samples.clusters import clusters, is_sparse, pooled_share

RULES = Path(__file__).with_name("patterns.yaml")

_VARIABLE = r"(?:\$|\\\()? ?(?:[a-z]|\\[a-z]+)(?:_(?:\{[^}]*\}|\w)|')* ?(?:\$|\\\))?"
_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})


@dataclass(frozen=True)
class Pattern:
    """One pattern: its meaning, its regexes (compiled), and sentences that must and must not match."""

    name: str
    says: str
    match: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    hits: tuple[str, ...]
    false_hits: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Return whether the text shows the pattern."""
        return bool(self.spans(text))

    def spans(self, text: str) -> list[str]:
        """Return the matching phrases in the order of the rules, with single blanks: to read what was counted."""
        plain = " ".join(text.translate(_STRAIGHT).split())
        for regex in self.unless:
            plain = regex.sub(" ", plain)
        return [match.group(0) for regex in self.match for match in regex.finditer(plain)]


@dataclass(frozen=True, kw_only=True)
class PatternFrequency:
    """Eq. (13) of one pattern in one arm.

    micro: hits / solutions; macro: mean over problems of the share among their correct solutions; both with intervals
    over problems. hits, solutions: correct solutions that show it, and all; problems_with: problems in which any shows
    it, of `problems` with a correct solution; problems_unsolved: those left out for having none.
    """

    name: str
    micro: Interval
    macro: Interval
    hits: int
    solutions: int
    problems_with: int
    problems: int
    problems_unsolved: int
    sparse: bool

    @property
    def caution(self) -> str:
        """Return a warning about a frequency from few problems; empty otherwise."""
        if not self.sparse:
            return ""
        seen = f"{self.hits} of {self.solutions} correct solutions, in {self.problems_with} of {self.problems} problems"
        return f"{seen}: few problems determine this number; read the solutions before interpreting a change."


@dataclass(frozen=True, kw_only=True)
class PatternComparison:
    """One pattern in two arms. fisher_p: two-sided, of the two micro counts as if solutions were independent, which they
    are not, so it is too small. micro: a's share of all solutions minus b's with the interval that the counts lack, over
    problems with all their solutions. by_problem: the paired difference a - b of the shares of the problems that both solved,
    None without such problems, and unknown if the pattern is in too few problems of an arm."""

    name: str
    a: PatternFrequency
    b: PatternFrequency
    fisher_p: float
    micro: Interval
    by_problem: PairedDifference | None


@cache
def load_patterns(path: Path = RULES, *, paper_only: bool = False) -> dict[str, Pattern]:
    """The patterns of a rules file, by name. paper_only keeps the rules that quote the paper's phrases.

    Raises ConfigError for an invalid file, naming the pattern and the error.
    """
    import yaml  # only for a user's file

    try:
        tree = yaml.safe_load(read_text(path, MIB, ConfigError))
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError(f"{path} defines no pattern; expected a mapping of names to says, match, unless, hits, false_hits.")
    return {str(name): _pattern(str(name), entry, path, paper_only) for name, entry in tree.items()}


def pattern_frequencies(
    texts: Sequence[str],
    correct: ArrayLike,
    problems: Sequence[Hashable],
    *,
    patterns: Mapping[str, Pattern] | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, PatternFrequency]:
    """Eq. (13) for every pattern: texts (M,), correct (M,) bool, problems (M,) the problem of each solution.

    Only correct solutions are read. Raises DataError for unequal lengths, or if no solution is correct.
    """
    solved, of, keys, unsolved = _correct_ones(texts, correct, problems)
    totals = np.bincount(of, minlength=len(keys))
    out = {}
    for name, pattern in (load_patterns() if patterns is None else patterns).items():
        hits = np.bincount(of, [pattern.matches(text) for text in solved], len(keys))
        sparse = is_sparse(hits, totals)
        micro = pooled_share(hits, totals, level=level, resamples=resamples, seed=seed)
        macro = share_interval(hits / totals, level=level)
        out[name] = PatternFrequency(
            name=name, micro=micro, macro=macro, hits=int(hits.sum()), solutions=len(solved), sparse=sparse,
            problems_with=int(np.sum(hits > 0)), problems=len(keys), problems_unsolved=unsolved,
        )  # fmt: skip
    return out


def compare_patterns(
    a: tuple[Sequence[str], ArrayLike, Sequence[Hashable]],
    b: tuple[Sequence[str], ArrayLike, Sequence[Hashable]],
    *,
    patterns: Mapping[str, Pattern] | None = None,
    seed: int = SEED,
) -> dict[str, PatternComparison]:
    """Each pattern in two arms, each given as (texts, correct, problems) of `pattern_frequencies`."""
    rules = load_patterns() if patterns is None else patterns
    of_a, of_b = (pattern_frequencies(*arm, patterns=rules, seed=seed) for arm in (a, b))
    out = {}
    for name, pattern in rules.items():
        x, y = of_a[name], of_b[name]
        table = [[x.hits, x.solutions - x.hits], [y.hits, y.solutions - y.hits]]
        left, right = _shares(pattern, *a), _shares(pattern, *b)
        both = [problem for problem in left if problem in right]
        gaps = paired([left[p] for p in both], [right[p] for p in both], seed=seed) if both else None
        if gaps is not None and (x.sparse or y.sparse):
            gaps = replace(gaps, outcome="unknown", reason=Reason.FEW_PROBLEMS)
        p = float(scipy.stats.fisher_exact(table).pvalue)
        micro = _micro_difference(x.micro, y.micro)
        out[name] = PatternComparison(name=name, a=x, b=y, fisher_p=p, micro=micro, by_problem=gaps)
    return out


def _micro_difference(a: Interval, b: Interval) -> Interval:
    """a - b, both intervals clustered by problem, joined by square-and-add (Newcombe 1998) as if the two arms solved different
    problems: wider than necessary if a problem shows the pattern in both."""
    value = a.value - b.value
    below, above = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    low, high = max(-1.0, value - below), min(1.0, value + above)
    if not math.isfinite(below + above):
        low, high = -math.inf, math.inf
    return Interval(value=value, low=low, high=high, level=a.level, over=a.over, n=min(a.n, b.n))


def _shares(
    pattern: Pattern, texts: Sequence[str], correct: ArrayLike, problems: Sequence[Hashable]
) -> dict[Hashable, float]:
    solved, of, keys, _ = _correct_ones(texts, correct, problems)
    hits = np.bincount(of, [pattern.matches(text) for text in solved], len(keys))
    return dict(zip(keys, (hits / np.bincount(of, minlength=len(keys))).tolist(), strict=True))


def _correct_ones(
    texts: Sequence[str], correct: ArrayLike, problems: Sequence[Hashable]
) -> tuple[list[str], NDArray[np.int64], list[Hashable], int]:
    """Correct texts, number of the problem of each, the problems, and how many problems have none."""
    right = np.asarray(correct, dtype=bool)
    if not len(texts) == len(problems) == len(right) or right.ndim != 1:
        raise DataError(
            f"{len(texts)} texts, verdicts of shape {right.shape}, {len(problems)} problems: one each a solution."
        )
    chosen = np.flatnonzero(right).tolist()
    if not chosen:
        raise DataError("no solution is correct; Eq. (13) looks at correct solutions only.")
    names = [problems[i] for i in chosen]
    of, _ = clusters(names)
    keys = list(dict.fromkeys(names))
    return [texts[i] for i in chosen], of, keys, len(set(problems)) - len(keys)


def _pattern(name: str, entry: Any, path: Path, paper_only: bool) -> Pattern:
    known = {"says", "match", "unless", "hits", "false_hits"}
    if not isinstance(entry, Mapping) or set(entry) - known or not entry.get("match"):
        raise ConfigError(
            f"{path}: {name} needs says and match, and may have {', '.join(sorted(known))}; nothing else."
        )
    rules = [rule for rule in entry["match"] if not paper_only or rule.get("from") == "paper"]
    return Pattern(
        name=name,
        says=str(entry.get("says", "")),
        match=tuple(_compiled(rule, name, path) for rule in rules),
        unless=tuple(_compiled(rule, name, path) for rule in entry.get("unless") or ()),
        hits=tuple(entry.get("hits") or ()),
        false_hits=tuple(entry.get("false_hits") or ()),
    )


def _compiled(rule: Any, name: str, path: Path) -> re.Pattern[str]:
    try:
        return re.compile(str(rule["regex"]).replace("VAR", _VARIABLE), re.IGNORECASE)
    except (TypeError, KeyError, re.error) as error:
        raise ConfigError(f"{path}: {name} has a rule that is no regex: {rule!r} ({error}).") from error
