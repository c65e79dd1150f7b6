"""Rules of evaluation harnesses as reward functions, for `python -m lab published-rewards`; they run in the harness's environment.

The harness's own code is called unmodified; a wrapper here passes completion and gold as its task does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sage_rlvr.audit.peers import lm_eval_utils


def minerva(completion: str, row: dict[str, Any]) -> float:
    """`exact_match` of lm-eval's minerva_math, whose gold is the normalized last box of a solution."""
    utils = _minerva()
    doc = {"solution": rf"\boxed{{{row['answer']}}}", "answer": utils.normalize_final_answer(row["answer"])}
    return float(utils.process_results(doc, [completion])["exact_match"])


@cache
def _minerva() -> Any:
    return lm_eval_utils("minerva_math")


def extractive_match(completion: str, row: dict[str, Any]) -> float:
    """lighteval's extractive match with the targets of its math_500, whose gold is a solution that ends in a box."""
    compute, doc, response = _lighteval()
    gold = rf"ANSWER: The answer is $\boxed{{{row['answer']}}}$."
    return float(compute(doc(query="", choices=[gold], gold_index=0), response(text=[completion.strip()])))


@cache
def _lighteval() -> Any:
    from lighteval.metrics.dynamic_metrics import (
        ExprExtractionConfig,
        LatexExtractionConfig,
        MultilingualExtractiveMatchMetric,
    )
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc
    from lighteval.utils.language import Language

    targets = [ExprExtractionConfig(), LatexExtractionConfig()]
    metric = MultilingualExtractiveMatchMetric(Language.ENGLISH, targets, targets, precision=6)
    return metric.compute, Doc, ModelResponse
