"""The command line: one verb a stage of the work. YAML first; `--a.b value` edits the recipe before it is decoded.

Imports of torch and transformers stay inside the verbs, so that `--help` and a mistyped word answer at once.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from sage_rlvr.errors import ConfigError, SageError

if TYPE_CHECKING:
    from sage_rlvr.report import SeedSummary, Summary

RUNS = Path("runs")
FAULT = 70  # EX_SOFTWARE of sysexits.h; 1 means "interrupted and saved", so a crash needs a code of its own


@dataclass(frozen=True)
class Demo:
    """Train no-KL, GRPO and SAGE-Branch from the shipped base on this machine, evaluate exactly, and say what differs.

    `--a.b value` edits every arm's recipe, e.g. `--steps 40` for a short look."""

    out: Path = RUNS / "demo"
    """Where runs, evaluations, pictures and the page go. The same folder again continues."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; claims about methods, not checkpoints, need at least three."""
    arms: tuple[str, ...] | None = None
    """Recipes of recipes/countdown to train (default: no_kl grpo sage_branch; placebo is there too)."""
    problems: int = 300
    """Test problems."""
    workers: int | None = None
    """Training runs at a time, one thread each (default: the number of cores)."""


@dataclass(frozen=True)
class Sft:
    """Train a base policy from scratch on generated solutions."""

    recipe: tyro.conf.Positional[Path]
    run: Path | None = None
    """Run directory (default runs/<recipe name>). The same directory again continues."""
    out: Path | None = None
    """Where the policy goes (default <run>/policy)."""
    quiet: bool = False
    """No progress."""


@dataclass(frozen=True)
class Train:
    """Train one method by RL from a recipe; killed at any moment, the same command continues."""

    recipe: tyro.conf.Positional[Path]
    run: Path | None = None
    """Run directory (default runs/<recipe name>-s<seed>)."""
    fork: bool = False
    """Continue a run although its recipe or the installed versions changed."""
    quiet: bool = False
    """No progress; metrics.jsonl has everything."""


@dataclass(frozen=True)
class Eval:
    """Evaluate a run, a model folder or "embedded" exactly: pass@k, support, temperature frontier."""

    what: tyro.conf.Positional[str]
    split: Literal["validation", "test"] = "test"
    problems: int = 300
    seed: int = 1
    """Of the problems, not of training; the same seed means the same problems."""
    draw: Literal["law", "census"] = "law"
    """law: independent draws from the world's own law; census: all problems of the split equally likely, none twice."""
    temperatures: tuple[float, ...] = (1.0,)
    frontier: bool = False
    """Add the fifteen temperatures of the frontier."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    sample: int = 0
    """Also draw this many completions at temperature 1 for each of 40 problems and hold them against the exact numbers."""
    out: Path | None = None
    """Where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz)."""


@dataclass(frozen=True)
class Compare:
    """Hold evaluations of the same problems against each other; the first is the control of all others.

    Each is a record (.npz), a run directory, or NAME=PATH[,PATH...]; several paths are training seeds of one method."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    split: Literal["validation", "test"] = "test"
    """Which record of a run directory to take."""
    k: int = 256
    out: Path | None = None
    """Also write the page and the pictures there."""


@dataclass(frozen=True)
class Show:
    """Print a resolved recipe and the objective that it really optimises."""

    recipe: tyro.conf.Positional[Path]


@dataclass(frozen=True)
class Theory:
    """Check the paper's claims exactly, map what every KL term really descends, and measure both on the real policy.

    Prints each claim with both sides and its verdict. Exit code 2 if a claim comes out other than it should."""

    out: Path = RUNS / "theory"
    """Where theory.json, theory.md and the pictures go."""
    lab: bool = True
    """Also measure on the Countdown policy (most of the time)."""
    policy: str | None = None
    """A run directory or model folder to measure there (default: the shipped base after some steps without a leash)."""
    problems: int = 5
    """Problems of the lab; each takes some ten seconds without draws."""
    draws: int = 256
    """Completions drawn a problem for the variances of the lab; 0 leaves them out."""
    docs: Path | None = None
    """Also make the tables and pictures of anchor.md in this folder again, as in the repository's docs/; with --no-lab the
    tables of the lab stay as they are."""


@dataclass(frozen=True)
class Doctor:
    """Say what works on this machine, and what was switched off and why."""


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Sft, tyro.conf.subcommand("sft")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Theory, tyro.conf.subcommand("theory")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)
EDITABLE = (Demo, Sft, Train, Show)  # the verbs that take --a.b value


@dataclass
class Streams:
    """Where the verbs speak."""

    out: Console = field(default_factory=lambda: Console(highlight=False, width=None if sys.stdout.isatty() else 120))
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 interrupted and saved, 2 refused (the message says what to do), 70 a fault of
    this program (with Python's traceback)."""
    _quiet_libraries()
    args = list(sys.argv[1:] if argv is None else argv)
    _check_verb(args)
    command, unknown = tyro.cli(Command, prog="sage-rlvr", args=args, return_unknown_args=True)  # type: ignore[call-overload]
    streams = Streams()
    try:
        code = _run(command, _overrides(command, unknown), streams)
    except SageError as error:
        streams.err.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        streams.err.print(str(error), markup=False, soft_wrap=True)
        code = 2
    except KeyboardInterrupt:
        streams.err.print("interrupted; what was finished is saved, the same command continues")
        code = 1
    except Exception:
        traceback.print_exc()
        streams.err.print(f"a fault of sage-rlvr, exit code {FAULT}: please report it with the lines above")
        code = FAULT
    sys.exit(code)


def _check_verb(args: Sequence[str]) -> None:
    """A mistyped verb is answered with its neighbour; everything else is tyro's business."""
    verbs = ("demo", "sft", "train", "eval", "compare", "show", "theory", "doctor")
    if args and not args[0].startswith("-") and args[0] not in verbs:
        near = difflib.get_close_matches(args[0], verbs, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(verbs)}"
        print(f"ConfigError: unknown verb {args[0]!r}; {hint}", file=sys.stderr)
        sys.exit(2)


def _quiet_libraries() -> None:
    """Progress bars of weight loading say nothing on a 3 MB model; warnings of ours stay."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.formatwarning = lambda message, category, *rest: f"{category.__name__}: {message}\n"


def _overrides(command: object, unknown: Sequence[str]) -> list[tuple[str, str]]:
    """["--a.b", "v", "--c=w"] -> [("a.b", "v"), ("c", "w")]; anything else is refused by name."""
    found: list[tuple[str, str]] = []
    rest = list(unknown)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or not isinstance(command, EDITABLE):
            verb = type(command).__name__.lower()
            raise ConfigError(f"{word!r}: `sage-rlvr {verb}` has no such argument; see `sage-rlvr {verb} --help`")
        name, equals, value = word[2:].partition("=")
        if not equals and not rest:
            raise ConfigError(f"{word}: a value is missing; write {word} VALUE")
        found.append((name.replace("-", "_"), value if equals else rest.pop(0)))
    return found


def _run(command: object, overrides: list[tuple[str, str]], streams: Streams) -> int:
    verbs = {
        Demo: _demo,
        Sft: _sft,
        Train: _train,
        Eval: _eval,
        Compare: _compare,
        Show: _show,
        Theory: _theory,
        Doctor: _doctor,
    }
    return verbs[type(command)](command, overrides, streams)


def _sft(command: Sft, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.config import SftConfig, dump, load_config
    from sage_rlvr.engines.sft import train_sft
    from sage_rlvr.progress import Silent, Terminal
    from sage_rlvr.runs import RunDir

    config = load_config(SftConfig, command.recipe, overrides)
    directory = command.run or RUNS / command.recipe.stem
    out = command.out or directory / "policy"
    with RunDir.open(directory, dump(config), kind="sft") as run:
        reached = train_sft(config, run, out, Silent() if command.quiet else Terminal("sft"))
    return _ended(reached, config.steps, f"policy in {out}", directory, streams)


def _train(command: Train, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.config import TrainConfig, dump, load_config
    from sage_rlvr.engines.base import run_facts
    from sage_rlvr.engines.loop import train
    from sage_rlvr.progress import Silent, Terminal
    from sage_rlvr.runs import RunDir

    config = load_config(TrainConfig, command.recipe, overrides)
    directory = command.run or RUNS / f"{command.recipe.stem}-s{config.seed}"
    if not command.quiet:
        streams.err.print(config.method.build().describe(), markup=False, soft_wrap=True)
    facts = run_facts(config)
    with RunDir.open(directory, dump(config), kind="train", fork=command.fork, data=facts) as run:
        reached = train(config, run, Silent() if command.quiet else Terminal(directory.name))
    return _ended(reached, config.steps, f"policy in {directory / 'policy'}", directory, streams)


def _ended(reached: int, wanted: int, result: str, directory: Path, streams: Streams) -> int:
    if reached < wanted:
        streams.err.print(
            f"stopped after step {reached} of {wanted}, saved in {directory}; the same command continues",
            markup=False,
            soft_wrap=True,
        )
        return 1
    streams.err.print(f"done: {wanted} steps, {result}", markup=False, soft_wrap=True)
    return 0


def _show(command: Show, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.config import SftConfig, TrainConfig, load, load_config, to_yaml
    from sage_rlvr.verbs import reference_line, world_line

    schema = TrainConfig if {"method", "rollout"} & set(load(command.recipe, overrides)) else SftConfig
    config = load_config(schema, command.recipe, overrides)
    streams.out.print(to_yaml(config).rstrip(), markup=False, soft_wrap=True)
    if isinstance(config, TrainConfig):
        streams.out.print("\n" + config.method.build().describe(), markup=False, soft_wrap=True)
        streams.out.print("\n" + reference_line(config), markup=False, soft_wrap=True)
        streams.out.print("\n" + world_line(config.world), markup=False, soft_wrap=True)
    return 0


def _eval(command: Eval, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.engines.evaluate import FRONTIER, cross_check, evaluate
    from sage_rlvr.evaluation.record import save_record
    from sage_rlvr.runs import writing
    from sage_rlvr.verbs import eval_lines, print_cross_check, target_of

    temperatures = sorted({*command.temperatures, *(FRONTIER if command.frontier else ())})
    if command.sample < 0 or (command.sample and 1.0 not in temperatures):
        raise ConfigError(
            f"--sample {command.sample}: draws that many completions at temperature 1, so it needs a number from 0 and 1.0 "
            f"among --temperatures (here {', '.join(map(str, temperatures))})"
        )
    target = target_of(command.what, command.world)
    stem = "evaluation" if target.run else target.name
    path = command.out or (target.run or RUNS / "evaluations") / f"{stem}-{command.split}.npz"
    with writing("record of an evaluation", path, 4 << 20):
        path.parent.mkdir(parents=True, exist_ok=True)
    record = evaluate(
        target,
        split=command.split,
        problems=command.problems,
        seed=command.seed,
        draw=command.draw,
        temperatures=temperatures,
    )
    for line in eval_lines(record, command.ks):
        streams.out.print(line, markup=False, soft_wrap=True)
    with writing("record of an evaluation", path, 4 << 20):
        save_record(record, path)
    streams.out.print(f"record: {path}", markup=False, soft_wrap=True)
    if not command.sample:
        return 0
    found = cross_check(target, record, n=command.sample, problems=40, max_new_tokens=32, seed=command.seed)
    print_cross_check(streams.out, found)
    return 0 if found["agree"] else 2


def _compare(command: Compare, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.report import summarise
    from sage_rlvr.verbs import compare_records, print_summary

    result, over_seeds = compare_records(command.arms, command.split, command.k)
    shown = summarise(result) if over_seeds is None else over_seeds
    print_summary(streams.out, shown)
    if command.out is not None:
        _write_pages(shown, command.out, streams)
    return 0


def _write_pages(shown: Summary | SeedSummary, folder: Path, streams: Streams) -> None:
    from sage_rlvr.report import Summary, write_report, write_seed_report
    from sage_rlvr.runs import writing

    with writing("report", folder, 8 << 20):
        paths = write_report(shown, folder) if isinstance(shown, Summary) else write_seed_report(shown, folder)
    streams.out.print(f"\npage     {paths.html}\npictures {folder}/*.png", markup=False, soft_wrap=True)


def _theory(command: Theory, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.anchor_lab import find, print_findings, write, write_docs

    if command.docs is not None and not (command.docs / "anchor.md").is_file():
        raise ConfigError(f"--docs {command.docs}: there is no anchor.md; name the repository's docs/")
    _check_lab(command)
    options = {"policy": command.policy, "problems": command.problems, "draws": command.draws}
    say = partial(streams.err.print, markup=False, soft_wrap=True)
    found = find(lab=command.lab, say=say, **(options if command.lab else {}))
    print_findings(found, streams.out)
    paths = write(found, command.out)
    if command.docs is not None:
        paths += write_docs(found, command.docs)
    streams.out.print("\nwritten: " + "  ".join(map(str, paths)), markup=False, soft_wrap=True)
    return 0 if found.as_expected else 2


def _check_lab(command: Theory) -> None:
    """What would otherwise be refused after the claims were computed."""
    changed = [
        f"--{name}"
        for name, default in (("policy", None), ("problems", 5), ("draws", 256))
        if getattr(command, name) != default
    ]
    if changed and not command.lab:
        raise ConfigError(
            f"{', '.join(changed)}: settings of the lab, and --no-lab leaves the lab out; drop one or the other"
        )
    if command.problems < 1 or command.draws < 0:
        raise ConfigError(
            f"--problems {command.problems} --draws {command.draws}: give at least 1 problem, and 0 draws or more"
        )
    if command.docs is not None and changed:
        raise ConfigError(
            f"--docs {command.docs} with {', '.join(changed)}: the pages show the lab as it is by default; leave one out"
        )
    if command.policy == "embedded":
        raise ConfigError(
            "--policy embedded: it is the lab's reference, from which every KL is 0; name a trained run, or leave it out"
        )
    if command.policy is not None:
        from sage_rlvr.engines.base import load_policy
        from sage_rlvr.verbs import target_of

        load_policy(target_of(command.policy, None).model)


def _doctor(command: Doctor, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.verbs import doctor

    return doctor(streams.out)


def _demo(command: Demo, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.demo import check_by_sampling, choose_arms, evaluate_all, plan, results, train_all
    from sage_rlvr.report import summarise, summarise_seeds
    from sage_rlvr.verbs import print_cross_check, print_summary

    edits = [word for name, value in overrides for word in (f"--{name}", value)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cores if command.workers is None else command.workers
    arms = choose_arms(command.arms)
    jobs = plan(command.out, command.seeds, arms, edits, problems=command.problems, workers=workers)
    streams.out.print(
        f"training {len(jobs)} runs of {jobs[0].config.steps} steps, {workers} at a time, in {command.out / 'runs'}"
    )
    clock = [time.monotonic()]
    train_all(jobs, workers, streams.out)
    clock.append(time.monotonic())
    base, trained = evaluate_all(command.out, jobs, command.problems, streams.out)
    checked = check_by_sampling(jobs, base)
    clock.append(time.monotonic())
    found = results(base, trained, command.seeds)
    shown = summarise(found[0]) if len(found) == 1 else summarise_seeds(found)
    print_summary(streams.out, shown)
    _write_pages(shown, command.out, streams)
    print_cross_check(streams.out, checked)
    parts = zip(
        ("training", "evaluation", "report"), (b - a for a, b in pairwise([*clock, time.monotonic()])), strict=True
    )
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts)
    streams.out.print(f"took: {took}, together {time.monotonic() - clock[0]:.0f} s", highlight=False)
    return 0
