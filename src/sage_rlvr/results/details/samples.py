"""Sample stores on the page: counts, signals and the first samples of each problem with their texts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import SageError
from sage_rlvr.escaping import visible
from sage_rlvr.evaluation.sample_report import gaps, made_under
from sage_rlvr.evaluation.store import PromptAndGold, Sample, SampleStore
from sage_rlvr.evaluation.store.sample import GUIDED, POLICY, SCORED, TURNS, own_of, turns_in, unmarked
from sage_rlvr.extras import advice
from sage_rlvr.models.folders import cached_folder, folder_of
from sage_rlvr.tasks import known_task
from sage_rlvr.tasks.base import NO_ANSWER
from sage_rlvr.verdicts.design import BASE, Design
from sage_rlvr.verdicts.grouped import grouped
from sage_rlvr.verdicts.measurements import Measurements, SampledMeasurement, in_order
from sage_rlvr.verdicts.metric import REFERENCE
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.samples.diversity import expected_distinct_correct
from sage_rlvr.verdicts.stats.samples.patterns import PatternFrequency, pattern_frequencies
from sage_rlvr.verdicts.stats.samples.perplexity import perplexities

if TYPE_CHECKING:
    from sage_rlvr.models.policy import Tokens  # torch

LONGEST = 4000  # characters of one sample on the page
MOST_SAMPLES = 20_000  # on one page
MOST_COLUMNS = 8  # of the sample browser, side by side
VERDICTS = ("right", "wrong", "undecided")
SOLVED = ("gained", "lost", "kept", "solved by neither")
"""Results of the second of two arms on a problem, in the order of the page."""


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """One sample store. policy: name of the policy; arm: the same, with the temperature if there are several. n: samples per
    problem; shown: the samples on the page, with the texts of their tokens if known; perplexities (M,) under `scored` with the
    problem and verdict of each, if recorded; distinct: (N, K) expected distinct right answers over `powers(n)`. limit: tokens of a
    completion at most; questions: prompt and gold of the problems on the page, {} of a store that does not keep them. plain: rows
    of a file, which have no tokens, entropies or q."""

    arm: str
    policy: str
    seed: int | None
    task: str
    law: str
    n: int
    shown: tuple[tuple[Sample, tuple[str, ...] | None], ...] = ()
    scored: str | None = None
    perplexities: NDArray[np.float64] | None = None
    owners: tuple[str, ...] = ()
    is_right: NDArray[np.bool_] | None = None
    distinct: NDArray[np.float64] | None = None
    patterns: Mapping[str, PatternFrequency] = field(default_factory=dict)
    guide: str | None = None
    temperature: float = 1.0
    limit: int | None = None
    questions: Mapping[str, PromptAndGold] = field(default_factory=dict)
    plain: bool = False

    @property
    def name(self) -> str:
        """The arm with its training seed, if known."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"


def sample_sets(sampled: Measurements[SampledMeasurement], design: Design, shown: int) -> tuple[SampleSet, ...]:
    """Every complete store with its first `shown` samples of each problem, at most MOST_SAMPLES. An arm sampled at several
    temperatures counts as several policies, not as several training seeds."""
    out, left = [], MOST_SAMPLES
    for row in sorted(sampled.rows, key=lambda row: in_order(design, row.policy_key)):
        if row.store is None:  # rows.py has the rows of files
            continue
        with SampleStore.open(row.store.path) as store:
            control = row.arm == BASE and row.temperature != REFERENCE and bool(design.facts)  # only its scores are read
            out.append(_sample_set(store, row, 0 if control else min(shown, left // max(1, len(row.problems)))))
        left -= len(out[-1].shown)
    places = grouped(out, lambda s: (s.arm, s.task))
    several = {key for key, some in places.items() if len({s.temperature for s in some}) > 1}
    named = []
    for s in out:
        apart = (s.arm, s.task) in several and (s.arm, s.temperature) != (BASE, REFERENCE)
        named.append(replace(s, arm=f"{s.arm} at T = {s.temperature:g}") if apart else s)
    return tuple(named)


def by_arm(sets: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each arm, one per training seed."""
    return grouped(sets, lambda one: one.arm)


def by_task(sets: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each task."""
    return grouped(sets, lambda one: one.task)


def first_of_each(sets: Iterable[SampleSet]) -> list[SampleSet]:
    """The first store of each arm."""
    return [mine[0] for mine in by_arm(sets).values()]


def browsed(sets: Sequence[SampleSet]) -> list[SampleSet]:
    """The stores with samples on the page: all, or the first of each arm and task if there are many."""
    shown = [s for s in sets if s.shown]
    if len(shown) <= MOST_COLUMNS:
        return shown
    return [s for mine in by_task(shown).values() for s in first_of_each(mine)]


def by_difference(sets: Sequence[SampleSet]) -> list[str]:
    """The problems of several stores, those first on which the policies differ most in their share of right samples."""
    shares: dict[str, list[float]] = {}
    for one in sets if len(sets) > 1 else ():
        for problem, rights in _rights(one).items():
            shares.setdefault(problem, []).append(sum(rights) / len(rights))
    return sorted(shares, key=lambda problem: min(shares[problem]) - max(shares[problem]))


def standings(solved: Mapping[str, Mapping[str, bool]]) -> dict[str, str]:
    """The word of `SOLVED` for each problem, by whether any sample of an arm is right, the control first; {} unless there are two
    arms."""
    if len(solved) != 2:
        return {}
    first, second = solved.values()
    words = {(False, True): "gained", (True, False): "lost", (True, True): "kept", (False, False): "solved by neither"}
    return {problem: words[hit, second[problem]] for problem, hit in first.items() if problem in second}


def by_standing(problems: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """The problems in the order of `SOLVED`, else as they are; those without a word come last. words: of `standings`."""
    return sorted(problems, key=lambda problem: SOLVED.index(words.get(problem, SOLVED[-1])))


def solved_in(sets: Sequence[SampleSet]) -> dict[str, dict[str, bool]]:
    """Arm -> problem -> whether any of its samples is right."""
    solved: dict[str, dict[str, bool]] = {}
    for one in sets:
        own = solved.setdefault(one.arm, {})
        for problem, rights in _rights(one).items():
            own[problem] = own.get(problem, False) or any(rights)
    return solved


def _rights(one: SampleSet) -> dict[str, list[bool]]:
    """Problem -> whether each of its samples is right."""
    rights: dict[str, list[bool]] = {}
    for problem, right in zip(one.owners, () if one.is_right is None else one.is_right.tolist(), strict=True):
        rights.setdefault(problem, []).append(right)
    return rights


def browser_of(sets: Sequence[SampleSet]) -> dict[str, Any] | None:
    """The data of the sample browser, their number and a description of each store; None without samples."""
    shown = browsed(sets)
    return {**about(sets, shown), "data": data_of(shown)} if shown else None


def about(sets: Sequence[SampleSet], browsed: Sequence[SampleSet]) -> dict[str, str]:
    """The number of samples on the page and a description of each store."""
    count, every = sum(len(s.shown) for s in browsed), sum(bool(s.shown) for s in sets)
    what = "file" if all(s.plain for s in browsed) else "store"
    few = f" The page has the first {what} of each arm and task, of {every} {what}s." if len(browsed) < every else ""
    laws = dict.fromkeys(f"{s.name}: {s.task}, {s.law}" for s in browsed)
    which = "some" if what == "file" else "the first"
    text = f"This page has {count:,} samples, {which} of every problem of every {what}; the {what}s have all.{few}"
    if len(solved_in(browsed)) == 2:
        text += " Problems that only one of the two solves come first, then those on which the policies differ most."
    elif len(browsed) > 1:
        text += " The problems on which the policies differ most come first."
    return {"count": f"{count:,}", "about": f"{text} {'; '.join(laws)}."}


def _sample_set(store: SampleStore, row: SampledMeasurement, shown: int) -> SampleSet:
    """The first n samples of each problem; `shown` of them on the page."""
    arm, n, task, law = row.arm, row.n, store.identity.task, store.identity.decoding
    turns = (TURNS,) * (TURNS in store.columns)
    rows = store.lists(("problem", "answer", "verdict", "text", "base_logps", "versions", *turns), n=n)
    names, texts = rows["problem"], rows["text"]
    right = np.array([verdict == "right" for verdict in rows["verdict"]], dtype=bool)
    scored, guides = sorted(made_under(rows, SCORED)), sorted(made_under(rows, GUIDED))
    known = len(scored) == 1 and not gaps(rows["base_logps"])
    answers = rows["answer"]
    distinct = [
        expected_distinct_correct(answers[i : i + n], right[i : i + n], powers(n)) for i in range(0, len(answers), n)
    ]
    own = known_task(task)
    worded = right.any() and (own is None or own.token_classes is None)
    text = f"T = {law['temperature']:g}, preset {law['preset']}, at most {law['max_new_tokens']} tokens, n = {n} per problem"
    if guides:
        text += f", q of {', '.join(guides)}"
    return SampleSet(
        arm=arm, policy=arm, seed=row.seed, task=task, n=n, law=text,
        shown=tuple(_shown(store, min(shown, n))) if shown else (),
        scored=scored[0].split()[0] if known else None,
        perplexities=perplexities(_of_policy(rows)) if known else None,
        owners=tuple(names), is_right=right, distinct=np.array(distinct),
        patterns=pattern_frequencies(texts, right, names, resamples=1000) if worded else {},
        guide=guides[0] if guides else None, temperature=float(law["temperature"]), limit=int(law["max_new_tokens"]),
        questions=store.questions() if shown else {},
    )  # fmt: skip


def _of_policy(rows: Mapping[str, list[Any]]) -> list[NDArray[Any]]:
    """Log-probs of each sample under the base, at the sampled tokens of the policy."""
    logps = rows["base_logps"]
    if TURNS not in rows:
        return logps
    return [one[own_of(turns_in(text))] for one, text in zip(logps, rows[TURNS], strict=True)]


def _shown(store: SampleStore, n: int) -> list[tuple[Sample, tuple[str, ...] | None]]:
    """The first n samples of every problem, with the texts of their tokens."""
    rows = store.samples(n=n)
    tokens = _tokens_of(store, [row for row in rows if row.token_ids is not None])
    return [(row, None if tokens is None or len(row.text) > LONGEST else _pieces(tokens, row)) for row in rows]


def _tokens_of(store: SampleStore, rows: Sequence[Sample]) -> Tokens | None:
    """The tokenizer of the store's policy; None without one here that decodes the samples to their texts."""
    if not rows:
        return None
    try:
        from sage_rlvr.models.policy import load_tokens  # torch
    except ModuleNotFoundError as error:  # the base install
        if (needs := advice(error)) is None:
            raise
        warnings.warn(f"the page shows each sample as plain text, because the view by token {needs}", stacklevel=2)
        return None
    for source in _tokenizer_sources(store):
        try:
            tokens = load_tokens(source)
        except SageError:
            continue
        tried = [_pieces(tokens, row) is not None for row in rows[:32]]
        if sum(tried) > len(tried) / 2:  # by itself a sample may hold ids without a text
            return tokens
    return None


def _tokenizer_sources(store: SampleStore) -> list[str]:
    """Possible places of the tokenizer of the store's policy: its run, its folder, the cache of the Hub, this package."""
    of_run = [parent / "policy" for parent in list(store.path.parents)[:3]]
    named = [source for source in (store.policy_name_or_path(), store.identity.model) if source]
    cached = [folder for source in named if (folder := cached_folder(source)) is not None]
    folders = dict.fromkeys(str(folder) for folder in (*of_run, *map(folder_of, named), *cached) if folder.is_dir())
    return [*folders, "embedded"]


def _pieces(tokens: Tokens, row: Sample) -> tuple[str, ...] | None:
    """The text of each token of a sample; None where they are not its text."""
    if row.token_ids is None:
        return None
    ids: list[int] = np.asarray(row.token_ids).tolist()
    pieces: list[str] = []
    for _, text, many in row.turns or ((POLICY, row.text, len(ids)),):
        part = tokens.pieces(ids[len(pieces) : len(pieces) + many])
        if text.rstrip(NO_ANSWER) not in "".join(part):
            return None
        pieces += part
    return tuple(pieces)


def _turns(row: Sample) -> list[list[Any]] | None:
    """[1 for the policy and 0 for the environment, text, tokens] of each turn, LONGEST characters in all."""
    if row.turns is None:
        return None
    left, turns = LONGEST, []
    for who, text, tokens in row.turns:
        turns.append([int(who == POLICY), visible(text[:left]), tokens])
        left -= len(text[:left])
    return turns


# ------------------------------------------------------------------------------------------------------------------
# data of the page's script


def data_of(sets: Sequence[SampleSet]) -> dict[str, Any]:
    """Every shown sample. Problems, reasons and tokens are places in lists; entropies (nats) and q are rounded to three digits."""
    lists: dict[str, dict[str, int]] = {"problems": {}, "spellings": {}, "reasons": {}, "prompts": {}, "golds": {}}

    def index_of(name: str, text: str) -> int:
        return lists[name].setdefault(visible(text), len(lists[name]))

    on_page = {s.problem for one in sets for s, _ in one.shown}
    words = standings(solved_in(sets))
    for problem in by_standing(by_difference(sets), words):
        if problem in on_page:
            index_of("problems", problem)
    rows = []
    for number, one in enumerate(sets):
        for s, tokens in one.shown:
            row: dict[str, Any] = {
                "s": number, "p": index_of("problems", s.problem), "n": s.sample, "v": VERDICTS.index(s.verdict),
                "r": index_of("reasons", s.reason), "t": visible(s.text[:LONGEST]), "x": max(0, len(s.text) - LONGEST) or None,
                "a": _answer(s), "l": _cut_at(s, one.limit),
            }  # fmt: skip
            if tokens is not None:
                row["k"] = [index_of("spellings", text) for text in tokens]
                row["e"], row["q"] = _numbers(s.entropies), _numbers(s.q)
            elif s.entropies is not None or s.q is not None:
                row["m"] = 1
            row["u"] = _turns(s)
            if s.base_logps is not None:
                own = slice(None) if s.turns is None else own_of(s.turns)
                (perplexity,) = perplexities([np.asarray(s.base_logps)[own]])
                row["b"] = _number(min(float(perplexity), 1e9))
            rows.append({key: value for key, value in row.items() if value is not None})
    named = [
        {
            "name": visible(name), "arm": one.arm, "guide": visible(one.guide or ""), "plain": int(one.plain),
            "asked": [[index_of("problems", name), *_indices_of(question, index_of)] for name, question in _questions(one).items()],
        }
        for name, one in zip(_names(sets), sets, strict=True)
    ]  # fmt: skip
    shown = {visible(problem): word for problem, word in words.items()}
    solved = [shown.get(name, "") for name in lists["problems"]]
    return {"sets": named, "rows": rows, "solved": solved} | {name: list(texts) for name, texts in lists.items()}


def _cut_at(s: Sample, limit: int | None) -> int | None:
    """Tokens of the policy in a completion that was cut, `limit` where they are not known; None for one that ended."""
    if s.finish != "length":
        return None
    if s.token_ids is None:
        return limit
    return len(np.asarray(s.token_ids)) if s.turns is None else int(own_of(s.turns).sum())


def _answer(s: Sample) -> str | None:
    """The answer that was read; None where it is all of the text."""
    answer = None if s.answer is None else unmarked(s.answer, s.finish)
    return None if answer is None or answer == s.text[:LONGEST] else visible(answer)[:200]


def _questions(one: SampleSet) -> dict[str, PromptAndGold]:
    """Prompts and golds of the problems with samples on the page."""
    return {s.problem: one.questions[s.problem] for s, _ in one.shown if s.problem in one.questions}


def _indices_of(question: PromptAndGold, index_of: Callable[[str, str], int]) -> tuple[int, int | None]:
    """The places of a prompt and of a gold; None without a gold."""
    gold = None if question.gold is None else index_of("golds", question.gold[:LONGEST])
    return index_of("prompts", question.prompt[:LONGEST]), gold


def _names(sets: Sequence[SampleSet]) -> list[str]:
    """A title for each store: arm and seed, with task, temperature and index if needed to distinguish stores."""
    tasks, laws = len({one.task for one in sets}) > 1, len({one.temperature for one in sets}) > 1
    names = []
    for one in sets:
        temperature = f"T = {one.temperature:g}" * (laws and one.arm == one.policy)
        names.append(", ".join(filter(None, (one.name, one.task * tasks, temperature))))
    return [f"{name} (store {i})" if names.count(name) > 1 else name for i, name in enumerate(names, start=1)]


def _numbers(values: Any) -> list[float | None] | None:
    return None if values is None else [_number(value) for value in np.asarray(values).tolist()]


def _number(value: float) -> float | None:
    """Rounded to three digits; None for NaN and infinities."""
    return round(float(value), 3) if math.isfinite(value) else None
