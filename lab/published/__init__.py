"""The arithmetic of the paper's own tables: `python -m lab published GRPO Branch`.

tables.json holds Tables 1 to 6 and 9 of arXiv 2605.18864 as printed. tables.py compares two arms of a table
(Welch's t over five evaluation seeds, Holm over cells, pooled pairs); command.py is the command.
"""
