"""Answers that try to hang, crash, fill or fool the verifiers. Each gets a verdict that is not "right", within its limits.

None of the answers is right: towers, trees and noise by how they are made, the near ones because each is one step off. After them
the right answer is still right, and with the pool go its workers.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sage_rlvr.contrib.tasks.knights_and_knaves import KnightsAndKnaves
from sage_rlvr.tasks.countdown import Problem, solutions, verify
from sage_rlvr.tasks.verifiers import VERIFIERS
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.knights_and_knaves import conclusion
from sage_rlvr.verifiers.pool import Pool

GOLD = r"\frac{355}{113}"
SECONDS, MEMORY_MB, SLACK = 1.0, 1024, 15.0  # slack: a worker that is killed is started anew, on a busy machine
HERE_SECONDS = 5.0  # for a verifier of text searches: megabytes on a busy machine
Family = Callable[[random.Random], str]
Ask = Callable[[str, dict[str, str]], Verdict]


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


CODE = ("__import__('os')._exit(1)", "exec('1')", "{0.__class__}%s%n%n", r"\input{/etc/passwd}", "lambda: 0", "${HOME}", "`id`",
        r"\def\x{\x\x}\x", r"\newcommand{\b}{\b\b}\b", "open('/dev/zero').read()", "(lambda f: f(f))(lambda f: f(f))")  # fmt: skip
MARKUP = (
    "<script>alert(1)</script>",
    "<b>22/7</b>",
    "<!-- 3 -->",
    '{"answer": 22}',
    '[[1, {"a": null}]]',
    "{'x': 1e999}",
    "<SOLUTION>",
)
ODD = "\u202e\u2066\u200f\u0663\u06f5\u0967\uff13½²₃Ⅷ"
UNITS = ("km", r"\%", "°", r"\text{ dollars per hour}", "$")
FAMILIES: dict[str, Family] = {
    "power towers": _tower,
    "factorials": lambda c: f"{c.randint(10**4, 10**9)}" + "!" * c.randint(1, 6),
    "huge integers": lambda c: "9" * c.choice((900, 4_000, 40_000, 400_000)),
    "huge exponents": lambda c: f"1e{c.randint(10**5, 10**12)}",
    "long sums": lambda c: "+".join(str(c.randint(4, 9)) for _ in range(c.choice((20, 60, 60, 400, 5_000, 40_000)))),
    "deep nesting": lambda c: (c.choice(("{", "(", r"\sqrt{", r"\frac{1}{", "[")) * (n := c.randint(30, 5_000))) + "1" + "}" * n,
    "a megabyte": lambda c: c.choice("ax1\n{\\") * (1 << 20),
    "code and macros": lambda c: c.choice(CODE) * c.randint(1, 9),
    "HTML and JSON": lambda c: c.choice(MARKUP) * c.randint(1, 30),
    "terminal escapes": lambda c: "\x1b]0;title\x07\x1b[2J" * c.randint(1, 50),
    "NULs": lambda c: "\0" * c.randint(1, 999) + str(c.randint(0, 9)),
    "lone surrogates": lambda c: "".join(chr(c.randint(0xD800, 0xDFFF)) for _ in range(c.randint(1, 99))),
    "bidi and odd digits": lambda c: "".join(c.choice(ODD) for _ in range(c.randint(1, 40))),
    "trees of commands": _tree,
    "noise": _noise,
    "lists": lambda c: ",".join(str(c.random()) for _ in range(c.choice((10, 1_000, 20_000)))),
    "units": lambda c: (str(c.randint(10**4, 10**30)) + c.choice(UNITS)) * c.randint(1, 9),
}  # fmt: skip
NEAR = (
    r"%s+1", r"-%s", r"%s, 2", r"%s \text{ or } 3", r"%s^2", r"[%s, 4]", r"(%s, 0)", r"x \ne %s", r"x > %s", r"1%s", "%s i", r"%s!",
    r"\frac{1}{%s}", r"2(%s)", r"%s \text{ km or } 7 \text{ km}", r"\{%s, 1\}", r"%s \pm 1", r"not even %s but 22/7", "%s/0",
    "%s = 4", r"\sqrt{%s}", r"%s \pmod 7", "355113", "3.14", "355/1130", r"\frac{113}{355}", "3.1416", "3,55/113",
)  # fmt: skip
"""Wrong answers that the gold is hidden in, where an answer is read whole."""
PLACES = ({"answer_in": "boxed"}, {"answer_in": "tag"}, {"answer_in": "anywhere"}, {"answer_in": "last_number"})
FORMS = {"boxed": r"so \boxed{%s}", "tag": "<SOLUTION>%s</SOLUTION>", "anywhere": "%s", "last_number": "it is %s"}


def answers(count: int, seed: int, near: Sequence[str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(family, completion, where its answer is read), `count` of them; near: wrong answers that look right."""
    for number in range(count):
        chance = random.Random(f"{seed} hostile {number}")
        family, place = chance.choice([*FAMILIES, "near"]), chance.choice(PLACES)
        if family == "near":
            yield family, FORMS["boxed"].replace("%s", chance.choice(near)), PLACES[0]
        else:
            yield family, FORMS[place["answer_in"]].replace("%s", FAMILIES[family](chance)), place


def peak_mb(pid: int) -> float:
    """The most memory that a process has held, MB; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def alive(pid: int) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def judged(asked: Sequence[tuple[str, str, dict[str, str]]], ask: Ask, most: float, threads: int) -> dict[str, Any]:
    """Labels, the slowest verdict and the faults of one verifier."""
    labels, slowest, faults = Counter[str](), [0.0], []

    def one(numbered: tuple[int, tuple[str, str, dict[str, str]]]) -> None:
        number, (family, text, place) = numbered
        began = time.monotonic()
        try:
            verdict = ask(text, place)
        except Exception as error:
            faults.append(f"{number} ({family}): traceback: {type(error).__name__}: {error}"[:300])
            return
        took = time.monotonic() - began
        slowest[0] = max(slowest[0], took)
        labels[verdict.label] += 1
        if verdict.right:
            faults.append(f"{number} ({family}): wrong: right, {text[:80]!r}")
        if took > most:
            faults.append(f"{number} ({family}): hang: took {took:.1f} s")

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(one, enumerate(asked)))
    return {
        "attacks": len(asked),
        "outcomes": labels,
        "slowest": slowest[0],
        "faults": faults,
        "seconds": time.monotonic() - began,
    }


def in_pool(name: str, count: int, seed: int) -> dict[str, Any]:
    """A registered verifier in worker processes, as tasks ask it: mathematics by its own pool, others as rewards of rows."""
    near = [form.replace("%s", GOLD) for form in NEAR]
    math = name == "math"
    peaks = [0.0]

    def ask(text: str, place: dict[str, str]) -> Verdict:
        if math:
            verdict = pool.verify([(text, GOLD)], **place)[0]
        else:
            verdict = of_reward(pool.verify([(text, {"answer": GOLD}, None, None)])[0])
        peaks[0] = max(peaks[0], *map(peak_mb, pool.pids()), 0.0)
        return verdict

    limits: dict[str, Any] = {"workers": 2, "seconds": SECONDS, "memory_mb": MEMORY_MB, "start_seconds": 120.0}
    with Pool(**limits) if math else Pool(**limits, function=f"sage_rlvr.tasks.jsonl:judge|{name}") as pool:
        found = judged(list(answers(count, seed, near)), ask, SECONDS + SLACK, threads=2)
        if not ask(rf"\boxed{{{GOLD}}}" if math else GOLD, PLACES[0]).right:
            found["faults"].append("after them: wrong: a right answer is no longer right")
        workers = pool.pids()
    time.sleep(0.2)
    found["faults"] += [f"after them: hang: worker {pid} outlived its pool" for pid in workers if alive(pid)]
    if peaks[0] > MEMORY_MB:
        found["faults"].append(f"wrong: a worker held {peaks[0]:.0f} MB")
    return found | {"peak_mb": peaks[0]}


def of_reward(said: Verdict) -> Verdict:
    """What `judge` of tasks/jsonl.py means: a score is the reward, "wrong" without one is what the function did wrong."""
    if said.label == "undecided":
        return said
    if said.score is None:
        raise RuntimeError(said.reason)
    return Verdict("right" if said.score > 0 else "wrong", said.reason)


def countdown(count: int, seed: int) -> dict[str, Any]:
    """Countdown's verifier: exact arithmetic in this process."""
    problem = Problem((2, 3, 4), 24)
    right = solutions(problem)[0]
    near = [
        form.replace("%s", right)
        for form in ("%s ", " %s", "%s\n", "(%s)", "%s+0", "%s*1", "0+%s", "+%s", "%s=", "%s;", "%s%s", "-%s")
    ]
    asked = [
        (f, text.removeprefix(r"so \boxed{").removesuffix("}") if f == "near" else text, p)
        for f, text, p in answers(count, seed, near)
    ]
    found = judged(asked, lambda text, place: verify(problem, text), HERE_SECONDS, threads=1)
    if not verify(problem, right).right:
        found["faults"].append("after them: wrong: a right answer is no longer right")
    return found


def knights(count: int, seed: int) -> dict[str, Any]:
    """The verifier of Knights and Knaves by its strict rule, the one to train with: searches in a text in this process."""
    task = KnightsAndKnaves(people=(3,), rule="strict")
    puzzle = task.problems("test")[0]
    right = conclusion(puzzle.names, puzzle.solution)
    others = [
        conclusion(puzzle.names, [not one for one in puzzle.solution]),
        conclusion(puzzle.names[::-1], puzzle.solution),
    ]
    near = [
        *others, *(f"{right}\nno:\n{other}" for other in others), right + right[len("CONCLUSION:") :], f"{right}\nCONCLUSION:",
        f"{right}\n(4) Nobody is a knight", right.replace("CONCLUSION", "CONCLUSIONS"), right.replace(" is a ", " is no "),
    ]  # fmt: skip
    found = judged(
        list(answers(count, seed, near)), lambda text, place: task.verify(puzzle, text), HERE_SECONDS, threads=1
    )
    if not task.verify(puzzle, right).right:
        found["faults"].append("after them: wrong: a right answer is no longer right")
    return found


def battery(count: int, seed: int) -> dict[str, dict[str, Any]]:
    """`count` answers: shared evenly by all registered verifiers, Countdown's and that of Knights and Knaves."""
    verifiers: dict[str, Callable[[int, int], dict[str, Any]]] = {
        **{name: lambda count, seed, name=name: in_pool(name, count, seed) for name in VERIFIERS},  # type: ignore[misc]
        "countdown": countdown, "knights_and_knaves": knights,
    }  # fmt: skip
    found = {}
    for number, (name, verifier) in enumerate(verifiers.items()):
        share = count // len(verifiers) + (number < count % len(verifiers))
        found[name] = verifier(share, seed + number)
        print(
            f"hostile  {name}: {share} in {found[name]['seconds']:.0f} s, {len(found[name]['faults'])} faults",
            flush=True,
        )
        for fault in found[name]["faults"]:
            print(f"         {fault}", flush=True)
    return found
