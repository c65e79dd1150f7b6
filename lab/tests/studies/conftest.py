"""The tiny policy, loaded once for each file."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from sage_rlvr.models.policy import Tokens, load_policy


@pytest.fixture(scope="module")
def tiny(tiny_policy: Path) -> tuple[PreTrainedModel, Tokens]:
    return load_policy(str(tiny_policy))
