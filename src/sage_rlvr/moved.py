"""Where the modules of version 0.1 are now, and its words in files. Old imports work for one version and say where to go."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULES = {
    "anchor_lab": "studies.anchor.command",
    "audit.checks": "tasks.checks",
    "audit.mathematics": "tasks.math_audit",
    "audit.second": "tasks.countdown.second",
    "audit.wrong": "tasks.math_audit",
    "core.rollouts": "core.rollout_plans",
    "engines.base": "models.policy",
    "engines.completions": "models.listing.completions",
    "engines.evaluate": "evaluation.evaluate",
    "engines.evaluate_samples": "evaluation.sampling",
    "engines.exact": "evaluation.exact",
    "engines.expectations": "studies.anchor.expectations",
    "engines.generation": "models.generation",
    "engines.generation_vllm": "models.vllm",
    "engines.groups": "training.rollouts",
    "engines.guide_atoms": "studies.guides.completions",
    "engines.guide_lab": "studies.guides.measure",
    "engines.guide_signals": "studies.guides.signals",
    "engines.lab": "studies.anchor.measure",
    "engines.llama_step": "models.llama.decoder",
    "engines.loop": "training.loop",
    "engines.normalizers": "evaluation.exact",
    "engines.optim": "training.optimizer",
    "engines.reference": "training.reference",
    "engines.sampled_run": "evaluation.sampled_run",
    "engines.sampled_tasks": "evaluation.sampling",
    "engines.sampler": "models.sampler",
    "engines.scatter": "studies.anchor.variances",
    "engines.scoring": "models.scoring",
    "engines.sft": "training.sft",
    "engines.trl": "training.trl",
    "engines.trl.advantages": "training.trl.batch",
    "engines.trl.card": "training.trl.model_card",
    "engines.trl.data": "training.trl.run",
    "engines.trl.diary": "training.trl.callbacks",
    "engines.trl.dry_run": "training.counts.dry_run",
    "engines.trl.mapping": "training.trl.arguments",
    "engines.trl.metrics": "training.trl.callbacks",
    "engines.trl.objective": "training.trl.state",
    "engines.trl.ranks": "training.trl.callbacks",
    "engines.trl.reference": "training.trl.reference_model",
    "engines.trl.refusals": "training.trl.checks",
    "engines.trl.rows": "tasks.rows",
    "engines.trl.run": "training.trl.run",
    "engines.trl.sampling": "training.trl.dynamic_sampling",
    "engines.trl.settings": "training.trl.arguments",
    "engines.trl.sft": "training.trl.sft",
    "engines.trl.shaping": "training.trl.batch",
    "engines.trl.trainer": "training.trl.trainer",
    "engines.truncation": "models.generation",
    "evaluation.anatomy": "stats.samples.anatomy",
    "evaluation.budget": "stats.budget",
    "evaluation.clusters": "stats.samples.clusters",
    "evaluation.compare": "stats.comparison",
    "evaluation.curves": "stats.curves",
    "evaluation.diversity": "stats.samples.diversity",
    "evaluation.frontier": "stats.frontier",
    "evaluation.intervals": "stats.intervals",
    "evaluation.leash": "stats.leash",
    "evaluation.majority": "stats.samples.majority",
    "evaluation.passk": "stats.passk",
    "evaluation.normalizers": "evaluation.exact",
    "evaluation.patterns": "stats.samples.patterns",
    "evaluation.perplexity": "stats.samples.perplexity",
    "evaluation.plan": "stats.plan",
    "evaluation.power": "stats.power",
    "evaluation.published": "stats.published",
    "evaluation.repeats": "evaluation.store.repeats",
    "evaluation.sample_rows": "evaluation.store.sample",
    "evaluation.sample_studies": "evaluation.sample_report",
    "evaluation.sampled_tasks": "evaluation.sampling",
    "evaluation.samples": "evaluation.store",
    "evaluation.spectrum": "stats.samples.spectrum",
    "evaluation.structure": "stats.samples.structure",
    "evaluation.support": "stats.support",
    "evaluation.tempered": "stats.tempered",
    "experiments.matrix": "experiments.design",
    "import_notes": "import_config.notes",
    "models.asking": "models.policy",
    "models.truncation": "models.generation",
    "prompts": "tasks.prompts",
    "report.guides": "studies.guides.figures",
    "report.theory": "studies.anchor.figures",
    "theory.pictures": "studies.anchor.figures",
    "strict": "config",
    "tasks.countdown_expressions": "tasks.countdown.expressions",
    "tasks.countdown_tokenizer": "tasks.countdown.tokenizer",
    "tasks.mathematics": "tasks.math",
    "tasks.wrong": "tasks.math_audit",
    "theory.tilts": "theory.reweighting",
    "runs.metrics": "runs.files",
    "training.trl.advantages": "training.trl.batch",
    "training.trl.data": "training.trl.run",
    "verbs.doctor": "cli.doctor",
    "verbs.guides": "studies.guides.command",
    "verbs.recipes": "cli.recipes",
    "verbs.records": "cli.evaluate",
}  # old module: new module, both below sage_rlvr
_EVALUATION = {
    "stats.budget": "budget_differences check_budget",
    "stats.comparison": (
        "Comparison excludes holm paired paired_counts paired_seed_counts "
        "paired_seeds sign_flip_p signed"
    ),
    "stats.curves": (
        "CurveComparison Improvement paired_count_curve paired_curve "
        "probability_of_improvement seed_ks seeds_curve"
    ),
    "stats.frontier": (
        "AtEqualPass1 FrontierGap FrontierPoint Gap GapCurve at_equal_pass1 best_pass1 "
        "compare_count_frontiers compare_frontiers count_frontier frontier gap_curve "
        "gap_near gap_to_frontier passk_at variety=distinct_frontier"
    ),
    "stats.intervals": (
        "Interval bootstrap_means column_intervals mean_interval passk_interval seed_interval "
        "share_difference share_interval share_intervals wilson"
    ),
    "stats.leash": (
        "Discoveries LeashCounts detectable_probability leash_at_k leash_counts leash_discoveries "
        "leash_exact leash_expected leash_intervals leash_noise_floor leash_sampling_error mcnemar_p"
    ),
    "stats.samples.majority": "Majority maj_at_k",
    "stats.passk": "avg_at_n cover_at_tau curve exact_pass_at_k pass_at_all_k pass_at_k pass_hat_k",
    "stats.power": "detectable detectable_paired detectable_shares detectable_up_to fewest_units",
    "tasks.countdown": "COUNTDOWN_CLASSES",
    "stats.samples.anatomy": "Anatomy TOKEN_CLASSES classify token_anatomy",
    "stats.samples.clusters": "pooled_share ratio_interval",
    "stats.samples.diversity": "answer_entropy distinct_correct expected_distinct_correct token_entropy",
    "stats.samples.patterns": "Pattern PatternComparison PatternFrequency compare_patterns load_patterns pattern_frequencies",
    "stats.samples.perplexity": "Tails perplexities perplexities_from_sums perplexity_excess perplexity_tails",
    "stats.samples.spectrum": "RankPath effective_rank rank_dynamics rank_path",
    "stats.support": "SupportChange reachable success_probability support support_change",
}  # new module: the names that `from sage_rlvr.evaluation import` took from it
_SPELLED = "BetaNormalised=BetaNormalized GroupCentred=GroupCentered GroupNormalised=GroupNormalized"
_DESIGN = "Matrix=DesignSpec load_matrix=load_design"
NAMES: dict[str, dict[str, str]] = {
    "core": {"core.advantages": _SPELLED, "core.divergences": "unnormalised_kl=unnormalized_kl"},
    "core.advantages": {"core.advantages": _SPELLED, "core.advantages.beta": "LARGEST_WEIGHT"},
    "core.divergences": {"core.divergences": "unnormalised_kl=unnormalized_kl"},
    "engines.base": {"models.folders": "embedded_policy ADAPTER_WEIGHTS"},
    "engines.exact": {"models.listing.solutions": "solution_logps ROWS_PER_CHUNK"},
    "engines.generation": {"evaluation.settings": "Preset"},
    "engines.lab": {"studies.anchor.rows": "short_markdown markdown SHORT_TERMS NOTE", "studies.anchor.terms": "K1"},
    "engines.optim": {"training.optimizer": "Optimiser=Optimizer"},
    "engines.sampled_tasks": {"tasks.base": "code_hash", "tasks": "countdown", "evaluation.documents": "generated_docs"},
    "engines.sampler": {"models.shared_prefix": "refuse_unknown_terms"},
    "engines.sft": {"training.state": "model_tensors load_tensors CARD POLICY_FILES"},
    "evaluation": _EVALUATION,
    "evaluation.frontier": {"stats.frontier": "variety=distinct_frontier"},
    "evaluation.sample_studies": {"results.details": "compared_pattern_lines=pattern_lines"},
    "experiments.demo": {"experiments.jobs": "Job"},
    "experiments.jobs": {"runs.files": "read_metrics"},
    "experiments.design": {"experiments.design": _DESIGN},
    "experiments.matrix": {"experiments.controls": "same", "experiments.design": _DESIGN},
    "experiments.sweep": {"experiments.plan": "Cell plan", "experiments.display": "dry_lines line table",
                          "report": "write_summary"},
    "report.figures": {"report.style": "svg_of png_of REM_AN_INCH"},
    "runs": {"runs.checkpoints": "STATE FORMAT", "runs.record": "STRETCHED"},
    "strict": {"recipes": "short dotted MAX_BYTES MAX_DEPTH Place", "registry": "Registry"},
    "tasks.countdown": {"tasks.countdown.draws": "BLOCK"},
    "theory.claims.support": {"theory.claims.appendix_c": "Rare rare uncertain_first_token appendix_c what_training_reaches"},
    "theory.effects": {"theory.measured": "Measured kl_only measured_gradient unchecked_anchor in_reward_gradient",
                       "theory.effect_map": "MapRow gradient_map markdown MAP_TREE MAP_LOGITS MAP_REF MAP_GUIDES TERMS"},
    "theory.expected": {"theory.averages": "LARGEST_COMPOSITIONS"},
    "theory.optima": {"theory.optima": "unnormalised_kl=unnormalized_kl"},
    "verifiers.exact": {"verifiers.exact": "normalised=normalized"},
    "verifiers.math": {"verifiers.answers": "MAX_ANSWER MAX_COMPLETION last_number last_tag"},
}  # fmt: skip
"""Old module -> new module -> names that are there now, `old=new` where they are spelled otherwise. What neither table has, and is
no more, stands under Removed in CHANGELOG.md."""
FOLDERS = {"matrices": "designs"}
"""Folders of recipes: old name -> new name."""
KEYS = {"tier": "title"}
"""Keys of a design file."""
COLUMNS = {"reward/dead_group_share": "reward/zero_variance_share"}
"""Names in metrics.jsonl."""
FACTS = "matrix.json"
"""What a sweep's folder had in the place of design.json; KEPT: the keys of it and of summaries."""
KEPT = {**KEYS, "matrix": "design", "cells": "runs"}


def renamed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep or a summary has written down, with old keys by their new names."""
    return {KEPT.get(key, key): value for key, value in facts.items()}


def places(old: str) -> dict[str, tuple[str, str]]:
    """Old name -> new module and name, of an old module."""
    found = {}
    for home, words in NAMES.get(old, {}).items():
        for word in words.split():
            before, _, after = word.partition("=")
            found[before] = (f"sage_rlvr.{home}", after or before)
    return found


def answer_old_names(module: ModuleType, old: str) -> None:
    """Let the module answer the names that the old one had and that are elsewhere now, each with a warning."""
    table, own = places(old), getattr(module, "__getattr__", None)
    if not table or getattr(own, "old", None) == old:
        return

    def answer(name: str) -> object:
        if name in table:
            home, new = table[name]
            warnings.warn(f"{old}.{name} is {home}.{new} now; the old name goes with version 0.3", DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(home), new)
        if own is not None:
            return own(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    answer.old = old  # type: ignore[attr-defined]
    module.__getattr__ = answer  # type: ignore[method-assign]


class Moved:
    """A finder (sys.meta_path) that answers an old module name with the module that took its place, and warns.

    Modules that stand where they stood, and lost names of `NAMES`, answer those when they are loaded.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of an alias, or None where the name is none of the old ones."""
        old = name.removeprefix("sage_rlvr.")
        if name == old:
            return None
        if old in (*MODULES, "engines", "verbs"):
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path, target) if old in NAMES else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                answer_old_names(module, old)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The new module itself, so that a patched attribute is patched for both names."""
        old = spec.name.removeprefix("sage_rlvr.")
        if old not in MODULES:  # a folder that is no more: a package without a file, in which the old names are found
            package = ModuleType(spec.name)
            package.__path__ = []
            return package
        new = f"sage_rlvr.{MODULES[old]}"
        warnings.warn(f"{spec.name} is {new} now; the old name goes with version 0.3", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        answer_old_names(module, old)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: the import system has just written the alias over it."""
        alias = module.__spec__
        if alias is not None and alias.name in self._specs:
            module.__spec__ = self._specs.pop(alias.name)

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}


def install() -> None:
    """Let old module names be found, and old names in modules that stay; once."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, Moved())
