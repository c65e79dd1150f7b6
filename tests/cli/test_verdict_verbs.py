"""`compare` and `plan` from the command line: paper tables, records, sample stores, pilots, and every refusal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import call, said
from sage_rlvr.api.evaluate import eval_lines
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore
from sage_rlvr.verdicts.record import Record

Capture = pytest.CaptureFixture[str]
IDENTITY = Identity(
    task="sums",
    task_hash="h",
    model="GRPO",
    revision="r",
    prompt="plain",
    template_hash="t",
    decoding={"preset": "plain", "temperature": 1.0, "max_new_tokens": 64},
    verifier_hash="v",
    seed=7,
    chunk_size=8,
)


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    return call(*words, *["--full"] * (words[0] == "compare")), *said(capsys)


def record(name: str, p: dict[float, np.ndarray]) -> str:
    """A record of problems with one right completion each, of the given probabilities at each temperature."""
    n = len(next(iter(p.values())))
    meta = {
        "name": name, "model": name, "world": {"name": "made up"}, "split": "test", "seed": 1, "sampling": "iid",
        "problem_ids": [str(i) for i in range(n)], "versions": {}, "weights": name,
    }  # fmt: skip
    save_record(Record(meta, {t: [np.array([np.log(x)]) for x in row] for t, row in p.items()}), f"{name}.npz")
    return f"{name}={name}.npz"


def policies(lift: float = 0.0, seed: int = 0, n: int = 40) -> dict[float, np.ndarray]:
    """Colder is better at pass@1 and worse at pass@k."""
    z = np.random.default_rng(0).normal(-2, 1.5, n) + 0.05 * np.random.default_rng(seed).normal(size=n)
    return {t: 1 / (1 + np.exp(-(z / t**0.5 + 1.5 * (1 - t) + lift))) for t in (0.4, 0.7, 1.0)}


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"name": "countdown", "counts": {}}, "a.npz: world = {'name': 'countdown', 'counts': {}}: 'max_number' is missing"),
        (None, "a.npz: 'world' is missing"),
    ],
)
def test_a_record_without_its_whole_world_is_refused(capsys: Capture, world: dict[str, Any] | None, said: str) -> None:
    for name in ("a", "b"):
        record(name, policies())
        whole = load_record(f"{name}.npz")
        meta = {key: value for key, value in whole.meta.items() if key != "world"} | ({} if world is None else {"world": world})
        save_record(replace(whole, meta={**meta, "weights": name}), f"{name}.npz")
    code, _, err = run(capsys, "compare", "a.npz", "b.npz")
    advice = "; make the record again, with sage-rlvr eval RUN or by the demo or sweep that it is of"
    assert code == 2 and said in err and err.endswith(advice)
    with pytest.raises(DataError, match=re.escape(said) + ".*; make the record again"):
        eval_lines(load_record("a.npz"), (1,))


def store(path: str, right: np.ndarray, identity: Identity = IDENTITY, n: int = 16) -> str:
    """A sample store of problems p0, p1, ... with right[i] right samples of n."""
    with SampleStore.open(path, identity) as opened:
        samples = [
            Sample(
                problem=f"p{i}", sample=j, text=f"{path} {i} {j}", verdict="right" if j < c else "wrong", reason="r",
                prompt_hash="h", seed=identity.seed_of(f"p{i}", j),
            )
            for i, c in enumerate(right) for j in range(n)
        ]  # fmt: skip
        opened.commit(samples)
    return f"{Path(path).name.split('-')[0]}={path}"


# A title for the window, a cleared screen, text that runs backward, what no terminal can be sent, and marks of rich
RAW = "a\x1b]0;x\x07\x1b[2J\x9b1m\x7f\r\x08\u202eb\u2066\ud800[bold]c[/no]"
SHOWN = ("a[U+001B]]0;x", r"a\x1b]0;x")  # as it is, or in quotation marks


def rows_of_mathematics() -> str:
    lines = [{"id": f"{i}{RAW}", "problem": "p", "answer": "1", "completion": RAW} for i in range(2)]
    Path("rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "rows.jsonl"


def design_with_a_label() -> str:
    arms = {"one": {"recipe": "countdown/grpo", "label": RAW}, "two": "countdown/no_kl"}
    Path("m.yaml").write_text(json.dumps({"title": RAW, "seeds": [0], "arms": arms, "control": "one"}))
    return "m.yaml"


def recipe_with_a_key(name: str) -> str:
    Path(name).write_text('"me' + RAW.encode("unicode_escape").decode().replace("\\ud800", "") + '": 1\n')
    return name


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        lambda: ("verify", "--file", rows_of_mathematics()),
        lambda: ("audit", rows_of_mathematics()),
        lambda: ("sweep", design_with_a_label(), "--dry-run"),
        lambda: ("show", recipe_with_a_key("r.yaml")),
        lambda: ("compare", record("x", policies()), f"{RAW}={record('y', policies(0.1)).split('=')[1]}"),
        lambda: ("compare", f"{RAW}.npz", "b.npz"),
        lambda: ("eval", RAW),
        lambda: (RAW,),
    ],
    ids=["verify", "audit", "sweep", "recipe", "compare", "missing record", "missing policy", "command"],
)
def test_what_steers_a_terminal_is_shown_and_not_sent(words: Any, capsys: Capture) -> None:
    code, shown = call(*words()), "".join(capsys.readouterr())
    assert code in (0, 2), shown
    assert not set(shown) & set("\x1b\x07\x9b\x7f\r\x08\u202e\u2066\ud800") and any(word in shown for word in SHOWN)


def test_records_over_k_and_over_temperatures(capsys: Capture) -> None:
    arms = record("base", policies()), record("GRPO", policies(0.8, 1)), record("Branch", policies(0.8, 2))
    code, out, err = run(capsys, "compare", *arms, "--k", 16)
    assert code == 0, err
    assert "GRPO vs base over k: higher at k = 1, 2, 4, 8, 16" in out
    assert "P(GRPO > base), a problem's pass@1 (the same at every k): 1.000" in out
    apart = "Against base, pass@16 at equal pass@1 (mean over all temperatures): cannot be told (no common range of pass@1): "
    assert f"{apart}GRPO, Branch." in out
    line = "Branch vs GRPO, pass@16 at equal pass@1 (mean over all temperatures): no significant difference for these checkpoints ("
    assert line in out


def test_records_of_one_temperature_have_no_frontier(capsys: Capture) -> None:
    """One temperature of the control is no frontier: no verdict at "any temperature", and the command that makes one."""
    arms = [record(name, {1.0: policies(lift)[1.0]}) for name, lift in (("GRPO", 0.0), ("noKL", 0.8))]
    code, out, err = run(capsys, "compare", *arms)
    assert code == 0, err
    assert "noKL keeps " in out and "rates and intervals: --support" in out and "SRR" not in out
    assert out.split("GRPO 1 of 1")[1].split("noKL")[0].count("–") >= 1  # no best at any T of one T
    code, out, err = run(capsys, "compare", *arms, "--support")
    assert "GRPO was evaluated only at T = 1, so there is no frontier to compare with: sage-rlvr eval GRPO --frontier" in out
    assert "at equal pass@1" not in out
    assert "noKL vs GRPO, pass@256" in out and out.count("SRR: preserved / (preserved + shrunk)") == 1


@pytest.mark.slow
def test_records_over_training_seeds(capsys: Capture) -> None:
    base = record("base", policies())
    names = {arm: [record(f"{arm}{s}", policies(0.8, 10 * i + s)) for s in range(3)] for i, arm in enumerate("AB")}
    arms = [f"{arm}={','.join(name.split('=')[1] for name in records)}" for arm, records in names.items()]
    code, out, err = run(capsys, "compare", base, *arms, "--k", 16, "--support")
    assert code == 0, err
    assert "P(A > base), a problem's pass@1 (the same at every k): 1.000" in out
    assert "A vs base over k: higher at k = 1, 4, 16" in out and "at all 3 values of k at once" in out
    assert "A against base, exact, problems expected to be solved in 16 samples, held fixed: preserved " in out
    assert "pass@16 at equal pass@1 (mean over all temperatures): " in out and "over 3 training seeds" in out
    code, out, err = run(capsys, "plan", "--problems", 60, "--k", 16, "--from", *arms)
    assert code == 0 and "from a pilot of 40 problems, exact; SD between training runs 0.0" in out, err
    assert "measured over 3 training seeds" in out


@pytest.mark.slow
def test_sample_stores(capsys: Capture) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 12)
    a = store("a", rng.binomial(16, p))
    b = store("b", rng.binomial(16, np.clip(p + 0.3, 0, 1)), replace(IDENTITY, model="Branch", seed=8))
    code, out, err = run(capsys, "compare", a, b, "--k", 8)
    assert code == 0, err
    assert "b vs a, pass@1 on sums: higher" in out and "over 12 problems and their samples" in out
    assert "sums: b vs a over k" in out and "sums: P(b > a), a problem's pass@1: " in out
    code, out, err = run(capsys, "compare", a, b)  # k is 256 or, as here, all samples
    assert code == 0 and "b vs a, pass@16 on sums: " in out and "pass@256" not in out, err
    code, out, err = run(capsys, "plan", "--problems", 60, "--from", a, b)
    assert code == 0 and "two arms, pass@16; " in out, err
    assert "pass@64 needs 64 samples" in run(capsys, "plan", "--problems", 60, "--k", 64, "--from", a, b)[2]
    code, out, err = run(capsys, "plan", "--problems", 60, "--samples", 16, "--k", 8, "--from", a, b)
    assert code == 0 and "from a pilot of 12 problems and 16 samples" in out, err
    hot = replace(IDENTITY, decoding={"preset": "hot", "temperature": 1.2, "max_new_tokens": 32})
    c = store("c", rng.binomial(16, p), hot)
    code, _, err = run(capsys, "compare", a, c, "--k", 8)
    assert code == 2 and "the settings differ" in err
    assert "temperature: 1.0 for a (a), 1.2 for c (c)" in err and "max_new_tokens: 64 for a (a), 32 for c (c)" in err
    d = store("d", rng.binomial(8, p), replace(IDENTITY, seed=9), n=8)
    assert "n: 16 for a (a), 8 for d (d); " in run(capsys, "compare", a, d, "--k", 8)[2]
    assert "n: 16 for a (a), 8 for d (d); " in run(capsys, "plan", "--problems", 60, "--k", 8, "--from", a, d)[2]
    code, out, err = run(capsys, "compare", a, d, "--k", 8, "--samples", 8)
    assert code == 0 and "d vs a, pass@8 on sums: " in out and "d keeps " in out, err
    assert "only for sample stores" in run(capsys, "compare", "x.npz", "y.npz", "--samples", 8)[2]
    assert "a was passed twice" in run(capsys, "compare", "a", "a")[2]  # no two seeds of one arm
    SampleStore.open("a").note(wanted={"problems": 13, "n": 16})
    code, _, err = run(capsys, "compare", a, b, "--k", 8)
    assert code == 2 and "a: has samples of 12 of 13 problems" in err


@pytest.mark.slow
def test_what_was_kept_found_and_lost(capsys: Capture) -> None:
    a = store("a", np.array([16, 16, 16, 0, 0, 0]))
    b = store("b", np.array([16, 16, 0, 16, 1, 0]), replace(IDENTITY, model="Branch", seed=8))
    code, out, err = run(capsys, "compare", a, b, "--k", 16)
    assert code == 0 and "b keeps 2 of the 3 problems of a solved in 16 samples, gains 2 and loses 1;" in out, err
    assert "SRR" not in out and "McNemar" not in out
    code, out, err = run(capsys, "compare", a, b, "--k", 16, "--support")
    assert code == 0, err
    assert "problems of a that b still solves at 16 samples: preserved 2, expanded 2, shrunk 1, outside 1; " in out
    assert "problems expanded and as many shrunk by chance" in out
    assert out.count("SRR: preserved / (preserved + shrunk)") == 1
    assert "McNemar's p = 1." in out and "SRR 0.667 [" in out and "NDR 0.500 [" in out and "NSCR 0.200 [" in out
    assert "1 new (p3), 1 lost (p2)." in out  # a single hit of 16 (p4) is no discovery
    code, out, err = run(capsys, "compare", a, b, "--k", 4, "--support")
    assert code == 0 and "expanded 1.25 (sampling error 0." in out and "McNemar" not in out, err
    error = float(out.split("expanded 1.25 (sampling error ")[1].split(")")[0])
    assert abs(error - 0.5) < 0.05  # of two disjoint sets of 4, half the time one alone holds p4's only hit


def test_runs_of_a_sampled_task_compare_by_their_sole_store(capsys: Capture) -> None:
    """Neither run has a record: the only store is taken; of two, or none, the next step is named."""
    for place, (name, right) in enumerate({"one": [16, 8, 0, 0, 3, 2], "two": [16, 16, 4, 0, 9, 8]}.items()):
        Path(name).mkdir()
        (Path(name) / "run.json").write_text('{"config": {}}')
        store(f"{name}/samples/sums", np.array(right), replace(IDENTITY, model=name, revision=name, seed=place))
    code, out, err = run(capsys, "compare", "one", "two")
    assert code == 0 and "two vs one, pass@16 on sums: " in out and "over 6 problems and their samples" in out, err
    store("two/samples/more", np.array([1, 2, 3, 4, 5, 6]), replace(IDENTITY, model="two", revision="two", seed=5))
    code, _, err = run(capsys, "compare", "one", "two")
    assert code == 2 and "2 sample stores; pass the path of one of them: two/samples/more, two/samples/sums" in err
    Path("bare").mkdir()
    (Path("bare") / "run.json").write_text('{"config": {}}')
    code, _, err = run(capsys, "compare", "one", "bare")
    assert code == 2 and "sage-rlvr eval bare --samples 64" in err


@pytest.mark.slow
def test_a_pilot_of_several_seeds_and_of_several_tasks(capsys: Capture) -> None:
    rng = np.random.default_rng(3)
    p, arms = rng.beta(1, 2, 12), []
    for i, arm in enumerate("ab"):
        one = [
            store(f"{arm}-{s}", rng.binomial(16, p), replace(IDENTITY, revision=f"r{s}", seed=9 * i + s)).split("=")[1]
            for s in range(3)
        ]
        arms.append(f"{arm}={','.join(one)}")
    code, out, err = run(capsys, "plan", "--problems", 60, "--k", 8, "--from", *arms)
    assert code == 0 and "measured over 3 training seeds" in out, err
    more = [store(f"c-{i}", rng.binomial(16, p), replace(IDENTITY, task="other", seed=70 + i)) for i in range(2)]
    both = [f"{arm},{path.split('=')[1]}" for arm, path in zip(arms, more, strict=True)]
    assert "a plan is for one data set" in run(capsys, "plan", "--problems", 60, "--k", 8, "--from", *both)[2]


@pytest.mark.slow
def test_samples_of_the_harness_get_our_verdicts_and_go_out_again(capsys: Capture) -> None:
    lines = [
        {
            "doc_id": i, "doc": {"q": i}, "target": str(i), "filter": "none", "metrics": ["exact_match"], "exact_match": 0.0,
            "arguments": {"gen_args_0": {"arg_0": f"{i}?", "arg_1": {"temperature": 0.7, "do_sample": True, "until": []}}},
            "resps": [[rf"So \boxed{{{i}}}.", f"{i} or \\boxed{{9}}"]], "filtered_resps": [["", ""]],
        }
        for i in range(6)
    ]  # fmt: skip
    Path("samples_sums_2026-01-02T03-04-05.6.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--from-lm-eval", "samples_sums_2026-01-02T03-04-05.6.jsonl", "--model", "theirs")
    code, out, err = run(capsys, "samples", "s", *words, "--judge", "boxed", "--patterns")
    assert code == 0 and "12 samples judged by the verifier of this package" in out, err
    assert out.count("pass^k: all k are right; maj@k: the most frequent answer of k is right; Cover@tau: share of problems") == 1
    assert "avg@2 0.500 [" in out and "constraint_setup: macro 0.000 [" in out
    code, out, err = run(capsys, "samples", "s", "--to-lm-eval", "out")
    assert code == 0 and "written: out/samples_sums_" in out, err
    written = [json.loads(line) for line in next(Path("out").glob("samples_*")).read_text().splitlines()]
    assert [line["exact_match"] for line in written] == [0.5] * 6
    assert "add --from-lm-eval" in run(capsys, "samples", "s", "--model", "x")[2]
    assert "add --to-lm-eval" in run(capsys, "samples", "s", "--docs", "aime")[2]
    assert "no sample store" in run(capsys, "samples", "nowhere")[2]
    ours = store("ours", np.array([3, 4]))
    assert "was not imported" in run(capsys, "samples", ours.split("=")[1], "--judge", "boxed")[2]
    assert "on the command line: --docs" in run(capsys, "samples", "ours", "--to-lm-eval", "o")[2]
    rows = ({"id": f"p{i}", "problem": f"{i}+1?", "answer": str(i + 1)} for i in range(2))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = run(capsys, "samples", "ours", "--to-lm-eval", "o", "--docs", "rows.jsonl", "--samples", 8)
    assert code == 0 and json.loads(next(Path("o").glob("samples_*")).read_text().splitlines()[1])["target"] == "2", err


def test_sample_stores_of_several_seeds(capsys: Capture) -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(1, 2, 12)
    paths = {}
    for arm, lift in (("a", 0.0), ("b", 0.3)):
        one = [
            store(
                f"{arm}-{s}", rng.binomial(16, np.clip(p + lift, 0, 1)), replace(IDENTITY, revision=f"r{s}", seed=s)
            ).split("=")[1]
            for s in range(3)
        ]
        paths[arm] = f"{arm}={','.join(one)}"
    code, out, err = run(capsys, "compare", paths["a"], paths["b"], "--k", 8)
    assert code == 0, err
    assert (
        "b vs a, pass@1 on sums: higher for these methods" in out
        and "sums: P(b > a), a problem's pass@1" in out
    )


@pytest.mark.slow
def test_plan(capsys: Capture) -> None:
    code, out, _ = run(capsys, "plan", "--problems", 60, "--samples", 256, "--seeds", 3, "--discordant", 0.1)
    assert code == 0 and "claims about checkpoints: can detect a difference of 0.147" in out
    assert "about 2,570 problems" in out and "10 runs per arm with Student's t (7 if that SD were known)" in out
    assert "options for more power, best value for the cost first: 120 problems (if there are more of them): 0.086 for" in out
    assert "3 training seeds of each" in out and "+0.017 in pass@1 and +0.015 in pass@256" in out
    code, out, err = run(capsys, "plan", "--problems", 60, "--samples", 64, "--seeds", 1)
    assert code == 0 and "1 training seed of each of two arms, pass@64; " in out, err
    for words, message in [
        (("--problems", 0), "whole numbers from 1 on"),
        (("--problems", 60, "--k", 512), "--k 512: pass@k needs at least k samples"),
        (("--problems", 60, "--run-cost", 0), "--run-cost 0: what a training run costs in completions is above 0"),
        (("--problems", 60, "--difference", "nan"), "--difference nan: a difference in pass@k lies between 0 and 1"),
        (("--problems", 60, "--difference", 1.5), "--difference 1.5: a difference in pass@k lies between 0 and 1"),
        (("--problems", 60, "--run-sd", "nan"), "--run-sd nan: a standard deviation of scores is a number from 0 on"),
        (("--problems", 60, "--discordant", "nan"), "--discordant nan: a share of the problems is above 0"),
        (("--problems", 60, "--noise-share", 2), "--noise-share 2: a share is a number from 0 to 1"),
        (("--problems", 60, "--discordant", 2), "--discordant 2: a share of the problems is above 0 and at most 1"),
        (("--problems", 60, "--from", "a.npz"), "expected two arms"),
        (("--problems", 60, "--from", "a.npz", "b.npz"), "no such evaluation"),
    ]:
        code, _, err = run(capsys, "plan", *words)
        assert code == 2 and message in err, err


@pytest.mark.slow
def test_frontiers_of_sample_stores(capsys: Capture) -> None:
    rng = np.random.default_rng(2)
    paths: dict[str, list[str]] = {}
    for arm, lift in (("a", 0.0), ("b", 0.8)):
        for i, (t, p) in enumerate(policies(lift, 0, 30).items()):
            law = replace(IDENTITY, model=arm, seed=i, decoding={"preset": "x", "temperature": t, "max_new_tokens": 64})
            paths.setdefault(arm, []).append(store(f"{arm}-{i}", rng.binomial(16, p), law).split("=")[1])
    arms = [f"{arm}={','.join(found)}" for arm, found in paths.items()]
    code, out, err = run(capsys, "compare", *arms, "--k", 8)
    assert code == 0, err
    assert "a, sums at T = 0.4: pass@1 0." in out
    apart = "Against a, pass@8 at equal pass@1 (mean over all temperatures) on sums: cannot be told (no common range of pass@1): "
    assert f"{apart}b." in out
    assert run(capsys, "compare", *arms, "--k", 8)[1] == out  # several temperatures are a frontier without being told
    assert (
        "a different policy than the other stores of a" in run(capsys, "compare", f"a=a-0,{paths['b'][1]}", arms[1], "--k", 8)[2]
    )
    assert (
        "was passed twice"
        in run(capsys, "compare", "a=a-0,a-0", "b-0", "--k", 8)[2]
    )


@pytest.mark.slow
def test_one_policy_twice_is_no_two_training_seeds(capsys: Capture) -> None:
    counts, other = np.arange(10), replace(IDENTITY, revision="s", seed=8)
    store("a-0", counts)
    store("a-1", counts, replace(IDENTITY, seed=9))
    store("b-0", counts, other)
    err = run(capsys, "compare", "a=a-0,b-0", "b=a-0,a-1", "--k", 4)[2]
    assert "b: a-0 and a-1 hold samples of the same weights (r), so they are not two training seeds" in err
    assert run(capsys, "compare", "a=a-0", "b=a-1", "--k", 4)[0] == 0
    again = record("x", policies()).split("=")[1]
    other = record("y", policies(0.1)).split("=")[1]
    err = run(capsys, "compare", f"x={again},{other}", f"y={other},{other}", "--k", 4)[2]
    assert "y: two of its records have the same weights" in err


@pytest.mark.slow
def test_arms_of_unlike_training_and_a_control_with_a_name(capsys: Capture) -> None:
    """The first arm is a trained run: it is called by its name; arms trained for unlike numbers of steps are told apart."""
    arms = []
    for name, steps, lift in (("short", 2, 0.0), ("long", 5, 0.8)):
        folder = Path("runs") / name
        (folder / "policy").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        rows = (f'{{"step": {i}, "loss": 0.0, "rollout/tokens": 1000.0}}\n' for i in range(steps))
        (folder / "metrics.jsonl").write_text("".join(rows))
        made = load_record(record(name, policies(lift)).split("=")[1])
        save_record(Record({**made.meta, "model": str(folder / "policy")}, made.logps), f"{name}.npz")
        arms.append(f"{name}={name}.npz")
    code, out, err = run(capsys, "compare", *arms, "--k", 16, "--support")
    assert code == 0, err
    assert "Training steps differ (short: 2; long: 5): a difference between these arms may come from the number of steps" in out
    drawn = "Cost per run: short: 0.002 M sampled tokens, 2 optimizer steps; long: 0.005 M sampled tokens, 5 optimizer steps."
    assert drawn in " ".join(out.split())
    assert "long vs short, pass@1, each at its best temperature: " in out and "the base" not in out
    assert (
        "long against short, exact, right completions with probability above 1/256 (Definition 4.1): preserved " in out
    )
    assert "Holm's correction runs once over 2 primary comparisons and once over " in out
    assert "Training steps differ" not in run(capsys, "compare", arms[0], "again=short.npz", "--k", 16)[1]
