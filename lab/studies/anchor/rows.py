"""What the laboratory found, as values, and the tables in which it is read.

    markdown(result)          everything
    short_markdown(result)    one line a KL term and a guide, for a page
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from lab.studies.anchor.terms import K1, NOISE
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import table

Status = Literal["admitted", "refused by Anchor, shown for the record"]
ADMITTED: Status = "admitted"
FOR_THE_RECORD: Status = "refused by Anchor, shown for the record"


@dataclass(frozen=True)
class LabRow:
    """One KL term with one guide, against Eq. (6) with the same guide; means over problems, and their least and largest.

    objective, guide, status: what, shaped by what, and whether `Anchor` would have it.
    cosine, norm_ratio: of the KL term alone (beta = 1). whole_cosine, whole_norm_ratio: of reward term + beta * KL term.
    guide_norm: length of what the guide adds to the KL term's gradient, in lengths of that gradient without a guide.
    guide_cosine: its cosine with what the guide adds to Eq. (6), a length below 1e-4 counting as no addition; None for Flat.
    variance_ratio: trace of the covariance of one completion's gradient over the squared length of Eq. (6)'s KL gradient, one
    unit for all terms; with its 95 % bootstrap interval over draws. snr_completions: the same over the squared length of the
    term's own mean, that is, how many completions make the noise as long as the term's gradient. mean_gap is near 1 where the
    sampled mean is the exact gradient. None beside a guide other than Flat.
    """

    objective: str
    guide: str
    status: Status
    cosine: float
    cosine_spread: tuple[float, float]
    norm_ratio: float
    whole_cosine: float
    whole_cosine_spread: tuple[float, float]
    whole_norm_ratio: float
    guide_norm: float | None = None
    guide_cosine: float | None = None
    guide_cosine_spread: tuple[float, float] | None = None
    variance_ratio: float | None = None
    variance_interval: tuple[float, float] | None = None
    snr_completions: float | None = None
    mean_gap: float | None = None


@dataclass(frozen=True)
class ProblemFacts:
    """A problem of the lab: its prompt, the probability of a right completion, KL(policy || reference) in nats of the whole
    completion, how many completions were listed over how many prefixes, and the probability of those that were dropped."""

    prompt: str
    right: float
    kl: float
    completions: int
    prefixes: int
    remainder: float


@dataclass(frozen=True)
class Strength:
    """How strong a guide is on these problems: the share of sampled tokens with q other than 1, and the mean of q, both in
    expectation over completions and noise."""

    guide: str
    equation: str
    active_share: float
    q_mean: float


@dataclass(frozen=True)
class LabResult:
    """What `run_lab` found. `remainder` is the largest of its problems'; `passed_over` counts problems of the world that
    would have needed more prefixes than the lab lists."""

    rows: tuple[LabRow, ...]
    problems: tuple[ProblemFacts, ...]
    strengths: tuple[Strength, ...]
    remainder: float
    policy: str
    reference: str
    beta: float
    draws: int
    seed: int
    passed_over: int

    def row(self, objective: str, guide: str = "Flat") -> LabRow:
        """The row of that objective and guide; DataError where there is none."""
        found = next((row for row in self.rows if (row.objective, row.guide) == (objective, guide)), None)
        if found is None:
            names = ", ".join(f"{row.objective} + {row.guide}" for row in self.rows)
            raise DataError(f"the lab has no row {objective!r} with guide {guide!r}; it has {names}.")
        return found


# ---- tables


SHORT_TERMS = (K1, "k2", "straight_through", "k3_is", "k3", "exact reverse", "exact forward", "k3 in GRPO")


def short_markdown(result: LabResult) -> str:
    """One line a KL term and a guide, terms with the same numbers together: what a page has room for."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for row in result.rows:
        if row.objective in SHORT_TERMS and row.guide not in NOISE:
            cells = tuple(cell(row) for cell in SHORT.values())
            merged.setdefault(cells, []).append(row.objective)
    lines = [f"| {', '.join(terms)} | " + " | ".join(cells) + " |" for cells, terms in merged.items()]
    return "\n".join(["| KL term | " + " | ".join(SHORT) + " |", "|---" * (len(SHORT) + 1) + "|", *lines])


def _adds(row: LabRow) -> str:
    """Cosine of what the guide adds; empty where next to nothing is added."""
    none = row.guide_cosine is None or (row.guide_norm is not None and row.guide_norm < 5e-4)
    return "" if none else f"{row.guide_cosine:.2f}{_range(row.guide_cosine_spread)}"


def _varies(row: LabRow) -> str:
    return "" if row.variance_ratio is None else _large(row.variance_ratio, row.variance_interval)


SHORT: Mapping[str, Callable[[LabRow], str]] = {
    "guide": lambda row: row.guide + ("" if row.status == ADMITTED else " (refused)"),
    "cosine of the KL term": lambda row: f"{row.cosine:.3f}{_range(row.cosine_spread)}",
    "guide adds": lambda row: "" if row.guide_norm is None else f"{row.guide_norm:.3f}",
    "cosine of what it adds": _adds,
    "variance": _varies,
}


def _large(value: float, pair: tuple[float, float] | None = None) -> str:
    """Three digits without an exponent: 5.36, 54.6, 1,040."""
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return text if pair is None else f"{text} ({_large(pair[0])} to {_large(pair[1])})"


def _range(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f" ({pair[0]:.2f} to {pair[1]:.2f})"


NOTE = (
    '"guide adds": the length of what the guide adds to the KL term\'s gradient, in lengths of that gradient; its cosine is that '
    "with what the guide adds to Eq. (6), the bonus -grad E[sum log q]; where next to nothing is added it is 0. Noise of a guide "
    "is averaged. Token's q also looks at the tokens that follow (its weights are normalized over the completion), so a "
    "return-to-go holds a part of its bonus only. k3 in GRPO divides a completion by its length and its reward by the group's std."
)


# header -> the cell of a problem, a guide's strength, a row against Eq. (6), a row's variance
PROBLEM: Mapping[str, Callable[[ProblemFacts], str]] = {
    "problem": lambda f: f.prompt,
    "P(right)": lambda f: f"{f.right:.3f}",
    "KL(policy, reference), nats": lambda f: f"{f.kl:.3f}",
    "completions": lambda f: f"{f.completions:,}",
    "prefixes": lambda f: f"{f.prefixes:,}",
    "remainder": lambda f: f"{f.remainder:.1e}",
}
STRENGTH: Mapping[str, Callable[[Strength], str]] = {
    "guide": lambda d: d.guide,
    "q": lambda d: d.equation,
    "tokens with q other than 1": lambda d: f"{100 * d.active_share:.1f} %",
    "mean q": lambda d: f"{d.q_mean:.4f}",
}
DIRECTION: Mapping[str, Callable[[LabRow], str]] = {
    "KL term": lambda row: row.objective,
    "guide": lambda row: row.guide,
    "cosine, KL term": lambda row: _spread(row.cosine, row.cosine_spread),
    "length, KL term": lambda row: f"{row.norm_ratio:.3f}",
    "cosine, whole": lambda row: _spread(row.whole_cosine, row.whole_cosine_spread),
    "length, whole": lambda row: f"{row.whole_norm_ratio:.3f}",
    "guide adds": lambda row: "" if row.guide_norm is None else f"{row.guide_norm:.4f}",
    "cosine of what it adds": lambda row: _spread(row.guide_cosine, row.guide_cosine_spread),
    "Anchor": lambda row: "admits it" if row.status == ADMITTED else "refuses it: shown for the record",
}
VARIANCE: Mapping[str, Callable[[LabRow], str]] = {
    "KL term": lambda row: row.objective,
    "variance": lambda row: _large(row.variance_ratio or 0.0),
    "95 % interval": lambda row: " to ".join(map(_large, row.variance_interval or ())),
    "over its own mean^2": lambda row: _large(row.snr_completions or 0.0),
    "n x error^2 / variance of the drawn mean (1 expected)": lambda row: f"{row.mean_gap:.2f}",
}


def markdown(result: LabResult) -> str:
    """The result as tables with what they were measured on."""
    parts = [
        f"Policy: {result.policy}. Reference: {result.reference}. {len(result.problems)} problems, beta = {result.beta:g}, seed "
        f"{result.seed}. At most {result.remainder:.1e} of a problem's probability lies beyond the listed completions.",
        table(PROBLEM, result.problems).markdown(),
        table(STRENGTH, result.strengths).markdown(),
        "Exact expected gradients in the parameters against that of Eq. (6) with the same guide: mean over problems "
        "(least to largest).",
        table(DIRECTION, result.rows).markdown(),
        NOTE,
    ]
    if result.draws:
        parts += [
            f"Gradient of the KL term of one completion, {result.draws} draws per problem: trace of its covariance over the "
            "squared length of Eq. (6)'s KL gradient, one unit for all terms, and over that of the term's own mean.",
            table(VARIANCE, [row for row in result.rows if row.variance_ratio is not None]).markdown(),
        ]
    return "\n\n".join(parts) + "\n"


def _spread(mean: float | None, spread: tuple[float, float] | None) -> str:
    if mean is None or spread is None:
        return ""
    values = (round(value, 4) + 0.0 for value in (mean, *spread))  # + 0.0: no minus before a zero
    return "{:.4f} ({:.4f} to {:.4f})".format(*values)
