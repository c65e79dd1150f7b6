"""verifiers: results.jsonl of version 0, one row per rollout; traces.jsonl of later versions and of prime-rl, one row per episode.

A rollout or trace that ended in an error has no score. prime-rl writes the same traces for training batches and for evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.verdicts.readers.fields import Fields, gold_text, messages_text
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates, value_of

OWN = (
    "example_id", "prompt", "completion", "answer", "info", "error", "error_chain", "long_error_chain", "timing", "is_completed",
    "is_truncated", "stop_condition", "metrics", "tool_defs", "token_usage", "task", "trajectory",
)  # fmt: skip
CUT = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Stop conditions of traces that were cut (`Trace.is_truncated` of verifiers 0.4)."""
BATCHES = (
    "{}: episodes of training batches, sampled while the policy changed, and no held-out set. Pass the traces of an evaluation: "
    "rollouts/step_N/eval/effective/traces.jsonl."
)


def results(file: RowFile, choice: Choice) -> FileRows:
    """Rollouts with `reward`, or with one of the metrics of the rubric, which are columns too."""
    kept = [Fields(file, number, tree) for number, tree in file.rows()]
    columns = candidates((row.tree for row in kept), OWN, file.path)
    name = choice.of(columns, file.path, columns=columns)
    for row in kept:
        made = {
            "id": row.id("example_id"), "text": messages_text(row.tree.get("completion")),
            "gold": gold_text(row.tree.get("answer")), "prompt": messages_text(row.tree.get("prompt")),
            "cut": row.get("is_truncated", bool), "task": row.get("task", str),
        }  # fmt: skip
        yield row.number, made | {"score": None if row.tree.get("error") else value_of(row.tree, name)}


def traces(file: RowFile, choice: Choice) -> FileRows:
    """Traces with `reward`, the weighted sum of the rewards, or with one reward or metric. Agents of several names are arms."""
    kept = [
        (Fields(file, number, tree), Fields(file, number, trace, path))
        for number, tree in file.rows()
        for path, trace in _traces(Fields(file, number, tree))
    ]
    scores = [_scores(trace) for _, trace in kept]
    columns = candidates(scores, (), file.path, every=True)
    name = choice.of(columns, file.path, columns=columns)
    agents = sorted({agent for _, trace in kept if (agent := trace.inside("agent").get("name", str))})
    if any(episode.inside("run").inside("work").get("type", str) == "train" for episode, _ in kept):
        choice.notes.append(BATCHES.format(file.path))
    for (episode, trace), values in zip(kept, scores, strict=True):
        task, nodes = trace.inner("task"), trace.list_of("nodes", dict)
        data = task.inside("data")
        made = {
            "id": task.get("key", str) or task.get("hash", str) or data.id("idx"), "task": _task(episode),
            "text": _reply(trace, nodes), "cut": _is_cut(trace), "step": episode.inside("run").inside("work").get("step", int),
            "prompt": messages_text(data.tree.get("prompt")), "gold": _gold(data.tree.get("answer")),
        }  # fmt: skip
        made["score"] = value_of(values, name) if trace.get("ok", bool) else None
        if len(agents) < 2:
            yield trace.number, made
        else:
            own = trace.inside("agent").get("name", str)
            yield from ((trace.number, made | {"arm": one}) for one in ([own] if own else agents))


def _traces(episode: Fields) -> list[tuple[str, Mapping[str, Any]]]:
    """The traces of an episode with their paths; for one that failed before its first trace its task, without a score."""
    traces = [(f"traces[{index}].", trace) for index, trace in enumerate(episode.list_of("traces", dict))]
    return traces or [("", {"task": episode.need("task", dict), "ok": False})]


def _scores(trace: Fields) -> dict[str, Any]:
    """reward, "rewards/NAME" and "metrics/NAME" of a trace; None for those that were not computed."""
    rewards = {name: trace.inside("rewards").inside(name) for name in trace.inside("rewards").tree}
    known = {name: one.need("score", float) for name, one in rewards.items() if one.tree}
    weights = {name: 1.0 if (weight := one.get("weight", float)) is None else weight for name, one in rewards.items()}
    total = sum(score * weights[name] for name, score in known.items())
    inner = {f"rewards/{name}": known.get(name) for name in rewards}
    inner |= {f"metrics/{name}": value for name, value in trace.inside("metrics").tree.items()}
    return {"reward": total if known else None} | inner


def _task(episode: Fields) -> str:
    env = episode.inside("env")
    return env.get("name", str) or env.get("id", str) or ""


def _reply(trace: Fields, nodes: list[Mapping[str, Any]]) -> str | None:
    """The last message that the model sampled."""
    if (root := trace.get("root_reply", str)) is not None:
        return str(root)
    return next(_contents(nodes), None)


def _contents(nodes: list[Mapping[str, Any]]) -> Iterator[str]:
    """The texts of sampled messages, the last first."""
    for node in reversed(nodes):
        message = node.get("message")
        if node.get("sampled") and isinstance(message, Mapping) and isinstance(message.get("content"), str):
            yield message["content"]


def _is_cut(trace: Fields) -> bool:
    calls = [call for call in trace.list_of("calls", dict) if not call.get("error")]
    return trace.get("stop_condition", str) in CUT or bool(calls and calls[-1].get("finish_reason") == "length")


def _gold(value: Any) -> str | None:
    return gold_text(value) if isinstance(value, (str, int, float)) else None
