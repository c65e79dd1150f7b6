"""SFT on all right answers that the task lists: an upper bound.

Recipe: `sage-rlvr train sft_oracle --task TASK`.
Numbers worked out by hand: tests/training/loop/test_buffer.py.
"""

from __future__ import annotations

from sage_rlvr.contrib.replay.rft import Likelihood
from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip


@METHODS.register(label="SFT (oracle)", about="SFT on all correct answers (oracle)")
def sft_oracle(*, answers: int = 1024, take: int | None = 16, prompts: int = 16) -> Method:
    """L = -(1/(P L)) sum_x (1/n) sum_y log pi(y), y drawn from all right answers that the task lists: an upper bound.

    Supervised training on the answers that a policy would have to find: an oracle rather than a method. take: answers
    of each prompt in an update, redrawn each time; by default as many as a group has completions.
    """
    part = Likelihood(alone=True, policy=False, oracle=True, answers=answers, take=take, prompts=prompts)
    return Method("sft_oracle", GroupNormalized(), Clip(), None, SequenceMean(), extras=(part,))
