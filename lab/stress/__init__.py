"""Checks that take minutes to hours: attacks, coverage of the intervals, speed of the parts.

battery/ kills commands, damages files and sends hostile answers (`python -m lab.stress.battery all`).
interval_coverage.py simulates how often each interval covers and how often a comparison is falsely significant.
parts_speed.py times each method's parts against GRPO's. Read battery/__init__.py first; the other two stand alone.
"""
