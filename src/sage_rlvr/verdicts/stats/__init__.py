"""Statistics: arrays -> numbers with intervals. numpy and scipy only; no function reads a folder or prints.

Read passk.py first (pass@k estimators), then intervals.py (intervals), paired.py (paired differences over problems
or seeds) and curves.py (bands over k). frontier.py, tempered.py and hull.py are baselines that only change sampling;
support.py and leash.py count reachable answers; power.py and plan.py are power analysis; samples/ has text statistics.
"""
