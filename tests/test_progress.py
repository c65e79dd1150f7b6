"""Progress lines: what they say of a rollout that serves several updates, and how long the rest will take."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import pytest
from rich.console import Console

from sage_rlvr import progress
from sage_rlvr.progress import Bar, Pace, Silent, Terminal, in_words, seconds_left


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is moved by hand: clock(seconds)."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_the_reward_of_a_rollout_stands_beside_all_of_its_updates(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Terminal("run", every=0.0)
    shown.start(total=2, done=0)
    shown.advance(0, {"loss": 0.5, "reward/mean": 0.25})
    shown.advance(1, {"loss": 0.125})
    shown.advance(2, {"loss": 0.75, "reward/mean": 1.0, "kl/to_reference": 0.5, "guide/q_mean": 1.25, "time/step_s": 9.0})
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run 0/2, time left unknown  loss 0.500  reward 0.250"
    assert lines[2] == "run 2/2, done  loss 0.750  reward 1.000  KL 0.500  q 1.250"


def test_a_continued_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for done, said in ((0, False), (100, True), (250, False)):
        shown = Terminal("run")
        shown.start(total=250, done=done)
        shown.close()
        assert shown.first == done
        assert ("run: continued at step 100 of 250" in capsys.readouterr().err) == said


def test_the_time_left_leaves_out_the_first_step_and_checkpoints(clock: Any) -> None:
    pace = Pace()
    clock(60.0)  # the first step holds what is done once
    pace.see(1)
    assert pace.left(10) is None
    for step in range(2, 12):
        clock(20.0 if step == 5 else 2.0)  # one of them holds a checkpoint
        pace.see(step)
    assert pace.left(100) == pytest.approx(200.0)
    pace.see(11)
    clock(6.0)
    pace.see(14)  # several at once
    assert pace.left(1) == pytest.approx(2.0)


def test_words_of_the_time_left() -> None:
    assert in_words(None) == "time left unknown"
    assert in_words(45.4) == "about 45 s left" and in_words(770) == "about 13 min left"


def test_the_time_left_of_several_runs() -> None:
    def rows(*seconds: float) -> list[dict[str, float]]:
        return [{"time/step_s": s} for s in seconds]

    assert seconds_left({"a": (100, rows(9.0)), "b": (100, [])}, 2) is None
    even = {"a": (100, rows(1.0, 1.0, 9.0)), "b": (100, rows(2.0, 2.0)), "c": (100, [])}
    assert seconds_left(even, 2) == pytest.approx((100 + 200 + 150) / 2)
    assert seconds_left(even, 8) == pytest.approx(200)  # no run ends before it has made its own steps


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_in_a_terminal_and_lines_elsewhere(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    bar = Bar(console, "all", 4, every=0.0)
    bar.update(2, "q 1.000")
    bar.close()
    assert all(word in console.file.getvalue() for word in ("2/4", "time left unknown", "q 1.000"))  # type: ignore[attr-defined]


def test_the_count_comes_first_at_eighty_columns() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bar = Bar(console, "sage_branch-s0", 2500)
    bar.update(1234, "loss 0.123  reward 0.456  KL 0.012  q 1.003  H 0.812")
    bar.close()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    last = [line for line in re.split(r"[\r\n]", written) if line.strip()][-1]
    assert last.startswith("1234/2500 ") and "sage_branch-s0" in last and "loss 0.123" in last and len(last) <= 80


def test_silent_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Silent()
    quiet.start(3, 1)
    quiet.advance(3, {"loss": 1.0})
    quiet.close()
    assert quiet.first == 1 and capsys.readouterr() == ("", "")


def test_the_first_line_of_long_work_comes_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    console = Console(file=io.StringIO(), force_terminal=False, width=120)
    bar = Bar(console, "eval", 300)
    bar.soon.join(5)
    assert console.file.getvalue() == "eval 0/300, time left unknown\n"  # type: ignore[attr-defined]
    bar.close()
    quick = Console(file=io.StringIO(), force_terminal=False, width=120)
    bar = Bar(quick, "eval", 2)
    bar.update(2)
    bar.close()
    bar.soon.join(5)
    assert quick.file.getvalue() == "eval 2/2, done\n"  # type: ignore[attr-defined]


def test_work_without_steps_says_what_it_does_while_it_lasts() -> None:
    told: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            heard.set()

    with progress.reporting(say, "report: reading", first=0.01, every=0.01):
        assert heard.wait(5)
    assert told[0] == "report: reading (0 s so far)"
    before = len(told)
    with progress.reporting(say, "quick", first=60.0):
        pass
    assert len(told) == before
