"""SageTrainer: TRL's GRPOTrainer with log(q pi_ref) instead of log pi_ref in the loss.

    ref_per_token_logps <- ref_per_token_logps + log q(pi_old)         SAGE, arXiv 2605.18864, Eqs. 7 and 38

The five stages are those of training/loop.py:

    collect   `_draw`: TRL generates and judges; dynamic_sampling.py draws again what the rollout plan drops
    score     `_get_per_token_logps_and_entropies`: TRL's own forwards, recorded, under the policy and the reference
    shape     `_shape`: log q of the policy that generated the data, into the reference's log-probs
    credit    `with_advantages` (batch.py): the method's advantages instead of TRL's
    update    `_compute_loss`: TRL's loss, which reads both; `training_step` skips updates without a signal

No line of TRL's loss is copied. No forward pass is added, except one scoring of a rollout if advantages read log-probs (the KL in
the reward, a token weight) and TRL has none. q comes from the policy that generated the data: from TRL's forward at generation if
TRL scores the completions there (because the policy will move before it is done with them), otherwise from the first forward of
the loss, before any optimizer step. It is stored in the batch, so that it is the same for the whole update. Noise and schedules are
functions of args.seed, state.global_step and the row, so a resume needs only the state of the method's parts, which is in the
checkpoint.
"""

from __future__ import annotations

import atexit
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput, get_last_checkpoint
from trl import GRPOTrainer

from sage_rlvr.config import UpdateConfig
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import NO_SIGNAL, Method, has_signal
from sage_rlvr.core.rollout_plans import is_spread
from sage_rlvr.core.state import State
from sage_rlvr.errors import CheckpointError, ConfigError
from sage_rlvr.safe_io import read_json
from sage_rlvr.training.base_samples import BaseCounts, check_base_counts
from sage_rlvr.training.engines import kl_in_reward
from sage_rlvr.training.model_card import render
from sage_rlvr.training.opening import after_first_step
from sage_rlvr.training.places import StateClass, check_state_class, places_of, state_class_of_rewards
from sage_rlvr.training.reference import REFERENCE_STEP
from sage_rlvr.training.trl.arguments import check_world, reads_whole_batch
from sage_rlvr.training.trl.batch import (
    ROLLOUT_ONLY,
    anchor_means,
    answers_of,
    base_counts_of,
    counted,
    ends_of,
    gated,
    key_of,
    predicting,
    problems_of,
    reads_logps,
    score,
    seen_states,
    shape_inputs,
    total_rewards,
    with_advantages,
)
from sage_rlvr.training.trl.callbacks import NAMES, leave_gloo, our_names
from sage_rlvr.training.trl.card import facts
from sage_rlvr.training.trl.dynamic_sampling import draw_all, draw_kept
from sage_rlvr.training.trl.first_tokens import first_token_rollouts
from sage_rlvr.training.trl.given import admitted_anchor, check_data, check_keywords, check_kinds
from sage_rlvr.training.trl.opening import SCRIPT, audit_rewards, open_training, to_stderr
from sage_rlvr.training.trl.protocols import Inputs, ReferenceAnswer
from sage_rlvr.training.trl.reference_model import Reference, check_start, chosen_reference
from sage_rlvr.training.trl.release import check_engine
from sage_rlvr.training.trl.reward_source import initial_of, pay, reference_answer_of
from sage_rlvr.training.trl.state import EARLIER, check_objective, restore_parts, restore_reference, save_state
from sage_rlvr.training.watch import GuideWatch, check_vocabulary
from sage_rlvr.verifiers.reasons import ReasonWatch, warned, watching

atexit.register(leave_gloo)


class SageTrainer(GRPOTrainer):
    """A GRPOTrainer with either `guide=` (multiplies the reference of the KL of `args`) or `method=` (see
    `grpo_config`).

    Everything else is as in GRPOTrainer, including evaluation, whose KL is the KL to the unshaped reference. Logs
    kl/to_anchor, kl/to_reference and guide/{q_mean,log_q_sum,active_frac,clamped_frac} in addition to TRL's metrics. Raises
    ConfigError (CancellingGuide) at construction, or RuntimeError during training, if the guide would have no effect. A
    guide that depends on the batch sees one rollout: the rows that TRL generated together, on all ranks.

    With `method=` the trainer also applies what GRPOConfig has no field for: the core's advantages, extras
    and token weights (batch.py), dynamic sampling with its metrics (dynamic_sampling.py), the KL in the reward,
    schedules of beta. A completion whose reward is None is left out of its group. The logged table of completions keeps
    TRL's advantages.

    The reference is that of the method, or with `guide=` the one named by `source`: "sft" (the policy as passed to the
    trainer, the default), "base", "snapshot@N", or a path. `base_model`: the model that "base" is loaded from, if it
    differs from the policy's. `reference_description` describes the reference in one line. `answer_key`: a function
    (row, completion text) -> the answer, or None; used by methods that compare answers. Default: the `answer_key` of
    the first reward function that has one (`math_reward` has), else the text itself. `reference_answer`: a function of the
    same -> the right answer, and (start, end) of the completion's own, None without one; read by reward sources, whose
    rewards replace those of the reward functions. Default: that of the first reward function that has one.
    `state_class`: a function of the completion so far -> the class of the state after it, read by the guide `Place`. Default:
    that of the first reward function that has one.

    `audit`: True audits the reward function on the training rows before the first step, as `sage-rlvr audit --reward` does, and
    raises ConfigError with what it finds; a mapping passes options: "reward" (the name of the one that judges answers, if there
    are several), gold, right_from, problems and so on.
    """

    reference: Reference | None  # None without a KL
    beta: float  # of TRL's loss
    objective_may_change = False  # True: a resume with another guide or method goes on with it
    updates = UpdateConfig()  # its `skip_without_signal`: which steps without an advantage are left out

    def __init__(
        self,
        *args: Any,
        guide: Guide | None = None,
        method: Method | None = None,
        source: str | None = None,
        base_model: str | None = None,
        answer_key: Callable[[Mapping[str, Any], str], str | None] | None = None,
        reference_answer: ReferenceAnswer | None = None,
        state_class: StateClass | None = None,
        base_counts: BaseCounts | None = None,
        audit: bool | Mapping[str, Any] = False,
        **kwargs: Any,
    ) -> None:
        check_keywords(kwargs)
        check_kinds(guide, method)
        named = inspect.signature(GRPOTrainer.__init__).bind_partial(self, *args, **kwargs).arguments
        given = named.get("args")
        if given is None:
            raise ConfigError(
                "SageTrainer: TRL's default arguments have beta = 0.0; set args=GRPOConfig(..., beta=0.05)."
            )
        check_engine(type(self), given)
        check_data(method, named.get("train_dataset"))
        if method is not None and is_spread(method.rollout):
            kwargs["rollout_func"] = first_token_rollouts(method.rollout, kwargs.get("rollout_func"))
        self.anchor: Anchor | None = admitted_anchor(guide, method, given, source)
        self.method = method
        self._needs = frozenset[str]() if self.anchor is None else self.anchor.needs
        self._needs |= frozenset() if method is None else method.needs
        self._plan = None if method is None else method.rollout
        self.parts: State = {} if method is None else method.start()
        self._answer_key = answer_key or key_of(named.get("reward_funcs"))
        self._reference_answer = reference_answer or reference_answer_of(named.get("reward_funcs"))
        self._state_class = state_class or state_class_of_rewards(named.get("reward_funcs"))
        check_state_class(self._needs, self._state_class)
        self._base_counts = check_base_counts(self._needs, base_counts)
        self._records: list[tuple[Tensor, dict[str, Tensor | None]]] | None = None  # forwards seen while TRL scores a rollout
        self._waiting: Inputs | None = None  # a micro-batch whose q comes from the forward in progress
        self._losing: Inputs | None = None  # the micro-batch whose loss is being computed
        self._numbered = (-1, 0)  # optimizer step, rows numbered in it, over all ranks and rollouts
        self._losses = 0  # computed from a shaped reference
        self._counted = self._signals = 0  # tokens, and rows with a signal, in the losses of this optimizer step
        self.tell: Callable[[str, int, str], None] = warned  # RunDir.warn, where there is a run to keep warnings
        self.note: Callable[[str], None] = to_stderr  # where the opening goes
        self.changed_in, self._opened = SCRIPT, False
        self._audit: Mapping[str, Any] | None = None if audit is False else {} if audit is True else dict(audit)
        self._watch, self._means = GuideWatch(self.anchor), list[dict[str, float]]()  # of this optimizer step
        self._reasons = ReasonWatch(self._tell_reason, limit="max_completion_length")
        with chosen_reference(self, named, base_model):
            super().__init__(*args, **kwargs)
        check_world(self.accelerator.num_processes)
        self.initial = initial_of(self)
        self._reasons.ends = ends_of(self)
        check_vocabulary(self.anchor, self.model.config.get_text_config().vocab_size)

    @property
    def reference_description(self) -> str:
        """One line: what the reference is and where it was loaded from."""
        return "none (no KL term)" if self.reference is None else self.reference.words

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        if not self.model.training:
            unshaped: Inputs = super()._generate_and_score_completions(inputs)
            return unshaped
        # Several rollouts may come in one optimizer step: rows numbered from 0 in each would draw the same noise again.
        first = self._numbered[1] if self._numbered[0] == self.state.global_step else 0
        drawn = draw_all(self, inputs) if self._plan is None else draw_kept(self, inputs, self._plan, str(first))
        self._numbered = (self.state.global_step, first + drawn.count)
        output, offset = drawn.output, self.accelerator.process_index * len(inputs)
        output["sage_row_ids"] = first + drawn.row_ids[offset : offset + len(inputs)]
        scored = reads_logps(self.method) or reads_whole_batch(self.anchor, self.args.steps_per_generation)
        if scored and "sage_logps" not in output:
            score(self, output, entropies="entropies" in self._needs, hidden="hidden" in self._needs)
        # Before the advantages, which hold the KL in the reward with its log q. Without log-probs of the rollout the first forward
        # of the loss shapes it: no optimizer step lies between.
        logps, entropies = output.get("sage_logps"), output.get("sage_entropies")
        if self.anchor is not None and logps is not None:
            self._shape(self.anchor, output, logps, entropies)
        # A row has a signal where its group has two different rewards: TRL's own advantages of equal rewards are 0 up to rounding
        # only, and the difference to one row of the group would be 0 for every row that happens to equal that one.
        high, low = (drawn.rewards.nan_to_num(nan=end * torch.inf) for end in (-1, 1))
        varied = ((high.amax(1, keepdim=True) > low.amin(1, keepdim=True)) & ~drawn.rewards.isnan()).float()
        output["sage_signal"] = has_signal(self.method, varied.flatten()[offset : offset + len(inputs)], counted(output))
        if self.method is not None:
            with_advantages(self.method, output, drawn, self)
        return {name: value for name, value in output.items() if name not in ROLLOUT_ONLY}

    def _draw(self, inputs: Any) -> tuple[Inputs, Tensor]:
        """TRL's generation and scoring: this rank's rows and the rewards of all ranks, (P, G), NaN for None.

        Where TRL scores them with the policy: sage_logps = log pi_old and sage_entropies (None if nobody reads them).
        """
        self._records = []
        wanted = "problems" in self._needs  # read before TRL writes into the rows
        problems = problems_of(inputs, self.accelerator.device) if wanted else None
        counted_before = self._base_counts and base_counts_of(inputs, self._base_counts, self.accelerator.device)
        try:
            output = super()._generate_and_score_completions(inputs)
            records = self._records
        finally:
            self._records = None  # else the forwards of the loss would count as scoring, and never shape
        if "answers" in self._needs:
            output["sage_answers"] = answers_of(output, inputs, self.processing_class, self._answer_key)
        if problems is not None:
            output["sage_problems"] = problems
        if counted_before is not None:
            output["sage_base_counts"] = counted_before
        if "places" in self._needs and self._state_class is not None:
            output["sage_places"] = places_of(
                self._state_class, self.processing_class, output["completion_ids"], output["completion_mask"].bool()
            )
        if (old := output.get("old_per_token_logps")) is not None:
            # by identity, because an adapter's reference is a forward of the same model
            seen = next(more for logps, more in records if logps is old)
            output |= {"sage_logps": old} | {name: value for name, value in seen.items() if value is not None}
        rewards = total_rewards(self._rewards, self.reward_weights).reshape(-1, self.num_generations)
        replaced = self.method is not None and self.method.reward_source is not None
        return output, pay(self, output, inputs, rewards) if replaced else rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        scoring = self._records is not None
        if scoring and "entropies" in self._needs and model is not self.ref_model:  # which has none to give
            kwargs["compute_entropy"] = True
        wanted = scoring and "hidden" in self._needs and model is not self.ref_model
        with seen_states(self.accelerator.unwrap_model(model) if wanted else None) as states:
            scores = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._records is not None:
            more = {"sage_entropies": scores[1], "sage_hidden": predicting(states, scores[0].shape[1])}
            self._records.append((scores[0], more))
        elif self.model.training:  # a forward of the loss; evaluation has the unshaped reference
            self._logps = scores[0].detach()
            if self._waiting is not None and self.anchor is not None:
                self._shape(self.anchor, self._waiting, scores[0], scores[1])
            if self.anchor is not None and self._losing is not None and "sage_kl_weights" in self._losing:
                self._losing["ref_per_token_logps"] = gated(self.anchor, self._losing, scores[0])
        return scores

    def _shape(self, anchor: Anchor, inputs: Inputs, logps: Tensor, entropies: Tensor | None) -> None:
        self._waiting = None
        shape_inputs(anchor, inputs, logps, entropies, self.state, Key(self.args.seed), self.accelerator)

    def _compute_loss(self, model: Any, inputs: Inputs) -> Tensor:
        loss: Tensor
        if not self.model.training:
            loss = super()._compute_loss(model, inputs)
            return loss
        mask = counted(inputs)
        self._counted += int(mask.sum())
        self._signals += int((inputs["sage_signal"] & mask.any(dim=1)).sum())
        if self.anchor is None:
            loss = super()._compute_loss(model, inputs)
            return loss
        # Shaped once per rollout: a later epoch finds log q in the batch, because its own forward is of a policy that has moved.
        self._waiting, self._losing = None if "sage_log_q" in inputs else inputs, inputs
        with self._beta_of_method(inputs):
            loss = super()._compute_loss(model, inputs)
        if "sage_log_q" not in inputs:
            raise _unshaped("the loss was computed without a forward pass of the policy")
        means = anchor_means(self.anchor, inputs, self._logps, self.accelerator)
        self._means.append(means)
        moved = {REFERENCE_STEP: float(self.reference.step)} if self.reference is not None and self.reference.moves else {}
        for name, value in (means | moved).items():
            self._metrics["train"][name].append(value)
        self._losses += 1
        return loss

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """GRPOTrainer's; the first call prints the objective, the setting and the first prompt."""
        if not self._opened:
            self._opened = True
            if self._audit is not None:
                audit_rewards(self, self._audit)
            open_training(self, resume_from_checkpoint)
        if (finished := self._finished(resume_from_checkpoint)) is not None:  # transformers would train one step more
            folder, state = finished
            check_objective(self, Path(folder))
            self._load_from_checkpoint(folder)
            self.state = state
            self.note(f"nothing to do: all {state.global_step} steps were done at {folder}")
            return TrainOutput(state.global_step, 0.0, {})
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _finished(self, resume_from_checkpoint: Any) -> tuple[str, TrainerState] | None:
        """The checkpoint to resume from and its state, if all steps of these arguments were done there; else None."""
        last = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        file = Path(last or "") / "trainer_state.json"
        if not last or not file.is_file():
            return None
        read_json(file, error=CheckpointError, advice=EARLIER, strict=False)
        state = TrainerState.load_from_json(str(file))
        of_epochs = state.max_steps if state.num_train_epochs == self.args.num_train_epochs else math.inf
        total = self.args.max_steps if self.args.max_steps > 0 else of_epochs
        return (str(last), state) if state.global_step >= total else None

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """GRPOTrainer's; RuntimeError if its loss did not pass through here, before the weights move."""
        before = self._losses
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.anchor is not None and self._losses == before:
            raise _unshaped("the training step did not call GRPOTrainer._compute_loss")
        if not before and (kl := self._metrics["train"].get("kl/to_reference")):
            check_start(self, kl[-1])
        if self.accelerator.sync_gradients:  # the last micro-batch of an optimizer step, which comes next
            self._watch_guide()
            self._leave_idle_out(loss.device)
        return loss

    def _leave_idle_out(self, device: torch.device) -> None:
        """No optimizer step where a rollout plan has left no token, and, if wanted, where no row has a signal."""
        both = torch.tensor([self._counted, self._signals], device=device)
        tokens, signals = self.accelerator.reduce(both, reduction="sum").tolist()
        self._counted = self._signals = 0
        if tokens:
            self._metrics["train"][NO_SIGNAL].append(float(not signals))
        empty = self._plan is not None and not tokens
        idle = not signals and self.updates.skip_without_signal != "never"
        skips = idle and self.updates.skips(before_first=not self.optimizer.state)
        if (empty or skips) and not self.args.fp16:  # whose scaler asks for gradients
            self.model.zero_grad(set_to_none=True)  # no gradient at all: the moments stay too, as in the loop

    def _watch_guide(self) -> None:
        """Show the watch this optimizer step's means over its micro-batches; they are the same on all ranks, one speaks."""
        seen, self._means = [means for means in self._means if means], []
        if not seen or not self.is_world_process_zero():
            return
        metrics = {name: sum(means[name] for means in seen) / len(seen) for name in seen[0]}
        self._watch.see(self.state.global_step, metrics)
        if self.state.global_step == 0:
            after_first_step(self.note, self.anchor, metrics)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        save_state(self, Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        state = Path(resume_from_checkpoint) / "trainer_state.json"  # which transformers reads next, without a bound
        read_json(state, error=CheckpointError, advice=EARLIER, strict=False)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # transformers calls it when the policy's weights are those of the checkpoint: a copy of the policy is of that step.
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            check_objective(self, Path(checkpoint))
            restore_reference(self, Path(checkpoint))
            restore_parts(self, Path(checkpoint))

    @contextmanager
    def _beta_of_method(self, inputs: Inputs) -> Iterator[None]:
        """self.beta while TRL computes a loss: the method's at this step; 0 where its KL is in the advantages already."""
        plain = self.beta
        if self.method is not None and self.anchor is not None:
            beta = self.anchor.beta_at(self.state.global_step, self.state.max_steps)
            self.beta = 0.0 if kl_in_reward(self.method) else beta * float(inputs.get("sage_scale", 1.0))
        try:
            yield
        finally:
            self.beta = plain  # TRL's evaluation reads it, and so does the next call, which has another step

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """GRPOTrainer's, with this package's names in addition to TRL's (callbacks.py: `NAMES`, `LOGGED`)."""
        collected = self._metrics["train" if self.model.training else "eval"]
        collected.update({name: list(values) for name, values in our_names(collected, NAMES).items()})
        super().log(logs | our_names(logs), *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The card of `sage_rlvr.training.model_card` instead of TRL's, as README.md of the output folder."""
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "README.md").write_text(render(facts(self)), encoding="utf-8")

    def _tell_reason(self, kind: str, step: int, sentence: str) -> None:
        """Report a reason on the first rank, unless the policy computes the rewards."""
        replaced = self.method is not None and self.method.reward_source is not None
        if self.is_world_process_zero() and not replaced:
            self.tell(kind, step, sentence)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        with watching(self._reasons):
            rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards  # of all ranks, (rows, reward functions)
        return rewards


def _unshaped(why: str) -> RuntimeError:
    return RuntimeError(
        f"SageTrainer: {why}, so the guide would have no effect; stopped before an optimizer step. The cause is "
        "usually a patched or replaced trainer: use TRL's own GRPOTrainer as the base, without libraries that rewrite "
        "it."
    )
