"""A sample store into files of the harness."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.contrib.io.lm_eval.files import OURS, as_json, hashes_of, sidecar
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.sample import Sample
from sage_rlvr.runs import write_text_atomic

FILTER = "sage-rlvr"


def export_lm_eval(
    store: SampleStore,
    folder: str | Path,
    *,
    docs: Mapping[str, Mapping[str, Any]] | None = None,
    n: int | None = None,
    verifier: str | None = None,
    date: str | None = None,
) -> Path:
    """Write samples_<task>_<date>.jsonl and results_<date>.json; returns the path of the former.

    docs: problem -> {"doc": {...}, "target": text, "prompt": text}; an imported store contains them, and those of generated
        problems are made again (`sage_rlvr.contrib.io.documents.generated_docs`). n, verifier: as in
    `SampleStore.table`. date: by default now. The filter is "sage-rlvr", `exact_match` the share of right samples of the
    document, `undecided` of undecided ones; verdicts, reasons, seeds and ends are under "sage_rlvr", from which `import_lm_eval`
    makes the same store again, except for token-level columns and latencies.
    """
    date = date or datetime.datetime.now().isoformat().replace(":", "-")
    known = sidecar(store.path)
    for problem, doc in (docs or {}).items():
        known[problem] = dict(doc)
    judges = set(store.lists(("verifier",), n=n, verifier=verifier)["verifier"])
    if len(judges) != 1:
        raise DataError(
            f"{store.path}: verdicts of {sorted(judges) or 'no verifier'}; expected one verifier: run reverify"
        )
    by_problem: dict[str, list[Sample]] = {}
    for sample in store.samples(n=n, verifier=verifier):
        by_problem.setdefault(sample.problem, []).append(sample)
    unknown = [problem for problem in by_problem if problem not in known]
    if unknown:
        raise DataError(
            f"{store.path}: keeps no prompts, and {len(unknown)} problems ({unknown[0]!r}, ...) are not in "
            "docs; pass docs={problem: {'doc': {...}, 'target': ..., 'prompt': ...}} (on the command line: --docs TASK or a "
            ".jsonl file with id, problem and answer)"
        )
    sizes = {len(samples) for samples in by_problem.values()}
    if len(sizes) > 1:
        raise DataError(
            f"{store.path}: problems have {sorted(sizes)} samples; set n to write the first n of each"
        )
    lines = []
    for number, (problem, samples) in enumerate(by_problem.items()):
        lines.append(_line(number, known[problem], samples, store.identity))
    task = store.identity.task.replace("/", "_")
    path = Path(folder) / f"samples_{task}_{date}.jsonl"
    text = "".join(as_json(line) + "\n" for line in lines)
    write_text_atomic(path, text)
    summary = _summary(store.identity, task, lines, judges.pop())
    write_text_atomic(path.with_name(f"results_{date}.json"), as_json(summary, indent=2) + "\n")
    return path


def _line(number: int, known: Mapping[str, Any], rows: list[Sample], identity: Identity) -> dict[str, Any]:
    """The line of a document with all of its samples."""
    document = {"doc": dict(known["doc"]), "target": str(known["target"]), "prompt": str(known["prompt"])}
    answers = [row.text if row.answer is None else row.answer for row in rows]
    ours: dict[str, Any] = {"problem": rows[0].problem, "prompt_hash": rows[0].prompt_hash}
    for name in OURS:
        ours[name] = [getattr(row, name) for row in rows]
    request = {"arg_0": document["prompt"], "arg_1": known.get("settings") or _settings(identity)}
    return {
        "doc_id": known.get("doc_id", number),
        "doc": document["doc"],
        "target": document["target"],
        "arguments": {"gen_args_0": request},
        "resps": [[row.text for row in rows]],
        "filtered_resps": answers if len(rows) == 1 else [answers],
        "filter": FILTER,
        "metrics": ["exact_match", "undecided"],
        **hashes_of(document),
        "exact_match": _share(rows, "right"),
        "undecided": _share(rows, "undecided"),
        "sage_rlvr": ours,
    }


def _share(rows: list[Sample], verdict: str) -> float:
    return float(np.mean([row.verdict == verdict for row in rows]))


def _settings(identity: Identity) -> dict[str, Any]:
    """The decoding in the names of the harness."""
    settings = dict(identity.decoding)
    del settings["preset"]
    limit = settings.pop("max_new_tokens")
    return {"until": [], "do_sample": not identity.greedy, "max_gen_toks": limit, **settings}


def _summary(identity: Identity, task: str, lines: list[dict[str, Any]], verifier: str) -> dict[str, Any]:
    """The file of results: means over documents, and what identifies policy, problems and verifier."""
    hashes = "".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in lines)
    result: dict[str, Any] = {"alias": task, "sample_len": len(lines)}
    for name in ("exact_match", "undecided"):
        result[f"{name},{FILTER}"] = float(np.mean([line[name] for line in lines]))
    return {
        "results": {task: result},
        "config": {"model": "sage-rlvr", "model_sha": identity.revision},
        "model_name": identity.model,
        "task_hashes": {task: hashlib.sha256(hashes.encode()).hexdigest()},
        "sage_rlvr": {"identity": identity.tree() | {"verifier_hash": verifier}},
    }
