"""`compare`: compare evaluations of the same problems. Only the code for the given arms is imported: files of rows need only
`verdicts`."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sage_rlvr import plugins
from sage_rlvr.api.tables import Rows
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.extras import explained
from sage_rlvr.verdicts.files import read_files, rows_in
from sage_rlvr.verdicts.findings import Findings, findings_of
from sage_rlvr.verdicts.readers import Choice, Floor, Unscored
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arm = Any  # a path, several (training seeds of one method), or rows or 0 and 1 in memory (`api.objects`)
Split = Literal["train", "validation", "test"]
SWEPT = ("runs", "evaluations", "summary.json")  # a folder with one of these belongs to a sweep or a demo


@dataclass(frozen=True, repr=False)
class Comparison(Rows):
    """The result of `compare`.

    Attributes:
        results: The evaluations, read once.
        comparisons: The list of comparisons, corrected in two families.
        answer: One line that answers the design's questions.
        rows: One dict per comparison: arms, metric, difference with its 95 % interval, p, corrected p, outcome, the
            chance floor of pass@k with k > 1 and the arms below it.
        findings: The comparisons and the verdicts together: `comparisons` are its rows.
        verdicts: Gain and loss over k, for arms compared by samples.
        complete: False if a run of a sweep failed.
        notes: For `demo`: cross_check, the exact numbers against samples, and clock, monotonic seconds at its stages.
        scores: One dict per policy and k: pass@k with its interval; `to_frame` has them as a data frame.
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
        from sage_rlvr.verdicts.text.rows import answer

        with self.results.believed():
            return answer(self.comparisons, self.results, self.findings.verdicts)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per comparison."""
        with self.results.believed():
            return [row_of(row) for row in self.comparisons]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """One plain dict per policy, task, temperature and k (powers of two, and the largest): pass@k with its 95 % interval, the
        chance floor and whether the policy is below it. A stored summary has no samples, so none."""
        from sage_rlvr.verdicts.score_rows import score_rows

        return score_rows(self.results)

    def to_frame(self) -> Any:
        """`scores` as a pandas data frame, a row per policy and k. `pandas.DataFrame(found.rows)` has the comparisons.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        from sage_rlvr.results.tables import frame_of

        return frame_of(self.scores)

    def plot(self) -> Figure:
        """Return the picture of pass@k as a matplotlib figure: two policies with their difference, or all curves of more.

        Raises:
            DataError: If the comparison is of several tasks.
        """
        from sage_rlvr.api.picture import picture_of

        with self.results.believed():
            return picture_of(self.results, self.findings)

    @property
    def verdicts(self) -> dict[str, Any]:
        """Return the output of `sage-rlvr compare --json`: gain and loss over k of arms compared by samples
        (docs/reference/verdict.schema.json)."""
        if not self.results.sampled_only:
            raise DataError("verdicts over k are of files of rows and sample stores; `rows` has the comparisons of all others")
        from sage_rlvr.verdicts import verdict_json

        return verdict_json.tree(self.findings.verdicts, self.results.given, [*self.results.failed, *self.results.notes])

    @property
    def alone(self) -> bool:
        """Whether this is one policy in files of rows, which is compared with none."""
        return len(self.results.design.names) < 2 and bool(self.results.given)

    def __repr__(self) -> str:
        if self.alone:
            from sage_rlvr.verdicts.text.one_file import lines

            return "\n".join(lines(self.results)).strip()
        from sage_rlvr.api.printed import print_brief
        from sage_rlvr.progress import PlainConsole

        console = PlainConsole(file=io.StringIO(), width=120, no_color=True)
        with self.results.believed():
            print_brief(console, self.results, self.findings, more="")
        return str(console.file.getvalue()).strip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return f'<pre style="white-space:pre-wrap">{html.escape(repr(self))}</pre>{self._picture()}'

    def _picture(self) -> str:
        """The picture as SVG; "" for several tasks, of which there is none."""
        from sage_rlvr.render.style import svg_of

        try:
            return svg_of(self.plot(), f"compare-{id(self)}", "pass@k of each policy")
        except DataError:
            return ""


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
        "outcome": str(row.outcome),
        "detectable": comparison.mde,
        "chance": row.chance,
        "below_chance": ", ".join(row.below_chance),
    }


@explained
def compare(
    arms: Mapping[str, Arm] | Arm | None = None,
    *more: Arm,
    split: Split | None = None,
    k: int | None = None,
    samples: int | None = None,
    correct: str | Sequence[str] = (),
    unscored: Unscored | None = None,
    right_from: float | None = None,
    chance: float | Mapping[str, float] | None = None,
    task: str = "",
    fixed_problems: bool = False,
    fields: Mapping[str, str] | None = None,
    judge: str = "",
    common: bool = False,
    **named: Arm,
) -> Comparison:
    """Compare evaluations of the same problems, as `sage-rlvr compare` does. The first arm is the control of all others.

        compare("base.jsonl", "rl.jsonl")                files of rows: counts, samples, logs of other programs
        compare(base="embedded", maxrl="runs/maxrl")
        compare({"GRPO": ["runs/grpo-s0", "runs/grpo-s1"], "MaxRL": ["runs/maxrl-s0", "runs/maxrl-s1"]}, k=64)
        compare("runs/demo")                             a folder of a sweep or demo, by its design
        compare(base=rows, rl=frame)                     rows in memory: lists of dicts, or data frames
        compare(base=[[1, 0], [0, 0]], rl=array)         right (1) or wrong (0): problems x samples

    Args:
        arms: {name: arm}, or the first arm. An arm is a file of rows, a run directory, a record (.npz), a sample store,
            "embedded", or what `train` or `evaluate` returned; a list is training seeds of one method. Each has to be evaluated:
            see `evaluate`. In memory: rows as in a file, a list of dicts or a data frame; or for each problem its samples as 0 and
            1, an array, a list of lists of any lengths, or {id: list}; a list of those is training seeds.
        *more: More arms, called by their paths, or "policy 2".
        split: Which record of a run directory is used; by default that of the sweep's problems, else test.
        k: k of pass@k; by default 256, or all samples for sample stores with fewer.
        samples: For sample stores and files of samples: use the first this many samples of each problem.
        correct: In files of rows with several scores: the score that means correct in every file.
        unscored: In files of rows: completions without a score count as "wrong", or "omit" their problems on both sides.
        right_from: In files of rows with graded scores: the least score that counts as correct.
        chance: For files of rows: the probability that one guess is right, for all tasks or {task: probability}.
        task: For files of rows: the task of the problems, by name or of a recipe (.yaml), whose guesses give the chance floor.
        fixed_problems: For several training seeds: judge methods on these problems only, not on such problems.
        fields: For files of rows with other columns: {"id": "question_id", "correct": "is_correct", "text": "response"}.
        judge: For files of rows with texts: what marks the completions here: "boxed", "last_number", "exact_match", another place
            of the answer, or "my_reward.py:score", which is run in worker processes.
        common: For files of rows: leave out problems that some sides lack.
        **named: Arms by name, after the others.

    Returns:
        The `Comparison`.

    Raises:
        DataError: If fewer than two arms are given, an evaluation is missing, or problems differ.
        ConfigError: If options cannot be combined.
    """
    from sage_rlvr.api.objects import Objects, is_by_id, is_path

    arms_by_name: Mapping[str, Arm] = arms if isinstance(arms, Mapping) and not is_by_id(arms) else {}
    loose: list[Any] = [] if arms is None or arms_by_name or (isinstance(arms, Mapping) and not arms) else [arms]
    objects, words = Objects(), list[str]()
    for number, arm in enumerate([*loose, *more], 1):
        words.append(_called(arm) if is_path(arm) else objects.word(f"policy {number}", arm))
    for name, arm in {**arms_by_name, **named}.items():
        words.append(f"{name}={_word(arm)}" if is_path(arm) else objects.word(name, arm))
    names = (correct,) if isinstance(correct, str) else tuple(correct)
    shares: dict[str, float] = {}
    if chance is not None:
        shares = dict(chance) if isinstance(chance, Mapping) else {"": chance}
    with objects.held():
        found = comparison_of(
            words, split=split, k=k, samples=samples, correct=names, unscored=unscored, right_from=right_from, chance=shares,
            task=task, fixed_problems=fixed_problems, fields=fields, judge=judge, common=common,
        )  # fmt: skip
    return replace(found, results=replace(found.results, sources=())) if objects.files else found


def comparison_of(
    words: Sequence[str], *, split: Split | None, k: int | None, samples: int | None, correct: Sequence[str] = (),
    unscored: Unscored | None = None, right_from: float | None = None, chance: Mapping[str, float] | None = None, task: str = "",
    answers_in: str = "", fixed_problems: bool = False, fields: str | Mapping[str, str] | None = None, judge: str = "",
    common: bool = False,
) -> Comparison:  # fmt: skip
    """The comparison of arms as the command takes them: PATH, or NAME=PATH[,PATH...]. answers_in: the place where the verifier
    reads the answers of texts (`--verify`). fixed_problems: whether claims about methods are restricted to these problems."""
    if not words:
        raise DataError(
            "compare: no arms; pass at least two, the first being the control (or one folder of a sweep or demo), for example: "
            + suggest("compare", "base.jsonl", "rl.jsonl")
        )
    whole = len(words) == 1 and any((Path(words[0]) / name).exists() for name in SWEPT)
    single = len(words) == 1 and not whole
    if single and any(rows_in(path) is None for path in paths_in(words)):
        raise DataError(
            f"compare needs at least two arms, got {list(words)}; the first is the control (or one folder of a sweep or demo). One "
            "file of rows is described by itself"
        )
    plugins.use_inherited()  # which may have readers
    kinds = [rows_in(path) is not None for path in paths_in(words)]
    of_rows = any(kinds)
    if not of_rows:
        from sage_rlvr.results.discover import check_exist

        check_exist(paths_in(words))
    if samples is not None and not of_rows and not has_stores(words):
        raise ConfigError(OF_STORES)
    if (correct or unscored or right_from is not None or fields or judge or common) and not of_rows:
        raise ConfigError(
            "--correct, --unscored, --right-from, --fields, --judge, --common: only for files of rows, and these arms are not; "
            "omit these options"
        )
    if (chance or task) and not of_rows:
        raise ConfigError("--chance, --task: only for files of rows; records and sample stores keep their chance floor")
    if chance and task:
        raise ConfigError(f"--chance and --task {task}: both give the chance floor; omit one of them")
    floor = Floor(shares=chance or {})
    if task:
        from sage_rlvr.config import task_named
        from sage_rlvr.evaluation.chance import floor_of_task

        floor = floor_of_task(task, task_named(task))
    answers = None
    if answers_in:
        from sage_rlvr.results.rejudged import key_of_answers

        answers = answers_in, key_of_answers(answers_in)
    choice = choice_of(correct=correct, right_from=right_from, unscored=unscored, fields=fields, judge=judge, common=common)
    choice = replace(choice, answers=answers, floor=floor)
    if all(kinds):
        results = read_files(*words, k=k, samples=samples, choice=choice)
    else:
        from sage_rlvr.results.read import read_results

        results = read_results(*words, split=split, k=k, apart=not whole, samples=samples, choice=choice)
    if k is not None and not results.records and (most := max((one.n for one in results.table.sampled().rows), default=k)) < k:
        raise ConfigError(f"--k {k}: no task has so many samples of every problem; choose k up to {most}, or omit it")
    known = dict.fromkeys(results.tasks)
    if strange := [name for name in chance or () if name and name not in known]:
        raise DataError(f"--chance {strange[0]}=...: no rows of that task; the files have {', '.join(known)}")
    if task and len(known) > 1:
        raise DataError(f"--task {task}: the rows are of several tasks ({', '.join(known)}); select one of them with FILE@TASK")
    if fixed_problems and (results.stored is not None or not results.several):
        why = "a stored summary has its comparisons already" if results.stored is not None else "every arm has one training seed"
        raise ConfigError(f"--fixed-problems: only where arms have several training seeds, and {why}; omit it")
    return compared(replace(results, fixed=fixed_problems))


def choice_of(
    *, correct: Sequence[str] = (), right_from: float | None = None, unscored: Unscored | None = None,
    fields: str | Mapping[str, str] | None = None, judge: str = "", common: bool = False,
) -> Choice:  # fmt: skip
    """Return how files of rows are read, from the words of the command. Raises ConfigError for options that cannot be combined."""
    if correct and (judge or fields):
        raise ConfigError(f"--correct {correct[0]}: --{'judge' if judge else 'fields'} says what is correct; omit one of them")
    choice = Choice(tuple(correct), right_from, unscored=unscored, common=common)
    if fields:
        from sage_rlvr.verdicts.readers.named import fields_of

        choice = replace(choice, fields=fields_of(fields))
    if judge:
        from sage_rlvr.results.judges import judge_named

        choice = replace(choice, judge=judge_named(judge, right_from))
    return choice


def compared(results: Results, *, complete: bool = True) -> Comparison:
    """Results with all comparisons."""
    with results.believed():
        return Comparison(results, findings_of(results), complete)


OF_STORES = (
    "--samples, --patterns: only for sample stores and files of samples, and these arms are not; omit these options (records "
    "evaluated with eval --frontier have their frontiers compared anyway)"
)


def has_stores(words: Sequence[str]) -> bool:
    """Whether an arm is a sample store."""
    from sage_rlvr.results.files import has_store

    return any(has_store(Path(path)) for path in paths_in(words))


def paths_in(words: Sequence[str]) -> list[str]:
    """The paths of PATH and NAME=PATH[,PATH...]."""
    return [path for word in words for path in ([word] if Path(word).exists() else word.rpartition("=")[2].split(","))]


def paths_of(arm: str | PathLike[str]) -> list[str]:
    """The path of an arm; for an evaluation at several temperatures that of each store."""
    if isinstance(arm, (str, Path)):
        return [fspath(arm)]
    from sage_rlvr.api.evaluate import Evaluation

    return list(map(fspath, arm.stores)) if isinstance(arm, Evaluation) and arm.stores else [fspath(arm)]


def _word(arm: Arm) -> str:
    """An arm as the command accepts it after NAME=."""
    several = [arm] if isinstance(arm, (str, PathLike)) else arm
    return ",".join(path for one in several for path in paths_of(one))


def _called(arm: Arm) -> str:
    """An unnamed arm as the command accepts it. Several stores need a name: that of their policy."""
    if isinstance(arm, (str, Path)):
        return fspath(arm)
    from sage_rlvr.api.evaluate import Evaluation

    if isinstance(arm, Evaluation) and len(arm.stores) > 1:
        return f"{arm.policy}={_word(arm)}"
    return _word(arm)
