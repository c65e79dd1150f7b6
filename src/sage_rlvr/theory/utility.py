"""The two axes of the field, computed for any advantage: which utility of P(right) it ascends, and which right answers it prefers.

For rewards 0 and 1 and on-policy samples the expected gradient of the reward term is, for every advantage,

    (1/G) sum_i E[A_i grad log pi(y_i)] = sum_y (E[A | y] - E[A]) pi(y) grad log pi(y)

Where A sees rewards alone, E[A | y] depends on whether y is right, and the sum is f'(P) grad P with f'(P) = E[A | right] - E[A |
wrong]: `slope` (axis I). Where it sees answers or log-probs, E[A | y] - E[A | y'] for two right answers is a preference
between them: `preference` (axis II). Both are sums over all groups, none is sampled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from sage_rlvr.core.advantages import Advantage, Seen
from sage_rlvr.errors import ConfigError

MOST_GROUPS = 200_000


def slope(advantage: Advantage, p: float, group_size: int) -> float:
    """f'(p) of an advantage that sees rewards alone: E[A | right] - E[A | wrong] over the other G - 1 completions.

    For an advantage that couples prompts the step is this one prompt. ConfigError for a p outside (0, 1).
    """
    if not 0 < p < 1:
        raise ConfigError(f"p = {p!r}; the chance of a right completion lies between 0 and 1.")
    found = 0.0
    for right in range(group_size):
        chance = math.comb(group_size - 1, right) * p**right * (1 - p) ** (group_size - 1 - right)
        rows = torch.zeros(2, group_size)
        rows[:, 1 : right + 1] = 1.0
        rows[0, 0] = 1.0
        gained = torch.cat([advantage(row[None]) for row in rows])[:, 0].double()
        found += chance * float(gained[0] - gained[1])
    return found


def values(
    advantage: Advantage, policy: Sequence[float], reference: Sequence[float], right: Sequence[bool], group_size: int
) -> list[float]:
    """E[A | y] - E[A] of each answer y of one prompt whose completions are its answers, exact over all groups.

    policy, reference: probabilities of the answers, each summing to 1. ConfigError where there are too many groups to list.
    """
    n = len(policy)
    if math.comb(n + group_size - 2, n - 1) > MOST_GROUPS:
        raise ConfigError(f"{n} answers in groups of {group_size} have too many compositions; take fewer answers or a smaller group.")
    sees = getattr(advantage, "needs", None) is not None
    logs, refs = torch.tensor(policy).log(), torch.tensor(reference).log()
    rewards = torch.tensor([float(one) for one in right])
    found = torch.zeros(n, dtype=torch.float64)
    for others in itertools.combinations_with_replacement(range(n), group_size - 1):
        counts = [others.count(y) for y in range(n)]
        chance = math.factorial(group_size - 1) * math.prod(p**c / math.factorial(c) for p, c in zip(policy, counts, strict=True))
        ids = torch.tensor([[y, *others] for y in range(n)])
        seen = Seen(torch.ones_like(ids), logs[ids], refs[ids], ids)
        found += chance * (advantage(rewards[ids], seen) if sees else advantage(rewards[ids]))[:, 0].double()
    return (found - (found * torch.tensor(policy, dtype=torch.float64)).sum()).tolist()
