"""Enumeration of completions, without sampling.

completions.py lists every completion above a probability; solutions.py scores all correct completions of a problem.
"""
