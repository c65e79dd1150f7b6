"""TRL's GRPOTrainer with a shaped anchor, `from sage_rlvr.trl import SageTrainer, grpo_config`; `PassAtK`, a callback that measures
pass@k on held-out rows under any of TRL's trainers; `preflight`, which reports before `train()` what keeps the reward from rising;
and `environment_of`, an environment of a task for chat models. Needs the trl extra.
"""

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.errors import suggest
from sage_rlvr.symptoms.on_trl import preflight
from sage_rlvr.training.trl import PassAtK, SageTrainer, environment_of, grpo_config


def verdict(base: Sequence[Path], last: Path) -> str:
    """Return the first lines of a comparison of files of counts, of the base at its temperatures and the last evaluation.

    And its command.
    """
    from sage_rlvr.api.compare import compare  # slow to load

    arms = {"base": ",".join(map(str, base)), "rl": str(last)}
    answer = compare(arms).answer.partition("\n\n")[0]
    return f"{answer} More: {suggest('compare', *(f'{name}={file}' for name, file in arms.items()))}"


PassAtK.judge = staticmethod(verdict)

__all__ = ["PassAtK", "SageTrainer", "environment_of", "grpo_config", "preflight"]
