"""verl's PPO trainers with log(q pi_ref) instead of log pi_ref in the loss, and with the advantages of this package.

    ref_log_prob <- ref_log_prob + log q(pi_old)         SAGE, arXiv 2605.18864, Eqs. 7 and 38

The five stages are those of training/loop.py:

    collect   `_next_train_batch`: verl samples and judges; prompts are numbered in the order in which they are asked
    score     `_compute_old_log_prob`, `_compute_ref_log_prob`: verl's workers, under the policy and the reference
    shape     `_shape`: log q, into the reference's log-probs, once both are scored
    credit    `_compute_advantage`: the method's advantages, by the estimator `sage` of verl's registry
    update    verl's own loss, which reads both

No line of verl's loss is copied and no forward pass is added. The driver reads what the workers left in TransferQueue (old and
reference log-probs, entropies), writes the reference back once, in float32, and every mini-batch and epoch of the update
reads that: q is fixed by construction. With `Flat` nothing is written. Noise and schedules are functions of sage.seed, of verl's
global step and local update, and of a row's number (`batch.Order`), so a resume needs no state but that of a method's parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
import verl
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.utils.padding import response_to_nested

from sage_rlvr.core.anchor import Anchor, anchor_logps
from sage_rlvr.core.guides import is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import State
from sage_rlvr.errors import refuse
from sage_rlvr.tasks.base import answer_id
from sage_rlvr.training.engines import ESTIMATOR
from sage_rlvr.training.opening import after_first_step
from sage_rlvr.training.verl import INSTALL
from sage_rlvr.training.verl.batch import Order, Shaped, credit_batch, key_of_update, shaped, signals_of, step_metrics
from sage_rlvr.training.verl.judge import Outcomes
from sage_rlvr.training.verl.objective import Objective, SageNode
from sage_rlvr.training.verl.opening import note, open_training
from sage_rlvr.training.verl.state import check_objective, folder_of_step, restore_parts, save_state
from sage_rlvr.training.verl.validation import Settings, Validation
from sage_rlvr.training.verl.warned import tell
from sage_rlvr.training.watch import GuideWatch
from sage_rlvr.verifiers.reasons import ReasonWatch

SEAMS = {
    **{name: ["batch", "metrics"] for name in ("_compute_ref_log_prob", "_compute_old_log_prob", "_compute_advantage")},
    "_next_train_batch": ["num_prompts"],
    "_validate": [],
    "_val_metrics_update": ["data_sources", "sample_uids", "reward_extra_infos_dict"],
    "_save_checkpoint": [],
    "_load_checkpoint": [],
}
FIELDS = ("ref_log_prob", "old_log_probs", "entropy", "response_mask", "rm_scores", "prompts")
Trainer: Any = object  # one of verl's trainers, chosen by `sage_trainer`
Advantages = Callable[[Tensor, Tensor], Tensor]  # token_level_rewards (rows, T), response_mask (rows, T) -> (rows, T)
_now: list[Advantages] = []  # what the estimator computes with while verl asks for advantages


def install() -> None:
    """Replace verl's trainers by shaped ones of the same names (verl compares a mode's name in six places), and register the
    estimator. Called in the process of the task runner."""
    for name, base in list(trainer_base.TRAINER_REGISTRY.items()):
        if not issubclass(base, Shaping):  # a second `install` in one process would shape twice
            trainer_base.TRAINER_REGISTRY[name] = sage_trainer(base)
    if ESTIMATOR not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(ESTIMATOR)(estimator)


def estimator(token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **more: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns (rows, T) of the trainer's current batch, with verl's signature; `RuntimeError` outside of it."""
    if not _now:
        raise RuntimeError(f"algorithm.adv_estimator = {ESTIMATOR} needs the trainer of `python -m sage_rlvr.verl`")
    advantages = _now[-1](token_level_rewards, response_mask) * response_mask
    return advantages, advantages


@contextmanager
def computing(advantages: Advantages) -> Iterator[None]:
    """While verl computes advantages, `estimator` is this function."""
    _now.append(advantages)
    try:
        yield
    finally:
        _now.pop()


def check_layout(base: type) -> None:
    """ConfigError if a trainer of verl is not laid out as those of 0.9."""
    parameters = {name: [*inspect.signature(getattr(base, name)).parameters][1:] for name in SEAMS if hasattr(base, name)}
    other = [name for name, wanted in SEAMS.items() if parameters.get(name, [None])[: len(wanted)] != wanted]
    which = f"verl {verl.__version__}: {base.__name__}.{', '.join(other)}"
    refuse((other, f"{which} is not structured as in 0.9; {INSTALL}"))


def sage_trainer(base: type) -> type:
    """A subclass of one of verl's trainers that shapes; see the module."""
    check_layout(base)
    return type(f"Sage{base.__name__}", (Shaping, base), {"__doc__": Shaping.__doc__})


class Shaping(Trainer):
    """Mixin for verl's trainers that applies the objective of the `sage` config node.

    Invalid ones raise ConfigError at construction.
    """

    sage_objective: Objective

    def __init__(self, config: Any) -> None:
        self.config = config
        self.sage_setup()
        super().__init__(config)

    def sage_setup(self) -> None:
        """Read the objective from `self.config` and start with empty state."""
        tree = OmegaConf.to_container(self.config.sage, resolve=True)
        node, read = SageNode.of(tree), partial(OmegaConf.select, self.config)
        self.sage_objective = Objective.of(tree, read)
        passk = None if node.passk is None else Settings.of(node.passk, node.temperatures, read)
        self.sage_validation = None if passk is None else Validation(passk, note)
        method = self.sage_objective.method
        self.sage_parts: State = {} if method is None else method.start()
        self.sage_watch = GuideWatch(self.sage_objective.anchor, tell)
        limit = "data.max_response_length (rollout.max_new_tokens)"
        self.sage_outcomes = Outcomes(None if node.task is None else Path(node.task), ReasonWatch(tell, limit=limit))
        self._arrival: dict[str, int] = {}
        self._held: tuple[list[str], Order, Signals, Shaped | None] | None = None
        note(self.sage_objective.words)

    def on_train_begin(self) -> None:
        """verl's hook, once its workers hold the model and before step 1: print the setting and the first prompt."""
        open_training(self, lambda key: OmegaConf.select(self.config, key))
        super().on_train_begin()

    def _next_train_batch(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._next_train_batch(*args, **kwargs)
        # Before verl orders the rows by length for its workers: a row's number, and so its noise, must not depend on that order.
        self._arrival.update({uid: len(self._arrival) + n for n, uid in enumerate(batch["uid"])})
        return batch

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_ref_log_prob(batch, metrics)
        if self.sage_objective.anchor is not None:
            self._shape(self.sage_objective.anchor, batch, metrics)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        method, anchor = self.sage_objective.method, self.sage_objective.anchor
        if self.sage_objective.is_verls:
            return super()._compute_advantage(batch, metrics)
        more = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])["extra_fields"]
        rows = [getattr(row, "data", row).get("reward_extra_info", {}) for row in more]
        metrics.update(self.sage_outcomes.see(self.global_steps - 1, rows))
        if self._held is None or self._held[0] != list(batch.keys):
            # A trainer that scores the reference elsewhere never calls `_compute_ref_log_prob`, and would train without the guide.
            if anchor is not None:
                raise RuntimeError(
                    "sage: verl computes advantages of a batch whose reference log-probs were not changed, so the guide "
                    "would have no effect; stopped before an optimizer step"
                )
            self._hold(batch)
        held, self._held = self._held, None  # the next batch is shaped anew, even under the same keys
        assert held is not None
        if method is None:
            metrics.update(step_metrics(held[1], held[2], None, {}))
            return super()._compute_advantage(batch, metrics)
        with computing(lambda rewards, mask: self._credit(method, held[1:], rewards, metrics)):
            return super()._compute_advantage(batch, metrics)

    def _validate(self) -> dict[str, Any]:
        if self.sage_validation is None:
            return super()._validate()  # type: ignore[no-any-return]
        return self.sage_validation.run(self, super()._validate)

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, reward_extra_infos_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.sage_validation is not None:
            self.sage_validation.see(sample_uids, reward_extra_infos_dict)
        return super()._val_metrics_update(data_sources, sample_uids, reward_extra_infos_dict, *args, **kwargs)

    def _save_checkpoint(self) -> None:
        save_state(self, folder_of_step(self.config, self.global_steps))  # before verl names this checkpoint the latest
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            folder = folder_of_step(self.config, self.global_steps)  # known only once verl has read which step it resumes
            check_objective(self.sage_objective, folder)
            restore_parts(self, folder)

    # ---- only ours

    @property
    def _key(self) -> Key:
        """Return the key of the noise of this update: verl's `step` counts its local updates before each."""
        return key_of_update(self.sage_objective.seed, getattr(self, "local_trigger_step", 0))

    def _hold(self, batch: Any) -> tuple[Order, Signals, TensorDict]:
        """Read the batch, and keep it for the advantages. The last is verl's own, not padded."""
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        order = Order.of(batch.keys, batch.tags, self._arrival)
        wanted = "problems" in self.sage_objective.needs
        problems = torch.tensor([answer_id(repr(row.tolist())) for row in fields["prompts"].unbind()]) if wanted else None
        padded = fields.select(*(name for name in FIELDS if name in fields and name != "prompts")).to_padded_tensor()
        signals = signals_of(order, dict(padded.items()), problems)
        self._held = (list(batch.keys), order, signals, None)
        return order, signals, fields

    def _shape(self, anchor: Anchor, batch: Any, metrics: dict[str, Any]) -> None:
        """Overwrite ref_log_prob in TransferQueue; with Flat only measure."""
        order, signals, own = self._hold(batch)
        made = shaped(anchor, signals, self.global_steps - 1, self.total_training_steps, self._key)
        self._held = (list(batch.keys), order, signals, made)
        if not is_flat(anchor.guide):
            # In float32, whatever the workers computed in: log q is small compared with log pi_ref.
            reference = order.back(anchor_logps(signals.require("ref_logps", "the anchor"), made.log_q))
            nested = response_to_nested(reference, own["response_mask"])
            fields = TensorDict({"ref_log_prob": nested}, batch_size=len(batch))
            tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        self.sage_watch.see(self.global_steps - 1, made.metrics)
        if self.global_steps == 1:
            after_first_step(note, anchor, made.metrics)
        metrics.update(made.metrics)

    def _credit(
        self, method: Method, held: tuple[Order, Signals, Shaped | None], rewards: Tensor, metrics: dict[str, Any]
    ) -> Tensor:
        order, signals, made = held
        credited = credit_batch(
            method,
            order,
            order.take(rewards).float().sum(dim=1),
            signals,
            None if made is None else made.log_q,
            self.global_steps - 1,
            self.total_training_steps,
            self._key,
            self.sage_parts,
        )
        self.sage_parts = credited.state
        metrics.update(step_metrics(order, signals, credited.advantages, credited.state))
        return order.back(credited.advantages)


__all__ = ["SEAMS", "check_layout", "estimator", "install", "sage_trainer"]
