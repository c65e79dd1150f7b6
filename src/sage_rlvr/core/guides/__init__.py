"""Guides: the positive factor q by which SAGE multiplies the reference policy; `GUIDES` is the registry.

Read base.py first (`Guide` and the band), then branch.py, random.py and token.py (the paper's guides).
rarity.py is an additional guide; compose.py has products of guides and the placebo control; flat.py is q = 1.
"""

from sage_rlvr.core.guides.base import GUIDES, Banded, Guide, band_of, check_declared, is_clamped
from sage_rlvr.core.guides.branch import Branch
from sage_rlvr.core.guides.compose import Compose, Placebo, check_reach, clamped, factors, is_flat
from sage_rlvr.core.guides.flat import Flat

__all__ = [
    "GUIDES", "Banded", "Branch", "Compose", "Flat", "Guide", "Placebo", "band_of", "check_declared", "check_reach", "clamped",
    "factors", "is_clamped", "is_flat",
]  # fmt: skip
