"""The report: one HTML file that opens with the network off, and the files beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.figure
import numpy as np
from markupsafe import Markup

from sage_rlvr.evaluation import FrontierPoint, Interval
from sage_rlvr.evaluation.compare import FEWEST_SEEDS
from sage_rlvr.report import figures
from sage_rlvr.report.result import Arm, Result, to_dict
from sage_rlvr.report.style import colour, dark_twins
from sage_rlvr.report.summary import SeedSummary, Summary, seeds_to_dict, summarise
from sage_rlvr.report.tables import Table, results_table, seeds_table, support_table


@dataclass(frozen=True, kw_only=True)
class ReportPaths:
    """Where `write_report` put what it made; `training` is None when no arm carries training curves."""

    html: Path
    result: Path
    passk: Path
    frontier: Path
    difference: Path | None
    training: Path | None


def render_page(result: Result | Summary | Mapping[str, Any]) -> str:
    """One self-contained HTML document of a result (report/result.py): no request leaves it, all text is escaped."""
    summary = result if isinstance(result, Summary) else summarise(result)
    return _render(summary, page_figures(summary))


def _render(summary: Summary, drawn: Mapping[str, tuple[matplotlib.figure.Figure, str]]) -> str:
    return _template("page.html.j2").render(
        summary=summary,
        result=summary.result,
        svgs={name: Markup(figures.svg_of(figure, name, label)) for name, (figure, label) in drawn.items()},
        table=_cells(results_table(summary)),
        support=_cells(support_table(summary)),
        cards=[_card(arm) for arm in summary.result.arms],
        verdicts=[(colour(v.a), _word(v.comparison.verdict), v.sentence) for v in summary.verdicts],
        twins=dark_twins(),
    )


def _template(name: str) -> jinja2.Template:
    here = resources.files("sage_rlvr.report")
    loader = jinja2.FunctionLoader(lambda wanted: here.joinpath(wanted).read_text("utf-8"))
    strict = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, loader=loader
    )
    return strict.get_template(name)


def _word(verdict: str) -> str:
    return verdict.split(" (")[0]  # "cannot be told (why)": the sentence has the why


def write_report(result: Result | Summary | Mapping[str, Any], directory: str | Path) -> ReportPaths:
    """Write report.html, result.json and the PNGs into `directory` (made if missing); files are replaced whole."""
    summary = result if isinstance(result, Summary) else summarise(result)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    on_page = page_figures(summary)
    drawn = {name: on_page[name][0] for name in ("passk", "frontier", "difference") if name in on_page}
    if runs := _runs(summary):
        drawn["training"] = figures.training_figure(runs)
    paths = {name: folder / f"{name}.png" for name in drawn}
    for name, figure in drawn.items():
        _replace(paths[name], figures.png_of(figure))
    html, data = folder / "report.html", folder / "result.json"
    _replace(data, (json.dumps(to_dict(summary.result), ensure_ascii=False, indent=1) + "\n").encode())
    _replace(html, _render(summary, on_page).encode())
    return ReportPaths(
        html=html, result=data, passk=paths["passk"], frontier=paths["frontier"],
        difference=paths.get("difference"), training=paths.get("training"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SeedReportPaths:
    """Where `write_seed_report` put what it made; `pages` holds one report for each training seed."""

    html: Path
    result: Path
    passk: Path
    frontier: Path
    pages: tuple[ReportPaths, ...]


def render_seed_page(summary: SeedSummary, pages: Sequence[str] = ()) -> str:
    """One self-contained HTML document about the methods; `pages` are relative addresses of the seeds' own pages."""
    return _render_seeds(summary, pages, seed_figures(summary))


def _render_seeds(
    summary: SeedSummary, pages: Sequence[str], drawn: Mapping[str, tuple[matplotlib.figure.Figure, str]]
) -> str:
    verdicts = [(colour(v.a.split(" at its ")[0]), _word(v.comparison.verdict), v.sentence) for v in summary.verdicts]
    return _template("seeds.html.j2").render(
        summary=summary,
        result=summary.results[0],
        svgs={name: Markup(figures.svg_of(figure, name, label)) for name, (figure, label) in drawn.items()},
        table=_cells(seeds_table(summary)),
        verdicts=verdicts,
        pages=list(zip(summary.labels, pages, strict=False)),
        banded=summary.seeds >= FEWEST_SEEDS,
        twins=dark_twins(),
    )


def write_seed_report(summary: SeedSummary, directory: str | Path) -> SeedReportPaths:
    """Write report.html, seeds.json and two PNGs about the methods into `directory`, and each seed's own report into
    seed-<label>/ beneath it; files are replaced whole."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"seed-{label}" for label in summary.labels]
    pages = tuple(write_report(r, folder / name) for r, name in zip(summary.results, names, strict=True))
    drawn = seed_figures(summary)
    for name, (figure, _) in drawn.items():
        _replace(folder / f"{name}.png", figures.png_of(figure))
    html, data = folder / "report.html", folder / "seeds.json"
    _replace(data, (json.dumps(seeds_to_dict(summary), ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())
    _replace(html, _render_seeds(summary, [f"{name}/report.html" for name in names], drawn).encode())
    return SeedReportPaths(
        html=html, result=data, passk=folder / "passk.png", frontier=folder / "frontier.png", pages=pages
    )


def seed_figures(summary: SeedSummary) -> dict[str, tuple[matplotlib.figure.Figure, str]]:
    """The two figures of the page over seeds with their accessible names; no intervals below three seeds."""
    first, k = summary.results[0], summary.results[0].k
    shown = {n: {k: _shown(i, summary.seeds) for k, i in passes.items()} for n, passes in summary.passes.items()}
    lines = {
        n: (summary.ks, *zip(*((i.value, i.low, i.high) for i in passes.values()), strict=True))
        for n, passes in shown.items()
    }
    one, last = summary.ks.index(1), summary.ks.index(k)
    others = [name for name in shown if name != first.base]
    frontier = figures.frontier_figure(
        _mean_frontier(summary.frontiers[first.base]),
        {name: (shown[name][1], shown[name][k]) for name in others},
        k=k,
        base_name=first.base,
        curves={n: _mean_frontier(summary.frontiers[n]) for n in others if len(summary.frontiers[n][0]) > 1},
        seeds={name: [(row[one], row[last]) for row in summary.scores[name].tolist()] for name in others},
    )
    return {
        "passk": (figures.passk_figure(lines), f"pass@k of each method for k up to {k}, mean over training seeds"),
        "frontier": (frontier, f"pass@1 against pass@{k}: the base at several temperatures, and every training seed"),
    }


def _shown(interval: Interval, seeds: int) -> Interval:
    drawn = seeds >= FEWEST_SEEDS
    return interval if drawn else replace(interval, low=interval.value, high=interval.value)


def _mean_frontier(seeds: Sequence[Sequence[FrontierPoint]]) -> list[FrontierPoint]:
    """Mean over seeds at every temperature that all of them have."""
    by_t = [{p.temperature: p for p in points} for points in seeds]
    shared = sorted(set.intersection(*(set(points) for points in by_t)))
    rows = {t: [points[t] for points in by_t] for t in shared}
    return [
        FrontierPoint(
            temperature=t, pass1=float(np.mean([p.pass1 for p in row])), passk=float(np.mean([p.passk for p in row]))
        )
        for t, row in rows.items()
    ]


def page_figures(summary: Summary) -> dict[str, tuple[matplotlib.figure.Figure, str]]:
    """Every figure of the page with its accessible name; training panels are figures of their own."""
    k = summary.result.k
    out = {
        "passk": (_passk(summary), f"pass@k of each arm for k up to {k}, with 95 % intervals over problems"),
        "frontier": (_frontier(summary), f"pass@1 against pass@{k}: the base at several temperatures, and each arm"),
    }
    if summary.differences:
        out["difference"] = (figures.difference_figure(summary.differences), "paired differences in pass@k with bands")
    if runs := _runs(summary):
        for key, panel in figures.training_panels(runs).items():
            out[f"training_{key}"] = (panel, f"{key} over training steps")
    return out


def _passk(summary: Summary) -> matplotlib.figure.Figure:
    lines = {}
    for c in summary.curves:
        low = [_edge(p.low, p.value) for p in c.points]
        high = [_edge(p.high, p.value) for p in c.points]
        lines[c.name] = (c.ks, [p.value for p in c.points], low, high)
    return figures.passk_figure(lines)


def _frontier(summary: Summary) -> matplotlib.figure.Figure:
    result, points = summary.result, {c.name: c.points for c in summary.curves}
    last = result.ks.index(result.k)
    arms = {name: (p[0], p[last]) for name, p in points.items() if name != result.base}
    own = {name: line for name, line in summary.frontiers.items() if name != result.base and len(line) > 1}
    return figures.frontier_figure(summary.frontiers[result.base], arms, k=result.k, base_name=result.base, curves=own)


def _runs(summary: Summary) -> dict[str, Any]:
    curves = {arm.name: arm.training for arm in summary.result.arms}
    return {name: (t.step, t.reward, t.kl_raw, t.entropy) for name, t in curves.items() if t is not None and t.step}


def _edge(edge: float, value: float) -> float:
    return edge if abs(edge) < float("inf") else value


def _cells(table: Table | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "header": [cell.split("\n") for cell in table.header],
        "rows": [[cell.split("\n") for cell in row] for row in table.rows],
        "notes": table.notes,
    }


def _card(arm: Arm) -> dict[str, Any]:
    seconds = "" if arm.seconds is None else f"{arm.seconds:,.0f} s of training"
    config = json.dumps(arm.config, indent=2, ensure_ascii=False, default=str) if arm.config else ""
    return {"name": arm.name, "equation": arm.equation, "seconds": seconds, "config": config}


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
