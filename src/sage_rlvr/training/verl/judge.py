"""One verdict in a worker process of `verifiers.pool`, for the reward manager of verl. Works without verl."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.plugins import raised_at
from sage_rlvr.tasks.base import Task, verdicts
from sage_rlvr.training.verl.problems import exported
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool

JUDGE = "sage_rlvr.training.verl.judge:judge"


@functools.cache
def _exported(folder: str) -> tuple[Task, dict[str, Sequence[Any]]]:
    return exported(Path(folder))


def judge(folder: str, split: str, number: int, text: str) -> Verdict:
    """The verdict on a completion of an exported problem. A pool carries label and reason: the reward stands in the reason, as
    JSON [reward, reason]."""
    task, problems = _exported(folder)
    problem = problems[split][number]
    try:
        found = verdicts(task, [(problem, text)])[0]
    except MemoryError:  # a limit of the pool's
        raise
    except BaseException as error:  # the pool would make it "undecided", reward 0
        what = f"problem {problem.problem_id!r:.40}: {raised_at(error)}: {type(error).__name__}: {error!s:.80}"
        plain = what.encode("ascii", "replace").decode().translate(str.maketrans('"\\', "'/"))  # a reason has 200 characters
        return Verdict("undecided", json.dumps([None, plain]))
    return Verdict(found.label, json.dumps([found.reward, found.reason[:100]]))


class Judge:
    """Verdicts on completions of an exported task. A verifier that does not come back within `seconds` is killed, and its
    completion is undecided, reward 0; one with workers of its own (`verify_all`) has limits already."""

    def __init__(self, folder: Path, seconds: float = 10.0, workers: int = 1) -> None:
        self.folder = folder
        self.task, self.problems = _exported(str(folder))
        own = hasattr(self.task, "verify_all")
        self.pool = None if own else Pool(workers=workers, seconds=seconds, memory_mb=8192, function=JUDGE)

    def __call__(self, split: str, number: int, text: str) -> Verdict:
        """The verdict on `text`; any thread may ask."""
        if self.pool is None:
            return verdicts(self.task, [(self.problems[split][number], text)])[0]
        found = self.pool.verify([(str(self.folder), split, number, text)])[0]
        if not found.reason.startswith("["):  # the pool's own: too late, or too much memory
            return found
        reward, reason = json.loads(found.reason)
        if reward is None:
            raise DataError(
                f"task {self.task.name}: its verifier raised on {reason}; a verifier must return a Verdict for every "
                "text"
            )
        return Verdict(found.label, reason, reward)


__all__ = ["JUDGE", "Judge", "judge"]
