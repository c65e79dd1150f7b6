"""Own rows, a model folder and a byte-level tokenizer: prompts, golds, cut completions, entropies, q in store, page, terminal."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from byte_tokenizer import CHATML, byte_tokenizer
from command import call, refused, said
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.sample_text import sample_lines
from sage_rlvr.evaluation.store import Identity, PromptAndGold, Sample, SampleStore
from sage_rlvr.models.policy import Tokens
from sage_rlvr.results.details.samples import data_of, sample_sets
from sage_rlvr.results.read import read_results
from sage_rlvr.tasks.base import NO_ANSWER

ROWS = [("What is 3 + 4, Zoë?", "7"), ("What is 2 + 2?", "4")]
ASKED = ("eval", "model", "--task", "sums.jsonl", "--max-new-tokens", 6, "--guide", "branch", "--store", "s", "--quiet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of random weights, rows, and a store of 8 samples of each row."""
    folder = tmp_path_factory.mktemp("made")
    tokenizer = byte_tokenizer(CHATML)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    lines = [json.dumps({"problem": problem, "answer": answer}) for problem, answer in ROWS]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call(*ASKED, "--samples", 8) == 0
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy of the store, in another folder than the model's."""
    shutil.copytree(made / "s", tmp_path / "s")
    return tmp_path / "s"


def page_data(*stores: Path) -> dict[str, Any]:
    results = read_results(*map(str, stores))
    return data_of(sample_sets(results.table.sampled(), results.design, 8))


def test_a_store_keeps_prompts_golds_and_cut_completions_without_a_mark(store: Path, tmp_path: Path) -> None:
    assert call("samples", store, "--to-parquet", tmp_path / "all.parquet") == 0
    with SampleStore.open(store) as opened:
        questions, rows = opened.questions(), opened.samples()
    assert [q.gold for q in questions.values()] == ["7", "4"]
    assert "Zoë?<|im_end|>" in questions["0"].prompt and questions["0"].prompt.endswith("assistant\n")
    cut = [row for row in rows if row.finish == "length"]
    assert len(cut) > 8 and not any(row.text.endswith(NO_ANSWER) for row in cut)
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["gold"].to_pylist() == ["7"] * 8 + ["4"] * 8 and table["prompt"].to_pylist()[0] == questions["0"].prompt
    assert table["text"].to_pylist() == [row.text for row in rows]


def test_who_judges_again_gets_the_mark_of_a_cut_completion(store: Path) -> None:
    heard: list[str] = []
    with SampleStore.open(store) as opened:
        ends = [row.finish for row in opened.samples()]
        known = {row.text: row.verdict for row in opened.samples()}

        def judge(problems: list[str], texts: list[str]) -> list[Any]:
            heard.extend(texts)
            return [Sample(problem="p", sample=0, text="", verdict="wrong", reason="", prompt_hash="") for _ in texts]

        with pytest.raises(DataError, match="has no label"):
            opened.reverify(judge, "other")
    assert known and [text.endswith(NO_ANSWER) for text in heard] == [end == "length" for end in ends]


def test_the_page_has_prompt_gold_entropies_and_q_of_each_sample_of_a_plain_model_folder(store: Path) -> None:
    data = page_data(store)
    (one,) = data["sets"]
    assert [(data["golds"][gold], ROWS[problem][0] in data["prompts"][prompt]) for problem, prompt, gold in one["asked"]] == [
        ("7", True), ("4", True),
    ]  # fmt: skip
    assert len(data["rows"]) == 16
    for row in data["rows"]:
        assert len(row["k"]) == len(row["e"]) == len(row["q"]) and "m" not in row
        assert not row["t"].endswith(NO_ANSWER) and not row.get("a", "").endswith(NO_ANSWER)
    assert {row.get("l") for row in data["rows"]} >= {6} and max(q for row in data["rows"] for q in row["q"]) > 1


def test_one_sample_whose_tokens_are_another_text_leaves_the_signals_of_the_others(store: Path, tmp_path: Path) -> None:
    with SampleStore.open(store) as old:
        rows, place = old.samples(), old.policy_name_or_path()
        assert place is not None
        with SampleStore.open(tmp_path / "odd", old.identity) as odd:
            odd.commit([replace(row, text="another text") if i == 3 else row for i, row in enumerate(rows)])
            odd.keep_policy_name_or_path(place)
    data = page_data(tmp_path / "odd")
    assert ["k" in row for row in data["rows"]] == [i != 3 for i in range(16)]
    assert data["rows"][3]["m"] == 1 and data["rows"][3]["t"] == "another text"


def test_a_store_without_prompts_says_so_and_the_same_command_adds_them(
    made: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "problems")
    assert page_data(store)["sets"][0]["asked"] == []
    assert call("samples", "show", store) == 0 and "a version without prompts wrote" in said(capsys)[0]
    monkeypatch.chdir(made)
    assert call(*ASKED[:-3], "--store", store, "--samples", 8, "--quiet") == 0
    assert [gold is not None for _, _, gold in page_data(store)["sets"][0]["asked"]] == [True, True]


# ---- in the terminal


def test_samples_are_shown_with_prompt_gold_verdict_and_cut_in_words(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("samples", "show", store, "--problem", "1", "-n", 2) == 0
    out = capsys.readouterr().out
    assert out.startswith("problem 1\nprompt\n  | <|im_start|>") and "\n  | What is 2 + 2?<|im_end|>\n" in out
    assert "\ngold 4\n" in out
    assert out.count("\nsample ") == 2 and "; no answer; 6 tokens; mean entropy " in out and "; q 1." in out
    assert "  (cut after 6 tokens: the limit of tokens was reached)\n" in out and NO_ANSWER + "\n  (cut" not in out
    assert "2 of 8 samples of this problem" in out
    assert call("samples", "show", store) == 0 and "2 problems in the store; the next: 1" in said(capsys)[0]
    assert "has no problem '7'" in refused(capsys, "samples", "show", store, "--problem", "7")
    assert call("samples", "show", store, "--verdict", "right") == 0 and "0 of 0 right samples" in said(capsys)[0]


ATTACK = "\x1b]0;owned\x07\x1b[2Jright\r\nsample 9: right\n" + "word " * 60 + "\u202eback" + NO_ANSWER


def test_no_text_steers_the_terminal_or_leaves_its_margin(tmp_path: Path) -> None:
    law = {"preset": "p", "temperature": 1.0, "max_new_tokens": 9}
    names = dict.fromkeys(("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"), "x")
    with SampleStore.open(tmp_path, Identity(**names, decoding=law, seed=0, chunk_size=1)) as opened:
        odd = {"problem": f"p\n{ATTACK}", "reason": ATTACK, "answer": ATTACK[:40]}
        opened.commit([Sample(sample=0, text=ATTACK, verdict="wrong", prompt_hash="", finish="length", **odd)])  # type: ignore[arg-type]
        opened.describe({odd["problem"]: PromptAndGold(ATTACK, ATTACK)})
        lines = list(sample_lines(opened, width=80))
    assert not any(ord(c) < 32 or c in "\u202e\x7f" for line in lines for c in line)
    assert "  | [U+001B]]0;owned[U+0007][U+001B][2Jright[U+000D]" in lines and "  | sample 9: right" in lines
    assert sum(line.startswith("sample ") for line in lines) == 1
    framed = [line for line in lines if line.startswith("  |")]
    assert all(len(line) <= 80 for line in framed) and "[U+202E]back" in framed[-1] and "(cut" in lines[-3]


# ---- what each token adds


def test_pieces_of_a_byte_level_tokenizer_are_characters() -> None:
    tokens = Tokens.of(byte_tokenizer())
    for text in ("Zoë pays 3 €, 👩‍🔬.", "plain words"):
        pieces = tokens.pieces(tokens.encode(text))
        assert "".join(pieces) == text and NO_ANSWER not in "".join(pieces)
    odd = tokens.encode("é")[:1] * 6  # bytes that are no character stand as such
    assert len(tokens.pieces([*tokens.encode("a"), *odd])) == 7


def test_pieces_keep_the_spaces_that_a_tokenizer_drops_before_a_first_word() -> None:
    """As Llama's tokenizers do, for which decoding token by token loses each space."""
    words = ["<unk>", "</s>", "\u2581the", "\u2581sum", "\u2581is", "\u25817"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokens = Tokens.of(PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>"))
    assert tokens.pieces([2, 3, 4, 5]) == ["the", " sum", " is", " 7"]


def test_entropies_of_every_sample_are_finite(store: Path) -> None:
    with SampleStore.open(store) as opened:
        assert all(np.isfinite(row.entropies).all() for row in opened.samples())


# ---- what is asked of a model


def test_a_model_that_is_asked_no_task_says_what_it_is_asked(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    word = "model is a model, not a run, so it has no task of its own: exact evaluation on Countdown"
    assert call("eval", "model", "--problems", 1, "--quiet", "--out", "record.npz") == 0
    assert word in said(capsys)[1]
    assert call("eval", "embedded", "--problems", 1, "--quiet", "--out", "other.npz") == 0
    assert "no task of its own" not in said(capsys)[1]


def test_the_policy_folder_of_a_run_is_not_asked_another_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "run.json").write_text("{}")
    assert call("eval", tmp_path / "policy", "--problems", 1, "--quiet") == 2
    words = "is the policy of the run"
    assert words in (text := said(capsys)[1]) and f"sage-rlvr eval {tmp_path}" in " ".join(text.split())


def test_compare_of_a_folder_with_nothing_to_compare_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    assert call("compare", tmp_path) == 2
    assert "Nothing is compared: fewer than two policies were evaluated on the same problems." in said(capsys)[0]


def test_a_store_goes_to_the_harness_with_its_own_prompts_and_golds(store: Path, tmp_path: Path) -> None:
    assert call("samples", store, "--to-lm-eval", tmp_path / "out") == 0
    (path,) = (tmp_path / "out").glob("samples_*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["target"] for line in lines] == ["7", "4"] and "Zoë?" in lines[0]["arguments"]["gen_args_0"]["arg_0"]


def test_the_page_lists_only_problems_with_a_sample_on_it(store: Path) -> None:
    results = read_results(str(store))
    (one,) = sample_sets(results.table.sampled(), results.design, 8)
    second = replace(one, shown=tuple(pair for pair in one.shown if pair[0].problem == "1"))
    assert data_of([second, second])["problems"] == ["1"]
