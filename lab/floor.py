"""The chance floor of Countdown: pass@k of guessers who write well-formed expressions over the numbers, all equally likely: any;
those without division; without brackets; without both. At each k the best of them is the floor.

    python -m lab floor             the two levels of the small transformer, and the two rooms of SmolLM2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.room.smollm2 import ROOMS, chance_of_room, read_room
from lab.room.worlds import EXPERIMENTS
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED
from sage_rlvr.results.tables import Table
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.verdicts.chance import Chance

WORLDS = {
    "easy": Countdown({4: 1.0}, max_number=9, max_target=20),
    "hard": Countdown({3: 0.5, 4: 0.5}, max_number=9, max_target=60, min_target=21),
}
DRAWS = 300  # what every experiment evaluates: independent draws of the test split, repeats kept


def evaluated(world: Countdown) -> list[tuple[tuple[int, ...], int]]:
    """Numbers and target of the test draws that the experiments evaluate."""
    return [(tuple(p.numbers), p.target) for p, _ in world.examples("test", EVALUATION_SEED, 0, DRAWS)]


GUESSERS = ("any expression", "no division", "no brackets", "neither")


def floor(world: Countdown, ks: Sequence[int]) -> list[float]:
    """pass@k of the best guesser on these draws."""
    return [chance_on(world).at(k) for k in ks]


def chance_on(world: Countdown) -> Chance:
    """The guessers on these draws: right expressions over all expressions of a problem, then 1 - (1 - p)^k."""
    drawn = [p for p, _ in world.examples("test", EVALUATION_SEED, 0, DRAWS)]
    chance = chance_of(world, drawn)
    assert chance is not None
    return chance


def table_of(chances: Mapping[str, Chance], ks: Sequence[int]) -> Table:
    """A row per guesser of each set of problems, and one for the floor."""
    rows = []
    for name, chance in chances.items():
        for guesser, shares in zip(GUESSERS, chance.guessers, strict=True):
            rows.append((name, guesser, *(f"{Chance(chance.law, shares).at(k):.3f}" for k in ks)))
        rows.append((name, "floor", *(f"{chance.at(k):.3f}" for k in ks)))
    return Table(header=("problems", "guesser", *(f"pass@{k}" for k in ks)), rows=tuple(rows))


@dataclass(frozen=True)
class Floor(Command):
    """Print pass@k of every guesser of the chance floor on the two Countdown levels and the two rooms of SmolLM2."""

    k: tuple[int, ...] = (1, 8, 32, 64, 256)
    """Sample counts."""

    def execute(self, session: Session) -> int:
        chances = {name: chance_on(world) for name, world in WORLDS.items()}
        for name, folder in ROOMS.items():
            chances[name] = chance_of_room(EXPERIMENTS / folder, read_room(EXPERIMENTS / folder))
        session.say(table_of(chances, self.k).markdown())
        for name, world in WORLDS.items():
            session.say(f"{name}: {DRAWS} draws, {len(set(evaluated(world)))} different problems")
        return 0
