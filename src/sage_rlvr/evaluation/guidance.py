"""Second attempts with hints on the problems that a policy failed (Agent-RLVR, arXiv 2506.11425).

    store of attempts -> the first wrong one of each problem -> teacher -> guided prompts -> another store of the same problems

The hint is for the first wrong attempt of a problem; a problem without a wrong attempt is left out. The hints are stored in the
folder of the new store, `guidance.jsonl`, and read from it when the evaluation continues, since a teacher may be asked only once.
The teacher `nothing` makes the control: the same problems, the same seeds, no guidance. So its store and that of another teacher
are compared problem by problem (`sage-rlvr compare`), on attempts that did not select the problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.config import build, dump
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.sampling import EvalSet
from sage_rlvr.evaluation.store import Sample, SampleStore, is_store
from sage_rlvr.recipes import parse_yaml
from sage_rlvr.runs import writing
from sage_rlvr.runs.files import write_text_atomic
from sage_rlvr.safe_io import read_json_lines
from sage_rlvr.tasks.base import NO_ANSWER, guided
from sage_rlvr.tasks.teachers import Sourced, Teacher, hint_of
from sage_rlvr.verifiers import Verdict

KEPT = "guidance.jsonl"


def teacher_named(words: str) -> Teacher:
    """A teacher of the command line: a name, {name: policy, model: FOLDER}, or FILE.py:FUNCTION. Raises ConfigError for anything
    else."""
    if words.lstrip().startswith("{"):
        tree: Any = parse_yaml(words, "--hints")
    else:
        tree = {"name": "function", "function": words} if ".py:" in words else words
    made: Teacher = build("teacher", tree)
    return made


def words_of(teacher: Teacher) -> str:
    """A teacher in one line for a store's identity: name and settings, and the hash of its code or weights."""
    tree = dump(teacher)
    words: str = tree["name"]
    if settings := ", ".join(f"{name}: {value}" for name, value in tree.items() if name != "name"):
        words += f" ({settings})"
    if isinstance(teacher, Sourced) and teacher.sha256:
        words += f" {teacher.sha256[:16]}"
    return words


def again(chosen: EvalSet, attempts: Path, teacher: Teacher, folder: Path) -> EvalSet:
    """The problems of `chosen` with a wrong attempt in the store of `attempts`, with the teacher's hint in the prompt.

    folder: the folder of the new store. Raises ConfigError for attempts of another task, or if none failed.
    """
    option = f"--retry-failures-of {attempts}"
    if not is_store(attempts):
        raise ConfigError(f"{option}: no sample store there; pass the store of an `eval --samples`")
    with SampleStore.open(attempts) as store:
        known, digest, failed = store.identity, store.digest(), first_failures(store)
    if known.task != chosen.name:
        raise ConfigError(f"{option}: its attempts are on {known.task}, but the task is {chosen.name}; use the same task")
    rows = {name: problem for name, problem in chosen.problems.items() if name in failed}
    if not rows:
        raise ConfigError(
            f"{option}: it has no wrong attempts on these {len(chosen.problems)} problems; use the settings "
            "(--split, --seed, --problems) of the attempts"
        )
    by = f"{words_of(teacher)} after {digest[:16]}"
    hints = _kept(folder / KEPT, by) or _taught(chosen, rows, failed, teacher, by, folder / KEPT)
    if set(hints) != set(rows):
        raise ConfigError(f"{folder / KEPT}: has other problems; use the settings that it was written with, or another --store")
    hinted = {name: guided(chosen.task, problem, hints[name]) for name, problem in rows.items()}
    return replace(chosen, problems=rows, task_hash=chosen.task.fingerprint(list(rows.values())), hinted=hinted, guidance=by)


def first_failures(store: SampleStore) -> dict[str, Sample]:
    """Problem -> its first wrong attempt; undecided attempts do not count."""
    failures: dict[str, Sample] = {}
    for row in store.samples():
        if row.verdict == "wrong":
            failures.setdefault(row.problem, row)
    return failures


def own_words(row: Sample) -> list[str]:
    """The policy's texts in an attempt, one per turn."""
    texts = (row.response,) if isinstance(row.response, str) else row.response
    return [text.removesuffix(NO_ANSWER) for text in texts]


def _taught(
    chosen: EvalSet, rows: Mapping[str, Any], failed: Mapping[str, Sample], teacher: Teacher, by: str, file: Path
) -> dict[str, str]:
    """Return the teacher's hint for each problem, written to the file before it is used."""
    hints, dropped = {}, 0
    for name, problem in rows.items():
        row = failed[name]
        hints[name], leaked = hint_of(teacher, chosen.task, problem, own_words(row), Verdict(row.verdict, row.reason))
        dropped += leaked
    lines = [{"by": by, "problems": len(hints), "dropped": dropped}]
    lines += [{"problem": name, "attempt": failed[name].sample, "guidance": hint} for name, hint in hints.items()]
    text = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines)
    with writing("guidance", file, len(text)):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, text)
    return hints


def _kept(file: Path, by: str) -> dict[str, str]:
    """Return the stored hints, {} without any. Raise ConfigError if they are from another teacher or about other attempts."""
    if not file.is_file():
        return {}
    (_, head), *rows = read_json_lines(file, advice="delete the store and sample again")
    if head.get("by") != by:
        raise ConfigError(f"{file}: was written by {head.get('by')}, but now the source is {by}; use another --store")
    if not all(isinstance(row.get("problem"), str) and isinstance(row.get("guidance"), str) for _, row in rows):
        raise DataError(f"{file}: a line is not a hint for a problem; delete the store and sample again")
    return {row["problem"]: row["guidance"] for _, row in rows}


def guidance_line(folder: Path) -> str:
    """The teacher of the attempts of a store, the number of problems, and how many hints were dropped because they contained the
    reference answer."""
    (_, head), *rows = read_json_lines(folder / KEPT, advice="delete the store and sample again")
    silent = sum(not row["guidance"] for _, row in rows)
    return (
        f"guidance   {head['by']}: {head['problems']} failed problems attempted again; {head['dropped']} hints contained the "
        "reference "
        f"answer and were dropped, {silent} prompts have none; one attempt each got a hint ({folder / KEPT})"
    )


__all__ = ["KEPT", "again", "first_failures", "guidance_line", "own_words", "teacher_named", "words_of"]
