"""sage-rlvr: exploration in RLVR, from objectives to honest comparisons, on plain torch, TRL and verl.

    import sage_rlvr
    run = sage_rlvr.train("maxrl", steps=40)             also: sft, offline, evaluate, widen, compare, report,
                                                         browse, sweep, demo, push
    sage_rlvr.evaluate(run)
    sage_rlvr.sage(sage_rlvr.grpo(beta=0.05), sage_rlvr.Branch("p80"))      methods, guides, and @sage_rlvr.guide for yours

Read core/ first (the arithmetic of a method), then methods/ (published methods), training/ (three engines), evaluation/
(stored samples and exact scores), verdicts/ (rows and comparisons), results/ (run folders as rows), render/ (reports) and
sweeps/ (many runs). api/ has the functions above; config/, runs/ and cli/ contain recipes, run directories and the command line.
Names are imported at their first use: importing the package loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sage_rlvr.names import PARTS, REGISTRIES

if TYPE_CHECKING:
    from sage_rlvr.api.browse import browse
    from sage_rlvr.api.compare import Comparison, compare
    from sage_rlvr.api.evaluate import Evaluation, evaluate
    from sage_rlvr.api.push import push
    from sage_rlvr.api.report import report
    from sage_rlvr.api.sweep import demo, sweep
    from sage_rlvr.api.train import Run, offline, sft, train
    from sage_rlvr.api.widen import widen
    from sage_rlvr.core import Anchor, Method, Place, Random, Rarity, Token, objective, shape
    from sage_rlvr.core.guides import *
    from sage_rlvr.methods import *
    from sage_rlvr.registry import register
    from sage_rlvr.tasks.base import Task

_JOBS = {
    "compare": ("Comparison", "compare"), "evaluate": ("Evaluation", "evaluate"), "push": ("push",), "report": ("report",),
    "sweep": ("demo", "sweep"), "train": ("Run", "offline", "sft", "train"), "browse": ("browse",), "widen": ("widen",),
}  # fmt: skip
_PARTS = [*PARTS["guide"].values(), *PARTS["method"].values()]
_HOME = {
    **{name: f"sage_rlvr.api.{file}" for file, names in _JOBS.items() for name in names},
    **dict.fromkeys(("Anchor", "Banded", "Guide", "Method", "objective", "shape"), "sage_rlvr.core"),
    **{name: module for module, _, name in (home.partition(":") for home in _PARTS)},
    "register": "sage_rlvr.registry",
    "Task": "sage_rlvr.tasks.base",
}
__all__ = sorted([*_HOME, *REGISTRIES, "__version__"])  # @sage_rlvr.guide registers a guide, and so for every kind of part


def __getattr__(name: str) -> Any:
    """Load a name at its first use: importing the package is cheap, and torch is imported with the first name."""
    import importlib  # here and below: importing the package is cheap

    from sage_rlvr.extras import advice

    if name == "__version__":
        return _version()
    if name not in REGISTRIES and name not in _HOME:
        raise AttributeError(f"module 'sage_rlvr' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        if name in REGISTRIES:
            return importlib.import_module("sage_rlvr.registry").registry_of(name).register
        return getattr(importlib.import_module(_HOME[name]), name)
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
