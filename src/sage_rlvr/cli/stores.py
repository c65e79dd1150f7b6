"""`compare` on sample stores: lines from what the stores hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sage_rlvr.cli.records import TOP_K, steps_lines, steps_of
from sage_rlvr.errors import DataError
from sage_rlvr.stats.budget import check_budget

if TYPE_CHECKING:
    from sage_rlvr.evaluation.store import SampleStore


def is_store(text: str) -> bool:
    """Whether NAME=PATH[,PATH...] names sample stores."""
    from sage_rlvr.evaluation import store

    return any(map(store.is_store, text.rpartition("=")[2].split(",")))


def compare_stores(
    arms: Sequence[str], k: int | None = None, n: int | None = None, patterns: bool = False
) -> list[str]:
    """Sentences from sample stores: paired by problem, refused where their budgets differ, Holm over the data sets.

    Each arm is NAME=PATH[,PATH...]; several stores of one task are training seeds, those of other tasks other data sets.
    k: default 256, or all samples where there are fewer. n: the first so many samples of each problem. patterns: reasoning
    patterns too, as perplexities where both were scored."""
    from sage_rlvr.evaluation.sample_studies import compared_pattern_lines, excess_lines
    from sage_rlvr.evaluation.verdicts import arms_of, compare_counts

    named = read_stores(arms, n)
    steps = {
        name: [steps_of(Path(path).resolve().parent.parent) for path in _paths(arm)]
        for name, arm in zip(named, arms, strict=True)
    }
    lines = [*compare_counts(arms_of(named), _k_of(k, named)), *steps_lines(steps)]
    by_task = [
        {task: path for path, (task, _) in zip(_paths(arm), found, strict=True)}
        for arm, found in zip(arms, named.values(), strict=True)
    ]
    if any(len(paths) < len(found) for paths, found in zip(by_task, named.values(), strict=True)):
        return [*lines, *(["--patterns: only arms of one training run have patterns compared."] * patterns)]
    (base, *others), (home, *rest) = named, by_task
    for name, paths in zip(others, rest, strict=True):
        for task, path in paths.items():
            pair = (name, _opened(path), base, _opened(home[task]), n)
            lines += excess_lines(*pair)
            lines += compared_pattern_lines(*pair) if patterns else []
    return lines


def _k_of(k: int | None, named: Mapping[str, Sequence[tuple[str, Any]]]) -> int:
    """k, or where none was asked for 256 or the fewest samples of any store, whichever is less."""
    return min(TOP_K, *(scored.n for rows in named.values() for _, scored in rows)) if k is None else k


def compare_store_frontiers(arms: Sequence[str], k: int | None = None, n: int | None = None) -> list[str]:
    """Temperature frontiers: each arm NAME=PATH,PATH[,...] holds the stores of one policy at different temperatures, which is
    the one part of the budget that may differ."""
    from sage_rlvr.evaluation.verdicts import Scored, frontier_lines

    found: dict[str, dict[str, dict[float, Scored]]] = {}
    named = read_stores(arms, n, ignore=("temperature",))
    for arm, (name, rows) in zip(arms, named.items(), strict=True):
        policies: dict[str, set[tuple[str, str]]] = {}
        for path, (task, scored) in zip(_paths(arm), rows, strict=True):
            identity = _opened(path).identity
            at, here = float(identity.decoding["temperature"]), found.setdefault(name, {}).setdefault(task, {})
            policies.setdefault(task, set()).add((identity.model, identity.revision))
            if len(policies[task]) > 1:
                raise DataError(
                    f"{path}: another policy than {name}'s other stores of {task}; a frontier is of one policy"
                )
            if at in here:
                raise DataError(
                    f"{path}: {name} has a store of {task} at T = {at:g} already; a frontier takes one of each"
                )
            here[at] = scored
    return frontier_lines(found, _k_of(k, named))


def _paths(arm: str) -> list[str]:
    return arm.rpartition("=")[2].split(",")


def _opened(path: str | Path) -> SampleStore:
    from sage_rlvr.evaluation.store import SampleStore

    return SampleStore.open(path)


def read_stores(
    arms: Sequence[str], n: int | None = None, ignore: Collection[str] = ()
) -> dict[str, list[tuple[str, Any]]]:
    """Arm -> (data set, counts) of each of its stores. DataError where budgets differ in anything but the fields to `ignore`,
    or an evaluation is unfinished."""
    from sage_rlvr.evaluation.verdicts import Scored

    loaded: dict[str, list[tuple[str, Any]]] = {}
    identities: dict[str, tuple[str, Mapping[str, Any]]] = {}
    made: list[tuple[str, str, str, str]] = []
    for arm in arms:
        name, _, paths = arm.rpartition("=")
        name = name or Path(paths.split(",")[0]).name
        if name in loaded:
            raise DataError(f"two arms are called {name!r}; write NAME={paths} for one of them")
        for path in paths.split(","):
            store = _opened(path)
            counts, identity = store.counts(n), store.identity.tree()
            many = sorted(set(counts.n.tolist()))
            if lacking := store.lacking(counts):
                raise DataError(f"{path}: has {lacking}, so it is no whole evaluation yet")
            if len(many) != 1:
                raise DataError(
                    f"{path}: its problems have {many[0] if many else 0} to {many[-1] if many else 0} samples; finish the "
                    f"evaluation first{f', or give --samples {many[0]}' if many else ''}"
                )
            task = str(identity["task"])
            made.append((name, task, str(identity["revision"]), path))
            loaded.setdefault(name, []).append((task, Scored(counts.problems, many[0], counts.right[None, :])))
            judge = store.verifiers()[-1]["verifier_hash"]
            identities[f"{name} ({path})"] = (task, identity | {"n": many[0], "verifier_hash": judge})
    for task in dict.fromkeys(task for task, _ in identities.values()):
        check_budget({name: identity for name, (of, identity) in identities.items() if of == task}, ignore)
    if not ignore:  # the stores of a frontier are of one policy
        _check_other_weights(made)
    return loaded


def _check_other_weights(stores: Sequence[tuple[str, str, str, str]]) -> None:
    """Refuse two stores of the same weights (a hash or a commit) in one arm, which are no two training seeds; stores: (arm,
    task, revision, path)."""
    seen: dict[tuple[str, str, str], str] = {}
    for *whose, path in stores:
        name, _, revision = key = (whose[0], whose[1], whose[2])
        if (first := seen.pop(key, None)) is not None and "unknown" not in revision:
            raise DataError(
                f"{name}: {first} and {path} hold samples of the same weights ({revision[:12]}), so they are no two "
                "training seeds; give one of them, with more samples if more are wanted (eval --samples)"
            )
        seen[key] = path
