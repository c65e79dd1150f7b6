"""Speed of an evaluation by samples against `transformers.generate(num_return_sequences=64)`, side by side in one process.

    python benchmarks/evaluator.py [--repeats 7] [--preset untruncated]

Both sides draw k = 64 completions of 48 tokens of each problem from models of one architecture and first weights (those of
benchmarks/loop.py: 1.08 M parameters, float32, a character a token), with the same settings, on the same threads (1), in
turns, measured in CPU seconds of this process. The end token is outside the vocabulary, so every completion has all its
tokens. Ours is the whole evaluation: prompts, own seed of each sample, log-probs, entropies, text, verdicts, and the store
with its synced files. Theirs is what an evaluator cannot do without: generate one problem at a time, decode, verify.
Below each ratio the floor of either side, as benchmarks/loop.py has it: what the arithmetic alone would take on this core.
Then `SamplerGenerator` as a script makes it, 8 prompts with a sample each, against one prompt a pass.
Last, pass@k at every k from 1 to 1,024 from a 10,000 x 1,024 matrix of verdicts, in seconds (wanted: under one).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import tyro
from loop import END, NEW_TOKENS, VOCABULARY, Work, cpu_seconds, duel, make_model, make_prompts
from transformers import GenerationConfig

from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, Prompt, SamplingRun
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.models.generation import Decoding, Request, SamplerGenerator
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.base import Task
from sage_rlvr.verdicts.stats.passk import pass_at_all_k
from sage_rlvr.verifiers import Verdict

K = 64


class Characters:
    """One character a token, decoded as any tokenizer decodes: what both sides use."""

    name_or_path, eos_token_id, bos_token_id, pad_token_id = "characters", END, None, 0

    def get_vocab(self) -> dict[str, int]:
        return {chr(33 + i): i for i in range(VOCABULARY)}

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        return ["".join(chr(33 + i) for i in row) for row in rows]


def judge(texts: list[str]) -> list[Verdict]:
    """Cheap, and the same on both sides."""
    return [Verdict("right" if text[0] == "!" else "wrong", "first") for text in texts]


class First(Task):
    """A task whose problems are numbers: right begins with "!"."""

    name = "bench"

    def problems(self, split: str) -> list[Any]:
        return []

    def prompt(self, problem: Any) -> str:
        return str(problem)

    def verify(self, problem: Any, completion: str) -> Verdict:
        return judge([completion])[0]

    def answer_key(self, problem: Any, text: str) -> str:
        return text[:4]


def theirs(model: Any, prompts: list[list[int]], decoding: Decoding, tokenizer: Characters) -> int:
    """generate -> decode -> verify, one problem at a time; the number of right ones."""
    settings = GenerationConfig(
        do_sample=True,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        min_p=decoding.min_p or None,
        max_new_tokens=decoding.max_new_tokens,
        num_return_sequences=K,
        pad_token_id=0,
    )
    right = 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        said = judge(tokenizer.batch_decode(out[:, len(prompt) :].tolist()))
        right += sum(verdict.label == "right" for verdict in said)
    return right


def ours(model: Any, prompts: list[list[int]], decoding: Decoding, tokenizer: Characters, together: bool = True) -> int:
    """A whole evaluation into a new store."""
    named = {f"p{i}": Prompt(str(i), tuple(prompt)) for i, prompt in enumerate(prompts)}
    task = EvalSet(First(), dict.fromkeys(named), "h")
    run = SampleRun(
        samples=K,
        preset=decoding.preset,
        max_new_tokens=decoding.max_new_tokens,
        generator="sampler",
        dtype="float32",
        policy="bench",
        model="embedded",
        store=Path("new"),
    )
    identity = run.identity(task, "t", "r", model=model if together else None)
    generator = SamplerGenerator(model, Tokens(tokenizer, END, 0), decoding, together=together)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder, SampleStore.open(Path(folder) / "s", identity) as store:
        SamplingRun(task, named, generator).run(store, K)
        return int(store.counts(K, check=False).right.sum())


def turns(arguments: Any, repeats: int) -> str:
    """Ratio of CPU seconds of an evaluation that draws one prompt a call over one that draws `together`."""
    pairs = [(cpu_seconds(lambda: ours(*arguments)), cpu_seconds(lambda: ours(*arguments, False))) for _ in range(repeats)]
    ratios = sorted(alone / both for both, alone in pairs)
    return f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} .. {ratios[-1]:.2f})"


def one_each(model: Any, decoding: Decoding, tokenizer: Characters, repeats: int) -> str:
    """Ratio of CPU seconds of `SamplerGenerator` on 8 prompts with a sample each: one prompt a pass over the default."""
    tokens = Tokens(tokenizer, END, 0)  # type: ignore[arg-type]
    requests = [Request(tuple(prompt), (n,)) for n, prompt in enumerate(make_prompts(8, 30))]
    usual, alone = (SamplerGenerator(model, tokens, decoding, **more) for more in ({}, {"together": False}))
    sides = [lambda: usual.generate(requests), lambda: alone.generate(requests)]
    pairs = [[cpu_seconds(side) for side in sides] for _ in range(repeats)]
    ratios = sorted(single / both for both, single in pairs)
    drawn = 8 * NEW_TOKENS
    rates = [drawn / statistics.median(column) for column in zip(*pairs, strict=True)]
    return (
        f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} .. {ratios[-1]:.2f}); tokens per CPU second {rates[0]:.0f} "
        f"against {rates[1]:.0f}"
    )


def passk_seconds(repeats: int) -> float:
    """Median CPU seconds of the whole curve of 10,000 problems from 1,024 verdicts each."""
    verdicts = np.random.default_rng(0).random((10_000, 1024)) < np.random.default_rng(1).random((10_000, 1))
    return statistics.median(
        cpu_seconds(lambda: pass_at_all_k(1024, verdicts.sum(axis=1)).mean(axis=0)) for _ in range(repeats)
    )


def main(
    repeats: int = 7, problems: int = 8, presets: tuple[str, ...] = ("untruncated", "released_code")
) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, 1 thread, {time.strftime('%Y-%m-%d')}")
    print(f"{problems} problems, k = {K}, {NEW_TOKENS} tokens each; samples per CPU second, ratio (min .. max)")
    model, tokenizer = make_model(), Characters()
    for preset in presets:
        decoding = Decoding.of(preset, max_new_tokens=NEW_TOKENS)
        for length, wanted in ((30, 5.0), (300, 15.0)):
            prompts = make_prompts(problems, length)
            arguments = (model, prompts, decoding, tokenizer)
            duel(
                f"{preset}, prompt of {length} characters",
                lambda a=arguments: ours(*a),
                lambda a=arguments: theirs(*a),
                problems * K,
                repeats,
                wanted,
                Work.of_sampling(problems, length, K),
            )
            if length == 30:
                print(f"    the same, prompts drawn together against one per call: {turns(arguments, repeats)}", flush=True)
    plain = Decoding.of("untruncated", max_new_tokens=NEW_TOKENS)
    found = one_each(model, plain, tokenizer, repeats)
    print(f"SamplerGenerator, 8 prompts x 1 sample, its default against one prompt a pass: {found}")
    seconds = passk_seconds(repeats)
    print(
        f"pass@1 .. pass@1024 of 10,000 x 1,024 verdicts: {seconds:.2f} s   wanted 1: {'reached' if seconds < 1 else 'MISSED'}"
    )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
