"""The report as HTML: one file that opens with the network off, and the files beside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from sage_rlvr.report import figures
from sage_rlvr.report.browser import as_script
from sage_rlvr.report.exact import runs_of, seeds_page, summary_page
from sage_rlvr.report.parts import (
    Browser,
    Cards,
    Fold,
    Grouped,
    Links,
    Page,
    Part,
    Picture,
    Prose,
    Said,
    Tabular,
    visible,
)
from sage_rlvr.report.result import Result, to_dict
from sage_rlvr.report.style import colour, dark_twins
from sage_rlvr.report.summary import SeedSummary, Summary, seeds_to_dict, summarise
from sage_rlvr.runs.files import write_bytes_atomic

# No request may leave the page, and no script runs but the one whose hash is named; {script} is "" where there is none
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src {script}; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)
_KINDS: dict[type, str] = {
    Prose: "prose", Said: "said", Grouped: "grouped", Picture: "picture", Tabular: "table", Cards: "cards", Links: "links",
    Browser: "browser", Fold: "fold",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReportPaths:
    """Where `write_report` put what it made; `training` is None when no arm carries training curves."""

    html: Path
    result: Path
    passk: Path
    frontier: Path
    difference: Path | None
    training: Path | None


@dataclass(frozen=True, kw_only=True)
class SeedReportPaths:
    """Where `write_seed_report` put what it made; `pages` holds one report for each training seed."""

    html: Path
    result: Path
    passk: Path
    frontier: Path
    pages: tuple[ReportPaths, ...]


def render(page: Page) -> str:
    """One self-contained HTML document: no request leaves it, all text is escaped, at most one script of our own runs."""
    found = [part for part in page.parts() if isinstance(part, Browser)]
    script = _read("browser.js") if found else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    svgs: dict[int, Markup] = {}
    for picture in page.pictures():
        svgs[id(picture)] = Markup(figures.svg_of(picture.figure, picture.key, visible(picture.label)))
    return _template("page.html.j2").render(
        page=page,
        grouped=_grouped,
        svg=lambda picture: svgs[id(picture)],
        cells=_cells,
        colour=lambda arm: colour(arm) if arm else "",
        policy=POLICY.format(script=f"'sha256-{digest}'" if found else "'none'"),
        data=Markup(as_script(found[0].data)) if found else "",
        script=Markup(script),
        twins=dark_twins(),
    )


def _grouped(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts with the word for their kind; small pictures in a row become one group."""
    kinds = [(_KINDS[type(part)] + "s" * (isinstance(part, Picture) and part.small), part) for part in parts]
    grouped = [(kind, [part for _, part in group]) for kind, group in groupby(kinds, key=lambda pair: pair[0])]
    return [
        (kind, some) for kind, group in grouped for some in ([group] if kind == "pictures" else [[p] for p in group])
    ]


def _template(name: str) -> jinja2.Template:
    strict = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_read),
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
    return strict.get_template(name)


def _read(name: str) -> str:
    return resources.files("sage_rlvr.report").joinpath(name).read_text("utf-8")


def render_page(result: Result | Summary | Mapping[str, Any]) -> str:
    """The document of a result (report/result.py)."""
    return render(summary_page(result if isinstance(result, Summary) else summarise(result)))


def render_seed_page(summary: SeedSummary, pages: Sequence[str] = ()) -> str:
    """The document about the methods; `pages` are relative addresses of the seeds' own pages."""
    return render(seeds_page(summary, pages))


def write_report(result: Result | Summary | Mapping[str, Any], directory: str | Path) -> ReportPaths:
    """Write report.html, result.json and the PNGs into `directory` (made if missing); files are replaced whole."""
    summary = result if isinstance(result, Summary) else summarise(result)
    folder = Path(directory)
    page = summary_page(summary)
    drawn = {p.key: p.figure for p in page.pictures() if not p.small}
    if runs := runs_of(summary):
        drawn["training"] = figures.training_figure(runs)
    paths = {name: folder / f"{name}.png" for name in drawn}
    for name, figure in drawn.items():
        write_bytes_atomic(paths[name], figures.png_of(figure))
    html, data = folder / "report.html", folder / "result.json"
    write_bytes_atomic(data, (json.dumps(to_dict(summary.result), ensure_ascii=False, indent=1) + "\n").encode())
    write_bytes_atomic(html, render(page).encode())
    return ReportPaths(
        html=html, result=data, passk=paths["passk"], frontier=paths["frontier"],
        difference=paths.get("difference"), training=paths.get("training"),
    )  # fmt: skip


def write_seed_report(summary: SeedSummary, directory: str | Path) -> SeedReportPaths:
    """Write report.html, seeds.json and two PNGs about the methods into `directory`, and each seed's own report into
    seed-<label>/ beneath it; files are replaced whole."""
    folder = Path(directory)
    names = [f"seed-{label}" for label in summary.labels]
    pages = tuple(write_report(r, folder / name) for r, name in zip(summary.results, names, strict=True))
    page = seeds_page(summary, [f"{name}/report.html" for name in names])
    for picture in page.pictures():
        write_bytes_atomic(folder / f"{picture.key}.png", figures.png_of(picture.figure))
    html, data = folder / "report.html", folder / "seeds.json"
    numbers = json.dumps(seeds_to_dict(summary), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_bytes_atomic(data, numbers.encode())
    write_bytes_atomic(html, render(page).encode())
    return SeedReportPaths(
        html=html, result=data, passk=folder / "passk.png", frontier=folder / "frontier.png", pages=pages
    )


def write_pictures(page: Page, directory: str | Path) -> list[Path]:
    """Every figure of a page as PNG, named by its key."""
    paths = [Path(directory) / f"{picture.key}.png" for picture in page.pictures()]
    for path, picture in zip(paths, page.pictures(), strict=True):
        write_bytes_atomic(path, figures.png_of(picture.figure))
    return paths


def _cells(part: Tabular) -> dict[str, Any]:
    table = part.table
    return {
        "words": part.words,
        "header": [cell.split("\n") for cell in table.header],
        "rows": [[cell.split("\n") for cell in row] for row in table.rows],
        "notes": table.notes,
    }
