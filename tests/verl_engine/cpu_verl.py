"""What verl needs on a machine without an accelerator, for the tests alone: a platform and a rollout. Loaded by
VERL_USE_EXTERNAL_MODULES=cpu_verl in every process of a run; nothing of verl is changed but what is registered.

    platform   device cpu, gloo; Ray's logical GPUs count the workers
    rollout    a Ray actor per replica with the policy in memory, weights copied into it at every sync; it samples by this
               package's sampler, keyed by (weights' version, prompt, number of the completion), or plays a file back
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp

torch.distributed.fsdp.CPUOffloadPolicy = lambda pin_memory=True: None  # which pins memory; the weights are where they belong
torch.set_num_threads(1)


def _one_gloo(init: Any) -> Any:
    """verl asks for "cpu:gloo,{device}:{backend}", which names the CPU twice here."""

    def init_process_group(backend: Any = None, **more: Any) -> Any:
        return init(backend="gloo" if backend == "cpu:gloo,cpu:gloo" else backend, **more)

    return init_process_group


torch.distributed.init_process_group = _one_gloo(torch.distributed.init_process_group)

from verl.plugin.platform import PlatformBase, PlatformRegistry  # noqa: E402


class _Device(ModuleType):
    """torch.cpu, and 0 or nothing for what it lacks beside torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = {"mem_get_info": (1 << 34, 1 << 34), "get_device_name": "CPU"}
        if name in known:
            return lambda *args: known[name]
        return getattr(torch.cpu, name, None) or (lambda *args, **kwargs: 0)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("cpu")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def manual_seed(self, seed: int) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


class Counter:
    """How many completions of a prompt all replicas have given under a version of the weights, as a Ray actor."""

    def __init__(self) -> None:
        self.given: dict[Any, int] = defaultdict(int)

    def take(self, version: int, prompt: tuple[int, ...]) -> int:
        self.given[version, prompt] += 1
        return self.given[version, prompt] - 1


class CpuServer:
    """The policy of one replica, as a Ray actor. REPLAY names a file {version: {prompt ids: [completion ids, ...]}}."""

    def __init__(self, path: str, config: Any) -> None:
        import ray

        from sage_rlvr.models.policy import load_policy

        torch.set_num_threads(1)
        self.model, self.tokens = load_policy(path)
        self.model.eval()
        self.base = copy.deepcopy(self.model)
        self.n, self.version, self.config = config.n, 0, config
        replay = os.environ.get("SAGE_TEST_REPLAY")
        self.replay = json.loads(Path(replay).read_text()) if replay else None
        self.drawn: dict[Any, list[Any]] = {}
        self.counter = ray.remote(Counter).options(name="cpu_counter", get_if_exists=True, num_cpus=0).remote()

    async def load(self, weights: dict[str, torch.Tensor], version: int | None, adapter: dict[str, Any] | None) -> None:
        """Whole weights, or those of an adapter, merged into the model that the replica was started with."""
        if adapter is not None:
            from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

            whole = get_peft_model(copy.deepcopy(self.base), LoraConfig(**{**adapter, "inference_mode": True}))
            set_peft_model_state_dict(whole, weights)
            weights = whole.merge_and_unload().state_dict()
        missing = self.model.load_state_dict(weights, strict=False)
        assert not missing.unexpected_keys, missing
        self.version = version or 0
        self.drawn.clear()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        prompt, version = tuple(int(i) for i in prompt_ids), self.version
        number = await self.counter.take.remote(version, prompt)
        if self.replay is not None:
            ids = self.replay[str(version)][" ".join(map(str, prompt))][number]
            logps = [0.0] * len(ids)
        else:
            block, place = divmod(number, self.n)
            if (prompt, block) not in self.drawn:
                self.drawn[prompt, block] = self.sampled(prompt, block, sampling_params)
            ids, logps = self.drawn[prompt, block][place]
        said = {"global_steps": version}
        reason = "completed" if ids and ids[-1] in self.tokens.eos_ids else "length"
        return TokenOutput(token_ids=ids, log_probs=logps, stop_reason=reason, extra_fields=said)

    def sampled(self, prompt: tuple[int, ...], block: int, params: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
        from sage_rlvr.core.keys import Key
        from sage_rlvr.models.sampler import sample

        number = int.from_bytes(hashlib.sha256(repr(prompt).encode()).digest()[:4], "big")
        found = sample(
            self.model,
            [list(prompt)],
            group_size=self.n,
            max_new_tokens=self.config.response_length,
            eos_id=self.tokens.eos_ids,
            pad_id=self.tokens.pad_id,
            key=Key(0),
            step=self.version,
            temperature=max(params.get("temperature", 1.0), 1e-3),
            row_ids=number * 1000 + block * self.n + torch.arange(self.n),
            entropies=False,
        )
        return [
            (row[mask].tolist(), logps[mask].tolist())
            for row, logps, mask in zip(found.tokens, found.logps, found.mask, strict=True)
        ]

    async def wake_up(self, **more: Any) -> None: ...
    async def sleep(self, **more: Any) -> None: ...
    async def abort_all_requests(self, **more: Any) -> None: ...
    async def resume_generation(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **more: Any) -> None: ...
    async def stop_profile(self) -> None: ...


def _replica() -> Any:
    """The class of a replica: it starts one server. Made late: what it stands on imports half of verl."""
    import ray
    from verl.workers.rollout.replica import RolloutReplica

    class CpuReplica(RolloutReplica):
        async def launch_servers(self) -> None:
            name = f"cpu_server_{self.replica_rank}"
            server = ray.remote(CpuServer).options(name=name, num_cpus=0, max_concurrency=64)
            self._server_handle = server.remote(self.model_config.path, self.config)
            self._server_address, self.servers = name, [self._server_handle]

    return CpuReplica


class CpuRollout:
    """In the training worker: hands the weights to the replica of this rank. See `BaseRollout`."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **more: Any) -> None:
        self.config, self.rank = config, int(os.environ["RANK"])

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, peft_config: Any = None, base_sync_done: bool = True, global_steps: int | None = None
    ) -> None:
        import ray

        given = {name: value.detach().clone().cpu() for name, value in weights}
        if base_sync_done:  # else the base under an adapter, which the replica has
            await ray.get_actor(f"cpu_server_{self.rank}").load.remote(given, global_steps, peft_config)


def _copying(save: Any) -> Any:
    """verl keeps weights by `.cpu()`, which copies nothing where they are on a CPU: they would move with those that are trained."""

    def saved(model: Any) -> Any:
        state, spec = save(model)
        return {name: (value.clone(), own) for name, (value, own) in state.items()}, spec

    return saved


def _register() -> None:
    from verl.utils import fsdp_utils
    from verl.workers.rollout import base, replica

    fsdp_utils.fsdp2_sharded_save_to_cpu = _copying(fsdp_utils.fsdp2_sharded_save_to_cpu)
    base._ROLLOUT_REGISTRY[("cpu", "async")] = "cpu_verl.CpuRollout"
    replica.RolloutReplicaRegistry.register("cpu", _replica)


_register()
