"""Training steps and samplers on a real model's shape (SmolLM2-135M), in one run and in turns, against the arithmetic they need.

    python benchmarks/real.py                                                       everything, about 45 minutes on two cores
    python benchmarks/real.py --workloads w1 --arms ours textbook --repeats 3
    python benchmarks/real.py --minutes 12                                          W1 to W4 against the textbook

Step arms, all in bfloat16, with one reward, loss (GRPO, clipped, k3) and optimizer: "ours", `train_step` of this package's
loop as recipes/real/base sets it, where the update reads the sampler's activations (`engine.reuse_sampling`); "forward", the same
with a forward pass of the policy; "textbook", Hugging Face with padded rows and full logits; "trl", GRPOTrainer without vLLM.
Of SFT: "sft", `sft_step` of this package, and "sft-trl", SFTTrainer. Sampler arms: "generate" of transformers, "sampler" of this
package, "vllm", and "llama", the batched bench of llama.cpp. Each arm runs in a process of its own (real_arms.py), and they take
turns, A A B B C C A A ..., the first of each two uncounted. Weights are random (or those of --model FOLDER), prompts begin alike
as those of a task do, and no completion ends before its length; the tokens of each turn must be those of the workload. The
textbook and TRL train bfloat16 weights with moments of the same precision and no float32 copies, which costs them less than ours.

The floor is what no arrangement can avoid: the products of prompts once each, completions packed, logits where a token is
drawn, for sampling, reference and backward (counted as two), at the best rate of a bfloat16 product of those measured before each
turn of the workload. Attention's own products and everything else are left out. Beside it: the same products at the rates of their
own shapes, and the bytes that sampling reads, weights, keys and values (real_floors.py). Memory is the peak of the arm's process.

With `--minutes` each workload has a share of the time and at least one round of turns; one whose time is over before it begins is
left out. The last line is JSON: ratios of seconds, above 1 where ours is faster; "floor_w1" to "floor_w4" are ours over the floor
at the best rate, "own_w1" to "own_w4" over that at own rates, and "bytes_w3" is ours's sampling over the time of its bytes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select
from typing import Any

import real_floors
import real_work as work
from real_work import (
    SAMPLING,
    SAMPLING_PASS,
    SFT,
    SFT_STEP,
    SMOLLM2,
    STEP,
    STEP_WITH_FORWARD,
    TINY,
    WORKLOADS,
    Passes,
    Shape,
    Workload,
)

HERE = Path(__file__).parent
ROOT = HERE.parent
GIB = 1 << 30
LLAMA = ROOT / ".llama-cpp"
STEP_ARMS, SAMPLER_ARMS = ("ours", "forward", "textbook", "trl", "sage"), ("sampler", "generate", "vllm", "llama")
SFT_ARMS = ("sft", "sft-trl")
MADE_BY = {
    "trl": "make .venv-trl/.installed-dev",
    "vllm": "make .venv-vllm/.installed",
    "llama": "make .llama-cpp/llama-batched-bench",
}
PART_PASSES = {"sample": 1, "reference": 1, "policy forward": 1, "backward": 2, "optimizer": 0, "rest": 0}


class Absent(Exception):
    """An arm whose program is not installed, or whose process ended."""


@dataclass(frozen=True)
class Options:
    """What to run."""

    workloads: tuple[str, ...] = (*WORKLOADS, *SFT, *SAMPLING)
    """w1: 8 prompts x 8 completions x 48 tokens; w2: 32 x 8 x 8; w3: 4 x 8, up to 512 tokens; w4: 16 x 8 x 9, a study's step;
    sft: 8 x 4 given completions of 12 tokens; b64, b256: sampling alone."""
    arms: tuple[str, ...] = (*STEP_ARMS[:-1], *SFT_ARMS, *SAMPLER_ARMS)
    """"sage" is SageTrainer with the branch guide, on TRL."""
    repeats: int | None = None
    """Counted turns of each arm; default: two for w1, one else."""
    warm: int | None = None
    """Uncounted turns right before each counted one; default: one, but for w3. A process that waited while the others had
    their turns is slow at first: a virtual machine's host takes idle memory away."""
    minutes: float | None = None
    """About so many, for W1 to W4 against the textbook, unless other workloads or arms are named: each workload has its share, and
    rounds of turns while another one fits. Its first round counts only if there is no second."""
    threads: int = os.cpu_count() or 1
    model: Path | None = None
    """A folder whose weights to take, such as SmolLM2's; default: random weights of its shape."""
    trl_python: Path | None = None
    """Interpreter with TRL; default: this one if it has TRL, else that of .venv-trl."""
    vllm_python: Path | None = None
    tiny: bool = False
    """A model and batches that take seconds: to see whether it runs."""
    device: str = "cpu"
    """cpu, or cuda and paper, which benchmarks/gpu.py sets."""
    patience: float | None = None
    """Seconds in which an arm must load, and make a turn; it is ended and left out after them. Default: no limit."""


@dataclass
class Turn:
    """What one turn took. rate: operations a second of a product right before it."""

    seconds: float
    cpu: float
    tokens: int
    rate: float
    parts: dict[str, float] = field(default_factory=dict)
    device_bytes: int = 0
    """Peak on a GPU."""


@dataclass
class Found:
    """The counted turns of an arm, or why there are none."""

    name: str
    turns: list[Turn] = field(default_factory=list)
    peak: int = 0
    absent: str = ""
    rate: float = 0.0
    """The best of the workload's turns, operations a second: right after some arms a product is slow."""
    own: dict[str, float] = field(default_factory=dict)
    """Seconds of the products of each part at the rates of their shapes."""
    read: float = 0.0
    """Seconds of the bytes of sampling."""

    @property
    def seconds(self) -> float:
        return statistics.median(turn.seconds for turn in self.turns)

    @property
    def cpu(self) -> float:
        return statistics.median(turn.cpu for turn in self.turns)

    def parts(self) -> dict[str, float]:
        """Median seconds of each part, and of what is under no label."""
        names = list(dict.fromkeys(name for turn in self.turns for name in turn.parts))
        found = {name: statistics.median(turn.parts.get(name, 0.0) for turn in self.turns) for name in names}
        return found | ({"rest": max(0.0, self.seconds - sum(found.values()))} if found else {})


# --- processes ----------------------------------------------------------------------------------------------------------


class Worker:
    """The process of an arm: a turn for each line."""

    def __init__(self, name: str, python: Path | str, spec: Path, log: Path, patience: float | None = None) -> None:
        self.name, self.log, self.patience = name, log, patience
        command = [str(python), str(HERE / "real_arms.py"), name, str(spec)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True, env=environment()
        )

    def ready(self) -> dict[str, str]:
        """Versions of its libraries, once its model is loaded."""
        return self._line()["ready"]  # type: ignore[no-any-return]

    def _line(self) -> dict[str, Any]:
        if not select([self.process.stdout], [], [], self.patience)[0]:  # it writes a line only when it is asked
            self.process.kill()
            raise Absent(f"no answer within {self.patience:.0f} s")
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            code = self.process.wait()
            killed = " (killed: out of memory?)" if code == -9 else ""
            last = (self.log.read_text().strip().splitlines() or ["no output"])[-1]
            raise Absent(f"its process ended with {code}{killed}: {last[:200]}")
        return json.loads(line)

    def turn(self) -> dict[str, Any]:
        """One turn, with the CPU seconds of the process and of all that it started."""
        before = cpu_seconds(self.process.pid)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `_line` reports how the process ended
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        found = self._line()
        return found | {"cpu": cpu_seconds(self.process.pid) - before}

    def peak(self) -> int:
        """Bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """This process's; nothing is looked up on a network."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def cpu_seconds(pid: int) -> float:
    """Of a process and its descendants."""
    ticks, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))  # its own and those of children that ended
    family, found = {pid}, True
    while found:
        found = {child for child, parent in parents.items() if parent in family} - family
        family |= found
    return sum(ticks.get(one, 0) for one in family) / os.sysconf("SC_CLK_TCK")


class Llama:
    """llama.cpp's batched bench: one start of its program a turn. It feeds random tokens in place of drawn ones, so its time has
    no draw, and its one shared prompt is charged once for each prompt of the workload."""

    name = "llama"

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.program, self.spec, self.gguf, self.most = LLAMA / "llama-batched-bench", spec, folder / "model.gguf", 0
        if not self.program.exists():
            raise Absent("not installed: " + MADE_BY["llama"])
        if not self.gguf.exists():
            helper = [sys.executable, str(HERE / "real_gguf.py"), str(folder), str(self.gguf)]
            done = subprocess.run(
                helper, env=environment() | {"PYTHONPATH": str(LLAMA / "gguf-py")}, capture_output=True, text=True
            )
            if done.returncode:
                raise Absent(f"its model file could not be written: {done.stderr.strip().splitlines()[-1]}")

    def ready(self) -> dict[str, str]:
        """The package whose source it was built from."""
        return {"source": (LLAMA / "version").read_text().strip()}

    def turn(self) -> dict[str, Any]:
        """One run of the program."""
        spec, rows = self.spec, len(self.spec["lengths"])
        prompt = round(statistics.mean(map(len, spec["prompts"])))
        room = prompt + rows * (spec["new"] + 8)
        words = [
            "-m",
            self.gguf,
            "-c",
            room,
            "-b",
            2048,
            "-ub",
            512,
            "-npp",
            prompt,
            "-ntg",
            spec["new"],
            "-npl",
            rows,
            "-pps",
        ]
        words += ["-t", spec["threads"], "--output-format", "jsonl"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([str(self.program), *map(str, words)], capture_output=True, text=True, env=environment())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise Absent(
                f"its program ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"
            )
        found = json.loads(lines[-1])
        seconds = found["t_pp"] * len(spec["prompts"]) + found["t_tg"]
        # of the whole program, its loading of the model too
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cpu += spec["threads"] * found["t_pp"] * (len(spec["prompts"]) - 1)
        self.most = max(self.most, after.ru_maxrss * 1024)
        return {"seconds": seconds, "cpu": cpu, "tokens": rows * found["tg"], "parts": {}}

    def peak(self) -> int:
        """Bytes, of any child that this process waited for."""
        return self.most

    def close(self) -> None:
        """Nothing runs between the turns."""


def python_of(name: str, options: Options) -> Path | str:
    """The interpreter of an arm. Absent where its environment does not exist."""
    library = {"trl": "trl", "sage": "trl", "sft-trl": "trl", "vllm": "vllm"}.get(name)
    if library is None or importlib.util.find_spec(library):
        return sys.executable
    given = options.trl_python if library == "trl" else options.vllm_python
    chosen = given or ROOT / f".venv-{library}" / "bin" / "python"
    if not chosen.exists():
        raise Absent(f"not installed: {MADE_BY[library]}")
    return chosen


# --- turns --------------------------------------------------------------------------------------------------------------


def run(
    workload: Workload,
    arms: Sequence[str],
    folder: Path,
    shape: Shape,
    options: Options,
    after: Callable[[dict[str, Found]], Any] = lambda found: None,
    minutes: float | None = None,
) -> dict[str, Found]:
    """All turns of a workload. after: called with what was found, after each round of turns. minutes: its share."""
    began = time.perf_counter()
    prompts, lengths = workload.ids(shape.words), workload.lengths()
    spec = {"folder": str(folder), "prompts": prompts, "group": workload.group, "new": workload.new, "lengths": lengths}
    spec |= {"micro": workload.micro, "threads": options.threads, "device": options.device}
    file = folder / f"{workload.name}.json"
    file.write_text(json.dumps(spec))
    found = {name: Found(name) for name in arms}
    with ExitStack() as stack:
        workers: dict[str, Any] = {}
        for name in arms:  # they load at the same time
            with absence(found[name]):
                log = folder / f"{workload.name}-{name}.log"
                workers[name] = (
                    Llama(spec, folder)
                    if name == "llama"
                    else Worker(name, python_of(name, options), file, log, options.patience)
                )
                stack.callback(workers[name].close)
        for name in list(workers):
            with absence(found[name]):
                print(f"  {name}: " + ", ".join(f"{k} {v}" for k, v in workers[name].ready().items()), flush=True)
        own, read = own_floors(workload, shape, options) if options.device == "cpu" and workload.name not in SFT else ({}, 0.0)
        warm = workload.warm if options.warm is None else options.warm
        warm, rounds = (warm, options.repeats or workload.repeats) if minutes is None else (0, 1000)
        for number in range(rounds):
            started = time.perf_counter()
            for name in [name for name in workers if not found[name].absent]:
                with absence(found[name]):
                    for place in range(warm + 1):
                        turn = taken_turn(workers[name], sum(lengths), options)
                        label = "uncounted" if place < warm else f"turn {number + 1}"
                        print(f"  {label} {line_of(name, turn)}", flush=True)
                    found[name].turns.append(turn)
                    found[name].peak = turn.device_bytes or workers[name].peak()
            after(found)
            if minutes is not None and 2 * time.perf_counter() - started > began + 60 * minutes:  # another such round would be late
                break
    best = max((turn.rate for arm in found.values() for turn in arm.turns), default=0.0)
    for arm in found.values():
        arm.rate, arm.own, arm.read = best, own, read
        arm.turns = arm.turns[1:] if minutes is not None and len(arm.turns) > 1 else arm.turns
    return found


def own_floors(workload: Workload, shape: Shape, options: Options) -> tuple[dict[str, float], float]:
    """Seconds of the products of each part at the rates of their shapes; of the bytes of sampling."""
    prompts, lengths, rates = workload.ids(shape.words), workload.lengths(), real_floors.Rates(shape, options.threads)
    parts = real_floors.parts(prompts, lengths, step=workload.name in WORKLOADS)
    size = real_floors.bytes_read(prompts, lengths, workload.group, shape)
    return {part: rates.seconds(products) for part, products in parts.items()}, size / real_floors.read_rate(options.threads)


def taken_turn(worker: Any, tokens: int, options: Options) -> Turn:
    """A turn, and the rate of a product right before it. AssertionError for another number of tokens than the workload's."""
    rate = work.product_rate(options.threads, options.device)
    taken = worker.turn()
    assert taken["tokens"] == tokens, f"{worker.name} counted {taken['tokens']} tokens, not {tokens}"
    return Turn(taken["seconds"], taken["cpu"], tokens, rate, taken["parts"], taken.get("device_bytes") or 0)


@contextmanager
def absence(arm: Found) -> Iterator[None]:
    """An arm that is not there, or ends, is left out with the reason; the others go on."""
    try:
        yield
    except Absent as reason:
        arm.absent, arm.turns = str(reason), []
        print(f"  {arm.name}: {reason}", flush=True)


def line_of(name: str, turn: Turn) -> str:
    parts = "  ".join(f"{label} {seconds:.2f}" for label, seconds in turn.parts.items())
    return f"{name:<9}{turn.seconds:8.2f} s, CPU {turn.cpu:7.2f} s, products {turn.rate / 1e9:.0f} GFLOP/s   {parts}"


def floor(found: Found, passes: Passes, shape: Shape, forwards: int) -> float:
    """Seconds of so many forward passes at the best rate of the workload's turns."""
    return passes.operations(shape, forwards) / found.rate


# --- tables -------------------------------------------------------------------------------------------------------------


def machine(threads: int) -> str:
    """CPU, what it has for bfloat16, threads, and the rate of products."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = re.search(r"model name\s*:\s*(.+)", text)
    units = [unit for unit in ("amx_bf16", "avx512_bf16") if unit in text]
    rate = work.product_rate(threads) / 1e9
    return (
        f"{named[1] if named else platform.processor()}, {', '.join(units) or 'no bfloat16 unit'}, {threads} threads, products "
        f"{rate:.0f} GFLOP/s, load {os.getloadavg()[0]:.1f}"
    )


def has_amx() -> bool:
    file = Path("/proc/cpuinfo")
    return file.exists() and "amx_bf16" in file.read_text()


def table(workload: Workload, found: dict[str, Found], shape: Shape) -> None:
    """The workload's arms, its floors, and each arm's parts."""
    prompts, lengths = workload.ids(shape.words), workload.lengths()
    passes, steps = Passes.of(prompts, lengths), workload.name in WORKLOADS
    forwards = STEP if steps else SFT_STEP if workload.name in SFT else SAMPLING_PASS
    size = (
        f"{workload.prompts} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens x {workload.group}"
    )
    each = (
        f"{min(lengths)} to {max(lengths)} (mean {statistics.mean(lengths):.0f})"
        if workload.uneven
        else str(workload.new)
    )
    print(f"\n{workload.name}: {size} x {each} tokens; {passes.rows} rows, {passes.logits} with logits")
    print(f"  {'':<10}{'seconds':>9}{'CPU s':>9}{'tokens/s':>10}{'tokens/CPU s':>14}{'x floor':>9}{'peak GiB':>10}")
    for name, arm in found.items():
        if not arm.turns:
            print(f"  {name:<10} {arm.absent}")
            continue
        tokens = arm.turns[0].tokens
        above = arm.seconds / floor(arm, passes, shape, forwards)
        rates = f"{tokens / arm.seconds:>10.0f}{tokens / arm.cpu:>14.0f}"
        print(f"  {name:<10}{arm.seconds:>9.2f}{arm.cpu:>9.2f}{rates}{above:>9.2f}{arm.peak / GIB:>10.2f}")
    done = [arm for arm in found.values() if arm.turns]
    if not done:
        return
    tree = Passes.of(prompts, lengths, tree=True)
    counted = [f"{floor(done[0], passes, shape, forwards):.2f} s"]
    counted += [f"{floor(done[0], passes, shape, STEP_WITH_FORWARD):.2f} s with a policy forward"] if steps else []
    counted += [f"{floor(done[0], tree, shape, forwards):.2f} s with common beginnings once"]
    rates = [turn.rate / 1e9 for arm in done for turn in arm.turns]
    print(f"  floor at {done[0].rate / 1e9:.0f} GFLOP/s: {', '.join(counted)}")
    print(f"  products before the turns: {min(rates):.0f} to {max(rates):.0f} GFLOP/s")
    if own := done[0].own:
        each = ", ".join(f"{part} {seconds:.2f}" for part, seconds in own.items())
        print(f"  floor at the rates of its shapes: {sum(own.values()):.2f} s ({each}); bytes of sampling: {done[0].read:.2f} s")
    for arm in done:
        if parts := arm.parts():
            print(f"  {arm.name:<10}" + "  ".join(f"{label} {seconds:.2f}" for label, seconds in parts.items()))
    if workload.uneven:
        print("  lengths are the same for all arms; generate, in textbook and TRL, runs every row to the longest")


def excess(found: Found, passes: Passes, shape: Shape) -> str:
    """Which parts are how far above their own floor, the farthest first."""
    parts = found.parts()
    if not parts:
        own = floor(found, passes, shape, SAMPLING_PASS)
        return f"{found.name} {found.seconds:.2f} s, {found.seconds - own:.2f} s above its floor of {own:.2f}"
    own = {label: floor(found, passes, shape, PART_PASSES.get(label, 0)) for label in parts}
    order = sorted(parts, key=lambda label: own[label] - parts[label])
    told = [
        f"{label} {parts[label]:.2f} s (floor {own[label]:.2f}, {parts[label] - own[label]:+.2f})" for label in order
    ]
    return ", ".join(told)


def ratio(found: dict[str, dict[str, Found]], place: str, theirs: str, ours: str) -> float | None:
    """Their seconds over ours; None where one has no turns."""
    arms = found.get(place, {})
    if not all(name in arms and arms[name].turns for name in (theirs, ours)):
        return None
    return arms[theirs].seconds / arms[ours].seconds


def results(found: dict[str, dict[str, Found]], shape: Shape, chosen: dict[str, Workload]) -> dict[str, float | None]:
    """The ratios of the last line."""
    ratios = {f"textbook_{name}": ratio(found, name, "textbook", "ours") for name in WORKLOADS}
    ratios |= {"trl_w1": ratio(found, "w1", "trl", "ours"), "generate_b256": ratio(found, "b256", "generate", "sampler")}
    for name in WORKLOADS:
        ours = found.get(name, {}).get("ours", Found(""))
        done = bool(ours.turns)
        if done:
            passes = Passes.of(chosen[name].ids(shape.words), chosen[name].lengths())
        ratios[f"floor_{name}"] = ours.seconds / floor(ours, passes, shape, STEP) if done else None
        ratios[f"own_{name}"] = ours.seconds / sum(ours.own.values()) if done and ours.own else None
        ratios[f"bytes_{name}"] = ours.parts()["sample"] / ours.read if done and ours.read else None
    return {name: None if value is None else round(value, 3) for name, value in ratios.items()}


def goals(
    found: dict[str, dict[str, Found]], ratios: dict[str, float | None], shape: Shape, chosen: dict[str, Workload]
) -> None:
    """Each goal (a negative one is an upper limit), and for a missed one which parts are above their floor."""
    amx = has_amx()
    wanted = {"textbook_w1": 4.5, "textbook_w2": 11.0, "textbook_w3": 4.5, "floor_w1": -1.9, "floor_w4": -1.9, "bytes_w3": -1.6}
    wanted |= {"trl_w1": 5.0 if amx else 3.0, "generate_b256": 5.0 if amx else 3.0}
    measured = [(name, ratios[name], goal) for name, goal in wanted.items()]
    w1 = found.get("w1", {})
    if all(name in w1 and w1[name].turns for name in ("ours", "textbook")):
        measured.append(("memory_w1", w1["ours"].peak / w1["textbook"].peak, -0.5))
    print("\ngoals on AMX" if amx else "\ngoals on a CPU without AMX")
    for name, value, goal in measured:
        sign, limit = ("at least", goal) if goal > 0 else ("at most", -goal)
        if value is None:
            print(f"  {name:<14} not measured")
            continue
        reached = value >= limit if goal > 0 else value <= limit
        print(f"  {name:<14}{value:6.2f}, {sign} {limit:g}: {'reached' if reached else 'MISSED'}")
        place = name.rsplit("_", 1)[1]
        arm = found[place]["sampler" if place == "b256" else "ours"]
        if not reached and name != "memory_w1":
            passes = Passes.of(chosen[place].ids(shape.words), chosen[place].lengths())
            print(f"    because: {excess(arm, passes, shape)}")
        elif not reached:
            print(
                f"    because: ours peaks at {arm.peak / GIB:.2f} GiB, the textbook at {w1['textbook'].peak / GIB:.2f}"
            )


def main() -> None:
    import tyro  # here: gpu.py reads this module where it may not be installed

    options = tyro.cli(Options, description=__doc__)
    if options.minutes is not None:
        plain = Options()
        workloads = tuple(WORKLOADS) if options.workloads == plain.workloads else options.workloads
        arms = ("ours", "textbook") if options.arms == plain.arms else options.arms
        options = replace(options, workloads=workloads, arms=arms)
    began = time.perf_counter()
    known = WORKLOADS | SFT | SAMPLING
    chosen = {name: work.small(known[name]) if options.tiny else known[name] for name in options.workloads}
    found: dict[str, dict[str, Found]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        work.write_model(folder, TINY if options.tiny else SMOLLM2, options.model)
        shape = work.shape_of(folder)
        of = "random weights of SmolLM2-135M's shape" if options.model is None else str(options.model)
        print(
            f"{'random weights, tiny' if options.tiny else of}; {machine(options.threads)}; {time.strftime('%Y-%m-%d')}"
        )
        for number, (name, workload) in enumerate(chosen.items()):
            left = None if options.minutes is None else options.minutes - (time.perf_counter() - began) / 60
            share = None if left is None else left / (len(chosen) - number)
            kinds = STEP_ARMS if name in WORKLOADS else SFT_ARMS if name in SFT else SAMPLER_ARMS
            arms = [arm for arm in kinds if arm in options.arms]
            if arms and left is not None and left <= 0:  # a slow machine: the first ones had one round each
                print(f"\n{name}: left out, since {options.minutes:g} minutes have passed", flush=True)
            elif arms:
                print(f"\n{name}", flush=True)
                found[name] = run(workload, arms, folder, shape, options, minutes=share)
        for name, arms_of in found.items():
            table(chosen[name], arms_of, shape)
    ratios = results(found, shape, chosen)
    goals(found, ratios, shape, chosen)
    if (sft := ratio(found, "sft", "sft-trl", "sft")) is not None:
        print(f"\nSFT: a step of TRL's SFTTrainer takes {sft:.2f} times ours")
    print(f"\n{machine(options.threads)}; {(time.perf_counter() - began) / 60:.1f} minutes")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
