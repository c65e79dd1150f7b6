"""The layout of a report page: values for its template and figures, from a summary and from nothing else.

Read values.py first (`page_of`); scores.py, training.py and answers.py each lay out one part. `sage_rlvr.render` draws them.
"""

from __future__ import annotations

from sage_rlvr.results.page.values import page_of

__all__ = ["page_of"]
