"""Instruments that only a command reads: the signals of SAGE by class of token."""
