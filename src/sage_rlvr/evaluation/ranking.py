"""Lines of an evaluation that need a model in addition to its samples: the rank of hidden states, and the best of n by a reward
model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.policies import load_here
from sage_rlvr.evaluation.sample_report import cell, common_n
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, prompts_of
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import own_of
from sage_rlvr.models.reward_model import load_reward_model, scores_of
from sage_rlvr.verdicts.stats.intervals import mean_interval, share_interval
from sage_rlvr.verdicts.stats.paired import paired
from sage_rlvr.verdicts.stats.samples.majority import maj_at_k
from sage_rlvr.verdicts.stats.samples.spectrum import effective_rank


@torch.no_grad()
def rank_line(run: SampleRun, store: SampleStore, task: EvalSet) -> str:
    """Effective rank of the policy's last hidden states over the tokens of each problem's first sample, mean over problems."""
    rows = store.samples(problems=list(task.problems), n=1)
    if any(row.token_ids is None for row in rows):
        raise DataError(
            f"{store.path}: some samples have no token_ids, so their hidden states are unknown; omit --effective-rank"
        )
    model, tokens = load_here(run.model, run.precision(store.identity))
    prompts, _ = prompts_of(task, tokens, run.chat_template, run.options)
    ranks, counts = [], []
    for row in rows:
        prompt, ids = prompts[row.problem].ids, np.asarray(row.token_ids)
        whole = torch.tensor([[*prompt, *ids.tolist()]], device=model.device)
        own = np.ones(len(ids), dtype=bool) if row.turns is None else own_of(row.turns)
        states = model(whole, output_hidden_states=True).hidden_states[-1][0, len(prompt) :].double().cpu().numpy()
        ranks.append(effective_rank(states[own]))
        counts.append(int(own.sum()))
    return (
        f"rank       {cell(mean_interval(ranks), 2)} effective rank of the last hidden states, first sample of each problem, "
        f"{sum(counts) / len(counts):.1f} tokens on average; the rank grows with the length"
    )


@torch.no_grad()
def best_line(run: SampleRun, store: SampleStore, task: EvalSet, model: str) -> str:
    """pass@1 of the sample that a reward model ranks first, next to pass@1, maj@n and pass@n of all n samples. The reward model
    gets the problem without hints.
    """
    ranker, tokens = load_reward_model(model)
    prompts, _ = prompts_of(replace(task, hinted=None), tokens, run.chat_template, run.options)
    n = common_n(store)
    rows = store.lists(("problem", "sample", "token_ids", "verdict", "answer"), problems=list(task.problems), n=n)
    if any(ids is None for ids in rows["token_ids"]):
        raise DataError(f"{store.path}: some samples have no token_ids, so a reward model cannot score them; omit --rerank-with")
    drawn = rows["token_ids"]
    right = (np.array(rows["verdict"]) == "right").reshape(-1, n)
    answers = np.array(rows["answer"], dtype=object).reshape(-1, n)
    chosen = []
    for index, (name, own) in enumerate(zip(task.problems, right, strict=True)):
        texts = [(*prompts[name].ids, *ids.tolist()) for ids in drawn[index * n : (index + 1) * n]]
        chosen.append(float(own[int(scores_of(ranker, texts, tokens.pad_id).argmax())]))
    votes = [maj_at_k(list(given), own, [n]).values[0] for given, own in zip(answers, right, strict=True)]
    better, solved, chance = paired(chosen, right.mean(1)).difference, right.any(1).astype(float), task.chance
    floor = "" if chance is None else f", chance {chance.at(n):.3f}"
    return (
        f"best of {n}  {cell(share_interval(chosen))} pass@1 of the sample that {model} ranks first; pass@1 "
        f"{cell(share_interval(right.mean(1)))}, maj@{n} {cell(share_interval(votes))}, pass@{n} {cell(share_interval(solved))}"
        f"{floor}; ranked first minus pass@1: {cell(better)}"
    )
