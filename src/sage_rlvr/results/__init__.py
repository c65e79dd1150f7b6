"""Results: read once into a table, compared once, and printed. No torch.

    results = Results.read("runs/demo")        any folder, run, record, store, file of rows or stored summary
    results.table.where(arm="GRPO", task="")   the measurements: arm, training seed, task, temperature, problems
    findings = findings_of(results)            rows (every comparison, corrected once in two families), verdicts, headroom, checks
    summary = summary_of(results, findings)    all numbers as strict JSON
    page_of(results, findings, summary)        the values of a report

Read measurements.py first (the table), then read.py (`Results.read`, the only code that opens result folders), pairs.py and
comparisons.py (`compare`: rows are group-bys of the table), and sentences.py (a row as a
sentence). summary_io.py writes and reads rows of summary.json.
"""

from __future__ import annotations

from sage_rlvr.results.comparisons import compare
from sage_rlvr.results.design import Arm, Design, Question
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.scores import ProblemScores
from sage_rlvr.results.sources import Store, TrainingRun

__all__ = ["Arm", "Design", "Metric", "ProblemScores", "Question", "Results", "Row", "Store", "TrainingRun", "compare"]
