"""Where the recipes lie: in the repository's recipes/, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

from sage_rlvr.errors import ConfigError


def recipe(name: str, family: str = "countdown") -> Path:
    """The path of a shipped recipe, e.g. recipe("grpo.yaml"). `ConfigError` lists what there is instead."""
    package = Path(__file__).resolve().parent
    folders = [package / "assets" / "recipes" / family, package.parents[1] / "recipes" / family]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    there = sorted(p.name for folder in folders for p in folder.glob("*.yaml"))
    raise ConfigError(f"no recipe {name!r} in {family}; there are {', '.join(there) or 'none'}")
