"""Stages of verl's V1 trainer in one process: its own worker with its FSDP2 engine (gloo, one rank), its own `_compute_*` and
`_update_actor`, and a dictionary where TransferQueue would be. No Ray. Needs verl; import after `environment`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl_common import words

from sage_rlvr.core.state import State
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.verl import launch, trainer


class Store:
    """TransferQueue as a dictionary: key -> field -> a row without padding."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, keys: Any, partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        for n, key in enumerate(keys):
            for name, values in () if fields is None else fields.items():
                self.rows.setdefault(key, {})[name] = values[n].clone() if isinstance(values, torch.Tensor) else values[n]
            if tags:
                self.tags[key] = tags[n]
        return self.meta(list(keys))

    def meta(self, keys: list[str]) -> KVBatchMeta:
        return KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id="train", extra_info={})

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: Any = None) -> TensorDict:
        there = self.rows[keys[0]]
        found = {}
        for name in there if select_fields is None else [name for name in select_fields if name in there]:
            values = [self.rows[key][name] for key in keys]
            tensors = isinstance(values[0], torch.Tensor)
            found[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged) if tensors else values
        return tu.get_tensordict(found)


class Workers:
    """verl's worker behind the calls that its worker group has: rows out of the store, results into it."""

    def __init__(self, worker: Any, store: Store) -> None:
        self.worker, self.store = worker, store

    def _data(self, meta: KVBatchMeta) -> TensorDict:
        data = self.store.kv_batch_get(meta.keys, "train")
        for name, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return data

    def compute_log_prob(self, meta: KVBatchMeta) -> KVBatchMeta:
        return self._put(meta, self.worker.compute_log_prob(self._data(meta)))

    def compute_ref_log_prob(self, meta: KVBatchMeta) -> KVBatchMeta:
        found = self._put(meta, self.worker.compute_ref_log_prob(self._data(meta)))
        for key in meta.keys:  # pi_ref as it is, for the tests: the field itself is overwritten
            row = self.store.rows[key]
            row["unshaped"] = row["log_probs"][-len(row["responses"]) - 1 : -1].clone()
        return found

    def _put(self, meta: KVBatchMeta, output: TensorDict) -> KVBatchMeta:
        fields = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
        return self.store.kv_batch_put(meta.keys, "train", fields)

    def update_actor(self, meta: KVBatchMeta) -> TensorDict:
        found = self.worker.update_actor(self._data(meta))
        return {"metrics": tu.get(found, "metrics")}  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:  # calls without rows: those that keep and restore weights
        return getattr(self.worker, name)


def configured(*more: str) -> Any:
    """verl's configuration of a small run, with the `sage` node where `more` has one."""
    tree, rest = launch.split([*words(Path(tempfile.mkdtemp())), *more])
    with initialize_config_dir(launch.CONFIG, version_base=None):
        config = compose("ppo_trainer", overrides=[word for word in rest if not word.startswith("hydra.")])
    if tree:
        launch.prepare(config, tree, [])
    OmegaConf.resolve(config)
    return config


class Stages:
    """The trainer of verl's mode, shaped where the configuration has a sage node, with one worker."""

    def __init__(self, *more: str, total_steps: int = 20) -> None:
        self.config, self.store = configured(*more), Store()
        shaped = "sage" in self.config
        apart = self.config.trainer.v1.trainer_mode == "separate_async"
        plain = PPOTrainerSeparateAsync if apart else PPOTrainerSync
        kind = trainer.sage_trainer(plain) if shaped else plain
        self.trainer: Any = kind.__new__(kind)
        self.trainer.config, self.trainer.total_training_steps = self.config, total_steps
        for name, value in {"use_critic": False, "ref_in_actor": False, "global_steps": 1}.items():
            setattr(self.trainer, name, value)
        self.trainer.ref_in_actor = self.config.actor_rollout_ref.model.lora_rank > 0
        self.trainer.distillation_config = None
        if shaped:
            self.trainer.sage_setup()
        _process_group()
        reads = self.config.actor_rollout_ref.actor.use_kl_loss and not self.trainer.ref_in_actor
        role = "actor_rollout_ref" if reads else "actor_rollout"
        torch.manual_seed(0)
        self.worker = (DetachActorWorker if apart else ActorRolloutRefWorker)(self.config.actor_rollout_ref, role=role)
        self.worker.init_model()
        self.trainer.actor_rollout_wg = self.trainer.ref_policy_wg = Workers(self.worker, self.store)

    @property
    def parts(self) -> State:
        found: State = self.trainer.sage_parts
        return found

    def step(self, groups: Groups, order: list[int] | None = None) -> dict[str, Any]:
        """One step of verl's on given groups, in verl's batch in `order`. The metrics; the store keeps what it was made of."""
        keys = self.put(groups)
        keys = keys if order is None else [keys[n] for n in order]
        batch, metrics = self.store.meta(keys), dict[str, Any]()
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        batch = self.trainer._compute_old_log_prob(batch, metrics)
        if self.config.actor_rollout_ref.actor.use_kl_loss:
            batch = self.trainer._compute_ref_log_prob(batch, metrics)
        batch = self.trainer._compute_advantage(batch, metrics)
        self.trainer._update_actor(batch, metrics)
        self.trainer.global_steps += 1
        return metrics

    def put(self, groups: Groups) -> list[str]:
        """The rows of the groups under verl's keys and fields; the prompts are asked in their order."""
        self.store.rows.clear()
        size, uids = groups.rewards.shape[1], [f"{self.trainer.global_steps}p{n}" for n in range(len(groups.prompts))]
        if hasattr(self.trainer, "_arrival"):
            self.trainer._arrival.update({uid: len(self.trainer._arrival) + n for n, uid in enumerate(uids)})
        keys = [f"{uid}_{member}_0" for uid in uids for member in range(size)]
        for row, key in enumerate(keys):
            prompt = torch.tensor(groups.prompts[row // size])
            response = groups.rollout.tokens[row][groups.rollout.mask[row]]
            ones = torch.ones_like(response)
            scores = torch.zeros(len(response))
            scores[-1] = groups.rewards.flatten()[row]
            ids = torch.cat([prompt, response])
            self.store.rows[key] = {
                **{"prompts": prompt, "responses": response, "input_ids": ids, "position_ids": torch.arange(len(ids))},
                **{"response_mask": ones, "loss_mask": ones, "rm_scores": scores, "uid": key.split("_")[0]},
                "rollout_log_probs": groups.rollout.logps[row][groups.rollout.mask[row]],
                "extra_fields": {"reward_extra_info": {}},  # what verl's agent loop stores of a reward
            }
            self.store.tags[key] = {"seq_len": len(ids)}
        return keys

    def padded(self, field: str) -> torch.Tensor:
        """A field of the batch that was last put, (rows, T), in the order of the groups."""
        found: torch.Tensor = self.store.kv_batch_get(list(self.store.rows), "train", [field])[field]
        return found.to_padded_tensor(0.0)

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's weights, whole."""
        found, _ = self.worker.actor.engine.get_per_tensor_param()
        return {name: value.detach().clone().float() for name, value in found}


def _process_group() -> None:
    if not torch.distributed.is_initialized():
        alone = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ.update({**alone, "WORLD_SIZE": "1", "RAY_LOCAL_WORLD_SIZE": "1"})
        place = f"file://{tempfile.mkdtemp()}/group"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)


def plug(monkeypatch: Any, stages: Stages) -> None:
    """Let verl's and our driver code read this store."""
    monkeypatch.setattr(trainer_base, "tq", stages.store)
    monkeypatch.setattr(trainer, "tq", stages.store)


__all__ = ["Stages", "Store", "configured", "embedded_policy", "plug"]
