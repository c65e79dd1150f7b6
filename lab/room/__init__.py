"""The room law: does what a base leaves to win decide whether RL widens or narrows what the policy solves? `python -m lab room`.

cohort reads the released runs and keeps their independent answers; base computes what the base's answers show before training;
readings averages that over the runs of a setting; skill measures how well it predicts the change; slopes, how much of a slope the
axes have built in; worlds reads our own policies and smollm2 those of the pretrained model; study puts all
together; report, picture and command print and draw the result.
"""
