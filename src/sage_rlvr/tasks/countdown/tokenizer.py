"""The tokenizer of policies trained from scratch: one id a character or a word of the task, `<pad>`, `<eos>`, nothing added."""

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
    `AutoTokenizer.from_pretrained` reads back after `save_pretrained`. An entry of several characters is a word: one id where it
    stands, the longest first. A text should have one spelling in them: no word may begin where another one ends.

    `encode` gives one id a character or word and no special token; a character outside raises instead of being
    dropped. `decode` gives the text back exactly. Padding is on the left, as generation needs it.
    It loads beside a Llama, Qwen3, GPT-NeoX or Gemma `config.json`; transformers 5 overrides any tokenizer beside a few
    model types (qwen2 among them), where `PreTrainedTokenizerFast.from_pretrained` has to be called by name.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # with transformers a second of start-up
    from transformers import PreTrainedTokenizerFast

    characters = list(characters)
    if wrong := [entry for n, entry in enumerate(characters) if entry in ("", PAD, EOS, *characters[:n])]:
        raise ConfigError(f"characters: {wrong[0]!r} is empty, there twice or one of {PAD} and {EOS}; a task's entries differ")
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, *characters))}
    words = sorted((re.escape(entry) for entry in characters if len(entry) > 1), key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # "<unk>" has no id: unknown text is refused
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
