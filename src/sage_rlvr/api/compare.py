"""`compare`, `report`, `sweep` and `demo`: compare evaluations of the same problems."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sage_rlvr.api.evaluate import Evaluation
from sage_rlvr.api.printed import print_results
from sage_rlvr.api.tables import Rows, html_table
from sage_rlvr.api.train import RUNS, pairs_of, to_stderr
from sage_rlvr.config import task_named
from sage_rlvr.errors import ConfigError, DataError, SageError, suggest
from sage_rlvr.progress import PlainConsole
from sage_rlvr.results import Results, Row, sentences, verdict_json
from sage_rlvr.results.discover import rows_in
from sage_rlvr.results.files import has_store
from sage_rlvr.results.findings import Findings, findings_of
from sage_rlvr.results.page import page_of
from sage_rlvr.results.probabilities import save_probabilities
from sage_rlvr.results.readers import Choice, Floor
from sage_rlvr.results.row_text import outcome
from sage_rlvr.results.summary import summary_of
from sage_rlvr.runs import writing
from sage_rlvr.verifiers.pool import cores

if TYPE_CHECKING:
    from sage_rlvr.render import Page  # matplotlib

Arm = str | PathLike[str] | Sequence[str | PathLike[str]]  # several are training seeds of one method
Split = Literal["train", "validation", "test"]
Say = Callable[[str], None]
SWEPT = ("runs", "evaluations", "summary.json")  # a folder that has one of these is a sweep's or a demo's


@dataclass(frozen=True, repr=False)
class Comparison(Rows):
    """The result of `compare`.

    Attributes:
        results: The evaluations, read once.
        comparisons: The list of comparisons, corrected in two families.
        answer: One line that answers the design's questions.
        rows: One dict per comparison: arms, metric, difference with its 95 % interval, p, corrected p, outcome, the
            chance floor of pass@k with k > 1 and the arms below it.
        findings: The list of comparisons, and what else is compared: `comparisons` are its rows.
        verdicts: Gain and loss over k, of arms compared by samples.
        complete: False if a run of a sweep failed.
        notes: Of `demo`: cross_check, the exact numbers against samples, and clock, monotonic seconds at its stages.
    """

    results: Results
    findings: Findings
    complete: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def comparisons(self) -> Sequence[Row]:
        """The list of comparisons, corrected in two families."""
        return self.findings.rows

    @property
    def answer(self) -> str:
        """One line that answers the design's questions."""
        with self.results.believed():
            return sentences.answer(self.comparisons, self.results, self.findings.verdicts)

    @property
    def rows(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """One plain dict per comparison."""
        with self.results.believed():
            return [row_of(row) for row in self.comparisons]

    @property
    def verdicts(self) -> dict[str, Any]:
        """What `sage-rlvr compare --json` prints: gain and loss over k of arms compared by samples
        (docs/reference/verdict.schema.json)."""
        if not self.results.sampled_only:
            raise DataError("verdicts over k are of files of rows and sample stores; `rows` has the comparisons of all others")
        return verdict_json.tree(self.findings.verdicts, self.results.given, [*self.results.failed, *self.results.notes])

    def __repr__(self) -> str:

        console = PlainConsole(file=io.StringIO(), width=120, no_color=True)
        with self.results.believed():
            print_results(console, self.results, self.findings, details=False)
        return str(console.file.getvalue()).strip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        header = ("a", "b", "metric", "task", "difference", "95 % interval", "corrected p", "outcome", "chance", "below chance")
        cells = [
            (r["a"], r["b"], r["metric"], r["task"], f"{r['difference']:+.3f}", f"{r['low']:+.3f} to {r['high']:+.3f}",
             f"{r['adjusted_p']:.3g}", r["outcome"], "" if r["chance"] is None else f"{r['chance']:.3f}", r["below_chance"])
            for r in self.rows
        ]  # fmt: skip
        return html_table(("answer",), [(self.answer,)]) + html_table(header, cells)


def row_of(row: Row) -> dict[str, Any]:
    """A comparison as a plain dict; `outcome` is the printed word."""
    comparison = row.comparison
    return {
        "a": row.a,
        "b": row.b,
        "metric": str(row.metric),
        "task": row.task,
        "family": row.family,
        "mean_a": comparison.mean_a,
        "mean_b": comparison.mean_b,
        "difference": comparison.difference.value,
        "low": comparison.difference.low,
        "high": comparison.difference.high,
        "over": comparison.over,
        "p": comparison.p,
        "adjusted_p": row.adjusted,
        "outcome": str(outcome(row)),
        "detectable": comparison.mde,
        "chance": row.chance,
        "below_chance": ", ".join(row.below_chance),
    }


def compare(
    arms: Mapping[str, Arm] | Arm | None = None,
    *more: Arm,
    split: Split | None = None,
    k: int | None = None,
    samples: int | None = None,
    correct: str | Sequence[str] = (),
    right_from: float | None = None,
    chance: float | Mapping[str, float] | None = None,
    task: str = "",
    **named: Arm,
) -> Comparison:
    """Compare evaluations of the same problems, as `sage-rlvr compare` does. The first arm is the control of all others.

        compare("base.jsonl", "rl.jsonl")                files of rows: counts, samples, logs of other programs
        compare(base="embedded", maxrl="runs/maxrl")
        compare({"GRPO": ["runs/grpo-s0", "runs/grpo-s1"], "MaxRL": ["runs/maxrl-s0", "runs/maxrl-s1"]}, k=64)
        compare("runs/demo")                             a folder of a sweep or demo, by its own design

    Args:
        arms: {name: arm}, or the first arm. An arm is a file of rows, a run directory, a record (.npz), a sample store,
            "embedded", or what `train` or `evaluate` returned; a list is training seeds of one method. Each has to be evaluated:
            see `evaluate`.
        *more: More arms, called by their paths.
        split: Which record of a run directory is taken; by default that of the sweep's own problems, else test.
        k: Of pass@k; by default 256, of sample stores with fewer samples all of them.
        samples: Of sample stores and files of samples: the first so many samples of each problem.
        correct: In files of rows with several scores: the score that stands for correct.
        right_from: In files of rows with graded scores: the least score that counts as correct.
        chance: Of files of rows: the probability that one guess is right, of all tasks or {task: probability}.
        task: Of files of rows: the task of the problems, by name or of a recipe (.yaml), whose guesses give the chance floor.
        **named: Arms by name, after the others.

    Returns:
        The `Comparison`.

    Raises:
        DataError: Where fewer than two arms are given, an evaluation is missing, or problems differ.
        ConfigError: Where options do not go together.
    """
    given = dict(arms) if isinstance(arms, Mapping) else {}
    loose = [] if arms is None or isinstance(arms, Mapping) else [arms]
    words = [_called(arm) for arm in [*loose, *more]]
    words += [f"{name}={_word(arm)}" for name, arm in {**given, **named}.items()]
    names = (correct,) if isinstance(correct, str) else tuple(correct)
    shares: dict[str, float] = {}
    if chance is not None:
        shares = dict(chance) if isinstance(chance, Mapping) else {"": chance}
    return comparison_of(
        words, split=split, k=k, samples=samples, correct=names, right_from=right_from, chance=shares, task=task
    )


def comparison_of(
    words: Sequence[str], *, split: Split | None, k: int | None, samples: int | None, correct: Sequence[str] = (),
    right_from: float | None = None, chance: Mapping[str, float] | None = None, task: str = "", answers_in: str = "",
) -> Comparison:  # fmt: skip
    """The comparison of arms as the command takes them: PATH, or NAME=PATH[,PATH...]. answers_in: where the verifier reads the
    answers of texts (`--verify`)."""
    if not words:
        raise DataError(
            "compare: no arms; pass at least two, the first being the control (or one folder of a sweep or demo), for example: "
            + suggest("compare", "base.jsonl", "rl.jsonl")
        )
    whole = len(words) == 1 and any((Path(words[0]) / name).exists() for name in SWEPT)
    single = len(words) == 1 and not whole
    if single and rows_in(words[0]) is None:
        raise DataError(
            f"compare needs at least two arms, got {list(words)}; the first is the control (or one folder of a sweep or demo)"
        )
    of_rows = any(rows_in(path) is not None for path in paths_in(words))
    if samples is not None and not of_rows and not has_stores(words):
        raise ConfigError(OF_STORES)
    if (correct or right_from is not None) and not of_rows:
        raise ConfigError("--correct, --right-from: only for files of rows, and these arms are not; omit these options")
    if (chance or task) and not of_rows:
        raise ConfigError("--chance, --task: only for files of rows; records and sample stores keep their chance floor")
    if chance and task:
        raise ConfigError(f"--chance and --task {task}: both give the chance floor; omit one of them")
    floor = Floor(shares=chance or {}, task=(task, task_named(task)) if task else None)
    choice = Choice(tuple(correct), right_from, answers_in=answers_in, floor=floor)
    results = Results.read(*words, split=split, k=k, apart=not whole, samples=samples, choice=choice)
    if k is not None and not results.records and (most := max((one.n for one in results.table.sampled().rows), default=k)) < k:
        raise ConfigError(f"--k {k}: no task has so many samples of every problem; choose k up to {most}, or omit it")
    known = dict.fromkeys(results.tasks)
    if strange := [name for name in chance or () if name and name not in known]:
        raise DataError(f"--chance {strange[0]}=...: no rows of that task; the files have {', '.join(known)}")
    if task and len(known) > 1:
        raise DataError(f"--task {task}: the rows are of several tasks ({', '.join(known)}); select one of them with FILE@TASK")
    if single and len(results.design.names) < 2:
        raise DataError(
            f"{words[0]}: the rows are of one arm; pass a second file, the first being the control, or give the rows an \"arm\""
        )
    return compared(results)


def compared(results: Results, *, complete: bool = True) -> Comparison:
    """Results with all that is compared."""
    with results.believed():
        return Comparison(results, findings_of(results), complete)


OF_STORES = (
    "--samples, --patterns: only for sample stores and files of samples, and these arms are not; omit these options (records "
    "evaluated with eval --frontier have their frontiers compared anyway)"
)


def has_stores(words: Sequence[str]) -> bool:
    """Whether an arm is a sample store."""
    return any(has_store(Path(path)) for path in paths_in(words))


def paths_in(words: Sequence[str]) -> list[str]:
    """The paths of PATH and NAME=PATH[,PATH...]."""
    return [path for word in words for path in ([word] if Path(word).exists() else word.rpartition("=")[2].split(","))]


def _paths(arm: str | PathLike[str]) -> list[str]:
    """The path of an arm; of an evaluation at several temperatures that of each store."""
    return list(map(fspath, arm.stores)) if isinstance(arm, Evaluation) and arm.stores else [fspath(arm)]


def _word(arm: Arm) -> str:
    """An arm as the command takes it behind NAME=."""
    several = [arm] if isinstance(arm, (str, PathLike)) else arm
    return ",".join(path for one in several for path in _paths(one))


def _called(arm: Arm) -> str:
    """An arm without a name of its own as the command takes it. Several stores need one: that of their policy."""
    if isinstance(arm, Evaluation) and len(arm.stores) > 1:
        return f"{arm.policy}={_word(arm)}"
    return _word(arm)


def report(
    *runs: str | PathLike[str],
    out: str | Path | None = None,
    format: Literal["html", "md"] = "html",
    png: str | Path | None = None,
    split: Split | None = None,
    k: int | None = None,
    show: int = 16,
    title: str = "",
) -> Page:
    """One page of runs, evaluations and samples, as `sage-rlvr report` writes it. It opens without network.

        page = report("runs/demo", out="demo.html")
        page                                             shown in a notebook

    Args:
        *runs: Folders of a demo or sweep, run directories, records, sample stores, or NAME=PATH[,PATH...] of those.
        out: A file to write, or a folder to put it in; None writes nothing.
        format: "html", or "md" for the sentences and tables.
        png: Also write every figure as PNG into this folder.
        split: Which records are compared; by default those of the sweep's own problems, else test.
        k: pass@1 and pass@k are compared; by default the largest that all allow, at most 256.
        show: Samples of each problem and store on the page.
        title: Above the page.

    Returns:
        The `Page`: its answer, its rows, `html()` and `markdown()`; `written` are the files.

    Raises:
        ConfigError: Where nothing is named, or a number is out of range.
        DataError: For files that cannot be read.
    """
    from sage_rlvr.render import Page  # matplotlib

    if not runs or show < 0 or (k is not None and k < 2):
        raise ConfigError(
            f"RUNS {[fspath(run) for run in runs]}, --show {show}, --k {k}: pass at least one folder, run, record or store; "
            "show must be >= 0 and k >= 2"
        )
    results = Results.read(*[path for run in runs for path in _paths(run)], split=split, k=k)
    with results.believed():
        findings = findings_of(results)
        summary = summary_of(results, findings)
        values = page_of(results, findings, summary, title=title, shown=show)
        page = Page(values, rows=[row_of(row) for row in findings.rows])
    if out is not None:
        with results.believed(), writing("report", Path(out).parent, 8 << 20):
            page.write(Path(out), format, None if png is None else Path(png))
    return page


def sweep(
    design: str | Path, *, out: str | Path | None = None, workers: int | None = None, quiet: bool = False
) -> Comparison:
    """Train and evaluate the arms and training seeds of a design file, and compare them, as `sage-rlvr sweep` does.

        sweep("recipes/designs/quick.yaml", workers=4)

    Args:
        design: A design file, or the name of a shipped one.
        out: Where everything goes; by default runs/<design name>. The same folder again continues.
        workers: Processes at a time, one thread each; by default the number of cores.
        quiet: No progress.

    Returns:
        The `Comparison`; `complete` is False where a run failed.

    Raises:
        ConfigError: Where the design means nothing.
    """
    from sage_rlvr.sweeps.plan import plan  # torch

    planned = plan(Path(design), Path(out) if out is not None else RUNS / Path(design).stem)
    return swept(planned, workers, PlainConsole(file=io.StringIO()) if quiet else None)


def swept(planned: Any, workers: int | None, console: Any = None) -> Comparison:
    """Run what a plan lacks, write its summary, and compare."""
    from sage_rlvr.render import write_summary  # matplotlib
    from sage_rlvr.sweeps.sweep import run  # torch

    try:
        complete = run(planned, cores() if workers is None else workers, console or PlainConsole(stderr=True))
    except BaseException:
        with suppress(SageError, OSError):  # of a folder that cannot be written, the cause is the other error
            write_summary(planned.out)
        raise
    write_summary(planned.out)
    results = Results.read(planned.out)
    save_probabilities(results, planned.out)
    return compared(results, complete=complete)


def demo(
    out: str | Path | None = None,
    *,
    model: str = "embedded",
    short: bool = False,
    seeds: Sequence[int] = (0,),
    arms: Sequence[str] | None = None,
    problems: int | None = None,
    power_tempering: bool = True,
    workers: int | None = None,
    edits: Mapping[str, Any] | Sequence[tuple[str, str]] = (),
) -> Comparison:
    """Train three methods on this machine, evaluate and compare them, as `sage-rlvr demo` does.

        demo(edits={"steps": 40})
        demo(model="smollm2", short=True)

    Args:
        out: Where runs, evaluations, pictures and the page go; by default runs/demo or runs/demo-<model>. The same folder again
            continues.
        model: "embedded", the shipped base policy; "smollm2", a pretrained model of 135 M parameters; or a folder in place of the
            shipped policy.
        short: The short form of smollm2.
        seeds: Training seeds; statements about methods, not checkpoints, need at least three.
        arms: Methods by name; by default no_kl, grpo and sage_branch.
        problems: Test problems; by default those of the design.
        power_tempering: Also temper the shipped base over whole completions: what it reaches without any reward.
        workers: Training runs at a time; by default as many as the cores hold.
        edits: {dotted key: value}, in every arm's recipe.

    Returns:
        The `Comparison`; `complete` is False where a run failed.

    Raises:
        ConfigError: Where an arm or an edit means nothing.
    """
    from sage_rlvr.sweeps import demo as demos  # torch

    folder = demo_folder(model) if out is None else Path(out)
    more: dict[str, Any] = {"powers": power_tempering, "model": model, "short": short}
    return demonstrated(demos.plan(folder, seeds, arms, pairs_of(edits), problems, **more), workers)


def demo_folder(model: str) -> Path:
    """The folder of a demo by default."""
    return RUNS / ("demo" if model == "embedded" else f"demo-{Path(model).name}")


def demonstrated(planned: Any, workers: int | None, console: Any = None, say: Say = to_stderr) -> Comparison:
    """Run a demo's plan, check it by sampling, write its page, and compare. notes: cross_check, and seconds of both parts."""
    from sage_rlvr.sweeps import demo as demos  # torch
    from sage_rlvr.sweeps.display import line  # torch
    from sage_rlvr.sweeps.forecast import forecast  # torch

    clock = [time.monotonic()]
    count = demos.at_a_time(planned) if workers is None else workers
    steps = "/".join(dict.fromkeys(str(arm.config.steps) for arm in planned.arms))
    say(f"training {len(planned.runs)} runs of {steps} steps, {count} at a time, in {planned.out / 'runs'}")
    say("\n".join([line(planned), *forecast(planned)]))
    comparison = swept(planned, count, console)
    clock.append(time.monotonic())
    if not comparison.complete:
        return comparison
    checked = demos.check_by_sampling(planned)
    write_page(comparison, planned.out)
    clock.append(time.monotonic())
    return replace(comparison, notes={"cross_check": checked, "clock": clock})


def write_page(comparison: Comparison, out: Path) -> Page:
    """The page, written with its pictures into a folder, or to an .html file with its pictures beside it."""
    from sage_rlvr.render import Page  # matplotlib

    page = Page(page_of(comparison.results, comparison.findings, summary_of(comparison.results, comparison.findings)))
    file = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    with writing("report", file.parent, 8 << 20):
        file.parent.mkdir(parents=True, exist_ok=True)
        page.write(file, png=file.parent / "figures")
    return page
