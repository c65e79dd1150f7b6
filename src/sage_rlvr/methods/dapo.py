"""DAPO: clip-higher, dynamic sampling, a mean over tokens, overlong shaping (Yu et al., arXiv 2503.14476)."""

from __future__ import annotations

from typing import Unpack

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras import Extra, OverlongShaping
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@METHODS.register(label="DAPO", about="clip-higher, drops uniform groups", arxiv="2503.14476")
@anchored(beta=0.0)
def dapo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual: float | None = 10.0,
    dynamic_sampling: bool = True,
    max_refills: int = 9,
    overlong_buffer: int | None = None,
    max_tokens: int | None = None,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/sum_i |y_i|) sum_i sum_t -max(min(rho A, clip(rho, 1 - low, 1 + high) A), dual min(A, 0)), over kept groups.

    A = (r - mean) / (std + 1e-4) within the group, r = R the verifier's 0 and 1; a group is kept if 0 < #right < G, and
    the others are replaced by groups of other prompts, at most `max_refills` times. With `overlong_buffer`, r = 2 R - 1
    - min(1, max(0, |y| - (max_tokens - buffer)) / buffer), `max_tokens` being the sampling limit. The paper has no KL;
    beta > 0 adds beta * k3(pi, pi_ref) to each token. The dual clip is the recipe's (verl); None leaves it out.
    ConfigError if only one of `overlong_buffer` and `max_tokens` is given.
    """
    return Method(
        "dapo",
        GroupNormalized(),
        Clip(clip_low, clip_high, dual),
        anchor_of(**anchor),
        TokenMean(),
        rollout=DynamicSampling(max_refills) if dynamic_sampling else None,
        extras=_shaping(overlong_buffer, max_tokens),
    )


def _shaping(buffer: int | None, max_tokens: int | None) -> tuple[Extra, ...]:
    if buffer is None and max_tokens is None:
        return ()
    if max_tokens is None:
        raise ConfigError(
            f"dapo: overlong_buffer = {buffer} needs max_tokens, the sampling limit (rollout.max_new_tokens of "
            "a recipe): set both; DAPO has overlong_buffer=4096, max_tokens=20480."
        )
    if buffer is None:
        raise ConfigError(
            f"dapo: max_tokens = {max_tokens} is only used by overlong shaping; also set overlong_buffer, the number "
            "of last tokens over which the penalty rises, or remove max_tokens."
        )
    return (OverlongShaping(max_tokens, buffer),)
