"""Stop a run after the current step on SIGINT or SIGTERM.

A stopped process exits with 128 + the signal's number, as shells report a killed process: 143 after SIGTERM, 130 after Ctrl-C.
Batch systems recognize these codes as a stop from outside; failures of the program have other codes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ClassVar


class Interrupted(KeyboardInterrupt):
    """Exception of another signal that acts like Ctrl-C."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and a closed terminal raise `Interrupted`, as Ctrl-C raises KeyboardInterrupt, while the block runs.

    So no child process is left over and the command prints what is saved. A signal that is ignored (nohup) stays so.
    """

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(number)

    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class StopFlag:
    """Flag that the first SIGINT or SIGTERM sets, to stop after the current step; a second one ends the process at once.

        with StopFlag() as stop:
            for step in range(steps):
                ...
                if stop: save; break

    Truth value: whether a stop was requested; `received`: by which signal. Off the main thread, where Python allows no
    handlers, it does nothing. The former handlers are restored at the end.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    newest: ClassVar[signal.Signals | None] = None
    """Signal that last requested a stop of a run in this process."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}
        StopFlag.newest = None

    def __bool__(self) -> bool:
        return self.received is not None

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    @classmethod
    def exit_code(cls) -> int:
        """Exit code of a stopped process; as after SIGTERM if another rank got the signal."""
        return 128 + (cls.newest or signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self.received = StopFlag.newest = signal.Signals(number)
        # os.write: print is not safe inside a handler
        os.write(2, f"\n{self.received.name}: finishing the step and saving; send it again to exit at once\n".encode())
