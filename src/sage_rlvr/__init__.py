"""sage-rlvr: exploration in RLVR, from objectives to honest comparisons, on plain torch, TRL and verl.

    import sage_rlvr
    run = sage_rlvr.train("maxrl", steps=40)             also: sft, offline, evaluate, compare, report, sweep, demo, push
    sage_rlvr.evaluate(run)
    sage_rlvr.sage(sage_rlvr.grpo(beta=0.05), sage_rlvr.Branch("p80"))      methods, guides, and @sage_rlvr.guide for your own

Read core/ first (the arithmetic of a method), then methods/ (published methods), training/ (three engines), evaluation/
(stored samples and exact scores), stats/ and results/ (comparisons), render/ (reports) and sweeps/ (many runs). api/
has the functions above; config/, runs/ and cli/ hold recipes, run directories and the command line. Names are imported
at their first use: importing the package loads no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sage_rlvr.api import *
    from sage_rlvr.core import Anchor, Method, objective, shape
    from sage_rlvr.core.guides import *
    from sage_rlvr.methods import *
    from sage_rlvr.registry import register
    from sage_rlvr.tasks.base import Task

from sage_rlvr.extras import advice
from sage_rlvr.registry import HOMES, contributed, declared, registry_of

_HERE = Path(__file__).parent
_JOBS = ("Comparison", "Evaluation", "Run", "compare", "demo", "evaluate", "offline", "push", "report", "sft", "sweep", "train")
_HOME = {
    **dict.fromkeys(_JOBS, "sage_rlvr.api"),
    **dict.fromkeys(("Anchor", "Banded", "Guide", "Method", "objective", "shape"), "sage_rlvr.core"),
    **dict.fromkeys(declared(_HERE / "core" / "guides", "GUIDES"), "sage_rlvr.core"),
    **dict.fromkeys(declared(_HERE / "methods", "METHODS"), "sage_rlvr.methods"),
    **{name: module for module, _, name in (home.partition(":") for home in contributed("method").values())},
    "register": "sage_rlvr.registry",
    "Task": "sage_rlvr.tasks.base",
}
__all__ = sorted([*_HOME, *HOMES, "__version__"])  # @sage_rlvr.guide registers a guide, and so for every kind of part


def __getattr__(name: str) -> Any:
    """Load a name at its first use: importing the package is cheap, and torch is imported with the first name."""
    import importlib  # here and below: importing the package is cheap

    if name == "__version__":
        return _version()
    if name not in HOMES and name not in _HOME:
        raise AttributeError(f"module 'sage_rlvr' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return registry_of(name).register if name in HOMES else getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if needs := advice(error):
            raise ModuleNotFoundError(f"sage_rlvr.{name} {needs}", name=error.name) from error
        raise


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib import metadata  # slow to load

    try:
        return metadata.version("sage-rlvr")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "0+source"
