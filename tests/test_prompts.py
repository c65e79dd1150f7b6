r"""The formats: what is asked is what is read, and a demonstration starts as a generation starts, for any tokenizer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from byte_tokenizer import CHATML, byte_tokenizer
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import chat
from sage_rlvr.tasks.prompts import FORMATS, PLACEHOLDER, PromptFormat
from sage_rlvr.verifiers.math import verify_math

MERGED = [f.assistant("Let us count.\nThen >\n>L >\n\n", "12") + f.system for f in FORMATS.values()]
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60).filter(str.strip)


KINDS = {
    "ours": lambda form: byte_tokenizer(form.chat_template),
    "ours, no BOS": lambda form: byte_tokenizer(form.chat_template, bos=False),
    "ours, merged tokens": lambda form: byte_tokenizer(form.chat_template, merged=MERGED),
    "its own": lambda form: byte_tokenizer(CHATML, merged=MERGED),
}


def render(tok: PreTrainedTokenizerFast, messages: list[dict[str, str]], opened: bool = False) -> str:
    return tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)


def ids(tok: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tok(text, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_demonstration_starts_as_a_generation_starts(name: str, kind: str):
    form = FORMATS[name]
    tok = KINDS[kind](form)

    @settings(max_examples=40, deadline=None)
    @given(problem=TEXT, solution=TEXT, answer=st.integers().map(str))
    def law(problem: str, solution: str, answer: str) -> None:
        prompt = render(tok, form.messages(problem), opened=True)
        whole = render(tok, form.demonstration(problem, solution, answer))
        assert whole.startswith(prompt)
        assert ids(tok, whole)[: len(ids(tok, prompt))] == ids(tok, prompt)  # and so do their tokens

    law()


@pytest.mark.parametrize("name", FORMATS)
def test_our_template_begins_once_ends_once_and_leaves_nothing_unfilled(name: str):
    form = FORMATS[name]
    tok = byte_tokenizer(form.chat_template)
    prompt = render(tok, form.messages("2+2?"), opened=True)
    whole = render(tok, form.demonstration("2+2?", "It is four.", "4"))
    assert prompt.count("<s>") == 1 and prompt.startswith("<s>")
    assert whole.endswith("</s>") and not prompt.endswith("</s>")
    assert not PLACEHOLDER.search(form.chat_template.replace("{{", "").replace("}}", "")) and "HEADER" not in whole
    assert tok.apply_chat_template(form.messages("2+2?"), add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ] == ids(tok, prompt)  # nothing is added when it is tokenized: no second BOS
    assert (
        render(byte_tokenizer(form.chat_template, bos=False), form.messages("2+2?"))
        == prompt.removeprefix("<s>")[: -len(f"{form.opening or 'Solution:'}\n")]
    )


def test_the_sage_prompt_as_it_is_rendered():
    form = FORMATS["sage"]
    tok = byte_tokenizer(form.chat_template, bos=False)
    assert render(tok, form.messages("2+2?"), opened=True) == f"{form.system}</s>2+2?\n\n<start_working_out>\n"
    assert render(tok, form.demonstration("2+2?", " <think>Two\nand two.</think>\n", "4")).endswith(
        "2+2?\n\n<start_working_out>\nTwo\nand two.\n<end_working_out>\n<SOLUTION>4</SOLUTION></s>"
    )


def test_a_sampled_turn_renders_behind_the_header_that_it_was_sampled_from():
    form = FORMATS["sage"]
    tok = byte_tokenizer(form.chat_template)
    sampled = "Two.\n<end_working_out>\n<SOLUTION>4</SOLUTION>"  # without the opening, which stood in the prompt
    turn = [*form.messages("2+2?"), {"role": "assistant", "content": sampled}]
    assert render(tok, turn) == render(tok, form.demonstration("2+2?", "Two.", "4"))


def test_the_generation_marks_count_the_turn_without_its_header_and_with_its_end():
    form = FORMATS["sage"]
    tok = byte_tokenizer(form.chat_template)
    found = tok.apply_chat_template(
        form.demonstration("2+2?", "Two.", "4"), return_dict=True, return_assistant_tokens_mask=True
    )
    counted = [token for token, one in zip(found["input_ids"], found["assistant_masks"], strict=True) if one]
    assert tok.decode(counted) == "Two.\n<end_working_out>\n<SOLUTION>4</SOLUTION></s>"


@pytest.mark.parametrize("name", FORMATS)
@given(solution=TEXT.filter(lambda text: "\\" not in text and "<" not in text), gold=st.integers(-(10**6), 10**6))
@settings(max_examples=25, deadline=None)
def test_an_answer_is_read_where_the_prompt_asked_for_it(name: str, solution: str, gold: int):
    form = FORMATS[name]
    said = form.assistant(solution, str(gold))
    assert verify_math(said, str(gold), **form.reading).right
    assert verify_math(said, str(gold + 1), **form.reading).label == "wrong"


@pytest.mark.parametrize(
    ("name", "said", "label"),
    [  # the figures on which the released reward errs
        ("sage", "17+25=42 <end_working_out><SOLUTION>41</SOLUTION>", "wrong"),
        ("sage", "Check: 42-25 = 17. <end_working_out><SOLUTION>42</SOLUTION>", "right"),
        ("sage", "<SOLUTION> 42</SOLUTION>", "right"),
        ("sage", r"\boxed{42}", "wrong"),
        ("boxed", r"so \boxed{42}", "right"),
        ("boxed", "<SOLUTION>42</SOLUTION>", "wrong"),
    ],
)
def test_nothing_beside_the_asked_place_counts(name: str, said: str, label: str):
    assert verify_math(said, "42", **FORMATS[name].reading).label == label


def test_a_solution_that_is_boxed_gets_no_second_box():
    assert FORMATS["boxed"].assistant(r"So \boxed{\frac12}.", "1/2") == r"So \boxed{\frac12}."
    assert FORMATS["as_is"].assistant("So a half.", "1/2") == "So a half.\n\nThe answer is $\\boxed{1/2}$."


def test_rows_with_messages_of_their_own():
    own = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}]
    assert FORMATS["as_is"].messages(own) == own
    assert FORMATS["sage"].messages(own[1:])[1:] == own[1:]
    with pytest.raises(DataError, match="as_is"):
        FORMATS["sage"].messages(own)
    with pytest.raises(DataError, match="user's"):
        FORMATS["as_is"].messages([{"role": "assistant", "content": "4"}])


def test_a_format_that_cannot_be_read_back_is_refused():
    with pytest.raises(ConfigError, match="does not request"):
        PromptFormat(name="x", system="Answer briefly.")
    with pytest.raises(ConfigError, match="system_prompt"):
        PromptFormat(name="x", system=r"{system_prompt} \boxed{}")


def test_the_names_are_those_of_the_configuration():
    from typing import get_args, get_type_hints

    from sage_rlvr.config import DataConfig

    assert set(get_args(get_type_hints(DataConfig)["prompt"])) == set(FORMATS)
    assert all(form.name == name and json.dumps(form.reading) for name, form in FORMATS.items())


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "maximum recursion depth"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{% for", "unexpected"),
        ("{{ raise_exception('support system') }}", "support system"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_fails_is_a_sentence(template: str, said: str):
    with pytest.raises(ConfigError, match=rf"its chat template raises an error for a conversation of .*{said}"):
        chat.render(byte_tokenizer(template), FORMATS["boxed"].messages("2+2?"))


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%c' * 200000) }}", "{{ 'a' * 4000000 }}", "{{ messages[0].content * 99999 }}"]
)
def test_a_template_that_makes_megabytes_is_refused_before_they_are_tokenized(template: str) -> None:
    with pytest.raises(ConfigError, match=r"its chat template makes \d,\d{3},\d{3} characters"):
        chat.render(byte_tokenizer(template), FORMATS["as_is"].messages("2+2? " * 5))


def test_a_long_conversation_is_rendered() -> None:
    form = FORMATS["as_is"]
    assert len(chat.render(byte_tokenizer(form.chat_template), form.messages("word " * 200_000))) > 1_000_000
