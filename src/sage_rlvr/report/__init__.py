"""Reports: a result in, sentences, tables, figures and one offline HTML file out. No torch."""

from __future__ import annotations

from sage_rlvr.report.page import (
    ReportPaths,
    SeedReportPaths,
    render_page,
    render_seed_page,
    write_report,
    write_seed_report,
)
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
)
from sage_rlvr.report.summary import SeedSummary, Summary, seeds_to_dict, summarise, summarise_seeds
from sage_rlvr.report.tables import Table, results_table, seeds_table, support_table

__all__ = [
    "Arm",
    "ReportPaths",
    "Result",
    "SeedReportPaths",
    "SeedSummary",
    "Summary",
    "Support",
    "Table",
    "Training",
    "arm_from_logps",
    "as_result",
    "from_dict",
    "load_result",
    "render_page",
    "render_seed_page",
    "results_table",
    "seeds_table",
    "seeds_to_dict",
    "summarise",
    "summarise_seeds",
    "support_table",
    "to_dict",
    "write_report",
    "write_seed_report",
]
