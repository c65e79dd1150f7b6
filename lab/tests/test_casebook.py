"""The table of the casebook on the page is that of the stored results, which keep what was promised."""

from __future__ import annotations

import json
from pathlib import Path

from lab.casebook.command import BEGIN, END, RESULTS, counts_of, table_of
from lab.casebook.smollm2 import read
from sage_rlvr.symptoms.causes import CAUSES, PAGE


def test_the_page_has_the_stored_table():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table_of(results)


def test_the_casebook_keeps_its_goals():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    counts = counts_of(results)
    assert len(results["faults"]) >= 24 and len(results["sound"]) == 40
    assert {row["cause"] for row in results["faults"]} <= set(CAUSES) and all(row["thread"] for row in results["faults"])
    assert counts["preflight"][0] >= 22
    assert counts["diagnose"][0] >= 20 and counts["false alarms of diagnose"][0] <= 2
    assert counts["diagnose, SmolLM2"][1] >= 10 and counts["false alarms of diagnose, SmolLM2"][0] == 0


def test_the_kept_logs_of_smollm2_are_read_as_stored():
    """Rows as JSON, since a log ends in numbers."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(list(read()))) == results["smollm2"]
    assert {row["name"] for row in results["smollm2"] if row["cause"]} <= {row["name"] for row in results["faults"]}
