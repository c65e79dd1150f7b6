"""TRL's GRPOTrainer with a shaped anchor, `from sage_rlvr.trl import SageTrainer, grpo_config`; `PassAtK`, a callback that measures
pass@k on held-out rows under any of TRL's trainers; and `environment_of`, an environment of a task for chat models. Needs the trl
extra."""

from sage_rlvr.training.trl import PassAtK, SageTrainer, environment_of, grpo_config

__all__ = ["PassAtK", "SageTrainer", "environment_of", "grpo_config"]
