"""Rules of evaluation harnesses as reward functions, for `python -m lab published-rewards`: one file per harness.

The harness's own code is called unmodified, in its environment; a file here passes completion and gold as the harness's task does.
"""
