"""Details that only the page shows, measured from results and added to summary.json as trees: differences over k, training step by
step, run cards, kinds of right answers, perplexities. samples.py and rows.py have the texts of samples for the page's browser.

`details_of` is all of it; `results.page` lays it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.results.details import answers, training
from sage_rlvr.results.details.differences import differences_of, gaps_of
from sage_rlvr.results.details.samples import SampleSet
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.summary_io import plain


def details_of(
    results: Results, findings: Findings, summary: Mapping[str, Any], samples: Sequence[SampleSet]
) -> dict[str, Any]:
    """The summary with its details. What these results do not have, a stored summary keeps."""
    trained = training.in_order(results.runs, results.design)
    found = {
        "differences": differences_of(results, summary),
        "gaps": gaps_of(summary),
        "training": training.curves(trained),
        "cards": training.cards(results.design, trained),
        "kinds": answers.kinds_of(_records(results), results.k),
        "patterns": answers.patterns(samples),
        "distinct": answers.distinct(samples, findings.verdicts),
        "perplexity": answers.perplexity(samples),
        "sources": list(results.sources),
        "model": results.base_record.meta["model"] if results.base_record and not results.design.facts else None,
    }
    return {**summary, **{name: plain(value or summary.get(name, value)) for name, value in found.items()}}


def _records(results: Results) -> dict[str, list[Record]]:
    """The exact records of the main task of each policy, one per training seed, the base first."""
    names = dict.fromkeys(filter(None, (results.design.base, *results.design.names)))
    of_policy = {}
    for name in names:
        keys = sorted(key for key in results.records if key[0] == name and key[2] == "")
        if keys:
            of_policy[name] = [results.records[key] for key in keys]
    return of_policy


__all__ = ["details_of"]
