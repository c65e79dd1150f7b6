"""`compare` and `plan` on files whose rows have more than counts: answers, texts, clusters, a chance floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.api.compare import compare
from sage_rlvr.errors import ConfigError
from sage_rlvr.results.details.rows import chosen, names_of
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.curves import crossing
from sage_rlvr.verdicts.units import OneRunEach
from tests.cli.test_compare_rows import SCHEMA, check, counts, run, samples, write
from tests.verdicts.readers.write_logs import LOGS

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def verdict(out: str) -> Any:
    """The only verdict of --json, after a check of the schema."""
    tree, schema = json.loads(out), json.loads(SCHEMA.read_text())
    check(tree, schema, schema)
    (found,) = tree["verdicts"]
    return found


# ------------------------------------------------------------------------------------------------------------------
# distinct right answers


def keyed(*keys: dict[str, int], n: int = 8) -> list[dict[str, Any]]:
    return [{"id": f"p{i}", "n": n, "c": sum(one.values()), "keys": one} for i, one in enumerate(keys)]


def test_distinct_right_answers_of_keys(capsys: Capture) -> None:
    """Eight right samples of four answers each against eight of one: 4 and 1 in all samples, by hand in one."""
    base = write("base.jsonl", *keyed(*[{"a": 2, "b": 2, "c": 2, "d": 2}] * 8))
    rl = write("rl.jsonl", *keyed(*[{"a": 8}] * 7, {"a": 7, "b": 1}))
    code, out, err = run(capsys, base, rl)
    assert code == 0 and "distinct right answers in 8 samples: base 4.00 [4.00, 4.00], rl 1.12" in out, err
    assert "difference −2.875 (" in out and 'answers: "keys" of the rows this design' in out
    found = verdict(run(capsys, base, rl, "--json")[1])["distinct"]
    assert (found["most"], found["answers"], list(found["in"])) == (4, '"keys" of the rows', ["8"])
    assert found["in"]["8"]["difference"]["high"] < 0 and found["in"]["8"]["p"] < 0.05
    assert found["without_answer"] == {"control": 0, "arm": 0}


@pytest.mark.slow
def test_distinct_right_answers_of_samples_and_what_has_none(capsys: Capture) -> None:
    """Of keys and of the same samples one by one the numbers are the same; samples without an answer count nowhere."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[dict[str, Any]]] = {}
    for arm, many in (("a", 5), ("b", 2)):
        rows[arm] = [
            {"id": f"p{i}", "correct": bool(rng.random() < 0.6), "answer": str(rng.integers(many))}
            for i in range(12) for _ in range(16)
        ]  # fmt: skip
    tables = {}
    for arm, own in rows.items():
        groups: dict[str, dict[str, int]] = {}
        for row in own:
            group = groups.setdefault(row["id"], {})
            if row["correct"]:
                group[row["answer"]] = group.get(row["answer"], 0) + 1
        tables[arm] = keyed(*groups.values(), n=16)
    by_samples = verdict(run(capsys, write("a.jsonl", *rows["a"]), write("b.jsonl", *rows["b"]), "--json")[1])["distinct"]
    by_keys = verdict(run(capsys, write("a.jsonl", *tables["a"]), write("b.jsonl", *tables["b"]), "--json")[1])["distinct"]
    assert by_samples["in"] == by_keys["in"] and list(by_keys["in"]) == ["8", "16"]
    assert by_samples["answers"] == '"answer" of the rows'
    silent = [row | {"answer": None} if i % 2 and row["correct"] else row for i, row in enumerate(rows["b"])]
    out = run(capsys, write("a.jsonl", *rows["a"]), write("b.jsonl", *silent))[1]
    assert "without an answer, and not counted: " in out and "% of the right samples of b" in out
    assert "of the right samples of a" not in out
    bare = [{name: row[name] for name in ("id", "correct")} for row in rows["b"]]
    out = run(capsys, "a.jsonl", write("b.jsonl", *bare))[1]
    assert "distinct right answers are not compared: the rows of b have no answers" in out
    assert "distinct" not in run(capsys, LOGS / "base.jsonl", LOGS / "rl.jsonl")[1]


def test_one_right_answer_needs_no_count(capsys: Capture) -> None:
    rows = keyed(*[{"7": 3}] * 6)
    code, out, _ = run(capsys, write("a.jsonl", *rows), write("b.jsonl", *rows))
    assert code == 0 and 'distinct right answers ("keys" of the rows): no problem has more than one, so pass@k has them all' in out


def test_distinct_right_answers_as_the_verifier_reads_them(capsys: Capture) -> None:
    r"""\frac{1}{2} and 0.5 are one answer, 2 another, and a half in words is none."""
    spellings, rng = [r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", "a half", r"\boxed{2}"], np.random.default_rng(6)
    rows = [
        {"id": f"p{i}", "correct": True, "text": f"so {spellings[int(rng.integers(many))]}", "gold": "1/2", "arm": arm}
        for arm, many in (("a", 4), ("b", 2)) for i in range(12) for _ in range(8)
    ]  # fmt: skip
    both = write("both.jsonl", *rows)
    code, out, err = run(capsys, both, "--verify", "boxed")
    assert code == 0 and "b 1.00 [1.00, 1.00]; difference −" in out, err
    assert "answers: what the mathematics verifier reads (boxed), in one spelling, numbers as fractions; without an answer" in out
    found = verdict(run(capsys, both, "--verify", "boxed", "--json")[1])["distinct"]
    assert found["most"] == 2 and found["without_answer"]["arm"] == 0 < found["without_answer"]["control"] < 0.5
    assert "distinct" not in run(capsys, both)[1]


def test_distinct_right_answers_over_training_seeds(capsys: Capture) -> None:
    rng = np.random.default_rng(1)

    def seeds(arm: str) -> list[dict[str, Any]]:
        """Three answers to each problem, of three seeds."""
        rows = [{"id": f"p{i}", "n": 8, "c": 8, "arm": arm, "seed": seed} for seed in range(3) for i in range(6)]
        return [row | {"keys": {name: 1 + int(rng.integers(2)) for name in "xyz"}} for row in rows]

    rows = [*seeds("base"), *seeds("rl")]
    assert "distinct right answers in 8 samples: base 3.00" in run(capsys, write("all.jsonl", *rows))[1]
    once = [row for row in rows if row["arm"] == "rl" or row["seed"] == 0]
    code, out, err = run(capsys, write("all.jsonl", *once), "--fixed-problems")
    assert code == 0 and "difference 0.000 (no interval)" in out, err


# ------------------------------------------------------------------------------------------------------------------
# the chance floor


@pytest.mark.slow
def test_a_chance_floor_as_a_number(capsys: Capture) -> None:
    """Of four choices eight guesses solve 1 - 0.75^8 of the problems."""
    a, b = write("a.jsonl", *counts([0] * 20)), write("b.jsonl", *counts([6] * 20))
    code, out, err = run(capsys, a, b, "--chance", 0.25)
    assert code == 0 and "; chance floor 0.250 pass@8: " in out and "; chance floor 0.900 gain" in out, err
    assert "a lies below the chance floor in pass@1 and pass@8: guessing scores higher" in out and "b lies below" not in out
    assert "chance floor: k guesses, each right with the probability that was given" in out
    found = verdict(run(capsys, a, b, "--chance", 0.25, "--json")[1])
    assert found["pass"]["8"]["chance"] == pytest.approx(1 - 0.75**8) and found["pass"]["8"]["below_chance"] == ["a"]
    assert found["chance"].startswith("k guesses") and verdict(run(capsys, a, b, "--json")[1])["chance"] is None
    assert compare("a.jsonl", "b.jsonl", chance=0.25).verdicts["verdicts"][0]["pass"] == found["pass"]
    code, _, err = run(capsys, a, b, "--chance", 0.25, "--out", "page")
    assert code == 0 and "chance" in Path("page/figures/verdict.svg").read_text(), err


def test_a_chance_floor_in_the_rows_and_of_each_task(capsys: Capture) -> None:
    rows = [row | {"chance": 0.5 if i % 2 else 0.0} for i, row in enumerate(counts([4] * 8))]
    a, b = write("a.jsonl", *rows), write("b.jsonl", *counts([5] * 8))
    found = verdict(run(capsys, a, b, "--json")[1])
    assert found["pass"]["8"]["chance"] == pytest.approx((1 - 0.5**8) / 2) and found["pass"]["1"]["chance"] == 0.25
    two = [row for task in ("easy", "hard") for row in counts([4] * 8, task=task)]
    for name in ("c.jsonl", "d.jsonl"):
        write(name, *two)
    tree = json.loads(run(capsys, "c.jsonl", "d.jsonl", "--json", "--chance", "easy=0.5", "hard=0.1")[1])
    assert [one["pass"]["1"]["chance"] for one in tree["verdicts"]] == pytest.approx([0.5, 0.1])


def test_a_chance_floor_of_a_task(capsys: Capture) -> None:
    """AIME's answers are 0 to 999; of other mathematics the floor is of the golds in the rows."""
    a, b = write("a.jsonl", *samples([4] * 8)), write("b.jsonl", *samples([5] * 8, seed=1))
    found = verdict(run(capsys, a, b, "--task", "aime", "--json")[1])
    assert found["pass"]["8"]["chance"] == pytest.approx(1 - 0.999**8) and "values of the answer" in found["chance"]
    golds = [row | {"gold": "7" if row["id"] in ("p0", "p1") else row["id"]} for row in samples([4] * 8)]
    found = verdict(run(capsys, write("a.jsonl", *golds), b, "--task", "math500", "--json")[1])
    assert found["pass"]["1"]["chance"] == 0.25 and "golds of the other problems" in found["chance"]


def test_a_chance_floor_of_the_task_of_a_recipe(capsys: Capture) -> None:
    """The ids of Countdown are its problems: 1, 1 and 2 to make 4. Of the four expressions without brackets, 1+1+2, 1+1-2, 1+2-1
    and 2-1-1, one is right; of the six with and without, one too."""
    task = "{name: countdown_chat, counts: {3: 1.0}, max_number: 4, max_target: 8, operators: '+-'}"
    Path("room.yaml").write_text(f"task: {task}\nmodel: smollm2\nsteps: 1\n")
    rows = [{"id": "1-1-2=4", "n": 8, "c": c} for c in (4, 5)]
    files = [write(name, row) for name, row in zip(("a.jsonl", "b.jsonl"), rows, strict=True)]
    found, named = (verdict(run(capsys, *files, "--task", task, "--json")[1]) for task in ("room.yaml", "countdown_chat"))
    assert found["pass"]["1"]["chance"] == pytest.approx(1 / 4)  # of the best guesser
    assert named["pass"]["1"]["chance"] == pytest.approx(1 / 9)  # more operators, more guesses


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chance", "25"], "--chance 25: expected X or TASK=X; X is the probability that one guess is right, from 0 to 1"),
        (["--chance", "a=b"], "--chance a=b: expected X or TASK=X"),
        (["--chance", "0.1", "0.2"], "--chance 0.2: all tasks has 0.1 already; pass one number for each task"),
        (["--chance", "easy=0.1"], "--chance easy=...: no rows of that task; the files have these problems"),
        (["--chance", "0.1", "--task", "aime"], "--chance and --task aime: both give the chance floor; omit one of them"),
        (["--task", "nowhere"], "task 'nowhere': choose one of"),
        (["--task", "math500"], "--task math500: the task has no problem with the id 'p0', and some rows lack \"gold\""),
    ],
)
def test_chance_floors_that_do_not_fit(words: list[str], said: str, capsys: Capture) -> None:
    code, _, err = run(capsys, write("a.jsonl", *counts([4] * 8)), write("b.jsonl", *counts([5] * 8)), *words)
    assert code == 2 and said in err, err


def test_a_chance_floor_that_files_disagree_on(capsys: Capture) -> None:
    a, b = write("a.jsonl", *counts([4] * 8, chance=0.5)), write("b.jsonl", *counts([5] * 8, chance=0.25))
    err = run(capsys, a, b)[2]
    assert "problem 'p0' has the chance 0.5 in a (a.jsonl) and 0.25 in b (b.jsonl); give both files the same" in err
    some = [row | {"chance": 0.5} if i else row for i, row in enumerate(counts([4] * 8))]
    err = run(capsys, write("c.jsonl", *some), write("d.jsonl", *counts([5] * 8)))[2]
    assert "c (c.jsonl): 1 of 8 problems have no \"chance\", the first is 'p0'; add it to their rows, or remove it from all" in err
    err = run(capsys, a, write("d.jsonl", *counts([5] * 8)), "--chance", 0.5)[2]
    assert 'a (a.jsonl): the rows have "chance"; omit --chance and --task, or the field' in err
    assert "--chance, --task: only for files of rows" in run(capsys, "a.npz", "b.npz", "--chance", 0.5)[2]


# ------------------------------------------------------------------------------------------------------------------
# clusters


def copied(right: Any, times: int, n: int = 8, **more: Any) -> list[dict[str, Any]]:
    """Each problem `times` times."""
    return [
        {"id": f"p{i}-{j}", "n": n, "c": int(c), **({"cluster": f"c{i:02}"} | more)}
        for i, c in enumerate(right) for j in range(times)
    ]


def test_copies_in_clusters_are_the_problems_once(capsys: Capture) -> None:
    rng = np.random.default_rng(2)
    p, q = rng.beta(1, 1, (2, 30))
    once = [counts(rng.binomial(8, x)) for x in (p, q)]
    many = [copied([row["c"] for row in rows], 4) for rows in once]
    found = [
        verdict(run(capsys, write("a.jsonl", *a), write("b.jsonl", *b), "--json")[1]) for a, b in (once, many)
    ]  # fmt: skip
    for name in ("low", "high", "outcomes"):
        assert found[1]["over_k"][name] == pytest.approx(found[0]["over_k"][name])
    for k in ("1", "8"):
        for end in ("value", "low", "high"):
            ends = [one["pass"][k]["difference"][end] for one in found]
            assert ends[1] == pytest.approx(ends[0], abs=1e-9)
    assert (found[0]["clusters"], found[1]["clusters"], found[1]["problems"]) == (None, 30, 120)
    out = run(capsys, "a.jsonl", "b.jsonl")[1]
    assert "(120 problems in 30 clusters, 8 samples each; one run of each" in out
    assert "over 30 clusters of problems and their samples)" in out and "four times the clusters halve it" in out
    unlabeled = [[{name: row[name] for name in ("id", "n", "c")} for row in rows] for rows in many]
    alone = verdict(run(capsys, write("a.jsonl", *unlabeled[0]), write("b.jsonl", *unlabeled[1]), "--json")[1])
    assert alone["over_k"]["high"][0] < found[1]["over_k"]["high"][0]
    code, out, err = run(capsys, write("a.jsonl", *many[0]), "b.jsonl")  # labels of one file are enough
    assert code == 0 and "120 problems in 30 clusters" in out, err


def test_clusters_that_cannot_be_used(capsys: Capture) -> None:
    a, b = write("a.jsonl", *copied([1] * 8, 2)), write("b.jsonl", *copied([2] * 8, 2, cluster="one"))
    assert "problem 'p0-0' has the cluster 'c00' in a (a.jsonl) and 'one' in b (b.jsonl)" in run(capsys, a, b)[2]
    some = [row | {"cluster": None} if i == 3 else row for i, row in enumerate(copied([1] * 8, 2))]
    err = run(capsys, write("a.jsonl", *some), write("b.jsonl", *some))[2]
    assert "1 of 16 problems have no \"cluster\", the first is 'p1-1'" in err
    assert "a problem that belongs to no other is a cluster of its own" in err
    two = write("c.jsonl", *copied([1] * 8, 2)), write("d.jsonl", *copied([2] * 8, 2))
    assert "--support: it has no intervals over clusters" in run(capsys, *two, "--support")[2]
    few = write("e.jsonl", *copied([1] * 5, 8)), write("f.jsonl", *copied([8] * 5, 8))
    assert verdict(run(capsys, *few, "--json")[1])["finding"] == "undecided"  # 40 problems in 5 clusters


def test_one_prompt_under_two_ids_is_fine_within_a_cluster(capsys: Capture) -> None:
    a, b = copied([1, 2, 1, 4, 3, 2], 2, prompt="2+2"), copied([2, 3, 2, 4, 4, 4], 2)
    own = [row | {"prompt": f"{row['cluster']}?"} for row in a]
    assert run(capsys, write("a.jsonl", *own), write("b.jsonl", *b))[0] == 0
    err = run(capsys, write("a.jsonl", *a), write("b.jsonl", *b))[2]
    assert "have the same prompt, so one problem counts twice; remove one of them on both sides, or give both rows the same" in err


@pytest.mark.slow
def test_equal_policies_on_labeled_copies_are_seldom_told_apart() -> None:
    """A/A as `compare` does it, by the band and at one k: at most 5 % and 2.5 standard errors; without labels far more."""
    rng, rounds, of = np.random.default_rng(3), 60, 25
    false = {"band": 0, "at 1": 0, "band, unlabeled": 0}
    ids = tuple(f"p{i}" for i in range(of * 6))
    labels = tuple(f"c{i // 6}" for i in range(of * 6))
    for _ in range(rounds):
        p = rng.beta(0.4, 1.0, (2, of))
        p = np.where(rng.random(of) < 0.5, p, p[::-1]).repeat(6, axis=1)
        rights = rng.binomial(16, p)
        for label in (labels, ()):
            a, b = (
                ProblemScores(arm=arm, task="", temperature=1.0, seeds=(0,), problems=ids, values=right[None], n=16, cluster=label)
                for arm, right in zip("ab", rights, strict=True)
            )
            both = OneRunEach(a, b)
            found = crossing(both.curve(16))
            false["band" if label else "band, unlabeled"] += bool(found.gain or found.loss)
            false["at 1"] += bool(label) and both.gap(1).outcome in ("better", "worse")
    most = 0.05 * rounds + 2.5 * (0.05 * 0.95 * rounds) ** 0.5
    assert max(false["band"], false["at 1"]) <= most < 0.3 * rounds < false["band, unlabeled"], false


# ------------------------------------------------------------------------------------------------------------------
# texts on the page


def told(right: Any, n: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"p{i}", "correct": j >= n - c, "text": f"try {j} of p{i}", "prompt": f"Problem {i}?", "gold": str(i)} | more
        for i, c in enumerate(right) for j in range(n)
    ]  # fmt: skip


def browser_of(page: Path) -> Any:
    text = page.read_text()
    start = text.index('id="samples-data"')
    return json.loads(text[text.index(">", start) + 1 : text.index("</script>", start)])


@pytest.mark.usefixtures("drawn_as_nothing")
def test_texts_of_both_sides_are_in_the_browser_of_the_page(capsys: Capture) -> None:
    """p0 is kept, p1 lost, p2 gained, p3 solved by neither."""
    a, b = write("a.jsonl", *told([2, 1, 0, 0, 4])), write("b.jsonl", *told([4, 0, 1, 0, 4]))
    code, out, err = run(capsys, a, b, "--out", "page.html")
    assert code == 0 and "page page.html" in out and "figures ./figures/" in out and Path("summary.json").is_file(), err
    data = browser_of(Path("page.html"))
    assert data["problems"] == ["p2", "p1", "p0", "p4", "p3"]
    assert data["solved"] == ["gained", "lost", "kept", "kept", "solved by neither"]
    assert [(one["name"], one["plain"]) for one in data["sets"]] == [("a", 1), ("b", 1)]
    first = [row for row in data["rows"] if row["s"] == 1 and row["p"] == 0]
    assert [(row["n"], row["v"], row["t"]) for row in first] == [(j + 1, int(j < 3), f"try {j} of p2") for j in range(4)]
    assert not any(name in row for row in data["rows"] for name in "keqm")  # no tokens
    problem, prompt, gold = data["sets"][0]["asked"][0]
    assert (data["problems"][problem], data["prompts"][prompt], data["golds"][gold]) == ("p2", "Problem 2?", "2")
    text = Path("page.html").read_text()
    assert "Problems that only one of the two solves come first" in text and "the files have all" in text


@pytest.mark.usefixtures("drawn_as_nothing")
def test_a_long_id_stands_for_its_prompt(capsys: Capture) -> None:
    """verl's dumps have the prompt for an id."""
    prompts = [f"Compute the sum of {i} and {i},\nand give the answer in a box, after some thought." for i in range(3)]

    def rows(least: int) -> list[dict[str, Any]]:
        return [
            {"input": prompt, "output": f"answer {j}", "gts": "1", "score": float(j >= least), "step": 0}
            for prompt in prompts for j in range(4)
        ]  # fmt: skip

    code, _, err = run(capsys, write("a.jsonl", *rows(3)), write("b.jsonl", *rows(1)), "--out", "p")
    assert code == 0, err
    data = browser_of(Path("p/report.html"))
    assert data["problems"][0].startswith("Compute the sum of 0 and 0, and") and data["problems"][0].endswith("...")
    assert data["prompts"] == prompts and len(set(data["problems"])) == 3


def test_of_many_completions_a_right_and_a_wrong_one_are_shown() -> None:
    assert chosen([False] * 9 + [True], 4) == [0, 1, 2, 9] and chosen([True, False, False], 2) == [0, 1]
    assert chosen([False] * 3, 8) == [0, 1, 2] and chosen([True, False], 1) == [0]
    names = names_of(["p1", "a" * 70, "a" * 71, "two\nlines"])
    assert list(names.values()) == ["p1", "a" * 57 + "...", "3: " + "a" * 57 + "...", "two lines"]


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_as_nothing")
def test_the_page_holds_as_many_completions_as_it_may(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sage_rlvr.results.details.rows.MOST_SAMPLES", 24)
    a, b = write("a.jsonl", *told([2, 1, 0, 0, 4])), write("b.jsonl", *told([4, 0, 1, 0, 4]))
    run(capsys, a, b, "--out", "page.html")
    assert len(browser_of(Path("page.html"))["rows"]) == 20  # 12 of each side: two of each of five problems
    monkeypatch.setattr("sage_rlvr.results.details.rows.MOST_SAMPLES", 6)
    run(capsys, a, b, "--out", "page.html")
    assert browser_of(Path("page.html"))["problems"] == ["p2", "p1", "p0"]  # 3 of each side, one of each problem


# ------------------------------------------------------------------------------------------------------------------
# plans


@pytest.mark.slow
def test_a_plan_from_two_files_of_rows(capsys: Capture) -> None:
    rng = np.random.default_rng(4)
    p = rng.beta(1, 1, 40)
    graded = [
        [{"id": f"p{i}", "score": float(rng.random() < x) * 0.8} for i, x in enumerate(q) for _ in range(16)]
        for q in (p, np.clip(p + 0.1, 0, 1))
    ]
    a, b = (write(name, *rows) for name, rows in zip(("a.jsonl", "b.jsonl"), graded, strict=True))
    code, out, err = run(capsys, a, b, "--right-from", 0.5)
    command = out.partition("would show: sage-rlvr plan ")[2]
    assert code == 0 and command.split() == ["--from", "a.jsonl", "b.jsonl", "--right-from", "0.5"], err
    code, out, err = run(capsys, *command.split(), "--difference", 0.02, command="plan")
    assert code == 0 and out.startswith("design: 40 problems, 16 samples of each, 3 training seeds"), err
    assert "from a pilot of 40 problems and 16 samples" in out
    assert "to detect a difference of 0.02 in pass@16 between two checkpoints (80 % power): " in out
    code, out, _ = run(capsys, "--problems", 500, "--samples", 64, "--k", 8, *command.split(), command="plan")
    assert code == 0 and out.startswith("design: 500 problems, 64 samples of each")
    assert "pass --right-from X" in run(capsys, "--from", a, b, command="plan")[2]
    err = run(capsys, *command.split(), "--correct", "x", command="plan")[2]
    assert "no score has the name x; the file has 1 scores (score)" in err
    assert "--problems: how many problems? Pass --problems N, or --from A B" in run(capsys, command="plan")[2]
    assert "only for files of rows; pass them with --from A B" in run(capsys, "--problems", 9, "--correct", "x", command="plan")[2]


@pytest.mark.slow
def test_a_plan_from_unequal_samples_and_from_clusters_of_one_file(capsys: Capture) -> None:
    rows = [*counts([4] * 9, arm="a"), {"id": "p9", "n": 12, "c": 6, "arm": "a"}, *counts([1, 2] * 5, arm="b")]
    code, out, err = run(capsys, "--from", write("both.jsonl", *rows), command="plan")
    assert code == 0 and "10 problems and 8 to 12 samples" in out, err
    labeled = [row | {"cluster": row["id"][1:] if int(row["id"][1:]) < 8 else "8"} for row in rows]
    code, out, err = run(capsys, "--from", write("both.jsonl", *labeled), command="plan")
    assert code == 0 and "10 problems in 9 clusters and 8 to 12 samples" in out, err
    paper = "arXiv 2605.18864"
    assert paper not in out and paper in run(capsys, "--problems", 10, command="plan")[1]
    assert "expected two arms" in run(capsys, "--from", write("one.jsonl", *counts([1] * 8)), command="plan")[2]


def test_numbers_of_the_option_are_those_of_the_function() -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(name, *counts([4] * 8, task="easy"))
    found = compare("a.jsonl", "b.jsonl", chance={"easy": 0.5})
    assert found.verdicts["verdicts"][0]["pass"]["1"]["chance"] == 0.5
    with pytest.raises(ConfigError, match="both give the chance floor"):
        compare("a.jsonl", "b.jsonl", chance=0.5, task="aime")
