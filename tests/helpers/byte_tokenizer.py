"""A tokenizer made on the spot: one token a byte, or with pairs of given texts merged, and special tokens of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# A template as instruct models bring one: its turns end with a token that no base model's tokenizer ends with.
CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
# How the tokenizers of Qwen and Llama 3 split text: a mark takes the letters, or the line ends, behind it.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer(
    template: str | None = None, *, bos: bool = True, merged: Sequence[str] = (), **names: str | None
) -> PreTrainedTokenizerFast:
    """260 tokens: the special ones and the bytes; with `merged`, up to 700. names: eos_token, pad_token and the like."""
    raw = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), level])
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700 if merged else 0, special_tokens=SPECIAL, initial_alphabet=level.alphabet(), show_progress=False
    )
    raw.train_from_iterator(list(merged) * 5, trainer)
    given = {"eos_token": "</s>", "pad_token": "</s>", "bos_token": "<s>" if bos else None} | names
    given = {name: token for name, token in given.items() if token is not None}
    return PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=template, **given)
