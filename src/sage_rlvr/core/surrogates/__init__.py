"""The policy-gradient term per token: (log_ratios, advantages, mask) -> (loss to minimize (B, T), statistics). One a file."""

from sage_rlvr.core.surrogates.base import LARGEST_LOG_RATIO, SURROGATES, Surrogate
from sage_rlvr.core.surrogates.cispo import Cispo
from sage_rlvr.core.surrogates.clip import Clip
from sage_rlvr.core.surrogates.gspo import Gspo
from sage_rlvr.core.surrogates.pacs import Pacs

__all__ = ["LARGEST_LOG_RATIO", "SURROGATES", "Cispo", "Clip", "Gspo", "Pacs", "Surrogate"]
