"""Exact KL between a policy and its base on stored completions of both: the stored sums, and their intervals.

    reverse  sum over the vocabulary of policy log(policy / base)        forward  sum of base log(base / policy)

Both sums are taken at every token of the completions, at their sampling temperature. Per completion, the mean of the
reverse KL over completions of the policy estimates KL(policy || base) of full completions, and that of the forward KL over
completions of the base estimates KL(base || policy): the chain rule, with the exact expectation at each token. The other two
numbers are the same sums on the completions of the other policy. Under truncated sampling the sums are those of the untruncated
distributions.

`kl_run.py` computes the sums. The file is in the policy's sample store, kl-BASE.json.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.runs import write_json_atomic, writing
from sage_rlvr.safe_io import read_json
from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.intervals import Interval, mean_interval
from sage_rlvr.verdicts.stats.samples.clusters import ratio_interval

if TYPE_CHECKING:
    from sage_rlvr.evaluation.sampling import EvalSet

FORMAT = 1
Rollouts = Literal["policy", "base"]
Direction = Literal["reverse", "forward"]
Per = Literal["token", "completion"]
SIDES: tuple[Rollouts, ...] = ("policy", "base")
DIRECTIONS: Mapping[Direction, str] = {"reverse": "KL(policy || base)", "forward": "KL(base || policy)"}
DTYPE = "float32"
"""Dtype of both policies' weights and products: in bfloat16 a true 6e-5 nats per token was measured nine times too large."""
PERS: tuple[Per, ...] = ("token", "completion")


@dataclass(frozen=True, eq=False)
class Side:
    """The sums over the tokens of each completion of one of the two policies, (P, n): P problems, n completions each; nats.
    `kl_of_stores` makes it; `TokenKl` reads it. states: class of state -> the same sums over the tokens that follow such states."""

    tokens: Floats
    reverse: Floats
    forward: Floats
    states: Mapping[str, Side] = field(default_factory=dict)

    def interval(self, direction: Direction, per: Per) -> Interval:
        """Mean per token (all tokens alike) or per completion, with its interval over problems."""
        sums = self.reverse if direction == "reverse" else self.forward
        if per == "token":
            return ratio_interval(sums.sum(1), self.tokens.sum(1))
        return mean_interval(sums.mean(1))

    def by_state(self, direction: Direction) -> Iterator[tuple[str, Interval, Interval | None]]:
        """Each class of states that occurs: mean per token after such states, and their share of the total, None if that is 0.
        Intervals are over problems."""
        whole = getattr(self, direction).sum(1)
        for name, part in self.states.items():
            if (tokens := part.tokens.sum(1)).any():
                own = getattr(part, direction).sum(1)
                yield name, ratio_interval(own, tokens), ratio_interval(own, whole) if whole.any() else None

    def tree(self) -> dict[str, Any]:
        """The sums as JSON, which `side_of` reads."""
        own = {"tokens": self.tokens.astype(int).tolist(), "reverse": self.reverse.tolist(), "forward": self.forward.tolist()}
        return own | ({"states": {name: side.tree() for name, side in self.states.items()}} if self.states else {})


def side_of(tree: Mapping[str, Any]) -> Side:
    """Inverse of `Side.tree`."""
    tokens, reverse, forward = (np.asarray(tree[name], dtype=float) for name in ("tokens", "reverse", "forward"))
    return Side(tokens, reverse, forward, {name: side_of(side) for name, side in tree.get("states", {}).items()})


@dataclass(frozen=True, eq=False)
class TokenKl:
    """Exact KLs between a policy and its base.

    about: the origin of the numbers (policy, base, their revisions, task, temperature, samples of each problem, hashes of the
        completions)
    problems: their ids, in the order of the rows of both sides

    `kl_of_stores` makes and stores it; `evaluate` prints it, and results read it."""

    about: Mapping[str, Any]
    problems: tuple[str, ...]
    sides: Mapping[Rollouts, Side]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each completions, direction and unit, with its interval; then those per token of each class of states, if the
        task has any, with their share of the total."""
        table = []
        for rollouts in SIDES:
            side = self.sides[rollouts]
            for direction in DIRECTIONS:
                at = {"rollouts": rollouts, "direction": direction, "base": self.about["base"]}
                for per in PERS:
                    one = side.interval(direction, per)
                    table.append(at | {"per": per, "kl": one.value, "low": one.low, "high": one.high})
                for state, one, share in side.by_state(direction):
                    own = {"kl": one.value, "low": one.low, "high": one.high, "share": None if share is None else share.value}
                    table.append(at | {"per": "token", "state": state} | own)
        return table

    @property
    def per_token(self) -> float:
        """The reverse KL on completions of the policy, nats per token: the exact KL of comparisons."""
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
            text = "".join(f"{one.bracketed('.5f'):<36}" for one in cells)
            lines.append(f"  {'the ' + rollouts:<17}{text}".rstrip())
        return [*lines, *self._state_lines()]

    def _state_lines(self) -> list[str]:
        """The KL of which each policy's completions give an unbiased estimate, by class of state."""
        own: tuple[tuple[Rollouts, Direction], ...] = (("policy", "reverse"), ("base", "forward"))
        lines = []
        for rollouts, direction in own:
            side = self.sides[rollouts]
            if side.states:
                head = f"{DIRECTIONS[direction]} on completions of the {rollouts}"
                lines.append(f"  {head} by class of state: per token, and the share of the class")
            for state, one, share in side.by_state(direction):
                of_all = "" if share is None else share.bracketed(".3f")
                tokens = side.states[state].tokens.sum()
                lines.append(f"    {state:<16}{one.bracketed('.5f'):<34}{of_all:<26}{tokens:,.0f} tokens")
        return lines

    def save(self, path: Path) -> None:
        """Write the file."""
        sides = {name: side.tree() for name, side in self.sides.items()}
        with writing("KL of an evaluation", path, 1 << 20):
            write_json_atomic(path, {"format": FORMAT, "about": dict(self.about), "problems": list(self.problems), **sides})


def kl_path(store: Path, base: str) -> Path:
    """The file in a policy's store. base: the name of the other policy in its store."""
    return store / f"kl-{re.sub('[^A-Za-z0-9._-]+', '_', base)}.json"


def about_of(stores: Mapping[str, SampleStore], chosen: EvalSet, n: int) -> dict[str, Any]:
    """`TokenKl.about` of the first n completions of the chosen problems in both stores ("policy", "base")."""
    problems, states = list(chosen.problems), states_of(chosen.task)
    policy, base = stores["policy"].identity, stores["base"].identity
    return ({"states": list(states)} if states else {}) | {
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
        "dtype": DTYPE,
        "completions": {name: _digest(token_ids(store, problems, n)) for name, store in stores.items()},
    }


def states_of(task: object) -> tuple[str, ...]:
    """The classes of a task's states, by which the sums are split; () without any."""
    return task.state_classes if isinstance(task, ClassifiesStates) else ()


def token_ids(store: SampleStore, problems: Sequence[str], n: int) -> list[Any]:
    """The token ids of the first n samples of every problem, in this order. Raises DataError if they are not known."""
    ids: list[Any] = store.lists(("token_ids",), problems=list(problems), n=n)["token_ids"]
    if any(row is None for row in ids):
        raise DataError(f"{store.path}: some samples have no token_ids, so no policy can score them; omit --kl-to")
    return ids


def _digest(rows: Sequence[Any]) -> str:
    """SHA-256 of the token ids of completions, each after its length: no two lists of completions have the same bytes."""
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
        sides = {name: side_of(tree[name]) for name in SIDES}
        parts = [part for side in sides.values() for part in (side, *side.states.values())]
        shapes = {sums.shape for part in parts for sums in (part.tokens, part.reverse, part.forward)}
        if len(shapes) != 1 or [row[:1] for row in shapes if len(row) == 2] != [(len(tree["problems"]),)]:
            raise ValueError(f"shapes {sorted(shapes)} for {len(tree['problems'])} problems")
        return TokenKl(dict(tree["about"]), tuple(tree["problems"]), sides)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no KL of an evaluation ({error}); {advice}") from error


def kls_in(store: Path) -> dict[Path, TokenKl]:
    """The file of every base in a policy's store."""
    return {path: read_kl(path) for path in sorted(store.glob("kl-*.json"))}


def known_kl(path: Path, about: Mapping[str, Any]) -> TokenKl | None:
    """The KL in a file; None without a file, or for one of another policy, base or completions. DataError as in `read_kl`."""
    if not path.is_file():
        return None
    known = read_kl(path)
    return known if known.about == json.loads(json.dumps(dict(about))) else None  # as JSON: a tuple is read back as a list


__all__ = [
    *("DIRECTIONS", "Side", "TokenKl", "about_of", "kl_path", "kls_in", "known_kl", "read_kl", "side_of", "states_of"),
    "token_ids",
]
