"""Reasons why a reward does not rise: `preflight` before a run, `diagnose` after one. Read finding.py first.

    a run's prompts, completions, rewards, settings -> FirstRollout -> checks -> SymptomReport      before an update is made
    a log of any program -> LogTable (step -> metric -> value) -> curves -> SymptomReport, picture   after it

Both end in the same list of findings: a cause with a name (causes.py), a severity, one sentence, its numbers, up to three short
examples and the next step. The order of `CAUSES` is upstream first: a doubled start token comes before the empty rewards that
follow from it, so that the first finding is the one to repair first.

Preflight has no separate pipeline. on_loop.py is the first rollout of the engine (`training.loop.build`,
`rollouts.draw_rollout`, the task's verdicts, `scores`, `counts.probe`), on_trl.py that of any GRPO or RLOO trainer of TRL by the
trainer's generation and reward functions; no weight and no generator of random numbers is changed. The checks are in prompts.py,
rewards.py, completions.py, signal.py, learning.py, cost.py and headroom.py, each a function of a `FirstRollout` (first_rollout.py).

Diagnose needs no torch. `logs/` reads files by their content (readers.py), gives their metrics this package's names (names.py),
finds steps at which a curve changes (curves.py) and reports the first change (diagnose.py, picture.py).
"""
