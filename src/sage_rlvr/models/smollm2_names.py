"""The names of the models that models/smollm2.py makes, apart from it: a run of another model imports no conversion."""

from __future__ import annotations

from collections.abc import Mapping

SMOLLM2, COUNTDOWN = "smollm2", "smollm2-countdown"
LONG_NAMES: Mapping[str, str] = {
    SMOLLM2: "SmolLM2-135M-Instruct, dequantized from Q4_1",
    COUNTDOWN: "SmolLM2-135M-Instruct, dequantized from Q4_1, after SFT on Countdown",
}
"""Recipe name -> the name for headings of results."""

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
