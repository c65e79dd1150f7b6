"""summary.md: what can be said first, then the numbers; from the values of summary.json alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sage_rlvr.experiments.endpoints import endpoint_lines, interval_text
from sage_rlvr.experiments.folder import ANY_TEMPERATURE, KS, NOT_RUN
from sage_rlvr.report.digest import (
    AWAY,
    FRONTIER,
    MEAN,
    PLACEBO,
    UNTOLD,
    Claim,
    Group,
    groups_of,
    legend,
    matrix,
    unlike,
    value_of,
)
from sage_rlvr.report.markdown import folded, grouped_lines
from sage_rlvr.report.tables import Table
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.frontier import NOT_NEAR
from sage_rlvr.stats.power import detectable_up_to

NOTHING = "- nothing: every cell of the matrix is there"
MATCHED = (
    "matched: an unguided arm at several betas, its scores read in between (linear in the logarithm of the raw KL of the last "
    "tenth of training) at the raw KL that the guided arm of the same seed realised; nothing is read outside."
)
SECOND = (
    *("arm", "support kept", "gained", "lost", "tokens drawn, M", "training, s", "q not 1 on (first, last tenth)"),
    "mean q (first, last tenth)",
)  # fmt: skip
TRAINING = (
    *("arm", "training reward, first tenth", "last tenth", "test pass@1"),
    *("gradient norm, early third", "middle", "late", "dead groups, first tenth", "last tenth"),
)  # fmt: skip
LOGGED = (
    "Training reward: mean of the samples that were drawn, each tenth of the steps on the problems that it drew. Gradient norms "
    "are those before clipping. Dead groups: the share of the groups drawn in which all rewards are equal: no advantage is left."
)
FEW = "In brackets: the difference in the metric."
COUNTED = (
    "Support: right completions with probability above 1/256, over all problems, against the base. Tokens and seconds (by the "
    "clock, one thread a run) are means a run."
)


def markdown(found: Mapping[str, Any]) -> list[str]:
    """The lines of summary.md: verdicts in groups and as a matrix, tables of scores, what was added, what was not run."""
    spec = found["evaluate"]
    lines = [f"# {found['tier']}", ""]
    lines += [found["notes"], ""] if found["notes"] else []
    lines += _incomplete_lines(found)
    lines += [
        f"{found['world']}. {spec['problems']} {spec['split']} problems (draw {spec['draw']}), all right completions "
        f"enumerated; {_seeds_words(found['seeds'])}; {found['steps']} steps. {_means_words(found['seeds'])}",
        "",
        *verdict_lines(found),
        *_number_lines(found),
    ]
    lines += endpoint_lines(found["endpoints"])
    lines += ["", "## The control relabelled", "", *_relabelled_lines(found["relabelled"], found)]
    for world, rows in found["away"].items():
        problems = rows["problems"] or spec["ood_problems"]
        lines += ["", f"## On {world} ({problems} problems)", "", *_away_lines(rows, found)]
    lines += _choice_lines(found["choice"], found)
    lines += ["", "## Controls", ""]
    lines += [f"- added: {found['arms'][name]['label']} ({why})" for name, why in found["added"].items()]
    lines += [f"- {said}" for said in found["left_out"]]
    lines += [f"- {MATCHED}"] * any(c["kind"] == "matched" for c in found["comparisons"])
    lines += ["- none was added"] * (lines[-1] == "")
    lines += ["", "## Not run", ""]
    cells = [f"- {cell}" for cell in found["not_run"]]
    return lines + (_fold(f"Cells of the matrix ({len(cells)})", cells) if cells else [NOTHING])


def _incomplete_lines(found: Mapping[str, Any]) -> list[str]:
    """How many cells, arms x training seeds, are complete, where not all are."""
    cells, missing = len(found["arms"]) * len(found["seeds"]), len(found["not_run"])
    return [f"{cells - missing} of {cells} cells complete; see Not run.", ""] if missing else []


def _seeds_words(seeds: Sequence[int]) -> str:
    return f"training seed {seeds[0]}" if len(seeds) == 1 else f"training seeds {', '.join(map(str, seeds))}, paired"


def _means_words(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return "One training run an arm, so scores have no intervals."
    return "Means over seeds with Student's 95 % intervals over seeds, the problems held fixed."


# ------------------------------------------------------------------------------------------------------------------
# what can be said


def verdict_lines(found: Mapping[str, Any]) -> list[str]:
    """Every comparison: grouped by control and metric, as a matrix, and, folded, in full."""
    made = found["comparisons"]
    control = found["arms"][found["control"]]["label"]
    claims = [_claim(c, len(found["seeds"])) for c in made]
    groups = groups_of(claims, control=control, base="base")
    absent = _absent(found, {name for one in claims for name in (one.a, one.b)})
    lines = ["## What can be said", ""]
    if not made:
        return [*lines, f"{NOT_RUN}: no two arms share an evaluated seed", "", grouped_lines(absent), ""]
    labels = [arm["label"] for arm in found["arms"].values()]
    sentences = [f"- {c['sentence']}" for c in made]
    few = _fewer_than_three(found)
    table = _means_alone(groups, labels) if few else matrix(groups, labels)
    said = [_without_verdicts(group) for group in groups] if few else groups
    return [
        *(
            *lines,
            _scope(found),
            "",
            grouped_lines([*said, *_no_range(found, claims), *absent]),
            "",
            f"{FEW} {legend(groups)}".strip() if few else legend(groups),
            "",
        ),
        *(table.markdown(), ""),
        *(*_fold(f"Every comparison in full ({len(made)})", sentences), ""),
    ]


def _fewer_than_three(found: Mapping[str, Any]) -> bool:
    """Whether no comparison has the training seeds that a claim about methods needs, so that one line can say it for all."""
    return all(c["difference"]["n"] < FEWEST_SEEDS for c in found["comparisons"])


def _without_verdicts(group: Group) -> Group:
    """The differences of a group alone: the scope line has said why there is no verdict."""
    several = len({one.b for one in group.claims}) > 1
    texts = []
    for one in group.claims:
        texts.append((f"{one.a} vs {one.b}" if several else one.a) + value_of(one))
    return Group(head=group.head, lines=(("", ", ".join(texts)),))


def _means_alone(groups: Sequence[Group], labels: Sequence[str]) -> Table:
    """The matrix with the differences alone, without words and intervals."""
    bare = [
        replace(group, claims=tuple(replace(one, low=math.nan, high=math.nan) for one in group.claims))
        for group in groups
    ]
    table = matrix(bare, labels)
    rows = tuple((name, *(_numbers_of(cell) for cell in cells)) for name, *cells in table.rows)
    return replace(table, rows=rows, notes=("A cell: the difference of the arm of the row. –: not compared.",))


def _numbers_of(cell: str) -> str:
    return "\n".join(line for line in cell.split("\n") if line != UNTOLD) or "–"


def _claim(c: Mapping[str, Any], wanted: int) -> Claim:
    """One comparison of summary.json, noted where it has fewer than `wanted` training seeds. Names lose "at any temperature",
    which the kind says."""
    kinds = {"placebo": PLACEBO, "frontier_base": FRONTIER, "frontier_control": FRONTIER, "away": AWAY}
    kind = kinds.get(c["kind"], MEAN)
    a, b = (c[side].removesuffix(ANY_TEMPERATURE) for side in "ab")
    gap = {end: math.nan if c["difference"][end] is None else c["difference"][end] for end in ("value", "low", "high")}
    seen = math.inf if c["detectable"] is None else c["detectable"]
    metric = c["metric"].removesuffix(" at equal pass@1")
    n = c["difference"]["n"]
    note = f"{n} of {wanted} seeds" if n < wanted else ""
    return Claim(
        kind=kind, a=a, b=b, metric=metric, verdict=c["verdict"], detectable=seen,
        detectable_high=detectable_up_to(seen, n), note=note, **gap,
    )  # fmt: skip


def _no_range(found: Mapping[str, Any], claims: Sequence[Claim]) -> tuple[Group, ...]:
    """Arms that were evaluated at several temperatures and have no pass@1 in common with the base or the control."""
    told = {(one.a, one.b) for one in claims if one.kind == FRONTIER}
    control = found["arms"][found["control"]]["label"]
    wide = {arm["label"] for name, arm in found["arms"].items() if len(arm.get("frontier", ())) > 1}
    named = [arm["label"] for name, arm in found["arms"].items() if name not in found["added"] and arm["label"] in wide]
    rivals = [control] * (control in wide) + ["base"] * (len((found["base"] or {}).get("frontier", ())) > 1)
    pairs = [(a, b) for b in rivals for a in named if a != b and (a, b) not in told]
    why = "no common range of pass@1 in some training seed"
    near = {(c["a"], c["b"]) for c in found["comparisons"] if c["kind"] == "near"}
    apart = [(a, control) for a in named if a != control and (a, control) not in near and control in wide]
    return (
        *unlike("Not compared at equal pass@1", [(f"{a} vs {b}", why) for a, b in pairs]),
        *unlike(
            "Not compared at equal pass@1 near T = 1",
            [(", ".join(f"{a} vs {b}" for a, b in apart), NOT_NEAR)] * bool(apart),
        ),
    )


def _scope(found: Mapping[str, Any]) -> str:
    seeds = sorted({c["difference"]["n"] for c in found["comparisons"]}, reverse=True)
    problems, family = f"on the same {found['evaluate']['problems']} problems", _family(found)
    if _fewer_than_three(found):
        if seeds[0] == 1:
            return (
                f"One training seed: no claim about methods; the differences below are of one run an arm, {problems}."
            )
        return f"Two training seeds: no claim about methods; the differences in brackets and in the table are means, {problems}."
    over = " or ".join(map(str, seeds))
    return (
        f"About these methods, over {over} training seeds {problems}. Holm's correction runs over {family} "
        f"comparison{'s' * (family != 1)}."
    )


def _absent(found: Mapping[str, Any], compared: set[str]) -> tuple[Group, ...]:
    """Arms that lack training seeds, and those that stand in no comparison although they are complete."""
    wanted, short, apart = len(found["seeds"]), [], []
    for name, arm in found["arms"].items():
        if len(arm["seeds"]) < wanted:
            short.append((arm["label"], f"{len(arm['seeds'])} of {wanted} evaluated"))
        elif arm["label"] not in compared:
            apart.append(
                (arm["label"], "an added control, see below" if name in found["added"] else "held against nothing")
            )
    return (*unlike("Training seeds missing", short), *unlike("In no comparison", apart))


def _fold(line: str, lines: Sequence[str]) -> list[str]:
    first, *_, last = folded(line, [])
    return [first, "", *lines, "", last]


# ------------------------------------------------------------------------------------------------------------------
# the numbers


def _number_lines(found: Mapping[str, Any]) -> list[str]:
    base = found["base"]
    lines = [
        "## The numbers",
        "",
        "| arm | seeds | pass@1 | pass@8 | pass@64 | pass@256 | distinct in 256 | best pass@1 at any T | raw KL |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    if base is not None:
        top = base["best"]
        cells = [f"{base['pass'][str(k)]:.3f}" for k in KS]
        lines.append(
            f"| base | | {' | '.join(cells)} | {base['distinct']:.1f} | {top['pass1']:.3f} (T {top['temperature']:g}) | |"
        )
    lines += [_table_row(row, len(found["seeds"])) for row in found["arms"].values()]
    more = [*_second_table(found), *_training_table(found)]
    return [*lines, "", *_fold("Support, tokens, seconds, dose of q, training reward and gradient norms", more)]


def _table_row(row: Mapping[str, Any], wanted: int) -> str:
    seeds = f"{len(row['seeds'])} of {wanted}"
    if not row["seeds"]:
        return f"| {row['label']} | {seeds} | {' | '.join([NOT_RUN] * 4)} | | | |"
    cells = [interval_text(row["pass"][str(k)]) for k in KS]
    kl = interval_text(row["kl_raw"]) if "kl_raw" in row else ""
    more = f"{interval_text(row['distinct'], 1)} | {interval_text(row['best_pass1'])}"
    return f"| {row['label']} | {seeds} | {' | '.join(cells)} | {more} | {kl} |"


def _second_table(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| {' | '.join(SECOND)} |",
        "|---" * len(SECOND) + "|",
    ]
    for row in found["arms"].values():
        if row["seeds"]:
            kept = [
                f"{row['support'][what]['value']:,.0f}" if "support" in row else ""
                for what in ("preserved", "gained", "lost")
            ]
            tokens = f"{row['tokens'] / 1e6:.2f}" if "tokens" in row else ""
            dose = row.get("dose")
            q = (
                ["", ""]
                if not dose
                else [
                    f"{dose['active_first']:.1%}, {dose['active_last']:.1%}",
                    f"{dose['q_first']:.4f}, {dose['q_last']:.4f}",
                ]
            )
            lines.append(
                f"| {row['label']} | {' | '.join(kept)} | {tokens} | {row['train_seconds']:.0f} | {' | '.join(q)} |"
            )
    return [*lines, "", COUNTED]


def _training_table(found: Mapping[str, Any]) -> list[str]:
    """Training reward beside the test score, and the gradient norms in thirds of the run (the paper's Fig. 2 and Table 5)."""
    rows = [row for row in found["arms"].values() if "reward" in row or "grad_norm" in row]
    if not rows:
        return []
    lines = ["", f"| {' | '.join(TRAINING)} |", "|---" * len(TRAINING) + "|"]
    for row in rows:
        rewards, dead = (
            [interval_text(row[w][when]) if w in row else "" for when in ("first", "last")] for w in ("reward", "dead")
        )
        norms = [interval_text(x) for x in row.get("grad_norm", {}).values()] or [""] * 3
        lines.append(f"| {' | '.join([row['label'], *rewards, interval_text(row['pass']['1']), *norms, *dead])} |")
    return [*lines, "", LOGGED]


def _family(found: Mapping[str, Any]) -> int:
    return max((c["family"] for c in found["comparisons"]), default=0)


def _relabelled_lines(ab: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    label = found["arms"][found["control"]]["label"]
    if not ab["splits"]:
        return [ab["why"]]
    counts = ", ".join(f"{metric} {n} of {ab['splits']}" for metric, n in ab["tied"].items())
    head = (
        f"{label}'s seeds in two halves called A and B, in all {ab['splits']} ways, by the rule of the sentences above and each "
        f"at its own level of 95 %: tied at {counts}."
    )
    return [head, "", *(f"- {line}" for line in ab["first"])]


def _away_lines(rows: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    lines = [
        "| arm | seeds | pass@1 | pass@8 | pass@64 | pass@256 | best pass@1 at any T |",
        "|---|---|---|---|---|---|---|",
    ]
    if rows["base"]:
        cells = [f"{rows['base']['pass'][str(k)]:.3f}" for k in KS]
        lines.append(f"| base | | {' | '.join(cells)} | {rows['base']['best']['pass1']:.3f} |")
    for name, arm in found["arms"].items():
        row = rows["arms"].get(name)
        seeds = f"{len(row['seeds']) if row else 0} of {len(found['seeds'])}"
        cells = [interval_text(row["pass"][str(k)]) for k in KS] if row else [NOT_RUN] * 4
        lines.append(f"| {arm['label']} | {seeds} | {' | '.join(cells)} | {interval_text(row['best_pass1']) if row else ''} |")
    return lines


def _choice_lines(choice: Mapping[str, Any] | None, found: Mapping[str, Any]) -> list[str]:
    if choice is None:
        return []
    lines = ["", f"## Chosen on {choice['problems']} validation problems by {choice['by']}", ""]
    if not choice["chosen"]:
        return [*lines, f"{NOT_RUN}: every arm to choose from has to be evaluated on validation problems first."]
    lines += ["| arm | score on validation |", "|---|---|"]
    for name, score in sorted(
        choice["scores"].items(), key=lambda item: -(item[1] if item[1] is not None else -math.inf)
    ):
        shown = "no common range" if score is None else f"{score:.4f}"
        lines.append(f"| {found['arms'][name]['label']}{' (chosen)' if name == choice['chosen'] else ''} | {shown} |")
    return lines


__all__ = ["markdown", "verdict_lines"]
