"""The verifier of mathematics itself under audit: pairs of answers of which mathematics says whether they are one.

`pairs.tsv` has a pair a line: id, written, verdict, answer, gold; what each of them is was settled before the verifier saw it.
"first" was written before the verifier was mended with it in view, "second" after that and before it saw any of these. "reported"
came last, after a reviewer had found where the verifier so mended still erred; it has been mended with these in view too.

    false right              share of the different pairs that are called right: what a policy can get for nothing
    false wrong, undecided   share of the equal pairs that are not: what a policy loses

Both stand in the notes with Wilson's 95 % interval over the pairs. The peers judge the same pairs; their misses are counted and
not named.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files

from sage_rlvr.audit.peers import ABSENT, lm_eval_verdicts
from sage_rlvr.stats.intervals import wilson
from sage_rlvr.tasks.checks import Audit, Check, check_of
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import Pool, shared


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer and a gold. right: whether they are one. written: "first", "second" or "reported"."""

    pair_id: str
    written: str
    right: bool
    answer: str
    gold: str

    @property
    def completion(self) -> str:
        """The answer as a completion ends."""
        return rf"The answer is $\boxed{{{self.answer}}}$."

    @property
    def exchanged(self) -> Pair:
        """The same pair with answer and gold exchanged."""
        return replace(self, answer=self.gold, gold=self.answer)


def read_pairs() -> tuple[Pair, ...]:
    """The pairs of `pairs.tsv`."""
    lines = files("sage_rlvr.audit").joinpath("pairs.tsv").read_text(encoding="utf-8").split("\n")
    rows = csv.DictReader(filter(None, lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(Pair(row["id"], row["written"], row["verdict"] == "right", row["answer"], row["gold"]) for row in rows)


def audit_pairs() -> Audit:
    """Both rates of this verifier, with answer and gold as they are and exchanged, and of its peers."""
    pairs = read_pairs()
    turned = [pair.exchanged for pair in pairs]
    checks = _rates("", pairs, _judged(shared(), pairs), bar=True)
    checks += _rates(", exchanged", turned, _judged(shared(), turned), bar=True)
    for written in ("first", "second", "reported"):
        some = [pair for pair in pairs if pair.written == written]
        checks += _rates(f", {written} set", some, _judged(shared(), some), rows=False)
    with Pool(function="sage_rlvr.audit.peers:math_verify_alone") as pool:
        checks += _rates(f": math-verify {version('math-verify')} alone", pairs, _judged(pool, pairs), rows=False)
    others = lm_eval_verdicts([(pair.answer, pair.gold) for pair in pairs])
    for rule, verdicts in (others or {}).items():
        told = [Verdict("right" if right else "wrong", rule) for right in verdicts]
        checks += _rates(f": lm-eval {rule}", pairs, told, rows=False)
    equal = sum(pair.right for pair in pairs)
    head = f"{len(pairs)} pairs of answers, {equal} of them equal and {len(pairs) - equal} different"
    return Audit("pairs", head + ("" if others else f"; lm-eval {ABSENT}"), tuple(checks))


def _judged(pool: Pool, pairs: Sequence[Pair]) -> list[Verdict]:
    return pool.verify([(pair.completion, pair.gold) for pair in pairs])


def _rates(
    name: str, pairs: Sequence[Pair], verdicts: Sequence[Verdict], bar: bool = False, rows: bool = True
) -> list[Check]:
    """The checks of the equal and of the different pairs, with the rate of misses and its interval."""
    found = []
    for right, said, miss in (
        (False, f"different, not called right{name}", "false right"),
        (True, f"equal, called right{name}", "false wrong or undecided"),
    ):
        some = [(pair.pair_id, verdict) for pair, verdict in zip(pairs, verdicts, strict=True) if pair.right is right]
        check = check_of(said, some, "right" if right else "not right", bar)
        rate = wilson(check.total - int(check.good), check.total, over="pairs")
        note = f"{miss} {100 * rate.value:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f})"
        found.append(replace(check, note=note, rows=check.rows if rows else ()))
    return found


__all__ = ["Pair", "audit_pairs", "read_pairs"]
