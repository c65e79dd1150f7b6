"""Completions that are listed and not drawn: all that are likely enough, and all right ones."""
