"""The tokenizer of policies trained from scratch: one id per character or word of the task, `<pad>`, `<eos>`, nothing added."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sage_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHARACTERS = "0123456789+-*/()= :"  # of Countdown
PAD, EOS = "<pad>", "<eos>"  # ids 0 and 1; the characters follow in the order above


def build_tokenizer(characters: Iterable[str] = CHARACTERS) -> PreTrainedTokenizerFast:
    """A tokenizer with an id for each of `characters` and two more (21 for Countdown), which
    `AutoTokenizer.from_pretrained` reads back after `save_pretrained`. An entry of several characters is a word with one id, the
    longest matching first. A text should have only one encoding: no word may begin inside another one.

    `encode` returns one id per character or word and no special token; an unknown character raises an error instead of being
    dropped. `decode` returns the exact text. Padding is on the left, as generation needs it. It loads with a Llama, Qwen3, GPT-NeoX
    or Gemma `config.json`; for a few model types (such as qwen2) transformers 5 overrides any tokenizer, so
    `PreTrainedTokenizerFast.from_pretrained` has to be called by name.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # slow to import, with transformers
    from transformers import PreTrainedTokenizerFast

    characters = list(characters)
    if wrong := [entry for n, entry in enumerate(characters) if entry in ("", PAD, EOS, *characters[:n])]:
        raise ConfigError(f"characters: {wrong[0]!r} is empty, there twice or one of {PAD} and {EOS}; a task's entries differ")
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, *characters))}
    words = sorted((re.escape(entry) for entry in characters if len(entry) > 1), key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # "<unk>" has no id: unknown text raises an error
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*words, r"[\s\S]"])), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
