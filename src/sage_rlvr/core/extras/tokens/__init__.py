"""Extras that weight the advantage of each token: base.py has their kind, `TokenWeight`, placebo.py a control."""
