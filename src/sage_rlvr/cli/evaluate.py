"""`eval`: a policy held against problems, exactly or by samples."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro
from rich.console import Console

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.settings import ONLY_SAMPLES, SampleSettings

# Options that mean nothing without --samples or --reverify, and those that mean nothing with it.
SAMPLING = (*ONLY_SAMPLES, "rank", "quiet")
EXACT = ("temperatures", "frontier", "power_frontier", "ks", "sample", "out")


@dataclass(frozen=True)
class Eval(Command, SampleSettings):
    """Evaluate a run, a model or adapter folder, a Hub id or "embedded": exactly, or with --samples by sampling.

    Exact (Countdown, where all right answers are listed): pass@k, support, temperature frontier. By samples, on any task:
    every completion is kept in a store; the same command continues after any interruption, a larger --samples tops up."""

    what: tyro.conf.Positional[str]
    temperatures: tuple[float, ...] = (1.0,)
    frontier: bool = False
    """Add the fifteen temperatures of the frontier."""
    power_frontier: bool = False
    """Also temper the policy over whole completions, pi(y)^power normalized a problem: what it reaches with no reward at all."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    sample: int = 0
    """Also draw this many completions at temperature 1 for each of 40 problems and hold them against the exact numbers."""
    out: Path | None = None
    """Where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz)."""
    rank: bool = False
    """Of samples: also the effective rank of the policy's last hidden states on each problem's first sample."""
    reverify: bool = False
    """Draw nothing: judge the samples of the store again by today's verifier, then report."""
    quiet: bool = False
    """Of samples: no progress."""

    def execute(self, session: Session) -> int:
        sampled = bool(self.samples) or self.reverify
        if given := self.changed(*(EXACT if sampled else SAMPLING)):
            way = (
                "the exact evaluation; leave out --samples" if sampled else "an evaluation by samples; add --samples N"
            )
            raise ConfigError(f"{given}: settings of {way}")
        return self._by_samples(session) if sampled else self._exactly(session)

    def _by_samples(self, session: Session) -> int:
        from sage_rlvr.cli.stores import sample_settings
        from sage_rlvr.evaluation.sample_report import report_lines
        from sage_rlvr.evaluation.sampled_run import sample_into_store, verify_again
        from sage_rlvr.experiments.jobs import ended_like_ctrl_c
        from sage_rlvr.progress import counting

        settings = sample_settings(self, RUNS)
        if self.reverify:
            store, task, judged = verify_again(settings)
            session.say(f"{judged:,} samples judged again; the older verdicts stay readable in {store.path}/verdicts")
        else:
            quiet = Console(file=io.StringIO()) if self.quiet else session.err
            with ended_like_ctrl_c():
                store, task = sample_into_store(settings, partial(counting, quiet, settings.policy))
        session.say("\n".join(report_lines(store, self.samples or None, task.floor)))
        if self.rank:
            from sage_rlvr.evaluation.sampled_run import rank_line

            session.say(rank_line(settings, store, task))
        session.say(f"store: {store.path}")
        return 0

    def _exactly(self, session: Session) -> int:
        from sage_rlvr.cli.records import eval_lines, power_lines, print_cross_check, target_of
        from sage_rlvr.evaluation.evaluate import FRONTIER, cross_check, evaluate
        from sage_rlvr.evaluation.record import save_record
        from sage_rlvr.runs import writing
        from sage_rlvr.stats.tempered import POWERS

        temperatures = sorted({*self.temperatures, *(FRONTIER if self.frontier else ())})
        if self.sample < 0 or (self.sample and 1.0 not in temperatures):
            raise ConfigError(
                f"--sample {self.sample}: draws that many completions at temperature 1, so it needs a number from 0 and 1.0 "
                f"among --temperatures (here {', '.join(map(str, temperatures))})"
            )
        if self.power_frontier and 1.0 not in temperatures:
            raise ConfigError(
                "--power-frontier: tempers the policy as it is at temperature 1; put 1.0 among --temperatures (here "
                f"{', '.join(map(str, temperatures))})"
            )
        target = target_of(self.what, self.world)
        stem = "evaluation" if target.run else target.name
        path = self.out or (target.run or RUNS / "evaluations") / f"{stem}-{self.split}.npz"
        with writing("record of an evaluation", path, 4 << 20):
            path.parent.mkdir(parents=True, exist_ok=True)
        record = evaluate(
            target,
            split=self.split,
            problems=300 if self.problems is None else self.problems,
            seed=self.seed,
            draw=self.draw,
            temperatures=temperatures,
            powers=POWERS if self.power_frontier else (),
        )
        session.say(*eval_lines(record, self.ks), *power_lines(record, self.ks))
        with writing("record of an evaluation", path, 4 << 20):
            save_record(record, path)
        session.say(f"record: {path}")
        if not self.sample:
            return 0
        found = cross_check(target, record, n=self.sample, problems=40, max_new_tokens=32, seed=self.seed)
        print_cross_check(session.out, found)
        return 0 if found["agree"] else 2
