"""The command line: one verb a stage of the work. YAML first; `--a.b value` edits the recipe before it is decoded.

Imports of torch and transformers stay inside the verbs, so that `--help` and a mistyped word answer at once.
"""

from __future__ import annotations

import difflib
import io
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from sage_rlvr.errors import ConfigError, SageError

if TYPE_CHECKING:
    from sage_rlvr.config import TrainConfig
    from sage_rlvr.progress import Reporter
    from sage_rlvr.report import SeedSummary, Summary
    from sage_rlvr.runs import RunDir

RUNS = Path("runs")
FAULT = 70  # EX_SOFTWARE of sysexits.h; 1 means "interrupted and saved", so a crash needs a code of its own


@dataclass(frozen=True)
class Demo:
    """Train no-KL, GRPO and SAGE-Branch from the shipped base on this machine, evaluate exactly, and say what differs.

    `--a.b value` edits every arm's recipe, e.g. `--steps 40` for a short look."""

    out: Path = RUNS / "demo"
    """Where runs, evaluations, pictures and the page go. The same folder again continues."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; claims about methods, not checkpoints, need at least three."""
    arms: tuple[str, ...] | None = None
    """Recipes of recipes/countdown to train (default: no_kl grpo sage_branch; placebo is there too)."""
    problems: int = 300
    """Test problems."""
    workers: int | None = None
    """Training runs at a time, one thread each (default: the number of cores)."""


@dataclass(frozen=True)
class Sweep:
    """Arms x training seeds x evaluation from a matrix file (recipes/matrices), paired by seed; the same command continues.

    What the folder holds by configuration and weights is not made again, a demo's included; missing controls are added, and
    said. Exit code 2 if a cell failed."""

    matrix: tyro.conf.Positional[Path]
    out: Path | None = None
    """Where everything goes (default runs/<matrix name>)."""
    workers: int | None = None
    """Processes at a time, one thread each (default: the number of cores)."""
    dry_run: bool = False
    """Print what the matrix means, what was added, what is there and what is left; nothing is written."""


@dataclass(frozen=True)
class Sft:
    """Supervised fine-tuning: train a base policy from scratch, or fine-tune an existing model on a data set (TRL).

    The recipe says which: one with `world` makes a small policy from generated solutions; one with `data` fine-tunes `model`
    on worked solutions by TRL's SFTTrainer, whole or with LoRA, and needs the trl extra."""

    recipe: tyro.conf.Positional[Path]
    run: Annotated[Path | None, tyro.conf.arg(aliases=["--run-dir"])] = None
    """Run directory (default runs/<recipe name>). The same directory again continues."""
    out: Path | None = None
    """Where the policy goes (default <run>/policy)."""
    quiet: bool = False
    """No progress."""
    dry_run: bool = False
    """Print what the recipe means and needs (engine trl: memory and hours); no weights, no network."""
    devices: int = 1
    """Of the dry run: GPUs."""
    gpu: str = "h200"
    """Of the dry run: their kind (h200, h100, a100, a100-40, l40s, rtx4090)."""


@dataclass(frozen=True)
class Train:
    """Train one method by RL from a recipe; killed at any moment, the same command continues."""

    recipe: tyro.conf.Positional[Path]
    run: Annotated[Path | None, tyro.conf.arg(aliases=["--run-dir"])] = None
    """Run directory (default runs/<recipe name>-s<seed>)."""
    fork: bool = False
    """Continue a run although its recipe or the installed versions changed."""
    quiet: bool = False
    """No progress; metrics.jsonl has everything."""
    dry_run: bool = False
    """Print what the recipe means and needs (engine trl: memory and hours); no weights, no network."""
    devices: int = 1
    """Of the dry run: GPUs."""
    gpu: str = "h200"
    """Of the dry run: their kind (h200, h100, a100, a100-40, l40s, rtx4090)."""
    mean_tokens: int | None = None
    """Of the dry run: tokens of an average completion (default: half of rollout.max_new_tokens)."""


@dataclass(frozen=True)
class Eval:
    """Evaluate a run, a model or adapter folder, a Hub id or "embedded": exactly, or with --samples by sampling.

    Exact (Countdown, where all right answers are listed): pass@k, support, temperature frontier. By samples, on any task:
    every completion is kept in a store; the same command continues after any interruption, a larger --samples tops up."""

    what: tyro.conf.Positional[str]
    split: Literal["validation", "test"] = "test"
    problems: int | None = None
    """Default: 300 of Countdown; of other tasks all rows, else the first so many."""
    seed: int = 1
    """Of the problems, not of training; the same seed means the same problems."""
    draw: Literal["law", "census"] = "law"
    """law: independent draws from the world's own law; census: all problems of the split equally likely, none twice."""
    temperatures: tuple[float, ...] = (1.0,)
    frontier: bool = False
    """Add the fifteen temperatures of the frontier."""
    power_frontier: bool = False
    """Also temper the policy over whole completions, pi(y)^power normalized a problem: what it reaches with no reward at all."""
    ks: tuple[int, ...] = (1, 8, 64, 256)
    world: str | None = None
    """Another world than the run's own: a recipe file, or a named one such as demo-5."""
    sample: int = 0
    """Also draw this many completions at temperature 1 for each of 40 problems and hold them against the exact numbers."""
    out: Path | None = None
    """Where the record goes (default <run>/evaluation-<split>.npz, or runs/evaluations/<model>-<split>.npz)."""
    samples: int = 0
    """Draw this many completions of each problem instead of evaluating exactly (rounded up to whole chunks: 32, or 64 of the
    sampler from 64 on)."""
    task: str = "countdown"
    """Of samples: countdown, aime, amc23, math500, math500_l5, minerva, dapo_math, knights_and_knaves(_strict), or a .jsonl
    file with problem and answer."""
    preset: Literal["honest", "paper", "released_code"] = "honest"
    """Of samples: honest (T 1, nothing truncated), paper (its training settings at T 0.3: min_p 0.01), released_code (T 0.3,
    top-p 0.95, and top-k 50 where vLLM does not sample)."""
    temperature: float | None = None
    """Of samples: another temperature than the preset's, 0 being greedy; for `compare --frontier`."""
    template: Literal["sage", "boxed", "as_is"] = "boxed"
    """Of samples: how a mathematics problem is asked, and where its answer is read."""
    chat: Literal["model", "format"] = "model"
    """Of samples: the chat template of the policy's tokenizer, or the prompt format's own for all arms alike."""
    store: Path | None = None
    """Of samples: where they are kept (default <run>/samples/<task>-..., or runs/samples/<model>/<task>-...)."""
    max_new_tokens: int | None = None
    """Of samples: default 32 for Countdown, else 3072."""
    score_base: str | None = None
    """Of samples: also the log-probs of every token under this model, for perplexities; samples that are there already are
    scored without being drawn again."""
    guide: str | None = None
    """Of samples: also q of a guide (branch, token, random, flat) at every token."""
    generator: Literal["auto", "sampler", "transformers", "vllm", "server"] = "auto"
    """Of samples: auto is transformers on a GPU, else the sampler of this package."""
    server: str | None = None
    """Of samples: address of an OpenAI-compatible server, for --generator server."""
    served_as: str | None = None
    """Of samples: the policy's name on that server (default: its path)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of samples: auto is bfloat16 on a GPU, else float32."""
    sampling_seed: int = 0
    """Of samples: from it and its address each sample has a seed of its own."""
    rank: bool = False
    """Of samples: also the effective rank of the policy's last hidden states on each problem's first sample."""
    reverify: bool = False
    """Draw nothing: judge the samples of the store again by today's verifier, then report."""
    quiet: bool = False
    """Of samples: no progress."""


SAMPLING = (
    *(
        "task",
        "preset",
        "temperature",
        "template",
        "chat",
        "store",
        "max_new_tokens",
        "score_base",
        "guide",
        "generator",
        "server",
    ),
    *("served_as", "dtype", "sampling_seed", "rank", "quiet"),
)  # settings of Eval that mean nothing without --samples or --reverify
EXACT = ("temperatures", "frontier", "power_frontier", "ks", "sample", "out")  # and those that mean nothing with it


@dataclass(frozen=True)
class Compare:
    """Hold evaluations of the same problems against each other; the first is the control of all others.

    Each is a record (.npz), a run directory, a sample store, or NAME=PATH[,PATH...]; several paths are training seeds of one
    method. paper:GRPO paper:Branch compares arms of the paper's own tables (paper:4/GRPO: of its Table 4)."""

    arms: tyro.conf.Positional[tuple[str, ...]]
    split: Literal["validation", "test"] = "test"
    """Which record of a run directory to take."""
    k: int | None = None
    """Of pass@k: default 256, of sample stores with fewer samples all of them."""
    samples: int | None = None
    """Of sample stores: the first so many samples of each problem (default: all, which must be equally many)."""
    patterns: bool = False
    """Of sample stores: also compare the reasoning patterns of right samples."""
    frontier: bool = False
    """Of sample stores: each arm's stores are one policy at different temperatures; compare pass@k at equal pass@1."""
    out: Path | None = None
    """Also write the page and the pictures there (of exact records)."""


@dataclass(frozen=True)
class Samples:
    """Read a sample store again: its report, reasoning patterns, signal anatomy; bring samples of lm-evaluation-harness in,
    judge them by our verifier, or write a store out as such samples. Nothing is drawn."""

    store: tyro.conf.Positional[Path]
    samples: int | None = None
    """The first so many samples of each problem (default: as many as all have)."""
    patterns: bool = False
    """Also how often right samples show the reasoning patterns of arXiv 2605.18864, Eq. (13)."""
    anatomy: str | None = None
    """Also entropy, surprisal and q by class of token: the policy (folder, Hub id, embedded) whose tokenizer spells them."""
    from_lm_eval: Path | None = None
    """First make the store from this samples_<task>_<date>.jsonl of lm_eval --log_samples. Where the harness
    ran one repeat, its own score of 0 or 1 (exact_match) is the sample's verdict; with several repeats its score is of the
    document, so no sample is judged until --judge."""
    model: str | None = None
    """Of --from-lm-eval: the policy's name (default: what the results file beside it says)."""
    problem_id: str = "doc_id"
    """Of --from-lm-eval: the key of doc that names a problem; a store holds to the one it was imported with."""
    judge: Literal["boxed", "tag", "last_number", "whole"] | None = None
    """Judge imported samples by our mathematics verifier against the harness's targets; the answer is read there.
    Its verdicts replace the harness's exact_match."""
    tag: str = "SOLUTION"
    """Of --judge tag."""
    to_lm_eval: Path | None = None
    """Write the store into this folder as files of lm_eval --log_samples."""
    docs: str | None = None
    """Of --to-lm-eval: the problems' texts and golds, a mathematics task or a .jsonl file (imported stores and generated
    tasks know them)."""


@dataclass(frozen=True)
class Report:
    """One self-contained page of runs, evaluations and samples: verdicts, numbers, figures, a sample browser, run cards.

    RUNS are folders of `demo` or `sweep`, run directories, records (.npz), sample stores, or NAME=PATH[,PATH...] of those.
    What was not run or not recorded is said on the page; nothing is made here."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file (default report.html or report.md here), or a folder to put it in."""
    format: Literal["html", "md"] = "html"
    """html opens without network; md has the sentences and tables."""
    png: Path | None = None
    """Also write every figure as PNG into this folder."""
    split: Literal["validation", "test"] = "test"
    """Which records are compared."""
    k: int = 256
    """pass@1 and pass@k are compared."""
    show: int = 16
    """Samples of each problem and store on the page."""
    title: str = ""
    """Above the page."""


@dataclass(frozen=True)
class Plan:
    """Say what a design can see, of checkpoints and of methods, and what to buy next, before anything is trained."""

    problems: int
    samples: int = 256
    """Of each problem."""
    seeds: int = 3
    """Training seeds of each of the two arms."""
    k: int | None = None
    """Of pass@k: default 256, or --samples where that is less."""
    discordant: float = 0.1
    """Assumed share of problems on which two checkpoints differ at pass@k."""
    noise_share: float = 0.5
    """Assumed part of it that is chance of the samples, and shrinks with their number."""
    run_sd: float = 0.01
    """Assumed standard deviation between training runs of one arm's score."""
    run_cost: float = 64_000
    """What a training run costs, in sampled completions."""
    from_: Annotated[tuple[str, ...], tyro.conf.arg(name="from")] = ()
    """Measure these on a pilot instead: two arms as in compare, A=PATH[,PATH...] B=PATH[,PATH...]."""
    split: Literal["validation", "test"] = "test"
    """Which record of a run directory to take."""


@dataclass(frozen=True)
class Show:
    """Print a resolved recipe and the objective that it really optimises."""

    recipe: tyro.conf.Positional[Path]


@dataclass(frozen=True)
class ImportConfig:
    """Turn the train_config.yaml of SAGE's authors into recipes, and say line by line what it did not mean."""

    source: tyro.conf.Positional[Path]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where the recipe goes (default: the terminal); the SFT recipe, where there is one, goes beside it as NAME-sft.yaml."""
    plain: bool = False
    """As their train_grpo reads the file: without the guide."""


@dataclass(frozen=True)
class Theory:
    """Check the paper's claims exactly, map what every KL term really descends, and measure both on the real policy.

    Prints each claim with both sides and its verdict. Exit code 2 if a claim comes out other than it should."""

    out: Path = RUNS / "theory"
    """Where theory.json, theory.md and the pictures go."""
    lab: bool = True
    """Also measure on the Countdown policy (most of the time)."""
    policy: str | None = None
    """A run directory or model folder to measure there (default: the shipped base after some steps without a leash)."""
    problems: int = 5
    """Problems of the lab; each takes some ten seconds without draws."""
    draws: int = 256
    """Completions drawn a problem for the variances of the lab; 0 leaves them out."""
    docs: Path | None = None
    """Also make the tables and pictures of anchor.md in this folder again, as in the repository's docs/; with --no-lab the
    tables of the lab stay as they are."""


@dataclass(frozen=True)
class Guides:
    """What any guide would do to a trained policy if Eq. (4) were reached: all guides at equal KL, and the best q there is.

    On the enumerable Countdown world. Variants are chosen on validation problems and shown on test problems."""

    policy: tuple[str, ...] = ("embedded",)
    """Run directories or model folders; each gets its own tables."""
    problems: int = 100
    """Of validation, and as many of test."""
    samples: int = 512
    """Completions drawn a problem, for the wrong ones; the right ones are listed."""
    draw: Literal["law", "census"] = "law"
    """law: independent draws from the world's own law; census: all problems of a split equally likely, none twice."""
    doses: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """KL(policy with the guide || policy), nats a completion."""
    seed: int = 1
    """Of the problems and of the draws."""
    out: Path = RUNS / "guides"
    """Where guides.json, guides.md and guides.png go."""
    docs: Path | None = None
    """Also make the measured part of guides.md in this folder again, as in the repository's docs/."""


@dataclass(frozen=True)
class Audit:
    """Audit the verifier on tasks: what perfect, wrong and guessed answers earn, and the rows where it fails, by id.

    Exit code 2 if a check with a bar is below 99 %."""

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """aime, amc23, math500, math500_l5, minerva, dapo_math, knights_and_knaves(_strict), countdown (or countdown:WORLD), a
    .jsonl file with problem and answer, or pairs: the verifier of mathematics on pairs of answers whose verdict is known, beside
    math-verify alone and lm-eval. SAGE_RLVR_DATA names a folder with the data files; without it they are fetched
    at pinned commits."""
    template: str | None = None
    """The prompt format in use: sage, boxed or as_is (default: each of them)."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "anywhere"] | None = None
    """Read the answer elsewhere than the format asks, to see what such a mistake would cost."""
    k: int = 256
    """Guesses of the guess floors."""
    rows: int = 50
    """Rows listed a check."""
    out: Path | None = None
    """Also write the audits as a Markdown page."""


@dataclass(frozen=True)
class Verify:
    """The verdict on one answer, or on every row of a .jsonl file with completion and answer; and why."""

    gold: tyro.conf.Positional[str | None] = None
    answer: tyro.conf.Positional[str | None] = None
    """The answer, or a whole completion together with --answer-in. Write -- before a GOLD or ANSWER that begins with -."""
    file: Path | None = None
    """Rows to verify instead of one pair."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"] | None = None
    """Where the answer stands (default: whole for one pair, boxed for a file)."""
    tag: str = "SOLUTION"


@dataclass(frozen=True)
class Doctor:
    """Say what works on this machine, and what was switched off and why."""


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Sft, tyro.conf.subcommand("sft")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Samples, tyro.conf.subcommand("samples")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[ImportConfig, tyro.conf.subcommand("import-config")]
    | Annotated[Theory, tyro.conf.subcommand("theory")]
    | Annotated[Guides, tyro.conf.subcommand("guides")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)
EDITABLE = (Demo, Sft, Train, Show)  # the verbs that take --a.b value


@dataclass
class Streams:
    """Where the verbs speak."""

    out: Console = field(default_factory=lambda: Console(highlight=False, width=None if sys.stdout.isatty() else 120))
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 interrupted by Ctrl-C or SIGTERM and saved, 2 refused (the message says what to
    do), 70 a fault of this program (with Python's traceback)."""
    _quiet_libraries()
    args = list(sys.argv[1:] if argv is None else argv)
    _check_verb(args)
    command, unknown = tyro.cli(Command, prog="sage-rlvr", args=args, return_unknown_args=True)  # type: ignore[call-overload]
    streams = Streams()
    try:
        code = _run(command, _overrides(command, unknown), streams)
    except SageError as error:
        streams.err.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        streams.err.print(str(error), markup=False, soft_wrap=True)
        code = 2
    except KeyboardInterrupt:
        streams.err.print("interrupted; what was finished is saved, the same command continues")
        code = 1
    except Exception:
        traceback.print_exc()
        streams.err.print(f"a fault of sage-rlvr, exit code {FAULT}: please report it with the lines above")
        code = FAULT
    sys.exit(code)


def _check_verb(args: Sequence[str]) -> None:
    """A mistyped verb is answered with its neighbour; everything else is tyro's business."""
    verbs = (
        "demo",
        "sft",
        "train",
        "eval",
        "compare",
        "samples",
        "sweep",
        "report",
        "plan",
        "show",
        "import-config",
        "theory",
        "guides",
        "audit",
        "verify",
        "doctor",
    )
    if args and not args[0].startswith("-") and args[0] not in verbs:
        near = difflib.get_close_matches(args[0], verbs, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(verbs)}"
        print(f"ConfigError: unknown verb {args[0]!r}; {hint}", file=sys.stderr)
        sys.exit(2)


def _quiet_libraries() -> None:
    """Progress bars of weight loading say nothing on a 3 MB model; warnings of ours stay."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.formatwarning = lambda message, category, *rest: f"{category.__name__}: {message}\n"


def _overrides(command: object, unknown: Sequence[str]) -> list[tuple[str, str]]:
    """["--a.b", "v", "--c=w"] -> [("a.b", "v"), ("c", "w")]; anything else is refused by name."""
    found: list[tuple[str, str]] = []
    rest = list(unknown)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or not isinstance(command, EDITABLE):
            verb = "import-config" if isinstance(command, ImportConfig) else type(command).__name__.lower()
            raise ConfigError(f"{word!r}: `sage-rlvr {verb}` has no such argument; see `sage-rlvr {verb} --help`")
        name, equals, value = word[2:].partition("=")
        if not equals and not rest:
            raise ConfigError(f"{word}: a value is missing; write {word} VALUE")
        found.append((name.replace("-", "_"), value if equals else rest.pop(0)))
    return found


def _run(command: object, overrides: list[tuple[str, str]], streams: Streams) -> int:
    verbs = {
        Demo: _demo,
        Sweep: _sweep,
        Sft: _sft,
        Train: _train,
        Eval: _eval,
        Compare: _compare,
        Samples: _samples,
        Report: _report,
        Plan: _plan,
        Show: _show,
        ImportConfig: _import_config,
        Theory: _theory,
        Guides: _guides,
        Audit: _audit,
        Verify: _verify,
        Doctor: _doctor,
    }
    return verbs[type(command)](command, overrides, streams)


def _sft(command: Sft, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.recipes import check_verb, schema_of
    from sage_rlvr.config import FinetuneConfig, SftConfig, dump, load, load_config
    from sage_rlvr.progress import Silent, Terminal
    from sage_rlvr.runs import RunDir
    from sage_rlvr.training.sft import train_sft

    check_verb(command.recipe, load(command.recipe, overrides), "sft")
    if _is_dry(command):
        return _dry_run(command, overrides, streams)
    if schema_of(load(command.recipe, overrides)) is FinetuneConfig:
        return _finetune(command, overrides, streams)
    config = load_config(SftConfig, command.recipe, overrides)
    directory = command.run or RUNS / command.recipe.stem
    out = command.out or directory / "policy"
    with RunDir.open(directory, dump(config), kind="sft") as run:
        reached = train_sft(config, run, out, Silent() if command.quiet else Terminal("sft"))
    return _ended(reached, config.steps, f"policy in {out}", directory, streams)


def _finetune(command: Sft, overrides: list[tuple[str, str]], streams: Streams) -> int:
    """`sft` of an existing model on rows of a data set, by TRL."""
    from sage_rlvr.config import FinetuneConfig, dump, load_config
    from sage_rlvr.progress import Silent, Terminal
    from sage_rlvr.runs import RunDir
    from sage_rlvr.training.trl import require_trl

    config = load_config(FinetuneConfig, command.recipe, overrides)
    try:
        require_trl()
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine.name = 'trl': {error}") from error
    from sage_rlvr.training.trl.sft import finetune, run_facts

    directory = command.run or RUNS / command.recipe.stem
    out = command.out or directory / "policy"
    if not _is_main_rank():
        found = finetune(config, None, directory, out, progress=Silent(), say=lambda line: None)
        return 0 if found.step == found.total else 1
    say = (lambda line: None) if command.quiet else partial(streams.err.print, markup=False, soft_wrap=True)
    progress = Silent() if command.quiet else Terminal("sft")
    with RunDir.open(directory, dump(config), kind="sft", data=run_facts(config)) as run:
        found = finetune(config, run, directory, out, progress=progress, say=say)
    return _ended(found.step, found.total, f"policy in {out}", directory, streams)


def _train(command: Train, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.recipes import check_verb
    from sage_rlvr.config import TrainConfig, dump, load, load_config
    from sage_rlvr.models.policy import run_facts
    from sage_rlvr.progress import Silent, Terminal
    from sage_rlvr.runs import RunDir

    check_verb(command.recipe, load(command.recipe, overrides), "train")
    if _is_dry(command):
        return _dry_run(command, overrides, streams)
    config = load_config(TrainConfig, command.recipe, overrides)
    directory = command.run or RUNS / f"{command.recipe.stem}-s{config.seed}"
    on_trl = config.engine.name == "trl"
    writes = not on_trl or _is_main_rank()
    if writes and not command.quiet:
        streams.err.print(config.method.build().describe(), markup=False, soft_wrap=True)
    progress = Silent() if command.quiet or not writes else Terminal(directory.name)
    if not writes:
        return 0 if _trl_run(config, None, directory, progress, lambda line: None) == config.steps else 1
    say = partial(streams.err.print, markup=False, soft_wrap=True)
    facts = run_facts(config)
    if config.data is not None:
        from sage_rlvr.training.trl.data import facts as facts_of_rows

        facts["data"] = facts_of_rows(config.data)
    with RunDir.open(directory, dump(config), kind="train", fork=command.fork, data=facts) as run:
        if on_trl:
            reached = _trl_run(config, run, directory, progress, (lambda line: None) if command.quiet else say)
        else:
            from sage_rlvr.training.loop import train

            reached = train(config, run, progress)
    return _ended(reached, config.steps, f"policy in {directory / 'policy'}", directory, streams)


def _is_dry(command: Train | Sft) -> bool:
    """Whether to say only what would be done; a setting of the dry run without it is refused."""
    plain = type(command)(recipe=command.recipe)
    names = [n for n in ("devices", "gpu", "mean_tokens") if getattr(command, n, None) != getattr(plain, n, None)]
    if names and not command.dry_run:
        given = ", ".join("--" + name.replace("_", "-") for name in names)
        raise ConfigError(f"{given}: settings of --dry-run; a run takes the devices that its launcher gives it")
    return command.dry_run


def _dry_run(command: Train | Sft, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.recipes import loop_lines, recipe_lines, schema_of
    from sage_rlvr.config import FinetuneConfig, SftConfig, TrainConfig, load, load_config
    from sage_rlvr.training.trl.dry_run import finetune_lines, train_lines

    schema: type = TrainConfig
    if isinstance(command, Sft):  # one of the two; a recipe for RL is refused before
        schema = FinetuneConfig if schema_of(load(command.recipe, overrides)) is FinetuneConfig else SftConfig
    config = load_config(schema, command.recipe, overrides)
    lines = [*recipe_lines(config), ""]
    if isinstance(config, FinetuneConfig):
        lines += finetune_lines(config, command.devices, command.gpu)
    elif isinstance(config, TrainConfig) and config.engine.name == "trl" and isinstance(command, Train):
        lines += train_lines(config, command.devices, command.gpu, command.mean_tokens)
    else:
        lines += loop_lines(config)
    for line in lines:
        streams.out.print(line, markup=False, soft_wrap=True)
    return 0


def _import_config(command: ImportConfig, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.recipes import import_recipes

    texts, findings, missing = import_recipes(command.source, command.out, command.plain)
    if command.out is None:
        for text in texts:
            streams.out.print(text, markup=False, soft_wrap=True)
    for line in (*findings, *missing):
        streams.err.print(line, markup=False, soft_wrap=True)
    return 0


def _is_main_rank() -> bool:
    """True in a plain process and on the first rank of torchrun or accelerate launch, which alone writes."""
    return os.environ.get("RANK", "0") == "0"


def _trl_run(
    config: TrainConfig, run: RunDir | None, directory: Path, progress: Reporter, say: Callable[[str], None]
) -> int:
    from sage_rlvr.training.trl import require_trl

    try:
        require_trl()
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine.name = 'trl': {error}") from error
    from sage_rlvr.training.trl.run import train

    return train(config, run, directory, progress, say)


def _ended(reached: int, wanted: int, result: str, directory: Path, streams: Streams) -> int:
    if reached < wanted:
        streams.err.print(
            f"stopped after step {reached} of {wanted}, saved in {directory}; the same command continues",
            markup=False,
            soft_wrap=True,
        )
        return 1
    streams.err.print(f"done: {wanted} steps, {result}", markup=False, soft_wrap=True)
    return 0


def _show(command: Show, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.recipes import recipe_lines, schema_of, world_line
    from sage_rlvr.config import TrainConfig, load, load_config

    config = load_config(schema_of(load(command.recipe, overrides)), command.recipe, overrides)
    for line in recipe_lines(config):
        streams.out.print(line, markup=False, soft_wrap=True)
    if isinstance(config, TrainConfig) and config.data is None:
        streams.out.print("\n" + world_line(config.world), markup=False, soft_wrap=True)
    return 0


def _eval(command: Eval, overrides: list[tuple[str, str]], streams: Streams) -> int:
    plain, sampled = Eval(what=command.what), bool(command.samples) or command.reverify
    given = [n for n in (EXACT if sampled else SAMPLING) if getattr(command, n) != getattr(plain, n)]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        way = "the exact evaluation; leave out --samples" if sampled else "an evaluation by samples; add --samples N"
        raise ConfigError(f"{names}: settings of {way}")
    return _eval_samples(command, streams) if sampled else _eval_exact(command, streams)


def _eval_samples(command: Eval, streams: Streams) -> int:
    from sage_rlvr.cli.stores import sample_settings
    from sage_rlvr.evaluation.sample_report import report_lines
    from sage_rlvr.evaluation.sampled_run import sample_into_store, verify_again
    from sage_rlvr.experiments.jobs import ended_like_ctrl_c
    from sage_rlvr.progress import counting

    settings = sample_settings(command, RUNS)
    say = partial(streams.out.print, markup=False, soft_wrap=True)
    if command.reverify:
        store, task, judged = verify_again(settings)
        say(f"{judged:,} samples judged again; the older verdicts stay readable in {store.path}/verdicts")
    else:
        quiet = Console(file=io.StringIO()) if command.quiet else streams.err
        with ended_like_ctrl_c():
            store, task = sample_into_store(settings, partial(counting, quiet, settings.policy))
    say("\n".join(report_lines(store, command.samples or None, task.floor)))
    if command.rank:
        from sage_rlvr.evaluation.sampled_run import rank_line

        say(rank_line(settings, store, task))
    say(f"store: {store.path}")
    return 0


def _eval_exact(command: Eval, streams: Streams) -> int:
    from sage_rlvr.cli.records import eval_lines, power_lines, print_cross_check, target_of
    from sage_rlvr.evaluation.evaluate import FRONTIER, cross_check, evaluate
    from sage_rlvr.evaluation.record import save_record
    from sage_rlvr.runs import writing
    from sage_rlvr.stats.tempered import POWERS

    temperatures = sorted({*command.temperatures, *(FRONTIER if command.frontier else ())})
    if command.sample < 0 or (command.sample and 1.0 not in temperatures):
        raise ConfigError(
            f"--sample {command.sample}: draws that many completions at temperature 1, so it needs a number from 0 and 1.0 "
            f"among --temperatures (here {', '.join(map(str, temperatures))})"
        )
    if command.power_frontier and 1.0 not in temperatures:
        raise ConfigError(
            "--power-frontier: tempers the policy as it is at temperature 1; put 1.0 among --temperatures (here "
            f"{', '.join(map(str, temperatures))})"
        )
    target = target_of(command.what, command.world)
    stem = "evaluation" if target.run else target.name
    path = command.out or (target.run or RUNS / "evaluations") / f"{stem}-{command.split}.npz"
    with writing("record of an evaluation", path, 4 << 20):
        path.parent.mkdir(parents=True, exist_ok=True)
    record = evaluate(
        target,
        split=command.split,
        problems=300 if command.problems is None else command.problems,
        seed=command.seed,
        draw=command.draw,
        temperatures=temperatures,
        powers=POWERS if command.power_frontier else (),
    )
    for line in (*eval_lines(record, command.ks), *power_lines(record, command.ks)):
        streams.out.print(line, markup=False, soft_wrap=True)
    with writing("record of an evaluation", path, 4 << 20):
        save_record(record, path)
    streams.out.print(f"record: {path}", markup=False, soft_wrap=True)
    if not command.sample:
        return 0
    found = cross_check(target, record, n=command.sample, problems=40, max_new_tokens=32, seed=command.seed)
    print_cross_check(streams.out, found)
    return 0 if found["agree"] else 2


def _compare(command: Compare, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.records import TOP_K, compare_records, load_arms, more_lines, support_lines
    from sage_rlvr.cli.stores import compare_store_frontiers, compare_stores, is_store
    from sage_rlvr.cli.tables import PAPER, paper_lines, print_summary
    from sage_rlvr.report import summarise

    say = partial(streams.out.print, markup=False, soft_wrap=True)
    plain: Callable[[], list[str]] | None = None
    if any(arm.startswith(PAPER) for arm in command.arms):
        plain = partial(paper_lines, command.arms)
    elif any(map(is_store, command.arms)):
        plain = partial(compare_stores, command.arms, command.k, command.samples, command.patterns)
        if command.frontier:
            if command.patterns:
                raise ConfigError("--frontier, --patterns: give one of them; patterns are compared at one temperature")
            plain = partial(compare_store_frontiers, command.arms, command.k, command.samples)
    elif command.samples is not None or command.patterns or command.frontier:
        raise ConfigError(
            "--samples, --patterns, --frontier: settings of sample stores; these arms are none, so leave them out (records "
            "evaluated with eval --frontier have their frontiers compared anyway)"
        )
    if plain is not None:
        if command.out is not None:
            raise ConfigError(f"--out {command.out}: only exact records have a page; leave it out")
        say("\n".join(plain()))
        return 0
    loaded = load_arms(command.arms, command.split)
    k = TOP_K if command.k is None else command.k
    result, over_seeds = compare_records(loaded, k)
    shown = summarise(result) if over_seeds is None else over_seeds
    print_summary(streams.out, shown)
    for line in (*more_lines(result, over_seeds, k), *support_lines(loaded, k)):
        say(line)
    if command.out is not None:
        _write_pages(shown, command.out, streams)
    return 0


def _samples(command: Samples, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.stores import store_lines

    for line in store_lines(command):
        streams.out.print(line, markup=False, soft_wrap=True)
    return 0


def _plan(command: Plan, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.plans import pilot_of
    from sage_rlvr.cli.records import TOP_K
    from sage_rlvr.stats.plan import Design, assume, make_plan, plan_lines

    design = Design(problems=command.problems, samples=command.samples, seeds=command.seeds)
    k = min(TOP_K, command.samples) if command.k is None else command.k
    if not 1 <= k <= command.samples:
        raise ConfigError(f"--k {k}: pass@k needs at least k samples, the design has --samples {command.samples}")
    if not command.run_cost > 0:
        raise ConfigError(f"--run-cost {command.run_cost:g}: what a training run costs, in completions, is above 0")
    if command.from_:
        pilot = pilot_of(command.from_, command.split, k, command.run_sd, fewer=command.k is None)
    else:
        pilot = assume(
            k=k,
            samples=command.samples,
            discordant=command.discordant,
            run_sd=command.run_sd,
            noise_share=command.noise_share,
        )
    for line in plan_lines(make_plan(design, pilot, run_cost=command.run_cost), run_cost=command.run_cost):
        streams.out.print(line, markup=False, soft_wrap=True)
    return 0


def _report(command: Report, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.report import study_of, write
    from sage_rlvr.experiments.sweep import LABELS
    from sage_rlvr.runs import writing

    if not command.runs or command.show < 0 or command.k < 2:
        raise ConfigError(
            f"RUNS {list(command.runs)}, --show {command.show}, --k {command.k}: name one folder, run, record or store at least; "
            "show 0 or more samples; k is 2 or more"
        )
    say = partial(streams.err.print, markup=False, soft_wrap=True)
    options = {"split": command.split, "k": command.k, "shown": command.show, "title": command.title}
    study = study_of(command.runs, LABELS, say=say, **options)
    out = command.out or Path(f"report.{command.format}")
    with writing("report", out.parent, 8 << 20):
        written = write(study, out, command.format, command.png)
    for path in written:
        streams.out.print(f"{path}  {path.stat().st_size / 1e3:,.0f} kB", markup=False, soft_wrap=True)
    return 0


def _write_pages(shown: Summary | SeedSummary, folder: Path, streams: Streams) -> None:
    from sage_rlvr.report import Summary, write_report, write_seed_report
    from sage_rlvr.runs import writing

    with writing("report", folder, 8 << 20):
        paths = write_report(shown, folder) if isinstance(shown, Summary) else write_seed_report(shown, folder)
    streams.out.print(f"\npage     {paths.html}\npictures {folder}/*.png", markup=False, soft_wrap=True)


def _theory(command: Theory, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.studies.anchor.command import find, print_findings, write, write_docs

    if command.docs is not None and not (command.docs / "anchor.md").is_file():
        raise ConfigError(f"--docs {command.docs}: there is no anchor.md; name the repository's docs/")
    _check_lab(command)
    options = {"policy": command.policy, "problems": command.problems, "draws": command.draws}
    say = partial(streams.err.print, markup=False, soft_wrap=True)
    found = find(lab=command.lab, say=say, **(options if command.lab else {}))
    print_findings(found, streams.out)
    paths = write(found, command.out)
    if command.docs is not None:
        paths += write_docs(found, command.docs)
    streams.out.print("\nwritten: " + "  ".join(map(str, paths)), markup=False, soft_wrap=True)
    return 0 if found.as_expected else 2


def _check_lab(command: Theory) -> None:
    """What would otherwise be refused after the claims were computed."""
    changed = [
        f"--{name}"
        for name, default in (("policy", None), ("problems", 5), ("draws", 256))
        if getattr(command, name) != default
    ]
    if changed and not command.lab:
        raise ConfigError(
            f"{', '.join(changed)}: settings of the lab, and --no-lab leaves the lab out; drop one or the other"
        )
    if command.problems < 1 or command.draws < 0:
        raise ConfigError(
            f"--problems {command.problems} --draws {command.draws}: give at least 1 problem, and 0 draws or more"
        )
    if command.docs is not None and changed:
        raise ConfigError(
            f"--docs {command.docs} with {', '.join(changed)}: the pages show the lab as it is by default; leave one out"
        )
    if command.policy == "embedded":
        raise ConfigError(
            "--policy embedded: it is the lab's reference, from which every KL is 0; name a trained run, or leave it out"
        )
    if command.policy is not None:
        from sage_rlvr.cli.records import target_of
        from sage_rlvr.models.policy import load_policy

        load_policy(target_of(command.policy, None).model)


def _guides(command: Guides, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.records import target_of
    from sage_rlvr.studies.guides import command as guides
    from sage_rlvr.studies.guides.measure import one_thread, run_guide_lab

    if command.docs is not None and not (command.docs / "guides.md").is_file():
        raise ConfigError(f"--docs {command.docs}: there is no guides.md; name the repository's docs/")
    one_thread()
    say = partial(streams.err.print, markup=False, soft_wrap=True)
    options = {name: getattr(command, name) for name in ("problems", "samples", "draw", "doses", "seed")}
    results = [run_guide_lab(target_of(name, None), progress=say, **options) for name in command.policy]
    for result in results:
        for name, table in guides.tables(result).items():
            streams.out.print(f"\n{result.policy}: {name}\n", style="bold")
            streams.out.print(table, markup=False, soft_wrap=True)
        streams.out.print("")
        for line in guides.sentences(result):
            streams.out.print(line, markup=False, soft_wrap=True)
    paths = guides.write(results, command.out)
    if command.docs is not None:
        paths += guides.write_docs(results, command.docs)
    streams.out.print("\nwritten: " + "  ".join(map(str, paths)), markup=False, soft_wrap=True)
    return 0


def _audit(command: Audit, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.audit import audit, lines_of, write_page

    if not command.tasks:
        from sage_rlvr.audit import NAMES

        raise ConfigError(f"audit: name at least one task: {', '.join(NAMES)}, or a .jsonl file")
    found = []
    for name in command.tasks:
        found.append(audit(name, command.template, command.k, command.answer_in))
        for line in lines_of(found[-1], command.rows):
            streams.out.print(line, markup=False, soft_wrap=True)
    if command.out is not None:
        options = [f"--template {command.template}"] if command.template else []
        options += [f"--answer-in {command.answer_in}"] if command.answer_in else []
        options += [f"--k {command.k}"] if command.k != 256 else []
        write_page(found, command.out, " ".join(["sage-rlvr audit", *command.tasks, *options]))
        streams.out.print(f"page: {command.out}", markup=False, soft_wrap=True)
    return 0 if all(one.passed for one in found) else 2


def _verify(command: Verify, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.audit import verify_lines
    from sage_rlvr.verifiers.pool import shared

    pair = (command.gold, command.answer)
    if (None in pair) if command.file is None else pair != (None, None):
        raise ConfigError("verify: give GOLD and ANSWER, or --file rows.jsonl, and not both")
    if command.file is not None:
        for line in verify_lines(command.file, command.answer_in or "boxed", command.tag):
            streams.out.print(line, markup=False, soft_wrap=True)
        return 0
    options = {"answer_in": command.answer_in or "whole", "tag": command.tag}
    verdict = shared().verify([(command.answer, command.gold)], **options)[0]
    streams.out.print(f"{verdict.label}: {verdict.reason}", markup=False, soft_wrap=True)
    return 0


def _doctor(command: Doctor, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.doctor import doctor

    return doctor(streams.out)


def _sweep(command: Sweep, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.experiments import sweep

    planned = sweep.plan(command.matrix, command.out or RUNS / command.matrix.stem)
    say = partial(streams.out.print, markup=False, soft_wrap=True)
    for text in sweep.dry_lines(planned):
        say(text)
    if command.dry_run:
        streams.out.print(sweep.table(planned))
        return 0
    try:
        whole = sweep.run(planned, _workers(command.workers), streams.out)
    finally:
        found = sweep.write_summary(planned.out)
    for part in (sweep.table(planned), *sweep.closing_lines(found), f"summary: {planned.out / 'summary.md'}"):
        streams.out.print(part, markup=False, soft_wrap=True)
    return 0 if whole else 2


def _workers(given: int | None) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if given is None else given


def _demo(command: Demo, overrides: list[tuple[str, str]], streams: Streams) -> int:
    from sage_rlvr.cli.records import print_cross_check
    from sage_rlvr.cli.tables import print_summary
    from sage_rlvr.experiments.demo import check_by_sampling, choose_arms, evaluate_all, plan, results, train_all
    from sage_rlvr.report import summarise, summarise_seeds

    edits = [word for name, value in overrides for word in (f"--{name}", value)]
    workers = _workers(command.workers)
    arms = choose_arms(command.arms)
    jobs = plan(command.out, command.seeds, arms, edits, problems=command.problems, workers=workers)
    streams.out.print(
        f"training {len(jobs)} runs of {jobs[0].config.steps} steps, {workers} at a time, in {command.out / 'runs'}"
    )
    clock = [time.monotonic()]
    train_all(jobs, workers, streams.out)
    clock.append(time.monotonic())
    base, trained = evaluate_all(command.out, jobs, command.problems, streams.out)
    checked = check_by_sampling(jobs, base)
    clock.append(time.monotonic())
    found = results(base, trained, command.seeds)
    shown = summarise(found[0]) if len(found) == 1 else summarise_seeds(found)
    print_summary(streams.out, shown)
    _write_pages(shown, command.out, streams)
    print_cross_check(streams.out, checked)
    parts = zip(
        ("training", "evaluation", "report"), (b - a for a, b in pairwise([*clock, time.monotonic()])), strict=True
    )
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts)
    streams.out.print(f"took: {took}, together {time.monotonic() - clock[0]:.0f} s", highlight=False)
    return 0
