"""`eval`: a policy held against problems, exactly or by samples."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError

# Options that mean nothing without --samples or --reverify, and those that mean nothing with it.
SAMPLING = (
    *(
        "task",
        "preset",
        "temperature",
        "template",
        "chat",
        "store",
        "max_new_tokens",
        "score_base",
        "guide",
        "generator",
    ),
    *("server", "served_as", "dtype", "sampling_seed", "rank", "quiet"),
)
EXACT = ("temperatures", "frontier", "power_frontier", "ks", "sample", "out")


@dataclass(frozen=True)
class Eval(Command):
    """Evaluate a policy: exactly, or by samples.

    WHAT is a run, a model or adapter folder, a Hub id or "embedded". Exact (Countdown, where all right answers are listed):
    pass@k, support, temperature frontier. By samples, on any task: every completion is kept in a store; the same command
    continues after any interruption, a larger --samples tops up."""

    what: tyro.conf.Positional[str]
    split: Literal["validation", "test"] = "test"
    problems: int | None = None
    """Default: 300 of Countdown; of other tasks all rows, else the first so many."""
    seed: int = 1
    """Of the problems, not of training; the same seed means the same problems."""
    draw: Literal["law", "census"] = "law"
    """law: independent draws from the world's own law; census: all problems of the split equally likely, none twice."""
    temperatures: tuple[float, ...] = (1.0,)
    frontier: bool = False
    """Add the fifteen temperatures of the frontier."""
    power_frontier: bool = False
    """Also temper the policy over whole completions, pi(y)^power normalized a problem: what it reaches with no reward at
    all."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    sample: int = 0
    """Also draw this many completions at temperature 1 for each of 40 problems and hold them against the exact numbers."""
    out: Path | None = None
    """Where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz)."""
    samples: int = 0
    """Draw this many completions of each problem instead of evaluating exactly (rounded up to whole chunks: 32, or 64 of the
    sampler from 64 on)."""
    task: str = "countdown"
    """Of samples: countdown, aime, amc23, math500, math500_l5, minerva, dapo_math, knights_and_knaves(_strict), or a .jsonl
    file with problem and answer."""
    preset: Literal["honest", "paper", "released_code"] = "honest"
    """Of samples: honest (T 1, nothing truncated), paper (its training settings at T 0.3: min_p 0.01), released_code (T 0.3,
    top-p 0.95, and top-k 50 where vLLM does not sample)."""
    temperature: float | None = None
    """Of samples: another temperature than the preset's, 0 being greedy; for `compare --frontier`."""
    template: Literal["sage", "boxed", "as_is"] = "boxed"
    """Of samples: how a mathematics problem is asked, and where its answer is read."""
    chat: Literal["model", "format"] = "model"
    """Of samples: the chat template of the policy's tokenizer, or the prompt format's own for all arms alike."""
    store: Path | None = None
    """Of samples: where they are kept (default <run>/samples/<task>-..., or runs/samples/<model>/<task>-...)."""
    max_new_tokens: int | None = None
    """Of samples: default 32 for Countdown, else 3072."""
    score_base: str | None = None
    """Of samples: also the log-probs of every token under this model, for perplexities; samples that are there already are
    scored without being drawn again."""
    guide: str | None = None
    """Of samples: also q of a guide (branch, token, random, flat) at every token."""
    generator: Literal["auto", "sampler", "transformers", "vllm", "server"] = "auto"
    """Of samples: auto is transformers on a GPU, else the sampler of this package."""
    server: str | None = None
    """Of samples: address of an OpenAI-compatible server, for --generator server."""
    served_as: str | None = None
    """Of samples: the policy's name on that server (default: its path)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of samples: auto is bfloat16 on a GPU, else float32."""
    sampling_seed: int = 0
    """Of samples: from it and its address each sample has a seed of its own."""
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
