"""`widen`: sample a base and a trained policy on the same problems, then compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import fspath
from pathlib import Path
from typing import Any

from sage_rlvr.api.compare import Comparison, compare
from sage_rlvr.api.evaluate import Say, evaluation_of
from sage_rlvr.api.report import write_page
from sage_rlvr.api.train import RUNS, Run, to_stderr
from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.settings import SERVERS, DrawSettings, EvalSettings, slug
from sage_rlvr.extras import explained
from sage_rlvr.verdicts.of_temperatures import BASE_TEMPERATURES

TAKEN = tuple(field.name for field in fields(DrawSettings) if field.name != "task")
"""The settings of an evaluation that both policies share."""


@dataclass(frozen=True)
class SampledPair:
    """The stores of both policies: those of the base at each temperature, and that of the trained policy."""

    base: Sequence[Path]
    rl: Path
    out: Path

    @property
    def arms(self) -> tuple[str, str]:
        """The arms as `compare` takes them."""
        return f"base={','.join(map(str, self.base))}", f"rl={self.rl}"


@explained
def widen(
    base: str | Path | Run,
    rl: str | Path | Run,
    task: str | None = None,
    *,
    samples: int = 64,
    temperature: float = 1.0,
    base_temperatures: Sequence[float] = BASE_TEMPERATURES,
    out: str | Path | None = None,
    base_server: str | None = None,
    base_server_model: str | None = None,
    quiet: bool = False,
    say: Say | None = None,
    **options: Any,
) -> Comparison:
    """Sample both policies, compare them and write the page, as `sage-rlvr widen` does.

        widen("Qwen/Qwen2.5-0.5B", "runs/grpo", "rows.jsonl", samples=64, generator="vllm")

    Args:
        base: The policy before training: a model or adapter folder, a Hub id, a run.
        rl: The policy after training.
        task: The problems: a task by name, a recipe (.yaml) or a file of rows; None with the option world.
        samples: Samples of each problem.
        temperature: The temperature of the trained policy; the base is sampled at it too.
        base_temperatures: Further temperatures of the base.
        out: The folder of the stores and of the page (default: runs/widen/<base>-<rl>-<task>).
        base_server: The server of the base, if it is another than `server`.
        base_server_model: The base's name on its server.
        quiet: No progress.
        say: Receives messages meanwhile; by default they go to stderr.
        **options: Options of `sage-rlvr eval` for both policies: problems, generator, server, max_new_tokens, template, and so on.

    Returns:
        The `Comparison`, the base being the control. report.html is in `out`.

    Raises:
        ConfigError: For an unknown option, or options that cannot be combined.
        DataError: For problems or files that cannot be used.
    """
    sampled = sample_both(
        fspath(base), fspath(rl), task, samples=samples, temperature=temperature, base_temperatures=base_temperatures,
        out=None if out is None else Path(out), base_server=base_server, base_server_model=base_server_model, quiet=quiet,
        say=say or to_stderr, options=options,
    )  # fmt: skip
    comparison = compare({"base": list(sampled.base), "rl": sampled.rl}, samples=samples)
    write_page(comparison, sampled.out)
    return comparison


def sample_both(
    base: str, rl: str, task: str | None, *, samples: int, temperature: float, base_temperatures: Sequence[float], out: Path | None,
    base_server: str | None, base_server_model: str | None, quiet: bool, say: Say, options: Mapping[str, Any],
) -> SampledPair:  # fmt: skip
    """Sample the trained policy and then the base at each temperature, into stores that continue. Raise as `widen`."""
    for name in options:
        if name not in TAKEN:
            raise ConfigError(f"widen: unknown option {name!r}{choose_from(name, TAKEN)}")
    if task is None and options.get("world") is None:
        raise ConfigError("widen: which problems? pass --task ROWS.jsonl, a task by name or a recipe (.yaml)")
    if samples < 2:
        raise ConfigError(f"--samples {samples}: one sample of a problem shows no coverage; pass at least 2, better 64")
    if base == rl and base_server == options.get("server") and base_server_model == options.get("server_model"):
        raise ConfigError(f"BASE and RL are both {base}; pass the policy before training and the one after")
    given = base_server is not None or base_server_model is not None
    if given and options.get("generator") not in SERVERS:
        raise ConfigError("--base-server, --base-server-model: settings of --generator server or chat; add it")
    if out is None:
        out = RUNS / "widen" / "-".join(slug(Path(word).stem) for word in (base, rl, task or str(options["world"])))
    heats = list(dict.fromkeys((temperature, *base_temperatures)))
    of_base = {**options, "server_model": base_server_model, "server": base_server or options.get("server")}

    def store(policy: str, name: str, t: float, shared: Mapping[str, Any]) -> Path:
        path = out / "samples" / f"{name}-T{t:g}"
        say(f"widen: {name} ({policy}) at T = {t:g}")
        settings = EvalSettings(**{**shared, "task": task, "samples": samples, "temperature": t, "store": path})
        evaluation_of(policy, settings, quiet=quiet, say=say)
        return path

    trained = store(rl, "rl", temperature, options)
    return SampledPair([store(base, "base", t, of_base) for t in heats], trained, out)


