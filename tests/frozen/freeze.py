"""Rows of frozen numbers: how they are written, addressed and compared.

Reads plain JSON and imports nothing of the package, so that it outlives every rebuild of it. `README.md` has the schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]

# What is compared, and what its statistics are.
ADDRESS = ("source", "a", "b", "metric", "at", "task", "level")
FIXED = ("difference", "low", "high", "p", "detectable", "detectable_high", "n", "mean_a", "mean_b")  # never change
ONCE = ("adjusted", "family", "verdict")  # change once, where the family of the correction changes
RELATIVE = 1e-9

HOME, BEST, EQUAL, NEAR = "T = 1", "each at its best T", "equal pass@1", "equal pass@1 near T = 1"
AT_HOME, SAME_KL = "equal pass@1, a at T = 1", "same raw KL"
ANY = " at any temperature"
AT_BEST = " at its best temperature"
ENDS = (
    (" at equal pass@1 near T = 1", NEAR),
    (" at equal pass@1", EQUAL),
    (", each at its best", BEST),
    (" at T = 0.3", "T = 0.3"),
)


# ------------------------------------------------------------------------------------------------------------------
# rows


def comparison(source: str, pipeline: str, where: str, kind: str, names: Sequence[str], told: Mapping[str, Any]) -> Row:
    """One comparison. names: a, b, metric as printed; told: {"difference": interval, "p", "adjusted", ...} as a dict."""
    a, b, metric = names
    short, at, task = read_metric(metric, kind)
    best = AT_BEST in a + b
    gap = told.get("difference") or {}
    row = {
        "row": "comparison", "source": source, "pipeline": pipeline, "list": where, "kind": kind,
        "a": _bare(a), "b": _bare(b), "metric": short, "at": BEST if best else at, "task": task,
        "level": told.get("level"), "printed": [a, b, metric],
        "difference": gap.get("value"), "low": gap.get("low"), "high": gap.get("high"),
        "n": gap.get("n"), "over": gap.get("over"),
    }  # fmt: skip
    names_of_rest = ("p", "adjusted", "family", "detectable", "detectable_high", "verdict", "mean_a", "mean_b", "problems")
    return plain(row | {name: told.get(name) for name in names_of_rest})


def read_metric(metric: str, kind: str) -> tuple[str, str, str]:
    """(metric, where on the temperatures it is read, other world) of a metric as printed."""
    task = ""
    if kind == "away":
        metric, _, task = metric.partition(" on ")
    if kind == "power":
        mean, metric = metric.startswith("mean "), metric.removeprefix("mean ")
        if not mean and metric.endswith(ENDS[1][0]):
            return metric.removesuffix(ENDS[1][0]), AT_HOME, task
    at = HOME
    for end, place in ENDS:
        if metric.endswith(end):
            metric, at = metric.removesuffix(end), place
            break
    return metric, f"{SAME_KL}, {at}" if kind == "matched" else at, task


def _bare(name: str) -> str:
    return name.removesuffix(ANY).split(AT_BEST)[0].removesuffix(" at the same raw KL")


def number(source: str, pipeline: str, name: str, values: Mapping[str, Any]) -> Row:
    """Numbers that belong together (an interval, a point of a frontier) under one name."""
    return plain({"row": "number", "source": source, "pipeline": pipeline, "name": name, **values})


def printed(source: str, pipeline: str, name: str, text: str) -> Row:
    """A line as printed, with its numbers in order: the words may change, these may not."""
    return {"row": "printed", "source": source, "pipeline": pipeline, "name": name, "numbers": numbers_in(text), "text": text}


def numbers_in(text: str) -> list[str]:
    """The numbers of a line in order, as printed, with ASCII minus signs."""
    return re.findall(r"(?<![\w.@])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?%?", text.replace("−", "-"))


def plain(value: Any) -> Any:
    """As strict JSON can hold it: what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------------------
# files, and what differs


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """A JSON list, one row per line, sorted; returns how many."""
    lines = sorted({json.dumps(row, ensure_ascii=False, allow_nan=False): row for row in rows}.items(), key=_order)
    path.write_text("[\n" + ",\n".join(text for text, _ in lines) + "\n]\n", encoding="utf-8")
    return len(lines)


def read_rows(path: Path) -> list[Row]:
    """Inverse of `write_rows`."""
    found: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _order(item: tuple[str, Row]) -> tuple[str, ...]:
    text, row = item
    return (*(str(row.get(key, "")) for key in ("source", "row", "pipeline", "list", "name")), text)


def address(row: Row) -> tuple[Any, ...]:
    """What a comparison is of, whichever pipeline printed it."""
    return tuple(row[name] for name in ADDRESS)


def unlike(frozen: Row, found: Mapping[str, Any], names: Sequence[str] = FIXED) -> list[str]:
    """Which of `names` differ between a frozen row and one made anew, in words; what the frozen row lacks is no difference."""
    out = []
    for name in names:
        old, new = frozen.get(name), plain(found.get(name))
        if old is not None and not _same(old, new):
            out.append(f"{name}: {old!r} -> {new!r}")
    return out


def _same(old: Any, new: Any) -> bool:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (old, new))
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=1e-12) if numbers else old == new


def changes(frozen: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """Rows of the same pipeline and place that are missing, new or unlike, in words."""
    old, new = ({json.dumps(_name(row)): row for row in rows} for rows in (frozen, found))
    out = [f"missing: {name}" for name in old if name not in new] + [f"new: {name}" for name in new if name not in old]
    for name in old.keys() & new.keys():
        keys = [key for key in {**old[name], **new[name]} if key not in ("text", "printed")]
        out += [f"{name}: {said}" for said in unlike(old[name], new[name], keys)]
    return sorted(out)


def _name(row: Row) -> list[Any]:
    keys = ("row", "source", "pipeline", "list", "kind", "name", "a", "b", "metric", "at", "task", "level")
    return [row.get(key) for key in keys]
