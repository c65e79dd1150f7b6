"""Every fault of the casebook, induced again: preflight and diagnose name what the stored table says. Needs TRL."""



from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("trl")

from lab.casebook.cases import CASES, Case
from lab.casebook.command import RESULTS, run_case

STORED = {row["name"]: row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["faults"]}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_is_named_as_in_the_table(tmp_path: Path, case: Case):
    found, stored = run_case(tmp_path / "case", case.make), STORED[case.name]
    assert (found["preflight"], found["diagnose"]) == (stored["preflight"], stored["diagnose"])
