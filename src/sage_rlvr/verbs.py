"""What the verbs print: lines and tables for a terminal, from records and summaries."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.box
import rich.markup
import rich.table
from rich.console import Console

from sage_rlvr.config import (
    FinetuneConfig,
    SftConfig,
    TrainConfig,
    WorldConfig,
    decode,
    load,
    load_config,
    parse_yaml,
    to_yaml,
)
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation import (
    check_budget,
    compare_frontiers,
    curve,
    curve_sentence,
    frontier,
    frontier_sentence,
    gap_to_frontier,
    improvement_sentence,
    paired_curve,
    paired_seeds,
    probability_of_improvement,
    reachable,
    sentence,
    share_interval,
    success_probability,
)
from sage_rlvr.evaluation.plan import Pilot, pilot_of_counts, pilot_of_exact
from sage_rlvr.evaluation.record import Record, check_paired, load_record
from sage_rlvr.report import (
    Result,
    SeedSummary,
    Summary,
    Table,
    arm_from_logps,
    results_table,
    seeds_table,
    summarise,
    summarise_seeds,
)
from sage_rlvr.report.summary import control_pairs

if TYPE_CHECKING:
    from sage_rlvr.engines.evaluate import Target
    from sage_rlvr.engines.sampled_run import SampleSettings
    from sage_rlvr.evaluation.samples import SampleStore

PAPER = "paper:"  # prefix of an arm of the paper's own tables


def world_of(name: str) -> WorldConfig:
    """The world of a recipe file (RL or SFT), or a named one (`sage_rlvr.tasks.countdown.WORLDS`)."""
    from sage_rlvr.tasks.countdown import WORLDS

    if name.endswith((".yaml", ".yml")):
        if "method" in load(name):
            return load_config(TrainConfig, name).world
        return load_config(SftConfig, name).world
    if name not in WORLDS:
        raise ConfigError(f"world {name!r}: give a recipe file or one of {', '.join(WORLDS)}")
    world = WORLDS[name]
    return WorldConfig(
        counts=dict(world.counts),
        max_number=world.max_number,
        min_target=world.min_target,
        max_target=world.max_target,
        targets=world.targets,
    )


def target_of(what: str, world: str | None) -> Target:
    """`engines.evaluate.resolve`, with a damaged run.json refused by name."""
    from sage_rlvr.engines.evaluate import resolve

    chosen = None if world is None else world_of(world)
    try:
        return resolve(what, chosen)
    except SageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{Path(what) / 'run.json'} is damaged ({error!r}); evaluate {Path(what) / 'policy'} with --world RECIPE instead"
        ) from error


def sample_settings(command: Any, runs: Path) -> SampleSettings:
    """The settings of `sage-rlvr eval --samples`: the policy and, for Countdown, the world of a run or model; the store's
    place where none was named."""
    from sage_rlvr.engines.sampled_run import SampleSettings

    run, world = Path(command.what), None
    if command.task == "countdown":
        target = target_of(command.what, command.world)
        policy, model, world, of_run = target.name, target.model, target.world, target.run is not None
    else:
        of_run = (run / "run.json").is_file()
        policy = "base" if command.what == "embedded" else run.name
        model = str(run / "policy") if of_run else command.what
    asked = "" if command.task.startswith(("countdown", "knights")) else f"-{command.template}"
    name = f"{Path(command.task).stem}-{command.preset}{asked}"
    home = run / "samples" if of_run else runs / "samples" / policy
    shared = ("task", "samples", "problems", "split", "seed", "draw", "preset", "template", "chat", "max_new_tokens")
    shared += ("generator", "server", "served_as", "dtype", "sampling_seed", "score_base", "guide")
    return SampleSettings(
        policy=policy,
        model=model,
        world=world,
        store=command.store or home / name,
        **{field: getattr(command, field) for field in shared},
    )


def world_line(world: WorldConfig) -> str:
    """What enumeration says of the world's test split; five numbers would take minutes, so that is said instead."""
    if max(world.counts) > 4:
        return "world: five numbers; Countdown.facts enumerates it in some minutes"
    facts = world.build().facts("test")
    law = f", {facts['answers_mean_by_law']:.1f} as its law draws them" if "answers_mean_by_law" in facts else ""
    return (
        f"world: {facts['problems']:.0f} test problems with {facts['answers_mean']:.1f} right answers each on average "
        f"(median {facts['answers_median']:.0f}{law}) among {facts['expressions_mean']:,.0f} expressions; "
        f"the longest has {facts['longest']:.0f} characters"
    )


def reference_line(config: TrainConfig) -> str:
    """What pi_ref is loaded from when a run of this recipe starts, and whether `base_model` has a part in it."""
    anchor, unread = config.method.build().anchor, ""
    if config.base_model is not None and (config.reference is None or anchor is None or anchor.source != "base"):
        unread = f"; base_model = {config.base_model} is not read: only an anchor of source 'base' reads it"
    if config.reference is None or anchor is None:
        return "reference: none, this method reads no log-probs of one" + unread
    why = (
        "the anchor's source" if config.reference == anchor.source else f"model, the anchor's source is {anchor.source}"
    )
    if anchor.source == "base":
        why = "base_model" if config.base_model is not None else "model, because no base_model is given"
    return f"reference: {config.reference} ({why})" + unread


def schema_of(tree: Mapping[str, Any]) -> type[TrainConfig] | type[FinetuneConfig] | type[SftConfig]:
    """The schema of a recipe's tree: a method or a rollout trains by RL, a data set or TRL fine-tunes a model, else the
    world makes a base policy."""
    if {"method", "rollout"} & set(tree):
        return TrainConfig
    engine = tree.get("engine")
    tuned = "data" in tree or (isinstance(engine, dict) and engine.get("name") == "trl")
    return FinetuneConfig if tuned else SftConfig


def check_verb(recipe: Path, tree: Mapping[str, Any], verb: str) -> None:
    """ConfigError where the recipe's tree is plainly one of the other verb, `train` or `sft`, with the command for it."""
    kind = "train" if {"method", "rollout"} & set(tree) else "sft"
    schema = schema_of(tree)
    own = {f.name for f in fields(schema)} - {f.name for f in fields(TrainConfig)}
    if kind != verb and (kind == "train" or own & set(tree)):  # else a recipe for RL that lacks its method
        what = "an RL" if kind == "train" else "an SFT"
        raise ConfigError(f"{recipe}: this is {what} recipe; run it with: sage-rlvr {kind} {recipe}")


def recipe_lines(config: TrainConfig | FinetuneConfig | SftConfig) -> list[str]:
    """The resolved recipe, and of an RL recipe its objective and what its reference is loaded from."""
    lines = [to_yaml(config).rstrip()]
    if isinstance(config, TrainConfig):
        lines += ["\n" + config.method.build().describe(), "\n" + reference_line(config)]
    return lines


def loop_lines(config: TrainConfig | FinetuneConfig | SftConfig) -> list[str]:
    """What a dry run says of a recipe that the engines of this package run: counts."""
    unknown = "memory and hours are estimated for the engine trl alone"
    if not isinstance(config, TrainConfig):
        return [
            "Work",
            f"  {getattr(config, 'steps', 0):,} optimiser steps of {config.batch_size:,} examples",
            f"  {unknown}",
        ]
    rollout, updates = config.rollout, config.updates.epochs * config.updates.minibatches
    completions = config.steps * rollout.completions
    return [
        "Work",
        f"  {config.steps:,} rollouts of {rollout.completions:,} completions, {config.steps * updates:,} optimiser steps",
        f"  {completions:,} completions of at most {rollout.max_new_tokens:,} tokens",
        f"  {unknown}",
    ]


def import_recipes(source: Path, out: Path | None, plain: bool) -> tuple[list[str], list[str], list[str]]:
    """Their configuration as recipes, written to `out` and beside it. Returns their texts, the findings as lines, and what
    comes next. Both recipes are decoded before anything is written; ConfigError too where a file is there already."""
    from sage_rlvr.import_config import import_config

    marks = {"method", "rollout", "engine", "checkpoint", "world"} & set(tree := load(source))
    if marks and not {"rl", "sage", "sft", "train_dataset"} & set(tree):
        verb = "train" if {"method", "rollout"} & marks else "sft"
        raise ConfigError(
            f"{source}: already a recipe of this package ({', '.join(sorted(marks))}); run it with: sage-rlvr {verb} {source}"
        )
    stem = source.stem if out is None else out.stem
    found = import_config(source, sft_run=f"runs/{stem}-sft", plain=plain)
    decode(TrainConfig, parse_yaml(found.train, "the imported recipe"))
    files = {} if out is None else {out: found.train}
    if found.sft is not None:
        decode(FinetuneConfig, parse_yaml(found.sft, "the imported SFT recipe"))
        files |= {} if out is None else {out.with_name(f"{stem}-sft.yaml"): found.sft}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise ConfigError(f"{', '.join(there)}: there already; give another name (-o), or move it away")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    texts = [text for text in (found.sft, found.train) if text is not None]
    lines = [str(finding) for finding in found.findings]
    if out is None:  # the recipes go to the terminal, and their comments say most of it already
        lines = [str(finding) for finding in found.findings if finding.kind == "kept"]
    return texts, lines, [f"written: {path}" for path in files]


def eval_lines(record: Record, ks: Sequence[int]) -> list[str]:
    """A table in text: one line a temperature, 95 % intervals over problems."""
    head = (
        f"{record.meta['name']}: {record.problems} {record.meta['split']} problems, exact, 95 % intervals over problems"
    )
    lines = [head, "  T     " + "".join(f"pass@{k:<18}" for k in ks) + "distinct right in 256"]
    for t in sorted(record.logps, reverse=True):
        rows = record.logps[t]
        values = curve(success_probability(rows), list(ks))
        cells = []
        for column in values.T:
            found = share_interval(column)
            cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]  ")
        lines.append(f"  {t:<5g} " + "".join(f"{cell:<23}" for cell in cells) + f"{np.mean(reachable(rows, 256)):.1f}")
    return lines


def print_cross_check(console: Console, found: Mapping[str, float]) -> None:
    """What `cross_check` found, in one line; a disagreement is loud, and says what to do."""
    agree = bool(found["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {found['sampled']:.4f} ({100 * found['level']:g} % "
        f"interval {found['low']:.4f} to {found['high']:.4f}), exact {found['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, trust neither before `sage-rlvr doctor` has passed; if it does, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", markup=False, soft_wrap=True
    )


def compare_records(arms: Sequence[str], split: str, k: int) -> tuple[Result, SeedSummary | None]:
    """Result of the first seed and, where every arm but the control has several, the claims over training seeds."""
    if len(arms) < 2:
        raise DataError(f"compare needs at least two arms, got {list(arms)}; the first is the control")
    loaded = [_named(arm, split) for arm in arms]
    counts = sorted({len(records) for _, records in loaded[1:]})
    if len(counts) > 1 or len(loaded[0][1]) not in (1, counts[0]):
        raise DataError("arms differ in their number of training seeds; give each the same number of records")
    check_paired([record for _, records in loaded for record in records])
    results = [_result([(name, rows[min(s, len(rows) - 1)]) for name, rows in loaded], k) for s in range(counts[0])]
    return results[0], summarise_seeds(results) if counts[0] > 1 else None


def more_lines(result: Result, over_seeds: SeedSummary | None, k: int) -> list[str]:
    """What `compare` says beyond the table's sentences: each pair over all k, the chance of an improvement on a problem, and
    their temperature frontiers where both were evaluated at several temperatures."""
    trained = [arm.name for arm in result.arms if arm.trained and arm.name != result.base]
    pairs = [(name, result.base) for name in trained] + list(control_pairs(result))
    seeds = [result] if over_seeds is None else list(over_seeds.results)
    lines = []
    for a, b in pairs:
        arms = [(r.arm(a), r.arm(b)) for r in seeds]
        if over_seeds is None:
            band = paired_curve(curve(arms[0][0].p, result.ks), curve(arms[0][1].p, result.ks), result.ks)
            lines.append(curve_sentence(band, a, b))
        over = "problems" if over_seeds is None else "training seeds"
        scores = (np.stack([pair[i].p for pair in arms]) for i in (0, 1))
        lines.append(improvement_sentence(probability_of_improvement(*scores, over=over), a, b, "a problem's pass@k"))
        if all(len(arm.ps) > 1 for pair in arms for arm in pair):
            lines.append(_frontier_line(arms, a, b, k))
    return [line + "." for line in lines]


def _frontier_line(arms: Sequence[tuple[Any, Any]], a: str, b: str, k: int) -> str:
    if len(arms) == 1:
        return frontier_sentence(compare_frontiers(arms[0][0].ps, arms[0][1].ps, k=k), a, b, k)
    gaps = [gap_to_frontier(frontier(x.ps, k), frontier(y.ps, k)).value for x, y in arms]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        none = len(gaps) - len(known)
        return f"{a} vs {b}, temperature frontiers: no common range of pass@1 in {none} training seeds"
    found = paired_seeds(known, np.zeros(len(known)))
    return sentence(found, a, b, f"mean gap in pass@{k} at equal pass@1, temperature frontiers")


def paper_lines(arms: Sequence[str]) -> list[str]:
    """`compare paper:A paper:B [...]`: the arithmetic of the paper's own tables, the first being the control."""
    from sage_rlvr.evaluation.published import compare_arms, comparison_lines, find_arms, load_document, read_tables
    from sage_rlvr.recipes import recipe

    others = [arm for arm in arms if not arm.startswith(PAPER)]
    if others or len(arms) < 2:
        raise DataError(
            f"{', '.join(others) or arms[0]}: paper:ARM compares with other paper:ARMs alone, two at least, as in: "
            "sage-rlvr compare paper:GRPO paper:Branch"
        )
    document = load_document(recipe("tables.json", "paper"))
    table, found = find_arms(read_tables(document), [arm.removeprefix(PAPER) for arm in arms])
    lines: list[str] = []
    for other in found[1:]:
        lines += [*comparison_lines(compare_arms(table, found[0], other), document["problems"]), ""]
    return lines[:-1]


def is_store(text: str) -> bool:
    """Whether NAME=PATH[,PATH...] names sample stores."""
    return any((Path(path) / "store.json").is_file() for path in text.rpartition("=")[2].split(","))


def compare_stores(arms: Sequence[str], k: int, n: int | None = None, patterns: bool = False) -> list[str]:
    """Sentences from sample stores: paired by problem, refused where their budgets differ, Holm over the data sets.

    Each arm is NAME=PATH[,PATH...]; several stores of one task are training seeds, those of other tasks other data sets.
    n: the first so many samples of each problem. patterns: reasoning patterns too, as perplexities where both were scored."""
    from sage_rlvr.evaluation.sample_studies import compared_pattern_lines, excess_lines
    from sage_rlvr.evaluation.verdicts import arms_of, compare_counts

    named = _stores(arms, n)
    lines = compare_counts(arms_of(named), k)
    by_task = [
        {task: path for path, (task, _) in zip(_paths(arm), found, strict=True)}
        for arm, found in zip(arms, named.values(), strict=True)
    ]
    if any(len(paths) < len(found) for paths, found in zip(by_task, named.values(), strict=True)):
        return [*lines, *(["--patterns: only arms of one training run have patterns compared."] * patterns)]
    (base, *others), (home, *rest) = named, by_task
    for name, paths in zip(others, rest, strict=True):
        for task, path in paths.items():
            pair = (name, _opened(path), base, _opened(home[task]), n)
            lines += excess_lines(*pair)
            lines += compared_pattern_lines(*pair) if patterns else []
    return lines


def _paths(arm: str) -> list[str]:
    return arm.rpartition("=")[2].split(",")


def _opened(path: str | Path) -> SampleStore:
    from sage_rlvr.evaluation.samples import SampleStore

    return SampleStore.open(path)


def _stores(arms: Sequence[str], n: int | None = None) -> dict[str, list[tuple[str, Any]]]:
    """Arm -> (data set, counts) of each of its stores. DataError where budgets differ, or an evaluation is unfinished."""
    from sage_rlvr.evaluation.verdicts import Scored

    loaded: dict[str, list[tuple[str, Any]]] = {}
    identities: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for arm in arms:
        name, _, paths = arm.rpartition("=")
        name = name or Path(paths.split(",")[0]).name
        if name in loaded:
            raise DataError(f"two arms are called {name!r}; write NAME={paths} for one of them")
        for path in paths.split(","):
            store = _opened(path)
            counts, identity = store.counts(n), store.identity.tree()
            many = sorted(set(counts.n.tolist()))
            if lacking := store.lacking(counts):
                raise DataError(f"{path}: has {lacking}, so it is no whole evaluation yet")
            if len(many) != 1:
                raise DataError(
                    f"{path}: its problems have {many[0] if many else 0} to {many[-1] if many else 0} samples; finish the "
                    f"evaluation first{f', or give --samples {many[0]}' if many else ''}"
                )
            task = str(identity["task"])
            loaded.setdefault(name, []).append((task, Scored(counts.problems, many[0], counts.right[None, :])))
            judge = store.verifiers()[-1]["verifier_hash"]
            identities[f"{name} ({path})"] = (task, identity | {"n": many[0], "verifier_hash": judge})
    for task in dict.fromkeys(task for task, _ in identities.values()):
        check_budget({name: identity for name, (of, identity) in identities.items() if of == task})
    return loaded


def store_lines(command: Any) -> list[str]:
    """`sage-rlvr samples`: what was asked of a store, in the order import, verdicts, report, studies, export."""
    from sage_rlvr.evaluation.lm_eval import export_lm_eval, import_lm_eval
    from sage_rlvr.evaluation.sample_report import report_lines
    from sage_rlvr.evaluation.sample_studies import anatomy_lines, pattern_lines

    lines: list[str] = []
    if command.from_lm_eval is not None:
        import_lm_eval(command.from_lm_eval, command.store, model=command.model, problem_id=command.problem_id)
    elif command.model is not None or command.problem_id != "doc_id":
        raise ConfigError("--model, --problem-id: say what is imported; add --from-lm-eval samples_<task>_<date>.jsonl")
    if command.docs is not None and command.to_lm_eval is None:
        raise ConfigError(f"--docs {command.docs}: texts for an export; add --to-lm-eval FOLDER")
    with _opened(command.store) as store:
        if command.judge is not None:
            lines.append(f"{_judge_imported(store, command.judge, command.tag):,} samples judged by our verifier")
        lines += report_lines(store, command.samples)
        if command.patterns:
            lines += pattern_lines(store, command.samples)
        if command.anatomy is not None:
            lines += anatomy_lines(store, _spelled_by(command.anatomy), command.samples)
        if command.to_lm_eval is not None:
            docs = None if command.docs is None else _docs_of(command.docs)
            lines.append(f"written: {export_lm_eval(store, command.to_lm_eval, docs=docs, n=command.samples)}")
    return lines


def _judge_imported(store: SampleStore, answer_in: str, tag: str) -> int:
    """Verdicts of the mathematics verifier on an imported store, against the targets that came with it."""
    from sage_rlvr.engines.sampled_tasks import judged_by, mathematics_hash
    from sage_rlvr.evaluation.lm_eval import targets_of

    golds, reading = targets_of(store), {"answer_in": answer_in, "tag": tag}
    return store.reverify(
        lambda ids, texts: judged_by([(text, golds[i]) for i, text in zip(ids, texts, strict=True)], reading),
        mathematics_hash(reading),
    )


def _spelled_by(policy: str) -> Callable[[Sequence[int]], list[str]]:
    from sage_rlvr.engines.base import load_tokens

    tokenizer = load_tokens(policy).tokenizer
    return lambda ids: [tokenizer.decode([i]) for i in ids]


def _docs_of(name: str) -> dict[str, dict[str, Any]]:
    """Problem id -> doc, target, prompt of a mathematics task or a .jsonl file."""
    from sage_rlvr.tasks.mathematics import MathTask

    return {
        p.problem_id: {
            "doc": {"id": p.problem_id, "problem": p.text, "answer": p.answer},
            "target": p.answer,
            "prompt": p.text,
        }
        for p in MathTask(name).problems()
    }


def pilot_of(arms: Sequence[str], split: str, k: int, run_sd: float) -> Pilot:
    """A pilot for `plan` from two arms, A=PATH[,PATH...] B=...: records, run directories or sample stores."""
    if len(arms) != 2:
        raise ConfigError(f"--from {' '.join(arms)}: two arms are wanted, A=PATH[,PATH...] B=PATH[,PATH...]")
    if any(is_store(arm) for arm in arms):
        from sage_rlvr.evaluation.verdicts import arms_of, check_alike

        named = arms_of(_stores(arms))
        check_alike(named, k)
        a, b = named.values()
        if len(a) > 1:
            raise ConfigError(f"--from: stores of {', '.join(a)}; a plan is for one data set, give the stores of one")
        ((task, one),) = a.items()
        return pilot_of_counts(one.n, one.right, b[task].right, k, run_sd)
    (_, a_records), (_, b_records) = (_named(arm, split) for arm in arms)
    check_paired([*a_records, *b_records])
    rows = max(len(a_records), len(b_records))
    if {len(a_records), len(b_records)} - {1, rows}:
        raise DataError(f"--from: {len(a_records)} and {len(b_records)} training seeds; give the same number, or one")
    scores = [np.stack([success_probability(r.logps[1.0]) for r in records]) for records in (a_records, b_records)]
    left, right = (np.broadcast_to(x, (rows, x.shape[1])) for x in scores)
    return pilot_of_exact(left, right, k, run_sd)


def _named(arm: str, split: str) -> tuple[str, list[Record]]:
    name, equals, paths = arm.rpartition("=")
    records = []
    for text in paths.split(","):
        path = Path(text)
        records.append(_of_run(path, split) if path.is_dir() else load_record(path))
    return (name if equals else str(records[0].meta["name"])), records


def _of_run(run: Path, split: str) -> Record:
    """The record in a run directory, refused where the run has other weights by now than those that were evaluated."""
    from sage_rlvr.engines.base import weights_hash

    record = load_record(run / f"evaluation-{split}.npz")
    if record.meta.get("weights") != weights_hash(str(run / "policy")):
        raise DataError(
            f"{run}: its evaluation-{split}.npz is of other weights than its policy/ (the run went on, or is not finished); "
            f"evaluate it again: sage-rlvr eval {run}"
        )
    return record


def _result(named: Sequence[tuple[str, Record]], k: int) -> Result:
    base_name, base = named[0]
    if 1.0 not in base.logps:
        raise DataError(f"{base_name}: its record has no temperature 1; evaluate it with --temperatures 1.0")
    home = base.logps[1.0]
    arms = [arm_from_logps(base_name, base.logps, trained=False, k=k)]
    arms += [arm_from_logps(name, record.logps, base=home, k=k) for name, record in named[1:]]
    names = tuple(name for name, _ in named[1:])
    pairs = tuple((b, a) for i, a in enumerate(names) for b in names[i + 1 :])
    ks = (*(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n < k), k)
    return Result(
        arms=tuple(arms),
        problems=base.problems,
        base=base_name,
        split=base.meta["split"],
        k=k,
        ks=ks,
        pairs=pairs,
        versions=base.meta["versions"],
    )


def print_summary(console: Console, result: Result | Summary | SeedSummary) -> None:
    """The table, the sentences, then what the design cannot show; over several seeds it is all about the methods."""
    if isinstance(result, SeedSummary):
        head = f"These methods, over {result.seeds} training seeds:"
        shown, sentences, caveats = seeds_table(result), result.sentences, result.caveats
    else:
        summary = result if isinstance(result, Summary) else summarise(result)
        head = "These checkpoints:"
        shown, sentences, caveats = results_table(summary), summary.sentences, summary.caveats
    _print_table(console, shown)
    _print_lines(console, head, sentences)
    for caveat in caveats:
        console.print(f"[dim]{rich.markup.escape(caveat)}[/]", soft_wrap=True)


def _print_lines(console: Console, head: str, lines: Sequence[str]) -> None:
    console.print(head, style="bold")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    """As many columns as fit; the page has them all."""
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) + 2 for column in columns]
    fitting = [i for i in range(len(columns)) if sum(widths[: i + 1]) <= console.width]
    shown = rich.table.Table(*(table.header[i] for i in fitting), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        shown.add_row(*(row[i] for i in fitting))
    console.print(shown)
    if len(fitting) < len(columns):
        left_out = ", ".join(" ".join(table.header[i].split()) for i in range(len(fitting), len(columns)))
        console.print(f"[dim]{rich.markup.escape(left_out)}: on the page, or in a wider terminal[/]")
    for note in table.notes:
        console.print(f"[dim]{rich.markup.escape(note)}[/]", soft_wrap=True)


def doctor(console: Console) -> int:
    """What this machine offers, what is off and why. Returns 0 where the CPU path works, else 2."""
    facts: list[tuple[str, str]] = [("python", platform.python_version()), ("machine", platform.platform())]
    facts += [("cores", str(os.cpu_count())), ("free disk", f"{shutil.disk_usage('.').free / 1e9:.0f} GB here")]
    good = _torch_facts(facts) and _policy_facts(facts)
    for name in ("trl", "verl", "vllm", "peft"):
        there = importlib.util.find_spec(name) is not None
        facts.append((name, "installed" if there else "not installed: only needed by its own engine"))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        console.print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
    console.print("the CPU path works" if good else "the CPU path does not work: see above", style="bold")
    return 0 if good else 2


def _torch_facts(facts: list[tuple[str, str]]) -> bool:
    import torch
    import transformers

    facts += [("torch", torch.__version__), ("transformers", transformers.__version__)]
    facts.append(("threads", f"{torch.get_num_threads()} by torch's choice; recipes set engine.threads themselves"))
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: everything runs on the CPU"
    facts.append(("GPU", gpu))
    return True


def _policy_facts(facts: list[tuple[str, str]]) -> bool:
    """Load the shipped policy, sample from it and hold the sample's log-probs against the scorer's."""
    import torch

    from sage_rlvr.core.keys import Key
    from sage_rlvr.engines.base import EMBEDDED, load_policy
    from sage_rlvr.engines.sampler import sample
    from sage_rlvr.engines.scoring import score

    try:
        model, tokens = load_policy(EMBEDDED)
    except ConfigError as error:
        facts.append(("base policy", str(error)))
        return False
    prompt: Any = tokens.encode_prompt("2 3 5 7=24:")
    rollout = sample(
        model, [prompt], group_size=16, max_new_tokens=24, eos_id=tokens.eos_ids, pad_id=tokens.pad_id, key=Key(0)
    )
    with torch.no_grad():
        scores = score(model, [prompt], rollout.tokens, rollout.mask, torch.zeros(16, dtype=torch.long))
    gap = float((scores.logps - rollout.logps).abs().max())
    facts.append(("base policy", f"{sum(p.numel() for p in model.parameters()):,} parameters"))
    facts.append(("sampler", f"log-probs agree with the scorer's to {gap:.0e}"))
    return gap < 1e-4
