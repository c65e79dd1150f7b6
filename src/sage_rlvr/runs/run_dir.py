"""The run directory: resolved configuration, lock, checkpoints, metrics."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from sage_rlvr.errors import UNJUDGED, CheckpointError, ConfigError, DataError, RunLocked, SageError
from sage_rlvr.runs.checkpoints import STATE, Checkpoint, metrics_rows, newest_complete, save_checkpoint, steps_in
from sage_rlvr.runs.files import (
    METRICS,
    count_lines,
    jsonable,
    read_metrics,
    sweep,
    sync_file,
    to_json,
    write_json_atomic,
    write_text_atomic,
)
from sage_rlvr.runs.record import RECORD, agree, facts_of, now
from sage_rlvr.safe_io import LINES, read_bytes, read_json

if TYPE_CHECKING:
    from torch import Tensor

LOCK, OWNER, CHECKPOINTS = "lock", "lock.owner.json", "checkpoints"
DEAD_STEPS = 20  # steps without a single living group, after which a run says so
FIRST_DEAD_STEPS = 5  # likewise of the first steps of a run, which may have no reward at all
UNJUDGED_STEPS = 3  # first steps of a run in which no completion could be judged, after which it stops
UNDECIDED, BY_POLICY = "verifier/undecided_frac", "self_reward/mean"


class RunDir:
    """The directory of one run, locked by one process. Open with `RunDir.open`, preferably in a `with` statement."""

    def __init__(
        self, path: Path, lock: FileLock, facts: dict[str, Any], keep: int, fresh: bool = False, made: bool = False
    ):
        self.path, self.facts, self.keep, self._lock = path, facts, keep, lock
        self._fresh, self._made = fresh, made  # whether this start made the record, and the folder itself
        self._dead = self._unjudged = 0
        self._judged = False  # whether any completion was, since this start
        self.logged = -1  # newest step that an earlier start has logged; known after `truncate_metrics`

    # ---- opening and closing

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        kind: str = "train",
        fork: bool = False,
        data: Mapping[str, Any] | None = None,
    ) -> RunDir:
        """Create a run directory, or reopen one to continue it.

        Args:
            path: the directory.
            config: the resolved configuration as a plain tree (`config.dump`).
            kind: "train", "sft", "eval".
            fork: continue under a changed configuration, which run.json then records.
            data: further facts a resume must agree on, such as hashes of the model and the problems.

        Raises:
            RunLocked: a running process has locked the directory.
            ConfigError: it contains another run; the message has every difference. Only more `steps` are allowed, if nothing in the
                recipe depends on their total number.
            CheckpointError: run.json is unreadable.
        """
        path = Path(path)
        made, fresh, locked = not path.exists(), not (path / RECORD).exists(), (path / LOCK).exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        lock = _take_lock(path)
        try:
            facts = agree(path, facts_of(config, kind, data or {}), fork)
            sweep(path)
            sweep(path / CHECKPOINTS)
            return cls(path, lock, facts, int(config.get("checkpoint", {}).get("keep", 2)), fresh, made)
        except BaseException:
            _give_back(path, lock, leave=locked)
            if made:
                _remove_if_empty(path)
            raise

    def close(self, leave: bool = True) -> None:
        """Release the directory; a second call does nothing. leave: True keeps the file of the lock."""
        if self._lock.is_locked:
            _give_back(self.path, self._lock, leave)

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refused = isinstance(error, SageError) and self._is_untouched()
        if refused:  # a start that was refused claims no directory
            (self.path / RECORD).unlink(missing_ok=True)
        self.close(leave=not refused)
        if refused and self._made:
            _remove_if_empty(self.path)

    def _is_untouched(self) -> bool:
        """Return True if this start found no run here and has made nothing."""
        made = [p for p in self.path.iterdir() if p.name not in (RECORD, LOCK, OWNER)]
        return self._fresh and not any(not p.is_dir() or any(p.iterdir()) for p in made)

    # ---- checkpoints

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int | None = None
    ) -> Checkpoint:
        """Write a checkpoint atomically, verify it, then delete older ones beyond `keep`. The manifest notes the number of metrics
        rows.

        Args:
            step: number of finished steps.
            tensors: group -> name -> tensor, one safetensors file per group.
            state: strict JSON.
            keep: default checkpoint.keep of the configuration.

        Raises:
            CheckpointError: full disk, read-only folder; the former checkpoints are untouched.
            DataError: a state that JSON cannot represent.
        """
        rows = 0
        if self.metrics_path.exists():
            sync_file(self.metrics_path)  # rows that the checkpoint counts must not be lost after it
            rows = count_lines(self.metrics_path)
        home = save_checkpoint(self.path / CHECKPOINTS, step, tensors, state, self.keep if keep is None else keep, rows)
        return Checkpoint(step, home, read_json(home / STATE, error=CheckpointError))

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None if there never was one.

        Damaged ones are reported (a warning that names file and reason) and skipped; CheckpointError if all are.
        """
        steps = steps_in(self.path / CHECKPOINTS)
        newest = newest_complete(list(steps))
        return None if newest is None else Checkpoint(steps[newest], newest, read_json(newest / STATE, error=CheckpointError))

    # ---- metrics

    @property
    def metrics_path(self) -> Path:
        """The file with one line of metrics per step."""
        return self.path / METRICS

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row, flushed to the system. `row["step"]` is the step's number from 0.

        Raises DataError without such a step, CheckpointError if the file cannot be written.
        """
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise DataError(f"metrics row: step = {step!r}: every row needs the whole number of its step")
        line = to_json(jsonable(row), f"metrics row of step {step}") + "\n"
        try:
            with open(self.metrics_path, "a", encoding="utf-8") as handle:
                handle.write(line)
        except OSError as error:
            raise CheckpointError(
                f"{self.metrics_path}: cannot append a row: {error.strerror}. Fix this, then run the same command "
                f"again to continue from the last checkpoint"
            ) from error
        self._warn_of_zero_variance(row)
        self._look_at_undecided(row)

    def _look_at_undecided(self, row: Mapping[str, Any]) -> None:
        """Raise DataError if no completion was judged in the first steps."""
        share = row.get(UNDECIDED)
        if share is None or BY_POLICY in row:  # the policy pays itself there, and the verifier only watches
            return
        self._unjudged += share == 1
        self._judged = self._judged or share < 1
        if self._unjudged == UNJUDGED_STEPS and not self._judged:
            raise DataError(f"{self.path}: no completion could be judged in the first {UNJUDGED_STEPS} steps. {UNJUDGED}")

    def check_judged(self) -> None:
        """Raise DataError if a run has ended and not one of its completions could be judged."""
        rows = read_metrics(self.path)
        shares = [row[UNDECIDED] for row in rows if UNDECIDED in row and BY_POLICY not in row]
        if shares and all(share == 1 for share in shares):
            raise DataError(f"{self.path}: no completion of this run could be judged, so there was no training signal. {UNJUDGED}")

    def _warn_of_zero_variance(self, row: Mapping[str, Any]) -> None:
        """Warn once if DEAD_STEPS steps in a row had no group with both correct and wrong completions.

        Of a run's first steps only after FIRST_DEAD_STEPS.
        """
        self._dead = self._dead + 1 if row.get("reward/zero_variance_frac") == 1 else 0
        limit = FIRST_DEAD_STEPS if self._dead == row["step"] + 1 else DEAD_STEPS
        if self._dead != limit:
            return
        rewards = {0: ": every reward was 0", 1: ": every reward was 1"}.get(row.get("reward/mean", math.nan), "")
        self.warn(
            "zero-variance groups",
            row["step"],
            f"step {row['step']}: in the last {limit} steps no group had two different rewards{rewards}, so every advantage was 0"
            f"{self._moved_without_signal(row)}. Likely causes: problems that are too hard or too easy, an answer format "
            "that the verifier cannot parse (sage-rlvr verify, sage-rlvr audit), or completions truncated at the length limit",
        )

    def _moved_without_signal(self, row: Mapping[str, Any]) -> str:
        """Return the effect of steps without a single advantage, as the end of a sentence."""
        skip = self.facts["config"].get("updates", {}).get("skip_without_signal", "never")
        left_out = skip == "always" or (skip == "at_start" and self._dead == row["step"] + 1)
        signal = 1 - row.get("advantage/no_signal_frac", 1.0)  # above 0 with a loss term or stored answers
        if left_out and not signal and "advantage/no_signal_frac" in row:  # not a metric on verl
            return f", and no update was made (updates.skip_without_signal: {skip})"
        if "kl/to_reference" not in row or signal:
            return ""
        return (
            " and only the KL term acted, whose gradient AdamW scales up to steps of full size, however small it is "
            "(updates.skip_without_signal)"
        )

    def warn(self, kind: str, step: int, message: str) -> None:
        """Issue a UserWarning of step `step`; the first of each kind is stored in run.json for reports."""
        warnings.warn(message, UserWarning, stacklevel=4)
        kept = self.facts.get("warnings", [])
        if kind not in {one["kind"] for one in kept}:
            self._keep_warnings([*kept, {"kind": kind, "step": step, "message": message}])

    def _keep_warnings(self, kept: list[dict[str, Any]]) -> None:
        if kept != self.facts.get("warnings", []):
            self.facts["warnings"] = kept
            write_json_atomic(self.path / RECORD, self.facts)

    def truncate_metrics(self, step: int) -> int:
        """Drop the rows that will be computed again, and an incomplete last line, before the run continues from `step`.

        Keeps the rows of steps below `step`, as many as its checkpoint recorded in the manifest. A row that was lost since then
        becomes {"step": n} with a warning. Returns the number of dropped rows. The file is replaced atomically.
        """
        self._keep_warnings([one for one in self.facts.get("warnings", []) if one["step"] < step])
        there, rows = self.metrics_path.exists(), read_metrics(self.path, step)
        self.logged = max((row["step"] for row in rows), default=-1)
        count = metrics_rows(self.path / CHECKPOINTS, step)
        kept = [row for row in rows if row["step"] < step][:count]
        filled = self._with_lost(kept, step, count)
        text = "".join(to_json(row, "metrics row") + "\n" for row in filled)
        if (there or filled) and not (there and text.encode() == read_bytes(self.metrics_path, LINES)):
            write_text_atomic(self.metrics_path, text)
        return len(rows) - len(kept)

    def _with_lost(self, kept: list[dict[str, Any]], step: int, count: int | None) -> list[dict[str, Any]]:
        """Return the rows, with {"step": n} for each that existed at the checkpoint of `step` and is lost; warn which."""
        if len(kept) == count or (count is None and (kept or not step)):  # where it is not known how many, only none is too few
            return kept
        gone = sorted(set(range(step)) - {row["step"] for row in kept})
        lost = gone if count is None or len(gone) == count - len(kept) else []  # else there was not one row per step
        known = "" if count is None else f"{count} rows existed at step {step}, {len(kept)} are left; "
        which = ", ".join(map(str, lost[:5])) + ", ..." * (len(lost) > 5)
        detail = f"the numbers of step {which} are lost" if lost else "the others are lost"
        warnings.warn(f"{self.metrics_path}: {known}{detail}; restore the file from a copy if possible", stacklevel=3)
        return sorted([*kept, *({"step": number} for number in lost)], key=lambda row: row["step"])


def _take_lock(path: Path) -> FileLock:
    lock = FileLock(path / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunLocked(
            f"{path}: {_owner(path)} is writing to this run directory. Wait for it, stop it, or use another "
            f"directory; the lock is released when that process ends"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RunLocked(f"{path}: cannot take a lock here ({error}); put the run directory on a local disk") from error
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
    try:
        write_json_atomic(path / OWNER, owner)
    except OSError as error:
        lock.release()
        raise _unwritable(path, error) from error
    return lock


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot create a run here: {error.strerror}; use a writable folder")


def _owner(path: Path) -> str:
    try:
        owner = read_json(path / OWNER)
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (DataError, KeyError):  # it is just starting and has not signed yet
        return "another process"


def _give_back(path: Path, lock: FileLock, leave: bool = True) -> None:
    """Release the lock; leave: True keeps its file."""
    with contextlib.suppress(OSError):  # a full or vanished disk must not keep the lock
        (path / OWNER).unlink(missing_ok=True)
        if not leave:
            (path / LOCK).unlink(missing_ok=True)
    lock.release()


def _remove_if_empty(path: Path) -> None:
    """Remove a folder that a failed start made, with the empty folders in it."""
    with contextlib.suppress(OSError):  # somebody has put something there
        for folder in [p for p in path.iterdir() if p.is_dir()]:
            folder.rmdir()
        path.rmdir()
