"""The page of some results: values for report.md.j2, its Markdown, its HTML, its figures.

page = build(Results.read("runs/demo"))
page.html()                            one file that opens with the network off
page.markdown("figures")               the rendered template itself, figures as links
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from sage_rlvr.report import answers, browser, figures, runs, scores
from sage_rlvr.report.markup import Table, asset, escaped, template, to_html
from sage_rlvr.report.policies import policies
from sage_rlvr.report.samples import SampleSet, by_task, first_of_each, sample_sets
from sage_rlvr.report.style import Looks, dark_twins, looks, png_of, svg_of
from sage_rlvr.results import Results, Row, compare, words
from sage_rlvr.results.metric import PAPER, REFERENCE
from sage_rlvr.runs import write_text_atomic

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
            data=Markup(browser.as_script(self.samples)) if self.samples else "", script=Markup(script),
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

        return template("report.md.j2", figure=figure, draw=figures, browser=browser, **self.values)


def build(results: Results, *, title: str = "", shown: int = 16, register: Mapping[str, Any] | None = None) -> Page:
    """The page of these results. shown: samples of each problem and store on it; register: {"rule", "table"} of the questions."""
    rows = compare(results)
    them = policies(results)
    base = results.design.base if results.design.base in them else next(iter(them), None)
    trained, samples = runs.by_arm(results), sample_sets(results, shown)
    browsed = _browsed(samples)
    every = [
        *([base] if base else [samples[0].arm] if samples else []),
        *results.design.names,
        *them,
        *(s.arm for s in samples),
        *trained,
    ]
    look = looks(name for name in every if name)
    values = (
        _verdicts(results, rows, them, samples)
        | _scores(results, them, base, samples)
        | _training(results, them, base, trained)
        | _answers(results, samples)
    )
    values |= {
        "title": title or _title(results, them, samples), "answer": words.answer(rows), "lead": _lead(results, them, samples),
        "base": base or "", "k": results.k, "seeds": max((len(p.seeds) for p in them.values()), default=0),
        "register": register, "samples": _about(samples, browsed),
    }  # fmt: skip
    return Page(values, look, browser.data_of(browsed, look) if browsed else None)


# ------------------------------------------------------------------------------------------------------------------
# words


def _title(results: Results, them: Mapping[str, Any], samples: Sequence[SampleSet]) -> str:
    if results.design.title:
        return results.design.title[:1].upper() + results.design.title[1:]
    names = list(dict.fromkeys([*them, *(s.arm for s in samples)]))
    return " · ".join(names) if 0 < len(names) < 5 else f"{len(names)} policies"


def _lead(results: Results, them: Mapping[str, Any], samples: Sequence[SampleSet]) -> str:
    """What was evaluated, on what, and what an interval is over."""
    if not them:
        tasks = sorted({s.task for s in samples})
        return f"Sampled on {', '.join(tasks) or 'nothing'}; no exact evaluation was given."
    facts = results.stored or {}
    record = next(iter(results.records.values()), None)
    world = facts.get("world") or ("" if record is None else _world(record.meta["world"]))
    problems = facts["evaluate"]["problems"] if facts else record.problems if record else 0
    seeds = max(len(p.seeds) for p in them.values())
    over = (
        f"{seeds} training seeds each; intervals are 95 % over training seeds"
        if seeds > 1
        else "intervals are 95 % over problems"
    )
    of = f" of {world}" if world else ""
    return f"{len(them)} policies on the same {problems} problems{of}, {over}. Every probability is an exact sum."


def _world(world: Mapping[str, Any]) -> str:
    if world.get("name") != "countdown":
        return str(world.get("name", ""))
    sizes = " or ".join(str(n) for n in world["counts"])
    return (
        f"Countdown: {sizes} numbers of 1..{world['max_number']}, targets {world['min_target']}..{world['max_target']}"
    )


def _verdicts(
    results: Results, rows: Sequence[Row], them: Mapping[str, Any], samples: Sequence[SampleSet]
) -> dict[str, Any]:
    """Rows by section: the main ones, those at T = 0.3, against the sharpened base."""
    cold = [row for row in rows if row.metric.temperature == PAPER != REFERENCE and not row.task]
    power = [row for row in rows if row.why == "power"]
    main = [row for row in rows if row not in cold and row not in power]
    caveats = []
    if them:
        caveats.append(HELD_FIXED if results.several or results.stored else ONE_SEED)
        caveats += [CHOSEN_HERE] * any(len(p.frontier) > 1 for p in them.values())
    order = list(dict.fromkeys([*them, *results.design.names]))
    return {
        "verdicts_of": said(main, order), "cold_verdicts": said(cold, order), "power_verdicts": said(power, order),
        "scope": words.families(rows), "caveats": caveats, "left_out": list(dict.fromkeys(results.notes)),
    }  # fmt: skip


def said(rows: Sequence[Row], order: Sequence[str]) -> dict[str, Any] | None:
    """Rows as lines of groups, as a matrix of arms and groups, and each in full; None where there are none."""
    if not rows:
        return None
    groups = words.groups(rows)
    names = dict.fromkeys(row.a for row in rows)
    ranked = [name for name in order if name in names] + [name for name in names if name not in order]
    cells = {(row.a, i): row for i, group in enumerate(groups) for row in group}
    header = [
        "arm",
        *(f"vs {_rival(group)}\n{group[0].metric}{' on ' * bool(group[0].task)}{group[0].task}" for group in groups),
    ]
    body = [[escaped(name), *(_chip(cells.get((name, i))) for i in range(len(groups)))] for name in ranked]
    note = "A cell: the verdict on the arm of the row, the difference, its 95 % interval. –: not compared."
    return {
        "lines": [words.line(group) for group in groups], "matrix": Table(header=header, rows=body, notes=[note]),
        "sentences": [words.sentence(row) for row in rows],
    }  # fmt: skip


def _rival(group: Sequence[Row]) -> str:
    return group[0].b if len({row.b for row in group}) == 1 else "its placebo"


def _chip(row: Row | None) -> Markup:
    if row is None:
        return Markup("–")
    word, *numbers = words.chip(row).split("\n")
    return Markup("<br>".join([f"**{word}**", *map(escaped, numbers)]))


# ------------------------------------------------------------------------------------------------------------------
# numbers


def _scores(
    results: Results, them: Mapping[str, Any], base: str | None, samples: Sequence[SampleSet]
) -> dict[str, Any]:
    k = results.k
    points = scores.power_points(results, base)
    known = [(p["pass1"], p["passk"]) for p in points if p["known"]]
    alone = [s for s in samples if s.arm not in them] if them else list(samples)
    apart = [s for task, sets in by_task(samples).items() for s in sets if task in {one.task for one in alone}]
    tables = [{"title": "", "table": scores.score_table(results, them, k)}] if them else []
    cold = scores.cold_table(results, base)
    return {
        "frontier": scores.frontier_of(them, base, k, known), "passk": scores.passk_lines(them) if them else None,
        "power": scores.power_table(points, k) if points else None, "cold": cold, "cold_temperature": PAPER,
        "tables": [{"folded": ""} | one for one in (*tables, *scores.sampled_tables(apart))],
        "sampled_curves": scores.sampled_curves(apart), "differences": scores.differences(results, base, apart),
        "gaps": scores.gaps(results, them, base), "away": scores.away(results), "support": scores.support(them, base),
    }  # fmt: skip


def _training(
    results: Results, them: Mapping[str, Any], base: str | None, trained: Mapping[str, Any]
) -> dict[str, Any]:
    doses, configs = runs.doses(results, trained), runs.configs_of(trained)
    stored = results.stored or {}
    return {
        "training": runs.curves(trained), "warnings": runs.warnings(doses),
        "training_tables": runs.tables(results, trained, doses), "learning": runs.learning(configs, them, base, results.k),
        "grids": runs.grids(configs, them, results.k), "states": runs.states(results, trained),
        "cards": runs.cards(results, trained), "versions": runs.versions(trained) or list(stored.get("versions", {}).items()),
        "added": [(arm.name, arm.why) for arm in results.design.arms if arm.why],
        "not_run": [str(text) for text in (*stored.get("not_run", ()), *stored.get("left_out", ()))],
        "sources": [str(path) for path in results.sources],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------
# answers and samples


def _answers(results: Results, samples: Sequence[SampleSet]) -> dict[str, Any]:
    records = answers.records_of(results)
    structure, kinds = answers.structure(records, results.k)
    return {
        "structure": structure, "kinds": kinds, "patterns": answers.patterns(samples),
        "distinct": answers.distinct(records, samples, results.k), "perplexity": answers.perplexity(samples),
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
