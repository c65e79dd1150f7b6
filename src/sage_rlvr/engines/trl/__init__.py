"""TRL's GRPOTrainer with a shaped anchor: `SageTrainer`, and `grpo_config`, the arguments that a method stands for."""

try:
    import trl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "sage_rlvr.engines.trl needs TRL; run: pip install 'sage-rlvr[trl]'", name="trl"
    ) from error

from sage_rlvr.engines.trl.mapping import grpo_config
from sage_rlvr.engines.trl.trainer import SageTrainer

__all__ = ["SageTrainer", "grpo_config"]
