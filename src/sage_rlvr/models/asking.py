"""How a task's problems are put to a policy: its tokenizer's chat template, a prompt format's, or plain text; then as token ids."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.chat import fit_tokenizer, render
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat

Chat = Literal["model", "format"]


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and its token ids, the first a start token where the tokenizer or template puts one."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Asking:
    """problem -> `Prompt`. form: the prompt format whose messages are written; None for plain text."""

    task: Task
    tokens: Tokens
    form: PromptFormat | None

    @classmethod
    def of(cls, task: Task, tokens: Tokens, chat: Chat = "model") -> Asking:
        """A task and a policy's tokens, whose tokenizer gets what it lacks (a chat template, a pad token).

        chat "model": by the chat template of the policy's tokenizer; where it has none, that of the format (as fine-tuning
        gives it), and plain text for tasks with a frame of their own. "format": always the format's own template, so that
        policies whose tokenizers differ are asked alike.
        """
        if not in_messages(task, tokens.tokenizer):
            return cls(task, tokens, None)
        form = getattr(task, "form", None) or FORMATS["as_is"]
        if chat == "format":
            tokens.tokenizer.chat_template = form.chat_template
        fit_tokenizer(tokens.tokenizer, form)
        return cls(task, tokens, form)

    def __call__(self, problem: Any) -> Prompt:
        """ConfigError where the tokenizer has no token for a character."""
        tokenizer = self.tokens.tokenizer
        try:
            if self.form is None:
                text = self.task.prompt(problem)
                return Prompt(text, tuple(self.tokens.encode_prompt(text)))
            text = render(tokenizer, self.task.messages(problem), opened=True)  # type: ignore[attr-defined]
            return Prompt(text, tuple(self.tokens.encode(text)))
        except ConfigError:
            raise
        except Exception as error:  # tokenizers raises plain Exceptions
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} cannot spell the prompts of this task ({error}); take a policy whose "
                "tokenizer knows their characters"
            ) from error

    @property
    def written(self) -> dict[str, Any]:
        """What writes the prompts, to be hashed."""
        if self.form is None:
            return {"plain": self.task.name}
        form = json.dumps(asdict(self.form), sort_keys=True)
        return {"chat_template": self.tokens.tokenizer.chat_template, "form": form}


def in_messages(task: Task, tokenizer: Any) -> bool:
    """Whether a task is put as a conversation: it can be, and a format or the tokenizer has a template for that."""
    if getattr(task, "messages", None) is None:
        return False
    return getattr(task, "form", None) is not None or tokenizer.chat_template is not None


__all__ = ["Asking", "Chat", "Prompt", "in_messages"]
