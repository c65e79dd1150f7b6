"""An arm of benchmarks/real.py in a process of its own: `python benchmarks/real_arms.py ARM SPEC.json`.

It loads its model, writes a JSON line, and then does its work once for every line it reads, each time with a JSON line of the
seconds, the tokens and the seconds by part. Processes of their own give each arm its own environment and its own peak memory, and
the lines keep the arms in turns. spec: "folder" of the model, "prompts" of token ids, "group", "new", "lengths" of the completions,
"micro" (rows of a padded forward pass), "threads", "device".
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from real_work import BETA, CLIP, LR, MAX_NORM, as_text, on_device, parity, shape_of

Spec = dict[str, Any]


class Clock:
    """Seconds by part. A part inside another counts for itself alone."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.inner = device, dict[str, float](), [0.0]

    def now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def part(self, label: str) -> Iterator[None]:
        self.inner.append(0.0)
        began = self.now()
        try:
            yield
        finally:
            took = self.now() - began
            self.seconds[label] = self.seconds.get(label, 0.0) + took - self.inner.pop()
            self.inner[-1] += took

    def wrap(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **named: Any) -> Any:
            with self.part(label):
                return function(*args, **named)

        return timed

    def taken(self) -> dict[str, float]:
        """The parts since the last call."""
        found, self.seconds = self.seconds, {}
        return found


# --- this package -------------------------------------------------------------------------------------------------------


PARTS = (
    ("sample", "sage_rlvr.training.samplers", "PlainSampler.draw"),
    ("policy forward", "sage_rlvr.training.loop", "step_scores"),
    ("reference", "sage_rlvr.training.scores", "reference_scores"),
    ("reference", "sage_rlvr.training.loop", "reference_scores"),
    ("backward", "sage_rlvr.training.loop", "update"),
    ("optimizer", "sage_rlvr.training.optimizer", "Optimizer.step"),
)
"""Label, module, and the function whose time it is; what is under no label is the rest of a step."""


class Ours:
    """`train_step` of a loop that `build` made from a recipe's config, with the engine's settings of recipes/real/base: the update
    reads the sampler's activations."""

    engine: ClassVar[dict[str, Any]] = {"dtype": "bfloat16", "reuse_sampling": True}

    def __init__(self, spec: Spec, clock: Clock) -> None:
        from real_task import Numbers, Row

        from sage_rlvr.config import TrainConfig, decode
        from sage_rlvr.training import rollouts
        from sage_rlvr.training.loop import build, train_step

        prompts = spec["prompts"]
        rollout = {"prompts_per_step": len(prompts), "group_size": spec["group"], "max_new_tokens": spec["new"]}
        tree = {"steps": 10**6, "model": spec["folder"], "method": {"name": "grpo", "beta": BETA}, "rollout": rollout}
        tree |= {"optimizer": {"lr": LR, "max_grad_norm": MAX_NORM}}
        tree |= {"engine": self.engine | {"threads": spec["threads"], "device": spec["device"]}}
        task = Numbers(tuple(Row(str(n), as_text(ids)) for n, ids in enumerate(prompts)))
        loop = build(replace(decode(TrainConfig, tree), task=task))
        assert [list(loop.ask(row).ids) for row in task.rows] == prompts
        self.patches = ExitStack()
        for label, module, name in PARTS:
            timed(self.patches, clock, label, module, name)
        if uneven(spec) and hasattr(rollouts, "sample"):
            limits = torch.tensor(spec["lengths"])
            self.patches.enter_context(patch.object(rollouts, "sample", partial(rollouts.sample, limits=limits)))
        self.loop, self.train_step, self.steps = loop, train_step, 0

    def turn(self) -> int:
        """A training step; tokens of its rollout."""
        metrics = self.train_step(self.loop, self.steps)
        self.steps += 1
        return int(metrics["rollout/tokens"])


class Forward(Ours):
    """The same with a forward pass of the policy over the drawn completions."""

    engine: ClassVar[dict[str, Any]] = {"dtype": "bfloat16"}


def timed(stack: ExitStack, clock: Clock, label: str, module: str, name: str) -> None:
    """Time a function of a module, or of a class in it, until the stack closes; one that does not exist is left out."""
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        return
    *path, last = name.split(".")
    for step in path:
        owner = getattr(owner, step, None)
    if hasattr(owner, last):
        function = getattr(owner, last)
        # a plain function, so that a patched method still gets its instance
        stack.enter_context(patch.object(owner, last, clock.wrap(label, function)))


def uneven(spec: Spec) -> bool:
    """Whether the completions differ in length."""
    return len(set(spec["lengths"])) > 1


# --- Hugging Face by the textbook ---------------------------------------------------------------------------------------


def load(spec: Spec) -> Any:
    """The model in bfloat16, which no token ends."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=torch.bfloat16).to(spec["device"]).eval()
    model.generation_config.eos_token_id = None
    return model


def padded(spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts repeated for their groups and padded on the left: ids (B, S), and which of them are real."""
    longest = max(map(len, spec["prompts"]))
    rows = [([0] * (longest - len(p)) + p, [0] * (longest - len(p)) + [1] * len(p)) for p in spec["prompts"]]
    repeated = [row for row in rows for _ in range(spec["group"])]
    ids, real = (torch.tensor([row[i] for row in repeated], device=spec["device"]) for i in range(2))
    return ids, real


def generate(spec: Spec, model: Any, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """`transformers.generate`, nothing truncated, until the longest completion ends."""
    most = max(spec["lengths"])
    settings = {
        "max_new_tokens": most,
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "pad_token_id": 0,
    }
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=real, **settings)
    assert out.shape[1] == ids.shape[1] + most, f"{out.shape[1] - ids.shape[1]} tokens, not {most}"
    return out


class Textbook:
    """GRPO in bfloat16 as it is written down first: generate, then padded rows with full logits, clipped loss and k3, AdamW.

    Everything but the forward and backward passes takes the whole batch; these take `micro` rows, as whole batches of W2 and W3
    need more than 24 GB.
    """

    def __init__(self, spec: Spec, clock: Clock) -> None:
        self.spec, self.clock = spec, clock
        self.model, self.reference = load(spec), load(spec)
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0, fused=True)
        self.ids, self.real = padded(spec)
        lengths = torch.tensor(spec["lengths"], device=self.ids.device)
        self.mask = torch.arange(max(spec["lengths"]), device=self.ids.device)[None] < lengths[:, None]

    def logps(self, model: Any, ids: torch.Tensor, real: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probs, entropies), each (b, width), of the last `width` tokens."""
        places = (real.cumsum(1) - 1).clamp_min(0)
        out = model(input_ids=ids, attention_mask=real, position_ids=places, logits_to_keep=width + 1, use_cache=False)
        logps = torch.log_softmax(out.logits[:, :-1].float(), -1)
        with torch.no_grad():
            entropies = -(logps.detach().exp() * logps.detach()).sum(-1)
        return logps.gather(2, ids[:, -width:, None])[..., 0], entropies

    def turn(self) -> int:
        """A training step; tokens that the loss counts."""
        spec, clock, width = self.spec, self.clock, self.mask.shape[1]
        with clock.part("sample"):
            ids = generate(spec, self.model, self.ids, self.real)
            rewards = [
                parity(as_text(row[:n])) for row, n in zip(ids[:, -width:].tolist(), spec["lengths"], strict=True)
            ]
        groups = torch.tensor(rewards, device=ids.device).view(-1, spec["group"])
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        real = torch.cat([self.real, self.mask.long()], 1)
        for rows in torch.arange(len(ids), device=ids.device).split(spec["micro"]):
            with torch.no_grad(), clock.part("reference"):
                ref, _ = self.logps(self.reference, ids[rows], real[rows], width)
            with clock.part("policy forward"):
                logps, _ = self.logps(self.model, ids[rows], real[rows], width)
            with clock.part("backward"):
                ratio, gap = torch.exp(logps - logps.detach()), ref - logps
                gain = torch.minimum(ratio * advantages[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[rows])
                each = (BETA * (torch.exp(gap) - gap - 1) - gain) * self.mask[rows]
                (each.sum(1) / self.mask[rows].sum(1)).sum().div(len(ids)).backward()
        with clock.part("optimizer"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM, foreach=True)
            self.adam.step()
            self.adam.zero_grad(set_to_none=True)
        return int(self.mask.sum())


# --- TRL ----------------------------------------------------------------------------------------------------------------


def in_turns(trainer: Any, clock: Clock, tokens: Callable[[], int]) -> Any:
    """The trainer, whose every step waits for a turn and answers it. tokens: of the step."""
    from transformers import PrinterCallback, TrainerCallback

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not sys.stdin.readline():
                sys.exit()
            self.began = clock.now()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.moving = clock.now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.seconds["optimizer"] = clock.now() - self.moving
            answer(clock, self.began, tokens())

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Turns())
    return trainer


def arguments(spec: Spec, folder: str) -> dict[str, Any]:
    """The settings of both trainers of TRL: the textbook's, and nothing written."""
    return {
        "output_dir": os.path.join(spec["folder"], folder),
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": MAX_NORM,
        "max_steps": 10**6,
        "model_init_kwargs": {"dtype": "bfloat16"},
        "bf16": True,
        "use_cpu": spec["device"] == "cpu",
        "gradient_checkpointing": False,
        "logging_steps": 10**6,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


class Trl:
    """GRPOTrainer with weights in bfloat16, no vLLM, the textbook's settings and micro-batches. Its `train` runs once; a callback
    waits for each turn."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig

        rows, self.spec, self.clock = len(spec["lengths"]), spec, clock
        micro = min(spec["micro"], rows)
        args = GRPOConfig(
            **arguments(spec, "trl"),
            beta=BETA,
            epsilon=CLIP,
            use_bias_correction_kl=False,
            loss_type="grpo",
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=rows // micro,
            num_generations=spec["group"],
            max_completion_length=max(spec["lengths"]),
            shuffle_dataset=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(spec["folder"])
        if uneven(
            spec
        ):  # TRL cuts a completion at its end token, which its forward passes read too: one of the vocabulary
            tokenizer.eos_token = str(len(tokenizer) - 2)
        self.end, self.prompts = tokenizer.eos_token_id, [as_text(ids) for ids in spec["prompts"]]
        self.tokens = 0

        def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
            self.tokens = sum(map(len, completion_ids))
            return [parity(as_text(row)) for row in completion_ids]

        trainer = self.kind(
            model=spec["folder"],
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": self.prompts * 50}),
            processing_class=tokenizer,
            **self.more,
        )
        trainer.model.generate = clock.wrap("sample", partial(self.generate, trainer.model.generate))
        trainer.ref_model.forward = clock.wrap("reference", trainer.ref_model.forward)
        trainer.compute_loss = clock.wrap("policy forward", trainer.compute_loss)
        trainer.accelerator.backward = clock.wrap("backward", trainer.accelerator.backward)
        self.trainer = in_turns(trainer, clock, lambda: self.tokens)

    def generate(self, plain: Callable[..., Any], **named: Any) -> torch.Tensor:
        """The trainer's own call, whose rows then end where the workload says."""
        wanted = sum(map(len, self.spec["prompts"])) * self.spec["group"]
        assert int(named["attention_mask"].sum()) == wanted, "TRL generates from other prompts"
        out = plain(**named)
        start = named["input_ids"].shape[1]
        assert out.shape[1] - start == max(self.spec["lengths"])
        if uneven(self.spec):
            rows = out[:, start:]
            rows[rows == self.end] = 1
            for row, length in zip(rows, self.spec["lengths"], strict=True):
                row[length - 1], row[length:] = self.end, 0
        return out

    @property
    def kind(self) -> Any:
        """The trainer's class."""
        from trl import GRPOTrainer

        return GRPOTrainer

    @property
    def more(self) -> dict[str, Any]:
        """What the trainer is made with besides."""
        return {}

    def serve(self) -> None:
        self.trainer.train()


class Sage(Trl):
    """The same with SageTrainer and the branch guide."""

    @property
    def kind(self) -> Any:
        from sage_rlvr.training.trl import SageTrainer

        return SageTrainer

    @property
    def more(self) -> dict[str, Any]:
        from sage_rlvr import Branch

        return {"guide": Branch()}


# --- SFT ----------------------------------------------------------------------------------------------------------------


def given_texts(spec: Spec) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) of each text; a completion's last token ends it."""
    words = shape_of(Path(spec["folder"])).words
    draw, end = random.Random(2), words - 1
    owners = [prompt for prompt in spec["prompts"] for _ in range(spec["group"])]
    return [
        (prompt, [*(draw.randrange(1, end) for _ in range(n - 1)), end])
        for prompt, n in zip(owners, spec["lengths"], strict=True)
    ]


class Sft:
    """`sft_step` of this package."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        from sage_rlvr.config.parts import OptimizerConfig
        from sage_rlvr.models.devices import placed
        from sage_rlvr.models.policy import load_policy
        from sage_rlvr.training.optimizer import Optimizer
        from sage_rlvr.training.sft import sft_step
        from sage_rlvr.training.texts import Text

        self.model, _ = load_policy(spec["folder"], "bfloat16")
        placed(self.model, spec["device"])
        self.optimizer = Optimizer(self.model, OptimizerConfig(lr=LR, max_grad_norm=MAX_NORM), 10**6)
        self.texts = [Text(tuple(prompt), tuple(own)) for prompt, own in given_texts(spec)]
        self.sft_step, self.steps, self.patches = sft_step, 0, ExitStack()
        timed(self.patches, clock, "forward", "sage_rlvr.training.sft", "score")
        timed(self.patches, clock, "optimizer", "sage_rlvr.training.optimizer", "Optimizer.step")

    def turn(self) -> int:
        """An update; learned tokens."""
        self.sft_step(self.model, self.optimizer, self.texts, self.steps)
        self.steps += 1
        return sum(len(text.tokens) for text in self.texts)


class SftTrl:
    """SFTTrainer with weights in bfloat16 on the same texts, padded, as it is by default; the prompt is not learned."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        texts = given_texts(spec)
        rows = [{"input_ids": [*p, *own], "completion_mask": [0] * len(p) + [1] * len(own)} for p, own in texts]
        args = SFTConfig(
            **arguments(spec, "sft"), per_device_train_batch_size=len(rows), completion_only_loss=True, max_length=None
        )
        tokenizer = AutoTokenizer.from_pretrained(spec["folder"])
        tokenizer.eos_token = str(len(tokenizer) - 2)  # TRL wants one; the texts have theirs
        trainer = SFTTrainer(spec["folder"], args, train_dataset=Dataset.from_list(rows * 20), processing_class=tokenizer)
        trainer.compute_loss = clock.wrap("forward", trainer.compute_loss)
        trainer.accelerator.backward = clock.wrap("backward", trainer.accelerator.backward)
        self.trainer = in_turns(trainer, clock, lambda: sum(len(own) for _, own in texts))

    def serve(self) -> None:
        self.trainer.train()


# --- samplers -----------------------------------------------------------------------------------------------------------


class Generate:
    """`transformers.generate` alone."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        self.spec, self.model, self.inputs = spec, load(spec), padded(spec)

    def turn(self) -> int:
        """Draw once; tokens drawn."""
        return int(
            (generate(self.spec, self.model, *self.inputs).shape[1] - self.inputs[0].shape[1]) * len(self.inputs[0])
        )


class Sampler:
    """This package's `sample` alone, log-probs included."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        from sage_rlvr.core.keys import Key
        from sage_rlvr.models.devices import placed
        from sage_rlvr.models.policy import load_policy
        from sage_rlvr.models.sampler import sample

        model, tokens = load_policy(spec["folder"], "bfloat16")
        law = {"group_size": spec["group"], "max_new_tokens": spec["new"], "entropies": False}
        law |= {"eos_id": tokens.eos_ids, "pad_id": tokens.pad_id, "key": Key(0)}
        self.draw, self.steps = partial(sample, placed(model, spec["device"]).eval(), spec["prompts"], **law), 0

    def turn(self) -> int:
        """Draw once; tokens drawn."""
        self.steps += 1
        return int(self.draw(step=self.steps).mask.sum())


class Vllm:
    """vLLM in this process; a prompt and its group are one request."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{spec['threads'] - 1}"
        import vllm

        self.prompts = [{"prompt_token_ids": ids} for ids in spec["prompts"]]
        plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True, "detokenize": False}
        self.law = vllm.SamplingParams(n=spec["group"], max_tokens=spec["new"], **plain)
        sizes = {"max_model_len": 1024, "max_num_seqs": len(spec["lengths"])}
        self.engine = vllm.LLM(model=spec["folder"], dtype="bfloat16", generation_config="vllm", seed=0, **sizes)

    def turn(self) -> int:
        """Draw once; tokens drawn."""
        found = self.engine.generate(self.prompts, self.law, use_tqdm=False)
        self.engine.reset_prefix_cache()
        return sum(len(one.token_ids) for output in found for one in output.outputs)


ARMS: dict[str, Any] = {
    "ours": Ours,
    "forward": Forward,
    "textbook": Textbook,
    "trl": Trl,
    "sage": Sage,
    "sft": Sft,
    "sft-trl": SftTrl,
    "generate": Generate,
    "sampler": Sampler,
    "vllm": Vllm,
}


# --- the lines ----------------------------------------------------------------------------------------------------------


def say(found: dict[str, Any]) -> None:
    OUT.write(json.dumps(found) + "\n")
    OUT.flush()


def answer(clock: Clock, began: float, tokens: int) -> None:
    """The line of a turn; what the heap holds free goes back, so that arms at rest leave the memory to the one at work."""
    seconds, parts = clock.now() - began, clock.taken()
    on_device = torch.cuda.max_memory_allocated() if clock.device == "cuda" else None
    say({"seconds": seconds, "tokens": tokens, "parts": parts, "device_bytes": on_device})
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    name, spec = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    with on_device(spec["device"]):
        spec["device"] = "cuda" if spec["device"] == "paper" else spec["device"]
        serve(name, spec)


def serve(name: str, spec: Spec) -> None:
    """The lines of an arm."""
    clock = Clock(spec["device"])
    arm = ARMS[name](spec, clock)
    versions = {m: sys.modules[m].__version__ for m in ("torch", "transformers", "trl", "vllm") if m in sys.modules}
    say({"ready": versions})
    if hasattr(arm, "serve"):
        arm.serve()
        return
    for _ in sys.stdin:
        began = clock.now()
        answer(clock, began, arm.turn())


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    main()
