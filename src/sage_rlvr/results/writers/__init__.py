"""Comparisons in the forms of other programs; `api.card` and `api.trackers` need the libraries of the Hub and of the trackers.

    eee.py        Every Eval Ever 0.3, one file per policy       `compare --to eee DIR`
    markdown.py   verdict and table on GitHub                    `compare --github-summary`
"""
