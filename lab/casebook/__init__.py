"""Runs with one known fault each, and sound runs: what `preflight` and `diagnose` name first (`python -m lab casebook`).

Every run trains the built-in policy (0.9 M parameters) on Countdown for seconds. cases.py has the faults, each with a public
thread of someone who had it; healthy.py the sound runs; command.py runs them and prints the table. Needs TRL.
"""
