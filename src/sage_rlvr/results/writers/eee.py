"""Every Eval Ever, schema 0.3 (arXiv 2606.14516, https://evalevalai.com): pass@k of each policy as one aggregate file.

The place of a file is that of the datastore: data/COLLECTION/DEVELOPER/MODEL/UUID.json. The name of a policy is its model id, so
`Qwen/Qwen3-8B=rl.jsonl` names developer and model; a name without a developer is stored under "unknown", which the datastore does
not take.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.runs import installed, write_json_atomic
from sage_rlvr.runs.files import to_json
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row_counts import TASK
from sage_rlvr.verdicts.score_rows import score_rows
from sage_rlvr.verdicts.text.verdicts import headline
from sage_rlvr.verdicts.verdict import CurveVerdict

SCHEMA = "0.3.0"
COLLECTION = "sage-rlvr"
UNKNOWN = "unknown"
Tree = dict[str, Any]


def write_eee(results: Results, verdicts: Sequence[CurveVerdict], folder: Path, *, now: float | None = None) -> list[Path]:
    """Write one file per policy. now: seconds since 1970, by default the current time. Returns the files.

    Raises:
        DataError: For results without scores, as those of a stored summary.
    """
    rows, written = score_rows(results), list[Path]()
    if not rows:
        raise DataError("--to eee: a stored summary has no scores of its policies; compare the evaluations of its runs")
    for policy, own in grouped(rows, lambda row: str(row["policy"])).items():
        tree = policy_tree(policy, own, [one for one in verdicts if policy == one.a.arm], int(time.time() if now is None else now))
        developer, model = place_of(policy)
        written.append(folder / "data" / COLLECTION / developer / model / f"{_uuid(tree)}.json")
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(written[-1], tree)
    return written


def policy_tree(policy: str, rows: Sequence[Mapping[str, Any]], verdicts: Sequence[CurveVerdict], now: int) -> Tree:
    """The file of one policy. rows: its rows of `score_rows`; verdicts: those on it, () for the control."""
    tasks = "+".join(dict.fromkeys(_named(row["task"]) for row in rows))
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{tasks}/{policy}/{now}",
        "retrieved_timestamp": str(now),
        "source_metadata": {
            "source_name": "sage-rlvr compare",
            "source_type": "evaluation_run",
            "source_organization_name": UNKNOWN,
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "sage-rlvr", "version": installed(("sage-rlvr",)).get("sage-rlvr", UNKNOWN)},
        "model_info": {
            "name": policy,
            "id": policy,
            **({"developer": policy.partition("/")[0]} if "/" in policy else {}),
            "additional_details": {"deployment_type": UNKNOWN, "model_availability": UNKNOWN},
        },
        "evaluation_results": [_result(row, verdicts) for row in rows],
    }


def _result(row: Mapping[str, Any], verdicts: Sequence[CurveVerdict]) -> Tree:
    """pass@k at one k with its interval."""
    k, task, heat = row["k"], _named(row["task"]), row["temperature"]
    at = "" if heat is None else f"/T={heat:g}"
    known_heat = {} if heat is None else {"generation_config": {"generation_args": {"temperature": heat}}}
    return {
        "evaluation_result_id": f"{task}{at}/pass@{k}",
        "evaluation_name": task,
        "source_data": {"dataset_name": task, "source_type": "other"},
        "metric_config": {
            "evaluation_description": "the share of problems that at least one of k samples solves, the unbiased estimate",
            "metric_id": "pass_at_k",
            "metric_name": f"pass@{k}",
            "metric_kind": "pass_rate",
            "metric_unit": "proportion",
            "metric_parameters": {"k": k},
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
        },
        "score_details": {"score": row["pass"], "details": dict(_details(row, verdicts)), **_uncertainty(row)},
        **known_heat,
    }


def _named(task: str) -> str:
    """The name of a task; rows may have none."""
    return UNKNOWN if task in ("", TASK) else task


def _uncertainty(row: Mapping[str, Any]) -> Tree:
    """The interval; none over two training seeds or one problem."""
    if not -1 <= row["low"] <= row["high"] <= 1:
        return {}
    interval = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95, "method": f"over {row['over']}"}
    return {"uncertainty": {"confidence_interval": interval, "num_samples": row["problems"]}}


def _details(row: Mapping[str, Any], verdicts: Sequence[CurveVerdict]) -> Iterator[tuple[str, str]]:
    """The numbers behind a score, and the verdict on the policy, as texts."""
    yield "problems", str(row["problems"])
    yield "samples_per_problem", "exact" if row["samples"] is None else str(row["samples"])
    yield "training_seeds", str(row["seeds"])
    if row["chance"] is not None:
        yield "chance_floor", f"{row['chance']:.6g}"
        yield "below_chance", str(row["below_chance"]).lower()
    for one in verdicts:
        if one.a.task == row["task"] and row["temperature"] in (None, one.a.temperature):
            yield "compared_with", one.b.arm
            yield "verdict", headline(one)


def place_of(policy: str) -> tuple[str, str]:
    """The folders of developer and model in the datastore."""
    developer, slash, model = policy.partition("/")
    names = (developer, model) if slash else (UNKNOWN, policy)
    clean = [re.sub(r"[^\w.+-]+", "_", name).strip(". ") or UNKNOWN for name in names]
    return clean[0], clean[1]


def _uuid(tree: Tree) -> uuid.UUID:
    """A UUID of version 4 from the content: the same results have the same name."""
    return uuid.UUID(bytes=hashlib.sha256(to_json(tree, "eee").encode()).digest()[:16], version=4)
