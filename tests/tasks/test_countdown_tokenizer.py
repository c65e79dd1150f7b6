"""The tokenizer: one id a character, exact both ways, also after a round trip through a checkpoint directory."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer, LlamaConfig, Qwen3Config

from sage_rlvr.tasks.countdown import WORLDS, build_tokenizer, render
from sage_rlvr.tasks.countdown.tokenizer import CHARACTERS

TOKENIZER = build_tokenizer()


def test_vocabulary_by_hand():
    assert len(TOKENIZER) == 21
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id) == (0, 1, None)
    assert TOKENIZER.encode("3 5=8:3+5") == [5, 19, 7, 18, 10, 20, 5, 12, 7]
    assert TOKENIZER.encode(CHARACTERS) == list(range(2, 21))


@pytest.mark.parametrize("config", [None, LlamaConfig(vocab_size=21), Qwen3Config(vocab_size=21)])
def test_round_trip_beside_a_model_config(config, tmp_path):
    """transformers 5 picks a tokenizer class by the model type in config.json; ours must survive that."""
    TOKENIZER.save_pretrained(tmp_path)
    if config is not None:
        config.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.padding_side, len(loaded)) == (0, 1, "left", 21)
    for problem, expression in WORLDS["countdown-4"].examples("test", 0, 0, 20):
        text = render(problem) + expression
        ids = loaded.encode(text)
        assert ids == TOKENIZER.encode(text) and len(ids) == len(text)
        assert loaded.decode(ids) == text
        assert loaded.decode([*ids, 1, 0], skip_special_tokens=True) == text


def test_a_batch_is_padded_on_the_left():
    batch = TOKENIZER(["1 2=3:", "1 2 3=6:"], padding=True)
    assert batch["input_ids"][0] == [0, 0, *TOKENIZER.encode("1 2=3:")]
    assert batch["attention_mask"][0] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert set(batch) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("text", ["x", "3+5\n", "é"])
def test_unknown_characters_are_refused_not_dropped(text):
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER.encode(text)
