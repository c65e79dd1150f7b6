"""The force of guided completions, against every group that can be drawn: unbiased without a cut, and how far off with one."""

from __future__ import annotations

import itertools

import pytest
import torch

from lab.theory.guided import lost_share, second_stage_force
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.rollout_plans import GuidedStages
from sage_rlvr.errors import DataError

LAW = torch.tensor([0.02, 0.18, 0.5, 0.3], dtype=torch.float64)
GUIDED = torch.tensor([0.4, 0.3, 0.05, 0.25], dtype=torch.float64)
RIGHT = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def listed(plan: GuidedStages, size: int) -> torch.Tensor:
    """E of sum_i w_i A_i grad log pi(y_i|x) / size, every group of `size` with its chance under guidance, on the logits."""
    weights, total = plan.weights(LAW.log(), GUIDED.log()), torch.zeros(4, dtype=torch.float64)
    for group in itertools.product(range(4), repeat=size):
        members = torch.tensor(group)
        advantages = LeaveOneOut()(RIGHT[members][None].float())[0].double()
        for y, worth in zip(group, weights[members] * advantages, strict=True):
            score = torch.nn.functional.one_hot(torch.tensor(y), 4).double() - LAW
            total += float(GUIDED[members].prod()) * float(worth) * score
    return total / size


@pytest.mark.parametrize("clip", [None, 1.0, 2.0, 1e9])
@pytest.mark.parametrize("size", [2, 3])
def test_the_force_is_that_of_every_group(clip: float | None, size: int) -> None:
    plan = GuidedStages(clip=clip)
    force, gradient = second_stage_force(plan, LAW, GUIDED, RIGHT)
    assert torch.allclose(listed(plan, size), force, atol=1e-6)
    assert torch.allclose(gradient, LAW * (RIGHT - float(LAW @ RIGHT)))
    assert torch.allclose(force, gradient) is (clip == 1e9), "unbiased where nothing is cut, and only there"


def test_a_cut_leaves_out_what_guidance_makes_rare_and_by_hand() -> None:
    """w = pi / pi_g = (.05, .6, 10, 1.2): at 1 the third and fourth are cut, and .45 and .05 of the law with them."""
    plan = GuidedStages(clip=1.0)
    assert lost_share(plan, LAW, GUIDED) == pytest.approx(0.45 + 0.05)
    assert lost_share(GuidedStages(clip=20.0), LAW, GUIDED) < 1e-12
    counted = torch.tensor([0.02, 0.18, 0.05, 0.25], dtype=torch.float64) * (RIGHT - 0.65)
    force, gradient = second_stage_force(plan, LAW, GUIDED, RIGHT)
    assert torch.allclose(force, counted - LAW * counted.sum())
    assert float(force @ gradient) > 0, "here it still climbs"
    with pytest.raises(DataError, match="no chance"):
        second_stage_force(plan, LAW, torch.tensor([1.0, 0.0, 0.0, 0.0]), RIGHT)
