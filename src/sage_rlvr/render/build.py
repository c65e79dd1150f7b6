"""Render a page as Markdown, HTML and figures from the values of `results.page`, which are those of a summary.

page = Page(report_of(read_results("runs/demo")))
page.html()                            one file that opens with the network off
page.markdown("figures")               the rendered template, figures as links
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.escaping import visible
from sage_rlvr.render import figures
from sage_rlvr.render.markup import as_script, escaped, fenced, plain, tabled, to_html
from sage_rlvr.render.style import Form, controls, dark_twins, file_of, looks, svg_of
from sage_rlvr.results.read import read_results
from sage_rlvr.results.report import report_of
from sage_rlvr.results.tables import frame_of
from sage_rlvr.runs import write_json_atomic, write_text_atomic

# The page sends no requests and runs only the script with this hash; {script} is 'none' without a script
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src {script}; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)


class Page:
    """Values of `report_of` with the look of each arm.

    rows: one dict per comparison. written: the files of the last `write`.
    """

    def __init__(self, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.values, self.looks = values, looks(values["order"]) | controls(values["colder"])
        self.rows, self.written = list(rows), list[Path]()
        self.figures: dict[str, tuple[Figure, str]] = {}

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers on the page, as in summary.json."""
        return dict(self.values["summary"])

    @property
    def answer(self) -> str:
        """The answer to the design's questions, in one or two paragraphs."""
        return "\n\n".join(filter(None, (self.values["answer"], self.values["detail"])))

    def to_frame(self) -> Any:
        """The comparisons on the page as a pandas data frame."""
        return frame_of(self.rows)

    def __repr__(self) -> str:
        return "\n".join([f"Page {self.values['title']}", self.answer, *map(str, self.written)])

    def _repr_html_(self) -> str:
        """The page in an iframe."""
        return f'<iframe srcdoc="{html.escape(self.html())}" width="100%" height="800" style="border:0"></iframe>'

    def markdown(self, pictures: str | None = None) -> str:
        """GitHub Markdown. pictures: the relative folder of the figures, or None."""
        return self._render(pictures, browsing=False)

    def html(self) -> str:
        """A self-contained document: no requests, all text escaped, at most one script of this package."""
        text = self._render("figures", browsing=True)
        drawn = {key: Markup(svg_of(figure, key, label)) for key, (figure, label) in self.figures.items()}
        data = self.values["browser"]
        script = asset("browser.js") if data else ""
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        body = to_html(text, drawn | {"samples": Markup(asset("browser.html.j2"))})
        return template(
            "page.html.j2", title=self.values["title"], body=body,
            policy=POLICY.format(script=f"'sha256-{digest}'" if data else "'none'"), twins=dark_twins(), style="",
            data=Markup(as_script(data | {"sets": list(map(self._colored, data["sets"]))})) if data else "", script=Markup(script),
        )  # fmt: skip

    def write(self, out: Path, form: str = "html", png: Path | None = None) -> list[Path]:
        """Write the page as HTML or Markdown to a file or folder, and its figures as PNG to `png`. Returns the written files."""
        if out.is_dir():
            out = out / ("report.html" if form == "html" else "report.md")
        folder = None if png is None else Path(os.path.relpath(png, out.parent)).as_posix()
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out, self.html() if form == "html" else self.markdown(folder))
        self.written = [out, *(self.pictures(png) if png is not None else ())]
        return self.written

    def write_summary(self, folder: Path) -> None:
        """Write all numbers of the page as summary.json."""
        write_json_atomic(folder / "summary.json", self.summary)

    def pictures(self, folder: Path) -> list[Path]:
        """Write every figure drawn so far as PNG, named by its key; the figure of a verdict also as SVG and PDF."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for key, (figure, _) in self.figures.items():
            forms: tuple[Form, ...] = ("png", "svg", "pdf") if key.startswith("verdict") else ("png",)
            for form in forms:
                written.append(folder / f"{key}.{form}")
                written[-1].write_bytes(file_of(figure, form))
        return written

    def picture(self) -> Figure:
        """Draw the figure of pass@k: of two policies with their difference, of more policies all curves.

        Raises:
            DataError: If the page is of several tasks, or of no curve over k.
        """
        crossings, tasks = self.values["crossings"], self.values["sampled_curves"]
        if len(crossings) == 1:
            one = crossings[0]
            return figures.verdict(self.looks, one["lines"], one["curve"], one["pair"], chance=one["chance"])
        if self.values["passk"]:
            return figures.over_k(self.looks, self.values["passk"], chance=self.values["chance"])
        if len(tasks) == 1:
            return figures.over_k(self.looks, tasks[0]["lines"], chance=tasks[0]["chance"])
        names = ", ".join(one["task"] for one in tasks)
        raise DataError(
            f"a picture is of one task, and these are {len(tasks)} ({names or 'none with pass@k over k'}); select one (of files of "
            "rows FILE@TASK), or write the page, which has all of them"
        )

    def _colored(self, store: Mapping[str, Any]) -> dict[str, Any]:
        """A store of the sample browser in the color of its arm."""
        return {name: store[name] for name in ("name", "guide", "asked", "plain")} | {"color": self.looks[store["arm"]].color}

    def _render(self, pictures: str | None, *, browsing: bool) -> str:
        def figure(key: str, label: str, draw: Callable[..., Figure | None], *values: Any, **more: Any) -> Markup:
            """The Markdown of a figure, drawn where it is first asked for; empty without figures, or where `draw` returns None."""
            if pictures is None:
                return Markup("")
            if key not in self.figures:
                made = draw(self.looks, *values, **more)
                if made is None:
                    return Markup("")
                self.figures[key] = made, label
            return Markup(f"![{escaped(label)}]({pictures}/{key}.png)")

        drawing = pictures is not None
        return template("report.md.j2", figure=figure, draw=figures, drawing=drawing, browsing=browsing, **self.values)


def template(name: str, **values: Any) -> str:
    """Render a template of this folder; several empty lines become one."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(asset),
        finalize=escaped if name.endswith(".md.j2") else lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {"plain": plain, "fenced": fenced, "md": tabled}
    environment.globals["suggest"] = suggest
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(name).render(values)).strip() + "\n"


def asset(name: str) -> str:
    """A file of this folder as text."""
    return resources.files("sage_rlvr.render").joinpath(name).read_text("utf-8")


def write_summary(path: Path) -> dict[str, Any]:
    """Write summary.json and summary.md into a folder; returns the summary."""
    page = Page(report_of(read_results(path), brief=True))
    page.write_summary(path)
    write_text_atomic(path / "summary.md", page.markdown())
    return page.summary
