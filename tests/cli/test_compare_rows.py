"""`compare` on two files of rows, as a stranger calls it: the verdict, JSON, exit codes, every refusal with its next step, no
torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.cli import main
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.curves import CurveComparison, crossing
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.passk import pass_hat_k
from sage_rlvr.verdicts.text.verdicts import gain_and_loss
from sage_rlvr.verdicts.verdict import CurveVerdict, Unlocked, least_detectable
from tests.verdicts.readers.write_logs import LOGS

Capture = pytest.CaptureFixture[str]
BASE, RL = str(LOGS / "base.jsonl"), str(LOGS / "rl.jsonl")
SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "verdict.schema.json"
PUBLISHED = Path(__file__).parents[2] / "examples" / "deepscaler"
"""Counts of the source of passk-inference 0.3.1."""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def run(capsys: Capture, *words: object, command: str = "compare", full: bool = True) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([command, *map(str, words), *["--full"] * (full and command == "compare")])
    said = capsys.readouterr()
    return int(stop.value.code or 0), " ".join(said.out.split()), " ".join(said.err.split())


def write(name: str, *rows: Any) -> str:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


def counts(right: Any, n: int = 8, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"p{i}", "n": n, "c": int(c), **more} for i, c in enumerate(right)]


def samples(right: Any, n: int = 8, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    hits = [rng.permutation([1] * c + [0] * (n - c)).tolist() for c in right]
    return [{"id": f"p{i}", "correct": bool(one), **more} for i, row in enumerate(hits) for one in row]


# ------------------------------------------------------------------------------------------------------------------
# the verdict


def test_two_files_of_counts_give_the_verdict_of_the_published_package(capsys: Capture) -> None:
    """The sets are those of passk-inference 0.3.1 on the same counts, which are made up: 240 problems, 32 samples."""
    code, out, err = run(capsys, BASE, RL)
    assert code == 0, err
    assert out.startswith(
        "rl sharpened what base solves: pass@k is higher at k = 1 to 3 and lower at k = 11 to 32"
    )
    assert (
        "gain at k = 1 to 3; loss at k = 11 to 32; cannot be told at k = 4 to 10; the first lost k lies in [4, 11]"
        in out
    )
    assert "base.jsonl (counts), 240 rows, 240 problems, n = 32, temperature not given; correct: c of n" in out
    assert "one run of each, so about these checkpoints" in out and "this design could have seen a difference of" in out
    assert len(out) < 2500
    plan = out.partition("what more problems, samples or training seeds would show: sage-rlvr plan ")[2].split()
    with pytest.raises(SystemExit) as stop:
        main(["plan", *plan])
    assert not stop.value.code and "claims about checkpoints: can detect a difference of" in capsys.readouterr().out


def test_by_default_the_verdict_one_table_and_no_more_than_changes_the_reading(capsys: Capture) -> None:
    code, out, err = run(capsys, PUBLISHED / "base.jsonl", PUBLISHED / "rl.jsonl", full=False)
    assert code == 0 and out.startswith("rl sharpened what base solves: "), err
    table = "95 % intervals pass@1 pass@8 pass@128 base 0.604 [0.580, 0.628] 0.790 [0.767, 0.811] 0.891 [0.870, 0.908] rl 0.680 ["
    assert table in out and "rl − base +0.076 (+0.068 to +0.084) +0.014 (+0.008 to +0.021) −0.020 (−0.033 to −0.007) On the" in out
    assert "+0.083 (+0.028 to +0.137), so rl lost some. Counts do not show" in out and "More: --full" in out
    assert "gain at k" not in out and "rows" not in out and len(out.splitlines()) < 14


@pytest.mark.slow
def test_no_warning_of_the_long_text_is_missing_in_the_short_one(capsys: Capture) -> None:
    """Greedy samples, copies of a file, missing scores, unequal numbers, an assumed temperature, arms below chance, two procedures
    that disagree, and a design that is too small."""
    greedy, drawn = write("greedy.jsonl", *counts([8, 0] * 20)), write("drawn.jsonl", *counts([3, 2] * 20, temperature=0.6))
    unscored = [{"id": f"p{i}", "correct": None if j == 0 and i < 3 else True} for i in range(40) for j in range(8 - (i == 7))]
    guessing = write("guessing.jsonl", *counts([1] * 40, chance=0.5)), write("lucky.jsonl", *counts([2] * 40, chance=0.5))
    few = write("few.jsonl", *counts([2] * 8 + [3] * 20)), write("fewer.jsonl", *counts([5] * 8 + [3] * 20))
    alike = write("this.jsonl", *counts([4, 3, 5, 2] * 5)), write("that.jsonl", *counts([3, 4, 2, 5] * 5))
    pairs = [(greedy, drawn), (drawn, write("unscored.jsonl", *unscored), "--unscored", "wrong"), guessing, few, alike]
    marks = ("as greedy decoding", "is assumed", "without a score", "Unequal numbers", "below the chance floor",
             "could have seen", "not significant: the interval", "would show: sage-rlvr plan")  # fmt: skip
    seen = set()
    for words in pairs:
        short, whole = (run(capsys, *words, full=full)[1] for full in (False, True))
        told = {mark for mark in marks if mark in whole}
        assert {mark for mark in told if mark not in short} <= {"could have seen", "would show: sage-rlvr plan"}, words
        seen |= told & {mark for mark in marks if mark in short}
    assert seen == {*marks}


def test_the_published_sets_to_the_integer(capsys: Capture) -> None:
    code, out, err = run(capsys, PUBLISHED / "base.jsonl", PUBLISHED / "rl.jsonl", "--json")
    (found,) = json.loads(out)["verdicts"]
    assert code == 0 and found["first_loss"] == [11, 61], err
    assert (found["gain"], found["undecided"], found["loss"]) == ([[1, 10]], [[11, 60]], [[61, 128]])
    low, high = found["over_k"]["low"][0], found["over_k"]["high"][0]
    assert abs(low - 0.0655) < 0.0005 and abs(high - 0.0864) < 0.0005


def test_counts_and_samples_of_the_same_outcomes_agree(capsys: Capture) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.binomial(8, 0.3, 30), rng.binomial(8, 0.6, 30)
    _, by_counts, _ = run(capsys, write("a.jsonl", *counts(a)), write("b.jsonl", *counts(b)), "--json")
    _, by_samples, _ = run(capsys, write("a.jsonl", *samples(a)), write("b.jsonl", *samples(b, seed=1)), "--json")
    left, right = (json.loads(text)["verdicts"] for text in (by_counts, by_samples))
    assert left == right and left[0]["finding"] == "better" and left[0]["gain"][0][0] == 1


def test_one_file_with_arms_and_training_seeds(capsys: Capture) -> None:
    rng = np.random.default_rng(2)
    p = rng.beta(1, 2, 20)
    rows = [
        row for arm, lift in (("base", 0.0), ("rl", 0.4)) for seed in range(3)
        for row in counts(rng.binomial(8, np.clip(p + lift, 0, 1)), arm=arm, seed=seed)
    ]  # fmt: skip
    code, out, err = run(capsys, write("all.jsonl", *rows))
    said = "rl is better at k = 1, 4; whether it solves more than base in 8 tries cannot be told"
    assert code == 0 and said in out, err
    assert "(3 training seeds, 20 problems; about methods on such problems)" in out
    assert "120 rows, 20 problems, n = 8, 3 training seeds" in out and "that base never solved in 4 samples" in out
    several = [write(f"{arm}{seed}.jsonl", *(r for r in rows if (r["arm"], r["seed"]) == (arm, seed))) for arm in ("base", "rl")
               for seed in range(3)]  # fmt: skip
    assert (
        run(capsys, f"base={','.join(several[:3])}", f"rl={','.join(several[3:])}")[1].split("base:")[0]
        == out.split("base and rl:")[0]
    )
    code, _, err = run(capsys, write("one.jsonl", *counts([1, 2])))
    assert code == 0 and not err


def test_steps_of_one_file_are_two_arms(capsys: Capture) -> None:
    rows = [row for step in (0, 50, 100) for row in counts([step // 25] * 20 + [0] * 20, step=step)]
    name = write("passk.jsonl", *rows)
    code, out, err = run(capsys, f"{name}@0", f"{name}@100")
    assert code == 0 and "passk@100 widened what passk@0 solves" in out, err
    assert "rows of 3 steps (0, 50, 100); select one with @STEP" in run(capsys, name, name + "@0")[2]


@pytest.mark.slow
def test_the_page_has_the_picture_as_svg_and_pdf(capsys: Capture) -> None:
    code, out, err = run(capsys, BASE, RL, "--out", "page")
    assert code == 0 and "page page/report.html" in out, err
    assert {"verdict.png", "verdict.svg", "verdict.pdf"} <= {path.name for path in Path("page/figures").iterdir()}
    assert Path("page/figures/verdict.pdf").read_bytes().startswith(b"%PDF")
    assert "rl sharpened what base solves" in Path("page/report.html").read_text()
    assert json.loads(Path("page/summary.json").read_text())["verdicts"]["verdicts"][0]["finding"] == "sharpened"


@pytest.mark.parametrize(("name", "head"), [("fig.svg", b"<?xml"), ("new/fig.pdf", b"%PDF"), ("fig.PNG", b"\x89PNG")])
def test_out_writes_one_picture(name: str, head: bytes, capsys: Capture) -> None:
    code, out, err = run(capsys, BASE, RL, "--out", name)
    assert code == 0 and f"picture {name}" in out and Path(name).read_bytes().startswith(head), err
    assert not list(Path().rglob("report.html"))


@pytest.mark.slow
def test_a_picture_is_of_one_task(capsys: Capture) -> None:
    names = [write(f"{name}.jsonl", *counts(c, task="x"), *counts(c, task="y")) for name, c in (("a", [1, 2, 3]), ("b", [4, 5, 6]))]
    code, _, err = run(capsys, *names, "--out", "fig.svg")
    assert code == 2 and "a picture is of one task, and these are 2 (x, y); select one (of files of rows FILE@TASK)" in err
    assert run(capsys, *(f"{name}@x" for name in names), "--out", "fig.svg")[0] == 0
    third = write("c.jsonl", *counts([7, 8, 8], task="x"))
    assert run(capsys, f"{names[0]}@x", f"{names[1]}@x", third, "--out", "three.png")[0] == 0


def test_copies_are_found_and_left_out(capsys: Capture) -> None:
    """Every request repeats the last three of the four answers of the one before, so 16 answers are 7."""
    rng = np.random.default_rng(3)

    def shifted(p: float) -> list[dict[str, Any]]:
        rows = []
        for i in range(40):
            stream = [str(x) if x < 10 * p else f"wrong {x}" for x in rng.integers(10, size=7)]
            rows += [
                {"id": f"p{i}", "answer": stream[g + j], "correct": "w" not in stream[g + j]}
                for g in range(4)
                for j in range(4)
            ]
        return rows

    code, out, err = run(capsys, write("a.jsonl", *shifted(0.2)), write("b.jsonl", *shifted(0.6)))
    assert code == 0 and "7 independent" in out and "(40 problems, 7 samples each" in out, err
    # a policy that has collapsed shows no copies; the places of the other set of its file count
    collapsed = [row | {"arm": "b", "answer": "1", "correct": True} for row in shifted(0.2)]
    code, out, err = run(capsys, write("both.jsonl", *(row | {"arm": "a"} for row in shifted(0.2)), *collapsed))
    assert code == 0 and "(40 problems, 7 samples each" in out, err
    assert "The same places are left out of 1 more sets of samples of that file" in out


# ------------------------------------------------------------------------------------------------------------------
# machines


def test_one_sample_per_problem_claims_no_coverage(capsys: Capture) -> None:
    low, high = write("low.jsonl", *counts([1, 0] * 50, n=1)), write("high.jsonl", *counts([1] * 90 + [0] * 10, n=1))
    out = run(capsys, low, high)[1]
    said = "high has a higher pass@1 than low; whether it solves more in several tries cannot be told from one sample per problem ("
    assert out.startswith(said) and "100 problems, 1 sample each" in out and "gain at" not in out
    assert run(capsys, high, low)[1].startswith("low has a lower pass@1 than high;")
    few = write("few.jsonl", *counts([8] * 90 + [0] * 9), {"id": "p99", "n": 1, "c": 0})
    many = write("many.jsonl", *counts([4, 0] * 50))
    assert "cannot be told from a problem with one sample (100 problems, 1 to 8 samples each" in run(capsys, many, few)[1]
    code, _, err = run(capsys, high, low, "--fail-on", "pass@1")
    assert code == 3 and "pass@1 of low fell: " in err and "band" not in err
    code, out, _ = run(capsys, low, high, "--json")
    assert (code, json.loads(out)["verdicts"][0]["finding"]) == (0, "better")


@pytest.mark.slow
def test_close_and_undecided_k_are_told_apart(capsys: Capture) -> None:
    """3,000 problems whose band is narrower than 0.05, and 30 of the same kind whose band is wider."""
    right = np.random.default_rng(0).binomial(8, 0.5, size=(2, 3000))
    many = [write(f"many{i}.jsonl", *counts(row)) for i, row in enumerate(right)]
    few = [write(f"few{i}.jsonl", *counts(row[:30])) for i, row in enumerate(right)]
    out = run(capsys, *many)[1]
    assert out.startswith("No difference between many1 and many0: ") and "less than 0.05 apart at k = 1 to 8" in out
    assert "cannot be told at" not in out
    out = run(capsys, *few)[1]
    assert out.startswith("Inconclusive: few1 and few0 cannot be told apart at any k up to 8 (")
    assert "cannot be told at k = 1" in out and "no bound on the first lost k" in out


def test_over_training_seeds_only_the_tested_k_are_named(capsys: Capture) -> None:
    rng = np.random.default_rng(1)
    rows = {arm: [row for seed in range(4) for row in counts(rng.binomial(16, p, 60), n=16, arm=arm, seed=seed)]
            for arm, p in (("base", 0.1), ("rl", 0.4))}  # fmt: skip
    both = write("both.jsonl", *rows["base"], *rows["rl"])
    out = run(capsys, both)[1]
    assert "gain at k = 1, 4, 16; loss at no k; none of these k is lost (95 % band" in out
    assert "95 % band over k = 1, 4, 16 at once, over 4 training seeds" in out


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_as_nothing")
def test_all_or_none_is_told_before_the_verdict(capsys: Capture) -> None:
    """As greedy decoding gives; few problems, or few samples, are no sign of it."""
    greedy = write("greedy.jsonl", *counts([8, 0] * 20))
    drawn = write("drawn.jsonl", *counts([3, 2] * 20))
    code, out, _ = run(capsys, greedy, drawn)
    said = "of 20 problems all samples are right and of the other 20 none, as greedy decoding"
    assert not code and out.startswith(f"greedy (greedy.jsonl): {said}")
    code, out, _ = run(capsys, greedy, drawn, "--json")
    assert said in json.loads(out)["notes"][0]
    run(capsys, greedy, drawn, "--out", "page")
    assert said in json.loads(Path("page/summary.json").read_text())["verdicts"]["notes"][0]
    few = write("few.jsonl", *counts([8, 0] * 4)), write("fewer.jsonl", *counts([3, 2] * 4))
    saturated = write("saturated.jsonl", *counts([8] * 36 + [0] * 4))
    assert "as greedy decoding" not in run(capsys, *few)[1] + run(capsys, saturated, drawn)[1]


@pytest.mark.usefixtures("drawn_as_nothing")
def test_a_sign_at_one_temperature_hides_none_at_another(capsys: Capture) -> None:
    """Tables of one file at several temperatures have one name."""
    both = write("both.jsonl", *(row for t in (0.5, 1.0) for row in counts([8, 0] * 20, temperature=t)))
    drawn = write("drawn.jsonl", *(row for t in (0.5, 1.0) for row in counts([3, 2] * 20, temperature=t)))
    out = run(capsys, both, drawn)[1]
    assert "both (both.jsonl) and 1 other set of samples: of 20 problems all samples are right" in out


def test_scores_of_a_row_have_to_agree(capsys: Capture) -> None:
    """Or --correct names one; a graded score beside a verdict says nothing without a threshold."""
    rows = [{"id": f"p{i // 4}", "correct": i % 4 == 0, "score": int(i % 4 == 0)} for i in range(48)]  # 1 of 4 right
    fine = write("fine.jsonl", *rows)
    other = write("other.jsonl", *({**row, "score": 1 - row["score"]} for row in rows))
    code, _, err = run(capsys, fine, other)
    assert code == 2 and "other.jsonl:1: correct = True and score = 0 disagree; name the one that counts: --correct correct" in err
    for name, share in (("correct", 0.25), ("score", 0.75)):
        code, out, err = run(capsys, fine, other, "--correct", name, "--json")
        found = json.loads(out)["verdicts"][0]["pass"]["1"]
        assert code == 0 and [found[side]["value"] for side in ("control", "arm")] == pytest.approx([0.25, share]), err
    graded = write("graded.jsonl", *({**row, "score": 0.3} for row in rows))
    assert run(capsys, fine, graded)[0] == 0
    code, _, err = run(capsys, fine, graded, "--right-from", "0.5")
    assert code == 2 and "correct = True and score = 0.3 disagree" in err
    nan = write("nan.jsonl", *({**row, "score": float("nan")} for row in rows))
    assert "disagree" not in run(capsys, fine, nan, "--right-from", "0.5")[2]


def test_a_temperature_that_only_one_file_names(capsys: Capture) -> None:
    right = np.random.default_rng(2).binomial(8, 0.5, size=(2, 40))
    cold, plain = write("cold.jsonl", *counts(right[0], temperature=0.6)), write("plain.jsonl", *counts(right[1]))
    assert "plain.jsonl: no temperature in the rows; T = 0.6 is assumed." in run(capsys, cold, plain)[1]
    both = write("both.jsonl", *counts(right[0], temperature=0.6), *counts(right[0], temperature=1.0))
    assert "plain.jsonl: no temperature in the rows; T = 1 is assumed." in run(capsys, both, plain)[1]
    assert json.loads(run(capsys, cold, plain, "--json")[1])["verdicts"][0]["temperature"] == 0.6
    bare = write("bare.jsonl", *counts(right[0]))
    assert json.loads(run(capsys, bare, plain, "--json")[1])["verdicts"][0]["temperature"] is None
    assert "assumed" not in run(capsys, bare, plain)[1]
    code, _, err = run(capsys, bare, plain, "--k", "64")
    assert code == 2 and "--k 64: no task has so many samples of every problem; choose k up to 8, or omit it" in err
    tasks = [write(f"tasks{i}.jsonl", *counts(right[i], task="a"), *counts(right[i] * 8, n=64, task="b")) for i in (0, 1)]
    assert "pass@64: " in run(capsys, *tasks, "--k", "64")[1]


def test_the_json_follows_its_schema(capsys: Capture) -> None:
    code, out, _ = run(capsys, BASE, RL, "--json")
    schema = json.loads(SCHEMA.read_text())
    assert code == 0
    check(json.loads(out), schema, schema)


def check(value: Any, schema: Any, root: Any, place: str = "") -> None:
    """The parts of JSON Schema that verdict.schema.json uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    wanted = schema.get("type", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    assert not names or any(isinstance(value, kinds[name]) for name in names), place
    assert "enum" not in schema or value in schema["enum"], place
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), place
        extra = schema.get("additionalProperties", True)
        for key, inner in value.items():
            assert key in properties or extra is not False, f"{place}.{key}"
            check(inner, properties.get(key, extra if isinstance(extra, dict) else {}), root, f"{place}.{key}")
    if isinstance(value, list):
        for i, inner in enumerate(value):
            check(inner, schema.get("items", {}), root, f"{place}[{i}]")


def test_exit_codes_for_continuous_integration(capsys: Capture) -> None:
    code, _, err = run(capsys, BASE, RL, "--fail-on", "pass@32")
    assert code == 3 and re.search(r"--fail-on: pass@32 of rl fell: −0\.\d+ \(−0\.\d+ to −0\.\d+\) against base", err)
    assert run(capsys, BASE, RL, "--fail-on", "pass@1")[0] == 0
    code, out, err = run(capsys, BASE, RL, "--json", "--fail-on", "loss", "no-gain")
    assert code == 3 and json.loads(out)["failed"] == ["rl is lower than base at k = 11 to 32"]
    assert run(capsys, RL, BASE, "--fail-on", "no-gain")[0] == 0
    assert "--fail-on 'worse': choose loss, no-gain or pass@K" in run(capsys, BASE, RL, "--fail-on", "worse")[2]
    assert "--fail-on pass@64: rl has 32 samples per problem; choose a k from 1 to 32" in run(
        capsys, BASE, RL, "--fail-on", "pass@64"
    )[2]  # fmt: skip
    code, _, err = run(capsys, "--fail-on", "loss", BASE, RL)
    assert code == 2 and f"no arms; --fail-on took all words behind it (loss {BASE} {RL})" in err
    assert "sage-rlvr compare BASE RL --fail-on loss" in err


# ------------------------------------------------------------------------------------------------------------------
# what differs between two files


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (counts([1, 2, 3]), counts([1, 2]), "different problems on both sides: 2 in both, 1 only in a (a.jsonl) ('p2')"),
        (counts([1, 2], temperature=1.0), counts([1, 2], temperature=0.6), "a was sampled at T = 1, b at T = 0.6"),
        (
            [row for seed in (0, 1, 2) for row in counts([1, 2], seed=seed)], [row for seed in (0, 1, 3) for row in
             counts([1, 2], seed=seed)], "a has the training seeds 0, 1, 2, b has 0, 1, 3: 2, 3 only on one side",
        ),
        (
            [row for seed in (0, 1, 2) for row in counts([1, 2], seed=seed)], counts([1, 2]),
            "a, the control, has the training seeds 0, 1, 2, and b was evaluated once; make b the control",
        ),
        (samples([1], gold="4"), samples([1], gold="5"), "problem 'p0' has the gold '4' in a (a.jsonl) and '5' in b (b.jsonl)"),
        (samples([1, 2], prompt="2+2="), samples([1, 2]), "the problems 'p0' and 'p1' have the same prompt, so one problem "
            "counts twice"),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_the_next_step(a: Any, b: Any, said: str, capsys: Capture) -> None:
    code, _, err = run(capsys, write("a.jsonl", *a), write("b.jsonl", *b))
    assert code == 2 and said in err, err


def test_unequal_numbers_of_samples_are_used_up_to_the_fewest(capsys: Capture) -> None:
    """pass@k of each problem from its own n: 4 of 8 and 6 of 12 right have one pass@1, and pass@2 of 11/14 and 17/22."""
    a, b = write("a.jsonl", *counts([4] * 10)), write("b.jsonl", *counts([4] * 9), {"id": "p9", "n": 12, "c": 6})
    code, out, err = run(capsys, a, b, "--json")
    (found,) = json.loads(out)["verdicts"]
    assert code == 0 and found["n"] == 8 and found["pass"]["1"]["difference"]["value"] == 0, err
    assert found["over_k"]["difference"][1] == pytest.approx((17 / 22 - 11 / 14) / 10)
    said = "Unequal numbers of samples: 8 for some problems (a (a.jsonl), for example 'p0'), 12 for others (b (b.jsonl))"
    assert said in json.loads(out)["notes"][0]
    assert "8 to 12 samples each" in run(capsys, a, b)[1]


def test_the_first_samples_of_each(capsys: Capture) -> None:
    a, b = write("a.jsonl", *samples([8, 8, 0, 1], n=8)), write("b.jsonl", *samples([4, 4, 4, 0], n=4))
    code, out, err = run(capsys, a, b, "--samples", 4)
    assert code == 0 and "4 problems, 4 samples each" in out, err
    assert "4 problems, 4 to 8 samples each" in run(capsys, a, b)[1]
    assert (
        "counts of 8 samples have no first 4; pass the samples"
        in run(capsys, write("c.jsonl", *counts([1] * 4)), b, "--samples", 4)[2]
    )
    assert "problem 'p0' has only 4 samples" in run(capsys, a, b, "--samples", 5)[2]


def test_options_that_do_not_fit(capsys: Capture) -> None:
    assert "base.jsonl: no score has the name reward; the file has 1 scores (correct)" in run(
        capsys, BASE, RL, "--correct", "reward"
    )[2]  # fmt: skip
    assert "only for files of rows" in run(capsys, "a.npz", "b.npz", "--correct", "x")[2]
    assert (
        "nowhere.jsonl: no such file or folder. Valid paths are files of rows" in run(capsys, BASE, "nowhere.jsonl")[2]
    )
    assert "pip download --no-deps" in run(capsys, "passk-inference", RL)[2]
    assert "the file has 2 arms ('x', 'y'); pass" in run(
        capsys, f"a={write('two.jsonl', *counts([1], arm='x'), *counts([1], arm='y'))}", RL
    )[2]  # fmt: skip


def test_the_same_file_twice_is_noted(capsys: Capture) -> None:
    code, out, _ = run(capsys, f"a={BASE}", f"b={BASE}")
    assert code == 0 and "on 240 of 240 problems both files have the same count: one file was read twice" in out


def test_a_base_at_several_temperatures_is_the_rival_of_an_arm(capsys: Capture) -> None:
    """The arm solves what the base solves at no temperature."""
    rng = np.random.default_rng(5)
    logits = rng.normal(-1, 2, 60)

    def drawn(law: Any) -> Any:
        return rng.binomial(16, 1 / (1 + np.exp(-law)))

    rows = [row for t in (1.0, 0.5) for row in counts(drawn(logits / t), n=16, temperature=t)]
    base, rl = write("base.jsonl", *rows), write("rl.jsonl", *counts(drawn(logits + 3), n=16, temperature=1.0))
    code, out, err = run(capsys, base, rl)
    assert code == 0 and "Does it do more than the base at a lower temperature? rl: yes, higher at k = " in out, err
    assert "120 rows, 60 problems, n = 16, T = 0.5, 1;" in out


def test_a_csv_in_another_encoding_names_its_line(capsys: Capture) -> None:
    Path("a.csv").write_bytes(b"id,n,c\np0,8,2\np\xe9,8,3\n")
    code, _, err = run(capsys, "a.csv", write("b.jsonl", *counts([1, 2])))
    assert code == 2 and "a.csv:3: not UTF-8 (byte 0xe9); save the file as UTF-8" in err


# ------------------------------------------------------------------------------------------------------------------
# a verdict says no more than its intervals


@pytest.mark.parametrize(("right", "n"), [([2] * 6, 4), ([1] * 12, 8), ([3] * 40, 8)])
def test_equal_counts_are_no_proof_of_no_difference(right: list[int], n: int, capsys: Capture) -> None:
    """They have been "No difference" by a band of no width, with pass@n from -0.653 to +0.653 below it."""
    a, b = write("a.jsonl", *counts(right, n=n)), write("b.jsonl", *counts(right, n=n))
    code, out, err = run(capsys, a, b, "--json")
    (found,) = json.loads(out)["verdicts"]
    assert code == 0 and found["finding"] == "undecided", err
    assert all(high - low > 0.05 for low, high in zip(found["over_k"]["low"], found["over_k"]["high"], strict=True))
    assert all(one["difference"]["high"] - one["difference"]["low"] > 0.05 for one in found["pass"].values())
    rng = np.random.default_rng(0)
    seeds = [row for seed in range(3) for row in counts(rng.binomial(n, 0.5, len(right)), n=n, seed=seed)]
    a, b = write("a.jsonl", *seeds), write("b.jsonl", *seeds)
    (found,) = json.loads(run(capsys, a, b, "--json")[1])["verdicts"]
    assert found["finding"] == "undecided" and found["over_k"]["high"][0] - found["over_k"]["low"][0] > 0.05


def test_copies_of_one_run_are_no_training_seeds(capsys: Capture) -> None:
    """Under other names, in one file or in several; two arms that share a file are told before the verdict."""
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 60)
    drawn = [rng.binomial(8, p) for _ in range(4)]
    base = write("base.jsonl", *counts(drawn[3]))
    files = [write(f"run{i}.jsonl", *counts(drawn[i])) for i in range(3)]
    code, out, err = run(capsys, base, f"rl={','.join(files)}")
    assert code == 0 and "same" not in out, err
    copies = [files[0], write("copy1.jsonl", *counts(drawn[0])), write("copy2.jsonl", *counts(drawn[0]))]
    said = "the same samples under two training seeds, on 60 of 60 problems"
    for option in ((), ("--fixed-problems",)):
        code, _, err = run(capsys, base, f"rl={','.join(copies)}", *option)
        assert code == 2 and "rl, seed 0 (run0.jsonl) and rl, seed 1 (copy1.jsonl): " + said in err, err
    one = write("one.jsonl", *(row for seed in range(3) for row in counts(drawn[0 if seed else 1], arm="rl", seed=seed)))
    code, _, err = run(capsys, base, one)
    assert code == 2 and said in err
    texts = [
        {"id": f"p{i}", "correct": bool(c > j), "text": f"{i} {j} {rng.random()}"} for i, c in enumerate(drawn[0]) for j in range(8)
    ]
    told = [write(f"told{i}.jsonl", *texts) for i in range(3)]
    code, _, err = run(capsys, base, f"rl={','.join(told)}")
    assert code == 2 and said in err
    code, out, err = run(capsys, f"base={base},{files[1]},{files[2]}", f"rl={','.join(files)}")
    assert code == 0 and out.startswith("base, seed 1 (run1.jsonl) and rl, seed 1 (run1.jsonl): on 60 of 60 problems"), err
    few = [write(f"few{i}.jsonl", *counts([1, 2, 0, 8, 4, 3])) for i in range(3)]
    code, out, err = run(capsys, write("other.jsonl", *counts([1, 1, 1, 2, 3, 4])), f"rl={','.join(few)}")
    assert code == 0 and "rl, seed 0 (few0.jsonl) and rl, seed 1 (few1.jsonl): two training seeds have the same counts" in out, err


@pytest.mark.slow
@pytest.mark.parametrize("kept", [60, 57, 20])
@pytest.mark.parametrize("texts", [True, False])
def test_a_run_that_is_in_part_a_copy_is_no_training_seed(kept: int, texts: bool, capsys: Capture) -> None:
    """Of 60 problems some are verbatim those of another seed, or have its counts; the others were sampled anew."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.2, 0.8, 60)

    def rows(name: str, right: Any, first: int = 0) -> list[dict[str, Any]]:
        if not texts:
            return counts(right, n=64)
        words = rng.integers(97, 123, (60, 64, 9))
        hits = [(i, bool(j < c), name + "".join(map(chr, words[i, j]))) for i, c in enumerate(right) for j in range(64)]
        return [{"id": f"p{i}", "correct": hit, "text": text} for i, hit, text in hits if i >= first]

    own, anew = rng.binomial(64, p), rng.binomial(64, p)
    one = rows("one", own)
    copy = one[: 64 * kept] + rows("two", anew, kept) if texts else rows("", [*own[:kept], *anew[kept:]])
    files = [write("one.jsonl", *one), write("two.jsonl", *rows("three", rng.binomial(64, p))), write("copy.jsonl", *copy)]
    base = write("base.jsonl", *rows("base", rng.binomial(64, p)))
    code, out, err = run(capsys, base, f"rl={','.join(files)}")
    assert code == 2, out
    assert "rl, seed 0 (one.jsonl) and rl, seed 2 (copy.jsonl): the same samples under two training seeds" in err
    other = write("other.jsonl", *rows("four", rng.binomial(64, p)))
    code, out, err = run(capsys, base, f"rl={files[0]},{files[1]},{other}")
    assert code == 0 and "same" not in out, err


@pytest.mark.parametrize(
    ("gained", "lost", "found"), [(5, 0, "undecided"), (6, 0, "better"), (7, 1, "undecided"), (0, 5, "undecided")]
)
def test_a_headline_does_not_contradict_the_p_below_it(gained: int, lost: int, found: str, capsys: Capture) -> None:
    """One sample of 20 problems: of 5 that differ, all on one side, the signs have p = 2 / 2^5 = .062; 7 of 8 have 18 / 2^8."""
    base = np.repeat([1, 0], 10)
    rl = base.copy()
    rl[:lost], rl[10 : 10 + gained] = 0, 1
    files = write("base.jsonl", *counts(base, n=1)), write("rl.jsonl", *counts(rl, n=1))
    code, out, err = run(capsys, *files, "--json", "--fail-on", "no-gain")
    (verdict,) = json.loads(out)["verdicts"]
    assert verdict["finding"] == found, err
    assert code == (0 if found == "better" else 3)


@pytest.mark.parametrize(("problems", "seen"), [(10, "0.673"), (30, "0.251"), (100, "0.078"), (400, "0.020")])
def test_what_no_problem_showed_is_told_by_the_exact_test(problems: int, seen: str, capsys: Capture) -> None:
    """Six problems must differ; P(Bin(N, seen) >= 6) = .8."""
    files = write("base.jsonl", *counts([0] * problems, n=1)), write("rl.jsonl", *counts([0] * problems, n=1))
    code, out, err = run(capsys, *files)
    assert code == 0 and f"could have seen a difference of {seen} in pass@1 (80 % power, by the band) what" in out, err


def test_problems_significant_alone_are_of_the_k_of_their_sentence(capsys: Capture) -> None:
    """16 samples of one side and 1 of the other of one problem: no halves, and no problem is told by its own counts."""
    base = [{"id": f"p{i}", "n": 16, "c": 16 if i < 10 else 8} for i in range(20)]
    rl = [{"id": f"p{i}", "n": 16 if i < 19 else 1, "c": 0} for i in range(20)]
    out = run(capsys, write("base.jsonl", *base), write("rl.jsonl", *rl))[1]
    assert "at least 4 samples of each problem are needed" in out and "told one by one" not in out
    rl[19] = {"id": "p19", "n": 16, "c": 0}
    out = run(capsys, write("base.jsonl", *base), write("rl.jsonl", *rl))[1]
    assert "told one by one, whatever chance does: lost p0, p1, p2" in out
    assert "on the 100 % of problems that rl never solved in 8 samples, base has pass@4 0.981, rl drawn again 0.000" in out
    (found,) = json.loads(run(capsys, "base.jsonl", "rl.jsonl", "--json")[1])["verdicts"]
    assert found["unlocked"]["gained"]["strata"][0]["share"] < 0.001 and "that base never solved" not in out
    assert len(found["unlocked"]["alone_lost"]) == 20


def test_all_right_is_pass_hat_k(capsys: Capture) -> None:
    rng = np.random.default_rng(5)
    base, rl = (rng.binomial(16, rng.beta(2, 2, 80)) for _ in range(2))
    rl = np.minimum(16, rl + 3)
    files = write("base.jsonl", *counts(base, n=16)), write("rl.jsonl", *counts(rl, n=16))
    (found,) = json.loads(run(capsys, *files, "--json")[1])["verdicts"]
    one = found["all_right"]
    known = [float(np.mean(pass_hat_k(16, side, 8))) for side in (rl, base)]
    assert [one["arm"]["value"], one["control"]["value"]] == pytest.approx(known)
    assert one["k"] == 8 and one["difference"]["value"] == pytest.approx(known[0] - known[1])
    assert one["outcome"] == "better" and one["difference"]["low"] > 0
    assert "all of 8 right (pass^8): base" in run(capsys, *files)[1] and ": rl is more reliable" in run(capsys, *files)[1]
    turned = json.loads(run(capsys, *files[::-1], "--json")[1])["verdicts"][0]["all_right"]
    assert turned["outcome"] == "worse" and turned["difference"]["high"] == pytest.approx(-one["difference"]["low"])


def test_a_difference_that_was_found_could_have_been_seen(capsys: Capture) -> None:
    """Seeds that agree to the last digit scatter by nothing; the band has its least width all the same."""
    rows = [row for arm, c in (("base", 0), ("rl", 8)) for seed in range(3) for row in counts([c] * 60, arm=arm, seed=seed)]
    both = write("both.jsonl", *rows)
    for option in ((), ("--fixed-problems",)):
        (found,) = json.loads(run(capsys, both, *option, "--json")[1])["verdicts"]
        assert found["gain"] == [[1, 8]] and all(0.02 < one["detectable"] < 0.5 for one in found["pass"].values())
        assert "could not have seen" not in run(capsys, both, *option)[1]


def test_samples_at_another_temperature_do_not_shorten_the_curves(capsys: Capture) -> None:
    """The base has 64 samples at T = 1 and 16 at T = 0.5: the verdict at T = 1 has one range of k, up to 64, in every line."""
    rng = np.random.default_rng(3)
    logits = rng.normal(-1, 2, 60)

    def drawn(law: Any, n: int) -> Any:
        return rng.binomial(n, 1 / (1 + np.exp(-law)))

    hot, cold = counts(drawn(logits, 64), n=64, temperature=1.0), counts(drawn(2 * logits, 16), n=16, temperature=0.5)
    base, rl = write("base.jsonl", *hot, *cold), write("rl.jsonl", *counts(drawn(logits + 1, 64), n=64, temperature=1.0))
    out = run(capsys, base, rl)[1]
    assert "more than base in 64 tries" in out and "pass@64: base" in out and "never solved in 32 samples" in out
    assert "Unequal numbers" not in out and "higher at k = 1, 8, 16" in out  # beside the colder base up to its 16 samples
    both = run(capsys, base, write("both.jsonl", *hot[:60], *cold))[1]
    assert both.count("T = 1: ") == both.count("T = 0.5: ") == 2  # headline and heading


@pytest.mark.parametrize(("ks", "gain", "said"), [
    ((1, 4, 16), 3, "none of these k is lost"), ((1, 4, 16), 2, "the first lost one of these k, if any, is at least 16"),
    ((1, 2, 3), 2, "the first lost k, if any, is at least 3"), ((1, 4, 16), 0, "no bound on the first lost one of these k"),
])  # fmt: skip
def test_the_first_lost_k_is_one_of_those_that_were_compared(ks: tuple[int, ...], gain: int, said: str) -> None:
    ends = np.where(np.arange(len(ks)) < gain, 0.1, -0.1)
    outcomes: Any = tuple("better" if i < gain else "tied" for i in range(len(ks)))
    curve = CurveComparison(
        ks=ks, difference=ends + 0.1, low=ends, high=ends + 0.2, outcomes=outcomes, level=0.95, over="training seeds", n=3
    )
    scores = ProblemScores(
        arm="rl", task="these problems", temperature=1.0, seeds=(0,), problems=("p",), values=np.array([[1]]), n=ks[-1]
    )
    verdict = CurveVerdict(a=scores, b=scores, curve=curve, crossing=crossing(curve), shown={}, unlocked=Unlocked())
    assert said in gain_and_loss(verdict)


@pytest.mark.parametrize(("gap", "band", "least"), [
    ((0.0, -1.0, 1.0), (0.0, -1.0, 1.0), 1.0),  # nothing is excluded, so nothing but 1 could be detected
    ((0.1, -0.2, 0.3), (0.1, -0.2, 0.3), 0.2), ((0.1, -0.2, 0.3), (0.1, -0.4, 0.7), 0.5),
    ((0.5, -0.2, 1.0), (0.5, -0.1, 1.0), 0.7),  # the end at 1 is a limit of shares
])  # fmt: skip
def test_no_less_could_be_detected_than_the_intervals_reach(gap: Any, band: Any, least: float) -> None:
    value, low, high = gap
    interval = Interval(value=value, low=low, high=high, level=0.95, over="problems", n=6)
    curve = CurveComparison(
        ks=(1, 4), difference=np.array([0.0, band[0]]), low=np.array([-0.9, band[1]]), high=np.array([0.9, band[2]]),
        outcomes=("tied", "tied"), level=0.95, over="problems", n=6,
    )  # fmt: skip
    assert least_detectable(interval, curve, 4) == pytest.approx(least)


# ------------------------------------------------------------------------------------------------------------------
# completions judged again


def judged(*wrong: tuple[int, str, bool]) -> list[dict[str, Any]]:
    """Six problems with the golds 1 to 6 and four samples each, two of them right. wrong: (problem, answer, score in the file) of
    first samples to replace."""
    rows = [
        {"id": f"p{i}", "correct": j % 2 == 0, "text": rf"So \boxed{{{i + j % 2}}}.", "gold": str(i)}
        for i in range(1, 7)
        for j in range(4)
    ]
    for i, answer, correct in wrong:
        rows[4 * (i - 1)] = {"id": f"p{i}", "correct": correct, "text": rf"\boxed{{{answer}}}", "gold": str(i)}
    return rows


def test_verify_judges_again_and_shows_where_file_and_verifier_differ(capsys: Capture) -> None:
    base = write("base.jsonl", *judged())
    rl = write("rl.jsonl", *judged((2, "2.0", False), (3, "33", True), (4, "4", True)))
    code, out, err = run(capsys, base, rl, "--verify", "boxed")
    assert code == 0, err
    assert "base (base.jsonl): file and verifier agree on 24 of 24 completions (100.0%)" in out
    assert "rl (rl.jsonl): file and verifier agree on 22 of 24 completions (91.7%); correct by the file alone 1, by the" in out
    assert "by the verifier alone 1; undecided 0; pass@1 0.458 by the file, 0.458 by the verifier" in out  # 11 of 24 both
    assert "rl (rl.jsonl), problem p3, sample 1: file correct, verifier wrong (" in out and "gold 3; ends with: \\boxed{33}" in out
    assert out.index("problem p3, sample 1") < out.index("problem p2, sample 1: file wrong, verifier right (")
    _, printed, _ = run(capsys, base, rl, "--verify", "boxed", "--json")
    found = json.loads(printed)
    schema = json.loads(SCHEMA.read_text())
    check(found, schema, schema)
    assert [one["only_file"] for one in found["rejudged"]] == [0, 1]


def test_verify_needs_texts_and_golds(capsys: Capture) -> None:
    code, _, err = run(capsys, BASE, RL, "--verify", "boxed")
    assert code == 2 and "base (" in err and "--verify needs the text of every completion, and the rows have none" in err
    bare = [{**row, "gold": None} if row["id"] == "p2" else row for row in judged()]
    code, _, err = run(capsys, write("a.jsonl", *bare), write("b.jsonl", *judged()), "--verify", "boxed")
    assert code == 2 and "--verify needs the gold of every problem; 'p2' has none" in err
    silent = [{**row, "text": None} if place == 5 else row for place, row in enumerate(judged())]
    code, _, err = run(capsys, write("a.jsonl", *silent), write("b.jsonl", *judged()), "--verify", "boxed")
    assert code == 2 and "sample 2 of problem 'p2' has no text" in err


@pytest.mark.slow
def test_of_a_million_samples_only_the_k_that_were_computed_are_named(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for arm, shift in (("base", 0.0), ("rl", 2.0)):
        p = 1 / (1 + np.exp(10 * np.linspace(0, 1, 40) - shift))
        rows = [{"id": f"p{i}", "n": 1_000_000, "c": int(c)} for i, c in enumerate(rng.binomial(1_000_000, p))]
        (tmp_path / f"{arm}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [tmp_path / "base.jsonl", tmp_path / "rl.jsonl"]
    code, out, _ = run(capsys, *files, "--k", 1_000_000, "--json")
    ks = json.loads(out)["verdicts"][0]["over_k"]["ks"]
    assert code == 0 and len(ks) < 1500 and ks[:1024] == list(range(1, 1025)) and ks[-1] == 1_000_000
    code, out, _ = run(capsys, *files, "--k", 1_000_000)
    assert code == 0 and f"{len(ks) - 1024} values from 1,044 to 1,000,000 at once" in out
