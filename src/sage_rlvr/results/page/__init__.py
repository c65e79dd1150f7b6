"""What a page shows, as values: scores over k, training, kinds of answers, samples. Made once of `Results`, drawn by `report`."""

from __future__ import annotations

from sage_rlvr.results.page.values import page_of

__all__ = ["page_of"]
