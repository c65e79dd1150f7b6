"""`push`: upload the policy of a run to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.extras import explained
from sage_rlvr.models.folders import NAMED, adapter_base
from sage_rlvr.runs import is_run, write_text_atomic

if TYPE_CHECKING:
    from sage_rlvr.api.compare import Comparison
    from sage_rlvr.api.train import Run


@explained
def push(
    run: str | PathLike[str] | Run, repo: str, *, private: bool = False, results: Comparison | Sequence[str] = ()
) -> str:
    """Upload the trained policy of a run and its model card to the Hub, as `sage-rlvr push` does.

        push("runs/maxrl", "owner/maxrl")

    The repository is created if needed. The Hub's token comes from `hf auth login` or HF_TOKEN.

    Args:
        run: A finished run of any engine: its directory, or the result of `train`. Or a policy folder with a card.
        repo: The repository, owner/name.
        private: Create the repository as a private one.
        results: The evaluations of the base and of this policy, as arms of `compare`, or their comparison. The card gets the
            verdict, and pass@k with intervals as the metadata that the Hub displays.

    Returns:
        The URL of the commit.

    Raises:
        ConfigError: If there is no policy or card, or the Hub rejects the upload.
        DataError: If the evaluations cannot be compared.
    """
    from sage_rlvr.api.compare import Comparison, compare
    from sage_rlvr.models.hashes import README
    from sage_rlvr.training.state import POLICY_FILES  # torch

    folder = policy_to_push(Path(run))
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ConfigError(f"{repo!r}: write the repository of the Hub as owner/name")
    if results:
        found = results if isinstance(results, Comparison) else compare(*results)
        write_results(folder / README, found, repo.partition("/")[2])
    from huggingface_hub import HfApi  # of the extra train
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=[*POLICY_FILES, README],  # no other files from this folder
            commit_message=f"Policy of {Path(run).name}",
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:  # OSError: no token, no network
        raise ConfigError(
            f"{repo}: the upload failed: {type(error).__name__}: {str(error).strip()[:300]}. Log in with `hf auth login` as "
            "somebody who may write there, then run the same command again"
        ) from error
    return str(commit)


def write_results(card: Path, found: Comparison, name: str) -> None:
    """Write the results of a comparison into a model card, instead of earlier ones."""
    from sage_rlvr.api.card import with_results

    with found.results.believed():
        made = with_results(card.read_text(encoding="utf-8"), found.results, found.findings, name)
    write_text_atomic(card, made)


def policy_to_push(run: Path) -> Path:
    """The policy folder of a run with all files for an upload. Raises ConfigError with the missing ones."""
    from sage_rlvr.models.hashes import README

    folder = run / "policy" if is_run(run) else run
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        again = suggest("train", "RECIPE", "--run", run)
        raise ConfigError(f"{folder}: contains no policy; if the run has not finished, continue it with: {again}")
    if not (folder / README).is_file():
        raise ConfigError(f"{folder / README}: there is no model card; `train` writes one. Write your own, then push again")
    base = adapter_base(folder)
    if base is not None and (base in NAMED or Path(base).exists()):
        raise ConfigError(
            f"{folder}: is an adapter on the local model {base}, which nobody else has; push that model, and set "
            "base_model_name_or_path in adapter_config.json to its Hub id"
        )
    return folder
