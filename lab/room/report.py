"""The tables of the page, from the stored numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.room.cohort import DOMAINS, FAMILIES, METHODS, MODELS
from lab.room.slopes import slope_of
from sage_rlvr.results.tables import Table


def ends(low: float, high: float, digits: int = 2, sign: str = "+") -> str:
    """An interval in words."""
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"


def tables_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page in Markdown, by the names of their marks."""
    tables = {
        "bands": bands_of(found),
        "settings": settings_of(found),
        "worlds": worlds_of(found),
        "smollm2": smollm2_of(found),
        "slopes": slopes_of(found),
        **{f"predictors {name}": skill_of(found["skill"][name], found["k"]) for name in found["skill"]},
    }
    return {"checks": checks_of(found), **{name: table.markdown() for name, table in tables.items()}}


def number(value: float | None) -> str:
    """One decimal; None is not defined."""
    return "not defined" if value is None else f"{value:.1f}"


def checks_of(found: Mapping[str, Any]) -> str:
    """Whether the package's own numbers are reproduced, and which answers are dependent: a list."""
    one, noise = found["checks"], found["noise"]
    copies, before, after = one["base_copies"], noise["before"], noise["after"]
    lines = [
        f"{one['runs']} runs with answers before and after, {one['without_after']} left out because it has none after; "
        f"{one['without_base']} take the base of another run of their cell.",
        f"Printed pass@8 after RL (Qwen2.5-0.5B): {one['printed_cells_reproduced']} of {one['printed_cells']} cells come out "
        f"to three decimals. pass@8 stored with each checkpoint: {one['checkpoints_reproduced']} of {one['checkpoints']}.",
        f"Answer i + 1 of a group equals answer i of the next in {one['overlap']['before']:.4f} (base) and "
        f"{one['overlap']['after']:.4f} (after) of the places, so {found['k']} answers of a problem are independent.",
        f"There are {one['bases']} bases. "
        + (
            f"Runs of one cell hold copies of one sample of it: {copies['least']:.3f} to 1 of the answers are equal, "
            f"{copies['median']:.3f} at the median."
            if copies
            else "None was sampled twice."
        ),
        f"Noise common to all problems (Cochran's Q / {found['k'] - 1}; about 1 if each problem had noise of its own, above "
        f"{noise['limit']:.2f} in 1 of 1,000): above in {before['above']} of {before['read']} bases, median "
        f"{number(before['median'])}, largest {number(before['largest'])}; after RL in {after['above']} of "
        f"{after['read']} policies, median {number(after['median'])}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def bands_of(found: Mapping[str, Any]) -> Table:
    """A row a family and band of the base's score."""
    rows = []
    for family, bands in found["bands"].items():
        for band in bands:
            undecided = band["settings"] - band["wider"] - band["narrower"]
            domains = ", ".join(DOMAINS.get(name, name) for name in band["domains"])
            rows.append(
                (
                    family,
                    f"{band['low']:.2f} to {band['high']:.2f}",
                    *map(str, (band["settings"], band["wider"], band["narrower"], undecided)),
                    domains,
                )
            )
    return Table(
        header=("methods", f"base pass@{found['k']}", "settings", "wider", "narrower", "undecided", "domains"),
        rows=tuple(rows),
    )


def name_of(row: Mapping[str, Any]) -> str:
    """Domain, with the level where it is not the first."""
    level = "" if row["level"] == "level1" else f", {row['level'].replace('level', 'level ')}"
    return f"{DOMAINS.get(row['domain'], row['domain'])}{level}"


def settings_of(found: Mapping[str, Any]) -> Table:
    """A row a base, a column a method."""
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found["settings"]:
        bases.setdefault((MODELS.get(row["model"], row["model"]), name_of(row)), {})[row["method"]] = row

    def cell(row: Mapping[str, Any] | None) -> str:
        return "" if row is None else f"{row['change']:+.2f}\n{ends(row['low'], row['high'])}"

    def levels(of: Mapping[str, Any]) -> float:
        return sum(float(row["base"]) for row in of.values()) / len(of)

    k = found["k"]
    rows = []
    for (model, name), of in sorted(bases.items(), key=lambda pair: levels(pair[1])):
        one = sum(row["base1"] for row in of.values()) / len(of)
        rows.append(
            (
                model,
                name,
                f"{one:.3f}",
                f"{levels(of):.3f}",
                *(cell(of.get(method)) for method in METHODS),
            )
        )
    return Table(header=("model", "domain", "base pass@1", f"base pass@{k}", *METHODS.values()), rows=tuple(rows))


def worlds_of(found: Mapping[str, Any]) -> Table:
    """Our own arms: pass@8 exactly, pass@k as intervals."""
    line = found["lines"]["without replay"]
    rows = []
    for arm in found["worlds"]:
        expected = [line["intercept"] + line["slope"] * room for room in arm["room"]]
        rows.append(
            (
                arm["name"],
                f"{arm['base8']:.3f}",
                f"{arm['after8'] - arm['base8']:+.3f}",
                ends(*arm["base"], 3, ""),
                ends(*arm["change"], 3),
                ends(*expected, 3),
                str(arm["seeds"]),
                arm["experiment"],
            )
        )
    k = found["k"]
    head = (
        "arm",
        "base pass@8",
        "change of pass@8",
        f"base pass@{k}",
        f"change of pass@{k}",
        "change on the line",
        "seeds",
        "experiment",
    )
    note = f"The line: all settings without replay. Left-out domains lie {line['error']:.2f} (root mean square) from such a line."
    return Table(header=head, rows=tuple(rows), notes=(note,))


def smollm2_of(found: Mapping[str, Any]) -> Table:
    """The study on SmolLM2: pass@k of the base, its change, and the change on the line."""
    line = found["lines"]["without replay"]
    rows = []
    for arm in found["smollm2"]:
        expected = line["intercept"] + line["slope"] * (1 - arm["base"])
        change = f"{arm['change']:+.3f}\n{ends(arm['low'], arm['high'], 3)}"
        rows.append((arm["name"], f"{arm['base']:.3f}", change, f"{expected:+.3f}", str(arm["seeds"]), arm["experiment"]))
    head = ("arm", f"base pass@{found['k']}", f"change of pass@{found['k']}", "change on the line", "seeds", "experiment")
    notes = () if rows else ("No room is complete yet.",)
    return Table(header=head, rows=tuple(rows), notes=notes)


def slopes_of(found: Mapping[str, Any]) -> Table:
    """All readings of the slope and its nulls."""
    rows = []
    for family, slopes in found["slopes"].items():
        rows += [
            (family, one["reading"], str(one["k"]), f"{one['slope']:+.2f}", ends(one["low"], one["high"]), one["over"])
            for one in slopes
        ]
    within = ", ".join(f"{family} {within_domains(found, family):+.2f}" for family in FAMILIES)
    note = f"Within domains, each less its domain's means, the slope as read is: {within}."
    return Table(header=("methods", "reading", "k", "slope", "95 %", "over"), rows=tuple(rows), notes=(note,))


def within_domains(found: Mapping[str, Any], family: str) -> float:
    """The slope of the change on the room over the settings of a family, room and change less the means of their domain."""
    own = [one for one in found["settings"] if one["method"] in FAMILIES[family]]
    domains = np.array([one["domain"] for one in own])
    both = np.array([(1 - one["base"], one["change"]) for one in own])
    for domain in np.unique(domains):
        both[domains == domain] -= both[domains == domain].mean(axis=0)
    return slope_of(both[:, 0], both[:, 1])


def skill_of(skill: Mapping[str, Any], k: int) -> Table:
    """One family: every predictor."""
    rows = []
    for row in skill["rows"]:
        rows.append(
            (
                row["predictor"].replace("pass@K", f"pass@{k}").replace("in K", f"in {k}"),
                f"{row['spearman']:+.2f}",
                f"{row['right']}",
                f"{row['balanced']:.2f}",
                f"{row['built_balanced'][0]:.2f}\n{ends(*row['built_balanced'][1:], 2, '')}",
                f"{row['r2']:+.2f}\n{ends(row['r2_low'], row['r2_high'])}",
                f"{row['built_r2'][0]:+.2f}\n{ends(*row['built_r2'][1:])}",
                f"{row['p']:.3f}",
                ends(row["lead_low"], row["lead_high"]),
                str(row["better_domains"]),
                f"{row['balanced_models']:.2f}",
                f"{row['r2_models']:+.2f}",
            )
        )
    head = (
        "number of the base",
        "rank correlation",
        f"signs right of {skill['settings']}",
        "balanced",
        "balanced, other domain's RL",
        "R2",
        "R2, other domain's RL",
        "p",
        "R2 less R2 of room",
        f"domains better than room, of {skill['domains']}",
        "balanced, models",
        "R2, models",
    )
    most = max(skill["up"], skill["settings"] - skill["up"])
    note = f"{skill['up']} of {skill['settings']} settings go up: the same sign for all is right {most} times."
    return Table(header=head, rows=tuple(rows), notes=(note,))
