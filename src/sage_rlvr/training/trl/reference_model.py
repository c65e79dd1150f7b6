"""pi_ref on TRL: its weights according to the KL term's `source`, when they are updated, and how they are checkpointed.

    source        full fine-tuning                                   adapters
    sft           the weights that the policy is built with          the adapter disabled where it starts at zero; else a
                                                                     frozen second adapter "ref", a copy of the first
    base          `base_model`; without it the path in the policy's  the adapter disabled; `base_model` where that is
                  config                                             another model
    snapshot@N    as sft, and after N optimizer steps a copy of the policy, without gradient
    a path        loaded, with the policy's own vocabulary

By itself TRL loads the path in the policy's config (full fine-tuning: an SFT done in memory, or merged, is lost), or
disables the adapter, or copies an adapter that was there before. Here the one call with which TRL loads its reference
is answered while the trainer is built, so that TRL prepares the model (dropout, fused head, DeepSpeed, FSDP) as its own.
A rollout is scored with the reference of its time: where it serves several steps, a reference that moves between them
acts from the next rollout on. Nothing here was run with DeepSpeed or FSDP: there TRL loads the reference from the
policy's path, the first batch shows whether it is the policy, and a reference that moves is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import trl
from accelerate.utils import is_peft_model
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback
from trl.trainer import grpo_trainer

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.models.folders import source_of
from sage_rlvr.models.hashes import check_hashes
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.weights import check_files, whole
from sage_rlvr.training.reference import check_vocabularies, copy_of, due, frozen
from sage_rlvr.training.state import load_tensors, model_tensors
from sage_rlvr.training.trl.adapters import (
    ADAPTER,
    MOVES_WEIGHTS,
    TRAINED,
    check_adapters,
    check_trained,
    copy_adapter,
    drop,
    init_of,
    starts_at_zero,
    values_of,
)
from sage_rlvr.training.trl.arguments import making
from sage_rlvr.training.trl.protocols import PolicyTrainer, TrlTrainer
from sage_rlvr.training.trl.versions import INSTALL_TESTED

AT_START = {"float32": 1e-5, "half": 1e-2}  # nats that rounding may leave between pi_ref and an equal policy


@dataclass
class Reference:
    """The reference pi_ref of a trainer.

    how           its source in words
    step          optimizer steps after which it was copied from the policy
    is_policy     at step 0 it must be the policy itself
    every, share  each `every` steps pi_ref takes `share` of the policy
    """

    trainer: PolicyTrainer
    source: str
    how: str
    is_policy: bool
    snapshot: int | None = None
    every: int | None = None
    share: float = 1.0
    step: int = 0

    def due(self, done: int) -> int:
        """The step that the reference is from when `done` optimizer steps are done; 0 is the one it started with."""
        return due(self.snapshot, self.every, done)

    @property
    def moves(self) -> bool:
        """True if the policy of the run becomes the reference."""
        return self.snapshot is not None or self.every is not None

    @property
    def words(self) -> str:
        """One line: the source, what it is made of, and where it moves when, and where it is now."""
        line = f"{self.source}: {self.how}"
        if self.snapshot is not None:
            line = f"{self.source}: a frozen copy of the policy after step {self.snapshot}; until then {self.how}"
        elif self.every is not None:
            taken = "replaced by" if self.share == 1.0 else f"mixed with {self.share:g} of"
            line += f"; {taken} the policy after every {self.every} steps"
        return line + (f"; now that of step {self.step}" if self.step else "")

    @property
    def policy(self) -> Any:
        """The model that is trained, as it was before it was wrapped."""
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    @property
    def model(self) -> Any:
        """The model that is the reference only; None if it is the policy, with its adapter disabled or another one."""
        own = self.trainer.ref_model
        return None if own is None else self.trainer.accelerator.unwrap_model(own)

    def tensors(self) -> dict[str, Tensor]:
        """Return its own weights by name: of its model, or of the adapter; nothing if an adapter is disabled."""
        if self.model is not None:
            return model_tensors(self.model)
        return {name: value.detach().contiguous() for name, value in values_of(self.policy, ADAPTER).items()}

    @torch.no_grad()
    def become(self, step: int, tensors: dict[str, Tensor] | None = None) -> None:
        """Set the reference to that of `step`: these `tensors`, or without any a copy of the policy."""
        self.step = step
        if self.model is not None:
            load_tensors(self.model, model_tensors(self.policy) if tensors is None else tensors)
            return
        copy_adapter(self.policy)
        values = values_of(self.policy)
        for name, value in (tensors or {}).items():
            values[name].copy_(value)


class ReferencedTrainer(PolicyTrainer, Protocol):
    """A trainer whose reference is known: None without a KL term."""

    reference: Reference | None


def from_policy(trainer: PolicyTrainer) -> str:
    """Return the setting that makes the initial policy the reference: next to a guide, or in the call that makes a method."""
    method = trainer.method
    return "source='sft'" if method is None else making(method, "source='sft'")


# ---- while the trainer is built


@contextmanager
def chosen_reference(trainer: ReferencedTrainer, given: Mapping[str, Any], base_model: str | None) -> Iterator[None]:
    """Make the reference of `trainer` that of trainer.anchor.source, while TRL builds it from the arguments `given` (by name).

    Sets trainer.reference. Raises ConfigError if a source cannot be loaded; nothing is trained by then.
    """
    trainer.reference = None
    plain = partial(_of_safetensors, grpo_trainer.create_model_from_path)
    if trainer.anchor is None:
        with _loading_by(plain):
            yield
        return
    args, model = given["args"], given.get("model")
    own = isinstance(model, nn.Module) and is_peft_model(model)  # adapters that were there before
    adapters = own or given.get("peft_config") is not None
    choice = _Choice(trainer, model, trainer.anchor, base_model, plain)
    _check_given(args, adapters, trainer.anchor.snapshot_step)
    if own:
        check_adapters(model)
    synced, args.sync_ref_model = args.sync_ref_model, args.sync_ref_model and not adapters  # TRL's knows no adapters
    try:
        with _loading_by(choice.load):
            yield
    finally:
        args.sync_ref_model = synced
    how = _settle_adapters(trainer, choice) if adapters else choice.how
    if how is None:
        raise ConfigError(
            f"SageTrainer: TRL {trl.__version__} does not load its reference with create_model_from_path, so the source "
            f"of the reference cannot be set; {INSTALL_TESTED}."
        )
    every, share = (args.ref_model_sync_steps, args.ref_model_mixup_alpha) if synced else (None, 1.0)
    snapshot = trainer.anchor.snapshot_step
    trainer.reference = Reference(trainer, trainer.anchor.source, how, choice.of_policy, snapshot, every, share)
    if trainer.reference.moves:
        _check_movable(trainer.reference)
        trainer.add_callback(Follower(trainer.reference))


def _check_given(args: Any, adapters: bool, snapshot: int | None) -> None:
    refuse(
        (
            snapshot is not None and args.sync_ref_model,
            f"SageTrainer: source='snapshot@{snapshot}' fixes the reference at one step, and args.sync_ref_model = "
            "True replaces it repeatedly; set only one of them.",
        ),
        (
            adapters and args.sync_ref_model and args.ref_model_mixup_alpha != 1.0,
            f"SageTrainer: args.ref_model_mixup_alpha = {args.ref_model_mixup_alpha:g} with adapters: mixing their factors "
            "does not mix their products; set ref_model_mixup_alpha=1.0, which replaces the reference.",
        ),
    )


@contextmanager
def _loading_by(load: Callable[..., Any]) -> Iterator[None]:
    """TRL's create_model_from_path is another for a while."""
    plain = grpo_trainer.create_model_from_path
    grpo_trainer.create_model_from_path = load
    try:
        yield
    finally:
        grpo_trainer.create_model_from_path = plain


def _of_safetensors(plain: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    """Load as TRL's create_model_from_path does, but only safetensors and with every tensor."""
    if (Path(path) / "config.json").exists():
        check_files(Path(path))
        check_hashes(Path(path))
    return whole(plain, path, *args, **kwargs)


class _Choice:
    """Answers TRL's call for a reference. how: in words, None until asked; of_policy: it is to be the policy itself."""

    def __init__(
        self, trainer: PolicyTrainer, model: Any, anchor: Anchor, base_model: str | None, plain: Callable[..., Any]
    ) -> None:
        self.trainer, self.model, self.source, self.plain = trainer, model, anchor.source, plain
        self.of_policy = anchor.source == "sft" or anchor.snapshot_step is not None
        named = base_model if anchor.source == "base" else None if self.of_policy else anchor.source
        self.name_or_path = None if named is None else source_of(named)
        self.how: str | None = None

    def load(self, path: str, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """Replace create_model_from_path: load the policy as usual, and instead of its path again the reference."""
        policy = getattr(self.trainer, "model", None)
        if policy is None:  # Trainer has not been given one yet: this is the call for the policy
            return self.plain(path, *args, **kwargs)
        if self.of_policy and not isinstance(self.model, str):
            if not _split(self.trainer, policy):
                self.how = "a frozen copy of the policy as it was at step 0"
                return frozen(copy_of(policy))
            self.how = f"loaded from {path} because the policy is split over devices; compared with the policy at step 0"
            return self.plain(path, *args, **kwargs)
        if self.name_or_path is not None and not same_model(self.name_or_path, path):
            return self.other(kwargs)
        if not path:
            raise ConfigError(
                f"SageTrainer: source = {self.source!r} needs a policy that was loaded from a path; name the model "
                f"before any fine-tuning with base_model=..., or use {from_policy(self.trainer)}."
            )
        self.how = f"{'the policy as it was at step 0, ' if self.of_policy else ''}loaded from {path}"
        model = self.plain(path, *args, **kwargs)
        ours, theirs = (m.config.get_text_config().vocab_size for m in (policy, model))
        if ours != theirs:
            raise ConfigError(
                f"SageTrainer: the policy has {ours:,} logits and its reference, loaded from {path} (source = "
                f"{self.source!r}), {theirs:,}; name a model with the policy's vocabulary, or use {from_policy(self.trainer)}."
            )
        return model

    def other(self, kwargs: dict[str, Any]) -> PreTrainedModel:
        """The model `name_or_path`, without gradient. ConfigError if there is none, or one with another vocabulary."""
        assert self.name_or_path is not None
        self.how = f"loaded from {self.name_or_path}"
        try:
            model = self.plain(self.name_or_path, **{name: value for name, value in kwargs.items() if name != "revision"})
            tokens = Tokens.of(AutoTokenizer.from_pretrained(self.name_or_path))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"SageTrainer: the reference {self.name_or_path!r} (source = {self.source!r}) could not be loaded: {error}"
            ) from error
        policy, ours = self.trainer.model, self.trainer.processing_class
        named = (policy.config._name_or_path, policy, Tokens.of(getattr(ours, "tokenizer", ours)))
        check_vocabularies(named, (self.name_or_path, model, tokens))
        return frozen(model)


def same_model(first: str, second: str) -> bool:
    """Return True if two names of a model, folders or Hub ids, are of the same one."""
    return first == second or (Path(first).is_dir() and Path(first).resolve() == Path(second).resolve())


def sharded(trainer: TrlTrainer) -> bool:
    """Return True if DeepSpeed or FSDP shards the policy."""
    return bool(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)


def _split(trainer: TrlTrainer, policy: PreTrainedModel) -> bool:
    """Return True if no process has the complete policy on one device."""
    return sharded(trainer) or len({*(getattr(policy, "hf_device_map", None) or {}).values()}) > 1


# ---- adapters


def _settle_adapters(trainer: PolicyTrainer, choice: _Choice) -> str:
    """Choose between the reference that TRL, already built, took from the adapters and a separate one; return it in words."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    check_trained(model)
    below = str(model.get_base_model().config._name_or_path)
    if choice.name_or_path is not None and not (isinstance(choice.model, str) and same_model(choice.name_or_path, below)):
        drop(model)
        trainer.ref_model = _prepared(trainer, choice, model)
        return f"loaded from {choice.name_or_path}"
    if not choice.of_policy:
        if init_of(model.peft_config[TRAINED]).startswith(MOVES_WEIGHTS):
            raise ConfigError(
                f"SageTrainer: source='base' with init_lora_weights = {init_of(model.peft_config[TRAINED])!r}, changes "
                "the weights below the adapter, so disabling the adapter does not give the base; set base_model=..., "
                f"or use {from_policy(trainer)}."
            )
        drop(model)
        return "the policy with its adapter disabled"
    if ADAPTER not in model.peft_config and starts_at_zero(model):
        return "the policy with its adapter disabled (the adapter is zero at step 0)"
    if ADAPTER not in model.peft_config or not sharded(trainer):  # pieces are not to be copied one by one
        copy_adapter(model)
    return f"a frozen copy of the policy as it was at step 0 (adapter {ADAPTER!r})"


def _prepared(trainer: PolicyTrainer, choice: _Choice, model: Any) -> PreTrainedModel:
    """A separate reference model for a policy with adapters, prepared as TRL prepares the one of full fine-tuning."""
    args, policy = trainer.args, model.get_base_model()
    if sharded(trainer) or args.cast_lm_head_to_fp32:
        raise ConfigError(
            f"SageTrainer: a reference loaded from {choice.name_or_path} together with adapters is not supported with "
            "DeepSpeed, FSDP or cast_lm_head_to_fp32; use source='sft' or 'base', or train without adapters."
        )
    kwargs = {"dtype": policy.dtype, "attn_implementation": policy.config._attn_implementation, "device_map": None}
    reference = choice.other({**(args.model_init_kwargs or {}), **kwargs}).to(trainer.accelerator.device)
    if args.disable_dropout:
        grpo_trainer.disable_dropout_in_model(reference)
    fuse = getattr(grpo_trainer, "add_fused_lm_head", None)  # TRL 1.15 and later score with it
    if fuse is not None:
        fuse(reference, temperature=trainer.temperature, cast_lm_head_to_fp32=False)
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)


# ---- while it trains


class Follower(TrainerCallback):
    """Callback that makes the reference a copy of the policy after the steps for it. It has no state: the reference does."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Update the reference before the evaluation and the checkpoint of that step."""
        reference, done = self.reference, state.global_step
        if reference.due(done) != done:
            return
        if reference.model is not None and reference.snapshot is None:
            reference.step = done  # with sync_ref_model TRL's own callback has copied
        else:
            reference.become(done)


def _check_movable(reference: Reference) -> None:
    refuse(
        (
            _split(reference.trainer, reference.policy),
            f"SageTrainer: the reference ({reference.words}) changes during training, but with DeepSpeed, FSDP or a "
            "device map no process holds the whole policy to copy; use source='sft', 'base' or a path there.",
        ),
        (
            reference.model is not None and is_peft_model(reference.policy),
            f"SageTrainer: the reference ({reference.words}) would change from a separate model to a copy of the "
            "adapter; start from source='sft', or remove refresh_every (sync_ref_model).",
        ),
    )


def check_start(trainer: ReferencedTrainer, kl: float) -> None:
    """ConfigError if at step 0 the reference should be the policy and `kl`, the raw KL in nats, is more than rounding."""
    reference, args = trainer.reference, trainer.args
    if trainer.state.global_step or reference is None or not reference.is_policy:
        return
    policy = reference.policy
    half = args.bf16 or args.fp16 or any(value.dtype != torch.float32 for value in policy.parameters())
    if kl <= AT_START["half" if half else "float32"]:
        return
    if random := _dropout(policy):
        trainer.tell(
            "dropout",
            0,
            f"SageTrainer: the raw KL is {kl:.3g} nats at step 0, although the reference is the policy "
            f"({reference.words}): the policy has active dropout ({random}); set disable_dropout=True in GRPOConfig.",
        )
        return
    raise ConfigError(
        f"SageTrainer: the raw KL is {kl:.3g} nats at step 0, so the reference differs from the policy at the start, "
        f"although it should be equal ({reference.words}). Either the policy's weights were changed after the trainer "
        f"was built, or they are not those of {getattr(policy.config, '_name_or_path', '')!r}; save the policy with "
        "save_pretrained and give the trainer that path, or set source='base'. No weight has been changed."
    )


def _dropout(policy: PreTrainedModel) -> str:
    """The first thing in the policy that drops out while it trains; empty if there is none."""
    for name, module in policy.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"{name}: p = {module.p:g}"
    config = policy.config.to_dict() if hasattr(policy.config, "to_dict") else {}
    rates = [(name, p) for name, p in config.items() if "drop" in name and isinstance(p, float) and 0 < p < math.inf]
    return f"config.{rates[0][0]} = {rates[0][1]:g}" if rates else ""
