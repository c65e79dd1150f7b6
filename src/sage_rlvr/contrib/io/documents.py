"""The documents of a store with generated problems, made again from their ids: problem id -> doc, target, prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.sampling import choose
from sage_rlvr.evaluation.store import SampleStore, prompt_hash
from sage_rlvr.tasks import countdown, known_task
from sage_rlvr.tasks.abilities import Documented


def generated_docs(store: SampleStore) -> dict[str, dict[str, Any]]:
    """Problem id -> doc, target and prompt, for a store of a task with generated problems; {} for other tasks.

    Countdown: a problem is its id, and the target one of its right expressions. Knights and Knaves: the puzzles by their seed.
        Raises DataError if the store's prompts or puzzles differ from this version's.
    """
    rows = store.lists(("problem", "prompt_hash"))
    hashes = dict(zip(rows["problem"], rows["prompt_hash"], strict=True))
    if store.identity.task == countdown.Countdown.name:
        return {name: _countdown_doc(store, name, hashed) for name, hashed in hashes.items()}
    task = known_task(store.identity.task)
    return _listed_docs(store, task, list(hashes)) if isinstance(task, Documented) else {}


def _countdown_doc(store: SampleStore, name: str, hashed: str) -> dict[str, Any]:
    numbers, _, target = name.partition(" #")[0].partition("=")
    problem = countdown.Problem(tuple(map(int, numbers.split("-"))), int(target))
    prompt = countdown.render(problem)
    if hashed != prompt_hash(prompt):
        raise DataError(
            f"{store.path}: problem {name!r} had a different prompt than {prompt!r}, so its text cannot be reconstructed; pass "
            "--docs"
        )
    doc = {"id": name, "numbers": list(problem.numbers), "target": problem.target}
    return {"doc": doc, "target": countdown.solutions(problem)[0], "prompt": prompt}


def _listed_docs(store: SampleStore, task: Any, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    made = (choose(task, n=limit) for limit in (store.wanted().get("problems"), None))
    chosen = next((chosen for chosen in made if chosen.task_hash == store.identity.task_hash), None)
    if chosen is None:
        raise DataError(f"{store.path}: other problems of {task.name} than this version generates; pass their texts with --docs")
    docs = {}
    for name in names:
        problem = chosen.problems[name]
        docs[name] = {"doc": {"id": name, **task.doc(problem)}, "target": problem.answer, "prompt": task.prompt(problem)}
    return docs
