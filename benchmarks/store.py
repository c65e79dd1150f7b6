"""Speed, size and memory of the sample store: fill it by one writer and by three, and count; another version side by side.

    python benchmarks/store.py [--against OTHER] [--problems 125] [--samples 160] [--at-once 1] [--repeats 2]

Samples are synthetic, no model is loaded. One commit holds all samples of `--at-once` problems, as an evaluation commits them.
`--against` names another work tree; both versions take turns, A B A B, and each step is a process of its own. Printed for each:
CPU seconds in the store (of all writers together), elapsed seconds, the peak memory of a process; bytes and files of the folder.
All are medians; a ratio is this / other, so below 1 this version needs less. `--read counts table digest` reads in more ways. The
largest shape that an evaluation has had is `--problems 5000 --samples 256`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import tyro

TOKENS, POOL = 32, 50_000  # of a completion; different completions
MEASURED = ("CPU s", "elapsed s", "peak MB", "bytes", "files")


class Clock:
    """Seconds spent within its blocks."""

    cpu = elapsed = 0.0

    def __enter__(self) -> Clock:
        self.began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self.began[0]
        self.elapsed += time.perf_counter() - self.began[1]


def fill(folder: Path, problems: int, n: int, at_once: int) -> Clock:
    """Commit the samples that no other writer has; returns the time in the store."""
    import numpy as np

    from sage_rlvr.evaluation.store import Chunk, Identity, Sample, SampleStore

    facts = dict.fromkeys(("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"), "x")
    law = {"preset": "paper", "temperature": 1.0, "max_new_tokens": TOKENS}
    identity = Identity(**facts, decoding=law, seed=0)

    rng = np.random.default_rng(0)
    shape = (POOL, TOKENS)
    ids, logps, entropies = rng.zipf(1.3, shape) % 150_000, np.log(rng.random(shape, np.float32)), rng.random(shape, np.float32)
    texts = [" ".join(map(str, row)) for row in ids.tolist()]

    def samples_of(chunk: Chunk) -> list[Sample]:
        verdict = {"verdict": "wrong", "reason": "value", "prompt_hash": "h", "finish": "stop"}
        start, samples = identity.seed_of(chunk.problem, 0), []
        for number in chunk.samples:
            seed, row = identity.seed_of(chunk.problem, number), (start + number) % POOL  # no completion twice for one problem
            tokens = {"token_ids": ids[row], "rollout_logps": logps[row], "entropies": entropies[row]}
            samples.append(Sample(problem=chunk.problem, sample=number, text=texts[row], seed=seed, **tokens, **verdict))
        return samples

    chunks_each, clock = -(-n // (identity.chunk_size or 1)), Clock()
    with clock:
        store = SampleStore.open(folder, identity)
    for first in range(0, problems, at_once):
        some = [f"p{number}" for number in range(first, min(first + at_once, problems))]
        with clock:
            chunks = store.claim(some, n, len(some) * chunks_each)
        samples = [sample for chunk in chunks for sample in samples_of(chunk)]
        with clock:
            store.commit(samples)
    with clock:
        store.close()
    return clock


def read(folder: Path, way: str) -> Clock:
    """Open a store anew and read it."""
    from sage_rlvr.evaluation.store import SampleStore

    with Clock() as clock:
        getattr(SampleStore.open(folder), way)()
    return clock


def process(step: str, folder: str, *sizes: str) -> None:
    """One step of one version: perform it, and print what it took."""
    warnings.simplefilter("ignore")
    import sage_rlvr.evaluation.store  # noqa: F401 (its seconds are no part of a step)

    clock = fill(Path(folder), *map(int, sizes)) if step == "fill" else read(Path(folder), step)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps([clock.cpu, clock.elapsed, peak / 1e6]))


def step_of(tree: Path, step: str, folder: Path, sizes: tuple[int, ...] = (), writers: int = 1) -> dict[str, float]:
    """Run a step in processes of their own, on the package of a work tree."""
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "--process", step, str(folder), *map(str, sizes)]
    running = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for _ in range(writers)]
    texts = [one.communicate()[0] for one in running]
    if any(one.returncode for one in running):
        raise SystemExit(f"{step} failed in {tree}")
    cpu, elapsed, peaks = zip(*map(json.loads, texts), strict=True)
    return dict(zip(MEASURED, (sum(cpu), max(elapsed), max(peaks)), strict=False))


def turn(tree: Path, sizes: tuple[int, ...], writers: tuple[int, ...], ways: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Fill a store by each number of writers, and read the last one."""
    steps = {}
    for many in writers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "s"
            filled = step_of(tree, "fill", folder, sizes, many)
            files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            steps[f"fill by {many}"] = filled | {"bytes": sum(files), "files": len(files)}
            if many == writers[-1]:
                steps |= {way: step_of(tree, way, folder) for way in ways}
    return steps


def main(
    against: Path | None = None,
    problems: int = 125,
    samples: int = 160,
    at_once: int = 1,
    repeats: int = 2,
    writers: tuple[int, ...] = (1, 3),
    read: tuple[str, ...] = ("counts",),
) -> None:
    trees = [tree for tree in (Path(__file__).resolve().parents[1], against) if tree is not None]
    turns = [[turn(tree, (problems, samples, at_once), writers, read) for tree in trees] for _ in range(repeats)]
    print(f"{problems:,} problems x {samples} samples, {at_once} problems a commit, {repeats} turns")
    for step in turns[0][0]:
        for what in (name for name in MEASURED if name in turns[0][0][step]):
            found = [statistics.median(one[side][step][what] for one in turns) for side in range(len(trees))]
            other = f"   other {found[1]:15,.1f}   ratio {found[0] / found[1]:5.2f}" if against else ""
            print(f"  {step:<10} {what:<10} {found[0]:15,.1f}{other}")


if __name__ == "__main__":
    process(*sys.argv[2:]) if sys.argv[1:2] == ["--process"] else tyro.cli(main, description=__doc__)
