"""SHA-256 of the files of a policy: known hashes are compared when it is read.

Hashes are known for policies that this package saved (MANIFEST.json in their folder), for TRL's checkpoints of a run, and for
converted models in the cache (made.json). The hash of a large file is computed once: it is kept in the cache folder with the
file's path, inode, size and times, and computed again if one of them differs. Damage that changes no time (a failing disk) is
therefore found only until the first reading.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sage_rlvr.errors import CheckpointError, ConfigError, SageError
from sage_rlvr.models.weights import ADAPTER
from sage_rlvr.runs.checkpoints import MANIFEST, compare_files
from sage_rlvr.runs.files import file_sha256, write_json_atomic
from sage_rlvr.runs.record import run_id
from sage_rlvr.safe_io import MIB, read_json, understood
from sage_rlvr.tasks.pinned import cache_folder

README = "README.md"
NO_RESULTS = "This card contains no evaluation; for pass@k with intervals run `sage-rlvr eval` and `sage-rlvr compare`."
"""The last line of a card until `push --results` puts an evaluation in its place."""
CARD = "# What this policy was trained on"  # the heading of a model card that this package wrote
WEIGHTS = "*.safetensors"
TEMPLATE = "chat_template.jinja"
BESIDE = (
    *("config.json", "generation_config.json", "model.safetensors.index.json", ADAPTER),
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", TEMPLATE),
    *("vocab.json", "vocab.txt", "merges.txt"),
)
"""Files besides the weights that `save_pretrained` writes and loaders read."""
LOADED = (WEIGHTS, *BESIDE, "spiece.model", "tekken.json", "chat_template.json", "additional_chat_templates/*")
"""Files that change what is loaded from a folder: one that was added later does not belong to the saved policy."""
LARGE = 16 * MIB  # bytes from which on a hash is kept: a smaller file is hashed in some 20 ms
SETTLED_S = 2.0  # a file that changed within this time may change again with equal times, so its hash is not kept


def cached_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file; for an unchanged large one from the cache."""
    file = Path(path)
    before = _state(file)
    if before is None or before["size"] < LARGE:
        return file_sha256(file)
    kept = cache_folder() / "hashes" / f"{hashlib.sha256(before['path'].encode()).hexdigest()[:32]}.json"
    with suppress(SageError):  # none, or a damaged one: hashed again
        known = read_json(kept)
        if known == {**before, "sha256": known.get("sha256")}:
            return str(known["sha256"])
    began = time.time()
    sha256 = file_sha256(file)
    changed = max(before["mtime_ns"], before["ctime_ns"]) / 1e9
    if changed + SETTLED_S < began and _state(file) == before:
        with suppress(OSError, SageError):  # a cache that cannot be written costs time only
            write_json_atomic(kept, {**before, "sha256": sha256})
    return sha256


def _state(file: Path) -> dict[str, Any] | None:
    """Return facts that change with a file's content; None if it cannot be read."""
    try:
        home, about = file.resolve(), os.stat(file)
    except OSError:
        return None
    times = {"mtime_ns": about.st_mtime_ns, "ctime_ns": about.st_ctime_ns}
    return {"path": os.fsencode(home).decode("utf-8", "backslashreplace"), "inode": about.st_ino, "size": about.st_size, **times}


def check_hashes(folder: Path, *, weights: bool = True) -> None:
    """Raise ConfigError if the files of a policy are not those of its manifest, or the manifest is of another run.

    weights: False if only files besides the weights are read, such as the tokenizer. A folder without a manifest, such as one
    that transformers saved, passes: its hashes are not known. If this package made the policy, a warning states that the manifest
    is missing. A chat template may be changed or added on purpose, so another one only warns.
    """
    file, here = folder / MANIFEST, run_id(folder.parent)
    if not file.is_file():
        if (here is not None and folder.name == "policy") or _has_card(folder):
            warnings.warn(
                f"{folder}: this policy was saved with a {MANIFEST}, which is missing, so its files are not checked for damage; "
                "restore it from a copy, or ignore this if you changed the policy on purpose",
                stacklevel=2,
            )
        return
    way = (
        "restore the file from a copy, or train again; if you changed the policy on purpose, "
        f"delete {file}, after which nothing is checked"
    )
    manifest = read_json(file, error=ConfigError, advice=way)
    try:
        with understood(file, ConfigError, way):
            known = {name: facts for name, facts in manifest["files"].items() if weights or not Path(name).match(WEIGHTS)}
            _compare_template(folder, {name: known.pop(name) for name in (TEMPLATE,) if name in known})
            loaded = [name for name in LOADED if name != TEMPLATE and (weights or name != WEIGHTS)]
            compare_files(folder, known, loaded, sha256=cached_sha256)
    except CheckpointError as error:
        raise ConfigError(f"{error}; {way}") from error
    of = manifest.get("run")
    if here is not None and of != here and "step" not in manifest:  # checkpoints name their step instead
        raise ConfigError(
            f"{file}: run = {of!r}, but {folder.parent} is run {here!r}, so these are the weights of another run; "
            "move them back, or run the command of this run again, which writes its policy again"
        )


def _compare_template(folder: Path, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of a chat template that is not the one with which the policy was saved."""
    try:
        compare_files(folder, known, (TEMPLATE,))
    except CheckpointError as error:
        warnings.warn(
            f"{error}; prompts are rendered by the template that is there. Restore or remove it unless it is meant (earlier "
            "versions did not list templates)",
            stacklevel=3,
        )


def _has_card(folder: Path) -> bool:
    """Return True if a folder has the card of a policy that this package saved."""
    try:
        return CARD in (folder / README).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
