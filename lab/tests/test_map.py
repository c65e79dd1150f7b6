"""lab/pages/results/map.md is what `python -m lab map --docs lab/pages` writes, and every method is a row of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sage_rlvr
from lab.studies.objectives import picture, placed, tables_of, write_docs
from lab.studies.pages import filled
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS
from sage_rlvr.training.trl.arguments import grpo_config

DOCS = Path(__file__).resolve().parents[1] / "pages"


def test_the_page_is_made_by_its_command(tmp_path: Path):
    text, found = (DOCS / "results" / "map.md").read_text(encoding="utf-8"), placed()
    assert filled(text, tables_of(found)) == text
    assert all(f"| {name} |" in text.replace("\\_", "_") for name in METHODS)
    assert {text.get_text() for text in picture(found).axes[0].texts} >= {"maxrl", "distinct", "alpha_dpg", "pkpo"}
    with pytest.raises(DataError, match=r"name the folder that holds results/map\.md"):
        write_docs(found, tmp_path)
    with pytest.raises(DataError, match="has no marks <!-- methods:begin"):
        filled("# Map", tables_of(found))


def test_every_method_is_a_public_name():
    assert set(METHODS) <= set(dir(sage_rlvr)) and sage_rlvr.maxrl() == METHODS["maxrl"]()


def test_engines_are_named_with_the_reason():
    engines = {one.name: one.engines for one in placed(["grpo", "pacs", "alpha_dpg", "dars"])}
    assert engines["grpo"] == "loop, TRL"
    assert "Dars: a generation batch of TRL has as many rows for every prompt" in engines["dars"]
    with pytest.raises(ConfigError, match=r"dars on TRL: method.rollout = Dars: .*use the loop engine"):
        grpo_config(METHODS["dars"]())
    assert "Pacs: it compares the completions of a prompt" in engines["pacs"]
    assert "reads a reference without a KL" in engines["alpha_dpg"]
