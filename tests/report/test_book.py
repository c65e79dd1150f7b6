"""The full report: every section says what there is or that there is nothing, and no text of a model breaks out of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from chromium import Chromium, executable  # beside this file
from sage_rlvr.report import (
    Result,
    RunFacts,
    SampleSet,
    Shown,
    Structure,
    Study,
    Training,
    arm_from_logps,
    book,
    grids_of,
    learning_of,
    markdown,
    render,
    summarise,
    training_of,
    write_pictures,
)
from sage_rlvr.report.browser import as_script
from sage_rlvr.report.panels import TRAINING, heat_figure, training_over_seeds
from sage_rlvr.report.parts import Browser, Fold, Grouped, Page, Picture, Prose, Said, Tabular, flat, visible
from sage_rlvr.report.sections.answers import grids
from sage_rlvr.report.sections.texts import perplexity, samples_shown
from sage_rlvr.report.sections.training import learning, training
from sage_rlvr.report.sections.verdicts import control_of, verdicts
from sage_rlvr.report.summary import summarise_seeds
from sage_rlvr.stats.samples.patterns import pattern_frequencies
from sage_rlvr.stats.samples.structure import classes_of_answers, effective_classes, reachable_classes

N = 24
SECTIONS = [
    "verdicts", "table", "curves", "differences", "frontier", "training", "support", "perplexity", "structure", "distinct",
    "grids", "samples", "runs", "cards",
]  # fmt: skip
BREAKOUT = "</script><script>alert('x')</script><!--"
HOSTILE = (
    BREAKOUT,
    "\x00\x07 NUL and bell",
    "\u202esdrawkcab\u202c and \u2066isolates",
    "\U0001f469\u200d\U0001f52c emoji, ünï",
    "\ud800 half a pair",
    "]]> &lt; \u2028 line",
    'javascript:alert(1) " onload="x',
)
ARM = "GRPO <img src=x onerror=alert(1)>"


def logps(shift: float, seed: int) -> dict[float, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    rows = [rng.normal(-4, 1.2, rng.integers(1, 5)) for _ in range(N)]
    own = np.random.default_rng(seed)
    moved = [np.minimum(row + shift + 0.2 * own.normal(size=len(row)), -1.7) for row in rows]
    return {t: [row / t for row in moved] for t in (0.7, 1.0)}


def curves(seed: int, q: float = 1.0) -> Training:
    rng = np.random.default_rng(seed)
    return Training(
        step=tuple(range(30)),
        **{key: tuple(rng.random(30).tolist()) for key in TRAINING if key not in ("q_mean", "q_active")},
        q_mean=(q,) * 30,
        q_active=(float(q != 1.0),) * 30,
    )


def result(seed: int) -> Result:
    base = logps(0.0, 99)
    arms = [arm_from_logps("base", base, trained=False, k=8)]
    arms += [
        arm_from_logps(name, logps(0.4 + i / 10, 10 * seed + i), base=base[1.0], k=8)
        for i, name in enumerate(("no KL", ARM))
    ]
    return Result(arms=tuple(arms), problems=N, k=8, ks=(1, 2, 4, 8), seed=seed, pairs=((ARM, "no KL"),))


def structure(seeds: int) -> Structure:
    base = logps(0.0, 99)[1.0]
    labels = [[("+-", "-*")[i % 2] for i in range(len(row))] for row in base]
    arms = {"base": [base]} | {
        name: [logps(0.5, 10 * s + i)[1.0] for s in range(seeds)] for i, name in enumerate(("no KL", ARM))
    }
    classes = {
        name: [classes_of_answers(r, labels, base=None if name == "base" else base) for r in rows]
        for name, rows in arms.items()
    }
    spread = {name: np.stack([effective_classes(r, labels) for r in rows]) for name, rows in arms.items()}
    seen = {name: np.stack([reachable_classes(r, labels, 8) for r in rows]) for name, rows in arms.items()}
    return Structure(
        classes={"operators": classes}, effective={"operators": spread}, reachable={"operators": seen}, k=8
    )


def samples(arm: str, seed: int, task: str = "countdown") -> SampleSet:
    texts = [*HOSTILE, "short", "x" * 900]
    shown = [
        Shown(
            problem=f"problem {p} {BREAKOUT}", sample=i, text=text, verdict=("right", "wrong", "undecided")[i % 3],
            reason=f"because {BREAKOUT}", answer=text, left_out=1_000_000 if i == 8 else 0,
            tokens=("a", BREAKOUT, "<eos>") if i < 4 else None,
            entropies=(0.1, math.nan, 2.0) if i < 4 else None, q=(1.0, 1.3, 0.7) if i < 4 else None, perplexity=math.inf,
        )
        for p in range(3) for i, text in enumerate(texts)
    ]  # fmt: skip
    rng = np.random.default_rng(seed)
    owners = tuple(f"p{i}" for i in range(12) for _ in range(4))
    right = rng.random(48) < 0.4
    return SampleSet(
        arm=arm, seed=0, task=task, law="T = 1", problems=tuple(f"p{i}" for i in range(12)), n=4,
        right=np.bincount(np.repeat(range(12), 4), right, 12).astype(int), shown=tuple(shown), scored="embedded",
        perplexities=1 + rng.random(48) * 3, owners=owners, is_right=right, ks=(1, 2, 4), distinct=rng.random((12, 3)),
        patterns=pattern_frequencies(["Wait, let me check"] * 48, [True] * 48, owners, resamples=50),
    )  # fmt: skip


def study(seeds: int = 1, q: float = 1.3) -> Study:
    results = tuple(result(s) for s in range(seeds))
    runs = [
        RunFacts(
            arm=name, seed=s, state="trained and evaluated", equation=f"J = {BREAKOUT}", config={"a": {"x": i}, "note": BREAKOUT},
            versions={"numpy": "2"}, seconds=3.0, tokens=1e6, training=curves(s, q), commit="abcdef0123456789",
        )
        for i, name in enumerate(("no KL", ARM)) for s in range(seeds)
    ]  # fmt: skip
    return Study(
        results=results,
        distinct={a.name: np.ones((1 if a.name == "base" else seeds, 4)) for a in results[0].arms},
        structure=structure(seeds),
        samples=(samples("base", 1), samples(ARM, 2)),
        runs=(*runs, RunFacts(arm="SAGE-Token", seed=0, state="not run")),
        left_out=(f"SAGE-Token: not run {BREAKOUT}",),
        sources=("runs/sweep",),
    )


class Reader(HTMLParser):
    """What a browser would load, run or open."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[str, str]] = []
        self.scripts: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "srcset", "data", "action", "poster") and not value.startswith("#"):
                self.loads.append((tag, value))
            if key.startswith("on"):
                self.handlers.append(key)
            if key == "id":
                self.ids.append(value)
        self._inside = dict(attrs).get("type", "script") if tag == "script" else None

    def handle_data(self, data):
        if self._inside is not None:
            self.scripts.append((self._inside, data))
            self._inside = None


@pytest.fixture(scope="module")
def page() -> Page:
    return book(study())


@pytest.fixture(scope="module")
def html(page: Page) -> str:
    return render(page)


def test_every_section_stands_in_its_order(html: str) -> None:
    assert re.findall(r'<h2 id="(\w+)"', html) == SECTIONS


def test_nothing_is_loaded_and_one_script_runs(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    assert reader.loads == [] and reader.handlers == [] and "http" not in html.replace("http-equiv", "")
    assert not {"iframe", "link", "object", "img", "base", "embed"} & set(reader.tags)
    assert [kind for kind, _ in reader.scripts] == ["application/json", "script"]
    assert len(reader.ids) == len(set(reader.ids)) and not re.search(r"url\((?!#)", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None and "default-src &#39;none&#39;" in policy[1] and "script-src &#39;sha256-" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1] and "unsafe-eval" not in policy[1]


def test_no_text_breaks_out(html: str) -> None:
    """Arms, problems, samples, reasons and recipes hold the same attack; not one tag of it becomes a tag."""
    assert BREAKOUT not in html and "<img" not in html
    for bad in ("\x00", "\x07", "\u202e", "\u2066", "\ud800", "\u2028"):
        assert bad not in html
    html.encode("utf-8")
    assert "&lt;/script&gt;&lt;script&gt;" in html and "onerror=alert(1)&gt;" in html


def test_samples_come_back_as_they_were(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    data = json.loads(reader.scripts[0][1])
    texts = [row["t"] for row in data["rows"]]
    assert (
        BREAKOUT in texts
        and "\U0001f469\u200d\U0001f52c emoji, ünï" in texts
        and "[U+0000][U+0007] NUL and bell" in texts
    )
    assert any("[U+202E]sdrawkcab[U+202C]" in text for text in texts) and "[U+D800] half a pair" in texts
    first = data["rows"][0]
    assert [data["spellings"][i] for i in first["k"]] == ["a", BREAKOUT, "<eos>"]
    assert first["e"] == [0.1, None, 2.0] and first["q"] == [1.0, 1.3, 0.7] and first["b"] == 1e9
    assert sorted({row["x"] for row in data["rows"] if "x" in row}) == [1_000_000]
    assert {one["name"] for one in data["sets"]} == {"base, seed 0", f"{ARM}, seed 0"}


def test_json_in_a_script_closes_nothing() -> None:
    text = as_script({"a": "</script><!--&\u2028\x00"})
    assert not set("<>&\u2028\x00") & set(text) and json.loads(text)["a"] == "</script><!--&\u2028\x00"
    with pytest.raises(ValueError, match="JSON"):
        as_script({"a": math.nan})


def test_visible_spells_out_what_disturbs() -> None:
    assert visible("a\nb\tc é \U0001f469\u200d\U0001f52c") == "a\nb\tc é \U0001f469\u200d\U0001f52c"
    assert visible("x\u202ey\x1b[0m\ufeff") == "x[U+202E]y[U+001B][0m[U+FEFF]"


def test_one_seed_speaks_of_checkpoints_with_holm(page: Page) -> None:
    sentences = page.sentences()
    told = [s for s in sentences if ", pass@" in s.split(":")[0] and "frontiers" not in s]
    assert told and all("these checkpoints" in s for s in told)
    assert any("Holm's p" in s for s in told)
    text = markdown(page)
    assert "Holm's p is corrected for the 6 comparisons listed here" in text and "not adjusted" not in text


@pytest.mark.slow
def test_several_seeds_speak_of_methods() -> None:
    page = book(study(3))
    said = " ".join(page.sentences())
    assert "these methods" in said and "these checkpoints" not in said
    text = markdown(page)
    assert "intervals are 95 % over training seeds" in text and "up to 3" in text
    assert "temperature frontiers" in said
    assert [p.key for p in page.pictures()][:3] == ["passk", "differences-1", "differences-2"]


def test_gaps_along_the_controls_frontier_are_drawn_over_seeds(page: Page) -> None:
    several = book(study(3))
    shown = next(part for s in several.sections for part in s.parts if isinstance(part, Picture) and part.key == "gap")
    titles = [axes.get_title(loc="left") for axes in shown.figure.axes if axes.get_visible()]
    assert titles[-1].endswith(" − base") and all(title.count(" − ") == 1 for title in titles)
    assert not [part for s in page.sections for part in s.parts if isinstance(part, Picture) and part.key == "gap"]


def test_what_was_not_recorded_is_said_in_words() -> None:
    page = book(Study())
    html = render(page)
    assert re.findall(r'<h2 id="(\w+)"', html) == SECTIONS and "<svg" not in html
    for section in page.sections:
        kinds = [part.kind for part in section.parts if isinstance(part, Prose)]
        assert "missing" in kinds, section.key
    assert "<script" not in html and "script-src &#39;none&#39;" in html


def test_arms_that_were_not_run_are_named(page: Page) -> None:
    text = markdown(page)
    assert "SAGE-Token: not run" in text
    runs = next(section for section in page.sections if section.key == "runs")
    assert runs.parts[0].table.rows[-1] == ("SAGE-Token", "not run")  # type: ignore[union-attr]


def test_a_guide_that_acts_has_its_panels(page: Page) -> None:
    assert {f"training_{key}" for key in TRAINING} <= {p.key for p in page.pictures()}


def test_a_guide_that_never_acts_has_no_panel() -> None:
    parts = training(study(q=1.0).runs)
    keys = {part.key for part in parts if isinstance(part, Picture)}
    assert "training_q_mean" not in keys and "training_reward" in keys
    assert any(isinstance(part, Prose) and "q was 1 on every token of every run" in part.text for part in parts)


def test_it_opens_with_groups_and_keeps_every_sentence(page: Page) -> None:
    """Each of the six comparisons is in one group and one cell; the sentences wait, closed, and none is lost."""
    scope, groups, legend, grid, fold, caveat, *_ = page.sections[0].parts
    assert isinstance(scope, Prose) and "these checkpoints" in scope.text and "over 6 comparisons" in scope.text
    assert isinstance(groups, Grouped) and isinstance(legend, Prose) and "In brackets" in legend.text
    heads = [group.head for group in groups.groups]
    assert heads[:2] == ["Against no KL, pass@1", "Against no KL, pass@8"] and heads[-1] == "In no exact comparison"
    assert heads[2:4] == ["Against base, pass@1", "Against base, pass@8"]
    means = [one for group in groups.groups[:4] for one in group.claims]
    assert len(means) == 6 and {one.a for one in means[:2]} == {ARM}
    assert isinstance(grid, Tabular) and grid.words and [row[0] for row in grid.table.rows] == ["no KL", ARM]
    assert sum(cell != "–" for row in grid.table.rows for cell in row[1:5]) == 6
    assert isinstance(fold, Fold) and fold.line == "Every comparison in full (8), and why arms are missing"
    kept = [line for part in fold.parts if isinstance(part, Said) for line in part.lines]
    assert len(kept) == 8 and set(page.sentences()) >= {text for _, _, text in kept}
    assert isinstance(caveat, Prose) and caveat.strong == "What one training seed cannot show."


def opening(whole: Study) -> list[Grouped]:
    """The groups that a report of this opens with, whole frontiers left out."""
    return [part for part in verdicts(whole, summarise(whole.results[0])) if isinstance(part, Grouped)]


def test_an_arm_without_an_evaluation_is_named(page: Page) -> None:
    (groups,) = (part for part in page.sections[0].parts if isinstance(part, Grouped))
    assert groups.groups[-1].sentence() == "In no exact comparison: SAGE-Token (not run)."
    runs = [RunFacts(arm="SAGE-Token", seed=s, state="trained and evaluated" if s else "2/9 steps") for s in range(3)]
    (groups,) = opening(replace(study(), runs=tuple(runs)))
    assert groups.groups[-1].sentence() == "In no exact comparison: SAGE-Token (2 of 3 training seeds evaluated)."


def test_the_control_is_the_sweeps_or_what_most_pairs_have() -> None:
    assert control_of(study()) == "no KL" and control_of(replace(study(), control=ARM)) == ARM
    assert control_of(replace(study(), control="elsewhere")) == "no KL"
    (groups,) = opening(replace(study(), control=ARM))
    assert groups.groups[0].head == f"Against {ARM}, pass@1" and groups.groups[0].claims[0].a == "no KL"  # turned round


def test_what_held_only_before_holm_is_told_apart(page: Page) -> None:
    """Frontiers of one training seed have no correction: their groups say so."""
    (groups,) = (part for part in page.sections[0].parts if isinstance(part, Grouped))
    fronts = [group for group in groups.groups if "at equal pass@1" in group.head]
    assert fronts and all(group.head.endswith("(each taken alone)") for group in fronts)
    assert not any("taken alone" in group.head for group in groups.groups[:4])


def test_training_seeds_of_samples_are_one_row_and_folded_one_by_one() -> None:
    rights = [np.full(12, 1), np.full(12, 2), np.repeat([1, 2], 6)]  # of 4: means 1/4, 1/2 and 3/8
    sets = [replace(samples("GRPO", i), seed=i, right=right) for i, right in enumerate(rights)]
    page = book(Study(samples=(*sets, replace(samples("base", 9), seed=None))))
    whole, single = (part for part in page.sections[1].parts if isinstance(part, Tabular))
    assert [row[0] for row in whole.table.rows] == ["GRPO", "base"] and not whole.folded
    assert whole.table.rows[0][2] == "12 x 4, 3 seeds"
    half = 4.302653 * 0.125 / math.sqrt(3)  # Student, two degrees of freedom
    assert whole.table.rows[0][3] == f"0.375\n{0.375 - half:.3f}–{0.375 + half:.3f}"
    assert single.folded and [row[0] for row in single.table.rows] == [f"GRPO, seed {i}" for i in range(3)] + ["base"]
    text = markdown(page)
    assert "<details><summary>pass@k on countdown, every training seed by itself (4 rows)</summary>" in text


def test_samples_alone_are_grouped_too() -> None:
    sets = (samples("base", 1), samples("GRPO", 2), samples("no KL", 3))
    parts = verdicts(Study(samples=sets), None)
    (groups,) = (part for part in parts if isinstance(part, Grouped))
    assert [group.head for group in groups.groups] == [
        "Against base, countdown pass@1",
        "Against base, countdown pass@4",
    ]
    folds = [part for part in parts if isinstance(part, Fold)]
    assert [len(fold.parts[0].lines) for fold in folds[:1]] == [4] and "Bands over k" in folds[1].line  # type: ignore[union-attr]
    assert any(isinstance(part, Prose) and part.text.startswith("Holm's p is over the 4") for part in parts)
    folded = [part.text for part in flat(folds[1:]) if isinstance(part, Prose)]
    assert any(text.startswith("P(GRPO > base)") for text in folded) and not any("Holm's p is" in t for t in folded)


def test_samples_alone_make_a_report() -> None:
    sets = (replace(samples("base", 1), shown=()), replace(samples("GRPO", 2), shown=()))
    page = book(Study(samples=sets))
    text = markdown(page)
    assert "GRPO vs base, countdown pass@1: " in text and "From samples; beneath each number" in text
    assert {"passk-countdown", "differences-countdown-1", "perplexity-countdown", "distinct-countdown"} <= {
        p.key for p in page.pictures()
    }
    assert "No exact evaluation was given, so no policy was read at other temperatures" in text


def test_many_stores_show_one_an_arm_and_pool_their_tails() -> None:
    sets = tuple(replace(samples(arm, i), seed=i) for arm in ("GRPO", "no KL") for i in range(5))
    shown = samples_shown(sets)
    assert isinstance(shown[0], Browser) and [s["name"] for s in shown[0].data["sets"]] == [
        "GRPO, seed 0",
        "no KL, seed 0",
    ]
    assert any(isinstance(part, Prose) and "Of 10 stores the first of each arm" in part.text for part in shown)
    (table,) = (part.table for part in perplexity(sets) if isinstance(part, Tabular))
    assert [row[0] for row in table.rows] == ["GRPO, all", "GRPO, right", "no KL, all", "no KL, right"]
    assert table.rows[0][1] == "240"


def test_markdown_escapes_and_keeps_tables_whole(page: Page) -> None:
    text = markdown(page, "figures")
    assert "![" in text and "(figures/passk.png)" in text and "<script>" not in text.replace("```", "")[:200]
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.S)  # cards are fenced
    assert "<" not in re.sub(r"<br>|<details><summary>|</summary>|</details>", "", outside)
    for block in outside.split("\n\n"):
        if block.startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_a_fence_cannot_be_closed_from_within() -> None:
    ticks = Study(runs=(RunFacts(arm="A", seed=0, state="x", equation="````\n# not a heading", config={"a": 1}),))
    assert "\n`````text\n````\n# not a heading\n`````" in markdown(book(ticks))


def test_grids_are_found_where_two_keys_vary() -> None:
    tree = {f"r{r}t{t}": {"method": {"ratio": r, "threshold": t, "beta": 0.05}} for r in (0.1, 0.3) for t in (0.6, 1.2)}
    (grid,) = grids_of(tree | {"other": {"method": {"beta": 0.1}}})
    assert (grid.row_key, grid.column_key) == ("method.ratio", "method.threshold")
    assert (grid.rows, grid.columns) == (("0.1", "0.3"), ("0.6", "1.2"))
    assert [cell.arm for cell in grid.cells] == ["r0.1t0.6", "r0.1t1.2", "r0.3t0.6", "r0.3t1.2"]
    assert grids_of(dict(list(tree.items())[:3])) == ()
    hole = tree | {"r1t6": {"method": {"ratio": 1.0, "threshold": 0.6, "beta": 0.05}}}
    (wide,) = grids_of(hole)
    assert [cell.arm for cell in wide.cells][-1] == "" and len(wide.cells) == 6


def test_a_run_stopped_early_is_a_point_of_a_learning_curve() -> None:
    tree = {f"A{n}": {"steps": n, "method": {"beta": 0.05}} for n in (20, 5, 10)} | {"B": {"steps": 5, "method": {}}}
    assert learning_of(tree) == (((5, "A5"), (10, "A10"), (20, "A20")),)
    assert learning_of({name: tree[name] for name in ("A5", "A10", "B")}) == ()
    names = [arm.name for arm in result(0).arms[1:]]
    whole = replace(study(3), learning=(((5, names[0]), (10, "not evaluated"), (20, names[1])),))
    exact = summarise_seeds(whole.results)
    picture, prose = learning(whole, exact)
    left, right = picture.figure.axes
    base, first, last = (exact.passes[name] for name in (exact.results[0].base, *names[:2]))
    assert [line.get_ydata().tolist() for line in right.lines] == [[one[8].value for one in (base, first, last)]]
    dotted, solid, dashed = left.lines
    assert solid.get_xdata().tolist() == [0, 5, 20] and solid.get_ydata()[2] == last[1].value
    assert dashed.get_ydata()[1] == exact.best[names[0]].value and set(dotted.get_ydata()) == {dashed.get_ydata()[0]}
    assert "not evaluated" not in prose.text and learning(whole, summarise(whole.results[0])) == ()
    assert learning(study(3), exact) == ()


def test_a_grid_is_drawn_and_says_what_was_not_run() -> None:
    names = [arm.name for arm in result(0).arms[1:]]
    tree = {names[0]: {"a": 1, "b": 1}, names[1]: {"a": 1, "b": 2}, "x": {"a": 2, "b": 1}, "y": {"a": 2, "b": 2}}
    whole = replace(study(), grids=grids_of(tree))
    parts = grids(whole, summarise(whole.results[0]))
    assert [part.key for part in parts if isinstance(part, Picture)] == ["grid1-1", "grid1-8"]
    assert any(isinstance(part, Prose) and "2, 1: x" in part.text for part in parts)
    figure = heat_figure(("1", "2"), ("1", "2"), {("1", "1"): 0.25, ("1", "2"): 0.5}, ("a", "b"), "pass@1")
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == ["0.250", "0.500", "not run", "not run"]


def test_training_curves_survive_uneven_and_missing_runs() -> None:
    rows = [{"step": 0, "reward/mean": 0.5, "optimizer/grad_norm": "inf"}, {"step": 1, "reward/mean": 0.25}]
    read = training_of(rows)
    assert read is not None and read.reward == (0.5, 0.25) and read.step == (0.0, 1.0)
    assert math.isinf(read.grad_norm[0]) and math.isnan(read.kl_raw[0]) and training_of([]) is None
    figure = training_over_seeds({"GRPO": [curves(0), read]}, "reward")
    assert figure is not None
    bold = max(figure.axes[0].lines, key=lambda line: line.get_linewidth())
    both = (curves(0).reward[1] + 0.25) / 2
    means = [(curves(0).reward[0] + 0.5) / 2, both, curves(0).reward[2]]
    assert bold.get_ydata()[0] == pytest.approx(means[0])
    assert training_over_seeds({"GRPO": [read]}, "kl_raw") is None


def test_pictures_are_written(page: Page, tmp_path: Path) -> None:
    assert {p.key for p in page.pictures()} >= {
        "passk",
        "frontier",
        "support",
        "structure_operators",
        "training_reward",
    }
    some = replace(page, sections=tuple(s for s in page.sections if s.key in ("curves", "frontier")))
    paths = write_pictures(some, tmp_path / "figures")
    assert [p.stem for p in paths] == ["passk", "frontier"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)
    assert any(isinstance(part, Browser) for section in page.sections for part in section.parts)


# ------------------------------------------------------------------------------------------------------------------
# in a browser


needs_chromium = pytest.mark.skipif(
    executable() is None, reason="no Chromium is installed (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def opened(html: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    with Chromium(folder / "profile") as browser:
        yield browser, path


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [390, 1100])
def test_a_browser_complains_of_nothing_and_scrolls_not_sideways(opened, width: int) -> None:
    browser, path = opened
    browser.messages.clear()
    browser.requests.clear()
    for scheme in ("light", "dark"):
        browser.show(path, width=width, scheme=scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.messages == []
    assert set(browser.requests) == {path.resolve().as_uri()}
    colours = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colours == "rgb(20, 23, 26)"


@pytest.mark.slow
@needs_chromium
def test_the_matrix_scrolls_in_its_box_and_folds_open_from_the_keyboard(opened) -> None:
    browser, path = opened
    browser.show(path, width=390)
    box = "document.querySelector('.scroll.words')"
    assert browser.run(f"{box}.scrollWidth > {box}.clientWidth && {box}.clientWidth <= 390")
    chips = browser.run(f"[...{box}.querySelectorAll('.word')].map(w => w.textContent)")
    assert len(chips) >= 6 and {chip.split(" ")[0] for chip in chips} <= {"better", "worse", "tied", "cannot"}
    shown = "document.querySelector('section details ul.verdicts').checkVisibility()"
    assert browser.run("[...document.querySelectorAll('section details')].every(d => !d.open)")
    assert not browser.run(shown)
    browser.run("document.querySelector('section details summary').focus()")
    browser.press("Enter")
    assert (
        browser.run(shown) and browser.run("document.querySelector('section details ul.verdicts').offsetHeight") > 100
    )
    assert browser.messages == []


@pytest.mark.slow
@needs_chromium
def test_on_paper_all_is_open(opened) -> None:
    browser, path = opened
    browser.show(path)
    tall = "document.querySelector('section details').offsetHeight"
    closed = browser.run(tall)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert closed < 100 < 300 < browser.run(tall)
    browser.send("Emulation.setEmulatedMedia", media="")


@pytest.mark.slow
@needs_chromium
def test_filters_work_from_the_keyboard(opened) -> None:
    browser, path = opened
    browser.show(path)
    per_problem = len(HOSTILE) + 2
    status = "document.getElementById('b-status').textContent"
    assert browser.run(status).startswith(f"{2 * per_problem} of {6 * per_problem} samples, 1 problem")
    assert browser.run("document.querySelectorAll('.column').length") == 2  # side by side
    assert browser.run("document.querySelectorAll('.token .heat').length") > 0
    browser.run("document.getElementById('b-verdict').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.getElementById('b-verdict').value") == "0"
    assert browser.run("[...document.querySelectorAll('.sample .word')].every(w => w.textContent === 'right')")
    browser.run("document.getElementById('b-verdict').value = ''; document.getElementById('b-search').focus()")
    browser.send("Input.insertText", text="SHORT")
    assert browser.run("[...document.querySelectorAll('.sample-text')].map(t => t.textContent)") == ["short", "short"]
    assert browser.run(status).startswith(f"2 of {6 * per_problem} samples")
    browser.run("document.getElementById('b-search').value = ''; document.getElementById('b-problem').focus()")
    browser.press("End")
    assert browser.run("document.getElementById('b-problem').value") == ""
    assert browser.run("document.querySelectorAll('h3.problem').length") == 3
    shown = browser.run("document.querySelectorAll('.sample').length")
    browser.run("document.getElementById('b-more').focus()")
    browser.press("Enter")
    assert browser.run("document.querySelectorAll('.sample').length") > shown
    assert browser.messages == []


@pytest.mark.slow
@needs_chromium
def test_without_its_script_the_page_still_reads(opened) -> None:
    browser, path = opened
    browser.show(path, script=False)
    browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.getElementById('browser').hidden")
    assert "scripts are switched off" in browser.run("document.querySelector('noscript').textContent")
    assert browser.run("document.querySelectorAll('svg').length") > 8
