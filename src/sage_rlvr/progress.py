"""Progress of long work: a rich bar with rate and time left in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SHOWN = {"loss": "loss", "reward/mean": "reward", "anchor/kl_raw": "KL", "policy/entropy": "H"}


class Reporter(Protocol):
    """What long work tells of itself: `start` once, then `advance` whenever there is something new."""

    def start(self, total: int, done: int) -> None:
        """Work of `total` steps begins, `done` of them already there (an earlier process made them)."""
        ...

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """`done` steps are there, those of earlier processes included; metrics: name -> value of what was just done.

        Of several updates a rollout each may come by itself with the same `done`, and only one of them knows the reward."""
        ...


class Silent:
    """For workers whose parent reads metrics.jsonl."""

    def start(self, total: int, done: int) -> None:
        """Nothing."""

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""


class Terminal:
    """One bar, or a plain line every `every` seconds where the output is not a terminal.

    Behind it stand the newest loss, reward, KL and entropy: a value stays until another one of its name comes, so that the
    reward of a rollout is shown beside all of its updates.
    """

    def __init__(self, label: str, every: float = 15.0) -> None:
        self.label, self.every = label, every
        self.console = Console(stderr=True)
        self.total = 0
        self.began = self.last_line = time.monotonic()
        self.first = 0
        self.bar: Progress | None = None
        self.newest: dict[str, float] = {}

    def start(self, total: int, done: int) -> None:
        """The bar, or a line that says where an earlier process ended."""
        self.total, self.first, self.began = total, done, time.monotonic()
        if done:
            self.console.print(f"{self.label}: continuing at step {done} of {total}")
        if self.console.is_terminal:
            self.bar = bar(self.console)
            self.task = self.bar.add_task(self.label, total=total, completed=done, note="")
            self.bar.start()

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """The bar at `done`; or a line, when it is due and at the end."""
        self.newest |= {name: metrics[name] for name in SHOWN if name in metrics}
        note = "  ".join(f"{short} {self.newest[name]:.3f}" for name, short in SHOWN.items() if name in self.newest)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, note=note)
            if done >= self.total:
                self.bar.stop()
            return
        now = time.monotonic()
        if done >= self.total or now - self.last_line >= self.every:
            self.last_line = now
            rate = (done - self.first) / max(now - self.began, 1e-9)
            left = (self.total - done) / max(rate, 1e-9)
            print(
                f"{self.label} {done}/{self.total}  {rate:.2f}/s  {left:.0f} s left  {note}",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def counting(console: Console, label: str, total: int, every: float = 20.0) -> Iterator[Callable[[int], None]]:
    """Yields advance(n): `n` more of `total` are done. A bar in a terminal, a line every `every` seconds elsewhere."""
    if console.is_terminal:
        with bar(console) as shown:
            task = shown.add_task(label, total=total, note="")
            yield lambda n: shown.advance(task, n)
        return
    began = last = time.monotonic()
    done = 0

    def advance(n: int) -> None:
        """`n` more are done."""
        nonlocal done, last
        done, now = done + n, time.monotonic()
        if now - last >= every:
            last = now
            left = (total - done) * (now - began) / max(done, 1)
            console.print(f"{label}: {done}/{total}, about {left:.0f} s left", highlight=False)

    yield advance


def bar(console: Console) -> Progress:
    """The house's bar: label, bar, count, elapsed, left, a note."""
    return Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
