"""Logs of a whole run of verl's own trainer, under Ray: console, file logger, and dumps of rollouts and validation.

    python tests/verl_engine/write_ray_logs.py OUT

Plain verl (`verl.trainer.main_ppo`) with a reward function in a file, on the platform and the rollout of cpu_verl.py. Written are
OUT/kept/ray-verl.console.txt, .file.jsonl, .rollouts/N.jsonl and .validation/N.jsonl, without timings and uids, floats shortened;
tests/symptoms/real keeps them. On a busy machine: RAY_worker_niceness=0, or Ray's workers run at nice 15.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from verl_common import launched, words

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.training.verl.problems import Named, chosen, export

NAME = "ray-verl-0.9.1"
MACHINE = re.compile(r"timing|perf/|.*memory|global_seqlen|.*mfu")
REWARD = '''
from sage_rlvr.verifiers.countdown import judge


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 for the target's value by each number once."""
    numbers, _, target = extra_info["problem"].partition("=")
    return float(judge([int(one) for one in numbers.split("-")], int(target), solution_str).right)
'''


def write(out: Path, steps: int = 6) -> None:
    """Run verl, and write its logs under out."""
    out.mkdir(parents=True, exist_ok=True)
    config = load_config(TrainConfig, "grpo", [("world.train_problems", "16")])
    named = Named(config=dump(config))
    export(named, out / "problems", chosen(named.task(), say=lambda line: None), talks=False)
    (out / "train.parquet").write_bytes((out / "problems" / "train.parquet").read_bytes())
    (out / "reward.py").write_text(REWARD)
    more = [
        "algorithm.adv_estimator=grpo",
        *(f"actor_rollout_ref.actor.{word}" for word in ("use_kl_loss=true", "kl_loss_coef=0.02")),
        f"reward.custom_reward_function.path={out}/reward.py",
        "trainer.logger=[console,file]",
        "trainer.test_freq=2",
        "trainer.save_freq=-1",
        f"trainer.rollout_data_dir={out}/rollouts",
        f"trainer.validation_data_dir={out}/validation",
    ]
    said = launched([*words(out, steps=steps), *more], out, "verl.trainer.main_ppo", timeout=2400)
    keep(out, said)


def keep(out: Path, said: str) -> None:
    """Copy the logs without what differs from machine to machine."""
    kept = out / "kept"
    kept.mkdir(exist_ok=True)
    lines = [line for line in said.splitlines() if re.search(r"step:\d+ - ", line)]
    console = "".join(f"{_console(line)}\n" for line in lines)
    (kept / f"{NAME}.console.txt").write_text(re.sub(r"pid=\d+", "pid=1", console), encoding="utf-8")
    rows = [json.loads(line) for line in (out / "file.jsonl").read_text(encoding="utf-8").splitlines()]
    text = "".join(json.dumps(row | {"data": _short(row["data"])}) + "\n" for row in rows)
    (kept / f"{NAME}.file.jsonl").write_text(text, encoding="utf-8")
    for kind in ("rollouts", "validation"):
        folder = kept / f"{NAME}.{kind}"
        folder.mkdir(exist_ok=True)
        for file in (out / kind).glob("*.jsonl"):
            dumped = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            made = "".join(json.dumps({name: value for name, value in row.items() if name != "uid"}) + "\n" for row in dumped)
            (folder / file.name).write_text(made, encoding="utf-8")


def _console(line: str) -> str:
    head, *values = line.split(" - ")
    return " - ".join([head, *(_digits(value) for value in values if not MACHINE.match(value))])


def _digits(value: str) -> str:
    name, _, number = value.partition(":")
    return f"{name}:{float(number):.6g}" if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", number) else value


def _short(data: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in data.items() if not MACHINE.match(name)}
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in kept.items()}


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
