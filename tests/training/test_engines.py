"""The table of what TRL and verl make of each part: complete, no class inherits a row, and one error lists all that is lacking."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from sage_rlvr.cli.app import main
from sage_rlvr.contrib.methods.cispo import Cispo
from sage_rlvr.contrib.methods.gspo import Gspo
from sage_rlvr.contrib.methods.pacs import Pacs
from sage_rlvr.contrib.replay.replay import Replay
from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.divergences import DIVERGENCES
from sage_rlvr.core.extras import EntropyBonus
from sage_rlvr.core.guides import Branch, Flat, Guide
from sage_rlvr.core.guides.base import Banded
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import ESTIMATORS
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.rollout_plans import RolloutPlan
from sage_rlvr.core.schedules import Linear
from sage_rlvr.core.signals import NEEDS, Signals
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import METHODS, grpo, grpo_token_mean, no_kl, rloo, sage
from sage_rlvr.registry import registry_of
from sage_rlvr.training import engines
from sage_rlvr.training.engines import ENGINES, SIGNALS, Refuses, Sets, check, declare, fields_of, refusals, rows_of
from sage_rlvr.training.trl.arguments import grpo_config
from sage_rlvr.training.trl.batch import computes_advantages
from sage_rlvr.training.verl.fields import method_fields
from sage_rlvr.training.verl.terms import ACTOR, NEUTRAL


@dataclass(frozen=True)
class Sharper(Clip):
    """A subclass that may compute anything."""


@dataclass(frozen=True)
class Doubled(GroupCentered):
    """A subclass with another formula."""


@dataclass(frozen=True)
class Kept(RolloutPlan):
    """A rollout plan of one's own, in one stage."""

    max_refills: ClassVar[int] = 0
    equation: ClassVar[str] = "all"

    def keeps(self, rewards: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(rewards), dtype=torch.bool)


@dataclass(frozen=True)
class Reads(Banded):
    """A guide that reads one signal."""

    signal: str = "problems"
    q_min: float = 0.5
    q_max: float = 2.0
    depends_on: ClassVar[str] = "state"
    equation: ClassVar[str] = "1"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.signal})

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> torch.Tensor:
        return torch.ones_like(signals.old_logps)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "_DECLARED", {})
    yield


def places(method: Method, engine: Any) -> list[str]:
    return [one.path for one in refusals(method, engine)]


@pytest.mark.parametrize("kind", ["surrogate", "reduction", "extra"])
def test_every_part_that_stands_in_an_engines_loss_has_a_row(kind: str):
    own = {part for part in registry_of(kind).values() if part.__module__.startswith("sage_rlvr.")}
    if kind == "extra":
        own, kind = {part for part in own if "on_loss" in vars(part)}, "extras"
    assert len(own) > 2 and own == {row.what for row in engines.table() if row.kind == kind and isinstance(row.what, type)}


def test_every_estimator_and_every_signal_has_a_row():
    anchors = [
        Anchor(0.1, estimator=name, placement="reward" if name == "k1" else "loss", divergence=divergence)
        for name in ESTIMATORS
        for divergence in (DIVERGENCES if name == "exact" else [None])
    ]
    for anchor in anchors:
        said = [row.on("verl") for row in rows_of(replace(rloo(), anchor=anchor)) if row.kind == "anchor"]
        typed = [one for one in said if isinstance(one, Refuses) or f"{ACTOR}.kl_loss_type" in one.fields]
        assert len(typed) == 1, anchor
    assert SIGNALS.keys() == set(NEEDS)


def test_a_subclass_has_no_row_of_its_parent():
    method = replace(grpo(), surrogate=Sharper())
    for engine, name in ENGINES.items():
        with pytest.raises(ConfigError, match=rf"grpo on {name}: method.surrogate = Sharper: nothing says .*declare .*loop engine"):
            check(method, engine)
    assert not computes_advantages(replace(no_kl(), advantage=GroupCentered()))
    assert computes_advantages(replace(no_kl(), advantage=Doubled())), "TRL's own formula would be another one"


def test_a_class_of_ones_own_declares_what_it_sets(declared: None):
    clip = next(row for row in engines.TABLE if row.what is Clip)
    assert isinstance(clip.trl, Sets)
    declare("surrogate", Sharper, trl=clip.trl, verl=Refuses("verl has no such loss", "use Clip"))
    method = replace(grpo(), surrogate=Sharper(0.1, 0.3))
    assert grpo_config(method) == grpo_config(replace(grpo(), surrogate=Clip(0.1, 0.3)))
    with pytest.raises(ConfigError, match="Sharper: verl has no such loss; use Clip, or use the loop engine"):
        method_fields(method, 8)
    with pytest.raises(ConfigError, match=r"kind = 'surogate'; choose one of .*surrogate"):
        declare("surogate", Sharper, trl=Sets(), verl=Sets())
    with pytest.raises(ConfigError, match="Clip has a row already"):
        declare("surrogate", Clip, trl=Sets(), verl=Sets())


def test_one_error_lists_all_that_an_engine_lacks():
    with pytest.warns(UserWarning, match="only the other factors"):
        guide = Token() * Branch(signal="reference")
        anchor = Anchor(Linear(0.1, 0.2), guide=guide, estimator="k3_is", source="snapshot@3")
    method = replace(grpo_token_mean(), surrogate=Gspo(token=True), anchor=anchor, extras=(Replay(),))
    assert places(method, "trl") == ["surrogate.token", "reduction", "anchor.estimator", "extras", "anchor.guide"]
    assert places(method, "verl") == ["surrogate", "extras", "anchor.beta", "anchor.estimator", "anchor.source", "anchor.guide"]
    with pytest.raises(ConfigError) as caught:
        grpo_config(method)
    said = str(caught.value)
    assert said.startswith("grpo_token_mean on TRL: (1) method.surrogate.token = True: ") and said.count("; use ") >= 3
    assert re.findall(r"\((\d)\) method\.", said) == ["1", "2", "3", "4", "5"]
    assert said.endswith("Change all of these, or use the loop engine.")


@pytest.mark.parametrize(
    ("guide", "trl", "verl"),
    [
        (Branch(), "", ""),
        (Flat(), "", ""),
        (Branch(signal="reference"), "reads ref_entropies, .*use signal='policy'", "reads ref_entropies"),
        (Reads("problems"), "reads problems", ""),
        (Reads("answers"), "reads answers", "reads answers"),
        (Reads("advantages"), "computed after q", "computed after q"),
    ],
)
def test_a_guide_runs_where_its_signals_are(guide: Guide, trl: str, verl: str):
    method = sage(grpo(), guide)
    for fields, words in ((grpo_config, trl), (lambda one: method_fields(one, 8), verl)):
        if words:
            with pytest.raises(ConfigError, match=f"method.anchor.guide = .*{words}"):
                fields(method)  # type: ignore[operator]
        else:
            assert fields(method)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("method", "place", "next_step"),
    [
        (replace(grpo(), surrogate=Clip(0.2, 0.28, 1.1)), "surrogate.dual", "raise it"),
        (replace(grpo_token_mean(), surrogate=Cispo(low=0.5)), "surrogate.low", "set low = 1"),
        (replace(grpo(), surrogate=Cispo()), "reduction", "use token_mean"),
        (replace(grpo_token_mean(), surrogate=Gspo()), "reduction", "use sequence_mean"),
        (replace(grpo(estimator="k3_is"), surrogate=Gspo()), "anchor.estimator", "use k3"),
        (replace(grpo_token_mean(), extras=(EntropyBonus(Linear(0.1, 0.2)),)), "extras.0.coefficient", "set a number"),
        (replace(grpo(), extras=(EntropyBonus(0.1),)), "reduction", "use token_mean"),
        (METHODS["dars"](), "rollout", "without a second stage"),
        (METHODS["pacs"](), "surrogate", "another surrogate"),
    ],
)
def test_a_setting_is_refused_at_its_place_with_the_next_step(method: Method, place: str, next_step: str):
    (found,) = refusals(method, "trl")
    assert found.path == place and next_step in found.instead and found.why
    assert isinstance(method.reduction, TokenMean) or method.surrogate == Pacs() or place != "surrogate"


def test_a_plan_of_ones_own_runs_on_trl():
    method = replace(no_kl(), rollout=Kept())
    assert places(method, "trl") == [] and places(method, "verl") == ["rollout"]


def test_the_fields_of_verl_stand_in_the_order_of_its_commands():
    found = [key for key in fields_of(grpo(), "verl", 8) if key not in NEUTRAL]
    ours = ["adv_estimator", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "loss_agg_mode", "loss_scale_factor", "loss_mode"]
    ours += ["clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "entropy_coeff", "enable"]
    assert [key.rpartition(".")[2] for key in found] == [*ours, "use_kl_loss", "kl_loss_coef", "kl_loss_type"]
    assert [*grpo_config(grpo())][:5] == ["beta", "use_bias_correction_kl", "sync_ref_model", "loss_type", "epsilon"]


def test_the_list_of_methods_has_the_engines_of_the_table(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["methods"])
    lines = capsys.readouterr().out.splitlines()
    for name in ("grpo", "cispo", "dars"):
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert line.endswith(" " + " ".join(engines.runs_on(METHODS[name]()))), line


def test_a_run_of_other_sizes_is_refused():
    pkpo = METHODS["pkpo"](k=8)
    with pytest.raises(ConfigError, match=r"on TRL: .*needs at least 8 completions per prompt, and args.num_generations = 4"):
        engines.check_sizes(pkpo, "trl", 16, 4)
    with pytest.raises(ConfigError, match=r"on verl: .*and actor_rollout_ref.rollout.n = 4"):
        engines.check_sizes(pkpo, "verl", 16, 4)
    engines.check_sizes(pkpo, "verl", 16, 8)
