"""Evaluation: a policy in, stored numbers out: exact records and sample stores."""
