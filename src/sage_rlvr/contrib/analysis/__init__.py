"""Measurements that only a command uses: the signals of SAGE by class of token."""
