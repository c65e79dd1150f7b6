"""Hints for second attempts: the teachers of Agent-RLVR (arXiv 2506.11425), teachers.py and policy.py."""
