"""The character tokenizer of policies trained from scratch: one id a character, `<pad>`, `<eos>`, nothing added on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHARACTERS = "0123456789+-*/()= :"  # of Countdown
PAD, EOS = "<pad>", "<eos>"  # ids 0 and 1; the characters follow in the order above


def build_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """A character-level tokenizer with an id for each of `characters` and two more (21 for Countdown), which
    `AutoTokenizer.from_pretrained` reads back after `save_pretrained`.

    `encode` gives one id a character and no special token; a character outside raises instead of being
    dropped. `decode` gives the text back exactly. Padding is on the left, as generation needs it.
    It loads beside a Llama, Qwen3, GPT-NeoX or Gemma `config.json`; transformers 5 overrides any tokenizer beside a few
    model types (qwen2 among them), where `PreTrainedTokenizerFast.from_pretrained` has to be called by name.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((PAD, EOS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # "<unk>" has no id: unknown text is refused
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
