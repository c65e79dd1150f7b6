"""Extras that train on stored right answers: base.py has their kind, `Buffer`, answers.py what is stored, as a value."""
