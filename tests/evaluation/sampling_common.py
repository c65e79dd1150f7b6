"""What the tests of an evaluation by samples share."""

from __future__ import annotations

from pathlib import Path

from sage_rlvr.evaluation.sample_run import SampleRun


def sample_run(policy: str, model: str, most: int = 8) -> SampleRun:
    unused = Path("unused")
    return SampleRun(
        max_new_tokens=most, generator="sampler", dtype="float32", policy=policy, model=model, store=unused
    )
