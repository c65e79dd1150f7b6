"""Exact KL between a policy and its base on stored completions of both: what is kept, and its intervals.

    reverse  sum over the vocabulary of policy log(policy / base)        forward  sum of base log(base / policy)

Both sums are taken at every token of the completions, at the temperature that these were drawn at. Per completion, the mean of the
reverse KL over completions of the policy estimates KL(policy || base) of whole completions, and that of the forward KL over
completions of the base estimates KL(base || policy): the chain rule, each token's expectation being exact. The other two numbers
are the same sums where the other policy goes. Under truncated sampling the sums are those of the untruncated distributions.

`kl_run.py` computes the sums. The file stands in the policy's sample store, kl-BASE.json.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.runs import write_json_atomic, writing
from sage_rlvr.safe_io import read_json
from sage_rlvr.stats.intervals import Interval, mean_interval
from sage_rlvr.stats.passk import Floats
from sage_rlvr.stats.samples.clusters import ratio_interval

FORMAT = 1
Rollouts = Literal["policy", "base"]
Direction = Literal["reverse", "forward"]
Per = Literal["token", "completion"]
SIDES: tuple[Rollouts, ...] = ("policy", "base")
DIRECTIONS: Mapping[Direction, str] = {"reverse": "KL(policy || base)", "forward": "KL(base || policy)"}
PERS: tuple[Per, ...] = ("token", "completion")


@dataclass(frozen=True, eq=False)
class Side:
    """The sums over the tokens of each completion of one of the two policies, (P, n): P problems, n completions each; nats.
    `kl_of_stores` makes it; `TokenKl` reads it."""

    tokens: Floats
    reverse: Floats
    forward: Floats

    def interval(self, direction: Direction, per: Per) -> Interval:
        """Mean per token (all tokens alike) or per completion, with its interval over problems."""
        sums = self.reverse if direction == "reverse" else self.forward
        if per == "token":
            return ratio_interval(sums.sum(1), self.tokens.sum(1))
        return mean_interval(sums.mean(1))


@dataclass(frozen=True, eq=False)
class TokenKl:
    """about: what the numbers are of (policy, base, their revisions, task, temperature, samples of each problem, hashes of the
    completions). problems: their ids, in the order of the rows of both sides. `kl_of_stores` makes and stores it; `evaluate` prints
    it, and results read it."""

    about: Mapping[str, Any]
    problems: tuple[str, ...]
    sides: Mapping[Rollouts, Side]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each completions, direction and unit, with its interval."""
        table = []
        for rollouts in SIDES:
            for direction in DIRECTIONS:
                for per in PERS:
                    one = self.sides[rollouts].interval(direction, per)
                    at = {"rollouts": rollouts, "direction": direction, "per": per, "base": self.about["base"]}
                    table.append(at | {"kl": one.value, "low": one.low, "high": one.high})
        return table

    @property
    def per_token(self) -> float:
        """The reverse KL on completions of the policy, nats per token: what comparisons call exact KL."""
        return self.sides["policy"].interval("reverse", "token").value

    def lines(self) -> list[str]:
        """A table for a terminal."""
        about = self.about
        cut = "; drawn by truncated sampling, the KL is of the untruncated distributions" if about["truncated"] else ""
        head = "".join(f"{f'{name}, per {per}':<36}" for name in DIRECTIONS.values() for per in PERS)
        lines = [
            f"KL         to {about['base']}, exact over the vocabulary at T {about['temperature']:g}, first {about['samples']} "
            f"samples of each problem, weights {about['dtype']}{cut}; nats, 95 % intervals over problems",
            f"  completions of   {head}".rstrip(),
        ]
        for rollouts in SIDES:
            cells = (self.sides[rollouts].interval(direction, per) for direction in DIRECTIONS for per in PERS)
            text = "".join(f"{f'{one.value:.5f} [{one.low:.5f}, {one.high:.5f}]':<36}" for one in cells)
            lines.append(f"  {'the ' + rollouts:<17}{text}".rstrip())
        return lines

    def save(self, path: Path) -> None:
        """Write the file."""
        sides = {
            name: {"tokens": side.tokens.astype(int).tolist(), "reverse": side.reverse.tolist(), "forward": side.forward.tolist()}
            for name, side in self.sides.items()
        }
        with writing("KL of an evaluation", path, 1 << 20):
            write_json_atomic(path, {"format": FORMAT, "about": dict(self.about), "problems": list(self.problems), **sides})


def kl_path(store: Path, base: str) -> Path:
    """The file in a policy's store. base: the name of the other policy in its store."""
    return store / f"kl-{re.sub('[^A-Za-z0-9._-]+', '_', base)}.json"


def about_of(stores: Mapping[str, SampleStore], problems: Sequence[str], n: int) -> dict[str, Any]:
    """`TokenKl.about` of the first n completions of these problems in both stores ("policy", "base")."""
    policy, base = stores["policy"].identity, stores["base"].identity
    return {
        "policy": policy.model,
        "base": base.model,
        "policy_revision": policy.revision,
        "base_revision": base.revision,
        "task": policy.task,
        "task_hash": policy.task_hash,
        "template_hash": policy.template_hash,
        "temperature": float(policy.decoding["temperature"]),
        "truncated": policy.truncated_sampling or base.truncated_sampling,
        "samples": n,
        "dtype": str(policy.decoding["dtype"]),
        "completions": {name: _digest(token_ids(store, problems, n)) for name, store in stores.items()},
    }


def token_ids(store: SampleStore, problems: Sequence[str], n: int) -> list[Any]:
    """The token ids of the first n samples of every problem, in this order. DataError where they are not known."""
    ids: list[Any] = store.lists(("token_ids",), problems=list(problems), n=n)["token_ids"]
    if any(row is None for row in ids):
        raise DataError(f"{store.path}: some samples have no token_ids, so no policy can score them; omit --kl-to")
    return ids


def _digest(rows: Sequence[Any]) -> str:
    """Of the token ids of completions, each after its length: no two lists of completions have the same bytes."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(len(row).to_bytes(8, "big") + np.asarray(row, dtype="<i8").tobytes())
    return sha.hexdigest()


def read_kl(path: Path) -> TokenKl:
    """Inverse of `TokenKl.save`. DataError for any other file."""
    advice = "delete it and run the evaluation again"
    tree = read_json(path, advice=advice)
    try:
        if tree["format"] != FORMAT:
            raise ValueError(f"format {tree['format']!r}, and this version reads {FORMAT}")
        names = ("tokens", "reverse", "forward")
        sides = {side: Side(*(np.asarray(tree[side][name], dtype=float) for name in names)) for side in SIDES}
        shapes = {sums.shape for side in sides.values() for sums in (side.tokens, side.reverse, side.forward)}
        if len(shapes) != 1 or [row[:1] for row in shapes if len(row) == 2] != [(len(tree["problems"]),)]:
            raise ValueError(f"shapes {sorted(shapes)} for {len(tree['problems'])} problems")
        return TokenKl(dict(tree["about"]), tuple(tree["problems"]), sides)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no KL of an evaluation ({error}); {advice}") from error


def kls_in(store: Path) -> dict[Path, TokenKl]:
    """The file of every base in a policy's store."""
    return {path: read_kl(path) for path in sorted(store.glob("kl-*.json"))}


def known_kl(path: Path, about: Mapping[str, Any]) -> TokenKl | None:
    """The KL in a file; None where there is no file, or one of another policy, base or completions. DataError as in `read_kl`."""
    if not path.is_file():
        return None
    known = read_kl(path)
    return known if known.about == json.loads(json.dumps(dict(about))) else None  # as JSON: a tuple is read back as a list


__all__ = ["DIRECTIONS", "Side", "TokenKl", "about_of", "kl_path", "kls_in", "known_kl", "read_kl", "token_ids"]
