"""The full report of a study as a `Page`: verdicts first, then numbers and figures, last what was run. No markup.

Every section is there whatever was recorded; where something was not run or not recorded, the section says so in words.
"""

from __future__ import annotations

from dataclasses import replace

from sage_rlvr.report.parts import Page, Section, joined
from sage_rlvr.report.sections.answers import distinct, grids, structure
from sage_rlvr.report.sections.numbers import curves, differences, numbers
from sage_rlvr.report.sections.runs import cards, what_was_run
from sage_rlvr.report.sections.stores import told_apart
from sage_rlvr.report.sections.texts import perplexity, samples_shown
from sage_rlvr.report.sections.training import learning, support, training
from sage_rlvr.report.sections.verdicts import frontier, fronts_of, verdicts
from sage_rlvr.report.study import Study
from sage_rlvr.report.summary import SeedSummary, Summary, summarise, summarise_seeds


def book(study: Study) -> Page:
    """The full report."""
    study = replace(study, samples=told_apart(study.samples))
    exact: Summary | SeedSummary | None = None
    if study.results:
        exact = summarise(study.results[0]) if len(study.results) == 1 else summarise_seeds(study.results)
    fronts = fronts_of(study)
    sections = (
        Section(key="verdicts", title="What can be said", parts=verdicts(study, exact, fronts)),
        Section(key="table", title="The numbers", parts=numbers(study, exact)),
        Section(key="curves", title="pass@k", parts=curves(study, exact)),
        Section(key="differences", title="Differences over k", parts=differences(study, exact)),
        Section(key="frontier", title="Against the base sampled colder", parts=frontier(study, exact, fronts)),
        Section(key="training", title="Training", parts=(*learning(study, exact), *training(study.runs))),
        Section(key="support", title="Support: kept, gained, lost", parts=support(study)),
        Section(key="perplexity", title="How unlikely the base finds the samples", parts=perplexity(study.samples)),
        Section(key="structure", title="Which kinds of right answers survive", parts=structure(study)),
        Section(key="distinct", title="Different right answers", parts=distinct(study)),
        Section(key="grids", title="Grids", parts=grids(study, exact)),
        Section(key="samples", title="Samples", parts=samples_shown(study.samples)),
        Section(key="runs", title="What was run", parts=what_was_run(study)),
        Section(key="cards", title="Run cards", parts=cards(study.runs)),
    )
    return Page(title=study.title, lead=_lead(study), sections=sections)


def _lead(study: Study) -> str:
    if not study.results:
        sets = {s.task for s in study.samples}
        arms = {s.arm for s in study.samples}
        many = "One policy" if len(arms) == 1 else f"{len(arms)} policies"
        return f"{many}, sampled on {joined(sorted(sets)) or 'nothing'}; no exact evaluation was given."
    first, seeds = study.results[0], len(study.results)
    over = f"{seeds} training seeds each" if seeds > 1 else "one training seed each"
    of = f" of {first.world}" if first.world else ""
    trained = len(first.arms) - 1
    many = "One trained policy" if trained == 1 else f"{trained} trained policies"
    if not trained:
        return (
            f"{first.base} alone, on {first.problems} {first.split} problems{of}. Every probability is an exact sum; "
            "intervals are 95 % over problems."
        )
    return (
        f"{many} against {first.base}, {over}, on the same {first.problems} {first.split} "
        f"problems{of}. Every probability is an exact sum; intervals are 95 % over "
        f"{'training seeds' if seeds > 1 else 'problems'}."
    )


__all__ = ["book"]
