"""Speed and size of the sample store: commit samples, read them back; another version of the package side by side.

    python benchmarks/store.py [--against OTHER/src] [--problems 125] [--samples 160] [--at-once 1] [--repeats 3]

Each turn is a process of its own, the two versions in alternation; `--against` names the src folder of another checkout. One commit
holds all samples of `--at-once` problems, as an evaluation commits them. Printed: median CPU and elapsed seconds, and the bytes of
the folder, with the ratio other / this. The worst shape that an evaluation has had is `--problems 5000 --samples 256`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import tyro

TOKENS = 32
STEPS = ("commit", "counts", "table", "digest")


def turn(problems: int, n: int, at_once: int) -> None:
    """One process: fill a store, open it anew for each question, print the seconds of each step and the bytes as JSON."""
    warnings.simplefilter("ignore")
    import numpy as np

    from sage_rlvr.evaluation.store import Identity, Sample, SampleStore

    facts = dict.fromkeys(("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"), "x")
    law = {"preset": "paper", "temperature": 1.0, "max_new_tokens": TOKENS}
    identity = Identity(**facts, decoding=law, seed=0)
    rng = np.random.default_rng(0)
    ids, logps = rng.integers(0, 150_000, (n, TOKENS)), rng.normal(-1, 0.1, (n, TOKENS)).astype(np.float32)

    def sample(problem: str, number: int) -> Sample:
        seed, said = identity.seed_of(problem, number), f"{problem} {number} " + "a word " * 15
        signals = {"rollout_logps": logps[number] - 9, "entropies": logps[number]}
        told = {"verdict": "wrong", "reason": "value", "prompt_hash": "h", "finish": "stop"}
        return Sample(problem=problem, sample=number, text=said, seed=seed, token_ids=ids[number], **signals, **told)

    names, measured = [f"p{i}" for i in range(problems)], {}
    chunks_each = -(-n // (identity.chunk_size or 1))
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time(), time.perf_counter()
        with SampleStore.open(Path(folder) / "s", identity) as store:
            for first in range(0, problems, at_once):
                some = names[first : first + at_once]
                while chunks := store.claim(some, n, len(some) * chunks_each):
                    store.commit([sample(chunk.problem, number) for chunk in chunks for number in chunk.samples])
        measured["commit"] = time.process_time() - began[0], time.perf_counter() - began[1]
        for step in STEPS[1:]:
            began = time.process_time(), time.perf_counter()
            getattr(SampleStore.open(Path(folder) / "s"), step)()
            measured[step] = time.process_time() - began[0], time.perf_counter() - began[1]
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        print(json.dumps(measured | {"bytes": sum(path.stat().st_size for path in files), "files": len(files)}))


def measured(source: Path, *sizes: int) -> dict[str, tuple[float, float]]:
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "--turn", *map(str, sizes)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main(against: Path | None = None, problems: int = 125, samples: int = 160, at_once: int = 1, repeats: int = 3) -> None:
    ours = Path(__file__).resolve().parents[1] / "src"
    sides = [side for side in (ours, against) if side is not None]
    turns = [[measured(side, problems, samples, at_once) for side in sides] for _ in range(repeats)]
    print(f"{problems:,} problems x {samples} samples, {at_once} problems a commit, {repeats} turns: CPU, elapsed")
    for step in STEPS:
        cpu, elapsed = ([statistics.median(one[i][step][of] for one in turns) for i in range(len(sides))] for of in (0, 1))
        other = f"   other {cpu[1]:7.2f} {elapsed[1]:7.2f} s   ratio {elapsed[1] / elapsed[0]:5.2f}" if len(sides) > 1 else ""
        print(f"  {step:<8} {cpu[0]:7.2f} {elapsed[0]:7.2f} s{other}")
    for what in ("bytes", "files"):
        print(f"  {what:<8} " + "   other ".join(f"{one[what]:,}" for one in turns[0]))


if __name__ == "__main__":
    turn(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["--turn"] else tyro.cli(main, description=__doc__)
