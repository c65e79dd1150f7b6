"""The mathematics reward in Ray actors: same verdicts, same limits, no worker left behind. Runs where Ray is installed."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from sage_rlvr.verifiers.pool import Pool  # noqa: E402
from sage_rlvr.verifiers.rewards import MathReward  # noqa: E402

TOWER = r"\boxed{5^{(5^{(5^{(5^5)})})}}"


def scored(completions: list[str], answers: list[str]) -> tuple[list[float | None], int]:
    """Rewards, and how many processes the actor has for children once its pool is closed."""
    import psutil

    pool = Pool(workers=1, seconds=2.0)
    rewards = MathReward(pool=pool)(completions, answer=answers)
    pool.close()
    time.sleep(0.5)
    return rewards, len(psutil.Process().children(recursive=True))


@pytest.mark.slow
def test_two_actors_score_at_once_and_leave_no_worker():
    psutil = pytest.importorskip("psutil")
    assert psutil
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}},
    )
    try:

        @ray.remote
        class Actor:
            def score(self, *args: Any) -> Any:
                return scored(*args)

        completions, answers = [r"so \boxed{\frac{1}{2}}", r"\boxed{3}", TOWER], ["0.5", "4", "2"]
        found = ray.get([Actor.remote().score.remote(completions, answers) for _ in range(2)])
        assert found == [([1.0, 0.0, None], 0)] * 2
    finally:
        ray.shutdown()
