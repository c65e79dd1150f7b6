"""Programs in the sandbox: what they may compute, what hostile ones try, and that nothing of theirs is run unconfined."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers import sandbox, sandbox_child
from sage_rlvr.verifiers.pool import Pool
from sage_rlvr.verifiers.sandbox import PROGRAMS, Sandbox, judge, missing, require_sandbox

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
TESTS = [[[1, 2], "3"], [[5, -5], "0"]]


def body(*lines: str) -> str:
    return "def f(*xs):\n" + "\n".join(f"    {line}" for line in lines)


@pytest.mark.parametrize(
    ("source", "label", "reason"),
    [
        (body("return sum(xs)"), "right", "2 tests passed"),
        ("import math, itertools\n" + body("return int(math.fsum(itertools.chain(xs)))"), "right", "2 tests passed"),
        (body("return xs[0]"), "wrong", "f(1, 2) gave 1, 3 is wanted"),
        (body("return [0] * 500 * (len(xs) > 1)"), "wrong", f"f(1, 2) gave {str([0] * 500)[:400]}, 3 is wanted"),
        (body("return f"), "wrong", "f(1, 2) gave <function f at 0x...>, 3 is wanted"),
        (body("return float(sum(xs))"), "wrong", "f(1, 2) gave 3.0, 3 is wanted"),
        (body("x = 0", "return 1 // x"), "wrong", "f(1, 2) raised ZeroDivisionError: integer division or modulo by zero in line 3"),
        ("def g(): pass", "wrong", "raised KeyError: 'f'"),
        ("def f(:", "wrong", "raised SyntaxError: invalid syntax (program, line 1) in line 1"),
        ("", "wrong", "raised KeyError: 'f'"),
    ],
)  # fmt: skip
def test_a_program_is_right_where_every_call_gives_what_it_should(source: str, label: str, reason: str) -> None:
    assert (judge(source, "f", TESTS).label, judge(source, "f", TESTS).reason) == (label, reason)


HOSTILE = {
    "reads a file": body("return open('/etc/passwd').read()"),
    "reads its own memory": body("return open('/proc/self/mem', 'rb').read(1)"),
    "lists a folder": body("import os", "return os.listdir('/')"),
    "writes a file": body("return open('MARK', 'w')"),
    "makes a folder": body("import os", "os.mkdir('MARK')"),
    "renames": body("import os", "os.rename('HERE', 'MARK')"),
    "removes": body("import os", "os.unlink('HERE')"),
    "changes rights": body("import os", "os.chmod('HERE', 0)"),
    "links": body("import os", "os.symlink('HERE', 'MARK')"),
    "forks": body("import os", "os.fork()"),
    "forks without end": body("import os", "while True:", "    try: os.fork()", "    except OSError: raise"),
    "starts a program": body("import os", "os.execv('/bin/sh', ['sh', '-c', 'touch MARK'])"),
    "spawns": body("import os", "return os.posix_spawn('/bin/sh', ['sh', '-c', 'touch MARK'], {})"),
    "opens a socket": body("import _socket", "return _socket.socket()"),
    "starts a thread": body("import _thread", "_thread.start_new_thread(print, ())"),
    "signals its parent": body("import os", "os.kill(os.getppid(), 9)"),
    "signals the caller": body("import os", "os.kill(CALLER, 9)"),
    "traces the caller": body("import ctypes", "assert ctypes.CDLL(None).ptrace(16, CALLER, 0, 0) == 0"),
    "raises its limits": body("import resource", "resource.setrlimit(resource.RLIMIT_CPU, (100, 100))"),
    "calls the kernel by number": body("import ctypes", "assert ctypes.CDLL(None).syscall(2, b'/etc/passwd', 0) >= 0"),
    "mounts": body("import ctypes", "assert ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0) == 0"),
    "makes a namespace": body("import ctypes", "assert ctypes.CDLL(None).unshare(0x10000000) == 0"),
    "takes the filter off": body("import ctypes", "assert ctypes.CDLL(None).prctl(22, 0, 0, 0, 0) == 0"),
    "computes without end": body("while True: pass"),
    "sleeps": body("import time", "time.sleep(60)"),
    "sleeps while it loads": "import time\ntime.sleep(60)\n" + body("return sum(xs)"),
    "is deaf to signals": body("import signal", "for s in (15, 2, 24): signal.signal(s, signal.SIG_IGN)", "while True: pass"),
    "takes memory": body("return len([bytearray(1 << 28) for _ in range(99)])"),
    "takes memory little by little": body("a = []", "while True: a.append(a[:])"),
    "recurses": body("return f(*xs)"),
    "nests": "x = " + "(" * 5000 + ")" * 5000 + "\n" + body("return sum(xs)"),
    "says much": body("return 'x' * 10_000_000"),
    "floods the pipe": body("import os", "while True: os.write(3, b'x' * 65536)"),
    "says what is not JSON": body("import os", "os.write(3, b'\\xff{')", "os._exit(0)"),
    "says another shape": body("import os", "os.write(3, b'{\"calls\": [[\"value\"]]}')", "os._exit(0)"),
    "says too few": body("import os", "os.write(3, b'{\"calls\": [[\"value\", \"3\"]]}')", "os._exit(0)"),
    "says that it could not be confined": body("import os", "os.write(3, b'{\"open\": \"x\"}')", "os._exit(0)"),
    "ends the process": body("import os", "os._exit(0)"),
    "crashes": body("import ctypes", "ctypes.string_at(1)"),
    "exits": body("raise SystemExit(0)"),
    "is equal to everything": "class E:\n    def __eq__(self, o): return True\n" + body("return E()"),
    "has a hostile repr": "class E:\n    def __repr__(self): raise SystemExit\n" + body("return E()"),
    "has an endless repr": "class E:\n    def __repr__(self):\n        while True: pass\n" + body("return E()"),
    **{
        f"nests its answer {depth} deep": body(
            "import os", f"os.write(3, b'{{\"calls\":' + b'[' * {depth} + b']' * {depth} + b'}}')", "os._exit(0)"
        )
        for depth in (900, *range(980, 1000), 20000)
    },
    "says numbers for words": body("import os", "os.write(3, b'{\"calls\": [[\"value\", 3], [\"value\", 0]]}')", "os._exit(0)"),
    "poisons pages": body("import ctypes", "assert ctypes.CDLL(None).madvise(ctypes.c_void_p(id(xs) >> 12 << 12), 1, 0) == 0"),
    "replaces json": body("import json", "json.dumps = lambda *a: '[]'", "return 1"),
    "replaces the compiler": "import builtins\nbuiltins.repr = lambda x: '3'\n" + body("return 1"),
    "looks for what is wanted": body(
        "import gc", "return [o for o in gc.get_objects() if isinstance(o, list) and len(o) == 2 and o[1:] == ['3']][0][1]"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_wrong_in_time_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    """No file is there that was not, none is gone, no process stays, and the next program is judged as ever."""
    here, mark = tmp_path / "here", tmp_path / "mark"
    here.write_text("stays")
    source = HOSTILE[name].replace("HERE", str(here)).replace("MARK", str(mark)).replace("CALLER", str(os.getpid()))
    box, began = Sandbox(), time.monotonic()
    try:
        found = judge(source, "f", TESTS, seconds=0.4, box=box)
        assert found.label == "wrong", found
        assert time.monotonic() - began < 8
        assert here.read_text() == "stays" and not mark.exists() and os.access(here, os.R_OK)
        assert judge(body("return sum(xs)"), "f", TESTS, box=box).right
        assert alone(box.pid)
    finally:
        box.close()


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def alone(parent: int) -> bool:
    """Whether no child of a process is left; a fork that has just answered is given the time to end."""
    due = time.monotonic() + 5
    while children(parent) and time.monotonic() < due:
        time.sleep(0.001)
    return not children(parent)


def test_a_long_value_is_compared_whole() -> None:
    wanted = repr(list(range(1000)))
    assert judge("def f(n): return list(range(n))", "f", [[[1000], wanted]]).right
    assert not judge("def f(n): return list(range(n - 1)) + [n]", "f", [[[1000], wanted]]).right


def test_the_order_of_a_set_and_unseeded_draws_are_the_same_in_every_process() -> None:
    source = "import random\ndef f(): return list(map(str, {'a', 'b', 'c', 'd', 'e', 'f'})), random.random()"
    boxes = [Sandbox(), Sandbox()]
    first, second = (judge(source, "f", [[[], ""]], box=box).reason for box in boxes)
    for box in boxes:
        box.close()
    assert first == second and "gave ([" in first


def test_nothing_of_an_earlier_program_is_in_the_memory_of_a_later_one() -> None:
    """It reads every page near its objects; one that is not there is told by EFAULT of rt_sigprocmask, which is allowed."""
    mask = sandbox_child.ALLOWED["rt_sigprocmask"][sandbox_child.MACHINES[sandbox.platform.machine()][0]]
    search = body(
        "import ctypes, gc",
        "libc, want = ctypes.CDLL(None), b'tell' + b'tale_of'",
        "places = {id(o) >> 20 for o in gc.get_objects()} | {ctypes.addressof(ctypes.create_string_buffer(8)) >> 20}",
        "pages = [page << 12 for p in places for page in range((p - 1) << 8, (p + 2) << 8)]",
        f"there = [p for p in pages if libc.syscall({mask}, 0, ctypes.c_void_p(p), None, 8) == 0]",
        "rests = [ctypes.string_at(p, 4096).partition(want)[2][:1] for p in there]",
        "return b'_' in rests, len(there) > 99",
    )
    box = Sandbox()
    for _ in range(4):
        judge("def f(x): return 'tell' + 'tale_of' + x * 9", "f", [[["_1"], ""]], box=box)
    assert judge(search, "f", [[["_1"], "(False, True)"]], seconds=20, box=box).reason == "1 tests passed"
    box.close()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _stopped_once(box: Sandbox, seconds: float) -> None:
    """Stop the program that runs next, and let it go on after so many seconds (0: never)."""
    while not (found := [program for keeper in _children(box.pid) for program in _children(keeper)]):
        time.sleep(0.001)
    os.kill(found[0], signal.SIGSTOP)
    if seconds:
        time.sleep(seconds)
        os.kill(found[0], signal.SIGCONT)


COUNTS = "def f(n):\n    k = 0\n    for i in range(n): k += 1\n    return k"


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "still", "label"), [(0.5, 0.8, "right"), (0.2, 0.0, "undecided")])
def test_a_process_that_stood_still_is_not_wrong(limit: float, still: float, label: str) -> None:
    box = Sandbox()
    assert judge("def f(n): return n", "f", [[[1], "1"]], box=box).right  # it runs now
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_stopped_once, box, still)
        found = judge(COUNTS, "f", [[[1_500_000], "1500000"]], seconds=limit, box=box)
    assert found.label == label and (label == "right" or found.reason.startswith("stood still")), found
    assert judge("import time\n" + body("time.sleep(9)"), "f", TESTS, seconds=0.2, box=box).label == "wrong"  # by its own will
    box.close()


@pytest.mark.slow
def test_threads_and_forks_that_share_a_sandbox_get_their_own_answers() -> None:
    box = Sandbox()

    def asked(number: int) -> bool:
        return judge("def f(x): return x", "f", [[[number], str(number)]], seconds=20, box=box).right

    assert asked(0)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(asked, range(64)))
    child = os.fork()
    if child == 0:
        os._exit(0 if all(asked(1000 + i) for i in range(20)) else 1)
    assert all(asked(i) for i in range(20))
    assert os.waitpid(child, 0)[1] == 0
    assert asked(1)
    box.close()


def test_an_interrupted_question_leaves_no_answer_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Sandbox):
        def _answer(self, process: Any, line: bytes) -> Any:
            if b"slow" in line:
                process.stdin.write(line)
                process.stdin.flush()
                raise KeyboardInterrupt
            return super()._answer(process, line)

    box = Late()
    with pytest.raises(KeyboardInterrupt):
        judge("def f(x): return 'slow'", "f", [[[1], "'slow'"]], box=box)
    assert judge("def f(x): return x", "f", [[[1], "1"]], box=box).right
    box.close()


def test_a_caller_without_standard_streams_is_answered() -> None:
    """Its pipes take their numbers."""
    code = (
        "import os, sys\n"
        "os.close(0); os.close(2)\n"
        "from sage_rlvr.verifiers.sandbox import judge\n"
        "print([judge(f'def f(x): return {x}', 'f', [[[1], '2']]).label for x in ('x + 1', '1')])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert found.stdout.strip() == "['right', 'wrong']"


@pytest.mark.slow
def test_a_killed_process_has_a_successor_and_its_program_dies_with_it() -> None:
    box = Sandbox()
    assert judge(body("return sum(xs)"), "f", TESTS, box=box).right
    os.kill(box.pid, signal.SIGKILL)
    assert judge(body("return sum(xs)"), "f", TESTS, box=box).right
    process = subprocess.Popen(
        ["python3", "-I", "-S", sandbox_child.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    job = {"source": body("while True: pass"), "entry": "f", "inputs": [[1]], "seconds": 60, "memory_mb": 256}
    process.stdin.write(sandbox.json.dumps(job).encode() + b"\n")
    process.stdin.flush()
    while not (forked := children(process.pid)):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    due = time.monotonic() + 5
    while Path(f"/proc/{forked[0]}").exists() and time.monotonic() < due:
        time.sleep(0.01)
    assert not Path(f"/proc/{forked[0]}").exists()
    box.close()


@pytest.mark.slow
def test_a_pool_judges_programs() -> None:
    with Pool(function=PROGRAMS, workers=1, seconds=10) as pool:
        items: list[Any] = [(body("return sum(xs)"), "f", TESTS), (HOSTILE["sleeps"], "f", TESTS)]
        assert [found.label for found in pool.verify(items)] == ["right", "wrong"]


def test_where_nothing_confines_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Open(Sandbox):
        def ask(self, job: dict[str, Any]) -> dict[str, Any]:
            return {"open": "prctl 22: Invalid argument"}

    assert judge(body("return sum(xs)"), "f", TESTS, box=Open()).label == "undecided"
    monkeypatch.setattr(sandbox, "_OWN", Open())
    with pytest.raises(ConfigError, match=r"confined or not at all.*prctl 22"):
        require_sandbox()
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match="seccomp is for Linux on x86_64 or aarch64"):
        require_sandbox()


def test_a_kernel_that_refuses_the_filter_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a fork of this process, as `sandbox_child` makes one: the filter fails, the program would leave a file."""
    monkeypatch.setattr(sandbox_child, "SECCOMP", 9999)
    job = {"source": f"open({str(tmp_path / 'mark')!r}, 'w')", "entry": "f", "inputs": [], "seconds": 5, "memory_mb": 1 << 20}
    found = sandbox_child.answer(job)
    assert "prctl 9999" in str(found["open"]) and not (tmp_path / "mark").exists()
