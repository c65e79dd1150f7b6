"""The policy and its tokenizer, shared by all engines, and the rendering of prompts: by the tokenizer's chat template,
by that of a prompt format, or as plain text.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sage_rlvr.config import TrainConfig
from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.extras import install
from sage_rlvr.models.devices import device_of, dtype_facts, keep_memory
from sage_rlvr.models.folders import EMBEDDED, NAMED, adapter_base, folder_of, prepared
from sage_rlvr.models.hashes import WEIGHTS, cached_sha256, check_hashes
from sage_rlvr.models.llama.net import adjacent
from sage_rlvr.models.sampler import Rollout
from sage_rlvr.models.weights import ADAPTER, check_adapter, check_files, loading
from sage_rlvr.models.weights import whole as load_whole
from sage_rlvr.plugins import packages_of
from sage_rlvr.recipes import maker_of
from sage_rlvr.runs import RECORD, file_sha256, is_run
from sage_rlvr.tasks.abilities import Conversational
from sage_rlvr.tasks.base import NO_ANSWER, Task, prompt_messages, prompt_text
from sage_rlvr.tasks.chat import NO_OPTIONS, Options, check_prompt, fit_tokenizer, render
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat

Chat = Literal["model", "format"]
UTF8_BYTES = 4  # of a character at most


@dataclass(frozen=True)
class Tokens:
    """A tokenizer as the engines need it: text to ids and back.

    `load_policy` and `load_tokens` make it; sampling, training and evaluation read it.

    eos_id: the end token of training data. eos_ids: all tokens that end a sampled completion, starting with eos_id.
    """

    tokenizer: PreTrainedTokenizerBase
    eos_id: int
    pad_id: int
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos_ids", tuple(dict.fromkeys((self.eos_id, *self.eos_ids))))

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, model: Any = None) -> Tokens:
        """Return the tokens of a tokenizer and, if given, the model whose generation_config may declare more end tokens.

        Raises `ConfigError` if the tokenizer has no end token.
        """
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; set `eos_token` on it and save it again"
            )
        pad = tokenizer.pad_token_id
        declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        more = [] if declared is None else declared if isinstance(declared, list) else [declared]
        if not all(type(end) is int and 0 <= end < 1 << 31 for end in more):
            raise ConfigError(f"generation_config: eos_token_id = {declared!r}: expected a token id, or a list of token ids")
        eos = int(tokenizer.eos_token_id)
        return cls(tokenizer, eos, eos if pad is None else int(pad), tuple(more))

    @cached_property
    def known(self) -> frozenset[int]:
        """Ids that have a text; a model's vocabulary is often padded beyond them."""
        return frozenset(self.tokenizer.get_vocab().values())

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The start token, if the tokenizer puts one before plain text by itself; else nothing."""
        first = list(self.tokenizer("")["input_ids"])[:1]
        return tuple(first) if first and first[0] == self.tokenizer.bos_token_id else ()

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt with the tokenizer's start token; one that the text already contains is not doubled."""
        ids = self.encode(text)
        return ids if tuple(ids[: len(self.opening)]) == self.opening else [*self.opening, *ids]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text in the middle of another, such as a completion: nothing added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def texts(self, rollout: Rollout) -> list[str]:
        """Return completions as `decode` does."""
        rows = [row[:n] for row, n in zip(rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True)]
        return self.decode(rows, rollout.finished.tolist())

    def reply(self, text: str) -> list[int]:
        """Return the tokens of an environment's text between two turns of a policy that is prompted in plain text: on separate
        lines.
        """
        return self.encode(f"\n{text}\n")

    def decode(self, rows: list[list[int]], finished: list[bool]) -> list[str]:
        """Return completions without their end token.

        One that never ended, or that contains an id beyond the tokenizer's vocabulary (which decodes to nothing), has a mark that
        no verifier accepts.
        """
        if not rows:  # of which a tokenizer makes one empty text
            return []
        ended = [done and row[-1:] != [] and row[-1] in self.eos_ids for row, done in zip(rows, finished, strict=True)]
        rows = [row[:-1] if end else row for row, end in zip(rows, ended, strict=True)]
        decoded = self.tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = [done and self.known.issuperset(row) for row, done in zip(rows, finished, strict=True)]
        return [self.marked(text, good) for text, good in zip(decoded, whole, strict=True)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds.

        A character of several tokens is at the last of them; a tokenizer that drops the space before the first word does so for the
        complete text, not for each token.
        """
        text_of = self._text_of
        singles = [text_of((i,)) for i in ids]
        if "".join(singles) == text_of.__wrapped__(tuple(ids)):  # type: ignore[attr-defined]
            return singles
        texts, first, done = [], 0, 0  # ids[first:done] is the context in which the tokens from `done` on are spelled
        for end in range(1, len(ids) + 1):
            before, now = text_of(tuple(ids[first:done])), text_of(tuple(ids[first:end]))
            if now.endswith(NO_ANSWER) and end < min(len(ids), done + UTF8_BYTES):  # the first bytes of a character
                texts.append("")
                continue
            texts.append(now[len(before) :])
            first, done = done, end
        return texts

    @cached_property
    def _text_of(self) -> Callable[[tuple[int, ...]], str]:
        @lru_cache(maxsize=1 << 16)
        def text(ids: tuple[int, ...]) -> str:
            decoded = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            return str(decoded) if ids else ""

        return text

    @staticmethod
    def marked(text: str, whole: bool) -> str:
        """Return the text, with the mark after it unless it is complete."""
        return text if whole else text + NO_ANSWER


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and its token ids, the first a start token if the tokenizer or template adds one.

    Samplers read the ids, and stores keep the text.

    messages: of the conversation, which a server of chat completions renders itself; of plain text one message of the user.
    """

    text: str
    ids: tuple[int, ...]
    messages: tuple[Mapping[str, Any], ...] = ()


@contextmanager
def spelling(tokenizer: Any, what: str) -> Iterator[None]:
    """Raise ConfigError if a tokenizer has no token for a character of a task's texts; what: which of them."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} cannot encode {what} of this task ({error}); use a policy whose "
            "tokenizer has these characters: a pretrained one (model: OWNER/NAME of the Hub, or its folder), or a "
            f"small one for printable ASCII, trained by: {suggest('sft', 'knights/sft', '--out', 'runs/knights-base')}"
        ) from error


@dataclass(frozen=True)
class PromptRenderer:
    """Renders problems as prompts (problem -> `Prompt`), for training, evaluation and SFT. `of` makes it from a task and tokenizer.

    form: the prompt format whose messages are written; None for plain text. options: chat_template_kwargs of the recipe.
    """

    task: Task
    tokens: Tokens
    form: PromptFormat | None
    options: Options = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, tokens: Tokens, chat: Chat = "model", options: Options = NO_OPTIONS) -> PromptRenderer:
        """Return the renderer of a task and a policy's tokens, whose tokenizer gets what it lacks (a chat template, a pad token).

        Args:
            task: the task.
            tokens: the policy's.
            chat: "model" uses the chat template of the policy's tokenizer; if it has none, that of the format (as fine-tuning
                gives it), and plain text for tasks with a frame of their own. "format" always uses the format's own template, so
                that policies with different tokenizers get the same prompts.
            options: variables of the chat template. Raises ConfigError for options that no chat template reads.
        """
        if not in_messages(task, tokens.tokenizer):
            check_plain(task, options)
            return cls(task, tokens, None)
        form = task.form or FORMATS["as_is"]
        if chat == "format":
            tokens.tokenizer.chat_template = form.chat_template
        fit_tokenizer(tokens.tokenizer, form, options=options)
        return cls(task, tokens, form, options)

    def __call__(self, problem: Any) -> Prompt:
        """Return the prompt.

        Raise ConfigError if the tokenizer has no token for a character, and for prompts that `check_prompt` rejects.
        """
        tokenizer = self.tokens.tokenizer
        plain = self.form is None
        prompt: Any = (prompt_text if plain else prompt_messages)(self.task, problem)  # the task's own words, and its own mistakes
        with spelling(tokenizer, "the prompts"):
            if plain:
                return Prompt(prompt, tuple(self.tokens.encode_prompt(prompt)), ({"role": "user", "content": prompt},))
            messages = prompt
            text = render(tokenizer, messages, opened=True, options=self.options)
            ids = self.tokens.encode(text)
            check_prompt(tokenizer, messages, text, ids)
            return Prompt(text, tuple(ids), tuple(messages))

    def reply(self, text: str) -> list[int]:
        """Return the tokens between the end of a turn of the policy and its next.

        They are an environment's text, as a user's message of the chat template, or on separate lines. Raise ConfigError if the
        tokenizer has no token for a character, or the template does not put the text after the conversation so far.
        """
        if self.form is None:
            with spelling(self.tokens.tokenizer, "the environment's reply, on separate lines,"):
                return self.tokens.reply(text)
        tokenizer, turn = self.tokens.tokenizer, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        before = render(tokenizer, turn, options=self.options)
        whole = render(tokenizer, [*turn, {"role": "user", "content": text}], opened=True, options=self.options)
        end = before.rfind(str(tokenizer.eos_token), before.rfind("!"))
        if not whole.startswith(before) or end < 0:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r}: its chat template does not end a turn by "
                f"{tokenizer.eos_token!r} followed by the next turn, so the replies of an episode cannot be appended; "
                "use a template that does so, such as ChatML"
            )
        return self.tokens.encode(whole[end + len(str(tokenizer.eos_token)) :])

    @property
    def written(self) -> dict[str, Any]:
        """Return the writer of the prompts, to be hashed."""
        if self.form is None:
            return {"plain": self.task.name}
        form = json.dumps(asdict(self.form), sort_keys=True)
        options = {"chat_template_kwargs": dict(self.options)} if self.options else {}
        return {"chat_template": self.tokens.tokenizer.chat_template, "form": form, **options}


def check_plain(task: Task, options: Options) -> None:
    """Raise ConfigError for chat_template_kwargs of a task whose prompts are plain text."""
    if options:
        raise ConfigError(
            f"chat_template_kwargs: the prompts of {task.name} are plain text here, which no chat template renders; remove "
            f"{', '.join(options)}"
        )


def in_messages(task: Task, tokenizer: Any) -> bool:
    """Return True if a task is written as a conversation: it can be, and a format or the tokenizer has a template for that.

    Raise ConfigError if the tokenizer lacks the chat template that the task needs.
    """
    if not isinstance(task, Conversational):
        return False
    if task.needs_chat_template and tokenizer.chat_template is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template, which task {task.name} needs; use a chat model "
            "(an -Instruct model of the Hub, or smollm2), or set chat_template on the tokenizer and save it in the model's folder"
        )
    return task.form is not None or tokenizer.chat_template is not None


def load_policy(model: str, dtype: str = "float32") -> tuple[PreTrainedModel, Tokens]:
    """Load a name of `NAMED`, a local folder (a complete model, or a LoRA adapter on the base that it names) or a Hub id.

    An adapter is merged into its base, W + scale B A, so that everything runs as on a complete model; its own tokenizer is
    used if it has one. Raises `ConfigError` if there is nothing to load.
    """
    where = prepared(model)
    if (base := adapter_base(where)) is not None:
        return _load_adapter(where, base, dtype)
    whole = (where / "config.json").exists()
    if model == EMBEDDED and not whole:
        rebuild = suggest("sft", "recipes/countdown/sft.yaml", "--out", where)
        raise ConfigError(f"the embedded policy is missing at {where}; rebuild it with: {rebuild}")
    # A Hub id is "owner/name". A bare word, a longer path, or one whose folder is here is meant as a folder: say so at
    # once, instead of asking the Hub for it.
    local = model.count("/") != 1 or model.startswith((".", "/", "~")) or where.exists() or where.parent.is_dir()
    if not whole and not is_run(where) and (make := maker_of(model)):
        raise ConfigError(f"model {model!r}: no config.json in {where.resolve()}; train this policy first: {make}")
    if local and not whole:
        raise ConfigError(
            f"model {model!r}: no config.json in {where.resolve()}; pass the folder of a saved model (for a finished "
            f"run its policy/), a Hub id (owner/name) or one of {', '.join(NAMED)}{_meant(model, where)}"
        )
    if whole:
        check_files(where)
        check_hashes(where)
    keep_memory(where)
    policy = load_whole(AutoModelForCausalLM.from_pretrained, _source(model), dtype=getattr(torch, dtype))
    return adjacent(policy), Tokens.of(_tokenizer(_source(model)), policy)


def _tokenizer(source: str) -> PreTrainedTokenizerBase:
    with loading(f"the tokenizer of model {source!r}"):
        return AutoTokenizer.from_pretrained(source)


def _source(model: str) -> str:
    """Return the place that transformers loads it from."""
    where = folder_of(model)
    return str(where) if where.exists() else model


def load_tokens(model: str) -> Tokens:
    """Return the tokens of a policy without its weights, for engines that load those themselves.

    Raise ConfigError like `load_policy`.
    """
    where = prepared(model)
    base = adapter_base(where)
    if base is not None and not (where / "tokenizer_config.json").is_file():
        return load_tokens(base)
    if (where / "config.json").exists() or base is not None:
        check_files(where)
    check_hashes(where, weights=False)
    return Tokens.of(_tokenizer(_source(model)), SimpleNamespace(generation_config=_generation_config(base or model)))


def _generation_config(model: str) -> GenerationConfig | None:
    """Return the generation config of the loaded model.

    It is generation_config.json, or without one the settings on generation in config.json; None for a folder that has only a
    tokenizer, whose end token then counts.
    """
    with loading(f"generation_config.json of model {model!r}"), suppress(OSError):
        return GenerationConfig.from_pretrained(_source(model))
    where = folder_of(model)
    if where.is_dir() and not (where / "config.json").exists():
        return None
    with loading(f"config.json of model {model!r}"):
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(_source(model)))


def _load_adapter(folder: Path, base: str, dtype: str) -> tuple[PreTrainedModel, Tokens]:
    if base not in NAMED and adapter_base(folder_of(base)) is not None:
        raise ConfigError(
            f"{folder / ADAPTER}: its base {base!r} is an adapter too; set it to the full model below both"
        )
    check_files(folder)
    check_hashes(folder)
    try:
        from peft import PeftModel  # an extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{folder} is a LoRA adapter, which needs peft; {install('trl')}") from error
    below, tokens = load_policy(base, dtype)
    with loading(f"{folder}: the adapter does not fit on {base!r}, and"), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")  # PEFT draws them at random
        adapted: Any = PeftModel.from_pretrained(below, str(folder))
    check_adapter(folder, adapted)
    merged: Any = adapted.merge_and_unload()
    own = (folder / "tokenizer_config.json").is_file()
    return adjacent(merged), Tokens.of(_tokenizer(str(folder)) if own else tokens.tokenizer, merged)


def _meant(model: str, where: Path) -> str:
    """Return the end of a message: the policy of the run that was named, else a run of nearly that name."""
    if is_run(where):
        return f"; {model} is a run directory; use {model.rstrip('/')}/policy once the run has finished"
    near = get_close_matches(model, [*NAMED, *(str(p.parent) for p in where.parent.glob(f"*/{RECORD}"))], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def weights_hash(model: str) -> str:
    """Return the SHA-256 of a local policy's weight files, so that a resume notices other weights; for a Hub id, the id itself.

    For an adapter, its own and its base's.
    """
    where = prepared(model)
    if (where / "config.json").exists() or (where / ADAPTER).exists():
        check_files(where)
        check_hashes(where)
    files, base = map(cached_sha256, sorted(where.glob(WEIGHTS))), adapter_base(where)
    return " ".join([*files, *([] if base is None else [weights_hash(base)])]) or f"hub:{model}"


def revision_of(model: str) -> str:
    """Return `weights_hash` as one text: the identity of a policy in a sample store."""
    hashes = weights_hash(model)
    return hashes if hashes.startswith("hub:") else hashlib.sha256(hashes.encode()).hexdigest()


def run_facts(config: TrainConfig) -> dict[str, Any]:
    """Return facts that a resumed run must find unchanged besides its recipe.

    They are the files of its policy and reference, the device if it is not the CPU, the dtype (of `auto` the one that was chosen),
    on TRL the libraries that train, and the packages of parts.
    """
    source = config.reference
    facts: dict[str, Any] = {"model_sha256": weights_hash(config.model), "model_files": _files(config.model)}
    if source is not None and source != config.model:
        facts["reference"] = {"sha256": weights_hash(source), "files": _files(source)}
    if (device := device_of(config.engine.device).type) != "cpu":
        facts["device"] = device
    facts |= dtype_facts(config.engine)
    for name in {"trl": ("trl", "peft"), "verl": ("verl",)}.get(config.engine.name, ()):
        with suppress(PackageNotFoundError):  # without TRL the run is refused in its own words
            facts[name] = version(name)
    if packages := packages_of(config):
        facts["packages"] = packages
    return facts


def _files(model: str) -> dict[str, str]:
    """Return name -> SHA-256 of the small files that decide how a local policy's weights are read; empty for a Hub id."""
    names = ("config.json", "generation_config.json", "tokenizer.json", ADAPTER)
    files = {name: folder_of(model) / name for name in names}
    return {name: file_sha256(file) for name, file in files.items() if file.is_file()}
