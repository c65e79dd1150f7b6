"""What SageTrainer refuses, each with the way out. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")


from sage_rlvr.core.guides import Branch
from sage_rlvr.core.guides.token import Token
from sage_rlvr.errors import CancellingGuide, ConfigError
from sage_rlvr.methods import grpo, grpo_token_mean, rloo, sage
from sage_rlvr.training.engines import sampling_warning
from sage_rlvr.training.trl import SageTrainer, grpo_config, release
from sage_rlvr.training.trl.card import truncated
from sage_rlvr.training.trl.given import check_agreement, check_source
from sage_rlvr.training.trl.versions import TESTED
from trl_common import arguments, build, reward, same, weights

BRANCH = Branch(ratio=0.3, threshold=1.2)


def refused(args: Any, words: str, error: type[Exception] = ConfigError, **more: Any) -> None:
    """SageTrainer raises before it loads anything: the model does not exist."""
    with pytest.raises(error, match=words):
        SageTrainer(model="/no/such/model", reward_funcs=reward, args=args, train_dataset=None, **more)


def test_refused_at_construction(tmp_path: Path):
    refused(arguments(tmp_path), "either guide")
    refused(arguments(tmp_path), "either guide", guide=BRANCH, method=sage())
    refused(None, "beta = 0.0", guide=BRANCH)
    refused(arguments(tmp_path, beta=0.0), "set beta in GRPOConfig", guide=BRANCH)
    corrected = arguments(tmp_path, use_bias_correction_kl=True)
    refused(corrected, "use_bias_correction_kl=False", CancellingGuide, guide=BRANCH)
    refused(arguments(tmp_path), "signal='policy'", guide=Branch(signal="reference"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, []),
        ({"top_p": 1.0, "top_k": 0, "min_p": 0.0}, []),
        ({"top_k": -1, "min_p": None}, []),
        ({"top_p": 0.9, "repetition_penalty": 1.1}, ["top_p=0.9", "repetition_penalty=1.1"]),
        ({"top_k": 20, "min_p": 0.1}, ["top_k=20", "min_p=0.1"]),
        ({"generation_kwargs": {"top_p": 0.5, "do_sample": False}}, ["top_p=0.5", "do_sample=False"]),
        ({"top_p": 0.5, "generation_kwargs": {"top_p": 1.0}}, []),
        ({"temperature": 0.7, "generation_kwargs": {"temperature": 0.7, "use_cache": True}}, []),
        ({"temperature": 0.7, "generation_kwargs": {"temperature": 0.3}}, ["temperature=0.3"]),
        ({"generation_kwargs": {"no_repeat_ngram_size": 3}}, ["no_repeat_ngram_size=3"]),
    ],
)
def test_sampling_that_is_not_the_policys_is_named_and_not_refused(fields: dict[str, Any], said: list[str], tmp_path: Path):
    args = arguments(tmp_path, **grpo_config(grpo(beta=0.5)), **fields)
    check_agreement(grpo(beta=0.5), args)
    assert truncated(args) == said and all(cut in sampling_warning(truncated(args)) for cut in said)


def test_a_percentile_is_refused_with_the_corrected_kl_as_a_threshold_is(tmp_path: Path):
    args = arguments(tmp_path, use_bias_correction_kl=True)
    said = r"under which {} cancels in the expected gradient; set use_bias_correction_kl=False.*O\(1/B\) for B rows"
    refused(args, said.format("Branch"), CancellingGuide, guide=Branch(threshold="p80"))
    product = Branch(threshold="p80") * Branch()
    refused(args, said.format(r"Branch \* Branch"), CancellingGuide, guide=product)


def test_a_threshold_above_the_vocabulary_is_refused(tiny_policy: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"threshold = 10 nats is never exceeded: the policy has 21 logits.*'p80'"):
        build(tiny_policy, arguments(tmp_path), guide=Branch(threshold=10.0))


def test_a_guide_that_sleeps_for_ten_steps_is_said_once(tiny_policy: Path, tmp_path: Path):
    """Optimizer steps are counted, not micro-batches: 12 steps, the tenth is number 9."""
    trainer = build(tiny_policy, arguments(tmp_path, "accumulated", max_steps=12), guide=Branch(threshold=3.04))
    with pytest.warns(UserWarning, match="^Branch does nothing: .* in the 10 steps up to step 9 ") as caught:
        trainer.train()
    assert len([each for each in caught if "Branch" in str(each.message)]) == 1


def test_what_is_no_guide_no_method_or_no_keyword_is_answered_with_what_to_write(tmp_path: Path):
    args = arguments(tmp_path)
    refused(args, r"write guide=Token\(\)", guide=Token)
    refused(args, r"write guide=Random\(\)", guide="random")
    refused(args, r"write method=dapo\(\.\.\.\)", method="dapo")
    refused(args, r"write method=rloo\(\.\.\.\)", method=rloo)
    refused(args, r"unknown keyword guides; did you mean guide\?", guides=BRANCH)
    refused(args, r"unknown keyword peft_confg; did you mean peft_config\?", guide=BRANCH, peft_confg=None)
    accepted = "the accepted keywords are guide, method, source, base_model, audit, model, "
    refused(args, f"unknown keyword zzz; {accepted}", guide=BRANCH, zzz=1)


def test_a_source_that_can_be_no_reference_is_refused_at_once(tmp_path: Path):
    for word in ("ref", "a/b/c", "./nowhere", str(tmp_path / "nowhere")):
        refused(arguments(tmp_path), r"(?s)not a known reference.*sft .*base .*snapshot@N .*path", guide=BRANCH, source=word)
        method = grpo(beta=0.5, source=word)
        refused(arguments(tmp_path, **grpo_config(method)), "not a known reference", method=method)
    for word in ("sft", "base", "snapshot@7", "embedded", "Qwen/Qwen2.5-0.5B", str(tmp_path)):
        check_source(grpo(beta=0.5, source=word).anchor)


def test_an_epsilon_high_of_none_is_epsilon(tmp_path: Path):
    """As TRL reads it; so it agrees with a symmetric clip and not with dapo's."""
    check_agreement(sage(), arguments(tmp_path, **grpo_config(sage()) | {"epsilon_high": None}))
    high = grpo_token_mean(clip_high=0.28)
    with pytest.raises(ConfigError, match=r"args.epsilon_high = None, but method.surrogate.high means 0.28"):
        check_agreement(high, arguments(tmp_path, **grpo_config(high) | {"epsilon_high": None}))


def test_arguments_that_contradict_the_method_are_refused(tmp_path: Path):
    fields = grpo_config(sage())
    words = r"args.beta = 0.04, but method.anchor.beta means 0.05\. .*pass them to the method: method=sage\(grpo\(\.\.\.\)"
    refused(arguments(tmp_path, **fields | {"beta": 0.04}), words, method=sage())
    refused(arguments(tmp_path, **fields | {"loss_type": "bnpo"}), "method.reduction means 'grpo'", method=sage())
    refused(
        arguments(tmp_path, **fields | {"use_bias_correction_kl": True}),
        "method.anchor.estimator means False",
        method=sage(),
    )
    refused(arguments(tmp_path, **fields, top_entropy_quantile=0.2), "has no such term: 1.0", method=sage())


def test_a_method_is_refused_where_a_release_computes_another_loss_by_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = inspect.getsource(trl.GRPOTrainer._compute_loss)
    one = plain.replace("advantages.dim() == 1", "True")
    monkeypatch.setattr(release.inspect, "getsource", lambda _: one)
    refused(arguments(tmp_path, **grpo_config(rloo(beta=0.1))), "does not support per-token advantages", method=rloo(beta=0.1))
    older = plain.replace("self.args.steps_per_generation", "1")
    monkeypatch.setattr(release.inspect, "getsource", lambda _: older)
    split = arguments(tmp_path, "moves: steps", **grpo_config(grpo_token_mean()))
    refused(split, "set steps_per_generation = 1 ", method=grpo_token_mean())


def test_liger_is_refused_where_it_bypasses_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trl.GRPOTrainer, "compute_liger_loss", lambda *_: None, raising=False)
    args = arguments(tmp_path)
    args.use_liger_kernel = True
    refused(args, "trl>=1.14", guide=BRANCH)


def test_a_trainer_rewritten_by_unsloth_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trl, "GRPOTrainer", type("UnslothGRPOTrainer", (trl.GRPOTrainer,), {}))
    refused(arguments(tmp_path), "unsloth", guide=BRANCH)


def test_a_loss_that_reads_the_reference_early_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def early(self: Any, model: Any, inputs: Any) -> Any:
        reference = inputs["ref_per_token_logps"]
        return reference, self._get_per_token_logps_and_entropies(model)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", early)
    refused(arguments(tmp_path), "has an unexpected structure", guide=BRANCH)


def test_a_loss_that_was_never_tested_names_the_newest_tested_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a user whose release lies in the range of the extra already."""

    def other(self: Any, model: Any, inputs: Any) -> Any:
        return model(inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", other)
    refused(arguments(tmp_path), f"pip install 'trl=={TESTED}'", guide=BRANCH)


def test_a_run_whose_loss_passes_by_stops_before_its_first_update(tiny_policy: Path, tmp_path: Path):
    class Bypassed(SageTrainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return trl.GRPOTrainer._compute_loss(self, model, inputs)

    trainer = build(tiny_policy, arguments(tmp_path), Bypassed, guide=BRANCH)
    start = weights(trainer)
    with pytest.raises(RuntimeError, match="no effect"):
        trainer.train()
    assert same(start, weights(trainer))
