"""What the tests of the page share."""

from __future__ import annotations

import math
from dataclasses import replace

from sage_rlvr.evaluation.store import PromptAndGold, Sample
from sage_rlvr.results.details.samples import SampleSet
from sage_rlvr.verdicts.sources import TrainingRun

BREAKOUT = "</script><script>alert('x')</script><!--"
HOSTILE = (
    BREAKOUT,
    "\x00\x07 NUL and bell",
    "\u202esdrawkcab\u202c and \u2066isolates",
    "\U0001f469\u200d\U0001f52c emoji, ünï",
    "\ud800 half a pair",
    "]]> &lt; \u2028 line",
    'javascript:alert(1) " onload="x',
)
IN_TURNS = (("policy", f"a{BREAKOUT}", 1), ("environment", f"it gave \u202e{BREAKOUT}", 1), ("policy", "done", 1))
ARM = "SAGE <img src=x onerror=alert(1)>"


def hostile(sets: tuple[SampleSet, ...]) -> tuple[SampleSet, ...]:
    """The stores with attacks for texts, problems and reasons."""
    texts = [*HOSTILE, "short", "x" * 1_004_000]
    signals = {"entropies": (0.1, math.nan, 2.0), "q": (1.0, 1.3, 0.7), "base_logps": [-1e4] * 3}
    shown = tuple(
        (
            Sample(
                problem=f"problem {p} {BREAKOUT}", sample=i, text=text, verdict=("right", "wrong", "undecided")[i % 3],  # type: ignore[arg-type]
                reason=f"because {BREAKOUT}", answer=text, prompt_hash="", **signals,  # type: ignore[arg-type]
                turns=IN_TURNS if i == 3 else None, finish="length" if i == 0 else "stop", token_ids=[1, 2, 3],
            ),
            ("a", BREAKOUT, "<eos>") if i < 4 else None,
        )
        for p in range(3) for i, text in enumerate(texts)
    )  # fmt: skip
    questions = {row.problem: PromptAndGold(f"prompt {BREAKOUT}", f"gold {BREAKOUT}") for row, _ in shown}
    return tuple(replace(one, shown=shown, questions=questions) for one in sets[:2])


def run(arm: str, seed: int, rows: list[dict[str, float]], **config: object) -> TrainingRun:
    return TrainingRun(arm=arm, seed=seed, metrics=rows, config=config)
