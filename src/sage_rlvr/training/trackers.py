"""`report_to`: the metrics of a run also in trackio, wandb or TensorBoard, under this package's names.

The run directory stays the record: metrics.jsonl has every row, and a tracker gets each step once, however often the run
is killed. On TRL the names go to transformers' own integrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sage_rlvr.config import dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.runs import RunDir

PROJECT = "sage-rlvr"
Log = Callable[[dict[str, float], int], None]


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError for trackers that are not installed, with the command that installs them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"report_to = {list(names)}: {' and '.join(missing)} not installed here; run: pip install "
            f"{' '.join(missing)}, or remove report_to"
        )


@contextmanager
def tracking(names: Sequence[str], run: RunDir, config: Any) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Yields report(step, metrics), which logs to all named trackers the steps that were not logged before a resume."""
    check_installed(names)
    opened = [TRACKERS[name](run.path, dump(config)) for name in names]

    def report(step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics by name at a step, counted from 0."""
        if step > run.logged:
            for log, _ in opened:
                log(dict(metrics), step)

    try:
        yield report
    finally:
        for _, close in opened:
            close()


def run_name(path: Path) -> str:
    """Return a run's name in a tracker: the last two parts of its path, because folders of runs repeat the last one."""
    return "-".join(path.absolute().parts[-2:])


def _trackio(path: Path, config: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    import trackio  # optional: one of the trackers

    trackio.init(project=PROJECT, name=run_name(path), config=config, resume="allow", embed=False)
    return (lambda row, step: trackio.log(row, step=step)), trackio.finish


def _wandb(path: Path, config: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    import wandb  # optional: one of the trackers

    run = wandb.init(project=PROJECT, name=run_name(path), id=run_name(path), dir=path, config=config, resume="allow")
    return (lambda row, step: run.log(row, step=step)), run.finish


def _tensorboard(path: Path, config: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter  # optional: one of the trackers

    writer = SummaryWriter(path / "tensorboard")

    def log(row: dict[str, float], step: int) -> None:
        for name, value in row.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a kill loses nothing

    return log, writer.close


TRACKERS = {"trackio": _trackio, "wandb": _wandb, "tensorboard": _tensorboard}


def skip_logged_steps(trainer: Any, done: int) -> None:
    """Keep the tracker callbacks of a transformers trainer from steps up to `done`, which an earlier start has logged."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK  # slow: looks for every tracker

    kinds = tuple(INTEGRATION_TO_CALLBACK.values())

    def once(plain: Callable[..., Any], args: Any, state: Any, control: Any, **more: Any) -> Any:
        return plain(args, state, control, **more) if state.global_step > done else None

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, kinds):
            callback.on_log = partial(once, callback.on_log)
