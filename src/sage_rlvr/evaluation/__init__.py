"""Evaluation: a policy -> stored numbers, as exact records or as sample stores.

Read evaluate.py and exact.py first (exact pass@k on a task that can list its correct completions), then sampling.py,
sample_run.py and sampled_run.py (evaluation by samples: chunks, settings, the full run) and store/ (the samples, in Parquet).
record.py is the file of an exact evaluation; judged.py verifies completions that were sampled elsewhere; guidance.py samples
again with hints.
"""
