"""The rule of lighteval's math_500."""

from __future__ import annotations

from typing import Any

from lighteval.metrics.dynamic_metrics import (
    ExprExtractionConfig,
    LatexExtractionConfig,
    MultilingualExtractiveMatchMetric,
)
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc
from lighteval.utils.language import Language

TARGETS = [ExprExtractionConfig(), LatexExtractionConfig()]
METRIC = MultilingualExtractiveMatchMetric(Language.ENGLISH, TARGETS, TARGETS, precision=6)


def extractive_match(completion: str, row: dict[str, Any]) -> float:
    """The gold is a solution that ends in a box."""
    gold = rf"ANSWER: The answer is $\boxed{{{row['answer']}}}$."
    return float(METRIC.compute(Doc(query="", choices=[gold], gold_index=0), ModelResponse(text=[completion.strip()])))
