"""Other verifiers on pairs of answers, for comparison. They are called unmodified; this package contains none of their code.

    math_verify_verdict  math-verify as in its documentation: parse the gold, parse the completion, verify
    own_rule             this package's verifier without a pool, for the ratio of times
    python peers.py      lm-eval's `is_equiv` of minerva_math and of hendrycks_math, in an interpreter that has lm-eval

lm-eval needs another antlr4 than this package, so it runs in a separate environment, which SAGE_RLVR_LM_EVAL names:

    python -m venv lm && lm/bin/pip install "lm-eval[math]" && export SAGE_RLVR_LM_EVAL=lm/bin/python
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.math import verify_math

ENVIRONMENT = "SAGE_RLVR_LM_EVAL"
ABSENT = (
    f'not available: pip install "lm-eval[math]" into an environment of its own and name its python in {ENVIRONMENT}'
)
SECONDS = 1800


def math_verify_verdict(completion: str, gold: str) -> Any:
    """The verdict of math-verify by itself. Its time limits are off: a `Pool` has limits."""
    from math_verify import parse, verify  # an extra

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
    right = verify(
        parse(f"${gold}$", parsing_timeout=None), parse(completion, parsing_timeout=None), timeout_seconds=None
    )
    return Verdict("right" if right else "wrong", "math-verify")


def own_rule(completion: str, row: dict[str, Any]) -> Any:
    """The verdict of this package's verifier, without the cache of a `Pool`: the time that other rewards are compared with."""
    return verify_math(completion, row["answer"])


def lm_eval_verdicts(pairs: Sequence[tuple[str, str]]) -> dict[str, list[bool]] | None:
    """Rule -> whether each (answer, gold) is right under it; None if lm-eval cannot be called."""
    python = os.environ.get(ENVIRONMENT) or sys.executable
    try:
        done = subprocess.run(
            [python, str(Path(__file__).resolve())],
            input=json.dumps([list(pair) for pair in pairs]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        verdicts: dict[str, list[bool]] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return verdicts


def lm_eval_utils(task: str) -> Any:
    """lm_eval/tasks/TASK/utils.py, loaded separately: its package loads every task."""
    package = importlib.util.find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("no lm_eval here")
    path = Path(package.submodule_search_locations[0]) / "tasks" / task / "utils.py"
    spec = importlib.util.spec_from_file_location(f"lm_eval_{task}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main() -> None:
    """Pairs as JSON in, rule -> verdicts as JSON out."""
    pairs = json.load(sys.stdin)
    minerva, hendrycks = lm_eval_utils("minerva_math"), lm_eval_utils("hendrycks_math")
    verdicts: dict[str, list[bool]] = {"minerva_math": [], "hendrycks_math": []}
    for answer, gold in pairs:
        extracted = minerva.get_unnormalized_answer(f"Final Answer: The final answer is ${answer}$. I hope it is correct.")
        written, wanted = (minerva.normalize_final_answer(text) for text in (extracted, gold))
        verdicts["minerva_math"].append(bool(minerva.is_equiv(written, wanted)))
        verdicts["hendrycks_math"].append(bool(hendrycks.is_equiv(answer, gold)))
    print()
    print(json.dumps(verdicts))


if __name__ == "__main__":
    _main()


__all__ = ["ABSENT", "ENVIRONMENT", "lm_eval_utils", "lm_eval_verdicts", "math_verify_verdict", "own_rule"]
