"""Evaluation by samples: generate, judge and commit the missing chunks of a store until the store is complete.

    task -> chosen problems -> prompts (`sage_rlvr.models.policy.PromptRenderer`) -> completions -> verdicts, answers
    while missing: claim the chunks of a few problems; generate, one request per chunk, the seeds of one prompt; verify; commit

The store decides what is missing and which process works on which chunk (`evaluation/store`), so an interrupted evaluation
continues, also after SIGKILL; more samples are a top-up; and several processes share the work. A chunk does not depend on earlier
chunks, so that on the CPU sampler the store's digest depends on none of that. A store is bound to hashes of the problems, of the
prompt's code, and of the verifier with its limits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sage_rlvr.config import build
from sage_rlvr.core.guides import GUIDES, Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.episodes import generate_episodes
from sage_rlvr.evaluation.judged import JudgeAt, Judged
from sage_rlvr.evaluation.store import Chunk, Identity, PromptAndGold, Sample, SampleStore, prompt_hash
from sage_rlvr.evaluation.store.sample import own_of, policy_turns, turns_unmarked, unmarked
from sage_rlvr.models.generation import DrawsTogether, Generation, Generator, Request
from sage_rlvr.models.policy import Chat, Prompt, PromptRenderer, Tokens
from sage_rlvr.models.scoring import score
from sage_rlvr.recipes import parse_yaml
from sage_rlvr.tasks.abilities import Generated, ReadsAnswers, WithGuidance
from sage_rlvr.tasks.base import (
    NO_ANSWER,
    Response,
    Task,
    gold_of,
    hash_of,
    problems_of,
    turns_of,
    verdicts,
)
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.chat import NO_OPTIONS, Options, encodable
from sage_rlvr.verdicts.chance import Chance

PAUSE_S = 0.5  # seconds between two checks for the commits of other processes
NOTICE_S = 5.0  # seconds without a commit of another process after which a warning names the processes


# ------------------------------------------------------------------------------------------------------------------
# problems, prompts, verdicts


@dataclass(frozen=True)
class EvalSet:
    """A task with the problems of an evaluation chosen, by id. `choose` makes it; sampling, stores, hints and the exact KL read it.

    task_hash: of these problems; verifier_hash: of their verifier. A sample store is bound to both. hinted: the problems with
    hints in their prompts; guidance: the source of the hints and the attempts.
    """

    task: Task
    problems: Mapping[str, Any]
    task_hash: str
    hinted: Mapping[str, Any] | None = None
    guidance: str = ""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def prompt(self) -> str:
        """The name of its prompt format; the task's name if it renders plain text itself."""
        return self.name if self.task.form is None else self.task.form.name

    @property
    def verifier_hash(self) -> str:
        """Hash of the code and the limits that decide a verdict."""
        return self.task.verifier_hash

    @property
    def max_new_tokens(self) -> int:
        """The default length limit of a completion."""
        return self.task.max_new_tokens

    @property
    def chance(self) -> Chance | None:
        """The chance floor on these problems."""
        return chance_of(self.task, list(self.problems.values()))

    @property
    def judge_at(self) -> JudgeAt | None:
        """Verdicts on (problem id, text) with answers read at another place; None for a task that reads completions in another
        way."""
        task = self.task
        if not isinstance(task, ReadsAnswers):
            return None
        return lambda pairs, reading: task.verify_all([(self.problems[i], text) for i, text in pairs], **reading)

    @property
    def turns(self) -> int:
        """The most turns of an episode; 1 if a completion is one text."""
        return turns_of(self.task)

    def verdicts(self, ids: Sequence[str], texts: Sequence[Response]) -> list[Judged]:
        """One verdict per completion, or per list of the policy's turns in an episode, as `SampleStore.reverify` expects."""
        if unknown := sorted(set(ids) - set(self.problems)):
            raise ConfigError(f"{self.name}: problem {unknown[0]!r} is not among these; use the settings of the store")
        pairs = [(self.problems[i], text) for i, text in zip(ids, texts, strict=True)]
        results = verdicts(self.task, pairs)
        return [Judged(v.label, v.reason, self._answer(*pair)) for v, pair in zip(results, pairs, strict=True)]

    def _answer(self, problem: Any, response: Response) -> str | None:
        """`answer_key`; None for a completion cut off within its answer."""
        key = self.task.answer_key(problem, response)
        return None if key is not None and key.endswith(NO_ANSWER) else key

    def questions(self, prompts: Mapping[str, Prompt]) -> dict[str, PromptAndGold]:
        """Problem id -> its prompt and gold, as a store contains them."""
        return {name: PromptAndGold(prompts[name].text, gold_of(self.task, problem)) for name, problem in self.problems.items()}


def choose(task: Task, split: str = "test", seed: int = 1, n: int | None = None, sampling: str = "iid") -> EvalSet:
    """The problems of an evaluation, by `problems_of`: for a law (`Countdown`) n, default 300; for a list the first n, default all.

    A problem that occurs twice is sampled twice, under numbered ids.
    """
    law = isinstance(task, Generated)
    rows = problems_of(task, split, seed, 300 if n is None and law else n, sampling)
    chosen: dict[str, Any] = {}
    for problem in rows:
        name, times = problem.problem_id, 1
        while name in chosen:
            times += 1
            name = f"{problem.problem_id} #{times}"
        chosen[name] = problem
    drawn = [task.identity, split, seed, sampling, list(chosen)]
    return EvalSet(task, chosen, hash_of(drawn) if law else task.fingerprint(rows))


def prompts_of(
    chosen: EvalSet, tokens: Tokens, chat: Chat = "model", options: Options = NO_OPTIONS
) -> tuple[dict[str, Prompt], str]:
    """({problem id: prompt}, hash of the code that renders them). chat, options: see `sage_rlvr.models.policy.PromptRenderer`."""
    asking = PromptRenderer.of(chosen.task, tokens, chat, options)
    problems = {name: _guidable(problem, tokens) for name, problem in (chosen.hinted or chosen.problems).items()}
    prompts = {name: asking(problem) for name, problem in problems.items()}
    unknown = tokens.tokenizer.unk_token_id
    if name := next((name for name, prompt in prompts.items() if unknown is not None and unknown in prompt.ids), None):
        warnings.warn(f"problem {name!r}: its prompt has text outside the tokenizer's vocabulary (its unknown token)")
    return prompts, hash_of(asking.written)


def _guidable(problem: Any, tokens: Tokens) -> Any:
    """A problem whose guidance, which may quote a program, can be encoded in a prompt."""
    hint = problem.guidance if isinstance(problem, WithGuidance) else None
    if not isinstance(hint, str):
        return problem
    fit = encodable(hint, tokens.tokenizer)
    return problem if fit == hint else replace(problem, guidance=fit)


def check_window(prompts: Mapping[str, Prompt], window: int | None, max_new_tokens: int) -> None:
    """Raise ConfigError if the longest prompt and a completion of full length do not fit into the model's positions, if known."""
    if window is None:
        return
    name, longest = max(((i, len(p.ids)) for i, p in prompts.items()), key=lambda pair: pair[1])
    if longest + max_new_tokens > window:
        raise ConfigError(
            f"problem {name!r}: its prompt has {longest} tokens, and with max_new_tokens = {max_new_tokens} it does not fit "
            f"into the model's {window}; set --max-new-tokens {max(1, window - longest)} or less, the same for all arms"
        )


# ------------------------------------------------------------------------------------------------------------------
# base and guide


@dataclass(frozen=True)
class Scorer:
    """The base model's log-probs of the sampled tokens, at temperature 1, nats: Eq. (39) of arXiv 2605.18864. `sample_into_store`
    makes it; `SamplingRun` calls it."""

    model: PreTrainedModel

    @classmethod
    def of(cls, name: str, model: PreTrainedModel, base: Tokens, policy: Tokens) -> Scorer:
        """Raise ConfigError unless a token means the same text to both."""
        check_vocabulary(f"--base-logprobs {name}", base, policy)
        return cls(model.eval())

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], rows: Sequence[Any]) -> list[Any]:
        """(T,) per row; None for rows without known tokens."""
        if any(row.token_ids is None for row in rows):
            return [None] * len(rows)
        device = next(self.model.parameters()).device
        tokens, mask = padded([row.token_ids for row in rows])
        owners = torch.zeros(len(rows), dtype=torch.long, device=device)
        logps = score(self.model, [list(prompt)], tokens.long().to(device), mask.to(device), owners).logps.cpu().numpy()
        return [_of_policy(one, row[:n].astype(np.float32)) for one, row, n in zip(rows, logps, mask.sum(1).tolist(), strict=True)]


def check_vocabulary(option: str, base: Tokens, policy: Tokens) -> None:
    """Raise ConfigError unless a token means the same text to both. option: the option that named the base."""
    if base.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"{option}: its tokenizer has a different vocabulary than the policy, so it cannot score the policy's tokens; pass the "
            "model that the policy was trained from"
        )


def _of_policy(row: Any, values: Any) -> Any:
    """(T,) with 0 at tokens of the environment, which no policy sampled."""
    return values if row.turns is None else np.where(own_of(row.turns), values, values.dtype.type(0))


def padded(rows: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrays (T_i,) -> (B, T) and a mask (B, T)."""
    values = pad_sequence([torch.tensor(np.asarray(row)) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return values, torch.arange(values.shape[1])[None, :] < lengths[:, None]


def guide_of(given: str) -> Guide:
    """A guide by its name, with its defaults, or with settings as in a recipe. Raises ConfigError if q would depend on more than
    a sample and the base."""
    if given.lstrip().startswith("{"):
        guide: Guide = build("guide", parse_yaml(given, "--guide"))
    else:
        standalone = [word for word in GUIDES if word not in ("placebo", "compose")]  # these two need another guide
        if given not in standalone:
            raise ConfigError(f"--guide {given}: choose one of {', '.join(standalone)}")
        guide = GUIDES[given]()
    if guide.depends_on == "batch" or not guide.needs <= {"entropies"}:
        raise ConfigError(f"--guide {given}: its q depends on more than the sample's log-probs and entropies")
    return guide


def q_of(guide: Guide, rows: Sequence[Generation], numbers: Sequence[int], seed: int) -> list[Any]:
    """(T,) q at each token of a row, at the first step of the guide's schedules; None if its signals are not known."""
    if any(row.logps is None or (guide.needs and row.entropies is None) for row in rows):
        return [None] * len(rows)
    logps, mask = padded([row.logps for row in rows])
    lengths = mask.sum(1).tolist()
    if any(row.turns is not None for row in rows):
        mask = mask & padded([own_of(row.turns or ()) for row in rows])[0]
    entropies = padded([row.entropies for row in rows])[0] if guide.needs else None
    signals = Signals(logps, logps, mask, torch.tensor(list(numbers)), entropies=entropies)
    q = guide(signals, 0, 1, Key(seed).fold("guide of an evaluation")).exp().numpy()
    return [_of_policy(one, row[:n]) for one, row, n in zip(rows, q, lengths, strict=True)]


# ------------------------------------------------------------------------------------------------------------------
# sampling until nothing is missing


class _Waits:
    """Warns once if other processes have claimed the missing chunks and commit nothing."""

    def __init__(self, store: SampleStore) -> None:
        self.store, self.left, self.since, self.warned = store, -1, 0.0, False

    def see(self, left: int) -> None:
        """Warn that all `left` missing chunks are claimed."""
        if left != self.left:
            self.left, self.since, self.warned = left, time.monotonic(), False
        elif not self.warned and time.monotonic() - self.since >= NOTICE_S:
            self.warned = True
            warnings.warn(
                f"{self.store.path}: waiting for {left} chunks that {self.store.claimants()} is sampling, as long as that process "
                "is running. If it is stopped, continue it (kill -CONT PID) or end it (kill PID): this process then samples its "
                "chunks",
                stacklevel=3,
            )


@dataclass(frozen=True)
class SamplingRun:
    """Generation and verification; `run` fills a store. `sample_into_store` makes it."""

    task: EvalSet
    prompts: Mapping[str, Prompt]
    generator: Generator
    scorer: Scorer | None = None
    guide: Guide | None = None
    asking: PromptRenderer | None = None
    """The renderer of an environment's replies, if the task has episodes."""
    window: int | None = None
    """Positions of the model, for episodes."""

    def run(
        self, store: SampleStore, n: int, *, progress: Callable[[int], None] = lambda n: None, pause: float = PAUSE_S
    ) -> None:
        """Sample until every problem has n samples (complete chunks). progress(m): m more samples exist, from this or another
        process."""
        ids, size, together = list(self.task.problems), store.identity.chunk_size or 1, store.identity.together
        self._check_calls(together)
        at_a_time = max(1, self.generator.at_once // together)
        store.want(ids, n)
        waits = _Waits(store)
        while lacking := store.missing(ids, n):
            groups = self._groups(ids, [chunk.problem for chunk in lacking], together)
            worked = False
            for first in range(0, len(groups), at_a_time):
                some = [name for group in groups[first : first + at_a_time] for name in group]
                chunks = store.claim(some, n, most=len(some) * -(-n // size))
                if chunks:
                    store.commit(self.samples(store.identity, chunks))
                    progress(len(chunks) * size)
                    worked = True
            left = len(store.missing(ids, n))
            if left and not worked:
                progress((len(lacking) - left) * size)
                waits.see(left)
                time.sleep(pause)  # other processes work on the remaining chunks; if one dies, its claims are free again

    def _check_calls(self, together: int) -> None:
        """Raise ConfigError if the generator's calls are not those on which the last bits of the store's samples depend."""
        own = self.generator.together if isinstance(self.generator, DrawsTogether) else together > 1
        if own != (together > 1):
            raise ConfigError(
                f"generator {self.generator.name!r} has together = {own}, and the store's Identity.together = {together}: its "
                f"samples depend on which are drawn in one pass; build the generator with together={together > 1}"
            )

    def _drawn(self, identity: Identity, chunks: Sequence[Chunk]) -> dict[Chunk, tuple[Request, list[Generation]]]:
        """Each chunk's request and its generations. All problems that are sampled together are, whichever were requested, so
        that a chunk does not depend on which others were missing."""

        def request_of(chunk: Chunk) -> Request:
            seeds = tuple(identity.seed_of(chunk.problem, number) for number in chunk.samples)
            prompt = self.prompts[chunk.problem]
            return Request(prompt.ids, seeds, messages=prompt.messages)

        calls: list[list[Chunk]] = [list(chunks)]
        if identity.together > 1:
            firsts: dict[int, list[str]] = {}
            for chunk in chunks:
                firsts.setdefault(chunk.first, []).append(chunk.problem)
            ids, size = list(self.task.problems), identity.chunk_size or 1
            calls = [
                [Chunk(name, first, size) for name in group]
                for first, names in firsts.items()
                for group in self._groups(ids, names, identity.together)
            ]
        drawn: dict[Chunk, tuple[Request, list[Generation]]] = {}
        for call in calls:
            requests = [request_of(chunk) for chunk in call]
            drawn |= dict(zip(call, zip(requests, self._generated(identity, call, requests), strict=True), strict=True))
        return drawn

    def _generated(self, identity: Identity, call: Sequence[Chunk], requests: list[Request]) -> list[list[Generation]]:
        """One generation per seed of each request; an episode, if the task has turns."""
        if self.task.turns == 1:
            return self.generator.generate(requests)
        if self.asking is None:
            given = "asking=PromptRenderer.of(task, tokens), for replies"
            raise ConfigError(f"{self.task.name} has episodes: give the Evaluation {given}")
        problems, limit = [self.task.problems[chunk.problem] for chunk in call], int(identity.decoding["max_new_tokens"])
        return generate_episodes(self.generator, self.asking, problems, requests, limit=limit, window=self.window)

    @staticmethod
    def _groups(ids: Sequence[str], names: Sequence[str], together: int) -> list[Sequence[str]]:
        """The groups of problems drawn together, by their order in `ids`, that contain any of `names`."""
        indices = {name: index for index, name in enumerate(ids)}
        numbers = dict.fromkeys(indices[name] // together for name in names)
        return [ids[number * together : (number + 1) * together] for number in numbers]

    def samples(self, identity: Identity, chunks: Sequence[Chunk]) -> list[Sample]:
        """Sample, score and judge chunks; returns rows."""
        chunks = sorted(chunks, key=lambda chunk: (chunk.problem, chunk.first))
        began = time.perf_counter()
        generations = self._drawn(identity, chunks)
        requests, drawn = zip(*(generations[chunk] for chunk in chunks), strict=True)
        seconds = (time.perf_counter() - began) / len(chunks)
        owners = [chunk.problem for chunk in chunks for _ in chunk.samples]
        responses = [policy_turns(row.turns) if row.turns else row.text for rows in drawn for row in rows]
        judged = iter(self.task.verdicts(owners, responses))
        made = []
        for chunk, request, rows in zip(chunks, requests, drawn, strict=True):
            base = self.scorer(request.prompt, rows) if self.scorer else [None] * len(rows)
            q = q_of(self.guide, rows, chunk.samples, identity.seed) if self.guide else [None] * len(rows)
            hashed = prompt_hash(self.prompts[chunk.problem].text)
            for number, seed, row, logps, own in zip(chunk.samples, request.seeds, rows, base, q, strict=True):
                verdict = next(judged)
                made.append(
                    Sample(
                        problem=chunk.problem,
                        sample=number,
                        seed=seed,
                        prompt_hash=hashed,
                        text=unmarked(row.text, row.finish),
                        token_ids=row.token_ids,
                        rollout_logps=row.logps,
                        base_logps=logps,
                        entropies=row.entropies,
                        q=own,
                        finish=row.finish,
                        answer=verdict.answer,
                        verdict=verdict.label,  # type: ignore[arg-type]
                        reason=verdict.reason,
                        latency_s=seconds,
                        turns=None if row.turns is None else turns_unmarked(row.turns, row.finish),
                    )
                )
        return made
