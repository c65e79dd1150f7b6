"""Statistics of sampled completions.

patterns.py counts reasoning patterns, diversity.py distinct answers, majority.py maj@k, perplexity.py perplexity under
the base, structure.py the kinds of correct answers. clusters.py has intervals for samples that come in groups,
independence.py finds samples that are not independent draws.
"""
