"""The laboratory of sage-rlvr: exact theory, studies and experiments. Run from a clone; not part of the wheel.

Read README.md first, then experiments/README.md for what was run and pages/results/claims.md for what was found.
Code, in this order: theory (exact oracle of the package's tests), studies (what KL terms, guides and objectives do),
register (questions and designs, counted), published and authors_yaml (the paper's tables and its authors' configuration),
stress (attacks, coverage of intervals, speed). `python -m lab` lists the commands. lab may import sage_rlvr, never the reverse.
"""
