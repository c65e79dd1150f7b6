"""Statistics: arrays -> numbers with intervals. numpy and scipy only; no function reads a folder or prints.

Read passk.py first (pass@k estimators), then intervals.py (intervals), paired.py (paired differences over problems
or seeds) and curves.py (bands over k). frontier.py, tempered.py, hull.py and mixture.py are baselines that only change
sampling; strata.py, leash.py and support.py measure problems and answers gained and lost; power.py and plan.py are power analysis;
budget.py checks that two evaluations have equal settings; samples/ has statistics of single samples and their independence.
"""
