"""`compare`: compare evaluations of the same problems."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.progress import reporting

if TYPE_CHECKING:
    from sage_rlvr.api.compare import Comparison
    from sage_rlvr.verdicts.rejudged import Rejudged
    from sage_rlvr.verdicts.sources import GivenRows
    from sage_rlvr.verifiers import Verdict

BATCH = 2048  # completions between two lines of progress
FAILED = 3  # exit code for a broken rule of --fail-on


@dataclass(frozen=True)
class Compare(Command):
    """Compare evaluations of the same problems.

    The first policy is the control of all others. Each is a file of rows (counts, samples, or a log of another program:
    docs/reference/rows.md), a folder of such logs (TRL's completions/), a record (.npz), a run directory, a sample store,
    "embedded", or NAME=PATH[,PATH...]; several paths are training seeds of one method, or sample stores of one policy at several
    temperatures. FILE@WORD selects the rows of one step, arm or task. One file of rows is described by itself. For a folder of
    `sweep` or `demo`, the design in the folder defines the comparisons."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    """The arms, the control first: PATH, FILE@WORD or NAME=PATH[,PATH...]; one file of rows, which is described by itself; or one
    folder of a sweep."""
    split: Literal["train", "validation", "test"] | None = None
    """The split of the evaluations (default: the sweep's split, else test)."""
    k: int | None = None
    """The largest k of pass@k, the share of problems that one of k samples solves (default: all samples, at most 256)."""
    samples: int | None = None
    """For sample stores and files of samples: use the first N samples of each problem (default: all, which requires equal
    numbers)."""
    correct: tuple[str, ...] = ()
    """For files of rows with several scores: the one that means correct in every file (a metric,filter of lm-eval, a scorer,
    a reward); two names, one of each file, if the same score has two names."""
    fields: str | None = None
    """For files of rows with other columns, in every file: id=question_id,correct=is_correct,text=response. A column may be a
    path (outputs/text), a list with one value per completion, or a text that means correct (correct=status=pass)."""
    judge: str | None = None
    """For files of rows with texts: mark every completion here instead of reading a score: boxed, last_number, stated, tag,
    whole, anywhere (mathematics), exact_match, or my_reward.py:score, which is run."""
    common: bool = False
    """For files of rows: compare the problems that all sides have, and leave out the others."""
    unscored: Literal["wrong", "omit"] | None = None
    """For files of rows: completions without a score (null, NaN, an error) count as wrong, or their problems are left out on both
    sides (default: an error that counts them)."""
    right_from: float | None = None
    """For files of rows with graded scores: the least score that counts as correct."""
    verify: Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"] | None = None
    """For files of rows with texts and golds: judge every completion again, reading its answer at this place, in addition to the
    file's score."""
    chance: tuple[str, ...] = ()
    """For files of rows: the probability that one guess is right, X for all tasks or TASK=X; of four choices 0.25."""
    task: str | None = None
    """For files of rows: the task of the problems, by name or of a recipe (.yaml); its guesses give the chance floor."""
    fixed_problems: bool = False
    """For several training seeds: judge methods on these problems only; by default on such problems, whose choice is in the
    intervals."""
    patterns: bool = False
    """For sample stores: also compare the reasoning patterns of right samples."""
    support: bool = False
    """Also print counts and rates of the support kept, gained and lost (SRR, NDR, SDS, NSCR), with intervals."""
    full: bool = False
    """Print everything: the files as read, gain and loss over k, reliability, distinct answers, power; by default the answer, one
    table and all warnings."""
    out: Path | None = None
    """Also write the page, the figures and summary.json into this folder, or next to this .html file; or only the picture of pass@k
    into this .svg, .png or .pdf file."""
    to: tuple[Literal["eee"], Path] | None = None
    """Also write the scores for other programs: `--to eee DIR`, one file per policy by the schema of Every Eval Ever 0.3. The name
    of a policy is its model id (Qwen/Qwen3-8B=rl.jsonl)."""
    log_to: tuple[str, ...] = ()
    """Also log scores, verdict and picture to runs of trackers: tensorboard=FOLDER, wandb=[ENTITY/]PROJECT/RUN,
    trackio=PROJECT/RUN, or a run directory with report_to."""
    github_summary: bool = False
    """Also append the verdict and the table to the summary of the running step of GitHub Actions ($GITHUB_STEP_SUMMARY)."""
    json: bool = False
    """Print the verdicts as JSON instead of text (schema: docs/reference/verdict.schema.json)."""
    fail_on: tuple[str, ...] = ()
    """Exit with code 3 if pass@K is lower than the control's (pass@8), lower at any k (loss), or higher at no k (no-gain)."""

    def execute(self, session: Session) -> int:
        """Read the arms, judge again if requested, print or write the comparisons. Returns 0; raises ConfigError for options
        that cannot be combined, DataError for inputs that cannot be compared."""
        from sage_rlvr.api.compare import OF_STORES, comparison_of, has_stores

        self._check_taken()
        if self.github_summary or self.log_to:
            from sage_rlvr.cli.compare_writers import check

            check(self.github_summary, self.log_to)
        if self.patterns and self.arms and not has_stores(self.arms):
            raise ConfigError(OF_STORES)
        with reporting(session.note, f"compare: reading {', '.join(self.arms)}"):
            comparison = comparison_of(
                self.arms, split=self.split, k=self.k, samples=self.samples, correct=self.correct, right_from=self.right_from,
                unscored=self.unscored, chance=shares_of(self.chance), task=self.task or "", answers_in=self.verify or "",
                fixed_problems=self.fixed_problems, fields=self.fields, judge=self.judge or "", common=self.common,
            )  # fmt: skip
        results, rows = comparison.results, comparison.comparisons
        if comparison.alone:
            return self._describe(session, comparison)
        if self.support and any(row.cluster for row in results.table.rows):
            raise ConfigError('--support: it has no intervals over clusters; omit it, or remove "cluster" from the rows')
        rejudged = self._rejudged(session, results.given)
        broken = self._judge(session, comparison, rejudged)
        with results.believed(), reporting(session.note, "compare: computing intervals"):
            if not self.json:
                self._print(session, comparison)
            if rejudged and not self.json:
                from sage_rlvr.verdicts.text.rejudged import lines

                session.say_plainly(["", *lines(rejudged)])
            if self.patterns:
                from sage_rlvr.api.printed import patterns

                session.say(*patterns(results))
            if self.out is not None:
                (session.note if self.json else session.say)(self._written(comparison, self.out))
            if self.to or self.github_summary or self.log_to:
                from sage_rlvr.cli.compare_writers import send

                send(
                    comparison, session.note if self.json else session.say, eee=self.to[1] if self.to else None,
                    github_summary=self.github_summary, log_to=self.log_to,
                )  # fmt: skip
        session.note(*(f"--fail-on: {text}" for text in broken))
        return 2 if not rows else FAILED if broken else 0  # without rows the last line is the reason

    def _describe(self, session: Session, comparison: Comparison) -> int:
        """Print one policy that is compared with none."""
        from sage_rlvr.verdicts import one_file
        from sage_rlvr.verdicts.text.one_file import lines as portrait_lines

        if given := self.changed("out", "to", "log_to", "github_summary", "fail_on", "support", "patterns", "fixed_problems"):
            raise ConfigError(f"{given}: of a comparison, and there is one policy; pass a second file, or omit the option")
        rejudged = self._rejudged(session, comparison.results.given)
        with reporting(session.note, "compare: computing intervals"):
            if self.json:
                tree = one_file.tree(comparison.results) | ({"rejudged": [one.tree() for one in rejudged]} if rejudged else {})
                session.say_plainly(json.dumps(tree, indent=1, ensure_ascii=False).splitlines())
            else:
                session.say(*portrait_lines(comparison.results))
        if rejudged and not self.json:
            from sage_rlvr.verdicts.text.rejudged import lines

            session.say_plainly(["", *lines(rejudged)])
        return 0

    def _print(self, session: Session, comparison: Comparison) -> None:
        """Print the answer with one table, or with --full and --support everything."""
        results, findings = comparison.results, comparison.findings
        full = self.full or self.support
        if results.of_files and not self.support:
            if full:
                from sage_rlvr.verdicts.text.screen import all_lines

                session.say(*all_lines(results, findings))
            else:
                from sage_rlvr.verdicts.text.screen import MORE, brief_lines

                session.say(*brief_lines(results, findings), MORE)
        elif full:
            from sage_rlvr.api.printed import print_results

            print_results(session.out, results, findings, support=self.support)
        else:
            from sage_rlvr.api.printed import print_brief

            print_brief(session.out, results, findings)

    def _written(self, comparison: Comparison, out: Path) -> str:
        """Write the page or the picture. Returns what was written."""
        from sage_rlvr.api.picture import PICTURES, write_picture
        from sage_rlvr.api.report import write_page

        if out.suffix.lower() in PICTURES and not out.is_dir():
            return f"\npicture  {write_picture(comparison.results, comparison.findings, out)}"
        page = write_page(comparison, out)
        kinds = "{png,svg,pdf}" if page.values["crossings"] else "png"
        return f"\npage     {page.written[0]}\nfigures  {page.written[0].parent}/figures/*.{kinds}"

    def _check_taken(self) -> None:
        """Raise ConfigError if no arm is left, because an option with several words took all of them."""
        words = {"--correct": self.correct, "--chance": self.chance, "--fail-on": self.fail_on, "--log-to": self.log_to}
        taken = [(option, values) for option, values in words.items() if len(values) > 1]
        if taken and not self.arms:
            option, values = taken[-1]
            raise ConfigError(
                f"compare: no arms; {option} took all words behind it ({' '.join(values)}). Put the arms before the options, for "
                f"example: {suggest('compare', 'BASE', 'RL', option, values[0])}"
            )

    def _rejudged(self, session: Session, given: Sequence[GivenRows]) -> list[Rejudged]:
        """The completions of files judged again, with --verify."""
        if self.verify is None:
            return []
        from sage_rlvr.progress import counting
        from sage_rlvr.results.rejudged import rejudge
        from sage_rlvr.verifiers.pool import shared

        def judge(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
            verdicts: list[Verdict] = []
            with counting(session.err, "verify", len(pairs)) as advance:
                for start in range(0, len(pairs), BATCH):
                    verdicts += shared().verify(pairs[start : start + BATCH], answer_in=self.verify)
                    advance(len(verdicts) - start)
            return verdicts

        return rejudge(given, judge)

    def _judge(self, session: Session, comparison: Comparison, rejudged: Sequence[Rejudged]) -> list[str]:
        """The rules of --fail-on that a verdict breaks; prints the verdicts with --json."""
        if not self.json and not self.fail_on:
            return []
        from sage_rlvr.verdicts.text.fail_on import failures
        from sage_rlvr.verdicts.verdict_json import tree

        results = comparison.results
        if not results.sampled_only:
            raise ConfigError(
                "--json, --fail-on: only for files of rows and sample stores; --out writes summary.json for all others"
            )
        broken = failures(comparison.findings.verdicts, self.fail_on)
        if self.json:
            made = tree(comparison.findings.verdicts, results.given, [*results.failed, *results.notes], broken)
            made |= {"rejudged": [one.tree() for one in rejudged]} if rejudged else {}
            session.say_plainly(json.dumps(made, indent=1, ensure_ascii=False).splitlines())
        return broken


def shares_of(words: Sequence[str]) -> dict[str, float]:
    """Task -> probability that one guess is right, from X and TASK=X; "" for all tasks."""
    shares: dict[str, float] = {}
    for word in words:
        task, _, text = word.rpartition("=")
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 1:
            raise ConfigError(f"--chance {word}: expected X or TASK=X; X is the probability that one guess is right, from 0 to 1")
        if task in shares:
            raise ConfigError(f"--chance {word}: {task or 'all tasks'} has {shares[task]:g} already; pass one number for each task")
        shares[task] = share
    return shares
