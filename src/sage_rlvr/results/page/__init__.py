"""The values of a report page: scores over k, training curves, kinds of answers, samples.

Read values.py first (`page_of` builds the page from `Results`); scores.py, training.py, answers.py and samples.py each
compute one section. `sage_rlvr.render` draws them.
"""

from __future__ import annotations

from sage_rlvr.results.page.values import page_of

__all__ = ["page_of"]
