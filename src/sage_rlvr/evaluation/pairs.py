"""Build the data of offline training from sample stores: preference pairs and SFT completions.

    losers    wrong first attempts, never guided
    winners   right first attempts, and right second attempts of the failed problems, guided or not
    pair      each winner with one loser of its problem, chosen by (seed, problem, number of the winner)
    SFT       a share of the right first attempts, the same for every set of pairs of these attempts and this seed

A pure function of the stores and the settings. A problem without a right or without a wrong attempt makes no pair; second
attempts add pairs of problems that had no right first attempt. Training on a pair uses the prompt without hints.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from sage_rlvr.config import OfflineConfig, PairsConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore
from sage_rlvr.evaluation.store.sample import own_of
from sage_rlvr.models.policy import PromptRenderer, Tokens
from sage_rlvr.training.offline import Data, text_of
from sage_rlvr.training.texts import Text


@dataclass(frozen=True, eq=False)
class PreferencePair:
    """A right and a wrong completion of one problem. again: the winner is a second attempt. `paired` makes it; offline training
    reads it."""

    problem: str
    winner: Sample
    loser: Sample
    again: bool


@dataclass(frozen=True, eq=False)
class Paired:
    """Preference pairs, SFT completions, the source of hints, and counts of samples, right samples, tokens and problems. `paired`
    makes it; `texts_of` turns it into tokens for offline training."""

    pairs: tuple[PreferencePair, ...]
    learned: tuple[Sample, ...]
    guidance: str
    counts: dict[str, int]
    digests: dict[str, str]

    def lines(self) -> list[str]:
        """The counts in words."""
        c = self.counts
        return [
            f"attempts   {c['attempts']:,} of {c['problems']:,} problems, {c['right']:,} right",
            f"retries    {c['retries']:,} of {c['retried_problems']:,} problems, {c['retries_right']:,} right; "
            f"{self.guidance or 'none'}",
            f"tokens     {c['tokens']:,} sampled for both",
            f"pairs      {len(self.pairs):,} of {c['paired']:,} problems, {c['pairs_again']:,} with a second attempt as winner, "
            f"{c['opened']:,} problems only by second attempts",
            f"SFT        {len(self.learned):,} of {c['right']:,} right first attempts",
        ]


def paired(data: PairsConfig) -> Paired:
    """The pairs of the stores that a recipe names. ConfigError for second attempts of another task, DataError without any."""
    first, digest, known = _read(data.attempts)
    second, digest_again, later = _read(data.retries) if data.retries else ({}, "", known)
    if later.task != known.task:
        raise ConfigError(f"pairs.retries = {data.retries}: is a store of {later.task}, but the attempts are on {known.task}")
    if foreign := sorted(set(second) - set(first)):
        raise ConfigError(
            f"pairs.retries = {data.retries}: problem {foreign[0]!r} is not in {data.attempts}; pass the second attempts "
            "for these first attempts"
        )
    pairs = tuple(pair for name, rows in first.items() for pair in _of_problem(data, name, rows, second.get(name, [])))
    right = [row for rows in first.values() for row in rows if row.verdict == "right"]
    if not pairs:
        raise DataError(f"{data.attempts}: no problem has a right and a wrong completion, so there is no pair; add samples")
    if not right:
        raise DataError(f"{data.attempts}: no first attempt is right, and SFT trains on those; add samples, or use a better policy")
    order = sorted(right, key=lambda row: _chance(data.seed, "sft", row.problem, row.sample))
    digests = {"attempts": digest} | ({"retries": digest_again} if data.retries else {})
    learned = tuple(order[: math.ceil(data.share * len(right))])
    return Paired(pairs, learned, later.guidance if second else "", _counts(first, second, pairs), digests)


def _of_problem(data: PairsConfig, name: str, rows: Sequence[Sample], again: Sequence[Sample]) -> Iterator[PreferencePair]:
    """The pairs of one problem: its winners, at most `max_pairs`, in an order of the seed, each with a loser."""
    losers = [row for row in rows if row.verdict == "wrong"]
    winners = [(row, False) for row in rows if row.verdict == "right"] + [(row, True) for row in again if row.verdict == "right"]
    if data.distinct:
        winners = list({row.text: (row, late) for row, late in reversed(winners)}.values())
    winners.sort(key=lambda pair: _chance(data.seed, "winner", name, pair[0].sample, pair[1]))
    for number, (row, late) in enumerate(winners[: data.max_pairs] if losers else []):
        index = int(_chance(data.seed, "loser", name, number) * len(losers))
        yield PreferencePair(name, row, losers[index], late)


def _chance(*address: object) -> float:
    """A number in [0, 1), a function of its address."""
    digest = hashlib.blake2b(repr(address).encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / (1 << 56)


def _read(folder: str | None) -> tuple[dict[str, list[Sample]], str, Identity]:
    """Problem -> its samples, the store's digest, and its identity."""
    with SampleStore.open(Path(str(folder))) as store:
        if lacking := store.lacking(store.counts(check=False)):
            raise DataError(f"{folder}: has {lacking}, so the evaluation is not complete")
        rows: dict[str, list[Sample]] = {}
        for row in store.samples():
            if row.token_ids is None:
                raise DataError(f"{folder}: problem {row.problem!r} has samples without tokens (imported); sample again here")
            rows.setdefault(row.problem, []).append(row)
        return rows, store.digest(), store.identity


def _counts(first: dict[str, list[Sample]], second: dict[str, list[Sample]], pairs: Sequence[PreferencePair]) -> dict[str, int]:
    """Compute `Paired.counts` from the first and second attempts and their pairs."""
    rows = list(chain.from_iterable(first.values()))
    again = list(chain.from_iterable(second.values()))
    solved = {row.problem for row in rows if row.verdict == "right"}
    return {
        "attempts": len(rows), "problems": len(first), "right": sum(row.verdict == "right" for row in rows),
        "retries": len(again), "retried_problems": len(second), "retries_right": sum(row.verdict == "right" for row in again),
        "tokens": sum(len(np.asarray(row.token_ids)) for row in rows + again),
        "paired": len({pair.problem for pair in pairs}), "pairs_again": sum(pair.again for pair in pairs),
        "opened": len({pair.problem for pair in pairs} - solved),
    }  # fmt: skip


def texts_of(config: OfflineConfig, paired: Paired, tokens: Tokens) -> Data:
    """The pairs and SFT completions as tokens, with prompts without hints.

    DataError for a problem that the task's split does not have.
    """
    asking = PromptRenderer.of(config.task, tokens, options=config.chat_template_kwargs)
    rows = {problem.problem_id: problem for problem in config.task.problems(config.pairs.split)}

    def text(row: Sample) -> Text:
        if row.problem not in rows:
            raise DataError(
                f"problem {row.problem!r} of {config.pairs.attempts} is none of the {len(rows):,} of task {config.task.name}, "
                f"split {config.pairs.split}; set pairs.split and the task of the samples"
            )
        return text_of(asking, rows[row.problem], row, None if row.turns is None else own_of(row.turns).tolist())

    return Data([text(row) for row in paired.learned], [(text(pair.winner), text(pair.loser)) for pair in paired.pairs])


__all__ = ["Paired", "PreferencePair", "paired", "texts_of"]
