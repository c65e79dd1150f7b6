"""summary.md from the tree of summary.json and the rows: the answer first, then what can be said, then the numbers.

python -m sage_rlvr.results.render docs/results     writes every summary.md there anew, and adjusted_p.md
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.results import tables, words
from sage_rlvr.results.comparisons import Row, compare
from sage_rlvr.results.read import Results
from sage_rlvr.results.stored import interval
from sage_rlvr.results.summary import summary_of
from sage_rlvr.results.tables import NOT_RUN, Table, cell, table
from sage_rlvr.runs import write_json_atomic, write_text_atomic
from sage_rlvr.stats.comparison import FEWEST_SEEDS, p_text, signed

MATCHED = (
    "matched: an unguided arm at several betas, its scores read in between (linear in the logarithm of the raw KL of the last "
    "tenth of training) at the raw KL that the guided arm of the same seed realised; nothing is read outside."
)


def write_summary(path: Path) -> dict[str, Any]:
    """summary.json and summary.md of a folder, in it; returns the former."""
    results = Results.read(path)
    rows = compare(results)
    found = summary_of(results, rows)
    write_json_atomic(path / "summary.json", found)
    write_text_atomic(path / "summary.md", markdown(found, rows))
    return found


def markdown(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole summary.md."""
    blocks = [f"# {found['title']}", words.answer(rows), found["notes"], _incomplete(found), _setting(found)]
    blocks += ["## What can be said", *said(rows, [arm["label"] for arm in found["arms"].values()])]
    blocks += ["## The numbers", tables.scores(found).markdown()]
    more = [one.markdown() for one in (tables.costs(found), tables.training(found)) if one is not None]
    blocks += fold("Support, tokens, seconds, dose of q, training reward and gradient norms", *more)
    blocks += [*_cold(found["cold"]), *_power(found["power"]), *_gains(found["gains"])]
    blocks += ["## The control relabelled", *_relabelled(found)]
    for world, inside in found["away"].items():
        problems = inside["problems"] or found["evaluate"]["ood_problems"]
        blocks += [f"## On {world} ({problems} problems)", tables.away(inside, found).markdown()]
    blocks += [*_choice(found), "## Controls", bullets(_controls(found, rows)), "## Not run"]
    cells = found["not_run"]
    blocks += (
        fold(f"Runs of the design ({len(cells)})", bullets(cells))
        if cells
        else ["- nothing: every run of the design is there"]
    )
    return "\n\n".join(filter(None, blocks)) + "\n"


def said(rows: Sequence[Row], names: Sequence[str] = ()) -> list[str]:
    """Every comparison: the primary ones in groups and as a table, the others in groups, all in full folded."""
    if not rows:
        return [f"{NOT_RUN}: no two arms share an evaluated training seed"]
    primary = [row for row in rows if row.family == "primary"]
    other = [row for row in rows if row.family != "primary"]
    blocks = [words.families(rows), bullets(map(words.line, words.groups(primary)))]
    blocks += [tables.effects(primary, names).markdown()] if primary else []
    blocks += ["### Exploratory", bullets(map(words.line, words.groups(other)))] if other else []
    return [*blocks, *fold(f"Every comparison in full ({len(rows)})", bullets(map(words.sentence, rows)))]


def bullets(lines: Any) -> str:
    """A Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def fold(title: str, *blocks: str) -> list[str]:
    """Blocks that open on a click."""
    return ["<details>", f"<summary>{title}</summary>", *blocks, "</details>"]


def _incomplete(found: Mapping[str, Any]) -> str:
    cells, missing = len(found["arms"]) * len(found["seeds"]), len(found["not_run"])
    return f"{cells - missing} of {cells} runs complete; see Not run." if missing else ""


def _setting(found: Mapping[str, Any]) -> str:
    spec, seeds = found["evaluate"], found["seeds"]
    world = f"{found['world']}. " if found.get("world") else ""
    trained = f"training seed {seeds[0]}" if len(seeds) == 1 else f"training seeds {', '.join(map(str, seeds))}, paired"
    steps = f"; {found['steps']} steps" if found.get("steps") else ""
    means = (
        "One training run per arm: intervals are over problems."
        if len(seeds) == 1
        else "Means over seeds with Student's 95 % intervals over seeds, the problems held fixed."
    )
    return (
        f"{world}{spec['problems']} {spec['split']} problems (draw {spec['draw']}), all right completions enumerated; {trained}"
        f"{steps}. {means}"
    )


def _cold(cold: Mapping[str, Any] | None) -> list[str]:
    if cold is None:
        return []
    ks = [k for k in next(iter(cold["arms"].values())) if k != "label"]
    rows = [{"label": "base"} | cold["base"]] * (cold["base"] is not None) + list(cold["arms"].values())
    columns = {"arm": lambda row: row["label"]} | {f"pass@{k}": (lambda row, k=k: cell(row[k])) for k in ks}
    return [f"## At the paper's temperature, T = {cold['temperature']:g}", table(columns, rows).markdown()]


def _power(power: Mapping[str, Any] | None) -> list[str]:
    if power is None:
        return []

    def known(value: str, bound: str) -> Any:
        return lambda p: f"{p[value]:.3f}\n± {p[bound]:.1g}" if p["known"] else "not available"

    columns = {
        "power": lambda p: f"{p['power']:g}",
        "pass@1": known("pass1", "bound1"),
        "pass@256": known("passk", "boundk"),
    }
    about = "No reward: pi(y)^power, normalized per problem. ±: what the normalizer leaves open."
    return ["## The base tempered over whole completions", about, table(columns, power["points"]).markdown()]


def _gains(gains: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if not gains:
        return []
    lines = []
    for row in gains:
        gap, word = interval(row["difference"]), "excluded" if row["excluded"] else "not excluded"
        if not math.isfinite(gap.width):
            lines.append(f"{row['metric']}: {signed(row['gain'])} cannot be judged: too few training seeds.")
            continue
        inside = f"{signed(gap.value)}, {100 * gap.level:g} % interval {signed(gap.low)} to {signed(gap.high)}"
        pair = f"{row['a']} minus {row['b']}"
        lines.append(
            f"{row['metric']}: {signed(row['gain'])} is {word} ({pair} here {inside} over {gap.n} {gap.over})."
        )
    return ["## The gains that the paper prints for Branch over GRPO", bullets(lines)]


def _relabelled(found: Mapping[str, Any]) -> list[str]:
    again, label = found["relabelled"], control_of(found)
    if not again["splits"]:
        seeds = f"{again['have']} evaluated seed{'s' * (again['have'] != 1)}"
        needs = f"splitting them in two halves of three needs {2 * FEWEST_SEEDS}"
        return [f"{NOT_RUN}: the control has {seeds}; {needs}"]
    counts = ", ".join(f"{metric} {n} of {again['splits']}" for metric, n in again["tied"].items())
    head = (
        f"{label}'s seeds in two halves called A and B, in all {again['splits']} ways, by the rule of the sentences above and each "
        f"at its own level of 95 %: tied at {counts}."
    )
    return [head, bullets(again["first"])]


def control_of(found: Mapping[str, Any]) -> str:
    """The control's name in tables."""
    return str(found["arms"].get(found["control"], {"label": found["control"]})["label"])


def _choice(found: Mapping[str, Any]) -> list[str]:
    choice = found["choice"]
    if choice is None:
        return []
    head = f"## Chosen on {choice['problems']} validation problems by {choice['by']}"
    if not choice["chosen"]:
        return [head, f"{NOT_RUN}: every arm to choose from has to be evaluated on validation problems first."]
    ranked = sorted(choice["scores"].items(), key=lambda item: -(item[1] if item[1] is not None else -math.inf))
    columns = {
        "arm": lambda item: found["arms"][item[0]]["label"] + " (chosen)" * (item[0] == choice["chosen"]),
        "score on validation": lambda item: "no common range" if item[1] is None else f"{item[1]:.4f}",
    }
    return [head, table(columns, ranked).markdown()]


def _controls(found: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    lines = [f"added: {found['arms'][name]['label']} ({why})" for name, why in found["added"].items()]
    lines += [*found["left_out"], *[MATCHED] * any(row.metric.matched for row in rows)]
    return lines or ["none was added"]


# ------------------------------------------------------------------------------------------------------------------
# docs/results


def adjusted(folder: Path) -> Table | None:
    """Of a stored summary of format 1: where the adjusted p is another now, and whether the outcome is."""
    tree = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if "rows" in tree:
        return None
    rows = compare(Results.read(folder))
    ends = tree.get("endpoints") or {}
    lists = [
        tree["comparisons"],
        *((ends.get(name) or {}).get("comparisons", ()) for name in ("cold", "power")),
        ends.get("leash") or (),
    ]
    olds = [old for some in lists for old in some]
    pairs = [(old, row) for old, row in zip(olds, rows, strict=True) if _unlike(old["adjusted"], row.adjusted)]
    columns = {
        "a": lambda pair: pair[1].a,
        "b": lambda pair: pair[1].b,
        "metric": lambda pair: str(pair[1].metric) + (f" on {pair[1].task}" if pair[1].task else ""),
        "p": lambda pair: p_text(pair[1].comparison.p),
        "before: Holm's p": lambda pair: f"{p_text(pair[0]['adjusted'])} of {pair[0]['family']}",
        "now: Holm's p": lambda pair: f"{p_text(pair[1].adjusted)} of {pair[1].family_size}, {pair[1].family}",
        "holds": lambda pair: _holds(*pair),
    }
    return table(columns, pairs)


def _holds(old: Mapping[str, Any], row: Row) -> str:
    before = row.comparison.outcome in ("better", "worse") and old["adjusted"] < 1 - row.comparison.difference.level
    return "" if before == row.holds else "now" if row.holds else "no longer"


def _unlike(old: float | None, new: float) -> bool:
    return old is not None and not math.isclose(old, new, rel_tol=1e-9)


def main(root: Path) -> None:
    """summary.md of every folder with a summary.json, and adjusted_p.md."""
    blocks = [
        "# Adjusted p values, before and now",
        "Raw p values, differences and intervals are unchanged. Holm's correction ran over each list by itself; it runs now "
        "once over the primary comparisons of a design and once over all others. `holds`: where a difference at level 0.95 "
        "outlasts the correction now and did not before, or the other way round. Made by `python -m sage_rlvr.results.render "
        "docs/results`.",
    ]
    for path in sorted(root.glob("*/summary.json")):
        results = Results.read(path.parent)
        rows = compare(results)
        write_text_atomic(path.with_suffix(".md"), markdown(summary_of(results, rows), rows))
        changed = adjusted(path.parent)
        blocks += [] if changed is None or not changed.rows else [f"## {path.parent.name}", changed.markdown()]
    write_text_atomic(root / "adjusted_p.md", "\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results"))
