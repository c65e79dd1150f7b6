"""`eval`: a policy held against problems, exactly or by samples."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.settings import ONLY_SAMPLES, SampleSettings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from rich.console import Console

    from sage_rlvr.evaluation.evaluate import Target
    from sage_rlvr.evaluation.record import Record
    from sage_rlvr.evaluation.sampled_run import SampleRun
    from sage_rlvr.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class ExactSettings:
    """Options of an exact evaluation alone."""

    temperatures: tuple[float, ...] = (1.0,)
    frontier: bool = False
    """Add the fifteen temperatures of the frontier."""
    power_frontier: bool = False
    """Also temper the policy over whole completions, pi(y)^power normalized per problem: what it reaches with no reward."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    sample: int = 0
    """Also draw this many completions at temperature 1 for each of 40 problems and hold them against the exact numbers."""
    out: Path | None = None
    """Where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz; of a named world with
    its name)."""


EXACT = tuple(f.name for f in fields(ExactSettings))


@dataclass(frozen=True)
class Eval(Command, ExactSettings, SampleSettings):
    """Evaluate a policy: exactly, or by samples.

    WHAT is a run, a model or adapter folder, a Hub id or "embedded". Exact (Countdown, and a task that lists its solutions):
    pass@k, support, temperature frontier. By samples, on any task: every completion is kept in a store; the same command
    continues after any interruption, a larger --samples tops up."""

    what: tyro.conf.Positional[str]
    """A run, a model or adapter folder, a Hub id, or "embedded"."""
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    rank: bool = False
    """Of samples: also the effective rank of the policy's last hidden states on each problem's first sample."""
    best_of: str | None = None
    """Of samples: also pass@1 of the sample of each problem that this reward model (of `offline`, loss: reward) ranks first."""
    reverify: bool = False
    """Draw nothing: judge the samples of the store again by today's verifier, then report."""
    quiet: bool = False
    """Of samples: no progress."""

    def execute(self, session: Session) -> int:
        """Evaluate, print and keep."""
        sampled = bool(self.samples) or self.reverify
        if given := self.changed(*(EXACT if sampled else (*ONLY_SAMPLES, "rank", "best_of", "quiet"))):
            which = "exact evaluation; leave out --samples" if sampled else "evaluation by samples; add --samples N"
            raise ConfigError(f"{given}: settings of an {which}")
        return self._by_samples(session) if sampled else self._exactly(session)

    def _by_samples(self, session: Session) -> int:
        from sage_rlvr.evaluation.guidance import guidance_line
        from sage_rlvr.evaluation.sample_report import report_lines
        from sage_rlvr.evaluation.sampled_run import best_line, rank_line, sample_into_store, verify_again
        from sage_rlvr.experiments.jobs import ended_like_ctrl_c
        from sage_rlvr.progress import PlainConsole, counting

        run = self._sample_run(session)
        if self.reverify:
            store, task, judged = verify_again(run)
            session.say(f"{judged:,} samples judged again; the older verdicts stay readable in {store.path}")
        else:
            quiet = PlainConsole(file=io.StringIO()) if self.quiet else session.err
            with ended_like_ctrl_c():
                store, task = sample_into_store(run, partial(counting, quiet, run.policy), session.note)
        session.say(*report_lines(store, self.samples or None, task.floor))
        if hasattr(task.task, "draw"):
            session.say(self._problems_line(task.task))
        if self.rank:
            session.say(rank_line(run, store, task))
        if self.after is not None:
            session.say(guidance_line(store.path))
        if self.best_of is not None:
            session.say(best_line(run, store, task, self.best_of))
        session.say(f"store: {store.path}")
        return 0

    def _sample_run(self, session: Session) -> SampleRun:
        """The policy, and a run's own task or the world it is given; the store's place where none was named."""
        from sage_rlvr.config import task_named
        from sage_rlvr.evaluation.sampled_run import SampleRun
        from sage_rlvr.runs import is_run
        from sage_rlvr.tasks import with_worlds

        settings, run, own = SampleSettings.of(self), Path(self.what), None
        if self.task is None or with_worlds(self.task) is not None:
            target = target_of(self.what, self.world, self.task)
            policy, model, own, of_run = target.name, target.model, target.asked, target.run is not None
            form = getattr(getattr(own, "form", None), "name", "as_is")
            limit = settings.max_new_tokens or (None if target.task is None else target.limit)
            settings = replace(settings, task=own.name, template=form, max_new_tokens=limit)
        else:
            of_run = is_run(run)
            policy = "base" if self.what == "embedded" else run.name
            model = str(run / "policy") if of_run else self.what
            self._say_other_reward(session, run if of_run else None)
        home = run / "samples" if of_run else RUNS / "samples" / policy
        asked = task_named(settings.task) if own is None else own  # type: ignore[arg-type]
        if own is None and self.world is not None:
            raise _either(self.world, str(self.task))
        store = settings.store or home / settings.store_name(asked)
        return SampleRun(**(vars(settings) | {"store": store}), policy=policy, model=model, own=own)

    def _say_other_reward(self, session: Session, run: Path | None) -> None:
        """That rows of a file are asked and judged as mathematics, where the run was trained on rows with a reward of its own."""
        from sage_rlvr.runs import read_record
        from sage_rlvr.tasks.rows import SUFFIXES

        rows = self.task is not None and self.task.endswith(SUFFIXES)
        own = read_record(run)["config"].get("task") if run is not None and rows else None
        if reward := (own or {}).get("reward"):
            session.note(
                f"--task {self.task}: asked in the template {self.template} and judged as mathematics, and not by the reward "
                f"{reward} that {run} was trained with. To evaluate on these rows by it, give --task RECIPE.yaml, a recipe whose "
                f"task has that reward and test_file: {self.task}"
            )

    def _exactly(self, session: Session) -> int:
        from sage_rlvr.evaluation.evaluate import FRONTIER, cross_check, evaluate, guess_floor
        from sage_rlvr.evaluation.record import save_record
        from sage_rlvr.runs import writing
        from sage_rlvr.stats.tempered import POWERS

        temperatures = self._temperatures(FRONTIER)
        target = target_of(self.what, self.world, self.task)
        target.check_listed()
        stem = "evaluation" if target.run else target.name
        stem += "" if target.task is None or target.named is None else f"-{target.task.name}"
        if world := self.world or (self.task or "").partition(":")[2]:  # of each world a record of its own
            stem += f"-{Path(world).stem}"
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
        session.say(*eval_lines(record, self.ks))
        floors = {k: floor for k in self.ks if (floor := guess_floor(target, record, k)) is not None}
        if floors:
            session.say(f"  uniform guesses: {', '.join(f'pass@{k} {floor:.3f}' for k, floor in floors.items())}")
        if hasattr(target.asked, "draw"):
            session.say(self._problems_line(target.asked))
        with writing("record of an evaluation", path, 4 << 20):
            save_record(record, path)
        session.say(f"record: {path}")
        if not self.sample:
            return 0
        found = cross_check(target, record, n=self.sample, problems=40, seed=self.seed)
        print_cross_check(session.out, found)
        return 0 if found["agree"] else 2

    def _temperatures(self, frontier: Sequence[float]) -> list[float]:
        """All that are read. ConfigError where a cross-check or powers need temperature 1 and it is not among them."""
        found = sorted({*self.temperatures, *(frontier if self.frontier else ())})
        if self.sample < 0 or (self.sample and 1.0 not in found):
            raise ConfigError(
                f"--sample {self.sample}: draws that many completions at temperature 1, so it needs a number from 0 and 1.0 "
                f"among --temperatures (here {', '.join(map(str, found))})"
            )
        if self.power_frontier and 1.0 not in found:
            raise ConfigError(
                "--power-frontier: tempers the policy as it is at temperature 1; put 1.0 among --temperatures (here "
                f"{', '.join(map(str, found))})"
            )
        return found

    def _problems_line(self, task: Task) -> str:
        """Which problems these were, of a task that draws them."""
        from sage_rlvr.tasks import described

        law = described(getattr(task, "identity", {"name": task.name}), task)
        if self.split == "train":
            return f"problems: {law}; the first of its training problems"
        return f"problems: {law}; split {self.split}, draw {self.draw}, seed {self.seed}"


def _either(world: str, task: str) -> ConfigError:
    return ConfigError(f"--world {world} with --task {task}: either says what is evaluated; leave one of them out")


def target_of(what: str, world: str | None, task: str | None = None) -> Target:
    """`evaluation.evaluate.resolve`, a world and a task by their words; of a task with worlds the world is one of its own."""
    from sage_rlvr.config import world_of
    from sage_rlvr.evaluation.evaluate import resolve
    from sage_rlvr.tasks import with_worlds

    kind, found = with_worlds(task), None
    if kind is not None and world in kind.worlds:
        return resolve(what, None, f"{task}:{world}")
    if world is not None:
        found = world_of(world)
        if task is not None and (kind is None or not isinstance(found.build(), kind)):
            raise _either(world, task)
    return resolve(what, found, task if found is None else None)


def eval_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """Tables in text, 95 % intervals over problems: one line per temperature, then one per power of whole completions, with the
    bound that the normalizer leaves."""
    from sage_rlvr.cli.compare import setting_line
    from sage_rlvr.stats.support import reachable, success_probability
    from sage_rlvr.stats.tempered import tempered

    meta, head = record.meta, "".join(f"pass@{k:<18}" for k in ks)
    lines = [
        f"{meta['name']}: {setting_line(record)}, 95 % intervals over problems",
        f"  T     {head}distinct right in 256",
    ]
    for t in sorted(record.logps, reverse=True):
        rows = record.logps[t]
        distinct = sum(reachable(rows, 256)) / len(rows)
        lines.append(f"  {t:<5g} {_cells(success_probability(rows), ks)}{distinct:.1f}")
    if record.norms:
        lines += [
            f"{meta['name']} tempered over whole completions, pi(y)^power normalized per problem; +-: bound of the normalizer",
            f"  power {head}+- pass@1  distinct right in 256",
        ]
    for one in tempered(record.logps[1.0], record.norms) if record.norms else ():
        bound, open_ = f"{one.bound.mean():<9.1g}", f"not available: {one.bound.mean():.1g} open"
        told = f"{_cells(one.p, ks)}{bound}  {one.distinct(256):.1f}" if one.known else open_
        lines.append(f"  {one.power:<5g} {told}")
    return lines


def _cells(p: ArrayLike, ks: Sequence[int]) -> str:
    from sage_rlvr.stats.intervals import share_interval
    from sage_rlvr.stats.passk import curve

    found = (share_interval(column) for column in curve(p, list(ks)).T)
    return "".join(f"{f'{c.value:.3f} [{c.low:.3f}, {c.high:.3f}]  ':<23}" for c in found)


def print_cross_check(console: Console, found: Mapping[str, float]) -> None:
    """What `cross_check` found, in one line; a disagreement is loud, and says what to do."""
    agree = bool(found["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {found['sampled']:.4f} ({100 * found['level']:g} % "
        f"interval {found['low']:.4f} to {found['high']:.4f}), exact {found['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, trust neither before `sage-rlvr doctor` has passed; if it does, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", soft_wrap=True
    )
