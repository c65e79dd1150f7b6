"""Logs of a short run, written by verl's own trainer in one process: console, file logger, TensorBoard and dumps of the rollouts.

    python tests/verl_engine/write_logs.py OUT 1      groups of one
    python tests/verl_engine/write_logs.py OUT 8

The steps, the metrics, the dumps and the loggers are verl's (`stage.py` has no Ray); completions are sampled by this package from
verl's weights. The console goes to the standard output. tests/symptoms/real and lab/casebook/verl keep such logs, without timings.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "helpers")]
from verl_common import environment  # noqa: E402

os.environ.update({name: value for name, value in environment().items() if name != "PYTHONPATH"})

import torch  # noqa: E402
from stage import Stages  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl.trainer.ppo.v1 import trainer_base  # noqa: E402
from verl.utils.tracking import Tracking  # noqa: E402

from loop_recorded import draw_groups, small_run  # noqa: E402
from sage_rlvr.models.folders import embedded_policy  # noqa: E402
from sage_rlvr.training import loop as engine  # noqa: E402

STEPS, COMPLETIONS = 8, 32


def write(out: Path, size: int) -> None:
    """Run plain verl with groups of a size, and write its logs under out."""
    os.environ |= {"VERL_FILE_LOGGER_PATH": str(out / "file.jsonl"), "TENSORBOARD_DIR": str(out / "tensorboard")}
    prompts = COMPLETIONS // size
    actor = "actor_rollout_ref.actor"
    stages = Stages(
        "algorithm.adv_estimator=grpo",
        *(f"{actor}.use_kl_loss=true", f"{actor}.kl_loss_coef=0.02", f"{actor}.ppo_mini_batch_size={prompts}"),
        f"actor_rollout_ref.rollout.n={size}",
    )
    trainer_base.tq = stages.store
    trainer = stages.trainer
    trainer.tokenizer = AutoTokenizer.from_pretrained(embedded_policy())
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer._get_n_gpus_for_throughput = lambda: 1
    trainer._init_dump_executor()
    log = Tracking("countdown", "casebook", ["console", "file", "tensorboard"], config={})
    # the loop has no groups of one: of pairs, the first completion is taken
    drawn = max(size, 2)
    loop = engine.build(small_run("grpo", f"rollout.prompts_per_step={prompts} rollout.group_size={drawn}", steps=STEPS, seed=5))
    for step in range(STEPS):
        loop.policy.load_state_dict(stages.weights(), strict=False)
        groups = draw_groups(loop, step).first_stage
        rows = torch.arange(prompts * drawn).view(prompts, drawn)[:, :size].flatten()
        sampled = {name: getattr(groups.rollout, name)[rows] for name in ("tokens", "mask", "logps")}
        number, began = trainer.global_steps, time.perf_counter()
        metrics = stages.step(
            SimpleNamespace(prompts=groups.prompts, rewards=groups.rewards[:, :size], rollout=SimpleNamespace(**sampled))
        )
        trainer.global_steps = number
        for place, key in enumerate(stages.store.rows):
            target = groups.problems[place // size].target
            stages.store.rows[key] |= {"num_turns": 2, "reward_model": {"ground_truth": str(target)}}
            stages.store.tags[key] |= {"min_global_steps": number, "max_global_steps": number}
        batch, timing = stages.store.meta(list(stages.store.rows)), {"step": time.perf_counter() - began, "gen": 0.0}
        trainer._log_rollout_data(batch, timing, str(out / "rollouts"))
        trainer._compute_metrics(batch, metrics, timing, number, 0)
        log.log(data=metrics, step=number)
        trainer.global_steps = number + 1
    trainer._shutdown_dump_executor()


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
