"""Expert iteration: SFT on right completions found so far.

Recipe: `sage-rlvr train expert_iteration --task TASK`.
Numbers worked out by hand: tests/training/loop/test_buffer.py.
"""

from __future__ import annotations

from typing import Literal

from sage_rlvr.contrib.replay.rft import Likelihood
from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.replay.answers import Draw
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import SequenceMean
from sage_rlvr.core.surrogates import Clip


@METHODS.register(about="SFT on correct answers found so far")
def expert_iteration(
    *,
    base: int = 0,
    base_prompts: int | None = None,
    answers: int = 16,
    take: int | None = None,
    prompts: int = 16,
    draw: Draw = "any",
    evict: Literal["oldest", "newest", "commonest"] = "oldest",
) -> Method:
    """L = -(1/(P L)) sum_x (1/n) sum_y log pi(y), y the distinct right answers found in rollouts so far (ExIt, STaR, ReST).

    The right answers of all rollouts are stored and trained on repeatedly, uniform over those of a prompt; draw="hard"
    prefers prompts that are rarely solved. base: additional samples per problem before step 0. take: answers per prompt
    in an update, redrawn each time; None: all.
    """
    part = Likelihood(
        alone=True, base=base, base_prompts=base_prompts, draw=draw, evict=evict, answers=answers, take=take, prompts=prompts
    )  # fmt: skip
    return Method("expert_iteration", GroupNormalized(), Clip(), None, SequenceMean(), extras=(part,))
