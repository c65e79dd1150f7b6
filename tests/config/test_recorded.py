"""Configurations that an earlier version has recorded in run.json."""

from __future__ import annotations

from typing import Any

import pytest

from sage_rlvr.config import TrainConfig, decode, decode_recorded, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.runs import config_differences


def recorded(**keys: Any) -> dict[str, Any]:
    """A run of `compose` as it was recorded when methods had other slots."""
    config = dump(decode(TrainConfig, {"steps": 1, "method": {"name": "compose", "title": "old"}}))
    return {**config, "method": {**config["method"], **keys}}


def test_keys_that_are_gone_are_ignored_where_they_are_null() -> None:
    old = recorded(loss_term=None, reward_transform=None)
    assert decode_recorded(TrainConfig, old) == decode(TrainConfig, recorded())
    assert old["method"]["loss_term"] is None and "reward_transform" in old["method"]  # as it was
    with pytest.raises(ConfigError, match="loss_term"):
        decode(TrainConfig, old)


def test_a_key_that_is_gone_and_was_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.loss_term = 'entropy'"):
        decode_recorded(TrainConfig, recorded(loss_term="entropy", reward_transform=None))


def test_null_and_absent_are_the_same_setting() -> None:
    assert config_differences(recorded(loss_term=None), recorded()) == {}
    assert config_differences(recorded(), recorded(loss_term=None)) == {}
    assert config_differences(recorded(loss_term="entropy"), recorded()) == {"method.loss_term": ("entropy", "(absent)")}
    assert config_differences({"a": None}, {"a": 0}) == {"a": (None, 0)}
