"""Requirements on a release of TRL, read from its own source: ConfigError if its loss would ignore a guide or a method."""

from __future__ import annotations

import inspect
from typing import Any

import trl
from trl import GRPOTrainer

from sage_rlvr.core.method import Method
from sage_rlvr.errors import refuse
from sage_rlvr.training.trl.batch import computes_advantages
from sage_rlvr.training.trl.versions import INSTALL_TESTED

SEAMS = ("_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_compute_loss")


def check_release(method: Method, args: Any) -> None:
    """Refuse a method on releases of TRL whose loss is another than the method needs; read from the loss itself."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    split = args.steps_per_generation != args.gradient_accumulation_steps
    missing = [words for words in ("advantages.dim() == 1", "self.beta") if words not in source]
    refuse(
        (
            args.loss_type == "dapo" and split and "self.args.steps_per_generation" not in source,
            f"SageTrainer: args.loss_type = 'dapo' of TRL {trl.__version__} divides every update by the tokens of the whole "
            f"rollout; set steps_per_generation = {args.gradient_accumulation_steps} (gradient_accumulation_steps), or "
            "install trl>=1.10.",
        ),
        (
            computes_advantages(method) and missing,
            f"SageTrainer: the loss of TRL {trl.__version__} does not support per-token advantages or a changing beta "
            f"({missing} not found in its source), which {method.name} may need; {INSTALL_TESTED}.",
        ),
    )


def check_engine(trainer: type, args: Any) -> None:
    """ConfigError if the loss does not call the methods that `SageTrainer` overrides."""
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in (*trainer.__mro__, trl.GRPOTrainer)]
    foreign = [name for name in names if "unsloth" in name.lower()]
    missing = [name for name in SEAMS if not hasattr(GRPOTrainer, name)]
    refuse(
        (
            foreign,
            f"SageTrainer: {' and '.join(foreign)} replaces TRL's trainer and its loss, so the guide would have no "
            "effect; import sage_rlvr.training.trl in a process that does not import unsloth.",
        ),
        (
            args.use_liger_kernel and hasattr(GRPOTrainer, "compute_liger_loss"),
            f"SageTrainer: with args.use_liger_kernel = True TRL {trl.__version__} computes the loss in a fused "
            "kernel that does not read the reference log-probs changed here; set use_liger_kernel=False, or install "
            "trl>=1.14.",
        ),
        (
            missing or not _reads_reference_late(),
            f"SageTrainer: TRL {trl.__version__} has an unexpected structure; missing in GRPOTrainer: "
            f"({', '.join(missing) or '_compute_loss'}); {INSTALL_TESTED}.",
        ),
    )


def _reads_reference_late() -> bool:
    """True where `_compute_loss(model, inputs)` reads the reference after the policy's forward, that is, shaped."""
    loss = GRPOTrainer._compute_loss
    source = inspect.getsource(loss)
    forward, read = source.find("_get_per_token_logps_and_entropies("), source.find('inputs["ref_per_token_logps"]')
    return [*inspect.signature(loss).parameters][1:] == ["model", "inputs"] and 0 <= forward < read
