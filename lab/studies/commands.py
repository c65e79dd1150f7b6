"""Commands of the studies: `python -m lab anchor|guides|shared|ablation|map`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Anchor(Command):
    """Check the paper's claims exactly, and map what every KL term descends.

    Both are measured on the real policy too. Prints each claim with both sides and its verdict. Exit code 2 if a claim
    comes out other than it should."""

    out: Path = RUNS / "theory"
    """Where theory.json, theory.md and the pictures go."""
    lab: bool = True
    """Leave out the measurement on the Countdown policy, which takes most of the time."""
    policy: str | None = None
    """A run directory or model folder to measure there (default: the shipped base after some steps without a KL)."""
    problems: int = 5
    """Problems of the lab; each takes some ten seconds without draws."""
    draws: int = 256
    """Completions drawn per problem for the variances of the lab; 0 leaves them out."""
    docs: Path | None = None
    """Also make the tables and pictures of anchor.md in this folder of pages (lab/pages)."""

    def execute(self, session: Session) -> int:
        from lab.studies.anchor.command import find, print_findings, write, write_docs

        if self.docs is not None and not (self.docs / "concepts" / "anchor.md").is_file():
            raise ConfigError(f"--docs {self.docs}: there is no concepts/anchor.md; name lab/pages")
        self._check_lab()
        options = {"policy": self.policy, "problems": self.problems, "draws": self.draws}
        found = find(lab=self.lab, say=session.note, **(options if self.lab else {}))
        print_findings(found, session.out)
        paths = write(found, self.out)
        if self.docs is not None:
            paths += write_docs(found, self.docs)
        session.say("\nwritten: " + "  ".join(map(str, paths)))
        return 0 if found.as_expected else 2

    def _check_lab(self) -> None:
        """What would otherwise be refused after the claims were computed."""
        changed = self.changed("policy", "problems", "draws")
        if changed and not self.lab:
            raise ConfigError(f"{changed}: settings of the lab, and --no-lab leaves the lab out; drop one or the other")
        if self.problems < 1 or self.draws < 0:
            raise ConfigError(
                f"--problems {self.problems} --draws {self.draws}: give at least 1 problem, and 0 draws or more"
            )
        if self.docs is not None and changed:
            raise ConfigError(
                f"--docs {self.docs} with {changed}: the pages show the lab as it is by default; leave one out"
            )
        if self.policy == "embedded":
            raise ConfigError(
                "--policy embedded: it is the lab's reference, from which every KL is 0; name a trained run, or leave it out"
            )
        if self.policy is not None:
            from sage_rlvr.api.evaluate import target_of
            from sage_rlvr.models.policy import load_policy

            load_policy(target_of(self.policy, None).model)


@dataclass(frozen=True)
class Guides(Command):
    """Hold all guides against each other at equal KL, and against the best q there is.

    It says what any guide would do to a trained policy if Eq. (4) were reached. On the enumerable Countdown world. Variants
    are chosen on validation problems and shown on test problems."""

    policy: tuple[str, ...] = ("embedded",)
    """Run directories or model folders; each gets its own tables."""
    problems: int = 100
    """Of validation, and as many of test."""
    samples: int = 512
    """Completions drawn per problem, for the wrong ones; the right ones are listed."""
    draw: Literal["iid", "without-replacement"] = "iid"
    """iid: independent draws from the world's own law; without-replacement: all problems of a split equally likely, none twice."""
    budgets: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """KL(policy with the guide || policy), nats per completion."""
    seed: int = 1
    """Of the problems and of the draws."""
    out: Path = RUNS / "guides"
    """Where guides.json, guides.md and guides.png go."""
    docs: Path | None = None
    """Also make the tables and pictures of anchor.md in this folder of pages (lab/pages)."""

    def execute(self, session: Session) -> int:
        from lab.studies.guides import command as guides
        from lab.studies.guides.measure import one_thread, run_guide_lab
        from sage_rlvr.api.evaluate import target_of

        if self.docs is not None and not (self.docs / "results" / "guides.md").is_file():
            raise ConfigError(f"--docs {self.docs}: there is no results/guides.md; name lab/pages")
        one_thread()
        options = {name: getattr(self, name) for name in ("problems", "samples", "draw", "budgets", "seed")}
        results = [run_guide_lab(target_of(name, None), progress=session.note, **options) for name in self.policy]
        for result in results:
            for name, table in guides.tables(result).items():
                session.out.print(f"\n{result.policy}: {name}\n", style="bold")
                session.say(table)
            session.out.print("")
            session.say(*guides.sentences(result))
        paths = guides.write(results, self.out)
        if self.docs is not None:
            paths += guides.write_docs(results, self.docs)
        session.say("\nwritten: " + "  ".join(map(str, paths)))
        return 0


@dataclass(frozen=True)
class Shared(Command):
    """Ask objectives what they do to coverage where prompts share parameters.

    Whether a reverse KL lets go at once where a forward KL slides; which objective keeps most pass@256 at equal pass@1; whether a
    policy that cannot represent ref exp(r / beta) keeps the base's shares among right answers. Exact, on several drawn worlds;
    every claim with both sides, its difference with an interval over worlds, and its verdict."""

    worlds: int = 3
    """How many; each takes ten minutes and more on one core."""
    out: Path = RUNS / "shared"
    """Where world-N.json go; the same command goes on from those that are there."""
    docs: Path | None = None
    """Also make the tables of results/shared.md and its picture in this folder of pages (lab/pages)."""

    def execute(self, session: Session) -> int:
        from lab.studies.shared.command import facts, made, write_docs
        from lab.studies.shared.measure import find
        from sage_rlvr.api.printed import print_table

        if self.worlds < 2:
            raise ConfigError(f"--worlds {self.worlds}: an interval over worlds needs at least 2")
        if self.docs is not None and not (self.docs / "results" / "shared.md").is_file():
            raise ConfigError(f"--docs {self.docs}: there is no results/shared.md; name lab/pages")
        found = find(self.worlds, self.out, session.note)
        session.say(facts(found))
        for table in made(found).values():
            print_table(session.out, table)
        if self.docs is not None:
            session.say("written: " + "  ".join(map(str, write_docs(found, self.docs))))
        return 0


@dataclass(frozen=True)
class Ablation(Command):
    """Show that each part of each recipe acts: a few steps, each part against its neutral element.

    Prints, for each part, its own metric, the tokens whose force it changed, and how far it moved the gradient. Exit code 2 where a
    part changed nothing and no proof says that it must be so. The numbers are no findings."""

    recipes: tyro.conf.Positional[tuple[str, ...]] = ()
    """Shipped recipes by name (default: all of Countdown that have a method)."""
    out: Path = RUNS / "parts"
    """Where NAME.json go; recipes that are there and have not changed are not run again."""
    docs: Path | None = None
    """Also make the table of results/parts.md in this folder of pages (lab/pages)."""

    def execute(self, session: Session) -> int:
        from lab.studies import parts
        from sage_rlvr.api.printed import print_table

        if self.docs is not None and (self.recipes or not (self.docs / "results" / "parts.md").is_file()):
            raise ConfigError(f"--docs {self.docs}: it takes all recipes, and a docs folder with results/parts.md")
        rows = parts.find(self.recipes or parts.trained(), self.out, session.note)
        print_table(session.out, parts.table(rows))
        idle = [row for row in rows if not row.acted and row.part not in parts.PROVEN]
        session.say(*(f"{row.recipe}: {row.field} {row.part} did not act" for row in idle))
        if self.docs is not None:
            session.say("written: " + "  ".join(map(str, parts.write_docs(rows, self.docs))))
        return 2 if idle else 0


@dataclass(frozen=True)
class Map(Command):
    """List the methods: parts, the two axes of what each maximizes, and the engines that run it.

    f'(P) says how much a prompt counts whose answers are right with probability P, in units of RLOO's. Concentration says how
    fast likely right answers gain on rare ones at the same E[A | right] - E[A]: 1 as REINFORCE, below 0 the rare gain. Returning
    is the same where the reference is uniform over right answers. All are computed over every group of 8, none is typed."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Some methods alone."""
    support: bool = False
    """Also train each on small trees to equal P(right), and count the right answers it kept, gained and lost; some minutes."""
    docs: Path | None = None
    """Also write results/map.md and its picture in this folder of pages (lab/pages), of all methods; with --support
    results/support.md too."""

    def execute(self, session: Session) -> int:
        from lab.studies import supports
        from lab.studies.objectives import placed, same, table, write_docs
        from sage_rlvr.api.printed import print_table

        if self.names and self.docs is not None:
            raise ConfigError(f"--docs {self.docs}: its pages list all methods; leave out {', '.join(self.names)}")
        found = placed(self.names)
        print_table(session.out, table(found))
        session.say(*(f"the same reward term in expectation: {line}" for line in same(found)))
        paths = [] if self.docs is None else write_docs(found, self.docs)
        if self.support:
            counted = supports.supported((one.name, one.method) for one in found)
            print_table(session.out, supports.table(counted))
            paths += [] if self.docs is None else supports.write_docs(counted, self.docs)
        if paths:
            session.say("written: " + "  ".join(map(str, paths)))
        return 0
