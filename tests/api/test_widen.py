"""`widen`: both policies are sampled into stores that continue, and the verdict is that of `compare` on these stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sage_rlvr
from command import call
from sage_rlvr.errors import ConfigError

Recipe = Callable[..., Path]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_both_policies_are_sampled_compared_and_continued(
    warm_policy: Path, tiny_policy: Path, write_recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", write_recipe(), "--problems", 3, "--out", "out", "--base-temperatures", 0.5, "--quiet")
    assert call("widen", tiny_policy, warm_policy, *words, "--samples", 8) == 0
    first = capsys.readouterr()
    stores = [f"out/samples/{name}" for name in ("base-T1", "base-T0.5", "rl-T1")]
    assert all(Path(store, "store.json").is_file() for store in stores) and Path("out/report.html").is_file()
    digests = [_digest(store) for store in stores]
    assert call("compare", f"base={stores[0]},{stores[1]}", f"rl={stores[2]}", "--samples", 8) == 0
    again = capsys.readouterr().out
    assert first.out.startswith(again.rstrip()) and "rl" in again
    assert call("widen", tiny_policy, warm_policy, *words, "--samples", 8) == 0  # continues: nothing is drawn again
    assert [_digest(store) for store in stores] == digests and capsys.readouterr().out == first.out
    from_python = sage_rlvr.widen(
        tiny_policy, warm_policy, world=str(write_recipe()), problems=3, samples=8, base_temperatures=(0.5,), out="api", quiet=True
    )
    assert [_digest(f"api/samples/{Path(store).name}") for store in stores] == digests
    assert json.dumps(from_python.rows) == json.dumps(sage_rlvr.compare(base=stores[:2], rl=stores[2], samples=8).rows)


def _digest(store: str) -> str:
    from sage_rlvr.evaluation.store import SampleStore

    return SampleStore.open(store).digest()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"which problems\? pass --task"):
        sage_rlvr.widen("a", "b")
    with pytest.raises(ConfigError, match="BASE and RL are both a"):
        sage_rlvr.widen("a", "a", "rows.jsonl")
    with pytest.raises(ConfigError, match="samples 1: one sample of a problem shows no coverage"):
        sage_rlvr.widen("a", "b", "rows.jsonl", samples=1)
    with pytest.raises(ConfigError, match="--base-server, --base-server-model: settings of --generator server"):
        sage_rlvr.widen("a", "b", "rows.jsonl", base_server="http://localhost:8000")
    with pytest.raises(ConfigError, match="unknown option 'problem'; did you mean 'problems'"):
        sage_rlvr.widen("a", "b", "rows.jsonl", problem=3)
