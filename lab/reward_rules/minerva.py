"""The rule of lm-eval's minerva_math."""

from __future__ import annotations

from typing import Any

from sage_rlvr.contrib.audit.peers import lm_eval_utils

UTILS = lm_eval_utils("minerva_math")


def exact_match(completion: str, row: dict[str, Any]) -> float:
    """`exact_match`, whose gold is the normalized last box of a solution."""
    doc = {"solution": rf"\boxed{{{row['answer']}}}", "answer": UTILS.normalize_final_answer(row["answer"])}
    return float(UTILS.process_results(doc, [completion])["exact_match"])
