"""The exact KL of trained policies to their base, from their sample stores."""

from __future__ import annotations

from collections.abc import Mapping

from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE

Kls = Mapping[tuple[str, int], float]
"""(Arm, training seed) -> KL to the reference, nats per token."""
SampledRows = Measurements[SampledMeasurement]


def exact_kls(rows: SampledRows, base: str | None) -> dict[tuple[str, int], float]:
    """The reverse KL to the base of that revision on completions of the policy. rows: of one task and temperature; a row without a
    known training seed counts by its place in the arm, as in `Measurements.scores`."""
    return {
        (arm, index if row.seed is None else row.seed): row.kls[base]
        for arm, own in rows.by_arm().items()
        for index, row in enumerate(own.rows)
        if base is not None and base in row.kls
    }


def exact_kls_of_main(table: SampledRows) -> dict[tuple[str, int], float]:
    """KL per policy with exact records of the main task, from its store at the reference temperature; {} if the stores with a KL
    are of several tasks."""
    home = table.where(temperature=REFERENCE)
    tasks = {row.task for row in home.rows if row.kls}
    return exact_kls(home.where(task=tasks.pop()), base_of(table)) if len(tasks) == 1 else {}


def base_of(table: SampledRows) -> str | None:
    """Return the revision of the base that exact KLs refer to: the only one, or else the only one with samples in the table."""
    known = {revision for row in table.rows for revision in row.kls}
    if len(known) > 1:
        known &= {str(row.identity.get("revision")) for row in table.rows}
    return known.pop() if len(known) == 1 else None


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


__all__ = ["Kls", "base_of", "exact_kls", "exact_kls_of_main", "notes_on_bases"]
