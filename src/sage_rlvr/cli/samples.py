"""`samples`: a sample store read again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from sage_rlvr.cli.session import Command, Session


@dataclass(frozen=True)
class Samples(Command):
    """Read a sample store again, or exchange it with lm-evaluation-harness.

    It says its report, reasoning patterns and signals by class of token; it brings samples of the harness in, judges them by
    our verifier, or writes a store out as such samples. Nothing is drawn.

    Where the harness ran one repeat, its own score of 0 or 1 (exact_match) is the sample's verdict until --judge; with several
    repeats its score is of the document, so no sample is judged until --judge."""

    store: tyro.conf.Positional[Path]
    """A sample store."""
    samples: int | None = None
    """The first so many samples of each problem (default: as many as all have)."""
    patterns: bool = False
    """Also how often right samples show the reasoning patterns of arXiv 2605.18864, Eq. (13)."""
    anatomy: str | None = None
    """Also entropy, surprisal and q by class of token: the policy (folder, Hub id, embedded) whose tokenizer spells them."""
    from_lm_eval: Path | None = None
    """First make the store from this file of lm_eval --log_samples."""
    model: str | None = None
    """Of --from-lm-eval: the policy's name (default: what the results file beside it says)."""
    problem_id: str = "doc_id"
    """Of --from-lm-eval: the key of doc that names a problem; a store holds to the one it was imported with."""
    judge: Literal["boxed", "tag", "last_number", "whole"] | None = None
    """Judge imported samples by our mathematics verifier, which reads the answer there, against the harness's targets."""
    tag: str = "SOLUTION"
    """Of --judge tag."""
    to_lm_eval: Path | None = None
    """Write the store into this folder as files of lm_eval --log_samples."""
    docs: str | None = None
    """Of --to-lm-eval: texts and golds of the problems: a mathematics task or a .jsonl file."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.stores import store_lines

        session.say(*store_lines(self))
        return 0
