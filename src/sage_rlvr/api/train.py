"""`train`, `sft` and `offline`: train a policy from a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.api.tables import Rows, html_table, number
from sage_rlvr.config import RunConfig, dump, read_recipe
from sage_rlvr.extras import explained
from sage_rlvr.progress import PlainConsole, quiet_libraries
from sage_rlvr.recipes import locate
from sage_rlvr.registry import call_of
from sage_rlvr.runs import read_metrics

if TYPE_CHECKING:
    from sage_rlvr.core.method import Method  # torch

RUNS = Path("runs")  # default folder of runs
SHOWN = ("step", "loss", "reward/mean", "kl/to_reference", "policy/entropy")  # metrics of a run in its table
Say = Callable[[str], None]


@dataclass(frozen=True, repr=False)
class Run(Rows):
    """A run on disk, as `train`, `sft` and `offline` return it; `evaluate`, `compare` and `report` accept it instead of a path.

    Attributes:
        path: The run directory.
        policy: The folder of the trained policy.
        config: The recipe, resolved.
        steps: Finished steps.
        total: Steps of the recipe.
        before: Finished steps at the start of this call.
    """

    path: Path
    policy: Path
    config: Any
    steps: int
    total: int
    before: int = 0

    @property
    def finished(self) -> bool:
        """Whether all steps are done; an interrupted run continues with the same call."""
        return self.steps >= self.total

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics, one dict per step, as in metrics.jsonl."""
        return read_metrics(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        newest = next(iter(self.rows[-1:]), {})
        shown = "  ".join(f"{name} {number(newest[name])}" for name in SHOWN if name in newest)
        return f"Run {self.path}: {self.steps} of {self.total} steps, policy in {self.policy}\n{shown}".rstrip()

    def _repr_html_(self) -> str:
        rows = self.rows
        names = [name for name in SHOWN if any(name in row for row in rows)]
        shown = rows if len(rows) <= 10 else [*rows[:5], *rows[-5:]]
        return super()._repr_html_() + html_table(names, [[number(row.get(name, "")) for name in names] for row in shown])


@explained
def train(
    recipe: str | Path | Method = "grpo",
    *,
    task: str | None = None,
    run: str | Path | None = None,
    edits: Mapping[str, Any] | Iterable[tuple[str, str]] = (),
    fork: bool = False,
    quiet: bool = False,
    say: Say | None = None,
    **settings: Any,
) -> Run:
    """Train a policy by RL, as `sage-rlvr train` does.

    The same call continues an interrupted run, and does nothing if all steps are done.

        train("maxrl", task="countdown", steps=40, run="runs/maxrl")
        train(sage(grpo(beta=0.05), Branch("p80")), steps=40)
        train("my_recipe.yaml", edits={"method.beta": 0.1}, seed=1)

    Args:
        recipe: A recipe file, the name of a shipped recipe, the name of a method ("maxrl", "sage_branch"), or a method object.
        task: The task whose settings a method gets: "countdown" (the default), "words", "repair", "knights", "steps",
            "countdown_chat", "gsm", a recipe file, or a file of rows such as "mine.jsonl". A recipe file contains its task.
        run: The run directory; by default runs/<recipe>-s<seed>.
        edits: {dotted key: value}, as `--a.b value` on the command line.
        fork: Continue a run although its recipe or the installed versions changed.
        quiet: No progress and no objective.
        say: Receives messages meanwhile; by default they go to stderr.
        **settings: Keys of a recipe, instead of the recipe's: steps=40, seed=1, model="my/model", rollout={"group_size": 8},
            optimizer=OptimizerConfig(lr=1e-5).

    Returns:
        The `Run`: its directory, policy and metrics.

    Raises:
        ConfigError: If a setting is invalid; the message has its place and the next step.
        CheckpointError, RunLocked, TrainingDiverged: See `sage_rlvr.errors`.
    """
    return begin("train", recipe, task=task, run=run, edits=edits, fork=fork, quiet=quiet, say=say, settings=settings)


@explained
def sft(
    recipe: str | Path = "sft",
    *,
    run: str | Path | None = None,
    out: str | Path | None = None,
    edits: Mapping[str, Any] | Iterable[tuple[str, str]] = (),
    quiet: bool = False,
    say: Say | None = None,
    **settings: Any,
) -> Run:
    """Supervised fine-tuning, as `sage-rlvr sft` does: a base policy from scratch, or an existing model on a data set.

        sft("words/sft", out="runs/words-base")

    Args:
        recipe: A recipe file, or the name of a shipped one ("countdown/sft", "words/sft").
        run: The run directory; by default runs/<recipe>.
        out: The folder of the policy; by default <run>/policy.
        edits: See `train`.
        quiet: See `train`.
        say: See `train`.
        **settings: See `train`.

    Returns:
        The `Run`.

    Raises:
        ConfigError: If a setting is invalid.
    """
    return begin("sft", recipe, run=run, out=out, edits=edits, quiet=quiet, say=say, settings=settings)


@explained
def offline(
    recipe: str | Path,
    *,
    run: str | Path | None = None,
    out: str | Path | None = None,
    edits: Mapping[str, Any] | Iterable[tuple[str, str]] = (),
    fork: bool = False,
    quiet: bool = False,
    say: Say | None = None,
    **settings: Any,
) -> Run:
    """Train on the samples of stores, as `sage-rlvr offline` does: SFT, DPO, or a reward model.

        offline("repair/guided_dpo", run="runs/dpo")

    Args:
        recipe: A recipe file, or the name of a shipped one.
        run: The run directory; by default runs/<recipe>-s<seed>.
        out: The folder of the policy or the reward model; by default <run>/policy.
        edits: See `train`.
        fork: See `train`.
        quiet: See `train`.
        say: See `train`.
        **settings: See `train`.

    Returns:
        The `Run`.

    Raises:
        ConfigError: If a setting is invalid.
    """
    return begin("offline", recipe, run=run, out=out, edits=edits, fork=fork, quiet=quiet, say=say, settings=settings)


def read(
    command: str,
    recipe: str | Path | Method,
    task: str | None = None,
    edits: Mapping[str, Any] | Iterable[tuple[str, str]] = (),
    settings: Mapping[str, Any] | None = None,
) -> tuple[str, RunConfig]:
    """The name of a recipe, used in run directories, and the decoded recipe with these edits and settings."""
    given = dict(settings or {})
    if not isinstance(recipe, str | Path):
        given["method"], recipe = recipe, "grpo"  # the task's settings with this method
    located = locate(recipe, task)  # a misspelled name raises its error before torch is imported
    from sage_rlvr.core.method import Method  # torch

    plain = {name: dump(value) if _is_part(value) else value for name, value in given.items()}
    name = given["method"].name.replace("+", "_") if isinstance(given.get("method"), Method) else located.name
    return name, read_recipe(located, pairs_of(edits), command, settings=plain)


def pairs_of(edits: Mapping[str, Any] | Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Edits in the form of the command line: (dotted key, YAML text)."""
    return [(key, _as_yaml(value)) for key, value in edits.items()] if isinstance(edits, Mapping) else list(edits)


def _is_part(value: Any) -> bool:
    return is_dataclass(value) or call_of(value) is not None


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(dump(value))


def directory_of(command: str, name: str, config: RunConfig, run: str | Path | None) -> Path:
    """The run directory: `run`, or by default that of the recipe's name and seed."""
    seeded = name if command == "sft" else f"{name}-s{config.seed}"
    return Path(run) if run is not None else RUNS / seeded


def begin(
    command: str,
    recipe: str | Path | Method,
    *,
    task: str | None = None,
    run: str | Path | None = None,
    out: str | Path | None = None,
    edits: Mapping[str, Any] | Iterable[tuple[str, str]] = (),
    fork: bool = False,
    quiet: bool = False,
    say: Say | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Start or continue the run of `command` ("train", "sft", "offline"): see these functions."""
    quiet_libraries()
    name, config = read(command, recipe, task, edits, settings)
    from sage_rlvr.api.start import start  # torch

    directory = directory_of(command, name, config, run)
    policy = Path(out) if out is not None else directory / "policy"
    say = say or to_stderr
    started = start(config, command, directory, policy, fork=fork, quiet=quiet, say=say)
    done = Run(directory, policy, config, started.steps, started.total, started.first)
    if not done.finished:
        say(f"stopped after step {done.steps} of {done.total}, saved in {directory}; the same command continues")
    return done


def to_stderr(line: str) -> None:
    """Print a line to stderr: the default for messages."""
    PlainConsole(stderr=True).print(line, soft_wrap=True)

