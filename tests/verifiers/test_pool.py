"""The pool against verifiers that hang, crash, lie and eat memory. No assertion is on how long something took."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers import pool as pool_module
from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.pool import Pool, _verdict_of, _waited
from sage_rlvr.verifiers.verdict import Verdict

HOSTILE = """
import os, signal, sys, time
from sage_rlvr.verifiers import Verdict

def judge(kind, gold, *, note=""):
    print("noise that must not reach the pipe")
    if kind == "hang":
        9 ** 9 ** 9 ** 9  # in C, where no Python signal handler ever runs
    if kind == "sleep":
        time.sleep(60)
    if kind == "nap":
        time.sleep(1)
    if kind == "raise":
        raise ValueError("\\ud800")
    if kind == "exit":
        sys.exit(3)
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "die once" and not os.path.exists(gold):
        open(gold, "w").close()
        os.abort()
    if kind == "memory":
        return bytearray(1 << 40)
    if kind == "hidden":
        try:
            block = bytearray(300 << 20)
        except MemoryError:
            pass
        return Verdict("wrong", "hidden")
    if kind == "fork":
        os.fork()
        return Verdict("right", "one")
    if kind in ("pays itself", "rubbish"):
        line = '{"label": "right", "reason": "", "score": 100.0, "full": false}' if kind == "pays itself" else "{}"
        for pipe in range(3, 32):
            try:
                os.write(pipe, line.encode() + b"\\n")
            except OSError:
                pass
        return Verdict("wrong", "honest")
    if kind == "pid":
        return Verdict("right", str(os.getpid()))
    return Verdict("right" if kind == gold else "wrong", note)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "hostile:judge"


def gone(pid: int) -> bool:
    """True when there is no such process, and no zombie of it either."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def pairs(verdicts):
    return [(verdict.label, verdict.reason) for verdict in verdicts]


@pytest.mark.slow
def test_what_a_worker_waits_for_a_core_does_not_count(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(1, 0.3, function=hostile) as pool:
        assert pool.verify([("nap", "")])[0].reason == "took longer than 0.3 s"
        monkeypatch.setattr("sage_rlvr.verifiers.pool._waited", lambda pid: time.monotonic())  # as if it waited all the time
        assert pool.verify([("nap", "")])[0].label == "wrong"
    monkeypatch.undo()
    before = _waited(os.getpid())
    time.sleep(0.3)
    assert 0 <= _waited(os.getpid()) - before < 0.3  # asleep is not waiting


@pytest.mark.slow
def test_a_power_tower_is_undecided_and_the_pool_goes_on():
    with Pool(1, seconds=2) as pool:
        tower = r"\boxed{9^{9^{9}+1}}"
        verdicts = pool.verify([(r"\boxed{0.5}", r"\frac{1}{2}"), (tower, "9"), (r"\boxed{2}", "3")])
        assert verdicts[0].right and verdicts[1].label == "undecided" and pairs(verdicts)[2] == ("wrong", "value")
        assert verdicts[1].reason == "took longer than 2 s"
        assert pool.remembered == (1, 0)  # plain numbers took no algebra
        pool.seconds = pool._crew.order["seconds"] = 1
        assert pool.verify([(tower, "9")])[0].reason == "took longer than 1 s"  # asked anew: limits are not remembered
        assert pool.verify([(r"so \boxed{x+x}", "2x")] * 3)[0].right and pool.remembered == (5, 2)


FAULTS = [  # an answer in a box and in a tag, and the reasons it may get
    ("9^{9^{9}+1}", {"took longer than 1.5 s", "needed more than 1024 MB"}),
    ("9^{9^{9^9}}", {"a number of more than 100000 digits"}),
    ("((((9!)!)!)!)", {"took longer than 1.5 s", "needed more than 1024 MB", "answer cannot be parsed"}),
    ("x" * 1_100_000, {"completion of more than 1000000 characters"}),
    ("x" * 900_000, {"answer of more than 1000 characters"}),
    ("+".join(["1"] * 40_000), {"answer of more than 1000 characters"}),
    ("{" * 5_000 + "1" + "}" * 5_000, {"answer of more than 1000 characters"}),
    ("(" * 400 + "1" + ")" * 400, {"brackets nested deeper than 40"}),
    ("{" * 400 + "1" + "}" * 400, {"value"}),
    (r"\sqrt{" * 90 + "2" + "}" * 90, {"brackets nested deeper than 40"}),
    ("1\x00", {"answer cannot be parsed", "value"}),
    ("\ud800\udfff", {"answer cannot be parsed"}),
    ("\u202e5\u200f", {"answer cannot be parsed", "value"}),
    ("__import__('os').system('true')", {"answer cannot be parsed", "value"}),
    (r"\input{/etc/passwd}", {r"unknown command \input"}),
    ("{0.__class__}%s{{7*7}}<script>", {"answer cannot be parsed", "value"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, text", [({"answer_in": "boxed"}, r"\boxed{%s}"), ({"answer_in": "tag"}, "<SOLUTION>%s</SOLUTION>")]
)
def test_hostile_answers_are_undecided_or_wrong_and_leave_nothing_behind(options, text: str):
    with Pool(1, seconds=1.5) as pool:
        seen = set()
        for answer, reasons in FAULTS:
            verdict = pool.verify([(text % answer, r"\frac{1}{3}")], **options)[0]
            assert verdict.label in ("wrong", "undecided") and verdict.reason in reasons, (answer[:30], verdict)
            seen.update(pool.pids())
            assert len(pool.pids()) <= 1
        healthy = pool.verify([(text % "2/6", r"\frac{1}{3}")], **options)
    assert healthy[0].right and all(gone(pid) for pid in seen)


ANSWERS = ["1/2", "0.5", r"\frac{2}{4}", "x", "", "(1,2)", r"\{1,2\}", "2", "+2", "{" * 41 + "1" + "}" * 41]
PLACES = [
    ({"answer_in": "boxed"}, r"17, so \boxed{%s}."),
    ({"answer_in": "tag"}, "17 <SOLUTION>%s</SOLUTION> 25"),
    ({"answer_in": "tag", "closed": False}, "<SOLUTION>%s"),
    ({"answer_in": "whole"}, "%s"),
    ({"answer_in": "last_number"}, "%s"),
    ({"answer_in": "anywhere"}, r"\boxed{%s}"),
    ({"answer_in": "boxed", "algebra_only": True}, r"\boxed{%s}"),
]


@pytest.mark.slow
def test_what_a_pool_remembers_changes_no_verdict():
    with Pool(1) as pool, Pool(1, cache=0) as forgetful, Pool(1, cache=2) as short:
        for options, text in PLACES:
            # deep braces are refused before they are parsed, but not where parsing is what finds the answer
            answers = ANSWERS[: -1 if options["answer_in"] == "anywhere" else None]
            items = [(text % answer, gold) for gold in ("1/2", r"\{2,1\}", "2") for answer in answers]
            plain = [verify_math(*item, **options) for item in items]
            assert pool.verify(items, **options) == forgetful.verify(items, **options) == plain, options
            assert pool.verify(items[::-1], **options) == plain[::-1], options
            assert short.verify(items, **options) == plain and len(short._crew.kept) <= 2
        asked, recalled = pool.remembered
        assert forgetful.remembered == (0, 0) and not pool._crew.open
        assert 2 * recalled > asked > 100


@pytest.mark.slow
def test_one_of_two_that_wait_for_the_same_answer_may_be_cancelled():
    with Pool(1, seconds=3) as pool:
        busy = pool.submit(r"\boxed{9^{9^{9}+1}}", "9")
        first, second = pool.submit(r"\boxed{x+x}", "2x"), pool.submit(r"so \boxed{x+x}", "2x")
        alone = pool.submit(r"\boxed{x+x}", "3x")
        assert first.cancel() and alone.cancel()
        assert second.result().right and busy.result().label == "undecided"
        assert pool.verify([(r"\boxed{x+x}", "3x")])[0].reason == "value"  # asked again, for nobody waited any more


@pytest.mark.slow
def test_every_item_has_its_verdict_whatever_the_others_do(hostile: str, tmp_path: Path):
    kinds = ["a", "hang", "raise", "exit", "b", "die", "memory", "a"]
    with Pool(2, seconds=1, function=hostile) as pool:
        verdicts = pool.verify([(kind, "a") for kind in kinds], note="n")
        assert pairs(pool.verify([("die once", str(tmp_path / "died"))], note="n")) == [("wrong", "n")]
    assert pairs(verdicts) == [
        ("right", "n"),
        ("undecided", "took longer than 1 s"),
        ("undecided", "ValueError"),
        ("undecided", "SystemExit"),
        ("wrong", "n"),
        ("undecided", "worker died twice, status -9"),
        ("undecided", "needed more than 1024 MB"),
        ("right", "n"),
    ]


def test_what_is_written_into_the_pipe_answers_nothing(hostile: str):
    kinds = ["pays itself", "a", "rubbish", "b", "fork", "a", "fork", "b"]
    with Pool(1, function=hostile) as pool:
        assert pairs(pool.verify([(kind, "a") for kind in kinds])) == [
            ("undecided", pool_module.STRANGE), ("right", ""), ("undecided", pool_module.STRANGE), ("wrong", ""),
            ("right", "one"), ("right", ""), ("right", "one"), ("wrong", ""),
        ]  # fmt: skip


def test_a_module_that_forks_when_it_is_imported_answers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "forks_at_import.py").write_text(f"import os\nos.fork()\n{HOSTILE}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Pool(1, function="forks_at_import:judge") as pool:
        assert pairs(pool.verify([("a", "a"), ("b", "a"), ("a", "a")])) == [("right", ""), ("wrong", ""), ("right", "")]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_a_worker_whose_parent_was_killed_ends_while_it_imports(tmp_path: Path):
    """And so does what it started."""
    (tmp_path / "hangs.py").write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}\\n')\n"
        "time.sleep(600)\n"
    )
    code = f"import sys; sys.path[:0] = {sys.path!r} + ['.']\nfrom sage_rlvr.verifiers.pool import Pool\n"
    code += "Pool(1, function='hangs:f').verify([('a', 'a')])"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    pids = tmp_path / "pids"
    for _ in range(600):
        if pids.exists() and pids.read_text().endswith("\n"):
            break
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    left = list(map(int, pids.read_text().split()))
    for _ in range(300):
        if all(map(gone, left)):
            break
        time.sleep(0.1)
    assert all(map(gone, left))


@pytest.mark.slow
def test_memory_that_a_library_hides_is_seen_by_its_peak(hostile: str):
    with Pool(1, memory_mb=500, function=hostile) as pool:
        assert pairs(pool.verify([("hidden", "")])) == [("undecided", "needed more than 500 MB")]
        assert pairs(pool.verify([("a", "a")])) == [("right", "")]  # by a new worker: the peak stays with the old


@pytest.mark.slow
def test_a_worker_that_is_killed_from_outside_is_replaced_and_none_is_left(hostile: str):
    with Pool(1, function=hostile) as pool:
        assert pool.pids() == []  # nothing starts before the first item
        first = int(pool.verify([("pid", "")])[0].reason)
        assert pool.pids() == [first]
        os.kill(first, signal.SIGKILL)
        second = int(pool.verify([("pid", "")])[0].reason)
        assert second != first and gone(first)
        assert int(pool.verify([("pid", "")])[0].reason) == second  # a healthy worker stays
    assert gone(second) and pool.pids() == []


@pytest.mark.slow
def test_closing_ends_what_runs_and_cancels_what_waits(hostile: str):
    pool = Pool(1, seconds=60, function=hostile)
    pool.verify([("a", "a")])
    pid = pool.pids()[0]
    running, waiting = pool.submit("sleep", ""), pool.submit("a", "a")
    while not running.running():
        pass
    pool.close()
    assert waiting.cancelled() and gone(pid)
    with pytest.raises(RuntimeError, match="closed"):
        running.result()
    assert pool.verify([("a", "a")])[0].right  # opens again
    pid = pool.pids()[0]
    del pool  # a forgotten pool closes itself
    assert gone(pid)


def test_threads_share_one_pool_and_asyncio_does_not_block(hostile: str):
    with Pool(2, function=hostile) as pool:
        with ThreadPoolExecutor(4) as threads:
            rows = list(threads.map(lambda i: pool.verify([(str(i), "1"), (str(i), str(i))]), range(8)))
        assert [[v.right for v in row] for row in rows] == [[i == 1, True] for i in range(8)]

        async def both() -> list:
            return await asyncio.gather(pool.verify_async([("a", "a"), ("b", "a")]), pool.verify_async([("a", "a")]))

        assert [[v.right for v in row] for row in asyncio.run(both())] == [[True, False], [True]]


def test_surrogates_and_megabytes_travel(hostile: str):
    with Pool(1, function=hostile) as pool:
        for text in ("\ud800\x00\u200f", "x" * 2_000_000):
            assert pool.verify([(text, text)])[0].right


def test_a_verifier_that_cannot_be_loaded_is_an_error_and_no_verdict():
    with Pool(1, function="no_such_module:f") as pool, pytest.raises(ConfigError, match="No module named"):
        pool.verify([("a", "a")])
    for wrong in ({"workers": 0}, {"seconds": 0}, {"memory_mb": -1}, {"function": "print"}, {"cache": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Pool(**wrong)


STARTING = """
import os, signal, time
from sage_rlvr.verifiers import Verdict

with open({log!r}, "a") as log:
    log.write("{fault}\\n")
if open({log!r}).read().count("\\n") <= {times}:
    os.kill(os.getpid(), signal.SIGKILL) if "{fault}" == "killed" else time.sleep(60)

def judge(kind, gold):
    return Verdict("right" if kind == gold else "wrong", "")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, times, said",
    [("killed", 2, ""), ("killed", 9, "3 times: exit status -9; is memory short"), ("late", 1, ""),
     ("late", 9, "3 times: not ready within 0.4 s; .*start_seconds")],
)  # fmt: skip
def test_a_worker_that_dies_or_is_late_while_it_starts_is_replaced(fault, times, said, tmp_path: Path, monkeypatch):
    log, name = tmp_path / "starts", f"starting_{fault}_{times}"
    (tmp_path / f"{name}.py").write_text(STARTING.format(log=str(log), fault=fault, times=times))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pool_module, "PAUSE", 0.01)
    seconds = 60 if fault == "killed" else 0.1 if said else 1
    with Pool(1, function=f"{name}:judge", start_seconds=seconds) as pool:
        if said:
            with pytest.raises(ConfigError, match=said):
                pool.verify([("a", "a")])
        else:
            assert pool.verify([("a", "a")])[0].right
            assert log.read_text().count("\n") == times + 1
        assert len(pool.pids()) == (not said)


def test_no_memory_for_a_worker_is_asked_for_again_and_then_said(hostile: str, monkeypatch):
    tried = []

    def full(*_: object) -> None:
        tried.append(1)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pool_module, "_Worker", full)
    monkeypatch.setattr(pool_module, "PAUSE", 0.01)
    with Pool(1, function=hostile) as pool, pytest.raises(ConfigError, match=r"3 times: .*allocate memory"):
        pool.verify([("a", "a")])
    assert len(tried) == 3


def test_pickling_carries_the_settings(hostile: str):
    with Pool(1, seconds=3, function=hostile, cache=7) as pool:
        assert pool.verify([("a", "a")])[0].right
        with pickle.loads(pickle.dumps(pool)) as copy:
            assert (copy.workers, copy.seconds, copy.function, copy.cache, copy.pids()) == (1, 3, hostile, 7, [])


def test_a_script_without_a_main_guard_works_and_leaves_no_worker(hostile: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys; sys.path[:0] = {sys.path!r}
        from sage_rlvr.verifiers.pool import Pool
        pool = Pool(1, function="hostile:judge")
        print(pool.verify([("a", "a")])[0].label, *pool.pids())
    """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.startswith("right ")
    assert gone(int(done.stdout.split()[1]))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_a_pool_of_its_own(hostile: str):
    with Pool(1, function=hostile) as pool:
        parents = int(pool.verify([("pid", "")])[0].reason)
        child = os.fork()
        if child == 0:
            childs = int(pool.verify([("pid", "")])[0].reason)
            pool.close()
            os._exit(0 if childs != parents else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert int(pool.verify([("pid", "")])[0].reason) == parents  # the child has not touched ours


def test_an_answer_that_is_no_verdict_is_none() -> None:
    """The function's own code may have written it; the worker is then replaced and the completion undecided."""
    good = {"label": "right", "reason": "equal", "score": None, "full": False}
    assert _verdict_of(good) == Verdict("right", "equal")
    for change in ({"label": "paid"}, {"label": 1}, {"reason": None}, {"score": "1"}, {"score": math.nan}):
        assert _verdict_of(good | change) is None
    assert all(_verdict_of({name: good[name] for name in good if name != left}) is None for left in good)
