"""`python -m lab anchor`: what each KL term minimizes, in the parameters of a small Countdown policy, by exact sums.

Read terms.py (the KL terms and guides by name), expectations.py (exact expected gradients over all completions),
measure.py (cosines with the gradients of each divergence), variances.py (spread of single-sample gradients),
rows.py (results as values and tables), command.py (the command and its page) and figures.py (three pictures).
"""
