"""The rows of an evaluation of `PassAtK`, of counts per problem and of single completions; `training.evaluations` stores them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.runs.files import to_json
from sage_rlvr.training.trl.held_out import HeldOut
from sage_rlvr.verifiers.rewards import text_of

AnswerKey = Callable[[Mapping[str, Any], str], str | None]
LONGEST_KEY = 200  # characters; a longer answer is stored as a digest


# ---- rows


@dataclass(frozen=True)
class ScoredCompletion:
    """A completion with its reward (None: no answer), whether the reward counts as right, and its answer's canonical spelling."""

    one: HeldOut
    reward: float | None
    right: bool
    answer: str | None


def judged(
    completions: Sequence[HeldOut],
    rewards: Sequence[float | None],
    right_from: float,
    key: AnswerKey,
    rows: Sequence[Mapping[str, Any]],
) -> list[ScoredCompletion]:
    """Rewards at or above `right_from` count as right; the answers of the right completions are read by `key`."""
    results = []
    for one, reward in zip(completions, rewards, strict=True):
        right = reward is not None and reward >= right_from
        results.append(ScoredCompletion(one, reward, right, _answer(key, rows[one.row], one) if right else None))
    return results


def _answer(key: AnswerKey, row: Mapping[str, Any], one: HeldOut) -> str | None:
    try:
        answer = key(row, text_of(one.completion))
    except Exception as error:
        raise DataError(
            f"PassAtK: answer_key raised {type(error).__name__}: {error} on a completion of held-out row {one.row}; correct the "
            "function (row, text) -> answer or None, or leave answer_key out."
        ) from error
    return None if answer is None else _short(str(answer))


def _short(answer: str) -> str:
    if len(answer) <= LONGEST_KEY:
        return answer
    return "blake2:" + hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def count_rows(
    results: Sequence[ScoredCompletion], ids: Sequence[str], facts: Mapping[str, Any]
) -> list[tuple[int, dict[str, Any]]]:
    """(number, row of counts) of every problem in `results`. facts: fields that all rows have, such as the step."""
    by_row: dict[int, list[ScoredCompletion]] = {}
    for result in results:
        by_row.setdefault(result.one.row, []).append(result)
    return [(row, _counted(ids[row], group, facts)) for row, group in by_row.items()]


def _counted(name: str, group: Sequence[ScoredCompletion], facts: Mapping[str, Any]) -> dict[str, Any]:
    rewards = [one.reward for one in group if one.reward is not None]
    return {
        "id": name,
        "n": len(group),
        "c": sum(one.right for one in group),
        **facts,
        "keys": dict(Counter(one.answer for one in group if one.answer is not None)),
        "unfinished": sum(one.one.cut for one in group),
        "no_answer": len(group) - len(rewards),
        "reward": sum(rewards) / len(rewards) if rewards else None,
    }


def sample_rows(
    results: Sequence[ScoredCompletion], ids: Sequence[str], rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[tuple[int, dict[str, Any]]]:
    """(number, row of a sample) of every completion, with its text and its prompt."""
    return [
        (
            result.one.row,
            {
                "id": ids[result.one.row],
                "correct": result.right,
                "score": result.reward,
                "answer": result.answer,
                "text": text_of(result.one.completion),
                "cut": result.one.cut,
                **facts,
                "prompt": rows[result.one.row]["prompt"],
            },
        )
        for result in results
    ]


# ---- held-out rows


def ids_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the rows in files: the column `id`, or else a digest of the prompt. DataError for two rows of one name.

    A number of the row would pair different problems of two files whose rows are in another order.
    """
    names = [str(row["id"]) if row.get("id") is not None else _digest(row["prompt"]) for row in rows]
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        first = places.setdefault(name, number)
        if first != number:
            what = "the same id" if rows[number].get("id") is not None else "the same prompt and no column id"
            raise DataError(f"PassAtK: held-out rows {first} and {number} have {what} ({name}); give every row its own id.")
    return names


def _digest(prompt: Any) -> str:
    return hashlib.sha256(to_json(prompt, "the prompt of a held-out row").encode("utf-8", "surrogatepass")).hexdigest()[:16]


__all__ = ["AnswerKey", "count_rows", "ids_of", "judged", "sample_rows"]
