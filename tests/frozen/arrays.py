"""Draw the arrays of the synthetic folders, once: fixtures/*.npz and *.json, which are what counts (numpy and scipy alone).

    python tests/frozen/arrays.py

A policy is a law over right and wrong completions of every problem. Of it are kept: log-probs of the right ones at T = 1, and
log Z(T) = log sum over all completions of pi^(1/T), so that log pi_T = log pi / T - log Z(T). Nothing was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

FIXTURES = Path(__file__).parent / "fixtures"
TEMPERATURES = (0.2, 0.3, 0.5, 0.7, 1.0, 1.3)
POWERS = (1.0, 1.5, 2.0, 4.0, 20.0)  # of the base over whole completions
WRONG = 60  # completions per problem
SEEDS = (0, 1, 2)
# Countdown problems; a record has as many log-probs of each as it has right completions (`sizes`, from the enumeration)
PROBLEMS = (
    "1-2-3=6", "2-3-4=24", "1-1-5=5", "2-2-3=7", "1-2-5=7", "2-3-5=10", "1-3-6=18", "2-4-5=3",
    "1-2-4=8", "1-3-4=12", "2-5-7=4", "1-5-9=14", "3-4-6=2", "2-2-8=12", "1-6-7=13", "4-5-9=10",
    "2-6-9=3", "3-5-8=6", "1-7-8=15", "2-7-9=5",
)  # fmt: skip
AWAY = ("5-6-7=8", "1-4-8=4", "3-7-9=13", "2-4-9=11", "6-7-8=9", "2-8-9=19", "1-8-9=17", "4-6-8=6")
# arm -> (sharpening, lift of right ones, raw KL)
ARMS = {
    "no_kl": (1.55, 0.55, 0.40),
    "grpo": (1.25, 0.35, 0.11),
    "grpo_beta0.1": (1.10, 0.16, 0.05),
    "sage_branch": (1.20, 0.42, 0.08),
    "sage_branch_placebo": (1.24, 0.33, 0.105),
}
# arm -> log-odds of a right sample above the base's
SAMPLED = {"base": 0.0, "GRPO": 0.4, "SAGE": 0.55}
TASKS = {"sums": 20, "riddles": 8}
SAMPLES, TOKENS = 16, 4


def laws(rng: np.random.Generator, sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Logits of right and of wrong completions of each problem, of the base."""
    return [(rng.normal(rng.normal(-0.6, 2.2), 1.0, n), rng.normal(0, 1.2, WRONG)) for n in sizes]


def moved(
    rng: np.random.Generator, base: Sequence[tuple[np.ndarray, np.ndarray]], sharper: float, lift: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What training might have made of it: sharper, right ones lifted, with noise of the seed."""
    shift = rng.normal(0, 0.04)
    return [
        (sharper * right + lift + shift + rng.normal(0, 0.15) + rng.normal(0, 0.1, len(right)), sharper * wrong)
        for right, wrong in base
    ]


def arrays_of(policy: Sequence[tuple[np.ndarray, np.ndarray]], levels: Sequence[float]) -> dict[str, np.ndarray]:
    """logps: flat, right completions at T = 1; sizes (N,); logz: (len(levels), N) log sum pi^level."""
    normal = [both - logsumexp(both) for both in map(np.concatenate, policy)]
    right = [law[: len(pair[0])] for law, pair in zip(normal, policy, strict=True)]
    logz = [[logsumexp(law * level) for law in normal] for level in levels]
    return {"logps": np.concatenate(right), "sizes": np.array([len(r) for r in right]), "logz": np.array(logz)}


def policies(rng: np.random.Generator, sizes: Sequence[int], cells: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Of the base and every cell: "<name>/logps", "<name>/logz"; "sizes"; of the base also "base/norms" over `POWERS`."""
    base = laws(rng, sizes)
    cold = [1 / t for t in TEMPERATURES]
    found = {"base": arrays_of(base, cold)}
    for arm, seeds in cells.items():
        for seed in seeds:
            found[f"{arm}-s{seed}"] = arrays_of(moved(rng, base, *ARMS[arm][:2]), cold)
    out = {f"{name}/{key}": a for name, one in found.items() for key, a in one.items() if key != "sizes"}
    return out | {"sizes": found["base"]["sizes"], "base/norms": arrays_of(base, POWERS)["logz"]}


def metrics(rng: np.random.Generator, arm: str, steps: int = 12) -> list[dict[str, float]]:
    """What a run logs, as far as anybody reads it."""
    kl, guided = ARMS[arm][2] * float(np.exp(rng.normal(0, 0.05))), arm.startswith("sage")
    rows = []
    for i in range(steps):
        done = (i + 1) / steps
        row: dict[str, float] = {
            "step": i,
            "reward/mean": round(0.1 + 0.1 * done + rng.normal(0, 0.01), 6),
            "reward/dead_group_frac": round(0.5 - 0.1 * done + rng.normal(0, 0.02), 6),
            "policy/entropy": round(1.2 - 0.3 * done + rng.normal(0, 0.01), 6),
            "optimizer/grad_norm": round(0.4 + rng.normal(0, 0.03), 6),
            "kl/to_reference": round(kl * done, 6),
            "kl/to_anchor": round(kl * done * 1.1, 6),
            "rollout/tokens": int(2000 + rng.integers(0, 200)),
            "time/step_s": round(1.0 + rng.uniform(0, 0.2), 6),
        }
        if guided:
            row |= {"guide/q_mean": round(1 + 0.02 * done, 6), "guide/active_frac": round(0.2 - 0.05 * done, 6)}
        rows.append(row)
    return rows


def samples(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Stores: "<i>/<column>" (N, SAMPLES[, TOKENS]) and what each is of. verdict: 0 right, 1 wrong, 2 undecided; answer: which of
    five, 0 the right one, -1 none; phrase: which of the texts' sentences."""
    hard = {task: rng.normal(-1.5, 1.3, n) for task, n in TASKS.items()}
    asked = [("sums", arm, t, s) for arm in SAMPLED for t in (1.0, 0.6, 0.3) for s in _store_seeds(arm, t)]
    asked += [("riddles", arm, 1.0, 0) for arm in SAMPLED]
    arrays, stores = {}, []
    for i, (task, arm, temperature, seed) in enumerate(asked):
        n, m = TASKS[task], SAMPLES
        logit = (hard[task] + rng.normal(0, 0.1, n)) / temperature**0.35 + SAMPLED[arm] + 1.8 * (1 - temperature)
        right = rng.random((n, m)) < 1 / (1 + np.exp(-logit))[:, None]
        undecided = rng.random((n, m)) < 0.07
        verdict = np.where(undecided, 2, np.where(right, 0, 1))
        answer = np.where(verdict == 0, 0, np.where(verdict == 2, -1, rng.integers(1, 5, (n, m))))
        base_logps = rng.normal(-0.9 + 0.15 * SAMPLED[arm], 0.4, (n, m, TOKENS)).clip(max=-0.001).round(4)
        columns = {
            "verdict": verdict.astype(np.int8),
            "answer": answer.astype(np.int8),
            "phrase": rng.integers(0, 5, (n, m)).astype(np.int8),
            "base_logps": base_logps.astype(np.float32),
            "rollout_logps": (base_logps * 0.9).round(4).astype(np.float32),
        }
        arrays |= {f"{i}/{name}": column for name, column in columns.items()}
        stores.append({"task": task, "arm": arm, "temperature": temperature, "seed": seed})
    return arrays, stores


def _store_seeds(arm: str, temperature: float) -> tuple[int, ...]:
    return SEEDS if arm != "base" and temperature == 1.0 else (0,)


def main() -> None:
    """Everything, from one seed each."""
    from sage_rlvr.tasks.countdown.expressions import solve

    def sized(names: Sequence[str]) -> list[int]:
        return [len(solve([int(x) for x in n.split("=")[0].split("-")], int(n.split("=")[1]))) for n in names]

    FIXTURES.mkdir(exist_ok=True)
    every, here, there = {arm: SEEDS for arm in ARMS}, sized(PROBLEMS), sized(AWAY)
    named = {arm: SEEDS for arm in ("no_kl", "grpo", "sage_branch")}
    one = {arm: (0,) for arm in ("no_kl", "grpo", "sage_branch")}
    np.savez_compressed(FIXTURES / "sweep.npz", **policies(np.random.default_rng(1), here, every))
    np.savez_compressed(FIXTURES / "away.npz", **policies(np.random.default_rng(2), there, named))
    np.savez_compressed(FIXTURES / "demo.npz", **policies(np.random.default_rng(7), here, one))
    arrays, stores = samples(np.random.default_rng(4))
    np.savez_compressed(FIXTURES / "stores.npz", **arrays)
    rng = np.random.default_rng(5)
    facts = {
        "temperatures": TEMPERATURES, "powers": POWERS, "problems": PROBLEMS, "away_problems": AWAY, "stores": stores,
        "sweep_metrics": {f"{arm}-s{seed}": metrics(rng, arm) for arm in ARMS for seed in SEEDS},
        "demo_metrics": {f"{arm}-s0": metrics(rng, arm) for arm in one},
    }  # fmt: skip
    text = json.dumps(facts, ensure_ascii=False)
    (FIXTURES / "facts.json").write_text(text.replace("}, {", "},\n{") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
