"""Dry runs: what a recipe will do and what a model costs, counted before anything is loaded.

dry_run.py prints the trainer arguments, the data and the counts of a recipe; footprint.py counts the memory of a model; probe.py
times a few steps on this machine, and memory.py reads its memory.
"""
