"""TRL's metrics under this package's names too, so that one dashboard reads runs of every engine."""

from __future__ import annotations

from collections.abc import MutableMapping

# Ours -> TRL's, where both mean the same number. TRL's own names stay.
NAMES = {
    "reward/mean": "reward",
    "reward/dead_group_share": "frac_reward_zero_std",
    "policy/entropy": "entropy",
    "surrogate/clipped_share": "clip_ratio/region_mean",
    "verifier/undecided_share": "verifier/undecided",
}

# Likewise, of what transformers' trainer adds to a line of the log.
LOGGED = {"optimizer/grad_norm": "grad_norm", "optimizer/lr": "learning_rate", "policy/entropy": "entropy"}


def add_names(collected: MutableMapping[str, list[float]]) -> None:
    """Put TRL's collected values of one logging interval under our names as well; a name that is there stays."""
    for ours, theirs in NAMES.items():
        if ours not in collected and theirs in collected:
            collected[ours] = list(collected[theirs])


def renamed(logs: dict[str, float]) -> dict[str, float]:
    """A line of the log with our names beside those of transformers."""
    return logs | {ours: logs[theirs] for ours, theirs in LOGGED.items() if theirs in logs}
