"""`sage-rlvr train` on verl: runs `python -m sage_rlvr.verl` for a recipe, in a run directory like that of the loop engine.

    recipe -> verl/problems, words -> verl in a process of its own -> metrics.jsonl, verl/checkpoints/global_step_N, policy/

verl keeps its own checkpoints and goes on from the newest by itself. A stop signal ends it at once: what was done since its last
checkpoint is done again by the same command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.errors import CheckpointError, ConfigError, SageError, TrainingDiverged
from sage_rlvr.models.folders import vocabulary_of
from sage_rlvr.models.policy import PromptRenderer, load_tokens
from sage_rlvr.runs import RunDir, StopFlag
from sage_rlvr.tasks.chat import NO_OPTIONS, Options
from sage_rlvr.training.opening import after_first_step, announce, decoded
from sage_rlvr.training.problems import training_problems, unverified
from sage_rlvr.training.state import check_replaceable
from sage_rlvr.training.trackers import check_installed
from sage_rlvr.training.verl.arguments import notes, verl_words
from sage_rlvr.training.verl.convert import save
from sage_rlvr.training.verl.opening import setting_of_recipe
from sage_rlvr.training.verl.problems import ECHO, Named, export
from sage_rlvr.training.verl.state import steps_done
from sage_rlvr.training.verl.warned import heard
from sage_rlvr.training.watch import check_vocabulary

FOLDER = "verl"
TICK = 0.5  # seconds between two looks at verl and its metrics
NAMES = {  # ours <- verl's, where both mean the same number; verl's own names stay
    "loss": "actor/loss",
    "optimizer/grad_norm": "actor/grad_norm",
    "optimizer/lr": "actor/lr",
    "surrogate/clipped_frac": "actor/pg_clipfrac",
    "time/step_s": "timing_s/step",
}


def train(
    config: TrainConfig, run: RunDir, progress: Any, say: Callable[[str], None] = lambda line: None
) -> int:
    """Train to `config.steps` from verl's newest checkpoint, if there is one. Returns the step reached."""
    out, folder = run.path / "policy", (run.path / FOLDER).absolute()
    check_replaceable(out)
    check_installed(config.report_to)
    words, prompt = prepare(config, folder, say)
    begin = steps_done(folder / "checkpoints")
    run.truncate_metrics(begin)
    if warning := unverified(config.method):
        run.warn("reward source", begin, warning)
    for line in notes(config):
        say(f"note: {line}")
    if begin < config.steps:
        setting, objective = setting_of_recipe(config), config.objective
        announce(progress.note, setting, objective=objective, prompt=prompt, begin=begin, tell=run.warn)
    progress.start(total=config.steps, done=begin)
    reached = begin if begin >= config.steps else follow(words, folder, begin, run, progress, config.method.anchor)
    if reached >= config.steps:
        save(config, folder / "checkpoints" / f"global_step_{config.steps}", out)
    return reached


def prepare(config: TrainConfig, folder: Path, say: Callable[[str], None]) -> tuple[list[str], str]:
    """Write the problems, and return the words of the command and the first prompt.

    ConfigError for what verl, or a recipe on verl, cannot do."""
    check_vocabulary(config.method, vocabulary_of(config.model))
    task, problems = training_problems(config, say)
    tokens = load_tokens(config.model)
    prompts = prompts_of(task, tokens, problems, options=config.chat_template_kwargs)
    export(Named(config=dump(config)), folder / "problems", {"train": problems}, talks=prompts.talks)
    words = verl_words(config, folder, template=prompts.template, longest=prompts.longest)
    return words, decoded(tokens.tokenizer, prompts.first)


@dataclass(frozen=True)
class Prompts:
    """Form of a task's problems as verl's prompts.

    talks     in messages
    template  a chat template instead of the tokenizer's, None for its own
    longest   tokens of the longest prompt
    first     token ids of the first one
    """

    talks: bool
    template: str | None
    longest: int
    first: Sequence[int] = ()


def prompts_of(
    task: Any, tokens: Any, problems: Sequence[Any], plain: bool = False, options: Options = NO_OPTIONS
) -> Prompts:
    """The prompts of a task's problems. plain: as plain text even if it has messages. options: chat_template_kwargs."""
    own = tokens.tokenizer.chat_template
    asking = PromptRenderer(task, tokens, None) if plain else PromptRenderer.of(task, tokens, options=options)
    ids = [asking(problem).ids for problem in problems]
    template = plain_template(tokens) if asking.form is None else None if own else asking.form.chat_template
    return Prompts(asking.form is not None, template, max(map(len, ids)), ids[0])


def plain_template(tokens: Any) -> str:
    """A chat template under which a policy reads a plain prompt as on the other engines, its start token included."""
    return ("{{ bos_token }}" if tokens.opening else "") + ECHO


def follow(words: list[str], folder: Path, begin: int, run: RunDir, progress: Any, anchor: Anchor | None = None) -> int:
    """Run verl to its end, a row of metrics.jsonl for each of its own. Returns the steps of its newest checkpoint.

    ConfigError with verl's refusal, TrainingDiverged if a gradient was not finite, CheckpointError with the place of its
    output where it failed otherwise.
    """
    rows, log = folder / f"metrics-{begin}.jsonl", folder / f"said-{begin}.txt"
    read, seen, stopped = 0, 0, False
    with StopFlag() as stop, open(log, "wb") as output:
        verl = subprocess.Popen(
            [sys.executable, "-m", "sage_rlvr.verl", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VERL_FILE_LOGGER_PATH": str(rows)},
            start_new_session=True,
        )
        try:
            while verl.poll() is None and not stopped:
                time.sleep(TICK)
                read, seen = take(rows, read, run, progress, anchor), heard(log, seen, run)
                stopped = bool(stop)
        finally:
            end(verl)
    take(rows, read, run, progress, anchor)
    heard(log, seen, run)
    if verl.returncode and not stopped:
        raise failed(log)
    return steps_done(folder / "checkpoints")


def take(rows: Path, read: int, run: RunDir, progress: Any, anchor: Anchor | None = None) -> int:
    """Log what verl has written since the first `read` bytes; the bytes that are read now. A line without its end waits.

    anchor: of the method, whose guide's dose is printed after the first step."""
    if not rows.is_file():
        return read
    with open(rows, "rb") as file:
        file.seek(read)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines():
        row = our_row(json.loads(line))
        run.log(row)
        progress.advance(row["step"] + 1, row)
        if row["step"] == 0:
            after_first_step(progress.note, anchor, row)
    return read + len(whole)


def our_row(written: Mapping[str, Any]) -> dict[str, Any]:
    """A row of verl's file logger, {step, data}, as one of metrics.jsonl: steps from 0, our names in addition to verl's.

    TrainingDiverged if the gradient was not finite: verl leaves that update out and goes on."""
    data = {name: value for name, value in written["data"].items() if isinstance(value, int | float)}
    step = int(written["step"]) - 1
    if written["data"].get("actor/grad_norm", 0.0) is None:  # JSON has no number for one that is not finite
        raise TrainingDiverged(f"the gradient is not finite at step {step}; lower optimizer.lr or raise method.beta")
    return {"step": step, **{ours: data[theirs] for ours, theirs in NAMES.items() if theirs in data}, **data}


def failed(log: Path) -> SageError:
    """Return the error that verl ended with: one of ours with its text, else the place of its output and its last line."""
    # A refusal is raised in verl's driver or in an actor of Ray's on any node, which passes on only the text of a traceback:
    # the output is the only channel that all of them share.
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        for kind in (ConfigError, CheckpointError):
            _, mark, words = line.partition(f"{kind.__name__}: ")
            if mark:
                return kind(f"on verl: {words}")
    last = lines[-1] if lines else "(no output)"
    return CheckpointError(f"verl exited with an error; its output is in {log}; last line: {last}")


def end(verl: subprocess.Popen[bytes]) -> None:
    """End verl and all that it started: SIGTERM to its process group, SIGKILL after ten seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(verl.pid, number)
        with suppress(subprocess.TimeoutExpired):
            verl.wait(10)


__all__ = ["FOLDER", "Prompts", "follow", "our_row", "prepare", "prompts_of", "train"]
