"""verl's PPO trainers with a guide on the reference, and with the advantages of this package.

Entry points: `python -m sage_rlvr.verl`, and recipes with `engine: {name: verl}`. Read trainer.py first (the two
methods of verl that are overridden), then objective.py and fields.py (a `Method` as fields of verl's configuration),
terms.py (fields of verl that no method has), batch.py, reward.py and validation.py (pass@k). run.py and launch.py start a run;
convert.py exports a checkpoint.

`fields`, `terms` and `arguments` work without verl installed; the other modules need the verl extra.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from sage_rlvr.errors import ConfigError
from sage_rlvr.extras import install

TESTED = "0.9.1"  # the newest verl that the tests ran with, which is that of constraints-verl.txt
SERIES = ("0", "9")
INSTALL = f"install verl>=0.9,<0.10 (tested: {TESTED}) in an environment without TRL; {install('verl')}"


def require_verl() -> None:
    """ConfigError for a verl of another series, before any of it is imported; ModuleNotFoundError where it is missing. Both say how
    to install it."""
    try:
        installed = version("verl")
    except PackageNotFoundError:
        installed = ".".join(SERIES)  # missing, or a source tree on the path: the imports decide
    if tuple(installed.split(".")[:2]) != SERIES:
        raise ConfigError(f"verl {installed} is not structured as in 0.9; {INSTALL}")
    try:
        import transfer_queue  # noqa: F401
        import verl  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"sage_rlvr.verl needs verl ({error}); {INSTALL}", name="verl") from error


__all__ = ["INSTALL", "TESTED", "require_verl"]
