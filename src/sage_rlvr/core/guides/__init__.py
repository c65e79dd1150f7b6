"""Guides: how SAGE multiplies the reference by a positive factor q, one file each; `GUIDES` is the registry.

Every file of this folder is imported, in the order of the alphabet: a new guide is one file.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.guides.base import (
    GUIDES,
    Banded,
    Guide,
    band_of,
    check_declared,
    is_clamped,
    looks_ahead,
    pays_nothing,
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
    "looks_ahead",
    "pays_nothing",
]
__all__ += list(PARTS)
