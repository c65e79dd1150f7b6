"""Substitution of the reference answer for a completion's own, scored by a policy: one teacher-forced pass, no gradient.

    prompt  reasoning z  [own answer  rest]      sampled
    prompt  reasoning z  y*                      scored, only at the tokens of y*

Text after y* cannot change its probabilities, so it is left out. The completion's tokens are kept up to the border; a token that
spans it is encoded anew together with y*. If the own answer is y* the tokens stay as sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.extras.source import RewardSource, Substituted, most_repeated
from sage_rlvr.errors import DataError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import pad_right
from sage_rlvr.models.scoring import score

Span = tuple[int, int]


@dataclass(frozen=True)
class Answered:
    """A completion to be rewarded.

    It has the token ids without the end token, the text, the span of its own answer in the text (None: it was truncated or has no
    answer), the place of its prompt among the prompts, and the reference answer. Training with a reward source makes it;
    `substituted` reads it.
    """

    ids: Sequence[int]
    text: str
    span: Span | None
    prompt: int
    reference: str


@dataclass(frozen=True)
class Replaced:
    """Token ids: `lead`, between the prompt and the scored part; `scored`, tokens of the reference, at least one.

    `replaced` makes it, and `substituted` scores it.
    """

    lead: list[int]
    scored: list[int]


def replaced(tokens: Tokens, one: Answered, given: float = 0.0) -> Replaced | None:
    """Return the tokens of a completion with its answer replaced; None if it has none. `given` as in `ReferenceProbability`."""
    if one.span is None:
        return None
    (start, end), ids = one.span, list(one.ids)
    first = _tokens_within(tokens, ids, one.text, start)
    rest = range(first, len(ids)) if end < len(one.text) else ()
    last = next((k for k in rest if len(_text(tokens, ids[:k])) >= end), len(ids))
    lead, own = ids[:first], ids[first:last]
    answer = own
    if one.text[start:end] != one.reference:
        across = one.text[len(_text(tokens, lead)) if lead else 0 : start]  # of a token that lies across the border
        answer = tokens.encode(across + one.reference)
        spelled = _tokens_within(tokens, answer, across + one.reference, len(across))
        lead, answer = lead + answer[:spelled], answer[spelled:]
    count = int(given * len(answer))
    return Replaced(lead + own[:count], answer[count:])


def _text(tokens: Tokens, ids: Sequence[int]) -> str:
    return str(tokens.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _tokens_within(tokens: Tokens, ids: Sequence[int], text: str, end: int) -> int:
    """Return how many of the first tokens encode a prefix of text[:end].

    Tokens that are a part of a character count with its last one.
    """
    low, high = 0, len(ids) if end else 0
    while low < high:  # the length of the text grows with the tokens
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_text(tokens, ids[:middle])) <= end else (low, middle - 1)
    while low and not text.startswith(_text(tokens, ids[:low])):
        low -= 1
    return low


@torch.no_grad()
def substituted(
    source: RewardSource,
    policy: PreTrainedModel,
    initial: PreTrainedModel | None,
    tokens: Tokens,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Answered],
    *,
    temperature: float = 1.0,
    at_once: int | None = None,
) -> Substituted:
    """Return the log-probs of the reference after each completion and, if the source subtracts it, directly after the prompt.

    They are of the temperature-scaled distribution. The second ones are under `policy` or `initial`, as the source declares.

    Args:
        source: the reward source.
        policy: the current model.
        initial: the initial model.
        tokens: the tokenizer.
        prompts: P token lists.
        completions: B, their prompts ascending.
        temperature: of sampling.
        at_once: rows of one pass; None is all.
    """
    replacements = [replaced(tokens, one, source.given) for one in completions]
    rows = [(one.prompt, whole) for one, whole in zip(completions, replacements, strict=True) if whole is not None]
    device = next(policy.parameters()).device
    width = max([len(whole.scored) for _, whole in rows], default=0)
    formed = torch.tensor([whole is not None for whole in replacements], device=device)
    logps = torch.zeros(len(replacements), width, device=device)
    mask = torch.zeros(len(replacements), width, dtype=torch.bool, device=device)
    indices = formed.nonzero().flatten()
    before = None if source.baseline == "none" else logps.clone()
    if rows:
        logps[indices], mask[indices] = _scored(policy, prompts, rows, temperature, at_once)
    if source.baseline == "initial" and initial is None:
        raise DataError(
            f"{type(source).__name__} subtracts a probability under the initial weights of the run; pass that model as "
            "initial=."
        )
    if rows and before is not None:
        distinct = sorted({(prompt, tuple(whole.scored)) for prompt, whole in rows})  # as a rule one of each prompt
        bare, number = [(prompt, Replaced([], list(own))) for prompt, own in distinct], {key: i for i, key in enumerate(distinct)}
        model = policy if source.baseline == "current" or initial is None else initial
        bare_logps, _ = _scored(model, prompts, bare, temperature, at_once)
        before[indices] = bare_logps[[number[prompt, tuple(whole.scored)] for prompt, whole in rows]]
    ids, lengths = pad_right([list(one.ids) or [tokens.pad_id] for one in completions], device)
    spoken = torch.arange(ids.shape[1], device=device)[None] < lengths[:, None]
    return Substituted(logps, mask, before, formed, most_repeated(ids, spoken, source.ngram))


def _scored(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[tuple[int, Replaced]],
    temperature: float,
    at_once: int | None,
) -> tuple[Tensor, Tensor]:
    """Return (log-probs (B, M) of the scored tokens of rows (prompt, tokens), prompts ascending; their mask (B, M))."""
    device, width = next(model.parameters()).device, max(len(whole.scored) for _, whole in rows)
    logps = torch.zeros(len(rows), width, device=device)
    size = len(rows) if at_once is None else at_once
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        distinct = sorted({prompt for prompt, _ in part})
        owners = torch.tensor([distinct.index(prompt) for prompt, _ in part], device=device)
        ids, lengths = pad_right([whole.lead + whole.scored for _, whole in part], device)
        fed = torch.arange(ids.shape[1], device=device)[None] < lengths[:, None]
        scored = score(model, [prompts[p] for p in distinct], ids, fed, owners, temperature=temperature).logps
        for i, (_, whole) in enumerate(part):
            start = len(whole.lead)
            logps[first + i, : len(whole.scored)] = scored[i, start : start + len(whole.scored)]
    lengths = torch.tensor([len(whole.scored) for _, whole in rows], device=device)
    return logps, torch.arange(width, device=device)[None] < lengths[:, None]


__all__ = ["Answered", "Replaced", "replaced", "substituted"]
