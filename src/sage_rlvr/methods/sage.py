"""SAGE: any method whose KL reference is multiplied by a guide (Shaping Anchors for Guided Exploration, arXiv 2605.18864)."""

from __future__ import annotations

from dataclasses import replace

from sage_rlvr.core.guides import Branch, Guide
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.grpo import grpo

PAPER_GUIDE = Branch(ratio=0.3, threshold=1.2)


@METHODS.register(label="SAGE", about="a guide shapes the KL's reference", arxiv="2605.18864")
def sage(base: Method | None = None, guide: Guide = PAPER_GUIDE) -> Method:
    """`base` with pi_ref replaced by q * pi_ref, log q = guide(signals); everything else is unchanged (Eqs. 6, 7, 38).

    Defaults: base = grpo() with beta 0.05, guide = Branch(ratio=0.3, threshold=1.2), the paper's main arm. The control
    of sage(base=b, guide=g) is b itself. ConfigError if `base` has no KL term; CancellingGuide if the guide would
    vanish from the expected gradient of the base's estimator.
    """
    base = grpo() if base is None else base
    if base.anchor is None or base.anchor.is_off:
        call = f"{base.name}(beta=0.05)" if base.name != "no_kl" else "grpo(beta=0.05)"
        raise ConfigError(
            f"sage(base={base.name}): a guide needs beta > 0, but this base has no KL term; use base={call}, whose "
            f"control is {call} instead of {base.name}()."
        )
    kind = guide.name or type(guide).__name__.lower()
    return replace(base, name=f"{base.name}+{kind}", anchor=replace(base.anchor, guide=guide))
