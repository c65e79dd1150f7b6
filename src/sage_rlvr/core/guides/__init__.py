"""Guides: the positive factor q by which SAGE multiplies the reference policy; `GUIDES` is the registry.

Read base.py first (`Guide` and the band), then branch.py, random.py and token.py (the paper's guides).
rarity.py is an additional guide; compose.py has products of guides and the placebo control; flat.py is q = 1.
Every file of this folder is imported, in alphabetical order: a new guide is one file.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.guides.base import (
    GUIDES,
    Banded,
    Guide,
    band_of,
    check_declared,
    is_clamped,
)
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.core.guides.branch import *
    from sage_rlvr.core.guides.compose import *
    from sage_rlvr.core.guides.flat import *
    from sage_rlvr.core.guides.random import *
    from sage_rlvr.core.guides.rarity import *
    from sage_rlvr.core.guides.token import *

PARTS = gather(__name__, GUIDES)
globals().update(PARTS)

from sage_rlvr.core.guides.compose import check_reach, clamped, factors, is_flat  # noqa: E402 - behind branch, which stands first

__all__ = [
    "GUIDES",
    "Banded",
    "Guide",
    "band_of",
    "check_declared",
    "check_reach",
    "clamped",
    "factors",
    "is_clamped",
    "is_flat",
]
__all__ += list(PARTS)
