"""What can be said: verdicts in groups and as a matrix, then every sentence in full; and the frontiers against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.evaluation.verdicts import compare_counts, count_comparisons, holm_lines, score_lines
from sage_rlvr.report.digest import BEST, EQUAL, FRONTIER, MEAN, Claim, claim, groups_of, legend, matrix, unlike
from sage_rlvr.report.exact import frontier_picture, gap_picture, said_of, verdict_word
from sage_rlvr.report.parts import CAVEAT, HEADING, Fold, Grouped, Part, Prose, Said, Tabular, joined, missing, quiet
from sage_rlvr.report.sections.stores import beside, common_k, comparable, counts_of
from sage_rlvr.report.study import SampleSet, Study
from sage_rlvr.report.summary import (
    HOLM,
    MANY,
    FrontierVerdict,
    SeedSummary,
    Summary,
    Verdict,
    control_pairs,
    corrected,
    frontier_verdicts,
)
from sage_rlvr.stats.comparison import FEWEST_SEEDS

AT_BEST = " at its best temperature"  # in the names of `SeedSummary.verdicts`
MOST_GAPS = 12  # panels
_DONE = ("evaluated", "trained and evaluated")  # states of a run
_WORDS = ("better", "worse", "tied", "cannot be told", "identical")


def verdicts(
    study: Study, exact: Summary | SeedSummary | None, fronts: Sequence[FrontierVerdict] = ()
) -> tuple[Part, ...]:
    """The groups, the matrix, all sentences folded, the caveats; then the same of samples where these say more."""
    if exact is None:
        return (*_sampled(study.samples, table=True), *_left(study.left_out))
    stores = beside(study)
    sampled = _sampled(stores) if len({s.arm for s in stores}) > 1 else ()
    if not exact.verdicts:  # one policy alone: no sentence that a caveat could be about
        text = "One policy alone was evaluated exactly, so no exact numbers are compared."
        return (missing(text), *sampled, *_left(study.left_out))
    return (*_exact(study, exact, fronts), *sampled, *_left(_split(study)[1]))


def fronts_of(study: Study) -> tuple[FrontierVerdict, ...]:
    """Every trained arm against the base and its controls, each at all its temperatures; () where the base has one alone."""
    if not study.results or len(study.results[0].arm(study.results[0].base).ps) < 2:
        return ()
    first = study.results[0]
    trained = [arm.name for arm in first.arms if arm.trained and arm.name != first.base]
    return frontier_verdicts(study.results, [(a, first.base) for a in trained] + list(control_pairs(first)), first.k)


def frontier(
    study: Study, exact: Summary | SeedSummary | None, fronts: Sequence[FrontierVerdict] = ()
) -> tuple[Part, ...]:
    """Every policy at all its temperatures, drawn; the sentences folded."""
    if exact is None:
        return (missing("No exact evaluation was given, so no policy was read at other temperatures than its own."),)
    first = study.results[0]
    if len(first.arm(first.base).ps) < 2:
        advice = f"Evaluate with: {suggest('eval', 'RUN', '--frontier')}"
        return (missing(f"The base was evaluated at one temperature alone: no frontier. {advice}"),)
    if not fronts:
        return (frontier_picture(exact),)
    said = Said(lines=tuple((one.a, verdict_word(one.verdict), one.sentence) for one in fronts))
    note = (
        f"Each policy at all its temperatures: the mean gap in pass@{first.k} where both frontiers have the same "
        "pass@1. A policy that only slides along the base's frontier has none."
    )
    untold = sum(one.difference is None for one in fronts)
    count = f"{len(fronts)}" + (f", {untold} of them without an interval" if untold else "")
    fold = Fold(line=f"Every comparison of frontiers in full ({count})", parts=(said,))
    return (frontier_picture(exact), *quiet(note), *_gaps(study, exact), fold)


def _gaps(study: Study, exact: Summary | SeedSummary) -> tuple[Part, ...]:
    """Every trained arm along the control's frontier, the control along the base's; over training seeds only."""
    control = control_of(study)
    if control is None or not isinstance(exact, SeedSummary):
        return ()
    first = study.results[0]
    others = [arm.name for arm in first.arms if arm.trained and arm.name not in (first.base, control)]
    picture = gap_picture(exact, [*((name, control) for name in others), (control, first.base)][:MOST_GAPS])
    return () if picture is None else (picture,)


# ------------------------------------------------------------------------------------------------------------------
# exact


def _exact(study: Study, exact: Summary | SeedSummary, fronts: Sequence[FrontierVerdict]) -> tuple[Part, ...]:
    first = study.results[0]
    found = exact.verdicts if isinstance(exact, SeedSummary) else corrected(exact)
    claims = [*_means(found), *_more(exact), *_of_fronts(fronts, len(study.results))]
    groups = groups_of(claims, control=control_of(study), base=first.base)
    shown = groups + unlike("In no exact comparison", _absent(study))
    said: list[Part] = [said_of(found)]
    strong, notes = "What these seeds cannot show.", exact.caveats
    if isinstance(exact, Summary):
        said.append(Said(lines=tuple((one.name, "frontier", one.sentence) for one in exact.against_frontier)))
        family = max(v.comparison.family for v in found)
        notes = tuple(HOLM.format(family=family) if text == MANY else text for text in exact.caveats)
        strong = "What one training seed cannot show."
    count = sum(len(part.lines) for part in said if isinstance(part, Said))
    why = quiet(*_split(study)[0])
    line = f"Every comparison in full ({count})" + (", and why arms are missing" if why else "")
    return (
        *quiet(_scope(exact, found, fronts)),
        Grouped(groups=shown),
        *quiet(legend(groups)),
        Tabular(table=matrix(groups, [arm.name for arm in first.arms]), about="verdicts, arm by arm", words=True),
        Fold(line=line, parts=(*said, *why)),
        Prose(kind=CAVEAT, strong=strong, text="\n".join(notes)),
    )


def control_of(study: Study) -> str | None:
    """The arm that others are held against first: the sweep's control, else the trained arm that most pairs have."""
    first = study.results[0]
    if study.control in {arm.name for arm in first.arms if arm.name != first.base}:
        return study.control
    pairs = control_pairs(first)
    most = Counter([b for _, b in pairs] + [a for a, _ in pairs]).most_common(1)
    return most[0][0] if most else None


def _scope(exact: Summary | SeedSummary, found: Sequence[Verdict], fronts: Sequence[FrontierVerdict]) -> str:
    """What the verdicts are about, and over how many of them Holm's correction went."""
    family = max(v.comparison.family for v in found)
    if isinstance(exact, Summary):
        text = f"About these checkpoints, one training seed each, on {exact.result.problems} problems."
        return text + (f" Holm's correction runs over {family} comparisons." if family > 1 else "")
    text = f"About these methods, over {exact.seeds} training seeds on the same {exact.results[0].problems} problems."
    if family < 2 or exact.seeds < FEWEST_SEEDS:
        return text
    own = max((one.family for one in fronts), default=1)
    apart = f", and apart from these over {own} of frontiers" if own > 1 else ""
    k = exact.results[0].k
    return (
        f"{text} Holm's correction runs over {family} comparisons of pass@1 and pass@{k}{apart}; a sweep's "
        "summary.md corrects over a list of its own, so that its values of p are others."
    )


def _means(found: Sequence[Verdict]) -> list[Claim]:
    """pass@1 and pass@k as they are, and, over training seeds, each at its best temperature."""
    out = []
    for v in found:
        best = AT_BEST in v.a + v.b
        a, (b, _, where) = v.a.split(AT_BEST)[0], v.b.partition(AT_BEST)
        where = where.strip().removeprefix("(").removesuffix(")")
        out.append(claim(BEST if best else MEAN, a, b, f"pass@{v.k}", v.comparison, where=where))
    return out


def _more(exact: Summary | SeedSummary) -> list[Claim]:
    """Of one training seed: each arm at its best temperature; of arms with one temperature also pass@k at equal pass@1."""
    if isinstance(exact, SeedSummary) or len(exact.frontiers[exact.result.base]) < 2:
        return []
    out, base, k = [], exact.result.base, exact.result.k
    single = len(exact.against_frontier) == 1
    for one in exact.against_frontier:
        where = f"{one.best_base.pass1:.3f} at T = {one.best_base.temperature:g}"
        out.append(claim(BEST, one.name, base, "pass@1", one.best or one.pass1, where=where, corrected=single))
        if one.best is None:
            gap = one.equal.difference
            word = "" if gap is None else "tied" if gap.contains(0.0) else "better" if gap.value > 0 else "worse"
            verdict = word or f"cannot be told ({one.equal.reason.removeprefix('cannot be told: ')})"
            ends = {} if gap is None else {"value": gap.value, "low": gap.low, "high": gap.high}
            out.append(
                Claim(
                    kind=EQUAL, a=one.name, b=base, metric=f"pass@{k}", verdict=verdict,
                    detectable=one.equal.detectable, detectable_high=one.equal.detectable_high,
                    corrected=single, **ends,
                )
            )  # fmt: skip
    return out


def _of_fronts(fronts: Sequence[FrontierVerdict], seeds: int) -> list[Claim]:
    out = []
    for one in fronts:
        gap = one.difference
        ends = {} if gap is None else {"value": gap.value, "low": gap.low, "high": gap.high}
        out.append(
            Claim(
                kind=MEAN if one.home else FRONTIER, a=one.a, b=one.b,
                metric=one.metric, verdict=one.verdict, detectable=one.detectable,
                detectable_high=one.detectable_high,
                corrected=seeds > 1 or len(fronts) == 1, **ends,
            )
        )  # fmt: skip
    return out


def _absent(study: Study) -> list[tuple[str, str]]:
    """Arms of the runs that stand in no exact comparison, and how far each is."""
    there = {arm.name for arm in study.results[0].arms}
    states: dict[str, list[str]] = {}
    for run in study.runs:
        states.setdefault(run.arm, []).append(run.state)
    out = []
    for arm, found in states.items():
        if arm not in there:
            done = sum(state in _DONE for state in found)
            idle = all(state == "not run" for state in found)
            out.append((arm, "not run" if idle else f"{done} of {len(found)} training seeds evaluated"))
    return out


def _split(study: Study) -> tuple[list[str], list[str]]:
    """What is said of arms that `_absent` names already, and all else that is left out."""
    heads = tuple(f"{arm}: " for arm, _ in _absent(study))
    named = [text for text in study.left_out if text.startswith(heads)] if heads else []
    return named, [text for text in study.left_out if text not in named]


def _left(texts: Sequence[str]) -> tuple[Part, ...]:
    return (missing("\n".join(texts)),) if texts else ()


# ------------------------------------------------------------------------------------------------------------------
# from samples


def _sampled(samples: Sequence[SampleSet], table: bool = False) -> tuple[Part, ...]:
    """Counts of every arm against the first: grouped, then all sentences folded. table: with the matrix."""
    if len({s.arm for s in samples}) < 2:
        return (missing("Nothing is compared: fewer than two policies were evaluated."),)
    claims: list[Claim] = []
    lines: list[str] = []
    shown: list[str] = []
    levels: dict[str, None] = {}
    refused = []
    for sets in comparable(samples):
        try:
            counts, k = counts_of(sets), common_k(sets)
            if len(counts) < 2:
                lines += [line for name, data in counts.items() for line in score_lines(name, data, k)]
                continue
            found = count_comparisons(counts, k)
            base, *others = counts
            levels |= dict.fromkeys(c.level for c in found.values())
            claims += [claim(MEAN, name, base, f"{task} pass@{m}", c) for (name, m, task), c in found.items()]
            holm = holm_lines(list(found.values()), len(others), len(counts[base]), tuple(dict.fromkeys((1, k))))
            lines += [line for line in compare_counts(counts, k) if line not in holm]
            shown += holm
        except DataError as error:
            refused.append(f"Not compared: {error}.")
    groups = groups_of(claims)
    folds = _folds(lines, sorted({s.arm for s in samples}, key=len, reverse=True))
    grid = Tabular(table=matrix(groups, list(dict.fromkeys(s.arm for s in samples))), about="verdicts", words=True)
    scope = f"About {joined(list(levels))}, counted from samples."
    told = (*quiet(scope), Grouped(groups=groups), *quiet(legend(groups)), *([grid] if table else [])) if groups else ()
    head = (Prose(text="From samples", kind=HEADING),) if groups and not table else ()
    return (*head, *told, *folds, *quiet(*shown), *map(missing, refused))


def _folds(lines: Sequence[str], arms: Sequence[str]) -> list[Fold]:
    """The sentences with a verdict, and all others."""
    items = [_item(line, arms) for line in lines]
    told = tuple(row for row in items if row[0] and row[1])
    rest = [line for arm, word, line in items if not (arm and word)]
    out = [Fold(line=f"Every comparison from samples in full ({len(told)})", parts=(Said(lines=told),))] if told else []
    if rest:
        compared = "Bands over k, P(A > B), what was kept, and each arm's own numbers"
        line = f"{compared if told else 'The numbers of each arm in full'} ({len(rest)})"
        out.append(Fold(line=line, parts=quiet(*rest)))
    return out


def _item(line: str, arms: Sequence[str]) -> tuple[str, str, str]:
    """(arm, word, line); arm and word "" where the line holds no verdict."""
    arm = next((name for name in arms if line.startswith(f"{name} vs ")), "")
    word = next((w for w in _WORDS if f": {w} " in line), "") if " vs " in line else ""
    return arm, word, line


__all__ = ["control_of", "frontier", "fronts_of", "verdicts"]
