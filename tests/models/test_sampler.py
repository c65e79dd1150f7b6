"""Sampling: the recorded log-probs are the scorer's, the frequencies are the model's, and chance is an argument."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy.stats import chi2
from transformers import (
    PreTrainedModel,
)

from models.sampler_common import EOS, MODELS, PAD, PROMPTS, build, gpt2, gqa, llama, owners, run, same, sliding
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError
from sage_rlvr.models import sampler
from sage_rlvr.models.sampler import draw, pad_right
from sage_rlvr.models.scoring import score

# ---- the recorded numbers


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("make", MODELS)
def test_log_probs_and_entropies_are_the_scorers(make: Callable[[], PreTrainedModel], temperature: float) -> None:
    model = build(make)
    rollout = run(model, temperature=temperature, group_size=24)
    assert 0 < rollout.finished.sum() < len(rollout.finished)  # both kinds of rows are there
    scores = score(
        model, PROMPTS, rollout.tokens, rollout.mask, owners(PROMPTS, 24), temperature=temperature, entropies=True
    )
    assert torch.allclose(scores.logps[rollout.mask], rollout.logps[rollout.mask], atol=2e-5)
    assert scores.entropies is not None
    assert torch.allclose(scores.entropies[rollout.mask], rollout.entropies[rollout.mask], atol=2e-5)


@pytest.mark.parametrize("make", MODELS)
def test_recorded_numbers_are_those_of_a_plain_forward_pass(make: Callable[[], PreTrainedModel]) -> None:
    model = build(make)
    rollout = run(model, temperature=0.7)
    for row in range(len(rollout.tokens)):
        prompt, n = PROMPTS[row // 6], int(rollout.lengths[row])
        completion = rollout.tokens[row, :n]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.tolist()]])).logits[0, len(prompt) - 1 : -1]
        law = torch.distributions.Categorical(logits=logits / 0.7)
        assert torch.allclose(law.log_prob(completion), rollout.logps[row, :n], atol=2e-5)
        assert torch.allclose(law.entropy(), rollout.entropies[row, :n], atol=2e-5)


def test_the_end_is_counted_and_nothing_after_it() -> None:
    rollout = run(build(llama), group_size=16)
    for tokens, mask, done in zip(
        rollout.tokens.tolist(), rollout.mask.tolist(), rollout.finished.tolist(), strict=True
    ):
        n = sum(mask)
        assert mask == [True] * n + [False] * (len(mask) - n)
        assert (EOS in tokens) == done and (not done or tokens.index(EOS) == n - 1)
        assert all(t == PAD for t in tokens[n:]) and (done or n == 10)
    off = ~rollout.mask
    assert not rollout.logps[off].any() and not rollout.entropies[off].any()
    assert rollout.tokens.shape[1] == int(rollout.lengths.max())


def test_no_column_is_wider_than_the_longest_row() -> None:
    model = build(llama)
    with torch.no_grad():
        model.lm_head.weight[:] = 0  # uniform over 21 tokens: ends come early in a long allowance
    rollout = run(model, group_size=4, max_new_tokens=400)
    assert bool(rollout.finished.all()) and rollout.tokens.shape[1] == int(rollout.lengths.max()) < 400


# ---- the law of what is drawn


def test_frequencies_are_the_models_probabilities() -> None:
    """5,000 completions of at most 3 tokens over a vocabulary of 4 against all 40 enumerated probabilities."""
    model = build(lambda: llama(vocab_size=4, initializer_range=0.4))
    prompt, n, temperature = [2, 3, 2], 5000, 0.8
    expected: dict[tuple[int, ...], float] = {}
    inner = (0, 2, 3)
    for length in (1, 2, 3):
        for head in itertools.product(inner, repeat=length - 1):
            for last in (EOS,) if length < 3 else (EOS, *inner):
                completion = (*head, last)
                with torch.no_grad():
                    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
                logps = torch.log_softmax(logits.double() / temperature, -1)
                expected[completion] = float(logps[range(length), list(completion)].sum().exp())
    assert sum(expected.values()) == pytest.approx(1, abs=1e-6)
    rollout = run(model, [prompt], group_size=n, max_new_tokens=3, temperature=temperature, key=Key(11))
    rows = zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)
    counts = Counter(tuple(tokens[:length]) for tokens, length in rows)
    assert set(counts) <= set(expected)
    common = [c for c, p in expected.items() if p * n >= 5]
    rare = [c for c, p in expected.items() if p * n < 5]
    cells = [(counts[c], expected[c] * n) for c in common]
    if sum(expected[c] for c in rare) * n >= 5:
        cells.append((sum(counts[c] for c in rare), sum(expected[c] for c in rare) * n))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    assert len(cells) > 8
    assert chi2.sf(statistic, len(cells) - 1) > 0.01


def test_draw_inverts_the_distribution_function() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(5, 3)
    tokens, logps, entropies = draw(logits, torch.tensor([1e-7, 0.19, 0.21, 0.69, 0.9999999]), 1.0)
    assert tokens.tolist() == [0, 0, 1, 1, 2]
    assert torch.allclose(logps.exp(), torch.tensor([0.2, 0.2, 0.5, 0.5, 0.3]))
    entropy = -(0.2 * torch.tensor(0.2).log() + 0.5 * torch.tensor(0.5).log() + 0.3 * torch.tensor(0.3).log())
    assert torch.allclose(entropies, entropy.expand(5))


@pytest.mark.parametrize("size", [5000, 5 * 128 * 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_draw_in_two_levels_is_the_draw_in_one(size: int, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens, but where a number falls within the rounding of a border; also with a block that is not full."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, size, generator=generator)
    uniforms = torch.rand(400, generator=generator, dtype=torch.float64)
    found = draw(logits, uniforms, temperature)
    monkeypatch.setattr(sampler, "ONE_LEVEL", size)
    wanted = draw(logits, uniforms, temperature)
    assert (found[0] == wanted[0]).float().mean() > 0.995
    same = found[0] == wanted[0]
    assert torch.allclose(found[1][same], wanted[1][same], atol=1e-5) and torch.allclose(found[2], wanted[2], atol=1e-4)


def test_frequencies_of_a_draw_in_two_levels() -> None:
    logits = torch.full((1, 4200), -8.0)
    likely = torch.tensor([0, 3, 127, 128, 129, 2000, 4095, 4096, 4199])
    logits[0, likely] = torch.tensor([1.0, 0.5, 0.0, 0.2, -1.0, 1.5, 0.7, -0.5, 0.9])
    uniforms = Key(5).uniform64(0, "sample", torch.arange(20_000), torch.arange(1))[:, 0]
    tokens, _, _ = draw(logits.expand(20_000, -1), uniforms, 1.0, False)
    probs = torch.softmax(logits[0].double(), 0)
    seen = torch.bincount(tokens, minlength=4200)[likely]
    cells = [*zip(seen.tolist(), (20_000 * probs[likely]).tolist(), strict=True)]
    cells.append((20_000 - int(seen.sum()), 20_000 * float(1 - probs[likely].sum())))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    assert chi2.sf(statistic, len(cells) - 1) > 0.01


def test_a_draw_in_two_levels_never_takes_a_token_of_probability_zero() -> None:
    logits = torch.full((4, 5000), float("-inf"))
    logits[:, [129, 4998]] = 0.0
    tokens, logps, entropies = draw(logits, torch.tensor([2.0**-24, 0.49, 0.51, 1 - 2.0**-24]), 1.0)
    assert tokens.tolist() == [129, 129, 4998, 4998]
    assert torch.isfinite(logps).all() and torch.allclose(entropies, torch.tensor(2.0).log())


def test_draw_never_takes_a_token_of_probability_zero() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(4, 5)
    tokens, logps, entropies = draw(logits, torch.tensor([2.0**-24, 0.49, 0.51, 1 - 2.0**-24]), 1.0)
    assert tokens.tolist() == [1, 1, 3, 3]
    assert torch.isfinite(logps).all() and torch.isfinite(entropies).all()


def test_the_tail_of_a_large_vocabulary_can_be_drawn() -> None:
    """150,000 tokens of which one has 0.99: the others, 6.7e-8 each, are closer than float32 numbers just below 1."""
    size, rows = 150_000, torch.arange(100_000, 100_024)
    probs = torch.full((size,), 0.01 / (size - 1), dtype=torch.float64)
    probs[0] = 0.99
    uniforms = 0.99 + 0.01 * (rows.double() - 0.5) / (size - 1)  # the middle of each token's interval
    tokens, logps, _ = draw(probs.log().float().expand(len(rows), -1), uniforms, 1.0, False)
    assert (tokens.diff() == 1).all() and (tokens - rows).abs().max() <= 1
    assert torch.allclose(logps.double(), probs[1].log(), atol=1e-3)


def test_uniforms_are_finer_than_float32_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(sampler, "draw", lambda logits, u, *rest: seen.append(u) or draw(logits, u, *rest))
    run(build(llama), group_size=200, max_new_tokens=1)
    key, rows = Key(3), torch.arange(600)
    fine, coarse = key.uniform64(0, "sample", rows, 0), key.uniform(0, "sample", rows, 0)
    assert torch.equal(seen[0], fine[:, 0]) and fine.dtype == torch.float64
    assert (fine - coarse).abs().max() <= 2.0**-24 and (fine.float() != coarse).any()
    assert (fine > 0).all() and (fine < 1).all()
    bits = (fine * 2.0**52 - 0.5).long()  # every one of the 52 is used
    assert all(0.35 < float((bits >> b & 1).float().mean()) < 0.65 for b in range(52))
    word = torch.tensor([[-1, 0]])
    monkeypatch.setattr(Key, "bits", lambda self, *address: word)
    assert key.uniform64(0, "x", rows, 0).tolist() == [[1 - 2.0**-53, 2.0**-53]]  # inside (0, 1) at both ends


def test_temperature_is_honoured() -> None:
    model = build(llama)
    cold, warm = run(model, temperature=1e-4, group_size=8), run(model, temperature=1.0, group_size=8)
    greedy = [first for first in cold.tokens[::8, 0].tolist() for _ in range(8)]
    with torch.no_grad():
        best = [int(model(torch.tensor([p])).logits[0, -1].argmax()) for p in PROMPTS]
    assert cold.tokens[:, 0].tolist() == greedy and cold.tokens[::8, 0].tolist() == best
    assert (cold.entropies[:, 0] < warm.entropies[:, 0]).all()


# ---- chance is an argument


@pytest.mark.parametrize("make", [gqa, gpt2])
def test_same_key_and_step_same_completions(make: Callable[[], PreTrainedModel]) -> None:
    model = build(make)
    first = run(model, step=4)
    torch.manual_seed(99)  # the global generator does not matter, nor does an earlier call
    run(model, step=5)
    same(first, run(model, step=4))
    for other in (run(model, step=5), run(model, step=4, key=Key(4))):
        assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)


@pytest.mark.parametrize("make", MODELS)
def test_a_row_does_not_depend_on_the_other_prompts(make: Callable[[], PreTrainedModel]) -> None:
    model = build(make)
    together = run(model)
    for p, prompt in enumerate(PROMPTS):
        rows = slice(6 * p, 6 * p + 6)
        same(together, run(model, [prompt], row_ids=torch.arange(18)[rows]), rows, tolerance=2e-5)


@pytest.mark.parametrize("make", [gqa, gpt2])
@pytest.mark.parametrize("completions", [1, 3, 5, 11])
def test_a_rollout_in_pieces_is_the_whole_one(
    make: Callable[[], PreTrainedModel], completions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3 prompts x 5 completions: the rows' own random numbers and limits, and never a larger cache than it may be."""
    model, held = build(make), list[int]()
    asked = {"group_size": 5, "max_new_tokens": 12, "eos_id": EOS, "pad_id": PAD, "key": Key(3), "row_ids": torch.arange(15) + 7}
    asked["limits"] = torch.arange(15) % 12 + 1
    whole = sampler.sample(model, PROMPTS, **asked)
    each = 12 * 4 * sampler.numbers_per_token(model.config)
    monkeypatch.setattr(sampler, "cache_bytes", lambda model: completions * each)
    plain = sampler.Decoder.__init__
    monkeypatch.setattr(
        sampler.Decoder, "__init__", lambda self, *args: plain(self, *args) or held.append(sum(m.nbytes for m in self.memory[1:]))
    )
    parts = sampler.sample(model, PROMPTS, **asked)
    assert torch.equal(parts.tokens, whole.tokens) and torch.equal(parts.mask, whole.mask)
    torch.testing.assert_close(parts.logps, whole.logps, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(parts.entropies, whole.entropies, atol=1e-5, rtol=1e-4)
    assert make is gpt2 or (len(held) > 1 and max(held) <= completions * each)


def test_a_row_does_not_depend_on_its_group() -> None:
    model = build(gqa)
    together = run(model, [PROMPTS[0]])
    same(together, run(model, [PROMPTS[0]], group_size=1, row_ids=torch.tensor([4])), slice(4, 5), tolerance=2e-5)


# ---- several ends


@pytest.mark.parametrize("make", [gqa, sliding])
def test_any_of_several_ends_ends_a_completion(make: Callable[[], PreTrainedModel]) -> None:
    model, ends = build(make), (EOS, 5, 9)
    one, several = run(model, group_size=24), run(model, group_size=24, eos_id=ends)
    same(one, run(model, group_size=24, eos_id=[EOS]))
    used = set()
    for a, b, done in zip(one.tokens.tolist(), several.tokens.tolist(), several.finished.tolist(), strict=True):
        cut = next((i + 1 for i, token in enumerate(a) if token in ends), None)
        assert done == (cut is not None) and (cut is None or (b[:cut] == a[:cut] and not any(b[cut:])))
        used |= {b[cut - 1]} if cut else set()
    assert used == set(ends)


# ---- refusals


@pytest.mark.parametrize(
    ("prompts", "changes", "words"),
    [
        ([[2], []], {}, "prompt 1 has no tokens"),
        ([], {}, "no tokens"),
        ([[2]], {"eos_id": ()}, "eos_id is empty"),
        ([[2]], {"group_size": 0}, "group_size 0"),
        ([[2]], {"max_new_tokens": 0}, "max_new_tokens 0"),
        ([[2]], {"temperature": 0.0}, "temperature 0.0 must be above 0"),
        ([[2]], {"temperature": float("nan")}, "temperature nan"),
    ],
)
def test_refusals(prompts: list[list[int]], changes: dict[str, float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        run(build(llama), prompts, **changes)


def test_joined_parts_of_which_some_are_episodes() -> None:
    """A part without `own` was drawn by the policy as a whole; entropies that one part lacks are nobody's."""
    tokens, mask = torch.tensor([[5, 6, PAD]]), torch.tensor([[True, True, False]])
    plain = sampler.Rollout(tokens, mask, torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([True]))
    own = torch.tensor([[True, False, False, True]])
    episode = sampler.Rollout(
        torch.tensor([[7, 8, 9, EOS]]), torch.ones_like(own), torch.zeros(1, 4), None, torch.tensor([True]), own
    )
    found = sampler.joined([plain, episode], PAD)
    assert found.own is not None and found.own.tolist() == [[True, True, False, False], *own.tolist()]
    assert found.tokens.tolist() == [[5, 6, PAD, PAD], [7, 8, 9, EOS]] and found.entropies is None
    whole = sampler.joined([plain, plain], PAD)
    assert whole.own is None and torch.equal(whole.entropies, torch.ones(2, 3))


def test_pad_right() -> None:
    ids, lengths = pad_right([[5, 6], [7], [8, 9, 4]], torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 0], [7, 0, 0], [8, 9, 4]] and lengths.tolist() == [2, 1, 3]


def test_a_cache_goes_by_the_keyword_that_the_forward_has() -> None:
    """transformers renamed it in 5.24; an older forward takes any other keyword without a word."""

    class New:
        def forward(self, input_ids, cache=None, **kwargs): ...

    class Old:
        def forward(self, input_ids, past_key_values=None, **kwargs): ...

    assert sampler.cached(New(), 1) == {"cache": 1} and sampler.cached(Old(), 1) == {"past_key_values": 1}  # type: ignore[arg-type]
