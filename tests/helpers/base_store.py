"""A small store of samples of a base model on training problems, with as many right ones as a test says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.config import TrainConfig, task_of
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import prompts_of
from sage_rlvr.evaluation.settings import SampleSettings
from sage_rlvr.evaluation.store import Sample, SampleStore, prompt_hash
from sage_rlvr.models.policy import load_tokens, revision_of
from samples_common import IDENTITY

N = 10


def as_eval_samples(config: TrainConfig, model: str | None = None) -> dict[str, Any]:
    """The identity that `eval` gives a store of a run's base (or `model`) on its training problems."""
    model = config.base if model is None else model
    settings = {f.name: getattr(SampleSettings, f.name) for f in fields(SampleSettings) if hasattr(SampleSettings, f.name)}
    run = SampleRun(**settings | {"split": "train", "store": Path("nowhere")}, policy="base", model=model, own=task_of(config))
    chosen = run.build_task()
    template_hash = prompts_of(chosen, load_tokens(model), options=config.chat_template_kwargs)[1]
    identity = run.identity(chosen, template_hash, revision_of(model))
    return {f.name: getattr(identity, f.name) for f in fields(identity) if f.name not in ("chunk_size", "seed")}


def base_store(folder: Path, right: Mapping[str, int], texts: Mapping[str, str] | None = None, **identity: Any) -> Path:
    """`N` samples of each problem, the first `right` of them right; texts: of the right ones of a problem."""
    kind = replace(IDENTITY, chunk_size=N, **identity)
    with SampleStore.open(folder, kind) as store:
        for problem, count in right.items():
            rows = []
            for number in range(N):
                logps = np.full(3, -1.0 - number - len(problem), np.float32)
                text = (texts or {}).get(problem, f"{problem} right") if number < count else f"{problem} wrong {number}"
                rows.append(
                    Sample(
                        problem=problem, sample=number, seed=kind.seed_of(problem, number), prompt_hash=prompt_hash(problem),
                        text=text, token_ids=np.arange(3) + number, rollout_logps=logps, finish="stop", answer=text,
                        verdict="right" if number < count else "wrong", reason="because",
                    )
                )  # fmt: skip
            store.commit(rows)
    return folder
