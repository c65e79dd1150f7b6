"""Results: stored numbers read once, compared once, and printed. No torch.

Read read.py first (`Results.read`, the only code that opens result folders), then comparisons.py (`compare`, the list of
corrected comparisons), words.py (a row as a sentence) and tables.py. summary.py and stored.py write and read
summary.json; page/ computes the values of a report.

    results = Results.read("runs/demo")        any folder, run, record, store or stored summary
    rows = compare(results)                    THE list: pairs from the design, corrected once in two families
    print(words.answer(rows))                  one line that answers the folder's question
"""

from __future__ import annotations

from sage_rlvr.results.comparisons import compare
from sage_rlvr.results.design import Arm, Design, Question
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.read import Results
from sage_rlvr.results.row import Row
from sage_rlvr.results.scores import Scores
from sage_rlvr.results.sources import Run, Store

__all__ = ["Arm", "Design", "Metric", "Question", "Results", "Row", "Run", "Scores", "Store", "compare"]
