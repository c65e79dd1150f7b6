"""The extras of pyproject.toml: which imports each installs, and the message for a missing import."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "train": ("torch", "transformers", "tokenizers", "safetensors", "pyarrow", "jaxtyping", "httpx2", "tenacity"),
    "trl": ("trl", "peft", "accelerate", "datasets"),
    "verl": ("verl", "transfer_queue", "cachetools", "fastapi", "uvicorn"),
    "vllm": ("vllm",),
    "tasks": ("reasoning_gym",),
    "trackers": ("tensorboard", "trackio", "wandb"),
}  # extra: the modules that it installs and this package imports; a test compares them with pyproject.toml


def missing(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if not _is_installed(name)]


def advice(error: ImportError) -> str | None:
    """The message with the command that installs the missing module. None if no extra has the module, or if the module is installed
    and fails for another reason."""
    for extra, modules in EXTRAS.items():
        if error.name in modules and not _is_installed(error.name):
            return f"needs {error.name}, which is not installed; run: pip install 'sage-rlvr[{extra}]'"
    return None


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: a module in sys.modules without a spec
        return False
