"""The exact KL of two policies: by enumeration of all completions, 0 for equal ones, in parts, kept and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from command import Capture, call, refused
from sage_rlvr.core import laws
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import kl_run
from sage_rlvr.evaluation.kl import Side, TokenKl, known_kl, read_kl
from sage_rlvr.evaluation.kl_run import Completion, batches, kl_of_stores, sums_of
from sage_rlvr.evaluation.store import SampleStore
from samples_common import IDENTITY, evaluate

END, WORDS, LONGEST, PROMPTS = 1, 5, 3, ((2, 3), (4,))
IDS = {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": END, "pad_token_id": 0, "initializer_range": 0.7}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**IDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**IDS, n_embd=16, n_inner=24, n_layer=2, n_head=2, n_positions=16)),
}


def build(name: str, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def completions(prompt: tuple[int, ...]) -> list[Completion]:
    """All of them: those that end, and those that meet the limit."""
    others = [word for word in range(WORDS) if word != END]
    texts = [(*before, END) for n in range(LONGEST) for before in product(others, repeat=n)]
    texts += list(product(others, repeat=LONGEST))
    return [Completion(prompt, np.array(text), np.ones(len(text), dtype=bool)) for text in texts]


@torch.no_grad()
def log_prob(model: PreTrainedModel, row: Completion, temperature: float) -> float:
    """Of a completion, by one plain forward of it alone."""
    whole = torch.tensor([[*row.prompt, *row.ids.tolist()]])
    found = torch.log_softmax(model(whole).logits[0, len(row.prompt) - 1 : -1].double() / temperature, -1)
    return float(found[range(len(row.ids)), row.ids.tolist()].sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_mean_over_all_completions_is_the_kl_of_completions(name: str, temperature: float) -> None:
    policy, base = build(name, 0), build(name, 1)
    for prompt in PROMPTS:
        rows = completions(prompt)
        p, f = (np.array([log_prob(model, row, temperature) for row in rows]) for model in (policy, base))
        assert np.exp(p).sum() == pytest.approx(1, abs=1e-5) and np.exp(f).sum() == pytest.approx(1, abs=1e-5)
        tokens, reverse, forward = sums_of(policy, base, rows, temperature).sum(1).T
        assert tokens.tolist() == [len(row.ids) for row in rows]
        assert np.exp(p) @ reverse == pytest.approx(np.exp(p) @ (p - f), rel=1e-5, abs=2e-5)
        assert np.exp(f) @ forward == pytest.approx(np.exp(f) @ (f - p), rel=1e-5, abs=2e-5)
        assert np.exp(p) @ (p - f) > 0.05  # the policies differ
        mirrored = sums_of(base, policy, rows, temperature).sum(1).T  # each is the other's mirror image
        assert np.allclose(mirrored[1], forward, atol=1e-5) and np.allclose(mirrored[2], reverse, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_equal_policies_are_0_apart_at_every_token(name: str) -> None:
    sums = sums_of(build(name, 0), build(name, 0), [*completions(PROMPTS[0]), *completions(PROMPTS[1])], 1.0)[:, 0]
    assert (sums[:, 1:] == 0).all() and (sums[:, 0] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_few_tokens_at_a_time_give_the_same_and_no_more_are_alive(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, base, rows = build(name, 0), build(name, 1), [*completions(PROMPTS[0]), *completions(PROMPTS[1])]
    whole, sizes = sums_of(policy, base, rows, 1.0)[:, 0], []
    inner = kl_run.unnormalized_kl
    monkeypatch.setattr(laws, "NUMBERS", 7 * WORDS)
    monkeypatch.setattr(kl_run, "unnormalized_kl", lambda p, f: (sizes.append(p.numel()), inner(p, f))[1])
    assert np.allclose(sums_of(policy, base, rows, 1.0)[:, 0], whole, atol=1e-6)
    assert max(sizes) == 7 * WORDS and sum(sizes) == WORDS * whole[:, 0].sum()
    apart = [one for part in batches(rows, 9) for (one,) in sums_of(policy, base, part, 1.0)]
    assert np.allclose(np.array(apart), whole, atol=1e-5)


def test_stores_drawn_in_bfloat16_are_scored_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small KL is what rounding to bfloat16 would drown."""
    asked, task = [], SimpleNamespace(problems={"a": None}, task=None)
    stores: Any = {name: SimpleNamespace(identity=IDENTITY, path=name) for name in ("policy", "base")}
    stop = RuntimeError("loaded")

    def load(name: str, dtype: str) -> Any:
        asked.append(dtype)
        if len(asked) == 2:
            raise stop
        return None, None

    monkeypatch.setattr(kl_run, "load_here", load)
    monkeypatch.setattr(kl_run, "about_of", lambda *_: {})
    monkeypatch.setattr(kl_run, "known_kl", lambda *_: None)
    run: Any = SimpleNamespace(model="rl", policy="rl", precision="bfloat16")
    with pytest.raises(RuntimeError, match="loaded"):
        kl_of_stores(run, run, stores, task, 8, None, lambda _: None)  # type: ignore[arg-type]
    assert asked == ["float32", "float32"]


def test_what_an_environment_said_does_not_count() -> None:
    policy, base, (row, *_) = build("llama", 0), build("llama", 1), completions(PROMPTS[0])[-1:]
    own = np.array([True, False, True])
    (((tokens, reverse, _),),) = sums_of(policy, base, [replace(row, own=own)], 1.0)
    (((_, first, _),),) = sums_of(policy, base, [replace(row, ids=row.ids[:1], own=row.own[:1])], 1.0)
    (((_, second, _),),) = sums_of(policy, base, [replace(row, ids=row.ids[:2], own=row.own[:2])], 1.0)
    (((_, third, _),),) = sums_of(policy, base, [row], 1.0)
    assert tokens == 2 and reverse == pytest.approx(first + third - second, abs=1e-6)


def test_classes_of_states_part_the_sums() -> None:
    policy, base, rows = build("llama", 0), build("llama", 1), completions(PROMPTS[0])
    classed = [replace(row, states=np.arange(len(row.ids)) % 2) for row in rows]
    whole, parts = sums_of(policy, base, rows, 1.0), sums_of(policy, base, classed, 1.0, 2)
    assert parts.shape == (len(rows), 2, 3) and np.allclose(parts.sum(1), whole[:, 0], atol=1e-6)
    assert parts[:, 1, 0].tolist() == [len(row.ids) // 2 for row in rows] and parts[:, 1, 1].sum() > 0
    first = [replace(row, ids=row.ids[:1], own=row.own[:1]) for row in rows]
    of_one = [row for row in range(len(rows)) if len(rows[row].ids) == 2]
    assert np.allclose(parts[of_one, 0], sums_of(policy, base, first, 1.0)[of_one, 0], atol=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=20), st.integers(1, 20))
def test_batches_hold_every_row_in_order(sizes: list[tuple[int, int]], most: int) -> None:
    rows = [Completion((owner,) * (owner + 1), np.arange(n), np.ones(n, dtype=bool)) for owner, n in sorted(sizes)]
    found = list(batches(rows, most))
    assert [row for part in found for row in part] == rows
    for part in found:
        prompts = {row.prompt for row in part}
        assert len(part) == 1 or sum(map(len, prompts)) + sum(len(row.ids) for row in part) <= most


def test_heads_of_different_widths_are_an_error() -> None:
    torch.manual_seed(0)
    wider = GPT2LMHeadModel(GPT2Config(**IDS | {"vocab_size": 7}, n_embd=16, n_layer=1, n_head=2, n_positions=16)).eval()
    with pytest.raises(ConfigError, match="the heads have 5 and 7 words"):
        sums_of(build("llama", 0), wider, completions(PROMPTS[0])[:2], 1.0)


# ------------------------------------------------------------------------------------------------------------------
# kept and read


SPLIT = np.random.default_rng(1).integers(1, 9, (3, 4, 3, 2)).astype(float)
"""Tokens, reverse and forward of 4 problems, 3 completions, 2 classes of states."""


def found() -> TokenKl:
    rng = np.random.default_rng(0)
    sides: dict[Any, Side] = {
        name: Side(rng.integers(1, 9, (4, 3)).astype(float), rng.random((4, 3)), rng.random((4, 3))) for name in ("policy", "base")
    }
    about = {"policy": "rl", "base": "sft", "temperature": 1.0, "truncated": False, "samples": 3, "dtype": "float32"}
    return TokenKl(about, ("a", "b", "c", "d"), sides)


def test_it_is_read_as_it_was_kept(tmp_path: Path) -> None:
    one, path = found(), tmp_path / "kl-sft.json"
    one.save(path)
    again = read_kl(path)
    assert again.rows() == one.rows() and again.lines() == one.lines() and again.problems == one.problems
    assert known_kl(path, one.about) is not None
    assert known_kl(path, {**one.about, "samples": 4}) is None and known_kl(tmp_path / "b.json", one.about) is None
    side = one.sides["policy"]
    halves = {"first": Side(*(half[..., 0] for half in SPLIT)), "behind": Side(*(half[..., 1] for half in SPLIT))}
    parted = replace(one, sides={name: Side(*(half.sum(-1) for half in SPLIT), halves) for name in ("policy", "base")})
    parted.save(path)
    assert read_kl(path).rows() == parted.rows() and read_kl(path).lines() == parted.lines()
    shares = [share.value for _, _, share in parted.sides["policy"].by_state("reverse") if share is not None]
    assert sum(shares) == pytest.approx(1) and shares[0] == pytest.approx(SPLIT[1][..., 0].sum() / SPLIT[1].sum())
    one.save(path)
    assert side.interval("reverse", "token").value == pytest.approx(side.reverse.sum() / side.tokens.sum())
    assert side.interval("forward", "completion").value == pytest.approx(side.forward.mean())
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DataError, match="format 2, and this version reads 1"):
        read_kl(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="no KL of an evaluation"):
        read_kl(path)
    number = {"tokens": 1, "reverse": 0.0, "forward": 0.0}
    path.write_text(json.dumps({"format": 1, "about": {}, "problems": ["a"], "policy": number, "base": number}))
    with pytest.raises(DataError, match=re.escape("shapes [()] for 1 problems")):
        read_kl(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_hash": "t1"}, "other problems"),
        ({"template_hash": "h1"}, "prompts are rendered differently"),
        ({"decoding": IDENTITY.decoding | {"temperature": 0.5}}, "temperatures 1 and 0.5"),
    ],
)
def test_stores_of_different_questions_are_an_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    base = evaluate(tmp_path / "b", ["a"], 32, replace(IDENTITY, **changes))
    stores, nothing = {"policy": evaluate(tmp_path / "a", ["a"], 32), "base": base}, None
    with pytest.raises(ConfigError, match=message):
        kl_of_stores(nothing, nothing, stores, nothing, 8, nothing, nothing)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------------
# the command


@pytest.mark.slow
def test_the_command_computes_it_on_completions_of_both_and_reads_it_again(
    write_recipe: Callable[..., Path],
    warm_policy: Path,
    tiny_policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    recipe = write_recipe()
    monkeypatch.chdir(tmp_path)
    words = ("--world", recipe, "--problems", 4, "--samples", 8, "--quiet", "--store", "a")
    assert call("eval", warm_policy, *words, "--kl-to", tiny_policy, "--kl-samples", 3, "--json") == 0
    printed = json.loads(capsys.readouterr().out)["kl"]
    rows = {(row["rollouts"], row["direction"], row["per"]): row for row in printed["rows"] if "state" not in row}
    of_states = [row for row in printed["rows"] if row.get("state") == "first operand"]  # every completion begins with one
    assert len(of_states) == 4 and all(row["kl"] > 0 and 0 < row["share"] < 1 for row in of_states)
    assert len(rows) == 8 and all(row["low"] <= row["kl"] <= row["high"] and row["kl"] > 0 for row in rows.values())
    kept = read_kl(Path("a") / f"kl-{tiny_policy.name}.json")
    assert kept.sides["base"].tokens.shape == (4, 3) and printed["about"]["samples"] == 3
    base_store = Path("runs/samples") / tiny_policy.name / "countdown-untruncated"
    with SampleStore.open("a") as one, SampleStore.open(base_store) as other:
        drawn = [store.lists(("token_ids",), problems=list(kept.problems), n=3)["token_ids"] for store in (one, other)]
    lengths = [[len(ids) for ids in some] for some in drawn]
    assert [kept.sides[side].tokens.reshape(-1).tolist() for side in ("policy", "base")] == lengths  # type: ignore[index]

    def loaded_again(*_: Any) -> None:
        raise AssertionError("the policies were loaded again")

    with monkeypatch.context() as patched:
        patched.setattr(kl_run, "load_here", loaded_again)
        assert call("eval", warm_policy, *words, "--kl-to", base_store, "--kl-samples", 3) == 0
    assert f"KL         to {tiny_policy.name}, exact over the vocabulary at T 1, first 3 samples" in capsys.readouterr().out
    assert call("eval", warm_policy, *words, "--kl-to", warm_policy) == 0
    same = read_kl(Path("a") / f"kl-{warm_policy.name}.json")
    assert all((side.reverse == 0).all() and (side.forward == 0).all() for side in same.sides.values())
    assert "--kl-to" in refused(capsys, "eval", warm_policy, "--world", recipe, "--kl-to", tiny_policy)
