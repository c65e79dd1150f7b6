"""Files name a metric by its fields; what is printed of it is never read."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.register.questions import answers
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.results.read import read_results
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.verdicts.comparisons import answering, compare
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.metric import Metric, is_of_samples, known_metrics
from sage_rlvr.verdicts.summary_io import read_summary

EXPERIMENTS = Path(__file__).parents[2] / "lab" / "experiments"
ASKED = EXPERIMENTS / "2026-11-23_countdown_hard_k3_is"  # its questions are about {matched: raw KL}


@pytest.mark.parametrize(
    ("value", "metric"),
    [
        ("pass@1", Metric(k=1)),
        ("pass@256", Metric(k=256)),
        ({"k": 256, "at": "near"}, Metric(k=256, at="near")),
        ({"name": "distinct", "k": 256, "at": "near"}, Metric(name="distinct", k=256, at="near")),
        ({"k": 256, "matched": "raw KL"}, Metric(k=256, matched="raw KL")),
        ({"k": 1, "temperature": 0.3}, Metric(k=1, temperature=0.3)),
        ({"name": "raw KL", "at": "end"}, Metric(name="raw KL", at="end")),
    ],
)
def test_a_metric_is_read_from_its_fields(value: Any, metric: Metric) -> None:
    assert Metric.parse(value) == metric


@pytest.mark.parametrize("metric", known_metrics(), ids=lambda metric: metric.written)
def test_a_metric_is_read_back_as_a_design_and_as_a_summary_write_it(metric: Metric) -> None:
    assert Metric.parse(yaml.safe_load(metric.written)) == metric
    assert Metric.parse(json.loads(json.dumps(asdict(metric)))) == metric


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("pas@8", r"'pas@8': did you mean 'pass@8'\? expected pass@K.*name \(pass, distinct, raw KL, exact KL; .*at \(temperature"),
        ("pass@256 at equal pass@1 near T = 1", r"expected pass@K, .*\{k: 256, at: near\}"),
        ("pass@0", "expected pass@K"),
        (["pass@8"], r"metric \['pass@8'\]: expected pass@K"),
        ({"k": 8, "tempperature": 0.3}, "tempperature = 0.3: a metric has no such field; did you mean 'temperature'.*name, k, at"),
        ({"k": 8, "at": "nearr"}, "at = 'nearr': unknown; did you mean 'near'"),
        ({"name": "passes", "k": 8}, "name = 'passes': unknown; did you mean 'pass'"),
        ({"at": "near"}, "k = None: must be >= 1"),
        ({"k": True}, "k = True: must be >= 1"),
        ({"k": "8"}, "k = '8': must be >= 1"),
        ({"name": "raw KL", "at": "end", "k": 8}, r"k = 8: .*raw KL and exact KL have no k"),
        ({"k": 8, "temperature": 0}, "temperature = 0: must be a number above 0"),
        ({"k": 8, "temperature": "cold"}, "temperature = 'cold': must be a number above 0"),
        ({"k": 8, "matched": True}, "matched = True: unknown; choose from: , raw KL, exact KL"),
    ],
)
def test_an_unknown_metric_is_named_with_its_field_and_the_valid_ones(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Metric.parse(value)


def test_a_bad_metric_of_a_file_is_named_with_its_place(tmp_path: Path) -> None:
    design = tmp_path / "design.yaml"
    arms = "title: t\nseeds: [0]\narms: {a: grpo, b: no_kl}\ncontrol: a\nevaluate: {problems: 4}\nquestions:\n"
    design.write_text(f"{arms}  - {{a: b, b: a, metric: pass@1}}\n  - {{a: b, b: a, metric: {{k: 256, mached: true}}}}\n")
    with pytest.raises(ConfigError, match=r"design.yaml:8: questions.1.metric.mached = True: .*did you mean 'matched'"):
        load_design(design)
    tree = json.loads((ASKED / "summary.json").read_text(encoding="utf-8"))
    tree["questions"][0]["metric"] = "pass@256 at the same raw KL"
    (tmp_path / "summary.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"summary.json: .*questions: metric 'pass@256 at the same raw KL': expected pass@K"):
        read_summary(tmp_path / "summary.json")


@pytest.mark.slow
def test_any_printed_phrase_can_change_without_a_change_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(design: Design) -> list[int]:
        return [len(found) for _, found in answering(design, compare(read_results(ASKED)))]

    register = EXPERIMENTS / "register.yaml"
    before = answered(read_results(ASKED).design), [(one.outcome, one.one_of) for one in answers(register)]
    questions = load_design(ASKED / "design.yaml").questions
    monkeypatch.setattr(Metric, "bare", "a score")
    monkeypatch.setattr(Metric, "condition", "in other words")
    assert str(Metric(k=8)) == "a score in other words" and all(before[0])
    assert answered(read_results(ASKED).design) == before[0]
    assert [(one.outcome, one.one_of) for one in answers(register)] == before[1]
    assert load_design(ASKED / "design.yaml").questions == questions == read_results(ASKED).design.questions


def test_samples_have_any_k_that_they_suffice_for() -> None:
    matched = Metric(k=3, matched="exact KL")
    assert is_of_samples(Metric(k=3), 4) and is_of_samples(Metric(k=4), 4) and is_of_samples(matched, 4)
    assert is_of_samples(Metric(name="exact KL"), 4) and not is_of_samples(Metric(k=5), 4)
    others = (Metric(k=3, at="near"), Metric(name="distinct", k=3), Metric(name="raw KL", at="end"), Metric(k=3, temperature=0.3))
    for other in others:
        assert not is_of_samples(other, 4)
