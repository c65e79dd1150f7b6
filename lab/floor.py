"""The chance floor of Countdown: pass@k of a guesser who writes well-formed expressions over the numbers, all equally likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import Countdown

WORLDS = {
    "easy": Countdown({4: 1.0}, max_number=9, max_target=20),
    "hard": Countdown({3: 0.5, 4: 0.5}, max_number=9, max_target=60, min_target=21),
}
DRAWS = 300  # what every experiment evaluates: independent draws of the test split, repeats kept


def evaluated(world: Countdown) -> list[tuple[tuple[int, ...], int]]:
    """Numbers and target of the test draws that the experiments evaluate."""
    return [(tuple(p.numbers), p.target) for p, _ in world.examples("test", EVALUATION_SEED, 0, DRAWS)]


def floor(world: Countdown, ks: Sequence[int]) -> list[float]:
    """pass@k of the guesser on these draws: right expressions over all expressions of a problem, then 1 - (1 - p)^k."""
    drawn = [p for p, _ in world.examples("test", EVALUATION_SEED, 0, DRAWS)]
    chance = chance_of(world, drawn)
    assert chance is not None
    return [chance.at(k) for k in ks]


@dataclass(frozen=True)
class Floor(Command):
    """Print the chance floor of the two Countdown levels: pass@k of a uniform guesser over well-formed expressions."""

    k: tuple[int, ...] = (1, 8, 64, 256)
    """Sample counts."""

    def execute(self, session: Session) -> int:
        for name, world in WORLDS.items():
            found = "  ".join(f"pass@{k} {value:.3f}" for k, value in zip(self.k, floor(world, self.k), strict=True))
            session.say(f"{name:<6}{found}  ({DRAWS} draws, {len(set(evaluated(world)))} different problems)")
        return 0
