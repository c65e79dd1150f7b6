"""The loop on one CUDA device, in at most nine minutes: whether it is right, what it is, how fast it is, and a run of training.

    python benchmarks/gpu.py                              on a machine with torch and transformers; nothing is downloaded
    python benchmarks/gpu.py --device cpu --tiny          the script where there is no GPU
    python benchmarks/gpu.py --device paper --tiny        the same on tensors of the CPU that refuse what a GPU refuses

1. log-probs, entropies and one update in float32 against those of the CPU; 2. the device, its rate of bfloat16 products and of
copies; 3. W1 and W2 of benchmarks/real.py, seconds and memory, against Hugging Face and, where it is installed or among the wheels,
TRL's GRPOTrainer and SageTrainer; 4. a training curve of the shipped policy on Countdown.

A part is a process of its own, which is ended after its time (`PARTS`), as is an arm of part 3 that does not answer: what hangs or
breaks the device takes nothing else with it. --out has the results so far, rewritten after each part and after each round of turns
of part 3. The last line is the same JSON; the exit code is 1 if part 1 found the device wrong or has no answer.

`make .gpu-wheels/.downloaded` puts the wheels that such a machine lacks into .gpu-wheels, for Python 3.12 on Linux; they are
installed into a temporary folder, so that the machine's own packages stay as they are.

No machine with a GPU was there when this was written: it was run with --device cpu and --device paper only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
ROOT = HERE.parent
MOST_GAP, LEAST_COSINE = 1e-4, 1 - 1e-6
"""Nats between log-probs of the two devices in float32; cosine of the gradients of one parameter."""


PARTS = {"correctness": 120.0, "device": 60.0, "w1": 150.0, "w2": 150.0, "training": 120.0}
"""Seconds after which a part is ended, in the order in which they run."""
LEAST = 20.0
"""A part is left out if fewer seconds remain."""
PATIENCE = 60.0
"""Seconds in which an arm of W1 and W2 must load, and make a turn."""
WITHOUT_GPU = 10
"""Factor on these limits elsewhere than on CUDA, where nothing is lent and other work may run beside."""


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
    rate = real_work.product_rate(os.cpu_count() or 1, "cuda" if device == "cuda" else "cpu", 1.0)
    if device != "cuda":
        print(f"no GPU: device {device}, bfloat16 products {rate / 1e9:.0f} GFLOP/s")
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
    tree |= {"engine": {"device": named(device), "threads": None}, "optimizer": {"lr": 1e-4}}
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
    counted: dict[str, float] = {}
    with counting(device, counted), patch.object(rollouts, "sample", repeated):
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
    } | counted


def named(device: str) -> str:
    """The name of a device in a recipe: on paper that of CUDA, in whose place it stands."""
    return "cuda" if device == "paper" else device


@contextmanager
def counting(device: str, found: dict[str, float]) -> Iterator[None]:
    """On paper, the operations of the block and those for which a GPU would wait, by the names of `paper_device.SEEN`."""
    if device != "paper":
        yield
        return
    from paper_device import SEEN

    before = SEEN.copy()
    yield
    found |= {f"update_{name.replace(' ', '_')}": float(count - before[name]) for name, count in SEEN.items()}


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


def steps(name: str, folder: Path, device: str, tiny: bool, out: Path) -> dict[str, float | None]:
    """A workload with all arms that are there; seconds of others over ours, rewritten in `out` after each round of turns."""
    import real
    import real_work

    shape = real_work.shape_of(folder)
    options = real.Options(device=device, threads=os.cpu_count() or 1, repeats=1 if tiny else 4, warm=0 if tiny else 1)
    options = replace(options, patience=PATIENCE * (1 if device == "cuda" else WITHOUT_GPU))
    workload = real_work.WORKLOADS[name]
    workload = real_work.small(workload) if tiny else replace(workload, micro=workload.rows)
    arms = [arm for arm in real.STEP_ARMS if arm not in ("trl", "sage") or (importlib.util.find_spec("trl") and device != "paper")]

    def ratios(found: dict[str, real.Found]) -> dict[str, float | None]:
        others = ("textbook", "trl", "sage")
        there = {f"{other}_{name}": real.ratio({name: found}, name, other, "ours") for other in others}
        write(out, there)
        return there

    found = real.run(workload, arms, folder, shape, options, ratios)
    real.table(workload, found, shape)
    return ratios(found)


# --- training -----------------------------------------------------------------------------------------------------------


def curve(device: str, tiny: bool, seconds: float) -> dict[str, float]:
    """Mean rewards of the first and the last five steps of the shipped policy on Countdown under SAGE-Branch (recipes/countdown).

    They are printed by fives.
    """
    from sage_rlvr.config import TrainConfig, decode
    from sage_rlvr.training.loop import build, train_step

    count, size = (5, 2) if tiny else (100, 16)
    guided = {"name": "sage", "base": {"name": "grpo", "beta": 0.05}, "guide": {"name": "branch"}}
    world = {"counts": {4: 1.0}, "max_number": 9, "max_target": 20, "targets": "expression", "train_problems": 6000}
    tree = {"steps": count, "method": guided, "world": world, "optimizer": {"lr": 1e-4}}
    tree |= {"engine": {"device": named(device), "threads": None}}
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
    return {"reward_first": sum(rewards[:5]) / 5, "reward_last": sum(rewards[-5:]) / 5} if len(rewards) >= 5 else {}


# --- the whole ----------------------------------------------------------------------------------------------------------


def write(out: Path, found: dict[str, Any]) -> str:
    """Replace the file by these results, whole at every moment; return the text."""
    text = json.dumps({name: round(value, 7) if isinstance(value, float) else value for name, value in found.items()})
    beside = out.with_name(out.name + ".new")
    beside.write_text(text + "\n")
    beside.replace(out)
    return text


def run_part(name: str, device: str, tiny: bool, folder: Path, out: Path, seconds: float) -> None:
    """A part, in this process; its results are written to `out`."""
    import real_work
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found: dict[str, Any] = {}
    with real_work.on_device(device):
        if name == "correctness":
            prompts = real_work.small(real_work.WORKLOADS["w1"]).ids(real_work.shape_of(folder / "few").words)
            found = correctness(folder / "few", prompts, device)
            print("  " + ", ".join(f"{label} {value:.6g}" for label, value in found.items()))
        elif name == "training":
            found = curve(device, tiny, seconds - LEAST / 2)
    if name == "device":
        device_lines(device)
    elif name in ("w1", "w2"):
        found = steps(name, folder / "whole", device, tiny, out)
    write(out, found)


def part(name: str, options: argparse.Namespace, folder: Path, seconds: float) -> dict[str, Any]:
    """The results of a part in a process of its own, which is ended with all that it started after so many seconds."""
    out = folder / f"{name}.json"
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name, "--device", options.device, "--out", str(out)]
    command += ["--folder", str(folder), "--seconds", str(seconds), *["--tiny"] * options.tiny]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(seconds)
        if code:
            print(f"{name}: FAILED, its process ended with {code}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"{name}: FAILED, ended after {seconds:.0f} s", flush=True)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return json.loads(out.read_text()) if out.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "paper"))
    parser.add_argument("--tiny", action="store_true", help="a model and batches that take seconds")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole script")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu.json", help="the results so far, in JSON")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels", help="folder of wheels to import from")
    for name, kind in {"part": str, "folder": Path, "seconds": float}.items():  # of the process of a part
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.device, options.tiny, options.folder, options.out, options.seconds)
        return 0
    end = time.perf_counter() + 60 * options.minutes
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with wheels(options.wheels), tempfile.TemporaryDirectory() as temporary:
        import real_work
        import torch

        if options.device == "cuda" and not torch.cuda.is_available():
            print("no CUDA device is available to torch; pass --device cpu --tiny to see whether the script runs")
            return 1
        folder = Path(temporary)
        shape = real_work.TINY if options.tiny else real_work.SMOLLM2
        real_work.write_model(folder / "few", shape if options.tiny else replace(shape, layers=6))
        real_work.write_model(folder / "whole", shape)
        found: dict[str, Any] = {"right": False}
        text = write(options.out, found)
        for number, (name, most) in enumerate(PARTS.items(), 1):
            left = end - time.perf_counter()
            print(f"\n{number}. {name}, {left:.0f} s left", flush=True)
            if left < LEAST or (options.tiny and name == "w2"):
                print(f"{name}: left out", flush=True)
                continue
            found |= part(name, options, folder, min(most * (1 if options.device == "cuda" else WITHOUT_GPU), left))
            if name == "correctness":
                near = found.get("logp_gap", 1.0) <= MOST_GAP and found.get("gradient_cosine", 0.0) >= LEAST_COSINE
                found["right"] = near
                print(f"  log-probs within {MOST_GAP:g} nats, cosine of gradients at least 1 - 1e-6: {'yes' if near else 'NO'}")
            text = write(options.out, found)
        print(text)
    return 0 if found["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
