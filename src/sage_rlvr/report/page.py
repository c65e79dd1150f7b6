"""The report: one HTML file that opens with the network off, and the files beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.figure
from markupsafe import Markup

from sage_rlvr.report import figures
from sage_rlvr.report.result import Arm, Result, to_dict
from sage_rlvr.report.style import colour, dark_twins
from sage_rlvr.report.summary import Summary, summarise
from sage_rlvr.report.tables import Table, results_table, support_table


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
    strict = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = strict.from_string(resources.files("sage_rlvr.report").joinpath("page.html.j2").read_text("utf-8"))
    return template.render(
        summary=summary,
        result=summary.result,
        svgs={name: Markup(figures.svg_of(figure, name, label)) for name, (figure, label) in drawn.items()},
        table=_cells(results_table(summary)),
        support=_cells(support_table(summary)),
        cards=[_card(arm) for arm in summary.result.arms],
        verdicts=[(colour(v.a), v.comparison.verdict, v.sentence) for v in summary.verdicts],
        twins=dark_twins(),
    )


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
    partial.write_bytes(content)
    os.replace(partial, path)
