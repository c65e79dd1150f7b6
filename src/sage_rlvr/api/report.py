"""`report`: one page of runs, evaluations and samples; `write_page` writes that of a comparison."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sage_rlvr.api.compare import Comparison, Split, paths_of, row_of
from sage_rlvr.errors import ConfigError
from sage_rlvr.extras import explained
from sage_rlvr.results.read import read_results
from sage_rlvr.results.report import report_of
from sage_rlvr.runs import writing
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.results import Results

if TYPE_CHECKING:
    from sage_rlvr.render import Page  # matplotlib


@explained
def report(
    *runs: str | PathLike[str],
    out: str | Path | None = None,
    format: Literal["html", "md"] = "html",
    png: str | Path | None = None,
    split: Split | None = None,
    k: int | None = None,
    show: int = 16,
    title: str = "",
) -> Page:
    """One page of runs, evaluations and samples, as `sage-rlvr report` writes it. It opens without network.

        page = report("runs/demo", out="demo.html")
        page                                             shown in a notebook

    All numbers of the page are written beside it, into summary.json.

    Args:
        *runs: Folders of a demo or sweep, run directories, records, sample stores, or NAME=PATH[,PATH...] of those.
        out: A file to write, or a folder to put it in; None writes nothing.
        format: "html", or "md" for the sentences and tables.
        png: Also write every figure as PNG into this folder.
        split: Which records are compared; by default those of the sweep's problems, else test.
        k: pass@1 and pass@k are compared; by default the largest that all allow, at most 256.
        show: Samples of each problem and store on the page.
        title: The title of the page.

    Returns:
        The `Page`: its answer, its rows, `html()` and `markdown()`; `written` are the files.

    Raises:
        ConfigError: If no path is given, or a number is out of range.
        DataError: For files that cannot be read.
    """
    from sage_rlvr.render import Page  # matplotlib

    if not runs or show < 0 or (k is not None and k < 2):
        raise ConfigError(
            f"RUNS {[fspath(run) for run in runs]}, --show {show}, --k {k}: pass at least one folder, run, record or store; "
            "show must be >= 0 and k >= 2"
        )
    results = read_results(*[path for run in runs for path in paths_of(run)], split=split, k=k)
    with results.believed():
        findings = findings_of(results)
        values = report_of(results, findings, title=title, shown=show)
        page = Page(values, rows=[row_of(row) for row in findings.rows])
    if out is not None:
        with results.believed(), writing("report", Path(out).parent, 8 << 20):
            page.write(Path(out), format, None if png is None else Path(png))
            if not _has_another(page.written[0].parent, results):
                page.write_summary(page.written[0].parent)
    return page


def write_page(comparison: Comparison, out: Path) -> Page:
    """Write the page with its pictures into a folder, or to an .html file with its pictures next to it."""
    from sage_rlvr.render import Page  # matplotlib

    page = Page(report_of(comparison.results, comparison.findings))
    file = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    with writing("report", file.parent, 8 << 20):
        file.parent.mkdir(parents=True, exist_ok=True)
        page.write(file, png=file.parent / "figures")
        page.write_summary(file.parent)
    return page


def _has_another(folder: Path, results: Results) -> bool:
    """Whether a folder has the summary of a sweep that the page is not of, or the one that was read."""
    own = [Path(source).resolve() for source in results.sources] == [folder.resolve()]
    return not own if (folder / "design.json").exists() else own and results.stored_in is not None
