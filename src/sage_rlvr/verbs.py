"""What the verbs print: lines and tables for a terminal, from records and summaries."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.box
import rich.markup
import rich.table
from rich.console import Console

from sage_rlvr.config import SftConfig, TrainConfig, WorldConfig, load, load_config
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation import curve, mean_interval, reachable, success_probability
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

if TYPE_CHECKING:
    from sage_rlvr.engines.evaluate import Target


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
            found = mean_interval(column)
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
