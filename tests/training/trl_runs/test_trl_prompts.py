"""What the model will see: prompts rendered dry, tokenizers that would spoil a run, ends of turns."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")  # the extra that brings datasets and pyarrow
datasets = pytest.importorskip("datasets")

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from byte_tokenizer import CHATML, byte_tokenizer
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.chat import dry_render, end_of_turn, fit_tokenizer, render
from sage_rlvr.tasks.prompts import FORMATS
from training.trl_runs.data_common import quiet, said


def prompts(*problems: str, form: str = "sage") -> list[dict[str, Any]]:
    return [{"prompt": said(problem, form)} for problem in problems]


def test_the_dry_render_shows_texts_and_counts_tokens_as_they_will_be():
    form = FORMATS["sage"]
    tokenizer = byte_tokenizer(padding_side="left")
    assert [line.split(";")[0] for line in fit_tokenizer(tokenizer, form)] == ["the tokenizer had no chat template"]
    said_lines: list[str] = []
    found = dry_render(tokenizer, prompts("1+1?", "2+2? " * 9, "3+3?", "4+4?"), form, 230, say=said_lines.append)
    ids = tokenizer.apply_chat_template(said("1+1?"), add_generation_prompt=True, return_dict=True)["input_ids"]
    assert found.shown[0] == (render(tokenizer, said("1+1?"), opened=True), len(ids))
    assert len(found.shown) == 3 and len(found.lengths) == 4 and not found.warnings
    assert found.too_long == [1] and "longer than the window of 230: 1 (25.0%)" in said_lines[0]
    assert said_lines[0].startswith("prompts: 4, 20") and "1+1?" not in said_lines[0]  # a run's opening has the prompt
    with pytest.raises(ConfigError, match=r"every prompt is longer than the 10 available tokens .*shortest has 20"):
        dry_render(tokenizer, prompts("1+1?"), form, 10, say=quiet)


@pytest.mark.parametrize(
    ("names", "template", "message"),
    [
        ({"eos_token": None}, CHATML, "has no eos_token"),
        ({"pad_token": None}, CHATML, "has no pad_token"),
        ({}, None, "has no chat_template; fit_tokenizer"),
        ({"padding_side": "right"}, CHATML, "padding_side = 'right'"),
        ({}, "{{ '{system_prompt}' }}" + CHATML, r"leaves \{system_prompt\} in the prompt"),
        ({}, CHATML.replace("in messages", "in messages[1:]"), r"leaves out the system's message \('Solve the problem"),
        ({}, "{{ messages[0]['content'] }}", r"leaves out the user's message \('1\+1\?'\), so the model would not see it"),
        ({}, "{{ bos_token + bos_token }}" + CHATML, "starts with '<s>' twice"),
        (
            {},
            "{{ raise_exception('no system role') }}",
            "raises an error for a conversation of system, user.*no system role.*as_is",
        ),
    ],
)
def test_a_tokenizer_that_would_spoil_a_run_in_silence_is_refused(
    names: dict[str, Any], template: str | None, message: str
):
    tokenizer = byte_tokenizer(template, **{"padding_side": "left"} | names)
    with pytest.raises(ConfigError, match=message):
        dry_render(tokenizer, prompts("1+1?"), FORMATS["sage"], say=quiet)


def test_braces_of_the_problem_are_no_placeholder():
    tokenizer = byte_tokenizer(CHATML, padding_side="left", eos_token="<|im_end|>")
    assert not dry_render(tokenizer, prompts("Find {x} in {name_of_set}."), FORMATS["sage"], say=quiet).warnings


def test_doubts_are_said_and_a_changed_prefix_is_refused_where_it_is_learned_from():
    changed = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")
    tokenizer = byte_tokenizer(changed, padding_side="left")
    found = dry_render(tokenizer, prompts("1+1?"), FORMATS["sage"], say=quiet)
    assert any("a demonstration starts differently than a generation" in w and "<think>" in w for w in found.warnings)
    assert any("ends an assistant's turn with '<|im_end|>'" in w and "'</s>'" in w for w in found.warnings)
    with pytest.raises(ConfigError, match="starts differently than a generation"):
        dry_render(tokenizer, prompts("1+1?"), FORMATS["sage"], strict=True, say=quiet)


def test_an_unknown_token_that_the_template_writes_is_no_unknown_character():
    """Where the unknown token is the end token (GPT-2's kind), chat templates write it themselves."""
    raw = Tokenizer(
        models.WordLevel({"<e>": 0, **{c: i for i, c in enumerate("1+=? \nabcdefghijklmn", 1)}}, unk_token="<e>")
    )
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"<e>|[\s\S]"), "isolated")
    names = {"eos_token": "<e>", "pad_token": "<e>", "unk_token": "<e>", "padding_side": "left"}
    template = "{% for m in messages %}{{ m.content }}<e>{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=template, **names)

    def said(problem: str) -> list[str]:
        found = dry_render(tokenizer, prompts(problem, form="as_is"), FORMATS["as_is"], say=quiet)
        return [warning for warning in found.warnings if "outside the tokenizer's vocabulary" in warning]

    assert said("1+1=?") == []
    assert len(said("1+\u00e9=z?")) == 1 and "outside the tokenizer's vocabulary: '\u00e9', 'z', in" in said("1+\u00e9=z?")[0]


def test_a_turn_without_an_end_is_said_in_words():
    bare = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    found = dry_render(
        byte_tokenizer(bare, padding_side="left"), prompts("1+1?", form="as_is"), FORMATS["as_is"], say=quiet
    )
    assert any("with no special token" in w and "'</s>'" in w for w in found.warnings)
    assert not any("None" in w for w in found.warnings)


@pytest.mark.parametrize("name", FORMATS)
def test_a_fitted_tokenizer_raises_no_doubt(name: str):
    for template, ends in ((None, [1]), (CHATML, [1]), (CHATML, [1, 3])):  # 1 is </s>, 3 <|im_end|>
        tokenizer = byte_tokenizer(template, pad_token=None)
        changed = fit_tokenizer(tokenizer, FORMATS[name], ends=ends)
        assert (tokenizer.chat_template == CHATML) == (tokenizer.eos_token == "<|im_end|>") == (3 in ends)
        assert len(changed) == 2
        assert end_of_turn(tokenizer, FORMATS[name]) == tokenizer.eos_token
        assert not dry_render(tokenizer, prompts("1+1?", form=name), FORMATS[name], strict=True, say=quiet).warnings
        assert fit_tokenizer(tokenizer, FORMATS[name], ends=ends) == []  # nothing is left to change


def test_a_tokenizer_without_an_end_cannot_be_fitted():
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        fit_tokenizer(byte_tokenizer(eos_token=None), FORMATS["sage"])
