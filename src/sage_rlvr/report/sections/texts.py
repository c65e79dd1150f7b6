"""How unlikely the base finds the samples, and the samples themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sage_rlvr.errors import suggest
from sage_rlvr.report import browser, panels
from sage_rlvr.report.parts import Part, Picture, Tabular, missing, quiet
from sage_rlvr.report.sections.stores import by_arm, by_task, one_seed, set_name, slug
from sage_rlvr.report.study import SampleSet
from sage_rlvr.report.tables import Table, interval_cell
from sage_rlvr.stats.samples.perplexity import perplexity_tails

MOST_COLUMNS = 8  # of the sample browser, side by side
TAIL_QUANTILES = (0.5, 0.9, 0.99)


def perplexity(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    """Tails of the perplexity of samples under the base."""
    scored = [s for s in samples if s.perplexities is not None and s.scored]
    if not scored:
        return (
            missing(
                "Not recorded: it needs samples that were scored under the base. Draw some with: "
                + suggest("eval", "RUN", "--samples", 64, "--score-base", "BASE")
            ),
        )
    out: list[Part] = []
    groups: dict[tuple[str, str], list[SampleSet]] = {}
    for s in scored:
        groups.setdefault((s.task, str(s.scored)), []).append(s)
    for (task, base), sets in groups.items():
        sets = _pooled(sets)
        values = {s.arm: s.perplexities for s in sets if s.perplexities is not None}
        caption = (
            f"{task}: share of samples whose perplexity under the base ({base}) exceeds the value on the axis. A line "
            "that ends further right has "
            "samples that the base finds less likely; colder sampling moves it left, broken text moves it right."
        )
        figure = panels.tails_figure(values, "the base" if base in ("embedded", "base") else base)
        label = f"tails of perplexity on {task}"
        out.append(Picture(key=f"perplexity-{slug(task)}", figure=figure, label=label, caption=caption))
        out.append(Tabular(table=_tail_table(sets), about=f"quantiles of perplexity on {task}"))
    return tuple(out)


def _pooled(sets: Sequence[SampleSet]) -> list[SampleSet]:
    """One set an arm: the perplexities of its training seeds together."""
    out = []
    for mine in by_arm(sets).values():
        values = [s.perplexities for s in mine if s.perplexities is not None]
        right = [s.is_right for s in mine if s.is_right is not None]
        owners = tuple(name for s in mine for name in s.owners)
        one = mine[0] if len(mine) == 1 else replace(mine[0], seed=None)
        out.append(replace(one, perplexities=np.concatenate(values), is_right=np.concatenate(right), owners=owners))
    return out


def _tail_table(sets: Sequence[SampleSet]) -> Table:
    rows, cautions = [], []
    for s in sets:
        values, right = s.perplexities, s.is_right
        assert values is not None and right is not None
        for name, kept in (("all", np.ones(len(values), dtype=bool)), ("right", right)):
            if not kept.any():
                rows.append((f"{set_name(s)}, {name}", "0", *("–" for _ in TAIL_QUANTILES)))
                continue
            owners = [p for p, keep in zip(s.owners, kept.tolist(), strict=True) if keep]
            found = perplexity_tails(values[kept], owners, quantiles=TAIL_QUANTILES, resamples=1000)
            cells = [interval_cell(found.quantiles[q], 2) for q in TAIL_QUANTILES]
            rows.append((f"{set_name(s)}, {name}", f"{found.samples:,}", *cells))
            cautions.append(found.caution)
    header = ("samples", "number", *(f"{q:.0%} lie below" for q in TAIL_QUANTILES))
    notes = (
        "Quantiles of the perplexity under the base; beneath each its 95 % interval over problems. Several training seeds of an "
        "arm are taken together.",
    )
    return Table(header=header, rows=tuple(rows), notes=(*notes, *dict.fromkeys(filter(None, cautions))))


def samples_shown(samples: Sequence[SampleSet]) -> tuple[Part, ...]:
    """The samples to browse."""
    shown = [s for s in samples if s.shown]
    if not shown:
        return (
            missing(
                "No samples were given. Name a store here; one is filled with: "
                + suggest("eval", "RUN", "--samples", 64, "--guide", "branch")
            ),
        )
    every, few = len(shown), ""
    if every > MOST_COLUMNS:
        shown = [s for sets in by_task(shown).values() for s in one_seed(sets)]
        few = f"Of {every} stores the first of each arm and task is shown, {len(shown)} in all."
    count = sum(len(s.shown) for s in shown)
    laws = dict.fromkeys(f"{set_name(s)}: {s.task}, {s.law}" for s in shown)
    note = f"{count:,} samples are on this page: the first of every problem of every store; the stores keep all."
    return (browser.part(shown), *quiet(note, few, "; ".join(laws) + "."))
