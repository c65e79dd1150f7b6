"""The table of how TRL and verl implement each part of a method, read by errors, `sage-rlvr methods` and docs/reference/engines.md.

    a row           a part class, or a setting of one (a named predicate), and for each engine `Sets` or `Refuses`
    Sets            fields of GRPOConfig, or of verl's configuration; without fields this package computes it on the engine
    Refuses         why the engine cannot, and what to set instead
    OTHER, NOTHING  the row of a kind for classes without a row, including subclasses of a listed class, and for no part

`refusals` lists every part of a method that an engine lacks, `check` raises them in one error, and `fields` merges what the
rows of a method set. The loop engine runs every method. Works without TRL and without verl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.anchor import is_sampled
from sage_rlvr.core.extras import EntropyBonus, Extra
from sage_rlvr.core.guides import Guide, factors
from sage_rlvr.core.method import Method, kl_prompts, needs_of
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.rollout_plans import DynamicSampling, is_staged
from sage_rlvr.core.schedules import Constant, Schedule, as_schedule, over_a_run, show
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.training.verl.terms import ACTOR, LOSS, NEUTRAL, ROLLOUT

Engine = Literal["trl", "verl"]
ENGINES: dict[Engine, str] = {"trl": "TRL", "verl": "verl"}  # as messages call them
OTHER, NOTHING = "any other", "none"
ESTIMATOR = "sage"  # the name of our advantage estimator among verl's
FAR = 1e9  # clip_ratio_c where there is no dual clip: a ratio is at most exp(20) < 1e9


@dataclass(frozen=True)
class Of:
    """A field's value that is read from the method.

    words: its text in pages; value: function of the method and a completion's tokens.
    """

    words: str
    value: Callable[[Method, int | None], Any]


def of(path: str) -> Of:
    """The value of an attribute below the method, "surrogate.low"."""
    return Of(path.rpartition(".")[2], lambda method, _: attrgetter(path)(method))


@dataclass(frozen=True)
class Sets:
    """The engine runs the part. fields: of the engine's configuration, a value or `Of`; words: their text in pages."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""


@dataclass(frozen=True)
class Refuses:
    """The engine does not run the part.

    why: follows the place and a colon in messages; instead: the next step, "" = only the loop.
    """

    why: str
    instead: str = ""


@dataclass(frozen=True)
class EngineRow:
    """One line of the table. kind: a field of `Method`; what: a class, or a setting in words, to which `when` belongs.

    at: the attribute below the method that a refusal names, the kind if "".
    """

    kind: str
    what: type | str
    trl: Sets | Refuses
    verl: Sets | Refuses
    when: Callable[[Method], object] | None = None
    at: str = ""

    @property
    def words(self) -> str:
        """Name of the row in messages and pages."""
        return self.what if isinstance(self.what, str) else self.what.__name__

    def on(self, engine: Engine) -> Sets | Refuses:
        """Return how that engine treats it."""
        return self.trl if engine == "trl" else self.verl


@dataclass(frozen=True)
class Refusal:
    """A part that an engine does not run. path: its setting, below the method; value: the value of the setting, in words."""

    path: str
    value: str
    why: str
    instead: str = ""

    def __str__(self) -> str:
        return f"method.{self.path} = {self.value}: {self.why}" + (f"; {self.instead}" if self.instead else "")


# ---- settings that are not one class: each predicate names what it finds


def no_kl(method: Method) -> bool:
    """No KL term, or one of weight 0 at every step."""
    return method.anchor is None or method.anchor.is_off


def any_kl(method: Method) -> bool:
    """A KL term whose weight is above 0 at some step."""
    return not no_kl(method)


def kl_in_reward(method: Method | None) -> bool:
    """The KL is part of the advantages, and the loss adds none. method: None if only a guide is known."""
    anchor = None if method is None else method.anchor
    return anchor is not None and not anchor.is_off and anchor.placement == "reward"


def kl_in_loss(estimator: str) -> Callable[[Method], bool]:
    """Return a predicate: a method has that estimator in its loss; "exact": all but the forward KL."""

    def holds(method: Method) -> bool:
        anchor = method.anchor
        in_loss = any_kl(method) and not kl_in_reward(method) and not is_sampled(anchor)
        return in_loss and anchor.estimator == estimator  # type: ignore[union-attr]

    return holds


def exact_forward(method: Method) -> bool:
    """The exact forward KL, which an engine of sampled tokens estimates by k3."""
    return is_sampled(method.anchor)


def moving_beta(method: Method) -> bool:
    """A KL in the loss whose weight is a schedule."""
    fixed = no_kl(method) or isinstance(as_schedule(method.anchor.beta), Constant)  # type: ignore[union-attr]
    return not fixed and not kl_in_reward(method)


def other_source(method: Method) -> bool:
    """A reference other than the initial model or the one below it: snapshot@N, or a path."""
    return any_kl(method) and method.anchor.source not in ("sft", "base")  # type: ignore[union-attr]


def refreshed(method: Method) -> bool:
    """A reference that follows the policy."""
    return any_kl(method) and method.anchor.refresh_every is not None  # type: ignore[union-attr]


def kept_reference(method: Method) -> bool:
    """A reference that does not follow the policy."""
    return any_kl(method) and not refreshed(method)


def reference_without_kl(method: Method) -> bool:
    """A part reads the reference's log-probs, and there is no KL term."""
    return no_kl(method) and "ref_logps" in method.needs


def dual_inside_clip(method: Method) -> bool:
    """A dual clip inside the clip's upper bound."""
    clip = method.surrogate
    return type(clip) is Clip and clip.dual is not None and clip.dual <= 1 + clip.high


def entropy_bonus(method: Method) -> EntropyBonus | None:
    """The entropy bonus among the extras."""
    return next((extra for extra in method.extras if type(extra) is EntropyBonus), None)


def no_bonus(method: Method) -> bool:
    """No entropy bonus."""
    return entropy_bonus(method) is None


def scheduled_bonus(method: Method) -> tuple[Extra, ...]:
    """An entropy bonus that changes during training."""
    bonus = entropy_bonus(method)
    return (bonus,) if bonus is not None and isinstance(bonus.coefficient, Schedule) else ()


def bonus_per_row(method: Method) -> bool:
    """An entropy bonus under a mean that is not over tokens."""
    return not no_bonus(method) and type(method.reduction) is not TokenMean


def chooses_problems(method: Method) -> tuple[Extra, ...]:
    """The extras that choose the problems of a step."""
    return tuple(extra for extra in method.extras if extra.chooses_problems)


def reward_sources(method: Method) -> tuple[Extra, ...]:
    """The extra that rewards instead of the verifier."""
    return () if method.reward_source is None else (method.reward_source,)


def buffers(method: Method) -> tuple[Extra, ...]:
    """The extra that trains on stored answers."""
    return () if method.buffer is None else (method.buffer,)


def adds_loss(method: Method) -> tuple[Extra, ...]:
    """The extras without a row of their own that add to the loss of a token."""
    return tuple(extra for extra in method.extras if extra.adds_loss and not has_row("extras", type(extra)))


def weighed_kl(method: Method) -> bool:
    """A KL in the loss whose beta is either 0 or unchanged for each prompt."""
    return not kl_in_reward(method) and (prompts := kl_prompts(method.anchor)) is not None and prompts.gates


def graded_kl(method: Method) -> bool:
    """A KL in the loss whose beta has other weights of prompts."""
    return not kl_in_reward(method) and (prompts := kl_prompts(method.anchor)) is not None and not prompts.gates


def staged(method: Method) -> bool:
    """A rollout plan that samples more for some prompts."""
    return is_staged(method.rollout)


# ---- the table

HERE = Sets(words="runs")
GROUPED = "it compares the completions of a prompt, and the loss of {} reads each by itself"
ALL_TOKENS = "{} has the log-probs of sampled tokens alone, and this sums over the vocabulary"
STORED = "its answers come from earlier rollouts, and {} trains on the rollout at hand"
UNLISTED = "nothing says how {} computes this class, nor does the row of its parent"
DECLARE = "declare what it sets (sage_rlvr.training.engines.declare)"
NOT_COMPARED = "{}, but no run with it was compared with the loop's"
OF_VERL = "use Clip, or verl's own loss with a guide: loss_mode={} and +sage.guide without +sage.method"
MEANS = "use sequence_mean, token_mean or fixed_budget"
ESTIMATES = "use k3, k2 or straight_through"


def on_both(why: str, instead: str = "") -> tuple[Refuses, Refuses]:
    """Return the refusal for both engines, with the engine's name in place of {}."""
    trl, verl = (Refuses(why.format(name), instead) for name in ENGINES.values())
    return trl, verl


def _scaled(group: str, by_std: bool) -> tuple[Sets, Sets]:
    return (
        Sets({"scale_rewards": group, "multi_objective_aggregation": "sum_then_normalize"}),
        Sets({"algorithm.norm_adv_by_std_in_grpo": by_std, "algorithm.use_kl_in_reward": False}),
    )


def _mean(loss_type: str, mode: str, tokens: Of | None = None) -> tuple[Sets, Sets]:
    return Sets({"loss_type": loss_type}), Sets({f"{ACTOR}.loss_agg_mode": mode, f"{ACTOR}.loss_scale_factor": tokens})


def _estimate(corrected: bool | Refuses, kind: str | Refuses, words: str = "") -> tuple[Sets | Refuses, Sets | Refuses]:
    return (
        corrected if isinstance(corrected, Refuses) else Sets({"use_bias_correction_kl": corrected}, words),
        kind if isinstance(kind, Refuses) else Sets({f"{ACTOR}.kl_loss_type": kind}, words),
    )


TOKENS = Of("tokens", lambda method, limit: method.reduction.tokens or limit)  # type: ignore[attr-defined]
COEFFICIENT = Of("coefficient", lambda method, _: float(entropy_bonus(method).coefficient))  # type: ignore[arg-type,union-attr]
LARGEST = Of("beta, the largest of a schedule", lambda method, _: max(over_a_run(method.anchor.beta)))  # type: ignore[union-attr]
IN_LOSS = Of("beta, 0 in the reward", lambda method, _: 0.0 if kl_in_reward(method) else method.anchor.beta_at(0, 1))  # type: ignore[union-attr]
DUAL = Of("dual", lambda method, _: FAR if method.surrogate.dual is None else method.surrogate.dual)  # type: ignore[attr-defined]
TWO_ESTIMATES = Refuses("TRL's KL is k3, or k3 times the importance ratio", "use k3 or k3_is")

PER_PROMPT = on_both("the beta of {} is one number for all rows", "use placement='reward', which weighs each prompt")

# Refusals come in this order.
TABLE: tuple[EngineRow, ...] = (
    EngineRow("rollout", NOTHING, Sets(), Sets({"algorithm.filter_groups.enable": False})),
    EngineRow(
        "rollout",
        DynamicSampling,
        HERE,
        Sets(
            {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"},
            "verl samples until the batch is full, without max_refills",
        ),
    ),
    EngineRow("rollout", OTHER, HERE, Refuses("verl's filter_groups only drops groups of equal rewards", "use DynamicSampling")),
    EngineRow(
        "rollout",
        "a second stage",
        Refuses("a generation batch of TRL has as many rows for every prompt", "use a plan without a second stage"),
        Sets(),
        staged,
    ),
    EngineRow("advantage", GroupNormalized, *_scaled("group", by_std=True)),
    EngineRow("advantage", OTHER, *_scaled("none", by_std=False)),
    EngineRow("reduction", SequenceMean, *_mean("grpo", "seq-mean-token-mean")),
    EngineRow("reduction", TokenMean, *_mean("dapo", "token-mean")),
    EngineRow("reduction", FixedBudget, *_mean("dr_grpo", "seq-mean-token-sum-norm", TOKENS)),
    EngineRow("reduction", OTHER, *on_both(UNLISTED, MEANS)),
    EngineRow(
        "surrogate",
        Clip,
        Sets(
            {
                "epsilon": of("surrogate.low"),
                "epsilon_high": of("surrogate.high"),
                "delta": of("surrogate.dual"),
                "importance_sampling_level": "token",
            }
        ),
        Sets(
            {
                f"{LOSS}.loss_mode": "vanilla",
                f"{ACTOR}.clip_ratio": of("surrogate.low"),
                f"{ACTOR}.clip_ratio_low": of("surrogate.low"),
                f"{ACTOR}.clip_ratio_high": of("surrogate.high"),
                f"{ACTOR}.clip_ratio_c": DUAL,
            }
        ),
    ),
    EngineRow(
        "surrogate",
        "Clip's dual at most 1 + high",
        Refuses("TRL's delta also bounds tokens that are to gain, so it must lie above 1 + high", "raise it"),
        Sets(),
        dual_inside_clip,
        "surrogate.dual",
    ),
    EngineRow("surrogate", OTHER, *on_both(UNLISTED, DECLARE)),
    EngineRow("extras", "no EntropyBonus", Sets(), Sets({f"{ACTOR}.entropy_coeff": 0}), no_bonus),
    EngineRow("extras", EntropyBonus, Sets({"entropy_coef": COEFFICIENT}), Sets({f"{ACTOR}.entropy_coeff": COEFFICIENT})),
    EngineRow(
        "extras",
        "EntropyBonus with a schedule",
        Refuses("entropy_coef is one number", "set a number"),
        Refuses("entropy_coeff is one number", "set a number"),
        scheduled_bonus,
        "extras.coefficient",
    ),
    EngineRow(
        "extras",
        "EntropyBonus with another mean than token_mean",
        Refuses("TRL's entropy bonus is a mean over tokens under every reduction", "use token_mean"),
        Sets(),
        bonus_per_row,
        "reduction",
    ),
    EngineRow("extras", "another with on_loss", *on_both("this package adds no term to {}'s loss of a token", DECLARE), adds_loss),
    EngineRow("extras", "one with before_rollout", *on_both("{} draws problems by a data loader of its own"), chooses_problems),
    EngineRow(
        "extras", "a reward source", HERE, Refuses("it takes a forward pass that verl's workers do not run"), reward_sources
    ),
    EngineRow("extras", "a buffer", *on_both(STORED), buffers),
    EngineRow("extras", OTHER, HERE, HERE),
    EngineRow("anchor", "no KL term", Sets({"beta": 0.0}), Sets({f"{ACTOR}.use_kl_loss": False}), no_kl),
    EngineRow(
        "anchor",
        "a reference without a KL term",
        *on_both("a part reads a reference without a KL term, and {} loads none", "set a beta above 0"),
        reference_without_kl,
        "anchor.beta",
    ),
    EngineRow(
        "anchor", "beta", Sets({"beta": LARGEST}), Sets({f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": IN_LOSS}), any_kl
    ),
    EngineRow(
        "anchor",
        "beta as a schedule, KL in the loss",
        HERE,
        Refuses("kl_loss_coef is one number", "use placement='reward', which takes schedules"),
        moving_beta,
        "anchor.beta",
    ),
    EngineRow("anchor", "a gate of prompts, KL in the loss", HERE, PER_PROMPT[1], weighed_kl, "anchor.prompts"),
    EngineRow("anchor", "a graded weight of prompts, KL in the loss", *PER_PROMPT, graded_kl, "anchor.prompts"),
    EngineRow("anchor", "k3", *_estimate(False, "low_var_kl"), kl_in_loss("k3")),
    EngineRow(
        "anchor",
        "k3_is",
        *_estimate(True, Refuses("no kl_loss_type of verl has the importance ratio", ESTIMATES)),
        kl_in_loss("k3_is"),
        "anchor.estimator",
    ),
    EngineRow("anchor", "k2", *_estimate(TWO_ESTIMATES, "k2"), kl_in_loss("k2"), "anchor.estimator"),
    EngineRow("anchor", "straight_through", *_estimate(TWO_ESTIMATES, "kl+"), kl_in_loss("straight_through"), "anchor.estimator"),
    EngineRow("anchor", "exact forward", *_estimate(False, "low_var_kl", "as k3, its estimate"), exact_forward),
    EngineRow(
        "anchor",
        "exact reverse, JS or alpha",
        *_estimate(Refuses(ALL_TOKENS.format("TRL"), "use k3 or k3_is"), Refuses(ALL_TOKENS.format("verl"), ESTIMATES)),
        kl_in_loss("exact"),
        "anchor.divergence",
    ),
    EngineRow("anchor", "k1 in the reward", *_estimate(False, "low_var_kl", "in the advantages"), kl_in_reward),
    EngineRow("anchor", "a fixed reference", Sets({"sync_ref_model": False}), Sets(), kept_reference),
    EngineRow(
        "anchor",
        "refresh_every",
        Sets({"sync_ref_model": True, "ref_model_sync_steps": of("anchor.refresh_every"), "ref_model_mixup_alpha": 1.0}),
        Refuses("verl's reference does not move", "leave it out"),
        refreshed,
        "anchor.refresh_every",
    ),
    EngineRow(
        "anchor",
        "source snapshot@N or a path",
        HERE,
        Refuses("verl's reference is actor_rollout_ref.model", "set sft or base"),
        other_source,
        "anchor.source",
    ),
)

KINDS = tuple(dict.fromkeys(row.kind for row in TABLE))
# The place of a kind's fields among the others, which is their order in commands and in messages.
FIELD_ORDER: dict[Engine, tuple[str, ...]] = {
    "trl": ("anchor", "reduction", "surrogate", "advantage", "extras"),
    "verl": ("advantage", "reduction", "surrogate", "extras", "rollout", "anchor"),
}
ALWAYS: dict[Engine, dict[str, Any]] = {"trl": {}, "verl": {**NEUTRAL, "algorithm.adv_estimator": ESTIMATOR}}
_DECLARED: dict[type, tuple[EngineRow, ...]] = {}


# ---- signals


@dataclass(frozen=True)
class Signal:
    """Reason that an engine lacks a signal at the computation of advantages, and of q; "" if it has it. instead: the next step."""

    trl: str = ""
    verl: str = ""
    trl_q: str = ""
    verl_q: str = ""
    instead: str = ""

    def lacks(self, engine: Engine, in_q: bool) -> str:
        """Return the reason that there is no signal; "" if there is one."""
        reason: str = getattr(self, f"{engine}_q" if in_q else engine)
        return reason


Q_ON_TRL = "q on TRL has log-probs, entropies and places only"
NO_ENTROPIES = "the reference is scored without entropies"
NO_ANSWERS = "this package reads no answers out of completions on verl"
NO_HIDDEN = "verl's workers return no hidden states"
LISTED = "only the loop engine lists the right completions of a problem"
ONE_TOKEN = "only the log-probs of sampled tokens are there"
NO_IDS = "verl hands over prompts without the ids of their problems"
NO_TASK = "this package knows no classes of states on verl"
LATER = "advantages are computed after q"
NEVER_RUN = "no part was run with it on verl"
FOR_TERMS = "this package adds no term to the loss there"

SIGNALS: dict[str, Signal] = {
    **{name: Signal() for name in ("old_logps", "mask", "row_ids", "logps", "ref_logps", "entropies")},
    "rewards": Signal("", NEVER_RUN, Q_ON_TRL, NEVER_RUN),
    "problems": Signal("", "", Q_ON_TRL, ""),
    "answers": Signal("", NO_ANSWERS, Q_ON_TRL, NO_ANSWERS),
    "hidden": Signal("", NO_HIDDEN, Q_ON_TRL, NO_HIDDEN),
    "places": Signal("", NO_TASK, "", NO_TASK, instead="use `first`, the number of first tokens, in place of `classes`"),
    "base_counts": Signal("", NO_IDS, Q_ON_TRL, NO_IDS),
    "advantages": Signal("", "", LATER, LATER),
    "ref_entropies": Signal(*(NO_ENTROPIES,) * 4, instead="use signal='policy'"),
    "ref_right": Signal(*(LISTED,) * 4),
    "entropy_drift": Signal(*(ONE_TOKEN,) * 4),
    "distributions": Signal(*(ONE_TOKEN,) * 4),
    "entropy_gradient": Signal(*(FOR_TERMS,) * 4),
}


# ---- sampling

SAMPLING: dict[Engine, dict[str, tuple[Any, ...]]] = {
    "trl": {
        "top_p": (1.0,),
        "top_k": (0, -1),
        "min_p": (0.0,),
        "repetition_penalty": (1.0,),
        "do_sample": (True,),
    },
    "verl": {f"{ROLLOUT}.top_p": (1.0,), f"{ROLLOUT}.top_k": (-1, 0)},
}
"""Fields that make an engine sample from another distribution than the policy's, and the values that do not."""


def other_sampling(engine: Engine, read: Callable[[str], Any]) -> list[str]:
    """Return each field of `SAMPLING` that makes completions differ from the policy's distribution, with its value.

    A run warns once, on every engine: no method corrects it, and the paper's recipes sample so. read: a field, None if unset.
    """
    found = {name: read(name) for name in SAMPLING[engine]}
    return [f"{name}={value}" for name, value in found.items() if value is not None and value not in SAMPLING[engine][name]]


def sampling_warning(cuts: Sequence[str]) -> str:
    """Return the warning for a run that samples under `cuts`; empty without any."""
    if not cuts:
        return ""
    return (
        f"completions are sampled with {', '.join(cuts)}, but their log-probs are those of the whole policy: importance ratios, "
        "the KL and the gradient are not those of the distribution that was sampled from"
    )


# ---- what is read from the table


def table() -> list[EngineRow]:
    """Return the table with the rows that classes elsewhere have declared, each after those of its kind; "any other" is last."""
    declared = (row for part in sorted(_DECLARED, key=lambda part: part.__name__) for row in _DECLARED[part])
    return sorted([*TABLE, *declared], key=lambda row: (KINDS.index(row.kind), row.what == OTHER))


def rows_of(method: Method) -> Iterator[EngineRow]:
    """Yield the rows that apply to a method, in the order of the table. Of the rows that set one field the last wins."""
    for row in table():
        if row.when(method) if row.when is not None else any(_is_of(row, part) for part in _parts(method, row.kind)):
            yield row


def _parts(method: Method, kind: str) -> tuple[object, ...]:
    """Return the content of a field of a method as a tuple: one part or None, or any number of extras."""
    part = getattr(method, kind)
    return part if isinstance(part, tuple) else (part,)


def _is_of(row: EngineRow, part: object) -> bool:
    """Return True if a row without a predicate is that of a part."""
    if isinstance(row.what, type):
        return type(part) is row.what
    return part is None if row.what == NOTHING else part is not None and not has_row(row.kind, type(part))


def has_row(kind: str, part: type) -> bool:
    """Return True if a class has a row among those of its kind."""
    declared = _DECLARED.get(part, ())
    return any(row.what is part and row.kind == kind for row in (*TABLE, *declared))


def declare(kind: str, part: type, *, trl: Sets | Refuses, verl: Sets | Refuses, also: Sequence[EngineRow] = ()) -> None:
    """Add the row of a class of that kind that is not in the table. Raise ConfigError for an unknown kind, or a class of the table.

    Args:
        kind: a field of `Method`.
        part: the class.
        trl: how TRL treats it.
        verl: how verl treats it.
        also: rows of its settings, with `when`.
    """
    refuse(
        (kind not in KINDS, f"engines.declare: kind = {kind!r}; choose one of {', '.join(KINDS)}."),
        (
            any(row.what is part for row in TABLE),
            f"engines.declare: {part.__name__} has a row already; declare a subclass of it.",
        ),
    )
    _DECLARED[part] = (EngineRow(kind, part, trl, verl), *also)


def refusals(method: Method, engine: Engine) -> list[Refusal]:
    """Return every part of a method that the engine does not run, in the order of the table; empty if it runs the method."""
    refused = []
    for row in rows_of(method):
        if isinstance(entry := row.on(engine), Refuses):
            path, value = _path_and_value(method, row)
            refused.append(Refusal(path, value, entry.why, entry.instead))
    refused += _unread("advantage", method.advantage, needs_of(method.advantage), engine)
    for extra in method.extras:
        # what has a row runs by the engine's own fields, or not at all; a buffer does not run, whatever it reads
        if not has_row("extras", type(extra)) and extra is not method.buffer:
            refused += _unread("extras", extra, extra.needs, engine)
    return refused + ([] if method.anchor is None or method.anchor.is_off else guide_refusals(method.anchor.guide, engine))


def guide_refusals(guide: Guide, engine: Engine) -> list[Refusal]:
    """Return the factors of a guide that read a signal which the engine does not have at the computation of q."""
    return [one for part in factors(guide) for one in _unread("anchor.guide", part, part.needs, engine)]


def check(method: Method, engine: Engine) -> None:
    """Raise ConfigError with all refusals: each with its place, its reason and what to set instead."""
    refuse_all(f"{method.name} on {ENGINES[engine]}", refusals(method, engine))


def refuse_all(who: str, refused: list[Refusal]) -> None:
    """Raise ConfigError that names all of them, if there are any. who: the beginning of the message."""
    if len(refused) == 1:
        raise ConfigError(f"{who}: {refused[0]}{', or' if refused[0].instead else ';'} use the loop engine.")
    if refused:
        listed = "; ".join(f"({number}) {one}" for number, one in enumerate(refused, 1))
        raise ConfigError(f"{who}: {listed}. Change all of these, or use the loop engine.")


def fields_of(method: Method, engine: Engine, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the fields of the engine's configuration under which it optimizes a method; `check` the method first.

    max_tokens: of a completion, for a budget that counts it.
    """
    merged, order = dict(ALWAYS[engine]), FIELD_ORDER[engine]
    setting = [(row.kind, entry.fields) for row in rows_of(method) if isinstance(entry := row.on(engine), Sets)]
    for _, fields in sorted(setting, key=lambda one: order.index(one[0]) if one[0] in order else len(order)):
        merged |= {name: value.value(method, max_tokens) if isinstance(value, Of) else value for name, value in fields.items()}
    return merged


def runs_on(method: Method) -> list[str]:
    """Return the engines that run a method, as messages call them; the loop first."""
    return ["loop", *(name for engine, name in ENGINES.items() if not refusals(method, engine))]


def check_sizes(method: Method, engine: Engine, max_tokens: int, group_size: int) -> None:
    """Raise ConfigError if a run samples longer completions or smaller groups than the method is made for."""
    limit, size = SIZES[engine]
    least, who = method.advantage.least_group, f"{method.name} on {ENGINES[engine]}"
    other = {f"method.extras.{n}": one.made_for for n, one in enumerate(method.extras) if one.made_for not in (None, max_tokens)}
    refuse(
        *(
            (
                True,
                f"{who}: {path}.max_tokens = {made_for} is the limit that it is made for, and {limit} = {max_tokens} is the "
                "sampling limit; set both to the same value.",
            )
            for path, made_for in other.items()
        ),
        (
            group_size < least,
            f"{who}: {method.advantage} needs at least {least} completions per prompt, and {size} = {group_size}; raise it, or "
            "lower the method's k.",
        ),
    )


SIZES: dict[Engine, tuple[str, str]] = {  # the fields of a completion's limit and of a group's size
    "trl": ("args.max_completion_length", "args.num_generations"),
    "verl": ("data.max_response_length", "actor_rollout_ref.rollout.n"),
}


def _unread(path: str, part: object, needs: frozenset[str], engine: Engine) -> Iterator[Refusal]:
    lacking = {name: SIGNALS[name].lacks(engine, path == "anchor.guide") for name in sorted(needs)}
    if read := [f"it reads {name}, but {why}" for name, why in lacking.items() if why]:
        instead = " and ".join(SIGNALS[name].instead for name, why in lacking.items() if why and SIGNALS[name].instead)
        yield Refusal(path, type(part).__name__, "; ".join(read), instead)


def _path_and_value(method: Method, row: EngineRow) -> tuple[str, str]:
    """Return the setting of a row's part and its value in words: extras by their number in the list."""
    path = row.at or row.kind
    if path.split(".")[0] != "extras":
        return path, _shown(path, attrgetter(path)(method))
    if row.when is None:
        which = [extra for extra in method.extras if _is_of(row, extra)]
    else:
        which = list(row.when(method))  # type: ignore[call-overload]
    _, _, setting = path.partition(".")
    if not setting:
        return path, ", ".join(type(extra).__name__ for extra in which)
    number = next(n for n, extra in enumerate(method.extras) if extra is which[0])
    return f"extras.{number}.{setting}", _shown(path, getattr(which[0], setting))


def _shown(path: str, value: object) -> str:
    """Return a part as its class, a setting as its value."""
    if "." not in path:
        return type(value).__name__
    return show(value) if isinstance(value, float | Schedule) else str(value)


__all__ = [
    *("ENGINES", "ESTIMATOR", "FAR", "KINDS", "NOTHING", "OTHER", "SIGNALS", "TABLE", "Engine", "EngineRow", "Of", "Refusal"),
    *("SAMPLING", "Refuses", "Sets", "Signal", "check", "check_sizes", "declare", "fields_of", "guide_refusals", "refusals"),
    *("refuse_all", "rows_of", "has_row", "kl_in_reward", "on_both", "other_sampling", "runs_on", "sampling_warning", "table"),
]
