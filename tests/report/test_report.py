"""The report end to end on a small synthetic result: sentences, table, JSON, figures, and a page that loads nothing."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.experiments.demo import ARMS, EXTRA_ARMS
from sage_rlvr.report import (
    Arm,
    Result,
    SeedSummary,
    Support,
    Training,
    arm_from_logps,
    from_dict,
    load_result,
    render_page,
    render_seed_page,
    results_table,
    seeds_table,
    seeds_to_dict,
    summarise,
    summarise_seeds,
    support_table,
    to_dict,
    write_report,
    write_seed_report,
)
from sage_rlvr.report.style import colour, dark_twins, marker
from sage_rlvr.report.summary import _CONTROLS, frontier_verdicts, key_of

N = 60
HOSTILE = "<script>alert('x')</script>"


def policy(shift: float, slope: float, seed: int) -> dict[float, tuple[float, ...]]:
    z = np.random.default_rng(0).normal(size=N)
    own = 0.3 * np.random.default_rng(seed).normal(size=N)
    return {
        t: tuple((1 / (1 + np.exp(-shift - 1.1 * (1 - t) - slope / t**0.5 * (z + own)))).tolist()) for t in (0.2, 1.0)
    }


def training(seed: int) -> Training:
    rng, steps = np.random.default_rng(seed), tuple(float(s) for s in range(50))
    noise = lambda: tuple(rng.random(50).tolist())  # noqa: E731
    return Training(step=steps, reward=noise(), kl_raw=noise(), entropy=noise())


@pytest.fixture(scope="module")
def result() -> Result:
    distinct = tuple(np.linspace(1, 9, N).tolist())
    arms = [
        Arm(
            name="base",
            ps=policy(-2.2, 2.0, 1),
            trained=False,
            distinct=distinct,
            support=Support(eps=1 / 256, correct=900, supported=400),
        )
    ]
    for i, (name, shift, slope) in enumerate([("no KL", -0.5, 4.5), ("GRPO", -1.0, 3.0), ("SAGE-Branch", -1.0, 3.0)]):
        counts = Support(eps=1 / 256, correct=900, supported=380, preserved=350, gained=30, lost=50)
        arms.append(
            Arm(
                name=name, ps=policy(shift, slope, i + 2), distinct=distinct, support=counts, training=training(i),
                seconds=61.0, equation=f"J = E[A] - beta KL {HOSTILE}", config={"lr": 1e-4, "note": HOSTILE},
            )
        )  # fmt: skip
    return Result(
        arms=tuple(arms), problems=N, title=f"Countdown {HOSTILE}", world="four numbers", seed=3407,
        versions={"torch": "2.13", "site": "https://example.org/x"}, notes=(HOSTILE,),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(result) -> str:
    return render_page(result)


def test_sentences_cover_the_promised_comparisons(result):
    summary = summarise(result)
    heads = [s.split(":")[0] for s in summary.sentences]
    for name in ("no KL", "GRPO", "SAGE-Branch"):
        assert f"{name} vs base, pass@1" in heads and f"{name} vs base, pass@256" in heads
        assert f"{name} against the base's temperature frontier" in heads
    assert "GRPO vs no KL, pass@256" in heads and "SAGE-Branch vs GRPO, pass@1" in heads
    assert any(
        f"best pass@1 of the base at any of the {len(result.arms[0].ps)} temperatures tried" in s
        for s in summary.sentences
    )
    assert all("these checkpoints" in v.sentence for v in summary.verdicts)
    assert "one training seed" in summary.caveats[0] and HOSTILE in summary.caveats


def test_explicit_pairs_replace_the_usual_ones(result):
    summary = summarise(replace(result, pairs=(("no KL", "SAGE-Branch"),)))
    heads = [s.split(":")[0] for s in summary.sentences]
    assert "no KL vs SAGE-Branch, pass@1" in heads and "SAGE-Branch vs GRPO, pass@1" not in heads


def test_frontier_sentence_words(result):
    base = result.arms[0]
    strong = Arm(name="strong", ps={1.0: tuple(np.clip(np.array(base.ps[0.2]) + 0.2, 0, 1).tolist())})
    clone = Arm(name="clone", ps={1.0: base.ps[1.0]})
    texts = {a.name: a.sentence for a in summarise(replace(result, arms=(base, strong, clone))).against_frontier}
    assert "0.2" in texts["strong"] and "its own best" not in texts["strong"]  # it has one temperature alone
    assert f"exceeds the best pass@1 of the base at any of the {len(base.ps)} temperatures tried (" in texts["strong"]
    assert "beyond the base's frontier" in texts["strong"]
    assert "falls below the best pass@1" in texts["clone"] and "sampled at T = 1, has pass@256" in texts["clone"]


def test_a_tie_with_the_frontier_is_not_called_lying_on_it(result):
    """An interval that holds zero says that nothing can be told, and how large a difference could have hidden."""
    base = result.arms[0]
    noise = 0.02 * np.random.default_rng(0).normal(size=N)
    middle = np.clip(0.5 * (np.array(base.ps[0.2]) + np.array(base.ps[1.0])) + noise, 0, 1)
    arm = Arm(name="near", ps={1.0: tuple(middle.tolist())})
    (item,) = summarise(replace(result, arms=(base, arm), k=8, ks=(1, 8))).against_frontier
    gap = item.equal.difference
    assert gap is not None and gap.contains(0.0)
    seen = item.equal
    hidden = f"(80 % power) {seen.detectable:.3f}, up to {seen.detectable_high:.3f} at 95 % confidence"
    assert "cannot be told from the base's frontier at equal pass@1 (difference" in item.sentence
    assert hidden in item.sentence and "lies" not in item.sentence and item.equal.detectable >= abs(gap.value)


def test_a_tie_with_the_best_temperature_is_no_verdict(result):
    base = result.arms[0]
    best = np.array(base.ps[0.2])
    arm = Arm(
        name="near", ps={1.0: tuple(np.clip(best + 0.05 * np.random.default_rng(1).normal(size=N), 0, 1).tolist())}
    )
    (item,) = summarise(replace(result, arms=(base, arm))).against_frontier
    assert item.pass1.verdict == "tied" and "cannot be told from the best pass@1 of the base" in item.sentence
    assert "does not exceed" not in item.sentence


def test_arm_and_base_are_both_taken_at_their_best(result):
    (item, *_) = summarise(result).against_frontier
    own = max(result.arms[1].ps.items(), key=lambda pair: np.mean(pair[1]))
    assert item.best is not None and item.best.mean_a == pytest.approx(np.mean(own[1]))
    assert f"its own best, {np.mean(own[1]):.3f} at T = {own[0]:g}, exceeds it" in item.sentence
    assert any("chosen on these same problems" in text for text in summarise(result).caveats)


def test_table_holds_values_and_intervals(result):
    summary = summarise(result)
    table = results_table(summary)
    assert table.header[:5] == ("arm", "pass@1", "pass@8", "pass@64", "pass@256")
    value, interval = table.rows[0][1].split("\n")
    assert float(value) == pytest.approx(result.arms[0].p.mean(), abs=5e-4)
    low, high = map(float, interval.split("–"))
    assert low < float(value) < high
    assert table.rows[2][6] == "350\n+30 −50" and "T = 0.2 of 2" in table.rows[0][7]
    markdown = table.markdown()
    assert len({line.count(" | ") for line in markdown.split("\n\n")[0].splitlines()}) == 1
    assert support_table(summary).rows[1] == ("no KL", "900", "380", "350", "30", "50")


def test_markdown_escapes_cells(result):
    arms = (result.arms[0], replace(result.arms[1], name="a|b <i>"))
    text = results_table(summarise(replace(result, arms=arms))).markdown()
    assert "a\\|b &lt;i>" in text


def test_page_escapes_everything(page):
    assert HOSTILE not in page and "<script" not in page
    assert page.count("&lt;script&gt;") >= 5


class Loads(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.ids, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "srcset", "data", "action", "poster") and not value.startswith("#"):
                self.found.append((tag, key, value))
            if key == "id":
                self.ids.append(value)


def test_page_loads_nothing(page):
    parser = Loads()
    parser.feed(page)
    assert parser.found == [] and not {"script", "iframe", "link", "object"} & set(parser.open)
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert page.count("https://") == 1  # the version text that the result brought, as text
    assert len(parser.ids) == len(set(parser.ids))
    wanted = set(re.findall(r'xlink:href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert {a or b for a, b in wanted} <= set(parser.ids)


def test_page_has_its_parts_in_order(page):
    heads = re.findall(r'<h2 id="(\w+)"', page)
    assert heads == ["verdicts", "table", "curves", "frontier", "training", "support", "cards"]
    assert page.count("<svg") == 6 and page.count('role="img"') == 6
    for needed in (
        "prefers-color-scheme: dark",
        "@media print",
        "width=device-width",
        "overflow-x: auto",
        "one training seed",
    ):
        assert needed in page
    assert "var(--c0072b2, #0072b2)" in page


def test_the_page_claims_no_more_than_it_shows(page):
    text = " ".join(page.split())
    assert "learned nothing" not in text and "lies on" not in text
    assert "shows no gain in pass@1 or pass@256 over sampling the base colder" in text


def test_json_round_trip(result):
    data = json.loads(json.dumps(to_dict(result)))
    assert from_dict(data) == result
    assert summarise(data).sentences == summarise(result).sentences
    hole = replace(result.arms[1].training, reward=(math.nan, *result.arms[1].training.reward[1:]))
    again = from_dict(
        json.loads(json.dumps(to_dict(replace(result, arms=(result.arms[0], replace(result.arms[1], training=hole))))))
    )
    assert math.isnan(again.arms[1].training.reward[0])


@pytest.mark.slow
def test_written_files(result, tmp_path):
    paths = write_report(result, tmp_path / "new" / "report")
    for picture in (paths.passk, paths.frontier, paths.difference, paths.training):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert load_result(paths.result) == result
    assert paths.html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list((tmp_path / "new" / "report").glob("*.partial"))


@pytest.mark.slow
def test_the_same_result_gives_the_same_page(result, page):
    assert render_page(result) == page


def test_base_alone_and_one_problem_still_render(result):
    page = render_page(replace(result, arms=(replace(result.arms[0], support=None, distinct=None),)))
    assert 'id="support"' not in page and 'id="training"' not in page
    tiny = Result(
        arms=(Arm(name="base", ps={1.0: (0.2,)}, trained=False), Arm(name="GRPO", ps={1.0: (0.4,)})), problems=1
    )
    page = render_page(tiny)
    assert "no interval" in page and "cannot be told (too few problems: 1)" in page


def test_arm_from_logps():
    rows = [np.log([0.5, 0.1]), np.log([0.01])]
    arm = arm_from_logps("GRPO", {1.0: rows, 0.5: rows}, base=[np.log([0.5, 0.001]), np.log([0.2])], eps=0.05, k=2)
    assert arm.ps[0.5] == pytest.approx((0.6, 0.01))
    assert arm.support == Support(eps=0.05, correct=3, supported=2, preserved=1, gained=1, lost=1)
    assert arm.distinct[0] == pytest.approx(0.75 + 0.19)
    with pytest.raises(DataError, match=r"home temperature 0\.7"):
        arm_from_logps("GRPO", {1.0: rows}, temperature=0.7)


def test_refusals_name_what_is_wrong(result):
    base, arm = result.arms[0], result.arms[1]
    bad = {
        "12 problems instead of 60": replace(arm, ps={1.0: arm.ps[1.0][:12]}),
        "not a probability": replace(arm, ps={1.0: (-0.5, *arm.ps[1.0][1:])}),
        "home temperature 0.9": replace(arm, temperature=0.9),
        "names repeat": replace(arm, name="base"),
        "distinct has 1": replace(arm, distinct=(1.0,)),
        "differ in length": replace(arm, training=replace(arm.training, reward=(0.1,))),
    }
    for words, wrong in bad.items():
        with pytest.raises(DataError, match=re.escape(words)):
            summarise(replace(result, arms=(base, wrong)))
    with pytest.raises(DataError, match="no arm named 'bose'"):
        summarise(replace(result, base="bose"))
    with pytest.raises(DataError, match="hold 1 and k = 512"):
        summarise(replace(result, k=512))
    with pytest.raises(DataError, match="unknown colour"):
        from_dict({**to_dict(result), "colour": "red"})
    with pytest.raises(DataError, match="schema = 9"):
        from_dict({**to_dict(result), "schema": 9})


def test_unreadable_result_is_refused(tmp_path):
    (tmp_path / "result.json").write_text("{half")
    with pytest.raises(DataError, match=r"result\.json"):
        load_result(tmp_path / "result.json")


def moved(result: Result, seed: int) -> Result:
    """The same arms from another training seed."""
    arms = [replace(a, ps=policy(-1.0 + 0.02 * seed, 3.0, 10 * seed + i)) for i, a in enumerate(result.arms[1:])]
    return replace(result, seed=seed, arms=(result.arms[0], *arms))


@pytest.fixture(scope="module")
def seeds(result) -> SeedSummary:
    return summarise_seeds([moved(result, s) for s in (1, 2, 3)])


def test_several_training_seeds_speak_about_methods(result, seeds):
    assert seeds.seeds == 3
    c = seeds.comparisons["GRPO", "base", 1]
    assert c.verdict == "better" and c.p < c.adjusted < 0.05 and c.family == len(seeds.sentences) == 13
    assert all("these methods" in s and "3 training seeds on these 60 problems" in s for s in seeds.sentences)
    assert any(
        s.startswith("GRPO at its best temperature vs base at its best temperature (0.") for s in seeds.sentences
    )
    assert seeds.passes["GRPO"][256].over == "training seeds"
    caveats = " ".join(seeds.caveats)
    assert "hold these 60 problems fixed" in caveats and "corrected for the 13 comparisons" in caveats
    assert "chosen on these same problems" in caveats and f"Training seed 1. {HOSTILE}" in caveats
    one = summarise_seeds([result])
    assert all("cannot be told (one training seed)" in s for s in one.sentences)
    with pytest.raises(DataError, match="results differ"):
        summarise_seeds([result, replace(result, arms=result.arms[:2])])


def test_two_training_seeds_say_nothing_about_methods(result):
    two = summarise_seeds([moved(result, s) for s in (1, 2)])
    assert not any(c.told for c in two.comparisons.values())
    assert all("two training seeds: a claim about methods needs at least three" in s for s in two.sentences)
    assert two.caveats[0].startswith("2 training seeds: nothing is said about the methods")
    page = render_seed_page(two, ["a.html", "b.html"])
    assert "Two seeds are too few for bands" in page and ">cannot be told</span>" in page


def test_the_numbers_of_every_seed_are_there(seeds):
    data = json.loads(json.dumps(seeds_to_dict(seeds), allow_nan=False))
    for result in seeds.results:
        arm = result.arm("GRPO")
        mine = data["arms"]["GRPO"]["pass_at_k"][str(result.seed)]
        assert mine["8"] == pytest.approx(np.mean(1 - (1 - arm.p) ** 8)) and list(mine) == [str(k) for k in result.ks]
        cold = data["arms"]["GRPO"]["frontier"][str(result.seed)][0]
        assert (cold["temperature"], cold["pass1"]) == pytest.approx((0.2, np.mean(arm.ps[0.2])))
    mean = data["arms"]["GRPO"]["mean"]["8"]
    assert mean["low"] < mean["value"] < mean["high"] and mean["n"] == 3
    first = data["comparisons"][0]
    assert {"a", "b", "k", "difference", "p", "adjusted", "verdict", "detectable", "detectable_high"} <= set(first)


def test_the_table_of_means(seeds):
    table = seeds_table(seeds)
    base, *trained = table.rows
    assert base[1].endswith("one policy") and all("–" in row[1] for row in trained)
    values = [np.mean(r.arm("GRPO").p) for r in seeds.results]
    assert trained[1][1].startswith(f"{np.mean(values):.3f}\n")
    best = [max(np.mean(p) for p in r.arm("GRPO").ps.values()) for r in seeds.results]
    assert trained[1][-1].startswith(f"{np.mean(best):.3f}\n")


@pytest.mark.slow
def test_a_page_about_the_methods_and_one_for_each_seed(seeds, tmp_path):
    paths = write_seed_report(seeds, tmp_path)
    page = paths.html.read_text(encoding="utf-8")
    parser = Loads()
    parser.feed(page)
    assert [link for _, _, link in parser.found] == [f"seed-{s}/report.html" for s in (1, 2, 3)]
    assert all((tmp_path / link).is_file() for _, _, link in parser.found)
    assert HOSTILE not in page and "<script" not in page and page.count("<svg") == 2
    assert re.findall(r'<h2 id="(\w+)"', page) == ["verdicts", "table", "curves", "frontier", "seeds"]
    plain = html.unescape(page)
    assert all(s in plain for s in seeds.sentences)
    assert paths.passk.read_bytes().startswith(b"\x89PNG") and paths.frontier.exists()
    assert json.loads(paths.result.read_text(encoding="utf-8"))["seeds"] == ["1", "2", "3"]
    own = paths.pages[0].html.read_text(encoding="utf-8")
    assert "This page is one of 3 training seeds" in own and "Each arm was trained once" not in own
    assert 'href="../report.html"' in own and not list(tmp_path.rglob("*.partial"))


def test_colours_belong_to_the_arm_whatever_its_spelling():
    assert colour("SAGE-Branch") == colour("sage_branch") == colour("branch")
    assert colour("no KL") == colour("no_kl") and colour("GRPO") != colour("no KL")
    assert len({colour(n) for n in ("base", "no KL", "GRPO", "SAGE-Branch", "placebo", "SAGE-Token")}) == 6
    assert colour("my own") == colour("my own")


def test_every_arm_of_the_demo_has_a_look_of_its_own():
    arms = ["base", *ARMS, *EXTRA_ARMS]
    assert len({colour(arm) for arm in arms}) == len({colour(arm, dark=True) for arm in arms}) == len(arms)
    for family in (("BNPO", "BNPO-KL", "BNPO+Branch"), ("DAPO", "DAPO-KL", "DAPO+Branch", "DAPO-overlong")):
        assert len({marker(arm) for arm in family}) == len(family)
    twins = dark_twins()
    assert all(twins[colour(arm)] == colour(arm, dark=True) for arm in arms)


def test_every_pair_of_controls_is_two_arms_of_the_demo():
    keys = {key_of(arm) for arm in (*ARMS, *EXTRA_ARMS)}
    assert {name for pair in _CONTROLS for name in pair} <= keys
    guided = {key for key in keys if key.endswith("branch") and key != "sagebranch"}
    assert guided <= {shaped for shaped, _ in _CONTROLS}


def temperatures(hot: float, bent: bool = False) -> dict[float, list[np.ndarray]]:
    """Two problems, solved with `hot` times the temperature; where `bent`, at the coldest one alone with the other's share."""
    rows = {t: [np.log([hot * t]), np.log([hot * t])] for t in (0.25, 0.5, 1.0, 2.0)}
    return rows | ({0.25: [np.log([0.5 * hot]), np.log([1e-9])]} if bent else {})


def test_frontiers_are_told_as_a_mean_and_near_temperature_one():
    """Over three seeds, from results to the sentence: an arm twice as hot lies on the control's frontier; a bent one lies below it
    at the cold end alone; one fifty times as hot has no temperature in common with it, which is no verdict; one with as many
    more answers as its temperature says lies on it in pass@k and one above it in distinct answers."""
    seeds, pairs = [], (("hot", "GRPO"), ("bent", "GRPO"), ("GRPO", "far"), ("split", "GRPO"))
    for seed, p in enumerate((0.02, 0.021, 0.022)):
        base = temperatures(1.5 * p)
        arms = [arm_from_logps("base", base, trained=False, k=8)]
        made = {
            "GRPO": temperatures(p),
            "hot": temperatures(2 * p),
            "bent": temperatures(p, True),
            "far": temperatures(20 * p),
        }
        arms += [arm_from_logps(name, rows, base=base[1.0], k=8) for name, rows in made.items()]
        grpo = arms[1]
        assert grpo.varieties[0.5] == pytest.approx(1 - (1 - p / 2) ** 8)  # one right answer a problem: as its pass@8
        arms.append(replace(grpo, name="split", varieties={t: mean + t for t, mean in grpo.varieties.items()}))
        seeds.append(Result(arms=tuple(arms), problems=2, k=8, ks=(1, 8), seed=seed, pairs=pairs))
    found = {(one.a, one.b, one.metric): one for one in frontier_verdicts(seeds, [*pairs, ("GRPO", "base")], 8)}
    whole, near, distinct = "pass@8", "pass@8 at equal pass@1 near T = 1", "distinct in 8 at equal pass@1 near T = 1"
    each = {(a, b, metric) for a, b in pairs for metric in (whole, near, distinct)}
    assert set(found) == each | {("GRPO", "base", whole)}  # near the base's own temperature 1 nothing is asked
    assert [one.home for one in found.values()] == [metric != whole for _, _, metric in found]
    assert found["hot", "GRPO", near].difference.value == pytest.approx(0, abs=2e-3)
    assert found["bent", "GRPO", near].difference.value == 0 and found["bent", "GRPO", whole].difference.high < 0
    assert near in found["hot", "GRPO", near].sentence and "mean gap in pass@8" in found["hot", "GRPO", whole].sentence
    assert found["split", "GRPO", near].difference.value == 0
    assert found["split", "GRPO", distinct].difference.value == pytest.approx(1.0)
    bare = [replace(r, arms=tuple(replace(arm, varieties=None) for arm in r.arms)) for r in seeds]
    assert {one.metric for one in frontier_verdicts(bare, pairs, 8)} == {whole, near}
    untold = found["GRPO", "far", near]
    assert (
        untold.difference is None and "no temperature with the pass@1" in untold.verdict and "3 of 3" in untold.verdict
    )
