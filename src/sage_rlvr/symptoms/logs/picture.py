"""The few relevant curves of a log, one above the other, with the step of the finding marked."""

from __future__ import annotations

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sage_rlvr.render.style import INK, MUTED, RC, RED, Form, file_of, saved
from sage_rlvr.symptoms.logs.curves import Curve
from sage_rlvr.symptoms.logs.diagnose import ORDERED, Diagnosis
from sage_rlvr.symptoms.logs.table import METRICS

PANELS = 5


def picture(found: Diagnosis, form: Form) -> bytes:
    """The picture as svg, pdf or png."""
    return file_of(figure_of(found), form)


def figure_of(found: Diagnosis) -> Figure:
    """The reward, then the changes in the order of their steps, then the rest, at most five panels."""
    changed = [change.name for change in found.changes]
    names = [name for name in dict.fromkeys(["reward", *changed, *ORDERED]) if found.table.has(name)][:PANELS]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.2, 0.6 + 1.35 * max(1, len(names))), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(max(1, len(names)), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, names, strict=False):
            curve = Curve.of(name, *found.table.curve(name))
            axes.plot(curve.steps, curve.values, color=MUTED, linewidth=0.8)
            axes.plot(curve.steps, curve.smooth, color=INK, linewidth=1.5)
            axes.set_title(METRICS[name], loc="left", fontsize=9)
            if found.step is not None:
                axes.axvline(found.step, color=RED, linewidth=1.0)
        panels[-1].set(xlabel="step")
        cause = found.report.first
        title = found.report.verdict if cause is None else f"{cause} from step {found.step}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return saved(figure)


__all__ = ["figure_of", "picture"]
