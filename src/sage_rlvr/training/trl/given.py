"""Arguments of SageTrainer, checked at construction: keywords, guide or method, source, data, and args against the method.

The table of engines (`sage_rlvr.training.engines`) has what TRL cannot express, release.py what a release lacks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from trl import GRPOTrainer

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import GUIDES, Guide, factors, is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.errors import CancellingGuide, ConfigError, refuse
from sage_rlvr.methods import METHODS
from sage_rlvr.models.folders import NAMED
from sage_rlvr.training.engines import check_sizes, guide_refusals, refuse_all
from sage_rlvr.training.trl.arguments import PART, grpo_config, making
from sage_rlvr.training.trl.release import check_release

OWN = ("guide", "method", "source", "base_model", "audit")  # SageTrainer's keywords in addition to those of GRPOTrainer
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")

# Terms of TRL's loss that no method here has, by the value that leaves them out.
NEUTRAL: dict[str, Any] = {
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "off_policy_mask_threshold": None,
    "mask_truncated_completions": False,
}


def check_keywords(given: Iterable[str]) -> None:
    """ConfigError for keywords that neither SageTrainer nor GRPOTrainer accepts, with the nearest accepted name."""
    parameters = inspect.signature(GRPOTrainer.__init__).parameters
    known = [*OWN, *(name for name in parameters if name != "self")]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the accepted keywords are {', '.join(known)}"
            raise ConfigError(f"SageTrainer: unknown keyword {name}; {hint}")


def check_kinds(guide: Any, method: Any) -> None:
    """ConfigError with the correct spelling if `guide` or `method` is a class, a function or a name."""
    if guide is not None and (isinstance(guide, type) or not isinstance(guide, Guide)):
        near = get_close_matches(str(guide).lower(), GUIDES, 1) or ["branch"]
        name = guide.__name__ if isinstance(guide, type) else GUIDES[near[0]].__name__
        raise ConfigError(f"SageTrainer: guide = {guide!r} is not a guide; write guide={name}().")
    if method is not None and not isinstance(method, Method):
        called = str(getattr(method, "__name__", method))
        near = get_close_matches(called.lower(), METHODS, 1)
        raise ConfigError(
            f"SageTrainer: method = {method!r} is not a method; write method={near[0] if near else 'grpo'}(...), with "
            f"a function of sage_rlvr.methods ({', '.join(METHODS)})."
        )


def check_source(anchor: Anchor) -> None:
    """ConfigError for a source that is neither a known word, an existing folder, nor a Hub id."""
    source = anchor.source
    known = source in ("sft", "base", *NAMED) or anchor.snapshot_step is not None
    message = (
        f"SageTrainer: source = {source!r} is not a known reference, and no folder has that name; write sft (the "
        "policy as passed to the trainer), base (the model before any fine-tuning), snapshot@N (the policy after N "
        "steps), the path of a saved model, or a Hub id (owner/name)."
    )
    refuse((not (known or Path(source).is_dir() or HUB_ID.fullmatch(source)), message))


def admitted_anchor(guide: Guide | None, method: Method | None, args: Any, source: str | None = None) -> Anchor | None:
    """The KL term that TRL optimizes under `args`, with `guide` or the guide of `method`; None without a KL term."""
    one = "SageTrainer: pass either guide=... (for example Branch()) or method=... (for example sage())."
    refuse(((guide is None) == (method is None), one))
    if method is None:
        anchor: Any = _anchor_of_args(guide, args, source or "sft")  # type: ignore[arg-type]  # one of both is there
    else:
        anchor = method.anchor
        two_sources = (
            f"SageTrainer: source = {source!r} together with method={method.name}, whose KL term already has a source; "
            f"set it in the method: {making(method, f'source={source!r}')}."
        )
        refuse((source is not None, two_sources))
        check_agreement(method, args)
        check_release(method, args)
    if anchor is None or anchor.is_off:
        return None
    check_source(anchor)
    refuse_all("SageTrainer", guide_refusals(anchor.guide, "trl"))
    return None if args.beta == 0.0 else anchor


def check_data(method: Method | None, data: Any) -> None:
    """ConfigError if dynamic sampling cannot draw prompts from the training data."""
    if method is None or method.rollout is None or data is None:
        return
    images = {"image", "images"} & set(getattr(data, "column_names", None) or ())
    refuse(
        (
            not hasattr(data, "__len__"),
            f"SageTrainer: dynamic sampling of {method.name} draws prompts by index, but train_dataset "
            f"({type(data).__name__}) is a stream; pass a loaded dataset, or use dapo(dynamic_sampling=False).",
        ),
        (
            images,
            f"SageTrainer: train_dataset has {', '.join(sorted(images))}, and dynamic sampling of {method.name} "
            "supports text prompts only; remove the column, or use dapo(dynamic_sampling=False).",
        ),
    )


def _anchor_of_args(guide: Guide, args: Any, source: str) -> Anchor:
    name = " * ".join(type(part).__name__ for part in factors(guide))
    off = (
        f"SageTrainer: args.beta = 0.0 (TRL's default): there is no KL term, so {name} would have no effect; set beta "
        "in GRPOConfig, for example beta=0.05."
    )
    refuse((args.beta == 0.0 and not is_flat(guide), off))
    try:
        # k3_is: k3 times the ratio
        estimator: Literal["k3", "k3_is"] = "k3_is" if getattr(args, "use_bias_correction_kl", False) else "k3"
        return Anchor(args.beta, guide=guide, estimator=estimator, source=source)
    except CancellingGuide as error:
        raise CancellingGuide(
            "SageTrainer: args.use_bias_correction_kl = True multiplies the KL by the importance ratio (k3_is), under "
            f"which {name} cancels in the expected gradient; set use_bias_correction_kl=False in GRPOConfig. In full: "
            f"{error}"
        ) from error


def check_agreement(method: Method, args: Any) -> None:
    """ConfigError that names every field of `args` (a GRPOConfig) that differs from what `method` needs."""
    check_sizes(method, "trl", args.max_completion_length, args.num_generations)
    own = grpo_config(method)
    wanted = {name: value for name, value in NEUTRAL.items() if hasattr(args, name)} | own
    different = [name for name, value in wanted.items() if _given(args, name) != value]
    if not different:
        return
    differences = "; ".join(
        f"args.{name} = {getattr(args, name, None)!r}, but {PART.get(name, 'the method')} "
        + (f"means {wanted[name]!r}" if name in own else f"has no such term: {wanted[name]!r}")
        for name in different
    )
    raise ConfigError(
        f"{method.name} on TRL: {differences}. Set all of them with GRPOConfig(..., **grpo_config(method)); to train with "
        f"other values, pass them to the method: {making(method)}."
    )


def _given(args: Any, name: str) -> Any:
    """Return the value of a field of `args`; TRL reads an epsilon_high of None as epsilon."""
    value = getattr(args, name, None)
    return args.epsilon if name == "epsilon_high" and value is None else value
