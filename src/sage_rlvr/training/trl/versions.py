"""The release of TRL that was tested, and what to do where TRL is missing or is another one. Imports nothing of the package."""

TESTED = "1.16.0"  # the newest TRL that the tests ran with, which is that of constraints.txt
INSTALL_TESTED = f"install TRL {TESTED}, the newest version that was tested: pip install 'trl=={TESTED}'"


def require_trl() -> None:
    """ModuleNotFoundError that says how to install TRL, where it is missing."""
    try:
        import trl  # noqa: F401  # whether it is there: this package works without it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("sage_rlvr.trl needs TRL; run: pip install 'sage-rlvr[trl]'", name="trl") from error
