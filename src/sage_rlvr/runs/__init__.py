"""Run directories: configuration, metrics, checkpoints, and interruption.

Read run_dir.py first (`RunDir`, the files that a run reads and writes), then record.py (run.json, and when a restart is the same
run), checkpoints.py, files.py (atomic writes) and interrupts.py (stopping after the current step).

    run.json               what was run: resolved configuration, versions, git state, platform, processors, warnings
    metrics.jsonl          one strict-JSON line per step; keys under "time/" are exempt from bitwise equality
    checkpoints/step-000050/   safetensors and JSON, MANIFEST.json (sizes and SHA-256) written last
    lock, lock.owner.json  the operating system's lock, and its holder

Killed at any instant, a run continues from its last complete checkpoint; rows of metrics after it are dropped and computed
again.
"""

from sage_rlvr.runs.checkpoints import MANIFEST, Checkpoint, newest_complete, seal, verify_checkpoint
from sage_rlvr.runs.files import (
    comparable,
    file_sha256,
    jsonable,
    read_metrics,
    replacing,
    replacing_folder,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
    writing,
)
from sage_rlvr.runs.interrupts import StopFlag
from sage_rlvr.runs.record import (
    RECORD,
    config_differences,
    differences,
    git_state,
    installed,
    is_run,
    read_record,
    versions,
)
from sage_rlvr.runs.run_dir import DEAD_STEPS, FIRST_DEAD_STEPS, RunDir

__all__ = [
    "DEAD_STEPS",
    "FIRST_DEAD_STEPS",
    "MANIFEST",
    "RECORD",
    "Checkpoint",
    "RunDir",
    "StopFlag",
    "comparable",
    "config_differences",
    "differences",
    "file_sha256",
    "git_state",
    "installed",
    "is_run",
    "jsonable",
    "newest_complete",
    "read_metrics",
    "read_record",
    "replacing",
    "replacing_folder",
    "seal",
    "verify_checkpoint",
    "versions",
    "write_bytes_atomic",
    "write_json_atomic",
    "write_text_atomic",
    "writing",
]
