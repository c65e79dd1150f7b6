"""The formats that are known: the keys of each, and its reader, which is imported when a file of the format is read.

    FORMATS   formats with a function of their own
    COLUMNS   formats whose rows only need other names of their columns, as `compare --fields` gives them (named.py)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import READERS, Choice, FileRows, RowReader

FORMATS: dict[str, tuple[str, tuple[tuple[str, ...], ...], str]] = {
    "counts": (".own:counts", (("id", "n", "c"),), "one row per problem: samples and correct samples"),
    "samples": (
        ".own:samples", (("id", "correct"), ("id", "score"), ("id", "text"), ("id", "answer")), "one row per completion",
    ),
    "lm_eval": (
        ".lm_eval:lm_eval", (("doc_id", "doc", "target", "resps", "filter", "metrics"),),
        "lm-evaluation-harness, samples_*.jsonl",
    ),
    "inspect_ai": (
        ".inspect_ai:inspect_ai", (("header.json", "samples/"), ("eval", "samples", "status")), "inspect_ai, .eval and .json logs",
    ),
    "lighteval": (".lighteval:lighteval", (("doc", "model_response", "metric"),), "lighteval, details_*.parquet"),
    "remax": (".remax:remax", (("record_kind", "protocol", "primary", "parent_cache"),), "released samples of remax-rl"),
    "verifiers": (
        ".verifiers:results", (("example_id", "reward", "prompt", "completion"),), "verifiers, results.jsonl of version 0",
    ),
    "verifiers_traces": (
        ".verifiers:traces", (("env", "task", "traces", "ok"),), "verifiers from version 1 on and prime-rl, traces.jsonl",
    ),
    "every_eval_ever": (
        ".every_eval_ever:samples",
        (("schema_version", "evaluation_id", "sample_id", "evaluation"), ("schema_version", "evaluation_id", "evaluation_results")),
        "Every Eval Ever, *_samples.jsonl",
    ),
    "trl": (
        ".trl:trl", (("step", "prompt", "completion", "advantage"),), "TRL, completions_*.parquet or the folder completions/",
    ),
    "evalplus": (".evalplus:evalplus", (("date", "hash", "eval"),), "EvalPlus, *eval_results.json"),
    "tinker": (
        ".tinker:tinker", (("group_idx", "traj_idx", "total_reward", "split", "iteration"),),
        "tinker-cookbook, eval_*_rollout_summaries.jsonl",
    ),
}  # fmt: skip
"""Name -> .module:function, sets of keys of which a file has one, and the program."""
COLUMNS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    # Validation (trainer.validation_data_dir) and rollouts (trainer.rollout_data_dir): besides `score`, other numbers of the
    # reward function may be the score.
    "verl": (
        ("input", "output", "score", "step"),
        {"id": "input", "text": "output", "gold": "gts", "step": "step", "task": "data_source"},
        "verl, validation and rollout dumps",
    ),
    "qwen_math": (
        ("idx", "gt", "pred", "score", "code"),
        {"id": "idx", "correct": "score", "text": "code", "answer": "pred", "gold": "gt", "prompt": "question"},
        "Qwen2.5-Math and its descendants, one row per problem",
    ),
    "livecodebench": (
        ("question_id", "graded_list", "output_list"),
        {"id": "question_id", "correct": "graded_list", "text": "output_list", "prompt": "question_content"},
        "LiveCodeBench, *_eval_all.json",
    ),
    "nemo_skills": (
        ("problem", "expected_answer", "generation", "symbolic_correct"),
        {
            "id": "problem", "correct": "symbolic_correct", "text": "generation", "answer": "predicted_answer",
            "gold": "expected_answer",
        },
        "NeMo-Skills, output-rs*.jsonl, the folder for all seeds of sampling",
    ),
    "sharpening_tax": (
        ("task_id", "pass_flags"), {"id": "task_id", "correct": "pass_flags"}, "Sharpening Tax, one row per task",
    ),
}  # fmt: skip
"""Name -> keys of a file, its columns by the names of rows, and the program. Without "correct" and "score" all other numbers may be
the score."""


def _late(place: str) -> Callable[[RowFile, Choice], FileRows]:
    """The reader at .module:function, imported at its first call."""
    module, _, name = place.partition(":")

    def rows(file: RowFile, choice: Choice) -> FileRows:
        found: FileRows = getattr(import_module(module, __package__), name)(file, choice)
        return found

    return rows


def _renamed(columns: dict[str, str]) -> Callable[[RowFile, Choice], FileRows]:
    """The reader of rows with other names of their columns."""

    def rows(file: RowFile, choice: Choice) -> FileRows:
        from sage_rlvr.verdicts.readers.named import rows_with

        return rows_with(columns, file, choice)

    return rows


def add_formats() -> None:
    """Put every known format into `READERS`."""
    for name, (place, needs, about) in FORMATS.items():
        READERS[name] = RowReader(name, tuple(map(frozenset, needs)), _late(place), about)
    for name, (keys, columns, about) in COLUMNS.items():
        READERS[name] = RowReader(name, (frozenset(keys),), _renamed(columns), about)
