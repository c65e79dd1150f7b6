"""Speed of the reference engine against `transformers.generate` and a textbook GRPO step, side by side in one process.

    python benchmarks/loop.py [--repeats 7]

Both sides use models of the same architecture and first weights, the same threads (1) and task, take turns (A B A B ...),
and are measured in CPU seconds of this process. Every completion has the full 48 tokens on both sides: the end token is
outside the vocabulary, so that no side gains from rows that end early. Printed: completions per CPU second, and the ratio
with its spread over the repeats; where a wanted ratio is missed, also how many tokens either side sends through the linear
layers, whose quotient is what the layout alone can save when arithmetic decides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
import tyro
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.core.keys import Key
from sage_rlvr.models.policy import Asking, Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.training.loop import Loop, train_step
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.verifiers import Verdict

VOCABULARY, NEW_TOKENS, END = 200, 48, 10**6
BETA, CLIP, LR = 0.05, 0.2, 1e-4


def make_model(seed: int = 0) -> PreTrainedModel:
    """A stock Llama of 1.08 M parameters: hidden 128, MLP 512, 4 layers, 4 heads."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def make_prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """`count` random prompts of `length` tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (count, length), generator=generator).tolist()


def reward_of(row: list[int]) -> float:
    """Any cheap function of the tokens: the share of groups with a signal does not change either side's cost."""
    return float(sum(row) % 2)


# --- the textbook side --------------------------------------------------------------------------------------------------


def generate(model: PreTrainedModel, prompts: list[list[int]], group_size: int) -> torch.Tensor:
    """`transformers.generate` on the repeated prompts, nothing truncated. Returns (B, prompt + NEW_TOKENS)."""
    ids = torch.tensor(prompts).repeat_interleave(group_size, 0)
    settings = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)


def textbook_logps(
    model: PreTrainedModel, ids: torch.Tensor, start: int, entropies: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One row per completion: (log-probs (B, T), entropies (B, T) where asked for) of the tokens from `start` on."""
    logits = model(input_ids=ids, logits_to_keep=ids.shape[1] - start + 1, use_cache=False).logits[:, :-1]
    log_probs = torch.log_softmax(logits, -1)
    found = torch.special.entr(log_probs.detach().exp()).sum(-1) if entropies else None
    return log_probs.gather(-1, ids[:, start:, None]).squeeze(-1), found


def textbook_step(
    policy: PreTrainedModel, reference: PreTrainedModel, optimizer: Any, prompts: list[list[int]], group_size: int
) -> None:
    """GRPO as one writes it down the first time: generate, reward, two full forwards, clipped loss + beta k3, AdamW."""
    start = len(prompts[0])
    ids = generate(policy, prompts, group_size)
    rewards = torch.tensor([reward_of(row) for row in ids[:, start:].tolist()]).reshape(-1, group_size)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
    logps, _ = textbook_logps(policy, ids, start, entropies=True)  # a metric of both sides
    with torch.no_grad():
        ref_logps, _ = textbook_logps(reference, ids, start, entropies=False)
    ratio = torch.exp(logps - logps.detach())
    surrogate = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    gap = ref_logps - logps
    loss = (surrogate + BETA * (torch.exp(gap) - gap - 1)).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# --- our side -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """A task whose problems are token lists: what the loop asks of a task, without text in between."""

    name = "numbers"

    def problems(self, split: str) -> list[Any]:
        return []

    def prompt(self, problem: Any) -> Any:
        return problem

    def verify(self, problem: Any, completion: Any) -> Verdict:
        return Verdict("right" if reward_of(completion) else "wrong", "parity")


class Passing(Tokens):
    """Token lists pass through untouched."""

    def encode(self, text: Any) -> list[int]:
        return text

    def encode_prompt(self, text: Any) -> list[int]:
        return text

    def texts(self, rollout: Any) -> Any:
        return rollout.tokens.tolist()


def make_loop(policy: PreTrainedModel, reference: PreTrainedModel, prompts: list[list[int]], group_size: int) -> Loop:
    """The engine's own state around the same models; its `train_step` is what is timed."""
    rollout = {"prompts_per_step": len(prompts), "group_size": group_size, "max_new_tokens": NEW_TOKENS}
    tree = {"steps": 1000, "method": {"name": "grpo", "beta": BETA}, "rollout": rollout, "optimizer": {"lr": LR}}
    config = decode(TrainConfig, tree)
    tokens = Passing(None, END, 0)  # type: ignore[arg-type]
    optimizer = Optimizer(policy, config.optimizer, 1000)
    asking = Asking.of(Numbers(), tokens)
    return Loop(config, config.method, policy, reference, tokens, Numbers(), asking, prompts, optimizer, Key(0))


# --- timing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Tokens through the linear layers on each side; a backward pass counts as two forward ones."""

    ours: int
    theirs: int

    @classmethod
    def of_sampling(cls, prompts: int, length: int, group_size: int) -> Work:
        """A completion's last token is never fed. Ours runs a prompt once, `generate` once per completion."""
        rows, fed = prompts * group_size, NEW_TOKENS - 1
        return cls(prompts * length + rows * fed, rows * (length + fed))

    @classmethod
    def of_step(cls, prompts: int, length: int, group_size: int) -> Work:
        """Sampling, then forward and backward of the policy and forward of the reference: 1 + 3 + 1 passes.

        The textbook feeds the last token too.
        """
        once, rows = cls.of_sampling(prompts, length, group_size), prompts * group_size
        return cls(5 * once.ours, once.theirs + 4 * rows * (length + NEW_TOKENS))

    def explain(self) -> str:
        return (
            f"    through the linear layers: {self.ours:,} tokens here, {self.theirs:,} there; the layout alone can save a "
            f"factor of {self.theirs / self.ours:.2f}, what is above it is overhead saved"
        )


def cpu_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def duel(
    label: str, ours: Callable[[], Any], theirs: Callable[[], Any], rows: int, repeats: int, wanted: float, work: Work | None = None
) -> None:
    """Take turns, print the medians and the ratio's spread, and what bounds a ratio that was missed."""
    ours(), theirs()
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(repeats)]
    ratios = sorted(t / o for o, t in pairs)
    middle = statistics.median(ratios)
    a, b = (rows / statistics.median(column) for column in zip(*pairs, strict=True))
    verdict = "reached" if middle >= wanted else "MISSED"
    print(
        f"{label:<58} {a:8.1f} {b:8.1f}   {middle:5.2f}  ({ratios[0]:.2f} .. {ratios[-1]:.2f})   wanted {wanted:g}: {verdict}",
        flush=True,
    )
    if middle < wanted and work is not None:
        print(work.explain(), flush=True)


def main(repeats: int = 7, threads: int = 1) -> None:
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {threads} thread(s)")
    print(
        f"{'64 completions of 48 tokens, 1.08 M parameters, float32':<58} {'ours':>8} {'theirs':>8}   ratio  (min .. max)"
    )
    print(f"{'':<58} {'completions / CPU s':>17}")
    model = make_model()
    for count, length, group, wanted in ((1, 30, 64, 2.0), (8, 30, 8, 2.0), (1, 300, 64, 5.0)):
        prompts = make_prompts(count, length)
        duel(
            f"sampling, {count} prompt(s) of {length} x {group}",
            lambda p=prompts, g=group: sample(
                model, p, group_size=g, max_new_tokens=NEW_TOKENS, eos_id=END, pad_id=0, key=Key(1), entropies=False
            ),
            lambda p=prompts, g=group: generate(model, p, g),
            64,
            repeats,
            wanted,
            Work.of_sampling(count, length, group),
        )
    prompts = make_prompts(8, 32)
    loop = make_loop(make_model(), make_model(), prompts, 8)
    policy, reference = make_model(), make_model()
    adam = torch.optim.AdamW(policy.parameters(), lr=LR, weight_decay=0.0)
    duel(
        "training step with reference, 8 prompts of 32 x 8",
        lambda: train_step(loop, 0),
        lambda: textbook_step(policy, reference, adam, prompts, 8),
        64,
        repeats,
        2.0,
        Work.of_step(8, 32, 8),
    )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
