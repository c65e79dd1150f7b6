"""Dry runs: the work of a recipe and the cost of a model, counted before anything is loaded.

dry_run.py prints the trainer arguments, the data and the counts of a recipe; footprint.py counts the memory of a model; probe.py
times a few steps on this machine, memory.py reads its memory, and room.py warns before a step that exceeds it.
"""
