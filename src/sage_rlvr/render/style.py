"""The style of all figures: color, marker and dash of an arm by its index in the design; export as SVG, PDF and PNG."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK = "#1b1f24"
MUTED = "#6b7280"
GRID = "#d9dce1"
REM_AN_INCH = 7.4  # of the page

# After Okabe and Ito (safe for the common color blindnesses), light page -> dark page; the first is the base's
GREY, BLUE, GREEN, RED, PINK, OCHRE, SKY, BROWN, VIOLET, OLIVE, CRIMSON, TEAL = PALETTE = {
    "#767c85": "#a3aab4", "#0072b2": "#4da9e0", "#009e73": "#2fc79b", "#d55e00": "#f08a3c", "#b8629a": "#d98cbf",
    "#b07d00": "#e6b23a", "#3a9bd1": "#7cc4ee", "#7a5230": "#c29468", "#5b4fa8": "#9a90e0", "#8a8f00": "#c6ca4a",
    "#a8324a": "#e77d92", "#00707a": "#45b8c2",
}  # fmt: skip
_MARKERS = ("o", "D", "^", "s", "v", "P", "X", "h", "<", ">", "d", "p", "*")
_DASHES: tuple[tuple[float, ...], ...] = (
    (), (), (8, 1.6, 1.6, 1.6), (5, 1.6), (2.2, 1.4), (4, 1.2, 1, 1.2, 1, 1.2), (1, 1.2), (11, 2), (8, 1.6, 2.6, 1.6),
    (3.4, 1.2), (6, 1.2, 1, 1.2), (3, 3), (10, 1.2, 1, 1.2, 1, 1.2),
)  # fmt: skip

RC = {
    "font.family": "DejaVu Sans", "font.size": 10.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.axisbelow": True, "axes.grid": True, "grid.color": GRID,
    "grid.linewidth": 0.6, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "lines.linewidth": 1.9, "figure.dpi": 100, "savefig.dpi": 200, "svg.fonttype": "path", "svg.hashsalt": "sage-rlvr",
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The color, marker and dash of an arm in all figures; color is never the only difference. marker: "" of a control, which is
    drawn thin and without a band."""

    color: str
    marker: str
    dash: tuple[float, tuple[float, ...] | None]


Looks = Mapping[str, Look]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each arm by index, the base first; arms beyond the number of colors still have different markers."""
    colors = list(PALETTE)
    out = {}
    for i, name in enumerate(dict.fromkeys(names)):
        mark = i % len(_MARKERS)
        color = colors[i] if i < len(colors) else colors[1 + (i - 1) % (len(colors) - 1)]
        out[name] = Look(color, _MARKERS[mark], (0.0, _DASHES[mark] or None))
    return out


def controls(names: Sequence[str]) -> dict[str, Look]:
    """The looks of the base at other temperatures: thin lines in its color without marks, told apart by their dashes."""
    return {name: Look(GREY, "", (0.0, _DASHES[1 + i % (len(_DASHES) - 1)] or None)) for i, name in enumerate(names)}


def dark_twins() -> dict[str, str]:
    """Every figure color -> its counterpart on a dark page; the page uses CSS variables."""
    return {**PALETTE, INK: "#e6e8eb", MUTED: "#9aa3ad", GRID: "#343a42"}


def canvas(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure of one panel, without pyplot's global state."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def key_above(figure: Figure, shown: Looks, names: Sequence[str], *, marked: bool = True, lines: bool = True) -> None:
    """A legend above the panels; call before `saved`. The figure grows with each row beyond two, so that the panel height is
    constant."""
    handles = [
        Line2D(
            [], [], color=shown[name].color, marker=shown[name].marker if marked else "", markersize=6.5,
            linestyle=shown[name].dash if lines else "none", linewidth=(1.3 if marked else 1.9) if shown[name].marker else 0.9,
        )
        for name in names
    ]  # fmt: skip
    columns = max(1, int(figure.get_figwidth() / (0.55 + 0.085 * max(map(len, names)))))
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, math.ceil(len(names) / columns) - 2))
    figure.legend(
        handles, names, loc="outside upper left", ncols=columns, frameon=False, fontsize=9.5, handlelength=2.6
    )


def saved(figure: Figure, path: str | Path | None = None) -> Figure:
    """Fix the layout of a figure, so that every later drawing is identical; with `path`, save the figure."""
    figure.draw_without_rendering()  # type: ignore[no-untyped-call]
    figure.set_layout_engine("none")
    if path is not None:
        Path(path).write_bytes(file_of(figure, "png"))
    return figure


def svg_of(figure: Figure, prefix: str, label: str) -> str:
    """The figure as inline SVG: ids prefixed, no metadata or namespace address, colors as CSS variables with the light value as
    fallback, `label` (escaped here) as its accessible name."""
    buffer = io.StringIO()
    with matplotlib.rc_context(RC):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bd="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text)  # finer than any screen
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for light in dark_twins():
        text = re.sub(light, f"var(--c{light[1:]}, {light})", text, flags=re.I)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    widest = REM_AN_INCH * figure.get_figwidth()  # so that letters are as large in a narrow figure as in a wide one
    named = f'<svg role="img" aria-label="{html.escape(label)}" style="max-width:{widest:.1f}rem" '
    return text.replace("<svg ", named, 1)


Form = Literal["png", "svg", "pdf"]


def file_of(figure: Figure, form: Form) -> bytes:
    """The figure as a file on white, without a date."""
    buffer = io.BytesIO()
    undated: dict[Form, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(RC):
        figure.savefig(buffer, format=form, facecolor="white", metadata=undated[form])
    return buffer.getvalue()
