"""run.json: the record of a run, and the check that another start in the same directory is the same run."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sage_rlvr.errors import CheckpointError, ConfigError, DataError, SageError
from sage_rlvr.runs.checkpoints import FORMAT, steps_in, verify_checkpoint
from sage_rlvr.runs.files import METRICS, read_metrics, to_json, write_json_atomic
from sage_rlvr.safe_io import read_json

RECORD = "run.json"
STRETCHED = frozenset({"linear", "cosine", "cosine_cycles"})  # schedules that read how many steps a run has
UNBOUND = ("report_to",)  # keys of a recipe with which a run may be continued otherwise
_PATHS = ("data.path", "task.file", "task.test_file", "task.reward")  # recorded with their SHA-256
_SOURCE = re.compile(r"method(\.base)*\.source")  # of the reference; `base` is the method that another one wraps
_ANSWERS = re.compile(r"method(\.\w+)*\.extras\.\d+\.file")  # of a buffer
_OF_THE_RUN = re.compile(r"base|sft|snapshot@\d+")  # sources that name no policy of their own
_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "sage-rlvr")
_NUMBERS = {  # fields of /proc/cpuinfo on x86 and on ARM, and their printed names
    "cpu family": "family", "model": "model", "stepping": "stepping", "CPU implementer": "implementer", "CPU part": "part",
    "CPU variant": "variant", "CPU revision": "revision",
}  # fmt: skip
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16", "i8mm")
_UNKNOWN = "unknown"  # the processor of a run whose record is older than this key
_BINDING = ("torch", "transformers")  # a resume under other versions of these would not be the same run


def versions() -> dict[str, str]:
    """Return versions of Python, of this package and of the libraries that determine a run's numbers."""
    there = installed(_PACKAGES)
    libraries = {name.replace("-", "_"): there.get(name, "not installed") for name in _PACKAGES}
    return {"python": platform.python_version(), **libraries}


def installed(names: Sequence[str]) -> dict[str, str]:
    """Return name -> version of those packages that are installed."""
    by_name = {}
    for name in names:
        with suppress(PackageNotFoundError):
            by_name[name] = version(name)
    return by_name


def processor() -> str:
    """Return name, model numbers and vector instructions of the processor, on which the last bits of a product depend.

    On virtual machines different processors often have the same name.
    """
    try:
        return described_processor(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:  # no Linux
        return platform.processor() or platform.machine()


def described_processor(text: str) -> str:
    """Return the first processor of a file /proc/cpuinfo in one line."""
    known = {}
    for line in text.strip().partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        known[name.strip()] = value.strip()
    words = [known.get("model name") or platform.machine()]
    words += [f"{said} {known[name]}" for name, said in _NUMBERS.items() if name in known]
    able = known.get("flags", known.get("Features", "")).split()
    return " ".join([*words, *(name for name in _INSTRUCTIONS if name in able)])


@cache
def code_sha256() -> str:
    """Return the SHA-256 of this package's Python files, uncommitted changes included: it determines the numbers of one version."""
    folder, sha = Path(__file__).resolve().parents[1], hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        sha.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return sha.hexdigest()


def git_state() -> dict[str, Any] | None:
    """Return {"commit", "changed"} of the source tree this package runs from; None for an installed copy or without git."""
    folder = Path(__file__).resolve().parents[1]

    def ask(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", "errors.py")
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def now() -> str:
    """Return the time in UTC to the second, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def differences(old: Any, new: Any, key_path: str = "") -> dict[str, tuple[Any, Any]]:
    """Return dotted key path -> (old, new) of every leaf in which two plain trees differ; a missing leaf is "(absent)"."""
    both = (old, new)
    if all(isinstance(tree, list) and all(isinstance(one, dict) for one in tree) for tree in both) and len(old) == len(new):
        old, new = (dict(enumerate(tree)) for tree in both)  # parts in a list, as extras are
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new and type(old) is type(new) else {key_path: (old, new)}
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{key_path}.{key}" if key_path else str(key)
        changed |= differences(old.get(key, "(absent)"), new.get(key, "(absent)"), inner)
    return changed


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return `differences` of two resolved configurations in the keys that determine a run's numbers.

    A key that is null on one side and absent on the other is no difference: an optional part that is not set is recorded as null,
    and versions differ in the parts that a method can have.
    """
    changed = differences(binding(old), binding(new))
    return {key_path: pair for key_path, pair in changed.items() if pair not in ((None, "(absent)"), ("(absent)", None))}


def facts_of(config: Mapping[str, Any], kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json before a run's first step: recipe, data, versions, git, machine, time."""
    facts = {
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "kind": kind,
        "config": config,
        "data": data,
        "versions": versions(),
        "code": code_sha256(),
        "git": git_state(),
        "platform": platform.platform(),
        "processors": [processor()],  # in the order in which the run was trained on them
        "cpu_count": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "created": now(),
        "changes": [],
    }
    as_read_back: dict[str, Any] = json.loads(to_json(facts, "configuration"))  # text keys, lists
    return as_read_back


def agree(path: Path, new: dict[str, Any], fork: bool) -> dict[str, Any]:
    """Write run.json, or compare with the existing one; return the facts that hold from now on."""
    file = path / RECORD
    if not file.exists():
        if any((path / "checkpoints").glob("step-*")) or (path / METRICS).exists():
            raise CheckpointError(
                f"{file}: missing, although the directory contains results; restore the file or use another directory"
            )
        write_json_atomic(file, new)
        return new
    old = read_json(file, error=CheckpointError, advice="use another directory")
    if old.get("format") != FORMAT:  # before the rest, which another format has in another shape
        raise CheckpointError(
            f"{file}: format {old.get('format')!r}, made by {made_by(old)}, and this version continues runs of format {FORMAT}; "
            "continue it with that version, or use another directory"
        )
    old = read_record(path, _SHAPE, CheckpointError)
    changed, code = _binding_differences(old, new), _code_differences(old, new)
    before, wanted = changed.get("steps", (None, None))
    more = set(changed) == {"steps"} and isinstance(before, int) and wanted > before
    longer = more and not _stretched(old["config"])
    if (fork or set(changed) == {"steps"}) and isinstance(wanted, int) and wanted < (there := _steps_there(path)):
        raise ConfigError(
            f"{path}: steps: {changed['steps'][0]} -> {wanted}: {there} steps are already done according to its checkpoints and "
            "metrics.jsonl, and a run cannot get shorter, not even with --fork; use another directory (--run) for a shorter run"
        )
    if changed and not (longer or fork):
        other = f"The run was made by {made_by(old)} and this is {made_by(new)}" if code else ""
        raise ConfigError(_explain(path, changed, _stretched(old["config"]) if more else [], other))
    if code:
        listed = ", ".join(f"{key_path} {before} -> {now}" for key_path, (before, now) in code.items())
        warnings.warn(
            f"{path}: continued with another version of sage-rlvr ({listed}); its numbers may differ from those of a single version"
        )
    processors = _processors(path, old, new)
    if not (changed or code):
        if processors == old.get("processors"):
            return old
        facts = old | {"processors": processors}
        write_json_atomic(file, facts)
        return facts
    forked = bool(changed) and not longer
    change = {"at": now(), "fork": forked, "changed": {k: list(v) for k, v in (changed | code).items()}}
    facts = old | {key: new[key] for key in ("kind", "config", "data", "versions", "code", "git")} | {"processors": processors}
    facts["changes"] = [*old["changes"], change]
    write_json_atomic(file, facts)
    return facts


_SHAPE: dict[str, tuple[type, ...]] = {
    "config": (dict,), "data": (dict,), "versions": (dict,), "kind": (str,), "changes": (list,),
    "git": (dict, type(None)), "warnings": (list,), "processors": (list,), "id": (str,), "code": (str,),
}  # fmt: skip
_OPTIONAL = ("git", "warnings", "processors", "id", "code")
_WARNING: dict[str, type] = {"kind": str, "step": int, "message": str}


def run_id(run: Path) -> str | None:
    """Return the identity of a run in the manifest of its policy; None if the folder is not a run directory.

    It stays the same if the run is continued, with more steps or as a fork.
    """
    return read_record(run).get("id") if is_run(run) else None


def is_run(path: Path) -> bool:
    """Return True if this is a run directory."""
    return (path / RECORD).is_file()


def read_record(
    run: Path, needs: Iterable[str] = ("config",), error: type[SageError] = DataError, advice: str = "use another directory"
) -> dict[str, Any]:
    """Return the run.json of a run directory, checked. needs: required keys; every existing key has its type.

    Otherwise raise `error`, with the key. All readers of a run's record use this function, so that none has to check again.
    """
    file = run / RECORD
    facts: dict[str, Any] = read_json(file, error=error, advice=advice)
    if fault := next(_faults(facts, needs), None):
        raise error(f"{file}: {fault}; {advice}")
    return facts


def _faults(facts: Mapping[str, Any], needs: Iterable[str]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in needs if name not in facts and name not in _OPTIONAL)
    for name, kinds in _SHAPE.items():
        if name in facts and not isinstance(facts[name], kinds):
            yield f"{name} has an unexpected type for a run record"
    for number, one in enumerate(facts.get("warnings", ())):
        if not _is_warning(one):
            yield f"warnings.{number} has an unexpected type for a run record"
    if not all(isinstance(one, str) for one in facts.get("processors", ())):
        yield "processors has an unexpected type for a run record"
    for name in ("steps", "seed"):
        if type(facts.get("config", {}).get(name, 0)) is not int:
            yield f"config.{name} is not a whole number"


def _is_warning(one: Any) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(name), kind) for name, kind in _WARNING.items())


def _whole(checkpoint: Path) -> bool:
    try:
        verify_checkpoint(checkpoint)
    except (CheckpointError, OSError):
        return False  # going on from the others says what is wrong with it
    return True


def _steps_there(path: Path) -> int:
    """Return the number of steps of a run directory, by its complete checkpoints and the rows of its metrics."""
    saved = [number for checkpoint, number in steps_in(path / "checkpoints").items() if _whole(checkpoint)]
    logged = [int(row["step"]) + 1 for row in read_metrics(path, 0)]
    return max([0, *saved, *logged])


def binding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved configuration without the keys that do not change a run's numbers."""
    return {key: value for key, value in config.items() if key not in UNBOUND}


def _binding_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    changed = config_differences(old["config"], new["config"])
    changed |= differences({"kind": old["kind"], "data": old["data"]}, {"kind": new["kind"], "data": new["data"]})
    changed = {key_path: pair for key_path, pair in changed.items() if not _only_moved(key_path, pair, old["data"], new["data"])}
    before, now = ({name: facts["versions"].get(name) for name in _BINDING} for facts in (old, new))
    return changed | differences(before, now, "versions")


def _only_moved(key_path: str, pair: tuple[Any, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if a difference is only the place of a file or policy, with the same content by the hashes of both records."""
    known = _content(key_path, old)
    if not known or known != _content(key_path, new):
        return False
    if _SOURCE.fullmatch(key_path):
        return not any(_OF_THE_RUN.fullmatch(str(value)) for value in pair)
    names = {Path(value).name if isinstance(value, str) else value for value in pair}
    return len(names) == 1 or key_path in ("model", "base_model") or key_path.startswith("data.data.")


def _content(key_path: str, data: Mapping[str, Any]) -> Any:
    """Return the recorded hashes of a path at a place of the configuration, or of a key of the files; None if it is not a path."""
    if key_path == "model":
        return data.get("model_sha256")
    if key_path == "base_model":
        return (data.get("reference") or {}).get("sha256")
    if _SOURCE.fullmatch(key_path):  # a reference that is the model itself has no hash of its own
        return (data.get("reference") or {}).get("sha256", data.get("model_sha256"))
    if key_path in _PATHS or _ANSWERS.fullmatch(key_path) or key_path.startswith("data.data."):
        files = data.get("data") or {}
        return sorted((Path(name).name, str(digest)) for name, digest in files.items()) if isinstance(files, Mapping) else None
    return None


def _code_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return differences of this package's version, the hash of its code and, if the code differs, the commit.

    They cause a warning and an entry in `changes`, never an error.
    """
    name = "sage_rlvr"
    changed = differences(old["versions"].get(name), new["versions"].get(name), f"versions.{name}")
    code = differences(old.get("code", "(absent)"), new["code"], "code")
    commits = [(facts.get("git") or {}).get("commit") for facts in (old, new)]
    return changed | code | (differences(*commits, "git.commit") if code and all(commits) else {})


def made_by(facts: Mapping[str, Any]) -> str:
    """Return the version that made a run, such as "sage-rlvr 0.1.0 (commit 1a2b3c4d)", as far as its record has it."""
    parts = {name: facts[name] for name in ("versions", "git") if isinstance(facts.get(name), dict)}
    own, commit = parts.get("versions", {}).get("sage_rlvr"), parts.get("git", {}).get("commit")
    if own is None:
        return "an unknown version of sage-rlvr"
    if commit:
        return f"sage-rlvr {own} (commit {str(commit)[:8]})"
    return f"sage-rlvr {own} (code {str(facts['code'])[:8]})" if facts.get("code") else f"sage-rlvr {own}"


def _processors(path: Path, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the processors that the run was trained on, with this one if steps are left. Warn if the last one was another."""
    known: list[str] = old.get("processors", [_UNKNOWN])
    here = new["processors"][0]
    if known[-1] == here or len(read_metrics(path, 0)) >= int(new["config"].get("steps", 0)):
        return known
    if known[-1] != _UNKNOWN:
        warnings.warn(f"{path}: continued on another processor ({known[-1]} -> {here}); the last bits of its numbers may differ")
    return [*known, here]


def _stretched(config: Mapping[str, Any]) -> list[str]:
    """Return the settings of a resolved configuration that depend on the total number of steps, as "optimizer.schedule = linear".

    A run that gets more steps later would not end like a run that had them from the start.
    """
    rate = config.get("optimizer", {}).get("schedule", "constant")
    settings = [] if rate == "constant" else [f"optimizer.schedule = {rate}"]
    return settings + _schedules(config.get("method"), "method")


def _schedules(tree: Any, key_path: str) -> list[str]:
    if isinstance(tree, list):
        return [line for n, item in enumerate(tree) for line in _schedules(item, f"{key_path}.{n}")]
    if not isinstance(tree, Mapping):
        return []
    here = [f"{key_path} = {tree['name']}"] if tree.get("name") in STRETCHED else []
    return here + [line for key, item in tree.items() for line in _schedules(item, f"{key_path}.{key}")]


def _explain(path: Path, changed: Mapping[str, tuple[Any, Any]], stretched: list[str], other: str) -> str:
    """Return the message of the error. other: which versions made the run and continue it, "" if the code is the same."""
    lines = "".join(f"\n  {key_path}: {json.dumps(old)} -> {json.dumps(new)}" for key_path, (old, new) in changed.items())
    advice = "Use the recipe of the existing run, or another directory (only more steps would be allowed)"
    if stretched:
        advice = (
            f"More steps would change the existing ones, because {', '.join(stretched)} depends on the total number of "
            "steps; use another directory for a longer run"
        )
    elif set(changed) == {"steps"}:
        advice = "A run can get more steps but not fewer; use another directory for a shorter run"
    elif other:
        advice = f"{other}: use the recipe of the run with that version, or another directory"
    return f"{path}: this directory contains another run:{lines}\n{advice}; --fork continues it under the new settings."
