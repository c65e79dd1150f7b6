"""The look of every figure: one colour, marker and dash a method, wherever it appears."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sage_rlvr.report.summary import key_of

INK = "#1b1f24"
MUTED = "#6b7280"
GRID = "#d9dce1"

# Okabe and Ito's palette (safe for the common colour blindnesses), light page -> dark page
PALETTE = {
    "base": ("#767c85", "#a3aab4"),
    "nokl": ("#d55e00", "#f08a3c"),
    "grpo": ("#0072b2", "#4da9e0"),
    "sagebranch": ("#009e73", "#2fc79b"),
    "placebo": ("#b8629a", "#d98cbf"),
    "sagetoken": ("#b07d00", "#e6b23a"),
    "sagerandom": ("#3a9bd1", "#7cc4ee"),
    "forwardkl": ("#7a5230", "#c29468"),
    "forwardklbranch": ("#4a2f18", "#a5764a"),
    "branchstrong": ("#00563f", "#1a9c77"),
    "placebostrong": ("#7d3c68", "#e3a9cf"),
    "grpotokenmean": ("#cf7a63", "#f5b5a4"),
    "bnpo": ("#8f83d1", "#c2bbea"),
    "bnpokl": ("#5b4fa8", "#9a90e0"),
    "bnpobranch": ("#362a80", "#7a6cd6"),
    "dapo": ("#b3b52e", "#e2e48a"),
    "dapokl": ("#8a8f00", "#c6ca4a"),
    "dapobranch": ("#4f5300", "#9ea32a"),
    "dapooverlong": ("#5f8f4a", "#a0cc85"),
    "rloo": ("#a8324a", "#e77d92"),
    "rloobranch": ("#6e1430", "#c9506b"),
    "drgrpo": ("#00707a", "#45b8c2"),
}
_ALIASES = {
    "branch": "sagebranch", "token": "sagetoken", "random": "sagerandom", "sageplacebo": "placebo", "grponokl": "nokl",
    "noanchor": "nokl", "rlnokl": "nokl", "fkl": "forwardkl",
}  # fmt: skip
_SPARE = (("#5b4fa8", "#9a90e0"), ("#8a8f00", "#c6ca4a"), ("#a8324a", "#e77d92"), ("#00707a", "#45b8c2"))
# The same part of a method has the same marker: s no KL, D a KL, ^ the guide on it
_MARKERS = dict(
    base="o", nokl="s", grpo="D", sagebranch="^", placebo="v", sagetoken="P", sagerandom="X",
    forwardkl="h", forwardklbranch="^", branchstrong="<", placebostrong=">", grpotokenmean="d", bnpo="s", bnpokl="D",
    bnpobranch="^", dapo="s", dapokl="D", dapobranch="^", dapooverlong="v", rloo="D", rloobranch="^", drgrpo="p",
)  # fmt: skip

_SPARE_MARKERS = ("d", "p", "<", "*", "8")

# By marker, so that a line without markers is told apart where colours are not
_DASHES: dict[str, tuple[float, ...]] = {
    "o": (), "D": (), "s": (5, 1.6), "^": (8, 1.6, 1.6, 1.6), "v": (2.2, 1.4), "P": (4, 1.2, 1, 1.2, 1, 1.2), "X": (1, 1.2),
    "h": (11, 2), "<": (8, 1.6, 2.6, 1.6), ">": (3.4, 1.2), "d": (6, 1.2, 1, 1.2), "p": (3, 3),
    "*": (10, 1.2, 1, 1.2, 1, 1.2), "8": (6, 3),
}  # fmt: skip

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.9,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "sage-rlvr",
}


def colour(name: str, *, dark: bool = False) -> str:
    """Hex colour of an arm: fixed for the known methods, picked by a hash of the name for others."""
    return _pair(name)[1 if dark else 0]


def marker(name: str) -> str:
    """Marker of an arm, so that colour is never the only difference: fixed for the known methods, a placebo's own for placebos,
    picked by a hash of the name for others."""
    key = _canonical(name)
    if key in _MARKERS:
        return _MARKERS[key]
    return (
        ">"
        if key.endswith("placebo")
        else _SPARE_MARKERS[hashlib.sha256(key.encode()).digest()[1] % len(_SPARE_MARKERS)]
    )


def dash(name: str) -> tuple[float, tuple[float, ...] | None]:
    """Line style of an arm: solid for the base and for a plain KL, dashes of their own for what stands beside them."""
    pattern = _DASHES.get(marker(name), ())
    return 0.0, pattern or None


def dark_twins() -> dict[str, str]:
    """Every colour a figure may hold -> its twin on a dark page; the page turns them into CSS variables."""
    return {**dict(PALETTE.values()), **dict(_SPARE), INK: "#e6e8eb", MUTED: "#9aa3ad", GRID: "#343a42"}


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions closest (least squares) to the wanted ones, in their order, at least `gap` apart, within [low, high].

    Isotonic regression of wanted_i - i * gap by pooling neighbours that collide; the gap shrinks if they do not fit.
    """
    n = len(wanted)
    gap = min(gap, (high - low) / (n - 1)) if n > 1 else gap
    order = sorted(range(n), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (mean of the shifted wishes, how many)
    for rank, i in enumerate(order):
        blocks.append((wanted[i] - rank * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (right, m), (left, k) = blocks.pop(), blocks.pop()
            blocks.append(((left * k + right * m) / (k + m), k + m))
    shifted = [mean for mean, count in blocks for _ in range(count)]
    out = [0.0] * n
    for rank, i in enumerate(order):
        out[i] = min(max(shifted[rank], low), high - (n - 1) * gap) + rank * gap
    return out


def _canonical(name: str) -> str:
    key = key_of(name)
    return _ALIASES.get(key, key)


def _pair(name: str) -> tuple[str, str]:
    key = _canonical(name)
    if key in PALETTE:
        return PALETTE[key]
    return _SPARE[hashlib.sha256(key.encode()).digest()[0] % len(_SPARE)]
