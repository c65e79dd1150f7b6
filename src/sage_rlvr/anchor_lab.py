"""`sage-rlvr theory`: the claims with both sides, the map of what every KL term descends, where descent comes to rest,
the pictures, and the same measurements on the real Countdown policy. Everything printed is also written.

    <out>/theory.json         every number
    <out>/theory.md           the tables
    <out>/theory-*.png        the pictures

`write_docs` puts the same tables between the marks of docs/anchor.md and the pictures beside it, so that nothing there is
typed by hand.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import DataError
from sage_rlvr.runs import writing

if TYPE_CHECKING:
    from sage_rlvr.engines.lab import LabResult
    from sage_rlvr.theory.claims import Claim
    from sage_rlvr.theory.effects import MapRow

PICTURES = ("anchor", "modes", "forces")


@dataclass(frozen=True)
class Findings:
    """What the command found; `lab` is None where the policy was left out."""

    claims: list[Claim]
    gradient_map: list[MapRow]
    stationary: list[Any]
    lab: LabResult | None
    seconds: dict[str, float]

    @property
    def as_expected(self) -> bool:
        """True where every claim came out as it should."""
        return all(claim.as_expected for claim in self.claims)


def find(*, lab: bool = True, say: Callable[[str], None] = lambda text: None, **options: Any) -> Findings:
    """Compute everything, one thread; `options` go to `engines.lab.run_lab` (policy, problems, draws, seed)."""
    import torch

    from sage_rlvr.theory.claims import run_all, stationary_table
    from sage_rlvr.theory.effects import gradient_map

    torch.set_num_threads(1)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        say(f"{name} ...")
        began = time.monotonic()
        found = work()
        seconds[name] = round(time.monotonic() - began, 1)
        return found

    claims = timed("claims", run_all)
    rows = timed("map", gradient_map)
    stationary = timed("stationary points", stationary_table)
    measured = None
    if lab:
        from sage_rlvr.engines.lab import run_lab

        measured = timed("the Countdown policy", lambda: run_lab(**options))
    return Findings(claims, rows, stationary, measured, seconds)


def tables(found: Findings) -> dict[str, str]:
    """Markdown tables by name: claims, map, stationary, lab (where there is one)."""
    from sage_rlvr.theory import claims, effects

    made = {
        "claims": claims.markdown(found.claims),
        "map": effects.markdown(found.gradient_map),
        "stationary": claims.stationary_markdown(found.stationary),
    }
    if found.lab is not None:
        from sage_rlvr.engines.lab import markdown

        made["lab"] = markdown(found.lab)
    return made


def draw(folder: Path, prefix: str = "theory-") -> list[Path]:
    """The three pictures as <folder>/<prefix>{anchor,modes,forces}.png."""
    from sage_rlvr.report.theory import forces_figure, landscape_figure, modes_figure
    from sage_rlvr.theory.pictures import forces, landscape, modes

    with writing("pictures", folder, 2 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{prefix}{name}.png" for name in PICTURES]
        one, two, three = landscape(), modes(), forces()
        curves = {name: getattr(one, name) for name in ("reference", "shaped", "grpo", "sage", "k3")}
        landscape_figure(curves, one.right, one.beta, one.epsilon, paths[0])
        fits = {
            "KL(p || target): seeks a mode": two.reverse,
            "KL(target || p): covers them": two.forward,
            "D(p || q x target): seeks where q lifts": two.sage,
        }
        modes_figure(two.place, two.target, two.shaped, fits, paths[1])
        titles = {
            "root": f"push on the logits\nof the root (q = {three.q['root']:.3g})",
            "branching": f"push on the logits of the\nbranching state (q = {three.q['branching']:.3g})",
        }
        forces_figure(three.pushes, three.tokens, three.refused, titles, paths[2])
    return paths


def write(found: Findings, folder: Path) -> list[Path]:
    """theory.json, theory.md and the pictures; returns the paths. Raises CheckpointError where they cannot be written."""
    listed = {
        "claims": [dataclasses.asdict(claim) for claim in found.claims],
        "map": [dataclasses.asdict(row) for row in found.gradient_map],
        "stationary": [dataclasses.asdict(row) for row in found.stationary],
        "lab": None if found.lab is None else dataclasses.asdict(found.lab),
        "seconds": found.seconds,
    }
    text = "\n\n".join(f"## {name}\n\n{table}" for name, table in tables(found).items())
    with writing("theory", folder, 1 << 20):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "theory.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        (folder / "theory.md").write_text(text + "\n", encoding="utf-8")
    return [folder / "theory.json", folder / "theory.md", *draw(folder)]


def filled(page: str, made: Mapping[str, str]) -> str:
    """`page` with each table put between <!-- name:begin --> and <!-- name:end -->; marks without a table stay as they are.

    DataError for a table that has no marks in the page, because it would be lost.
    """
    for name, table in made.items():
        mark = re.compile(rf"(<!-- {name}:begin[^>]*-->\n).*?(\n<!-- {name}:end -->)", re.DOTALL)
        if not mark.search(page):
            raise DataError(f"the page has no marks <!-- {name}:begin --> and <!-- {name}:end --> for its table; add them.")
        page = mark.sub(lambda found, table=table: found[1] + table + found[2], page)  # type: ignore[misc]
    return page


def write_docs(found: Findings, docs: Path) -> list[Path]:
    """The tables of docs/anchor.md and the pictures docs/images/anchor-*.png, made again."""
    page = docs / "anchor.md"
    if not page.is_file():
        raise DataError(f"{page} is not there; name the folder that holds anchor.md, as docs/ of the repository does.")
    made = filled(page.read_text(encoding="utf-8"), tables(found))
    with writing("page", page, 1 << 20):
        page.write_text(made, encoding="utf-8")
    return [page, *draw(docs / "images", "anchor-")]
