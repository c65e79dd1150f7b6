"""What every engine shares: the policy and its tokens, and the watch on a guide that does nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sage_rlvr.config import TrainConfig
from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.models.folders import ADAPTER, ADAPTER_WEIGHTS, EMBEDDED, adapter_base, folder_of
from sage_rlvr.models.sampler import Rollout
from sage_rlvr.runs import file_sha256
from sage_rlvr.tasks.base import NO_ANSWER


@dataclass(frozen=True)
class Tokens:
    """A tokenizer as the engines need it: text to ids and back.

    eos_id: the end that training data get. eos_ids: all tokens that end a sampled completion, eos_id the first of them.
    """

    tokenizer: PreTrainedTokenizerBase
    eos_id: int
    pad_id: int
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos_ids", tuple(dict.fromkeys((self.eos_id, *self.eos_ids))))

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, model: Any = None) -> Tokens:
        """Of a tokenizer and, where given, the model whose generation_config may declare more end tokens.

        Raises `ConfigError` where the tokenizer has no end token.
        """
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; set `eos_token` on it and save it again"
            )
        pad = tokenizer.pad_token_id
        declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        more = [] if declared is None else [declared] if isinstance(declared, int) else declared
        eos = int(tokenizer.eos_token_id)
        return cls(tokenizer, eos, eos if pad is None else int(pad), tuple(int(end) for end in more))

    @cached_property
    def known(self) -> frozenset[int]:
        """The ids that have a text; a model's vocabulary is often padded beyond them."""
        return frozenset(self.tokenizer.get_vocab().values())

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The start token, where the tokenizer puts one before plain text by itself; else nothing."""
        first = list(self.tokenizer("")["input_ids"])[:1]
        return tuple(first) if first and first[0] == self.tokenizer.bos_token_id else ()

    def encode_prompt(self, text: str) -> list[int]:
        """A prompt, opened as the tokenizer opens a text; a start token that the text already spells is not doubled."""
        ids = self.encode(text)
        return ids if tuple(ids[: len(self.opening)]) == self.opening else [*self.opening, *ids]

    def encode(self, text: str) -> list[int]:
        """A text in the middle of another, such as a completion: nothing added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def texts(self, rollout: Rollout) -> list[str]:
        """Completions as `decode` gives them."""
        rows = [row[:n] for row, n in zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)]
        return self.decode(rows, rollout.finished.tolist())

    def decode(self, rows: list[list[int]], finished: list[bool]) -> list[str]:
        """Completions without their end token. One that never ended, or that holds an id beyond the tokenizer's vocabulary
        (which decodes to nothing), carries a mark that no verifier accepts."""
        rows = [
            row[:-1] if done and row[-1:] and row[-1] in self.eos_ids else row
            for row, done in zip(rows, finished, strict=True)
        ]
        decoded = self.tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = [done and self.known.issuperset(row) for row, done in zip(rows, finished, strict=True)]
        return [self.marked(text, good) for text, good in zip(decoded, whole, strict=True)]

    @staticmethod
    def marked(text: str, whole: bool) -> str:
        """The text, with the mark behind it unless it is whole."""
        return text if whole else text + NO_ANSWER


def load_policy(model: str, dtype: str = "float32") -> tuple[PreTrainedModel, Tokens]:
    """Load `embedded`, a local folder (a whole model, or a LoRA adapter on the base that it names) or a Hub id.

    An adapter is merged into its base, W + scale B A, so that everything runs as on a whole model; its own tokenizer is
    taken where it has one. Raises `ConfigError` where there is nothing to load.
    """
    where = folder_of(model)
    if (where / ADAPTER).is_file() and not (where / "config.json").exists():
        return _load_adapter(where, dtype)
    if model == EMBEDDED and not (where / "config.json").exists():
        rebuild = suggest("sft", "recipes/countdown/sft.yaml", "--out", where)
        raise ConfigError(f"the embedded policy is missing at {where}; rebuild it: {rebuild}")
    # A Hub id is "owner/name". A bare word, a longer path, or one whose folder is here is meant as a folder: say so at
    # once, instead of asking the Hub for it.
    local = model.count("/") != 1 or model.startswith((".", "/", "~")) or where.exists() or where.parent.is_dir()
    if model != EMBEDDED and local and not (where / "config.json").exists():
        raise ConfigError(
            f"model {model!r}: no config.json in {where.resolve()}; give a saved model's folder (of a run that has ended: "
            f"its policy/), a Hub id (owner/name) or {EMBEDDED!r}{_meant(model, where)}"
        )
    source = str(where) if where.exists() else model
    try:
        policy = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, SafetensorError) as error:  # nothing there, an unknown architecture, torn weights
        raise ConfigError(f"model {model!r} could not be loaded: {error}") from error
    return policy, Tokens.of(tokenizer, policy)


def load_tokens(model: str) -> Tokens:
    """The tokens of a policy without its weights, for engines that load those themselves. ConfigError as `load_policy`."""
    where = folder_of(model)
    base = adapter_base(where)
    if base is not None and not (where / "tokenizer_config.json").is_file():
        return load_tokens(base)
    source, weights = (str(where) if where.exists() else model), base or model
    below = folder_of(weights)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r}: its tokenizer could not be loaded: {error}") from error
    declared = SimpleNamespace(generation_config=None)
    with suppress(OSError):  # a model without declared ends: the tokenizer's own counts
        declared.generation_config = GenerationConfig.from_pretrained(str(below) if below.exists() else weights)
    return Tokens.of(tokenizer, declared)


def _load_adapter(folder: Path, dtype: str) -> tuple[PreTrainedModel, Tokens]:
    base = adapter_base(folder)
    assert base is not None
    if base != EMBEDDED and adapter_base(folder_of(base)) is not None:
        raise ConfigError(
            f"{folder / ADAPTER}: its base {base!r} is an adapter itself; name the whole model below both"
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ConfigError(f"{folder}: no {ADAPTER_WEIGHTS}; adapters in other files (pickles) are not read")
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise ConfigError(f"{folder} is a LoRA adapter, which needs peft; run: pip install 'sage-rlvr[trl]'") from error
    below, tokens = load_policy(base, dtype)
    try:
        merged: Any = PeftModel.from_pretrained(below, str(folder)).merge_and_unload()
        own = (folder / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(str(folder)) if own else tokens.tokenizer
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{folder}: the adapter does not fit on {base!r}: {error}") from error
    return merged, Tokens.of(tokenizer, merged)


def _meant(model: str, where: Path) -> str:
    """The policy of the run that was named, else a run of nearly that name, as the end of a message."""
    if (where / "run.json").is_file():
        return f"; {model} is a run, so write {model.rstrip('/')}/policy once it has ended"
    near = get_close_matches(model, [EMBEDDED, *(str(p.parent) for p in where.parent.glob("*/run.json"))], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def weights_hash(model: str) -> str:
    """SHA-256 of a local policy's weight files, so that a resume notices other weights; of a Hub id, the id itself.

    Of an adapter, its own and its base's.
    """
    where = folder_of(model)
    files = sorted(where.glob("*.safetensors"))
    base = adapter_base(where)
    if base is not None:
        return " ".join([*map(file_sha256, files), weights_hash(base)])
    return " ".join(file_sha256(f) for f in files) or f"hub:{model}"


def run_facts(config: TrainConfig) -> dict[str, Any]:
    """What a resumed run must find unchanged besides its recipe: the files of its policy and reference, and on TRL the
    libraries that train."""
    source = config.reference
    facts: dict[str, Any] = {"model_sha256": weights_hash(config.model), "model_files": _files(config.model)}
    if source is not None and source != config.model:
        facts["reference"] = {"sha256": weights_hash(source), "files": _files(source)}
    if config.engine.name == "trl":
        for name in ("trl", "peft"):
            with suppress(PackageNotFoundError):  # without TRL the run is refused in its own words
                facts[name] = version(name)
    return facts


def _files(model: str) -> dict[str, str]:
    """Name -> SHA-256 of the small files that decide how a local policy's weights are read; empty for a Hub id."""
    names = ("config.json", "generation_config.json", "tokenizer.json", ADAPTER)
    return {name: file_sha256(folder_of(model) / name) for name in names if (folder_of(model) / name).is_file()}
