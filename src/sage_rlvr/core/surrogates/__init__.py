"""Surrogates: the policy-gradient term per token, (log_ratios, advantages, mask) -> (loss to minimize (B, T), statistics).

Read base.py first (`Surrogate`), then clip.py (PPO and DAPO). The registry `SURROGATES` also contains the surrogates of
sage_rlvr.contrib.methods.
"""

from sage_rlvr.core.surrogates.base import LARGEST_LOG_RATIO, SURROGATES, Surrogate
from sage_rlvr.core.surrogates.clip import Clip

__all__ = ["LARGEST_LOG_RATIO", "SURROGATES", "Clip", "Surrogate"]
