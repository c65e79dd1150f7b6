"""Sweeps: several runs as one experiment, from a design file to trained and evaluated runs.

Read design.py first (a design: arms, seeds, evaluation), then resolve.py (its arms) with controls.py (missing control arms),
plan.py (the runs and processes that a design requires, and which of them are finished) and sweep.py (`sage-rlvr sweep`). runs.py:
one arm with one seed; evaluations.py: the evaluations of a policy; processes.py: commands in separate processes; reuse.py: runs of
other sweeps; display.py: progress. demo.py is `sage-rlvr demo`, and forecast.py predicts its time and memory.
"""
