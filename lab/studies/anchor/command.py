"""`python -m lab anchor`: the claims with both sides, the map of what every KL term descends, where descent comes to rest,
the pictures, and the same measurements on the real Countdown policy. Everything printed is also written.

    <out>/theory.json         every number
    <out>/theory.md           the tables
    <out>/theory-*.png        the pictures

`write_docs` puts the same tables between the marks of lab/pages/concepts/anchor.md, and its pictures into lab/pages/images.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
import rich.markup
import rich.table
import torch
from rich.console import Console

from lab.studies.anchor import rows
from lab.studies.anchor.figures import PICTURES
from lab.studies.anchor.measure import run_lab
from lab.studies.pages import remade
from lab.theory import claims, effect_map
from sage_rlvr.core.guides import GUIDES
from sage_rlvr.runs import writing
from sage_rlvr.safe_io import read_text

LAB_SECTION = "The Countdown policy"
TABLES_HEAD = """# The tables behind anchor.md

Made whole by `python -m lab anchor --docs lab/pages`; [anchor.md](../concepts/anchor.md) explains the columns. A claim that "fails,
as it should" shows where a theorem stops.

"""


@dataclass(frozen=True)
class Findings:
    """What the command found; `lab` is None where the policy was left out."""

    claims: list[claims.Claim]
    gradient_map: list[effect_map.MapRow]
    stationary: list[Any]
    lab: rows.LabResult | None
    seconds: dict[str, float]

    @property
    def as_expected(self) -> bool:
        """True where every claim came out as it should."""
        return all(claim.as_expected for claim in self.claims)


def find(*, lab: bool = True, say: Callable[[str], None] = lambda text: None, **options: Any) -> Findings:
    """Compute everything, one thread; `options` go to `measure.run_lab` (policy, problems, draws, seed)."""
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        say(f"{name} ...")
        began = time.monotonic()
        found = work()
        seconds[name] = round(time.monotonic() - began, 1)
        return found

    shown = timed("claims", claims.run_all), timed("map", effect_map.gradient_map)
    stationary = timed("stationary points", claims.stationary_table)
    measured = timed("the Countdown policy", lambda: run_lab(progress=say, **options)) if lab else None
    return Findings(*shown, stationary, measured, seconds)


SHORT_METHODS = (("GroupNormalized", "SequenceMean"), ("LeaveOneOut", "FixedBudget"))  # GRPO as published; RLOO


def short_tables(found: Findings) -> dict[str, str]:
    """What lab/pages/concepts/anchor.md shows: the map of the registered guides, each by itself, without the rarer divergences, the
    resting points of GRPO and RLOO, and the lab where there is one."""
    single, rare = {guide.__name__ for guide in GUIDES.values()}, ("exact js", "exact alpha")
    rows = [row for row in found.gradient_map if row.guide in single and row.estimator not in rare]
    paid = [row for row in found.stationary if (row.advantage, row.reduction) in SHORT_METHODS or row.placement == "reward"]
    resting = [row for row in paid if row.advantage != "GroupCentered" and row.reduction != "TokenMean"]
    made = {"map": effect_map.markdown(rows).rstrip(), "stationary": claims.stationary_markdown(resting)}
    if found.lab is not None:
        made["lab"] = rows.short_markdown(found.lab)
    return made


def tables(found: Findings) -> dict[str, str]:
    """Every table by its heading: claims, the whole map, all resting points, and the lab where there is one."""
    made = {
        "Claims": claims.markdown(found.claims),
        "The map": effect_map.markdown(found.gradient_map).rstrip(),
        "Resting points": claims.stationary_markdown(found.stationary),
    }
    if found.lab is not None:
        made[LAB_SECTION] = rows.markdown(found.lab).rstrip()
    return made


def print_findings(found: Findings, out: Console) -> None:
    """The claims with both sides and their verdicts, the short tables, and how many claims came out as they should."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("claim, and what it says", overflow="fold")
    for name in ("left", "", "right"):
        table.add_column(name, overflow="fold", max_width=24)
    table.add_column("verdict", no_wrap=True)
    for claim in found.claims:
        name, *rest = claim.row(4)
        cells = [rich.markup.escape(cell) for cell in (name, *map(_shortened, rest))]
        shade = "green" if claim.as_expected else "bold red"
        says = f"{cells[0]}\n[dim]{rich.markup.escape(claim.statement)}[/]"
        table.add_row(says, *cells[1:4], f"[{shade}]{cells[4]}[/]")
    out.print(table, markup=True)
    for name, text in short_tables(found).items():
        out.print(f"\n{name}\n", style="bold")
        out.print(text, soft_wrap=True)
    right = sum(claim.as_expected for claim in found.claims)
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found.seconds.items())
    out.print(
        f"\n{right} of {len(found.claims)} claims came out as they should; took: {took}", soft_wrap=True
    )


def _shortened(cell: str, longest: int = 34) -> str:
    """A tuple of many numbers keeps its first ones; theory.json has all."""
    return cell if len(cell) <= longest else cell[: longest - 4].rsplit(",", 1)[0] + ", ...)"


def draw(folder: Path, prefix: str = "theory-") -> list[Path]:
    """The three pictures as <folder>/<prefix>{anchor,modes,forces}.png."""
    paths = {name: folder / f"{prefix}{name}.png" for name in PICTURES}
    with writing("pictures", folder, 2 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            PICTURES[name](path)
    return list(paths.values())


def write(found: Findings, folder: Path) -> list[Path]:
    """theory.json, theory.md and the pictures; returns the paths. Raises CheckpointError where they cannot be written."""
    listed = {
        "claims": [dataclasses.asdict(claim) for claim in found.claims],
        "map": [dataclasses.asdict(row) for row in found.gradient_map],
        "stationary": [dataclasses.asdict(row) for row in found.stationary],
        "lab": None if found.lab is None else dataclasses.asdict(found.lab),
        "seconds": found.seconds,
    }
    text = _sections(found)
    with writing("theory", folder, 1 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "theory.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        (folder / "theory.md").write_text(text + "\n", encoding="utf-8")
    return [folder / "theory.json", folder / "theory.md", *draw(folder)]


def _sections(found: Findings) -> str:
    return "\n\n".join(f"## {name}\n\n{table}" for name, table in tables(found).items())


def write_docs(found: Findings, docs: Path) -> list[Path]:
    """Make the tables of concepts/anchor.md, results/anchor_tables.md and images/anchor-*.png in docs again."""
    page, made = remade(docs, "concepts/anchor.md", short_tables(found))
    whole, kept = docs / "results" / "anchor_tables.md", ""
    if found.lab is None and whole.is_file():  # as in anchor.md, the lab's table stays what it was
        _, head, rest = read_text(whole).partition(f"\n\n## {LAB_SECTION}\n")
        kept = (head + rest).rstrip()
    with writing("pages", docs, 1 << 20):
        page.write_text(made, encoding="utf-8")
        whole.write_text(TABLES_HEAD + _sections(found) + kept + "\n", encoding="utf-8")
    return [page, whole, *draw(docs / "images", "anchor-")]
