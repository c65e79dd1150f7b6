r"""One prompt format for supervised fine-tuning, RL and evaluation: the prompt, its rendering, and the place of the answer.

    render(prompt + assistant turn) = render(prompt, generation opened) + rest of the assistant turn       (prefix law)
    verify(assistant(solution, gold), gold, **reading) = right                                             (reading law)

"sage" is the format of SAGE, arXiv 2605.18864, appendix E.4, with a system prompt in other words; "boxed" asks for
`\boxed{}`; "as_is" uses the prompts of the rows. The first law keeps RL and evaluation on the contexts of fine-tuning; the second
reads an answer exactly where the prompt asked for it. Text only: no torch, no TRL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verifiers.answers import AnswerReading, reading_options
from sage_rlvr.verifiers.reasons import location_in_words

Message = dict[str, str]
AnswerIn = Literal["boxed", "tag", "stated", "last_number"]
PLACEHOLDER = re.compile(r"\{[A-Za-z]\w*\}")  # an unfilled field, such as {system_prompt}
_THINK = re.compile(r"</?think>")  # marks of the models that generated many published solutions

# For tokenizers without a chat template. Text of the roles, no special token except the tokenizer's start and end:
#   BOS? (system EOS)? (problem, empty line, header, newline, answer EOS)*
# `header` is the format's opening tag, or a word. The newline after it makes its last token independent of the following text.
# An assistant turn may contain the header (a demonstration) or not (a completion sampled after it). {% generation %}
# marks what TRL's assistant_only_loss counts: the turn without its header, the end token included.
_TEMPLATE = r"""
{%- set header = HEADER -%}
{{- bos_token or '' -}}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' -%}
    {%- set said = message['content'] -%}
    {%- if said[:header|length] == header -%}{%- set said = said[header|length:] -%}{%- endif -%}
    {{- header -}}
    {%- generation -%}{{- said + eos_token -}}{%- endgeneration -%}
  {%- elif message['role'] == 'system' -%}
    {{- message['content'] + eos_token -}}
  {%- elif message['role'] == 'user' -%}
    {{- message['content'] + '\n\n' -}}
  {%- else -%}
    {{- raise_exception('this chat template supports only the roles system, user and assistant') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- header -}}{%- endif -%}
"""


# Requests in a prompt for the place of the answer: "put your final answer within \boxed{}", "of the form Answer: $Answer"
_ASKED = {
    "boxed": re.compile(r"\\(?:boxed|fbox)\b|\bboxed\b", re.IGNORECASE),
    "stated": re.compile(r"####|\banswer\W{0,4}:", re.IGNORECASE),  # many problems contain "the answer is of the form"
    "tag": re.compile(r"<(?P<tag>answer|solution|final_answer|result)>", re.IGNORECASE),
}


def requested_locations(prompt: str) -> dict[str, str]:
    """Places at which a prompt asks for the answer: place -> the tag, or "". Empty if it names no place."""
    matches = {location: pattern.search(prompt) for location, pattern in _ASKED.items()}
    return {location: one.groupdict().get("tag") or "" for location, one in matches.items() if one is not None}


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    r"""A way to ask for an answer and to read it.

    name     its key in `FORMATS` and in a recipe's data.prompt
    system   the system message; "" for none
    opening, closing  tags around the working in a demonstration; with this package's chat template a generation starts after
                      the opening one. "" for none
    answer_in, tag, closed  the place of the answer, as in `sage_rlvr.verifiers.math.verify_math`
    thinking, in_thinking   the tag of the thinking, after which the answer is read, and whether the prompt opens it

    Raises ConfigError for a format whose answers could not be read, or with an unfilled {placeholder}.
    """

    name: str
    system: str = ""
    opening: str = ""
    closing: str = ""
    answer_in: AnswerIn = "boxed"
    tag: str = "SOLUTION"
    closed: bool = True
    thinking: str = "think"
    in_thinking: bool = False

    def __post_init__(self) -> None:
        AnswerReading(**self.reading)  # raises an error for an unknown place or tag
        marker = {"boxed": r"\boxed", "tag": f"<{self.tag}>", "stated": "nswer"}.get(self.answer_in, "")
        if self.system and marker not in self.system:
            raise ConfigError(
                f"prompt format {self.name!r}: its answer is read {location_in_words(self.answer_in, self.tag)}, which its system "
                "message does not request; request that place in `system`, or set answer_in and tag to the requested place"
            )
        left = [placeholder for text in (self.system, self.opening, self.closing) for placeholder in PLACEHOLDER.findall(text)]
        if left:
            raise ConfigError(
                f"prompt format {self.name!r}: contains {left[0]}, an unfilled placeholder; write the text"
            )

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `verify_math` and `MathReward` that read this format: MathReward(**form.reading)."""
        return reading_options(self)

    def read_at(
        self, answer_in: AnswerIn | None, tag: str | None = None, thinking: str | None = None, in_thinking: bool = False
    ) -> PromptFormat:
        """This format with another place of the answer; None: unchanged."""
        thinking = self.thinking if thinking is None else thinking
        return replace(
            self, answer_in=answer_in or self.answer_in, tag=tag or self.tag, thinking=thinking, in_thinking=in_thinking
        )

    def plain(self, problem: str | Sequence[Mapping[str, Any]]) -> str:
        """The prompt as plain text, for a tokenizer without a chat template: messages, empty lines between, an opening."""
        contents = [str(message["content"]) for message in self.messages(problem)]
        return "\n\n".join([*contents, f"{self.opening or 'Solution:'}\n"])

    def messages(self, problem: str | Sequence[Mapping[str, Any]]) -> list[Message]:
        """The prompt of a problem: its text, or the messages of a row.

        Without a system message of this format ("as_is") messages are unchanged; otherwise they must be one user message with the
        problem as its text. Raises DataError for any other conversation.
        """
        if isinstance(problem, str):
            conversation = [{"role": "user", "content": problem}]
        else:
            conversation = [{"role": str(message["role"]), "content": str(message["content"])} for message in problem]
        roles = [message["role"] for message in conversation]
        if not roles or roles[-1] != "user":
            raise DataError(
                f"a prompt of the roles {roles}: the last message must be the user's"
            )
        if self.system and roles != ["user"]:
            raise DataError(
                f"a prompt of the roles {roles} under the format {self.name!r}, which adds a system message; "
                "set a column with only the problem (data.problem_column), or use the rows' prompts: data.prompt as_is"
            )
        return [{"role": "system", "content": self.system}, *conversation] if self.system else conversation

    def assistant(self, solution: str, answer: str) -> str:
        r"""The assistant's turn of a demonstration: the working, and the answer at the place where this format reads it.

        Marks of thinking (`<think>`) are dropped from the solution. A boxed answer gets no second box.
        """
        working = _THINK.sub("", solution).strip()
        if self.opening or self.closing:
            working = "\n".join(filter(None, (self.opening, working, self.closing)))
        if self.answer_in == "tag":
            return f"{working}\n<{self.tag}>{answer}</{self.tag}>".lstrip()
        if self.answer_in in ("stated", "last_number"):
            return f"{working}\n\nAnswer: {answer}".lstrip()
        if r"\boxed" in working:
            return working
        return f"{working}\n\nThe answer is $\\boxed{{{answer}}}$.".lstrip()

    def demonstration(self, problem: str | Sequence[Mapping[str, Any]], solution: str, answer: str) -> list[Message]:
        """`messages(problem)` followed by the assistant's turn."""
        return [*self.messages(problem), {"role": "assistant", "content": self.assistant(solution, answer)}]

    @property
    def chat_template(self) -> str:
        """A Jinja template for a tokenizer that has none (most base models), for any conversation of text."""
        header = f"{self.opening or 'Solution:'}\n"
        return _TEMPLATE.replace("HEADER", json.dumps(header)).strip()


SAGE = PromptFormat(
    name="sage",
    system=(
        "Solve the problem that you are given. Write your working between <start_working_out> and <end_working_out>; "
        "after it, give the final answer alone between <SOLUTION> and </SOLUTION>."
    ),
    opening="<start_working_out>",
    closing="<end_working_out>",
    answer_in="tag",
    tag="SOLUTION",
)
BOXED = PromptFormat(
    name="boxed", system=r"Work through the problem step by step. End with the final answer in \boxed{}."
)
AS_IS = PromptFormat(name="as_is")

FORMATS: dict[str, PromptFormat] = {form.name: form for form in (SAGE, BOXED, AS_IS)}

__all__ = ["FORMATS", "PLACEHOLDER", "AnswerIn", "Message", "PromptFormat", "location_in_words", "requested_locations"]
