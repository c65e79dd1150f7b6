"""The settings of an evaluation by samples with their task, decoding, generator and the identity of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import PreTrainedModel

from sage_rlvr.config import task_named
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.guidance import again, teacher_named
from sage_rlvr.evaluation.policies import Policy
from sage_rlvr.evaluation.sampling import EvalSet, choose
from sage_rlvr.evaluation.settings import SERVERS, SampleSettings
from sage_rlvr.evaluation.store import CHUNK, Identity
from sage_rlvr.models.borrowing import Borrowing
from sage_rlvr.models.devices import auto_dtype
from sage_rlvr.models.generation import Decoding, rows_of_a_pass
from sage_rlvr.models.interpolation import Interpolated
from sage_rlvr.models.llama.net import supports
from sage_rlvr.models.vllm import GENERATORS
from sage_rlvr.runs import versions
from sage_rlvr.tasks.base import Task

WIDE = 64  # samples per chunk of the CPU sampler at most: a third faster than twice the 32 of other generators
# Problems per call of the CPU sampler: for a small model most of the time is spent calling operations, which does not grow
# with the rows (benchmarks/evaluator.py).
TOGETHER = 8
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class SampleRun(SampleSettings):
    """Settings of an evaluation with the policy to evaluate. `sage_rlvr.evaluate` makes it; `sample_into_store` and the exact KL
    read it.

    policy: its name in the store
    model: its folder, Hub id or "embedded", or a combination of two of these
    store: the folder
    own: the training task or world of a run, instead of the settings' task
    """

    store: Path
    policy: str
    model: Policy
    own: Task | None = None

    def build_task(self) -> EvalSet:
        """The task with its problems. Raises ConfigError as `asked` does, and for hints without attempts."""
        if self.retry_failures_of is None and self.hints != "nothing":
            raise ConfigError(
                f"--hints {self.hints}: is for second attempts; add --retry-failures-of STORE, the store of the first attempts"
            )
        if self.problems is not None and self.problems < 1:
            raise ConfigError(f"--problems {self.problems}: at least one problem is needed")
        chosen = choose(self.asked, self.split, self.seed, self.problems, self.sampling)
        if self.retry_failures_of is None:
            return chosen
        return again(chosen, self.retry_failures_of, teacher_named(self.hints), self.store)

    @property
    def asked(self) -> Task:
        """The task. Raises ConfigError for an unknown one, or without one."""
        if self.own is not None:
            return self.own
        if self.task is None:
            raise ConfigError("no task: evaluate a run, or pass --task or --world")
        return task_named(self.task, self.template)

    def decoding(self, task: EvalSet) -> Decoding:
        """The preset with the changes that this generator needs."""
        limit = task.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        law = Decoding.of(self.preset, vllm=not self.drawer.local, max_new_tokens=limit)
        return law if self.temperature is None else replace(law, temperature=self.temperature)

    @property
    def engine(self) -> str:
        """The generator's name, "auto" resolved."""
        if (self.generator in SERVERS) != (self.server is not None):
            raise ConfigError(
                f"--generator {self.generator} with --server {self.server}: set both, --generator server (or chat) and "
                "--server http://HOST:PORT"
            )
        if self.generator == "chat" and (self.options or self.chat_template != "model"):
            raise ConfigError(
                f"--generator chat with --chat-template {self.chat_template} and --chat-template-kwargs {self.options}: a "
                "server of chat completions renders messages by its own template and is not told; use --generator server, or "
                "leave both out"
            )
        local = "transformers" if torch.cuda.is_available() and not isinstance(self.model, Borrowing) else "sampler"
        return local if self.generator == "auto" else self.generator

    @property
    def drawer(self) -> Any:
        """The generator's class. Raises ConfigError for an unknown name, with the nearest known one, and for a generator that
        cannot sample from a combination of two policies."""
        drawer = GENERATORS[self.engine]
        if isinstance(self.model, Interpolated) and not drawer.local:
            raise ConfigError(
                f"--interpolate with --generator {self.engine}: the weights are mixed in this process; use --generator sampler or "
                "transformers"
            )
        if isinstance(self.model, Borrowing) and self.engine != "sampler":
            raise ConfigError(f"--borrow with --generator {self.engine}: steps two policies; use --generator sampler")
        return drawer

    def precision(self, known: Identity | None) -> str:
        """The dtype, "auto" resolved: that of the store that is continued, bfloat16 on a server, else `auto_dtype`. known: that
        store's identity, None for a new one. Raises ConfigError for other names than floating-point types."""
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigError(f"--dtype {self.dtype}: choose auto, float32, bfloat16 or float16")
        if self.dtype != "auto":
            return self.dtype
        if known is not None and known.decoding.get("dtype") in DTYPES:
            return str(known.decoding["dtype"])
        if not self.drawer.local:
            return "bfloat16"
        return auto_dtype("cuda" if torch.cuda.is_available() else "cpu")

    def identity(
        self,
        task: EvalSet,
        template_hash: str,
        revision: str,
        *,
        model: PreTrainedModel | None = None,
        known: Identity | None = None,
        recorded: Mapping[str, str] = MappingProxyType({}),
    ) -> Identity:
        """The identity of the store of this evaluation: the settings that determine its numbers, and hashes.

        revision: of the policy's weights, by `policies.revision_at`. model: the policy, loaded; its size decides how many problems
        a new store draws together. known: the identity of the store that is continued. recorded: the scoring base and the guide of
        q, which are versions: changing them is recorded in each row and does not start a new store.
        """
        decoding = self.decoding(task)
        return Identity(
            task=task.name,
            task_hash=task.task_hash,
            model=self.policy,
            revision=revision,
            prompt=task.prompt,
            template_hash=template_hash,
            decoding=asdict(decoding) | {"generator": self.engine, "dtype": self.precision(known)},
            verifier_hash=task.verifier_hash,
            seed=self.sampling_seed,
            versions={**versions(), "threads": str(torch.get_num_threads()), **recorded},
            chunk_size=self._chunk_size(decoding) if known is None else known.chunk_size,
            together=self._together(decoding, model) if known is None else known.together,
            guidance=task.guidance,
            turns=task.turns,
        )

    def _chunk_size(self, decoding: Decoding) -> int | None:
        """Samples per chunk of a new store: the fewest equal chunks that cover the requested n, since a store contains complete
        chunks. None, the store's default, if a completion has no second sample or n is unknown."""
        if decoding.temperature == 0 or not self.samples:
            return None
        largest = WIDE if self.engine == "sampler" else CHUNK
        chunks = -(-self.samples // largest)
        return -(-self.samples // chunks)

    def _together(self, decoding: Decoding, model: PreTrainedModel | None) -> int:
        """Problems per call in a new store: `TOGETHER` for a model so small that it takes no longer."""
        if self.engine != "sampler" or model is None or not supports(model):
            return 1
        return TOGETHER if TOGETHER * (self._chunk_size(decoding) or CHUNK) <= rows_of_a_pass(model, decoding) else 1
