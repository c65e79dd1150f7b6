"""Check whether the samples of a file are independent draws: copies, shared noise, greedy decoding, problems twice, cut answers.

pass@k from n samples assumes n independent draws of each problem. Files break this: request seeds that step by one give
overlapping windows, a cache returns the same group twice, one seed serves every prompt. `check_samples` looks for all of it in
one file without a hint of the places, `check_pair` between two files. `Independence.kept` leaves copies out, and the statistics use
the rest.

**False alarms.** Under independent draws the samples of a problem are exchangeable, whatever the policy: given the multiset of
answers every order is equally likely. Each check of order is an e-value, a bet against that null which never gains on average:

    E = product over problems and places of  ((1 - eps) / p + eps)  if the answer is the predicted copy, else eps

where p, the chance of a match given all earlier answers and the multiset, is known exactly: E[factor] = p ((1 - eps) / p + eps) +
(1 - p) eps = 1. Averages of e-values over all lags, group sizes and eps are e-values, so searching costs no power, and by
Markov P(E >= 1 / ALARM) <= ALARM for any policy, number of answers, problems and samples. Checks: copies, equal groups, sorted
answers, sorted outcomes, serial dependence, shared noise (e-values); multiples (a binomial bound, derived in `_multiples`);
greedy (a binomial bound for policies whose likeliest text has probability 0.9 at most). Ten checks of a file and three of a pair
at ALARM = 1e-4 each: below 1 in 1,000 files. Problems twice, cut answers and equal sampling seeds are facts and not tests.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Bools, Floats, Ints

FindingKind = Literal[
    "copies", "equal groups", "multiples", "sorted", "serial", "shared noise", "shared seeds", "greedy", "problems twice", "cut",
    "same samples", "same noise", "counts in multiples",
]  # fmt: skip

ALARM = 1e-4  # chance of a false alarm of one check
CUT = 0.01  # share of cut answers from which it is reported
GREEDY = 0.9  # probability of the likeliest text up to which equal texts are no sign of greedy decoding
MULTIPLES = {2: 0.5, 3: 0.36, 4: 0.30, 8: 0.21}
"""r -> the largest chance, over all binomial counts with p <= 1/2, that a count above 0 is a multiple of r (rounded up)."""
_DOUBT = (0.02, 0.2)  # eps: share of the places at which a copy may be broken
_SHOCKS = (0.25, 1.0, 3.0)  # on the logits of all problems at one place
_LAGS = range(1, 9)  # places back
_BLOCKS = (2, 4, 8, 16, 32)  # samples of a request, where unknown
_PULLS = (0.5, 1.5, 4.0)  # on the logit of a sample, if all the samples that predict it are right
_PARTS = (0.05, 0.3)  # share of the problems that repeat
_REPEATS = (0.05, 0.4, 0.8)  # eps of `_bet`, on the problems that repeat
_CELLS = 10_000_000  # pairs of places examined, over all problems; above it, evenly chosen problems represent all


@dataclass(frozen=True, kw_only=True)
class SampleFinding:
    """One sign that the samples are not independent draws. words: a sentence without its full stop. certain: chance is ruled out
    and `kept` leaves copies out; else a warning. effective_n: independent samples per problem (the fewest), None if unaffected.
    evidence: the numbers of the sentence."""

    kind: FindingKind
    words: str
    certain: bool
    effective_n: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Independence:
    """Findings of `check_samples`.

    n: samples given (N,)
    kept: (N, most samples) True if a sample is an independent draw, in file order
    cluster: (N,) number of the problem, equal for problems that occur twice; None if none does"""

    findings: tuple[SampleFinding, ...]
    n: Ints
    kept: Bools
    cluster: Ints | None = None

    @property
    def effective(self) -> Ints:
        """Independent samples of each problem, (N,)."""
        return np.asarray(self.kept.sum(axis=1))

    def counts(self, correct: Sequence[ArrayLike]) -> tuple[Ints, Ints]:
        """n and c of each problem, (N,) both, among the independent samples; correct: one row of 0/1 a problem, in file order."""
        rows = [np.asarray(row, dtype=bool) for row in correct]
        hits = [row[keep[: len(row)]].sum() for row, keep in zip(rows, self.kept, strict=True)]
        return self.effective, np.array(hits, dtype=np.int64)


def check_samples(
    answers: Sequence[Sequence[Hashable]],
    *,
    correct: Sequence[ArrayLike] | None = None,
    group: int | None = None,
    texts: bool = False,
    ids: Sequence[Hashable] | None = None,
    prompts: Sequence[str] | None = None,
    sampling_seeds: Sequence[Sequence[int]] | None = None,
    cut: Sequence[ArrayLike] | None = None,
) -> Independence:
    """Check one file: `answers` of each problem in file order, as strings, integers or None (no answer).

    correct: outcomes, one row a problem, for noise that is shared between problems. group: samples per request, if known; otherwise
    all divisors of n are tried. texts: the answers are complete completions, so that equal ones are rare unless decoding is greedy.
    Two files of one sampler with equal n: check their problems together, `check_samples([*a, *b])`, so that the file with more
    different answers shows the copies of both. ids, prompts: of the problems. sampling_seeds: the seed of each completion (not the
    training seed). cut: 1 if the token limit ended the completion. Raises DataError if these do not fit the answers.
    """
    coded = _Coded.of(answers)
    outcomes = None if correct is None else _outcomes(correct, coded.n)
    findings: list[SampleFinding] = []
    kept = coded.there.copy()
    disorder = _disorder(coded, outcomes)
    copies = None
    if not disorder:
        copies = _copies(coded, group) or _equal_groups(coded, group)
    copies = copies or _multiples(coded)
    if copies is not None:
        findings.append(copies[0])
        kept &= copies[1]
        if disorder and copies[0].kind == "multiples":  # copies side by side look sorted
            disorder = _disorder(coded.those(kept), outcomes and outcomes.those(kept))
    findings += disorder
    if copies is None and not disorder:
        findings += _some(_serial(coded, outcomes, group))
    if outcomes is not None and not disorder:
        findings += _some(_shared_noise(outcomes, kept))
    if texts:
        findings += _some(_greedy(coded))
    if sampling_seeds is not None:
        same, mask = _seeds(coded, _Coded.of(sampling_seeds, "sampling_seeds", values=True))
        findings += same
        kept &= mask
    for name, labels in (("ids", ids), ("prompts", prompts), ("cut", cut)):
        if labels is not None and len(labels) != len(coded.n):
            raise DataError(f"{name} has {len(labels)} entries for {len(coded.n)} problems; pass one entry a problem.")
    cluster, twice = _twice(ids, prompts)
    findings += _some(twice)
    if cut is not None:
        findings += _some(_cut(cut))
    return Independence(findings=tuple(findings), n=coded.n, kept=kept, cluster=cluster)


def check_pair(
    a: Sequence[Sequence[Hashable]],
    b: Sequence[Sequence[Hashable]],
    *,
    kept: tuple[Bools, Bools] | None = None,
) -> tuple[SampleFinding, ...]:
    """Check two files of the same problems in the same order: are the samples of b those of a, or drawn with the same noise?

    The places of b are exchangeable given a when the files were drawn independently, so the same bets apply, with the answer of
    a at each place as the predicted copy; the same multiset twice is judged by its chance when both files' answers are mixed, and
    samples of one file among others in the second by the places of answers that occur twice (`_shared_samples`). kept:
    `Independence.kept` of both files, if copies were found; noise is compared without the copies. Answers sorted within problems
    agree at the same places without any shared noise, so noise is then not looked for.
    """
    if len(a) != len(b):
        raise DataError(f"{len(a)} and {len(b)} problems; pass the same problems in the same order.")
    both, na, nb = _joined(a, b)
    same, chance, twice = _split_chance(both, na, nb)
    if (finding := _same_samples(same, chance, f"hold the same answers ({twice} in the same order)")) is not None:
        return (finding,)
    if (finding := _shared_samples(both, na, nb)) is not None:
        return (finding,)
    if kept is not None:
        a, b = _kept_of(a, kept[0]), _kept_of(b, kept[1])
        both, na, nb = _joined(a, b)
    if any(_sorted(_Coded.of(rows), "answers") for rows in (a, b)):
        return ()
    return tuple(_some(_same_noise(both, na, nb)))


def check_counts(n: ArrayLike, a: ArrayLike, b: ArrayLike) -> tuple[SampleFinding, ...]:
    """Check two files of counts, right answers a, b (N,) among n samples each, () or (N,): are they the same samples?

    Two independent files of one policy agree on a problem with probability C(n, c)^2 / C(2 n, 2 c) given the sum of their counts.
    Raises DataError if a and b differ in length.
    """
    left, right = np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)
    if left.shape != right.shape:
        raise DataError(f"{len(left)} and {len(right)} problems; pass the same problems in the same order.")
    many = np.broadcast_to(np.asarray(n, dtype=np.int64), left.shape)
    middle = (left + right) / 2  # equal counts are possible where the sum is even
    chance = np.where((left + right) % 2 == 0, _log_middle(middle) + _log_middle(many - middle) - _log_middle(many), -np.inf)
    return tuple(_some(_same_samples(left == right, np.minimum(chance, 0.0), "have the same count")))


def check_multiples(n: ArrayLike, c: ArrayLike) -> tuple[SampleFinding, ...]:
    """Check counts, c (N,) right of n (N,), each: do all samples occur twice (three, four, eight times), so that c is a multiple?

    For binomial counts with 0 < c < n and r dividing n, c is a multiple of r with probability MULTIPLES[r] at most: for p > 1/2
    take n - c, and c = n is left out of the multiples and of all. For r = 2 the bound is (1 - 2 p)^n <= (1 - p)^n + p^n.
    """
    many, right = np.asarray(n, dtype=np.int64), np.asarray(c, dtype=np.int64)
    inner = (right > 0) & (right < many)
    trials = int(inner.sum())
    for r, chance in sorted(MULTIPLES.items(), reverse=True):
        hit = inner & (right % r == 0)
        hits = int(hit.sum())
        if hits < 0.8 * trials or (many % r).any() or len(np.unique(right[hit])) < 2:  # one count for all is something else
            continue
        p = float(special.bdtrc(hits - 1, trials, chance))
        if p < ALARM / len(MULTIPLES):
            words = (
                f"the number of correct samples is a multiple of {r} on {hits} of {trials} problems, where independent draws allow "
                f"about {chance:.0%}: each sample occurs {r} times, as in a file that was joined with itself. Pass each sample once"
            )
            evidence = {"multiples": hits, "problems": trials, "p": p, "times": r}
            return (SampleFinding(kind="counts in multiples", words=words, certain=False, evidence=evidence),)
    return ()


def _same_samples(same: Bools, chance: Floats, what: str) -> SampleFinding | None:
    log_e = _log_mean([_bet(same, chance, eps) for eps in _DOUBT])
    if log_e < -math.log(ALARM):
        return None
    words = (
        f"on {int(same.sum())} of {len(same)} problems both files {what}: one file was read twice, or its samples were copied. "
        "Pass two evaluations that were sampled separately"
    )
    evidence = {"problems": int(same.sum()), "log10_e": log_e / math.log(10)}
    return SampleFinding(kind="same samples", words=words, certain=True, evidence=evidence)


# ------------------------------------------------------------------------------------------------------------------
# answers as numbers


@dataclass(frozen=True, eq=False)
class _Coded:
    """Answers as numbers, per problem in order of first appearance: codes (N, M), -1 beyond the problem's n (N,)."""

    codes: Ints
    n: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[Hashable]], name: str = "answers", *, values: bool = False) -> _Coded:
        if len(rows) == 0:
            raise DataError(f"{name} has no problems; pass one row of samples a problem.")
        n = np.array([len(row) for row in rows], dtype=np.int64)
        codes = np.full((len(rows), int(n.max())), -1, dtype=np.int64)
        shared: dict[Hashable, int] = {}
        for i, row in enumerate(rows):
            seen = shared if values else {}
            codes[i, : len(row)] = [seen.setdefault(x, len(seen)) for x in row]
        return cls(codes, n)

    @property
    def there(self) -> Bools:
        return self.codes >= 0

    def counts(self) -> Ints:
        """(N, most answers): how often each answer of a problem was given."""
        problems, wide = len(self.n), int(self.codes.max(initial=0)) + 1
        rows, places = np.nonzero(self.there)
        flat = rows * wide + self.codes[rows, places]
        return np.bincount(flat, minlength=problems * wide).reshape(problems, wide)

    def only(self, rows: Ints | Bools) -> _Coded:
        n = self.n[rows]
        return _Coded(self.codes[rows, : int(n.max(initial=0))], n)

    def those(self, kept: Bools) -> _Coded:
        """Only some samples of each problem."""
        n = kept.sum(axis=1)
        codes = np.full((len(n), int(n.max(initial=0))), -1, dtype=np.int64)
        for i, mask in enumerate(kept):
            codes[i, : n[i]] = self.codes[i, mask]
        return _Coded(codes, n)

    def telling(self, cells: int = _CELLS) -> _Coded:
        """The problems whose order is informative: two answers at least, one of them twice. Longest first, at most so many that
        their pairs of places number `cells`."""
        different = (self.counts() > 0).sum(axis=1)
        rows = np.flatnonzero((different > 1) & (different < self.n))
        rows = rows[np.argsort(-self.n[rows], kind="stable")]
        most = max(1, int(cells / max(1.0, float((self.n[rows] ** 2).mean() / 2)))) if len(rows) else 0
        if len(rows) > most:  # chosen by place in the file, never by content
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(int)]
        return self.only(rows)


def _outcomes(correct: Sequence[ArrayLike], n: Ints) -> _Coded:
    """Outcomes coded by themselves, 0 and 1."""
    rows = [np.asarray(row).reshape(-1).astype(np.int64) for row in correct]
    if [len(row) for row in rows] != n.tolist():
        raise DataError("correct and answers list different numbers of samples; pass one outcome a sample.")
    codes = np.full((len(rows), int(n.max())), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        if np.any((row != 0) & (row != 1)):
            raise DataError(f"correct[{i}] holds {row[(row != 0) & (row != 1)][0]}; outcomes are 0 or 1.")
        codes[i, : len(row)] = row
    return _Coded(codes, n)


def _some(finding: SampleFinding | None) -> list[SampleFinding]:
    return [] if finding is None else [finding]


def _log_mean(values: ArrayLike) -> float:
    array = np.asarray(values, dtype=float).ravel()
    return float(special.logsumexp(array) - math.log(len(array))) if array.size else -math.inf


def _bet(hit: Bools, log_p: Floats, eps: float) -> float:
    """Log e-value of events (N,) with log chances (N,): copies with probability 1 - eps. A chance of 1 or 0 is no bet."""
    open_ = (log_p < -1e-12) & np.isfinite(log_p)
    won = np.logaddexp(math.log1p(-eps) - log_p[open_ & hit], math.log(eps))
    return float(won.sum() + math.log(eps) * np.sum(open_ & ~hit))


# ------------------------------------------------------------------------------------------------------------------
# copies at fixed places: shifted windows, the same group twice, one place that repeats another


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Statistics of every two places s < t over the telling problems: log_e (eps, M, M); matches and trials (M, M)."""

    log_e: Floats
    matches: Floats
    trials: Floats


def _pairs(coded: _Coded) -> _Pairs:
    m = coded.codes.shape[1]
    log_e, matches, trials = np.zeros((len(_DOUBT), m, m)), np.zeros((m, m)), np.zeros((m, m))
    left = coded.counts()
    codes = coded.codes
    wide = left.shape[1]
    # the log factor of a match by (open places R, copies r among them), and whether a miss could have been a match
    r, total = np.arange(m + 1), np.arange(m + 1)[:, None]
    open_ = (r > 0) & (r < total)
    with np.errstate(divide="ignore", invalid="ignore"):
        won = [np.where(open_, np.log((1 - eps) * total / np.maximum(r, 1) + eps), 0.0).ravel() for eps in _DOUBT]
    tells = open_.ravel()
    for t in range(1, m):
        active = int(np.searchsorted(-coded.n, -t, side="left"))  # problems with a sample at place t, longest first
        rows = np.arange(active)
        left.ravel()[rows * wide + codes[:active, t - 1]] -= 1
        earlier = codes[:active, :t]
        copies = left.ravel()[rows[:, None] * wide + earlier]
        key = (coded.n[:active, None] - t) * (m + 1) + copies
        hit = earlier == codes[:active, t, None]
        missed = (tells[key] & ~hit).sum(axis=0)
        at = np.nonzero(hit)
        keys = key[at]
        for e, eps in enumerate(_DOUBT):
            log_e[e, :t, t] = np.bincount(at[1], won[e][keys], minlength=t) + math.log(eps) * missed
        matches[:t, t], trials[:t, t] = hit.sum(axis=0), active
    return _Pairs(log_e, matches, trials)


@dataclass(frozen=True)
class _Model:
    """Places (t, t + lag) that would be copies: of neighboring groups of `size`, of all places (size 0), or inside each group."""

    size: int
    lag: int
    inside: bool = False

    def first(self, n: int) -> Ints:
        """The earlier places of its pairs."""
        t = np.arange(n - self.lag)
        return t if not self.size else t[(t + self.lag) // self.size == t // self.size + (not self.inside)]


def _sizes(n: int, group: int | None) -> list[int]:
    """Sizes of groups to try."""
    if group is not None:
        return [group] if 1 < group < n else []
    return [size for size in range(2, n // 2 + 1) if n % size == 0]


def _models(n: int, group: int | None) -> Iterator[_Model]:
    if group is None:
        yield from (_Model(0, lag) for lag in range(1, n))
    for size in _sizes(n, group):
        yield _Model(size, 1, inside=True)
        yield from (_Model(size, lag) for lag in range(1, min(2 * size, n)))


def _copies(coded: _Coded, group: int | None) -> tuple[SampleFinding, Bools] | None:
    """Places that repeat other places on all problems."""
    telling = coded.telling()
    m = telling.codes.shape[1]
    if not len(telling.n) or m < 2:
        return None
    pairs, models = _pairs(telling), list(_models(m, group))
    upper = np.triu_indices(m, 1)
    single = pairs.log_e[:, upper[0], upper[1]]
    by_model = np.array([pairs.log_e[:, (t := model.first(m)), t + model.lag].sum(axis=1) for model in models])
    log_e = _log_mean([_log_mean(by_model), _log_mean(single)]) if models else _log_mean(single)
    if log_e < -math.log(ALARM):
        return None
    explanation = _explained(pairs, models, by_model, single)
    if explanation is None:
        return None
    where, linked, (rate, base) = explanation
    keep = coded.there & _first_of_each(linked, coded.codes.shape[1])
    before, after = int(coded.n.min()), int(keep.sum(axis=1).min())
    sentence = (
        f"{'some places of each problem repeat others' if where is None else _where(where)}: they agree {100 * rate:.1f} % of the "
        f"time, other places {100 * base:.1f} % (problems with more than one answer). {before} answers are {after} independent "
        "ones, and the copies are left out"
    )
    evidence = {"log10_e": log_e / math.log(10), "agree": rate, "others_agree": base, "n": before, "problems": len(telling.n)}
    evidence |= {} if where is None else {"group": where.size, "lag": where.lag}
    return SampleFinding(kind="copies", words=sentence, certain=True, effective_n=after, evidence=evidence), keep


def _explained(
    pairs: _Pairs, models: Sequence[_Model], by_model: Floats, single: Floats
) -> tuple[_Model | None, Bools, tuple[float, float]] | None:
    """The model with the most evidence, or the single pairs, that makes copies agree nearly always: the linked places, and how
    often these and other places agree."""
    places = len(pairs.trials)
    upper = np.triu_indices(places, 1)
    agree = pairs.matches[upper] / np.maximum(pairs.trials[upper], 1)
    base = float(pairs.matches[upper].sum() / pairs.trials[upper].sum())  # copies among them: a little too high
    like_copies = agree - base >= 0.8 * (1 - base)
    top, each = by_model.max(axis=1) if models else np.zeros(0), single.max(axis=0)
    evident = (each > math.log(single.shape[1] / ALARM)) & like_copies
    sure = [i for i in range(len(models)) if top[i] > math.log(len(models) / ALARM)]
    # a lag without groups also links the ends of groups, which may match by chance: it comes after all models with groups
    for i in sorted(sure, key=lambda i: (models[i].size == 0, -top[i])):
        t = models[i].first(places)
        agreement = _agreement(pairs, t, t + models[i].lag)
        if agreement is None:
            continue
        label = _labels(agreement[0])
        explained = each[evident & (label[upper[0]] == label[upper[1]])].sum()
        if 4 * (label != np.arange(places)).sum() >= places or explained >= 0.8 * each[evident].sum():
            return models[i], *agreement  # a model that links few places may contain a few of many single copies
    if evident.any() and base < 0.5:  # single bets on the last places gain little, since no other answer remains for them
        evident |= like_copies & (pairs.trials[upper] >= 20)
    agreement = _agreement(pairs, upper[0][evident], upper[1][evident])
    return None if agreement is None else (None, *agreement)


def _agreement(pairs: _Pairs, first: Ints, second: Ints) -> tuple[Bools, tuple[float, float]] | None:
    """The linked places, and how often they and other places agree; None unless four in five of the linked are copies. Places
    that differ for another reason, such as temperature, agree only somewhat more often than others."""
    linked = np.zeros(pairs.trials.shape, dtype=bool)
    linked[first, second] = True
    if not len(first):
        return None
    trials, matches = pairs.trials[linked].sum(), pairs.matches[linked].sum()
    rest, equal = pairs.trials[~linked].sum(), pairs.matches[~linked].sum()
    rate, base = float(matches / trials), float(equal / rest) if rest else 0.0
    return (linked, (rate, base)) if rate - base >= 0.8 * (1 - base) else None


def _where(model: _Model) -> str:
    shift = model.size - model.lag
    if model.inside:
        return f"every answer occurs {model.size} times in a row"
    if not model.size:
        return f"every answer repeats the one {model.lag} places before"
    if not shift:
        return f"each group of {model.size} answers repeats the group before"
    step = f"j + {shift}" if shift > 0 else f"j - {-shift}"
    return f"answer {step} of a group of {model.size} is answer j of the next group"


def _labels(linked: Bools) -> Ints:
    """The first place of the set of linked places to which each place belongs."""
    parent = list(range(len(linked)))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for s, t in zip(*np.nonzero(linked), strict=True):
        one, two = sorted((root(int(s)), root(int(t))))
        parent[two] = one
    return np.array([root(x) for x in range(len(linked))])


def _first_of_each(linked: Bools, n: int) -> Bools:
    """(n,) True at the first place of each set of linked places."""
    keep = np.ones(n, dtype=bool)
    keep[: len(linked)] = _labels(linked) == np.arange(len(linked))
    return keep


# ------------------------------------------------------------------------------------------------------------------
# the same answers in another order


def _equal_groups(coded: _Coded, group: int | None) -> tuple[SampleFinding, Bools] | None:
    """Groups with the same multiset of answers. Of two groups of m, pooled and dealt again, both get the same multiset with
    probability prod_a C(2 c_a, c_a) / C(2 m, m), with the group's counts c_a."""
    telling = coded.telling()
    if not len(telling.n) or np.ptp(telling.n):
        return None
    n, problems = int(telling.n[0]), len(telling.n)
    weights = np.random.default_rng(0).integers(0, 2**62, n, dtype=np.int64)  # a sum of them identifies a multiset
    group_pairs: list[tuple[int, int, int]] = []
    values: list[list[float]] = []
    for size in _sizes(n, group):
        groups = n // size
        some = telling.codes[np.linspace(0, problems - 1, min(problems, max(1, _CELLS // groups**2))).astype(int)]
        dealt = some[:, : groups * size].reshape(-1, groups, size)
        marks = weights[dealt].sum(axis=2)
        log_p = _log_ways(np.sort(dealt, axis=2)) - _log_middle(size)
        for g in range(groups - 1):
            same = marks[:, g, None] == marks[:, g + 1 :]
            for h in range(same.shape[1]):
                values.append([_bet(same[:, h], log_p[:, g], eps) for eps in _DOUBT])
                group_pairs.append((size, g, g + 1 + h))
    if not values or _log_mean(values) < -math.log(ALARM):
        return None
    evident = np.array(values).max(axis=1) > math.log(len(values) / ALARM)
    size = group_pairs[int(np.array(values).max(axis=1).argmax())][0]
    linked = np.zeros((n, n), dtype=bool)
    for (m, g, h), sure in zip(group_pairs, evident.tolist(), strict=True):
        if sure and m == size:
            linked[g * m + np.arange(m), h * m + np.arange(m)] = True
    if not linked.any():
        return None
    keep = coded.there & _first_of_each(linked, coded.codes.shape[1])
    after = int(keep.sum(axis=1).min())
    words = (
        f"groups of {size} answers of a problem hold the same answers in another order. {n} answers are {after} independent ones, "
        "and the repeated groups are left out"
    )
    evidence = {"log10_e": _log_mean(values) / math.log(10), "group": size, "n": n}
    return SampleFinding(kind="equal groups", words=words, certain=True, effective_n=after, evidence=evidence), keep


def _log_middle(c: ArrayLike) -> Floats:
    """log C(2 c, c)."""
    x = np.asarray(c, dtype=float)
    return np.asarray(special.gammaln(2 * x + 1) - 2 * special.gammaln(x + 1))


def _log_ways(ordered: Ints) -> Floats:
    """Sum over answers of log C(2 c_a, c_a) along the last axis, sorted."""
    total, run = np.zeros(ordered.shape[:-1]), np.zeros(ordered.shape[:-1], dtype=np.int64)
    step = np.diff(_log_middle(np.arange(ordered.shape[-1] + 1)))
    for j in range(ordered.shape[-1]):
        run = np.where(ordered[..., j] == ordered[..., j - 1], run + 1, 0) if j else run
        total += step[run]
    return total


def _multiples(coded: _Coded) -> tuple[SampleFinding, Bools] | None:
    """Answers that all come twice (three, four, eight times), in any order.

    Leave out the answer of a problem's first sample: the counts N of the others are binomial. For p <= 1/2 a count above 0 is a
    multiple of r with probability at most MULTIPLES[r]: for r = 2, P(even, > 0) / P(> 0) = (1 - e^-x) / 2 < 1/2 in the Poisson
    limit. One answer of a problem may have p > 1/2, so one multiple per problem is left out too. The number of multiples is then
    at most binomial; fixed n correlates the counts negatively, which makes many multiples even rarer.
    """
    counts = coded.counts()
    others = counts.copy()
    others[:, 0] = 0  # answers are numbered by first appearance
    given = (others > 0).sum(axis=1)
    trials = int(np.maximum(given - 1, 0).sum())
    for r, chance in sorted(MULTIPLES.items(), reverse=True):
        hits = int(np.maximum(((others > 0) & (others % r == 0)).sum(axis=1) - 1, 0).sum())
        if not trials or hits < 0.8 * trials:
            continue
        p = float(special.bdtrc(hits - 1, trials, chance)) if hits else 1.0
        if p >= ALARM / len(MULTIPLES):
            continue
        keep = _one_of_each(coded, counts, r)
        after = int(keep.sum(axis=1).min())
        words = (
            f"{hits} of {trials} answers were given a multiple of {r} times, where independent draws allow about "
            f"{chance:.0%}: each sample occurs {r} times. {int(coded.n.min())} answers are {after} independent "
            "ones, and the copies are left out"
        )
        evidence = {"multiples": hits, "answers": trials, "p": p, "times": r, "n": int(coded.n.min())}
        return SampleFinding(kind="multiples", words=words, certain=True, effective_n=after, evidence=evidence), keep
    return _multiples_of_some(coded, counts)


def _multiples_of_some(coded: _Coded, counts: Ints) -> tuple[SampleFinding, Bools] | None:
    """Problems all of whose answers, three at least, come twice (three, four, eight times), among other problems whose answers do
    not.

    With D answers in a problem that all are multiples of r has probability MULTIPLES[r]^(D - 2) at most, see `_multiples`. The bet
    is that a share of the problems is so: factor 1 - share + share / chance if the problem is so, else 1 - share.
    """
    different = (counts > 0).sum(axis=1)
    bets: list[tuple[float, int, Bools]] = []
    for r, chance in MULTIPLES.items():
        repeated = (different > 2) & np.all(counts % r == 0, axis=1)
        won = np.where(repeated, -math.log(chance) * (different - 2), -np.inf)
        each = [float(np.logaddexp(math.log1p(-share), math.log(share) + won).sum()) for share in _PARTS]
        bets.append((_log_mean(each), r, repeated))
    if _log_mean([log_e for log_e, _, _ in bets]) < -math.log(ALARM):
        return None
    log_e, r, repeated = max(bets, key=lambda bet: (bet[0], bet[1]))
    keep = np.where(repeated[:, None], _one_of_each(coded, counts, r), coded.there)
    after = int(keep.sum(axis=1).min())
    words = (
        f"on {int(repeated.sum())} of {len(counts)} problems every answer was given a multiple of {r} times: each sample occurs "
        f"{r} times there, and the copies are left out"
    )
    evidence = {"problems": int(repeated.sum()), "log10_e": log_e / math.log(10), "times": r}
    return SampleFinding(kind="multiples", words=words, certain=True, effective_n=after, evidence=evidence), keep


def _one_of_each(coded: _Coded, counts: Ints, r: int) -> Bools:
    """True at the first samples of each answer: as many as an answer has copies, divided by r and rounded up."""
    keep = coded.there.copy()
    for i, row in enumerate(coded.codes):
        seen: dict[int, int] = {}
        for j, x in enumerate(row[: coded.n[i]].tolist()):
            seen[x] = seen.get(x, 0) + 1
            keep[i, j] = seen[x] <= -(-counts[i, x] // r)
    return keep


def _disorder(coded: _Coded, outcomes: _Coded | None) -> list[SampleFinding]:
    """The findings of sorted answers and of sorted outcomes."""
    return [*_some(_sorted(coded, "answers")), *_some(None if outcomes is None else _sorted(outcomes, "outcomes"))]


def _sorted(coded: _Coded, what: str) -> SampleFinding | None:
    """Equal answers next to each other on nearly all problems, chance D! prod n_a! / n! of a problem: the order of drawing is
    lost."""
    telling = coded.telling()
    if not len(telling.n):
        return None
    counts, codes = telling.counts(), telling.codes
    different = (counts > 0).sum(axis=1)
    stretches = 1 + ((codes[:, 1:] != codes[:, :-1]) & (codes[:, 1:] >= 0)).sum(axis=1)
    log_p = special.gammaln(different + 1.0) + special.gammaln(counts + 1.0).sum(axis=1) - special.gammaln(telling.n + 1.0)
    in_order = stretches == different
    log_e = _log_mean([_bet(in_order, log_p, eps) for eps in _DOUBT])
    if log_e < -math.log(ALARM) or in_order.mean() < 0.9:
        return None
    words = (
        f"the {what} of {int(in_order.sum())} of {len(telling.n)} problems are sorted, so that the order of sampling is lost and "
        "copies between groups cannot be looked for. Pass the samples in the order in which they were drawn"
    )
    evidence = {"log10_e": log_e / math.log(10), "problems": int(in_order.sum())}
    return SampleFinding(kind="sorted", words=words, certain=False, evidence=evidence)


# ------------------------------------------------------------------------------------------------------------------
# samples of a problem that resemble those before them


def _serial(coded: _Coded, outcomes: _Coded | None, group: int | None) -> SampleFinding | None:
    """Samples that resemble earlier ones of their problem without being copies on every problem.

    Outcomes: given a problem's total and its earlier outcomes, the next is right with known probability p. The bet moves its
    logit by d times what earlier samples are better than the problem's mean: the sample 1 to 8 places back, or the mean of those
    before it in its request. Factor: exp(x s) / (1 - p + p exp(s)). Answers: on a share of the problems, unknown which, each
    answer repeats the one a fixed number of places back with probability 1 - eps; the factor of a problem is 1 - share + share E.
    Both are averages of products whose expectation is 1 under any order of the same samples.
    """
    of_outcomes = -math.inf if outcomes is None else _log_mean(_serial_outcomes(outcomes, group))
    of_answers = _log_mean(_serial_answers(coded))
    bets = [of_answers] if outcomes is None else [of_outcomes, of_answers]
    log_e = _log_mean(bets)
    if log_e < -math.log(ALARM):
        return None
    what = "answers repeat earlier ones" if of_answers >= of_outcomes else "outcomes resemble earlier ones"
    words = (
        f"within a problem {what} more often than any order of independent draws allows: samples of one request or in a row are "
        "not independent. pass@k at k > 1 is then too low, and a difference from samples drawn otherwise may be only this; draw "
        "every sample by itself"
    )
    return SampleFinding(kind="serial", words=words, certain=False, evidence={"log10_e": log_e / math.log(10)})


def _serial_outcomes(outcomes: _Coded, group: int | None) -> Floats:
    """Log e-values (bets,) of outcomes that resemble those before them."""
    telling = outcomes.telling()
    n, right = telling.n, np.where(telling.there, telling.codes, 0)
    hits, open_ = right.sum(axis=1).astype(float), n.astype(float)
    centered = np.where(telling.there, right - (hits / np.maximum(n, 1))[:, None], 0.0)
    sums = np.cumsum(np.pad(centered, ((0, 0), (1, 0))), axis=1)  # of the places before each
    blocks = _BLOCKS if group is None else (group,)
    log_e = np.zeros((len(_LAGS) + len(blocks), len(_PULLS)))
    for t in range(right.shape[1]):
        active = telling.there[:, t]
        p = np.divide(hits, open_, out=np.zeros_like(hits), where=open_ > 0)
        told = active & (p > 0) & (p < 1)
        x = right[told, t]
        pulls = [centered[told, t - lag] if lag <= t else None for lag in _LAGS]
        starts = [t - t % size for size in blocks]
        pulls += [(sums[told, t] - sums[told, start]) / (t - start) if start < t else None for start in starts]
        for i, pull in enumerate(pulls):
            if pull is None:
                continue
            shift = np.multiply.outer(_PULLS, pull)
            log_e[i] += (x * shift - np.log1p(p[told] * np.expm1(shift))).sum(axis=1)
        hits -= np.where(active, right[:, t], 0)
        open_ -= active
    return log_e.ravel()


def _serial_answers(coded: _Coded) -> Floats:
    """Log e-values (bets,) of answers that repeat the answer a number of places back, on a share of the problems."""
    telling = coded.telling()
    m, n, codes = telling.codes.shape[1], telling.n, telling.codes
    if not len(n) or m < 2:
        return np.zeros(0)
    left, rows = telling.counts(), np.arange(len(n))
    log_e = np.zeros((len(_REPEATS), len(n), m))  # column l: the lag l
    for t in range(1, m):
        left[rows, codes[:, t - 1]] -= codes[:, t - 1] >= 0
        active = codes[:, t] >= 0
        earlier = codes[active, :t][:, ::-1]  # column j: j + 1 places back
        p = left[rows[active][:, None], earlier] / (n[active] - t)[:, None]
        told = (p > 0) & (p < 1)
        hit = earlier == codes[active, t, None]
        for e, eps in enumerate(_REPEATS):
            won = np.log((1 - eps) / np.where(told, p, 1.0) + eps)
            log_e[e, active, 1 : t + 1] += np.where(told, np.where(hit, won, math.log(eps)), 0.0)
    parts = [np.logaddexp(math.log1p(-share), math.log(share) + log_e[:, :, 1:]).sum(axis=1) for share in _PARTS]
    return np.concatenate([part.ravel() for part in parts])


# ------------------------------------------------------------------------------------------------------------------
# noise shared between problems, and the rest


def _shared_noise(outcomes: _Coded, kept: Bools) -> SampleFinding | None:
    """Samples at one place right together on many problems: one seed per place for all prompts.

    Given a problem's earlier outcomes and its total, the next is right with known probability p_i. The bet is that at each place
    all logits move together by d or -d: factor = mean over both signs of prod_i exp(d x_i) / (1 - p_i + p_i exp(d)).
    """
    there = outcomes.there & kept
    right = np.where(there, outcomes.codes, 0)
    most = max(1, 4_000_000 // right.shape[1])
    if len(right) > most:  # enough to see noise that all problems share; chosen by place, never by content
        rows = np.linspace(0, len(right) - 1, most).astype(int)
        right, there = right[rows], there[rows]
    open_, hits = there.sum(axis=1).astype(float), right.sum(axis=1).astype(float)
    log_e = np.zeros(len(_SHOCKS))
    for j in range(right.shape[1]):
        now = there[:, j]
        p = np.divide(hits, open_, out=np.zeros_like(hits), where=open_ > 0)[now]
        x = right[now, j]
        undecided = (p > 0) & (p < 1)
        for d, delta in enumerate(_SHOCKS):
            both = [s * x[undecided].sum() - np.log1p(p[undecided] * math.expm1(s)).sum() for s in (delta, -delta)]
            log_e[d] += _log_mean(both)
        hits[now] -= x
        open_[now] -= 1
    if _log_mean(log_e) < -math.log(ALARM):
        return None
    words = (
        "the samples at one place in the order of sampling are right together on many problems: every prompt used the same seed, "
        "or places differ in temperature or prompt. Problems are then not independent, and intervals over problems are too short"
    )
    return SampleFinding(kind="shared noise", words=words, certain=False, evidence={"log10_e": _log_mean(log_e) / math.log(10)})


def _greedy(coded: _Coded) -> SampleFinding | None:
    """All texts of a problem equal on more problems than a policy with probability GREEDY of its likeliest text allows."""
    several = coded.n > 1
    equal = several & (coded.counts().max(axis=1) == coded.n)
    hits, trials = int(equal.sum()), int(several.sum())
    if hits < 3:
        return None
    # for few and many hits, a sum of unlike chances is largest if all equal their mean (Hoeffding 1956)
    chance = float((GREEDY ** coded.n[several] + (1 - GREEDY) ** coded.n[several]).mean())
    if hits <= chance * trials + 1 or float(special.bdtrc(hits - 1, trials, min(chance, 1.0))) > ALARM:
        return None
    words = (
        f"all texts are equal on {hits} of {trials} problems: probably greedy decoding, a temperature near 0 or one seed for all "
        "samples. Unless the policy has collapsed, n is effectively 1 there and pass@k is pass@1"
    )
    return SampleFinding(kind="greedy", words=words, certain=False, effective_n=1, evidence={"equal": hits, "problems": trials})


def _seeds(coded: _Coded, seeds: _Coded) -> tuple[list[SampleFinding], Bools]:
    """Sampling seeds: the same seed and answer twice in a problem; the same seeds for every problem."""
    if not np.array_equal(coded.n, seeds.n):
        raise DataError("sampling_seeds and answers list different numbers of samples; pass one seed a sample.")
    keep = coded.there.copy()
    for i, (row, answers) in enumerate(zip(seeds.codes.tolist(), coded.codes.tolist(), strict=True)):
        seen: set[tuple[int, int]] = set()
        for j in range(int(coded.n[i])):
            keep[i, j] = (row[j], answers[j]) not in seen
            seen.add((row[j], answers[j]))
    out = []
    copies, after = int((coded.there & ~keep).sum()), int(keep.sum(axis=1).min())
    if copies:
        words = f"{copies} samples have the seed and the answer of an earlier sample of their problem; they are left out"
        out.append(SampleFinding(kind="copies", words=words, certain=True, effective_n=after, evidence={"copies": copies}))
    ordered = np.sort(seeds.codes, axis=1)
    several = len(ordered) > 2 and bool((np.diff(ordered, axis=1) > 0).all()) and ordered.shape[1] > 1
    if several and bool((ordered == ordered[0]).all()):
        words = (
            "every problem was sampled with the same seeds, so that problems share their noise; intervals over problems may be "
            "too short"
        )
        out.append(SampleFinding(kind="shared seeds", words=words, certain=False, evidence={"problems": len(ordered)}))
    return out, keep


def _twice(ids: Sequence[Hashable] | None, prompts: Sequence[str] | None) -> tuple[Ints | None, SampleFinding | None]:
    """Problems that occur twice, by id or by prompt."""
    for names, what in ((prompts, "prompt"), (ids, "id")):
        if names is None:
            continue
        seen: dict[Hashable, int] = {}
        cluster = np.array([seen.setdefault(x, len(seen)) for x in names], dtype=np.int64)
        if len(seen) < len(cluster):
            twice = len(cluster) - len(seen)
            again = next(x for x, n in zip(seen, np.bincount(cluster).tolist(), strict=True) if n > 1)
            words = (
                f"{len(cluster)} problems are {len(seen)} different ones: {twice} have the {what} of an earlier one (first: "
                f"{str(again)[:60]!r}). They are clusters, and intervals are over the {len(seen)}"
            )
            evidence = {"problems": len(cluster), "different": len(seen)}
            return cluster, SampleFinding(kind="problems twice", words=words, certain=True, evidence=evidence)
    return None, None


def _cut(cut: Sequence[ArrayLike]) -> SampleFinding | None:
    flags = np.concatenate([np.asarray(row, dtype=bool).reshape(-1) for row in cut])
    share = float(flags.mean()) if flags.size else 0.0
    if share < CUT:
        return None
    words = (
        f"{int(flags.sum()):,} of {flags.size:,} answers ({100 * share:.1f} %) were cut by the token limit and count as they were "
        "judged. A larger limit may change the verdict"
    )
    return SampleFinding(kind="cut", words=words, certain=False, evidence={"cut": int(flags.sum()), "answers": flags.size})


# ------------------------------------------------------------------------------------------------------------------
# two files


def _kept_of(rows: Sequence[Sequence[Hashable]], kept: Bools) -> list[list[Hashable]]:
    return [[x for x, keep in zip(row, mask, strict=False) if keep] for row, mask in zip(rows, kept.tolist(), strict=True)]


def _joined(a: Sequence[Sequence[Hashable]], b: Sequence[Sequence[Hashable]]) -> tuple[_Coded, Ints, Ints]:
    """Each problem's answers of a, then of b, in one code, and how many of each."""
    both = _Coded.of([[*x, *y] for x, y in zip(a, b, strict=True)])
    return both, np.array([len(x) for x in a]), np.array([len(y) for y in b])


def _split_chance(both: _Coded, na: Ints, nb: Ints) -> tuple[Bools, Floats, int]:
    """For each problem: whether the halves contain the same multiset, the log chance of that under a random split of the pooled
    answers, and how many have them in the same order too."""
    same, log_p, ordered = np.zeros(len(na), dtype=bool), np.full(len(na), -np.inf), 0
    for i, (x, m, k) in enumerate(zip(both.codes, na.tolist(), nb.tolist(), strict=True)):
        if m != k or not m:
            continue
        one, two = x[:m], x[m : m + k]
        counts = np.bincount(one, minlength=int(x.max()) + 1)
        same[i] = np.array_equal(counts, np.bincount(two, minlength=len(counts)))
        if same[i]:
            log_p[i] = min(0.0, float(_log_middle(counts).sum() - _log_middle(m)))
            ordered += bool(np.array_equal(one, two))
        elif not ((counts + np.bincount(two, minlength=len(counts))) % 2).any():
            log_p[i] = -1.0  # could have been equal and is not: any chance below 1 does, since a miss costs eps
    return same, log_p, ordered


def _shared_samples(both: _Coded, na: Ints, nb: Ints) -> SampleFinding | None:
    """Samples of one file among other samples in the second: answers that occur twice in both together occur once in each.

    Given the places of all other answers, let k answers occur twice and their 2 k places be half in a, half in b. Two policies p,
    q put them into an order with weight prod p_v^(times in a) q_v^(times in b); by the inequality of the means all k are split
    between the files with probability 2^k / C(2 k, k) at most, whatever p and q. Equal sampling seeds split them too, at the same
    places of some problems and not of others: a copy is at other places, or at a place of nearly all problems.
    """
    split, log_p, copied, in_place = np.zeros(len(na), dtype=bool), np.full(len(na), -np.inf), 0, 0
    equal = np.zeros((2, int(np.minimum(na, nb).max())))  # at each place: problems with the same answer, and all
    for i, (row, m, n) in enumerate(zip(both.codes, na.tolist(), nb.tolist(), strict=True)):
        split[i], log_p[i], k, at_once = _split_of_twice(row[: m + n], m)
        equal[0, : len(at_once)] += row[: len(at_once)] == row[m : m + len(at_once)]
        equal[1, : len(at_once)] += 1
        copied, in_place = copied + k, in_place + int(at_once.sum())
    log_e = _log_mean([_bet(split, log_p, eps) for eps in _DOUBT])
    whole = bool((equal[0] >= 0.9 * equal[1]).any())
    if log_e < -math.log(ALARM) or not (whole or 2 * in_place < copied):
        return None
    words = (
        f"on {int((split & (log_p > -np.inf)).sum())} of {len(na)} problems both files hold the same samples among others "
        f"({copied:,} in all, {100 * in_place / copied:.0f} % at the same place): files were joined, or samples were copied. Pass "
        "two evaluations that were sampled separately"
    )
    evidence = {"samples": copied, "log10_e": log_e / math.log(10), "in_place": in_place / copied}
    return SampleFinding(kind="same samples", words=words, certain=True, evidence=evidence)


def _split_of_twice(row: Ints, m: int) -> tuple[bool, float, int, Bools]:
    """For the answers that occur twice in one problem of both files, the first with m samples: whether each occurs once in each
    file, the largest log chance of that (-inf if their places are not half in each), how many, and at which places in both."""
    counts, ours = np.bincount(row), np.bincount(row[:m], minlength=int(row.max()) + 1)
    twice, least = counts == 2, min(m, len(row) - m)
    at_once = (row[:least] == row[m : m + least]) & twice[row[:least]]
    k = int(twice.sum())
    if int(ours[twice].sum()) != k:
        return False, -math.inf, 0, at_once & False
    return bool((ours[twice] == 1).all()), k * math.log(2) - float(_log_middle(k)), int((ours[twice] == 1).sum()), at_once


def _same_noise(both: _Coded, na: Ints, nb: Ints) -> SampleFinding | None:
    """Answers of b that equal those of a at the same place more often than at others."""
    log_e, hits, trials = np.zeros(len(_DOUBT)), 0, 0
    rows = np.linspace(0, len(na) - 1, min(len(na), max(1, _CELLS // both.codes.shape[1]))).astype(int)
    codes, na, nb = both.codes[rows], na[rows], nb[rows]
    left = both.only(rows).counts()
    for i, row in enumerate(codes):  # what a took is no longer open in b
        np.subtract.at(left[i], row[: na[i]], 1)
    for t in range(int(np.minimum(na, nb).min())):
        at = np.arange(len(rows))
        one, two = codes[:, t], codes[at, na + t]
        p = left[at, one] / (nb - t)
        left[at, two] -= 1
        undecided = (p > 0) & (p < 1)
        hit = one[undecided] == two[undecided]
        log_e += [np.where(hit, np.log((1 - eps) / p[undecided] + eps), math.log(eps)).sum() for eps in _DOUBT]
        hits, trials = hits + int(hit.sum()), trials + len(hit)
    if _log_mean(log_e) < -math.log(ALARM):
        return None
    words = (
        f"both files give the same answer at the same place {100 * hits / trials:.1f} % of the time, more often than at other "
        "places: they share sampling seeds. Differences of pass@k are then less noisy than independent samples would be, and "
        "lists of problems that only one solves are on the careful side"
    )
    evidence = {"log10_e": _log_mean(log_e) / math.log(10), "agree": hits / trials}
    return SampleFinding(kind="same noise", words=words, certain=False, evidence=evidence)
