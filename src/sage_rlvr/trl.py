"""TRL's GRPOTrainer with a shaped anchor, `from sage_rlvr.trl import SageTrainer, grpo_config`; and `environment_of`, an
environment of a task for chat models. Needs the trl extra."""

from sage_rlvr.training.trl import SageTrainer, environment_of, grpo_config

__all__ = ["SageTrainer", "environment_of", "grpo_config"]
