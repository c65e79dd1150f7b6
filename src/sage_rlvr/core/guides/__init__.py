"""Guides: how SAGE multiplies the reference by a positive factor q, one file each; `GUIDES` is the registry."""

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
from sage_rlvr.core.guides.branch import Branch
from sage_rlvr.core.guides.compose import Compose, Placebo, check_reach, clamped, factors, is_flat
from sage_rlvr.core.guides.flat import Flat
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.guides.token import Token

__all__ = [
    "GUIDES",
    "Banded",
    "Branch",
    "Compose",
    "Flat",
    "Guide",
    "Placebo",
    "Random",
    "Rarity",
    "Token",
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
