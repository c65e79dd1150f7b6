"""GRPO and SAGE-Branch in one file, from sampling to the weight update: torch and transformers, no registry, no config.

    python examples/sage_in_one_file.py --steps 20                   # SAGE-Branch
    python examples/sage_in_one_file.py --steps 20 --method grpo     # its baseline: the same run with q = 1

20 steps on the small Countdown policy that ships with the package take about half a minute on one CPU core: enough to see
pass@1 rise, too few to compare the two methods. Equations are numbered as in the SAGE paper (arXiv 2605.18864):

    (1)   GRPO:    max over pi of  E_pi[R(x, y)] - beta KL(pi || pi_ref)
    (6)   SAGE:    max over pi of  E_pi[R(x, y)] - beta D(pi || q pi_ref),  q fixed during an update
    (5)            D(pi || f) = E_pi[log pi(y | x) - log f(x, y)],  a KL in which f need not sum to 1
    (7)            q(x, y) = product over tokens of q_t
    (8)            D(pi || q pi_ref) = KL(pi || pi_ref) - E_pi[sum over tokens of log q_t]
    (11)  Branch:  q_t = 1 + ratio * ReLU(H_t - threshold),  H_t the entropy of the next token

The optimum of (1) is proportional to pi_ref exp(R / beta), Eq. (2): answers that the reference rarely samples stay rare. SAGE
raises the reference by q > 1 where the policy is uncertain, and the optimum becomes q pi_ref exp(R / beta), Eq. (4). Training
with the sampled k3 term does not reach that optimum: the comment at the KL term below says what an update does instead.

The library's training loop (src/sage_rlvr/training/loop.py) makes the same updates: tests/test_sage_in_one_file.py trains
with both and compares the weights. This file leaves out what the loop adds:

- other methods, guides and KL estimators, the KL in the reward, and errors for combinations that would have no effect
- sampling that processes each prompt once per group and drops finished completions; a forward pass without padding
- temperatures other than 1, chat templates, other models and tasks, bfloat16, GPUs
- mini-batches, micro-batches, weight decay, learning-rate schedules, a bound of 20 nats on log-ratios
- checkpoints and resume, errors for a loss that is not finite, metric files, exact evaluation
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

# The library provides the path of the policy, the problems with their verifier, and random numbers.
# Key(seed).uniform64(step, "sample", rows, columns) is a table of uniform numbers in (0, 1), each a hash of seed, step, name,
# row and column; torch.rand would do as well. With hashes, two runs of one seed get the same prompts and, as long as their
# weights agree, the same completions, so that GRPO and SAGE differ only by q, and this file can be compared with the loop.
from sage_rlvr.core.keys import Key
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.tasks.countdown import WORLDS, Problem, render, verify

# Shape suffixes: P prompts per step, G completions per prompt, B = P * G rows (row = prompt * G + member),
# S tokens of the longest prompt, T tokens of the longest completion, L = S + T, V tokens in the vocabulary.


@dataclass(frozen=True)
class Settings:
    """Every number of a run. In parentheses: the paper's value (Table 8) or, where the paper has none, the authors' code's."""

    steps: int = 20
    prompts: int = 16  # P (8)
    group: int = 8  # G (8)
    max_new_tokens: int = 24  # longest completion, the end token included (6,144)
    epochs: int = 1  # updates per rollout, each on all of its completions
    lr: float = 1e-4  # (5e-6)
    clip: float = 0.2  # (0.2)
    max_grad_norm: float = 1.0
    beta: float = 0.05  # weight of the KL term (0.05)
    ratio: float = 0.3  # of Branch, Eq. (11) (0.3)
    threshold: float = 1.2  # of Branch, Eq. (11), in nats (1.2)
    q_min: float = 0.6  # bounds of q (0.6)
    q_max: float = 1.4  # (1.4)
    train_problems: int = 6000
    seed: int = 0


def encode(tokenizer: PreTrainedTokenizerBase, problems: list[Problem], copies: int) -> tuple[Tensor, Tensor]:
    """prompt_BS, each prompt `copies` times, padded on the left so that completions start at column S; real_BS, false at pads."""
    texts = [render(p) for p in problems for _ in range(copies)]
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"].bool()


@torch.no_grad()
def sample(
    policy: PreTrainedModel, prompt_BS: Tensor, real_BS: Tensor, uniform_BT: Tensor, eos_id: int
) -> tuple[Tensor, Tensor]:
    """Draw y ~ pi(. | x) token by token: tokens_BT and mask_BT, the mask true up to and including the end token."""
    cache, ids_BL, real_BL = DynamicCache(), prompt_BS, real_BS
    done_B = torch.zeros(len(prompt_BS), dtype=torch.bool)
    tokens, masks = [], []
    for uniform_B in uniform_BT.unbind(1):
        position_BL = (real_BL.cumsum(1) - 1).clamp(min=0)[:, -ids_BL.shape[1] :]
        # Positional arguments, because transformers 5.24 renames the fourth, `past_key_values`, to `cache`.
        logits_BV = policy(ids_BL, real_BL.long(), position_BL, cache).logits[:, -1]
        # The token whose interval of cumulative probability holds the uniform number. The sum is in float64: in float32 it moves
        # in steps of 6e-8 near 1, and the last sum may fall short of 1, hence the factor.
        cumulative_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
        token_B = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None]).squeeze(1)
        tokens.append(token_B)
        masks.append(~done_B)
        done_B = done_B | (token_B == eos_id)
        if done_B.all():
            break
        ids_BL, real_BL = token_B[:, None], torch.cat([real_BL, torch.ones_like(real_BL[:, :1])], 1)
    return torch.stack(tokens, 1), torch.stack(masks, 1)


def reward(tokenizer: PreTrainedTokenizerBase, problems: list[Problem], tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """R(x, y) of Eq. (1), reward_PG: 1 for a completion that ended and solves its problem, else 0."""
    group = len(tokens_BT) // len(problems)
    rewards = []
    for row, (tokens, length) in enumerate(zip(tokens_BT.tolist(), mask_BT.sum(1).tolist(), strict=True)):
        ended = tokens[length - 1] == tokenizer.eos_token_id
        text = tokenizer.decode(tokens[: length - ended])
        rewards.append(float(ended and verify(problems[row // group], text).right))
    return torch.tensor(rewards).view(len(problems), group)


def score(
    policy: PreTrainedModel, prompt_BS: Tensor, real_BS: Tensor, tokens_BT: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """logp_BT, log pi(y_t | x, y_<t) of the drawn tokens, and entropy_BT, H_t; both are 0 off the mask."""
    real_BL = torch.cat([real_BS, mask_BT], 1)
    position_BL = (real_BL.cumsum(1) - 1).clamp(min=0)
    logits_BLV = policy(torch.cat([prompt_BS, tokens_BT], 1), real_BL.long(), position_BL).logits
    # The logits in column c are of the token in column c + 1.
    logp_BTV = logits_BLV[:, prompt_BS.shape[1] - 1 : -1].log_softmax(-1)
    logp_BT = logp_BTV.gather(2, tokens_BT[:, :, None]).squeeze(2)
    entropy_BT = -(logp_BTV.exp() * logp_BTV).sum(2)  # Eq. (12): H_t = -sum_v pi(v | x, y_<t) log pi(v | x, y_<t)
    return logp_BT.where(mask_BT, 0.0), entropy_BT.where(mask_BT, 0.0)


def advantage(reward_PG: Tensor) -> Tensor:
    """GRPO: A = (R - mean) / (std + 1e-4) over the G completions of a prompt; one number per completion, advantage_B.

    In a group of equal rewards A is 0, and only the KL term has a gradient.
    """
    centered_PG = reward_PG - reward_PG.mean(1, keepdim=True)
    return (centered_PG / (reward_PG.std(1, keepdim=True) + 1e-4)).flatten()


def branch(entropy_BT: Tensor, mask_BT: Tensor, s: Settings) -> Tensor:
    """The guide of SAGE-Branch as log q_t; 0, that is q_t = 1, off the mask."""
    q_BT = 1 + s.ratio * (entropy_BT - s.threshold).relu()  # Eq. (11): q_t = 1 + ratio * ReLU(H_t - threshold)
    q_BT = q_BT.clamp(s.q_min, s.q_max)  # only in the authors' code; reached by Branch where H_t > 2.53 nats
    return q_BT.log().where(mask_BT, 0.0)


def objective(
    logp_BT: Tensor, old_BT: Tensor, ref_BT: Tensor, log_q_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, s: Settings
) -> Tensor:
    """The loss. Only `logp_BT`, log pi_theta, is in the graph: old, reference, q and advantage are constants of the update."""
    # Reward term, PPO's clipped ratio: raise pi(y_t) where A > 0 and lower it where A < 0, until the ratio leaves the interval.
    ratio_BT = (logp_BT - old_BT).exp()
    advantage_B1 = advantage_B[:, None]
    gain_BT = torch.minimum(ratio_BT * advantage_B1, ratio_BT.clamp(1 - s.clip, 1 + s.clip) * advantage_B1)

    # KL term. GRPO holds pi near pi_ref, SAGE near q pi_ref. Since q is a product over tokens, Eq. (7), the whole of SAGE is one
    # addition per token: log(q_t pi_ref(y_t)) = log pi_ref(y_t) + log q_t.
    anchor_BT = ref_BT + log_q_BT

    # Eq. (38), the estimator k3: r - 1 - log r with r = q_t pi_ref(y_t) / pi(y_t). expm1(x) is exp(x) - 1 without rounding errors
    # near 0. At each prefix the mean of k3 is D of Eq. (5) plus a constant. Its gradient is not that of D, because autograd takes
    # the sampled tokens as fixed: on the logits of a prefix it is (sum_v q pi_ref) pi - q pi_ref, which is the gradient of the
    # forward KL, and the optimum is not Eq. (4). Branch has one q_t for all next tokens of a prefix, which makes this
    # q_t (pi - pi_ref): Branch multiplies beta by q_t where the policy is uncertain, and the target stays pi_ref.
    # src/sage_rlvr/core/kl.py has the gradients of the other estimators.
    log_r_BT = anchor_BT - logp_BT
    k3_BT = log_r_BT.expm1() - log_r_BT

    # GRPO's average: the mean over the tokens of a completion, then the mean over completions.
    loss_BT = (-gain_BT + s.beta * k3_BT).where(mask_BT, 0.0)
    return (loss_BT.sum(1) / mask_BT.sum(1)).mean()


def train(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, s: Settings, guided: bool) -> None:
    """Train `policy` in place, by GRPO or, if `guided`, by SAGE-Branch."""
    key, problems = Key(s.seed), WORLDS["demo"].problems("train", 0, s.train_problems)
    reference = copy.deepcopy(policy).requires_grad_(False)  # pi_ref: the policy before training, fixed
    optimizer = torch.optim.AdamW(policy.parameters(), lr=s.lr, weight_decay=0.0)
    for step in range(s.steps):
        # 1. Prompts: pass after pass over the problems, each in another random order.
        places = range(step * s.prompts, (step + 1) * s.prompts)
        orders = {i // len(problems): key.permutation(i // len(problems), "prompts", len(problems)) for i in places}
        chosen = [problems[orders[i // len(problems)][i % len(problems)]] for i in places]
        prompt_BS, real_BS = encode(tokenizer, chosen, s.group)

        # 2. Completions from the current policy, and their rewards.
        uniform_BT = key.uniform64(step, "sample", torch.arange(len(prompt_BS)), torch.arange(s.max_new_tokens))
        tokens_BT, mask_BT = sample(policy, prompt_BS, real_BS, uniform_BT, tokenizer.eos_token_id)
        reward_PG = reward(tokenizer, chosen, tokens_BT, mask_BT)
        advantage_B = advantage(reward_PG)

        # 3. Constants of the update. q is computed once per rollout, from the policy that drew the completions, because the paper
        #    holds it fixed during an update (after Eq. 3). log q = 0 is GRPO.
        with torch.no_grad():
            old_BT, entropy_BT = score(policy, prompt_BS, real_BS, tokens_BT, mask_BT)
            ref_BT, _ = score(reference, prompt_BS, real_BS, tokens_BT, mask_BT)
            log_q_BT = branch(entropy_BT, mask_BT, s) if guided else torch.zeros_like(old_BT)

        # 4. The update. In the first epoch the ratio is 1 everywhere, so nothing is clipped and its gradient is that of log pi.
        for _ in range(s.epochs):
            logp_BT, _ = score(policy, prompt_BS, real_BS, tokens_BT, mask_BT)
            objective(logp_BT, old_BT, ref_BT, log_q_BT, advantage_B, mask_BT, s).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), s.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

        log_r_BT = ref_BT - old_BT
        kl = (log_r_BT.expm1() - log_r_BT)[mask_BT].mean()  # k3 to pi_ref itself, nats per token
        active = (log_q_BT != 0)[mask_BT].float().mean()
        print(f"step {step + 1:3d}  reward {reward_PG.mean():.3f}  KL {kl:.5f}  tokens with q != 1 {active:.1%}")


def evaluate(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: list[Problem], s: Settings, k: int = 8
) -> str:
    """pass@1 and pass@k from k completions per problem: the mean reward, and the fraction of problems solved at least once."""
    prompt_BS, real_BS = encode(tokenizer, problems, k)
    rows, columns = torch.arange(len(prompt_BS)), torch.arange(s.max_new_tokens)
    uniform_BT = Key(s.seed).uniform64(0, "evaluate", rows, columns)  # the same numbers before and after training
    reward_PG = reward(tokenizer, problems, *sample(policy, prompt_BS, real_BS, uniform_BT, tokenizer.eos_token_id))
    return f"pass@1 {reward_PG.mean():.3f}  pass@{k} {reward_PG.amax(1).mean():.3f}"


def main() -> None:
    """Train by the options of the command line, and evaluate on 128 test problems before and after."""
    parser = argparse.ArgumentParser(description="GRPO and SAGE-Branch in one file")
    parser.add_argument("--method", choices=("sage", "grpo"), default="sage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is so small that more threads mostly wait for each other
    s = Settings(steps=options.steps, seed=options.seed)
    tokenizer = AutoTokenizer.from_pretrained(embedded_policy())
    policy = AutoModelForCausalLM.from_pretrained(embedded_policy()).eval()
    problems = WORLDS["demo"].problems("test", 0, 128)
    before = evaluate(policy, tokenizer, problems, s)
    train(policy, tokenizer, s, guided=options.method == "sage")
    print(f"before training: {before}\nafter {s.steps} steps:  {evaluate(policy, tokenizer, problems, s)}")


if __name__ == "__main__":
    main()
