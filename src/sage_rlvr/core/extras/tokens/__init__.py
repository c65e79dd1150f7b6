"""Extras that weigh the advantage of each token: base.py has their kind, `TokenWeight`, placebo.py the control of one."""
