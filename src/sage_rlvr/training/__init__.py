"""Training engines: `loop` (plain torch, the readable reference and the default on a CPU), `trl/` and `verl/`.

Read loop.py first (`train_step` is GRPO and SAGE on one screen) and loop_state.py (`TrainState`, what a step reads and moves), then
samplers.py (which groups a step draws), rollouts.py (groups with their rewards; source_rewards.py if the policy computes them),
replay.py (stored answers; buffer.py if the method has a buffer), scores.py (log-probs and entropies), reference.py (pi_ref) and
steps.py (metrics, checkpoints, stopping).
sft.py and offline.py train on given completions. trl/ and verl/ pass the same `Method` to those trainers; engines.py is the
table of how each of them implements a part. counts/ is the dry run.
"""
