"""Old module names lead to the new ones for one version, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from frozen.folders import as_once, write_sweep
from sage_rlvr import recipes
from sage_rlvr.cli.app import parse
from sage_rlvr.errors import ConfigError
from sage_rlvr.experiments.design import load_design
from sage_rlvr.moved import MODULES, NAMES, places
from sage_rlvr.results import Results, compare
from sage_rlvr.results.stored import read_summary
from sage_rlvr.runs import read_metrics

HOUSE = Path(__file__).resolve().parents[2]
ROOT = importlib.import_module("sage_rlvr").__path__[0]

OLD: dict[str, str] = json.loads((Path(__file__).parents[1] / "frozen" / "old_names.json").read_text(encoding="utf-8"))


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
    text = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("name", ("tier1.yaml", "policies/gpt2.yaml"))
def test_an_old_path_of_a_design_is_the_new_one_and_warns(name: str):
    with pytest.warns(FutureWarning, match=f"recipes/matrices/{name} is recipes/designs/{name} now"):
        assert recipes.find(f"recipes/matrices/{name}", folder=HOUSE) == HOUSE / "recipes" / "designs" / name


def test_an_old_name_of_a_design_is_the_new_one_and_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(FutureWarning, match="matrices/tier1 is designs/tier1 now"):
        assert load_design(Path("matrices/tier1")) == load_design(Path("tier1"))
    with pytest.raises(ConfigError, match=r"designs/teir1: no such file, nor a shipped recipe; did you mean 'designs/tier1'"):
        load_design(Path("matrices/teir1"))
    (tmp_path / "matrices").mkdir()  # a folder of one's own is called as it is
    text = (HOUSE / "recipes" / "designs" / "tier1.yaml").read_text(encoding="utf-8")
    (tmp_path / "matrices" / "mine.yaml").write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert load_design(Path("matrices/mine.yaml")) == load_design(Path("tier1"))
        with pytest.raises(ConfigError, match=r"matrices/mnie\.yaml: no such file, .*did you mean matrices/mine\.yaml"):
            load_design(Path("matrices/mnie.yaml"))


def test_an_old_key_of_a_design_is_the_new_one_and_warns(tmp_path: Path):
    path, rest = tmp_path / "mine.yaml", "seeds: [0, 1, 2]\narms: {grpo: grpo}\ncontrol: grpo\n"
    path.write_text("# mine\ntier: small\n" + rest, encoding="utf-8")
    with pytest.warns(FutureWarning, match=r"mine\.yaml:2: the key tier is called title now"):
        assert load_design(path).title == "small"
    path.write_text("tier: 3\n" + rest, encoding="utf-8")
    with pytest.warns(FutureWarning), pytest.raises(ConfigError, match=r"mine\.yaml:1: title = 3"):
        load_design(path)
    path.write_text("title: one\ntier: other\n" + rest, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.yaml:2: .*tier"):
        load_design(path)


def test_the_folder_of_an_old_sweep_is_read(tmp_path: Path):
    before = Results.read(write_sweep(tmp_path / "sweep"))
    as_once(tmp_path / "sweep")
    after = Results.read(tmp_path / "sweep")
    assert after.design == before.design and after.design.title == "synthetic sweep" and after.notes == before.notes
    assert after.runs.keys() == before.runs.keys() and len(after.records) == len(before.records)
    assert list(map(repr, compare(after))) == list(map(repr, compare(before)))


@pytest.mark.parametrize("name", ("tier1", "frontier"))  # of format 1 and of format 2
def test_an_old_summary_is_read_in_the_words_of_today(name: str):
    found = read_summary(HOUSE / "docs" / "results" / name / "summary.json")
    assert found["design"] == f"{name}.yaml" and found["title"] and not {"matrix", "tier"} & found.keys()


def test_an_old_metric_has_its_new_name(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "reward/dead_group_share": 0.5}\n')
    assert read_metrics(tmp_path) == [{"step": 0, "reward/zero_variance_share": 0.5}]
