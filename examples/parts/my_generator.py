"""A generator that adds all numbers of the prompt: `eval embedded --generator adder --plugin my_generator.py`."""

from collections.abc import Sequence

import sage_rlvr
from sage_rlvr.models.generation import Generation, GeneratorSource, Request


@sage_rlvr.generator
class Adder:
    """Adds all numbers of the prompt: a floor to hold policies against."""

    name, at_once, local = "adder", 16, False

    def __init__(self, source: GeneratorSource) -> None:
        self.tokens = source.tokens

    @classmethod
    def of(cls, source: GeneratorSource) -> "Adder":
        return cls(source)

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        answers = [self.answer(request.prompt) for request in requests]
        return [
            [Generation(text, None, None, None, "stop") for _ in request.seeds]
            for text, request in zip(answers, requests, strict=True)
        ]

    def answer(self, prompt: Sequence[int]) -> str:
        numbers, _, _ = self.tokens.tokenizer.decode(list(prompt)).partition("=")
        return "+".join(numbers.split())
