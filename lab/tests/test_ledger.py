"""The designs, counted: each run once, every difference between file and summary named, and equal to the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.register.command import design_files
from lab.register.designs import HEAD, ITSELF, SHARED, page, relabeled
from lab.register.runs import Count, Entry, count, differences, entries, spans, taken_over
from sage_rlvr.errors import DataError
from sage_rlvr.results.read import read_results
from sage_rlvr.runs import file_sha256
from sage_rlvr.sweeps.design import load_design

RESULTS = Path(__file__).parents[1] / "experiments"
PAGES = Path(__file__).parents[1] / "pages" / "results"
SIX = (0.30, 0.31, 0.29, 0.32, 0.28, 0.30)
APART = (0.1, 0.1001, 0.1002, 0.3, 0.3001, 0.3002)
DESIGN = """\
title: {name}
seeds: {seeds}
base: {{steps: 10}}
arms:
{arms}
control: grpo
controls: none
evaluate: {{problems: 20}}
"""


def design(folder: Path, name: str, arms: Sequence[str], more: str = "", seeds: str = "[0, 1, 2, 3, 4, 5]") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(DESIGN.format(name=name, seeds=seeds, arms="\n".join(f"  {arm}: {arm}" for arm in arms)) + more)
    return path


def arm(label: str, scores: Sequence[float], seconds: float | None = 600.0, steps: int = 10, first: int = 0) -> dict[str, Any]:
    """Scores of the seeds from `first` on, the same at every k."""
    by = {str(first + i): {k: score for k in ("1", "8", "256")} for i, score in enumerate(scores)}
    found = {"label": label, "why": "", "recipe": "", "seeds": [*map(int, by)], "pass_by_seed": by, "steps": steps, "tokens": 5.0}
    return found | ({} if seconds is None else {"train_seconds": seconds})


def summary(folder: Path, name: str, arms: Mapping[str, Mapping[str, Any]], **changes: Any) -> None:
    seeds = sorted({seed for one in arms.values() for seed in one["seeds"]})
    whole = {"format": 3, "title": name, "notes": "", "control": "grpo", "seeds": seeds, "base": None, "arms": arms, "rows": []}
    whole |= {"ks": [1, 8, 256], "evaluate": {"problems": 20, "split": "test"}, "questions": [], "away": {}, "sampled": []}
    whole |= {"baselines": [], "discarded": [], "oracle": None, "chance": {}, "failed": []} | changes
    (folder / name).mkdir()
    (folder / name / "summary.json").write_text(json.dumps(whole))


def small(folder: Path) -> dict[str, Path]:
    """`first` is whole. `second` took the control over and ended early. `third` has not been run."""
    summary(folder, "first", {"grpo": arm("GRPO", SIX), "no_kl": arm("No KL", APART, 1200)})
    second = {"grpo": arm("GRPO", SIX), "rloo": arm("RLOO", (0.2, 0.3), None, steps=8)}
    summary(folder, "second", second, evaluate={"problems": 30, "split": "test"})
    more = {"second": "reuse_runs: [first]\n", "third": ""}
    return {
        "first": design(folder, "first", ("grpo", "no_kl")),
        "second": design(folder, "second", ("grpo", "rloo", "no_kl"), more["second"]),
        "third": design(folder, "third", ("grpo",), seeds="[7, 9]"),
    }


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["designs"]) == 0
    again = "print it again: make -C lab pages"
    assert capsys.readouterr().out == (PAGES / "designs.md").read_text(encoding="utf-8"), again


def test_a_small_folder(tmp_path: Path) -> None:
    designs = small(tmp_path)
    hashes = [file_sha256(path)[:12] for path in designs.values()]
    told = page(tmp_path, designs)
    for part in (HEAD, ITSELF, SHARED):
        assert part in told
        told = told.replace(part, "").strip()
    assert told == f"""\
| design | sha256 | seeds | arms | runs | taken over | steps per run | CPU hours | primary tests | problems | file and summary |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| first | {hashes[0]} | 0 to 5 | 2 | 12 | 0 | 10 | 3.0 | 0 | test |  |
| second | {hashes[1]} | 0 to 5 | 2 | 8 | 6 | 8 to 10 | 0.0, 2 runs not logged | 0 | test | no_kl: not in the summary; \
rloo: seed 2 to 5 not complete; rloo: 8 steps, in the file 10; problems 30, in the file 20 |
| third | {hashes[2]} | 7, 9 | 1 | none stored, 2 designed | – | 10 | – | – | test |  |

- 3 designs, 2 of them with stored results: 20 runs, 6 of them taken over. So **14 training runs** with 136 optimizer steps in \
**3.0 CPU hours**, and 0 tests in 0 primary families.
- Designs whose page reads test problems: 2, 14 training runs, 3.0 CPU hours.
- 2 runs logged no seconds; they are in no sum of hours.



| sweep | rival | seeds | relabelings | tied at pass@1 | tied at pass@8 | tied at pass@256 | same runs |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| first | GRPO (control) | 0 to 5 | 10 | 10 | 10 | 10 |  |
| second | GRPO (control) | 0 to 5 | 10 | 10 | 10 | 10 | first, grpo |

- **The controls**: tied at pass@1 10 of 10 (100.0 %), pass@8 10 of 10 (100.0 %), pass@256 10 of 10 (100.0 %); stated: 95 %.
- **All rivals**: tied at pass@1 10 of 10 (100.0 %), pass@8 10 of 10 (100.0 %), pass@256 10 of 10 (100.0 %); stated: 95 %.
- Below 80 %: none."""


def test_rivals_are_the_arms_of_envelopes_too_and_few_ties_are_named(tmp_path: Path) -> None:
    baselines = [{"name": "rivals", "arms": ["GRPO", "No KL"]}]
    arms = {"grpo": arm("GRPO", SIX), "no_kl": arm("No KL", (0.1, 0.3, 0.1001, 0.3001, 0.1002, 0.3002)), "rloo": arm("RLOO", APART)}
    summary(tmp_path, "first", arms, baselines=baselines)
    designs = {"first": design(tmp_path, "first", ("grpo", "no_kl", "rloo"))}
    found = entries(tmp_path, designs)
    tied = {row.arm: row.tied[1] for row in relabeled(found, taken_over(found))}
    assert tied == {"grpo": 10, "no_kl": 9}  # two levels: the one split that tells them apart is found out
    few = tmp_path / "few"
    few.mkdir()
    summary(few, "first", arms | {"no_kl": arm("No KL", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))}, baselines=baselines)
    assert "first, No KL: " in page(few, designs).split("Below 80 %")[1]


def test_the_controls_are_those_of_their_summaries() -> None:
    """The counts from scores of each seed, against those that each sweep's own command made from its records."""
    designs = {name: load_design(file) for name, file in design_files(RESULTS).items()}
    seen = 0
    for name in (path.parent.name for path in RESULTS.glob("*/summary.json")):
        entry = Entry(name=name, sha256="", design=designs[name], arms=(), results=read_results(RESULTS / name))
        stored = entry.stored["relabelled"]
        rows = [row for row in relabeled([entry], {}) if row.control]
        assert [row.splits for row in rows] == [stored["splits"]] * bool(stored["splits"])
        for row in rows:
            assert {f"pass@{k}": row.tied[k] for k in (1, 256)} == stored["tied"]
            seen += 1
    assert seen >= 14


def test_a_run_that_two_sweeps_adopt_from_each_other_counts_once(tmp_path: Path) -> None:
    arms = {"grpo": arm("GRPO", SIX)}
    summary(tmp_path, "first", arms)
    summary(tmp_path, "second", arms)
    summary(tmp_path, "third", {"grpo": arm("GRPO", [x + 0.01 for x in SIX])})  # the same seconds and tokens: on other problems
    summary(tmp_path, "fourth", {"grpo": arm("GRPO", [x + 0.01 for x in SIX], 601)})  # trained anew
    adopt = {"first": "[second]", "second": "[first]", "third": "[first]", "fourth": "[first]"}
    found = entries(tmp_path, {name: design(tmp_path, name, ("grpo",), f"reuse_runs: {of}\n") for name, of in adopt.items()})
    links = taken_over(found)
    assert {entry.name: count(entry, links).trained for entry in found} == {"first": 0, "second": 6, "third": 0, "fourth": 6}
    total = sum((count(entry, links) for entry in found), Count())
    assert (total.runs, total.taken, total.trained, total.steps) == (24, 12, 12, 120)
    assert total.hours == pytest.approx(6 * (600 + 601) / 3600)


def test_what_differs_is_named(tmp_path: Path) -> None:
    question = {"a": "no_kl", "b": "grpo", "metric": "pass@1", "task": ""}
    some = {"grpo": arm("GRPO", SIX[:3], first=4), "rloo": arm("RLOO", SIX[:3], first=4)}
    summary(tmp_path, "first", some, questions=[question], evaluate={"problems": 20, "split": "validation"})
    (entry,) = entries(tmp_path, {"first": design(tmp_path, "first", ("grpo", "no_kl"))})
    assert differences(entry) == [
        "no_kl: not in the summary", "rloo: not in the file",
        "all arms: seed 0 to 3 not complete", "all arms: seed 6 not in the file",
        "split validation, in the file test", "other questions",
    ]  # fmt: skip


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["designs", "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}: holds no folder with a summary.json" in error and "sage-rlvr sweep DESIGN --out" in error
    summary(tmp_path, "lost", {"grpo": arm("GRPO", SIX)})
    with pytest.raises(DataError, match=r"lost: a summary without a design file.*of the names first"):
        entries(tmp_path, {"first": design(tmp_path, "first", ("grpo",))})


def test_seeds_by_their_ends() -> None:
    assert [spans(seeds) for seeds in ([], [3], [4, 3], [0, 1, 2, 5], [7, 9, 8, 0])] == ["", "3", "3, 4", "0 to 2, 5", "0, 7 to 9"]
