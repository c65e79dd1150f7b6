"""Memory of training and evaluation as the vocabulary grows, and every place that keeps a (tokens x words) tensor.

    python benchmarks/vocabulary.py
    python benchmarks/vocabulary.py --paths grpo forward_kl --words 256 150016

Each path runs once on a small Llama (hidden 48, 2 layers) for each number of words, in a process of its own: 4 prompts x 8
completions x 16 tokens, 512 counted tokens. At 150,016 words one float32 tensor of all their logits has 293 MiB; the budget of
the head, logits that are alive at a time, is set to 16. Printed: the peak of the process over what it held before (gradients
and moments of the head grow too: "weights" is the size of one copy), the most bytes of vocabulary-wide tensors that were
alive at once, the most rows that one of them had, and the lines of this package that made those alive at that moment. A path
KEEPS the vocabulary where one such tensor has more than four times the rows of a draw (32), or of the head's budget.

The last line is JSON: path -> whether it keeps the vocabulary, at the largest number of words.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import tyro
from real_task import Numbers, Row
from real_work import Shape, Workload, as_text, write_model
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sage_rlvr
from sage_rlvr.models import lm_head

HIDDEN, MIB = 48, 1 << 20
BUDGET = 1 << 22
"""Logits that the head may hold at a time in this benchmark, 16 MiB of float32: little, so that a small batch is a large one."""
WORK = Workload("words", 4, 8, 16, least=12, most=16, shared=6)
PACKAGE = str(Path(sage_rlvr.__file__).parent)


class Wide(TorchDispatchMode):
    """Watches tensors of at least two rows of the vocabulary, in whatever shape; a copy of the head's weight is not among them."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.alive = words, dict[int, tuple[StorageWeakRef, int, str]]()
        self.peak, self.at_peak, self.rows = 0, Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if (
                isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
            ):  # not weights that oneDNN has laid out
                self.see(tensor)
        return out

    def see(self, tensor: torch.Tensor) -> None:
        rows, rest = divmod(tensor.numel(), self.words)
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self.alive.get(key)
        if rest or rows < 2 or rows == HIDDEN or storage.nbytes() < self.words * 2 or (held and not held[0].expired()):
            return
        self.rows = max(self.rows, rows)
        self.alive[key] = (StorageWeakRef(storage), storage.nbytes(), place())
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        if (now := sum(size for _, size, _ in self.alive.values())) > self.peak:
            self.peak, self.at_peak = now, Counter()
            for _, size, where in self.alive.values():
                self.at_peak[where] += size


def place() -> str:
    """The innermost line of this package that is running."""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"


# --- paths --------------------------------------------------------------------------------------------------------------


class Listed(Numbers):
    """A task that lists its right completions."""

    def solutions(self, problem: Row) -> list[str]:
        return [as_text([n + 1, n + 2, n + 3]) for n in range(16)]


def training(folder: Path, words: int, method: dict[str, Any], **more: Any) -> Callable[[], Any]:
    """A step of a method on the loop."""
    from sage_rlvr.config import TrainConfig, decode
    from sage_rlvr.training.loop import build, train_step

    rollout = {"prompts_per_step": WORK.prompts, "group_size": WORK.group, "max_new_tokens": WORK.new}
    tree = {"steps": 10, "model": str(folder), "method": method, "rollout": rollout, **more}
    task = Numbers(tuple(Row(str(n), as_text(ids)) for n, ids in enumerate(WORK.ids(words))))
    loop = build(replace(decode(TrainConfig, tree), task=task))
    return lambda: train_step(loop, 0)


def evaluation(folder: Path, words: int, preset: str, generator: str) -> Callable[[], Any]:
    """An evaluation's samples of one call."""
    from sage_rlvr.models.generation import GENERATORS, Decoding, GeneratorSource, Request
    from sage_rlvr.models.policy import load_policy

    model, tokens = load_policy(str(folder))
    law = Decoding.of(preset, max_new_tokens=WORK.new)
    drawing = GENERATORS[generator].of(GeneratorSource(str(folder), tokens, law, model=model, together=True))
    requests = [Request(tuple(ids), tuple(range(8 * n, 8 * n + 8))) for n, ids in enumerate(WORK.ids(words))]
    return lambda: drawing.generate(requests)


def solutions(folder: Path, words: int) -> Callable[[], Any]:
    """Log-probs of 16 listed right completions of each problem."""
    from sage_rlvr.models.enumeration.solutions import solution_logps
    from sage_rlvr.models.policy import load_policy

    model, tokens = load_policy(str(folder))
    tokens = replace(tokens, eos_id=3, eos_ids=())  # an end token of the vocabulary
    problems = [Row(str(n), as_text(ids)) for n, ids in enumerate(WORK.ids(words))]
    return lambda: solution_logps(model, tokens, Listed(), problems, (1.0, 0.3))


def listing(folder: Path, words: int) -> Callable[[], Any]:
    """All completions down to a floor, of a model that is certain enough to have few."""
    from sage_rlvr.models.enumeration.completions import enumerate_completions
    from sage_rlvr.models.policy import load_policy

    model, tokens = load_policy(str(folder))
    model.model.norm.weight.data.mul_(25.0)
    prompt, tokens = WORK.ids(words)[0], replace(tokens, eos_id=3, eos_ids=())
    return lambda: enumerate_completions(model, tokens, prompt, 3, floor=3e-5)


def supervised(folder: Path, words: int) -> Callable[[], Any]:
    """A step of SFT on 32 rows."""
    from sage_rlvr.config import OptimizerConfig
    from sage_rlvr.models.policy import load_policy
    from sage_rlvr.training.optimizer import Optimizer
    from sage_rlvr.training.sft import sft_step
    from sage_rlvr.training.texts import Text

    model, _ = load_policy(str(folder))
    rows = torch.randint(1, 200, (WORK.rows, 16 + WORK.new)).tolist()
    texts = [Text(tuple(ids[:16]), tuple(ids[16:])) for ids in rows]
    optimizer = Optimizer(model, OptimizerConfig(), 10)
    return lambda: sft_step(model, optimizer, texts, 0)


def preference(folder: Path, words: int) -> Callable[[], Any]:
    """A step of DPO on 16 pairs."""
    import copy

    from sage_rlvr.config import OptimizerConfig
    from sage_rlvr.models.policy import load_policy
    from sage_rlvr.training.offline import Text, prefer
    from sage_rlvr.training.optimizer import Optimizer

    model, tokens = load_policy(str(folder))
    reference, optimizer = copy.deepcopy(model), Optimizer(model, OptimizerConfig(), 10)
    texts = [Text(tuple(ids), tuple(range(1, WORK.new + 1))) for ids in WORK.ids(words) for _ in range(4)]
    return lambda: prefer(model, reference, optimizer, tokens, [(one, one) for one in texts], 0.1, 0)


def guided(guide: str) -> dict[str, Any]:
    return {"name": "sage", "base": {"name": "grpo", "beta": 0.05}, "guide": {"name": guide}}


Building = Callable[[Path, int], Callable[[], Any]]
PATHS: dict[str, Building] = {
    "grpo": lambda f, w: training(f, w, {"name": "grpo", "beta": 0.05}),
    "grpo, bfloat16": lambda f, w: training(f, w, {"name": "grpo", "beta": 0.05}, engine={"dtype": "bfloat16"}),
    "grpo, 4 updates": lambda f, w: training(
        f, w, {"name": "grpo", "beta": 0.05}, updates={"epochs": 2, "minibatches": 2}
    ),
    "branch": lambda f, w: training(f, w, guided("branch")),
    "rarity": lambda f, w: training(f, w, guided("rarity")),
    "token": lambda f, w: training(f, w, guided("token")),
    "entropy_bonus": lambda f, w: training(f, w, {"name": "entropy_bonus"}),
    "erank": lambda f, w: training(f, w, {"name": "erank"}),
    "steer": lambda f, w: training(f, w, {"name": "steer"}),
    "steer, exact": lambda f, w: training(f, w, {"name": "steer", "form": "exact"}),
    "forward_kl": lambda f, w: training(f, w, {"name": "forward_kl", "beta": 0.05}),
    "forward_kl, 4 updates": lambda f, w: training(
        f, w, {"name": "forward_kl", "beta": 0.05}, updates={"epochs": 2, "minibatches": 2, "micro_batch": 1}
    ),
    "evaluation": lambda f, w: evaluation(f, w, "untruncated", "sampler"),
    "evaluation, min-p": lambda f, w: evaluation(f, w, "paper", "sampler"),
    "evaluation, top-k and top-p": lambda f, w: evaluation(f, w, "released_code", "sampler"),
    "evaluation, transformers": lambda f, w: evaluation(f, w, "untruncated", "transformers"),
    "exact, solutions": solutions,
    "exact, listing": listing,
    "sft": supervised,
    "dpo": preference,
}


# --- measuring ----------------------------------------------------------------------------------------------------------


def resident(line: str) -> int:
    """Bytes of a line of this process's status."""
    with open("/proc/self/status") as status:
        return next(int(found.split()[1]) for found in status if found.startswith(line)) * 1024


def measured(path: str, words: int) -> dict[str, Any]:
    """A path at a number of words, in a new process."""
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")  # of completions that never end
    lm_head.KEPT_LOGITS = BUDGET
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), Shape(HIDDEN, 96, 2, 3, 3, words, 16))
        step = PATHS[path](Path(folder), words)
        held = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        with Wide(words) as watch:
            step()
        grown = resident("VmHWM") - held
    return {"grown": grown, "wide": watch.peak, "rows": watch.rows, "places": watch.at_peak.most_common(4)}


def main(words: tuple[int, ...] = (256, 20_480, 150_016), paths: tuple[str, ...] = tuple(PATHS)) -> None:
    counted, kept = WORK.rows * WORK.new, {}
    print(f"{WORK.prompts} prompts x {WORK.group} completions x {WORK.new} tokens, {counted} counted tokens; MiB")
    print(f"weights of the head: {', '.join(f'{n:,} words {4 * HIDDEN * n / MIB:.0f}' for n in words)}")
    for path in paths:
        found = []
        for n in words:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found.append(pool.submit(measured, path, n).result())
        last = found[-1]
        kept[path] = last["rows"] > 4 * max(WORK.rows, BUDGET // words[-1])
        grown = " ".join(f"{one['grown'] / MIB:7.0f}" for one in found)
        verdict = "KEEPS the vocabulary" if kept[path] else ""
        print(
            f"{path:<28} peak {grown}   wide tensors {last['wide'] / MIB:6.0f}, at most {last['rows']:>5} rows   {verdict}"
        )
        for where, size in last["places"]:
            print(f"    {size / MIB:7.0f}  {where}")
        sys.stdout.flush()
    print(json.dumps(kept))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tyro.cli(main, description=__doc__)
