"""Reports: a result in, sentences, tables, figures and one offline HTML file out. No torch."""

from __future__ import annotations

from sage_rlvr.report.book import book
from sage_rlvr.report.markdown import markdown
from sage_rlvr.report.page import (
    ReportPaths,
    SeedReportPaths,
    render,
    render_page,
    render_seed_page,
    write_pictures,
    write_report,
    write_seed_report,
)
from sage_rlvr.report.parts import Page
from sage_rlvr.report.result import (
    Arm,
    Result,
    Support,
    Training,
    arm_from_logps,
    as_result,
    from_dict,
    load_result,
    to_dict,
    training_of,
)
from sage_rlvr.report.study import GridOf, RunFacts, SampleSet, Shown, Structure, Study, grids_of, learning_of
from sage_rlvr.report.summary import SeedSummary, Summary, seeds_to_dict, summarise, summarise_seeds
from sage_rlvr.report.tables import Table, results_table, seeds_table, support_table

__all__ = [
    "Arm",
    "GridOf",
    "Page",
    "ReportPaths",
    "Result",
    "RunFacts",
    "SampleSet",
    "SeedReportPaths",
    "SeedSummary",
    "Shown",
    "Structure",
    "Study",
    "Summary",
    "Support",
    "Table",
    "Training",
    "arm_from_logps",
    "as_result",
    "book",
    "from_dict",
    "grids_of",
    "learning_of",
    "load_result",
    "markdown",
    "render",
    "render_page",
    "render_seed_page",
    "results_table",
    "seeds_table",
    "seeds_to_dict",
    "summarise",
    "summarise_seeds",
    "support_table",
    "to_dict",
    "training_of",
    "write_pictures",
    "write_report",
    "write_seed_report",
]
