"""The report of a sample store as lines: scores with their caveats, and reasoning patterns.

    k | pass@k | pass^k | maj@k | distinct right answers in k, each [interval] | chance
    families and marks of answers   (`forms.py`)
    avg@n, Cover@tau, truncation rate, undecided share, PCMD, answer and token entropy, q: each with its interval over problems
    patterns   Eq. (13) of arXiv 2605.18864, both averages, counts        (`verdicts/stats/samples`)
    excess     appendix J: samples beyond the base's own 95 % quantile     (`verdicts/stats/samples`)

All from the first n samples of every problem, so that two stores of equal n give the same lines whatever else they contain. An
undecided sample is not right. A function of the store's rows only: equal digests give equal lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.evaluation.chance import chance_of_store
from sage_rlvr.evaluation.forms import forms_of
from sage_rlvr.evaluation.judged import UNJUDGED, JudgeAt, problems_in, reasons_of
from sage_rlvr.evaluation.store import Counts, SampleStore
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED, TURNS, own_of, turns_in
from sage_rlvr.safe_io import parse_json
from sage_rlvr.tasks.base import Task
from sage_rlvr.verdicts.chance import BELOW, UNKNOWN, Chance
from sage_rlvr.verdicts.stats.intervals import Interval, column_intervals, mean_interval, passk_interval, share_interval
from sage_rlvr.verdicts.stats.passk import cover_at_tau, pass_hat_k, powers
from sage_rlvr.verdicts.stats.samples.clusters import clusters, pooled_share, ratio_interval
from sage_rlvr.verdicts.stats.samples.diversity import (
    BOTH_RIGHT,
    answer_entropy,
    expected_distinct_correct,
    pcmd,
    pcmd_interval,
    token_entropy,
)
from sage_rlvr.verdicts.stats.samples.majority import maj_at_k
from sage_rlvr.verdicts.stats.samples.patterns import pattern_frequencies
from sage_rlvr.verdicts.stats.samples.perplexity import perplexities, perplexity_excess, perplexity_tails
from sage_rlvr.verdicts.stats.tempered import reweighted
from sage_rlvr.verdicts.text.perplexity import excess_words
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.reasons import NO_ANSWER, UNDECIDED

SAMPLED_POWERS = (1.5, 2.0, 4.0)  # powers over full completions; sharper ones leave too few effective samples
FEW_PROBLEMS = 20  # number of problems below which a report has few lines
TAUS = (0.25, 0.5, 0.75, 1.0)
LEGEND = (
    "           pass@k: at least one of k samples is right; pass^k: all k are right; maj@k: the most frequent answer of k is "
    "right; "
    "Cover@tau: share of problems with at least a share tau of right samples"
)
TAIL_QUANTILES = (0.5, 0.95, 0.99)
MAJORITY_KS, MAJORITY_DRAWS = (8, 64), 400  # and n itself, exactly; for the others that many subsets per problem
EXCESS_AT = 0.95
CUTS = {"top_p": 1, "top_k": 0, "min_p": 0}  # the value of each at which it cuts nothing


class SampleColumns:
    """The first n samples of every problem, column by column. of (M,): the number of each one's problem, among `many`. Reports
    of samples and comparisons make it from a store."""

    def __init__(self, store: SampleStore, n: int | None) -> None:
        self.store, self.n = store, n
        self.problems = self["problem"]
        self.of, self.many = clusters(self.problems)
        self.right = np.array([verdict == "right" for verdict in self["verdict"]], dtype=bool)

    def __getitem__(self, name: str) -> list[Any]:
        """A column of the store, as `SampleStore.lists` returns it."""
        return self.store.lists((name,), n=self.n)[name]

    @cached_property
    def own(self) -> list[NDArray[np.bool_]] | None:
        """Masks of the tokens that the policy sampled, for episodes; None if it sampled all."""
        if TURNS not in self.store.columns:
            return None
        return [own_of(turns_in(text)) for text in self[TURNS]]

    def of_policy(self, rows: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """A token-level column without gaps, (T_i,) each, at the tokens that the policy sampled."""
        return rows if self.own is None else [row[own] for row, own in zip(rows, self.own, strict=True)]

    def arrays(self, name: str) -> list[NDArray[Any]] | None:
        """`of_policy` of a column by name; None if a sample has no value."""
        column = self[name]
        return None if gaps(column) else self.of_policy(column)

    def sums(self, values: Any) -> NDArray[Any]:
        """Values (M,) summed by problem."""
        return np.bincount(self.of, values, self.many)

    def parts(self, values: Any) -> list[NDArray[Any]]:
        """Values (M,) by problem."""
        return [np.asarray(values)[self.of == i] for i in range(self.many)]

    def solutions(self) -> tuple[list[str], NDArray[np.bool_], list[str]]:
        """Texts, which of them are right, and their problems. Raises DataError if none is right."""
        if not self.right.any():
            raise DataError(f"{self.store.path}: no sample is right, and patterns are counted only in right samples")
        return self["text"], self.right, self.problems


def gaps(column: Sequence[Any]) -> int:
    """Return the number of samples without a value of a column."""
    return sum(value is None for value in column)


def common_n(store: SampleStore) -> int:
    """The largest n that every problem of the store has. DataError for an empty store."""
    counts = store.counts(check=False)
    if not len(counts.n):
        raise DataError(f"{store.path}: has no samples yet; run the evaluation first")
    return int(counts.n.min())


def report_lines(
    store: SampleStore,
    n: int | None = None,
    *,
    location: str = "",
    judge: JudgeAt | None = None,
    brief: bool = False,
    task: Task | None = None,
) -> list[str]:
    """The lines of a report, see the module.

    n: by default `common_n`
    location: where answers are read, in words
    judge: verdicts at other places
    task: the task of the samples, by default by the store's name; it defines the forms of answers
    brief: for fewer than `FEW_PROBLEMS` problems only pass@k and errors: all other numbers are noise at that size

    The first lines are about the reasons why most samples failed."""
    n = common_n(store) if n is None else n
    counts, drawn, law = store.counts(n), SampleColumns(store, n), store.identity.decoding
    cuts = [f"{name} {law[name]:g}" for name, off in CUTS.items() if law[name] != off]
    reasons = reasons_of(store, n)
    lines = [
        f"{store.identity.task}: {len(counts.problems)} problems, n = {n} samples each; preset {law['preset']}: "
        f"T {law['temperature']:g}, {', '.join(cuts) or 'no truncated sampling'}; 95 % intervals over problems and their samples"
    ]
    if store.lacking(counts):
        lines.append(f"INCOMPLETE: {store.lacking(counts)}")
    ends = _truncated_line(counts, law["max_new_tokens"])
    if set(drawn["reason"]) == {UNJUDGED}:  # an import whose harness gave no verdict per sample
        lines.append(
            f"no pass@k: none of the {counts.n.sum():,} samples has a verdict; add --judge boxed (or tag, last_number, whole)"
        )
        return [*lines, ends, *_token_lines(drawn), *_added_lines(drawn)]
    c = counts.right
    covers = [f"{tau:g}: {cell(share_interval(np.asarray(cover_at_tau(n, c, tau))))}" for tau in TAUS]
    none = drawn.sums([Verdict(*outcome).unanswered for outcome in zip(drawn["verdict"], drawn["reason"], strict=True)])
    over = f"(over {len(counts.problems)} problems)"
    chance = chance_of_store(store.facts(), counts.problems)
    if brief and len(counts.problems) < FEW_PROBLEMS:
        few = f"fewer than {FEW_PROBLEMS} problems decide little; all scores: {suggest('samples', store.path)}"
        wrong = {
            f"no answer  {_share(none, counts.n)} {over}, counted as wrong{reasons.often(NO_ANSWER)}": none,
            ends: counts.truncated,
            f"undecided  {_share(counts.undecided, counts.n)} {over}, counted as not right": counts.undecided,
        }
        shown = [line for line, count in wrong.items() if np.any(count)]
        problems = problems_in(store, reasons, n, location=location, judge=judge)
        return [*problems, *lines, *_brief(c, n, chance), *shown, *_added_lines(drawn), few]
    return [
        *problems_in(store, reasons, n, location=location, judge=judge),
        *lines,
        *_table(drawn, c, n, chance),
        f"avg@{n}     {cell(passk_interval(n, c, 1))}",
        "Cover@tau  " + "  ".join(covers),
        LEGEND,
        *_form_lines(store, n, task),
        f"no answer  {_share(none, counts.n)} {over}, counted as wrong{reasons.often(NO_ANSWER)}",
        ends,
        f"undecided  {_share(counts.undecided, counts.n)} {over}, counted as not right{reasons.often(UNDECIDED)}",
        *_tempered_lines(drawn),
        *_token_lines(drawn),
        *_added_lines(drawn),
    ]


def _form_lines(store: SampleStore, n: int, task: Task | None) -> list[str]:
    forms = forms_of(store, n, task)
    return [] if forms is None else forms.lines()


def _truncated_line(counts: Counts, limit: int) -> str:
    """The share of samples that met the limit, among samples with a recorded end."""
    known = counts.n - counts.finish_unknown
    if not known.any():
        return "truncated  not recorded"
    of = f" of the {known.sum():,} samples whose end was recorded" if counts.finish_unknown.any() else ""
    share = _share(counts.truncated, known)
    return f"truncated  {share} (over {np.count_nonzero(known)} problems){of} reached the limit of {limit} tokens"


def _table(drawn: SampleColumns, c: NDArray[Any], n: int, chance: Chance | None) -> list[str]:
    """Scores over k. Over problems: maj@k of some k, distinct right answers at each k, and last PCMD and the answers' entropy."""
    ks, some = powers(n), [k for k in MAJORITY_KS if k < n]
    votes, distinct, pairs, entropy = [], [], [], []
    answers = np.array(drawn["answer"], dtype=object)
    for given, right in zip(drawn.parts(answers), drawn.parts(drawn.right), strict=True):
        few = maj_at_k(given.tolist(), right, some, method="sample", draws=MAJORITY_DRAWS).values
        votes.append([*few, *maj_at_k(given.tolist(), right, [n]).values])
        distinct.append(expected_distinct_correct(given.tolist(), right, ks))
        pairs.append(pcmd(given.tolist(), right))
        entropy.append(answer_entropy(given.tolist()))
    majority = {k: cell(share_interval(votes_at)) for k, votes_at in zip([*some, n], np.transpose(votes), strict=True)}
    head = "".join(f"{name:<22}" for name in ("pass@k", "pass^k", "maj@k", "distinct right"))
    lines = [f"{'k':>5}  {head}" + ("chance" if chance else "")]
    for k, different in zip(ks, column_intervals(np.array(distinct)), strict=True):
        hats = share_interval(np.atleast_1d(pass_hat_k(n, c, k)))
        passed = passk_interval(n, c, k)
        level = f"{chance.at(k):.3f}{f'  {BELOW}' * chance.below(k, passed.value, passed.high)}" if chance else ""
        cells = (cell(passed), cell(hats), majority.get(k, ""), cell(different, 2))
        lines.append(f"{k:>5}  " + "".join(f"{text:<22}" for text in cells) + level)
    entropy_line = f"answers    {cell(mean_interval(entropy))} nats per problem (a missing answer counts as one answer)"
    ends = [f"chance     {chance.words if chance else UNKNOWN}", _pcmd_line(pairs), entropy_line]
    return [*(line.rstrip() for line in lines), *ends]


def _brief(c: NDArray[Any], n: int, chance: Chance | None) -> list[str]:
    """pass@1 and pass@n, with chance if that is known."""
    passed = [(k, passk_interval(n, c, k)) for k in dict.fromkeys((1, n))]
    floor = [f"  chance {chance.at(k):.3f}{f', {BELOW}' * chance.below(k, p.value, p.high)}" if chance else "" for k, p in passed]
    return [f"{f'pass@{k}':<10} {cell(p)}{beside}" for (k, p), beside in zip(passed, floor, strict=True)]


def _pcmd_line(pairs: Sequence[float]) -> str:
    interval = pcmd_interval(pairs)
    of = f"{interval.n} of {len(pairs)} {BOTH_RIGHT}"
    return f"PCMD       {cell(interval)} chance that two right answers differ, over {of}" if interval.n else f"PCMD       {of}"


def _tempered_lines(drawn: SampleColumns) -> list[str]:
    """pass@1 of the policy tempered over full completions, from samples of the policy itself; [] for samples of another
    distribution."""
    law = drawn.store.identity.decoding
    if law["temperature"] != 1 or any(law[name] != off for name, off in CUTS.items()):
        return []
    logps = drawn.arrays("rollout_logps")
    if logps is None:
        return ["tempered   over whole completions: not available, the samples have no log-probs"]
    sums = [float(np.sum(row, dtype=float)) for row in logps]
    totals, right, texts = (drawn.parts(column) for column in (sums, drawn.right, _completions(drawn)))
    cells = []
    for power in SAMPLED_POWERS:
        one = reweighted(totals, right, texts, power)
        text = one.reason if one.pass1 is None else f"{cell(one.pass1)}, +- {one.unseen:.1%} for unsampled completions"
        cells.append(f"power {one.power:g}: {text}")
    return [f"tempered   pass@1 over whole completions, pi(y)^power, by importance weights: {'; '.join(cells)}"]


def _completions(drawn: SampleColumns) -> NDArray[Any]:
    """Keys of completions: a finished text and the same text cut off differ."""
    return np.array([f"{end} {text}" for end, text in zip(drawn["finish"], drawn["text"], strict=True)], dtype=object)


def _token_lines(drawn: SampleColumns) -> list[str]:
    """Length and entropy, each if all samples have it."""
    lines = []
    if (ids := drawn.arrays("token_ids")) is not None:
        lengths = drawn.sums([len(row) for row in ids]) / drawn.n
        lines.append(f"tokens     {cell(mean_interval(lengths), 1)} per sample, with the end token")
    if (entropies := drawn.arrays("entropies")) is not None:
        each = mean_interval(drawn.sums([token_entropy([row]) for row in entropies]) / drawn.n)
        lines.append(f"entropy    {cell(each)} nats per token, of the sampling distribution")
    return lines


def _added_lines(drawn: SampleColumns) -> list[str]:
    """Perplexity under the base and q, which an option added to the samples; each if all samples have it."""
    lines = []
    for name, column, key, option, lines_of in (
        ("perplexity", "base_logps", SCORED, "--base-logprobs", _tail_lines),
        ("q         ", "q", GUIDED, "--guide", _q_lines),
    ):
        values, many = drawn[column], len(drawn.of)
        lacking = gaps(values)
        several = made_under({"versions": drawn["versions"]}, key)
        if 0 < lacking < many:
            lines.append(f"{name} {lacking:,} of {many:,} samples have no {option}: not printed")
        elif len(several) > 1:
            lines.append(f"{name} samples have several values of {option} ({'; '.join(several)}): not printed")
        elif not lacking:
            lines += lines_of(drawn, drawn.of_policy(values), *several)
    return lines


def made_under(rows: Any, key: str) -> list[str]:
    """The distinct values of `key` in the versions of the rows; the store's versions are those of the last writer."""
    values = [parse_json(str(text), "versions of a sample").get(key) for text in dict.fromkeys(rows["versions"])]
    return sorted({word for word in values if word is not None})


def _q_lines(drawn: SampleColumns, q: list[NDArray[Any]], guide: str = "the guide") -> list[str]:
    totals = drawn.sums([len(row) for row in q])
    mean = ratio_interval(drawn.sums([row.sum(dtype=float) for row in q]), totals)
    moved = _share(drawn.sums([np.sum(np.abs(row - 1) > 1e-6) for row in q]), totals)
    return [f"q          mean {cell(mean)}, of {guide}; differs from 1 on {moved} of tokens"]


def _tail_lines(drawn: SampleColumns, logps: list[NDArray[Any]], base: str = "the base") -> list[str]:
    """Eq. (39) of arXiv 2605.18864: for all samples, and only for the right ones."""
    values, lines = perplexities(logps), []
    for name, kept in (("all", np.ones(len(values), dtype=bool)), ("right", drawn.right)):
        if kept.any():
            owners = [drawn.problems[i] for i in np.flatnonzero(kept)]
            tails = perplexity_tails(values[kept], owners, quantiles=TAIL_QUANTILES)
            cells = [f"{q:.0%}: {i.bracketed('.2f')}" for q, i in tails.quantiles.items()]
            line = f"perplexity under {base.split()[0]}, quantiles of {name} samples  {'  '.join(cells)} {tails.caution}"
            lines.append(line.rstrip())
    return lines


# ------------------------------------------------------------------------------------------------------------------
# patterns, excess


def pattern_lines(store: SampleStore, n: int | None = None) -> list[str]:
    """Each pattern among the right samples: mean over problems (macro), over solutions (micro), counts, and a caution."""
    lines = ["reasoning patterns among right samples; 95 % intervals over problems; rules: stats/samples/patterns.yaml"]
    for name, frequency in pattern_frequencies(*SampleColumns(store, n).solutions()).items():
        problems = f"{frequency.problems_with} of {frequency.problems} problems"
        counts = f"{frequency.hits:,} of {frequency.solutions:,} samples, in {problems}"
        lines.append(f"  {name}: macro {cell(frequency.macro)}, micro {cell(frequency.micro)}, {counts}")
        lines += [f"    {frequency.caution}"] * bool(frequency.caution)
    return lines


def excess_lines(name_a: str, a: SampleStore, name_b: str, b: SampleStore, n: int | None = None) -> list[str]:
    """Excess of the upper tail of a's perplexities over b's, if both stores were scored under one base."""
    both = [SampleColumns(store, n) for store in (a, b)]
    scored = [drawn.arrays("base_logps") for drawn in both]
    bases = {base for drawn in both for base in made_under(drawn, SCORED)}
    if scored[0] is None or scored[1] is None or len(bases) > 1:
        return []
    one, two = perplexities(scored[0]), perplexities(scored[1])
    excess = perplexity_excess(one, both[0].problems, two, both[1].problems, quantile=EXCESS_AT)
    base = next(iter(bases), "the base").split()[0]
    return [excess_words(excess, name_a, name_b, task=a.identity.task, base=base, quantile=EXCESS_AT)]


def cell(interval: Interval, digits: int = 3) -> str:
    """A number with the ends of its interval in brackets."""
    return interval.bracketed(f".{digits}f")


def _share(hits: ArrayLike, totals: ArrayLike) -> str:
    return pooled_share(hits, totals).bracketed(".1%")
