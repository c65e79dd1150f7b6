"""A sweep's folder in numbers and sentences: matrix.json, the records and the metrics in, summary.json and .md out.

Every arm has its mean over training seeds with Student's interval; differences are paired by seed, the problems held fixed,
p with Holm's correction over all of them. What is not there is called "not run". No torch: a folder can be read anywhere.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import (
    Comparison,
    FrontierPoint,
    Interval,
    adjust,
    best_pass1,
    curve,
    frontier,
    gap_to_frontier,
    paired_seeds,
    reachable,
    seed_interval,
    sentence,
    success_probability,
    support_change,
)
from sage_rlvr.evaluation.compare import FEWEST_SEEDS
from sage_rlvr.evaluation.record import Record, check_paired, load_record
from sage_rlvr.runs import read_metrics, write_json_atomic, write_text_atomic

Floats = NDArray[np.float64]

SCHEMA = 1
KS = (1, 8, 64, 256)
K = 256
EPS = 1 / 256
NOT_RUN = "not run"
MATCHED = (
    "matched: an unguided arm at several betas, its scores read in between (linear in the logarithm of the raw KL of the last "
    "tenth of training) at the raw KL that the guided arm of the same seed realised; nothing is read outside."
)
SECOND = (
    *("arm", "support kept", "gained", "lost", "tokens drawn, M", "training, s", "q not 1 on (first, last tenth)"),
    "mean q (first, last tenth)",
)  # fmt: skip
TRAINING = (
    *("arm", "training reward, first tenth", "last tenth", "test pass@1"),
    *("gradient norm, early third", "middle", "late"),
)  # fmt: skip
LOGGED = (
    "Training reward: mean of the samples that were trained on, each tenth of the steps on other problems than the last. Gradient "
    "norms are those before clipping."
)
COUNTED = (
    "Support: right completions with probability above 1/256, over all problems, against the base. Tokens and seconds (by the "
    "clock, one thread a run) are means a run."
)
AT_EQUAL = f"pass@{K} at equal pass@1"


@dataclass(frozen=True)
class Cell:
    """One evaluated policy: pass@k a problem (N, K) over `KS`, frontier, distinct right ones in 256, best pass@1."""

    record: Record
    passes: Floats
    points: tuple[FrontierPoint, ...]
    distinct: float

    @classmethod
    def of(cls, record: Record) -> Cell:
        p = {t: success_probability(rows) for t, rows in record.logps.items()}
        distinct = float(np.mean(reachable(record.logps[1.0], K)))
        return cls(record, np.asarray(curve(p[1.0], KS)), frontier(p, K), distinct)

    @property
    def means(self) -> Floats:
        """Mean over problems of pass@k, (K,)."""
        return np.asarray(self.passes.mean(axis=0))


@dataclass(frozen=True)
class Folder:
    """A sweep's folder, read: its matrix.json, the base's cell, and those of arm -> seed that are evaluated."""

    path: Path
    facts: dict[str, Any]
    base: Cell | None
    cells: dict[str, dict[int, Cell]]

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """name -> its entry in matrix.json, in order."""
        return {arm["name"]: arm for arm in self.facts["arms"]}

    def label(self, name: str) -> str:
        """The arm's name in sentences."""
        return str(self.arms[name]["label"])

    def run(self, arm: str, seed: int) -> Path:
        """The run directory of a cell."""
        return self.path / "runs" / f"{arm}-s{seed}"

    def shared(self, a: str, b: str) -> list[int]:
        """Seeds that both arms are evaluated with."""
        return sorted(set(self.cells.get(a, {})) & set(self.cells.get(b, {})))


def read_folder(path: Path, world: str = "") -> Folder:
    """The folder of a sweep. world: its out-of-distribution records of that name, or "" for the main ones, which are taken
    where matrix.json says that they are evaluated (a record of other weights is no result)."""
    try:
        facts = json.loads((path / "matrix.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path / 'matrix.json'}: no sweep was started here ({error}); sage-rlvr sweep MATRIX"
        ) from error
    end = f"-{world}" if world else ""
    known = {(cell["arm"], cell["seed"]) for cell in facts["cells"] if world in cell["evaluated"]}
    cells: dict[str, dict[int, Cell]] = {arm["name"]: {} for arm in facts["arms"]}
    for arm, seed in sorted(known):
        cells[arm][seed] = Cell.of(load_record(path / "evaluations" / f"{arm}-s{seed}{end}.npz"))
    base = Cell.of(load_record(path / "evaluations" / f"base{end}.npz")) if world in facts["base_evaluated"] else None
    records = [cell.record for seeds in cells.values() for cell in seeds.values()]
    if records:
        check_paired([*([base.record] if base else []), *records])
    return Folder(path, facts, base, cells)


# ------------------------------------------------------------------------------------------------------------------
# the whole


def summarise(path: Path) -> dict[str, Any]:
    """Everything of the folder as strict JSON can hold it."""
    folder = read_folder(path)
    facts = folder.facts
    away = {world: read_folder(path, world) for world in facts["evaluate"]["ood"]}
    found = _comparisons(folder, away)
    return _plain(
        {
            "schema": SCHEMA,
            "tier": facts["tier"],
            "notes": facts["notes"],
            "matrix": facts["matrix"],
            "control": facts["control"],
            "seeds": facts["seeds"],
            "evaluate": facts["evaluate"],
            "world": facts["world"],
            "steps": facts["steps"],
            "versions": facts["versions"],
            "base": None if folder.base is None else _base_row(folder.base),
            "arms": {name: _arm_row(folder, name) for name in folder.arms},
            "away": {world: _away_rows(other) for world, other in away.items()},
            "comparisons": found,
            "relabelled": relabelled(folder),
            "choice": facts["choice"],
            "added": {arm["name"]: arm["why"] for arm in facts["arms"] if arm["why"]},
            "left_out": facts["left_out"],
            "not_run": [
                f"{folder.label(c['arm'])} s{c['seed']}: {c['status']}" for c in facts["cells"] if not c["complete"]
            ],
        }
    )


def write_summary(path: Path) -> dict[str, Any]:
    """summary.json and summary.md in the folder; returns the former."""
    found = summarise(path)
    write_json_atomic(path / "summary.json", found)
    write_text_atomic(path / "summary.md", "\n".join(markdown(found)) + "\n")
    return found


def _base_row(base: Cell) -> dict[str, Any]:
    top = best_pass1(base.points)
    return {
        "pass": dict(zip(map(str, KS), base.means.tolist(), strict=True)),
        "distinct": base.distinct,
        "best": asdict(top),
        "frontier": [asdict(point) for point in base.points],
        "support": int(sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in base.record.logps[1.0])),
    }


def _arm_row(folder: Folder, name: str) -> dict[str, Any]:
    cells = folder.cells[name]
    entry = folder.arms[name]
    row: dict[str, Any] = {
        "label": entry["label"],
        "why": entry["why"],
        "recipe": entry["recipe"],
        "seeds": sorted(cells),
    }
    if not cells:
        return row
    seeds, values = sorted(cells), [cells[seed] for seed in sorted(cells)]
    means = np.stack([cell.means for cell in values])
    row["pass"] = {str(k): asdict(seed_interval(means[:, j])) for j, k in enumerate(KS)}
    row["pass_by_seed"] = {
        str(seed): dict(zip(map(str, KS), m.tolist(), strict=True)) for seed, m in zip(seeds, means, strict=True)
    }
    row["distinct"] = asdict(seed_interval([cell.distinct for cell in values]))
    row["best_pass1"] = asdict(seed_interval([best_pass1(cell.points).pass1 for cell in values]))
    row["frontier"] = [
        {
            "temperature": p[0].temperature,
            "pass1": float(np.mean([q.pass1 for q in p])),
            "passk": float(np.mean([q.passk for q in p])),
        }
        for p in zip(*(cell.points for cell in values), strict=True)
    ]
    if folder.base is not None:
        changes = [support_change(folder.base.record.logps[1.0], cell.record.logps[1.0], EPS) for cell in values]
        row["support"] = {
            what: asdict(seed_interval([getattr(c, what) for c in changes])) for what in ("preserved", "gained", "lost")
        }
    return row | _training(folder, name, seeds)


def _training(folder: Folder, name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Raw KL, tokens, seconds and dose of q from the metrics of these seeds; what was not logged is left out."""
    logs = [read_metrics(folder.run(name, seed)) for seed in seeds]
    row: dict[str, Any] = {
        "train_seconds": float(np.mean([sum(r["time/step_s"] for r in rows) for rows in logs])),
        "steps": max(map(len, logs)),
    }
    if all("rollout/tokens" in r for rows in logs for r in rows):
        row["tokens"] = float(np.mean([sum(r["rollout/tokens"] for r in rows) for rows in logs]))
    norms = [[r["optimizer/grad_norm"] for r in rows if "optimizer/grad_norm" in r] for rows in logs]
    if all(norms):
        row["grad_norm"] = {
            when: asdict(seed_interval([float(np.mean(_third(n, i))) for n in norms]))
            for i, when in enumerate(("early", "middle", "late"))
        }
    rewards = [[r["reward/mean"] for r in rows if "reward/mean" in r] for rows in logs]
    if all(rewards):
        row["reward"] = {
            when: asdict(seed_interval([float(np.mean(_tenth(r, last=when == "last"))) for r in rewards]))
            for when in ("first", "last")
        }
    kls = [raw_kl(rows) for rows in logs]
    if all(kl is not None for kl in kls):
        row["kl_raw"] = asdict(seed_interval([kl for kl in kls if kl is not None]))
    if folder.arms[name]["guided"]:
        row["dose"] = _dose(logs)
    return row


def _third(values: Sequence[float], which: int) -> Sequence[float]:
    """Early, middle or late: a third of the steps each."""
    return np.array_split(np.asarray(values), 3)[which].tolist() or list(values)


def _tenth(values: Sequence[float], *, last: bool) -> Sequence[float]:
    part = max(1, len(values) // 10)
    return values[-part:] if last else values[:part]


def raw_kl(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Realised raw KL at the end, nats a token: its mean over the last tenth of the steps that had an update."""
    values = [row["anchor/kl_raw"] for row in rows if "anchor/kl_raw" in row]
    return float(np.mean(values[-max(1, len(values) // 10) :])) if values else None


def _dose(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float] | None:
    """Share of tokens where q is not 1, and mean q, in the first and last tenth of training; means over seeds."""
    out: dict[str, list[float]] = {}
    for log in logs:
        rows = [row for row in log if "anchor/q_mean" in row]
        if not rows:
            return None
        part = max(1, len(rows) // 10)
        for when, chosen in (("first", rows[:part]), ("last", rows[-part:])):
            for what, key in (("active", "anchor/q_active_share"), ("q", "anchor/q_mean")):
                out.setdefault(f"{what}_{when}", []).append(float(np.mean([row[key] for row in chosen])))
    return {name: float(np.mean(values)) for name, values in out.items()}


def _away_rows(folder: Folder) -> dict[str, Any]:
    rows: dict[str, Any] = {"problems": None if folder.base is None else folder.base.record.problems}
    rows["base"] = None if folder.base is None else _base_row(folder.base)
    rows["arms"] = {}
    for name, cells in folder.cells.items():
        if cells:
            means = np.stack([cells[seed].means for seed in sorted(cells)])
            best = seed_interval([best_pass1(cells[seed].points).pass1 for seed in sorted(cells)])
            passes = {str(k): asdict(seed_interval(means[:, j])) for j, k in enumerate(KS)}
            rows["arms"][name] = {"seeds": sorted(cells), "pass": passes, "best_pass1": asdict(best)}
    return rows


# ------------------------------------------------------------------------------------------------------------------
# differences


@dataclass(frozen=True)
class Claim:
    """One comparison before Holm: what kind, of whom, on which metric."""

    kind: str
    a: str
    b: str
    metric: str
    comparison: Comparison
    note: str = ""


def _comparisons(folder: Folder, away: Mapping[str, Folder]) -> list[dict[str, Any]]:
    claims = [claim for a, b, kind in pairs(folder) for claim in _of_pair(folder, a, b, kind)]
    claims += [claim for name in folder.arms for claim in _matched(folder, name)]
    named = [name for name, arm in folder.arms.items() if not arm["why"]]
    claims += [claim for name in named for claim in _frontiers(folder, name)]
    control = folder.facts["control"]
    for world, other in away.items():
        for name in named:
            if name != control:
                claims += [
                    replace(c, metric=f"{c.metric} on {world}") for c in _of_pair(other, name, control, "control")
                ]
    adjusted = adjust([claim.comparison for claim in claims])
    return [_written(folder, replace(claim, comparison=c)) for claim, c in zip(claims, adjusted, strict=True)]


def pairs(folder: Folder) -> list[tuple[str, str, str]]:
    """(arm, what it is held against, why): the matrix's control, the arm's own controls, each pair once. Controls that the
    sweep added are held against alone: more sentences about them would only weaken Holm's for the others."""
    control, out = folder.facts["control"], {}
    for name, arm in folder.arms.items():
        if arm["why"]:
            continue
        wanted = [(control, "control")] + [(arm[kind], kind) for kind in ("plain", "placebo") if arm[kind]]
        if arm["no_kl"] and not arm["guided"]:
            wanted.append((arm["no_kl"], "no_kl"))
        for other, kind in wanted:
            if other != name and (other, name) not in out:
                out.setdefault((name, other), kind)
    return [(a, b, kind) for (a, b), kind in out.items()]


def _of_pair(folder: Folder, a: str, b: str, kind: str) -> list[Claim]:
    seeds = folder.shared(a, b)
    if not seeds:
        return []
    left, right = (np.stack([folder.cells[name][s].passes for s in seeds]) for name in (a, b))
    return [
        Claim(kind, folder.label(a), folder.label(b), f"pass@{k}", paired_seeds(left[:, :, j], right[:, :, j]))
        for j, k in enumerate(KS)
        if k in (1, K)
    ]


def _matched(folder: Folder, name: str) -> list[Claim]:
    """A guided arm against its unguided method at the beta whose realised raw KL is the arm's own, read between betas."""
    arms = folder.arms[name]["matched"]
    if not arms:
        return []
    wanted: list[tuple[int, Floats]] = []
    outside = 0
    for seed in sorted(set(folder.cells[name]).intersection(*(folder.cells[other] for other in arms))):
        kls = [raw_kl(read_metrics(folder.run(other, seed))) for other in arms]
        own = raw_kl(read_metrics(folder.run(name, seed)))
        scores = np.stack([folder.cells[other][seed].means for other in arms])
        at = None if own is None or None in kls else between(own, np.array(kls, dtype=float), scores)
        outside += at is None
        if at is not None:
            wanted.append((seed, at))
    if not wanted:
        return []
    own_scores = np.stack([folder.cells[name][seed].means for seed, _ in wanted])
    other = np.stack([scores for _, scores in wanted])
    label = f"{folder.label(folder.arms[name]['plain'] or arms[0])} at the same raw KL"
    note = f"; left out: {outside} seeds whose raw KL lies outside what these betas reach" if outside else ""
    return [
        Claim("matched", folder.label(name), label, f"pass@{k}", paired_seeds(own_scores[:, j], other[:, j]), note)
        for j, k in enumerate(KS)
        if k in (1, K)
    ]


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (K,) at raw KL `kl` of a method that was trained at several betas: kls (B,) and scores (B, K), linear in log KL
    between neighbours. None outside, where nothing was trained."""
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    return np.array([np.interp(math.log(kl), x, column) for column in y.T])


def _frontiers(folder: Folder, name: str) -> list[Claim]:
    """Mean gap in pass@256 at equal pass@1 over the common range: to the base's temperature frontier and to the control's of
    the same seed."""
    out, control = [], folder.facts["control"]
    rivals: list[tuple[str, str, Mapping[int, Cell]]] = []
    if folder.base is not None:
        rivals.append(("frontier_base", "base at any temperature", dict.fromkeys(folder.cells[name], folder.base)))
    if name != control:
        rivals.append(("frontier_control", f"{folder.label(control)} at any temperature", folder.cells[control]))
    for kind, label, others in rivals:
        both = [(cell, others[seed]) for seed, cell in sorted(folder.cells[name].items()) if seed in others]
        if not both or any(len(cell.points) < 2 for pair in both for cell in pair):
            continue
        gaps = [gap_to_frontier(a.points, b.points) for a, b in both]
        seen = [gap for gap in gaps if gap.value is not None]
        if seen:
            values = np.array([gap.value for gap in seen], dtype=float)
            low, high = (float(np.mean([getattr(gap, end) for gap in seen])) for end in ("low", "high"))
            note = f"; mean over pass@1 {low:.3f} to {high:.3f}, which both cover"
            note += f"; {len(gaps) - len(seen)} seeds have no common range" if len(seen) < len(gaps) else ""
            found = paired_seeds(values, np.zeros(len(values)))
            out.append(Claim(kind, f"{folder.label(name)} at any temperature", label, AT_EQUAL, found, note))
    return out


def _written(folder: Folder, claim: Claim) -> dict[str, Any]:
    text = sentence(claim.comparison, claim.a, claim.b, claim.metric) + claim.note + "."
    return {
        "kind": claim.kind,
        "a": claim.a,
        "b": claim.b,
        "metric": claim.metric,
        "sentence": text,
        **asdict(claim.comparison),
    }


def relabelled(folder: Folder) -> dict[str, Any]:
    """The control's seeds in two halves called A and B, in every way: how many come out tied, as two names of one arm must.

    Paired in order of seed; each verdict for itself at level 0.95, so that one split in twenty may differ by chance.
    """
    cells = folder.cells[folder.facts["control"]]
    seeds = sorted(cells)[: len(cells) - len(cells) % 2]
    half = len(seeds) // 2
    if half < FEWEST_SEEDS:
        needed = 2 * FEWEST_SEEDS
        return {"splits": 0, "why": f"{NOT_RUN}: {len(seeds)} evaluated seeds of the control, two halves need {needed}"}
    splits = [(a, tuple(s for s in seeds if s not in a)) for a in itertools.combinations(seeds, half) if seeds[0] in a]
    out: dict[str, Any] = {"splits": len(splits), "tied": {}, "first": []}
    for j, k in enumerate(KS):
        if k in (1, K):
            found = [
                paired_seeds(*(np.stack([cells[s].passes[:, j] for s in part]) for part in split)) for split in splits
            ]
            out["tied"][f"pass@{k}"] = sum(c.verdict == "tied" for c in found)
            named = (
                f"{folder.label(folder.facts['control'])} {name} (seeds {', '.join(map(str, part))})"
                for name, part in zip("AB", splits[0], strict=True)
            )
            out["first"].append(sentence(found[0], *named, f"pass@{k}") + ".")
    return out


def choose(folder: Folder, among: Sequence[str], by: str) -> dict[str, float]:
    """Arm -> mean over seeds of what is chosen by, on the records of `folder` (validation). The best has the largest."""
    out = {}
    for name in among:
        cells = [folder.cells[name][seed] for seed in sorted(folder.cells[name])]
        if by == "frontier":
            if folder.base is None:
                raise DataError("choose by frontier: the base was not evaluated on validation problems")
            gaps = [gap_to_frontier(cell.points, folder.base.points).value for cell in cells]
            out[name] = float(np.mean([-math.inf if gap is None else gap for gap in gaps]))
        else:
            out[name] = float(np.mean([cell.means[KS.index(int(by.removeprefix("pass@")))] for cell in cells]))
    return out


# ------------------------------------------------------------------------------------------------------------------
# in words


def markdown(found: Mapping[str, Any]) -> list[str]:
    """summary.md: tables, sentences, what was added, what was not run."""
    spec, base = found["evaluate"], found["base"]
    lines = [f"# {found['tier']}", ""]
    lines += [found["notes"], ""] if found["notes"] else []
    lines += [
        f"{found['world']}. {spec['problems']} {spec['split']} problems (draw {spec['draw']}), all right completions "
        f"enumerated; training seeds {', '.join(map(str, found['seeds']))}, paired; {found['steps']} steps. Means over seeds "
        "with Student's 95 % intervals over seeds, the problems held fixed.",
        "",
        "| arm | seeds | pass@1 | pass@8 | pass@64 | pass@256 | distinct in 256 | best pass@1 at any T | raw KL |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    if base is not None:
        top = base["best"]
        cells = [f"{base['pass'][str(k)]:.3f}" for k in KS]
        lines.append(
            f"| base | | {' | '.join(cells)} | {base['distinct']:.1f} | {top['pass1']:.3f} (T {top['temperature']:g}) | |"
        )
    lines += [_table_row(row, len(found["seeds"])) for row in found["arms"].values()]
    lines += ["", *_second_table(found), *_training_table(found)]
    lines += ["", f"## Differences, paired by seed (Holm over {_family(found)} comparisons)", ""]
    lines += [f"- {c['sentence']}" for c in found["comparisons"]] or [
        f"- {NOT_RUN}: no two arms share an evaluated seed"
    ]
    lines += ["", "## The control relabelled", "", *_relabelled_lines(found["relabelled"], found)]
    for world, rows in found["away"].items():
        lines += [
            "",
            f"## On {world} ({rows['problems'] or spec['ood_problems']} problems)",
            "",
            *_away_lines(rows, found),
        ]
    lines += _choice_lines(found["choice"], found)
    lines += ["", "## Controls", ""]
    lines += [f"- added: {found['arms'][name]['label']} ({why})" for name, why in found["added"].items()]
    lines += [f"- {said}" for said in found["left_out"]]
    lines += [f"- {MATCHED}"] * any(c["kind"] == "matched" for c in found["comparisons"])
    lines += ["", "## Not run", ""]
    lines += [f"- {cell}" for cell in found["not_run"]] or ["- nothing: every cell of the matrix is there"]
    return lines


def _table_row(row: Mapping[str, Any], wanted: int) -> str:
    seeds = f"{len(row['seeds'])} of {wanted}"
    if not row["seeds"]:
        return f"| {row['label']} | {seeds} | {' | '.join([NOT_RUN] * 4)} | | | |"
    cells = [_cell(row["pass"][str(k)]) for k in KS]
    kl = _cell(row["kl_raw"]) if "kl_raw" in row else ""
    return f"| {row['label']} | {seeds} | {' | '.join(cells)} | {_cell(row['distinct'], 1)} | {_cell(row['best_pass1'])} | {kl} |"


def _second_table(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| {' | '.join(SECOND)} |",
        "|---" * len(SECOND) + "|",
    ]
    for row in found["arms"].values():
        if row["seeds"]:
            kept = [
                f"{row['support'][what]['value']:,.0f}" if "support" in row else ""
                for what in ("preserved", "gained", "lost")
            ]
            tokens = f"{row['tokens'] / 1e6:.2f}" if "tokens" in row else ""
            dose = row.get("dose")
            q = (
                ["", ""]
                if not dose
                else [
                    f"{dose['active_first']:.1%}, {dose['active_last']:.1%}",
                    f"{dose['q_first']:.4f}, {dose['q_last']:.4f}",
                ]
            )
            lines.append(
                f"| {row['label']} | {' | '.join(kept)} | {tokens} | {row['train_seconds']:.0f} | {' | '.join(q)} |"
            )
    return [*lines, "", COUNTED]


def _training_table(found: Mapping[str, Any]) -> list[str]:
    """Training reward beside the test score, and the gradient norms in thirds of the run (the paper's Fig. 2 and Table 5)."""
    rows = [row for row in found["arms"].values() if "reward" in row or "grad_norm" in row]
    if not rows:
        return []
    lines = ["", f"| {' | '.join(TRAINING)} |", "|---" * len(TRAINING) + "|"]
    for row in rows:
        cells = [_cell(row["reward"][when]) if "reward" in row else "" for when in ("first", "last")]
        norms = [_cell(x) for x in row.get("grad_norm", {}).values()] or [""] * 3
        lines.append(f"| {row['label']} | {' | '.join([*cells, _cell(row['pass']['1']), *norms])} |")
    return [*lines, "", LOGGED]


def _cell(interval: Mapping[str, Any], digits: int = 3) -> str:
    text = f"{interval['value']:.{digits}f}"
    if interval["low"] is None or interval["high"] is None:
        return f"{text} (one seed)"
    return f"{text} ({interval['low']:.{digits}f} to {interval['high']:.{digits}f})"


def _family(found: Mapping[str, Any]) -> int:
    return max((c["family"] for c in found["comparisons"]), default=0)


def _relabelled_lines(ab: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    label = found["arms"][found["control"]]["label"]
    if not ab["splits"]:
        return [ab["why"]]
    counts = ", ".join(f"{metric} {n} of {ab['splits']}" for metric, n in ab["tied"].items())
    head = (
        f"{label}'s seeds in two halves called A and B, in all {ab['splits']} ways, by the rule of the sentences above and each "
        f"at its own level of 95 %: tied at {counts}."
    )
    return [head, "", *(f"- {line}" for line in ab["first"])]


def _away_lines(rows: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    lines = [
        "| arm | seeds | pass@1 | pass@8 | pass@64 | pass@256 | best pass@1 at any T |",
        "|---|---|---|---|---|---|---|",
    ]
    if rows["base"]:
        cells = [f"{rows['base']['pass'][str(k)]:.3f}" for k in KS]
        lines.append(f"| base | | {' | '.join(cells)} | {rows['base']['best']['pass1']:.3f} |")
    for name, arm in found["arms"].items():
        row = rows["arms"].get(name)
        seeds = f"{len(row['seeds']) if row else 0} of {len(found['seeds'])}"
        cells = [_cell(row["pass"][str(k)]) for k in KS] if row else [NOT_RUN] * 4
        lines.append(f"| {arm['label']} | {seeds} | {' | '.join(cells)} | {_cell(row['best_pass1']) if row else ''} |")
    return lines


def _choice_lines(choice: Mapping[str, Any] | None, found: Mapping[str, Any]) -> list[str]:
    if choice is None:
        return []
    lines = ["", f"## Chosen on {choice['problems']} validation problems by {choice['by']}", ""]
    if not choice["chosen"]:
        return [*lines, f"{NOT_RUN}: every arm to choose from has to be evaluated on validation problems first."]
    lines += ["| arm | score on validation |", "|---|---|"]
    for name, score in sorted(
        choice["scores"].items(), key=lambda item: -(item[1] if item[1] is not None else -math.inf)
    ):
        shown = "no common range" if score is None else f"{score:.4f}"
        lines.append(f"| {found['arms'][name]['label']}{' (chosen)' if name == choice['chosen'] else ''} | {shown} |")
    return lines


def _plain(value: Any) -> Any:
    """The value as strict JSON can hold it: numpy becomes lists and numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


__all__ = [
    "Cell",
    "Folder",
    "Interval",
    "between",
    "choose",
    "markdown",
    "raw_kl",
    "read_folder",
    "relabelled",
    "summarise",
    "write_summary",
]
