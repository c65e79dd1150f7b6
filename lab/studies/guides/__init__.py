"""`python -m lab guides`: what a guide would do to a trained policy if Eq. (4) were solved exactly, at equal KL.

Read signals.py (the guides and what each reads), completions.py (correct completions listed, wrong ones sampled),
measure.py (every guide at each KL budget, and the best possible q), rows.py (results), command.py and figures.py.
"""
