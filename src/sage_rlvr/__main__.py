"""`python -m sage_rlvr` is the command `sage-rlvr`."""

from sage_rlvr.cli.app import main

if __name__ == "__main__":
    main()
