"""Evaluation by samples, task by task: prompts, formats, guesses counted, and the report by hand."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byte_tokenizer import CHATML, byte_tokenizer
from chat_policy import EMPTY, OFF, chat_policy, rows_file
from evaluation.sampling_common import sample_run
from sage_rlvr import compare, evaluate, report, train
from sage_rlvr.config import WorldConfig
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation import sampled_run
from sage_rlvr.evaluation.sample_report import (
    powers,
    report_lines,
)
from sage_rlvr.evaluation.sampling import Prompt, SamplingRun, choose, prompts_of
from sage_rlvr.evaluation.store import Identity, SampleStore
from sage_rlvr.models.generation import Generation, Request
from sage_rlvr.models.policy import Tokens, load_policy
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.prompts import BOXED, SAGE
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verifiers.rewards import answered

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
        ("{{ messages[0]['content'] }}", r"leaves out the user's message \('2\+2\?'\).*eval --chat-template format"),
        ("{{ '{system_prompt}' }}" + CHATML, r"leaves \{system_prompt\} in the prompt"),
        ("{{ bos_token + bos_token }}" + CHATML, "starts with '<s>' twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            prompts_of(task, Tokens.of(byte_tokenizer(template)))
        prompts_of(task, Tokens.of(byte_tokenizer(template)), "format")
    with pytest.raises(ConfigError, match="cannot encode"):
        prompts_of(task, Tokens.of(load_policy("embedded")[1].tokenizer))


@pytest.mark.slow
def test_options_of_the_chat_template_make_another_store(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other chat_template_kwargs are other prompts: their samples never mix, by name or by identity."""
    monkeypatch.chdir(tmp_path)
    policy = chat_policy(tmp_path / "policy")
    common = {"task": str(rows), "samples": 1, "max_new_tokens": 4, "quiet": True, "say": lambda line: None}
    plain, off = evaluate(policy, **common), evaluate(policy, chat_template_kwargs=OFF, **common)  # type: ignore[arg-type]
    assert off.path.name == f"{plain.path.name}-enable_thinking-false"
    with pytest.raises(ConfigError, match=r"(?s)template_hash.*rendered differently \(chat template, --chat-template-kwargs\)"):
        evaluate(policy, chat_template_kwargs=OFF, store=plain.path, **common)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.enable_thinkin: "):
        evaluate(policy, chat_template_kwargs={"enable_thinkin": False}, **common)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--chat-template-kwargs: the top level must be"):
        evaluate(policy, chat_template_kwargs="false", **common)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--chat-template-kwargs: settings of an evaluation by samples"):
        evaluate(policy, task=str(rows), chat_template_kwargs=OFF)


@pytest.mark.slow
def test_several_temperatures_are_a_store_each_and_one_arm_of_a_comparison(rows: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    policy = chat_policy(tmp_path / "policy")
    common: dict[str, Any] = {"task": str(rows), "samples": 2, "max_new_tokens": 4, "quiet": True, "say": lambda line: None}
    found = evaluate(policy, temperatures=(1.0, 0.5), **common)
    assert len(found.stores) == 2 and found.stores[0] == found.path == evaluate(policy, **common).path
    assert [row["temperature"] for row in found.rows if row["k"] == 1] == [1.0, 0.5]
    assert found.lines[-1].startswith("all temperatures beside another policy's store: sage-rlvr compare base=")
    again = evaluate(policy, temperatures=(0.5,), store=tmp_path / "stores", **common)
    assert again.path == tmp_path / "stores" / "T0.5"
    compared = compare({"base": found, "same": again})
    assert compared.results.table.where(arm="base", task=rows.stem).temperatures == (0.5, 1.0)
    unnamed = compare(found, again).results.table  # the arm has the name of its policy
    assert unnamed.where(arm=found.policy, task=rows.stem).temperatures == (0.5, 1.0)
    sampled = report(found).values["summary"]["sampled"]
    assert sorted(row["temperature"] for row in sampled) == [0.5, 1.0]
    with pytest.raises(ConfigError, match=r"--temperature 0.5 with --temperatures 1 0.5: omit the first"):
        evaluate(policy, temperature=0.5, temperatures=(1.0, 0.5), **common)
    with pytest.raises(ConfigError, match=r"--temperatures 1.0 1.0: pass at least one, each once"):
        evaluate(policy, temperatures=(1.0, 1.0), **common)


@pytest.mark.slow
def test_a_run_is_asked_as_it_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, seen = [], sampled_run.prompts_of

    def kept(*args: Any) -> Any:
        asked.append(seen(*args))
        return asked[-1]

    monkeypatch.setattr(sampled_run, "prompts_of", kept)
    tree = {
        **{"steps": 1, "model": chat_policy(tmp_path / "policy"), "chat_template_kwargs": OFF, "method": "no_kl"},
        **{"task": {"name": "jsonl", "file": rows_file(tmp_path)}, "rollout": {"prompts_per_step": 1, "max_new_tokens": 4}},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(tree))
    done = train(tmp_path / "mine.yaml", run=tmp_path / "run", quiet=True)
    for given, ends in (({}, True), ({"chat_template_kwargs": {}}, False), ({"task": rows_file(tmp_path)}, True)):
        evaluate(done, samples=1, max_new_tokens=4, quiet=True, say=lambda line: None, **given)  # type: ignore[arg-type]
        prompts, _ = asked[-1]
        assert all(prompt.text.endswith(EMPTY) == ends for prompt in prompts.values())


@pytest.mark.slow
def test_puzzles_are_judged_and_their_guesses_counted() -> None:
    task = choose(task_named("knights_and_knaves"), n=3)
    ids = list(task.problems)
    puzzle = task.problems[ids[0]]
    said = task.verdicts(ids[:1] * 2, [f"So.\n{puzzle.answer}", "CONCLUSION:\n(1) X is a knave"])
    assert [v.label for v in said] == ["right", "wrong"] and said[1].answer == "(1) X is a knave"
    assert task.chance is not None and task.chance.at(1) == pytest.approx(
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
    identity = sample_run("p", "embedded", 5).identity(task, "t", "r")
    four = Identity(**(identity.tree() | {"chunk_size": 4}))
    with SampleStore.open(tmp_path / "s", four) as store:
        SamplingRun(task, prompts, Scripted()).run(store, 4)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.note(chance=Chance("values", (0.001,) * 2).tree())
            lines, brief = report_lines(store), report_lines(store, brief=True)
    # of two problems the numbers that say something: pass@1 and pass@n beside chance, what was wrong, where the rest is
    assert [line.split()[0] for line in brief[1:]] == ["pass@1", "pass@4", "no", "truncated", "fewer"]
    assert brief[1].split()[1] == "0.375" and brief[2].split()[1] == "1.000" and brief[2].endswith("chance 0.004")
    cells = {line.split()[0]: line for line in lines}
    assert cells["1"].split()[1] == "0.375" and cells["2"].split()[1] == f"{(5 / 6 + 1 / 2) / 2:.3f}"
    assert cells["4"].split()[1] == "1.000" and cells["2"].endswith("0.002")
    assert cells["2"].split()[4] == f"{(1 / 6 + 0) / 2:.3f}"  # pass^2
    # maj@4: a's 4 wins with 2 of 4; b's 3 wins and is wrong. Each number has its interval behind it.
    assert cells["4"].split()[7] == "0.500" and cells["4"].split()[10] == "1.00"
    assert cells["4"].count("[") == 4 and cells["1"].count("[") == 3
    told = "\n".join(line for line in lines if not line.startswith(("countdown", "script", "    k")))
    assert len(re.findall(r"[0-9.]+%? \[", told)) == told.count("[") >= 17
    assert "(over 2 problems) reached the limit of 5 tokens" in cells["truncated"]
    assert "12.5%" in cells["truncated"] and "0.5: 0.500" in cells["Cover@tau"] and "0.25: 1.000" in cells["Cover@tau"]
    assert powers(256)[-1] == 256 and powers(48) == (1, 2, 4, 8, 16, 32, 48)
