"""Names of a metric in each program: one table per program, short name -> its names, of which the first existing one counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

OURS: dict[str, tuple[str, ...]] = {
    "reward": ("reward/mean",),
    "unmixed": ("reward/zero_variance_frac",),
    "entropy": ("policy/entropy",),
    "kl": ("kl/to_reference",),
    "length": ("completions/length_mean",),
    "cut": ("completions/unfinished_frac",),
    "clip": ("surrogate/clipped_frac",),
    "grad_norm": ("optimizer/grad_norm",),
    "gap": ("sampler/logp_gap_mean",),
    "held_out": ("eval_passk/pass@1",),
    "lr": ("optimizer/lr",),
    "loss": ("loss",),
    "no_answer": ("verifier/no_answer_frac",),
    "undecided": ("verifier/undecided_frac",),
    "changed": ("optimizer/changed_frac",),
    "missing_groups": ("rollout/missing_groups_frac",),
}
TRL: dict[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "unmixed": ("frac_reward_zero_std",),
    "entropy": ("entropy",),
    "kl": ("kl", "kl/to_reference"),
    "length": ("completions/mean_length", "completion_length"),
    "cut": ("completions/clipped_ratio",),
    "clip": ("clip_ratio/region_mean", "clip_ratio"),
    "grad_norm": ("grad_norm",),
    "gap": ("sampling/sampling_logp_difference/mean",),
    "held_out": ("eval_passk/pass@1", "eval_reward", "eval/reward"),
    "lr": ("learning_rate",),
    "loss": ("loss",),
    "no_answer": ("verifier/no_answer_frac",),
    "undecided": ("verifier/undecided_frac",),
}
VERL: dict[str, tuple[str, ...]] = {
    "reward": ("critic/score/mean", "critic/rewards/mean", "reward/mean"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "policy/entropy"),
    "kl": ("kl/to_reference", "actor/kl_loss", "actor/reward_kl_penalty"),
    "length": ("response_length/mean", "response_length_non_aborted/mean"),
    "cut": ("response_length/clip_ratio", "response_length_non_aborted/clip_ratio"),
    "clip": ("actor/pg_clipfrac",),
    "grad_norm": ("actor/grad_norm",),
    "gap": ("rollout_corr/log_ppl_abs_diff", "rollout_corr/kl", "training/rollout_probs_diff_mean"),
    "lr": ("actor/lr",),
    "loss": ("actor/loss", "actor/pg_loss"),
    "beta": ("actor/kl_coef",),
    "draws": ("num_gen_batches", "train/num_gen_batches"),
    "reward_min": ("critic/score/min",),
    "reward_max": ("critic/score/max",),
    "advantage_min": ("critic/advantages/min",),
    "advantage_max": ("critic/advantages/max",),
}
PROGRAMS: dict[str, dict[str, tuple[str, ...]]] = {"sage-rlvr": OURS, "TRL": TRL, "verl": VERL}
HELD_OUT = re.compile(r"val-core/.+/mean@\d+$|val/test_score/.+")
"""Names of verl's validation scores, which contain the data set's."""
COMPONENT = re.compile(r"rewards/(?P<name>[^/]+)/mean$|rewards/(?P<old>[^/]+)$")
"""TRL's mean of one of several reward functions."""
_PREFIX = re.compile(r"^(?:.* - )?(?:train/)?")


def bare(name: str) -> str:
    """A metric without the prefixes of trackers: the run's name (wandb's CSV) and "train/"."""
    return _PREFIX.sub("", name.strip(), count=1)


def program_of(names: Mapping[str, object] | set[str]) -> str | None:
    """The program with these names; None if no table has two of them."""
    known = {}
    for program, table in PROGRAMS.items():
        known[program] = sum(any(one in names for one in options) for options in table.values())
    best = max(known, key=lambda program: known[program])
    return best if known[best] >= 2 else None


__all__ = ["COMPONENT", "HELD_OUT", "PROGRAMS", "bare", "program_of"]
