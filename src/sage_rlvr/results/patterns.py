"""Lines on the reasoning patterns of right samples in two stores (`compare --patterns`)."""

from __future__ import annotations

from sage_rlvr.evaluation.sample_report import SampleColumns
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.verdicts.stats.samples.patterns import compare_patterns
from sage_rlvr.verdicts.text.patterns import pattern_words


def pattern_lines(name_a: str, a: SampleStore, name_b: str, b: SampleStore, n: int | None = None) -> list[str]:
    """Each reasoning pattern in two stores: counts, Fisher's p, and the difference paired by problem."""
    patterns = compare_patterns(SampleColumns(a, n).solutions(), SampleColumns(b, n).solutions())
    return [f"{a.identity.task}: {name_a} vs {name_b}, pattern {pattern_words(one)}." for one in patterns.values()]
