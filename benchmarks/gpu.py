"""The loop on one CUDA device, in at most nine minutes: what it is, whether it is right, how fast it is, and a run of training.

    python benchmarks/gpu.py                              on a machine with torch and transformers; nothing is downloaded
    python benchmarks/gpu.py --device cpu --tiny          what a test runs where there is no GPU

1. the device, its rate of bfloat16 products and of copies; 2. log-probs, entropies and one update in float32 against those of
the CPU; 3. W1 and W2 of benchmarks/real.py, seconds and memory, against Hugging Face and, where it is installed or among the
wheels, TRL's GRPOTrainer and SageTrainer; 4. a training curve of the shipped policy on Countdown. A part for which too little
time is left is left out with a line. The last line is JSON, and the exit code 1 where part 2 found the device wrong.

`make .gpu-wheels/.downloaded` puts the wheels that such a machine lacks into .gpu-wheels, for Python 3.12 on Linux; they are
installed into a temporary folder, so that the machine's own packages stay as they are.

No machine with a GPU was there when this was written: it was run with --device cpu only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
ROOT = HERE.parent
MOST_GAP, LEAST_COSINE = 1e-4, 1 - 1e-6
"""Nats between log-probs of the two devices in float32; cosine of the gradients of one parameter."""


class Budget:
    """Minutes of the whole script."""

    def __init__(self, minutes: float) -> None:
        self.end = time.perf_counter() + 60 * minutes

    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()

    def allows(self, what: str, seconds: float) -> bool:
        """Whether so much is left; else a line says that `what` is left out."""
        if self.left() < seconds:
            print(f"{what}: left out, {self.left():.0f} s are left and it may take {seconds:.0f}", flush=True)
        return self.left() >= seconds


@contextmanager
def wheels(folder: Path) -> Iterator[None]:
    """The wheels of a folder importable here and in the processes that this one starts, besides the package's source."""
    with tempfile.TemporaryDirectory() as site:
        if files := sorted(folder.glob("*.whl")):
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-index",
                "--no-deps",
                "--no-compile",
                "--target",
                site,
            ]
            subprocess.run([*command, *map(str, files)], check=True)
        paths = [site, str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.path[:0] = paths[:2]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        yield


def device_lines(device: str) -> None:
    """What there is, and the two rates that bound everything."""
    import real_work
    import torch
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, Python {sys.version.split()[0]}")
    rate = real_work.product_rate(os.cpu_count() or 1, device, 1.0)
    if device == "cpu":
        print(f"no GPU: device cpu, bfloat16 products {rate / 1e9:.0f} GFLOP/s")
        return
    found = torch.cuda.get_device_properties(0)
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    copied = 2 * source.nbytes / min(seconds)
    print(
        f"{found.name}, {found.total_memory / 2**30:.0f} GiB, {found.multi_processor_count} multiprocessors; bfloat16 products "
        f"{rate / 1e12:.0f} TFLOP/s, copies {copied / 1e12:.2f} TB/s read and written"
    )


# --- correctness --------------------------------------------------------------------------------------------------------


def make_loop(folder: Path, prompts: list[list[int]], device: str) -> Any:
    """A float32 loop on a device."""
    from real_task import Numbers, Row
    from real_work import as_text

    from sage_rlvr.config import TrainConfig, decode
    from sage_rlvr.training.loop import build

    rollout = {"prompts_per_step": len(prompts), "group_size": 4, "max_new_tokens": 16}
    tree = {"steps": 10, "model": str(folder), "method": {"name": "grpo", "beta": 0.04}, "rollout": rollout}
    tree |= {"engine": {"device": device, "threads": None}, "optimizer": {"lr": 1e-4}}
    task = Numbers(tuple(Row(str(n), as_text(ids)) for n, ids in enumerate(prompts)))
    return build(replace(decode(TrainConfig, tree), task=task))


def correctness(folder: Path, prompts: list[list[int]], device: str) -> dict[str, float]:
    """The update of the CPU, and the same rollout's on the device: largest gap of log-probs and entropies, worst cosine of a
    parameter's gradient, largest gap of a weight after the update."""
    import torch

    from sage_rlvr.models.sampler import Rollout
    from sage_rlvr.training import rollouts
    from sage_rlvr.training.loop import train_step

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ours, theirs = make_loop(folder, prompts, "cpu"), make_loop(folder, prompts, device)
    own, rollout = (draws_of(loop) for loop in (theirs, ours))
    scored = [scores_of(loop, prompts, rollout) for loop in (ours, theirs)]

    def repeated(*_: Any, **__: Any) -> Rollout:
        """The CPU's completions: draws of two devices differ where a uniform number falls within rounding."""
        return Rollout(**{n: v.to(device) if torch.is_tensor(v) else v for n, v in vars(rollout).items()})

    train_step(ours, 0)
    with patch.object(rollouts, "sample", repeated):
        train_step(theirs, 0)
    moments, others = ours.optimizer.tensors(), theirs.optimizer.tensors()
    cosines = [cosine(value, others[name].cpu()) for name, value in moments.items() if name.endswith("/exp_avg")]
    weights = dict(theirs.policy.named_parameters())
    return {
        "logp_gap": gap(scored[0].logps, scored[1].logps),
        "entropy_gap": gap(scored[0].entropies, scored[1].entropies),
        "gradient_cosine": min(cosines),
        "weight_gap": max(gap(weight, weights[name]) for name, weight in ours.policy.named_parameters()),
        "same_draws_frac": float((own.tokens.cpu() == rollout.tokens).float().mean()),
    }


def scores_of(loop: Any, prompts: list[list[int]], rollout: Any) -> Any:
    """A rollout of step 0 under a loop's policy, on its device."""
    import torch

    from sage_rlvr.models.scoring import score
    from sage_rlvr.training.rollouts import problems_of_step

    where = next(loop.policy.parameters()).device
    asked = [prompts[int(row.problem_id)] for row in problems_of_step(loop, 0, 0, len(prompts))]
    owners = torch.arange(len(asked), device=where).repeat_interleave(4)
    with torch.no_grad():
        return score(loop.policy, asked, rollout.tokens.to(where), rollout.mask.to(where), owners, entropies=True)


def draws_of(loop: Any) -> Any:
    """The rollout of step 0 as the loop draws it."""
    from sage_rlvr.training.samplers import sampler_of

    return sampler_of(loop.method).draw(loop, 0).first_stage.rollout


def gap(a: Any, b: Any) -> float:
    return float((a.detach().float().cpu() - b.detach().float().cpu()).abs().max())


def cosine(a: Any, b: Any) -> float:
    """In float64; two zeros agree."""
    a, b = a.flatten().double(), b.flatten().double()
    scale = float(a.norm() * b.norm())
    return 1.0 if scale == 0 and float((a - b).norm()) == 0 else float(a @ b) / scale


# --- speed --------------------------------------------------------------------------------------------------------------


def steps(folder: Path, device: str, tiny: bool, budget: Budget) -> dict[str, float | None]:
    """W1 and W2, all arms that are there; seconds of others over ours."""
    import real
    import real_work

    shape, ratios = real_work.shape_of(folder), {}
    options = real.Options(device=device, threads=os.cpu_count() or 1, repeats=1 if tiny else 4, warm=0 if tiny else 1)
    for name in ("w1",) if tiny else ("w1", "w2"):
        if not budget.allows(name, 5 if tiny else 100):
            continue
        workload = real_work.WORKLOADS[name]
        workload = real_work.small(workload) if tiny else replace(workload, micro=workload.rows)
        arms = [arm for arm in real.STEP_ARMS if importlib.util.find_spec("trl") or arm not in ("trl", "sage")]
        print(f"\n{name}", flush=True)
        found = real.run(workload, arms, folder, shape, options)
        real.table(workload, found, shape)
        for other in ("textbook", "trl", "sage"):
            ratios[f"{other}_{name}"] = real.ratio({name: found}, name, other, "ours")
    return ratios


# --- training -----------------------------------------------------------------------------------------------------------


def curve(device: str, tiny: bool, seconds: float) -> list[float]:
    """Mean rewards of the shipped policy's steps on Countdown under SAGE-Branch (recipes/countdown), printed by fives."""
    from sage_rlvr.config import TrainConfig, decode
    from sage_rlvr.training.loop import build, train_step

    count, size = (5, 2) if tiny else (100, 16)
    guided = {"name": "sage", "base": {"name": "grpo", "beta": 0.05}, "guide": {"name": "branch"}}
    world = {"counts": {4: 1.0}, "max_number": 9, "max_target": 20, "targets": "expression", "train_problems": 6000}
    tree = {"steps": count, "method": guided, "world": world, "optimizer": {"lr": 1e-4}}
    tree |= {"engine": {"device": device, "threads": None}}
    tree |= {"rollout": {"prompts_per_step": size, "group_size": size, "max_new_tokens": 24}}
    loop, rewards, began = build(decode(TrainConfig, tree)), [], time.perf_counter()
    for step in range(count):
        metrics = train_step(loop, step)
        rewards.append(metrics["reward/mean"])
        if len(rewards) % 5 == 0:
            last = sum(rewards[-5:]) / 5
            print(f"  steps {step - 3:>4} to {step + 1:>4}  reward {last:.3f}  {'#' * round(50 * last)}", flush=True)
        if time.perf_counter() - began > seconds:
            break
    print(f"  {len(rewards)} steps in {time.perf_counter() - began:.1f} s")
    return rewards


# --- the whole ----------------------------------------------------------------------------------------------------------


def guarded(what: str, work: Callable[[], Any]) -> Any:
    """A part that fails does not take the others' results with it."""
    try:
        return work()
    except Exception as error:
        print(f"{what}: FAILED, {type(error).__name__}: {error}", flush=True)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a model and batches that take seconds")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole script")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels", help="folder of wheels to import from")
    options = parser.parse_args()
    budget = Budget(options.minutes)
    with wheels(options.wheels), tempfile.TemporaryDirectory() as temporary:
        import real_work
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if options.device == "cuda" and not torch.cuda.is_available():
            print("no CUDA device is available to torch; pass --device cpu --tiny to see whether the script runs")
            return 1
        print(f"\n1. device, {budget.left():.0f} s left", flush=True)
        guarded("device", lambda: device_lines(options.device))
        shape = real_work.TINY if options.tiny else real_work.SMOLLM2
        few, whole = Path(temporary) / "few", Path(temporary) / "whole"
        real_work.write_model(few, shape if options.tiny else replace(shape, layers=6))
        real_work.write_model(whole, shape)
        prompts = real_work.small(real_work.WORKLOADS["w1"]).ids(shape.words)
        print(f"\n2. correctness in float32, {budget.left():.0f} s left", flush=True)
        found: dict[str, Any] = guarded("correctness", lambda: correctness(few, prompts, options.device)) or {}
        print("  " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
        right = found.get("logp_gap", 1.0) <= MOST_GAP and found.get("gradient_cosine", 0.0) >= LEAST_COSINE
        print(
            f"  log-probs within {MOST_GAP:g} nats, cosine of gradients at least 1 - 1e-6: {'yes' if right else 'NO'}"
        )
        print(f"\n3. speed, {budget.left():.0f} s left", flush=True)
        ratios = guarded("speed", lambda: steps(whole, options.device, options.tiny, budget)) or {}
        print(f"\n4. training, {budget.left():.0f} s left", flush=True)
        rewards: list[float] = []
        if budget.allows("training", 20):
            rewards = (
                guarded("training", lambda: curve(options.device, options.tiny, min(90, budget.left() - 10))) or []
            )
        if len(rewards) >= 5:
            found |= {"reward_first": sum(rewards[:5]) / 5, "reward_last": sum(rewards[-5:]) / 5}
        print(
            json.dumps({"right": right} | {n: None if v is None else round(v, 7) for n, v in (found | ratios).items()})
        )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
