"""Compute the values of a page: for report.md.j2, its figures and summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.models.folders import long_name
from sage_rlvr.results import tables, words
from sage_rlvr.results.comparisons import Row, compare
from sage_rlvr.results.design import BASE
from sage_rlvr.results.metric import PAPER, REFERENCE
from sage_rlvr.results.page import answers, samples, scores, training
from sage_rlvr.results.page.rows import row_sets
from sage_rlvr.results.page.scores import Policy
from sage_rlvr.results.read import Results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.results.tables import Table, cell
from sage_rlvr.results.verdict import verdicts
from sage_rlvr.stats.comparison import FEWEST_SEEDS, signed
from sage_rlvr.stats.power import spread
from sage_rlvr.tasks.chance import Chance

HELD_FIXED = (
    "Intervals over training seeds hold these problems fixed: they cover new training runs of the same methods on these problems, "
    "not new problems."
)
ONE_SEED = (
    "Each arm was trained once: every result is about these checkpoints, on problems like these. Another seed could reorder the "
    "arms. A claim about methods needs at least three training seeds of each."
)
SAME_KL = (
    "at the same raw KL: the scores of an unguided arm at several betas, interpolated (linear in the logarithm of the raw KL of "
    "the "
    "last tenth of training) at the raw KL of the guided arm of the same seed; there is no extrapolation."
)
CHOSEN_HERE = "The best temperature of each policy was selected on these problems, so each best pass@1 has a small upward bias."


def page_of(
    results: Results,
    rows: Sequence[Row] | None = None,
    *,
    title: str = "",
    shown: int = 16,
    brief: bool = False,
) -> dict[str, Any]:
    """The values of report.md.j2 by name, with `order` (of the arms' colors), `browser` (data of the page's script) and `summary`
    (for summary.json).

    rows: the comparisons; by default computed here. shown: samples per problem and store on the page. brief: only the sentences and
    tables of a summary."""
    rows = compare(results) if rows is None else rows
    found = summary_of(results, rows)
    design, them, trained = results.design, scores.policies(found), training.by_arm(results)
    stores = () if brief else (*samples.sample_sets(results, shown), *row_sets(results.counts, shown))
    browsed, base = samples.browsed(stores), design.base or next(iter(them), "")
    sampled = found.get("sampled") or ()  # a stored summary has no stores
    bases = [row for row in sampled if row["policy"] == BASE]
    colder = [row["label"] for row in bases if len(bases) > 1 and row["temperature"] != REFERENCE]
    order = [*them, *(row["label"] for row in bases), *design.names, *(s.arm for s in stores)]
    order += [*(row["label"] for row in sampled), *trained]
    order = [name for name in order if name not in colder]
    names = list(dict.fromkeys([*them, *(s.arm for s in stores)] or [row["policy"] for row in sampled]))
    usual = " · ".join(names) if 0 < len(names) < 5 else f"{len(names)} policies"
    values: dict[str, Any] = {"summary": found, "order": order, "colder": colder}
    values["browser"] = samples.data_of(browsed) if browsed else None
    values |= {"title": title or design.title[:1].upper() + design.title[1:] or usual, "brief": brief}
    values |= {"lead": _lead(found, them, sorted({row["task"] for row in sampled})), "facts": _facts(found, them)}
    values |= {"starts": words.starts(results)}
    values |= {"samples": samples.about(stores, browsed)}
    values |= {"base": base, "k": results.k, "seeds": max((len(p.seeds) for p in them.values()), default=0)}
    values |= _said(results, rows, found, list(dict.fromkeys([*them, *design.names])))
    values |= _scores(results, found, them, base) | _training(results, rows, found, them, base, trained)
    crossed = verdicts(results, rows) if results.sampled_only else []
    values["crossings"] = [scores.verdict_of(one, found) for one in crossed if one.curve]
    return values | ({} if brief else answers.answers_of(results, found, stores, crossed))


# ------------------------------------------------------------------------------------------------------------------
# words


def _facts(found: Mapping[str, Any], them: Mapping[str, Policy]) -> str:
    """Day of the training, base policy with its size, steps and training seeds."""
    policy, seeds = found.get("policy") or {}, max((len(p.seeds) for p in them.values()), default=0)
    model, size = policy.get("model"), policy.get("parameters")
    said = (
        f"trained {found['created'][:10]}" if found.get("created") else "",
        f"base policy: {long_name(model)}" if model else "",
        f"{size / 1e6:,.2f} M parameters" if size else "",
        f"{found['steps']} training steps" if found.get("steps") else "",
        f"{seeds} training seed{'s' * (seeds > 1)} per arm" if seeds and found["arms"] else "",
    )
    return " · ".join(filter(None, said))


def _lead(found: Mapping[str, Any], them: Mapping[str, Policy], sampled: Sequence[str]) -> str:
    """What was evaluated, on which problems, and what the intervals are over."""
    if not them:
        return f"Sampled on {', '.join(sampled) or 'no task'}; without an exact evaluation."
    seeds, spec = max(len(p.seeds) for p in them.values()), found["evaluate"]
    trained = f"{seeds} training seeds each, paired; " if seeds > 1 else ""
    over = "training seeds (Student's t)" if seeds > 1 else "problems"
    world, steps = (
        (f"{found['world']}. " if found.get("world") else ""),
        f"; {found['steps']} steps" if found.get("steps") else "",
    )
    return (
        f"{world}{len(them)} policies on the same {spec['problems']} {spec['split']} problems, all right answers enumerated, so "
        f"every probability is an exact sum{steps}; {trained}95 % intervals are over {over}."
    )


def _said(results: Results, rows: Sequence[Row], found: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """The answer and the rows by section: primary, exploratory, at T = 0.3, against the tempered base."""
    cold = [row for row in rows if row.metric.temperature == PAPER and not row.task]
    power = [row for row in rows if row.why == "power" and row.family != "primary"]
    main = [row for row in rows if row not in cold and row not in power]
    caveats, chance = words.cautions(rows), tables.chance_in(found)
    if found["arms"] and results.design.base:
        caveats.append(HELD_FIXED if results.several or results.stored else ONE_SEED)
        caveats += [CHOSEN_HERE] * any(len(row.get("frontier", ())) > 1 for row in found["arms"].values())
    primary, rest = ([row for row in main if (row.family == "primary") == asked] for asked in (True, False))
    groups = {"primary": primary, "exploratory": rest, "cold": cold, "power": power}
    answer, *detail = words.paragraphs(rows, results) if rows else [words.nothing(results)]
    return {
        "failed": list(found.get("failed", ())), "answer": answer, "detail": " ".join(detail),
        "families": words.families(rows), "caveats": caveats, "notes": found["notes"],
        "said": {name: _rows(some, order) for name, some in groups.items()}, "compared": bool(rows),
        "room": tables.room(found), "gains": [_gain(row, chance) for row in found.get("gains") or ()],
        "relabelled": _relabelled(found),
    }  # fmt: skip


def _rows(rows: Sequence[Row], order: Sequence[str]) -> dict[str, Any] | None:
    """Rows as lines of groups, as a table of arms and groups, and as full sentences; None without rows."""
    if not rows:
        return None
    return {"lines": words.lines(rows), "table": tables.effects(rows, order), "sentences": [words.sentence(row) for row in rows]}


def _gain(row: Mapping[str, Any], chance: Chance | None) -> str:
    """Whether the interval of Branch minus GRPO excludes the paper's gain."""
    k = int(row["metric"].partition("@")[2].split()[0])
    level = "" if chance is None or k == 1 else f"; chance {chance.at(k):.3f}"
    gap, word = row["difference"], "excluded" if row["excluded"] else "not excluded"
    if gap["low"] is None:
        return f"{row['metric']}: {signed(row['gain'])} cannot be tested: too few training seeds."
    inside = f"{signed(gap['value'])}, {100 * gap['level']:g} % interval {signed(gap['low'])} to {signed(gap['high'])}"
    pair = f"{row['a']} minus {row['b']}"
    return f"{row['metric']}: {signed(row['gain'])} is {word} ({pair} here {inside} over {gap['n']} {gap['over']}{level})."


def _relabelled(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """A/A check of the control: counts of splits without a significant difference; None without a control."""
    if not found["control"]:
        return None
    label = found["arms"].get(found["control"], {}).get("label", found["control"])
    return {**found["relabelled"], "control": label, "needs": 2 * FEWEST_SEEDS}


# ------------------------------------------------------------------------------------------------------------------
# numbers


def _scores(results: Results, found: Mapping[str, Any], them: Mapping[str, Policy], base: str) -> dict[str, Any]:
    k, power, sampled, chance = results.k, found["power"], found.get("sampled", ()), tables.chance_in(found)
    alone = dict.fromkeys(row["task"] for row in sampled if row["policy"] not in them)
    apart = {task: [row for row in sampled if row["task"] == task] for task in alone}
    first = [("", tables.scores(found))] if them or (results.design.facts and not sampled) else []
    return {
        "frontier": scores.frontier_of(them, base, k, power, chance) or scores.sampled_frontier(found, base),
        "passk": scores.passk_lines(found, them) if them else None,
        "chance": scores.chance_line(found),
        "power": _power_table(power["points"], k, chance) if power else None,
        "cold": _cold_table(found, k) if found["cold"] else None,
        "cold_temperature": PAPER, "tables": [*first, *tables.samples(found, apart)],
        "sampled_curves": scores.sampled_curves(found, apart), "differences": scores.differences(results, base, apart),
        "gaps": scores.gaps(results, them, base), "no_gaps": scores.no_gaps(results, them), "support": _support(them, found),
        "away": [(world, tables.scores(found, world)) for world in found["away"]],
    }  # fmt: skip


def _cold_table(found: Mapping[str, Any], k: int) -> Table:
    """pass@1 and pass@k at T = 0.3 and T = 1."""
    cold = found["cold"]
    both = [("base", cold["base"], found["base"])] if cold["base"] else []
    both += [(row["label"], row, found["arms"][key]) for key, row in cold["arms"].items()]
    chance = tables.chance_in(found)
    rows = [
        (name, *(tables.passed({"pass": at}, n, chance) for n in (1, k) for at in (there, here["pass"])))
        for name, there, here in both
    ]
    ks = {f"pass@{n}\nT = {t:g}": n for n in (1, k) for t in (PAPER, 1.0)}
    return tables.with_chance(Table(header=("arm", *ks), rows=tuple(rows)), chance, ks)


def _power_table(points: Sequence[Mapping[str, Any]], k: int, chance: Chance | None) -> Table:
    """Power, pass@1 and pass@k, each with the bound of the error of the normalizer."""

    def known(p: Mapping[str, Any], n: int, value: str, bound: str) -> str:
        if not p["known"]:
            return "not available"
        shown, *mark = tables.passed({"pass": {str(n): p[value]}}, n, chance).split("\n")
        return "\n".join([shown, f"± {p[bound]:.1g}", *mark])

    rows = tuple((f"{p['power']:g}", known(p, 1, "pass1", "bound1"), known(p, k, "passk", "boundk")) for p in points)
    ks = {f"pass@{n}": n for n in (1, k)}
    return tables.with_chance(Table(header=("power", *ks), rows=rows), chance, ks)


def _support(them: Mapping[str, Policy], found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Right completions kept, gained and lost relative to the base (Definition 4.1)."""
    rows = [row for row in found["arms"].values() if "support" in row]
    if not rows or found["base"] is None:
        return None
    changed, home = {name: p.support for name, p in them.items() if p.support}, found["base"]["support"]
    cells = {row["label"]: [cell(row["support"][what], 0) for what in ("preserved", "gained", "lost")] for row in rows}
    body = [(name, *cells[name], f"{kept / max(kept + lost, 1):.1%}") for name, (kept, _, lost) in changed.items()]
    table = Table(header=("arm", "kept", "gained", "lost", "share kept"), rows=(("base", f"{home:,}", "–", "–", "–"), *body))
    return {"kept": changed, "base": home, "table": table}


def _training(
    results: Results,
    rows: Sequence[Row],
    found: Mapping[str, Any],
    them: Mapping[str, Policy],
    base: str,
    trained: training.Trained,
) -> dict[str, Any]:
    configs, more = training.configs_of(trained), [tables.costs(found), tables.training(found)]
    added = [f"added: {arm.name} ({arm.why})" for arm in results.design.arms if arm.why]
    return {
        "training": training.curves(trained), "warnings": training.warnings(found),
        "training_tables": [table for table in more if table.rows],
        "learning": training.learning(configs, them, base, results.k), "grids": training.grids(configs, them, results.k),
        "states": training.states(results, trained), "warned": training.warned(found),
        "cards": training.cards(results, trained), "choice": _choice(found),
        "versions": [
            f"{name} {version}" for name, version in training.versions(trained) or (found.get("versions") or {}).items()
        ],
        "swept": bool(results.design.facts),
        "runs_wanted": len(results.design.facts.get("runs", ())) or len(found["arms"]) * len(found["seeds"]),
        "controls": [*(added or ["none was added"]), *[SAME_KL] * any(row.metric.matched for row in rows)],
        "not_run": list(found["not_run"]),
        "left_out": list(dict.fromkeys([*results.notes, *found["left_out"]])),
        "sources": [str(path) for path in results.sources],
    }  # fmt: skip


def _choice(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arm selected on validation problems and the selection score."""
    choice = found.get("choice")
    if not choice:
        return None
    ranked = sorted(choice["scores"].items(), key=lambda item: -math.inf if item[1] is None else item[1], reverse=True)
    rows = tuple(
        (
            found["arms"][key]["label"] + " (chosen)" * (key == choice["chosen"]),
            "no common range" if s is None else f"{s:.4f}",
        )
        for key, s in ranked
    )
    return choice | {"table": Table(header=("arm", "score on validation"), rows=rows), "spread": _spread(choice)}


def _spread(choice: Mapping[str, Any]) -> str:
    """Whether the candidates of a selection differ by more than seed noise; "" if that cannot be tested."""
    by_seed = choice.get("by_seed") or {}
    if len(by_seed) < 2 or any(len(scores) < 2 for scores in by_seed.values()):
        return ""
    runs = [list(scores.values()) for scores in by_seed.values()]
    if any(x is None for scores in runs for x in scores):
        return "No test of the differences between the candidates: some runs have no common range with the base."
    found = spread(runs)
    said = (
        f"The standard deviation of their means is {found.arms:.4f}; for equal arms seed noise would give {found.seeds:.4f} "
        f"(F test: p = {found.p:.3f})."
    )
    return said if found.p < 0.05 else f"{said} The arms do not differ significantly: the highest mean may be chance."
