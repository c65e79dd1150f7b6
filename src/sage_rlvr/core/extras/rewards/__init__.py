"""Extras that change the rewards of a group before the advantage: overlong shaping and other transforms of papers."""
