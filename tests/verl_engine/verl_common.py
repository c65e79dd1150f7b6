"""What the tests of the verl adapter share: the environment of a run on a CPU, and verl's words for a small one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sage_rlvr.models.folders import embedded_policy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REPEATED = "'{% for m in messages %}{{ m.content }}{% endfor %}'"
FP32 = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"


def environment() -> dict[str, str]:
    """Variables under which verl runs here: the plug-ins of cpu_verl.py, one thread a process, nothing downloaded."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HERE)]),
        "VERL_USE_EXTERNAL_MODULES": "cpu_verl",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # under which the FSDP engine is registered
        **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")},
        **{name: "0" for name in ("RAY_USAGE_STATS_ENABLED", "RAY_DEDUP_LOGS", "RAY_ENABLE_UV_RUN_RUNTIME_ENV")},
        **{f"RAY_{name}": "0" for name in ("enable_worker_prestart", "prestart_worker_first_driver")},  # 8 idle imports of torch
        "RAY_worker_niceness": "0",  # 15 where it is not set: on a busy machine nothing would move
        "RAY_AUTH_MODE": "disabled",  # else Ray leaves a token in the home folder, which the next cluster asks for
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_LOGGING_LEVEL": "WARN",
    }


def words(folder: Path, workers: int = 1, prompts: int = 4, group: int = 8, steps: int = 4) -> list[str]:
    """verl's words for a small run of the shipped policy, plain verl's as they stand."""
    actor, rollout, ref = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    rows = prompts * group // workers
    return [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/train.parquet",
        f"data.train_batch_size={prompts}",
        "data.max_prompt_length=32",
        "data.max_response_length=24",
        "data.shuffle=false",
        "data.dataloader_num_workers=0",
        "data.filter_overlong_prompts=false",
        f"actor_rollout_ref.model.path={embedded_policy()}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"actor_rollout_ref.model.custom_chat_template={REPEATED}",
        f"{actor}.strategy=fsdp2",
        *(f"{part}.use_torch_compile=false" for part in (actor, ref)),
        *(f"{part}.fsdp_config.use_torch_compile=false" for part in (actor, ref)),
        *(f"+{part}.fsdp_config.mixed_precision={FP32}" for part in (actor, ref)),
        f"{actor}.ppo_mini_batch_size={prompts}",
        f"{actor}.ppo_micro_batch_size_per_gpu={rows}",
        f"{actor}.optim.lr=1e-4",
        f"{actor}.optim.weight_decay=0.0",
        f"+{actor}.optim.override_optimizer_config.eps=1e-6",
        f"{rollout}.name=cpu",
        f"{rollout}.n={group}",
        f"{rollout}.tensor_model_parallel_size=1",
        *(f"{part}.log_prob_micro_batch_size_per_gpu={rows}" for part in (rollout, ref)),
        f"{rollout}.agent.num_workers=1",
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={workers}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1000",
        "trainer.logger=[file]",
        "trainer.val_before_train=false",
        f"trainer.default_local_dir={folder}/verl",
        "reward.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=8",
        f"+ray_kwargs.ray_init.num_gpus={workers}",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.address=local",
        f"hydra.run.dir={folder}/hydra",
        "hydra.output_subdir=null",
    ]


def on_cluster(words: list[str], address: str) -> list[str]:
    """The words of a run with two workers, as one worker on each of two machines of a Ray cluster that already runs."""
    kept = [word for word in words if "ray_init" not in word and "trainer.n_gpus_per_node" not in word]
    return [*kept, "trainer.n_gpus_per_node=1", "trainer.nnodes=2", f"+ray_kwargs.ray_init.address={address}"]


@contextlib.contextmanager
def cluster(folder: Path, machines: int = 2) -> Iterator[str]:
    """The address of a Ray cluster of so many `ray start` on this machine, whose processes know nothing of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    head = ["--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false"]
    head.append(f"--temp-dir={tempfile.mkdtemp(prefix='ray', dir='/tmp')}")
    sizes = ["--num-cpus=4", "--num-gpus=1", "--object-store-memory=200000000", "--min-worker-port=0", "--max-worker-port=0"]
    processes = []
    try:
        for number in range(machines):
            where, said = [f"--address={address}"] if number else head, folder / f"ray-{number}.txt"
            with open(said, "wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where, *sizes],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **environment()},
                        start_new_session=True,
                    )
                )
            until = time.monotonic() + 300
            while "Ray runtime started" not in (text := said.read_text(errors="replace")):
                assert processes[-1].poll() is None and time.monotonic() < until, text[-3000:]
                time.sleep(0.2)
        yield address
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def started(
    words: list[str], said: Path, log: Path, module: str = "sage_rlvr.verl", **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """verl in a process group of its own, in the folder of the file `said`, which takes its output; log: the file of its metrics.

    At the end no process of its session is left: Ray's, too, are children of the group's."""
    place = {"VERL_FILE_LOGGER_PATH": str(log), "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray", dir="/tmp")}
    with open(said, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=said.parent,
            env={**os.environ, **environment(), **place, **more},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def launched(words: list[str], folder: Path, module: str = "sage_rlvr.verl", timeout: float = 900, **more: str) -> str:
    """Run verl to its end; what it said. AssertionError with its last lines where it failed."""
    said = folder / "said.txt"
    with started(words, said, folder / "file.jsonl", module, **more) as process:
        code = process.wait(timeout)
    text = said.read_text(errors="replace")
    assert code == 0, text[-6000:]
    return text
