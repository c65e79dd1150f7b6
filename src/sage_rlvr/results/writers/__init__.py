"""Comparisons in the forms of other programs.

    eee.py        Every Eval Ever 0.3, one file per policy       `compare --to eee DIR`
    markdown.py   verdict and table on GitHub                    `compare --github-summary`
    card.py       evaluation results of a model card             `push --results`
    trackers.py   a run in wandb, trackio or TensorBoard         `compare --log-to RUN`
"""
