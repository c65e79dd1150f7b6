"""TRL's GRPOTrainer with a shaped anchor, `from sage_rlvr.trl import SageTrainer, grpo_config`; `PassAtK`, a callback that measures
pass@k on held-out rows under any of TRL's trainers; `preflight`, which reports before `train()` what keeps the reward from rising;
and `environment_of`, an environment of a task for chat models. Needs the trl extra.
"""

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.symptoms.on_trl import preflight
from sage_rlvr.training.trl import PassAtK, SageTrainer, environment_of, grpo_config


def judge(base: Sequence[Path], last: Path) -> str:
    """`verdict` of the evaluations of `PassAtK`."""
    from sage_rlvr.api.during import verdict  # slow to load

    return verdict(base, last)


PassAtK.judge = staticmethod(judge)

__all__ = ["PassAtK", "SageTrainer", "environment_of", "grpo_config", "preflight"]
