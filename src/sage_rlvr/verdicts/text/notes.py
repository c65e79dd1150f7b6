"""Notes on what is not read or not compared, a sentence each; those on files of rows are in notes_of_rows.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.kl import SampledRows, base_of
from sage_rlvr.verdicts.measurements import ExactMeasurements
from sage_rlvr.verdicts.metric import PAPER, REFERENCE
from sage_rlvr.verdicts.pairs import ArmPair, base_pairs, exact_pairs, other_tasks

# ------------------------------------------------------------------------------------------------------------------
# evaluations that were passed


def without_base(control: str | None) -> str:
    """No evaluation of the base was passed."""
    return f"No evaluation of the base was passed; {control} is the control instead."


def discarded(names: Sequence[str]) -> str:
    """The candidates that the design did not select."""
    return f"Candidates that validation discarded count in the correction with p = 1: {', '.join(names)}."


def of_other_split(arm: str, split: str, compared: str) -> str:
    """A record on another split than the compared one."""
    return f"{arm}: the record on the {split} split is left out; the others are on the {compared} split."


def of_other_weights(arm: str, seed: int) -> str:
    """The record of a run that has changed since."""
    return f"{arm}, seed {seed}: its record was made with other weights than the run has now; evaluate it again."


def kl_of_other_samples(arm: str, path: Path) -> str:
    """A file of exact KLs beside a sample store, of other weights or problems."""
    return f"{arm}: {path} is of other weights or problems than the store and is left out."


def unfinished(arm: str, store: Path, lacking: str) -> str:
    """A sample store that lacks samples. lacking: the text on them (`SampleStore.lacking`), "" if it has no samples at all."""
    state = f"has {lacking}" if lacking else "holds no samples yet"
    return f"{arm}: {store.name} {state}."


def first_samples(task: str, used: int, arm: str, n: int) -> str:
    """The number of samples that are used of all stores of a task. arm, n: one that has more."""
    return (
        f"{task}: only the first {used} samples of each problem are used, the number that all stores have ({arm} has {n})."
    )


# ------------------------------------------------------------------------------------------------------------------
# comparisons


def notes_of_pairs(design: Design, table: ExactMeasurements) -> list[str]:
    """A sentence for each pair that is not compared at a temperature, because a training seed has no evaluation there."""
    arms = table.where(task="").by_arm()
    main: Sequence[ArmPair] = [*exact_pairs(design, arms), *base_pairs(design, arms)]
    comparisons = [(pair, temperature) for temperature in (REFERENCE, PAPER) for pair in main]
    comparisons += [(pair, REFERENCE) for pair in other_tasks(design, table)]
    return list(dict.fromkeys(note for pair, temperature in comparisons for note in _of_pair(pair, temperature)))


def _of_pair(pair: ArmPair, temperature: float) -> list[str]:
    on = f" on {pair.task}" if pair.task else ""
    return [
        f"{pair.a} and {pair.b} are not compared at T = {temperature:g}{on}: {name} has no evaluation there of training seed "
        f"{', '.join(map(str, missing))}."
        for name, missing in pair.lacking(temperature).items()
    ]


def notes_on_bases(table: SampledRows) -> list[str]:
    """A note if the exact KLs refer to several bases and `base_of` finds none, so that no KLs are compared."""
    known = sorted({revision for row in table.rows for revision in row.kls})
    if len(known) < 2 or base_of(table) is not None:
        return []
    bases = ", ".join(revision[:12] for revision in known)
    return [
        f"The exact KLs are to several bases ({bases}), so none is compared: compare the evaluations with KLs to one base "
        "apart, or add the samples of the base that is meant."
    ]
