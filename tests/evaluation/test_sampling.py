"""An evaluation by samples: the same store whatever interrupts it, right counts, and every completion judged as it was asked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from byte_tokenizer import byte_tokenizer
from evaluation.sampling_common import sample_run
from sage_rlvr.config import WorldConfig
from sage_rlvr.contrib.analysis.token_report import anatomy_lines
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.exact import probabilities
from sage_rlvr.evaluation.policies import revision_at
from sage_rlvr.evaluation.sample_report import (
    common_n,
    excess_lines,
    pattern_lines,
    report_lines,
)
from sage_rlvr.evaluation.sampling import EvalSet, SamplingRun, Scorer, check_window, choose, guide_of, prompts_of
from sage_rlvr.evaluation.store import Identity, SampleStore
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.models.episodes import positions_of
from sage_rlvr.models.generation import Decoding, Generation, Generator, Request, SamplerGenerator
from sage_rlvr.models.policy import NO_ANSWER, Tokens, load_policy, revision_of
from sage_rlvr.models.scoring import score
from sage_rlvr.verdicts.stats.samples.diversity import pcmd

WORLD = WorldConfig(counts={2: 1.0}, max_number=12, max_target=144)
LAW = Decoding(max_new_tokens=8)


@pytest.fixture(scope="module")
def pieces(warm_policy: Path) -> tuple[EvalSet, Any, Tokens, Identity, dict[str, Any]]:
    task = choose(WORLD.build(), "test", 1, 7)
    model, tokens = load_policy(str(warm_policy))
    prompts, template = prompts_of(task, tokens)
    identity = sample_run("warm", str(warm_policy)).identity(task, template, revision_of(str(warm_policy)))
    return task, model, tokens, identity, prompts


def evaluation(
    pieces: Any, at_once: int = 2, wrap: Callable[[Generator], Any] = lambda g: g, **more: Any
) -> SamplingRun:
    task, model, tokens, _, prompts = pieces
    return SamplingRun(task, prompts, wrap(SamplerGenerator(model, tokens, LAW, at_once, together=False)), **more)


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

    def drawing() -> SamplingRun:
        return SamplingRun(task, prompts, SamplerGenerator(model, tokens, law, together=True))

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
        patch.setattr("sage_rlvr.evaluation.sample_run.supports", lambda model: True)
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


def test_a_model_that_moves_on_the_hub_is_another_one() -> None:
    one, two = (revision_at("owner/name", commit) for commit in ("abc", None))
    assert (one, two) == ("hub:owner/name@abc", "hub:owner/name")


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    rows = store.samples()
    pairs = [pcmd([r.answer for r in own], [r.verdict == "right" for r in own]) for own in by_problem(rows).values()]
    many = sum(not np.isnan(value) for value in pairs)
    assert 0 < many < len(pairs)
    line = next(line for line in said.splitlines() if line.startswith("PCMD       "))
    assert line.split()[1] == f"{np.nanmean(pairs):.3f}" and line.endswith(f"over {many} of 7 problems with two correct answers")


def by_problem(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.problem, []).append(row)
    return found


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
    assert "several values of --guide (branch; token): not printed" in said and "q          mean" not in said
    assert "several values of --base-logprobs (first 0123; second 0123): not printed" in said
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
    assert lines[0].startswith(f"signals of {tokens:,} tokens") and any("  digit  " in line for line in lines)
    assert "at the clamp on" in lines[-1]
    assert float(lines[-3].split()[-1]) > 0.2  # at temperature 1 the mean surprisal at a prefix is its entropy
    assert "samples, in" in "\n".join(pattern_lines(store))
    model, tokens_ = load_policy(str(tiny_policy))  # untrained: much of what it says is rare under the warm one
    with SampleStore.open(tmp_path / "t", dataclasses.replace(pieces[3], model="tiny")) as other:
        SamplingRun(pieces[0], pieces[4], SamplerGenerator(model, tokens_, LAW, together=False), scorer).run(other, 32)
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
    check_window(prompts, positions_of(model), 50)
    with pytest.raises(ConfigError, match="--max-new-tokens 5"):
        check_window(prompts, positions_of(model), 60)


def test_a_cut_completion_is_not_right_though_its_text_is(pieces: Any) -> None:
    task = pieces[0]
    name, problem = next(iter(task.problems.items()))
    text = WORLD.build().solutions(problem)[0]
    assert [v.label for v in task.verdicts([name, name], [text, text + NO_ANSWER])] == ["right", "wrong"]
