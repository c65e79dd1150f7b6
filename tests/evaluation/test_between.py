"""`eval --interpolate`: one store for each share, whose identity says what was mixed, beside temperatures and the KL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import Capture, call, refused
from sage_rlvr import evaluate
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.results.page import page_of


@pytest.fixture
def words(write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    recipe = write_recipe()
    monkeypatch.chdir(tmp_path)
    return ("--world", recipe, "--problems", 3, "--samples", 4, "--dtype", "float32", "--quiet")


def drawn(store: str | Path) -> list[list[int]]:
    with SampleStore.open(Path(store)) as opened:
        return [np.asarray(ids).tolist() for ids in opened.lists(("token_ids",))["token_ids"]]


@pytest.mark.slow
def test_each_share_has_a_store_that_says_what_it_is(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = ("--interpolate", tiny_policy, 0, ".5", 1)
    assert call("eval", warm_policy, *words, *shares, "--kl-to", tiny_policy, "--kl-samples", 2, "--json") == 0
    tree = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in tree["rows"]] == [0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1]
    reverse = [one["kl"]["rows"][0]["kl"] for one in tree["each"]]
    assert reverse[0] == 0 and 0 < reverse[1] < reverse[2]
    homes = [Path(path) for path in tree["paths"]]
    identities = [SampleStore.open(home).identity for home in homes]
    names = tiny_policy.name, warm_policy.name
    assert [one.model for one in identities] == [f"{1 - a:g} {names[0]} + {a:g} {names[1]}" for a in (0, 0.5, 1)]
    assert len({one.revision for one in identities}) == 3
    assert call("eval", warm_policy, *words, "--store", "own") == 0 and call("eval", tiny_policy, *words, "--store", "base") == 0
    assert drawn(homes[2]) == drawn("own") and drawn(homes[0]) == drawn("base")
    assert drawn(homes[1]) not in (drawn("own"), drawn("base"))
    capsys.readouterr()
    stores = "base=base", "own=own", f"half={homes[1]}"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    assert call("compare", *stores, "--out", "page", "--github-summary") == 0
    assert "**Does it do more than weights between base and own, without training? own: " in Path("step.md").read_text()
    said = capsys.readouterr().out
    assert "Does it do more than weights between base and own, without training? own: " in said and "half: yes" not in said
    summary = json.loads(Path("page/summary.json").read_text())
    assert {row["label"]: row.get("lines") for row in summary["sampled"]} == {
        name: {"weights between base and own": at} for name, at in (("base", 1), ("own", 0), ("half", 0.5))
    }
    assert page_of(summary)["frontier"]["mixed"].keys() == {"weights between base and own"}
    assert Path("page/figures/frontier.png").exists() and call("report", "page") == 0


@pytest.mark.slow
def test_a_mixture_at_another_temperature_and_in_the_upper_layers_alone(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Capture
) -> None:
    upper = ("--interpolate", tiny_policy, ".5", "--layers", "upper", "--temperature", ".5")
    assert call("eval", warm_policy, *words, *upper) == 0
    said = capsys.readouterr().out
    label = f"0.5 {tiny_policy.name} + 0.5 {warm_policy.name} in the upper layers"
    assert f"policy     {label}" in said
    store = Path(said.split("store: ")[1].strip())
    assert store.name == "countdown-untruncated-T0.5" and SampleStore.open(store).identity.model == label
    assert "revision" in refused(capsys, "eval", warm_policy, *words, *upper[:3], "--temperature", ".5", "--store", store)
    mixture: dict[str, Any] = {"interpolate": (str(tiny_policy), 0.5)}
    made = evaluate(str(warm_policy), task="countdown:demo", problems=2, samples=2, store="python", quiet=True, **mixture)
    assert made.policy == f"0.5 {tiny_policy.name} + 0.5 {warm_policy.name}"
    assert "no path of its policy" in refused(capsys, "eval", warm_policy, *words, "--kl-to", store)


@pytest.mark.slow
def test_stores_of_mixtures_are_not_those_of_the_run(
    words: tuple[Any, ...], write_recipe: Callable[..., Path], tiny_policy: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert call("train", write_recipe(), "--run-dir", "out/a", "--quiet") == 0
    assert call("eval", "out/a", *words[2:], "--interpolate", tiny_policy, ".5") == 0
    store = Path(capsys.readouterr().out.split("store: ")[1].strip())
    assert store.parts[:2] == ("out", "samples") and not Path("out/a/samples").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--interpolate", "BASE"), "pass BASE and then shares"),
        (("--interpolate", "BASE", "half"), "could not convert string to float: 'half'"),
        (("--interpolate", "BASE", "1.5"), "shares of WHAT from 0"),
        (("--interpolate", "BASE", ".5", "0.5"), "pass each share once"),
        (("--layers", "upper"), "--layers upper: a setting of --interpolate"),
        (("--interpolate", "BASE", ".5", ".25", "--gate"), "--gate: judges one policy"),
        (("--interpolate", "BASE", ".5", "--generator", "vllm"), "the weights are mixed in this process"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Capture, options: tuple[str, ...], message: str
) -> None:
    given = [str(tiny_policy) if word == "BASE" else word for word in options]
    assert message in refused(capsys, "eval", warm_policy, *words, *given)


@pytest.mark.slow
def test_borrowed_states_have_a_store_of_their_own(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Capture
) -> None:
    borrow = ("--borrow", tiny_policy, "--at")
    classes = ("operator", "first operator", "first operand", "operand", "behind")
    assert call("eval", warm_policy, *words, *borrow, *classes, "--store", "all") == 0
    assert call("eval", warm_policy, *words, *borrow, *classes[:2], "--json") == 0
    said = capsys.readouterr().out
    assert f"policy     {warm_policy.name} with {tiny_policy.name} at first operand," in said
    some = Path(json.loads(said[said.index("{") :])["paths"][0])
    assert call("eval", warm_policy, *words, "--store", "own") == 0 and call("eval", tiny_policy, *words, "--store", "base") == 0
    assert drawn("all") == drawn("base") and drawn(some) not in (drawn("own"), drawn("base"))
    identity = SampleStore.open(some).identity
    assert identity.model == f"{warm_policy.name} with {tiny_policy.name} at first operator, operator"
    assert len({SampleStore.open(store).identity.revision for store in ("all", some, "own", "base")}) == 4
    assert some.parts[:2] == ("runs", "samples")
    capsys.readouterr()
    assert call("compare", f"some={some}", "own=own") == 0
    assert call("eval", warm_policy, *words, *borrow, *classes[:2], "--samples", 8, "--temperature", ".5") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--borrow", "BASE"), "at which states? add --at"),
        (("--at", "operator"), "--at operator: a setting of --borrow"),
        (("--borrow", "BASE", "--at", "operators"), "countdown has no such class of states"),
        (("--borrow", "BASE", "--at", "operator", "--kl-to", "BASE"), "with --kl-to"),
        (("--borrow", "BASE", "--at", "operator", "--interpolate", "BASE", ".5"), "with --interpolate"),
        (("--borrow", "BASE", "--at", "operator", "--generator", "transformers"), "steps two policies; use --generator sampler"),
    ],
)
def test_what_cannot_be_borrowed_is_refused(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Capture, options: tuple[str, ...], message: str
) -> None:
    given = [str(tiny_policy) if word == "BASE" else word for word in options]
    assert message in refused(capsys, "eval", warm_policy, *words, *given)
