"""Commands of the laboratory, run from a clone: `python -m lab COMMAND [OPTIONS]`; `python -m lab` lists them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import SageError

COMMANDS = {
    "anchor": "lab.studies.commands:Anchor",
    "guides": "lab.studies.commands:Guides",
    "shared": "lab.studies.commands:Shared",
    "ablation": "lab.studies.commands:Ablation",
    "map": "lab.studies.commands:Map",
    "engines": "lab.engines:Engines",
    "published": "lab.published.command:Published",
    "published-rewards": "lab.published_rewards:PublishedRewards",
    "authors-yaml": "lab.authors_yaml.command:AuthorsYaml",
    "register": "lab.register.command:Register",
    "designs": "lab.register.command:Designs",
    "floor": "lab.floor:Floor",
    "no-reward": "lab.no_reward:NoReward",
    "hull": "lab.hull:Hull",
    "false-verdicts": "lab.false_verdicts:FalseVerdicts",
    "room": "lab.room.command:Room",
    "counts": "lab.counts:Counts",
    "demo-power": "lab.demo_power:DemoPower",
    "summary": "lab.summary:Summary",
    "primaries": "lab.primaries:Primaries",
    "study": "lab.study:Study",
    "place": "lab.place:Place",
    "unlocked": "lab.unlocked:Unlocked",
    "base-again": "lab.base_again.command:BaseAgain",
    "dataset": "lab.dataset:Dataset",
    "tangent": "lab.tangent:Tangent",
    "casebook": "lab.casebook.command:Casebook",
    "gpu": "lab.gpu:Gpu",
    "smollm2-adapter": "lab.smollm2_adapter:Adapter",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0 done, 2 for an error whose message says what to do."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] not in COMMANDS:
        print("usage: python -m lab COMMAND [OPTIONS]\n")
        for name in COMMANDS:
            print(f"  {name:<18}{(command_class(name).__doc__ or '').partition(chr(10))[0]}")
        return 0 if args in ([], ["--help"]) else 2
    session = Session()
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    command = tyro.cli(command_class(args[0]), prog=f"python -m lab {args[0]}", args=args[1:], config=style)
    try:
        return command.execute(session)
    except SageError as error:
        session.note(error)
        return 2


def command_class(name: str) -> type[Command]:
    """The class of a command, a key of `COMMANDS`."""
    module, _, kind = COMMANDS[name].partition(":")
    found: type[Command] = getattr(importlib.import_module(module), kind)
    return found


if __name__ == "__main__":
    sys.exit(main())
