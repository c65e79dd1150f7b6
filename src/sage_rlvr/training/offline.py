"""Training on stored completions: SFT on correct ones, DPO on pairs, a reward model on pairs (Agent-RLVR, arXiv 2506.11425).

    prompts without guidance, stored tokens -> log-probs over the policy's own tokens -> loss of core/preferences.py -> step

The reference of DPO is the initial policy of the run, frozen. The rows of a step are a function of (seed, step), so a
resumed run ends bitwise like an uninterrupted one. TRL's DPOTrainer is not used: it has no mask inside a completion.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.config import OfflineConfig
from sage_rlvr.core.keys import Key
from sage_rlvr.core.preferences import completion_logps, margins, pair_loss
from sage_rlvr.errors import DataError, TrainingDiverged
from sage_rlvr.models.devices import dtype_of, faster_dtype, placed
from sage_rlvr.models.policy import PromptRenderer, Tokens, load_policy
from sage_rlvr.models.reward_model import from_policy, scores_of
from sage_rlvr.models.scoring import score
from sage_rlvr.runs import RunDir
from sage_rlvr.training.opening import announce, decoded, of_optimizer, setting_of
from sage_rlvr.training.optimizer import Optimizer
from sage_rlvr.training.reference import frozen
from sage_rlvr.training.sft import sft_step
from sage_rlvr.training.state import check_replaceable, checkpoint, resume, save_policy
from sage_rlvr.training.steps import run_steps
from sage_rlvr.training.texts import Laid, Text, laid_out, learned_tokens
from sage_rlvr.training.trackers import check_installed

Metrics = dict[str, float]


@dataclass(frozen=True)
class Data:
    """Data of a run: the texts of SFT, and (winner, loser) of each pair."""

    learned: Sequence[Text]
    pairs: Sequence[tuple[Text, Text]]


def text_of(asking: PromptRenderer, problem: Any, row: Any, own: Sequence[bool] | None = None) -> Text:
    """Return a stored sample as a `Text`, the problem asked without guidance. own: of an episode, which tokens the policy sampled.

    Raise DataError if this policy's tokenizer decodes the tokens of a completion to another text: it is of another policy family.
    """
    ids = tuple(int(i) for i in row.token_ids)
    if own is not None:
        return Text(asking(problem).ids, ids, tuple(map(bool, own)))
    (decoded_text,) = asking.tokens.decode([list(ids)], [row.finish != "length"])
    if decoded_text != row.text:
        raise DataError(
            f"problem {row.problem!r}, sample {row.sample}: this policy's tokenizer decodes the stored tokens as "
            f"{decoded_text[:60]!r}, but the stored text is {row.text[:60]!r}; train the policy that generated the samples, or "
            "one with the same tokenizer"
        )
    return Text(asking(problem).ids, ids)


def train_offline(config: OfflineConfig, run: RunDir, out: Path, progress: Any, data: Callable[[Tokens], Data]) -> int:
    """Train to `config.steps`, from the newest checkpoint; write the policy, or the reward model, to `out`. Return the last step.

    Raise ConfigError if `out` contains anything but a policy. data: the texts and pairs, as tokens of the policy.
    """
    check_replaceable(out)
    check_installed(config.report_to)
    torch.set_num_threads(config.engine.threads or torch.get_num_threads())
    policy, tokens = load_policy(config.model, dtype_of(config.engine))
    placed(policy, config.engine.device)
    read = data(tokens)
    model = from_policy(policy, tokens, config.seed).to(policy.device) if config.loss == "reward" else policy
    optimizer = Optimizer(model, config.optimizer, config.steps)
    reference = frozen(copy.deepcopy(policy)) if config.loss == "dpo" else None
    newest = resume(run, model, optimizer)
    begin = newest.step if newest else 0
    key = Key(config.seed).fold("offline")
    if begin < config.steps:
        one = read.learned[0] if config.loss == "sft" else read.pairs[0][0]
        first = decoded(tokens.tokenizer, [*one.prompt, *one.tokens], "first completion with its prompt")
        setting = setting_of(model, faster=faster_dtype(model, config.engine), **of_optimizer(config.optimizer))
        announce(progress.note, setting, prompt=first, begin=begin)

    def run_step(step: int) -> Metrics:
        if config.loss == "sft":
            rows = [read.learned[i] for i in rows_of_step(key, config, step, len(read.learned))]
            return sft_step(model, optimizer, rows, step) | {"offline/tokens": float(sum(map(learned_tokens, rows)))}
        pairs = [read.pairs[i] for i in rows_of_step(key, config, step, len(read.pairs))]
        if reference is None:
            return rank(model, optimizer, tokens, pairs, step)
        return prefer(model, reference, optimizer, pairs, config.beta, step)

    on_train_end = partial(save_policy, model, tokens.tokenizer, out)
    return run_steps(config, run, progress, begin, run_step, partial(checkpoint, run, model, optimizer), on_train_end)


def rows_of_step(key: Key, config: OfflineConfig, step: int, total: int) -> list[int]:
    """Return the rows of a step: pass after pass over all of them, each in another order."""
    places = range(step * config.batch_size, (step + 1) * config.batch_size)
    passes = {n: key.permutation(n, config.loss, total) for n in {position // total for position in places}}
    return [int(passes[position // total][position % total]) for position in places]


def prefer(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    optimizer: Optimizer,
    pairs: Sequence[tuple[Text, Text]],
    beta: float,
    step: int,
) -> Metrics:
    """Make one step of DPO. The metrics include log pi of winners and of losers: a margin can grow while both fall."""
    model.eval()  # dropout off, as the policy that sampled
    laid = pairs_laid_out(pairs, model.device)
    logps = completion_logps(score(model, *laid[:4]).logps, laid.own)
    with torch.no_grad():
        before = completion_logps(score(reference, *laid[:4]).logps, laid.own)
    loss, metrics = pair_loss(margins(logps[0::2], logps[1::2], before[0::2], before[1::2], beta))
    moved = stepped(loss, optimizer, step)
    for offset, who in enumerate(("winner", "loser")):
        now, then = logps.detach()[offset::2].mean(), before[offset::2].mean()
        metrics |= {f"pairs/{who}_logp": float(now), f"pairs/{who}_shift": float(now - then)}
    return {"loss": loss.item(), **metrics, "offline/tokens": float(laid.own.sum()), **moved}


def rank(model: PreTrainedModel, optimizer: Optimizer, tokens: Tokens, pairs: Sequence[tuple[Text, Text]], step: int) -> Metrics:
    """Make one step of a reward model: the score of a winner above that of its loser."""
    model.eval()
    texts = [(*text.prompt, *text.tokens) for pair in pairs for text in pair]
    scores = scores_of(model, texts, tokens.pad_id)
    loss, metrics = pair_loss(scores[0::2] - scores[1::2])
    return {"loss": loss.item(), **metrics, "offline/tokens": float(sum(map(len, texts))), **stepped(loss, optimizer, step)}


def stepped(loss: Tensor, optimizer: Optimizer, step: int) -> Metrics:
    """Apply the update of a loss. Raise TrainingDiverged, with unchanged weights, if it is not finite."""
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"loss is {loss.item()} at step {step}; lower optimizer.lr and run the command again")
    loss.backward()
    return optimizer.step(step)


def pairs_laid_out(pairs: Sequence[tuple[Text, Text]], device: torch.device | str = "cpu") -> Laid:
    """Return the 2 N texts of N pairs, winner and loser alternating. Raise DataError for a pair of different prompts."""
    if unequal := next((a for a, b in pairs if a.prompt != b.prompt), None):
        raise DataError(
            f"the completions of a pair belong to different prompts, the longer with {len(unequal.prompt)} tokens; "
            "pair completions of the same problem"
        )
    return laid_out([text for pair in pairs for text in pair], device)


__all__ = ["Data", "pairs_laid_out", "prefer", "rank", "rows_of_step", "text_of", "train_offline"]
