"""Studies of parts of a method, each with a command (`commands.py`) and a page in lab/pages.

anchor/ measures what each KL term minimizes, guides/ compares guides at equal KL, shared/ lets prompts share parameters.
objectives.py places every method on two axes, supports.py counts the correct answers it keeps, parts.py is the ablation.
Read a study in the order measure.py, rows.py, command.py, figures.py. pages.py fills tables into pages; gradients.py
serves parts.py.
"""
