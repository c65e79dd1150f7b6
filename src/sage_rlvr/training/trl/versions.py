"""The release of TRL that was tested, and what to do where TRL is missing or is another one. Imports nothing that needs TRL."""

from sage_rlvr.extras import install

TESTED = "1.16.0"  # the newest TRL that the tests ran with, which is that of constraints.txt
INSTALL_TESTED = f"install TRL {TESTED}, the newest version that was tested: pip install 'trl=={TESTED}'"


def require_trl() -> None:
    """Raise ModuleNotFoundError with the command that installs TRL, if it is missing."""
    try:
        import trl  # noqa: F401  # whether it is there: this package works without it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"sage_rlvr.trl needs TRL; {install('trl')}", name="trl") from error
