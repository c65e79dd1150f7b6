"""The main jobs from Python: `train`, `sft`, `offline`, `evaluate`, `compare`, `report`, `sweep`, `demo`, `push`.

Read train.py first.

train.py      a recipe, a method by name or a method object becomes a `Run`; start.py does the work on any engine
evaluate.py   a policy becomes an `Evaluation`, exact or by samples
compare.py    evaluations become a `Comparison`, and a page; printed.py is its text
push.py       the policy of a run, with its card, goes to the Hub
The command line parses options, calls these and prints. Importing this loads no torch.
"""

from sage_rlvr.api.compare import Comparison, compare, demo, report, sweep
from sage_rlvr.api.evaluate import Evaluation, evaluate
from sage_rlvr.api.push import push
from sage_rlvr.api.train import Run, offline, sft, train

__all__ = [
    "Comparison",
    "Evaluation",
    "Run",
    "compare",
    "demo",
    "evaluate",
    "offline",
    "push",
    "report",
    "sft",
    "sweep",
    "train",
]
