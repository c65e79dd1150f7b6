"""Answers that try to hang, crash or fill the verifiers. Each gets a verdict that is not "right", within its limits."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from sage_rlvr.tasks.countdown import Problem, verify
from sage_rlvr.verifiers import VERIFIERS, Verdict
from sage_rlvr.verifiers.pool import Pool

GOLD = r"\frac{355}{113}"  # nothing below is equal to it
SECONDS, MEMORY_MB, SLACK = 1.0, 1024, 4.0
Family = Callable[[random.Random], str]


def _tower(chance: random.Random) -> str:
    sign = chance.choice(("^", "**"))
    return sign.join(f"({chance.randint(5, 99)}" for _ in range(chance.randint(3, 9))) + ")" * 3


def _tree(chance: random.Random, depth: int = 0) -> str:
    """A random expression of commands, some of them unfinished."""
    if depth > 6 or chance.random() < 0.2:
        return chance.choice(("7", "x", r"\pi", "10^{9}", "", "99999999", r"\infty", "0", "i", "1/0"))
    form = chance.choice(
        (r"\frac{%s}{%s}", r"\sqrt[%s]{%s}", "{%s}^{%s}", r"\binom{%s}{%s}", "(%s)!+%s", r"\int_{%s}^{%s} x dx", r"\left(%s,%s",
         r"\log_{%s}{%s}", r"\begin{pmatrix}%s\\%s\end{pmatrix}", r"%s \cup [%s", "%s<%s")
    )  # fmt: skip
    return form % (_tree(chance, depth + 1), _tree(chance, depth + 1))


def _noise(chance: random.Random) -> str:
    signs = "0123456789+-*/^_{}()[]\\,.|!<>=$%&~#@ \n\t\x00\x1b\u202e\ud800\u0660٣५−×÷∞√π"
    return "".join(chance.choice(signs) for _ in range(chance.randint(1, 300)))


FAMILIES: dict[str, Family] = {
    "tower": _tower,
    "factorials": lambda c: f"{c.randint(10**4, 10**9)}" + "!" * c.randint(1, 6),
    "huge integer": lambda c: "9" * c.choice((4_000, 40_000, 400_000)),
    "huge exponent": lambda c: f"1e{c.randint(10**5, 10**12)}",
    "long sum": lambda c: "+".join(str(c.randint(0, 9)) for _ in range(c.choice((500, 5_000, 40_000)))),
    "nested": lambda c: (c.choice(("{", "(", r"\sqrt{", r"\frac{1}{", "[")) * (n := c.randint(30, 5_000))) + "1" + "}" * n,
    "a megabyte": lambda c: c.choice("ax1\n{\\") * (1 << 20),
    "code": lambda c: c.choice(("__import__('os')._exit(1)", "exec('1')", "{0.__class__}%s", r"\input{/etc/passwd}", "lambda: 0")),
    "escapes": lambda c: "\x1b]0;title\x07\x1b[2J" * c.randint(1, 50),
    "surrogates": lambda c: "".join(chr(c.randint(0xD800, 0xDFFF)) for _ in range(c.randint(1, 99))),
    "tree": _tree,
    "noise": _noise,
    "list": lambda c: ",".join(str(c.random()) for _ in range(c.choice((10, 1_000, 20_000)))),
    "unit": lambda c: (str(c.randint(1, 10**30)) + c.choice(("km", r"\%", "°", r"\text{ dollars per hour}", "$"))) * c.randint(1, 9),
}  # fmt: skip
PLACES = ({"answer_in": "boxed"}, {"answer_in": "tag"}, {"answer_in": "anywhere"}, {"answer_in": "last_number"})
FORMS = {"boxed": r"so \boxed{%s}", "tag": "<SOLUTION>%s</SOLUTION>", "anywhere": "%s", "last_number": "it is %s"}


def answers(count: int, seed: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(family, completion, where its answer is read), `count` of them."""
    for number in range(count):
        chance = random.Random(f"{seed} hostile {number}")
        family, place = chance.choice(list(FAMILIES)), chance.choice(PLACES)
        yield family, FORMS[place["answer_in"]].replace("%s", FAMILIES[family](chance)), place


def peak_mb(pid: int) -> float:
    """The most memory that a process has held, MB; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _in_pool(count: int, seed: int) -> dict[str, object]:
    faults, labels, slowest, peak = [], Counter[str](), 0.0, 0.0
    with Pool(2, seconds=SECONDS, memory_mb=MEMORY_MB) as pool:
        pool.verify([(r"\boxed{1}", "2")] * 2, answer_in="boxed")  # workers are there before the clock runs
        for number, (family, text, place) in enumerate(answers(count, seed)):
            began = time.monotonic()
            try:
                verdict = pool.verify([(text, GOLD)], **place)[0]
            except Exception as error:
                faults.append(f"{number} ({family}): raised {type(error).__name__}: {error}"[:300])
                continue
            took = time.monotonic() - began
            slowest, peak = max(slowest, took), max(peak, *map(peak_mb, pool.pids()), 0.0)
            labels[verdict.label] += 1
            if verdict.right:
                faults.append(f"{number} ({family}): right")
            if took > SECONDS + SLACK:
                faults.append(f"{number} ({family}): took {took:.1f} s")
        if not pool.verify([(r"\boxed{710/226}", GOLD)], answer_in="boxed")[0].right:
            faults.append("the pool no longer knows a right answer")
        workers = pool.pids()
    faults += [f"worker {pid} outlived its pool" for pid in workers if _alive(pid)]
    return {"answers": count, **labels, "slowest_s": round(slowest, 2), "peak_mb": round(peak), "faults": faults}


def _alive(pid: int) -> bool:
    time.sleep(0.1)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text("ascii").split(")")[-1].split()[0] != "Z"


def _here(name: str, verify: Callable[[str], Verdict], count: int, seed: int) -> dict[str, object]:
    """A verifier that works in this process: a verdict at once, never an exception."""
    faults, labels, slowest = [], Counter[str](), 0.0
    for number, (family, text, _) in enumerate(answers(count, seed + 1)):
        began = time.monotonic()
        try:
            verdict = verify(text)
        except Exception as error:
            faults.append(f"{number} ({family}): raised {type(error).__name__}: {error}"[:300])
            continue
        slowest = max(slowest, time.monotonic() - began)
        labels[verdict.label] += 1
        if verdict.right or time.monotonic() - began > SECONDS:
            faults.append(f"{number} ({family}): {verdict.label} after {time.monotonic() - began:.1f} s")
    return {"answers": count, **labels, "slowest_s": round(slowest, 2), "faults": faults}


def battery(count: int, seed: int) -> dict[str, dict[str, object]]:
    """`count` answers: eight in ten to the mathematics pool, one each to Countdown's verifier and to spelling."""
    tenth = count // 10
    problem = Problem((3, 5, 7, 9), 17)
    found = {
        "math": _in_pool(count - 2 * tenth, seed),
        "countdown": _here("countdown", lambda text: verify(problem, text), tenth, seed),
        "exact": _here("exact", lambda text: VERIFIERS["exact"](text, GOLD), tenth, seed),
    }
    for name, row in found.items():
        figures = ", ".join(f"{key} {value}" for key, value in row.items() if key != "faults")
        print(f"hostile  {name}: {figures}, {len(row['faults'])} faults", flush=True)  # type: ignore[arg-type]
        for fault in row["faults"]:  # type: ignore[attr-defined]
            print(f"         {fault}", flush=True)
    return found
