"""`sage-rlvr train` on TRL: runs SageTrainer for a recipe, in a run directory like that of the loop engine.

    recipe -> GRPOConfig, rows, reward -> SageTrainer.train() -> metrics.jsonl, trl/checkpoint-N, policy/

The generated world and data sets alike. One process, or several under torchrun or accelerate launch, of which the first
writes. Checkpoints are TRL's own with a manifest of this package, so that an incomplete one is passed over.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel
from transformers import AutoConfig, PreTrainedTokenizerBase, set_seed
from trl import GRPOConfig
from trl import __version__ as TRL

from sage_rlvr.config import DataConfig, LoraConfig, TrainConfig
from sage_rlvr.config.tasks import format_of
from sage_rlvr.errors import ConfigError, refuse, suggest
from sage_rlvr.models.folders import EMBEDDED, adapter_base, source_of
from sage_rlvr.models.policy import check_plain, in_messages, load_policy, load_tokens
from sage_rlvr.runs import RunDir
from sage_rlvr.tasks.abilities import Conversational
from sage_rlvr.tasks.base import turns_of
from sage_rlvr.tasks.chat import dry_render, fit_tokenizer
from sage_rlvr.tasks.datasets import examples, worked_solutions
from sage_rlvr.tasks.golds import check_golds
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat, location_in_words
from sage_rlvr.tasks.rows import DataSource, Say, tell
from sage_rlvr.training.base_samples import BaseSamples, checked_base
from sage_rlvr.training.model_card import render
from sage_rlvr.training.problems import training_problems, unkeyed, unverified
from sage_rlvr.training.trl.arguments import check_fields, grpo_arguments, method_of, world_size
from sage_rlvr.training.trl.callbacks import (
    CHECKPOINTS,
    before_a_run,
    carry_on,
    newest_checkpoint,
    save_trained,
    step_of,
)
from sage_rlvr.training.trl.card import facts
from sage_rlvr.training.trl.episodes import episodes_of
from sage_rlvr.training.trl.opening import RECIPE
from sage_rlvr.training.trl.task_reward import TaskReward
from sage_rlvr.training.trl.trainer import SageTrainer
from sage_rlvr.verifiers.rewards import MathReward


def train(
    config: TrainConfig,
    run: RunDir | None,
    folder: Path,
    progress: Any,
    say: Callable[[str], None] = lambda line: None,
    base: BaseSamples | None = None,
) -> int:
    """Train to `config.steps` from the newest complete checkpoint, if there is one. Returns the step reached.

    run: the run directory's record on the rank that writes, None elsewhere; folder: its path, on all ranks; say: called
    with lines for the user before the run (the reference, the prompt as the model reads it); base: of `build`.
    """
    out = folder / "policy"
    before_a_run(config, run, out)
    trainer = build(config, folder / CHECKPOINTS, say, base)
    say(f"reference: {facts(trainer)['reference'] or 'none'}")
    newest, total, updates = newest_checkpoint(folder / CHECKPOINTS), trainer.args.max_steps, config.updates.per_step
    trainer.note, trainer.changed_in = progress.note, RECIPE
    if run is not None:
        trainer.tell = trainer._watch.tell = run.warn
        trainer._reasons.limit = "rollout.max_new_tokens"
        begin = 0 if newest is None else step_of(newest) // updates
        for reward in trainer.reward_funcs:
            if trainer.method is not None and isinstance(reward, TaskReward) and (warning := unkeyed(trainer.method, reward.task)):
                run.warn("answers", begin, warning)
        if trainer.method is not None and (warning := unverified(trainer.method)):
            run.warn("reward source", begin, warning)
        if newest is None or step_of(newest) < total:  # the policy of an earlier, shorter run is not this run's result
            shutil.rmtree(out, ignore_errors=True)
    done = carry_on(trainer, config, run, newest, progress, updates)
    if done >= total:
        if trainer.reference is not None:
            trainer.reference.step = trainer.reference.due(done)
        save_trained(trainer, out, lambda: render(facts(trainer)))
    return done // updates


def build(
    config: TrainConfig, folder: Path, say: Callable[[str], None] = lambda line: None, base_samples: BaseSamples | None = None
) -> SageTrainer:
    """The trainer of a recipe: model, tokenizer, rows, reward and arguments. Loads weights; trains nothing."""
    samples = checked_base(config.method, base_samples)
    set_seed(config.seed)  # an adapter's initial weights come from the global generator
    arguments = grpo_arguments(config, str(folder), world_size())
    where = source_of(config.model)
    refuse(
        (
            config.model == EMBEDDED and config.data is not None,
            f"model = {EMBEDDED!r} with data.path = {config.data and config.data.path!r}: the shipped policy only "
            "writes arithmetic expressions; name a language model (a folder or a Hub id)",
        ),
        (
            arguments.get("use_vllm") and find_spec("vllm") is None,
            "engine.args.use_vllm = True: vLLM is not installed; install it (pip install 'trl[vllm]'), or set "
            "engine.args.use_vllm to false to sample with transformers",
        ),
    )
    tokenizer = load_tokenizer(where)
    rows, reward = rows_and_reward(config, where, tokenizer, say)
    more: dict[str, Any] = {}  # a keyword that TRL's oldest release does not have
    if isinstance(reward, TaskReward) and turns_of(reward.task) > 1:
        more["rollout_func"] = episodes_of(reward, rows["prompt"], tokenizer, where, config.chat_template_kwargs)
    if samples is not None:
        problem_id = id_of_row(reward)
        samples.check(problem_id(row) for row in rows)
        more["base_counts"] = lambda row: samples.of(problem_id(row))
    model, lora = where, config.engine.lora
    base = adapter_base(Path(where).expanduser())
    if base is not None:  # the adapter of the SFT stage goes on being trained
        arguments.pop("model_init_kwargs")
        model = PeftModel.from_pretrained(load_policy(base, config.engine.dtype)[0], where, is_trainable=True)
        check_adapter(model, config)
    trainer = SageTrainer(
        model=model,
        reward_funcs=reward,
        args=configured(GRPOConfig, arguments, config.engine.args),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=None if base is not None or lora is None else peft_config(lora),
        method=method_of(config),
        base_model=config.base_model,
        **more,
    )
    trainer.updates, skip = config.updates, config.updates.skip_without_signal
    unable = "fp16 arithmetic" if trainer.args.fp16 else "DeepSpeed" if trainer.is_deepspeed_enabled else ""
    instead = "set it to never, or train in bf16 without DeepSpeed"
    refuse((skip != "never" and unable, f"updates.skip_without_signal = {skip}: {unable} takes every optimizer step; {instead}"))
    trainer.objective_may_change = True  # run.json has the recipe, and only --fork lets another one continue
    return trainer


def configured(kind: type, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """kind(**arguments) for this machine, of which `given` are the recipe's engine.args.

    bf16 arithmetic on a GPU that has it, float32 on a CPU, unless the recipe sets another one. ConfigError for an argument that
    TRL does not take.
    """
    check_fields(kind, given)
    cuda = torch.cuda.is_available()
    here = {"use_cpu": not cuda} if "fp16" in given else {"use_cpu": not cuda, "bf16": cuda and torch.cuda.is_bf16_supported()}
    optimizer = usable_optimizer(arguments["optim"], named="optim" in given)
    try:
        return kind(**{**here, **arguments, "optim": optimizer})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{kind.__name__} of TRL {TRL} rejects the recipe: {error} (engine.args: {dict(given)})"
        ) from error


def longest_prompt(where: str, completion: int) -> int | None:
    """Tokens that a policy's window leaves for a prompt if a completion has full length; None if the model declares no window."""
    config = AutoConfig.from_pretrained(adapter_base(Path(where).expanduser()) or where)
    window = getattr(config, "max_position_embeddings", None)
    return None if window is None else window - completion


def load_tokenizer(where: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a policy, with left padding as generation needs; the end token is the default padding token."""
    missing = (
        f"model = {where!r}: no such folder; if it is the output of fine-tuning, run that first: "
        + suggest("sft", "RECIPE", "--run", Path(where).parent)
    )
    refuse((where.count("/") != 1 and not Path(where).expanduser().is_dir(), missing))
    tokenizer = load_tokens(where).tokenizer
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"  # the latter is what is saved
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_adapter(model: PeftModel, config: TrainConfig) -> None:
    """ConfigError if engine.lora describes a different adapter from the one whose training continues."""
    lora, adapter = config.engine.lora, model.peft_config["default"]
    if lora is None or not hasattr(adapter, "lora_alpha"):
        return
    if (adapter.r, adapter.lora_alpha) != (lora.rank, lora.scale):
        raise ConfigError(
            f"engine.lora.rank = {lora.rank}, alpha = {lora.scale:g}: the adapter of model = {config.model!r} has r = "
            f"{adapter.r}, alpha = {adapter.lora_alpha:g}, and training continues with that adapter; use the same numbers, "
            "or use the merged policy as the model"
        )


def peft_config(lora: LoraConfig) -> PeftLoraConfig:
    """Our fields as PEFT's."""
    modules = lora.target_modules
    return PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.scale,
        lora_dropout=lora.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def usable_optimizer(name: str, named: bool = True) -> str:
    """Return `name`, or adamw_torch if an 8-bit one is requested and CUDA or bitsandbytes is missing (with a UserWarning).

    named: True if the recipe names it; else it is the default, and the warning says that.
    """
    if "8bit" not in name or (torch.cuda.is_available() and find_spec("bitsandbytes") is not None):
        return name
    lacking = "bitsandbytes is not installed" if torch.cuda.is_available() else "there is no CUDA device"
    which = f"engine.args.optim = {name}" if named else f"the default optimizer {name} (engine.args.optim)"
    warnings.warn(f"{which}: {lacking}, so adamw_torch is used instead (32-bit moments)", stacklevel=2)
    return "adamw_torch"


# ---- rows and reward


def rows_and_reward(
    config: TrainConfig, where: str, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]
) -> tuple[Dataset, MathReward | TaskReward]:
    """The prompts of a recipe as rows, and what judges completions: of a data set by the column answer, of any other task
    as on the loop engine, where a row's problem is its number. If the model reads messages, the prompt is checked and shown.
    """
    form: PromptFormat | None
    reward: MathReward | TaskReward
    if config.data is not None:
        form = of_data = format_of(config.data)
        rows, reward = load(config.data, say=say), MathReward(column="answer", **of_data.reading)
    else:
        task, problems = training_problems(config, say)
        talks = in_messages(task, tokenizer)
        ask: Callable[[Any], Any] = task.messages if talks and isinstance(task, Conversational) else task.prompt
        rows = Dataset.from_list([{"prompt": ask(problem), "problem": i} for i, problem in enumerate(problems)])
        reward = TaskReward(task, problems, (int(tokenizer.eos_token_id), *load_tokens(where).eos_ids))
        form = (task.form or FORMATS["as_is"]) if talks else None
    if form is None:
        check_plain(task, config.chat_template_kwargs)
        return rows, reward
    options = config.chat_template_kwargs
    for line in fit_tokenizer(tokenizer, form, options=options):
        say(line)
    longest = longest_prompt(where, config.rollout.max_new_tokens)
    dry_render(tokenizer, rows, form, longest, options=options, say=say)
    return rows, reward


def id_of_row(reward: MathReward | TaskReward) -> Callable[[Mapping[str, Any]], str]:
    """The problem id of a row of `rows_and_reward`."""
    if isinstance(reward, MathReward):
        return lambda row: str(row["id"])
    return lambda row: str(reward.problems[row["problem"]].problem_id)


def load(data: DataConfig, *, solutions: bool = False, say: Say = tell) -> Dataset:
    """The rows of `data` as a Dataset with the columns prompt (messages of the format), answer (text) and id.

    solutions: for fine-tuning, with a column solution, which reward functions would take for a second gold; a set without
    worked solutions is refused, and golds are not checked, because no verifier reads them (else: see `check_golds`).
    Raises ConfigError for paths and columns, DataError for rows, all with their places (`sage_rlvr.tasks.datasets`).
    """
    source, form = DataSource.of(data), format_of(data)
    data_set = examples(source, prompts_first=data.prompt == "as_is", convert=form.messages)
    columns: dict[str, list[Any]] = {
        "id": [one.problem_id for one in data_set.examples],
        "prompt": [one.problem for one in data_set.examples],
        "answer": [one.answer for one in data_set.examples],
    }
    if solutions:
        columns["solution"] = list(worked_solutions(source, data_set))
    else:
        check_golds(data_set.rows, columns["answer"], allow_unverifiable=data.allow_unverifiable, say=say)
    say(f"{data_set}; prompt format: {data.prompt}; answers are read {location_in_words(form.answer_in, form.tag)}")
    return Dataset.from_dict(columns)
