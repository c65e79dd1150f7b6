"""What a buffer's term expects of one prompt whose right completions are stored: `buffer_loss` on a listing, nothing sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.extras.replay.answers import Answers
from sage_rlvr.core.extras.replay.base import Buffer, StoredAnswers, buffer_budget, buffer_loss

if TYPE_CHECKING:
    from lab.theory.averages import Listing


def stored_loss(
    buffer: Buffer,
    listing: Listing,
    logps: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    max_tokens: int,
    stored: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """The buffer's term, before its weight, at a prompt of which the completions `stored` (B,) are kept; None: all right ones.

    Each weighs as it does on average over the rollout that it was stored from, one of the listing's generating policy: its
    share is the completion's probability, its finds are in proportion to that, and its advantage is the mean one (`advantages`),
    which is exact for a surrogate that is linear in A while A keeps its sign. Answers of the base carry the reference's log-probs.
    One prompt is asked for.
    """
    kept = (listing.rewards > 0 if stored is None else stored > 0).nonzero()[:, 0]
    signals, count = listing.signals, len(kept)
    wrote = signals.require("ref_logps", type(buffer).__name__) if buffer.base else signals.old_logps
    whole = torch.zeros(count, dtype=torch.long)
    mask = signals.mask[kept]
    finds = (listing.probs[kept].double() * 2**40).long().clamp(min=1)
    answers = Answers(
        whole, kept, whole, finds, listing.probs[kept].float(), advantages[kept].float(), mask.sum(1),
        torch.zeros(mask.shape, dtype=torch.long), torch.where(mask, wrote[kept], 0.0),
        torch.zeros(0, 3, dtype=torch.long), torch.tensor(0),
    )  # fmt: skip
    rows = StoredAnswers(answers, whole, 1, count, int(mask.sum()))
    return buffer_loss(buffer, logps[kept], rows, buffer_budget(buffer, rows, max_tokens))[0]
