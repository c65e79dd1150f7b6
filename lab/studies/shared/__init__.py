"""`python -m lab shared`: what objectives do to coverage where prompts share parameters.

Read lab/theory/shared.py (the drawn world and exact training on it), then measure.py (objectives, strengths and the
claims over several worlds) and command.py (tables, page and picture).
"""
