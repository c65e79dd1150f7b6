"""What was run, and the card of every arm."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from sage_rlvr.report.parts import Card, Cards, Part, Prose, Tabular, joined, missing, quiet
from sage_rlvr.report.study import RunFacts, Study
from sage_rlvr.report.tables import Table


def what_was_run(study: Study) -> tuple[Part, ...]:
    """State of every run, and what was read."""
    if not study.runs:
        return (
            missing("No run directory was given; what stands above comes from evaluations alone."),
            *_sources(study),
        )
    seeds = sorted({run.seed for run in study.runs if run.seed is not None})
    states: dict[str, dict[int | None, str]] = {}
    for run in study.runs:
        states.setdefault(run.arm, {})[run.seed] = run.state
    if not seeds:
        return (*quiet(*(f"{run.arm}: {run.state}." for run in study.runs)), *_sources(study))
    rows = tuple((arm, *(found.get(seed, "not run") for seed in seeds)) for arm, found in states.items())
    table = Table(header=("arm", *(f"seed {seed}" for seed in seeds)), rows=rows)
    return (Tabular(table=table, about="state of every run"), *_sources(study))


def _sources(study: Study) -> tuple[Prose, ...]:
    return quiet(f"Read: {', '.join(study.sources)}.") if study.sources else ()


def cards(runs: Sequence[RunFacts]) -> tuple[Part, ...]:
    """Objective, configuration and versions of every arm."""
    arms: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.config:
            arms.setdefault(run.arm, []).append(run)
    if not arms:
        return (missing("No run directory was given, so there is no configuration to show."),)
    cards = tuple(_card(arm, found) for arm, found in arms.items())
    versions = [dict(run.versions) for run in runs if run.versions]
    same = dict.fromkeys(json.dumps(v, sort_keys=True) for v in versions)
    said: tuple[Part, ...] = ()
    if len(same) > 1:
        said = (
            missing(f"The runs were made under {len(same)} different sets of versions; those of the first are listed."),
        )
    return (Cards(cards=cards, versions=tuple((versions[0] if versions else {}).items())), *said)


def _card(arm: str, runs: Sequence[RunFacts]) -> Card:
    first = runs[0]
    facts = []
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    if seeds:
        facts.append(f"training seed{'s' * (len(seeds) > 1)} {joined([str(seed) for seed in seeds])}")
    seconds = [run.seconds for run in runs if run.seconds is not None]
    if seconds:
        facts.append(f"{np.mean(seconds):,.0f} s of training a seed")
    tokens = [run.tokens for run in runs if run.tokens is not None]
    if tokens:
        facts.append(f"{np.mean(tokens) / 1e6:,.2f} M tokens drawn a seed")
    commits = dict.fromkeys(run.commit for run in runs if run.commit)
    if commits:
        facts.append(f"code {', '.join(commit[:12] for commit in commits)}")
    plain = [{**run.config, "seed": None} for run in runs]
    if any(config != plain[0] for config in plain):
        facts.append("its seeds differ in more than the seed; the first one's configuration is shown")
    config = json.dumps(first.config, indent=2, ensure_ascii=False, default=str)
    return Card(name=arm, facts="; ".join(facts), equation=first.equation, config=config)
