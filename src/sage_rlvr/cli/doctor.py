"""`doctor`: check the installation and this machine."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.extras import install, missing

if TYPE_CHECKING:
    from sage_rlvr.config import TrainConfig


@dataclass(frozen=True)
class Doctor(Command):
    """Check which features work on this machine; with RECIPE or --model, print the cost of a run.

    RECIPE and --model read only the model's config.json (downloaded if needed) and count: parameters, bytes by kind of
    tensor, tokens to sample, operations of a step for each number of --gpus. No weights are downloaded. If the weights of
    --model, or of the recipe's model, are on this machine, a probe of about twenty seconds measures a step of RECIPE (default
    grpo) on the loop. Settings without a method, such as rows/base, are those of grpo."""

    recipe: tyro.conf.Positional[str | None] = None
    """An RL recipe or a method: a file or a name."""
    model: str | None = None
    """A model folder or Hub id, instead of the recipe's model."""
    gpus: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of GPUs for the cost of a step."""
    memory: float | None = None
    """GB of one GPU: print whether the recipe fits on each number of them, on the loop, TRL and verl."""

    def execute(self, session: Session) -> int:
        """Exit code 0 if everything installed works, with or without torch, else 2; 0 after counting."""
        if self.model is not None or self.recipe is not None:
            for lines in self.counted(session.note):
                session.say(*lines)
            return 0
        facts = {
            "python": platform.python_version(),
            "machine": platform.platform(),
            "cores": str(os.cpu_count()),
            "free disk": f"{shutil.disk_usage('.').free / 1e9:.0f} GB here",
        }
        good, conclusion = _training_facts(facts)
        for engine in ("trl", "verl", "vllm"):
            absent = missing(engine)
            facts[engine] = f"no {', '.join(absent)}: only needed by this engine" if absent else "installed"
        width = max(map(len, facts))
        session.say(*(f"{name:<{width}}  {value}" for name, value in facts.items()))
        session.out.print(conclusion, style="bold")
        return 0 if good else 2

    def counted(self, note: Callable[[str], None]) -> Iterator[list[str]]:
        """The cost of a recipe and a model, in lines: counts, then measurements of a probe. note: receives messages meanwhile."""
        if any(number < 1 for number in self.gpus):
            raise ConfigError(f"--gpus {' '.join(map(str, self.gpus))}: each number must be at least 1")
        if self.memory is not None and not (self.memory > 0 and self.recipe is not None):
            more = "give GB above 0, such as 80" if self.recipe is not None else "name a recipe too: what fits depends on its step"
            raise ConfigError(f"--memory {self.memory:g}: {more}")
        note("doctor: counting from config.json")  # before torch is imported, which takes seconds
        from sage_rlvr.config import TrainConfig, read_recipe

        assumed = [] if self.recipe is None else missing_parts(self.recipe)
        from sage_rlvr.models.folders import EMBEDDED
        from sage_rlvr.models.smollm2 import LONG_NAMES
        from sage_rlvr.training.counts.footprint import footprint_lines

        edits = [("model", self.model)] if self.model else []
        config = None
        if self.recipe is not None:
            for key, value in assumed:
                note(f"doctor: {self.recipe} has no {key}: counted with {value}")
            config = read_recipe(self.recipe, [*edits, *assumed], "train")
        assert config is None or isinstance(config, TrainConfig)
        yield footprint_lines(self.model, config, self.gpus, self.memory)
        if self.model is None and (config is None or config.engine.name != "loop" or config.model == EMBEDDED):
            return
        usual = "real/grpo" if self.model in LONG_NAMES else "grpo"
        probed = read_recipe(usual, edits, "train") if config is None else config
        assert isinstance(probed, TrainConfig)
        yield ["", *cost_lines(probed, note)]


def missing_parts(recipe: str) -> list[tuple[str, str]]:
    """Edits that complete the settings of a task: grpo for a method, and for the rows of rows/base, problems in words."""
    from sage_rlvr.recipes import ROWS, load, locate

    located = locate(recipe)
    tree = load(located)
    if "rollout" not in tree or "method" in tree:
        return []
    of_rows = located.file.parent.name == ROWS and not {"task", "data"} & tree.keys()
    return [("method", "grpo"), *([("task", "countdown_chat")] if of_rows else [])]


def cost_lines(config: TrainConfig, note: Callable[[str], None]) -> list[str]:
    """The cost of a step of a recipe on this machine, or why it is unknown. note: receives messages meanwhile."""
    from sage_rlvr.evaluation.base_samples import base_of
    from sage_rlvr.models.folders import has_weights
    from sage_rlvr.models.smollm2 import INSTALL, LONG_NAMES
    from sage_rlvr.training.counts.probe import probe

    if not has_weights(config.model):
        advice = f"; run: {INSTALL}" if config.model in LONG_NAMES else ""
        return [f"no probe on this machine: it has no weights of {config.model}{advice}"]
    try:
        return list(probe(config, note, base_of(config)).lines())
    except (ConfigError, DataError) as error:
        return [f"no probe on this machine: {error}"]


def _training_facts(facts: dict[str, str]) -> tuple[bool, str]:
    """Whether the parts installed for training work, and the conclusion. The base install has none of them, which is not an
    error."""
    absent = missing("train")
    if "torch" in absent:
        facts["train"] = f"not installed: no {', '.join(absent)}"
        return True, f"compare, report, audit, verify and plan work; to train and evaluate models {install('train')}"
    if absent:
        facts["train"] = f"incomplete: no {', '.join(absent)}"
        return False, f"training does not work; {install('train')}"
    try:
        import torch
        import transformers
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        facts["train"] = f"cannot be imported: {type(error).__name__}: {error}"
        return False, "training does not work: torch or transformers is installed but cannot be imported; reinstall it"
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: all work runs on the CPU"
    facts |= {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": f"{torch.get_num_threads()} (torch's default); recipes set engine.threads",
        "GPU": gpu,
    }
    good = _policy_facts(facts)
    return good, "the CPU path works" if good else "the CPU path does not work: see above"


def _bfloat16_facts(prompts: Any, rollout: Any, wanted: Any) -> str:
    """The difference of the policy's log-probs in bfloat16 and float32, on the same completions."""
    import torch

    from sage_rlvr.models.devices import placed
    from sage_rlvr.models.folders import EMBEDDED
    from sage_rlvr.models.policy import load_policy
    from sage_rlvr.models.scoring import score

    half = placed(load_policy(EMBEDDED, "bfloat16")[0], "cpu")
    with torch.no_grad():
        logps = score(half, prompts, rollout.tokens, rollout.mask, torch.zeros(len(rollout.tokens), dtype=torch.long)).logps
    gap = (logps - wanted)[rollout.mask].square().mean().sqrt()
    return f"log-probs in bfloat16 differ from float32's by {float(gap):.0e} nats, root mean square"


def _policy_facts(facts: dict[str, str]) -> bool:
    """Load the shipped policy, sample from it and compare the sample's log-probs with the scorer's."""
    import torch

    from sage_rlvr.core.keys import Key
    from sage_rlvr.models.folders import EMBEDDED
    from sage_rlvr.models.policy import load_policy
    from sage_rlvr.models.sampler import sample
    from sage_rlvr.models.scoring import score

    try:
        model, tokens = load_policy(EMBEDDED)
    except ConfigError as error:
        facts["base policy"] = str(error)
        return False
    prompt: Any = tokens.encode_prompt("2 3 5 7=24:")
    rollout = sample(
        model, [prompt], group_size=16, max_new_tokens=24, eos_id=tokens.eos_ids, pad_id=tokens.pad_id, key=Key(0)
    )
    with torch.no_grad():
        scores = score(model, [prompt], rollout.tokens, rollout.mask, torch.zeros(16, dtype=torch.long))
    gap = float((scores.logps - rollout.logps).abs().max())
    facts["base policy"] = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    facts["sampler"] = f"log-probs agree with the scorer's to {gap:.0e}"
    facts["bfloat16"] = _bfloat16_facts([prompt], rollout, scores.logps)
    return gap < 1e-4
