"""Rendered prompts: chat templates, end tokens, and a dry render that raises an error for faults that would silently spoil a
run."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sage_rlvr.errors import ConfigError, DataError, choose_from
from sage_rlvr.tasks.prompts import PLACEHOLDER, Message, PromptFormat
from sage_rlvr.tasks.rows import Say, tell

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 1_000_000  # characters of a chat template
ADDED, REPEATED = 200_000, 4  # characters that it may add to a conversation, and how often it may repeat one
Options = Mapping[str, Any]
"""chat_template_kwargs of a recipe: variables of the chat template, such as enable_thinking."""
NO_OPTIONS: Options = MappingProxyType({})
GIVEN = frozenset(
    ("messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now", "namespace", "range")
)
"""Variables that transformers and Jinja define for a chat template, besides special tokens."""


def fit_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    form: PromptFormat,
    *,
    ends: Iterable[int] | None = None,
    options: Options = NO_OPTIONS,
) -> list[str]:
    """Add a tokenizer's missing settings, in place: chat template, pad token, left padding. Returns the changes, in words.

    ends: before fine-tuning, the ids at which the model ends a text by its generation_config. A chat template whose turns end
    otherwise is one that the model was not trained with (base models of some families carry one): the format's template, which ends
    turns as the tokenizer ends a text, replaces it, because adapters hardly teach a token that was never trained. One whose turns
    end with another of these tokens is kept, and that token becomes the tokenizer's end. Raises ConfigError without an end token,
    and for `options` that the template does not read.
    """
    changes = []
    if tokenizer.eos_token is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; set `eos_token` on it and save it"
        )
    if tokenizer.chat_template is None:
        tokenizer.chat_template = form.chat_template
        changes.append(f"the tokenizer had no chat template; it got that of the format {form.name!r}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        changes.append(f"the tokenizer had no pad token; {tokenizer.eos_token!r} pads")
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"  # the latter is what is saved
    end = end_of_turn(tokenizer, form, options)
    if ends is None or end == tokenizer.eos_token:
        check_options(tokenizer, options)
        return changes
    if end is not None and tokenizer.convert_tokens_to_ids(end) in set(ends):
        changes.append(
            f"its chat template ends a turn with {end!r}: the end token is now that token, not {tokenizer.eos_token!r}"
        )
        tokenizer.eos_token = end
    else:
        tokenizer.chat_template = form.chat_template
        changes.append(
            f"the tokenizer's chat template ends a turn with {end or 'no special token'}, which does not end this model's texts; "
            f"the template of the format {form.name!r}, which ends a turn with {tokenizer.eos_token!r}, takes its place"
        )
    check_options(tokenizer, options)
    return changes


def end_of_turn(tokenizer: PreTrainedTokenizerBase, form: PromptFormat, options: Options = NO_OPTIONS) -> str | None:
    """The special token directly after an assistant's turn in the chat template; None without one."""
    reply = form.assistant("Two and two.", "4")
    whole = render(tokenizer, [*form.messages("2+2?"), {"role": "assistant", "content": reply}], options=options)
    # its last characters only: a template may change how a turn starts
    tail = tokenizer(whole[whole.rfind(reply[-8:]) + 8 :].lstrip(), add_special_tokens=False)["input_ids"][:1]
    token = tokenizer.convert_ids_to_tokens(tail)[0] if tail else None
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    return token if token in special else None


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], opened: bool = False, options: Options = NO_OPTIONS
) -> str:
    """Messages by the tokenizer's chat template; opened: with the start of the assistant's turn. Raises ConfigError if it fails.

    options: chat_template_kwargs, as `check_options` allows them.

    A template is a program from the model's author. transformers runs it in Jinja's sandbox, which bounds `range` and forbids
    attributes of Python. One of more than `LONGEST` characters is not compiled, and one that adds more than `ADDED` characters
    raises an error before they are tokenized.
    """
    template = tokenizer.chat_template
    if isinstance(template, str) and len(template) > LONGEST:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template has {len(template):,} characters, more than the {LONGEST:,} "
            "limit (published templates have fewer than 50,000); set another template (chat_template)"
        )
    try:
        rendered = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opened, **dict(options))
    except Exception as error:  # a foreign program may raise anything: TemplateError, OverflowError, RecursionError, MemoryError
        reason = str(error) or type(error).__name__
        roles = ", ".join(message["role"] for message in messages)
        advice = "set another template (chat_template)"
        if any(message["role"] == "system" for message in messages):
            advice = (
                "if it does not support system messages, set data.prompt to as_is, which adds none; if it is as_is, the rows have "
                f"them: remove them there, or {advice}"
            )
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template raises an error for a conversation of {roles} ({reason}); "
            f"{advice}"
        ) from error
    text = str(rendered)
    given = sum(len(message.get("content") or "") for message in messages)
    if len(text) > ADDED + REPEATED * given:  # tokenizing it would take minutes
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template makes {len(text):,} characters of a conversation of "
            f"{given:,}, beginning with {text[:40]!r}; set another template (chat_template)"
        )
    return text


def check_options(tokenizer: PreTrainedTokenizerBase, options: Options) -> None:
    """Raise ConfigError for a key of chat_template_kwargs that the tokenizer's chat template does not read."""
    if not options:
        return
    owned = [*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"]
    if taken := [name for name in options if name in owned]:
        raise ConfigError(
            f"chat_template_kwargs.{taken[0]}: an argument that this package sets itself; only variables of the chat template, "
            "such as enable_thinking, can be set here"
        )
    read = variables_of(tokenizer)
    if unread := [name for name in options if name not in read]:
        own = sorted(read - GIVEN - set(tokenizer.special_tokens_map))
        near = choose_from(unread[0], own) if own else "; it reads none: remove the key"
        raise ConfigError(
            f"chat_template_kwargs.{unread[0]}: the chat template of tokenizer {tokenizer.name_or_path!r} has no such variable, "
            f"so the key would change nothing{near}"
        )


def variables_of(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names that a tokenizer's chat template reads and does not set itself. Raises ConfigError if Jinja cannot parse it."""
    from jinja2 import Environment, TemplateSyntaxError, meta  # only a chat template needs it, and it slows start-up
    from jinja2.ext import Extension, loopcontrols

    class GenerationTag(Extension):
        """The tag {% generation %} of transformers."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    names = set[str]()
    given = tokenizer.chat_template
    for template in given.values() if isinstance(given, dict) else [given]:
        try:
            parsed = Environment(extensions=[GenerationTag, loopcontrols]).parse(template)
            names |= meta.find_undeclared_variables(parsed)
        except (TemplateSyntaxError, MemoryError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise ConfigError(f"tokenizer {tokenizer.name_or_path!r}: its chat template cannot be parsed ({reason})") from error
    return names


@dataclass(frozen=True)
class Rendered:
    """The result of `dry_render`, printed and returned to runs on TRL.

    shown: (text, tokens) of the first rows. lengths: of all prompts, in tokens.
    window: the most tokens a prompt may have, or None. warnings: doubtful findings, in words.
    """

    shown: tuple[tuple[str, int], ...]
    lengths: tuple[int, ...]
    window: int | None
    warnings: tuple[str, ...]

    @property
    def too_long(self) -> list[int]:
        """The rows whose prompt is longer than the window."""
        return [] if self.window is None else [i for i, n in enumerate(self.lengths) if n > self.window]

    def __str__(self) -> str:
        """The lengths and the warnings; the prompt itself is in a run's opening lines."""
        lines = [f"prompts: {len(self.lengths):,}, {min(self.lengths)} to {max(self.lengths)} tokens"]
        if self.window is not None:
            count = len(self.too_long)
            lines.append(f"longer than the window of {self.window}: {count} ({count / len(self.lengths):.1%})")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def dry_render(
    tokenizer: PreTrainedTokenizerBase,
    dataset: Iterable[Mapping[str, Any]],
    form: PromptFormat,
    max_prompt: int | None = None,
    rows: int = 3,
    *,
    strict: bool = False,
    options: Options = NO_OPTIONS,
    say: Say = tell,
) -> Rendered:
    """Render the model's input, report its length, and raise an error for faults that would silently spoil a run. Trains and loads
    nothing.

    ConfigError: no end, pad or chat template; padding on the right; an error of `check_prompt`; every prompt longer than
        `max_prompt` tokens. Warnings: some prompts too long, unknown tokens, a turn that ends with another token
    than the tokenizer's, a demonstration that starts differently from a generation (an error if `strict`).
    """
    _check_tokenizer(tokenizer, form)
    prompts = [row["prompt"] for row in dataset]
    if not prompts:
        raise DataError("no rows to render")
    texts = [render(tokenizer, prompt, opened=True, options=options) for prompt in prompts]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    for prompt, text, tokens in zip(prompts, texts, ids, strict=True):
        check_prompt(tokenizer, prompt, text, tokens)
    shown = list(zip(prompts[:rows], texts[:rows], ids[:rows], strict=True))
    warned = _doubts(tokenizer, form, shown, options)
    rendered = Rendered(tuple((t, len(i)) for _, t, i in shown), tuple(map(len, ids)), max_prompt, tuple(warned.values()))
    say(str(rendered))
    if strict and "prefix" in warned:
        raise ConfigError(warned["prefix"])
    if rendered.too_long and len(rendered.too_long) == len(prompts):
        raise ConfigError(
            f"every prompt is longer than the {max_prompt} available tokens (the shortest has "
            f"{min(rendered.lengths)}); raise the limit"
        )
    return rendered


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, form: PromptFormat) -> None:
    lacking = [name for name in ("eos_token", "pad_token", "chat_template") if getattr(tokenizer, name) is None]
    if lacking:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no {', no '.join(lacking)}; fit_tokenizer(tokenizer, "
            f"FORMATS[{form.name!r}]) adds it, and so does the fine-tuning stage (sage-rlvr sft)"
        )
    if tokenizer.padding_side != "left":
        raise ConfigError(
            f"tokenizer.padding_side = {tokenizer.padding_side!r}: a completion would follow padding; set 'left'"
        )


def check_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Message], text: str, ids: list[int]) -> None:
    """Raise ConfigError for faults of a rendered prompt (its `text` and tokens `ids`): a message that the chat template left
    out, an unfilled {placeholder}, a start token twice."""
    whole = " ".join(text.split())
    if dropped := next((message for message in prompt if " ".join(message["content"].split()) not in whole), None):
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template leaves out the {dropped['role']}'s message "
            f"({dropped['content']!r:.80}), so the model would not see it; fix the template, use that of the prompt format "
            f"(eval --chat-template format), or use rows with complete prompts (as_is). The prompt: {text!r:.300}"
        )
    written = "\n".join(message["content"] for message in prompt)
    left = [placeholder for placeholder in PLACEHOLDER.findall(text) if placeholder not in written]
    if left:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template leaves {left[0]} in the prompt, an unfilled "
            f"placeholder; fix the template. The prompt: {text!r:.300}"
        )
    start = tokenizer.bos_token_id
    if start is not None and ids[:2] == [start, start]:
        raise ConfigError(
            f"a prompt starts with {tokenizer.bos_token!r} twice; remove it from the chat template or from the prompts. "
            f"The prompt: {text!r:.200}"
        )


def _doubts(
    tokenizer: PreTrainedTokenizerBase,
    form: PromptFormat,
    shown: Sequence[tuple[Sequence[Message], str, list[int]]],
    options: Options,
) -> dict[str, str]:
    doubts = {}
    for prompt, text, ids in shown:
        reply = {"role": "assistant", "content": form.assistant("Two and two.", "4")}
        whole = render(tokenizer, [*prompt, reply], options=options)
        if not whole.startswith(text) or tokenizer(whole, add_special_tokens=False)["input_ids"][: len(ids)] != ids:
            kept = next((i for i, (a, b) in enumerate(zip(whole, text, strict=False)) if a != b), len(text))
            doubts["prefix"] = (
                f"tokenizer {tokenizer.name_or_path!r}: a demonstration starts differently than a generation: the prompt "
                f"ends with {text[max(0, kept - 20) :]!r}, where a demonstration has {whole[max(0, kept - 20) : kept + 40]!r}"
            )
        if strange := unknown_characters(tokenizer, text, ids):
            named = ", ".join(map(repr, strange[:20])) + (f" and {len(strange) - 20} more" if strange[20:] else "")
            doubts["unknown"] = (
                f"the prompt has characters outside the tokenizer's vocabulary: {named}, in {text!r:.200}"
            )
    if (end := end_of_turn(tokenizer, form, options)) is None:
        doubts["end"] = (
            f"the chat template ends an assistant's turn with no special token, the tokenizer's end token is "
            f"{tokenizer.eos_token!r}: a model trained on such turns does not stop; end them with {tokenizer.eos_token!r}"
        )
    elif end != tokenizer.eos_token:
        doubts["end"] = (
            f"the chat template ends an assistant's turn with {end!r}, the tokenizer's end token is {tokenizer.eos_token!r}: a "
            "model trained on such turns does not stop unless its generation_config also has that token"
        )
    return doubts


def unknown_characters(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[str]:
    """Return the characters, or words if no single character is at fault, of `text` that become the unknown token. ids: its tokens.

    If the text contains that token itself, as with a chat template whose end token is the unknown one, it is not reported.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return []

    def strange(part: str) -> bool:
        return unknown in tokenizer(part, add_special_tokens=False)["input_ids"]

    pieces = [piece for piece in text.split(str(tokenizer.unk_token)) if strange(piece)]
    characters = [c for c in dict.fromkeys("".join(pieces)) if strange(c)]
    return characters or [word for word in dict.fromkeys(" ".join(pieces).split()) if strange(word)] or pieces


# ---- text from outside


def encodable(text: str, tokenizer: Any = None) -> str:
    r"""The text with unencodable characters as escapes, as in "\xe9", and special tokens broken by a space, as in "< |im_end|>".

    A policy's program decides what a sandbox reports. Three things in such text must not reach the tokenizer unchanged:
    characters without an encoding (lone surrogates, characters outside the vocabulary), which would end the run; control
    characters; and special tokens as text, which the tokenizer would make real, so that a program could end a turn and begin
    another.

    tokenizer: its vocabulary and special tokens count; None: only control characters and surrogates.
    """
    kept = {c: _kept(c, tokenizer) for c in set(text)}
    plain = "".join(c if kept[c] else _escape(c) for c in text)
    return plain if tokenizer is None else _broken(plain, _specials(tokenizer))


def _kept(character: str, tokenizer: Any) -> bool:
    if character == "\n" or " " <= character <= "~":  # missing characters among these are reported as before, by name
        return True
    if unicodedata.category(character) == "Cs" or (unicodedata.category(character) == "Cc" and character != "\t"):
        return False
    if tokenizer is None:
        return True
    try:
        ids = tokenizer(character, add_special_tokens=False)["input_ids"]
    except Exception:  # tokenizers raises plain Exceptions
        return False
    return bool(ids) and tokenizer.unk_token_id not in ids


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _specials(tokenizer: Any) -> list[str]:
    added = tokenizer.added_tokens_decoder.values()
    tokens = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    return sorted((one for one in tokens if one.strip()), key=len, reverse=True)


def _broken(text: str, specials: Iterable[str]) -> str:
    for special in specials:
        if special in text:
            text = text.replace(special, f"{special[0]} {special[1:]}" if len(special) > 1 else _escape(special))
    return text


__all__ = [
    "NO_OPTIONS", "Options", "Rendered", "check_options", "check_prompt", "dry_render", "encodable", "end_of_turn", "fit_tokenizer",
    "render", "variables_of",
]  # fmt: skip
