"""`eval --samples` around its store: scored afterwards, judged by another verifier and topped up, exported without texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import call
from sage_rlvr.contrib.io.documents import generated_docs
from sage_rlvr.contrib.io.lm_eval import export_lm_eval, import_lm_eval
from sage_rlvr.contrib.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import policies
from sage_rlvr.evaluation.policies import UNKNOWN, commit_of
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, choose
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore, prompt_hash
from sage_rlvr.models.policy import load_policy
from sage_rlvr.models.reward_model import from_policy
from sage_rlvr.tasks import countdown
from sage_rlvr.tasks.countdown import Problem, verify
from sage_rlvr.training.state import save_policy
from sage_rlvr.verifiers.versions import VERSIONS


@pytest.fixture
def words(write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    path = write_recipe()
    monkeypatch.chdir(tmp_path)
    return ("--world", path, "--problems", 3, "--quiet")


def digest(store: str, n: int | None = None) -> str:
    return SampleStore.open(store).digest(n=n)


# ---- ranked by a reward model


@pytest.mark.slow
def test_the_best_of_n_is_what_a_reward_model_ranks_first(
    words: tuple[Any, ...], warm_policy: Path, tmp_path: Path, capsys: Any
) -> None:
    """One with a head of zeros ranks all alike, and takes the first."""
    policy, tokens = load_policy(str(warm_policy))
    save_policy(from_policy(policy, tokens), tokens.tokenizer, tmp_path / "even")
    told = ("--samples", 32, "--store", "ranked", "--rerank-with")
    assert call("eval", warm_policy, *words, *told, tmp_path / "even") == 0
    with SampleStore.open("ranked") as store:
        rows, right = store.samples(), store.counts().right
    first = sum(row.verdict == "right" for row in rows if row.sample == 0) / 3
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("best of 32"))
    wanted = (f"{first:.3f} [", f"; pass@1 {right.mean() / 32:.3f} [", f"pass@32 {(right > 0).mean():.3f} [")
    assert line.split()[3] + " [" == wanted[0] and all(one in line for one in wanted[1:])
    assert call("eval", warm_policy, *words, *told, warm_policy) == 2
    assert call("eval", warm_policy, *words, "--rerank-with", tmp_path / "even") == 2
    assert "add --samples N" in capsys.readouterr().err


# ---- scored afterwards


@pytest.mark.slow
def test_samples_that_were_drawn_without_a_base_are_scored_by_the_same_command_with_one(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("--base-logprobs", tiny_policy)
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "at-once", *base) == 0
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "later") == 0
    assert "perplexity under" not in capsys.readouterr().out.split("store: at-once")[1]
    seen: list[int] = []
    scorer = policies.Scorer.__call__

    def dying(self: Any, *args: Any) -> list[Any]:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return scorer(self, *args)

    load = policies.load_here

    def nothing_drawn(of: Any, dtype: str) -> Any:
        assert str(of) == str(tiny_policy), "the policy was loaded"
        return load(of, dtype)

    monkeypatch.setattr(policies.Scorer, "__call__", dying)
    monkeypatch.setattr(policies, "load_here", nothing_drawn)
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "later", *base) == 130
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "later", *base) == 0
    said = capsys.readouterr()
    assert "perplexity under" in said.out and "samples may differ" not in said.err
    assert digest("later") == digest("at-once")
    many = len(seen)
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "later", *base) == 0 and len(seen) == many


@pytest.mark.slow
def test_a_top_up_with_a_base_scores_the_older_samples_too(
    words: tuple[Any, ...], warm_policy: Path, tiny_policy: Path
) -> None:
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a") == 0
    assert call("eval", warm_policy, *words, "--samples", 64, "--store", "a", "--base-logprobs", tiny_policy) == 0
    rows = SampleStore.open("a").table(("base_logps",))
    assert len(rows) == 3 * 64 and not rows["base_logps"].null_count


# ---- chunks


@pytest.mark.slow
def test_a_store_of_chunks_of_32_is_topped_up_in_them_and_one_that_begins_with_64_in_chunks_of_64(
    words: tuple[Any, ...], warm_policy: Path
) -> None:
    first = ""
    for n in (32, 64, 256):
        assert call("eval", warm_policy, *words, "--samples", n, "--store", "a") == 0
        first = first or digest("a")
        assert digest("a", 32) == first and SampleStore.open("a").counts().n.tolist() == [n] * 3
    assert call("eval", warm_policy, *words, "--samples", 256, "--store", "b") == 0
    sizes = [SampleStore.open(name).identity.chunk_size for name in ("a", "b")]
    assert sizes == [32, 64]
    texts = [SampleStore.open(name).table(("problem", "sample", "seed", "text")).to_pylist() for name in ("a", "b")]
    assert texts[0] == texts[1]  # the width of a chunk moves rounding at most, never a seed


@pytest.mark.parametrize(("n", "size"), [(5, 5), (32, 32), (40, 40), (64, 64), (96, 48), (97, 49), (256, 64)])
def test_a_new_store_has_as_few_equal_chunks_as_hold_what_is_asked_for(tmp_path: Path, n: int, size: int) -> None:
    def size_of(**words: Any) -> int | None:
        run = SampleRun(store=tmp_path / "new", policy="p", model="embedded", samples=n, **words)
        return run._chunk_size(run.decoding(choose(countdown.Countdown(), n=1)))

    assert size_of(generator="sampler") == size and size_of(generator="sampler", temperature=0.0) is None
    assert size_of(generator="transformers") == -(-n // -(-n // 32)) <= 32


@pytest.mark.slow
def test_what_was_asked_for_is_drawn_and_rounding_up_is_said(
    words: tuple[Any, ...], warm_policy: Path, capsys: Any
) -> None:
    """The samples of a store of 5 are those of a wider one, by their seeds; topping up to 7 takes a second chunk of 5."""
    for name, n in (("few", 5), ("more", 9)):
        assert call("eval", warm_policy, *words, "--samples", n, "--store", name) == 0
        assert "whole chunks" not in capsys.readouterr().err
    few, more = (SampleStore.open(name).table(("problem", "sample", "seed", "text")).to_pylist() for name in ("few", "more"))
    assert len(few) == 3 * 5 and [row for row in more if row["sample"] < 5] == few
    assert call("eval", warm_policy, *words, "--samples", 7, "--store", "few") == 0
    said = capsys.readouterr()
    assert "complete chunks of 5 samples: 10 per problem instead of 7" in " ".join(said.err.split())
    assert "n = 7" in said.out and SampleStore.open("few").counts().n.tolist() == [10] * 3


# ---- another verifier


@pytest.mark.slow
def test_after_reverify_the_same_command_tops_up(
    words: tuple[Any, ...], warm_policy: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (warm_policy, *words, "--store", "a")
    assert call("eval", *more, "--samples", 32) == 0
    version = VERSIONS["countdown"]
    monkeypatch.setitem(VERSIONS, "countdown", version + 1)
    assert call("eval", *more, "--samples", 64) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"judged by another version of the verifier (countdown-v{version}-" in said
    assert "--rejudge), after which the samples can be topped up" in said
    assert call("eval", *more, "--rejudge") == 0 and "96 samples judged again" in capsys.readouterr().out
    assert call("eval", *more, "--samples", 64) == 0
    store = SampleStore.open("a")
    assert (
        store.counts().n.tolist() == [64] * 3 and store.identity.verifier_hash == store.verifiers()[-1]["verifier_hash"]
    )
    monkeypatch.setitem(VERSIONS, "countdown", version)
    assert call("eval", *more, "--samples", 96) == 2 and "run reverify" in capsys.readouterr().err


# ---- problems


@pytest.mark.slow
@pytest.mark.parametrize(
    "golds, message",
    [
        (["1", "np.arcsin(10/13)"], r"1 of 2 golds \(50.0%\).*rows.jsonl:2: 'np.arcsin.*mend or leave out those rows$"),
        (["1", math.nan], "rows.jsonl:2, column answer: the answer is missing"),
        (["1", "nan"], "rows.jsonl:2, column answer: 'nan' is no gold answer"),
        (["1", r"\text{NaN}"], "rows.jsonl:2, column answer: .*NaN}' is no gold answer"),
        (["1", math.inf], "rows.jsonl:2, column answer: inf is no gold answer"),
    ],
)
def test_golds_that_no_verifier_can_judge_by_stop_an_evaluation(
    golds: list[Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": f"{i}?", "answer": gold} for i, gold in enumerate(golds)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("eval", "embedded", "--task", "rows.jsonl", "--samples", 32) == 2
    assert re.search(message, capsys.readouterr().err.strip(), re.DOTALL) and not Path("runs").exists()


def test_other_rows_than_the_published_ones_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "amc23.jsonl").write_text('{"id": 1, "problem": "p", "answer": "1"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAGE_RLVR_DATA", str(tmp_path))
    assert call("eval", "embedded", "--task", "amc23", "--samples", 32) == 2  # which cannot spell a text
    assert f"amc23 of SAGE_RLVR_DATA={tmp_path}: 1 rows, other rows than the published ones\n" in capsys.readouterr().err


# ---- texts that are made again


def test_countdown_samples_go_out_without_texts_and_come_back(
    words: tuple[Any, ...], warm_policy: Path, tmp_path: Path
) -> None:
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a") == 0
    assert call("samples", "a", "--to-lm-eval", "out") == 0
    (path,) = Path("out").glob("samples_countdown_*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        doc = line["doc"]
        problem = Problem(tuple(doc["numbers"]), doc["target"])
        assert verify(problem, line["target"]).right and line["sage_rlvr"]["prompt_hash"] == line["prompt_hash"]
        assert line["arguments"]["gen_args_0"]["arg_0"] == f"{' '.join(map(str, doc['numbers']))}={doc['target']}:"
    back = import_lm_eval(path, tmp_path / "back")
    columns = ("problem", "sample", "seed", "text", "verdict", "reason", "prompt_hash")
    assert back.table(columns).equals(SampleStore.open("a").table(columns))


def puzzles(folder: Path, made: EvalSet, **change: str) -> SampleStore:
    asked = {"preset": "p", "temperature": 1.0, "max_new_tokens": 9}
    facts = {"task": made.name, "task_hash": made.task_hash, "model": "m", "revision": "r", "prompt": "p"} | change
    identity = Identity(**facts, template_hash="t", decoding=asked, verifier_hash="v", seed=0, chunk_size=1)
    store = SampleStore.open(folder, identity)
    store.want(list(made.problems), 1)
    for name in made.problems:
        told = prompt_hash(made.task.prompt(made.problems[name]))
        row = Sample(problem=name, sample=0, text=name, verdict="wrong", reason="r", prompt_hash=told)
        store.commit([row])
    return store


@pytest.mark.slow
def test_puzzles_are_made_again_from_their_seed_and_other_ones_are_refused(tmp_path: Path) -> None:
    task = choose(KnightsAndKnaves(rule="strict"), n=3)
    store = puzzles(tmp_path / "a", task)
    docs = generated_docs(store)
    assert list(docs) == list(task.problems)
    for name, puzzle in task.problems.items():
        assert docs[name]["target"] == puzzle.answer and puzzle.text in docs[name]["prompt"]
    path = export_lm_eval(store, tmp_path / "out", docs=docs)
    assert all(json.loads(line)["prompt_hash"] for line in path.read_text().splitlines())
    with pytest.raises(DataError, match="problems of knights_and_knaves_strict"):
        generated_docs(puzzles(tmp_path / "b", task, task_hash="other"))
    assert generated_docs(puzzles(tmp_path / "c", task, task="aime")) == {}


def test_countdown_texts_that_were_asked_otherwise_are_not_made_up(tmp_path: Path) -> None:
    asked = {"preset": "p", "temperature": 1.0, "max_new_tokens": 9}
    facts = {name: "x" for name in ("task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash")}
    store = SampleStore.open(tmp_path, Identity(task="countdown", decoding=asked, seed=0, chunk_size=1, **facts))
    row = Sample(
        problem="2-3=5", sample=0, text="2+3", verdict="right", reason="right", prompt_hash=prompt_hash("2 3 = 5")
    )
    store.commit([row])
    with pytest.raises(DataError, match="had a different prompt than '2 3=5:'"):
        generated_docs(store)


# ---- the commit of the Hub


def test_the_commit_of_a_hub_id_is_that_of_the_cache_and_else_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "models--owner--name"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("c0ffee")
    (home / "snapshots" / "c0ffee").mkdir(parents=True)
    (home / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert commit_of("owner/name", "vllm") == "c0ffee"
    assert commit_of("owner/name", "server") == commit_of("owner/other", "vllm") == UNKNOWN
    assert commit_of("../a b/c", "vllm") == commit_of("runs/..", "vllm") == UNKNOWN
