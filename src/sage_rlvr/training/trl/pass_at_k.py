"""`PassAtK`: pass@k on held-out rows while TRL trains, sampled by the trainer's own generation.

    held-out rows -> n completions each (held_out.py) -> a reward -> counts (evaluations.py) -> trainer.log and a file

The base is evaluated once before the first step, at lower temperatures too: on a real model a colder base can match what RL gains.
The training is bitwise the same with and without the callback, but for the generator of a vLLM server.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from sage_rlvr.core.keys import Key
from sage_rlvr.errors import DataError, SageError, refuse, require, short, suggest
from sage_rlvr.tasks.base import hash_of
from sage_rlvr.training.evaluations import Evaluations, metrics_of, named
from sage_rlvr.training.trl.batch import key_of
from sage_rlvr.training.trl.card import reward_identity, truncated
from sage_rlvr.training.trl.evaluations import AnswerKey, count_rows, ids_of, judged, sample_rows
from sage_rlvr.training.trl.held_out import (
    HeldOut,
    Reward,
    check_trainer,
    evaluating,
    generators_restored,
    name_of,
    replaced,
    rewards_of,
    sample,
    training_temperature,
)
from sage_rlvr.training.trl.opening import to_stderr
from sage_rlvr.training.trl.reference_model import sharded
from sage_rlvr.training.trl.state import fingerprint
from sage_rlvr.verdicts.of_temperatures import BASE_TEMPERATURES
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verifiers.reasons import ReasonWatch, watching

Made = TypeVar("Made")
Judge = Callable[[Sequence[Path], Path], str]
NumberedRows = tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, dict[str, Any]]]]


class PassAtK(TrainerCallback):
    """Evaluate pass@k on held-out rows every `every` optimizer steps: `trainer.add_callback(PassAtK(trainer, rows, reward))`.

    trainer: a GRPOTrainer, RLOOTrainer or SageTrainer. rows: held-out rows, with a column `prompt` (text or messages) and the
    columns that `reward` reads. reward: a reward function of TRL's signature; it need not be a training reward, and may be
    asynchronous (`async def`): it is then awaited in a thread of its own. A completion is right if its reward is at least
    `right_from`; None means no answer, which counts as wrong. Rows are rolled out as in training: with images, tools, environments
    (`reward` receives them as `environments`) and `rollout_func` (its further columns too).

    n: completions per row. k: the largest k of the logged curve (default n). every: optimizer steps between evaluations; the
    first and the last step are evaluated too. temperature: of the evaluations (default: that of training). temperatures: at which
    the base is evaluated once, before the first step; default: `BASE_TEMPERATURES`, and none with a `rollout_func`: give some if it
    reads `trainer.args.temperature`. answer_key: a function (row, completion text) -> answer or None, by which distinct right
    answers are counted (default: the `answer_key` of the reward, else the text with its spaces made one).
    folder: where the files go (default: passk in the output folder). samples: also store every completion with its text.
    batch_size: completions per process in one call of the generator (default: per_device_eval_batch_size; with vLLM all of them).
    arm: a name for the rows of this run.

    After the last step it prints the verdict on these rows, that of `compare` on the base and the last evaluation. Logs
    eval_passk/pass@1, pass@2, ... and the metrics of docs/reference/metrics.md; those of the base at another temperature as
    eval_passk_T0.6/pass@1. An evaluation that is stored is not made twice, so a resumed run continues.
    """

    judge: ClassVar[Judge | None] = None
    """Function that returns a line on the files of the base and of the last evaluation; set by `sage_rlvr.trl`, a higher layer."""

    def __init__(
        self,
        trainer: Any,
        rows: Sequence[Mapping[str, Any]],
        reward: Reward,
        *,
        n: int = 16,
        k: int | None = None,
        every: int = 50,
        temperature: float | None = None,
        temperatures: Sequence[float] | None = None,
        right_from: float = 1.0,
        answer_key: AnswerKey | None = None,
        folder: str | Path | None = None,
        samples: bool = False,
        batch_size: int | None = None,
        arm: str | None = None,
    ) -> None:
        check_trainer(trainer)
        self.trainer, self.rows, self.reward = trainer, _checked_rows(rows, trainer), _checked_reward(reward)
        self.ids = ids_of(self.rows)
        for name, value in {"n": n, "k": k, "every": every, "batch_size": batch_size}.items():
            whole = (type(value) is int and value >= 1) or (value is None and name in ("k", "batch_size"))
            require(whole, f"PassAtK: {name}", value, "give a whole number from 1 on")
        more = f"pass@{k} needs at least {k} completions per row, and n = {n}; raise n or lower k"
        require(k is None or k <= n, "PassAtK: k", k, more)
        self.n, self.ks, self.every, self.batch = n, powers(n if k is None else k), every, batch_size
        self.temperature = training_temperature(trainer.args) if temperature is None else float(temperature)
        if temperatures is None:
            temperatures = () if getattr(trainer, "rollout_func", None) else BASE_TEMPERATURES
        self.base_temperatures = tuple(dict.fromkeys((self.temperature, *map(float, temperatures))))
        for heat in self.base_temperatures:
            cold = "give a number above 0, such as 0.4: without sampling all n completions of a row are the same"
            require(heat > 0, "PassAtK: temperature", heat, cold)
        self.right_from, self.answer_key = right_from, answer_key or key_of(reward)
        self.files = Evaluations(Path(folder) if folder is not None else Path(trainer.args.output_dir) / "passk")
        self.keep, self.arm = samples, arm
        self.latest: dict[str, float] = {}
        self.latest_step = -1
        self._reasons = ReasonWatch(limit="max_completion_length")

    # ---- when

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate the base before the first step; after a resume, the evaluation that is due and missing."""
        fresh = state.global_step == 0
        settings = self._settings()
        warning = self._on_first(lambda: self.files.begin(settings, fresh))
        if warning and self.trainer.is_world_process_zero():
            warnings.warn(warning, stacklevel=2)
        if fresh:
            self._evaluate(0, self.base_temperatures)
            return
        if self._on_first(lambda: not self.files.file(0, self.temperature).is_file()) and self.trainer.is_world_process_zero():
            command = suggest("eval", "BASE", "--samples", self.n, "--temperatures", *self.base_temperatures)
            warnings.warn(
                f"PassAtK: the run continues at step {state.global_step}, and {self.files.folder} has no evaluation of the base; "
                f"sample it with {command}, or start the run anew.",
                stacklevel=2,
            )
        if state.global_step % self.every == 0:
            self._evaluate(state.global_step, (self.temperature,))

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate every `every` steps and after the last one, before TRL logs, evaluates and saves the step."""
        if state.global_step > state.max_steps:  # transformers trains a step more if a finished run is started again
            return
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            self._evaluate(state.global_step, (self.temperature,))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Print the verdict, on the first process, where the base was evaluated and a step was made."""
        judge = type(self).judge
        if judge is None or not self.trainer.is_world_process_zero():
            return
        base = [file for heat in self.base_temperatures if (file := self.files.file(0, heat)).is_file()]
        last = self.files.file(state.global_step, self.temperature)
        if not base or not state.global_step or not last.is_file():
            return
        try:
            to_stderr(f"PassAtK: {judge(base, last)}")
        except SageError as error:
            to_stderr(f"PassAtK: no verdict: {error}")

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Add the metrics of this step to those of TRL's own evaluation, from which `metric_for_best_model` is read."""
        if metrics is not None and self.latest_step == state.global_step:
            metrics.update(self.latest)

    # ---- one evaluation

    def _evaluate(self, step: int, temperatures: Sequence[float]) -> None:
        """Evaluate the policy at these temperatures, or read the stored evaluations; log what the run has not logged."""
        trainer, logged = self.trainer, dict[str, float]()
        with generators_restored(trainer.accelerator.device), evaluating(trainer):
            for temperature in temperatures:
                metrics = self._metrics_at(step, temperature)
                logged |= metrics if temperature == self.temperature else named(metrics, temperature)
            self.latest, self.latest_step = logged, step
            if not any(line.get("step") == step and logged.keys() <= line.keys() for line in trainer.state.log_history):
                self._log(logged)

    def _metrics_at(self, step: int, temperature: float) -> dict[str, float]:
        """Every process returns the same metrics: TRL chooses checkpoints by them on each process."""
        stored = self._on_first(lambda: _metrics(self.files.read(step, temperature), self.ks))
        if stored is not None:
            return stored
        self._note(f"PassAtK: step {step}, {len(self.rows)} held-out rows x {self.n} completions at T = {temperature:g}")
        counts, samples = self._results(step, temperature)
        return self._on_first(lambda: self._store(step, temperature, counts, samples))

    def _results(self, step: int, temperature: float) -> NumberedRows:
        """The rows of counts and of samples of all processes, by the number of the held-out row."""
        trainer = self.trainer
        key = Key(trainer.args.seed).fold(f"PassAtK, step {step}, T = {temperature:g}")
        facts = {"step": step, "temperature": temperature, "seed": trainer.args.seed}
        facts |= {"arm": self.arm} if self.arm is not None else {}
        failure: list[str] = []
        counts, samples = list[tuple[int, dict[str, Any]]](), list[tuple[int, dict[str, Any]]]()
        try:
            with watching(self._reasons):  # a watch of its own: the training's warns once
                drawn, rewards = sample(trainer, self.rows, self.n, temperature, key, self._rewards, self.batch)
            results = judged(drawn, rewards, self.right_from, self.answer_key, self.rows)
            counts = count_rows(results, self.ids, facts)
            samples = sample_rows(results, self.ids, self.rows, facts) if self.keep else []
        except SageError as error:  # on one process: the others wait for it in the next call
            failure = [str(error)]
        if failures := gather_object(failure):
            raise DataError(failures[0])
        return gather_object(counts), gather_object(samples)

    def _rewards(self, drawn: Sequence[HeldOut]) -> list[float | None]:
        return rewards_of(self.reward, self.rows, drawn, self.trainer.state)

    def _store(self, step: int, temperature: float, counts: Any, samples: Any) -> dict[str, float]:
        rows, texts = ([row for _, row in sorted(part, key=lambda pair: pair[0])] for part in (counts, samples))
        self.files.write(step, temperature, rows, texts)
        return metrics_of(rows, self.ks)

    def _log(self, metrics: Mapping[str, float]) -> None:
        """Log to all trackers and `state.log_history`, by the trainer's own log."""
        trainer = self.trainer
        trainer._metrics["eval"].clear()  # TRL's own of these calls, over all temperatures
        # transformers clears `should_log` in every call of log, and TRL prints its table of training completions there.
        with replaced(trainer.control, should_log=trainer.control.should_log), replaced(trainer, log_completions=False):
            trainer.log(dict(metrics))

    def _settings(self) -> dict[str, Any]:
        """Return the settings that two evaluations of one folder must have in common."""
        trainer = self.trainer
        weights = {} if sharded(trainer) else {name: value.detach() for name, value in trainer.model.named_parameters()}
        return {
            "n": self.n,
            "rows": hash_of([_without_images(row) for row in self.rows]),
            "reward": f"{name_of(self.reward)} {reward_identity(self.reward)}",
            "right_from": self.right_from,
            "max_completion_length": trainer.max_completion_length,
            "sampling": truncated(trainer.args),
            "seed": trainer.args.seed,
            "base": fingerprint(weights),
        }

    def _note(self, line: str) -> None:
        if self.trainer.is_world_process_zero() and not self.trainer.args.disable_tqdm:
            to_stderr(line)

    def _on_first(self, make: Callable[[], Made]) -> Made:
        """Return on all processes the result of `make` on the first one; an error there is raised on all of them."""
        results: list[Any] = [None, None]
        if self.trainer.is_world_process_zero():
            try:
                results[0] = make()
            except (SageError, OSError) as error:
                results[1] = error
        result, failure = broadcast_object_list(results)
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]


def _metrics(rows: Sequence[Mapping[str, Any]] | None, ks: Sequence[int]) -> dict[str, float] | None:
    return None if rows is None else metrics_of(rows, ks)


# ---- what is given


def _without_images(value: Any) -> Any:
    """The value with a digest instead of each image, whose text is an address in memory."""
    if isinstance(value, Mapping):
        return {name: _without_images(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_images(one) for one in value]
    pillow = hasattr(value, "tobytes") and hasattr(value, "mode")
    return f"image {value.mode} {value.size} {hash_of(value.tobytes().hex())}" if pillow else value


def _checked_rows(rows: Any, trainer: Any) -> list[Mapping[str, Any]]:
    """The held-out rows as a list; DataError without any, or if a row cannot be sampled."""
    count = len(rows) if isinstance(rows, Sized) else None
    if count is None:
        first = "pass a loaded dataset or a list, such as list(dataset.take(64))."
        raise DataError(f"PassAtK: rows = {short(rows)} has no length; {first}")
    if not count:
        raise DataError("PassAtK: rows has 0 held-out rows; pass some, such as dataset.select(range(64)).")
    result: list[Mapping[str, Any]] = list(rows)
    for number, row in enumerate(result):
        if not isinstance(row, Mapping) or "prompt" not in row:
            columns = f"has the columns {', '.join(row)}" if isinstance(row, Mapping) else f"is {short(row)}"
            owned = getattr(trainer, "environment_factories", None) and isinstance(row, Mapping)
            none = 'give it the prompt that TRL takes without one, [{"role": "user", "content": ""}]'
            more = none if owned else "rename the column of prompts (text or messages) to prompt"
            raise DataError(f"PassAtK: held-out row {number} {columns}; {more}.")
        if images := {"image", "images"} & row.keys():
            where = f"held-out row {number} has {', '.join(sorted(images))}"
            text = "; prompts with images are messages: give the rows such prompts." if isinstance(row["prompt"], str) else ""
            if not hasattr(trainer.processing_class, "image_processor"):
                text = f", and the trainer's {type(trainer.processing_class).__name__} reads no images: remove the column."
            if text:
                raise DataError(f"PassAtK: {where}{text}")
        if row.keys() != result[0].keys():
            other = ", ".join(sorted(row.keys() ^ result[0].keys()))
            raise DataError(f"PassAtK: held-out rows 0 and {number} differ in the columns {other}; give all rows the same columns.")
    return result


def _checked_reward(reward: Any) -> Reward:
    model = isinstance(reward, (str, torch.nn.Module))
    refuse(
        (
            model or not callable(reward),
            f"PassAtK: reward = {short(reward)} is {'a reward model' if model else 'no function'}; pass one reward function "
            "(prompts, completions, **columns) -> a number or None per completion.",
        )
    )
    return reward  # type: ignore[no-any-return]


__all__ = ["PassAtK"]
