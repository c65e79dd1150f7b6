"""One verdict in a worker process of `verifiers.pool`, for the reward manager of verl. Works without verl."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.plugins import raised_at
from sage_rlvr.tasks.base import NO_ANSWER, Task, verdicts
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.training.verl.problems import exported
from sage_rlvr.verifiers import Label, Verdict
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.reasons import Elsewhere, Reasons, ReasonWatch

JUDGE = "sage_rlvr.training.verl.judge:judge"


@functools.cache
def _exported(folder: str) -> tuple[Task, dict[str, Sequence[Any]]]:
    return exported(Path(folder))


def judge(folder: str, split: str, number: int, text: str) -> Verdict:
    """The verdict on a completion of an exported problem, with the reward as its score. "wrong" without a score says what the
    verifier raised."""
    task, problems = _exported(folder)
    problem = problems[split][number]
    try:
        verdict = verdicts(task, [(problem, text)])[0]
    except MemoryError:  # a limit of the pool's
        raise
    except BaseException as error:  # the pool would make it "undecided", reward 0
        what = f"problem {problem.problem_id!r:.40}: {raised_at(error)}: {type(error).__name__}: {error!s:.80}"
        return Verdict("wrong", what.encode("ascii", "replace").decode())  # lone surrogates could not be printed
    return Verdict(verdict.label, verdict.reason, verdict.reward)


class Judge:
    """Verdicts on completions of an exported task. A verifier that does not come back within `seconds` is killed, and its
    completion is undecided, reward 0; one with workers of its own (`verify_all`) has limits already."""

    def __init__(self, folder: Path, seconds: float = 10.0, workers: int = 1) -> None:
        self.folder = folder
        self.task, self.problems = _exported(str(folder))
        own = type(self.task).verify_all is not Task.verify_all
        self.pool = None if own else Pool(workers=workers, seconds=seconds, memory_mb=8192, function=JUDGE)

    def __call__(self, split: str, number: int, text: str) -> Verdict:
        """The verdict on `text`; any thread may ask."""
        if self.pool is None:
            return verdicts(self.task, [(self.problems[split][number], text)])[0]
        verdict = self.pool.verify([(str(self.folder), split, number, text)])[0]
        if verdict.label == "wrong" and verdict.score is None:
            raise DataError(
                f"task {self.task.name}: its verifier raised on {verdict.reason}; a verifier must return a Verdict for every text"
            )
        return verdict


def logged(verdict: Verdict, extra_info: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the values that verl stores with a completion's reward; it averages the numbers in validation.

    A text that ends in `NO_ANSWER` was truncated; for a complete one without an answer the text is stored, to be searched at other
    places. extra_info: the row's.
    """
    cut = text.endswith(NO_ANSWER)
    return {
        "acc": float(verdict.right),
        "no_answer": float(verdict.unanswered),
        "undecided": float(verdict.label == "undecided"),
        "cut": float(cut),
        "reason": verdict.reason,
        "unanswered": json.dumps([extra_info["split"], int(extra_info["index"]), text]) if verdict.unanswered and not cut else "",
    }


@dataclass
class Outcomes:
    """Reasons that completions of a step got no reward, from the `logged` values of each: its metrics, and the watch's warning.

    folder: of the exported task; None if there is none.
    """

    folder: Path | None
    watch: ReasonWatch = field(default_factory=ReasonWatch)

    def see(self, step: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The completions of step `step`, from 0; {} where another reward manager gave the rewards."""
        if self.folder is None or not rows or any("no_answer" not in row for row in rows):
            return {}
        task, problems = _exported(str(self.folder))
        verdicts = [Verdict(_label(row), row["reason"]) for row in rows]
        reasons = Reasons.of(verdicts, [bool(row["cut"]) for row in rows])

        def elsewhere() -> Elsewhere | None:
            kept = [json.loads(row["unanswered"]) for row in rows if row["unanswered"]]
            pairs = [(problems[split][number], text) for split, number, text in kept]
            return elsewhere_of(task, pairs, [Verdict("wrong", "no answer")] * len(pairs))

        self.watch.see(step, reasons, read_at(task), elsewhere)
        return reasons.metrics() | {"completions/unfinished_frac": reasons.cut_frac or 0.0}


def _label(row: Mapping[str, Any]) -> Label:
    return "right" if row["acc"] else "undecided" if row["undecided"] else "wrong"


__all__ = ["JUDGE", "Judge", "Outcomes", "judge", "logged"]
