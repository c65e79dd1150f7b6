"""The guide lab on a tiny policy: atoms against the enumeration of everything, signals by hand, and the command's files."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lab.studies.guides.completions import _together, collect
from lab.studies.guides.measure import Lab, choose, fitted, run_guide_lab
from lab.studies.guides.rows import Head
from lab.studies.guides.signals import FAMILIES, auc, capped, first, likelier_share, percentile, placebo
from lab.theory.reweighting import tilted
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError
from sage_rlvr.models.enumeration.completions import enumerate_completions
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.countdown import Countdown, Problem, build_tokenizer

WIDTH = 5
TASK = Countdown(counts={2: 1.0}, max_number=9, max_target=20)
PROBLEMS = [Problem((2, 3), 5), Problem((1, 4), 5), Problem((2, 3), 5), Problem((2, 6), 12)]


def model_of(tokens: Tokens, seed: int) -> LlamaForCausalLM:
    """A random tiny model that prefers some tokens to others, so that right answers have some mass."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens.tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(40.0)
    return model


@pytest.fixture(scope="module")
def world():
    tokens = Tokens.of(build_tokenizer())
    policy, reference = model_of(tokens, 0), model_of(tokens, 1)
    atoms = collect(policy, reference, tokens, TASK, PROBLEMS, samples=256, max_new_tokens=WIDTH, seed=1)
    return tokens, policy, reference, atoms


@pytest.fixture(scope="module")
def lab(world):
    return Lab(world[3], (0.02,))


def test_right_completions_are_listed_once_with_their_exact_probability(world):
    tokens, policy, _, atoms = world
    masses = atoms.masses
    assert masses.repeats.tolist() == [2, 1, 1] and masses.right.sum() == 2 + 2 + 2
    assert np.allclose(masses.sums(masses.mass), 1.0)
    wanted = solution_logps(policy, tokens, TASK, [PROBLEMS[0], PROBLEMS[1], PROBLEMS[3]], (1.0, 0.8))
    assert masses.mass[masses.right] == pytest.approx(np.exp(np.concatenate(wanted[1.0])), rel=1e-4)
    assert atoms.at(1.25)[masses.right] == pytest.approx(np.concatenate(wanted[0.8]), abs=1e-4)


def test_the_wrong_share_what_the_right_leave():
    """A right completion of probability .25, wrong ones drawn 3 times and once: .5625 and .1875."""
    arrays = {name: np.zeros((3, 2)) for name in ("mask", "ref_surprisals", "entropies", "ref_entropies", "tempered")}
    surprisals = np.array([[math.log(4), 0.0], [1.0, 1.0], [2.0, 2.0]])
    part = arrays | {"surprisals": surprisals, "ref_tempered": np.zeros((3, 2)), "alone": np.ones(3, dtype=int)}
    part |= {"right": np.array([True, False, False]), "drawn": np.array([0.0, 3.0, 1.0]), "sampled_right": 1}
    found = _together([part], np.ones(1), 5).masses
    assert found.mass == pytest.approx([0.25, 0.5625, 0.1875])


def test_an_expectation_over_atoms_is_that_over_all_completions(world):
    """E[q] of q = exp(-0.3 * length), exact by enumeration, within four standard errors of 256 draws."""
    tokens, policy, _, atoms = world
    problem = PROBLEMS[3]
    every = enumerate_completions(policy, tokens, tokens.encode_prompt(TASK.prompt(problem)), WIDTH, floor=1e-4)
    values = torch.exp(-0.3 * every.lengths.double())
    exact = float((every.probs * values).sum())
    spread = math.sqrt(float((every.probs * values**2).sum()) - exact**2)
    found = atoms.masses.sums(atoms.masses.mass * np.exp(-0.3 * atoms.mask.sum(1)))[2]
    assert spread > 0.01, "a q that is constant would test nothing"
    assert abs(found - exact) < 4 * spread / 16 + every.remainder


def test_signals_are_those_of_both_models_and_the_grid_holds_temperature_one(world):
    *_, atoms = world
    assert atoms.at(1.0) == pytest.approx(atoms.logps, abs=1e-5)
    assert atoms.at(1.0, "ref_tempered") == pytest.approx(atoms.ref_logps, abs=1e-5)
    assert not np.allclose(atoms.logps, atoms.ref_logps)
    assert (atoms.surprisals[~atoms.mask] == 0).all() and atoms.token_mass.sum() == pytest.approx(1.0)
    signals = atoms.signals()
    assert signals.rewards is not None and signals.rewards.sum() == atoms.masses.right.sum()


@pytest.mark.slow
def test_a_temperature_is_a_guide_whose_mean_is_one_on_the_right_part(world, lab):
    *_, atoms = world
    masses, kl = lab.at_temperature(0.8)
    right = atoms.masses.right
    assert masses.mass[right] == pytest.approx(np.exp(atoms.at(0.8))[right])
    assert lab.masses.mean(kl) > 0
    hotter = lab.hotter(0.05)
    assert lab.masses.mean(lab.masses.sums(hotter.mass)) == pytest.approx(1.0, abs=0.2)


def test_the_ends_that_are_alone_go_to_one_completion(world):
    """No other listed completion shares a prefix that ends among a row's last `alone` tokens."""
    *_, atoms = world
    assert atoms.alone.min() >= 1 and (atoms.alone <= atoms.mask.sum(1)).all()


def test_token_signals_by_hand():
    values = np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 0.0]])
    assert capped(values, 4.0).tolist() == [[1.0, 2.0, 1.0], [0.5, 0.5, 0.0]]
    assert first(values, 1).tolist() == [[1.0, 0, 0], [0.5, 0, 0]]


def test_the_rank_of_a_right_completion_by_hand(world):
    *_, atoms = world
    found, masses = likelier_share(atoms), atoms.masses
    here = np.flatnonzero((masses.problem == 0) & masses.right)
    big, small = sorted(here, key=lambda i: -masses.mass[i])
    assert found[big] == 0
    assert found[small] == pytest.approx(masses.mass[big] / (masses.mass[big] + masses.mass[small]))
    assert (found[~masses.right] == 0).all()


def test_the_percentile_is_that_of_a_batch_of_the_policy(world):
    *_, atoms = world
    limit = percentile(atoms, 0.8)
    assert float((atoms.token_mass * (atoms.entropies <= limit)).sum()) >= 0.8
    assert float((atoms.token_mass * (atoms.entropies < limit)).sum()) <= 0.8


def test_the_placebo_keeps_values_and_the_mask(world):
    *_, atoms = world
    log_q = Branch(threshold=0.5)(atoms.signals(), 0, 10, Key(0)).double().numpy()
    sham = placebo(atoms, log_q, 0)
    assert set(np.unique(sham)) <= set(np.unique(log_q)) and not np.array_equal(sham, log_q)
    assert (sham[~atoms.mask] == 0).all()


def test_rarity_is_the_capped_surprisal_of_the_lab(world):
    *_, atoms = world
    guide = Rarity(power=0.5, cap=3.0, q_min=1e-9, q_max=1e9)
    found = guide(atoms.signals(), 0, 10, Key(0)).double().numpy()
    assert found == pytest.approx(0.5 * np.where(atoms.mask, capped(atoms.surprisals, 3.0), 0.0), abs=1e-5)
    assert found.sum(1) == pytest.approx(0.5 * np.minimum(-atoms.logps, 3.0), abs=1e-5)


def test_drawing_the_wrong_ones_again_leaves_the_right_ones(world):
    *_, atoms = world
    again = atoms.redrawn(np.random.default_rng(0)).masses
    right = atoms.masses.right
    assert np.array_equal(again.mass[right], atoms.masses.mass[right]) and not np.array_equal(
        again.mass, atoms.masses.mass
    )
    assert np.allclose(again.sums(again.mass), 1.0)


def test_auc_by_hand():
    """Positives 3 (weight 1) and 1 (weight 3), negatives 2 and 1: (1 * 2 + 3 * 0.5) / (4 * 2)."""
    values = np.array([3.0, 1.0, 2.0, 1.0])
    kinds, weight = np.array([True, True, False, False]), np.array([1.0, 3.0, 1.0, 1.0])
    assert auc(values, kinds, weight) == pytest.approx(3.5 / 8)
    assert math.isnan(auc(values, np.ones(4, dtype=bool), weight))


@pytest.mark.slow
def test_rows_hold_their_budget_and_lie_below_the_oracle(world, lab):
    *_, atoms = world
    rows, signals = lab.everything([*choose(FAMILIES, atoms), *fitted(atoms)])
    best = {row.name: row for row in rows if row.kind == "oracle"}
    for row in rows:
        if row.budget == 0.02 and row.kind != "oracle" and row.variant != "temperature":
            assert row.change["distinct"].value <= best["oracle, distinct"].change["distinct"].value + 1e-6, row.name
            assert row.change["passk"].value <= best["oracle, pass@256"].change["passk"].value + 1e-6, row.name
            assert row.gained - row.lost == pytest.approx(row.change["support"].value)
    assert {row.name for row in signals} >= {"Branch", "Token", "rarity", "fitted, policy"}
    assert all(row.against for row in rows if row.kind in ("policy", "reference") and row.budget == 0.02)
    plain = lab.row(Head("flat", "policy", "", "1"), [np.zeros(atoms.mask.shape)], 0.02)
    assert plain is None, "a q of 1 has no budget"
    assert next(row for row in signals if row.name == "right").auc_right == 1.0


def test_scaled_rows_have_their_budget(world, lab):
    *_, atoms = world
    row = lab.row(Head("surprisal", "policy", "", ""), [atoms.surprisals], 0.02)
    assert row is not None
    assert lab.masses.mean(tilted(lab.masses, row.scale * atoms.surprisals.sum(1))[1]) == pytest.approx(0.02, rel=1e-6)


def test_too_small_a_lab_is_refused():
    with pytest.raises(DataError, match="at least 10 problems"):
        run_guide_lab(None, problems=3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_files_of_the_verb(tmp_path):
    """The embedded base as its own policy: drift has no budget, everything else is written."""
    from lab.studies.guides import command as guides
    from sage_rlvr.evaluation.evaluate import resolve

    found = run_guide_lab(resolve("embedded"), problems=10, samples=64, budgets=(0.03, 0.1))
    assert not any(row.name == "drift" for row in found.rows)
    paths = guides.write([found], tmp_path)
    listed = json.loads(paths[0].read_text())[0]
    assert listed["policy"] == "base" and len(listed["rows"]) == len(found.rows)
    assert paths[2].stat().st_size > 20_000
    text = paths[1].read_text()
    assert "Branch" in text and all(line in text for line in guides.sentences(found))
    page = tmp_path / "results" / "guides.md"
    page.parent.mkdir()
    page.write_text("head\n<!-- measured:begin -->\nSTALE\n<!-- measured:end -->\ntail\n")
    (tmp_path / "images").mkdir()
    guides.write_docs([found], tmp_path)
    assert (
        "STALE" not in page.read_text() and page.read_text().startswith("head") and page.read_text().endswith("tail\n")
    )
    page.write_text("no marks")
    with pytest.raises(DataError, match="measured:begin"):
        guides.write_docs([dataclasses.replace(found)], tmp_path)


@pytest.mark.parametrize(
    ("words", "message"), [(["--problems", "3"], "at least 10"), (["--docs", "nowhere"], "no results/guides.md")]
)
def test_the_verb_refuses_in_a_sentence(words, message, capsys):
    from lab.__main__ import main

    assert main(["guides", *words]) == 2 and message in capsys.readouterr().err
