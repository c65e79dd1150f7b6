"""chat_template_kwargs: one rendering, and an error for a key that changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from byte_tokenizer import CHATML, byte_tokenizer
from chat_policy import EMPTY, OFF, THINKING, rows_file
from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import PromptRenderer, Tokens, load_policy
from sage_rlvr.tasks import task_named
from sage_rlvr.tasks.chat import check_options, render, variables_of
from sage_rlvr.tasks.prompts import FORMATS

ASKED = [{"role": "user", "content": "2+2?"}]


def test_options_reach_the_template():
    tokenizer = byte_tokenizer(THINKING, eos_token="<|im_end|>")
    assert render(tokenizer, ASKED, opened=True, options=OFF) == render(tokenizer, ASKED, opened=True) + EMPTY


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (THINKING, {"enable_thinkin": False}, r"chat_template_kwargs\.enable_thinkin: .*did you mean 'enable_thinking'\?"),
        (CHATML, OFF, r"chat_template_kwargs\.enable_thinking: .*no such variable.*it reads none: remove the key"),
        (THINKING, {"add_generation_prompt": False}, r"chat_template_kwargs\.add_generation_prompt: an argument that this package"),
        (THINKING, {"messages": []}, r"chat_template_kwargs\.messages: an argument"),
        ("{% if %}", OFF, "its chat template cannot be parsed"),
    ],
)
def test_an_option_without_effect_is_an_error(template: str, options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        check_options(byte_tokenizer(template), options)


def test_an_option_of_the_template_passes():
    check_options(byte_tokenizer(THINKING), OFF)
    own = byte_tokenizer(FORMATS["sage"].chat_template)
    assert "messages" in variables_of(own) and "header" not in variables_of(own)  # which it sets itself


def test_asking_renders_with_options_and_its_identity_has_them(tmp_path: Path):
    task = task_named(rows_file(tmp_path))
    tokens = Tokens.of(byte_tokenizer(THINKING, eos_token="<|im_end|>"))
    plain, off = PromptRenderer.of(task, tokens), PromptRenderer.of(task, tokens, options=OFF)
    problem = task.problems("test")[0]
    assert off(problem).text == plain(problem).text + EMPTY and off.written != plain.written
    assert plain.written == PromptRenderer.of(task, tokens, options={}).written


def test_plain_prompts_have_no_options():
    with pytest.raises(ConfigError, match=r"plain text here.*remove enable_thinking"):
        PromptRenderer.of(task_named("countdown"), load_policy("embedded")[1], options=OFF)
