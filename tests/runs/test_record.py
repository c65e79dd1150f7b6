"""The record of a run: what was run, what refuses to continue it, forks, refused starts and warnings."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from runs.runs_common import CONFIG, edit, opened, tensors
from sage_rlvr.config import build, dump
from sage_rlvr.core.schedules import SCHEDULES
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.results.files import read_run
from sage_rlvr.runs import RunDir, record
from sage_rlvr.runs.record import STRETCHED


def test_the_record_says_what_was_run(tmp_path: Path) -> None:
    config = CONFIG | {"world": {"counts": {4: 1.0}}}
    with RunDir.open(tmp_path / "a/b/run", config, kind="sft", data={"model": "abc"}) as run:
        record = json.loads((run.path / "run.json").read_text())
    assert record["config"]["world"] == {"counts": {"4": 1.0}}
    assert record["kind"] == "sft" and record["data"] == {"model": "abc"} and record["changes"] == []
    assert {"python", "torch", "transformers", "numpy", "sage_rlvr"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__
    assert {"git", "platform", "processors", "cpu_count", "threads", "created"} <= set(record)
    RunDir.open(tmp_path / "a/b/run", config, kind="sft", data={"model": "abc"}).close()


def test_another_recipe_is_refused_with_every_difference(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, seed=1, rollout={"group_size": 4}, engine="loop")
    said = str(caught.value)
    assert "seed: 0 -> 1" in said and "rollout.group_size: 8 -> 4" in said and 'engine: "(absent)" -> "loop"' in said
    assert "another directory" in said and "--fork" in said
    with pytest.raises(ConfigError, match='kind: "train" -> "sft"'):
        RunDir.open(tmp_path / "run", CONFIG, kind="sft")
    with pytest.raises(ConfigError, match=r'data\.problems: "\(absent\)" -> "abc"'):
        RunDir.open(tmp_path / "run", CONFIG, data={"problems": "abc"})
    opened(tmp_path).close()  # the refusals gave the lock back and changed nothing


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reference_may_lie_elsewhere_but_be_no_other_one(wrapped: bool, tmp_path: Path) -> None:
    def again(source: str, **data: Any) -> None:
        method = {"name": "grpo", "source": source}
        method = {"name": "sage", "base": method} if wrapped else method
        RunDir.open(tmp_path / "run", CONFIG | {"method": method}, data=known | data).close()

    known: dict[str, Any] = {"model_sha256": "m", "reference": {"sha256": "r"}}
    again("start")
    again("/a/start")
    again("/b/moved")
    for source, data in (("/b/moved", {"reference": {"sha256": "s"}}), ("snapshot@2", {}), ("base", {})):
        with pytest.raises(ConfigError, match="this directory contains another run"):
            again(source, **data)


def test_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(record, "versions", lambda: {"torch": "9.9", "transformers": "9.9", "numpy": "9.9"})
    with pytest.raises(ConfigError, match=r'versions\.torch: ".*" -> "9\.9"'):
        opened(tmp_path)


def test_more_steps_alone_are_allowed_and_recorded(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with opened(tmp_path, steps=200) as run:
        assert run.facts["config"]["steps"] == 200
        assert run.facts["changes"][0]["changed"] == {"steps": [100, 200]}
        assert run.facts["changes"][0]["fork"] is False
    with pytest.raises(ConfigError, match=r"steps: 200 -> 100\n.*more steps but not fewer"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        opened(tmp_path, steps=300, seed=1)


METHODS = {
    "optimizer.schedule = linear": {"optimizer": {"schedule": "linear"}},
    "method.beta = cosine": {"method": {"name": "grpo", "beta": {"name": "cosine", "start": 0.1, "end": 0.0}}},
    "method.guide.alpha = cosine_cycles": {"method": {"name": "sage", "guide": {"name": "token"}}},
    "method.guide.guides.1.eps = cosine_cycles": {
        "method": {"name": "sage", "guide": {"name": "compose", "guides": [{"name": "branch"}, {"name": "random"}]}}
    },
}


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """As the command line records it: defaults of the method filled in."""
    filled = {"method": dump(build("method", tree["method"]))} if "method" in tree else {}
    return tree | filled


@pytest.mark.filterwarnings("ignore:Random in the loss is noise only")
@pytest.mark.parametrize("said", METHODS)
def test_more_steps_are_refused_where_a_schedule_is_stretched_over_all(tmp_path: Path, said: str) -> None:
    """8 steps asked for at once and 4 + 4 would see other learning rates or other q: not the same run."""
    tree = resolved(METHODS[said])
    opened(tmp_path, **tree).close()
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        opened(tmp_path, **tree, steps=200)
    assert "--fork" in str(caught.value) and "another directory" in str(caught.value)
    with pytest.raises(ConfigError, match="more steps but not fewer"):
        opened(tmp_path, **tree, steps=50)
    with RunDir.open(tmp_path / "run", CONFIG | tree | {"steps": 200}, fork=True) as run:
        assert run.facts["changes"][0]["fork"] is True and run.facts["config"]["steps"] == 200


def test_more_steps_are_allowed_where_nothing_reads_them(tmp_path: Path) -> None:
    rate = {"schedule": "constant", "warmup_steps": 5}
    beta = {"name": "constant", "value": 0.1}
    tree = resolved(
        {"optimizer": rate, "method": {"name": "sage", "base": {"name": "grpo", "beta": beta}, "guide": "branch"}}
    )
    opened(tmp_path, **tree).close()
    opened(tmp_path, **tree, steps=200).close()


def test_every_schedule_is_known_to_the_run_directory() -> None:
    assert set(SCHEDULES) == {"constant", *STRETCHED}


def test_another_version_or_commit_of_this_package_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def under(version: str, commit: str | None, code: str = "aa") -> None:
        monkeypatch.setattr(record, "code_sha256", lambda: code)
        monkeypatch.setattr(record, "versions", lambda: {"torch": "2", "transformers": "5", "sage_rlvr": version})
        monkeypatch.setattr(record, "git_state", lambda: commit and {"commit": commit, "changed": False})

    def changes() -> list[Any]:
        return [c["changed"] for c in json.loads((tmp_path / "run/run.json").read_text())["changes"]]

    under("0.1", "abc")
    opened(tmp_path).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()
        under("0.1", None)
        opened(tmp_path).close()
        under("0.1", "def")  # a commit that changed no code
        opened(tmp_path).close()
    assert changes() == []
    under("0.2", "def", "bb")
    with pytest.warns(UserWarning, match=r"versions\.sage_rlvr 0\.1 -> 0\.2, code aa -> bb, git\.commit abc -> def"):
        opened(tmp_path).close()
    assert changes() == [{"versions.sage_rlvr": ["0.1", "0.2"], "code": ["aa", "bb"], "git.commit": ["abc", "def"]}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()  # said once, then recorded
    under("0.2", "def", "cc")  # an uncommitted change
    with pytest.warns(UserWarning, match="code bb -> cc"), opened(tmp_path, steps=200) as run:
        assert run.facts["changes"][1]["fork"] is False
    assert changes()[1] == {"steps": [100, 200], "code": ["bb", "cc"]}
    under("0.2", None, "dd")  # an installed copy
    with pytest.warns(UserWarning, match="code cc -> dd"):
        opened(tmp_path, steps=200).close()
    under("0.3", "fed", "ee")
    with pytest.raises(ConfigError, match=r"by sage-rlvr 0\.2 \(code dd\) and this is sage-rlvr 0\.3 \(commit fed\)"):
        opened(tmp_path, steps=200, seed=7)


def test_the_hash_of_the_code_changes_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home := tmp_path / "package" / "runs").mkdir(parents=True)
    monkeypatch.setattr(record, "__file__", str(home / "record.py"))
    seen = set()
    for text in ("a = 1", "a = 2"):
        (home.parent / "part.py").write_text(text)
        seen |= {record.code_sha256.__wrapped__(), record.code_sha256.__wrapped__()}
    assert len(seen) == 2


def test_a_run_of_another_format_is_refused_with_the_version_that_made_it(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for made, message in (({"sage_rlvr": "0.0.7"}, r"sage-rlvr 0\.0\.7"), ({}, "an unknown version"), (None, "an unknown version")):
        edit(tmp_path / "run/run.json", format=0, versions=made)
        with pytest.raises(CheckpointError, match=rf"format 0, made by {message}"):
            opened(tmp_path)


def test_a_fork_continues_under_new_settings_and_records_it(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.save_checkpoint(10, tensors(), {})
    with RunDir.open(tmp_path / "run", CONFIG | {"seed": 5}, fork=True) as run:
        assert run.latest() is not None
        assert run.facts["changes"][0]["changed"] == {"seed": [0, 5]} and run.facts["changes"][0]["fork"] is True
        for step in range(12):
            run.log({"step": step})
    opened(tmp_path, seed=5).close()
    record = (tmp_path / "run/run.json").read_text()
    for steps in (4, 10, 11):  # what is there cannot go, by checkpoint or by row
        with pytest.raises(ConfigError, match=f"steps: 100 -> {steps}: 12 steps are already done.*another directory"):
            RunDir.open(tmp_path / "run", CONFIG | {"seed": 5, "steps": steps}, fork=True)
        assert (tmp_path / "run/run.json").read_text() == record
    RunDir.open(tmp_path / "run", CONFIG | {"seed": 5, "steps": 12}, fork=True).close()


@pytest.mark.slow
def test_a_lost_or_foreign_record_is_not_written_over(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log({"step": 0})
    record = tmp_path / "run/run.json"
    whole = record.read_text()
    for text, said in (
        ("{", "cannot be read as JSON"),
        ("[]", "an object"),
        ("[" * 100_000, "nested too deeply"),
        ({"format": 2}, "format 2, made by sage-rlvr "),
        *(({name: None}, f"{name} is missing") for name in ("config", "versions", "kind", "data", "changes")),
        *(
            ({name: 3}, f"{name} has an unexpected type")
            for name in ("config", "versions", "kind", "data", "changes", "git", "warnings")
        ),
        ({"warnings": [{"kind": "x"}]}, "warnings.0 has an unexpected type"),
        ({"config": CONFIG | {"steps": "many"}}, "config.steps is not a whole number"),
    ):
        record.write_text(whole if isinstance(text, dict) else text)
        if isinstance(text, dict):
            edit(record, **text)
        held = record.read_text()
        with pytest.raises(CheckpointError, match=re.escape(said)):
            opened(tmp_path)
        assert record.read_text() == held
    record.unlink()
    with pytest.raises(CheckpointError, match="missing, although the directory contains results"):
        opened(tmp_path)


def test_a_path_that_cannot_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create a run here"):
        RunDir.open(tmp_path / "file", CONFIG)
    with pytest.raises(ConfigError, match="cannot create a run here"):
        RunDir.open(tmp_path / "file/run", CONFIG)


def test_a_refused_start_claims_no_directory(tmp_path: Path):
    """The corrected command may use the folder; a run that has written anything keeps its record."""
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "run", {"model": "tinyy"}):
        raise ConfigError("no such model")
    with RunDir.open(tmp_path / "run", {"model": "tiny"}) as run:
        run.log({"step": 0})
    with pytest.raises(ConfigError, match="another thing"), RunDir.open(tmp_path / "run", {"model": "tiny"}):
        raise ConfigError("another thing")
    with pytest.raises(ConfigError, match="contains another run"):
        RunDir.open(tmp_path / "run", {"model": "other"})


def test_a_warning_is_kept_once_in_the_record_and_goes_with_its_step(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert "warnings" not in json.loads((run.path / "run.json").read_text())
        for step in (9, 19):
            with pytest.warns(UserWarning, match="does nothing"):
                run.warn("idle", step, "the guide does nothing")
        kept = [{"kind": "idle", "step": 9, "message": "the guide does nothing"}]
        assert json.loads((run.path / "run.json").read_text())["warnings"] == kept
        path = run.path
    with opened(tmp_path) as run:
        run.truncate_metrics(10)
        assert run.facts["warnings"] == kept
        run.truncate_metrics(9)  # the step is made again
        assert json.loads((path / "run.json").read_text())["warnings"] == []


def test_a_refused_start_leaves_nothing(tmp_path: Path) -> None:
    for there in (False, True):
        place = tmp_path / str(there)
        if there:
            place.mkdir()
        with pytest.raises(ConfigError, match="no such model"), RunDir.open(place, CONFIG):
            raise ConfigError("no such model")
        assert place.exists() == there and not (there and list(place.iterdir()))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="missing, although"):
        RunDir.open(tmp_path / "results", CONFIG)
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["metrics.jsonl"]
    with RunDir.open(tmp_path / "kept", CONFIG):
        pass
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "kept", CONFIG):
        raise ConfigError("a run that is there stays")
    assert (tmp_path / "kept" / "run.json").exists()


def test_a_run_continued_on_another_processor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = record.processor()
    opened(tmp_path).close()
    file = tmp_path / "run" / "run.json"
    monkeypatch.setattr(record, "processor", lambda: "another")
    with pytest.warns(UserWarning, match=r"another processor \(.* -> another\); the last bits of its numbers may differ"):
        opened(tmp_path).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()  # said once
    assert read_run(tmp_path / "run", "arm", 0).processors == (here, "another")
    assert json.loads(file.read_text())["changes"] == []
    edit(file, processors=None)  # a record of an older version
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()
    assert json.loads(file.read_text())["processors"] == ["unknown", "another"]
    edit(file, processors=[5])
    with pytest.raises(CheckpointError, match="processors has an unexpected type"):
        opened(tmp_path)


def test_a_run_without_steps_left_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as run:
        for step in range(run.facts["config"]["steps"]):
            run.log({"step": step})
    monkeypatch.setattr(record, "processor", lambda: "another")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path).close()
    assert "another" not in read_run(tmp_path / "run", "arm", 0).processors


X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 8
flags\t\t: fpu sse avx2 avx512f amx_bf16

processor\t: 1
model\t\t: 1
"""
ARM64 = """processor\t: 0
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def test_processors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record.platform, "machine", lambda: "aarch64")
    assert record.described_processor(X86) == "Intel(R) Xeon(R) Processor family 6 model 143 stepping 8 avx2 avx512f amx_bf16"
    assert record.described_processor(ARM64) == "aarch64 implementer 0x41 part 0xd40 asimd sve"
    assert record.described_processor("") == "aarch64"


def test_null_and_absent_are_the_same_setting() -> None:
    config = {"method": {"name": "compose"}}
    unset, given = {"method": {"name": "compose", "loss_term": None}}, {"method": {"name": "compose", "loss_term": "entropy"}}
    assert record.config_differences(unset, config) == {} == record.config_differences(config, unset)
    assert record.config_differences(given, config) == {"method.loss_term": ("entropy", "(absent)")}
    assert record.config_differences({"a": None}, {"a": 0}) == {"a": (None, 0)}
