"""Sweeps: several runs as one experiment, from a design file to trained and evaluated runs.

Read design.py first (a design: arms, seeds, evaluation), then plan.py (the runs that a design requires, and which of
them exist), sweep.py (`sage-rlvr sweep`) and jobs.py (worker processes). controls.py adds control arms; demo.py is
`sage-rlvr demo`, and forecast.py what it will take.
"""
