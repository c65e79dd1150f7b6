"""The three synthetic folders, written from the arrays in fixtures/ by the package's own savers: a sweep, stores, a demo.

    python tests/frozen/folders.py OUT       OUT/sweep, OUT/stores, OUT/demo

After a rebuild only the imports below and the shapes of the small JSON files may have to be said anew; the arrays stay.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.evaluation.record import save_record
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore
from sage_rlvr.verdicts.record import Record

FIXTURES = Path(__file__).parent / "fixtures"
WORLD = {"name": "countdown", "counts": {"3": 1.0}, "max_number": 9, "min_target": 1, "max_target": 30}
AWAY_WORLD = WORLD | {"max_target": 20}
AWAY = "away"
LABELS = {
    "no_kl": "no KL", "grpo": "GRPO", "grpo_beta0.1": "GRPO, beta 0.1", "sage_branch": "SAGE-Branch",
    "sage_branch_placebo": "SAGE-Branch placebo",
}  # fmt: skip
WHY = {
    "grpo_beta0.1": "GRPO at beta 0.1: for interpolation at the raw KL of SAGE-Branch with a guide",
    "sage_branch_placebo": "SAGE-Branch with its q permuted over the tokens",
}
LINKS: dict[str, dict[str, Any]] = {
    "sage_branch": {
        "guided": True, "plain": "grpo", "placebo": "sage_branch_placebo", "no_kl": "no_kl", "matched": ["grpo_beta0.1", "grpo"],
    },
    "sage_branch_placebo": {"guided": True},
    "grpo": {"no_kl": "no_kl"},
}  # fmt: skip
CONFIGS = {"sage_branch": {"method": {"name": "sage", "base": {"name": "grpo"}, "guide": {"name": "branch"}}}}
PHRASES = (
    "We add the numbers one by one.",
    "Let $x$ be the number of red marbles.",
    "Every such number is of the form $4k + 1$.",
    "Assume for contradiction that p is even.",
    "So the sum is what was asked for.",
)
VERDICTS = ("right", "wrong", "undecided")


def facts() -> dict[str, Any]:
    """fixtures/facts.json: temperatures, powers, problems, what each store is of, metrics of every run."""
    found: dict[str, Any] = json.loads((FIXTURES / "facts.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------------------------------------------------------
# exact records


def records(kind: str, world: Mapping[str, Any], problems: Sequence[str], kept: Sequence[float]) -> dict[str, Record]:
    """Name -> record of fixtures/<kind>.npz at the temperatures `kept`; the base's with its normalizers in the main world."""
    said = facts()
    with np.load(FIXTURES / f"{kind}.npz") as data:
        cuts = np.cumsum(data["sizes"])[:-1]
        found = {}
        for name in sorted({key.split("/")[0] for key in data if key.endswith("/logps")}):
            rows = np.split(data[f"{name}/logps"], cuts)
            logps = {
                t: [row / t - z for row, z in zip(rows, logz, strict=True)]
                for t, logz in zip(said["temperatures"], data[f"{name}/logz"], strict=True)
                if t in kept
            }
            norms = {}
            if name == "base" and world is WORLD:
                norms = {power: np.stack([z, z], axis=1) for power, z in zip(said["powers"], data["base/norms"], strict=True)}
            found[name] = Record(_meta(name, world, problems), logps, norms)
    return found


def _meta(name: str, world: Mapping[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name, "model": "embedded" if name == "base" else name, "world": dict(world), "split": "test", "seed": 1,
        "sampling": "iid", "problem_ids": list(problems), "versions": {"numpy": "2"}, "weights": weights(name),
    }  # fmt: skip


def weights(name: str) -> str:
    """The hash that a run's policy has whose weights file holds its name."""
    return hashlib.sha256(name.encode()).hexdigest()


def write_run(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A run directory as training leaves it, with its own name in the place of weights."""
    arm, _, seed = folder.name.rpartition("-s")
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "config.json").write_text("{}")
    (folder / "policy" / "model.safetensors").write_bytes(folder.name.encode())
    config = {"seed": int(seed), "steps": len(rows), "method": {"name": arm}}
    run = {"schema": 1, "kind": "train", "config": config, "data": {}, "versions": {"numpy": "2"}, "git": {"commit": "c0ffee"}}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_sweep(out: Path) -> Path:
    """Five arms of three seeds (two of them added controls), six temperatures, a power frontier, another world."""
    said = facts()
    here = records("sweep", WORLD, said["problems"], said["temperatures"])
    there = records("away", AWAY_WORLD, said["away_problems"], (0.3, 1.0))
    for name, record in here.items():
        save_record(record, out / "evaluations" / f"{name}.npz")
    for name, record in there.items():
        save_record(record, out / "evaluations" / f"{name}-{AWAY}.npz")
    for name, rows in said["sweep_metrics"].items():
        write_run(out / "runs" / name, rows)
    (out / "design.json").write_text(json.dumps(design(said, set(there)), indent=1))
    return out


def design(said: Mapping[str, Any], away: set[str]) -> dict[str, Any]:
    """What a sweep writes down of itself."""
    no_links = {"guided": False, "plain": None, "placebo": None, "no_kl": None, "matched": []}
    arms = [
        {"name": name, "label": label, "recipe": f"{name}.yaml", "why": WHY.get(name, ""), **no_links, **LINKS.get(name, {})}
        | {"equation": "", "config": CONFIGS.get(name, {})}
        for name, label in LABELS.items()
    ]
    cells = [
        {
            "arm": name, "seed": seed, "run": f"runs/{name}-s{seed}", "status": "evaluated", "complete": True, "steps": 12,
            "evaluated": ["", *[AWAY] * (f"{name}-s{seed}" in away)], "sampled": False, "adopted": False, "failure": None,
        }
        for name in LABELS for seed in (0, 1, 2)
    ]  # fmt: skip
    evaluate = {
        "problems": len(said["problems"]), "split": "test", "sampling": "iid", "temperatures": said["temperatures"],
        "ood": [AWAY], "ood_problems": len(said["away_problems"]), "ood_temperatures": [0.3, 1.0], "samples": None,
    }  # fmt: skip
    return {
        "schema": 1, "title": "synthetic sweep", "notes": "", "design": "synthetic.yaml", "control": "grpo", "seeds": [0, 1, 2],
        "steps": 12, "world": "Countdown: 3 numbers of 1..9, targets 1..30, drawn by expression", "evaluate": evaluate,
        "base_evaluated": ["", AWAY], "base_model": "embedded", "arms": arms, "left_out": [], "choice": None, "runs": cells,
        "versions": {"numpy": "2"},
    }  # fmt: skip


def write_demo(out: Path) -> Path:
    """One seed of three arms, as `sage-rlvr demo` leaves them."""
    said = facts()
    for name, record in records("demo", WORLD, said["problems"], said["temperatures"]).items():
        save_record(record, out / "evaluations" / f"{name}.npz")
    for name, rows in said["demo_metrics"].items():
        write_run(out / "runs" / name, rows)
    (out / "design.json").write_text(json.dumps(_design_of_demo(said)))
    return out


def _design_of_demo(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a demo writes down since it is a sweep of one seed."""
    whole = design(said, set())
    names = ("no_kl", "grpo", "sage_branch")
    arms = [arm | {"placebo": None, "matched": []} for arm in whole["arms"] if arm["name"] in names]
    cells = [cell for cell in whole["runs"] if cell["arm"] in names and cell["seed"] == 0]
    evaluate = whole["evaluate"] | {"ood": []}
    return whole | {"arms": arms, "runs": cells, "seeds": [0], "base_evaluated": [""], "evaluate": evaluate, "title": "demo"}


# ------------------------------------------------------------------------------------------------------------------
# sample stores


def store_path(out: Path, store: Mapping[str, Any]) -> Path:
    """Where a store of facts.json lies."""
    return out / f"{store['arm']}-{store['task']}-T{store['temperature']:g}-s{store['seed']}"


def write_stores(out: Path) -> Path:
    """Every store of facts.json: 16 samples per problem, some undecided, with log-probs under the sampler and the base."""
    with np.load(FIXTURES / "stores.npz") as data:
        for i, store in enumerate(facts()["stores"]):
            columns = {name: data[f"{i}/{name}"] for name in ("verdict", "answer", "phrase", "base_logps", "rollout_logps")}
            identity = _identity(store)
            with SampleStore.open(store_path(out, store), identity) as opened:
                opened.commit(_samples(identity, columns))
    return out


def _identity(store: Mapping[str, Any]) -> Identity:
    return Identity(
        task=store["task"], task_hash="h", model=store["arm"], revision=weights(f"{store['arm']} {store['seed']}"), prompt="plain",
        template_hash="t", decoding={"preset": "plain", "temperature": store["temperature"], "max_new_tokens": 8},
        verifier_hash="v", seed=7, chunk_size=8, versions={"numpy": "2", "scored under": "base"},
    )  # fmt: skip


def _samples(identity: Identity, columns: Mapping[str, np.ndarray]) -> list[Sample]:
    rows = []
    for i, verdicts in enumerate(columns["verdict"].tolist()):
        for j, verdict in enumerate(verdicts):
            answer, phrase = int(columns["answer"][i, j]), int(columns["phrase"][i, j])
            name = f"p{i:02d}"
            rows.append(
                Sample(
                    problem=name, sample=j, seed=identity.seed_of(name, j), prompt_hash="h",
                    text=f"{PHRASES[phrase]} Answer {answer} ({i}, {j}).", verdict=VERDICTS[verdict],  # type: ignore[arg-type]
                    reason="no answer" if answer < 0 else "equal" if answer == 0 else "unequal",
                    answer=None if answer < 0 else str(10 * i + answer), finish="length" if answer < 0 else "stop",
                    token_ids=np.arange(columns["base_logps"].shape[2]) + phrase,
                    base_logps=columns["base_logps"][i, j], rollout_logps=columns["rollout_logps"][i, j],
                )
            )  # fmt: skip
    return rows


def write_all(out: Path) -> dict[str, Path]:
    """The three folders."""
    return {"sweep": write_sweep(out / "sweep"), "stores": write_stores(out / "stores"), "demo": write_demo(out / "demo")}


if __name__ == "__main__":
    print(*write_all(Path(sys.argv[1])).values(), sep="\n")
