"""The laws that a part must satisfy, as functions that raise AssertionError; for users' parts too.

Read guides.py (laws of a guide), parts.py (laws of advantages, surrogates and the other parts) and method.py (laws of a complete
method). tried.py has the signals on which the laws are tested; rewards.py audits a reward function.

    from sage_rlvr.testing import check_guide, check_method
    check_guide(MyGuide())                    # AssertionError names the violated law
"""

from __future__ import annotations

from sage_rlvr.testing.guides import (
    check_dependence,
    check_guide,
    check_needs,
    check_no_gradient,
    check_order,
    check_padding,
    check_precision,
    check_repeats,
    check_rows_apart,
    check_values,
    run,
    uncast,
)
from sage_rlvr.testing.method import check_method
from sage_rlvr.testing.parts import (
    check_advantage,
    check_dead,
    check_extra,
    check_reduction,
    check_rollout_plan,
    check_schedule,
    check_surrogate,
)
from sage_rlvr.testing.rewards import check_reward
from sage_rlvr.testing.tried import KEY, SIGNALS, Change, changed, check_recipe, holed, signals, unholed, value_of

__all__ = [
    "KEY",
    "SIGNALS",
    "Change",
    "changed",
    "check_advantage",
    "check_dead",
    "check_dependence",
    "check_extra",
    "check_guide",
    "check_method",
    "check_needs",
    "check_no_gradient",
    "check_order",
    "check_padding",
    "check_precision",
    "check_recipe",
    "check_reduction",
    "check_repeats",
    "check_reward",
    "check_rollout_plan",
    "check_rows_apart",
    "check_schedule",
    "check_surrogate",
    "check_values",
    "holed",
    "run",
    "signals",
    "uncast",
    "unholed",
    "value_of",
]
