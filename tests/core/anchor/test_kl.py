"""Estimators pointwise: dtype, sign, detachment, accuracy near the reference."""

from __future__ import annotations

import pytest
import torch

from sage_rlvr.core import k3
from sage_rlvr.core.kl import SAMPLED, estimate

DRAWN = torch.Generator().manual_seed(0)
LOGPS, REF, OLD = (-3 * torch.rand(4, 6, generator=DRAWN) for _ in range(3))


@pytest.mark.parametrize("name", SAMPLED)
def test_zero_at_the_reference_and_float32(name):
    assert not estimate(name, LOGPS, LOGPS, OLD).any()
    half = estimate(name, LOGPS.bfloat16(), REF.bfloat16(), OLD.bfloat16())
    assert half.dtype == torch.float32 and half.shape == LOGPS.shape


@pytest.mark.parametrize("name", ["k2", "k3", "k3_is"])
def test_never_negative(name):
    assert bool((estimate(name, LOGPS, REF, OLD) >= 0).all())


@pytest.mark.parametrize("name", SAMPLED)
def test_only_the_policy_gets_a_gradient(name):
    leaves = [value.clone().requires_grad_(True) for value in (LOGPS, REF, OLD)]
    gradients = torch.autograd.grad(estimate(name, *leaves).sum(), leaves, allow_unused=True)
    assert gradients[0].any() and gradients[1] is None and gradients[2] is None


def test_k3_keeps_its_digits_near_the_reference():
    """l = 1e-3: k3 = l**2 / 2 - l**3 / 6; computed as exp(-l) - 1 + l in float32 half the digits would be noise."""
    ref = torch.zeros(1, 1)
    assert float(k3(ref + 1e-3, ref)) == pytest.approx(4.998334e-7, rel=2e-4)
