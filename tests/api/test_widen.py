"""`widen`: both policies are sampled into stores that continue, and the verdict is that of `compare` on these stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sage_rlvr
from chat_policy import chat_policy
from command import call
from models.test_generation_served import serving
from sage_rlvr.errors import ConfigError

Recipe = Callable[..., Path]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_names_on_one_server_of_chat_completions(tmp_path: Path) -> None:
    before, after = (chat_policy(tmp_path / name) for name in ("before", "after"))
    rows = [{"problem": f"{a} + 1?", "answer": str(a + 1)} for a in range(1, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        question = body["messages"][-1]["content"]
        right = next(row["answer"] for row in rows if row["problem"] in question)
        said = right if body["model"] == "after" or (body["temperature"] == 1 and body["seed"] % 4 == 0) else "no"
        message = {"role": "assistant", "content": rf"\boxed{{{said}}}"}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}

    with serving(answer) as (url, asked):
        comparison = sage_rlvr.widen(
            before, after, "rows.jsonl", samples=8, base_temperatures=(0.5,), generator="chat", server=url,
            server_model="after", base_server_model="before", out="out", quiet=True,
        )  # fmt: skip
    assert {(body["model"], body["temperature"]) for body in asked} == {("after", 1.0), ("before", 1.0), ("before", 0.5)}
    assert len(asked) == 3 * 8 * 4
    scores = {(row["a"], row["metric"]): row["mean_a"] for row in comparison.rows}
    assert scores["rl", "pass@1"] == 1.0
