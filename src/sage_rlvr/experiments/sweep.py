"""`sage-rlvr sweep MATRIX.yaml`: train, evaluate and sample every cell of a matrix, in processes, resumable at any point.

    OUT/matrix.json                    what was resolved: arms, controls that were added and why, state of every cell
    OUT/recipes/<arm>.yaml             the whole recipe of an arm, as its runs are given it
    OUT/runs/<arm>-s<seed>/            the training runs, with samples/ in them; runs/base/samples/ of the base
    OUT/evaluations/base.npz           exact evaluations: base and <arm>-s<seed>, with -<world> of others, -validation
    OUT/policy/                        the base policy, where the matrix makes its own
    OUT/summary.json, summary.md       numbers, sentences, and what was not run

The folder of a `sage-rlvr demo` is one of these: what is complete there, by configuration and weights, is not made again.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sage_rlvr.config import dump, to_yaml
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.evaluation.settings import store_place
from sage_rlvr.evaluation.store import SampleStore, is_store
from sage_rlvr.experiments.design import (
    KINDS,
    Arm,
    Matrix,
    exact_of,
    load_matrix,
    resolve,
    sft_config,
    world_named,
)
from sage_rlvr.experiments.jobs import Exact, Job, Task, as_read_back, run_tasks
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.policy import weights_hash
from sage_rlvr.progress import NEWEST, in_words, noted, seconds_left
from sage_rlvr.reading import ARRAYS, read_bytes, read_text
from sage_rlvr.recipes import find
from sage_rlvr.results import Results, words
from sage_rlvr.results.summary import choose
from sage_rlvr.results.tables import NOT_RUN
from sage_rlvr.runs import read_metrics, versions, write_bytes_atomic, write_json_atomic, write_text_atomic, writing
from sage_rlvr.stats.tempered import POWERS

VALIDATION = "validation"
ADOPTED = "adopted.json"  # in a run that was taken over: from where
LINE_SECONDS = 20.0


@dataclass(frozen=True, eq=False)
class Policy:
    """Something that is evaluated. name: of its records; what: how `sage-rlvr eval` names it; model: its weights."""

    name: str
    what: str
    model: str
    logs: Path


@dataclass(frozen=True, eq=False)
class Cell:
    """One arm with one training seed: its training and what follows. exact: suffix of the record -> task."""

    arm: Arm
    job: Job
    train: Task
    exact: Mapping[str, Task]
    samples: Task | None

    @property
    def tasks(self) -> list[Task]:
        """In order."""
        return [self.train, *self.exact.values(), *([self.samples] if self.samples else [])]


@dataclass(eq=False)
class Sweep:
    """A resolved matrix in its folder, and how far it is. over: tasks whose results are there; failures: why others failed."""

    matrix: Matrix
    source: Path
    out: Path
    arms: list[Arm]
    left_out: list[str]
    first: list[Task]
    base: dict[str, Task]
    base_samples: Task | None
    cells: list[Cell]
    over: set[Task] = field(default_factory=set)
    failures: dict[Task, str] = field(default_factory=dict)
    choice: dict[str, Any] | None = None
    workers: int = 1

    @property
    def tasks(self) -> list[Task]:
        """Everything, the base first, then the named arms seed by seed, then the controls that were added."""
        base = [*self.first, *self.base.values(), *([self.base_samples] if self.base_samples else [])]
        return [*base, *(task for cell in self.cells for task in self.wanted(cell))]

    def wanted(self, cell: Cell) -> list[Task]:
        """The cell's tasks as far as they are called for: an arm that may be chosen waits for the choice with its test."""
        choose = self.matrix.choose
        if choose is None or cell.arm.name not in choose.among:
            return [task for task in cell.tasks if task is not cell.exact.get(VALIDATION)]
        if self.choice is not None and self.choice["chosen"] == cell.arm.name:
            return cell.tasks
        return [cell.train, cell.exact[VALIDATION]]

    def status(self, cell: Cell) -> str:
        """In a word: evaluated, failed, trained, how many steps of how many, or not run."""
        wanted = self.wanted(cell)
        if any(task in self.failures for task in wanted):
            return "failed"
        if self.over.issuperset(wanted):
            return "evaluated" if cell.exact[""] in wanted else "validation only"
        done, steps = cell.job.done, cell.job.config.steps
        if cell.train in self.over or (done == steps and cell.train.done()):  # it may have ended since one last looked
            return "trained"
        return f"{done}/{steps}" if done else NOT_RUN


# ------------------------------------------------------------------------------------------------------------------
# the plan


def plan(
    source: Path,
    out: Path,
    matrix: Matrix | None = None,
    edits: Sequence[tuple[str, str]] = (),
    *,
    powers: Sequence[float] = POWERS,
) -> Sweep:
    """Everything that the matrix asks for, and what of it is there. Whatever can be refused is refused here: recipes, worlds,
    problems that a split does not hold, a folder with other runs under the same names. matrix: instead of what the file says;
    edits: of every arm's recipe, as on the command line; powers: at which the base is tempered over whole completions."""
    source = find(source, "matrices")
    matrix, folder = matrix or load_matrix(source), source.parent
    own = sft_config(matrix, source)
    policy = None if own is None else str((out / "policy").absolute())
    arms, left_out = resolve(matrix, source, policy, edits)
    _check_alike(arms, matrix.steps_differ)
    evaluations = _evaluations(matrix, folder, arms[0])
    for exact in evaluations.values():
        if max(exact.world.counts) < 5 or len(evaluations) == 1:  # drawing problems of five numbers takes long
            exact.ids  # noqa: B018  (raises where the world cannot give so many)
    first = [] if own is None or policy is None else [_sft_task(own[0], out, policy)]
    shared = _recipe_of(out, arms[0].name)
    tempered = replace(evaluations[""], powers=tuple(powers))  # the power frontier, a standing control
    base = Policy("base", arms[0].config.model, arms[0].config.model, out / "logs")
    sweep = Sweep(
        matrix=matrix,
        source=source,
        out=out,
        arms=arms,
        left_out=left_out,
        first=first,
        base=_exact_tasks(base, evaluations | {"": tempered}, out, tuple(first), shared),
        base_samples=_sample_task(base, matrix, out, tuple(first), shared, base.model),
        cells=[
            _cell(matrix, out, arm, seed, evaluations, tuple(first))
            for added in (False, True)
            for seed in matrix.seeds
            for arm in arms
            if bool(arm.why) is added
        ],
    )
    for cell in sweep.cells:
        cell.job.check_same_run()
    for _ in range(2):  # the second time what a choice calls for, where every candidate is validated
        _choose(sweep)
        sweep.over.update(task for task in sweep.tasks if task not in sweep.over and task.done())
    return sweep


def _check_alike(arms: Sequence[Arm], steps_differ: bool) -> None:
    """One base policy and one world for all arms, without which nothing could be paired; one length, unless it is asked for."""
    for name in ("model", "world"):
        values = {json.dumps(dump(arm.config)[name], default=str) for arm in arms}
        if len(values) > 1:
            raise ConfigError(
                f"the arms differ in {name}: {', '.join(sorted(values))}; one matrix has one, set it in `base`"
            )
    steps = {arm.config.steps for arm in arms}
    if len(steps) > 1 and not steps_differ:
        raise ConfigError(
            f"the arms differ in steps: {sorted(steps)}; one matrix has one number, set it in `base`, or say "
            "`steps_differ: true` where the length is what is compared"
        )


def _evaluations(matrix: Matrix, folder: Path, arm: Arm) -> dict[str, Exact]:
    """Suffix of the record -> evaluation; "" is the main one."""
    spec = matrix.evaluate
    found = {"": exact_of(spec, arm.config.world)}
    if matrix.choose is not None:
        found[VALIDATION] = replace(found[""], split="validation", problems=matrix.choose.problems)
    for name in spec.ood:
        world = world_named(name, folder)
        found[suffix_of(name)] = Exact(world, spec.ood_problems, spec.split, spec.draw, spec.ood_temperatures)
    return found


def suffix_of(world: str) -> str:
    """What the records of another world end with: its name, or the stem of its recipe."""
    return Path(world).stem if world.endswith((".yaml", ".yml")) else world


def _recipe_of(out: Path, name: str) -> Path:
    """The recipe of an arm, or of a world (`world-<suffix>`)."""
    return out / "recipes" / f"{name}.yaml"


def _sft_task(recipe: Path, out: Path, policy: str) -> Task:
    typed = ("sft", str(recipe), "--run", str(out / "sft"), "--out", policy, "--quiet")
    return Task("base policy", typed, out / "logs" / "sft.log", lambda: (Path(policy) / "config.json").exists())


def _cell(
    matrix: Matrix, out: Path, arm: Arm, seed: int, evaluations: Mapping[str, Exact], first: tuple[Task, ...]
) -> Cell:
    directory = out / "runs" / f"{arm.name}-s{seed}"
    job = Job(arm.label, _recipe_of(out, arm.name), seed, directory, arm.at(seed))
    train = job.task(after=first)
    policy = Policy(directory.name, str(directory), str(directory / "policy"), directory)
    exact = _exact_tasks(policy, evaluations, out, (train,), None)
    return Cell(arm, job, train, exact, _sample_task(policy, matrix, out, (train,), None, arm.config.model))


def _exact_tasks(
    policy: Policy, evaluations: Mapping[str, Exact], out: Path, after: tuple[Task, ...], world: Path | None
) -> dict[str, Task]:
    """world: the recipe that says the main world, for a policy that is no run."""
    found = {}
    for suffix, exact in evaluations.items():
        path = record_path(out, policy.name, suffix)
        typed = ["eval", policy.what, "--split", exact.split, "--problems", str(exact.problems), "--draw", exact.draw]
        typed += ["--temperatures", *map(str, exact.temperatures), "--out", str(path)]
        typed += ["--power-frontier"] * bool(exact.powers)
        other = world if suffix in ("", VALIDATION) else _recipe_of(out, f"world-{suffix}")
        typed += [] if other is None else ["--world", str(other)]
        label, done = f"{policy.name} {suffix or 'evaluation'}", partial(exact.is_kept, path, policy.model)
        found[suffix] = Task(label, tuple(typed), policy.logs / "evaluation.log", done, after=after)
    return found


def _sample_task(
    policy: Policy, matrix: Matrix, out: Path, after: tuple[Task, ...], world: Path | None, start: str
) -> Task | None:
    """start: the base policy, under which samples are scored too."""
    spec = matrix.evaluate.samples
    if spec is None:
        return None
    store = store_place(out / "runs" / policy.name / "samples", "countdown-untruncated")
    typed = ["eval", policy.what, "--samples", str(spec.n), "--problems", str(spec.problems)]
    typed += ["--split", matrix.evaluate.split, "--draw", matrix.evaluate.draw, "--generator", "sampler"]
    typed += ["--dtype", "float32", "--store", str(store), "--quiet"]
    typed += [] if world is None else ["--world", str(world)]
    typed += [] if spec.guide is None else ["--guide", spec.guide]
    typed += ["--score-base", start] if spec.score_base else []
    done = partial(_is_sampled, store, spec.problems, spec.n, policy.model)
    return Task(f"{policy.name} samples", tuple(typed), policy.logs / "samples.log", done, after=after)


def _is_sampled(store: Path, problems: int, n: int, model: str) -> bool:
    """Whether the store has n samples of so many problems, drawn from these weights."""
    if not is_store(store) or not (model == EMBEDDED or (Path(model) / "config.json").exists()):
        return False
    with SampleStore.open(store) as opened:
        counts = opened.counts(check=False)
        same = sha256(weights_hash(model).encode()).hexdigest() == opened.identity.revision
    return same and int((counts.n >= n).sum()) >= problems


# ------------------------------------------------------------------------------------------------------------------
# the work


def run(sweep: Sweep, workers: int, console: Console) -> bool:
    """Make what is missing, `workers` processes of one thread at a time; True where nothing failed. A failure is printed and
    the rest goes on; Ctrl-C lets every training run save, and writes down how far everything is."""
    sweep.workers = workers
    _write_recipes(sweep)
    for said in _replaced(sweep):
        console.print(said, soft_wrap=True)
    for cell, found in adoptable(sweep):
        console.print(f"taken over: {found} for {cell.job.label}", soft_wrap=True)
        _take_records(found, cell, sweep)  # before the run, which alone says that something was taken over
        _take_over(found, cell.job.directory)
        sweep.over.add(cell.train)
        sweep.over.update(task for task in cell.exact.values() if task.done())
    note(sweep)

    def failed(task: Task, problem: str) -> None:
        sweep.failures[task] = problem
        console.print(f"FAILED: {problem}", soft_wrap=True)
        note(sweep)

    try:
        with _display(sweep, console) as show:
            run_tasks(sweep.tasks, workers, show, failed, sweep.over)
            _choose(sweep)
            if sweep.choice is not None and sweep.choice["chosen"]:  # its test, which waited for the choice
                run_tasks(sweep.tasks, workers, show, failed, sweep.over)
    finally:
        note(sweep)
    return not sweep.failures


def adoptable(sweep: Sweep) -> list[tuple[Cell, Path]]:
    """Cells that have not begun, and a finished run of the same configuration and weights in a folder of `adopt`.

    ConfigError where it is a link, or holds one: what is taken over lies in that folder.
    """
    out = []
    for cell in sweep.cells:
        if not (cell.job.directory / "run.json").exists():
            beside = (sweep.out.absolute().parent / name / "runs" for name in sweep.matrix.adopt)
            runs = (run for folder in beside for run in sorted(folder.glob(f"*-s{cell.job.seed}")))
            found = next((run for run in runs if _is_of(cell.job, run)), None)
            if found is not None and (link := next(filter(Path.is_symlink, _parts(found)), None)) is not None:
                raise ConfigError(f"{link}: a link, where a run is to be taken over (adopt); copy what it names to that place")
            out += [] if found is None else [(cell, found)]
    return out


def _parts(run: Path) -> list[Path]:
    """What a run consists of for who takes it over, and the folders above it."""
    policy = run / "policy"
    return [run.parents[1], run.parent, run, run / "run.json", run / "metrics.jsonl", policy, *policy.rglob("*")]


def _is_of(job: Job, run: Path) -> bool:
    try:
        return replace(job, directory=run).finished
    except ConfigError:  # no run.json, or a damaged one
        return False


def _take_over(found: Path, place: Path) -> None:
    """A copy without checkpoints and evaluations, there whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial_copy = place.with_name(f".tmp-{place.name}")
    shutil.rmtree(partial_copy, ignore_errors=True)
    with writing("run taken over", place, 8 << 20):
        (partial_copy / "policy").mkdir(parents=True)
        for file in ("run.json", "metrics.jsonl"):
            shutil.copyfile(found / file, partial_copy / file)
        shutil.copytree(found / "policy", partial_copy / "policy", dirs_exist_ok=True)
        write_json_atomic(partial_copy / ADOPTED, {"from": str(found)})
        partial_copy.rename(place)


def _take_records(found: Path, cell: Cell, sweep: Sweep) -> None:
    """Copies of the exact evaluations beside a finished run, as far as they are called for. Of other problems, temperatures or
    weights they count as missing, and the evaluation writes over them."""
    for suffix, task in cell.exact.items():
        theirs, ours = (record_path(run.parent.parent, run.name, suffix) for run in (found, cell.job.directory))
        if task in sweep.wanted(cell) and theirs.is_file() and not theirs.is_symlink() and not ours.exists():
            with writing("evaluation taken over", ours, theirs.stat().st_size):
                write_bytes_atomic(ours, read_bytes(theirs, ARRAYS))


def _replaced(sweep: Sweep) -> list[str]:
    """What is said where evaluations lie in the folder that are not those called for, and are made anew."""
    asked = [task for task in sweep.tasks if task not in sweep.over and "--out" in task.words]
    files = [Path(task.words[task.words.index("--out") + 1]) for task in asked]
    names = [file.name for file in files if file.is_file()]
    if not names:
        return []
    shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    return [
        f"REPLACES {len(names)} evaluations in {sweep.out / 'evaluations'} ({shown}), damaged or made of other problems, "
        "temperatures or weights than this matrix asks for, and the summary of them; give --out ANOTHER_FOLDER to keep them"
    ]


def _choose(sweep: Sweep) -> None:
    """Settle which arm was chosen, where the matrix chooses and every candidate is validated."""
    spec = sweep.matrix.choose
    if spec is None:
        return
    sweep.choice = {"by": spec.by, "problems": spec.problems, "among": list(spec.among), "chosen": None, "scores": {}}
    cells = [cell.exact[VALIDATION] for cell in sweep.cells if cell.arm.name in spec.among]
    if not sweep.over.issuperset([*cells, sweep.base[VALIDATION]]):
        return
    note(sweep)
    scores = choose(Results.read(sweep.out, split=VALIDATION), spec.among, spec.by)
    sweep.choice["scores"] = {name: score if math.isfinite(score) else None for name, score in scores.items()}
    sweep.choice["chosen"] = max(scores, key=lambda name: scores[name])


def _write_recipes(sweep: Sweep) -> None:
    with writing("sweep", sweep.out, 1 << 20):
        (sweep.out / "recipes").mkdir(parents=True, exist_ok=True)
        (sweep.out / "evaluations").mkdir(exist_ok=True)
        texts = {arm.name: to_yaml(arm.config) for arm in sweep.arms}
        for name in sweep.matrix.evaluate.ood:
            world = to_yaml(world_named(name, sweep.source.parent)).replace("\n", "\n  ").rstrip()
            # a recipe that is never run: `eval --world` reads the world alone
            texts[f"world-{suffix_of(name)}"] = f"steps: 1\nworld:\n  {world}\n"
        for name, text in texts.items():
            path = _recipe_of(sweep.out, name)
            if not path.exists() or read_text(path) != text:
                write_text_atomic(path, text)


def note(sweep: Sweep) -> None:
    """matrix.json: what was resolved, and the state of every cell."""
    matrix, steps = sweep.matrix, sorted({arm.config.steps for arm in sweep.arms})
    evaluate = dump(matrix.evaluate) | {"ood": [suffix_of(name) for name in matrix.evaluate.ood]}
    facts = {
        "schema": 1,
        "tier": matrix.tier,
        "notes": matrix.notes,
        "matrix": sweep.source.name,
        "control": matrix.control,
        "seeds": list(matrix.seeds),
        "steps": steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}",
        "world": world_words(sweep),
        "evaluate": evaluate,
        "base_evaluated": [suffix for suffix, task in sweep.base.items() if task in sweep.over],
        "base_model": "embedded" if matrix.policy is None else f"policy/, by {matrix.policy}",
        "arms": [_arm_facts(arm) for arm in sweep.arms],
        **{name: dump(matrix)[name] for name in ("questions", "envelopes", "ceiling")},
        "left_out": sweep.left_out,
        "choice": sweep.choice,
        "cells": [_cell_facts(sweep, cell) for cell in sweep.cells],
        "versions": versions(),
    }
    with writing("sweep", sweep.out, 0):
        write_json_atomic(sweep.out / "matrix.json", as_read_back(facts))


def _arm_facts(arm: Arm) -> dict[str, Any]:
    links = {name: getattr(arm, name) for name in ("label", "recipe", "why", "guided", "plain", "placebo", "no_kl")}
    equation = arm.config.method.describe()
    return {"name": arm.name, **links, "matched": list(arm.matched), "equation": equation, "config": dump(arm.config)}


def _cell_facts(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    status, job = sweep.status(cell), cell.job
    failures = [sweep.failures[task] for task in cell.tasks if task in sweep.failures]
    return {
        "arm": cell.arm.name,
        "seed": job.seed,
        "run": f"runs/{job.directory.name}",
        "status": status,
        "complete": status in ("evaluated", "validation only"),
        "steps": job.done,
        "evaluated": [suffix for suffix, task in cell.exact.items() if task in sweep.over],
        "sampled": cell.samples in sweep.over,
        "adopted": (job.directory / ADOPTED).exists(),
        "failure": failures[0] if failures else None,
    }


def world_words(sweep: Sweep) -> str:
    """The world that all arms are trained in, in a line."""
    world = sweep.arms[0].config.world
    return f"{words.world_words(asdict(world))}, drawn by {world.targets}"


# ------------------------------------------------------------------------------------------------------------------
# what is shown


def table(sweep: Sweep) -> rich.table.Table:
    """Arm x seed, the state of every cell."""
    seeds = sweep.matrix.seeds
    shown = rich.table.Table("arm", *(f"s{seed}" for seed in seeds), box=None, pad_edge=False, title=sweep.matrix.tier)
    status = {(cell.arm.name, cell.job.seed): sweep.status(cell) for cell in sweep.cells}
    for arm in sweep.arms:
        shown.add_row(arm.label + (" +" if arm.why else ""), *(status[arm.name, seed] for seed in seeds))
    return shown


@contextmanager
def _display(sweep: Sweep, console: Console) -> Iterator[Callable[[], None]]:
    """The table, live in a terminal; a line every 20 seconds elsewhere. matrix.json follows what has ended."""
    every = 5 if console.is_terminal else LINE_SECONDS
    last, seen = [time.monotonic()], [len(sweep.over)]

    def show() -> None:
        if len(sweep.over) != seen[0]:
            seen[0] = len(sweep.over)
            note(sweep)
        if time.monotonic() - last[0] >= every:
            last[0] = time.monotonic()
            said = Text(line(sweep) + running_words(sweep))
            console.print(said, soft_wrap=True) if live is None else live.update(
                Group(table(sweep), said), refresh=True
            )

    live = Live(table(sweep), console=console, auto_refresh=False) if console.is_terminal else None
    if live is None:
        yield show
        return
    with live:
        yield show
        live.update(table(sweep), refresh=True)


def line(sweep: Sweep, taken: Collection[Cell] = ()) -> str:
    """How far the sweep is, in one line; `taken`: cells whose training is about to be taken over, and counts as done."""
    total = sum(cell.job.config.steps for cell in sweep.cells)
    done = sum(cell.job.config.steps if cell in taken else cell.job.done for cell in sweep.cells)
    whole = sum(sweep.status(cell) in ("evaluated", "validation only") for cell in sweep.cells)
    failed = f", {len(sweep.failures)} failed" if sweep.failures else ""
    return (
        f"sweep: {done}/{total} steps, {whole} of {len(sweep.cells)} cells complete{failed}, {left_words(sweep, taken)}"
    )


def left_words(sweep: Sweep, taken: Collection[Cell] = ()) -> str:
    """Time left on `sweep.workers` processes, by the newest steps of each run and by the base's evaluation; nothing is guessed."""
    rows = {cell: read_metrics(cell.job.directory)[-NEWEST:] if cell.job.done else [] for cell in sweep.cells}
    runs = {c: (0 if c in taken else c.job.config.steps - c.job.done, newest) for c, newest in rows.items()}
    training = seconds_left(runs, sweep.workers) if any(steps for steps, _ in runs.values()) else 0.0
    if training is None:
        return "time left is known after the first steps, evaluation not counted"
    evaluations = sum(task not in sweep.over for cell in sweep.cells for task in cell.exact.values())
    base = record_path(sweep.out, "base")
    if evaluations and not base.is_file():
        return in_words(training) + ", evaluation not counted" if training else "no training left"
    each = float(load_record(base).meta["seconds"]) if evaluations else 0.0
    seconds = training + evaluations * each / sweep.workers
    return in_words(seconds) if seconds else "nothing left to do"


def running_words(sweep: Sweep) -> str:
    """What the newest step of each unfinished run says: reward, KL, q."""
    half = [cell.job for cell in sweep.cells if 0 < cell.job.done < cell.job.config.steps]
    return "".join(
        f"\n  {job.label} {job.done}/{job.config.steps}  {noted(read_metrics(job.directory)[-1])}" for job in half
    )


def _tells_apart(line: str) -> bool:
    """Whether a line of `Method.describe` is one in which arms differ: the objective, q, and what the KL term descends."""
    return line.startswith(("  (1/", "  q_t", "  expected gradient of the KL term"))


def dry_lines(sweep: Sweep) -> list[str]:
    """What the matrix means: arms with their objectives, controls that were added and why, what is there and what is left."""
    lines = [f"{sweep.matrix.tier}: {len(sweep.cells)} runs in {sweep.out}, {world_words(sweep)}"]
    for arm in sweep.arms:
        lines.append(f"  {arm.label} ({arm.name}): " + (f"ADDED, {arm.why}" if arm.why else arm.recipe))
        lines += [f"    {text.strip()}" for text in arm.config.method.describe().splitlines() if _tells_apart(text)]
    lines += [f"  {said}" for said in sweep.left_out]
    lines += ["  ADDED: the base at every temperature of the evaluation, and tempered over whole completions"]
    if any(arm.why for arm in sweep.arms):
        lines.append(
            f"  to decline ADDED arms: `controls: none` in {sweep.source}, or a list of the wanted kinds, such as "
            f"`controls: [{', '.join(KINDS[:2])}]` (of {', '.join(KINDS)})"
        )
    lines += [f"  {said}" for said in _replaced(sweep)]
    taken = adoptable(sweep)
    lines += [f"  taken over: {found} for {cell.job.label}" for cell, found in taken]
    return [*lines, line(sweep, [cell for cell, _ in taken])]
