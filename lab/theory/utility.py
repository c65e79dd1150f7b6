"""The two axes of the field, computed for any method: how much it weighs a prompt, and which right answers it prefers.

For rewards 0 and 1 and on-policy samples the expected gradient of the reward term is, for every advantage,

    (1/G) sum_i E[A_i grad log pi(y_i)] = sum_y (E[A | y] - E[A]) pi(y) grad log pi(y)

Where A sees rewards alone, E[A | y] depends on whether y is right, and the sum is f'(P) grad P with f'(P) = E[A | right] - E[A |
wrong] (axis I: between prompts). Where it sees answers or log-probs, E[A | y] - E[A | y'] of two right answers is a preference
(axis II: within a prompt). All sums run over all groups; nothing is sampled. Surrogate, token weights, reduction and KL are not
in it: it is the first update of a rollout, one row per completion. A buffer is taken as full: it holds every right answer. A
rollout plan is not in it either, because one that draws other prompts for the groups it drops scales all prompts alike; one with
a second stage does not and is in it, its sum over both stages divided by the G of the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from lab.theory.averages import Listing, averages, sees_stages
from lab.theory.stored import stored_loss
from sage_rlvr.contrib.methods.clip_cov import KlCov
from sage_rlvr.contrib.methods.pacs import Pacs
from sage_rlvr.core.advantages import Advantage, GroupSignals
from sage_rlvr.core.method import Method, group_advantages, plain_advantages
from sage_rlvr.core.rollout_plans import is_staged
from sage_rlvr.core.signals import Signals
from sage_rlvr.core.state import start_of
from sage_rlvr.errors import ConfigError

MOST_GROUPS = 200_000
RIGHT, WRONG = (0.6, 0.3, 0.1), (0.6, 0.4)
"""Of the probe prompt: shares of its right answers among right completions, and of its wrong ones among wrong ones."""
PROBE = [True, True, True, False, False]
SHARES = (0.05, 0.2, 0.5, 0.8)
"""P(right) of the probe prompts of `axes`."""


def _paid(part: Method | Advantage, rewards: torch.Tensor, seen: GroupSignals) -> torch.Tensor:
    """Advantages of groups, by a method or by an advantage alone, with their state at its start, as they are at the first step."""
    if isinstance(part, Method):
        return group_advantages(part.at(0, 1), rewards, seen, part.start())[0]
    part = part.at(0, 1)
    return plain_advantages(part, rewards, seen, start_of({"advantage": part}), ())[0]


def slope(part: Method | Advantage, p: float, group_size: int) -> float:
    """f'(p): E[A | right] - E[A | wrong] over the other G - 1 completions, of a part that sees rewards alone.

    For an advantage that couples prompts the step is this one prompt. ConfigError for a p outside (0, 1).
    """
    if not 0 < p < 1:
        raise ConfigError(f"p = {p!r}; the chance of a right completion lies between 0 and 1.")
    right = values(part, [p, 1 - p], [p, 1 - p], [True, False], group_size)
    return right[0] - right[1]


def values(
    part: Method | Advantage,
    policy: Sequence[float],
    reference: Sequence[float],
    right: Sequence[bool],
    group_size: int,
) -> list[float]:
    """E[A | y] - E[A] of each answer y of one prompt whose completions are its answers, exact over all groups.

    policy, reference: probabilities of the answers, each summing to 1. ConfigError where there are too many groups to list.
    """
    n = len(policy)
    if isinstance(part, Method) and is_staged(part.rollout):
        return _staged(part, sum(p for p, solves in zip(policy, right, strict=True) if solves), right, group_size)
    if math.comb(n + group_size - 2, n - 1) > MOST_GROUPS:
        raise ConfigError(
            f"{n} answers in groups of {group_size} have too many compositions; take fewer answers or a smaller group."
        )
    others = torch.tensor(list(itertools.combinations_with_replacement(range(n), group_size - 1)))
    counts = torch.stack([(others == y).sum(1) for y in range(n)], 1).double()
    log_chance = math.lgamma(group_size) - torch.lgamma(counts + 1).sum(1)
    chance = (log_chance + torch.special.xlogy(counts, torch.tensor(policy, dtype=torch.float64)).sum(1)).exp()
    logs, refs = torch.tensor(policy).log(), torch.tensor(reference).log()
    rewards = torch.tensor([float(one) for one in right])
    found = []
    for own in range(n):
        ids = torch.cat([torch.full((len(others), 1), own), others], 1)
        of_right = (refs.exp() * rewards).sum().log().expand(ids.shape)
        seen = GroupSignals(torch.ones_like(ids), logs[ids], refs[ids], ids + 1, torch.ones_like(ids), of_right)
        found.append(float((chance * _first(part, rewards[ids], seen)).sum()))
    if isinstance(part, Method) and part.buffer is not None:
        found = _with_stored(part, found, logs, refs, rewards)
    mean = sum(p * v for p, v in zip(policy, found, strict=True))
    return [v - mean for v in found]


def _staged(method: Method, p: float, right: Sequence[bool], group_size: int) -> list[float]:
    """E[A | y] - E[A] with a second stage: advantages summed over both, over the completions of the first."""
    outcomes = averages(method, torch.tensor([[0.0], [1.0]], dtype=torch.float64), group_size)
    means, copies = outcomes.at(torch.tensor([[1 - p, p]]))
    wrong_one, right_one = (means * copies)[0].tolist()
    mean = p * right_one + (1 - p) * wrong_one
    return [(right_one if solves else wrong_one) - mean for solves in right]


def _with_stored(
    method: Method, found: list[float], logs: torch.Tensor, refs: torch.Tensor, rewards: torch.Tensor
) -> list[float]:
    """E[A | y], and the force on log pi(y) over pi(y) of a buffer that holds every right answer of a rollout at this policy."""
    assert method.buffer is not None
    one = torch.ones(len(logs), 1, dtype=torch.bool)
    signals = Signals(logs[:, None], refs[:, None], one, torch.arange(len(logs)))
    leaf = logs[:, None].clone().requires_grad_(True)
    listing = Listing(signals, logs.exp(), rewards)
    loss = method.buffer.weight_at(0, 1) * stored_loss(method.buffer, listing, leaf, torch.tensor(found), 1)
    force = -torch.autograd.grad(loss, leaf)[0][:, 0] / logs.exp()
    own = torch.zeros(len(found)) if method.is_replay_only else torch.tensor(found)
    return [float(value) for value in own + force]


def _first(part: Method | Advantage, rewards: torch.Tensor, seen: GroupSignals) -> torch.Tensor:
    """(K,) the first member's advantage, float64; each group a step of its own where the advantage couples prompts."""
    advantage = part.advantage if isinstance(part, Method) else part
    if not advantage.couples_prompts:
        return _paid(part, rewards, seen)[:, 0].double()
    rows = [_paid(part, row[None], GroupSignals(seen.lengths[:1], seen.policy[:1]))[0, 0] for row in rewards]
    return torch.stack(rows).double()


@dataclass(frozen=True)
class Axes:
    """What a method's reward term weighs.

    weights        f'(P) at `SHARES`: how much a prompt with that P(right) counts, in units of RLOO's
    concentration  d log(likeliest / rarest right answer) under a step on the logits, over that of REINFORCE at the same
                   E[A | right] - E[A]: 1, the rich get richer as fast as REINFORCE makes them; below 0, the rare gain on the likely
    returning      the same where the reference is uniform over the right answers: lower than `concentration`, the reward term
                   leads back to the reference's shares by itself
    moves          the same gradient whole, values of the probe prompt's answers at each of `SHARES`
    """

    weights: tuple[float, ...]
    concentration: float
    returning: float
    moves: tuple[float, ...]


def axes(part: Method | Advantage, group_size: int = 8) -> Axes:
    """Both axes of a method, on probe prompts with three right and two wrong answers, policy = reference."""
    laws = [[p * share for share in RIGHT] + [(1 - p) * share for share in WRONG] for p in SHARES]
    found = [values(part, law, law, PROBE, group_size) for law in laws]
    slopes = (_mean(RIGHT, own[:3]) - _mean(WRONG, own[3:]) for own in found)
    middle = SHARES.index(0.5)
    even = [0.5 / 3] * 3 + laws[middle][3:]
    back = values(part, laws[middle], even, PROBE, group_size)
    concentration, returning = (_concentration(laws[middle], own) for own in (found[middle], back))
    return Axes(tuple(slopes), concentration, returning, tuple(v for own in [*found, back] for v in own))


def _mean(shares: Sequence[float], found: Sequence[float]) -> float:
    return sum(s * v for s, v in zip(shares, found, strict=True))


def _concentration(law: Sequence[float], found: Sequence[float]) -> float:
    """d log(pi_0 / pi_2) under a gradient step on the logits over E[A | right] - E[A], in units of REINFORCE's.

    `found` is centered over the law. The divisor is dP / P of a natural-gradient step, not of the step on the logits."""
    return (law[0] * found[0] - law[2] * found[2]) / ((law[0] - law[2]) * _mean(RIGHT, found[:3]))


def has_axes(method: Method) -> bool:
    """Whether the first update of a method is its advantages' gradient: not where labels are fitted, tokens weighed or a
    term added, or where no verifier says 0 and 1; whether it is that of one prompt: not where prompts are coupled; and whether
    the next is too: not where a part has a memory. KL-Cov's term is 0 there."""
    first = all(isinstance(extra, KlCov) or not extra.adds_loss for extra in method.extras)
    plain = method.token_weight is None and first and method.reward_source is None
    coupled = method.advantage.couples_prompts
    if is_staged(method.rollout):
        coupled = coupled or not sees_stages(method) or method.buffer is not None
    return plain and not coupled and not isinstance(method.surrogate, Pacs) and not method.start()


def same_objectives(found: Iterable[tuple[str, Axes]]) -> list[list[tuple[str, float]]]:
    """Methods whose expected gradients are one another's multiples, with the factor to the first of each group.

    A factor c is a beta that acts as beta / c. Groups of one are left out.
    """
    groups: list[list[tuple[str, float, Axes]]] = []
    for name, one in found:
        for group in groups:
            factor = _factor(one.moves, group[0][2].moves)
            if factor is not None:
                group.append((name, factor, one))
                break
        else:
            groups.append([(name, 1.0, one)])
    return [[(name, factor) for name, factor, _ in group] for group in groups if len(group) > 1]


def _factor(moves: Sequence[float], others: Sequence[float]) -> float | None:
    """c with moves = c * others to float rounding; None where there is none."""
    largest = max(range(len(others)), key=lambda i: abs(others[i]))
    if not others[largest]:
        return None
    factor = moves[largest] / others[largest]
    same = all(math.isclose(a, factor * b, rel_tol=1e-4, abs_tol=1e-5) for a, b in zip(moves, others, strict=True))
    return factor if same and factor > 0 else None
