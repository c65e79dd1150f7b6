"""Bookkeeping over all experiments: which questions were asked of which seeds, and what was run.

questions.py answers the questions of experiments/register.yaml from stored summaries (`python -m lab register`).
runs.py reads designs with their summaries and finds reused runs; designs.py counts them and compares baselines with
themselves (`python -m lab designs`). command.py has both commands. Read questions.py first, then runs.py, designs.py.
"""
