"""`widen`: sample a base and a trained policy, and compare them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from sage_rlvr.cli.compare import Compare
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.evaluation.settings import DrawSettings


@dataclass(frozen=True)
class Widen(DrawSettings, Command):
    """Sample a base and a trained policy on the same problems, and compare them.

    BASE and RL are model or adapter folders, Hub ids or runs. The base is also sampled at lower temperatures, because sharpening
    alone can be had from these. Every completion is stored; the same command continues after any interruption, and a larger
    --samples adds samples. Ends with the verdict of `compare` and its page. --task is needed, and is not that of training; --server
    serves both policies, and --server-model is the name of RL there."""

    resumes: ClassVar[bool] = True

    base: tyro.conf.Positional[str]
    """The policy before training, the control."""
    rl: tyro.conf.Positional[str]
    """The policy after training."""
    samples: int = 64
    """Samples of each problem."""
    temperature: float = 1.0
    """The temperature of RL, at which the base is sampled too."""
    base_temperatures: tuple[float, ...] | None = None
    """Further temperatures of the base (default: 0.8 0.6 0.4 0.2 0.1 0.05); with none a gain may be mere sharpening."""
    base_server: str | None = None
    """The server of BASE, if it is another than --server."""
    base_server_model: str | None = None
    """The name of BASE on its server (default: its path)."""
    out: Path | None = None
    """The folder of the stores and of the page (default: runs/widen/<base>-<rl>-<task>)."""
    k: int | None = None
    """The largest k of pass@k (default: all samples, at most 256)."""
    fail_on: tuple[str, ...] = ()
    """Exit with code 3, as in `compare`, if pass@K is lower than the base's (pass@8), lower at any k (loss), or higher at no k
    (no-gain)."""
    quiet: bool = False
    """Do not print progress."""

    def execute(self, session: Session) -> int:
        """Sample both policies and compare them. Returns the exit code of `compare`."""
        from sage_rlvr.api.widen import TAKEN, sample_both
        from sage_rlvr.verdicts.of_temperatures import BASE_TEMPERATURES

        heats = BASE_TEMPERATURES if self.base_temperatures is None else self.base_temperatures
        options = {name: getattr(self, name) for name in TAKEN}
        sampled = sample_both(
            self.base, self.rl, self.task, samples=self.samples, temperature=self.temperature, base_temperatures=heats,
            out=self.out, base_server=self.base_server, base_server_model=self.base_server_model, quiet=self.quiet,
            say=session.note, options=options,
        )  # fmt: skip
        arms = Compare(arms=sampled.arms, samples=self.samples, k=self.k, out=sampled.out, fail_on=self.fail_on)
        return arms.execute(session)
