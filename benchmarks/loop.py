"""Speed of the reference engine against `transformers.generate` and a textbook GRPO step, side by side in one process.

    python benchmarks/loop.py [--repeats 7]

Both sides use models of the same architecture and first weights, the same threads (1) and task, take turns (A B A B ...),
and are measured in CPU seconds of this process. Every completion has the full 48 tokens on both sides: the end token is
outside the vocabulary, so that no side gains from rows that end early. Printed: completions per CPU second, and the ratio
with its spread over the repeats; below it the floor of either side, the arithmetic that it sends through the linear layers
and the attention over the rate of this core at products of the step's own shapes, and how far above it each side is; last
the parts of a step, and the peak memory of a step over that of the imports and the models, each side in its own process.
Random rows never begin alike, so nothing here is saved by running shared beginnings once, as the house's own recipes do.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
import transformers
import tyro
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sage_rlvr.config import TrainConfig, decode
from sage_rlvr.core.keys import Key
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.tasks.base import Task
from sage_rlvr.training import loop as engine
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.samplers import PlainSampler
from sage_rlvr.verifiers import Verdict

VOCABULARY, NEW_TOKENS, END = 200, 48, 10**6
HIDDEN, MLP, LAYERS = 128, 512, 4
BETA, CLIP, LR = 0.05, 0.2, 1e-4


def make_model(seed: int = 0) -> PreTrainedModel:
    """A stock Llama of 1.08 M parameters: hidden 128, MLP 512, 4 layers, 4 heads."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=MLP,
            num_hidden_layers=LAYERS,
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
class Numbers(Task):
    """A task whose problems are token lists: what the loop asks of a task, without text in between."""

    name = "numbers"
    turns = 1

    def problems(self, split: str) -> list[Any]:
        return []

    def prompt(self, problem: Any) -> Any:
        return problem

    def verify(self, problem: Any, completion: Any) -> Verdict:
        return self.judge(problem, completion)

    def reply(self, problem: Any, said: Any) -> None:
        return None

    def judge(self, problem: Any, completion: Any) -> Verdict:
        return Verdict("right" if reward_of(completion) else "wrong", "parity")


class Passing(Tokens):
    """Token lists pass through untouched."""

    def encode(self, text: Any) -> list[int]:
        return text

    def encode_prompt(self, text: Any) -> list[int]:
        return text

    def texts(self, rollout: Any) -> Any:
        return rollout.tokens.tolist()


def make_loop(policy: PreTrainedModel, reference: PreTrainedModel, prompts: list[list[int]], group_size: int) -> TrainState:
    """The engine's own state around the same models; its `train_step` is what is timed."""
    rollout = {"prompts_per_step": len(prompts), "group_size": group_size, "max_new_tokens": NEW_TOKENS}
    tree = {"steps": 1000, "method": {"name": "grpo", "beta": BETA}, "rollout": rollout, "optimizer": {"lr": LR}}
    config = decode(TrainConfig, tree)
    tokens = Passing(None, END, 0)  # type: ignore[arg-type]
    optimizer = Optimizer(policy, config.optimizer, 1000)
    asking = PromptRenderer.of(Numbers(), tokens)
    return TrainState(config, config.method, policy, reference, tokens, Numbers(), asking, prompts, optimizer, Key(0))


# --- timing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Products of one side: tokens through the linear layers, and pairs of a token and one that it sees.

    A backward pass counts as two forward ones.
    """

    tokens: int
    pairs: int

    @classmethod
    def of_rows(cls, rows: int, length: int, fed: int, texts: int) -> Work:
        """`texts` prompts of `length` tokens and `rows` completions of which `fed` tokens are fed."""
        seen = sum(length + t + 1 for t in range(fed))
        return cls(texts * length + rows * fed, texts * length * (length + 1) // 2 + rows * seen)

    @classmethod
    def of_sampling(cls, prompts: int, length: int, group_size: int) -> tuple[Work, Work]:
        """(ours, theirs). A completion's last token is never fed. Ours runs a prompt once, `generate` once per completion."""
        rows = prompts * group_size
        return cls.of_rows(rows, length, NEW_TOKENS - 1, prompts), cls.of_rows(rows, length, NEW_TOKENS - 1, rows)

    @classmethod
    def of_step(cls, prompts: int, length: int, group_size: int) -> tuple[Work, Work]:
        """Sampling, then forward and backward of the policy and forward of the reference: 1 + 3 + 1 passes.

        The textbook feeds the last token too.
        """
        once, sampled = cls.of_sampling(prompts, length, group_size)
        rows = prompts * group_size
        whole = cls.of_rows(rows, length, NEW_TOKENS, rows)
        return cls(5 * once.tokens, 5 * once.pairs), cls(
            sampled.tokens + 4 * whole.tokens, sampled.pairs + 4 * whole.pairs
        )

    def floor(self, rate: float) -> float:
        """Seconds at `rate` multiplications and additions a second."""
        linear = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * MLP) + HIDDEN * VOCABULARY
        return (2 * linear * self.tokens + 4 * LAYERS * HIDDEN * self.pairs) / rate


def products_per_second(rows: int = 3264, seconds: float = 0.5) -> float:
    """Best rate of this core, floating-point operations a CPU second, at the products of a layer for `rows` tokens."""
    shapes = [(HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2 * MLP), (MLP, HIDDEN)]
    factors = [(torch.randn(rows, a), torch.randn(a, b)) for a, b in shapes]
    work = 2 * rows * sum(a * b for a, b in shapes)
    began, best = time.process_time(), 0.0
    while time.process_time() - began < seconds:
        best = max(best, work / cpu_seconds(lambda: [a @ b for a, b in factors]))
    return best


def cpu_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def duel(
    label: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    rows: int,
    repeats: int,
    wanted: float,
    work: tuple[Work, Work] | None = None,
) -> None:
    """Take turns, print the medians and the ratio's spread, and how far above its floor each side is."""
    ours(), theirs()
    pairs, rates = [], []
    for _ in range(repeats):
        pairs.append((cpu_seconds(ours), cpu_seconds(theirs)))
        rates.append(products_per_second() if work else 0.0)  # in between: a busy core is slower for all three
    ratios = sorted(t / o for o, t in pairs)
    middle = statistics.median(ratios)
    a, b = (rows / statistics.median(column) for column in zip(*pairs, strict=True))
    verdict = "reached" if middle >= wanted else "MISSED"
    print(
        f"{label:<58} {a:8.1f} {b:8.1f}   {middle:5.2f}  ({ratios[0]:.2f} .. {ratios[-1]:.2f})   wanted {wanted:g}: {verdict}",
        flush=True,
    )
    if work is not None:
        rate = statistics.median(rates)
        took = [statistics.median(column) for column in zip(*pairs, strict=True)]
        told = (
            f"{side.floor(rate):.3f} s ({t / side.floor(rate):.1f} above)" for side, t in zip(work, took, strict=True)
        )
        print(
            f"    floor at {rate / 1e9:.0f} GFLOP/s: {', theirs '.join(told)}; of the floors {theirs_over_ours(work):.2f}",
            flush=True,
        )


def theirs_over_ours(work: tuple[Work, Work]) -> float:
    """What the layout alone saves where arithmetic decides."""
    return work[1].floor(1.0) / work[0].floor(1.0)


PARTS: dict[str, tuple[Any, str]] = {
    "sampling": (PlainSampler, "draw"),
    "reference": (engine, "reference_scores"),
    "forward": (engine, "score_rows"),
    "backward": (torch.Tensor, "backward"),
    "optimizer": (Optimizer, "step"),
}


def print_parts(loop: TrainState, repeats: int) -> None:
    """Median CPU milliseconds of each part of a step; a part inside another counts for the outer one."""
    spent: dict[str, list[float]] = defaultdict(list)
    inside: list[str] = []

    def timed(label: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            began, outer = time.process_time(), not inside
            inside.append(label)
            try:
                return part(*args, **named)
            finally:
                inside.pop()
                if outer:
                    spent[label].append(time.process_time() - began)

        return run

    whole = []
    with ExitStack() as stack:
        for label, (owner, name) in PARTS.items():
            stack.enter_context(patch.object(owner, name, timed(label, getattr(owner, name))))
        whole = [cpu_seconds(lambda: train_step(loop, 0)) for _ in range(repeats)]
    medians = {label: statistics.median(times) for label, times in spent.items()}
    medians["rest"] = max(0.0, statistics.median(whole) - sum(medians.values()))
    print("parts of a step, CPU ms: " + ", ".join(f"{label} {1000 * t:.0f}" for label, t in medians.items()))


def peak_over_models(side: str) -> float:
    """MiB that three steps of "ours" or "theirs" need at their peak over what imports and models hold; in a new process."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    step = make_step(side)
    held = resident("VmRSS")
    for _ in range(3):
        step()
    return resident("VmHWM") - held


def resident(line: str) -> float:
    """MiB of a line of this process's status; `getrusage` would begin from the peak of the process that started it."""
    with open("/proc/self/status") as status:
        return next(int(found.split()[1]) for found in status if found.startswith(line)) / 1024


def print_memory(wanted: float) -> None:
    """Peaks of both sides, in MiB, and their ratio."""
    peaks = []
    for side in ("ours", "theirs"):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            peaks.append(pool.submit(peak_over_models, side).result())
    ratio = peaks[0] / peaks[1]
    verdict = "reached" if ratio <= wanted else "MISSED"
    print(f"memory of a step, MiB: {peaks[0]:.0f}, theirs {peaks[1]:.0f}: {ratio:.2f}   wanted {wanted:g}: {verdict}")


def make_step(side: str) -> Callable[[], Any]:
    """One training step of "ours" or "theirs" on 8 prompts of 32 x 8, from first weights of its own."""
    prompts, policy, reference = make_prompts(8, 32), make_model(), make_model()
    if side == "ours":
        loop = make_loop(policy, reference, prompts, 8)
        return lambda: train_step(loop, 0)
    adam = torch.optim.AdamW(policy.parameters(), lr=LR, weight_decay=0.0)
    return lambda: textbook_step(policy, reference, adam, prompts, 8)


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
    label = "training step with reference, 8 prompts of 32 x 8"
    duel(label, make_step("ours"), make_step("theirs"), 64, repeats, 2.0, Work.of_step(8, 32, 8))
    print_parts(make_loop(make_model(), make_model(), make_prompts(8, 32), 8), repeats)
    print_memory(0.6)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
