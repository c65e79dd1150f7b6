"""Facts about verl on which sage_rlvr.training.verl leans, each shown on verl itself; a failure names what has changed."""


from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed here: make test-verl")

import transfer_queue as tq
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.config import validate_config
from verl.workers.config import ActorConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.utils import losses
from verl.workers.utils.padding import response_to_nested

from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.contrib.io.import_config import VERL_DEFAULTS
from sage_rlvr.contrib.methods.cispo import Cispo
from sage_rlvr.contrib.methods.gspo import Gspo
from sage_rlvr.core.kl import k2, k3, straight_through
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import dapo, grpo, no_kl
from sage_rlvr.training.engines import FAR
from sage_rlvr.training.verl import fields, launch, objective, terms, trainer
from sage_rlvr.training.verl.arguments import verl_words

DRAW = torch.Generator().manual_seed(0)
LOGPS, REF = (-3 * torch.rand(4, 6, generator=DRAW) for _ in range(2))
LENGTHS = torch.tensor([6, 2, 4, 1])
MASK = torch.arange(6) < LENGTHS[:, None]


def source(of: Any) -> str:
    return inspect.getsource(of)


def test_a_step_shapes_between_the_reference_and_all_who_read_it():
    """_step_once: old log-probs, reference, advantages, update, each by the method that is overridden, in this order."""
    text = source(PPOTrainer._step_once)
    names = ("_balance_batch(", "_compute_old_log_prob(", "_compute_ref_log_prob(", "_compute_advantage(", "_update_actor(")
    places = [text.index(f"self.{name}") for name in names]
    assert places == sorted(places)
    assert set(trainer_base.TRAINER_REGISTRY) == set(objective.MODES)
    for kind in trainer_base.TRAINER_REGISTRY.values():
        trainer.check_layout(kind)
        assert not any(name in vars(kind) for name in ("_compute_ref_log_prob", "_compute_advantage", "_save_checkpoint"))


def test_another_layout_is_refused():
    class Other(PPOTrainer):
        def _compute_ref_log_prob(self, whole: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"Other\._compute_ref_log_prob is not structured as in 0\.9; install"):
        trainer.check_layout(Other)


def test_the_old_policys_forward_leaves_entropies_and_the_references_does_not():
    old, reference = source(PPOTrainer._compute_old_log_prob), source(PPOTrainer._compute_ref_log_prob)
    assert '"calculate_entropy": True' in old and 'data.select("old_log_probs", "entropy")' in old
    assert '"calculate_entropy": False' in reference and 'data.select("ref_log_prob")' in reference
    assert "bypass_mode" in old and old.index("bypass_recomputing_logprobs:") < old.index("calculate_entropy")


def test_the_runner_is_a_ray_actor_of_a_plain_class_that_looks_the_trainer_up():
    plain = TaskRunnerV1.__ray_metadata__.modified_class
    assert "get_trainer_cls(config.trainer.v1.trainer_mode)" in source(plain.run)
    assert "task_runner_class" in inspect.signature(run_ppo).parameters


def test_a_mode_is_compared_by_name():
    """Why a shaped trainer stands under verl's own name: under another it would get the asynchronous replay buffer."""
    assert 'ReplayBuffer if self.trainer_mode == "sync" else ReplayBufferAsync' in source(PPOTrainer._build_replay_buffer)


def test_rows_are_named_by_prompt_session_and_output_and_padding_is_tagged():
    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert 'keys.append(f"{uid}_{session_id}_{i}")' in source(agent_loop_tq)
    assert "is_padding=True" in source(padding_utils) and 'tag.get("is_padding", False)' in source(PPOTrainer.step)
    assert {"keys", "partition_id", "select_fields"} <= set(inspect.signature(tq.kv_batch_get).parameters)
    assert {"keys", "partition_id", "fields"} <= set(inspect.signature(tq.kv_batch_put).parameters)


def test_the_loss_adds_the_kl_to_the_field_behind_every_policy_loss():
    text = source(losses.ppo_loss)
    assert text.index("policy_loss_fn(") < text.index('ref_log_prob = data["ref_log_prob"]') < text.index("kl_penalty(")


def test_kl_types_are_our_estimators_but_for_the_clamp():
    """Values and gradients; verl's k3 stops at 10, where its gradient is 0."""
    ours = {"k3": k3, "k2": k2, "straight_through": straight_through}
    for name in ours:
        kind = fields.method_fields(grpo(estimator=name), 9)[f"{terms.ACTOR}.kl_loss_type"]
        mine, theirs = (LOGPS.clone().requires_grad_() for _ in range(2))
        wanted = ours[name](mine, REF)
        found = core_algos.kl_penalty(theirs, REF, kind)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        wanted.sum().backward(), found.sum().backward()
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-5, atol=1e-6)
    far = torch.tensor([[-9.0]], requires_grad=True)
    held = core_algos.kl_penalty(far, torch.tensor([[-1.0]]), "low_var_kl")
    held.sum().backward()
    assert held.item() == 10.0 and not far.grad.any() and k3(far, torch.tensor([[-1.0]])).item() > 2900


@pytest.mark.parametrize("kind", [kind for kind in fields.ESTIMATORS if kind.endswith("+") or kind in ("mse", "k2")])
def test_a_plus_is_the_gradient_of_k2(kind: str):
    mine, theirs = (LOGPS.clone().requires_grad_() for _ in range(2))
    k2(mine, REF).sum().backward()
    core_algos.kl_penalty(theirs, REF, kind).sum().backward()
    torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", [SequenceMean(), TokenMean(), FixedBudget(9)], ids=lambda part: type(part).__name__)
def test_reductions_of_a_whole_update_and_of_its_halves(reduction: Any):
    mode = fields.method_fields(replace(no_kl(), reduction=reduction), 9)[f"{terms.ACTOR}.loss_agg_mode"]
    loss = LOGPS.clone()
    wanted = reduction(loss, MASK)
    whole = {"batch_num_tokens": int(MASK.sum()), "global_batch_size": 4, "loss_scale_factor": 9}
    parts = [core_algos.agg_loss(loss[rows], MASK[rows], mode, **whole) for rows in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(sum(parts), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_the_vanilla_loss_is_our_clip(dual: float | None):
    config = OmegaConf.create({"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "global_batch_info": {}})
    config.clip_ratio_c = FAR if dual is None else dual
    advantages = torch.tensor([1.0, -1.0, 2.0, -0.5])[:, None].expand(4, 6)
    wanted = SequenceMean()(Clip(0.2, 0.3, dual)(LOGPS - REF, advantages, MASK)[0], MASK)
    found, _ = core_algos.compute_policy_loss_vanilla(
        REF, LOGPS, advantages, MASK, "seq-mean-token-mean", SimpleNamespace(**config, get=lambda k, d=None: config.get(k, d))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def _gradient(name: str, low: float, high: float) -> torch.Tensor:
    """Of a loss of verl at ratios LOGPS - REF, as a mean over rows."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=low, clip_ratio_high=high)
    logps = LOGPS.clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(name)(REF, logps, ADVANTAGES, MASK, "seq-mean-token-mean", config)
    loss.backward()
    return logps.grad


def _gradient_of(part: Any) -> torch.Tensor:
    logps = LOGPS.clone().requires_grad_()
    SequenceMean()(part(logps - REF, ADVANTAGES, MASK)[0], MASK).backward()
    return logps.grad


ADVANTAGES = torch.tensor([1.0, -1.0, 2.0, -0.5])[:, None].expand(4, 6)


def test_what_the_table_of_engines_says_of_verls_other_losses():
    """cispo is ours; gspo has the gradient of Gspo(token=True); kl_cov clips no token and reads the current policy's log-probs."""
    torch.testing.assert_close(_gradient("cispo", 1.0, 0.28), _gradient_of(Cispo()), rtol=1e-5, atol=1e-6)
    found = _gradient("gspo", 0.2, 0.3)
    torch.testing.assert_close(found, _gradient_of(Gspo(0.2, 0.3, token=True)), rtol=1e-5, atol=1e-6)
    text = source(core_algos.compute_policy_loss_kl_cov)
    assert "log_prob[all_valid].detach()" in text and "clamp(ratio" not in text
    arguments = [*inspect.signature(core_algos.compute_policy_loss_vanilla).parameters]
    assert arguments[:4] == ["old_log_prob", "log_prob", "advantages", "response_mask"], "no groups, which Pacs compares"
    assert not any("group" in name or name == "uid" for name in arguments)


def test_the_weights_of_the_sampler_multiply_the_surrogate_alone():
    """As the words of `rollout_is` have it: min(pi_old / sampler, bound) on the loss of a token, no weight on its KL."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask as corrected

    weights, mask, _ = corrected(LOGPS, REF, MASK.float(), rollout_is="token", rollout_is_threshold=2.0, rollout_rs=None)
    found = weights.batch["rollout_is_weights"]
    torch.testing.assert_close(found, (LOGPS - REF).exp().clamp_max(2.0) * MASK, rtol=1e-5, atol=1e-6)
    assert torch.equal(mask, MASK.float())
    clip = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    config = SimpleNamespace(**clip, global_batch_info={}, get=lambda *_: FAR)
    loss, _ = core_algos.compute_policy_loss_vanilla(LOGPS, LOGPS, 1 + 0 * LOGPS, MASK, "token-mean", config, found)
    torch.testing.assert_close(loss, -found[MASK].mean())
    text = source(losses.ppo_loss)
    assert text.count("rollout_is_weights=rollout_is_weights") == 1 and "rollout_is_weights" not in text.split("add kl loss")[1]


def test_what_is_ignored_under_bypass_mode_and_where_rejection_acts():
    """The V1 trainers set old_log_probs alone; rejection changes response_mask behind the credit, and not the number of tokens."""
    old, advantage = source(PPOTrainer._compute_old_log_prob), source(PPOTrainer._compute_advantage)
    assert 'data["old_log_probs"] = data.pop("rollout_log_probs")' in old and "not bypass_recomputing_logprobs" in advantage
    assert "apply_bypass_mode" not in source(trainer_base) + source(losses)
    assert 'config.policy_loss.get("loss_mode", "vanilla")' in source(losses.ppo_loss)
    assert "rollout_correction" not in source(losses)
    assert advantage.index("compute_rollout_correction_and_add_to_batch(") < advantage.index('fields.append("response_mask")')
    assert 'response_mask = data["response_mask"].to(bool)' in source(losses.ppo_loss)
    assert 'batch_num_tokens = data["loss_mask"].sum()' in source(FSDPEngine.forward_backward_batch)


def test_pi_old_of_separate_async_is_that_at_the_start_of_the_step():
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

    text = source(PPOTrainerSeparateAsync._compute_old_log_prob)
    assert text.index("if self.local_trigger_step == 0:") < text.index("save_model_to_cpu(0)")
    words = ("restore_model_from_cpu(0)", "super()._compute_old_log_prob(", "restore_model_from_cpu(self.local_trigger_step)")
    places = [text.rindex(word) for word in words]
    assert places == sorted(places)
    assert "update_weights(self.global_steps)" in source(PPOTrainerSeparateAsync.on_step_end)


def test_the_recipe_of_two_machines_is_of_fields_that_verl_has():
    """hydra refuses another; the method's agree with them."""
    recipe = load_config(TrainConfig, "examples/two_machines.yaml", [("model", "embedded")])
    tree, rest = launch.split(verl_words(recipe, Path("run"), template=None, longest=64))
    with initialize_config_dir(launch.CONFIG, version_base=None):
        config = compose("ppo_trainer", overrides=[word for word in rest if not word.startswith("hydra.")])
    launch.prepare(config, tree, [word.partition("=")[0].lstrip("+") for word in rest])
    actor = config.actor_rollout_ref.actor
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node, actor.strategy, actor.use_kl_loss) == (2, 8, "fsdp2", True)
    validate_config(config, need_reference_policy(config), need_critic(config))


def test_the_terms_have_verls_defaults():
    """A field that a release adds to verl's losses is no term here; one that it drops or changes fails this."""
    from stage import configured, words

    config, own = configured(), {word.partition("=")[0].lstrip("+") for word in words(Path("."))}
    wanted = {key: value for key, value in VERL_DEFAULTS.items() if key not in own}  # these contain terms.OWN
    found = {key: OmegaConf.select(config, key, default="missing") for key in wanted}
    assert {key: value for key, value in found.items() if not terms.same(value, wanted[key])} == {}
    assert terms.OWN.keys() <= wanted.keys()
    told = {f"{terms.LOSS}.{name}" for name in config.actor_rollout_ref.actor.policy_loss}
    told |= {f"{terms.CORRECTION}.{name}" for name in config.algorithm.rollout_correction}
    assert {key for key in told if not key.endswith("_target_")} <= {*terms.OWN, *terms.ALWAYS}


def test_the_kl_in_the_reward_of_verl_is_divided_by_the_groups_std():
    """Why it is refused: halving the spread of a group's rewards doubles what its KL costs."""
    from verl import DataProto

    def effect(scale: float) -> torch.Tensor:
        scores = torch.zeros(4, 6)
        scores[torch.arange(4), LENGTHS - 1] = scale * torch.tensor([1.0, 0.0, 1.0, 0.0])
        found = []
        for reference in (LOGPS, REF):
            data = DataProto.from_dict(
                tensors={
                    **{"token_level_scores": scores, "old_log_probs": LOGPS, "ref_log_prob": reference},
                    **{"response_mask": MASK.long(), "attention_mask": MASK.long()},
                }
            )
            data, _ = apply_kl_penalty(data, core_algos.FixedKLController(0.01), "kl")
            found.append(core_algos.compute_grpo_outcome_advantage(data.batch["token_level_rewards"], MASK, ["a"] * 4)[0])
        return found[1] - found[0]

    assert float(effect(0.5).abs().max()) > 1.5 * float(effect(1.0).abs().max()) > 0


def test_an_estimator_is_called_with_rewards_and_mask_of_all_rows():
    trainer.install()
    assert "adv_estimator_fn(**adv_kwargs)" in source(compute_advantage)
    assert "return compute_advantage(" in source(compute_advantage_for_multi_trajectories).split("final_sessions")[0]
    with pytest.raises(RuntimeError, match=r"python -m sage_rlvr\.verl"):
        trainer.estimator(LOGPS, MASK)
    with trainer.computing(lambda rewards, mask: rewards + 1):
        function = core_algos.get_adv_estimator_fn("sage")
        found, returns = function(token_level_rewards=LOGPS, response_mask=MASK, config=None, index=[])
    assert torch.equal(found, (LOGPS + 1) * MASK) and found is returns


def test_our_estimator_needs_no_critic_and_the_loss_asks_for_the_reference():
    config = OmegaConf.create({"critic": {"enable": None}, "algorithm": {"adv_estimator": "sage", "use_kl_in_reward": False}})
    config.actor_rollout_ref = {"actor": {"use_kl_loss": True, "kl_loss_coef": 0.0}}
    with pytest.warns(UserWarning, match="critic"):
        assert not need_critic(config)
    assert need_reference_policy(config)


def test_a_padded_field_goes_back_jagged():
    nested = torch.nested.as_nested_tensor([torch.ones(n) for n in LENGTHS.tolist()], layout=torch.jagged)
    found = response_to_nested(LOGPS, nested)
    assert [row.tolist() for row in found.unbind()] == [LOGPS[n, :length].tolist() for n, length in enumerate(LENGTHS)]


def test_the_reference_is_the_model_that_training_starts_from():
    from verl.workers.engine_workers import ActorRolloutRefWorker

    assert "ref_config.model_config = deepcopy(model_config)" in source(ActorRolloutRefWorker.init_model)


def test_a_checkpoint_is_named_the_latest_at_its_end():
    """What is put into its folder before is there whenever verl resumes from it."""
    text = source(PPOTrainer._save_checkpoint)
    assert text.index("data.pt") < text.index("latest_checkpointed_iteration.txt") and 'f"global_step_{self.global_steps}"' in text


def test_a_row_of_the_file_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where a run reads its metrics; a number that is not finite is null there."""
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "rows.jsonl"))
    logger = FileLogger("a", "b")
    logger.log({"actor/grad_norm": float("nan"), "actor/loss": 0.5}, 3)
    found = json.loads((tmp_path / "rows.jsonl").read_text())
    assert found == {"step": 3, "data": {"actor/grad_norm": None, "actor/loss": 0.5}}


def test_the_rates_that_verl_has():
    """Constant and cosine; a warm-up begins at 0, and the rate moves once per step of the trainer."""
    from verl.utils.torch_functional import get_constant_schedule_with_warmup
    text = source(FSDPEngine._build_lr_scheduler)
    assert text.count("lr_scheduler_type ==") == 2 and "NotImplementedError" in text
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule = get_constant_schedule_with_warmup(optimizer, 2)
    rates = []
    for _ in range(3):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step(), schedule.step()
    assert rates == [0.0, 0.25, 0.5]


def test_dynamic_sampling_drops_groups_of_equal_rewards_without_a_bound():
    from verl.trainer.ppo.v1 import replay_buffer

    assert fields.method_fields(dapo(), 24)["algorithm.filter_groups.metric"] == replay_buffer.FILTER_GROUPS_REWARD_METRIC
    assert "max_num_gen_batches=%s is ignored" in source(PPOTrainer._resolve_filter_groups_metric)


def test_adapters_are_off_in_the_reference_and_saved_with_the_whole_model():
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    assert 'metadata["no_lora_adapter"] = True' in source(PPOTrainer._compute_ref_log_prob)
    text = source(FSDPCheckpointManager.save_checkpoint)
    words = ("if self.should_save_hf_model:", "get_fsdp_full_state_dict(", "state_dict=state_dict)")
    places = [text.rindex(word) for word in words]
    assert places == sorted(places)
    assert "dropout" not in source(FSDPEngine._build_lora_module)


def test_a_reward_function_is_given_a_text_without_its_end():
    """Why the verifiers come as a reward manager, which verl loads by name."""
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo import reward

    assert "skip_special_tokens=True" in source(NaiveRewardManager.run_single)
    assert 'source == "importlib"' in source(reward)
