"""The study's endpoints derived once more: worked by hand, and equal to what `sage-rlvr compare` computes where both apply."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.primaries import (
    ARM,
    BASE,
    OF_200_STEPS,
    RIVALS,
    Counts,
    Question,
    at_kl,
    by_one_quantile,
    counts_of,
    endpoint,
    endpoints,
    endpoints_of_200_steps,
    holm,
    judged,
    kls_of,
    noise,
    over_problems,
    score,
    solves,
)
from lab.room.smollm2 import REPEATED, ROOMS, read_room, together
from lab.study import all_seeds, details_of, over_rooms, primaries_table, rooms_of, tables_of
from sage_rlvr.errors import DataError
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.verdicts.kl import between
from sage_rlvr.verdicts.stats.paired import paired_seeds
from sage_rlvr.verdicts.stats.passk import pass_at_k

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def test_pass_at_k_by_counting_the_subsets() -> None:
    for n, c, k in itertools.product((4, 6), (0, 1, 3, 4), (1, 2, 3)):
        subsets = list(itertools.combinations(range(n), k))
        assert solves(n, c, k) == pytest.approx(sum(min(one) < c for one in subsets) / len(subsets))
    assert score([(64, 3), (64, 0)]) == pytest.approx(float(pass_at_k(np.array([64, 64]), np.array([3, 0]), 32).mean()))


def test_the_noise_of_the_base_is_that_of_drawing_it_again() -> None:
    """The jackknife's mean over draws is the variance of the score over the same draws, or somewhat more."""
    rng = np.random.default_rng(0)
    draws = rng.binomial(64, [0.01, 0.03, 0.2], size=(4000, 3))
    scores = [score([(64, int(c)) for c in row]) for row in draws]
    found = [noise([(64, int(c)) for c in row]) for row in draws[:1000]]
    assert 1 < np.mean(found) / np.var(scores) < 1.35


def test_a_difference_over_seeds_is_students() -> None:
    gaps = [0.02, 0.05, 0.01, 0.04, 0.03]
    found, other = judged("x", gaps), paired_seeds(gaps, np.zeros(5))
    assert (found.low, found.high, found.p) == pytest.approx((other.difference.low, other.difference.high, other.p))
    wider = judged("x", gaps, more=0.01**2)
    assert wider.low < found.low and wider.value == found.value and wider.p > found.p
    shared = paired_seeds(gaps, np.zeros(5), shared=0.01)
    assert (wider.low, wider.high, wider.p) == pytest.approx((shared.difference.low, shared.difference.high, shared.p))
    assert "cannot be told" in judged("x", gaps[:3], left_out=2).line()


def test_a_score_at_equal_kl_is_straight_in_log_kl() -> None:
    points = [(0.2, 0.7), (0.05, 0.5)]
    assert at_kl(0.1, points) == pytest.approx(0.6) and at_kl(0.3, points) is None and at_kl(0.04, points) is None
    three = [(0.4, 0.1), *points]
    assert at_kl(0.1, three) == pytest.approx(0.6) and at_kl(0.2, three) == pytest.approx(0.7) and at_kl(0.41, three) is None
    assert at_kl(0.2 * 2**0.5, three) == pytest.approx(0.4)  # between the other two
    other = between(0.07, np.array([0.2, 0.05]), np.array([[0.7], [0.5]]))
    assert other is not None and at_kl(0.07, points) == pytest.approx(float(other[0]))


def room(folder: Path, without: tuple[str, int] = ("", 0)) -> Path:
    """Two problems, five seeds; k3 has c = 8 and 2, its rivals 4 and 2, the base 2 and 1."""
    policies = [(arm, seed) for arm in (ARM, *RIVALS) for seed in range(5) if (arm, seed) != without]
    right = {ARM: (8, 2), RIVALS[0]: (4, 2), RIVALS[1]: (4, 2), BASE: (2, 1)}
    rows: list[dict[str, object]] = []
    for arm, seed in [*policies, (BASE, None)]:
        named = {"arm": arm} if seed is None else {"arm": arm, "seed": seed}
        for t, (name, c) in itertools.product((1.0, 0.4), zip("ab", right[arm], strict=True)):
            rows.append(named | {"task": "t", "temperature": t, "id": name, "n": 64, "c": c + (seed or 0) % 2 if t == 1 else 0})
    kls = {ARM: 0.1, RIVALS[0]: 0.2, RIVALS[1]: 0.05}
    (folder / "design.yaml").write_text("seeds: [0, 1, 2, 3, 4]\n")
    exact = [{"arm": a, "seed": s, "reverse": kls[a], "forward": kls[a]} for a, s in policies]
    for name, found in (("counts", rows), ("exact_kl", exact)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


def test_the_endpoints_of_a_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["primaries", str(room(tmp_path))]) == 0
    first, second = capsys.readouterr().out.splitlines()
    even, odd = (solves(64, 8 + i) - solves(64, 4 + i) for i in (0, 1))
    assert f"{(3 * even + 2 * odd) / 10:+.4f}" in first and "5 seeds" in first
    base = (solves(64, 2) + solves(64, 1)) / 2
    k3 = (3 * (solves(64, 8) + solves(64, 2)) + 2 * (solves(64, 9) + solves(64, 3))) / 10
    assert f"{k3 - base:+.4f}" in second
    kls = {(arm, seed): 1.0 for arm in (ARM, *RIVALS) for seed in range(5)} | {(ARM, 3): 9.0}
    found = endpoints(counts_of(tmp_path / "counts.jsonl"), kls, range(5))
    assert found[0].left_out == 1 and found[0].seeds == 4


def test_holms_correction_by_hand() -> None:
    one, two, none = judged("x", [0.1, 0.2, 0.1, 0.3]), judged("y", [0.1, -0.2, 0.1, 0.3]), judged("z", [0.1])
    assert one.p < two.p
    assert holm([two, one]) == pytest.approx([max(two.p, 2 * one.p), 2 * one.p])
    assert holm([one, none])[0] == pytest.approx(2 * one.p) and math.isnan(holm([one, none])[1])


def test_a_room_that_is_not_complete_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room(tmp_path, without=(RIVALS[0], 2))
    with pytest.raises(DataError, match="seed 2 has no counts or no KL of GRPO, k3_is;"):
        endpoints(counts_of(tmp_path / "counts.jsonl"), {(a, s): 0.1 for a in (ARM, *RIVALS) for s in range(5)}, range(5))
    room(tmp_path)
    with pytest.raises(DataError, match="no counts or no KL of GRPO, k3;"):
        endpoints(counts_of(tmp_path / "counts.jsonl"), {(a, s): 0.1 for a in RIVALS for s in range(5)}, range(5))
    room(tmp_path)
    (tmp_path / "design.yaml").write_text("seeds: [0, 1, 2, 3, 4, 5]\n")  # one that no arm has yet
    assert main(["primaries", str(tmp_path)]) == 2
    assert "seed 5 has no counts or no KL of GRPO, k3," in capsys.readouterr().err
    (tmp_path / "exact_kl.jsonl").unlink()
    assert main(["primaries", str(tmp_path)]) == 2


# ---- 200 steps


def test_the_endpoints_of_200_steps_are_the_questions_of_their_designs() -> None:
    asked = []
    for folder in dict.fromkeys(question.experiment for question in OF_200_STEPS):
        design = load_design(EXPERIMENTS / folder / "design.yaml")
        specs = {name: design.spec(name) for name in design.arms}
        labels = {name: str(spec.label) for name, spec in specs.items()}
        for question in design.questions:
            matched = bool(question.metric.matched)
            rivals = specs[question.a].kl_matched if matched else () if question.b == BASE else (question.b,)
            asked.append((folder, labels[question.a], {labels[name] for name in rivals}, question.metric.k))
    assert asked == [(one.experiment, one.arm, set(one.rivals), 32) for one in OF_200_STEPS]


def longer(experiments: Path, seeds: int = 5) -> None:
    """The three folders, of one problem: in seed s the first arm of each question has c = 4 + s % 2, its rivals 1, 2, 3 in order,
    the base 1; the KL of k3 is in the middle, in log KL, between its first two rivals. The last seed of EAPO is not there."""
    for question in OF_200_STEPS:
        folder = experiments / question.experiment
        folder.mkdir(exist_ok=True)
        (folder / "design.yaml").write_text(f"seeds: {list(range(seeds))}\n")
        same = [one for one in OF_200_STEPS if one.experiment == question.experiment]
        right = {arm: i for one in same for i, arm in enumerate(one.rivals, 1)} | {one.arm: 4 for one in same}
        kls = {arm: 0.05 * 4 ** (i - 1) for arm, i in right.items() if i < 4}
        rows: list[dict[str, object]] = [{"arm": BASE, "task": "t", "temperature": 1.0, "id": "a", "n": 64, "c": 1}]
        runs = [(arm, seed) for arm in right for seed in range(seeds) if (arm, seed) != ("EAPO", seeds - 1)]
        for arm, seed in runs:
            c = right[arm] + (seed % 2 if right[arm] == 4 else 0)
            rows.append({"arm": arm, "seed": seed, "task": "t", "temperature": 1.0, "id": "a", "n": 64, "c": c})
        found = [{"arm": arm, "seed": seed, "reverse": kls.get(arm, 0.1)} for arm, seed in runs]
        for name, lines in (("counts", rows), ("exact_kl", found)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))


def test_the_endpoints_of_200_steps_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer(tmp_path)
    found = endpoints_of_200_steps(tmp_path)
    mean = (3 * solves(64, 4) + 2 * solves(64, 5)) / 5
    one, two = solves(64, 1), solves(64, 2)
    assert [each.value for each in found[:4]] == pytest.approx([mean - b for b in ((one + two) / 2, one, one, one)])
    assert [each.seeds for each in found] == [5, 5, 5, 5, 4]
    assert found[4].value == pytest.approx((solves(64, 4) + solves(64, 5)) / 2 - one)
    assert main(["primaries", str(tmp_path / OF_200_STEPS[4].experiment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and all("the five of 200 steps" in line for line in lines)
    table = primaries_table({}, tmp_path)
    assert sorted(row[-1] for row in table.rows) == ["cannot be told", "failed", "failed", "held", "held"]
    longer(tmp_path, seeds=4)  # three of EAPO
    assert "cannot be told, 3 seeds" in endpoints_of_200_steps(tmp_path)[4].line()


def test_200_steps_are_judged_once_their_runs_have_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer(tmp_path)
    (tmp_path / OF_200_STEPS[4].experiment / "counts.jsonl").unlink()  # the time ended before EAPO
    assert [one.seeds for one in endpoints_of_200_steps(tmp_path)] == [5, 5, 5, 5, 0]
    (tmp_path / OF_200_STEPS[2].experiment / "exact_kl.jsonl").unlink()
    with pytest.raises(DataError, match=r"200_branch: no exact_kl\.jsonl"):  # damaged, and said
        primaries_table({}, tmp_path)
    (tmp_path / OF_200_STEPS[0].experiment / "counts.jsonl").unlink()
    assert main(["primaries", str(tmp_path / OF_200_STEPS[0].experiment)]) == 2
    assert "200_kl: no counts.jsonl" in capsys.readouterr().err
    assert not primaries_table({}, tmp_path).rows


def test_other_choices_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeats of a problem are pooled, and count once; the interpolation may be linear in KL."""
    rows = [{"arm": BASE, "temperature": 1.0, "id": name, "n": 64, "c": c} for name, c in (("a", 0), ("a #2", 2), ("b", 64))]
    (tmp_path / "counts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert counts_of(tmp_path / "counts.jsonl")[BASE, None] == [(64, 0), (64, 2), (64, 64)]
    assert counts_of(tmp_path / "counts.jsonl", pooled=True)[BASE, None] == [(128, 2), (64, 64)]
    assert at_kl(0.2, [(0.1, 0.0), (0.4, 1.0)]) == pytest.approx(0.5)
    assert at_kl(0.2, [(0.1, 0.0), (0.4, 1.0)], float) == pytest.approx(1 / 3)
    room = EXPERIMENTS / "2026-11-27_smollm2_little_room"
    assert main(["primaries", str(room), "--sensitivity"]) == 0
    printed = capsys.readouterr().out
    assert "\n116 distinct problems of 200: k3 less k3_is in pass@32 at equal exact reverse KL: +0.0902" in printed
    assert printed.count("without training seed ") == 5 and printed.count("no interpolation: ") == 2
    assert printed.count("with their choice in the interval: ") == 2
    assert "GRPO, k3 less k3_is in pass@32 at equal exact forward KL: cannot be told, 3 seeds, 2 outside" in printed
    assert "another k: GRPO, k3 less k3_is in pass@1 at equal exact KL: +0.0053 (-0.0416 to +0.0523)" in printed


def test_another_k_and_another_divergence_by_hand(tmp_path: Path) -> None:
    """16 and 48 of 64 right: pass@1 differs by 1/2, and pass@64, where one right sample is enough, by 0."""
    counts: Counts = {(arm, seed): [(64, c)] for arm, c in ((ARM, 48), ("other", 16)) for seed in range(4)}
    kls = dict.fromkeys(counts, 0.1)
    assert endpoint(Question("x", ARM, ("other",), k=1), counts, kls, range(4)).value == pytest.approx(0.5)
    assert endpoint(Question("x", ARM, ("other",), k=64), counts, kls, range(4)).value == 0
    base: Counts = counts | {(BASE, None): [(64, 32)]}
    assert endpoint(Question("x", ARM, k=1), base, kls, range(4)).value == pytest.approx(0.25)
    (tmp_path / "kl.jsonl").write_text(json.dumps({"arm": ARM, "seed": 0, "reverse": 0.1, "forward": 0.3}) + "\n")
    assert kls_of(tmp_path / "kl.jsonl")[ARM, 0] == 0.1 and kls_of(tmp_path / "kl.jsonl", "forward")[ARM, 0] == 0.3


def test_rooms_as_one_family_by_hand() -> None:
    """p of 0.01 and 0.02 among four endpoints, of which one is not defined: 0.04 and 0.06."""
    first, second, third = (replace(judged("x", [0.1, 0.2, 0.1, 0.3]), p=p) for p in (0.01, 0.02, 0.25))
    (line,) = over_rooms({"a": [judged("y", [0.1]), first], "b": [second, third]})
    assert "the 4 endpoints of a and b one family, Holm's p would be: a, 2: 0.040; b, 1: 0.060; b, 2: 0.500." in line
    assert over_rooms({"a": [first, second]}) == []


def test_the_choice_of_problems_by_hand() -> None:
    """Two problems, four seeds: gaps of 1/2, 1/2, 0, 1/2 over seeds, of 3/4 and 0 over problems."""
    solved = [1, 1, 0, 1]
    counts = {(ARM, seed): [(64, 64 * one), (64, 0)] for seed, one in enumerate(solved)}
    counts |= {("other", seed): [(64, 0), (64, 0)] for seed in range(4)}
    found = over_problems(Question("x", ARM, ("other",)), counts, dict.fromkeys(counts, 0.1), range(4))
    assert (found.value, found.seeds, found.left_out) == (0.375, 4, 0)
    reach = math.hypot(3.182446 * 0.25 / math.sqrt(4), 1.959964 * math.sqrt(0.75**2 / 2) / math.sqrt(2))
    assert found.high - found.value == pytest.approx(reach, abs=1e-6)


# ---- a room repeated with fresh training seeds


def test_a_repetition_has_its_rows_and_all_seeds_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seeds of c = 8, 9, 8, 9, 8 and five fresh ones of 9, 8, 9, 8, 9, so ten with as many 8 as 9."""
    names = {"little room": ROOMS["little room"], **REPEATED}
    for folder in ROOMS.values():
        (tmp_path / folder).mkdir()
        room(tmp_path / folder)
    assert list(rooms_of(tmp_path)) == list(ROOMS)  # a folder that is not there was not asked for
    fresh = tmp_path / names["little room, repeated"]
    fresh.mkdir()
    room(fresh)
    with pytest.raises(DataError, match="share a training seed"):
        together(*(read_room(tmp_path / folder) for folder in names.values()))
    (fresh / "design.yaml").write_text("seeds: [5, 6, 7, 8, 9]\n")
    for name in ("counts", "exact_kl"):
        rows = [json.loads(line) for line in (fresh / f"{name}.jsonl").read_text().splitlines()]
        for row in rows:
            if "seed" in row:
                row["seed"] += 5
                if row.get("temperature") == 1:
                    row["c"] += 1 if row["seed"] % 2 else -1
        (fresh / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rooms = rooms_of(tmp_path)
    assert list(rooms) == [*ROOMS, *REPEATED]
    whole = together(rooms["little room"], rooms["little room, repeated"])
    even, odd = (solves(64, 8 + i) - solves(64, 4 + i) for i in (0, 1))
    line = all_seeds("little room", rooms["little room"], rooms["little room, repeated"])
    assert whole.seeds == list(range(10)) and f"equal exact reverse KL {(even + odd) / 4:+.3f} (" in line
    table = primaries_table(rooms, tmp_path)
    (row,) = (row for row in table.rows if row[0] == "little room, repeated" and "k3_is" in row[1])
    assert f"{(2 * even + 3 * odd) / 10:+.3f}" in row[3] and row[2] == "positive" and line in table.notes
    for name in ("chance_of_room", "beyond", "beyond_lines", "headline"):  # one problem, of no task, and seeds without scatter
        monkeypatch.setattr(f"lab.study.{name}", lambda *_: "")
    monkeypatch.setattr("lab.study.against_base", lambda _: table)
    assert "arms little room, repeated" in details_of(rooms) and "arms little room, repeated" not in tables_of(rooms, tmp_path)


def test_an_endpoint_less_the_base_by_one_quantile_by_hand() -> None:
    """Five seeds with one more right sample each: one t quantile, 2.776, for their scatter and the base's noise together."""
    counts = {(ARM, seed): [(64, 2 + seed)] for seed in range(5)} | {(BASE, None): [(64, 3)]}
    gaps = [solves(64, 2 + seed) - solves(64, 3) for seed in range(5)]
    error = math.sqrt(np.var(gaps, ddof=1) / 5 + noise(counts[BASE, None]))
    found = by_one_quantile(Question("", ARM), counts, range(5))
    assert found.value == pytest.approx(np.mean(gaps)) and found.high - found.value == pytest.approx(2.776445 * error, rel=1e-6)
