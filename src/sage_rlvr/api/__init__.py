"""The main jobs from Python: `train`, `sft`, `offline`, `evaluate`, `compare`, `report`, `sweep`, `demo`, `push`.

Read train.py first.

train.py      a recipe, a method by name or a method object becomes a `Run`; start.py does the work on any engine
evaluate.py   a policy becomes an `Evaluation`, exact or by samples
compare.py    evaluations become a `Comparison`; printed.py is its text
report.py     the same as a page
sweep.py      the arms of a design are trained, evaluated and compared
push.py       the policy of a run, with its card, is uploaded to the Hub
The command line parses options, calls these and prints. Each is imported from a separate file, so that a comparison of two files
loads no training; `sage_rlvr.compare` and the others are the same functions.
"""
