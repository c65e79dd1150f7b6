"""What SageTrainer costs beside plain GRPOTrainer: step time, peak memory and forward passes, side by side in one process.

    python benchmarks/trl_cost.py       on a CPU, the shipped base policy
    python benchmarks/trl_cost.py --device cuda --hidden 768 --mlp 3072 --batch 64 --new 256       138 M parameters from scratch

Both sides train a model of the same first weights on the same prompts, in alternating blocks of steps (A B, B A, ...); the
first block of each side and the first rollout of each block are left out. Every completion has the full length on both
sides, so that no side gains from rows that end early. On a CPU the time is that of this process alone, else the wall's.
Memory is the peak over a block: tensors at rest (weights, gradients, moments) of that side, and what its steps add.
With --hidden the model is a stock Llama from scratch, trained in bfloat16 on a GPU (float32 weights), and the
vocabulary may be larger than the tokenizer's. "rests" is a rollout a step: q comes from the loss's own forward.
"moves" is two steps per rollout: q comes from the forward with which TRL scores a rollout, which both sides make.
Run on a CPU; the path for a GPU was not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
import trl
import tyro
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr import Branch
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.tasks.countdown import WORLDS, render
from sage_rlvr.training.trl import SageTrainer

SIDES = ("GRPO", "SAGE")
LAYOUTS = {"rests": 1, "moves": 2}  # steps per rollout


def parity(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Any cheap reward that differs within groups: it costs either side the same."""
    return [float(sum(row) % 2) for row in completion_ids]


def model_folder(options: Options, folder: str) -> str:
    """The shipped base policy, or a Llama of the given widths with its tokenizer."""
    if options.hidden is None:
        return str(embedded_policy())
    tokenizer = AutoTokenizer.from_pretrained(embedded_policy())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(options.vocabulary, len(tokenizer)),
        hidden_size=options.hidden,
        intermediate_size=options.mlp or 4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        max_position_embeddings=options.new + 64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Watch(TrainerCallback):
    """Seconds of each optimizer step, generation included where the step begins with a rollout."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.began = device, [], 0.0

    def now(self) -> float:
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = self.now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(self.now() - self.began)


def make(side: str, model: str, options: Options, steps_per_generation: int, out: str) -> Any:
    """One side's trainer; a call of its train() is one block."""
    args = GRPOConfig(
        out,
        beta=0.05,
        use_bias_correction_kl=False,
        loss_type="grpo",
        learning_rate=1e-6,
        max_steps=options.block,
        per_device_train_batch_size=options.batch,
        steps_per_generation=steps_per_generation,
        num_generations=8,
        max_completion_length=options.new,
        generation_kwargs={"min_new_tokens": options.new},
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
        use_cpu=options.device == "cpu",
        bf16=options.device == "cuda",
    )
    data = Dataset.from_dict({"prompt": [render(p) for p in WORLDS["demo"].problems("train", 0, 512)]})
    more = {"guide": Branch()} if side == "SAGE" else {}
    cls = SageTrainer if side == "SAGE" else GRPOTrainer
    return cls(model=model, reward_funcs=parity, args=args, train_dataset=data, **more)


class Side:
    """A trainer with its watch and the number of its forward passes, of policy and reference."""

    def __init__(self, name: str, model: str, options: Options, cycle: int, out: str) -> None:
        self.trainer, self.watch, self.cycle = make(name, model, options, cycle, out), Watch(options.device), cycle
        self.trainer.add_callback(self.watch)
        self.trainer.remove_callback(PrinterCallback)
        self.device, self.forwards = options.device, [0, 0]
        for place, network in enumerate((self.trainer.model, self.trainer.ref_model)):
            network.register_forward_pre_hook(lambda *_, place=place: self.count(place))

    def count(self, place: int) -> None:
        self.forwards[place] += 1

    def at_rest(self) -> int:
        """Bytes of weights, gradients and moments."""
        weights = [*self.trainer.model.parameters(), *self.trainer.ref_model.parameters()]
        optimizer = self.trainer.optimizer
        state = [] if optimizer is None else [v for slots in optimizer.state.values() for v in slots.values()]
        found = [*weights, *(w.grad for w in weights if w.grad is not None), *(v for v in state if torch.is_tensor(v))]
        return sum(tensor.nbytes for tensor in found)

    def block(self) -> float:
        """Train for a block; mean seconds of a step, those of its first rollout left out."""
        self.watch.seconds.clear()
        with silenced():
            self.trainer.train()
        counted = self.watch.seconds[self.cycle :]
        return sum(counted) / len(counted)

    def peak(self, other: Side) -> int:
        """Bytes that this side needs at the peak of a block; `other` lies beside it on the device."""
        with allocations(self.device) as most:
            self.block()
        return most[0] - other.at_rest() if self.device == "cuda" else most[0] + self.at_rest()


@contextmanager
def silenced() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def allocations(device: str) -> Iterator[list[int]]:
    """[most bytes of tensors at once]: on a GPU all of the process's, on a CPU above those at the start."""
    most = [0]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        yield most
        most[0] = torch.cuda.max_memory_allocated()
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield most
    now = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most[0] = max(most[0], now)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):6.3f}  ({min(values):.3f} .. {max(values):.3f})"


def duel(layout: str, model: str, options: Options, out: str) -> None:
    """Take turns and print the three comparisons."""
    cycle = LAYOUTS[layout]
    grpo, sage = (Side(name, model, options, cycle, f"{out}/{layout}-{name}") for name in SIDES)
    grpo.block(), sage.block()  # warm-up
    before = [list(side.forwards) for side in (grpo, sage)]
    ratios = []
    for turn in range(options.blocks):
        order = (grpo, sage) if turn % 2 == 0 else (sage, grpo)
        took = {side: side.block() for side in order}
        ratios.append(took[sage] / took[grpo])
    passes = [
        [b - a for a, b in zip(was, side.forwards, strict=True)] for was, side in zip(before, (grpo, sage), strict=True)
    ]
    peaks = [sage.peak(grpo) / grpo.peak(sage) for _ in range(options.memory_blocks)]
    verdict = "equal" if passes[0] == passes[1] else "NOT EQUAL"
    print(f"{layout}: step time      SAGE / GRPO {spread(ratios)} over {options.blocks} pairs of {options.block} steps")
    print(f"{layout}: peak memory    SAGE / GRPO {spread(peaks)} over {options.memory_blocks} pairs of blocks")
    print(
        f"{layout}: forward passes policy {passes[1][0]} / {passes[0][0]}, reference {passes[1][1]} / {passes[0][1]}: {verdict}"
    )


@dataclass(frozen=True)
class Options:
    device: Literal["cpu", "cuda"] = "cpu"
    blocks: int = 9  # pairs of blocks that are timed
    memory_blocks: int = 3  # pairs of blocks whose memory is taken
    block: int = 6  # steps a block, an even number above 2
    batch: int = 64  # completions per step, in groups of 8
    new: int = 24  # tokens of every completion
    hidden: int | None = None  # width of a model from scratch; without it the shipped base policy
    layers: int = 12
    heads: int = 12
    mlp: int | None = None  # default: four times the width
    vocabulary: int = 32_000
    threads: int = 1  # CPU threads


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(options, f"{folder}/model")
        size = sum(f.stat().st_size for f in Path(model).glob("*.safetensors")) / 4e6
        device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} thread(s)"
        print(
            f"TRL {trl.__version__}, torch {torch.__version__}, {device}, {size:.1f} M parameters, {options.batch} x {options.new}"
        )
        for layout in LAYOUTS:
            duel(layout, model, options, folder)


if __name__ == "__main__":
    main()
