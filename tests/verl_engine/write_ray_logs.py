"""Logs of a whole run of verl's own trainer, under Ray: console, file logger, and dumps of rollouts and validation.

    python tests/verl_engine/write_ray_logs.py OUT

Plain verl (`verl.trainer.main_ppo`) with a reward function in a file, on the platform and the rollout of cpu_verl.py. Written are
OUT/console.txt, file.jsonl, rollouts/N.jsonl and validation/N.jsonl; tests/symptoms/real keeps them, without timings.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from verl_common import launched, words

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.training.verl.problems import Named, chosen, export

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
    lines = [line for line in said.splitlines() if re.search(r"step:\d+ - ", line)]
    (out / "console.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
