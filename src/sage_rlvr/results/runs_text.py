"""Sentences on training runs: their state, and what to evaluate next if nothing is compared."""

from __future__ import annotations

from sage_rlvr.errors import suggest
from sage_rlvr.evaluation.record import EMBEDDED
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.sources import TrainingRun
from sage_rlvr.verdicts.text.rows import NOTHING
from sage_rlvr.verdicts.text.words import listed

STATE = "{steps} of {all} steps"


def nothing(results: Results) -> str:
    """The line instead of `answer` for no rows: what to evaluate next, or which path to add."""
    parts = [NOTHING]

    def on_task(run: TrainingRun) -> bool:
        return bool(run.config.get("task") or run.config.get("data"))

    scored = {row.arm for row in results.table.rows}
    bare = [run for run in results.runs.values() if run.arm not in scored]
    if results.design.facts or results.stored is not None:  # sweep and demo evaluate what they train
        return f"{NOTHING} Run the command that created the folder again to continue."
    if bare and bare[0].path is not None:
        given = ["--samples", 64] if on_task(bare[0]) else []  # a run stores only the name of a plugin
        given += [word for name in bare[0].config.get("plugins") or () if given for word in ("--plugin", name)]
        parts.append(f"Runs without an evaluation: {len(bare)}. Evaluate them: `{suggest('eval', bare[0].path, *given)}`.")
    if len(scored | {run.arm for run in bare}) < 2:
        runs = list(results.runs.values())
        base = {run.config.get("model") for run in runs} == {EMBEDDED} and not any(map(on_task, runs))
        parts.append(f"Add another policy: `{suggest('report', *results.sources, EMBEDDED if base else 'RUN')}`.")
    elif not bare:
        parts.append("Evaluate both with the same --task, --split, --seed and --problems.")
    return " ".join(parts)


def state(run: TrainingRun, evaluated: bool = False) -> str:
    """The state of a run. evaluated: whether an evaluation exists, even if the sweep's design.json lacks it."""
    done = evaluated or run.state == "evaluated"
    if run.state in ("trained", "evaluated"):
        return "evaluated" if done else "trained, not evaluated"
    steps: str = run.state
    if run.state == "training":
        steps = STATE.format(steps=run.steps, all=run.config["steps"]) if "steps" in run.config else f"{run.steps} steps"
    return listed(steps, "evaluated" if done else "")
