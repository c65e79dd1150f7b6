"""Surrogates: the policy-gradient term per token, (log_ratios, advantages, mask) -> (loss to minimize (B, T), statistics).

Read base.py first (`Surrogate`), then clip.py (PPO and DAPO). gspo.py, cispo.py and pacs.py are the
losses of other papers.
"""

from sage_rlvr.core.surrogates.base import LARGEST_LOG_RATIO, SURROGATES, Surrogate
from sage_rlvr.core.surrogates.cispo import Cispo
from sage_rlvr.core.surrogates.clip import Clip
from sage_rlvr.core.surrogates.gspo import Gspo
from sage_rlvr.core.surrogates.pacs import Pacs

__all__ = ["LARGEST_LOG_RATIO", "SURROGATES", "Cispo", "Clip", "Gspo", "Pacs", "Surrogate"]
