"""Progress of long tasks: rich's bars in a terminal, plain lines elsewhere, and an estimate of the remaining time.

The remaining time is the median of the newest intervals times the number of remaining steps. The median ignores steps with a
checkpoint; the first interval is left out because it includes one-time work.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column

from sage_rlvr.escaping import visible

SHOWN = {"loss": "loss", "reward/mean": "reward", "kl/to_reference": "KL", "guide/q_mean": "q", "policy/entropy": "H"}
NEWEST = 32  # intervals that count for the time left
FIRST_S = 2.0  # before long work prints its first line
Counting = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Function that returns a context for a number of things; its value is called with the number of newly finished ones."""


def quiet_libraries() -> None:
    """Disable the progress bars of weight loading unless the user has set the variable."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class PlainConsole(Console):
    """The console for all output. Text is data: markup is not interpreted and control characters are printed escaped."""

    def __init__(self, **options: Any) -> None:
        # not rich's own output for notebooks, which goes to the cell whatever `file` is
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, "force_jupyter": False} | options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render like `Console.render`; rich's own control codes for the terminal stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


class Silent:
    """Progress reporter interface: `start` once, then `advance` after each update. This class prints nothing, for workers whose
    parent reads metrics.jsonl; `Terminal` prints.

    first: finished steps at the start.
    """

    first = 0

    def start(self, total: int, done: int) -> None:
        """Start a task of `total` steps, `done` of which an earlier process has finished."""
        self.first = done

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Report that `done` steps are finished, including those of earlier processes; metrics: name -> value of the last one.

        With several updates per rollout each may be reported with the same `done`, and only one of them knows the reward.
        """

    def note(self, line: str) -> None:
        """Report a sentence for the reader of the run, before its first step or between steps."""

    def close(self) -> None:
        """End the report."""


Reporter = Silent  # whatever has these four methods


class Pace:
    """Seconds per step, from the times at which steps were done."""

    def __init__(self, done: int = 0) -> None:
        self.done, self.at, self.warm = done, time.monotonic(), False
        self.seconds: deque[float] = deque(maxlen=NEWEST)

    def see(self, done: int) -> None:
        """Record that `done` steps are finished now."""
        if done <= self.done:
            return
        now = time.monotonic()
        if self.warm:
            self.seconds.append((now - self.at) / (done - self.done))
        self.done, self.at, self.warm = done, now, True

    def left(self, steps: int) -> float | None:
        """Return the seconds for this many more steps; None before the second interval."""
        return statistics.median(self.seconds) * steps if self.seconds else None


def seconds_left(runs: Mapping[Any, tuple[int, Sequence[Mapping[str, Any]]]], workers: int) -> float | None:
    """Return the seconds until all runs have ended, from the durations of their newest steps; None before one has two steps.

    A run without steps is assumed to take as long as the rest. The result is never less than the longest run by itself, nor than
    all of them split over `workers`.

    runs: run -> (steps left, its newest rows of metrics).
    """
    taken = {
        run: [row["time/step_s"] for row in rows[-NEWEST:] if "time/step_s" in row] for run, (_, rows) in runs.items()
    }
    known = {run: statistics.median(times) for run, times in taken.items() if len(times) > 1}
    if not known:
        return None
    usual = statistics.median(known.values())
    left = [steps * known.get(run, usual) for run, (steps, _) in runs.items()]
    return max(max(left), sum(left) / workers)


def in_words(seconds: float | None) -> str:
    """Return "about 45 s left", "about 12 min left", or "time left unknown" before a measurement."""
    if seconds is None:
        return "time left unknown"
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


def noted(metrics: Mapping[str, float]) -> str:
    """Return the logged metrics of a progress line."""
    return "  ".join(f"{short} {metrics[name]:.3f}" for name, short in SHOWN.items() if name in metrics)


@contextmanager
def reporting(say: Callable[[str], None], what: str, first: float = FIRST_S, every: float = 20.0) -> Iterator[None]:
    """Print the current work and its duration while work without countable steps takes longer than `first` seconds."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = first
        while not done.wait(wait):
            say(f"{what} ({time.monotonic() - began:.0f} s so far)")
            wait = every

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Bar:
    """Bar in a terminal; elsewhere a line after FIRST_S seconds, then every `every` seconds, and at the end."""

    def __init__(self, console: Console, label: str, total: int, done: int = 0, every: float = 15.0) -> None:
        self.console, self.label, self.total, self.every = console, label, total, every
        self.pace, self.last = Pace(done), time.monotonic()
        # The count first, of a fixed width: rich narrows every column where a line is too long, and here only the words may be.
        digits = 2 * len(str(total)) + 1
        count = MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=digits))
        spent = TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7))
        cut = Column(no_wrap=True, overflow="ellipsis")
        words = TextColumn("{task.description}  {task.fields[note]}", markup=False, table_column=cut)
        columns = (count, BarColumn(bar_width=10, table_column=Column(min_width=10)), spent, words)
        self.rich = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.rich.add_task(label, total=total, completed=done, note="")
        self.rich.start()
        self.soon = threading.Timer(FIRST_S, self._first)  # the first step may take minutes
        self.soon.daemon = True
        if self.rich.disable and done < total:
            self.soon.start()

    def _first(self) -> None:
        self.console.print(f"{self.label} {self.pace.done}/{self.total}, time left unknown", soft_wrap=True)

    def update(self, done: int, note: str = "") -> None:
        """Show the bar at `done`, with the time left and a note after it."""
        self.pace.see(done)
        words = in_words(self.pace.left(self.total - done)) if done < self.total else "done"
        self.rich.update(self.task, completed=done, note=f"{words}  {note}")
        if self.rich.disable and (done >= self.total or time.monotonic() - self.last >= self.every):
            self.last = time.monotonic()
            self.soon.cancel()
            line = f"{self.label} {done}/{self.total}, {words}  {note}".rstrip()
            self.console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar on the screen."""
        self.soon.cancel()
        self.rich.stop()


class Terminal(Silent):
    """Progress of one run, with its newest loss, reward, KL, q and entropy.

    A value stays until another one of its name comes, so that the reward of a rollout is shown with all of its updates.
    """

    def __init__(self, label: str, every: float = 15.0, say: Callable[[str], None] | None = None) -> None:
        """Store the settings. say: prints notes while no bar is on the screen; by default to stderr."""
        self.label, self.every, self.say = label, every, say
        self.console = PlainConsole(stderr=True)
        self.bar: Bar | None = None
        self.newest: dict[str, float] = {}

    def start(self, total: int, done: int) -> None:
        """Show the bar, and a line with the step at which an earlier process ended."""
        super().start(total, done)
        if 0 < done < total:
            self.console.print(f"{self.label}: continued at step {done} of {total}")
        self.bar = Bar(self.console, self.label, total, done, self.every)

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Show the bar at `done`, or a line when it is due."""
        assert self.bar is not None
        self.newest |= {name: metrics[name] for name in SHOWN if name in metrics}
        self.bar.update(done, noted(self.newest))

    def note(self, line: str) -> None:
        """Print a sentence, above the bar if there is one: another console would write into the bar's line."""
        if self.say is None or (self.bar is not None and self.console.is_terminal):
            self.console.print(line, soft_wrap=True)
        else:
            self.say(line)

    def close(self) -> None:
        """Leave the bar on the screen."""
        if self.bar is not None:
            self.bar.close()


@contextmanager
def counting(console: Console, label: str, total: int, every: float = 20.0) -> Iterator[Callable[[int], None]]:
    """Yield advance(n): `n` more of `total` are done."""
    bar, done = Bar(console, label, total, every=every), 0

    def advance(n: int) -> None:
        """Record that `n` more are done."""
        nonlocal done
        done += n
        bar.update(done)

    try:
        yield advance
    finally:
        bar.close()
