"""Episodes in an evaluation: played by any generator, kept with their turns, judged again from the policy's own words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from episodes_common import Digits, digit_policy, taught_digit_policy
from sage_rlvr.config import OfflineConfig, PairsConfig
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.episodes import turn_seed
from sage_rlvr.evaluation.guidance import first_failures, own_words
from sage_rlvr.evaluation.pairs import paired, texts_of
from sage_rlvr.evaluation.sample_report import SampleColumns, report_lines
from sage_rlvr.evaluation.sampling import SamplingRun, Scorer, choose, guide_of, prompts_of
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore
from sage_rlvr.evaluation.store.sample import judged_text, own_of
from sage_rlvr.models.generation import Decoding, Generation, Request, SamplerGenerator, TransformersGenerator
from sage_rlvr.models.policy import PromptRenderer
from sage_rlvr.models.scoring import score
from sage_rlvr.tasks.base import NO_ANSWER
from sage_rlvr.training.offline import pairs_laid_out

LAW = Decoding(max_new_tokens=5)
Make = Callable[..., SamplingRun]
MODEL, TOKENS = taught_digit_policy()
TASK = choose(Digits(), "test")
IDENTITY = Identity(
    task="digits", task_hash="t", model="m", revision="r", prompt="digits", template_hash="h", verifier_hash="v", seed=5,
    decoding={"preset": "untruncated", "temperature": 1.0, "max_new_tokens": 5}, chunk_size=4, turns=3,
)  # fmt: skip


def evaluation(wrap: Callable[[Any], Any] = lambda g: g, together: bool = False, **more: Any) -> SamplingRun:
    generator = wrap(SamplerGenerator(MODEL, TOKENS, LAW, at_once=3, together=together))
    return SamplingRun(TASK, prompts_of(TASK, TOKENS)[0], generator, asking=PromptRenderer.of(TASK.task, TOKENS), window=48, **more)


def fill(folder: Path, *ns: int, identity: Identity = IDENTITY, **words: Any) -> SampleStore:
    for n in ns:
        with SampleStore.open(folder, identity) as store:
            evaluation(together=identity.together > 1, **words).run(store, n, pause=0.01)
    return SampleStore.open(folder)


class Dying:
    """A generator that raises before its `fatal`-th call: in the middle of an episode."""

    def __init__(self, generator: Any, fatal: int) -> None:
        self.inner, self.left, self.name, self.at_once = generator, fatal, generator.name, generator.at_once

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        found: list[list[Generation]] = self.inner.generate(requests)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 4])
def test_interruptions_and_top_ups_leave_no_trace(tmp_path: Path, together: int) -> None:
    identity = replace(IDENTITY, together=together)
    whole = fill(tmp_path / "whole", 8, identity=identity)
    for fatal in (1, 2, 3, 6):
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path / "torn", 8, identity=identity, wrap=lambda g, fatal=fatal: Dying(g, fatal))
    torn = fill(tmp_path / "torn", 4, 8, identity=identity)
    assert torn.digest() == whole.digest() and report_lines(torn) == report_lines(whole)
    assert len(whole.samples()) == 64 and fill(tmp_path / "less", 4, identity=identity).digest() == whole.digest(n=4)


@pytest.mark.slow
def test_rows_hold_turns_tokens_and_signals_of_the_policys_own(tmp_path: Path) -> None:
    scorer = Scorer.of("base", digit_policy(seed=1)[0], TOKENS, TOKENS)
    store = fill(tmp_path, 8, scorer=scorer, guide=guide_of("branch"))
    rows = store.samples()
    assert {len(row.response) for row in rows} == {1, 2, 3} and {row.finish for row in rows} == {"stop", "length"}
    for row in rows:
        check_row(row)
    lines = report_lines(store)
    own = [int(own_of(row.turns or ()).sum()) for row in rows]
    assert any(line.startswith(f"tokens     {sum(own) / len(own):.1f}") for line in lines)
    entropies = SampleColumns(store, 8).arrays("entropies")
    assert entropies is not None and [len(row) for row in entropies] == own
    right = sum(row.verdict == "right" for row in rows)
    assert 0 < right < 64 and any(line.startswith(f"avg@8     {right / 64:.3f}") for line in lines)


def check_row(row: Sample) -> None:
    task, problem = Digits(), TASK.problems[row.problem]
    turns, ids, own = row.turns or (), np.asarray(row.token_ids), own_of(row.turns or ())
    assert isinstance(row.response, tuple) and row.text == "\n".join(text for _, text, _ in turns)
    replies = [text for who, text, _ in turns if who == "environment"]
    assert replies == [task.reply(problem, row.response[: n + 1]) for n in range(len(replies))]
    good = task.judge(problem, (*row.response[:-1], judged_text(row.response[-1], row.finish))).right
    assert row.verdict == ("right" if good else "wrong") and row.reason == f"turn {len(row.response)}"
    assert not row.response[-1].endswith(NO_ANSWER) and not (good and row.finish == "length")
    prompt, tokens = [TOKENS.encode(task.prompt(problem))], torch.tensor(ids[None]).long()
    plain = score(MODEL, prompt, tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros(1).long(), entropies=True)
    for found, wanted in ((row.rollout_logps, plain.logps), (row.entropies, plain.entropies)):
        assert wanted is not None
        assert np.allclose(np.asarray(found)[own], wanted[0].detach().numpy()[own], atol=1e-4)
    for column in (row.rollout_logps, row.entropies, row.base_logps, row.q):
        assert not np.asarray(column)[~own].any() and np.asarray(column)[own].all() and len(np.asarray(column)) == len(ids)


@pytest.mark.slow
def test_a_store_is_judged_again_from_the_policys_turns_alone(tmp_path: Path) -> None:
    class Strict(Digits):
        """Right where the first turn is."""

        def judge(self, problem: Any, said: Sequence[str]) -> Any:
            return super().judge(problem, said[:1])

    store, strict = fill(tmp_path, 8), choose(Strict(), "test")
    before = [row.response for row in store.samples()]
    with SampleStore.open(tmp_path) as again:
        assert again.reverify(strict.verdicts, "v2") == 64 == again.reverify(TASK.verdicts, "v3")
        assert again.reverify(strict.verdicts, "v4") == 64
        rows = again.samples()
    assert [row.response for row in rows] == before
    cut = [row.finish == "length" and len(row.response) == 1 for row in rows]  # in their first turn, which is then never right
    digits = [row.response[0][:1] == str(TASK.problems[row.problem].digit) and row.response[0].isascii() for row in rows]
    firsts = [said and not short for said, short in zip(digits, cut, strict=True)]
    assert [row.verdict == "right" for row in rows] == firsts and any(firsts)


@pytest.mark.slow
def test_every_generator_of_this_process_plays_the_same_episodes(tmp_path: Path) -> None:
    cpu = fill(tmp_path / "sampler", 4).samples()
    made = fill(tmp_path / "transformers", 4, wrap=lambda g: TransformersGenerator(copy.deepcopy(MODEL), TOKENS, LAW)).samples()
    assert [row.turns for row in cpu] == [row.turns for row in made]
    for one, other in zip(cpu, made, strict=True):
        assert np.allclose(np.asarray(one.rollout_logps), np.asarray(other.rollout_logps), atol=1e-4)


def test_generators_that_cannot_play_and_an_evaluation_without_asking_are_refused(tmp_path: Path) -> None:
    class Silent(Dying):
        def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
            return [[replace(one, token_ids=None) for one in rows] for rows in super().generate(requests)]

    for identity, together in ((IDENTITY, True), (replace(IDENTITY, together=4), False)):
        words = f"together = {together}, and the store's Identity.together = "
        with SampleStore.open(tmp_path / f"calls-{together}", identity) as store, pytest.raises(ConfigError, match=words):
            evaluation(together=together).run(store, 4)
    with pytest.raises(ConfigError, match="generator 'sampler' does not return the sampled tokens"):
        fill(tmp_path / "a", 4, wrap=lambda g: Silent(g, 99))
    with SampleStore.open(tmp_path / "b", IDENTITY) as store, pytest.raises(ConfigError, match="give the Evaluation asking"):
        replace(evaluation(), asking=None).run(store, 4)


def test_seeds_of_turns_are_these_for_ever() -> None:
    assert [turn_seed(7, turn) for turn in (0, 1, 2)] == [7, 7631765994772377903, 992399040556432219]
    assert len({turn_seed(seed, turn) for seed in range(50) for turn in range(4)}) == 200


@pytest.mark.slow
def test_pairs_of_episodes_count_the_policys_own_tokens_alone(tmp_path: Path) -> None:
    """And a teacher hears the turns that the policy said."""
    store = fill(tmp_path / "first", 8)
    rows = store.samples()
    config = OfflineConfig(steps=1, loss="dpo", model="m", task=Digits(), pairs=PairsConfig(attempts=str(tmp_path / "first")))
    found = paired(config.pairs)
    data = texts_of(config, found, TOKENS)
    several = 0
    for pair, texts in zip(found.pairs, data.pairs, strict=True):
        for row, text in zip((pair.winner, pair.loser), texts, strict=True):
            assert row.turns is not None and text.own == tuple(own_of(row.turns).tolist())
            assert text.tokens == tuple(np.asarray(row.token_ids).tolist()) and len(text.own) == len(text.tokens)
            several += not all(text.own)
    assert several > 0
    (prompts, tokens, mask, owners, own), first = pairs_laid_out(data.pairs), data.pairs[0]
    assert int(own.sum()) == sum(sum(text.own or ()) for pair in data.pairs for text in pair) < int(mask.sum())
    assert prompts[0] == first[0].prompt and tokens.shape == own.shape and len(owners) == 2 * len(data.pairs)
    failed = first_failures(store)
    assert failed
    for row in failed.values():
        assert tuple(own_words(row)) == tuple(text.removesuffix(NO_ANSWER) for text in row.response)
    assert {row.verdict for row in rows} >= {"right", "wrong"}
