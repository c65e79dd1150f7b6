"""The extras of pyproject.toml: which imports each installs, the command for it, and the message for a missing import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

EXTRAS = {
    "train": ("torch", "transformers", "tokenizers", "safetensors", "jaxtyping", "httpx2", "tenacity"),
    "trl": ("trl", "peft", "accelerate", "datasets"),
    "verl": ("verl", "transfer_queue", "cachetools", "fastapi", "uvicorn", "hydra"),
    "vllm": ("vllm",),
    "tasks": ("reasoning_gym",),
    "trackers": ("tensorboard", "trackio", "wandb"),
}  # extra: the modules that it installs and this package imports; a test compares them with pyproject.toml


CPU_TORCH = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
"""The build without CUDA, which saves gigabytes; a test compares its version with constraints.txt."""


def install(extra: str) -> str:
    """Return the command that installs an extra from a clone, with the versions that were tested: no index has this package."""
    constraints = "constraints-verl.txt" if extra == "verl" else "constraints.txt"
    first = "" if _is_installed("torch") else f" (without a GPU first: {CPU_TORCH})"
    return f"run, in the clone: pip install -c {constraints} -e '.[{extra}]'{first}"


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if not _is_installed(name)]


def advice(error: ImportError) -> str | None:
    """Return the message with the command that installs the missing module.

    None if no extra has the module, or if the module is installed and fails for another reason.
    """
    for extra, modules in EXTRAS.items():
        if error.name in modules and not _is_installed(error.name):
            return f"needs {error.name}, which is not installed; {install(extra)}"
    return None


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, whose ModuleNotFoundError for a module of an extra has the command that installs it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            if needs := advice(error):
                raise ModuleNotFoundError(f"sage_rlvr.{function.__name__} {needs}", name=error.name) from error
            raise

    return call


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: a module in sys.modules without a spec
        return False
