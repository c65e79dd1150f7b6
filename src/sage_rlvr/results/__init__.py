"""Read stored results, compare them and print the comparisons. Does not import torch.

results = Results.read("runs/demo")        a folder, run, record, sample store or summary
rows = compare(results)                    all comparisons of the design, Holm-corrected in two families
print(words.answer(rows))                  one line that answers the design's questions
"""

from __future__ import annotations

from sage_rlvr.results.comparisons import Row, compare
from sage_rlvr.results.design import Arm, Design, Question
from sage_rlvr.results.metric import Metric
from sage_rlvr.results.read import Results, Run, Store
from sage_rlvr.results.scores import Scores

__all__ = ["Arm", "Design", "Metric", "Question", "Results", "Row", "Run", "Scores", "Store", "compare"]
