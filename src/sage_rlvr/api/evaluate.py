"""`evaluate`: evaluate a policy on the problems of a task, exactly or by samples."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.api.printed import setting_line
from sage_rlvr.api.tables import Rows, html_table, number
from sage_rlvr.api.train import RUNS, Run, to_stderr
from sage_rlvr.config import task_named, world_of
from sage_rlvr.config.tasks import recipe_of
from sage_rlvr.errors import ConfigError, choose_from, suggest
from sage_rlvr.evaluation.chance import chance_of_record, chance_of_store
from sage_rlvr.evaluation.forms import Forms, forms_of
from sage_rlvr.evaluation.gate import Gate, GatePoint, ks_of
from sage_rlvr.evaluation.record import save_record
from sage_rlvr.evaluation.sample_report import common_n, report_lines
from sage_rlvr.evaluation.settings import EvalSettings, GateSettings, SampleSettings, slug
from sage_rlvr.evaluation.store import SampleStore, is_store
from sage_rlvr.extras import explained
from sage_rlvr.models.folders import NAMED
from sage_rlvr.progress import PlainConsole, counting, quiet_libraries
from sage_rlvr.recipes import shipped
from sage_rlvr.registry import names_of
from sage_rlvr.runs import is_run, read_record, writing
from sage_rlvr.runs.interrupts import ended_like_ctrl_c
from sage_rlvr.tasks import described, with_worlds
from sage_rlvr.tasks.abilities import Generated
from sage_rlvr.tasks.jsonl import RewardTask
from sage_rlvr.tasks.math import MathTask
from sage_rlvr.tasks.rows import SUFFIXES
from sage_rlvr.tasks.unanswered import read_at
from sage_rlvr.verdicts.chance import BELOW, UNKNOWN, Chance
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.stats.intervals import Interval, passk_interval, share_interval
from sage_rlvr.verdicts.stats.passk import curve, powers
from sage_rlvr.verdicts.stats.samples.diversity import pcmd_interval
from sage_rlvr.verdicts.stats.support import exact_pcmd, reachable, success_probability
from sage_rlvr.verdicts.stats.tempered import POWERS, tempered
from sage_rlvr.verdicts.summary_io import plain

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from sage_rlvr.evaluation.evaluate import Target  # torch
    from sage_rlvr.evaluation.kl import TokenKl
    from sage_rlvr.evaluation.sample_run import SampleRun  # torch
    from sage_rlvr.evaluation.sampling import EvalSet
    from sage_rlvr.tasks.base import Task

Say = Callable[[str], None]


@dataclass(frozen=True, repr=False)
class Evaluation(Rows):
    """The result of `evaluate`; `compare` and `report` accept it instead of a path.

    Attributes:
        path: The record (.npz) of an exact evaluation, or the sample store.
        lines: The output of the command.
        rows: One dict for each temperature (or power over full completions) and k: pass@k with its 95 %
            interval, and the chance floor if it is known.
        record: The exact record; None for an evaluation by samples.
        cross_check: The comparison of `cross_check` completions per problem with the exact numbers; None without completions.
        stores: The sample stores, one for each temperature; `path` is the first. Empty for an exact evaluation.
        policy: The name of a sampled policy.
        gate: The verdict on support and room, with `gate=True`.
        kl: The exact KL to another policy, with `kl_to`.
        forms: The forms of the answers, for samples of a task with forms.
        each: The evaluation of each store, if there are several.
    """

    path: Path
    lines: Sequence[str]
    rows: list[dict[str, Any]]
    record: Record | None = None
    cross_check: Mapping[str, float] | None = None
    stores: tuple[Path, ...] = ()
    policy: str = ""
    gate: Gate | None = None
    kl: TokenKl | None = None
    forms: Forms | None = None
    each: tuple[Evaluation, ...] = ()

    def __fspath__(self) -> str:
        return str(self.path)

    def tree(self) -> dict[str, Any]:
        """Return the output of `eval --json`: strict JSON, null for infinite ends of an interval."""
        kl = None if self.kl is None else {"about": self.kl.about, "rows": self.kl.rows()}
        gate = None if self.gate is None else self.gate.tree()
        paths = self.stores or (self.path,)
        made = {"format": 1, "paths": paths, "rows": self.rows, "gate": gate, "kl": kl, "cross_check": self.cross_check}
        made |= {} if self.forms is None else {"forms": self.forms.tree()}
        return dict(plain(made)) | ({"each": [one.tree() for one in self.each]} if self.each else {})

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        header = list(dict.fromkeys(name for row in self.rows for name in row))
        return html_table(header, [[number(row.get(name, "")) for name in header] for row in self.rows])


@explained
def evaluate(policy: str | Path | Run = "embedded", *, quiet: bool = False, say: Say | None = None, **options: Any) -> Evaluation:
    """Evaluate a policy, as `sage-rlvr eval` does: exactly, or with `samples` by samples.

        evaluate("runs/maxrl")                                        exact pass@k on 300 test problems
        evaluate("runs/maxrl", frontier=True)                         at fifteen temperatures
        evaluate("my/model", task="gsm8k", samples=8, problems=100)   by samples, in a store that continues
        evaluate("my/model", task="rows.jsonl", samples=64, temperatures=(1, 0.4, 0.1))   in one store for each temperature
        evaluate("my/model", task="gsm8k", samples=64, gate=True)     and is it above chance, with room to learn?

    Args:
        policy: A run (its directory, or what `train` returned), a model or adapter folder, a Hub id, "embedded", the shipped base
            policy, or "smollm2" or "smollm2-countdown"; with `gate=True` also a sample store.
        quiet: No progress.
        say: Receives messages meanwhile; by default they go to stderr.
        **options: The options of `sage-rlvr eval` with underscores: task, world, split, problems, seed, sampling; temperatures,
            frontier, power_tempering, ks, cross_check, out; samples, store, preset, temperature, gate, kl_to and so on, see
            `evaluation.settings.EvalSettings`.

    Returns:
        The `Evaluation`: rows with intervals, and the record or store on disk.

    Raises:
        ConfigError: For an unknown option, or options that cannot be combined.
        DataError: For problems or files that cannot be used.
    """
    known = [f.name for f in fields(EvalSettings)]
    for name in options:
        if name not in known:
            raise ConfigError(f"evaluate: unknown option {name!r}{choose_from(name, known)}")
    paths = {name: Path(options[name]) for name in ("out", "store", "retry_failures_of") if options.get(name) is not None}
    given = options.get("chat_template_kwargs")
    chat = {"chat_template_kwargs": json.dumps(given)} if isinstance(given, Mapping) else {}
    return evaluation_of(fspath(policy), EvalSettings(**options | paths | chat), quiet=quiet, say=say or to_stderr)


def evaluation_of(what: str, settings: EvalSettings, *, quiet: bool, say: Say) -> Evaluation:
    """Evaluate and store the result. what: see `evaluate`."""
    quiet_libraries()
    if is_store(what):
        return _of_store(Path(what), settings)
    _refuse_recipe(what)
    _say_default_task(what, settings, say)
    if not settings.by_samples():
        return _exactly(what, settings, quiet)
    evaluations = [_by_samples(what, one, quiet, say) for one in settings.by_store()]
    if len(evaluations) == 1:
        return evaluations[0]
    stores, policy = tuple(one.path for one in evaluations), evaluations[0].policy
    lines = [line for one in evaluations for line in one.lines]
    if len(settings.shares) > 1:
        arms = [f"x{a:g}={','.join(map(str, some))}" for a, some in zip(settings.shares, _parts(stores, settings), strict=True)]
        lines.append(f"all shares side by side: {suggest('compare', *arms)}")
    else:
        together = suggest("compare", f"base={','.join(map(str, stores))}", "NAME=STORE")
        lines.append(f"all temperatures beside another policy's store: {together}")
    rows = [row for one in evaluations for row in one.rows]
    return Evaluation(stores[0], lines, rows, stores=stores, policy=policy, each=tuple(evaluations))


def _parts(stores: Sequence[Path], settings: EvalSettings) -> list[Sequence[Path]]:
    """The stores of each share, ordered by temperature."""
    many = len(settings.temperatures)
    return [stores[first : first + many] for first in range(0, len(stores), many)]


def _refuse_recipe(what: str) -> None:
    """Raise ConfigError if a recipe or a method is given instead of a policy."""
    path, name = Path(what), what.removesuffix(".yaml").removesuffix(".yml")
    method = name in names_of("method")
    if path.is_dir() or not (name != what or method or name in shipped()):
        return
    kind = "method" if method and name == what else "recipe"
    run = RUNS / f"{Path(name).name}-s0"
    raise ConfigError(
        f"{what}: that is a {kind}; evaluate its run: {suggest('eval', run)}, or first train it: {suggest('train', what)}"
    )


def _say_default_task(what: str, settings: EvalSettings, say: Say) -> None:
    """Report the default task of a model that was not trained by a run of this package, if none is named. Raise ConfigError for the
    policy folder of a run, whose task would not be the run's."""
    if what in NAMED or settings.task is not None or settings.world is not None or is_run(Path(what)):
        return
    if is_run(run := Path(what).parent):
        raise ConfigError(
            f"{what} is the policy of the run {run}, and a policy has no task: evaluate the run with "
            f"{suggest('eval', run)}, or pass --task"
        )
    how = f"{settings.samples} samples per problem" if settings.by_samples() else "exact evaluation"
    say(
        f"{what} is a model, not a run, so it has no task of its own: {how} on Countdown, asked in plain text without a chat "
        "template. For your task pass --task NAME, --task FILE.jsonl or --task RECIPE.yaml"
    )


# ---- the gate


def _of_store(path: Path, settings: EvalSettings) -> Evaluation:
    """The gate on a sample store, without its policy or task. Raises ConfigError for any other option."""
    read = {"samples", *(f.name for f in fields(GateSettings))}
    given = [f.name for f in fields(settings) if f.name not in read and getattr(settings, f.name) != f.default]
    if given or not settings.gate:
        options = ", ".join("--" + name.replace("_", "-") for name in given) or "no option"
        raise ConfigError(
            f"{path}: a sample store with {options}; for a store, eval takes --gate, its settings and --samples. To print the "
            f"report of the store: {suggest('samples', path)}; to add samples, evaluate its policy"
        )
    settings.check_gate(one_law=True)
    with SampleStore.open(path) as store:
        gate = _gate_of_store(settings, store)
        known, rows = store.identity, store_rows(store, settings.samples or None)
    sizes = f"{rows[0]['n']} samples of {rows[0]['problems']} problems"
    head = f"{known.model} on {known.task} at T {known.decoding['temperature']:g}, {sizes}"
    return Evaluation(path, [head, *gate.lines(), f"store: {path}"], rows, stores=(path,), policy=known.model, gate=gate)


def _gate_of_store(settings: EvalSettings, store: SampleStore) -> Gate:
    n = settings.samples or common_n(store)
    counts = store.counts(n)
    chance = chance_of_store(store.facts(), counts.problems)
    return _gate(settings, store.identity.task, n, lambda ks: [passk_interval(n, counts.right, k) for k in ks], chance)


def _gate_of_record(settings: EvalSettings, record: Record) -> Gate:
    (logps,) = record.logps.values()
    p, task = success_probability(logps), str(record.meta["world"]["name"])
    return _gate(settings, task, max((*settings.ks, *settings.gate_ks)), lambda ks: _intervals(p, ks), chance_of_record(record))


def _gate(
    settings: EvalSettings, task: str, largest: int, intervals: Callable[[Sequence[int]], list[Interval]], chance: Chance | None
) -> Gate:
    """The verdict at the ks. largest: the largest available k."""
    if chance is None:
        raise ConfigError(
            f"--gate: no chance floor is known for {task}, so support cannot be judged; give the task choices(problem), how many "
            "answers a guess has for each right one, or golds(problems) (docs/extending.md), and sample into a new store"
        )
    ks = ks_of(settings.gate_ks, largest)
    if ks[-1] > largest:
        raise ConfigError(f"--gate-ks {ks[-1]}: there are {largest} samples of each problem; add samples, or omit this k")
    points = tuple(GatePoint(k=k, passed=interval, chance=chance.at(k)) for k, interval in zip(ks, intervals(ks), strict=True))
    return Gate(points=points, much=settings.gate_much, little=settings.gate_little, wanted=settings.gate_room)


# ---- exact


def _exactly(what: str, settings: EvalSettings, quiet: bool) -> Evaluation:
    from sage_rlvr.evaluation.evaluate import FRONTIER, cross_check, evaluate  # torch

    temperatures = _temperatures(settings, FRONTIER)
    target = target_of(what, settings.world, settings.task)
    target.check_listed()
    stem = "evaluation" if target.run else target.name
    stem += "" if target.task is None or target.named is None else f"-{target.task.name}"
    if world := settings.world or (settings.task or "").partition(":")[2]:  # each world has a separate record
        stem += f"-{Path(world).stem}"
    path = settings.out or (target.run or RUNS / "evaluations") / f"{stem}-{settings.split}.npz"
    with writing("record of an evaluation", path, 4 << 20):  # before the work: an error for a folder that cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
    powers = POWERS if settings.power_tempering else ()
    problems = 300 if settings.problems is None else settings.problems
    console = PlainConsole(file=io.StringIO()) if quiet else PlainConsole(stderr=True)
    with counting(console, target.name, problems * (1 + bool(powers))) as advance:
        record = evaluate(
            target,
            split=settings.split,
            problems=problems,
            seed=settings.seed,
            sampling=settings.sampling,
            temperatures=temperatures,
            powers=powers,
            progress=advance,
        )
    lines = eval_lines(record, settings.ks)
    if isinstance(target.evaluated_task, Generated):
        lines.append(_problems_line(settings, target.evaluated_task))
    with writing("record of an evaluation", path, 4 << 20):
        save_record(record, path)
    gate = _gate_of_record(settings, record) if settings.gate else None
    lines += gate.lines() if gate else []
    lines.append(f"record: {path}")
    checked = None
    if settings.cross_check:
        checked = cross_check(target, record, n=settings.cross_check, problems=40, seed=settings.seed)
    return Evaluation(path, lines, eval_rows(record, settings.ks), record, checked, gate=gate)


def _temperatures(settings: EvalSettings, frontier: Sequence[float]) -> list[float]:
    """All temperatures to evaluate. Raises ConfigError if a cross-check or powers need temperature 1 and it is missing."""
    temperatures = sorted({*settings.temperatures, *(frontier if settings.frontier else ())})
    there = ", ".join(map(str, temperatures))
    if settings.cross_check < 0 or (settings.cross_check and 1.0 not in temperatures):
        raise ConfigError(
            f"--cross-check {settings.cross_check}: samples this many completions at temperature 1, so it needs a number >= 0 and "
            f"1.0 among --temperatures (here {there})"
        )
    if settings.power_tempering and 1.0 not in temperatures:
        raise ConfigError(
            f"--power-tempering: tempers the policy at temperature 1; include 1.0 in --temperatures (here {there})"
        )
    return temperatures


def eval_rows(record: Record, ks: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each temperature and k, then for each power over full completions with a known normalizer and k."""
    rows, chance = [], chance_of_record(record)
    for t in sorted(record.logps, reverse=True):
        distinct = sum(reachable(record.logps[t], 256)) / len(record.logps[t])
        many = {"distinct_right_in_256": distinct, "pcmd": _pcmd(record.logps[t])}
        for k, interval in zip(ks, _intervals(success_probability(record.logps[t]), ks), strict=True):
            floor = _chance_columns(chance, k, interval.value)
            rows.append({"temperature": t, "k": k, **_plain(interval), **floor, **many})
    for one in tempered(record.logps[1.0], record.norms) if record.norms else ():
        for k, interval in zip(ks, _intervals(one.p, ks), strict=True) if one.known else ():
            floor = _chance_columns(chance, k, interval.value)
            rows.append({"power": one.power, "k": k, **_plain(interval), **floor, "distinct_right_in_256": one.distinct(256)})
    return rows


def _pcmd(logps: Sequence[ArrayLike]) -> float | None:
    """Chance that two right samples of a problem differ, mean over the problems with a right completion; None without any."""
    interval = pcmd_interval(exact_pcmd(logps))
    return float(interval.value) if interval.n else None


def _plain(interval: Interval) -> dict[str, float]:
    return {"pass": float(interval.value), "low": float(interval.low), "high": float(interval.high)}


def _chance_columns(chance: Chance | None, k: int, value: float, high: float | None = None) -> dict[str, Any]:
    """Chance in a row; {} without a known floor. high: see `Chance.below`."""
    return {} if chance is None else {"chance": chance.at(k), "below_chance": chance.below(k, value, high)}


def _intervals(p: ArrayLike, ks: Sequence[int]) -> list[Interval]:
    return [share_interval(column) for column in curve(p, list(ks)).T]


def eval_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """Tables in text, 95 % intervals over problems: one line per temperature, then one per power over full completions, with the
    bound from the normalizer; last the chance floor."""
    meta, chance, head = record.meta, chance_of_record(record), "".join(f"pass@{k:<18}" for k in ks)
    lines = [
        f"{meta['name']}: {setting_line(record)}, 95 % intervals over problems",
        f"  T      {head}distinct right in 256  PCMD",
    ]
    for t in sorted(record.logps, reverse=True):
        rows = record.logps[t]
        distinct = sum(reachable(rows, 256)) / len(rows)
        differ = "" if (pcmd := _pcmd(rows)) is None else f"{pcmd:.3f}"
        lines.append(f"  {t:<6g} {_cells(success_probability(rows), ks, chance)}{distinct:<23.1f}{differ}".rstrip())
    if record.norms:
        lines += [
            f"{meta['name']} tempered over whole completions, pi(y)^power normalized per problem; +-: bound of the normalizer",
            f"  power  {head}+- pass@1  distinct right in 256",
        ]
    for one in tempered(record.logps[1.0], record.norms) if record.norms else ():
        bound, open_ = f"{one.bound.mean():<9.1g}", f"not available: {one.bound.mean():.1g} open"
        cells = f"{_cells(one.p, ks, chance)}{bound}  {one.distinct(256):.1f}" if one.known else open_
        lines.append(f"  {one.power:<6g} {cells}")
    return [*lines, *_chance_lines(chance, ks, any(MARK in line for line in lines))]


MARK = "]*"


def _chance_lines(chance: Chance | None, ks: Sequence[int], marked: bool) -> list[str]:
    """The chance floor at the ks, and a description of the guesser."""
    if chance is None:
        return [f"  {UNKNOWN}"]
    row = "".join(f"{chance.at(k):<23.3f}" for k in ks).rstrip()
    return [f"  chance {row}", f"  chance: {chance.words}{f'; * {BELOW}' * marked}"]


def _cells(p: ArrayLike, ks: Sequence[int], chance: Chance | None) -> str:
    def cell(k: int, c: Interval) -> str:
        return f"{c.value:.3f} [{c.low:.3f}, {c.high:.3f}{MARK if chance and chance.below(k, c.value) else ']'}"

    return "".join(f"{cell(k, c):<23}" for k, c in zip(ks, _intervals(p, ks), strict=True))


def _problems_line(settings: EvalSettings, task: Task) -> str:
    """A line on the problems, for a task that draws them."""
    law = described(task.identity, task)
    if settings.split == "train":
        return f"problems: {law}; the first of its training problems"
    return f"problems: {law}; split {settings.split}, sampling {settings.sampling}, seed {settings.seed}"


# ---- by samples


def _by_samples(what: str, settings: EvalSettings, quiet: bool, say: Say) -> Evaluation:
    from sage_rlvr.evaluation.guidance import guidance_line  # torch
    from sage_rlvr.evaluation.ranking import best_line, rank_line  # torch
    from sage_rlvr.evaluation.sampled_run import problems_to_sample, sample_into_store, verify_again  # torch

    run = _made_of_two(_sample_run(what, settings, say), settings)
    lines = [] if isinstance(run.model, str) else [f"policy     {run.policy}"]
    if settings.rejudge:
        store, task, judged = verify_again(run)
        lines.append(f"{judged:,} samples judged again; the older verdicts remain in {store.path}")
    else:
        console = PlainConsole(file=io.StringIO()) if quiet else PlainConsole(stderr=True)
        with ended_like_ctrl_c():
            task = problems_to_sample(run)
            store = sample_into_store(run, task, partial(counting, console, run.policy), say, progress=console.print)
    n = settings.samples or None
    lines += report_lines(store, n, location=read_at(task.task), judge=task.judge_at, brief=True, task=task.task)
    if isinstance(task.task, Generated):
        lines.append(_problems_line(settings, task.task))
    if settings.effective_rank:
        lines.append(rank_line(run, store, task))
    if settings.retry_failures_of is not None:
        lines.append(guidance_line(store.path))
    if settings.rerank_with is not None:
        lines.append(best_line(run, store, task, settings.rerank_with))
    kl = None if settings.kl_to is None else _kl(settings, run, store, task, quiet, say)
    lines += kl.lines() if kl else []
    gate = _gate_of_store(settings, store) if settings.gate else None
    lines += gate.lines() if gate else []
    lines.append(f"store: {store.path}")
    path, rows, forms = Path(store.path), store_rows(store, n), forms_of(store, n or common_n(store), task.task)
    rows = [{"share": share} | row for share in settings.shares for row in rows] or rows
    return Evaluation(path, lines, rows, stores=(path,), policy=run.policy, gate=gate, kl=kl, forms=forms)


def _kl(settings: EvalSettings, run: SampleRun, store: SampleStore, task: EvalSet, quiet: bool, say: Say) -> TokenKl:
    """The exact KL to `settings.kl_to`, on completions of both policies; missing completions of the other are sampled first."""
    from sage_rlvr.evaluation.kl_run import kl_of_stores  # torch
    from sage_rlvr.evaluation.sampled_run import sample_into_store  # torch

    base = _base_of(run, str(settings.kl_to), task, settings.samples)
    console = PlainConsole(file=io.StringIO()) if quiet else PlainConsole(stderr=True)
    with ended_like_ctrl_c():
        other = sample_into_store(base, task, partial(counting, console, base.policy), say, progress=console.print)
        n = min(settings.kl_samples, common_n(store), common_n(other))
        stores = {"policy": store, "base": other}
        kl, path = kl_of_stores(run, base, stores, task, n, partial(counting, console, "KL"), console.print)
    say(f"KL kept in {path}; completions of {base.policy}: {base.store}")
    return kl


def _base_of(run: SampleRun, what: str, task: EvalSet, samples: int) -> SampleRun:
    """The settings of a policy's evaluation, for another policy: a model, a run, or the policy of a sample store."""
    path = Path(what)
    own: dict[str, Any] = {"samples": samples, "base_logprobs": None, "guide": None}
    if is_store(path):
        with SampleStore.open(path) as store:
            name_or_path, name = store.policy_name_or_path(), store.identity.model
        if name_or_path is None:
            raise ConfigError(f"--kl-to {what}: this store has no path of its policy; pass the policy itself")
        return replace(run, policy=name, model=name_or_path, store=path, **own)
    name, model = _named(what)
    home = path / "samples" if is_run(path) else RUNS / "samples" / name
    return replace(run, policy=name, model=model, store=home / run.store_name(task.task), **own)


def _named(what: str) -> tuple[str, str]:
    """A policy of the command line: its name in a store, and the model to load."""
    return "base" if what == "embedded" else Path(what).name, str(Path(what) / "policy") if is_run(Path(what)) else what


def _made_of_two(run: SampleRun, settings: EvalSettings) -> SampleRun:
    """The policy mixed with the base of `settings.interpolate` at its one share, or borrowing from `settings.borrow`. Its store
    is in the folder of models' stores, not in a run, whose stores are samples of the run's policy."""
    from sage_rlvr.models.borrowing import Borrowing, classes_of  # torch
    from sage_rlvr.models.interpolation import Interpolated  # torch

    own, label = str(run.model), ""
    made: Interpolated | Borrowing | None = None
    for share in settings.shares:
        name, base = _named(settings.interpolate[0])
        label = f"{1 - share:g} {name} + {share:g} {run.policy}" + " in the upper layers" * (settings.layers == "upper")
        made = Interpolated(own, base, share, settings.layers)
    if settings.borrow is not None:
        name, base = _named(settings.borrow)
        made = Borrowing(own, base, classes_of(run.asked, settings.at))
        label = f"{run.policy} with {name} at {', '.join(made.classes)}"
    return run if made is None else replace(run, policy=label, model=made, store=settings.store or _beside(run, label))


def _beside(run: SampleRun, label: str) -> Path:
    """The place of a store for a policy combined from a run and another one."""
    home = run.store.parent.parent.parent if run.store.parent.name == "samples" and is_run(run.store.parent.parent) else RUNS
    return home / "samples" / slug(label) / run.store.name


def store_rows(store: SampleStore, n: int | None = None) -> list[dict[str, Any]]:
    """pass@k of a store's first n samples of each problem over powers of two, each with its interval."""
    n = common_n(store) if n is None else n
    counts, law = store.counts(n), store.identity.decoding
    right, chance = counts.right.astype(int), chance_of_store(store.facts(), counts.problems)
    intervals = {k: passk_interval(n, right, k) for k in powers(n)}
    return [
        {"temperature": law["temperature"], "k": k, **_plain(interval)}
        | _chance_columns(chance, k, interval.value, interval.high)
        | {"n": n, "problems": len(counts.problems)}
        for k, interval in intervals.items()
    ]


def _sample_run(what: str, settings: EvalSettings, say: Say) -> SampleRun:
    """The policy, with a run's task or its world; the store's default place if none was named."""
    from sage_rlvr.evaluation.sample_run import SampleRun  # torch

    chosen, run, own = SampleSettings.of(settings), Path(what), None
    if settings.task is None or with_worlds(settings.task) is not None:
        target = target_of(what, settings.world, settings.task)
        policy, model, own, of_run = target.name, target.model, target.evaluated_task, target.run is not None
        form = "as_is" if own.form is None else own.form.name
        limit = settings.max_new_tokens or (None if target.task is None else target.limit)
        chosen = replace(chosen, task=own.name, template=form, max_new_tokens=limit)  # type: ignore[arg-type]
        if of_run and _on_training_rows(own):
            say(f"{own.name}: the rows that this run was trained on, since its task has no test_file; a claim needs other rows")
    else:
        of_run = is_run(run)
        policy, model = _named(what)
        _say_other_reward(settings, run if of_run else None, say)
        if settings.max_new_tokens is None and str(settings.task).endswith((".yaml", ".yml")):
            chosen = replace(chosen, max_new_tokens=recipe_of(str(settings.task)).rollout.max_new_tokens)
    if of_run and chosen.chat_template_kwargs is None and (options := read_record(run)["config"].get("chat_template_kwargs")):
        chosen = replace(chosen, chat_template_kwargs=json.dumps(options))  # a run's prompts are those of its training
    home = run / "samples" if of_run else RUNS / "samples" / policy
    task = task_named(chosen.task) if own is None else own  # type: ignore[arg-type]
    if own is None and settings.world is not None:
        raise _either(settings.world, str(settings.task))
    store = chosen.store or home / chosen.store_name(task)
    return SampleRun(**(vars(chosen) | {"store": store}), policy=policy, model=model, own=own)


def _on_training_rows(task: Any) -> bool:
    """Whether a task from a file of rows has no separate rows for evaluation."""
    if isinstance(task, RewardTask):
        return task.test_file is None
    return isinstance(task, MathTask) and task.published is None and task.test is None


def _say_other_reward(settings: EvalSettings, run: Path | None, say: Say) -> None:
    """Print that rows of a file get the mathematics verifier, if the run was trained on rows with another reward."""
    rows = settings.task is not None and settings.task.endswith(SUFFIXES)
    own = read_record(run)["config"].get("task") if run is not None and rows else None
    if reward := (own or {}).get("reward"):
        say(
            f"--task {settings.task}: these rows get the template {settings.template} and the mathematics verifier, not the reward "
            f"{reward} of the training run {run}. To evaluate these rows with that reward, pass --task RECIPE.yaml, a recipe whose "
            f"task has that reward and test_file: {settings.task}"
        )


def _either(world: str, task: str) -> ConfigError:
    return ConfigError(f"--world {world} with --task {task}: both define the problems; omit one of them")


def target_of(what: str, world: str | None, task: str | None = None) -> Target:
    """`evaluation.evaluate.resolve`, with a world and a task by name; for a task with worlds the world is one of these."""
    from sage_rlvr.evaluation.evaluate import resolve  # torch

    kind, world_config = with_worlds(task), None
    if kind is not None and world in kind.worlds:
        return resolve(what, None, f"{task}:{world}")
    if world is not None:
        world_config = world_of(world)
        if task is not None and (kind is None or not isinstance(world_config.build(), kind)):
            raise _either(world, task)
    return resolve(what, world_config, task if world_config is None else None)
