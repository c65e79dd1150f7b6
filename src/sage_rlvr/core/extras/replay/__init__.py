"""Extras that train on stored correct answers: base.py has their kind, `Buffer`, answers.py the stored answers as a value."""
