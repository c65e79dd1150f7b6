"""A reasoning pattern in the right samples of two policies."""

from __future__ import annotations

from sage_rlvr.verdicts.row import end_of
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.stats.samples.clusters import SPARSE
from sage_rlvr.verdicts.stats.samples.patterns import PatternComparison
from sage_rlvr.verdicts.text.words import score_text


def pattern_words(pattern: PatternComparison) -> str:
    """Both counts, Fisher's p, the difference of the shares, and the paired difference."""
    a, b = pattern.a, pattern.b
    paired = "no paired comparison, because no problem was solved by both"
    if pattern.by_problem is not None:
        paired = _paired(pattern.by_problem)
    return (
        f"{pattern.name}: {a.hits} of {a.solutions} ({score_text(a.micro)}) against {b.hits} of {b.solutions} "
        f"({score_text(b.micro)}); Fisher p = {pattern.fisher_p:.2g} before clustering by problem, which weakens it; clustered by "
        f"problem the shares differ by {score_text(pattern.micro, '+.3f')}; {paired}"
    )


def _paired(comparison: PairedDifference) -> str:
    end, gap = end_of(comparison.outcome, detected=comparison.detects()), comparison.difference
    few = "" if comparison.known else f"; a pattern in fewer than {SPARSE} problems supports no claim"
    return f"{end} over the {gap.n} problems solved by both (difference {gap.value:+.3f}){few}"
