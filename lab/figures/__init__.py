"""Pictures of the docs, drawn from stored summaries: one file each, run as `python -m lab.figures.NAME`."""
