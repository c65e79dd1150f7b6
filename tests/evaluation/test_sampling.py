"""An evaluation by samples: the same store whatever interrupts it, right counts, and every completion judged as it was asked."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from byte_tokenizer import CHATML, byte_tokenizer
from sage_rlvr.cli.app import main
from sage_rlvr.config import WorldConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.exact import probabilities
from sage_rlvr.evaluation.sample_report import (
    anatomy_lines,
    common_n,
    excess_lines,
    pattern_lines,
    powers,
    report_lines,
)
from sage_rlvr.evaluation.sampled_run import SampleRun
from sage_rlvr.evaluation.sampling import Chosen, Evaluation, Prompt, Scorer, check_window, choose, guide_of, prompts_of
from sage_rlvr.evaluation.settings import Preset, SampleSettings, store_place
from sage_rlvr.evaluation.store import Identity, SampleStore, is_store
from sage_rlvr.models.generation import PRESETS, CpuGenerator, Decoding, Generation, Generator, Request
from sage_rlvr.models.listing.solutions import solution_logps
from sage_rlvr.models.policy import NO_ANSWER, Tokens, load_policy
from sage_rlvr.models.scoring import score
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.tasks.prompts import BOXED, SAGE
from sage_rlvr.verifiers.rewards import answered

WORLD = WorldConfig(counts={2: 1.0}, max_number=12, max_target=144)
LAW = Decoding(max_new_tokens=8)


def sample_run(policy: str, model: str, most: int = 8) -> SampleRun:
    unused = Path("unused")
    return SampleRun(
        max_new_tokens=most, generator="sampler", dtype="float32", policy=policy, model=model, store=unused
    )


@pytest.fixture(scope="module")
def pieces(warm_policy: Path) -> tuple[Chosen, Any, Tokens, Identity, dict[str, Any]]:
    task = choose(WORLD.build(), "test", 1, 7)
    model, tokens = load_policy(str(warm_policy))
    prompts, template = prompts_of(task, tokens)
    identity = sample_run("warm", str(warm_policy)).identity(task, template)
    return task, model, tokens, identity, prompts


def evaluation(
    pieces: Any, at_once: int = 2, wrap: Callable[[Generator], Any] = lambda g: g, **more: Any
) -> Evaluation:
    task, model, tokens, _, prompts = pieces
    return Evaluation(task, prompts, wrap(CpuGenerator(model, tokens, LAW, at_once)), **more)


def fill(pieces: Any, folder: Path, n: int, **words: Any) -> SampleStore:
    with SampleStore.open(folder, pieces[3]) as store:
        evaluation(pieces, **words).run(store, n, pause=0.01)
    return store


class Dying:
    """A generator that raises before its `fatal`-th call."""

    def __init__(self, generator: Generator, fatal: int) -> None:
        self.inner, self.left, self.name, self.at_once = generator, fatal, generator.name, generator.at_once

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.inner.generate(requests)


# ---- the loop


@pytest.mark.slow
def test_interruptions_order_and_top_ups_leave_no_trace(pieces: Any, tmp_path: Path) -> None:
    whole = fill(pieces, tmp_path / "whole", 96, at_once=3)
    for fatal in (1, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            fill(pieces, tmp_path / "torn", 64, at_once=1, wrap=lambda g, fatal=fatal: Dying(g, fatal))
    fill(pieces, tmp_path / "torn", 32, at_once=7)
    fill(pieces, tmp_path / "torn", 64, at_once=5)
    part = fill(pieces, tmp_path / "torn", 96, at_once=2)
    assert part.digest() == whole.digest()
    assert report_lines(part) == report_lines(whole) and common_n(part) == 96
    with SampleStore.open(tmp_path / "backwards", pieces[3]) as store:
        for chunk in sorted(store.claim(pieces[0].problems, 96, most=99), reverse=True):
            store.commit(evaluation(pieces).samples(store.identity, [chunk]))
        assert store.digest() == whole.digest()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0], ids=["drawn", "greedy"])
def test_problems_drawn_together_are_the_same_in_any_order_and_by_any_writers(
    pieces: Any, tmp_path: Path, temperature: float
) -> None:
    """11 problems in calls of 4, some of them twice: at once, topped up, in odd pieces, by three writers."""
    _, model, tokens, identity, _ = pieces
    task = choose(WorldConfig(counts={2: 1.0}, max_number=5, max_target=25).build(), "test", 1, 11)
    prompts, law = prompts_of(task, tokens)[0], dataclasses.replace(LAW, temperature=temperature)
    size, ns = (4, (4, 8)) if temperature else (1, (1,))
    settings = {**identity.decoding, "temperature": temperature}
    own = dataclasses.replace(identity, task_hash=task.task_hash, decoding=settings, chunk_size=size, together=4)
    assert any("#" in name for name in task.problems)

    def drawing() -> Evaluation:
        return Evaluation(task, prompts, CpuGenerator(model, tokens, law, together=True))

    def digest(name: str, *ns: int) -> str:
        for n in ns:
            with SampleStore.open(tmp_path / name, own) as store:
                drawing().run(store, n, pause=0.01)
        return SampleStore.open(tmp_path / name).digest()

    whole = digest("whole", ns[-1])
    assert digest("topped up", *ns) == whole
    with SampleStore.open(tmp_path / "pieces", own) as store:
        chunks = sorted(store.claim(task.problems, ns[-1], most=99), key=lambda chunk: chunk.problem[::-1])
        for first in range(0, len(chunks), 3):
            store.commit(drawing().samples(own, chunks[first : first + 3]))
    assert digest("pieces") == whole
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(lambda _: digest("shared", ns[-1]), range(3)))
    assert digest("shared") == whole


@pytest.mark.parametrize(("change", "wanted"), [({}, 8), ({"vocab_size": 150_000}, 1), ({"num_hidden_layers": 4000}, 1)])
def test_problems_are_drawn_together_where_keys_values_and_logits_have_room(
    pieces: Any, change: dict[str, int], wanted: int
) -> None:
    task, model, *_ = pieces
    shaped = SimpleNamespace(**{**model.config.to_dict(), "head_dim": None, **change})
    shaped.get_text_config = lambda: shaped
    run = dataclasses.replace(sample_run("warm", "embedded", 128), samples=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sage_rlvr.evaluation.sampled_run.supports_shared_prefix", lambda model: True)
        assert run._together(run.decoding(task), SimpleNamespace(config=shaped)) == wanted  # type: ignore[arg-type]


def test_a_top_up_draws_only_what_is_missing(pieces: Any, tmp_path: Path) -> None:
    asked: list[Request] = []

    class Listening(Dying):
        def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
            asked.extend(requests)
            return super().generate(requests)

    def listen(generator: Generator) -> Any:
        return Listening(generator, -1)

    before = fill(pieces, tmp_path / "s", 32, wrap=listen)
    digest, drawn = before.digest(n=32), len(asked)
    told: list[int] = []
    with SampleStore.open(tmp_path / "s", pieces[3]) as store:
        evaluation(pieces, wrap=listen).run(store, 64, progress=told.append)
        assert store.digest(n=32) == digest and drawn == 7 and len(asked) == 14 and sum(told) == 7 * 32
        evaluation(pieces, wrap=listen).run(store, 64, progress=told.append)
        assert len(asked) == 14
        seeds = [seed for request in asked for seed in request.seeds]
        assert len(set(seeds)) == len(seeds) == 14 * 32
        assert sorted(seeds) == sorted(store.table(("seed",))["seed"].to_pylist())


def test_a_model_that_moves_on_the_hub_is_another_one(pieces: Any) -> None:
    one, two = (sample_run("p", "owner/name").identity(pieces[0], "t", commit) for commit in ("abc", None))
    assert (one.revision, two.revision) == ("hub:owner/name@abc", "hub:owner/name")


def test_what_another_writer_has_claimed_is_waited_for(pieces: Any, tmp_path: Path) -> None:
    with SampleStore.open(tmp_path / "s", pieces[3]) as other, SampleStore.open(tmp_path / "s", pieces[3]) as store:
        held = other.claim(pieces[0].problems, 32, most=3)
        told: list[int] = []

        def progress(count: int) -> None:
            told.append(count)
            if len(told) == 3:  # by now only the other's chunks are missing
                other.commit(evaluation(pieces).samples(other.identity, held[:2]))
                other.release()

        evaluation(pieces, at_once=2).run(store, 32, progress=progress, pause=0.01)
        assert not store.missing(pieces[0].problems, 32)


def test_counts_agree_with_the_exact_probabilities(pieces: Any, tmp_path: Path) -> None:
    task, model, tokens, *_ = pieces
    counts = fill(pieces, tmp_path / "s", 256).counts()
    world, chosen = WORLD.build(), list(task.problems.values())
    p = probabilities(solution_logps(model, tokens, world, chosen)[1.0])
    assert 0 < p.max() < 1 and counts.n.tolist() == [256] * 7
    by_id = dict(zip(counts.problems, counts.right.tolist(), strict=True))
    for i, (name, exact) in enumerate(zip(task.problems, p, strict=True)):
        assert abs(by_id[name] - 256 * exact) <= 5 * np.sqrt(256 * exact * (1 - exact)) + 1e-9, i
    assert not counts.undecided.any() and (p > 0.02).sum() >= 3


def test_rows_hold_scores_and_q(pieces: Any, tmp_path: Path, tiny_policy: Path) -> None:
    base, tokens = load_policy(str(tiny_policy))
    scorer = Scorer.of("tiny", base, tokens, pieces[2])
    store = fill(pieces, tmp_path / "s", 32, scorer=scorer, guide=guide_of("branch"))
    for row in store.samples()[::17]:
        ids = torch.tensor(row.token_ids)[None].long()
        prompt = list(pieces[4][row.problem].ids)
        found = score(base, [prompt], ids, ids >= 0, torch.zeros(1, dtype=torch.long)).logps[0].detach().numpy()
        assert np.allclose(found, row.base_logps, atol=1e-4)
        wanted = np.clip(1 + 0.3 * np.maximum(np.asarray(row.entropies) - 1.2, 0), 0.6, 1.4)
        assert np.allclose(wanted, row.q, atol=1e-5) and len(row.q) == len(row.token_ids)  # type: ignore[arg-type]
    said = "\n".join(report_lines(store))
    assert "perplexity under" in said and "q          mean" in said


@pytest.mark.slow
def test_q_and_perplexity_are_of_what_the_rows_say(pieces: Any, tmp_path: Path) -> None:
    """The newest writer's guide and base are not those of the rows that were there before."""
    scorer = Scorer.of("warm", pieces[1], pieces[2], pieces[2])

    def named(base: str, guide: str) -> Identity:
        own = {"guide": guide, "scored under": f"{base} 0123"}
        return dataclasses.replace(pieces[3], versions={**pieces[3].versions, **own})

    with SampleStore.open(tmp_path / "s", named("first", "branch")) as store:
        evaluation(pieces, scorer=scorer, guide=guide_of("branch")).run(store, 32)
    with pytest.warns(UserWarning, match="other versions"):
        other = SampleStore.open(tmp_path / "s", named("second", "token"))
    said = "\n".join(report_lines(SampleStore.open(tmp_path / "s")))
    assert "perplexity under first" in said and ", of branch;" in said and "second" not in said
    with other:
        evaluation(pieces, scorer=scorer, guide=guide_of("token")).run(other, 64)
    said = "\n".join(report_lines(SampleStore.open(tmp_path / "s")))
    assert "several of --guide (branch; token): none is given" in said and "q          mean" not in said
    assert "several of --score-base (first 0123; second 0123): none is given" in said
    assert "perplexity under first" in "\n".join(report_lines(SampleStore.open(tmp_path / "s"), 32))


def test_a_store_that_an_evaluation_did_not_finish_says_so(pieces: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill(pieces, tmp_path / "s", 32, at_once=2, wrap=lambda g: Dying(g, 3))
    store = SampleStore.open(tmp_path / "s")
    assert store.lacking(store.counts()).startswith("samples of 4 of 7 problems")
    assert any(line.startswith("INCOMPLETE: samples of 4 of 7") for line in report_lines(store))
    whole = fill(pieces, tmp_path / "s", 32)
    assert not whole.lacking(whole.counts()) and "INCOMPLETE" not in "".join(report_lines(whole))


@pytest.mark.slow
def test_anatomy_patterns_and_excess_of_a_store(pieces: Any, tmp_path: Path, tiny_policy: Path) -> None:
    scorer = Scorer.of("warm", pieces[1], pieces[2], pieces[2])
    store = fill(pieces, tmp_path / "s", 32, scorer=scorer, guide=guide_of("branch"))
    tokenizer = pieces[2].tokenizer
    lines = anatomy_lines(store, lambda ids: [tokenizer.decode([i]) for i in ids])
    tokens = sum(len(row.token_ids) for row in store.samples())  # type: ignore[arg-type]
    assert lines[0].startswith(f"signal anatomy of {tokens:,} tokens") and any("  digit  " in line for line in lines)
    assert "at the clamp on" in lines[-1]
    assert float(lines[-3].split()[-1]) > 0.2  # at temperature 1 the mean surprisal at a prefix is its entropy
    assert "samples, in" in "\n".join(pattern_lines(store))
    model, tokens_ = load_policy(str(tiny_policy))  # untrained: much of what it says is rare under the warm one
    with SampleStore.open(tmp_path / "t", dataclasses.replace(pieces[3], model="tiny")) as other:
        Evaluation(pieces[0], pieces[4], CpuGenerator(model, tokens_, LAW), scorer).run(other, 32)
    (line,) = excess_lines("tiny", other, "warm", store)
    assert float(re.findall(r"has ([+-][0-9.]+) more", line)[0]) > 0.5
    assert re.findall(r"has ([+-][0-9.]+) more", excess_lines("w", store, "warm", store)[0]) == ["+0.000"]
    assert excess_lines("a", fill(pieces, tmp_path / "u", 32), "warm", store) == []  # not scored: nothing to say
    with pytest.raises(DataError, match="no sample is right"):
        pattern_lines(other)


def test_a_base_of_another_vocabulary_and_odd_guides_are_refused(pieces: Any) -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        Scorer.of("x", pieces[1], Tokens.of(byte_tokenizer()), pieces[2])
    for name in ("placebo", "compose", "bransh"):
        with pytest.raises(ConfigError, match="guide"):
            guide_of(name)


def test_a_prompt_that_leaves_no_room_is_refused(pieces: Any) -> None:
    _, model, *_, prompts = pieces
    check_window(prompts, model, 50)
    with pytest.raises(ConfigError, match="--max-new-tokens 5"):
        check_window(prompts, model, 60)


# ---- tasks


def test_a_problem_that_the_law_drew_twice_is_two() -> None:
    small = WorldConfig(counts={2: 1.0}, max_number=5, max_target=25)
    task = choose(small.build(), "test", 1, 30)
    twice = [name for name in task.problems if "#" in name]
    assert len(task.problems) == 30 and twice
    for name in twice:
        assert task.problems[name].problem_id == name.split(" #")[0]
    assert task.task_hash != choose(small.build(), "test", 2, 30).task_hash
    assert task.verdicts(twice[:1], ["nonsense"])[0].label == "wrong"
    with pytest.raises(ConfigError, match="not among"):
        task.verdicts(["1-1=99"], ["1+1"])


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    lines = [
        {"id": "a", "problem": "2+2?", "answer": "4"},
        {"id": "b", "problem": "Half of one?", "answer": r"\frac12"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.slow
def test_mathematics_is_asked_and_read_in_its_format(rows: Path) -> None:
    task = choose(task_named(str(rows), "boxed"))
    verdicts = task.verdicts(["a", "b", "b", "a"], [r"So \boxed{4}.", r"\boxed{0.5}", r"\boxed{2}", "4"])
    assert [v.label for v in verdicts] == ["right", "right", "wrong", "wrong"]
    assert [v.answer for v in verdicts] == ["4", "0.5", "2", None]
    assert answered("<SOLUTION> 1,000 </SOLUTION>", SAGE.reading) == "1,000" and answered(r"\boxed{ }", BOXED.reading) is None
    assert choose(task_named(str(rows), "sage")).verdicts(["a"], ["<SOLUTION>4</SOLUTION>"])[0].label == "right"
    assert choose(task_named(str(rows)), n=1).task_hash != task.task_hash


def test_prompts_go_through_the_template_of_the_policy_or_of_the_format(rows: Path) -> None:
    task = choose(task_named(str(rows), "sage"))
    bare, _ = prompts_of(task, Tokens.of(byte_tokenizer()))
    assert bare["a"].text.startswith("<s>") and bare["a"].text.endswith("2+2?\n\n<start_working_out>\n")
    assert list(bare["a"].ids).count(byte_tokenizer().bos_token_id) == 1  # the template's; no second one before it
    chat = Tokens.of(byte_tokenizer(CHATML))
    own, own_hash = prompts_of(task, chat)
    assert own["a"].text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    alike, hashed = prompts_of(task, Tokens.of(byte_tokenizer(CHATML)), "format")
    assert alike == bare and hashed != own_hash
    boxed = prompts_of(choose(task_named(str(rows), "boxed")), chat)
    assert boxed[1] != own_hash
    for template, message in (
        ("{{ messages[0]['content'] }}", r"leaves out the user's message \('2\+2\?'\).*eval --chat format"),
        ("{{ '{system_prompt}' }}" + CHATML, r"leaves \{system_prompt\} in the prompt"),
        ("{{ bos_token + bos_token }}" + CHATML, "starts with '<s>' twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            prompts_of(task, Tokens.of(byte_tokenizer(template)))
        prompts_of(task, Tokens.of(byte_tokenizer(template)), "format")
    with pytest.raises(ConfigError, match="spell"):
        prompts_of(task, Tokens.of(load_policy("embedded")[1].tokenizer))


def test_puzzles_are_judged_and_their_guesses_counted() -> None:
    task = choose(task_named("knights_and_knaves"), n=3)
    ids = list(task.problems)
    puzzle = task.problems[ids[0]]
    said = task.verdicts(ids[:1] * 2, [f"So.\n{puzzle.answer}", "CONCLUSION:\n(1) X is a knave"])
    assert [v.label for v in said] == ["right", "wrong"] and said[1].answer == "(1) X is a knave"
    assert task.floor is not None and task.floor(1) == pytest.approx(
        np.mean([2.0 ** -len(p.names) for p in task.problems.values()])
    )
    assert choose(task_named("knights_and_knaves_strict"), n=3).verifier_hash != task.verifier_hash
    assert prompts_of(task, Tokens.of(byte_tokenizer()))[0][ids[0]].text.endswith("### Answer:")


# ---- the report


@pytest.mark.slow
def test_the_report_counts_by_hand(rows: Path, tmp_path: Path) -> None:
    """Problem a: 2 of 4 right; b: 1 of 4 right, one cut off. pass@2 = mean of 1 - C(2,2)/C(4,2) and 1 - C(3,2)/C(4,2)."""
    task = choose(task_named(str(rows)))
    said = {
        "a": [r"\boxed{4}", r"\boxed{4}", r"\boxed{5}", "no"],
        "b": [r"\boxed{0.5}", r"\boxed{3}", r"\boxed{3}", "no"],
    }

    class Scripted:
        name, at_once = "script", 2

        def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
            out = []
            for name in [("a", "b")[r.prompt[0] == 1] for r in requests]:
                texts = said[name]
                ends = ["stop"] * 3 + ["length" if name == "b" else "stop"]
                out.append([Generation(t, None, None, None, e) for t, e in zip(texts, ends, strict=True)])  # type: ignore[arg-type]
            return out

    prompts = {"a": Prompt("a", (0,)), "b": Prompt("b", (1,))}
    identity = sample_run("p", "embedded", 5).identity(task, "t")
    four = Identity(**(identity.tree() | {"chunk_size": 4}))
    with SampleStore.open(tmp_path / "s", four) as store:
        Evaluation(task, prompts, Scripted()).run(store, 4)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lines = report_lines(store, floor=lambda k: k / 1000)
    cells = {line.split()[0]: line for line in lines}
    assert cells["1"].split()[1] == "0.375" and cells["2"].split()[1] == f"{(5 / 6 + 1 / 2) / 2:.3f}"
    assert cells["4"].split()[1] == "1.000" and cells["2"].endswith("0.002")
    assert cells["2"].split()[4] == f"{(1 / 6 + 0) / 2:.3f}"  # pass^2
    # maj@4: a's 4 wins with 2 of 4; b's 3 wins and is wrong. Each number has its interval behind it.
    assert cells["4"].split()[7] == "0.500" and cells["4"].split()[10] == "1.00"
    assert cells["4"].count("[") == 4 and cells["1"].count("[") == 3
    told = "\n".join(line for line in lines if not line.startswith(("countdown", "script", "    k")))
    assert len(re.findall(r"[0-9.]+%? \[", told)) == told.count("[") >= 17
    assert "(over 2 problems) met the limit of 5 tokens" in cells["truncated"]
    assert "12.5%" in cells["truncated"] and "0.5: 0.500" in cells["Cover@tau"] and "0.25: 1.000" in cells["Cover@tau"]
    assert powers(256)[-1] == 256 and powers(48) == (1, 2, 4, 8, 16, 32, 48)


# ---- the command line


def call(*words: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture
def recipe(write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_recipe()
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
def test_eval_samples_tops_up_compares_and_judges_again(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", recipe, "--problems", 6, "--quiet")
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a", "--score-base", tiny_policy) == 0
    said = capsys.readouterr().out
    assert "preset untruncated" in said and "perplexity under" in said and "store: a" in said
    assert call("eval", warm_policy, *words, "--samples", 64, "--store", "a", "--score-base", tiny_policy) == 0
    assert "n = 64" in capsys.readouterr().out
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a", "--rank") == 0
    rank = capsys.readouterr().out.split("rank       ")[1]
    assert 1 < float(rank.split()[0]) < 9 and "effective rank of the last hidden states" in rank
    assert call("samples", "a", "--anatomy", warm_policy, "--samples", 32) == 0
    assert "signal anatomy of" in capsys.readouterr().out
    assert call("eval", tiny_policy, *words, "--samples", 64, "--preset", "paper") == 0
    home = Path("runs/samples") / tiny_policy.name / "countdown-paper"
    assert f"store: {home}" in capsys.readouterr().out
    assert call("compare", "warm=a", f"tiny={home}", "--k", 32) == 2  # not the same temperature
    assert "temperature" in capsys.readouterr().err
    assert call("eval", tiny_policy, *words, "--samples", 64, "--store", "b") == 0
    assert call("compare", "warm=a", "tiny=b", "--k", 32) == 0
    assert "pass@32" in capsys.readouterr().out
    before = SampleStore.open("a").digest()
    assert call("eval", warm_policy, *words, "--reverify", "--store", "a") == 0
    assert capsys.readouterr().out.startswith("0 samples judged again") and SampleStore.open("a").digest() == before


def test_the_old_word_for_untruncated_is_taken_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="honest is called untruncated now"):
        settings = SampleSettings(preset="honest")
    assert settings == SampleSettings() and settings.store_name(WORLDS["demo"]) == "countdown-untruncated"
    (tmp_path / "countdown-honest-T0.5").mkdir()
    assert store_place(tmp_path, "countdown-untruncated-T0.5") == tmp_path / "countdown-honest-T0.5"
    assert store_place(tmp_path, "countdown-untruncated") == tmp_path / "countdown-untruncated"
    old = {"preset": "honest", "temperature": 1.0, "max_new_tokens": 8}
    facts = dict.fromkeys(("task", "task_hash", "model", "revision", "prompt", "template_hash", "verifier_hash"), "x")
    assert Identity(**facts, decoding=old, seed=0).decoding["preset"] == "untruncated"
    assert get_args(Preset) == (*PRESETS, "honest")


@pytest.mark.slow
def test_stores_at_several_temperatures_make_a_frontier(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, arms = Path("runs/samples"), []
    for policy in (warm_policy, tiny_policy):
        for t in (1, 0.5):
            words = ("--world", recipe, "--problems", 6, "--quiet", "--samples", 32, "--temperature", t)
            assert call("eval", policy, *words) == 0
            assert f"preset untruncated: T {t:g}, nothing truncated" in capsys.readouterr().out
        stores = [home / policy.name / f"countdown-untruncated-T{t}" for t in ("1", "0.5")]
        arms.append(f"{policy.name}={stores[0]},{stores[1]}")
    assert call("compare", *arms, "--frontier", "--k", 8) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "countdown at T = 1: pass@1 " in said and "countdown at T = 0.5: pass@1 " in said
    assert "pass@8 at equal pass@1" in said
    assert call("eval", warm_policy, "--world", recipe, "--problems", 6, "--temperature", 0.5) == 2  # exact
    assert "--temperature" in capsys.readouterr().err


def test_another_policy_or_setting_does_not_continue_a_store(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", recipe, "--samples", 32, "--store", "a", "--quiet")
    assert call("eval", warm_policy, *words, "--problems", 2) == 0
    for other, hint in (
        ((tiny_policy, *words, "--problems", 2), "other weights: if the run went on, name another --store"),
        ((warm_policy, *words, "--problems", 3), "problems: 2 -> 3"),
        ((warm_policy, *words, "--problems", 2, "--preset", "paper"), ""),
        ((warm_policy, *words, "--problems", 2, "--sampling-seed", 1), ""),
    ):
        assert call("eval", *other) == 2
        err = capsys.readouterr().err
        assert "made otherwise" in err and hint in err
        assert [word for word in ("other weights", "problems: 2") if word in err] == [
            w for w in ("other weights", "problems: 2") if w in hint
        ]
    assert call("eval", warm_policy, "--world", recipe, "--problems", 3, "--store", "a", "--reverify") == 2
    assert "other problems" in capsys.readouterr().err


def test_a_sigterm_ends_an_evaluation_as_ctrl_c_does(
    recipe: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    former = signal.getsignal(signal.SIGTERM)

    def ended(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("the signal had no effect")

    monkeypatch.setattr(Evaluation, "samples", ended)
    words = ("--world", recipe, "--samples", 32, "--problems", 2, "--store", "a", "--quiet")
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not the default, which would end pytest
        assert call("eval", warm_policy, *words) == 143
    finally:
        signal.signal(signal.SIGTERM, former)
    assert "interrupted; what was finished is saved" in capsys.readouterr().err


def test_settings_of_one_kind_are_refused_by_the_other(
    recipe: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, word in (
        (("--preset", "paper"), "--samples N"),
        (("--samples", 32, "--frontier"), "--frontier"),
        (("--samples", 32, "--task", "math5"), "math500"),
        (("--samples", 32, "--generator", "server"), "--server"),
        (("--samples", 32, "--problems", 0), "problems"),
        (("--samples", -1), "--samples -1"),
        (("--samples", 32, "--max-new-tokens", 60, "--problems", 2), "--max-new-tokens"),
    ):
        assert call("eval", warm_policy, "--world", recipe, *words) == 2
        assert word in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigkill_and_two_processes_leave_no_trace(recipe: Path, warm_policy: Path) -> None:
    """Killed three times at different moments, then finished by two processes at once: the store of one quiet run."""

    def start(store: str) -> subprocess.Popen[bytes]:
        words = [
            "eval",
            warm_policy,
            "--world",
            recipe,
            "--problems",
            "120",
            "--samples",
            "96",
            "--store",
            store,
            "--quiet",
        ]
        code = "import torch; torch.set_num_threads(1); from sage_rlvr.cli.app import main; main()"
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=env, stdout=subprocess.DEVNULL)

    assert start("whole").wait() == 0
    def there() -> int:
        return sum(p["rows"] for p in SampleStore.open("torn").verifiers()) // 96 if is_store("torn") else 0

    seen = 0
    for more in (1, 2, 1):
        process = start("torn")
        while process.poll() is None and there() < seen + more:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen = there()
    both = [start("torn"), start("torn")]
    assert [process.wait() for process in both] == [0, 0]
    whole, torn = SampleStore.open("whole"), SampleStore.open("torn")
    assert whole.identity.together == 8 and seen < 100
    assert whole.digest() == torn.digest() and report_lines(whole) == report_lines(torn)
    with pytest.raises(DataError):
        report_lines(SampleStore.open("whole"), 256)


def test_a_cut_completion_is_not_right_though_its_text_is(pieces: Any) -> None:
    task = pieces[0]
    name, problem = next(iter(task.problems.items()))
    text = WORLD.build().solutions(problem)[0]
    assert [v.label for v in task.verdicts([name, name], [text, text + NO_ANSWER])] == ["right", "wrong"]
