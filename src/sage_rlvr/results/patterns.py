"""Lines on the reasoning patterns of right samples in two stores (`compare --patterns`)."""

from __future__ import annotations

from sage_rlvr.evaluation.sample_report import SampleColumns
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.verdicts.row import end_of
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.stats.samples.clusters import SPARSE
from sage_rlvr.verdicts.stats.samples.patterns import PatternComparison, compare_patterns
from sage_rlvr.verdicts.text.words import score_text

PATTERN = (
    "{p.name}: {p.a.hits} of {p.a.solutions} ({a}) against {p.b.hits} of {p.b.solutions} ({b}); Fisher p = {p.fisher_p:.2g} before "
    "clustering by problem, which weakens it; clustered by problem the shares differ by {difference}; {paired}"
)
PAIRED = "{end} over the {gap.n} problems solved by both (difference {gap.value:+.3f})"
PAIRED_TOO_FEW = f"{PAIRED}; a pattern in fewer than {SPARSE} problems supports no claim"
NOT_PAIRED = "no paired comparison, because no problem was solved by both"


def pattern_lines(name_a: str, a: SampleStore, name_b: str, b: SampleStore, n: int | None = None) -> list[str]:
    """Each reasoning pattern in two stores: counts, Fisher's p, and the difference paired by problem."""
    patterns = compare_patterns(SampleColumns(a, n).solutions(), SampleColumns(b, n).solutions())
    return [f"{a.identity.task}: {name_a} vs {name_b}, pattern {pattern_words(one)}." for one in patterns.values()]


def pattern_words(pattern: PatternComparison) -> str:
    """Both counts, Fisher's p, the difference of the shares, and the paired difference."""
    a, b, difference = score_text(pattern.a.micro), score_text(pattern.b.micro), score_text(pattern.micro, "+.3f")
    paired = NOT_PAIRED if pattern.by_problem is None else _paired(pattern.by_problem)
    return PATTERN.format(p=pattern, a=a, b=b, difference=difference, paired=paired)


def _paired(comparison: PairedDifference) -> str:
    template = PAIRED if comparison.known else PAIRED_TOO_FEW
    return template.format(end=end_of(comparison.outcome, detected=comparison.detects()), gap=comparison.difference)
