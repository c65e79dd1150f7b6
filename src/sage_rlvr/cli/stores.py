"""`eval --samples`, `compare` and `samples` on sample stores: settings, and lines from what the stores hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.cli.records import target_of
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.settings import SampleSettings, store_place

if TYPE_CHECKING:
    from sage_rlvr.evaluation.sampled_run import SampleRun
    from sage_rlvr.evaluation.samples import SampleStore


def sample_settings(command: Any, runs: Path) -> SampleRun:
    """What `sage-rlvr eval --samples` does: the policy and, for Countdown, the world of a run or model; the store's place where
    none was named."""
    from sage_rlvr.evaluation.sampled_run import SampleRun

    settings, run, world = SampleSettings.of(command), Path(command.what), None
    if settings.task == "countdown":
        target = target_of(command.what, command.world)
        policy, model, world, of_run = target.name, target.model, target.world, target.run is not None
    else:
        of_run = (run / "run.json").is_file()
        policy = "base" if command.what == "embedded" else run.name
        model = str(run / "policy") if of_run else command.what
    home = run / "samples" if of_run else runs / "samples" / policy
    store = settings.store or store_place(home, settings.store_name)
    return SampleRun(settings=settings, policy=policy, model=model, store=store, world=world)


def _opened(path: str | Path) -> SampleStore:
    from sage_rlvr.evaluation.samples import SampleStore

    return SampleStore.open(path)


def store_lines(command: Any) -> list[str]:
    """`sage-rlvr samples`: what was asked of a store, in the order import, verdicts, report, studies, export."""
    from sage_rlvr.evaluation.lm_eval import export_lm_eval, import_lm_eval
    from sage_rlvr.evaluation.sample_report import report_lines
    from sage_rlvr.evaluation.sample_studies import anatomy_lines, pattern_lines

    lines: list[str] = []
    if command.from_lm_eval is not None:
        import_lm_eval(command.from_lm_eval, command.store, model=command.model, problem_id=command.problem_id)
    elif command.model is not None or command.problem_id != "doc_id":
        raise ConfigError("--model, --problem-id: say what is imported; add --from-lm-eval samples_<task>_<date>.jsonl")
    if command.docs is not None and command.to_lm_eval is None:
        raise ConfigError(f"--docs {command.docs}: texts for an export; add --to-lm-eval FOLDER")
    with _opened(command.store) as store:
        if command.judge is not None:
            lines.append(f"{_judge_imported(store, command.judge, command.tag):,} samples judged by our verifier")
        lines += report_lines(store, command.samples)
        if command.patterns:
            lines += pattern_lines(store, command.samples)
        if command.anatomy is not None:
            lines += anatomy_lines(store, _spelled_by(command.anatomy), command.samples)
        if command.to_lm_eval is not None:
            docs = _docs_of(command.docs) if command.docs is not None else _docs_made_again(store)
            lines.append(f"written: {export_lm_eval(store, command.to_lm_eval, docs=docs, n=command.samples)}")
    return lines


def _judge_imported(store: SampleStore, answer_in: str, tag: str) -> int:
    """Verdicts of the mathematics verifier on an imported store, against the targets that came with it."""
    from sage_rlvr.evaluation.lm_eval import targets_of
    from sage_rlvr.evaluation.sampled_tasks import judged_by, mathematics_hash

    golds, reading = targets_of(store), {"answer_in": answer_in, "tag": tag}
    return store.reverify(
        lambda ids, texts: judged_by([(text, golds[i]) for i, text in zip(ids, texts, strict=True)], reading),
        mathematics_hash(reading),
    )


def _spelled_by(policy: str) -> Callable[[Sequence[int]], list[str]]:
    from sage_rlvr.models.policy import load_tokens

    tokenizer = load_tokens(policy).tokenizer
    return lambda ids: [tokenizer.decode([i]) for i in ids]


def _docs_made_again(store: SampleStore) -> dict[str, dict[str, Any]]:
    """`generated_docs`; {} for an imported store, which knows its documents."""
    from sage_rlvr.evaluation.lm_eval import is_imported
    from sage_rlvr.evaluation.sampled_tasks import generated_docs

    return {} if is_imported(store) else generated_docs(store)


def _docs_of(name: str) -> dict[str, dict[str, Any]]:
    """Problem id -> doc, target, prompt of a mathematics task or a .jsonl file."""
    from sage_rlvr.tasks.math import MathTask

    return {
        p.problem_id: {
            "doc": {"id": p.problem_id, "problem": p.text, "answer": p.answer},
            "target": p.answer,
            "prompt": p.text,
        }
        for p in MathTask(name).problems()
    }
