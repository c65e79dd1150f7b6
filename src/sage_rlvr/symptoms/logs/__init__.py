"""Logs of any program as one table, and the analysis of its curves. Read table.py first, then readers.py, names.py, curves.py,
diagnose.py."""
