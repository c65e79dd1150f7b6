"""Old module names lead to the new ones for one version, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sage_rlvr.cli.app import parse
from sage_rlvr.moved import MODULES, NAMES, places

ROOT = importlib.import_module("sage_rlvr").__path__[0]

OLD: dict[str, str] = json.loads((Path(__file__).parent / "frozen" / "old_names.json").read_text(encoding="utf-8"))


def test_every_new_place_exists():
    missing = [new for new in MODULES.values() if importlib.util.find_spec(f"sage_rlvr.{new}") is None]
    assert not missing
    gone = [
        f"{home}.{name}"
        for old in NAMES
        for home, name in places(old).values()
        if not hasattr(importlib.import_module(home), name)
    ]
    assert not gone


def removed() -> dict[str, set[str]]:
    """Module -> names, as CHANGELOG.md lists them under Removed; {"*"} for a module that is gone as a whole."""
    text = (Path(__file__).resolve().parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    section = text.partition("### Removed\n")[2].partition("\n#")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("- `sage_rlvr"):
            module, *names = re.findall(r"`([\w.]+)`", line)
            found[module] = set(names) or {"*"}
    return found


@pytest.mark.parametrize("module", OLD)
def test_every_old_name_resolves_or_is_listed_as_removed(module: str):
    """What was public in version 0.1 (`__all__` of each module, and names that were documented) is there, is answered with a
    warning, or stands under Removed."""
    gone, names = removed().get(module, set()), OLD[module].split()
    if "*" in gone:
        with pytest.raises(ImportError):
            importlib.import_module(module)
        return
    short = module.removeprefix("sage_rlvr.")
    try:
        if short in MODULES:
            sys.modules.pop(module, None)
            with pytest.warns(DeprecationWarning, match="goes with version 0.3"):
                found = importlib.import_module(module)
        else:
            found = importlib.import_module(module)
        for name in names:
            if name in places(short):
                with pytest.warns(DeprecationWarning, match="goes with version 0.3"):
                    assert getattr(found, name) is not None
            elif name in gone:
                assert not hasattr(found, name), f"{module}.{name} is there, and CHANGELOG.md calls it removed"
            else:
                folder = hasattr(found, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None
                assert hasattr(found, name) or folder, (
                    f"{module}.{name}: name its new place in moved.NAMES, or list it under Removed in CHANGELOG.md"
                )
    except ModuleNotFoundError as error:
        if error.name not in ("trl", "accelerate", "datasets"):
            raise
        pytest.skip(f"needs {error.name}")


def test_an_old_option_is_the_new_one_and_warns():
    with pytest.warns(FutureWarning, match="--doses is called --budgets now"):
        assert parse(["study", "guides", "--doses", "0.1", "0.2"])[1].budgets == (0.1, 0.2)


@pytest.mark.slow
def test_an_old_import_is_the_new_module_and_warns():
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    from sage_rlvr.engines.loop import train_step\n"
        "    from sage_rlvr.evaluation import pass_at_k\n"
        "    from sage_rlvr.engines import sampler\n"
        "from sage_rlvr.training import loop\n"
        "import sage_rlvr.models.sampler as new\n"
        "assert train_step is loop.train_step and sampler is new and new.__spec__.name == 'sage_rlvr.models.sampler'\n"
        "words = ' '.join(str(w.message) for w in caught if w.category is DeprecationWarning)\n"
        "assert 'sage_rlvr.training.loop' in words and 'sage_rlvr.stats.passk' in words, words\n"
    )
    path = ROOT.rsplit("/", 1)[0]
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_never_was_is_an_error():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sage_rlvr.engines.nothing")


def test_an_old_spelling_is_the_new_name_and_warns():
    core = importlib.import_module("sage_rlvr.core")
    for old, new in {"GroupNormalised": "GroupNormalized", "GroupCentred": "GroupCentered"}.items():
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(core, old) is getattr(core, new)
