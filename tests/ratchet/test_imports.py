"""No new circle of imports and no new import inside a function: imports.json lists those that are left, imports.py finds them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ratchet import imports

STORED = json.loads(imports.STORED.read_text(encoding="utf-8"))


def test_nothing_is_new() -> None:
    hint = "pass what is needed as an argument or move it to a module below both; a heavy library may be late with a comment why"
    assert not (found := imports.new_in(imports.measure(), STORED)), "\n".join([*found, hint])


def test_what_is_gone_is_gone_from_the_list() -> None:
    gone = imports.new_in(STORED, imports.measure())
    assert not gone, "\n".join([*gone, "shorten the list: python -m tests.ratchet.imports --write"])


def test_circles_are_found_through_lazy_and_typing_imports(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "low" / "__init__.py").write_text("from pack.low.a import f\n")
    (package / "low" / "a.py").write_text("def f():\n    from pack.b import g\n    return g\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.low import f\n")
    (package / "c.py").write_text("import pack.b\n\ndef f():\n    import torch\n    import numpy  # heavy\n    import scipy\n")
    found = imports.measure(package)
    assert found == {"circles": [["b", "low", "low.a"]], "late": {"c": 1, "low.a": 1}}
    assert imports.new_in(found, {"circles": [["b", "low"]], "late": {"c": 1}}) == [
        "circle of imports: b, low, low.a", "low.a: 1 imports inside functions, stored 0",
    ]  # fmt: skip
    assert not imports.new_in({"circles": [["b", "low"]], "late": {}}, found)
