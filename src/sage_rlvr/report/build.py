"""The page of some results: values for report.md.j2, its Markdown, its HTML, its figures.

page = build(Results.read("runs/demo"))
page.html()                            one file that opens with the network off
page.markdown("figures")               the rendered template itself, figures as links
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from sage_rlvr.report import answers, figures, runs, scores
from sage_rlvr.report.markup import asset, escaped, template, to_html
from sage_rlvr.report.samples import SampleSet, as_script, by_task, data_of, first_of_each, sample_sets
from sage_rlvr.report.scores import Policy, policies
from sage_rlvr.report.style import Looks, dark_twins, looks, png_of, svg_of
from sage_rlvr.results import Results, Row, compare, tables, words
from sage_rlvr.results.design import BASE
from sage_rlvr.results.metric import PAPER
from sage_rlvr.results.summary import summary_of
from sage_rlvr.results.tables import Table, cell
from sage_rlvr.runs import write_json_atomic, write_text_atomic
from sage_rlvr.stats.comparison import FEWEST_SEEDS, signed

# No request may leave the page, and no script runs but the one whose hash is named; {script} is 'none' where there is none
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src {script}; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)
MOST_COLUMNS = 8  # of the sample browser, side by side
HELD_FIXED = (
    "Intervals over training seeds hold these problems fixed: they say what another training run of the same methods would give on "
    "these problems, not what other problems would."
)
ONE_SEED = (
    "Each arm was trained once: every sentence is about these checkpoints, on problems like these. Another seed could reorder the "
    "arms, so whether one method beats another cannot be told from this page; that takes three training seeds of each."
)
SAME_KL = (
    "at the same raw KL: an unguided arm at several betas, its scores read in between (linear in the logarithm of the raw KL of "
    "the last tenth of training) at the raw KL that the guided arm of the same seed realized; nothing is read outside."
)
CHOSEN_HERE = "The best temperature of each policy was chosen on these same problems, which flatters each a little."


class Page:
    """Values of the template, and how each arm is drawn."""

    def __init__(self, values: Mapping[str, Any], shown: Looks, samples: Mapping[str, Any] | None = None) -> None:
        self.values, self.looks, self.samples = values, shown, samples
        self.figures: dict[str, tuple[Figure, str]] = {}

    @property
    def answer(self) -> str:
        """The one line that answers the question."""
        return str(self.values["answer"])

    def markdown(self, pictures: str | None = None) -> str:
        """GitHub Markdown. pictures: the relative folder of the figures, None where there are none."""
        return self._render(pictures, browser=False)

    def html(self) -> str:
        """One self-contained document: no request leaves it, all text is escaped, at most one script of our own runs."""
        text = self._render("figures", browser=True)
        drawn = {key: Markup(svg_of(figure, key, label)) for key, (figure, label) in self.figures.items()}
        script = asset("browser.js") if self.samples else ""
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        body, sections = to_html(text, drawn | {"samples": Markup(asset("browser.html.j2"))})
        head, mark, rest = body.partition("<h2 ")
        return template(
            "page.html.j2", title=self.values["title"], head=Markup(head), rest=Markup(mark + rest), sections=sections,
            policy=POLICY.format(script=f"'sha256-{digest}'" if self.samples else "'none'"), twins=dark_twins(),
            data=Markup(as_script(self.samples)) if self.samples else "", script=Markup(script),
        )  # fmt: skip

    def write(self, out: Path, form: str = "html", png: Path | None = None) -> list[Path]:
        """The page as HTML or Markdown in a file or folder, and its figures as PNG where a folder is named: what was written."""
        if out.is_dir():
            out = out / ("report.html" if form == "html" else "report.md")
        folder = None if png is None else Path(os.path.relpath(png, out.parent)).as_posix()
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out, self.html() if form == "html" else self.markdown(folder))
        return [out, *(self.pictures(png) if png is not None else ())]

    def pictures(self, folder: Path) -> list[Path]:
        """Every figure that was drawn so far as PNG, named by its key."""
        folder.mkdir(parents=True, exist_ok=True)
        for key, (figure, _) in self.figures.items():
            (folder / f"{key}.png").write_bytes(png_of(figure))
        return [folder / f"{key}.png" for key in self.figures]

    def _render(self, pictures: str | None, *, browser: bool) -> str:
        def figure(key: str, label: str, draw: Callable[..., Figure | None], *values: Any, **more: Any) -> Markup:
            if pictures is None:
                return Markup("")
            if key not in self.figures:
                made = draw(self.looks, *values, **more)
                if made is None:
                    return Markup("")
                self.figures[key] = made, label
            return Markup(f"![{escaped(label)}]({pictures}/{key}.png)")

        drawing = pictures is not None
        return template("report.md.j2", figure=figure, draw=figures, drawing=drawing, browser=browser, **self.values)


def write_summary(path: Path) -> dict[str, Any]:
    """summary.json and summary.md of a folder, in it; returns the former."""
    results = Results.read(path)
    rows = compare(results)
    found = summary_of(results, rows)
    write_json_atomic(path / "summary.json", found)
    write_text_atomic(path / "summary.md", build(results, rows, brief=True).markdown())
    return found


def build(
    results: Results,
    rows: Sequence[Row] | None = None,
    *,
    title: str = "",
    shown: int = 16,
    register: Any = None,
    brief: bool = False,
) -> Page:
    """The page of these results. rows: their comparisons, made here where none are given. shown: samples of each problem and store
    on it; register: {"rule", "table"} of the questions that this folder raised or answers; brief: sentences and tables of a
    summary alone."""
    rows = compare(results) if rows is None else rows
    found = summary_of(results, rows)
    them, samples, trained = policies(found), () if brief else sample_sets(results, shown), runs.by_arm(results)
    browsed = _browsed(samples)
    home = [s.arm for s in samples if s.policy == BASE]
    look = looks([*them, *home, *results.design.names, *(s.arm for s in samples), *trained])
    base = results.design.base or next(iter(them), "")
    values = _said(results, rows, found, list(dict.fromkeys([*them, *results.design.names])))
    values |= _scores(results, found, them, base) | _training(results, rows, found, them, base)
    values |= {"register": register, "brief": brief, "samples": _about(samples, browsed)}
    values |= {} if brief else _answers(results, found, samples)
    names = list(dict.fromkeys([*them, *(s.arm for s in samples)]))
    usual = " · ".join(names) if 0 < len(names) < 5 else f"{len(names)} policies"
    called = results.design.title[:1].upper() + results.design.title[1:]
    values |= {"title": title or called or usual, "lead": _lead(found, them, sorted({c.task for c in results.counts}))}
    values |= {"base": base, "k": results.k, "seeds": max((len(p.seeds) for p in them.values()), default=0)}
    return Page(values, look, data_of(browsed, look) if browsed else None)


# ------------------------------------------------------------------------------------------------------------------
# words


def _lead(found: Mapping[str, Any], them: Mapping[str, Policy], sampled: Sequence[str]) -> str:
    """What was evaluated, on what, and what an interval is over."""
    if not them:
        return f"Sampled on {', '.join(sampled) or 'nothing'}; no exact evaluation was given."
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
    """The answer, and the rows by section: primary, exploratory, at T = 0.3, against the tempered base."""
    cold = [row for row in rows if row.metric.temperature == PAPER and not row.task]
    power = [row for row in rows if row.why == "power" and row.family != "primary"]
    main = [row for row in rows if row not in cold and row not in power]
    caveats = words.cautions(rows)
    if found["arms"] and results.design.base:
        caveats.append(HELD_FIXED if results.several or results.stored else ONE_SEED)
        caveats += [CHOSEN_HERE] * any(len(row.get("frontier", ())) > 1 for row in found["arms"].values())
    groups = {
        "primary": [r for r in main if r.family == "primary"],
        "exploratory": [r for r in main if r.family != "primary"],
    }
    groups |= {"cold": cold, "power": power}
    said = words.answer(rows, results) if rows else words.nothing(results)
    return {
        "answer": said, "families": words.families(rows), "caveats": caveats, "notes": found["notes"],
        "said": {name: _rows(some, order) for name, some in groups.items()}, "compared": bool(rows),
        "room": tables.room(found), "gains": [_gain(row) for row in found.get("gains") or ()], "relabelled": _relabelled(found),
    }  # fmt: skip


def _rows(rows: Sequence[Row], order: Sequence[str]) -> dict[str, Any] | None:
    """Rows as lines of groups, as a table of arms and groups, and each in full; None where there are none."""
    if not rows:
        return None
    return {"lines": words.lines(rows), "table": tables.effects(rows, order), "sentences": [words.sentence(row) for row in rows]}


def _gain(row: Mapping[str, Any]) -> str:
    """Whether the interval of Branch against GRPO leaves the paper's gain out."""
    gap, word = row["difference"], "excluded" if row["excluded"] else "not excluded"
    if gap["low"] is None:
        return f"{row['metric']}: {signed(row['gain'])} cannot be judged: too few training seeds."
    inside = f"{signed(gap['value'])}, {100 * gap['level']:g} % interval {signed(gap['low'])} to {signed(gap['high'])}"
    pair = f"{row['a']} minus {row['b']}"
    return f"{row['metric']}: {signed(row['gain'])} is {word} ({pair} here {inside} over {gap['n']} {gap['over']})."


def _relabelled(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The control's seeds in two halves, as two names of one arm: how many splits come out tied; None without a control."""
    if not found["control"]:
        return None
    label = found["arms"].get(found["control"], {}).get("label", found["control"])
    return {**found["relabelled"], "control": label, "needs": 2 * FEWEST_SEEDS}


# ------------------------------------------------------------------------------------------------------------------
# numbers


def _scores(results: Results, found: Mapping[str, Any], them: Mapping[str, Policy], base: str) -> dict[str, Any]:
    k, power, sampled = results.k, found["power"], found.get("sampled", ())
    alone = dict.fromkeys(row["task"] for row in sampled if row["policy"] not in them)
    apart = {task: [row for row in sampled if row["task"] == task] for task in alone}
    first = [("", tables.scores(found))] if them or results.design.facts else []
    return {
        "frontier": scores.frontier_of(them, base, k, power), "passk": scores.passk_lines(found, them) if them else None,
        "power": _power_table(power["points"], k) if power else None, "cold": _cold_table(found, k) if found["cold"] else None,
        "cold_temperature": PAPER, "tables": [*first, *tables.samples(apart)],
        "sampled_curves": scores.sampled_curves(apart), "differences": scores.differences(results, base, apart),
        "gaps": scores.gaps(results, them, base), "no_gaps": scores.no_gaps(results, them), "support": _support(them, found),
        "away": [(world, tables.scores(found, world)) for world in found["away"]],
    }  # fmt: skip


def _cold_table(found: Mapping[str, Any], k: int) -> Table:
    """pass@1 and pass@k at T = 0.3 beside T = 1."""
    cold, rows = found["cold"], []
    if cold["base"]:
        rows.append(("base", *(cell(side[str(n)]) for n in (1, k) for side in (cold["base"], found["base"]["pass"]))))
    for key, row in cold["arms"].items():
        rows.append((row["label"], *(cell(side[str(n)]) for n in (1, k) for side in (row, found["arms"][key]["pass"]))))
    return Table(header=("arm", *(f"pass@{n}\nT = {t:g}" for n in (1, k) for t in (PAPER, 1.0))), rows=tuple(rows))


def _power_table(points: Sequence[Mapping[str, Any]], k: int) -> Table:
    """Power, pass@1 and pass@k, each with what the normalizer leaves open."""

    def known(p: Mapping[str, Any], value: str, bound: str) -> str:
        return f"{p[value]:.3f}\n± {p[bound]:.1g}" if p["known"] else "not available"

    rows = tuple((f"{p['power']:g}", known(p, "pass1", "bound1"), known(p, "passk", "boundk")) for p in points)
    return Table(header=("power", "pass@1", f"pass@{k}"), rows=rows)


def _support(them: Mapping[str, Policy], found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Right completions kept, gained and lost against the base (Definition 4.1)."""
    rows = [row for row in found["arms"].values() if "support" in row]
    if not rows or found["base"] is None:
        return None
    body = [("base", f"{found['base']['support']:,}", "–", "–", "–")]
    for row in rows:
        kept, lost = (row["support"][what]["value"] for what in ("preserved", "lost"))
        cells = (cell(row["support"][what], 0) for what in ("preserved", "gained", "lost"))
        body.append((row["label"], *cells, f"{kept / max(kept + lost, 1):.1%}"))
    table = Table(header=("arm", "kept", "gained", "lost", "share kept"), rows=tuple(body))
    return {
        "kept": {n: p.support for n, p in them.items() if p.support},
        "base": found["base"]["support"],
        "table": table,
    }


def _training(
    results: Results, rows: Sequence[Row], found: Mapping[str, Any], them: Mapping[str, Policy], base: str
) -> dict[str, Any]:
    trained = runs.by_arm(results)
    configs, more = runs.configs_of(trained), [tables.costs(found), tables.training(found)]
    added = [f"added: {arm.name} ({arm.why})" for arm in results.design.arms if arm.why]
    return {
        "training": runs.curves(trained), "warnings": runs.warnings(found),
        "training_tables": [table for table in more if table.rows],
        "learning": runs.learning(configs, them, base, results.k), "grids": runs.grids(configs, them, results.k),
        "states": runs.states(results, trained), "warned": runs.warned(found),
        "cards": runs.cards(results, trained), "choice": _choice(found),
        "versions": [
            f"{name} {version}" for name, version in runs.versions(trained) or (found.get("versions") or {}).items()
        ],
        "swept": bool(results.design.facts),
        "runs_wanted": len(results.design.facts.get("runs", ())) or len(found["arms"]) * len(found["seeds"]),
        "controls": [*(added or ["none was added"]), *[SAME_KL] * any(row.metric.matched for row in rows)],
        "not_run": list(found["not_run"]),
        "left_out": list(dict.fromkeys([*results.notes, *found["left_out"]])),
        "sources": [str(path) for path in results.sources],
    }  # fmt: skip


def _choice(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was chosen on validation problems, and by what."""
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
    return choice | {"table": Table(header=("arm", "score on validation"), rows=rows)}


# ------------------------------------------------------------------------------------------------------------------
# answers and samples


def _answers(results: Results, found: Mapping[str, Any], samples: Sequence[SampleSet]) -> dict[str, Any]:
    records = answers.records_of(results)
    structure, kinds = answers.structure(records, results.k)
    return {
        "structure": structure, "kinds": kinds, "patterns": answers.patterns(samples),
        "distinct": answers.distinct(found, samples), "perplexity": answers.perplexity(samples),
    }  # fmt: skip


def _browsed(samples: Iterable[SampleSet]) -> list[SampleSet]:
    """The stores whose samples are on the page: all, or the first of each arm and task where these are many."""
    shown = [s for s in samples if s.shown]
    if len(shown) <= MOST_COLUMNS:
        return shown
    return [s for sets in by_task(shown).values() for s in first_of_each(sets)]


def _about(samples: Sequence[SampleSet], browsed: Sequence[SampleSet]) -> dict[str, Any] | None:
    if not browsed:
        return None
    count, every = sum(len(s.shown) for s in browsed), sum(bool(s.shown) for s in samples)
    few = f" Of {every} stores the first of each arm and task is shown." if len(browsed) < every else ""
    laws = dict.fromkeys(f"{s.name}: {s.task}, {s.law}" for s in browsed)
    about = f"{count:,} samples are on this page: the first of every problem of every store; the stores keep all.{few}"
    return {"count": f"{count:,}", "about": f"{about} {'; '.join(laws)}."}
