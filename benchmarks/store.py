"""Speed of the sample store: commit 20,000 samples, read them back; another version of the package side by side.

    python benchmarks/store.py [--against OTHER/src] [--repeats 3]

Each turn is a process of its own, the two versions in alternation; `--against` names the src folder of another checkout, such
as one of version 0.1, whose store was Parquet parts and a journal. Printed: median CPU seconds, and the ratio other / this.
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

PROBLEMS, N, TOKENS, AT_ONCE = 125, 160, 32, 4
STEPS = ("commit", "counts", "table", "digest")


def turn() -> None:
    """One process: fill a store, open it anew for each question, print the CPU seconds of each step as JSON."""
    warnings.simplefilter("ignore")
    import numpy as np

    from sage_rlvr.evaluation.store import Identity, Sample, SampleStore

    facts = dict.fromkeys(("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"), "x")
    law = {"preset": "paper", "temperature": 1.0, "max_new_tokens": TOKENS}
    identity = Identity(**facts, decoding=law, seed=0)
    rng = np.random.default_rng(0)
    ids, logps = rng.integers(0, 150_000, (N, TOKENS)), rng.normal(-1, 0.1, (N, TOKENS)).astype(np.float32)

    def sample(problem: str, number: int) -> Sample:
        seed, said = identity.seed_of(problem, number), f"{problem} {number} " + "a word " * 15
        signals = {"rollout_logps": logps[number] - 9, "entropies": logps[number]}
        told = {"verdict": "wrong", "reason": "value", "prompt_hash": "h", "finish": "stop"}
        return Sample(problem=problem, sample=number, text=said, seed=seed, token_ids=ids[number], **signals, **told)

    names, seconds = [f"p{i}" for i in range(PROBLEMS)], {}
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        with SampleStore.open(Path(folder) / "s", identity) as store:
            while chunks := store.claim(names, N, AT_ONCE):
                store.commit([sample(chunk.problem, number) for chunk in chunks for number in chunk.samples])
        seconds["commit"] = time.process_time() - began
        for step in STEPS[1:]:
            began = time.process_time()
            getattr(SampleStore.open(Path(folder) / "s"), step)()
            seconds[step] = time.process_time() - began
    print(json.dumps(seconds))


def measured(source: Path) -> dict[str, float]:
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, "--turn"], env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main(against: Path | None = None, repeats: int = 3) -> None:
    ours = Path(__file__).resolve().parents[1] / "src"
    sides = [side for side in (ours, against) if side is not None]
    turns = [[measured(side) for side in sides] for _ in range(repeats)]
    print(f"{PROBLEMS * N:,} samples of {TOKENS} tokens, {repeats} turns, CPU seconds")
    for step in STEPS:
        found = [statistics.median(one[i][step] for one in turns) for i in range(len(sides))]
        ratio = f"   other {found[1]:6.2f} s   ratio {found[1] / found[0]:5.2f}" if len(found) > 1 else ""
        print(f"  {step:<8} {found[0]:6.2f} s{ratio}")


if __name__ == "__main__":
    turn() if sys.argv[1:] == ["--turn"] else tyro.cli(main, description=__doc__)
