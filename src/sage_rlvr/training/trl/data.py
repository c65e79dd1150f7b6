"""Data sets of the usual shapes as rows with prompt, answer and id; and a dry render of what the model will see.

    Hub id or file -> rows -> columns -> prompt (messages of the format), answer (text), id -> golds checked

Refused before anything is trained, with file, column and row: a missing or ambiguous column, an empty problem, an answer
that is no text and no number, ids that occur twice, golds that the verifier cannot read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from sage_rlvr.config import DataConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks.prompts import FORMATS, PLACEHOLDER, Message, PromptFormat
from sage_rlvr.training.trl.rows import Row, Rows, facts, read, tell, value_at
from sage_rlvr.verifiers.pool import Pool

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

PROBLEMS = ("problem", "question")  # bare problems
PROMPTS = ("prompt",)  # problems as some trainer saw them, often wrapped in an instruction
ANSWERS = ("answer", "ground_truth", "expected_answer", "reward_model.ground_truth")
SOLUTIONS = ("solution", "generated_solution")
IDS = ("id", "unique_id")
TOLERATED = 0.01  # share of golds that may be unreadable without a word from the user
_PROBE = r"\boxed{7919}"  # an answer that no gold is spelled like: judging it makes the verifier parse the gold
_WHOLE = re.compile(r"[-+]?\d{1,300}")  # golds that need no check
_GSM8K = re.compile(r"\n####[ \t]*(?P<answer>[^\n]+)\s*\Z")  # a worked solution whose last line is the answer

Say = Callable[[str], None]


# ---- columns


def _no_column(rows: Rows, role: str, wanted: Sequence[str], given: str | None = None) -> ConfigError:
    columns = rows.columns()
    near = get_close_matches(given, columns, 1) if given else []
    what = f"data.{role}_column = {given!r}: no such column" if given else f"no column for the {role}"
    hint = (
        f"; did you mean {near[0]!r}?"
        if near
        else f"; accepted are {', '.join(wanted)}; or name it: data.{role}_column"
    )
    return ConfigError(f"{rows.name}: {what} (its columns: {', '.join(columns)}){hint}")


def _column(rows: Rows, role: str, groups: Sequence[Sequence[str]], given: str | None) -> str:
    """The column of a role: the one that was named, else the only one of the first group of which any is there.

    Several of a group are one if their values agree in every row; else a ConfigError names both.
    """
    columns = rows.columns()
    wanted = [name for group in groups for name in group]
    if given is not None:
        if given not in columns:
            raise _no_column(rows, role, wanted, given)
        return given
    for group in groups:
        present = [name for name in group if name in columns]
        for other in present[1:]:
            for row, place in zip(rows.rows, rows.places, strict=True):
                if str(value_at(row, present[0])) != str(value_at(row, other)):
                    raise ConfigError(
                        f"{rows.name}: the columns {present[0]} and {other} could both be the {role}, and differ at {place}; "
                        f"name one: data.{role}_column ({', '.join(wanted)} are looked for)"
                    )
        if present:
            return present[0]
    raise _no_column(rows, role, wanted)


class _Faults:
    """Faults of rows, collected so that one message shows how many there are."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, place: str, column: str, what: str) -> None:
        self.found.append(f"{place}, column {column}: {what}")

    def report(self, count: int) -> None:
        """DataError with the first eight of what was added, if anything was; count: rows that were looked at."""
        if self.found:
            more = f"\n  and {len(self.found) - 8} more" if len(self.found) > 8 else ""
            raise DataError(
                f"{len(self.found)} of {count} rows cannot be used:\n  " + "\n  ".join(self.found[:8]) + more
                + "\nMend or leave out those rows, or name other columns (data.problem_column, data.answer_column)."
            )  # fmt: skip


def problem_of(value: Any) -> str | list[Message]:
    """A problem as text, or as messages of text. ValueError, in words, for anything else."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the problem is empty")
        return value
    if not isinstance(value, list):
        raise ValueError("the problem is missing" if value is None else f"{value!r:.60} is no text and no messages")
    if not value:
        raise ValueError("the list of messages is empty")
    return [_message(message) for message in value]


def _message(message: Any) -> Message:
    if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
        raise ValueError(f"{message!r:.60} is no message with role and content")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("a message has parts that are no text (images are not read)")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"the {message['role']}'s message is empty")
    return {"role": message["role"], "content": content}


def answer_of(value: Any) -> str:
    """A gold as text; whole floats lose their ".0". ValueError, in words, for None, lists, truth values, empty text."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError("the answer is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"the answer is {type(value).__name__} {value!r:.60}; one text or number is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the answer is {value}")
    return str(value).strip()


def _gold(value: Any, worked: bool) -> str:
    r"""`answer_of`, taken out of a worked solution: behind GSM8K's "####", or (`worked`) in the last `\boxed{}`."""
    text = answer_of(value)
    if final := _GSM8K.search(text):
        return final["answer"].strip()
    if worked and r"\boxed" in text:
        from sage_rlvr.verifiers.math import last_box

        return answer_of(last_box(text)[0])
    return text


def _worked(value: Any) -> str:
    """A worked solution, without the last line that GSM8K gives its answer in."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("the solution is missing" if not value else f"{value!r:.60} is no text")
    return _GSM8K.sub("", value).strip()


# ---- the data set


def load(
    data: DataConfig,
    *,
    solutions: bool = False,
    check: bool = True,
    allow_unverifiable: bool = False,
    say: Say = tell,
) -> Dataset:
    r"""The rows of `data` as a Dataset with the columns prompt (messages of the format), answer (text) and id.

    solutions: also a column solution, for fine-tuning; a set without worked solutions is refused. (Without it there is
    none, because reward functions would take it for a second gold.) check: see `check_golds`.

    The problem: problem or question, then prompt; "as_is" takes prompt first. The answer: answer, ground_truth,
    expected_answer or reward_model.ground_truth (verl); where none is there, solution, and of a worked solution what
    stands in its last `\boxed{}`. Behind "####" (GSM8K) the last line is the answer. Text or messages. Ids: id, unique_id,
    else the row's number. Raises ConfigError for paths and columns, DataError for rows, all with their places.
    """
    from datasets import Dataset

    rows = read(data)
    form = FORMATS[data.prompt]
    by_need = (PROMPTS, PROBLEMS) if data.prompt == "as_is" else (PROBLEMS, PROMPTS)
    problem = _column(rows, "problem", by_need, data.problem_column)
    answer = _column(rows, "answer", (ANSWERS, SOLUTIONS), data.answer_column)
    solution = _solution_column(rows, answer) if solutions else None
    columns, faults = rows.columns(), _Faults()
    name = next((name for name in IDS if name in columns), None)
    made: list[Row] = []
    for number, (row, place) in enumerate(zip(rows.rows, rows.places, strict=True)):
        new: Row = {"id": str(number if name is None else value_at(row, name))}
        _fill(new, "prompt", problem, row, place, faults, lambda value: form.messages(problem_of(value)))
        _fill(new, "answer", answer, row, place, faults, lambda value: _gold(value, answer in SOLUTIONS))
        if solution is not None:
            _fill(new, "solution", solution, row, place, faults, _worked)
        made.append(new)
    faults.report(len(made))
    if name is not None:
        _check_ids(rows, made, name)
    if check:
        tolerant = allow_unverifiable or data.allow_unverifiable
        check_golds(rows, [row["answer"] for row in made], allow_unverifiable=tolerant, say=say)
    say(f"{rows.name}: {len(made):,} rows; problem from {problem}, answer from {answer}, prompt format {data.prompt}")
    return Dataset.from_list([{key: row[key] for key in made[0]} for row in made])


def _fill(
    new: Row, key: str, column: str, row: Row, place: str, faults: _Faults, read_value: Callable[[Any], Any]
) -> None:
    try:
        new[key] = read_value(value_at(row, column))
    except (ValueError, KeyError) as error:  # a SageError is a ValueError
        faults.add(place, column, str(error))


def _solution_column(rows: Rows, answer: str) -> str:
    columns = rows.columns()
    present = [name for name in SOLUTIONS if name in columns]
    if not present and any(isinstance(v := value_at(row, answer), str) and _GSM8K.search(v) for row in rows.rows[:20]):
        return answer
    if len(present) != 1:
        raise ConfigError(
            f"{rows.name}: fine-tuning needs one column of worked solutions ({' or '.join(SOLUTIONS)}), found "
            f"{' and '.join(present) or 'none'} among {', '.join(columns)}; rename or add it"
        )
    return present[0]


def _check_ids(rows: Rows, made: Sequence[Row], column: str) -> None:
    first: dict[str, str] = {}
    for row, raw, place in zip(made, rows.rows, rows.places, strict=True):
        if value_at(raw, column) is None:
            raise DataError(f"{place}, column {column}: the id is missing; give every row one, or none")
        if row["id"] in first:
            raise DataError(
                f"{place}, column {column}: {row['id']!r} is there already at {first[row['id']]}; ids must differ, so drop the "
                "repeated rows (or that column, for numbers in its place)"
            )
        first[row["id"]] = place


def check_golds(
    rows: Rows, golds: Sequence[str], *, allow_unverifiable: bool = False, say: Say = tell, pool: Pool | None = None
) -> dict[int, str]:
    """Row -> reason of the golds that the verifier cannot judge by, found in worker processes (`Pool`).

    A gold is readable if it is right against itself and a different answer gets a verdict, which makes the verifier parse
    it. Whole numbers are not asked about. Unreadable golds are listed; their rows stay, and only an answer of exactly
    their spelling is right there. DataError above 1 % of the rows, unless `allow_unverifiable`.
    """
    asked = list(dict.fromkeys(gold for gold in golds if not _WHOLE.fullmatch(gold)))
    bad: dict[str, str] = {}
    if asked:
        own = pool or Pool()
        try:
            for gold, why in zip(asked, _reasons(asked, own, say, rows.name), strict=True):
                if why:
                    bad[gold] = why
        finally:
            if pool is None:
                own.close()
    found = {row: bad[gold] for row, gold in enumerate(golds) if gold in bad}
    if not found:
        return found
    shown = [f"{rows.places[row]}: {golds[row]!r:.80}: {why}" for row, why in list(found.items())[:20]]
    text = (
        f"{rows.name}: {len(found)} of {len(golds)} golds ({len(found) / len(golds):.1%}) cannot be read by the verifier, so "
        "that only an answer of the same spelling would be right:\n  " + "\n  ".join(shown)
    )
    if len(found) > TOLERATED * len(golds) and not allow_unverifiable:
        raise DataError(
            f"{text}\nMore than {TOLERATED:.0%} is refused: mend or leave out those rows, name another data.answer_column, or "
            "take them as they are: data.allow_unverifiable true in the recipe"
        )
    say(text)
    return found


def _reasons(golds: Sequence[str], pool: Pool, say: Say, name: str) -> Iterator[str]:
    """Why each gold cannot be judged by; "" for one that can."""
    jobs = [(pool.submit(rf"\boxed{{{gold}}}", gold), pool.submit(_PROBE, gold)) for gold in golds]
    last = time.monotonic()
    for done, (itself, other) in enumerate(jobs, start=1):
        same, probe = itself.result(), other.result()
        yield (
            f"not right against itself ({same.reason})"
            if not same.right
            else (probe.reason if probe.label == "undecided" else "")
        )
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"{name}: {done:,} of {len(golds):,} different golds checked")


# ---- what the model will see


def fit_tokenizer(
    tokenizer: PreTrainedTokenizerBase, form: PromptFormat, *, ends: Iterable[int] | None = None
) -> list[str]:
    """Give a tokenizer what it lacks, in place: chat template, pad token, left padding. Returns what changed, in words.

    ends: before fine-tuning, the ids at which the model ends a text by its generation_config. A chat template whose turns end
    otherwise is one that the model was not trained with (base models of some families carry one): the format's own, which
    ends turns as the tokenizer ends a text, takes its place, because adapters hardly teach a token that was never trained.
    One whose turns end with another of these tokens stays, and that token becomes the tokenizer's end.
    ConfigError where there is no end token.
    """
    said = []
    if tokenizer.eos_token is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token; set `eos_token` on it and save it again"
        )
    if tokenizer.chat_template is None:
        tokenizer.chat_template = form.chat_template
        said.append(f"the tokenizer had no chat template; it got that of the format {form.name!r}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        said.append(f"the tokenizer had no pad token; {tokenizer.eos_token!r} pads")
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"  # the latter is what is saved
    end = end_of_turn(tokenizer, form)
    if ends is None or end == tokenizer.eos_token:
        return said
    if end is not None and tokenizer.convert_tokens_to_ids(end) in set(ends):
        said.append(
            f"its chat template ends a turn with {end!r}: that is its end token now, not {tokenizer.eos_token!r}"
        )
        tokenizer.eos_token = end
    else:
        tokenizer.chat_template = form.chat_template
        said.append(
            f"the tokenizer's chat template ends a turn with {end or 'no special token'}, with which this model does not end "
            f"a text; that of the format {form.name!r}, which ends with {tokenizer.eos_token!r}, takes its place"
        )
    return said


def end_of_turn(tokenizer: PreTrainedTokenizerBase, form: PromptFormat) -> str | None:
    """The special token right behind an assistant's turn, as the chat template writes it; None where there is none."""
    said = form.assistant("Two and two.", "4")
    whole = render(tokenizer, [*form.messages("2+2?"), {"role": "assistant", "content": said}])
    tail = tokenizer(whole[whole.rfind(said[-8:]) + 8 :].lstrip(), add_special_tokens=False)["input_ids"][:1]
    token = tokenizer.convert_ids_to_tokens(tail)[0] if tail else None
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    return token if token in special else None


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], opened: bool = False) -> str:
    """Messages by the tokenizer's chat template; opened: with the start of the assistant's turn. ConfigError if it fails."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opened))
    except (TemplateError, ValueError, TypeError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template refuses a conversation of {roles} ({error}); where it "
            "knows no system message take rows with prompts of their own (data.prompt as_is)"
        ) from error


@dataclass(frozen=True)
class Rendered:
    """What `dry_render` found. shown: (text, tokens) of the first rows. lengths: of all prompts, in tokens.

    window: the most tokens a prompt may have, or None. warnings: what is doubtful, in words.
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
        lines = []
        for number, (text, tokens) in enumerate(self.shown):
            lines += [f"---- prompt {number}: {tokens} tokens", text, "----"]
        lines.append(f"prompts: {len(self.lengths):,}, {min(self.lengths)} to {max(self.lengths)} tokens")
        if self.window is not None:
            count = len(self.too_long)
            lines.append(f"longer than the window of {self.window}: {count} ({count / len(self.lengths):.1%})")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def dry_render(
    tokenizer: PreTrainedTokenizerBase,
    dataset: Iterable[Row],
    form: PromptFormat,
    max_prompt: int | None = None,
    rows: int = 3,
    *,
    strict: bool = False,
    say: Say = tell,
) -> Rendered:
    """Render what the model will see, say it, and refuse what would spoil a run in silence. Trains and loads nothing.

    ConfigError: no end, pad or chat template; padding on the right; a start token twice; an unfilled {placeholder} that the
    template writes; every prompt longer than `max_prompt` tokens. Warnings: some prompts too long, unknown tokens, a turn that ends
    with another token than the tokenizer's, a demonstration that starts otherwise than a generation (refused if `strict`).
    """
    _check_tokenizer(tokenizer, form)
    prompts = [row["prompt"] for row in dataset]
    if not prompts:
        raise DataError("no rows to render")
    texts = [render(tokenizer, prompt, opened=True) for prompt in prompts]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    shown = list(zip(prompts[:rows], texts[:rows], ids[:rows], strict=True))
    for prompt, text, tokens in shown:
        _check_rendered(tokenizer, prompt, text, tokens)
    warned = _doubts(tokenizer, form, shown)
    found = Rendered(tuple((t, len(i)) for _, t, i in shown), tuple(map(len, ids)), max_prompt, tuple(warned.values()))
    say(str(found))
    if strict and "prefix" in warned:
        raise ConfigError(warned["prefix"])
    if found.too_long and len(found.too_long) == len(prompts):
        raise ConfigError(
            f"every prompt is longer than the {max_prompt} tokens that are left for it (the shortest has "
            f"{min(found.lengths)}); give more room"
        )
    return found


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, form: PromptFormat) -> None:
    lacking = [name for name in ("eos_token", "pad_token", "chat_template") if getattr(tokenizer, name) is None]
    if lacking:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no {', no '.join(lacking)}; fit_tokenizer(tokenizer, "
            f"FORMATS[{form.name!r}]) gives it what it lacks, and so does the fine-tuning stage (sage-rlvr sft)"
        )
    if tokenizer.padding_side != "left":
        raise ConfigError(
            f"tokenizer.padding_side = {tokenizer.padding_side!r}: a completion would start behind padding; set 'left'"
        )


def _check_rendered(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Message], text: str, ids: list[int]) -> None:
    said = "\n".join(message["content"] for message in prompt)
    left = [found for found in PLACEHOLDER.findall(text) if found not in said]
    if left:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template leaves {left[0]} in the prompt, a placeholder that "
            f"nothing filled in; mend the template. The prompt: {text!r:.300}"
        )
    start = tokenizer.bos_token_id
    if start is not None and ids[:2] == [start, start]:
        raise ConfigError(
            f"a prompt starts with {tokenizer.bos_token!r} twice; take it out of the chat template or of the prompts. "
            f"The prompt: {text!r:.200}"
        )


def _doubts(
    tokenizer: PreTrainedTokenizerBase, form: PromptFormat, shown: Sequence[tuple[Sequence[Message], str, list[int]]]
) -> dict[str, str]:
    found = {}
    for prompt, text, ids in shown:
        said = {"role": "assistant", "content": form.assistant("Two and two.", "4")}
        whole = render(tokenizer, [*prompt, said])
        if not whole.startswith(text) or tokenizer(whole, add_special_tokens=False)["input_ids"][: len(ids)] != ids:
            kept = next((i for i, (a, b) in enumerate(zip(whole, text, strict=False)) if a != b), len(text))
            found["prefix"] = (
                f"tokenizer {tokenizer.name_or_path!r}: a demonstration does not start as a generation starts: the prompt "
                f"ends with {text[max(0, kept - 20) :]!r}, where a demonstration has {whole[max(0, kept - 20) : kept + 40]!r}"
            )
        if strange := unknown_characters(tokenizer, text, ids):
            named = ", ".join(map(repr, strange[:20])) + (f" and {len(strange) - 20} more" if strange[20:] else "")
            found["unknown"] = (
                f"the prompt holds characters that the tokenizer does not know: {named}, in {text!r:.200}"
            )
    if (end := end_of_turn(tokenizer, form)) is None:
        found["end"] = (
            f"the chat template ends an assistant's turn with no special token, the tokenizer's end token is "
            f"{tokenizer.eos_token!r}: a model that learned such turns does not stop; end them with {tokenizer.eos_token!r}"
        )
    elif end != tokenizer.eos_token:
        found["end"] = (
            f"the chat template ends an assistant's turn with {end!r}, the tokenizer's end token is {tokenizer.eos_token!r}: a "
            "model that learned the former does not stop unless its generation_config names it too"
        )
    return found


def unknown_characters(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[str]:
    """What of `text`, whose tokens are `ids`, becomes the unknown token: characters, else (of none alone) words.

    Where the text spells that token itself, as a chat template does whose end token is the unknown one, it is none.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return []

    def strange(part: str) -> bool:
        return unknown in tokenizer(part, add_special_tokens=False)["input_ids"]

    pieces = [piece for piece in text.split(str(tokenizer.unk_token)) if strange(piece)]
    characters = [c for c in dict.fromkeys("".join(pieces)) if strange(c)]
    return characters or [word for word in dict.fromkeys(" ".join(pieces).split()) if strange(word)] or pieces


__all__ = ["Rendered", "check_golds", "dry_render", "facts", "fit_tokenizer", "load", "read"]
