"""`doctor`: what this machine offers."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from typing import Any

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Doctor(Command):
    """Say what works on this machine, what does not, and why."""

    def execute(self, session: Session) -> int:
        """Exit code 0 where the CPU path works, else 2."""
        import torch
        import transformers

        gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: everything runs on the CPU"
        facts = {
            "python": platform.python_version(),
            "machine": platform.platform(),
            "cores": str(os.cpu_count()),
            "free disk": f"{shutil.disk_usage('.').free / 1e9:.0f} GB here",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": f"{torch.get_num_threads()} by torch's choice; recipes set engine.threads themselves",
            "GPU": gpu,
        }
        good = _policy_facts(facts)
        for name in ("trl", "verl", "vllm", "peft"):
            there = importlib.util.find_spec(name) is not None
            facts[name] = "installed" if there else "not installed: only needed by its own engine"
        width = max(map(len, facts))
        session.say(*(f"{name:<{width}}  {value}" for name, value in facts.items()))
        session.out.print("the CPU path works" if good else "the CPU path does not work: see above", style="bold")
        return 0 if good else 2


def _policy_facts(facts: dict[str, str]) -> bool:
    """Load the shipped policy, sample from it and hold the sample's log-probs against the scorer's."""
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
    return gap < 1e-4
