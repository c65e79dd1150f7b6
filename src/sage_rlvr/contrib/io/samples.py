"""`samples`: report, show, judge, import and export a sample store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from sage_rlvr.evaluation.judged import JudgeAt
    from sage_rlvr.evaluation.store import SampleStore


@dataclass(frozen=True)
class Samples(Command):
    """Print the report of a sample store, or convert it from or to lm-evaluation-harness or Parquet.

    Prints the report, reasoning patterns and signals by class of token; imports samples of the harness, judges them with the
    verifier of this package, or exports a store. The command does not sample; `samples show STORE` prints the samples.

    With one repeat, the harness's score of 0 or 1 (exact_match) is the sample's verdict until --judge; with several repeats the
    score is per document, so samples have no verdict until --judge."""

    store: tyro.conf.Positional[Path]
    """A sample store."""
    samples: int | None = None
    """Use the first N samples of each problem (default: the number that all problems have)."""
    patterns: bool = False
    """Also print how often right samples show the reasoning patterns of arXiv 2605.18864, Eq. (13)."""
    token_stats: str | None = None
    """Also print entropy, surprisal and q by class of token; the value is the policy (folder, Hub id, embedded) of the
    tokenizer."""
    from_lm_eval: Path | None = None
    """First create the store from this file of lm_eval --log_samples."""
    model: str | None = None
    """For --from-lm-eval: the policy's name (default: from the results file in the same folder)."""
    filter: str | None = None
    """For --from-lm-eval: the filter whose score and answer are used, if the file has several."""
    problem_id: str = "doc_id"
    """For --from-lm-eval: the key of doc that is the problem id; later imports into a store must use the same key."""
    judge: Literal["boxed", "tag", "last_number", "whole"] | None = None
    """Judge imported samples with the mathematics verifier of this package, which reads the answer at this place, against the
    harness's targets."""
    tag: str = "SOLUTION"
    """For --judge tag: the tag."""
    to_lm_eval: Path | None = None
    """Write the store into this folder as files of lm_eval --log_samples."""
    docs: str | None = None
    """For --to-lm-eval: the source of problem texts and golds: a mathematics task or a .jsonl file."""
    to_parquet: Path | None = None
    """Write all samples with their newest verdicts into this Parquet file."""
    from_parquet: Path | None = None
    """First create the store from a file of --to-parquet."""
    merge: bool = False
    """Merge small files left by writers that were killed; a writer that ends normally does it."""

    def execute(self, session: Session) -> int:
        """Import or export according to the options, then print the report of the store. Returns 0; raises DataError for a damaged
        file."""
        from sage_rlvr.evaluation.sample_report import pattern_lines, report_lines
        from sage_rlvr.evaluation.store import SampleStore

        self._bring_in(session)
        with SampleStore.open(self.store) as store:
            if self.merge:
                session.say("{} parts merged into {}".format(*store.merge()))
            if self.judge is not None:
                session.say(f"{_judge_imported(store, self.judge, self.tag):,} samples judged by the verifier of this package")
            self._write_out(store, session)
            session.say(*report_lines(store, self.samples, judge=_judge_at(store)))
            if self.patterns:
                session.say(*pattern_lines(store, self.samples))
            if self.token_stats is not None:
                from sage_rlvr.contrib.analysis.token_report import anatomy_lines

                session.say(*anatomy_lines(store, _spelled_by(self.token_stats), self.samples))
        return 0

    def _bring_in(self, session: Session) -> None:
        from sage_rlvr.contrib.io.lm_eval import import_lm_eval

        if self.docs is not None and self.to_lm_eval is None:
            raise ConfigError(f"--docs {self.docs}: texts for an export; add --to-lm-eval FOLDER")
        if self.from_lm_eval is not None:
            made = import_lm_eval(
                self.from_lm_eval, self.store, model=self.model, filter=self.filter, problem_id=self.problem_id
            )
            metric = made.identity.verifier_hash.removeprefix("lm_eval ")
            session.note(f"imported: {self.from_lm_eval}, verdicts of {metric} (metric, filter)")
            made.close()
        elif given := self.changed("model", "filter", "problem_id"):
            raise ConfigError(f"{given}: settings of an import; add --from-lm-eval samples_<task>_<date>.jsonl")
        if self.from_parquet is not None:
            from sage_rlvr.contrib.io.archive import from_parquet  # pyarrow

            session.say(f"read: {from_parquet(self.from_parquet, self.store):,} samples from {self.from_parquet}")

    def _write_out(self, store: SampleStore, session: Session) -> None:
        from sage_rlvr.contrib.io.lm_eval import export_lm_eval

        if self.to_lm_eval is not None:
            docs = _docs_of(self.docs) if self.docs is not None else _docs_known(store)
            session.say(f"written: {export_lm_eval(store, self.to_lm_eval, docs=docs, n=self.samples)}")
        if self.to_parquet is not None:
            from sage_rlvr.contrib.io.archive import to_parquet  # pyarrow

            session.say(f"written: {to_parquet(store, self.to_parquet):,} samples to {self.to_parquet}")


@dataclass(frozen=True)
class ShowSamples(Command):
    """Print samples of a store: prompt, gold, completion, verdict with its reason.

    Control characters are printed as their codes, such as [U+001B], and every line of a text follows a bar."""

    store: tyro.conf.Positional[Path]
    """A sample store."""
    problem: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The id of a problem, once for each (default: the first problem; the ids are listed at the end)."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 3
    """The first N samples of each problem."""
    verdict: Literal["right", "wrong", "undecided"] | None = None
    """Only samples with this verdict."""

    def execute(self, session: Session) -> int:
        """Print samples of the store in full. Returns 0; raises DataError if the folder is no sample store."""
        from sage_rlvr.evaluation.sample_text import sample_lines
        from sage_rlvr.evaluation.store import SampleStore

        with SampleStore.open(self.store) as store:
            session.say_plainly(list(sample_lines(store, self.problem, self.n, self.verdict, session.out.width)))
        return 0


def _judge_imported(store: SampleStore, answer_in: str, tag: str) -> int:
    """Verdicts of the mathematics verifier on an imported store, against its imported targets."""
    from sage_rlvr.contrib.io.lm_eval import targets_of
    from sage_rlvr.evaluation.judged import judged_by
    from sage_rlvr.tasks.math import mathematics_hash

    golds, reading = targets_of(store), {"answer_in": answer_in, "tag": tag}
    return store.reverify(
        lambda ids, texts: judged_by([(text, golds[i]) for i, text in zip(ids, texts, strict=True)], reading),
        mathematics_hash(reading),
    )


def _judge_at(store: SampleStore) -> JudgeAt | None:
    """Verdicts on an imported store with answers read at another place, against its targets; None for other stores."""
    from sage_rlvr.contrib.io.lm_eval import is_imported, targets_of
    from sage_rlvr.evaluation.judged import judged_at

    return (lambda *args: judged_at(targets_of(store))(*args)) if is_imported(store) else None


def _spelled_by(policy: str) -> Callable[[Sequence[int]], list[str]]:
    from sage_rlvr.models.policy import load_tokens

    tokenizer = load_tokens(policy).tokenizer
    return lambda ids: [tokenizer.decode([i]) for i in ids]


def _docs_known(store: SampleStore) -> dict[str, dict[str, Any]]:
    """`generated_docs`, or else the prompts and golds in the store; {} for an imported store, which contains its documents."""
    from sage_rlvr.contrib.io.documents import generated_docs
    from sage_rlvr.contrib.io.lm_eval import is_imported

    if is_imported(store):
        return {}
    kept = {
        name: {"doc": {"id": name, "problem": q.prompt, "answer": q.gold or ""}, "target": q.gold or "", "prompt": q.prompt}
        for name, q in store.questions().items()
    }
    return generated_docs(store) or kept


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
