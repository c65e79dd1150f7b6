"""The designs, counted, and the rivals held against themselves, as one page from the files.

`python -m lab designs` prints lab/pages/results/designs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.register.runs import DIGITS, Count, Entry, One, count, differences, entries, spans, taken_over
from sage_rlvr.results.tables import NONE, Table, table
from sage_rlvr.verdicts.results import K
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.paired import against_itself

RELABELED = (1, 8, K)
STATED, LOW = 0.95, 0.8  # the level of each comparison; a share of ties below this is named


# ------------------------------------------------------------------------------------------------------------------
# one arm under two names


@dataclass(frozen=True, kw_only=True)
class Relabeled:
    """A rival of a sweep against itself. tied: k -> how many of `splits` relabelings tie at pass@k. of: the row that has the same
    runs, if any."""

    sweep: str
    arm: str
    label: str
    control: bool
    seeds: tuple[int, ...]
    splits: int
    tied: Mapping[int, int]
    of: tuple[str, str] | None = None


def relabeled(found: Sequence[Entry], links: Mapping[One, One]) -> list[Relabeled]:
    """The control of each sweep and the arms of its baselines, where they have six training seeds or more."""
    rows: list[Relabeled] = []
    for entry in found:
        if entry.results is None:
            continue
        rivals = {name for envelope in entry.results.design.baselines for name in envelope.arms}
        for key, arm in entry.stored["arms"].items():
            control = key == entry.stored["control"]
            scores = {seed: arm["pass_by_seed"][str(seed)] for seed in sorted(map(int, arm.get("pass_by_seed", ())))}
            if not control and arm["label"] not in rivals:
                continue
            known = [k for k in RELABELED if all(str(k) in ones for ones in scores.values())]
            made = {k: against_itself({s: one[str(k)] for s, one in scores.items()}, level=STATED) for k in known}
            if splits := max(map(len, made.values()), default=0):
                tied = {k: sum(one.outcome == "tied" for one in some) for k, some in made.items()}
                sources = {_source(links, (entry.name, key, seed)) for seed in entry.seeds[key]}
                row = Relabeled(
                    sweep=entry.name, arm=key, label=arm["label"], control=control, seeds=entry.seeds[key], splits=splits,
                    tied=tied, of=sources.pop() if len(sources) == 1 else None,
                )  # fmt: skip
                rows.append(row)
    return rows


def _source(links: Mapping[One, One], run: One) -> tuple[str, str] | None:
    """Sweep and arm that a run was taken over from."""
    return links[run][:2] if run in links else None


def again(row: Relabeled, rows: Sequence[Relabeled]) -> bool:
    """Whether its relabelings are those of another of these rows, the same runs."""
    return any((other.sweep, other.arm) == row.of and other.seeds == row.seeds for other in rows)


def ties(rows: Sequence[Relabeled]) -> dict[int, tuple[int, int]]:
    """k -> (tied, relabelings) over these rows, the same runs once."""
    once = [row for row in rows if not again(row, rows)]
    ks = [k for k in RELABELED if any(k in row.tied for row in once)]
    return {k: (sum(row.tied.get(k, 0) for row in once), sum(row.splits for row in once if k in row.tied)) for k in ks}


# ------------------------------------------------------------------------------------------------------------------
# the page

HEAD = f"""# The designs, counted

Printed by `python -m lab designs` from the designs and the summaries of `lab/experiments`. Runs and hours
were counted after the runs.

- **sha256**: the first {DIGITS} digits of the file's hash as it stands now. A summary keeps none: where a file was changed after
  its runs, this is the hash of the changed file. Of a file that takes its edits from another (`base`) it covers the file alone.
- **Seeds, arms, runs**: those that are complete in the summary, trained and evaluated. What began and did not end is not counted.
  *None stored*: no summary of it lies here. It was not run, is not finished, or its results are kept elsewhere. Its seeds, arms and
  runs are those of the file.
- **Taken over**: runs of another sweep (`reuse_runs`). They were trained once, and count once in the totals. Summaries do
  not mark them:
  a run counts as taken over where a sweep that is named there has one of the same seed and the same pass@k to the last digit, or
  an arm of the same seconds and tokens over the same seeds.
- **CPU hours**: training alone, of the runs that were not taken over, in seconds of the clock. A run has one thread, so it took so
  many CPU seconds at most. Evaluation, sampling and the training of a base policy are not in it.
- **Primary tests**: the size of Holm's primary family as the summary is read today, with discarded candidates; and how many of its
  comparisons have no test, because there are fewer than three seeds or the metric cannot be read.
- **File and summary**: where they differ, in arms, seeds, steps, problems or questions. Why seeds are not complete stands in
  lab/PROTOCOL.md."""

ITSELF = f"""## The rivals against themselves

The training seeds of one arm in two halves called A and B, in every way, each compared by itself at a level of {100 * STATED:g} %:
Student's t over the seeds of a half, before any correction. Both halves are one method, so {100 * STATED:g} % are to be tied.
Rivals are the control of each sweep and the arms of its baselines, where they have six seeds or more. *Same runs*: these runs
are those of another row, on the same problems or others. In the totals they count once."""

SHARED = (
    "The relabelings of one arm share its seeds, arms of one sweep share prompts and random streams, and sweeps may share a part "
    "of an arm's runs. So they are not independent, and no interval is given over them."
)


def page(results: Path, designs: Mapping[str, Path]) -> str:
    """The whole page, Markdown."""
    found = entries(results, designs)
    links = taken_over(found)
    counts = {entry.name: count(entry, links) for entry in found}
    rivals = relabeled(found, links)
    parts = [HEAD, _designs(found, counts).markdown(), _totals(found, counts, links), ITSELF]
    return "\n\n".join([*parts, _rivals(rivals).markdown(), *_rates(rivals), SHARED]) + "\n"


def _designs(found: Sequence[Entry], counts: Mapping[str, Count]) -> Table:
    def stored(cell: Callable[[Entry], str]) -> Callable[[Entry], str]:
        return lambda entry: NONE if entry.results is None else cell(entry)

    def runs(entry: Entry) -> str:
        planned = len(entry.arms) * len(entry.design.seeds)
        return f"none stored, {planned} designed" if entry.results is None else str(counts[entry.name].runs)

    def hours(entry: Entry) -> str:
        untimed = counts[entry.name].untimed
        return f"{counts[entry.name].hours:.1f}" + f", {untimed} runs not logged" * bool(untimed)

    columns = {
        "design": lambda entry: entry.name,
        "sha256": lambda entry: entry.sha256,
        "seeds": lambda entry: spans(entry.design.seeds if entry.results is None else _seeds(entry)),
        "arms": lambda entry: str(len(entry.arms if entry.results is None else entry.seeds)),
        "runs": runs,
        "taken over": stored(lambda entry: str(counts[entry.name].taken)),
        "steps per run": lambda entry: _steps(entry),
        "CPU hours": stored(hours),
        "primary tests": stored(lambda entry: _family(entry.rows)),
        "problems": lambda entry: entry.split,
        "file and summary": lambda entry: "; ".join(differences(entry)),
    }
    return table(columns, found)


def _seeds(entry: Entry) -> set[int]:
    return {seed for seeds in entry.seeds.values() for seed in seeds}


def _steps(entry: Entry) -> str:
    some = [arm.config.steps for arm in entry.arms] if entry.results is None else list(map(entry.steps, entry.seeds))
    return " to ".join(map(str, sorted({min(some), max(some)}))) if some else NONE


def _tests(rows: Sequence[Row]) -> int:
    return max((row.family_size for row in rows if row.family == "primary"), default=0)


def _family(rows: Sequence[Row]) -> str:
    untested = sum(row.family == "primary" and not row.family_size for row in rows)
    return f"{_tests(rows)}" + f", {untested} without a test" * bool(untested)


def _totals(found: Sequence[Entry], counts: Mapping[str, Count], links: Mapping[One, One]) -> str:
    kept = [entry for entry in found if entry.results is not None]
    total = sum((counts[entry.name] for entry in kept), Count())
    lines = [
        f"{len(found)} designs, {len(kept)} of them with stored results: {total.runs:,} runs, {total.taken:,} of them taken over. "
        f"So **{total.trained:,} training runs** with {total.steps:,} optimizer steps in **{total.hours:.1f} CPU hours**, and "
        f"{sum(_tests(entry.rows) for entry in kept):,} tests in {sum(_tests(entry.rows) > 0 for entry in kept)} primary families."
    ]
    for split in sorted({entry.split for entry in kept}):
        here = [entry for entry in kept if entry.split == split]
        part = sum((counts[entry.name] for entry in here), Count())
        lines.append(
            f"Designs whose page reads {split} problems: {len(here)}, {part.trained:,} training runs, {part.hours:.1f} CPU hours."
        )
    if total.untimed:
        lines.append(f"{total.untimed:,} runs logged no seconds; they are in no sum of hours.")
    if shared := [entry.name for entry in kept if _partly(entry, links)]:
        lines.append(
            f"{', '.join(shared)}: an arm there is taken over in part, and its other runs are counted at its mean per run, since a "
            "summary has the seconds of an arm and not of each run."
        )
    return "\n".join(f"- {line}" for line in lines)


def _partly(entry: Entry, links: Mapping[One, One]) -> bool:
    taken = ([(entry.name, arm, seed) in links for seed in seeds] for arm, seeds in entry.seeds.items())
    return any(any(some) and not all(some) for some in taken)


def _rivals(rows: Sequence[Relabeled]) -> Table:
    columns: dict[str, Callable[[Relabeled], str]] = {
        "sweep": lambda row: row.sweep,
        "rival": lambda row: row.label + " (control)" * row.control,
        "seeds": lambda row: spans(row.seeds),
        "relabelings": lambda row: str(row.splits),
    }
    for k in RELABELED:
        columns[f"tied at pass@{k}"] = lambda row, k=k: str(row.tied.get(k, NONE))  # type: ignore[misc]
    columns["same runs"] = lambda row: f"{row.of[0]}, {row.of[1]}" if row.of and again(row, rows) else ""
    return table(columns, rows)


def _rates(rows: Sequence[Relabeled]) -> list[str]:
    """Tied over all, of the controls alone and of all rivals; and who is below `LOW`."""
    groups = {"The controls": [row for row in rows if row.control], "All rivals": list(rows)}
    lines = []
    for who, some in groups.items():
        rates = [f"pass@{k} {a} of {n} ({100 * a / n:.1f} %)" for k, (a, n) in ties(some).items()]
        told = f"tied at {', '.join(rates)}; stated: {100 * STATED:g} %" if rates else "none has six seeds"
        lines.append(f"- **{who}**: {told}.")
    low = [
        f"{row.sweep}, {row.label}: {n} of {row.splits} at pass@{k}"
        for row in rows
        for k, n in row.tied.items()
        if n < LOW * row.splits and not again(row, rows)
    ]
    lines.append(f"- Below {100 * LOW:g} %: {'; '.join(low) or 'none'}.")
    return ["\n".join(lines)]


__all__ = ["Relabeled", "again", "page", "relabeled", "ties"]
