"""The values of a page: scores over k, training, kinds of answers, samples. `render` draws them."""

from __future__ import annotations

from sage_rlvr.results.page.values import page_of

__all__ = ["page_of"]
