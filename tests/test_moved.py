"""Old module names lead to the new ones for one version, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from sage_rlvr.moved import EVALUATION, MODULES

ROOT = importlib.import_module("sage_rlvr").__path__[0]


def test_every_new_place_exists():
    missing = [new for new in MODULES.values() if importlib.util.find_spec(f"sage_rlvr.{new}") is None]
    assert not missing
    gone = [
        f"{home}.{name}"
        for home, names in EVALUATION.items()
        for name in names.split()
        if not hasattr(importlib.import_module(f"sage_rlvr.{home}"), name)
    ]
    assert not gone


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
