"""The room law: does what a base leaves to win decide whether RL widens or narrows what the policy solves? `python -m lab room`.

cohort reads the released runs and keeps their independent answers; base computes what the base's answers show before training; skill
measures how well that predicts the change; slopes, how much of a slope the axes have built in; worlds reads our own policies; study
puts all together; command and picture print and draw the result.
"""
