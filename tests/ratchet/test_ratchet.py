"""The package may not grow denser or less declared without a reason: figures.json holds the limits, measure.py makes them."""

from __future__ import annotations

import ast
import json

import pytest

from tests.ratchet import measure

STORED = json.loads(measure.STORED.read_text(encoding="utf-8"))


def test_no_figure_rose() -> None:
    rose = measure.risen(STORED, measure.measure())
    hint = 'make it smaller, or give a reason: python -m tests.ratchet.measure --raise "REASON"'
    assert not rose, "\n".join([*rose, hint])


def test_every_rise_has_a_reason() -> None:
    assert all(len(one["reason"]) > 20 and one["date"] for one in STORED["reasons"])


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ('getattr(x, "a")', True), ('getattr(x, "a", None)', True), ('hasattr(x, "a")', True),
        ("getattr(x, name)", False), ("setattr(x, 'a', 1)", False), ("x.a", False),
    ],
)  # fmt: skip
def test_what_counts_as_a_lookup(source: str, wanted: bool) -> None:
    assert any(measure.is_lookup(node) for node in ast.walk(ast.parse(source))) is wanted


def test_docstrings_do_not_count() -> None:
    bare, documented = "def f():\n    return 1\n", 'def f():\n    """What f is."""\n    return 1\n'
    counts = [len(list(measure.without_docstrings(ast.parse(text)))) for text in (bare, documented)]
    assert counts[0] == counts[1]


def test_a_rise_and_a_new_package_are_named() -> None:
    stored = {"packages": {"core": {"nodes": 10, "density": 2.0, "lookups": 1}}, "doubles": 3, "walls": 2}
    found = {
        "packages": {"core": {"nodes": 11, "density": 2.0, "lookups": 0}, "new": {"nodes": 1, "density": 1.0, "lookups": 0}},
        "doubles": 3,
        "walls": 2,
    }
    rose = measure.risen(stored, found)
    assert "core nodes: 11, stored 10" in rose and len(rose) == 4  # and the three figures of the new package


def test_double_names_are_those_of_classes_and_aliases() -> None:
    tree = ast.parse("class Row: ...\nPair = tuple[int, int]\nLIMIT = 3\nname = dict[str, int]\nBoth = int | str\n")
    assert measure.defined(tree) == ["Row", "Pair", "Both"]


def test_walls_are_imports_of_other_packages() -> None:
    source = "import sage_rlvr.core.kl\nfrom sage_rlvr import errors\ndef f():\n    from sage_rlvr.stats.passk import pass_at_k\n"
    assert measure.imported(ast.parse(source)) == {"core", "modules", "stats"}
